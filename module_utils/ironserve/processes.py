"""Processes as /proc shows them: who they are, what they listen on, which GPUs they use, how one of them is ended."""

from __future__ import annotations

import os
import pwd
import re
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from . import ports

PROC = Path("/proc")
SHM = "/dev/shm/"  # noqa: S108  a place that is looked for
GPU_NODE = re.compile(r"^/dev/nvidia(\d+)$")
STUCK_S = 0.2
"""A process that waits in the kernel this long may hold the lock of its memory for ever; a disk answers sooner."""

SIGHUP_BIT = 1 << (signal.SIGHUP - 1)


class Process(NamedTuple):
    """A process; with its start time the pid names one process and no other."""

    pid: int
    parent: int
    session: int
    start_ticks: int
    state: str
    threads: int
    comm: str


class GpuFiles(NamedTuple):
    """What a process has open that engines have: devices of GPUs, by minor number, and those that it has mapped."""

    opened: frozenset[int]
    mapped: frozenset[int]
    shared: frozenset[str] = frozenset()
    """Names of files in /dev/shm."""


class Details(NamedTuple):
    """What is read only of processes that matter."""

    user: str
    argv: tuple[str, ...]
    cgroup: str
    ignores_hangup: bool


def parse_stat(text: str) -> Process:
    """A process from the text of /proc/PID/stat; its name may hold spaces and brackets."""
    head, rest = text.rsplit(")", 1)
    pid, comm = head.split(" (", 1)
    fields = rest.split()
    return Process(
        int(pid), int(fields[1]), int(fields[3]), int(fields[19]), fields[0], int(fields[17]), comm
    )  # fmt: skip


def is_gone(process: Process | None, start_ticks: int) -> bool:
    """Whether that process ended. A zombie with threads still runs: only its first thread ended."""
    return process is None or process.start_ticks != start_ticks or (process.state == "Z" and process.threads < 2)


def mapped_gpus(maps: str) -> set[int]:
    """Minor numbers of the GPUs that a process has mapped, from the text of /proc/PID/maps.

    Open descriptors say nothing: whatever called nvmlInit, a monitor too, has /dev/nvidia0 and /dev/nvidia-uvm open.
    Only CUDA (and graphics) maps /dev/nvidia<minor> into memory; measured, see docs/evidence/gpu-holders.md.
    """
    matches = (GPU_NODE.match(line.split(None, 5)[5].strip()) for line in maps.splitlines() if "/dev/nvidia" in line)
    return {int(match[1]) for match in matches if match}


def parse_gpu(information: str) -> tuple[int, str] | None:
    """Minor and UUID, from the text of /proc/driver/nvidia/gpus/*/information."""
    fields = {key.strip(): value for key, _, value in (line.partition(":") for line in information.splitlines())}
    minor, uuid = fields.get("Device Minor", "").strip(), fields.get("GPU UUID", "").strip()
    return (int(minor), uuid) if minor.isdigit() and uuid else None


