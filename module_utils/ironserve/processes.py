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
GPU_NODE = re.compile(r"^/dev/nvidia(\d+)$")
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
        self.processes: dict[int, Process] = {}
        for folder in proc.iterdir():
            process = read(int(folder.name), proc) if folder.name.isdigit() else None
            if process:
                self.processes[process.pid] = process

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
        """User, argv and control group; what is gone since or hidden reads as empty."""
        folder = self.proc / str(pid)
        status = dict(line.split(":", 1) for line in _read(folder / "status").splitlines() if ":" in line)
        argv = tuple(word for word in _read(folder / "cmdline").split("\0") if word)
        return Details(
            user_name(int(status["Uid"].split()[1])) if "Uid" in status else "unknown",
            argv or (f"[{self.processes[pid].comm}]" if pid in self.processes else "[gone since]",),
            _read(folder / "cgroup"),
            bool(int(status.get("SigIgn", "0").strip() or "0", 16) & SIGHUP_BIT),
        )

    def users_of(self, inodes: Collection[str], gpus: bool) -> tuple[dict[int, set[str]], dict[int, set[int]]]:
        """Pids with the sockets that they hold of these, and pids with the minors of the GPUs that they use."""
        sockets = {f"socket:[{inode}]": inode for inode in inodes}
        holds: dict[int, set[str]] = {}
        uses: dict[int, set[int]] = {}
        for pid, process in self.processes.items() if sockets or gpus else ():
            folder = self.proc / str(pid)
            targets = _open_files(folder, process)
            held = {sockets[target] for target in targets if target in sockets}
            if held:
                holds[pid] = held
            # To read all maps would be slow: nothing maps a device that it never opened.
            if gpus and any(GPU_NODE.match(target) for target in targets):
                minors = mapped_gpus(_maps(folder, process))
                if minors:
                    uses[pid] = minors
        return holds, uses

    def listening(self, wanted: Collection[int]) -> dict[str, int]:
        """Inodes of sockets that listen on these TCP ports, with the port."""
        tables = [_read(self.proc / "net" / name) for name in ("tcp", "tcp6")]
        return {inode: port for port in wanted for table in tables for inode in ports.listening_inodes(table, port)}

    def gpus(self) -> dict[int, str]:
        """Minor and UUID of each GPU that the driver knows; empty without a driver."""
        files = sorted((self.proc / "driver" / "nvidia" / "gpus").glob("*/information"))
        return dict(found for found in map(parse_gpu, map(_read, files)) if found)


def read(pid: int, proc: Path = PROC) -> Process | None:
    """A process, or None when there is none with this pid."""
    text = _read(proc / str(pid) / "stat")
    return parse_stat(text) if text else None


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


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def folders(folder: Path, process: Process) -> list[Path]:
    """Where to look: the first thread; the others only where it ended, since then it shows neither files nor maps."""
    if process.state != "Z" or process.threads < 2:
        return [folder]
    return [thread for thread in _list(folder / "task") if thread.name != str(process.pid)]


def _open_files(folder: Path, process: Process) -> list[str]:
    targets = []
    for place in folders(folder, process):
        for descriptor in _list(place / "fd"):
            try:
                targets.append(str(descriptor.readlink()))
            except OSError:
                continue
    return targets


def _maps(folder: Path, process: Process) -> str:
    return "\n".join(_read(place / "maps") for place in folders(folder, process))


def _list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
