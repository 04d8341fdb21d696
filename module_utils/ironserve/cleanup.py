"""Frees GPUs: ends a service's unit and what engines left behind, and measures until the memory is free.

:mod:`victims` says who ends, :mod:`gpu_states` what is left to say; only this acts.
"""

from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from . import gpu_states, host, nvml, processes, shm, systemd, victims
from .gpu_states import Verdict
from .gpus import Gpu, Reading
from .holders import PROTECTED
from .processes import Process, Table
from .releases import Releases
from .services import Service
from .slices import duration
from .systemd import unit_name

CGROUPS = Path("/sys/fs/cgroup")

POLL_S = 0.1
KILL_WAIT_S = 30.0
"""A process that lives this long after SIGKILL waits inside the driver and does not end before a reboot."""

ROUNDS = 3
"""How often processes that come back are ended again."""

LOOK_AGAIN_S = 1.0
"""How often holders are looked for anew while memory does not become free."""


@dataclass(frozen=True)
class Wish:
    """What is to be freed and how. The module's page documents each."""

    gpus: Sequence[str] = ()
    gpu_count: int = 0
    service: str = ""
    keep_current: bool = False
    service_user: str = "ironserve"
    patterns: Sequence[str] = ()
    protected_extra: Sequence[str] = ()
    unprotected: Sequence[str] = ()
    leftovers_only: bool = False
    consent_foreign: bool = False
    grace_s: float = 10.0
    timeout_s: float = 60.0
    stop_timeout_s: float = 180.0
    driver_timeout_s: float = 30.0
    free_threshold_mib: int = 64
    mig: bool = False
    shm: bool = True


