"""The probe, with a parser and sources of these tests."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import parser_probe

DECLARES = """
class Args:
    steps: int = 1
    size: int = Other.size

ORDER = ({names})
parser.add_argument("--steps", dest="steps", default=Args.steps, help=str(Args.steps))
"""


@pytest.mark.parametrize(
    ("source", "is_read"),
    [
        ("pass", False),
        ("# steps\n'''steps'''", True),  # a text alone may be a key for somebody
        ("print(args.steps)", True),
        ("args.steps = 4", False),
        ("args.steps += 4", False),
        ("getattr(args, 'steps')", True),
        ("vars(args)['steps']", True),
        ("make(steps=4)", True),
        ("def make(steps): pass", True),
        ("if steps: pass", True),
        ("self.steps_done", False),
    ],
)
def test_whatever_might_be_a_read_is_one_and_a_declaration_is_none(source, is_read):
    names = ", ".join(f'"name{number}"' for number in range(100)) + ', "steps"'
    unread = parser_probe.unread({"steps"}, [DECLARES.format(names=names), source])
    assert unread == (set() if is_read else {"steps"})


def make_parser():
    parser = argparse.ArgumentParser(prog="engine")
    parser.add_argument("--model", required=True)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--kind", choices=["a", "b"])
    parser.add_argument("--old", action="store_true", help="Deprecated. Use --new\n    instead.")
    parser.add_argument("--kinds", help="One of a, b (deprecated: c)")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--left", action="store_true")
    one.add_argument("--right", action="store_true")
    return parser


def test_all_faults_show_at_once_and_what_is_required_is_not_asked_for():
    groups = [("size", ["--size", "x"]), ("kind", ["--kind", "c"]), ("old", ["--old"]), ("nix", ["--nix"])]
    assert parser_probe.faults(make_parser(), groups) == [
        {"flag": "size", "text": "argument --size: invalid int value: 'x'"},
        {"flag": "kind", "text": "argument --kind: invalid choice: 'c' (choose from 'a', 'b')"},
        {"flag": "nix", "text": "unrecognized arguments: --nix"},
    ]


def test_flags_that_do_not_go_together_are_a_fault_of_none_of_them():
    faults = parser_probe.faults(make_parser(), [("left", ["--left"]), ("right", ["--right"])])
    assert faults == [{"flag": "", "text": "argument --right: not allowed with argument --left"}]


def test_an_engines_own_type_may_raise_what_it_likes():
    def explode(text):
        raise SystemExit(3) if text == "exit" else KeyError(text)

    parser = argparse.ArgumentParser()
    parser.add_argument("--a", type=explode)
    faults = parser_probe.faults(parser, [("a", ["--a", "b"]), ("c", ["--a", "exit"])])
    assert [fault["text"] for fault in faults] == ["KeyError: 'b'", "SystemExit: 3"]


def test_an_option_is_described_with_the_help_of_a_deprecated_one():
    options = {option["dest"]: option for option in parser_probe.options(make_parser())}
    assert options["old"]["text"] == "Deprecated. Use --new instead."
    assert [dest for dest, option in options.items() if option["deprecated"]] == ["old"]
    assert options["kind"] == {
        "strings": ["--kind"], "dest": "kind", "nargs": None, "choices": ["a", "b"], "type": "", "default": None,
        "required": False, "deprecated": False, "text": "",
    }  # fmt: skip
    assert (options["size"]["type"], options["model"]["required"]) == ("int", True)


def answer_of(folder: Path, engine: str, files: dict[str, str], asked: list) -> tuple[dict, str]:
    """What the probe answers with a package of these files, and what was said on stderr."""
    for name, text in files.items():
        file = folder / engine / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    request = json.dumps({"engine": engine, "describe": True, "asked": {"d": asked}})
    source = Path(parser_probe.__file__).read_text()
    script = f"{source}\nimport sys\nsys.path.insert(0, {str(folder)!r})\nmain({request!r})\n"
    done = subprocess.run([sys.executable, "-I", "-"], input=script, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), done.stderr


SGLANG = """
print("noise of an import")
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        print("more noise", flush=True)
        parser.add_argument("--size", type=int)
"""


def test_noise_of_imports_is_kept_out_of_the_answer(tmp_path):
    files = {"__init__.py": "__version__ = '9'", "srt/server_args.py": SGLANG}
    told, noise = answer_of(tmp_path, "sglang", files, [["size", ["--size", "x"]]])
    assert "more noise" in noise
    assert told["faults"] == {"d": [{"flag": "size", "text": "argument --size: invalid int value: 'x'"}]}
    assert told["description"]["engine_version"] == "9"
    assert told["description"]["unread"] == ["size"]


VLLM = {
    "__init__.py": "__version__ = '9'",
    "envs.py": "environment_variables = {'VLLM_X': 1}",
    "platforms.py": "def fail():\n    raise OSError\n"
    "builtin_platform_plugins = {'cuda': lambda: None, 'rocm': fail, 'cpu': lambda: FOUND}\n",
    "utils.py": "import argparse\nclass FlexibleArgumentParser(argparse.ArgumentParser):\n    pass\n",
    "entrypoints/openai/cli_args.py": """
from vllm.platforms import builtin_platform_plugins
def make_arg_parser(parser):
    device = builtin_platform_plugins["cuda"]() or builtin_platform_plugins["cpu"]()
    if device is None:
        raise RuntimeError("Failed to infer device type")
    parser.add_argument("--device", default=device)
    return parser
""",
}


@pytest.mark.parametrize(("found", "device"), [("None", "vllm.platforms.cuda.CudaPlatform"), ("'cpu'", "cpu")])
def test_a_build_of_vllm_for_gpus_makes_its_parser_where_none_is_to_be_seen(tmp_path, found, device):
    files = {**VLLM, "platforms.py": f"FOUND = {found}\n{VLLM['platforms.py']}"}
    told, _ = answer_of(tmp_path, "vllm", files, [])
    (option,) = told["description"]["options"]
    assert option["default"] == device
    assert "VLLM_X" in told["description"]["variables"]
