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
from typing import Any, Callable

from . import aside, gpu_states, holders, host, nvml, processes, shm, victims
from .gpu_states import Verdict
from .gpus import Gpu, Reading
from .processes import PROC, Process, Table
from .releases import Releases
from .slices import duration
from .unit_end import UnitEnd, running_units

POLL_S = 0.1
KILL_WAIT_S = 30.0
"""A process that lives this long after SIGKILL waits inside the driver and does not end before a reboot."""

ROUNDS = 3
"""How often processes that come back are ended again."""

LOOK_AGAIN_S = 1.0
"""How often holders are looked for anew while memory does not become free."""

LOOK_TIMEOUT_S = 20.0
"""A look at all processes takes a fraction of a second; one that is stuck in the kernel may block it for ever."""


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
    agreed: Sequence[Mapping[str, Any]] | None = None
    grace_s: float = 10.0
    timeout_s: float = 60.0
    stop_timeout_s: float = 180.0
    driver_timeout_s: float = 30.0
    free_threshold_mib: int = 64
    mig: bool = False
    shm: bool = True


@dataclass(frozen=True)
class Means:
    """What a cleanup sees and acts with. Tests give it a host of their own: this one ends processes."""

    proc: Path = PROC
    send: Callable[[int, int, int], bool] = processes.send
    watch: Callable[[], nvml.Watch] = nvml.Watch
    units: Callable[[], frozenset[str]] = running_units
    unit: Callable[[str], UnitEnd] = UnitEnd
    shm: Path = shm.SHM
    pid: int = field(default_factory=os.getpid)


