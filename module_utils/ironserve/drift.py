"""Drift: what runs on a host against what is declared. Pure.

A row is ``{kind, key, declared, runs}``, both in words and None for what is not there. Kinds: ``flags env unit packages
driver kernel``. Nothing is judged that could not be read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import effects
from .render import changed_directives, directives
from .systemd import GATE_DROP_IN, UNIT_DIRECTORY

Row = dict[str, Any]

KINDS = ("flags", "env", "unit", "packages", "driver", "kernel")

DISTRIBUTIONS = ("/usr/lib/", "/lib/")
"""Drop-ins there are for all services of a host and come with its system."""

DRIVER = re.compile(r"^NVRM version:.*?\s(\d+\.\d[\d.]*)\s", re.MULTILINE)
LEADING_NUMBERS = re.compile(r"\d+(?:[.-]\d+)*")
CLAUSE = re.compile(r"(?P<operator>==|!=|>=|<=|>|<)\s*(?P<version>.+)")


def row(kind: str, key: str, declared: str | None, runs: str | None) -> Row:
    """One difference."""
    return {"kind": kind, "key": key, "declared": declared, "runs": runs}


def flags(declared: Sequence[str], runs: Sequence[str]) -> list[Row]:
    """In which flags a command differs from the release's, flag by flag.

    Args:
        declared: argv of the release.
        runs: words of /proc/PID/cmdline. A script has its interpreter in front, and an engine that gave itself a title
            has no command line any more.
    """
    if not any(runs) or "::" in runs[0]:
        return []
    (program, wished), (other, found) = map(_by_flag, (declared, runs))
    rows = [] if other[-len(program) :] == program else [row("flags", "command", " ".join(program), " ".join(other))]
    for name in dict.fromkeys([*wished, *found]):
        if wished.get(name) != found.get(name):
            rows.append(row("flags", name.lstrip("-"), wished.get(name), found.get(name)))
    return rows


def _by_flag(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words before the first flag, and what each flag has; ``true`` for a bare one."""
    program: list[str] = []
    values: dict[str, list[str]] = {}
    last: list[str] | None = None
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            last = values.setdefault(name, [])
            last += [value] if equals else []
        else:
            (program if last is None else last).append(word)
    return program, {name: " ".join(words) or "true" for name, words in values.items()}


def environment(
    env: Mapping[str, str],
    main: effects.Process,
    ranks: Sequence[effects.Process],
    secrets: Iterable[str] = (),
) -> list[Row]:
    """Which variables the main process or any rank has otherwise.

    Of what the release does not say only what the main process was started with is drift: the engine sets more itself.
    """
    started, inside = (effects.environment(env, processes, secrets) for processes in ([main], ranks))
    rows = [row("env", name, found["release"], found["runs"]) for name, found in started["env"].items()]
    for name, found in inside["env"].items():
        if found["runs"] != started["env"].get(name, {}).get("runs", found["release"]):
            who = f"{len(found['ranks'])} of {len(ranks)} ranks"
            rows.append(row("env", name, found["release"], f"{found['runs'] or 'not set'} ({who})"))
    return rows + [row("env", name, None, value) for name, value in started["added"].items()]


def unit(
    name: str, declared: str, on_disk: str | None, show: Mapping[str, str], drop_ins: Mapping[str, str]
) -> list[Row]:
    """In what a unit differs from the one that would be written now, a row a directive and a drop-in.

    Args:
        name: of the unit.
        declared: its text as it is rendered now.
        on_disk: the text of its file, None where there is none.
        show: ``FragmentPath NeedDaemonReload`` as systemd has them.
        drop_ins: text of each file that adds to it, by path.
    """
    place = f"{UNIT_DIRECTORY}/{name}"
    rows = []
    if on_disk is None:
        rows.append(row("unit", "file", place, None))
    else:
        changed: dict[str, list[list[str]]] = {}
        for line in changed_directives(declared, on_disk):
            sides = changed.setdefault(line[2:].partition("=")[0], [[], []])
            sides[line.startswith("+ ")].append(line[2:].partition("=")[2])
        rows += [row("unit", key, *("; ".join(side) or None for side in sides)) for key, sides in changed.items()]
    if show.get("FragmentPath", place) not in ("", place):
        rows.append(row("unit", "FragmentPath", place, show["FragmentPath"]))
    for path, text in drop_ins.items():
        if not path.startswith(DISTRIBUTIONS) and path != GATE_DROP_IN.format(unit=name):
            says = [line for line in directives(text) if not line.startswith("[")]
            rows.append(row("unit", path, None, "; ".join(says)))
    if show.get("NeedDaemonReload") == "yes":
        rows.append(row("unit", "NeedDaemonReload", "no", "yes: systemd has not read what its files say now"))
    return rows


