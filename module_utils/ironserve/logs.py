"""The engine's log: read once from a cursor, carriage-return bars and all, and what its lines say.

Phases are data (``knowledge/phases/``): a list in the order in which an engine passes them, each with ``name``,
``match`` (a regular expression that opens the phase) and optionally ``progress`` (one with the groups done and total).
Beside them ``fatal``: ``match`` of lines after which the engine never serves, and ``why``, a few words. A line is also
looked at before it is finished, so what matches the beginning of a line has to match the whole of it: no ``$``.
"""

from __future__ import annotations

import codecs
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Callable

TAIL_LINES = 30
FIRST_READ_BYTES = 1 << 20
"""Of a log that is met in the middle only the end is read; a line costs about 0.1 ms."""
READS = 16
"""A log that grows faster than it is read is left for the next look."""
LINE_LIMIT = 600
"""Of a line only its beginning is looked at."""

PIECE_LIMIT = 4096
"""Of a line only so much is kept in memory. More than LINE_LIMIT, for secrets are cut out of it in between."""

SHAPE_LIMIT = 4000
"""So many shapes of lines are remembered, and so many counters."""

MARK_BYTES = 256
"""The bytes before a cursor by which a file is known again after its log was rotated."""

ANSI = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
"""Colours, and how nested progress bars move between lines."""

PREFIX = re.compile(
    r"^(?:\(\w+(?: \w+=?\d+)? pid=\d+(?:, ip=[\w.:]+)?\)\s*)+"  # a process of vLLM; Ray puts its own before it
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]/%]+\] ?)?"
    r"|^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[[^\]/%]+\] ?"  # vLLM before 0.10 or so
    r"|^\[[\d-]+ [\d:]+[^\]/%]*\] "  # SGLang
)
"""What engines put first: ``(APIServer pid=1) ERROR 11-29 18:55:35 [f.py:1]`` or ``[2026-11-29 18:34:45 TP0]``."""

PREFIX_NOISE = re.compile(
    r"\bpid=\d+,?|\bip=[\w.:]+|\[[\w.]+:\d+\]|\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|[\d-]+ [\d:]+|[()\[\]\s]"
)
"""What is in a prefix beside the rank: ``Worker_TP3`` or ``TP3`` is left."""

COUNTER = re.compile(r"(?<![\w./,-])(?<!\d:)(\d{1,9})(?:/(\d{1,9})(?=[\s\]),;|])|(?:\.\d+)?(%))")
"""``24/51`` or ``47%``, known only by what follows: of a line that is not finished no half number counts."""

BAR_END = re.compile(r"(?<=it/s\]|s/it\])")
"""A bar's end. What another process writes goes on right behind it."""

SHAPE_NOISE = re.compile(
    r"0x[0-9a-fA-F]+|\b(?=[a-f]*\d)[0-9a-f]{8,}\b|\d[\d.,:_]*|[\u2580-\u259f\ufffd]+"  # hex, numbers, times, bars
)

ACCESS = re.compile(r'"[A-Z]+ \S* HTTP/[\d.]+" \d{3}')
"""A line about a request: whoever asks for /health writes it, not the start."""

EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
WRAPPER = re.compile(r"See root cause above|See stack trace")
"""An exception that only says that another one, further up, is the cause."""

VALIDATION = re.compile(r"^Value error, ")
"""What pydantic says under ``ValidationError: 1 validation error for ModelConfig``, which names no cause."""

ERROR_WORD = re.compile(r"(?:ERROR|CRITICAL|FATAL|Error|error|fatal)\b")

ARGPARSE = re.compile(r"^[\w.-]+(?: \w+)?: error: ")
"""The last line of argparse's usage: ``vllm serve: error: unrecognized arguments: --x``."""
BAR = re.compile(r"(\D*?)[(:].*?\d+%")
"""A progress bar; the text before its first number says which."""


@dataclass(frozen=True)
class Cursor:
    """Where reading stopped: the file's inode, the offset, and the text of a line that was not finished yet.

    ``mark`` is a checksum of the bytes before the offset, by which ``follow`` knows a file again; 0: not known.
    """

    inode: int = 0
    offset: int = 0
    partial: str = ""
    mark: int = 0


