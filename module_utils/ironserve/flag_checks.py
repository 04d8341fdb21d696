"""What is wrong with flags and variables, by the answer of the engine's own parser. On the controller; pure.

The answer (``engine_flags.py``) is a fact of the host. What took the place of a flag that is gone, and which flags only
a fork has, is data: ``knowledge/engines/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from .findings import Case, Check, Found

NAMES = {"sglang": "SGLang", "vllm": "vLLM"}

Known = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Of one engine: ``renamed``, ``removed``, ``fork_only``, ``variables`` and ``ranges``, each by name.

``last`` of an entry is the last version that is known to have it.
"""


def flag_check(engines: Mapping[str, Known]) -> Check:
    """The check of flags and variables; ``engines`` is ``knowledge/engines/`` by engine."""

    def check(case: Case) -> Iterator[Found]:
        yield from _ranges(case, engines.get(case.engine, {}).get("ranges", {}))
        answers = case.facts.get("flags") or {}
        answer = answers.get(case.release["service"])
        if answer is None:
            return
        if answer["state"] != "known":
            yield _unverified(case, answer)
            return
        yield from _names(case, answer, engines.get(case.engine, {}))
        yield from _values(case, answer, engines.get(case.engine, {}))
        yield from _variables(case, answer, engines.get(case.engine, {}))

    return check


def _ranges(case: Case, ranges: Mapping[str, Mapping[str, float]]) -> Iterator[Found]:
    """Numbers out of their bounds; what is no number is the parser's to judge."""
    for flag, bounds in ranges.items():
        try:
            number = float(str(case.flags[flag]))
        except (KeyError, ValueError):
            continue
        above, least, most = (bounds.get(name) for name in ("above", "least", "most"))
        wrong = [
            f"is not more than {above}" if above is not None and number <= above else "",
            f"is less than {least}" if least is not None and number < least else "",
            f"is more than {most}" if most is not None and number > most else "",
        ]
        for text in filter(None, wrong):
            yield Found("flag-range", *case.place_of_flag(flag), f"{case.flags[flag]} {text}")


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
        place, was = case.place_of_flag(flag), _was(flag, known, answer)
        if was:
            text = f"{engine} has no --{flag} any more: {was['about']}"
            yield Found("flag-unknown", *place, text, do=_instead(was))
        elif flag in known.get("fork_only", {}):
            yield Found("flag-unknown", *place, *_of_a_fork(f"--{flag}", known["fork_only"][flag], case))
        else:
            yield Found("flag-unknown", *place, f"{engine} has no --{flag}{_meant(entry)}")
    for entry in answer["abbreviated"]:
        flag, meant = entry["flag"], entry["meant"]
        names = " or ".join(f"--{name}" for name in meant)
        text = f"--{flag} is no flag of {engine}, only the beginning of {names}"
        do = f"Write {' or '.join(meant)}, as it is meant."
        yield Found("flag-abbreviated", *case.place_of_flag(flag), text, do=do)


def _was(name: str, known: Known, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is known of a name that earlier versions had; nothing where this version may be an earlier one itself."""
    entries = {**known.get("renamed", {}), **known.get("removed", {}), **known.get("variables", {})}
    entry = entries.get(name, {})
    try:
        return entry if entry and Version(answer["engine_version"]) > Version(entry["last"]) else {}
    except InvalidVersion:  # a build of one's own, of whatever version
        return {}


def _instead(was: Mapping[str, Any]) -> str:
    """What to do about a flag or variable that is gone."""
    return f"Write {was['use']}." if was.get("use") else "Leave it out."


def _of_a_fork(name: str, entry: Mapping[str, Any], case: Case) -> tuple[str, str, str]:
    """Text, severity and what to do about a name that only another build of the engine has."""
    text = f"{name} is in no {NAMES[case.engine]} as published, only in {entry['fork']}"
    return text, "", f"Leave it out, or name a lock of that build in ironserve_locks.{case.engine}."


def _meant(entry: Mapping[str, Any]) -> str:
    return f' (did you mean "{entry["suggestion"]}"?)' if entry["suggestion"] else ""


def _values(case: Case, answer: Mapping[str, Any], known: Known) -> Iterator[Found]:
    engine = _engine(case, answer)
    for entry in answer["invalid"]:
        place = case.place_of_flag(entry["flag"]) if entry["flag"] else (f"profile {case.release['profile']}", "flags")
        yield Found("flag-invalid", *place, f"{engine} does not take it: {entry['text']}")
    for entry in answer["deprecated"]:
        text = f"--{entry['flag']} is deprecated in {engine}: {entry['text'] or 'its parser says no more'}"
        was = {**known.get("renamed", {}), **known.get("removed", {})}.get(entry["flag"])
        yield Found("flag-deprecated", *case.place_of_flag(entry["flag"]), text, do=_instead(was) if was else "")
    for flag in answer["without_effect"]:
        text = f"{engine} accepts --{flag}, and nothing in it reads what it says"
        yield Found("flag-without-effect", *case.place_of_flag(flag), text)


def _variables(case: Case, answer: Mapping[str, Any], known: Known) -> Iterator[Found]:
    engine = _engine(case, answer)
    for entry in answer["unknown_variables"]:
        name, place = entry["name"], case.place_of_variable(entry["name"])
        was = _was(name, known, answer)
        if was:
            text = f"{engine} does not read {name} any more: {was['about']}"
            yield Found("env-unknown", *place, text, do=_instead(was))
        elif name in known.get("fork_only", {}):
            yield Found("env-unknown", *place, *_of_a_fork(name, known["fork_only"][name], case))
        else:
            yield Found("env-unknown", *place, f"{engine} reads no {name}{_meant(entry)}")