@dataclass
class State:
    """What one slice tells the next."""

    boot: str = ""
    began: float = 0.0
    stage: str = ""
    cgroup: str = ""
    targets: list[list[int]] = field(default_factory=list)
    """Pid and start time of each process that was told to end."""
    told_at: float = 0.0
    killed_at: float = 0.0
    gone_at: float = 0.0
    """When the last of them was gone; 0 before."""
    rounds: int = 0
    before_mib: dict[str, int] = field(default_factory=dict)
    lowest_mib: dict[str, int] = field(default_factory=dict)
    fell_at: float = 0.0
    """When memory fell last, or the last of them went."""
    victims: list[dict[str, Any]] = field(default_factory=list)
    protected: list[dict[str, Any]] = field(default_factory=list)
    reported: list[dict[str, Any]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def now_s() -> float:
    """Seconds since boot; the same for all slices."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Cleanup:
    """One cleanup of a host's GPUs; in slices. With ``check`` it looks and ends nothing."""

    def __init__(self, wish: Wish, check: bool) -> None:
        self.wish, self.check = wish, check
        self.unit = unit_name(wish.service) if wish.service else ""
        self.named = frozenset(wish.gpus)
        if wish.service and not wish.gpus:
            self.named = frozenset(Releases(wish.service).active_release().get("gpus", ()))
        self.state = State()
        self.table = Table()
        self.found = victims.Found()
        self.scope: frozenset[str] = frozenset()
        self.looked_at = 0.0
        self.reading = Reading("")

    def run(self, cursor: Mapping[str, Any], slice_s: float) -> dict[str, Any]:
        """Clean as far as one slice allows; with 0 to the end."""
        ends = time.monotonic() + slice_s if slice_s else float("inf")
        if cursor.get("boot") == host.boot_id():
            self.state = State(**cursor)
        else:  # the first slice, or the host rebooted since
            self.state = State(boot=host.boot_id(), began=now_s())
            if self.unit and self.wish.keep_current and Service(self.wish.service, self.check).serves_active():
                return self._answer(Verdict("in_use", f"{self.unit} runs its active release: nothing was touched"))
            with nvml.Watch() as watch:
                self._hear(watch.latest(self.wish.driver_timeout_s))
                refused = self._refusal()
                if refused:  # before anything was touched
                    return self._answer(refused)
                self._stop_unit()
                if self.state.stage == "cleaning":
                    return self._clean(watch, ends)
        while self.state.stage == "stopping":
            if self._unit_is_off():
                self._end_cgroup()
                self.state.stage = "cleaning"
            elif time.monotonic() >= ends:
                return self._waiting(f"stopping {self.unit}")
            else:
                time.sleep(POLL_S)
        with nvml.Watch() as watch:
            self._hear(watch.latest(self.wish.driver_timeout_s))
            return self._clean(watch, ends)

    def _stop_unit(self) -> None:
        """Tell the service's unit to stop: drained, within its own limit, by systemd."""
        self.state.stage = "cleaning"
        if not self.unit or self._unit_is_off():
            return
        self.state.actions.append(f"stop {self.unit}")
        if not self.check:
            self.state.stage = "stopping"
            self.state.cgroup = systemd.parse_show(
                host.run(["systemctl", "show", self.unit, "-pControlGroup"]).out
            ).get("ControlGroup", "")
            Service(self.wish.service, self.check).end()

    def _unit_is_off(self) -> bool:
        if host.show(self.unit).get("ActiveState", "inactive") in ("inactive", "failed"):
            return True
        return self.state.stage == "stopping" and now_s() - self.state.began >= self.wish.stop_timeout_s

    def _end_cgroup(self) -> None:
        """End what is left in the unit's control group as a whole, so that nothing can fork away."""
        folder = CGROUPS / self.state.cgroup.strip("/")
        if not (folder / "cgroup.procs").exists():  # v1: systemd's own hierarchy
            folder = CGROUPS / "systemd" / self.state.cgroup.strip("/")
        for _ in range(ROUNDS):
            left = members(folder) if self.state.cgroup.strip("/") else []
            if not left:
                return
            self.state.actions.append(f"kill the control group of {self.unit} with {len(left)} processes")
            if (folder / "cgroup.kill").exists():  # v2, Linux 5.14 and newer
                (folder / "cgroup.kill").write_text("1")
                return
            for pid in left:
                process = processes.read(pid)
                if process:
                    processes.send(pid, process.start_ticks, signal.SIGKILL)

    def _clean(self, watch: nvml.Watch, ends: float) -> dict[str, Any]:
        while True:
            verdict = self._refusal() or self._step()
            if verdict:
                return self._answer(verdict)
            if time.monotonic() >= ends:
                return self._waiting(*self._progress())
            self._hear(watch.latest(self.wish.driver_timeout_s))

    def _hear(self, reading: Reading | None) -> None:
        """Take what the driver said. Where it cannot be asked, the GPUs are those that its folder in /proc tells of."""
        self.reading = reading or Reading("", failure="hung")
        if self.reading.failure == "absent":
            known = sorted(Table().gpus().items())
            told = tuple(Gpu(minor, uuid, minor=minor, processes=None, error="absent") for minor, uuid in known)
            self.reading = replace(self.reading, gpus=told)
        if not self.looked_at:
            self.scope = self.named or frozenset(gpu.uuid for gpu in self.reading.gpus)

    def _refusal(self) -> Verdict | None:
        return gpu_states.before_anything(self.reading, self._measure(), self.wish.driver_timeout_s)

    def _step(self) -> Verdict | None:
        """Look at what the driver says now, and do what follows; a verdict ends the cleanup."""
        state = self.state
        if not self.looked_at:
            self._look()
        self._note_memory()
        if not state.told_at:
            return self._begin()
        left = self._left()
        if left:
            return self._wait_for(left)
        state.gone_at = state.gone_at or now_s()
        if self.looked_at < state.gone_at or now_s() - self.looked_at >= LOOK_AGAIN_S:
            again = self._look()
            if again:
                return self._end_again(again)
        quiet_s, ended = now_s() - state.fell_at, [pid for pid, _ in state.targets]
        return gpu_states.judge(self.reading, self.found, self._measure(), self.table.processes, quiet_s, ended)

    def _begin(self) -> Verdict | None:
        """Write down who is there, and tell the victims to end."""
        now, state = processes.ticks_now(), self.state
        told = {process.pid for process in self.found.targets}
        for held in self.found.held:
            entry = victims.as_result(held, now)
            if held.kind == "victim" or held.process.pid in told:
                state.victims.append(entry)
            elif held.kind in ("protected", "self"):
                state.protected.append(entry)
            else:
                state.reported.append(entry)
        state.before_mib = {gpu.uuid: gpu.memory_used_mib or 0 for gpu in self._scoped()}
        state.problems += self.reading.problems
        state.told_at = state.fell_at = state.gone_at = self.looked_at
        self._tell(self.found.targets)
        if self.check and state.actions:
            return Verdict("held", f"would {', '.join(state.actions)}")
        return None

    def _tell(self, targets: Sequence[Process]) -> None:
        """SIGTERM to whole engines, main processes first: one that lives longer would start its ranks again."""
        if not targets:
            return
        self.state.actions.append(f"end {self._names(targets)}")
        if self.check:
            return
        self.state.targets = [[process.pid, process.start_ticks] for process in targets]
        self.state.told_at, self.state.killed_at, self.state.gone_at = now_s(), 0.0, 0.0
        for process in targets:
            processes.send(process.pid, process.start_ticks, signal.SIGTERM)

    def _names(self, members: Sequence[Process], shown: int = 3) -> str:
        """``sglang::scheduler_TP0 (pid 77), sglang::scheduler_TP1 (pid 78) and 7 more``."""
        names = (f"{self.table.details(one.pid).argv[0].rsplit('/', 1)[-1]} (pid {one.pid})" for one in members)
        told = ", ".join(list(names)[:shown])
        return f"{told} and {len(members) - shown} more" if len(members) > shown else told

    def _left(self) -> list[Process]:
        found = ((processes.read(pid), ticks) for pid, ticks in self.state.targets)
        return [process for process, ticks in found if process and not processes.is_gone(process, ticks)]

    def _wait_for(self, left: Sequence[Process]) -> Verdict | None:
        """SIGKILL once after the grace, with what they started meanwhile; a verdict when that does not help."""
        now, state = now_s(), self.state
        state.fell_at = now
        if state.killed_at:
            waited = now - state.killed_at >= min(KILL_WAIT_S, self.wish.timeout_s)
            return gpu_states.unkillable(left) if waited else None
        if now - state.told_at >= self.wish.grace_s:
            table, known = Table(), {pid for pid, _ in state.targets}
            for process in left:
                for member in table.tree(process.pid):
                    processes.send(member.pid, member.start_ticks, signal.SIGKILL)
                    if member.pid not in known:
                        known.add(member.pid)
                        state.targets.append([member.pid, member.start_ticks])
            state.killed_at = now
            state.actions.append(f"kill {len(left)} that did not end within {duration(self.wish.grace_s)}")
        return None

    def _end_again(self, again: Sequence[Process]) -> Verdict | None:
        """End what came back, or was hidden by what is gone; a few times."""
        self.state.rounds += 1
        if self.state.rounds > ROUNDS:
            return gpu_states.respawning(again, self.table.processes)
        self._tell(again)
        return None

    def _look(self) -> list[Process]:
        """Who is at the GPUs now; returns the processes that are to end."""
        self.table, self.looked_at = Table(), now_s()
        units = frozenset(running_units()) - {self.unit}
        every = self.named or frozenset(gpu.uuid for gpu in self.reading.gpus)
        self.scope = every
        self.found = victims.find(self.table, self.reading, self._victims_scope(units), os.getpid())
        if not self.named:
            # Without names a cleanup is for all GPUs but those of services that run.
            theirs = (held for held in self.found.of("out_of_scope") if held.uses and held.owner.name in units)
            self.scope = every - {uuid for held in theirs for uuid in held.memory_mib}
        if self.scope != every:
            self.found = victims.find(self.table, self.reading, self._victims_scope(units), os.getpid())
        return self.found.targets

    def _victims_scope(self, running: frozenset[str]) -> victims.Scope:
        wish = self.wish
        return victims.Scope(
            gpus=self.scope,
            unit=self.unit,
            running_units=running,
            service_user=wish.service_user,
            patterns=tuple(wish.patterns),
            protected=(frozenset(PROTECTED) - set(wish.unprotected)) | frozenset(wish.protected_extra),
            leftovers_only=wish.leftovers_only,
            consent_foreign=wish.consent_foreign,
        )

    def _scoped(self) -> list[Gpu]:
        return [gpu for gpu in self.reading.gpus if gpu.uuid in self.scope]

    def _measure(self) -> gpu_states.Wish:
        wish = self.wish
        return gpu_states.Wish(self.scope, self.named, wish.gpu_count, wish.free_threshold_mib, wish.mig)

    def _note_memory(self) -> None:
        """Note when memory fell last: as long as it falls there is something to wait for."""
        state = self.state
        for gpu in self._scoped():
            used = gpu.memory_used_mib
            if used is not None and used < state.lowest_mib.get(gpu.uuid, used + 1):
                state.lowest_mib[gpu.uuid] = used
                state.fell_at = now_s()

    def _progress(self) -> tuple[str, str]:
        """For what it waits, in words."""
        left = self._left()
        if left:
            return "waiting until it ends:", self._names(left)
        used = (f"GPU {gpu.index} {gpu.memory_used_mib} MiB" for gpu in self._scoped() if gpu.memory_used_mib)
        return "waiting until memory is free:", ", ".join(used)

    def _clean_shm(self, verdict: Verdict) -> list[dict[str, Any]]:
        """Remove what crashed engines left in /dev/shm, once no engine is there any more."""
        if not self.wish.shm or verdict.failed or verdict.state == "in_use":
            return []
        try:
            uid = pwd.getpwnam(self.wish.service_user).pw_uid
        except KeyError:  # nobody made the user yet, so it left nothing
            return []
        try:
            files = shm.leftovers(shm.SHM, uid, processes.PROC, time.time())
            names = {file.name for file in files} if self.check else set(shm.remove(files)[0])
        except OSError as error:
            self.state.problems.append(f"nothing was removed from {shm.SHM}: {error}")
            return []
        removed = [file for file in files if file.name in names]
        if removed:
            mib = sum(file.bytes for file in removed) / 2**20
            self.state.actions.append(f"remove {len(removed)} files of engines from {shm.SHM}, {mib:.1f} MiB")
        return [{"name": file.name, "bytes": file.bytes} for file in removed]

    def _answer(self, verdict: Verdict) -> dict[str, Any]:
        state = self.state
        removed = self._clean_shm(verdict)
        after = {gpu.uuid: gpu.memory_used_mib for gpu in self._scoped()}
        freed = sum(max(0, mib - (after.get(uuid) or 0)) for uuid, mib in state.before_mib.items())
        return {
            "changed": bool(state.actions),
            "failed": verdict.failed,
            "msg": verdict.message,
            "state": verdict.state,
            "victims": state.victims,
            "protected": state.protected,
            "reported": state.reported,
            "gpus": [self._gpu(gpu) for gpu in self.reading.gpus],
            "freed_mib": 0 if self.check else freed,
            "elapsed_s": round(now_s() - state.began, 3),
            "shm_removed": removed,
            "actions": state.actions,
            "problems": state.problems,
            "source": self.reading.source,
            "slice": {"done": True, "phase": verdict.state, "progress": "", "expected_s": None, "cursor": {}},
        }

    def _gpu(self, gpu: Gpu) -> dict[str, Any]:
        return {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "in_scope": gpu.uuid in self.scope,
            "before_mib": self.state.before_mib.get(gpu.uuid),
            "after_mib": gpu.memory_used_mib,
        }

    def _waiting(self, phase: str, progress: str = "") -> dict[str, Any]:
        return {
            "changed": bool(self.state.actions),
            "slice": {
                "done": False, "phase": phase, "progress": progress, "expected_s": None, "cursor": asdict(self.state)
            },
        }  # fmt: skip


def members(folder: Path) -> list[int]:
    """Pids of a control group and of those under it; none of one that is gone."""
    try:
        texts = [host.read_text(file) or "" for file in sorted(folder.rglob("cgroup.procs"))]
    except FileNotFoundError:  # it went while it was looked at
        return []
    return [int(pid) for text in texts for pid in text.split()]


def running_units() -> list[str]:
    """Units of Ironserve's that have processes by right; none where there is no systemd."""
    states = "--state=active,activating,deactivating,reloading"
    try:
        listed = host.run(["systemctl", "list-units", "--plain", "--no-legend", states, "ironserve-*.service"]).out
    except FileNotFoundError:
        return []
    return [line.split()[0] for line in listed.splitlines() if line.strip()]
