"""The engine's log: read once from a cursor, carriage-return bars and all, and what its lines say.

Phases are data (``knowledge/phases/``): a list in the order in which an engine passes them, each with ``name``,
``match`` (a regular expression that opens the phase) and optionally ``progress`` (one with the groups done and total).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TAIL_LINES = 30
LINE_LIMIT = 600

PREFIX = re.compile(
    r"^\((?:\w+) pid=\d+\)\s*(?:(?:INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]+\] ?)?|^\[[\d-]+ [\d:]+[^\]]*\] "
)
"""What engines put first: ``(APIServer pid=1) ERROR 11-29 18:55:35 [f.py:1]`` or ``[2026-11-29 18:34:45 TP0]``."""

EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
WRAPPER = re.compile(r"See root cause above|See stack trace")
"""An exception that only says that another one, further up, is the cause."""

ERROR_WORD = re.compile(r"(?:ERROR|CRITICAL|FATAL|Error|error|fatal)\b")

ARGPARSE = re.compile(r"^[\w.-]+(?: \w+)?: error: ")
"""The last line of argparse's usage: ``vllm serve: error: unrecognized arguments: --x``."""
BAR = re.compile(r"(\D*?)[(:].*?\d+%")
"""A progress bar; the text before its first number says which."""


@dataclass(frozen=True)
class Cursor:
    """Where reading stopped: the file's inode, the offset, and the text of a line that was not finished yet."""

    inode: int = 0
    offset: int = 0
    partial: str = ""


@dataclass
class Reading:
    """What the log has said so far."""

    phase: str = ""
    progress: str = ""
    tail: list[str] = field(default_factory=list)
    error: str = ""
    error_rank: int = 0

    def plain(self) -> dict[str, Any]:
        """JSON-plain, for a cursor that travels to the controller and back."""
        return dict(vars(self))


def split(partial: str, chunk: str) -> tuple[list[str], str]:
    """Lines of ``partial + chunk``, ended by newline or carriage return, and what is left of an unfinished one."""
    pieces = re.split(r"\r\n|\n|\r", partial + chunk)
    return [piece for piece in pieces[:-1] if piece.strip()], pieces[-1]


def bare(line: str) -> str:
    """A line without the engine's prefix."""
    return PREFIX.sub("", line, count=1)


def read(reading: Reading, lines: Iterable[str], phases: Sequence[Mapping[str, str]], partial: str = "") -> None:
    """Bring ``reading`` up to date with new lines and one that is not finished: a progress bar ends with its phase.

    A phase once passed is not entered again, but a line that opens the first phase is a new start of the engine.
    """
    names = [phase["name"] for phase in phases]
    place = names.index(reading.phase) if reading.phase in names else -1
    for line in [*lines, partial]:
        if place > 0 and re.search(phases[0]["match"], line):
            place, reading.phase, reading.progress, reading.error, reading.error_rank = -1, "", "", "", 0
        for number, phase in enumerate(phases):
            if number < place:
                continue
            if number > place and re.search(phase["match"], line):
                place, reading.phase, reading.progress = number, phase["name"], ""
            if number == place and phase.get("progress") and (counted := re.search(phase["progress"], line)):
                reading.progress = f"{counted[1]}/{counted[2]}"
        if line is not partial:
            _append(reading.tail, line[:LINE_LIMIT])
            _note_error(reading, bare(line).strip()[:LINE_LIMIT])
    del reading.tail[:-TAIL_LINES]


def last(lines: Iterable[str], count: int) -> list[str]:
    """The last lines, as many as asked for, of a progress bar only its last state."""
    tail: list[str] = []
    for line in lines:
        _append(tail, line[:LINE_LIMIT])
    return tail[-count:]


def _append(tail: list[str], line: str) -> None:
    """Add a line to the tail; the next state of a progress bar takes the place of the one before."""
    bar, last = BAR.match(line), BAR.match(tail[-1]) if tail else None
    if bar and last and bar[1] == last[1]:
        tail[-1] = line
    else:
        tail.append(line)


def _note_error(reading: Reading, line: str) -> None:
    """Keep the engine's own error: the last line that says a cause, else one that points to it, else an error word."""
    if ARGPARSE.match(line) or EXCEPTION.match(line):
        rank = 2 if WRAPPER.search(line) else 3
    else:
        rank = 1 if ERROR_WORD.match(line) else 0
    if rank and rank >= reading.error_rank:
        reading.error, reading.error_rank = line, rank