class Table:
    """One look at the process table; ``proc`` is elsewhere in tests."""

    def __init__(self, proc: Path = PROC) -> None:
        self.proc = proc
        found = (read(int(name), proc) for name in os.listdir(proc) if name.isdigit())
        self.processes: dict[int, Process] = {process.pid: process for process in found if process}
        self._details: dict[int, Details] = {}

    def ancestors(self, pid: int) -> Iterator[Process]:
        """Parent, its parent and so on, up to pid 1."""
        seen = {pid}
        process = self.processes.get(pid)
        while process and process.parent not in seen and process.parent in self.processes:
            process = self.processes[process.parent]
            seen.add(process.pid)
            yield process

    def children(self, pid: int) -> list[Process]:
        """The processes whose parent this is."""
        return [process for process in self.processes.values() if process.parent == pid]

    def tree(self, pid: int) -> list[Process]:
        """The process and all that descend from it, parents first."""
        found = [self.processes[pid]] if pid in self.processes else []
        for process in found:  # grows while it is walked
            found += [child for child in self.children(process.pid) if child not in found]
        return found

    def details(self, pid: int) -> Details:
        """User, argv and control group; what is gone since or hidden reads as empty. Read once."""
        if pid not in self._details:
            self._details[pid] = self._read_details(pid)
        return self._details[pid]

    def _read_details(self, pid: int) -> Details:
        folder = self.proc / str(pid)
        status = dict(line.split(":", 1) for line in read_file(folder / "status").splitlines() if ":" in line)
        command = "" if self._is_stuck(pid) else read_file(folder / "cmdline")
        argv = tuple(word for word in command.split("\0") if word)
        return Details(
            user_name(int(status["Uid"].split()[1])) if "Uid" in status else "unknown",
            argv or (f"[{self.processes[pid].comm}]" if pid in self.processes else "[gone since]",),
            read_file(folder / "cgroup"),
            bool(int(status.get("SigIgn", "0").strip() or "0", 16) & SIGHUP_BIT),
        )

    def users_of(self, inodes: Collection[str] = ()) -> tuple[dict[int, set[str]], dict[int, GpuFiles]]:
        """Pids with the sockets that they hold of these, and pids with the GPUs and shared memory that they have open.

        One pass over the open files of the whole host: 20,000 of them in well under half a second.
        """
        sockets = {f"socket:[{inode}]": inode for inode in inodes}
        holds: dict[int, set[str]] = {}
        uses: dict[int, GpuFiles] = {}
        for pid, process in self.processes.items():
            opened: set[int] = set()
            shared: set[str] = set()
            for target in _open_files(self.proc, process):
                if target in sockets:
                    holds.setdefault(pid, set()).add(sockets[target])
                elif target.startswith("/dev/nvidia"):
                    node = GPU_NODE.match(target)
                    opened |= {int(node[1])} if node else set()
                elif target.startswith(SHM):
                    shared.add(target[len(SHM) :])
            if opened or shared:
                # To read all maps would be slow: nothing maps a device that it never opened.
                mapped = mapped_gpus(self._maps(process)) if opened else set()
                uses[pid] = GpuFiles(frozenset(opened), frozenset(mapped), frozenset(shared))
        return holds, uses

    def _maps(self, process: Process) -> str:
        if self._is_stuck(process.pid):
            return ""
        return "\n".join(read_file(Path(place) / "maps") for place in places(self.proc, process))

    def _is_stuck(self, pid: int) -> bool:
        """Whether it waits in the kernel and does not come back: to read its command or maps could block for ever."""
        ends = time.monotonic() + STUCK_S
        process = self.processes.get(pid)
        while process and process.state == "D":
            if time.monotonic() >= ends:
                return True
            time.sleep(0.01)
            process = read(pid, self.proc)
        return False

    def program(self, pid: int) -> str:
        """Name of the executable that a process runs; empty where it cannot be told (the kernel's, or gone)."""
        try:
            return (self.proc / str(pid) / "exe").readlink().name.removesuffix(" (deleted)")
        except OSError:
            return ""

    def listening(self, wanted: Collection[int]) -> dict[str, int]:
        """Inodes of sockets that listen on these TCP ports, with the port."""
        tables = [read_file(self.proc / "net" / name) for name in ("tcp", "tcp6")]
        return {inode: port for port in wanted for table in tables for inode in ports.listening_inodes(table, port)}

    def gpus(self) -> dict[int, str]:
        """Minor and UUID of each GPU that the driver knows; empty without a driver."""
        files = sorted((self.proc / "driver" / "nvidia" / "gpus").glob("*/information"))
        return dict(found for found in map(parse_gpu, map(read_file, files)) if found)


def read(pid: int, proc: Path = PROC) -> Process | None:
    """A process, or None when there is none with this pid."""
    try:
        with open(f"{proc}/{pid}/stat", errors="replace") as file:
            return parse_stat(file.read())
    except (OSError, ValueError):  # ValueError: it went while it was read, and the text is empty
        return None


def send(pid: int, start_ticks: int, number: int) -> bool:
    """Signal exactly this process; False when it is gone. With the pidfd in hand the pid cannot pass to another."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):  # a kernel before 5.3
        handle = -1
    try:
        if is_gone(read(pid), start_ticks):
            return False
        if handle < 0:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def ticks_now() -> int:
    """Now, as start times of processes are told."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def age_s(start_ticks: int, now_ticks: int) -> float:
    """Seconds since a process started."""
    return max(0.0, (now_ticks - start_ticks) / os.sysconf("SC_CLK_TCK"))


def user_name(uid: int) -> str:
    """Name of a user, or the number of one that has no name here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def names(processes: Mapping[int, Process], pid: int) -> str:
    """``bash (pid 77)`` for a message."""
    return f"{processes[pid].comm if pid in processes else 'a process'} (pid {pid})"


def read_file(path: Path) -> str:
    """A file of /proc; empty where the process is gone or the file may not be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def places(proc: Path, process: Process) -> list[str]:
    """Where the open files and maps of a process show: at its first thread; at the others where that one ended."""
    folder = f"{proc}/{process.pid}"
    if process.threads < 2 or _list(f"{folder}/fd"):
        return [folder]
    first = str(process.pid)
    return [f"{folder}/task/{thread}" for thread in _list(f"{folder}/task") if thread != first]


def _open_files(proc: Path, process: Process) -> Iterator[str]:
    for place in places(proc, process):
        for descriptor in _list(f"{place}/fd"):
            try:
                yield os.readlink(f"{place}/fd/{descriptor}")
            except OSError:
                continue


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