@dataclass
class State:
    """What one slice tells the next."""

    boot: str = ""
    began: float = 0.0
    stage: str = "cleaning"
    """``stopping`` while the unit stops."""
    group: str = ""
    """Control group of the unit."""
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

    def __init__(self, wish: Wish, check: bool, means: Means | None = None) -> None:
        self.wish, self.check, self.means = wish, check, means or Means()
        self.unit = self.means.unit(wish.service) if wish.service else None
        self.named = frozenset(wish.gpus)
        if wish.service and not wish.gpus:
            self.named = frozenset(Releases(wish.service).active_release().get("gpus", ()))
        self.state = State()
        self.reading = Reading("")
        self.scope: frozenset[str] = frozenset()
        self.table = Table(self.means.proc)
        self.found = victims.Found()
        self.looked_at = 0.0

    def run(self, cursor: Mapping[str, Any], slice_s: float) -> dict[str, Any]:
        """Clean as far as one slice allows; with 0 to the end.

        Raises:
            RuntimeError: systemd does not answer. ``state.actions`` tells what was done until then.
        """
        ends = time.monotonic() + slice_s if slice_s else float("inf")
        try:
            if cursor.get("boot") != host.boot_id():  # the first slice, or the host rebooted since
                self.state = State(boot=host.boot_id(), began=now_s())
                return self._first(ends)
            self.state = State(**cursor)
            return self._go_on(ends)
        except aside.StuckError:
            why = (
                f"the processes of this host could not be read within {duration(LOOK_TIMEOUT_S)}: one of them is stuck "
                "in the kernel with its memory locked, and ps hangs as well; reboot the host"
            )
            return self._answer(Verdict("driver_hung", why))

    def _first(self, ends: float) -> dict[str, Any]:
        """Ask the driver before anything is touched, then begin."""
        if self.unit and self.wish.keep_current and self.unit.is_current():
            return self._answer(Verdict("in_use", f"{self.unit.name} runs its active release: nothing was touched"))
        with self.means.watch() as watch:
            self._hear(watch)
            stops = self.unit if self.unit and not self.unit.is_off() else None
            refused = self._refusal() or (self._known_before_the_stop() if stops else None)
            if refused:
                return self._answer(refused)
            if stops:
                self._stop(stops)
            if self.state.stage == "cleaning":
                return self._clean(watch, ends)
        return self._go_on(ends)

    def _go_on(self, ends: float) -> dict[str, Any]:
        if self.unit and self.state.stage == "stopping" and not self._has_stopped(self.unit, ends):
            return self._waiting(f"stopping {self.unit.name}")
        with self.means.watch() as watch:
            self._hear(watch)
            return self._clean(watch, ends)

    def _known_before_the_stop(self) -> Verdict | None:
        """What would be in the way once the unit has stopped is told before: then it serves on."""
        self._look()
        measure = self._measure()
        return gpu_states.unusable(self.reading, measure, self.wish.driver_timeout_s) or gpu_states.foreign(
            self.found, measure
        )

    def _stop(self, unit: UnitEnd) -> None:
        self.state.actions.append(f"stop {unit.name}")
        self._note_before()
        if not self.check:
            self.state.stage, self.state.group = "stopping", unit.group()
            unit.tell()
            self.looked_at = 0.0  # who is there then is another question

    def _has_stopped(self, unit: UnitEnd, ends: float) -> bool:
        """Wait for the unit for a slice; then kill what is left in its control group."""
        state = self.state
        while not unit.is_off() and now_s() - state.began < self.wish.stop_timeout_s:
            if time.monotonic() >= ends:
                return False
            time.sleep(POLL_S)
        left = unit.end_group(state.group)
        if left:
            state.actions.append(f"kill the control group of {unit.name} with {left} processes")
        state.stage = "cleaning"
        return True

    def _clean(self, watch: nvml.Watch, ends: float) -> dict[str, Any]:
        while True:
            verdict = self._refusal() or self._step()
            if verdict:
                return self._answer(verdict)
            if time.monotonic() >= ends:
                return self._waiting(*self._progress())
            self._hear(watch)

    def _hear(self, watch: nvml.Watch) -> None:
        """Take what the driver says. Where it cannot be asked, the GPUs are those that its folder in /proc tells of."""
        self.reading = watch.latest(self.wish.driver_timeout_s) or Reading("", failure="hung")
        if self.reading.failure == "absent":
            known = sorted(self.table.gpus().items())
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
            self._look()
        if self.found.targets:
            return self._end_again(self.found.targets)
        return self._judge()

    def _judge(self) -> Verdict | None:
        quiet_s, ended = now_s() - self.state.fell_at, [pid for pid, _ in self.state.targets]
        return gpu_states.judge(self.reading, self.found, self._measure(), self.table.processes, quiet_s, ended)

    def _begin(self) -> Verdict | None:
        """Write down who is there, and tell the victims to end."""
        state = self.state
        self._note_before()
        state.problems += self.reading.problems
        state.told_at = state.fell_at = state.gone_at = self.looked_at
        for held in self.found.held:
            entries = {"victim": state.victims, "protected": state.protected, "self": state.protected}
            entries.get(held.kind, state.reported).append(victims.as_result(held, processes.ticks_now()))
        self._tell(self.found.targets)
        if self.check and state.actions:
            measure = self._measure()
            wrong = gpu_states.unusable(self.reading, measure, self.wish.driver_timeout_s)
            wrong = wrong or gpu_states.foreign(self.found, measure)
            return wrong or Verdict("held", f"would {', '.join(state.actions)}")
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
            self.means.send(process.pid, process.start_ticks, signal.SIGTERM)

    def _names(self, members: Sequence[Process], shown: int = 3) -> str:
        """``sglang::scheduler_TP0 (pid 77), sglang::scheduler_TP1 (pid 78) and 7 more``."""
        names = (f"{self.table.details(one.pid).argv[0].rsplit('/', 1)[-1]} (pid {one.pid})" for one in members)
        told = ", ".join(list(names)[:shown])
        return f"{told} and {len(members) - shown} more" if len(members) > shown else told

    def _left(self) -> list[Process]:
        found = ((processes.read(pid, self.means.proc), ticks) for pid, ticks in self.state.targets)
        return [process for process, ticks in found if process and not processes.is_gone(process, ticks)]

    def _wait_for(self, left: Sequence[Process]) -> Verdict | None:
        """SIGKILL once after the grace, with what they started meanwhile; a verdict when that does not help."""
        now, state = now_s(), self.state
        state.fell_at = now
        if state.killed_at:
            waited = now - state.killed_at >= min(KILL_WAIT_S, self.wish.timeout_s)
            return gpu_states.unkillable(left) if waited else None
        if now - state.told_at >= self.wish.grace_s:
            self._look()  # whom they started since is judged like anybody
            every = {(one.pid, one.start_ticks) for one in (*left, *self.found.targets)}
            state.targets = [list(one) for one in sorted({*map(tuple, state.targets), *every})]
            for pid, ticks in sorted(every):
                self.means.send(pid, ticks, signal.SIGKILL)
            state.killed_at = now
            state.actions.append(f"kill {len(every)} that did not end within {duration(self.wish.grace_s)}")
        return None

    def _end_again(self, again: Sequence[Process]) -> Verdict | None:
        """End what came back, or was hidden by what is gone; a few times."""
        state = self.state
        state.rounds += 1
        if state.rounds > ROUNDS:
            return gpu_states.respawning(again, self.table.processes)
        known = {(one["pid"], one["start_ticks"]) for one in state.victims}
        new = (held for held in self.found.of("victim") if (held.process.pid, held.process.start_ticks) not in known)
        state.victims += [victims.as_result(held, processes.ticks_now()) for held in new]
        self._tell(again)
        return None

    def _look(self) -> None:
        """See who is at the GPUs now. Aside: to read the command or the maps of a stuck process may block for ever."""
        running = self.means.units() - {self.unit.name if self.unit else ""}
        self.table, self.found, self.scope = aside.ask(lambda: self._seen(running), LOOK_TIMEOUT_S)
        self.looked_at = now_s()

    def _seen(self, running: frozenset[str]) -> tuple[Table, victims.Found, frozenset[str]]:
        table = Table(self.means.proc)
        every = self.named or frozenset(gpu.uuid for gpu in self.reading.gpus)
        found = victims.find(table, self.reading, self._victims_scope(every, running), self.means.pid)
        if self.named:
            return table, found, every
        # Without names a cleanup is for all GPUs but those of services that run.
        theirs = (held for held in found.of("out_of_scope") if held.uses and held.owner.name in running)
        scope = every - {uuid for held in theirs for uuid in held.memory_mib}
        if scope != every:
            wanted = replace(self._victims_scope(scope, running), taken=every - scope)
            found = victims.find(table, self.reading, wanted, self.means.pid)
        return table, found, scope

    def _victims_scope(self, uuids: frozenset[str], running: frozenset[str]) -> victims.Scope:
        wish = self.wish
        agreed = wish.agreed
        return victims.Scope(
            gpus=uuids,
            unit=self.unit.name if self.unit else "",
            running_units=running,
            service_user=wish.service_user,
            patterns=tuple(wish.patterns),
            protected=holders.protected({"protected_extra": wish.protected_extra, "unprotected": wish.unprotected}),
            leftovers_only=wish.leftovers_only,
            consent_foreign=wish.consent_foreign,
            agreed=None if agreed is None else frozenset((one["pid"], one["start_ticks"]) for one in agreed),
        )

    def _scoped(self) -> list[Gpu]:
        return [gpu for gpu in self.reading.gpus if gpu.uuid in self.scope]

    def _measure(self) -> gpu_states.Wish:
        wish = self.wish
        return gpu_states.Wish(self.scope, self.named, wish.gpu_count, wish.free_threshold_mib, wish.mig)

    def _note_before(self) -> None:
        """Note what was used at first, before anybody ended."""
        if not self.state.before_mib:
            self.state.before_mib = {gpu.uuid: gpu.memory_used_mib or 0 for gpu in self._scoped()}

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
        folder, proc, at = self.means.shm, self.means.proc, time.time()
        try:
            files = aside.ask(lambda: shm.leftovers(folder, uid, proc, at), LOOK_TIMEOUT_S)
            names = {file.name for file in files} if self.check else set(shm.remove(files)[0])
        except (OSError, aside.StuckError) as error:
            why = str(error) or "a process that is stuck in the kernel cannot be looked into"
            self.state.problems.append(f"nothing was removed from {folder}: {why}")
            return []
        removed = [file for file in files if file.name in names]
        if removed:
            mib = sum(file.bytes for file in removed) / 2**20
            self.state.actions.append(f"remove {len(removed)} files of engines from {folder}, {mib:.1f} MiB")
        return [{"name": file.name, "bytes": file.bytes} for file in removed]

    def _answer(self, verdict: Verdict) -> dict[str, Any]:
        state = self.state
        removed = self._clean_shm(verdict)
        after = {gpu.uuid: gpu.memory_used_mib for gpu in self.reading.gpus}
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