@dataclass
class Reading:
    """What the log has said so far. ``fatal`` is why this start never serves, once a line says so."""

    phase: str = ""
    progress: str = ""
    tail: list[str] = field(default_factory=list)
    error: str = ""
    error_rank: int = 0
    fatal: str = ""

    def plain(self) -> dict[str, Any]:
        """JSON-plain, for a cursor that travels to the controller and back."""
        return dict(vars(self))


def split(partial: str, chunk: str) -> tuple[list[str], str]:
    """Lines of ``partial + chunk``, ended by newline or carriage return, and what is left of an unfinished one.

    Of each only the first ``PIECE_LIMIT`` characters.
    """
    *pieces, rest = (piece[:PIECE_LIMIT] for piece in re.split(r"\r\n|\n|\r", partial + chunk))
    return [piece for piece in map(_colourless, pieces) if piece.strip()], rest


def _colourless(text: str) -> str:
    return ANSI.sub("", text) if "\x1b" in text else text


def bare(line: str) -> str:
    """A line without the engine's prefix."""
    return PREFIX.sub("", _colourless(line), count=1)


def rank_label(line: str) -> str:
    """Which process wrote a line, as its prefix says: ``Worker_TP3``, ``TP3``, ``APIServer``, or nothing."""
    prefix = PREFIX.match(_colourless(line))
    return PREFIX_NOISE.sub("", prefix[0]) if prefix else ""


def read(
    reading: Reading,
    lines: Iterable[str],
    phases: Sequence[Mapping[str, str]],
    partial: str = "",
    fatal: Sequence[Mapping[str, str]] = (),
) -> None:
    """Bring ``reading`` up to date with new lines and one that is not finished: a progress bar ends with its phase.

    A phase once passed is not entered again, but a line that opens the first phase is a new start of the engine.
    """
    for line in lines:
        _note_phase(reading, line[:LINE_LIMIT], phases)
        _append(reading.tail, line[:LINE_LIMIT])
        _note_error(reading, line[:LINE_LIMIT])
        reading.fatal = reading.fatal or why_fatal(line, fatal)
    if not _opens_first(partial[:LINE_LIMIT], phases):  # or it were one start now, and another one when it is finished
        _note_phase(reading, partial[:LINE_LIMIT], phases)
    del reading.tail[:-TAIL_LINES]


def why_fatal(line: str, fatal: Iterable[Mapping[str, str]]) -> str:
    """Why an engine that wrote this line never serves, or nothing."""
    return next((known["why"] for known in fatal if re.search(known["match"], line[:LINE_LIMIT])), "")


def _place(name: str, phases: Sequence[Mapping[str, str]]) -> int:
    """The place of a phase in the order; -1 before the first."""
    return next((place for place, phase in enumerate(phases) if phase["name"] == name), -1)


def _opened(line: str, phases: Sequence[Mapping[str, str]], place: int) -> int:
    """The last phase that a line opens of those after ``place``, else ``place``."""
    later = (number for number in range(len(phases) - 1, place, -1) if re.search(phases[number]["match"], line))
    return next(later, place)


def _opens_first(line: str, phases: Sequence[Mapping[str, str]]) -> bool:
    """Whether a line opens the first phase: a new start of the engine, where there was one before."""
    return bool(phases) and re.search(phases[0]["match"], line) is not None


def _note_phase(reading: Reading, line: str, phases: Sequence[Mapping[str, str]]) -> None:
    place = _place(reading.phase, phases)
    if place >= 0 and _opens_first(line, phases):
        place, reading.progress, reading.error, reading.error_rank, reading.fatal = -1, "", "", 0, ""
    now = _opened(line, phases, place)
    if now > place:
        reading.phase, reading.progress = phases[now]["name"], ""
    pattern = phases[now].get("progress") if now >= 0 else None
    if pattern and (counted := re.search(pattern, line)):
        reading.progress = f"{counted[1]}/{counted[2]}"


def last(lines: Iterable[str], count: int) -> list[str]:
    """The last lines, as many as asked for, of a progress bar only its last state."""
    tail: list[str] = []
    for line in lines:
        _append(tail, line[:LINE_LIMIT])
    return tail[-count:]


def folded(lines: Iterable[str], count: int) -> list[str]:
    """The last lines; of those that say the same but for rank, time and numbers only the last, with how many it was."""
    kept: dict[int, tuple[str, int]] = {}
    for line in lines:
        key = _checksum("", bare(line))
        kept[key] = (line, kept.pop(key, ("", 0))[1] + 1)
    told = [line if alike == 1 else f"{line} ({alike} lines like it)" for line, alike in kept.values()]
    return told[-count:]


