"""How NCCL itself reads its variables: numbers, lists, names of interfaces, files. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from .problems import did_you_mean, typo_of

OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
"""The words for the numbers that levels were before NCCL 2.4.7; a larger number counts as the last (paths.cc)."""

LONG_LONG = range(-(2**63), 2**63)
DIGITS = len(str(2**63))
NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")


class Selection(NamedTuple):
    """``[^][=]NAME[:PORT],...``: how NCCL chooses interfaces and InfiniBand devices."""

    excludes: bool
    exact: bool
    names: tuple[str, ...]

    def chosen(self, candidates: Sequence[str]) -> list[str]:
        """Those of the candidates that NCCL takes; an empty list of names chooses all (utils.cc)."""

        def matches(candidate: str) -> bool:
            if not self.names:
                return True
            return any(candidate == name if self.exact else candidate.startswith(name) for name in self.names)

        return [candidate for candidate in candidates if matches(candidate) is not self.excludes]


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, ``2.28.9+cuda13.0`` as 2, 28, 9; none of a text without any."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def before(version: str, other: str) -> bool:
    """Whether a version is older than another; one that is not known counts as the newest."""
    return () < release(version) < release(other)


def misspelt(name: str, known: Collection[str]) -> str:
    """The variable that a name without ``NCCL_`` in front surely means; empty where it means none.

    ``NCL_ALGO``, ``nccl_algo``, ``NCCL-ALGO`` and ``NCCLALGO``, and what is one with two typos at most.
    """
    letters = re.sub(r"[-_ ]+", "_", name.strip().upper())
    prefix, _, rest = letters.partition("_")
    if letters.startswith("NCCL") and prefix != "NCCL":
        rest = letters[len("NCCL") :]
    elif not (prefix.startswith("N") and set(prefix) <= set("NCL")):
        return typo_of(letters, known) if letters.startswith("N") else ""  # RCCL and oneCCL have names of their own
    return f"NCCL_{rest}" if f"NCCL_{rest}" in known else typo_of(f"NCCL_{rest}", known)


def as_number(text: str) -> tuple[int, bool] | None:
    """What C's ``strtoll(text, 0, 0)`` makes of a text, and whether that was all of it; None where it overflows.

    A text that begins with no number is 0; ``0x`` is hexadecimal and a leading 0 octal.
    """
    found = NUMBER.match(text)
    if not found:
        return 0, False
    digits = found[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    if base == 10 and len(digits) > DIGITS:
        return None  # Python itself refuses very long ones
    number = int(digits, base) * (-1 if found[1] == "-" else 1)
    return (number, not text[found.end() :].strip()) if number in LONG_LONG else None


def allowed(text: str, values: Sequence[str], functions: Sequence[str]) -> dict[str, set[str]] | str:
    """Which algorithms (or protocols) a value allows for each function, or what is wrong with it.

    The grammar of ``parseList`` in tuning.cc: ``[FUNCTION:][^]VALUE,...`` joined by semicolons, in any case; only the
    first may be without a function, and counts for all.
    """
    by_word = {value.lower(): value for value in values}
    chosen = {function: set(values) for function in functions}
    parts = [part for part in text.split(";") if part]
    for position, part in enumerate(parts):
        pieces = [piece for piece in part.split(":") if piece]
        if not pieces:
            return f'"{part}" holds no value'
        prefix, listed = (pieces[0], pieces[1]) if len(pieces) > 1 else ("", pieces[0])
        if not prefix and (position or text.startswith(";")):
            return f'"{part}" needs a function in front, as all but the first do'
        meant = [name for name in functions if not prefix or name.lower() == prefix.lower()]
        if not meant:
            return (
                f'"{prefix}" is no function of NCCL\'s{did_you_mean(prefix, functions)}; known: {", ".join(functions)}'
            )
        inverted = listed.startswith("^")
        words = [word for word in listed.removeprefix("^").split(",") if word]
        for word in words:
            if word.lower() not in by_word:
                return f'"{word}" is none of {", ".join(values)}{did_you_mean(word, values)}'
        named = {by_word[word.lower()] for word in words}
        for function in meant:
            chosen[function] = set(values) - named if inverted else named
    return chosen


def selection(text: str) -> Selection:
    """The value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA, as socket.cc and utils.cc read it: ports do not matter here."""
    excludes = text.startswith("^")
    rest = text[1:] if excludes else text
    exact = rest.startswith("=")
    entries = (entry.split(":", 1)[0] for entry in (rest[1:] if exact else rest).split(","))
    return Selection(excludes, exact, tuple(entry for entry in entries if entry))


def conf_settings(text: str) -> dict[str, str]:
    """What a file of NCCL's sets: ``NAME=VALUE`` a line, nothing trimmed, and the first of a name counts (param.cc)."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name and not line.startswith("#"):
            found.setdefault(name, value)
    return found
