"""One start of an engine as the readiness helper sees it: its log, what moves beside the log, its ranks."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import evidence, host, logs, nvml, processes, vitals
from .engines import ENGINES
from .judge import Seen
from .progress import Progress, stall_limit_s
from .ranks import Member, Ranks, expected
from .secrets import redact

REPEATED_SHOWN = 60


class Start:
    """Looks at a start again and again.

    Args:
        release: the active release, as ``release.json`` has it.
        main_pid: the engine's pid.
        log_offset: where this start begins in the log.
        at: seconds of a clock that only goes forward.
        gpus: what looks at the GPUs; None where nobody is to ask the driver.
    """

    def __init__(
        self, release: Mapping[str, Any], main_pid: int, log_offset: int, at: float, gpus: nvml.Watch | None = None
    ) -> None:
        knowledge = release.get("log") or {}
        self.release, self.main_pid, self.began, self.gpus = release, main_pid, at, gpus
        self.engine = ENGINES[release["engine"]]
        self.phases, self.fatal = knowledge.get("phases", []), knowledge.get("fatal", [])
        self.log = host.LOGS / f"{release['service']}.log"
        self.cursor = logs.Cursor(host.inode(self.log), log_offset)
        self.reading, self.movement = logs.Reading(), logs.Movement()
        self.vitals, self.progress = vitals.Vitals(), Progress(at)
        self.ranks = Ranks(self.engine, expected(release.get("flags", {}), self.engine))
        self.group = vitals.control_group(host.read_text(Path("/proc/self/cgroup")) or "")
        self.own = {os.getpid(), os.getppid()}
        self.hide = functools.partial(redact, secret_texts=evidence.known_secrets(release["service"]))
        self.repeated = ""
        self.fatal_at, self.generates_at = 0.0, 0.0
        self._memory: dict[str, int] | None = None
        self._titles: dict[tuple[int, int, str], str] = {}

    def look(self, at: float, excused: bool = False, generates: bool = False) -> Seen:
        """Take one look at everything.

        Args:
            at: seconds of the clock.
            excused: see :meth:`progress.Progress.look`.
            generates: whether the server gave a token already.
        """
        self.generates_at = self.generates_at or (at if generates else 0.0)
        moved = {"log"} if self._read_log(at) else set()
        members = self._members()
        pids = [member.process.pid for member in members]
        moved |= self.vitals.look(vitals.sample(pids, self._gpu_memory(set(pids))), at)
        said = {"log": f'log repeats "{self.repeated[:REPEATED_SHOWN]}"' if self.repeated else "log silent"}
        self.progress.look(moved, {**said, **self.vitals.said}, at, excused)
        self.ranks.look(members, at)
        stall_s = stall_limit_s(self.release.get("stall_timeout_s"), self.reading.phase)
        return Seen(
            phase=self.reading.phase,
            progress=self.reading.progress,
            elapsed_s=at - self.began,
            limit_s=float(self.release["startup_timeout_s"] + self.release["completion_timeout_s"]),
            stalled=self.progress.is_stalled(stall_s),
            stall_s=stall_s,
            signals=self.progress.plain(at),
            described=self.progress.described(at),
            ranks=self.ranks.said(),
            died=self.ranks.died(),
            lost_s=self.ranks.lost_for_s(at),
            missing=self.ranks.missing(),
            generates_s=at - self.generates_at if self.generates_at else 0.0,
            fatal=self.reading.fatal,
            fatal_s=at - self.fatal_at if self.reading.fatal else 0.0,
        )

    def look_at_ranks(self, at: float) -> Ranks:
        """Look at nothing but the engine's processes: of one that serves the rest says nothing."""
        self.ranks.look(self._members(), at)
        return self.ranks

    def pids(self) -> list[int]:
        """The engine's processes: those of the unit but for the helper and what it started."""
        return [process.pid for process in self._processes()]

    def _processes(self) -> list[processes.Process]:
        if self.group is None:  # no control group of its own, so no unit
            return processes.Table().tree(self.main_pid)
        own = {*self.own, self.gpus.pid if self.gpus else None}
        found = filter(None, map(processes.read, vitals.members(self.group)))
        # What asks the driver may be a program that the child started: nvidia-smi works hard.
        return [process for process in found if process.pid not in own and process.parent not in own - {os.getppid()}]

    def _read_log(self, at: float) -> bool:
        """Whether the log moved."""
        lines, self.cursor = logs.take(self.log, self.cursor, self.hide)
        was_fatal = bool(self.reading.fatal)
        logs.read(self.reading, lines, self.phases, self.cursor.partial, self.fatal)
        if self.reading.fatal and not was_fatal:
            self.fatal_at = at
        moved = self.movement.feed(lines, self.phases, self.cursor.partial)
        if moved:
            self.repeated = ""
        elif lines:
            self.repeated = logs.bare(lines[-1]).strip()
        return moved

    def _gpu_memory(self, pids: set[int]) -> dict[str, int] | None:
        """Used MiB of each GPU: by the engine where the driver says whose it is, else in all."""
        if self.gpus is None:
            return None
        reading = self.gpus.latest(0)
        if reading:
            wanted = self.release.get("gpus") or [gpu.uuid for gpu in reading.gpus]
            found = [gpu for gpu in reading.gpus if gpu.uuid in wanted and gpu.memory_used_mib is not None]
            self._memory = {gpu.uuid: own_mib(gpu.processes, pids, gpu.memory_used_mib or 0) for gpu in found} or None
        return self._memory

    def _members(self) -> list[Member]:
        found = [Member(process, self._title(process)) for process in self._processes()]
        there = {(member.process.pid, member.process.start_ticks) for member in found}
        self._titles = {key: title for key, title in self._titles.items() if key[:2] in there}
        return found

    def _title(self, process: processes.Process) -> str:
        """The first word of its command line, where its name says that it has a title; read once a name."""
        key = (process.pid, process.start_ticks, process.comm)
        if key not in self._titles and process.comm.startswith(self.engine.TITLE) and process.state not in "DZX":
            command = host.read_text(Path(f"/proc/{process.pid}/cmdline")) or ""
            if command.strip("\0 "):
                self._titles[key] = command.split("\0")[0].strip()
        return self._titles.get(key, "")


def own_mib(users: Iterable[Any] | None, pids: set[int], used_mib: int) -> int:
    """MiB that these pids use on a GPU; all that is used where the driver names none of them."""
    own = [user.memory_mib or 0 for user in users or () if user.pid in pids]
    return sum(own) if any(own) else used_mib
