"""What moves in an engine beside its log: bytes that its processes read, work of their CPUs, memory of its GPUs.

A start that loads for an hour without a word is healthy, and one that hangs may well talk, burn a core a rank, or write
a byte a second into a pipe. So each signal has a measure that a hang does not reach:

- ``io``: bytes that came from a disk or a network file system, or large reads from the page cache. Small ones (a pipe,
  an event) are how processes wait for each other. Writes do not count: a hang that complains fills its log.
- ``cpu``: work beyond spinning, of any one process. What waits in a loop touches no new memory; what compiles, loads or
  traces does, so CPU time counts together with page faults.
- ``gpu_memory``: memory used on the service's GPUs, up or down.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .processes import PROC, parse_stat, read_file

CGROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20

DISK_MIB = 1.0
"""Bytes from a disk since this signal last moved. Of a hang that pages in a few routines this is many times what it
reads in an hour."""
CACHED_MIB_PER_S = 4.0
CACHED_BYTES_PER_READ = 4096
"""Reads from the page cache count when they are fast and large: who polls an event reads 8 bytes at a time."""
CPU_SHARE = 0.05
FAULTS_PER_CPU_S = 200.0
"""Measured on vLLM 0.32 (CPU): 1,300 to 150,000 page faults in each second of CPU time while it loads and compiles; at
most 5 a second, and hardly any CPU time, while it serves nobody or while a worker is stopped and health is asked five
times a second. In relation to CPU time, so that a host that is overloaded does not make a load look like a hang."""
GPU_MEMORY_MIB = 8
WINDOW_S = 1.0
"""Rates are taken over at least this long."""


class Usage(NamedTuple):
    """What a process itself has used since it began."""

    start_ticks: int
    cpu_ticks: int
    faults: int
    disk_bytes: int = 0
    read_bytes: int = 0
    reads: int = 0


class Sample(NamedTuple):
    """One look at an engine's processes and GPUs. ``gpu_memory`` is used MiB by GPU; None where no driver tells."""

    usage: Mapping[int, Usage]
    gpu_memory: Mapping[str, int] | None = None
    has_io: bool = True
    """Whether the kernel told of reads at all: it hides them of a process that changed its user."""


class Delta(NamedTuple):
    """What was used between two looks."""

    cpu_s: float = 0.0
    faults: int = 0
    disk_bytes: int = 0
    read_bytes: int = 0
    reads: int = 0


def parse_usage(stat: str, io: str) -> Usage:
    """Usage from the texts of /proc/PID/stat and /proc/PID/io; the latter may be empty."""
    fields = stat.rsplit(")", 1)[1].split()
    counts = dict(line.split(": ", 1) for line in io.splitlines() if ": " in line)
    # Fields 10 and 12 of stat(5) are its faults, 14 and 15 its CPU time; the state, the first here, is field 3.
    faults, cpu = int(fields[7]) + int(fields[9]), int(fields[11]) + int(fields[12])
    disk, cached, reads = (int(counts.get(name, 0)) for name in ("read_bytes", "rchar", "syscr"))
    return Usage(parse_stat(stat).start_ticks, cpu, faults, disk, cached, reads)


def used(before: Mapping[int, Usage], now: Mapping[int, Usage], ticks_per_s: int) -> list[Delta]:
    """What each process that is there used between two looks. What began in between counts whole."""
    found = []
    for pid, usage in now.items():
        old = before.get(pid)
        if old is None or old.start_ticks != usage.start_ticks:
            old = Usage(usage.start_ticks, 0, 0)
        cpu_ticks, faults, *reads = (max(0, usage[place] - old[place]) for place in range(1, 6))
        found.append(Delta(cpu_ticks / ticks_per_s, faults, *reads))
    return found


