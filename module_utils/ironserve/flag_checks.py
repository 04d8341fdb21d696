"""What is wrong with flags and variables, by the answer of the engine's own parser. On the controller; pure.

The answer (``engine_flags.py``) is a fact of the host. What took the place of a flag that is gone, and which flags only
a fork has, is data: ``knowledge/engines/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .findings import Case, Check, Found

NAMES = {"sglang": "SGLang", "vllm": "vLLM"}

Known = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Of one engine: ``renamed``, ``removed``, ``fork_only`` and ``variables``, each by name."""


def flag_check(engines: Mapping[str, Known]) -> Check:
    """The check of flags and variables; ``engines`` is ``knowledge/engines/`` by engine."""

    def check(case: Case) -> Iterator[Found]:
        answers = case.facts.get("flags") or {}
        answer = answers.get(case.release["service"])
        if answer is None:
            return
        if answer["state"] != "known":
            yield _unverified(case, answer)
            return
        yield from _names(case, answer, engines.get(case.engine, {}))
        yield from _values(case, answer)
        yield from _variables(case, answer, engines.get(case.engine, {}))

    return check


def _unverified(case: Case, answer: Mapping[str, Any]) -> Found:
    """Nobody could ask. Where asking failed a person should look: the engine may start no better."""
    severity = "warning" if answer["state"] == "failed" else ""
    text = f"flags and variables were not checked: {answer['reason']}"
    return Found("flag-unverified", f"host {case.host}", case.release["lock"]["name"], text, severity)


def _engine(case: Case, answer: Mapping[str, Any]) -> str:
    return f"{NAMES[case.engine]} {answer['engine_version'] or case.engine_version}"


def _names(case: Case, answer: Mapping[str, Any], known: Known) -> Iterator[Found]:
    engine = _engine(case, answer)
    for entry in answer["unknown"]:
        flag = entry["flag"]
        place, was = case.place_of_flag(flag), known.get("renamed", {}).get(flag) or known.get("removed", {}).get(flag)
        fork = known.get("fork_only", {}).get(flag)
        if was:
            instead = f"write {was['use']}" if was.get("use") else "leave it out"
            yield Found("flag-unknown", *place, f"{engine} has no --{flag} any more: {was['about']}", do=f"{instead}.")
        elif fork:
            text = f"--{flag} is in no {NAMES[case.engine]} as published, only in {fork['fork']}"
            do = f"Leave it out, or name a lock of that build in ironserve_locks.{case.engine}."
            yield Found("flag-unknown", *place, text, do=do)
        else:
            meant = f' (did you mean "{entry["suggestion"]}"?)' if entry["suggestion"] else ""
            yield Found("flag-unknown", *place, f"{engine} has no --{flag}{meant}")
    for entry in answer["abbreviated"]:
        flag, meant = entry["flag"], entry["meant"]
        names = " or ".join(f"--{name}" for name in meant)
        text = f"--{flag} is no flag of {engine}, only the beginning of {names}"
        do = f"Write {' or '.join(meant)}, as it is meant."
        yield Found("flag-abbreviated", *case.place_of_flag(flag), text, do=do)


def _values(case: Case, answer: Mapping[str, Any]) -> Iterator[Found]:
    engine = _engine(case, answer)
    for entry in answer["invalid"]:
        place = case.place_of_flag(entry["flag"]) if entry["flag"] else (f"profile {case.release['profile']}", "flags")
        yield Found("flag-invalid", *place, f"{engine} does not take it: {entry['text']}")
    for entry in answer["deprecated"]:
        text = f"--{entry['flag']} is deprecated in {engine}: {entry['text'] or 'its parser says no more'}"
        yield Found("flag-deprecated", *case.place_of_flag(entry["flag"]), text)
    for flag in answer["without_effect"]:
        text = f"{engine} accepts --{flag}, and nothing in it reads what it says"
        yield Found("flag-without-effect", *case.place_of_flag(flag), text)


def _variables(case: Case, answer: Mapping[str, Any], known: Known) -> Iterator[Found]:
    engine = _engine(case, answer)
    for entry in answer["unknown_variables"]:
        name, was = entry["name"], known.get("variables", {}).get(entry["name"])
        place = case.place_of_variable(name)
        if was:
            text, do = f"{engine} does not read {name} any more: {was['about']}", f"Write {was['use']}."
            yield Found("env-unknown", *place, text, do=do)
        else:
            meant = f' (did you mean "{entry["suggestion"]}"?)' if entry["suggestion"] else ""
            yield Found("env-unknown", *place, f"{engine} reads no {name}{meant}")
