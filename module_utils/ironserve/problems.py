"""Problems as an operator reads them: where, which key, what is wrong, what was perhaps meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Callable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean "port"?)`` when a known word is close to ``word``, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else ""


def closest(word: str, known: Iterable[str], cutoff: float) -> str:
    """The known word that is most like this one, by difflib's ratio; empty where none is alike enough."""
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=cutoff)), "")


def edits(one: str, other: str) -> int:
    """How many letters were lost, added, replaced or changed places between two words, each at most once in a place."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for place, letter in enumerate(one, 1):
        new = [place]
        for at, known in enumerate(other, 1):
            best = min(row[at] + 1, new[at - 1] + 1, row[at - 1] + (letter != known))
            if at > 1 and place > 1 and letter == other[at - 2] and one[place - 2] == known:
                best = min(best, before[at - 2] + 1)
            new.append(best)
        before, row = row, new
    return row[-1]


def typo_of(word: str, known: Iterable[str], most: int = 2) -> str:
    """The known word that this one is with a typo or two; empty where there is none."""
    near = ((edits(word, other), other) for other in sorted(known) if abs(len(other) - len(word)) <= most)
    count, found = min(near, default=(most + 1, ""))
    return found if count <= most else ""


def unknown(kind: str, word: str, known: Iterable[str]) -> str:
    """``unknown profile "x" (did you mean "y"?); known: y, z``."""
    names = sorted(known)
    listed = ", ".join(names) if names else "none"
    return f'unknown {kind} "{word}"{did_you_mean(word, names)}; known: {listed}'


def kind_of(value: object) -> str:
    """The type of a value in YAML's words, with the value where it is short."""
    if value is None:
        return "nothing"
    names = {bool: "true/false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    for python_type, name in names.items():
        if isinstance(value, python_type):
            return name if isinstance(value, (list, dict)) else f"{name}: {value!r}"
    return type(value).__name__


class Problems:
    """What is wrong with the input, all of it, in the order found."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, where: str, key: str, text: str) -> None:
        """Note that ``key`` in the file or place ``where`` is wrong; the same problem counts once."""
        entry = f"{where}: {key}: {text}" if key else f"{where}: {text}"
        if entry not in self.found:
            self.found.append(entry)

    def at(self, where: str, key: str) -> Callable[[str, str], None]:
        """A function that notes what is wrong at a place inside ``key``: ``[0]``, ``.name``, or nothing."""
        return lambda place, text: self.add(where, f"{key}{place}", text)

    def __bool__(self) -> bool:
        return bool(self.found)

    def report(self, headline: str) -> str:
        """The headline with the number of problems, then each on a numbered line of its own."""
        count = len(self.found)
        lines = [f"{headline}: {count} problem{'s' if count > 1 else ''}"]
        lines += [f"  {number}. {entry}" for number, entry in enumerate(self.found, 1)]
        return "\n".join(lines)
