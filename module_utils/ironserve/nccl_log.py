"""What NCCL says with NCCL_DEBUG=INFO: its version, the settings that it took, how ranks reach each other. Pure.

NCCL reads a variable when it first needs it, and tells what it made of it once a process. A variable that it never told
of had no effect: it was not needed, or the name is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .nccl_values import OLD_LEVELS, as_number

VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)+)")
SETTINGS = (
    re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.*?)\s*$"),
    re.compile(r"NCCL INFO (NCCL_IB_HCA) set to (.*?)\s*$"),
    re.compile(r"NCCL INFO Parsed environment variable (NCCL_\w+)=(\S+)"),
    re.compile(r"NCCL INFO Invalid value .* for (NCCL_\w+), using default (-?\d+)"),
    re.compile(r"NCCL INFO Comm config \w+ reset to (NCCL_\w+)=(-?\d+)"),
)
"""The forms in which it tells of a variable and its value."""
NUMBER_TOLD = re.compile(r"(-?\d+)\.")
TRANSPORT = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\] (?:\[\w+\] )?via (\S+)")
NETWORK = re.compile(r"NCCL INFO Using network (\S+)")
CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels, .*?(\d+) p2p channels")
MATRIX_HEAD = re.compile(r"^\s*Function \|(.*)\|(.*)$")
MATRIX_ROW = re.compile(r"^\s*(\w+) \|((?:\s+\d)+)\s*\|((?:\s+\d)+)\s*$")
WARNING = re.compile(r"NCCL WARN (.*?)\s*$")
COMPLETE = re.compile(r"rank (\d+) nranks (\d+) .*Init COMPLETE")

NEVER_TOLD = frozenset({
    "NCCL_CONF_FILE", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_TIMESTAMP_FORMAT",
    "NCCL_DEBUG_TIMESTAMP_LEVELS", "NCCL_NET", "NCCL_NET_FORCE_MERGE", "NCCL_NET_MERGE_LEVEL", "NCCL_NO_CACHE",
    "NCCL_NVLS_CHUNKSIZE", "NCCL_OOB_NET_IFNAME", "NCCL_PARAM_DUMP_ALL", "NCCL_PROXY_CPUSET", "NCCL_RAS_ADDR",
    "NCCL_SET_THREAD_NAME", "NCCL_SOCKET_MAGIC", "NCCL_SYM_KERNEL", "NCCL_WARN_ENABLE_DEBUG_INFO",
})  # fmt: skip
"""Variables that NCCL 2.30.7 reads without a line in that form; an older one may have told of some."""


@dataclass
class Told:
    """What NCCL told, of all ranks that wrote to the same output.

    Attributes:
        version: ``2.28.9``; empty where it did not say.
        settings: each value that it took of a variable; more than one where ranks differ.
        transports: how a rank reaches another: ``{"P2P/CUMEM": ["0->1", "1->0"]}``.
        network: ``IB`` or ``Socket``, or the name of a plugin.
        channels: for collectives and from rank to rank, ``coll`` and ``p2p``.
        protocols: which of them each function may use, where NCCL_PROTO or NCCL_ALGO is set.
        algorithms: the same.
        warnings: the words of its WARN lines, each once.
        complete: the ranks whose communicator is complete.
    """

    version: str = ""
    settings: dict[str, list[str]] = field(default_factory=dict)
    transports: dict[str, list[str]] = field(default_factory=dict)
    network: str = ""
    channels: dict[str, int] = field(default_factory=dict)
    protocols: dict[str, list[str]] = field(default_factory=dict)
    algorithms: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    complete: list[int] = field(default_factory=list)


def parse(lines: Iterable[str]) -> Told:
    """Read NCCL's lines; whatever else stands between them is skipped."""
    told = Told()
    heads: tuple[list[str], list[str]] = ([], [])
    for line in lines:
        if found := next((match for form in SETTINGS if (match := form.search(line))), None):
            whole = NUMBER_TOLD.fullmatch(found[2])
            _add(told.settings, found[1], whole[1] if whole else found[2])
        elif found := TRANSPORT.search(line):
            _add(told.transports, found[3], f"{found[1]}->{found[2]}")
        elif found := WARNING.search(line):
            told.warnings += [found[1]] if found[1] not in told.warnings else []
        elif found := VERSION.search(line):
            told.version = found[1]
        elif found := NETWORK.search(line):
            told.network = found[1]
        elif found := CHANNELS.search(line):
            told.channels = {"coll": int(found[1]), "p2p": int(found[2])}
        elif found := COMPLETE.search(line):
            told.complete = sorted({*told.complete, int(found[1])})
        elif found := MATRIX_HEAD.match(line):
            heads = (found[1].split(), found[2].split())
        elif found := MATRIX_ROW.match(line):
            for names, flags, place in zip(heads, found.groups()[1:], (told.protocols, told.algorithms)):
                place[found[1]] = [name for name, flag in zip(names, flags.split()) if flag != "0"]
    return told


def _add(place: dict[str, list[str]], key: str, value: str) -> None:
    values = place.setdefault(key, [])
    if value not in values:
        values.append(value)


def took_effect(env: Mapping[str, str], lines: Iterable[str]) -> dict[str, str]:
    """For each of NCCL's variables: ``taken``, ``not read``, or ``other: V`` with what NCCL took instead.

    Those are left out of which NCCL never tells, and NCCL_P2P_DISABLE where it is not 1: it is as if it were not set.
    """
    settings = parse(lines).settings
    found = {}
    for name, value in sorted(env.items()):
        without_effect = name == "NCCL_P2P_DISABLE" and value != "1"
        if not name.startswith("NCCL_") or without_effect or (name in NEVER_TOLD and name not in settings):
            continue
        others = [other for other in settings.get(name, ()) if not _same(name, value, other)]
        found[name] = f"other: {', '.join(others)}" if others else "taken" if name in settings else "not read"
    return found


def _same(name: str, meant: str, told: str) -> bool:
    """Whether NCCL took what was meant; it tells numbers in decimal and levels as words."""
    if meant == told:
        return True
    if name.endswith("_LEVEL") and told in OLD_LEVELS and meant.isdecimal():
        return OLD_LEVELS[min(int(meant), len(OLD_LEVELS) - 1)] == told
    number = as_number(meant)
    return number is not None and number[1] and str(number[0]) == told