def _append(tail: list[str], line: str) -> None:
    """Add a line to the tail; the next state of a progress bar takes the place of the one before."""
    bar, last = BAR.match(line), BAR.match(tail[-1]) if tail else None
    if bar and last and bar[1] == last[1]:
        tail[-1] = line
    else:
        tail.append(line)


def _note_error(reading: Reading, whole: str) -> None:
    """Keep the engine's own error: the last line that says a cause, else one that points to it, else an error word."""
    line = bare(whole).strip()
    if ARGPARSE.match(line) or EXCEPTION.match(line) or VALIDATION.match(line):
        rank = 2 if WRAPPER.search(line) else 3
    else:
        rank = 1 if ERROR_WORD.match(line) or ERROR_WORD.match(whole) else 0
    if rank and rank >= reading.error_rank:
        reading.error, reading.error_rank = line, rank


@dataclass
class Movement:
    """Whether an engine's log *moved* since its start: the judge's question about a start that takes long.

    It moved when a later phase was opened, when a counter (``24/51``, ``47%``) rose above the highest that lines of
    this shape ever said, or when a line came whose shape is new in this start. A heartbeat (the same line again,
    whatever numbers are in it), a counter said again and lines about requests are no movement. The *shape* of a line
    is its text and the rank label of its prefix, without times, pids, numbers and bars.

    ``label`` is a prefix without text: what vLLM writes before the carriage return of a bar. ``counters`` are the
    highest values by the checksum of what they count (the total is part of it: a draft model's shards are not the
    model's), ``shapes`` the checksums of shapes. Both end at ``SHAPE_LIMIT``; from then on nothing new counts, but
    counters that are known still do. A new start of the engine in the same file forgets all but ``starts``.
    """

    phase: str = ""
    label: str = ""
    starts: int = 0
    moves: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    shapes: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.shapes = set(self.shapes)  # a list where it comes out of JSON

    def plain(self) -> dict[str, Any]:
        """JSON-plain; ``Movement(**plain)`` is the same again."""
        return {**vars(self), "counters": dict(self.counters), "shapes": sorted(self.shapes)}

    def feed(self, lines: Iterable[str], phases: Sequence[Mapping[str, str]], partial: str = "") -> bool:
        """Take new lines and the one that is not finished; whether they are a movement."""
        before = self.starts, self.moves
        for line in lines:
            self._feed_line(_colourless(line[:LINE_LIMIT]), phases)
        if partial:
            self._feed_partial(_colourless(partial[:LINE_LIMIT]), phases)
        return (self.starts, self.moves) != before

    def _feed_line(self, line: str, phases: Sequence[Mapping[str, str]]) -> None:
        if self.phase and _opens_first(line, phases):
            self.phase, self.label, self.counters, self.shapes = "", "", {}, set()
            self.starts, self.moves = self.starts + 1, 0
        self._note_phase(line, phases)
        for label, text in self._statements(line):
            if not text.strip():  # a prefix alone: it belongs to the bar behind the carriage return
                self.label = label
                continue
            if not self._count(label, text + "\n") and not ACCESS.search(text):
                self._note_shape(_checksum(label, text))
            self.label = ""

    def _feed_partial(self, line: str, phases: Sequence[Mapping[str, str]]) -> None:
        """Of a line that is not finished only what stays true when it goes on counts."""
        if _opens_first(line, phases):
            return
        self._note_phase(line, phases)
        for label, text in self._statements(line):
            self._count(label, text)

    def _statements(self, line: str) -> Iterator[tuple[str, str]]:
        """Who says what: bars and log lines that stand in one line, each with its rank label."""
        for piece in BAR_END.split(line):
            if piece.strip():
                yield rank_label(piece) or self.label, bare(piece)

    def _note_phase(self, line: str, phases: Sequence[Mapping[str, str]]) -> None:
        place = _place(self.phase, phases)
        now = _opened(line, phases, place)
        if now > place:
            self.phase = phases[now]["name"]
            self.moves += now - place  # phases that were skipped count: however the line came, the sum is the same

    def _count(self, label: str, text: str) -> bool:
        """Take the counters of a text; whether there are any."""
        counters = list(COUNTER.finditer(text))
        for found in counters:
            done, total = int(found[1]), found[2] or found[3]
            if found[2] and done > int(total):
                continue
            key = f"{_checksum(label, text[: found.start()]):x}/{total}"
            highest = self.counters.get(key, -1)
            if done > highest and (highest >= 0 or len(self.counters) < SHAPE_LIMIT):
                self.counters[key] = done
                self.moves += 1
        return bool(counters)

    def _note_shape(self, shape: int) -> None:
        if shape not in self.shapes and len(self.shapes) < SHAPE_LIMIT:
            self.shapes.add(shape)
            self.moves += 1


