"""System calls that Python 3.11 does not offer (namespaces, mounts), and processes known by more than their number."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object, about: object = None) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}", str(about))


def unshare(flags: int) -> None:
    """Give this process new namespaces of its own."""
    _call("unshare", flags, about=hex(flags))


def setns(path: Path, kind: int) -> None:
    """Enter the namespace that `path` names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _call("setns", descriptor, kind, about=path)
    finally:
        os.close(descriptor)


def mount(source: Path | str, target: Path | str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    words = (os.fsencode(source), os.fsencode(target), kind.encode() or None)
    _call("mount", *words, ctypes.c_ulong(flags), options.encode() or None, about=target)


def bind(source: Path, target: Path, read_only: bool = False) -> None:
    """Show `source` at `target` too. Read-only covers the mount itself, not mounts below it."""
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        mount("", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)


def unmount(target: Path | str) -> None:
    """Take a mount out of the tree at once, whoever still uses it."""
    _call("umount2", os.fsencode(target), MNT_DETACH, about=target)


@dataclass(frozen=True)
class Process:
    """A process by number and start time: a number alone may by now belong to another."""

    pid: int
    started: int  # clock ticks since the machine booted

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The live process with this number, if there is one."""
        try:
            state, pid, started = cls._parse(Path(f"/proc/{pid}/stat").read_text())
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if state in {"Z", "X"} else cls(pid, started)

    @classmethod
    def myself(cls, proc: int) -> Process:
        """This process as the /proc that `proc` holds open numbers it: the machine's, even inside a pid namespace."""
        return cls(*cls._parse(Path(f"/proc/self/fd/{proc}/self/stat").read_text())[1:])

    @staticmethod
    def _parse(stat: str) -> tuple[str, int, int]:
        """State, number and start time."""
        before, _, after = stat.rpartition(")")  # the name between the parentheses may hold anything
        fields = after.split()
        return fields[0], int(before.split()[0]), int(fields[19])

    @classmethod
    def read(cls, path: Path) -> Process | None:
        """The process that `path` recorded, if it is still alive."""
        try:
            recorded = cls(*map(int, path.read_text().split()))
        except FileNotFoundError:
            return None
        return recorded if cls.of(recorded.pid) == recorded else None

    def write(self, path: Path) -> None:
        """Record it in `path`, atomically."""
        unfinished = path.with_suffix(".new")
        unfinished.write_text(f"{self.pid} {self.started}\n")
        unfinished.rename(path)

    def send(self, number: signal.Signals) -> None:
        """Signal exactly this process; nothing happens if it is gone."""
        if (descriptor := self._open()) is not None:
            signal.pidfd_send_signal(descriptor, number)
            os.close(descriptor)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; false when it outlives the time."""
        if (descriptor := self._open()) is None:
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ended = bool(poll.poll(timeout_s * 1000))
        os.close(descriptor)
        return ended

    def _open(self) -> int | None:
        """A pidfd: it keeps meaning this process even if the number is given away between check and use."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if Process.of(self.pid) == self:
            return descriptor
        os.close(descriptor)
        return None
