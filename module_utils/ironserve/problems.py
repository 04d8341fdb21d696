"""Problems as an operator reads them: where, which key, what is wrong, what was perhaps meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Callable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean "port"?)`` when a known word is close to ``word``, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else ""


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
