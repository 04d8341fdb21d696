"""Shipped profiles and site variables with one mistake each, made by fixed operators and a seed: each is told by name.

What reads a profile (``resolve``) tells its keys and their types; the engine's own parser, as it was captured, tells
flags and variables; what is known of NCCL tells the variables that NCCL reads. ``CHECKS`` is all that judges a release.
"""

from __future__ import annotations

import copy
import random
import string
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pytest
import yaml
from ansible.module_utils.ironserve import knowledge
from ansible.module_utils.ironserve.checks import all_checks
from ansible.module_utils.ironserve.findings import Case, Check, judge, refuses
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.profiles import Source
from ansible.module_utils.ironserve.wish import resolve_host

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(200)
CATALOGUE = knowledge.catalogue(ROOT)
CHECKS: list[Check] = all_checks(ROOT)
PROFILES = {file.stem: yaml.safe_load(file.read_text()) for file in sorted((ROOT / "profiles").glob("*.yml"))}
GROUPS = {"lab_sglang": "lab", "lab_vllm": "lab"}
"""Host group for which a profile is tried, where it is not ``blackwell``."""
ENGINES = {"sglang": "sglang-0.5.23", "vllm": "vllm-0.32.0"}
LOCKS = {
    name: {"id": f"{engine}-0", "name": engine, "engine_version": engine.split("-")[1], "python": "3.11",
           "installed_mib": 1, "folder": "/l"}
    for name, engine in ENGINES.items()
}  # fmt: skip


class Input(NamedTuple):
    """What a person wrote: all profiles, the site variables of a host, and which profile is meant."""

    profiles: dict[str, Any]
    site: dict[str, Any]
    name: str


def good(name: str) -> Input:
    group = GROUPS.get(name, "blackwell")
    site: dict[str, Any] = {}
    for part in ("all", group):
        site |= yaml.safe_load((ROOT / "group_vars" / part / "main.yml").read_text())
    site = {key: value for key, value in site.items() if "{{" not in str(value)}  # templates are Ansible's to fill in
    return Input(copy.deepcopy(PROFILES), {**site, "ironserve_profile": name}, name)


def chain(given: Input) -> Iterator[dict[str, Any]]:
    """The profile and those that it extends."""
    name = given.name
    while name:
        yield given.profiles[name]
        name = given.profiles[name].get("extends")


def pick(dice: random.Random, given: Input, key: str, names: Iterable[str] = ()) -> tuple[dict[str, Any], str] | None:
    """One setting below ``key`` that holds, if there is any (of ``names``): the mapping that holds it, and its name."""
    holds: dict[str, dict[str, Any]] = {}
    for profile in chain(given):
        for name in profile.get(key, {}):
            holds.setdefault(name, profile[key])
    known = sorted(set(holds).intersection(names or holds))
    if not known:
        return None
    name = dice.choice(known)
    return holds[name], name


def misspell(dice: random.Random, word: str, letters: str) -> str:
    """One or two edits: a letter lost, doubled, replaced, or two that changed places. The first one stays."""
    for _ in range(dice.choice((1, 2)) if len(word) > 3 else 1):
        at = dice.randrange(1, len(word) - 1)
        word = dice.choice([
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + dice.choice(letters) + word[at + 1 :],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        ])  # fmt: skip
    return word


def rename(dice: random.Random, mapping: dict[str, Any], name: str, letters: str = string.ascii_lowercase) -> str:
    wrong = name
    while wrong == name or wrong in mapping or not wrong[-1].isalnum():
        wrong = misspell(dice, name, letters)
    mapping[wrong] = mapping.pop(name)
    return wrong


def misspelt_flag(dice: random.Random, given: Input) -> str | None:
    flags, name = pick(dice, given, "flags") or ({}, "")
    return name and f"flags.{rename(dice, flags, name)}"


def misspelt_variable(dice: random.Random, given: Input) -> str | None:
    env, name = pick(dice, given, "env") or ({}, "")
    return name and f"env.{rename(dice, env, name, string.ascii_uppercase)}"


def wrong_type(dice: random.Random, given: Input) -> str | None:
    """Text where a number is meant, a value for a bare flag, none for one that needs it."""
    flags, name = pick(dice, given, "flags") or ({}, "")
    size = str(flags[name]).startswith("${")
    flags[name] = "many" if size else {bool: "often", int: "eight", float: "half"}.get(type(flags[name]), True)
    return f"flags.{name}"


def unknown_choice(dice: random.Random, given: Input) -> str | None:
    choices = {"attention-backend": "flashinfre", "dtype": "bfloat61"}
    flags, name = pick(dice, given, "flags", choices) or ({}, "")
    flags[name] = choices.get(name)
    return name and f"flags.{name}"


def flag_out_of_range(dice: random.Random, given: Input) -> str | None:
    wrong = {"mem-fraction-static": 85, "gpu-memory-utilization": 1.5, "max-num-seqs": 0, "context-length": -1}
    flags, name = pick(dice, given, "flags", wrong) or ({}, "")
    flags[name] = wrong.get(name)
    return name and f"flags.{name}"