def packages(declared: Mapping[str, str], there: Mapping[str, str] | None, lock_id: str) -> list[Row]:
    """Which packages of an environment are missing, of another version, or in no lock.

    Args:
        declared: versions of the lock by normal name.
        there: those that are installed; None where there is no such environment.
        lock_id: name of the environment.
    """
    if there is None:
        return [row("packages", "environment", lock_id, None)]
    both = sorted({*declared, *there})
    return [
        row("packages", name, declared.get(name), there.get(name))
        for name in both
        if _plain(declared.get(name)) != _plain(there.get(name))
    ]


def _plain(version: str | None) -> str | None:
    """A version as folders have it: a dash of the local part is an underscore there."""
    return version and version.replace("-", "_").lower()


def driver_version(text: str) -> str:
    """Version of the driver, from the text of /proc/driver/nvidia/version; empty where there is none."""
    match = DRIVER.search(text)
    return match[1] if match else ""


def fits(version: str, wanted: str) -> bool:
    """Whether a version is one of those wanted: ``>=580``, ``>=580,<600``, ``==595.58.03``, or how it begins, ``6.17``.

    Of a kernel's release (``6.17.0-19-generic``) the numbers in front count.
    """
    return all(_fits(version, clause.strip()) for clause in wanted.split(","))


def _fits(version: str, clause: str) -> bool:
    match = CLAUSE.fullmatch(clause)
    if not match:
        return re.match(rf"{re.escape(clause)}(?!\d)", version) is not None
    mine, other = _numbers(version), _numbers(match["version"])
    length = max(len(mine), len(other))
    left, right = (numbers + (0,) * (length - len(numbers)) for numbers in (mine, other))
    holds = {"==": left == right, "!=": left != right, ">=": left >= right, "<=": left <= right}
    holds |= {">": left > right, "<": left < right}
    return holds[match["operator"]]


def _numbers(version: str) -> tuple[int, ...]:
    found = LEADING_NUMBERS.match(version.strip())
    return tuple(int(number) for number in re.split(r"[.-]", found[0])) if found else ()


def system(
    kind: str, host: str, declared: Mapping[str, str], seen: Mapping[str, str], groups: Mapping[str, str]
) -> list[Row]:
    """Whether a host's driver or kernel is another one than declared or, where nothing is, than on most of its group.

    Args:
        kind: ``driver`` or ``kernel``.
        host: inventory name.
        declared: what is declared for each host, if anything.
        seen: version of each host that told.
        groups: host group of each host.
    """
    runs, wanted = seen.get(host, ""), declared.get(host, "")
    if not runs:
        return []
    if wanted:
        return [] if fits(runs, wanted) else [row(kind, kind, wanted, runs)]
    peers = [version for peer, version in seen.items() if version and groups.get(peer) == groups.get(host)]
    most, count = Counter(peers).most_common(1)[0]
    if most == runs or count * 2 <= len(peers):
        return []
    return [row(kind, kind, f"{count} of {len(peers)} hosts of group {groups.get(host)} have {most}", runs)]


def text(rows: Sequence[Row]) -> str:
    """Rows in a cell of a table: how many there are, and the first."""
    if not rows:
        return ""
    first = rows[0]
    declared, runs = ("not there" if first[side] is None else first[side] for side in ("declared", "runs"))
    return f"{len(rows)}: {first['kind']} {first['key']}: declared {declared}, runs {runs}"