@dataclass
class Vitals:
    """Says at each look which signals moved since the look before, and in words what they show.

    Attributes:
        said: for each signal that is known what it shows now, such as ``reads nothing``.
    """

    ticks_per_s: int = field(default_factory=lambda: os.sysconf("SC_CLK_TCK"))
    said: dict[str, str] = field(default_factory=dict)
    _last: Sample | None = None
    _at: float = 0.0
    _disk: int = 0
    _memory: dict[str, int] = field(default_factory=dict)

    def look(self, sample: Sample, at: float) -> set[str]:
        """The signals that moved. Looks that follow one another too fast are one look.

        Args:
            sample: what was seen.
            at: seconds of a clock that only goes forward.
        """
        moved = set()
        if self._memory_moved(sample.gpu_memory):
            moved.add("gpu_memory")
        if self._last is None:
            self._last, self._at = sample, at
            return moved
        span = at - self._at
        if span < WINDOW_S:
            return moved
        deltas = used(self._last.usage, sample.usage, self.ticks_per_s)
        self._last, self._at = sample, at
        if sample.has_io and self._io_moved(deltas, span):
            moved.add("io")
        if self._cpu_moved(deltas, span):
            moved.add("cpu")
        return moved

    def _io_moved(self, deltas: Sequence[Delta], span: float) -> bool:
        disk_bytes = sum(delta.disk_bytes for delta in deltas)
        large = [delta for delta in deltas if delta.reads and delta.read_bytes / delta.reads >= CACHED_BYTES_PER_READ]
        rate = sum(delta.read_bytes for delta in large) / MIB / span
        self._disk += disk_bytes
        moved = self._disk >= DISK_MIB * MIB or rate >= CACHED_MIB_PER_S
        self.said["io"] = f"reads {max(rate, disk_bytes / MIB / span):.0f} MiB/s" if moved else "reads nothing"
        if moved:
            self._disk = 0
        return moved

    def _cpu_moved(self, deltas: Sequence[Delta], span: float) -> bool:
        share = sum(delta.cpu_s for delta in deltas) / span
        moved = any(
            delta.cpu_s / span >= CPU_SHARE and delta.faults >= FAULTS_PER_CPU_S * delta.cpu_s for delta in deltas
        )
        if moved:
            said = f"{share:.1f} CPUs at work"
        elif share >= CPU_SHARE:
            said = f"{share:.1f} CPUs spin, nothing is computed"
        else:
            said = "CPUs idle"
        self.said["cpu"] = said
        return moved

    def _memory_moved(self, memory: Mapping[str, int] | None) -> bool:
        """Whether any GPU's memory differs from what it was when it last moved."""
        if memory is None:
            self.said.pop("gpu_memory", None)
            return False
        first = not self._memory
        moved = any(abs(mib - self._memory.get(gpu, mib)) >= GPU_MEMORY_MIB for gpu, mib in memory.items())
        if first or moved:
            self._memory = dict(memory)
        self.said["gpu_memory"] = f"{sum(memory.values()) / 1024:.1f} GiB on {len(memory)} GPUs"
        return moved


def control_group(text: str, root: Path = CGROUPS) -> Path | None:
    """The folder of a process's control group, from the text of /proc/PID/cgroup; None where it has none of its own."""
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if path == "/" or (number != "0" and controllers != "name=systemd"):
            continue
        for hierarchy in ("", "unified", "systemd"):
            folder = root / hierarchy / path.lstrip("/")
            if (folder / "cgroup.procs").exists():
                return folder
    return None


def members(group: Path) -> list[int]:
    """The pids of a control group and of those below it; empty where it is gone."""
    pids: list[int] = []
    for folder, _, _ in os.walk(group):
        pids += [int(pid) for pid in read_file(Path(folder) / "cgroup.procs").split()]
    return pids


def sample(pids: Iterable[int], gpu_memory: Mapping[str, int] | None = None, proc: Path = PROC) -> Sample:
    """Look at processes. Neither of the two files that are read waits for a process that is stuck."""
    usage, readable = {}, False
    for pid in pids:
        try:
            stat = (proc / str(pid) / "stat").read_text(errors="replace")
            io = read_file(proc / str(pid) / "io")
            usage[pid] = parse_usage(stat, io)
        except (OSError, ValueError, IndexError):  # gone
            continue
        readable = readable or bool(io)
    return Sample(usage, gpu_memory, readable)
