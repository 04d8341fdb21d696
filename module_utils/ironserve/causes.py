"""Known causes of a failed start: from the log's lines and what else is known to what it was and what to do. Pure.

The causes are data, ``knowledge/causes/``; ``docs/causes.md`` is made from them and says what each key means. A cause
fits when one of its patterns is found in the log and its conditions hold. Patterns are searched in the whole text, each
once, so that a long log costs a pass for each pattern and no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from .logs import LINE_LIMIT, bare

PLACEHOLDER = re.compile(r"\{(\w+)\}")
ARCHITECTURE = re.compile(r"(?:sm_?)?(\d{1,2})(\d)[af]?")
"""``120``, ``sm_120``, ``sm_90a``."""

FACTS = {
    "engine": "sglang or vllm",
    "version": "version of the engine",
    "exit_status": "status that the engine exited with",
    "signal": "signal that ended it: SIGKILL",
    "result": "systemd's Result of the unit: oom-kill",
    "reason": "the gate's reason for its verdict",
    "phase": "phase of the start that the log shows",
    "env": "variables of the release",
    "flags": "flags of the release",
    "arch": "compute capability of the GPUs: 12.0",
    "foreign_holders": "processes of others that use the service's GPUs, a text each; unknown where the look hangs",
}


class Cause(NamedTuple):
    """A known cause that fits, with what the log says filled in.

    ``permanent``: starting again cannot help. ``line``: the line that told it; empty where only facts did.
    """

    id: str
    cause: str
    advice: str
    permanent: bool
    line: str = ""


def find(
    causes: Sequence[Mapping[str, Any]],
    lines: Iterable[str],
    facts: Mapping[str, Any],
    more: Callable[[], Iterable[str]] = tuple,
) -> list[Cause]:
    """The causes that fit, the likeliest first.

    What is only a consequence of another cause comes last. Otherwise the earliest line counts, since later ones mostly
    repeat or follow from it, and on the same line the cause that stands first in the data, a special one.

    Args:
        causes: as in ``knowledge/causes/``, in the order of the data.
        lines: lines of the log, without secrets.
        facts: see :data:`FACTS`; one that is not known is left out. What costs time to find out may be a function: it
            is called only where a cause whose pattern was found asks for it.
        more: further lines that cost time, read only where the log tells nothing, or no more than a consequence.
    """
    told = list(lines)
    found = _find(causes, told, facts)
    if (not found or found[0][0]) and (further := list(more())):
        found = _find(causes, [*told, *further], facts)
    return [cause for *_, cause in found]


def _find(
    causes: Sequence[Mapping[str, Any]], lines: Iterable[str], facts: Mapping[str, Any]
) -> list[tuple[bool, int, int, Cause]]:
    """Whether it is a consequence, the place of its line and its own in the data, and each cause; in that order."""
    text = "\n".join(bare(line)[:LINE_LIMIT] for line in lines)
    found = []
    for number, cause in enumerate(causes):
        match = _first(cause["match"], text) if _is_for(cause, facts) else None
        if (match or not cause["match"]) and _applies(cause, facts):
            place = _line(match)[0] if match else -1
            found.append((bool(cause.get("consequence")), place, number, _told(cause, match, facts)))
    return sorted(found)


def architecture(text: str) -> str:
    """A compute capability as people write it: ``12.0`` for ``120`` and ``sm_120``; anything else as it is."""
    digits = ARCHITECTURE.fullmatch(text)
    return f"{digits[1]}.{digits[2]}" if digits else text


def _is_for(cause: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether a cause is one of this engine and version. An unknown version may be any."""
    if cause["engine"] not in ("any", facts.get("engine")):
        return False
    version = _version(str(facts.get("version", "")))
    too_old = version < _version(cause.get("since", ""))
    too_new = "before" in cause and version >= _version(cause["before"])
    return not version or not (too_old or too_new)


def _applies(cause: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether the conditions of a cause hold: all that it needs, and nothing that rules it out."""
    needs, unless = cause.get("needs", {}), cause.get("unless", {})
    return all(_holds(wanted, _fact(facts, name)) for name, wanted in needs.items()) and not any(
        _holds(wanted, _fact(facts, name)) for name, wanted in unless.items()
    )


def _fact(facts: Mapping[str, Any], name: str) -> Any:
    fact = facts.get(name)
    return fact() if callable(fact) else fact


def _holds(wanted: Any, fact: Any) -> bool:
    """Whether a fact is as wanted: there or not (a bool), an entry of it (expressions for name and value), its text.

    What is not known is neither there nor not.
    """
    if isinstance(wanted, bool):
        return fact is not None and bool(fact) is wanted
    if isinstance(wanted, Mapping):
        return all(
            any(re.fullmatch(name, str(key)) and re.search(value, str(found)) for key, found in (fact or {}).items())
            for name, value in wanted.items()
        )
    return fact is not None and re.search(str(wanted), str(fact)) is not None


def _version(text: str) -> tuple[int, ...]:
    """``0.5.15.post1`` as (0, 5, 15)."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in numbers[0].split(".")) if numbers else ()


def _first(patterns: Sequence[str], text: str) -> re.Match[str] | None:
    """The earliest match of any of them."""
    matches = (re.search(pattern, text, re.MULTILINE) for pattern in patterns)
    return min(filter(None, matches), key=lambda match: match.start(), default=None)


def _told(cause: Mapping[str, Any], match: re.Match[str] | None, facts: Mapping[str, Any]) -> Cause:
    """A cause with its placeholders filled: from the match, else from the facts, else by the cause's own default."""
    groups = match.groupdict() if match else {}

    def value(found: re.Match[str]) -> str:
        name = found[1]
        known = groups.get(name) or _fact(facts, name) or cause.get("default", {}).get(name, found[0])
        text = "; ".join(known) if isinstance(known, (list, tuple)) else str(known)
        return architecture(text) if name == "arch" else text

    told, advice = (PLACEHOLDER.sub(value, cause[key]) for key in ("cause", "advice"))
    return Cause(cause["id"], told, advice, cause["permanent"], _line(match)[1] if match else "")


def _line(match: re.Match[str]) -> tuple[int, str]:
    """The line that a match begins in, and where the line begins."""
    begins = match.string.rfind("\n", 0, match.start()) + 1
    return begins, match.string[begins:].partition("\n")[0].strip()