def _checksum(label: str, text: str) -> int:
    """The shape of a text, as a number."""
    return zlib.crc32(f"{label} {' '.join(SHAPE_NOISE.sub('', text).split())}".encode(errors="replace"))


def take(path: Path, cursor: Cursor, hide: Callable[[str], str]) -> tuple[list[str], Cursor]:
    """The lines that were finished since the cursor; its ``partial`` is what the log ends with now.

    Args:
        path: the log.
        cursor: where reading stopped.
        hide: takes secrets out of a text.
    """
    lines: list[str] = []
    for _ in range(READS):
        text, cursor = follow(path, cursor, FIRST_READ_BYTES)
        if not text:
            break
        more, rest = split(cursor.partial, text)
        lines += more
        cursor = replace(cursor, partial=rest)
    return [hide(line) for line in lines], replace(cursor, partial=hide(cursor.partial))


def follow(path: Path, cursor: Cursor, limit: int) -> tuple[str, Cursor]:
    """What was written since the cursor, and the cursor after it; nothing is read twice.

    Args:
        path: the log. It may be rotated meanwhile, by renaming or by copying and truncating: what was not read yet is
            then read out of ``path.1`` first, and the new file when something is in it.
        cursor: where reading stopped; ``Cursor()`` for a log that is met for the first time.
        limit: bytes that are read of a file at once: whoever wants all calls until nothing comes. Of a log that is met
            for the first time only so much of its end is read, from the beginning of a line.
    """
    if not cursor.inode:
        return _meet(path, cursor, limit)
    if _is_same(path, cursor):
        return _read(path, cursor, limit)
    text, older = "", path.with_name(f"{path.name}.1")
    if _is_same(older, cursor, renamed=True):
        text, cursor = _read(older, cursor, limit, cursor.inode)
        if text and cursor.offset < _size(older):
            return text, cursor
    if not path.exists() or (not _size(path) and _is_same(older, cursor)):
        return text, cursor  # a server that has its log open goes on writing to the renamed one
    if (text or cursor.partial)[-1:] not in ("", "\n", "\r"):
        text += "\n"  # the line that the old file ends in is over
    new, cursor = _read(path, replace(cursor, inode=0, offset=0, mark=0), limit)
    return text + new, cursor


def _meet(path: Path, cursor: Cursor, limit: int) -> tuple[str, Cursor]:
    start = max(0, _size(path) - limit)
    text, cursor = _read(path, replace(cursor, offset=start), limit)
    if start and (line_end := re.search(r"[\r\n]", text)):
        text = text[line_end.end() :]
    return text, cursor


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _mark(file: BinaryIO, offset: int) -> int:
    file.seek(max(0, offset - MARK_BYTES))
    return zlib.crc32(file.read(min(offset, MARK_BYTES)))


def _is_same(path: Path, cursor: Cursor, renamed: bool = False) -> bool:
    """Whether a file has what was read up to the cursor; under another name its copy will do."""
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            if stat.st_size < cursor.offset or (cursor.mark and _mark(file, cursor.offset) != cursor.mark):
                return False
            return stat.st_ino == cursor.inode or (renamed and cursor.mark != 0)
    except FileNotFoundError:
        return False


def _read(path: Path, cursor: Cursor, limit: int, inode: int = 0) -> tuple[str, Cursor]:
    """Read on from the cursor. A character that is not complete yet is left for the next time.

    ``inode`` is what the new cursor says instead of the file's own: nobody writes on into a copy.
    """
    try:
        with path.open("rb") as file:
            file.seek(cursor.offset)
            data = file.read(max(4, limit))
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text = decoder.decode(data)
            offset = cursor.offset + len(data) - len(decoder.getstate()[0])
            inode = inode or os.fstat(file.fileno()).st_ino
            mark = _mark(file, offset) if data else cursor.mark  # it may have been truncated just now
    except FileNotFoundError:
        return "", cursor
    return text.replace("\0", ""), replace(cursor, inode=inode, offset=offset, mark=mark)
