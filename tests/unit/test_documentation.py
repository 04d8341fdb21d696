"""What the documentation says is what the code does."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import profile_reference
import pytest
import yaml
from ansible.module_utils.ironserve import yaml_text
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.profiles import Source, merge

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (ROOT / "library").glob("*.py"))
ACTIONS = sorted(path.stem for path in (ROOT / "plugins" / "action").glob("*.py"))
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


class CapturedError(Exception):
    """Carries the argument spec out of a module's main()."""


def argument_spec(name: str, monkeypatch) -> dict:
    module = importlib.import_module(name)

    def capture(argument_spec, **_):
        raise CapturedError(argument_spec)

    monkeypatch.setattr(module, "AnsibleModule", capture)
    with pytest.raises(CapturedError) as caught:
        module.main()
    return caught.value.args[0]


@pytest.mark.parametrize("name", MODULES)
def test_a_modules_page_has_the_options_of_its_argument_spec(name, monkeypatch):
    documented = yaml.safe_load(importlib.import_module(name).DOCUMENTATION)["options"]
    spec = argument_spec(name, monkeypatch)
    assert set(documented) == set(spec)
    for option, said in spec.items():
        page = documented[option]
        for key in ("type", "required", "choices", "elements"):
            assert page.get(key) == said.get(key), f"{option}: {key}"
        if "default" in said:
            assert page["default"] == said["default"], option
        assert page["description"]


@pytest.mark.parametrize("name", MODULES)
def test_a_modules_page_is_complete(name):
    module = importlib.import_module(name)
    page = yaml.safe_load(module.DOCUMENTATION)
    assert page["module"] == name
    assert page["attributes"]["check_mode"]["support"] == "full"
    examples = yaml.safe_load(module.EXAMPLES)
    assert any(name in task for task in examples)
    for key, value in yaml.safe_load(module.RETURN).items():
        assert value["description"], key
        assert value["type"], key


@pytest.mark.parametrize("name", [name for name in ACTIONS if name not in MODULES])
def test_an_action_without_a_module_documents_itself(name):
    text = (ROOT / "plugins" / "action" / f"{name}.py").read_text()
    for part in ("DOCUMENTATION", "EXAMPLES", "RETURN"):
        found = re.search(rf'^{part} = r"""(.*?)"""', text, re.MULTILINE | re.DOTALL)
        assert found, part
        assert yaml.safe_load(found[1])


@pytest.mark.parametrize("role", ROLES)
def test_a_roles_defaults_are_those_of_its_spec_and_its_readme_names_them(role):
    folder = ROOT / "roles" / role
    specs = yaml.safe_load((folder / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    defaults = yaml.safe_load((folder / "defaults" / "main.yml").read_text()) or {}
    options = {name: option for entry in specs.values() for name, option in entry["options"].items()}
    assert defaults == {name: option["default"] for name, option in options.items() if "default" in option}
    readme = (folder / "README.md").read_text()
    assert [name for name in options if f"`{name}`" not in readme] == []
    assert all(option["description"] for option in options.values())


def test_every_shipped_profile_is_in_the_profiles_page():
    page = (ROOT / "docs" / "profiles.md").read_text()
    assert [file.stem for file in (ROOT / "profiles").glob("*.yml") if f"| `{file.stem}` |" not in page] == []


@pytest.mark.parametrize("name", profile_reference.PAGES)
def test_the_reference_is_what_the_schema_says(name):
    text = (ROOT / name).read_text()
    assert profile_reference.page(text) == text, "stale: run make docs"
    assert "<!-- generated:" in text


def test_the_example_of_the_profiles_page_resolves():
    example = re.search(r"```yaml\n(.*?)```", (ROOT / "docs" / "profiles.md").read_text(), re.DOTALL)[1]
    sources = {file.stem: file.read_text() for file in (ROOT / "profiles").glob("*.yml")} | {"example": example}
    problems = Problems()
    read = {name: Source(name, yaml_text.read(text, name, problems)) for name, text in sources.items()}
    merged = merge("example", read, problems, "hopper", "gpu-a02")
    assert problems.found == []
    assert "nccl_set" not in merged.values
    assert "num-continuous-decode-steps" not in merged.values["flags"]


def test_every_make_target_that_a_page_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:`|^    (?:\$ )?)make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert named - targets == set(), page.name


def test_every_link_between_pages_leads_somewhere():
    for page in [*PAGES, *ROOT.glob("roles/*/README.md"), *ROOT.glob("tests/*/README.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