def misspelt_key(dice: random.Random, given: Input) -> str | None:
    profile = dice.choice(list(chain(given)))
    return rename(dice, profile, dice.choice(sorted(set(profile) - {"extends"})))


def dropped_key(dice: random.Random, given: Input) -> str | None:
    *_, oldest = chain(given)
    key = dice.choice(["description", "engine"])
    del oldest[key]
    return key


def key_of_wrong_type(dice: random.Random, given: Input) -> str | None:
    key, value = dice.choice([
        ("startup_timeout_s", "an hour"), ("watchdog_s", [60]), ("nccl_set", 3), ("requires", "gpus"),
        ("description", 7), ("flags", "--tp-size 8"), ("env", ["A=1"]), ("stall_timeout_s", "never"),
    ])  # fmt: skip
    next(chain(given))[key] = value
    return key


def key_out_of_range(dice: random.Random, given: Input) -> str | None:
    key, value = dice.choice([
        ("startup_timeout_s", 0), ("completion_timeout_s", -1), ("watchdog_s", 0), ("requires", {"gpu_count": 65}),
    ])  # fmt: skip
    next(chain(given))[key] = value
    return "requires.gpu_count" if key == "requires" else key


def misspelt_site_variable(dice: random.Random, given: Input) -> str | None:
    return rename(dice, given.site, dice.choice(sorted(given.site)))


def site_variable_of_wrong_type(dice: random.Random, given: Input) -> str | None:
    key, value = dice.choice([
        ("ironserve_port", "eight"), ("ironserve_model", "/srv/m"), ("ironserve_sizes", [8]),
        ("ironserve_hardware", 8), ("ironserve_profile_paths", "profiles"), ("ironserve_port", 70000),
    ])  # fmt: skip
    given.site[key] = value
    return key


def misspelt_nccl_name(dice: random.Random, given: Input) -> str | None:
    settings = given.site["ironserve_nccl_sets"].get("low_latency")
    if not settings or not any("nccl_set" in profile for profile in chain(given)):
        return None
    return rename(dice, settings, dice.choice(sorted(settings)), string.ascii_uppercase)


def wrong_nccl_value(dice: random.Random, given: Input) -> str | None:
    settings = given.site["ironserve_nccl_sets"].get("low_latency")
    if not settings or not any("nccl_set" in profile for profile in chain(given)):
        return None
    name = dice.choice(sorted(settings))
    settings[name] = {"NCCL_PROTO": "LL182", "NCCL_ALGO": "Rign", "NCCL_P2P_LEVEL": "SSY"}.get(name, "many")
    return name


Operator = Callable[[random.Random, Input], Optional[str]]
"""Makes one mistake and returns the key that has to be told; nothing where the profile has no place for it."""

OPERATORS: list[Operator] = [
    misspelt_flag, misspelt_variable, wrong_type, unknown_choice, flag_out_of_range, misspelt_key, dropped_key,
    key_of_wrong_type, key_out_of_range, misspelt_site_variable, site_variable_of_wrong_type, misspelt_nccl_name,
    wrong_nccl_value,
]  # fmt: skip


@pytest.fixture
def told(ask_captured):
    """The problems and the findings of an input; findings only where there are no problems."""

    def run(given: Input) -> tuple[list[str], list[dict[str, Any]]]:
        problems, origins = Problems(), []
        sources = {name: Source(f"profiles/{name}.yml", data) for name, data in given.profiles.items()}
        releases = resolve_host("h1", "", "", given.site, sources, LOCKS, problems, origins)
        if problems:
            return problems.found, []
        (release,) = releases
        facts = {"flags": {"main": ask_captured(ENGINES[release["engine"]], release)}}
        packages = {"nvidia-nccl-cu13": "2.30.7"}
        case = Case("h1", release, facts, given.site["ironserve_hardware"], packages, origins[0])
        return [], judge(case, CHECKS, CATALOGUE)

    return run


@pytest.mark.parametrize("name", PROFILES)
def test_no_good_profile_is_refused(told, name):
    problems, findings = told(good(name))
    assert problems == []
    assert not refuses(findings)
    without_effect = {"flags.num-continuous-decode-steps"} if name in ("flashinfer_nccl", "triton_nccl") else set()
    assert {finding["key"] for finding in findings if finding["severity"] != "note"} == without_effect


@pytest.mark.parametrize("seed", SEEDS)
def test_every_mistake_is_told_by_its_key(told, seed):
    dice, key = random.Random(seed), None
    while not key:
        given, operator = good(dice.choice(sorted(PROFILES))), dice.choice(OPERATORS)
        key = operator(dice, given)
    problems, findings = told(given)
    keys = [finding["key"] for finding in findings if finding["severity"] != "note"]
    keys += [problem.split(": ")[1] for problem in problems]
    # A variable of an NCCL set is told with the set; a flag that is a size, with the size.
    named = [key.rpartition("): ")[2].partition(",")[0] for key in keys]
    assert key in named, (operator.__name__, given.name, problems, findings)
