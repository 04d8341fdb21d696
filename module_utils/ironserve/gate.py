"""The gate: watches a start slice by slice, from the unit, the engine's log and the probe, until there is a verdict."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from . import aside, causes, effects, holders, host, logs, nvml, probe, readback, running
from .engines import ENGINES
from .judge import BAD, Verdict, judge, message
from .processes import Table, ticks_now
from .secrets import redact
from .slices import SLICE_S
from .symptoms import rewrite
from .systemd import SIGNAL_NAMES, unit_name

POLL_S = 0.2
SHORTEST_SLICE_S = 1.0
"""A change of phase ends a slice, so that the terminal shows it, but not sooner than this."""

CAUSE_BYTES = 1 << 20
"""As much of the log's end is searched for known causes: the first traceback stands before pages of consequences."""

KERNEL = re.compile(r"NVRM|out of memory|oom-kill", re.IGNORECASE)
"""What the kernel says of GPUs and of memory."""

LOOK_S = 1.5
"""Seconds that the kernel's log, the driver and the process table may take each; a verdict does not wait for more."""


class Gate:
    """One start of one service, watched. ``cursor`` is what the slice before returned, or empty.

    Args:
        release: the active release, as ``release.json`` has it.
        is_current: whether the process that a unit's properties show was started from the active release.
        secrets: what nobody may read in a report.
        asked_at: when systemd was asked for this start; 0 where it was there already.
        cleanup: what the site says of cleanups (``ironserve_cleanup``): whom a known cause does not accuse.
        cursor: JSON-plain state that travels to the controller and back.
        clock: monotonic seconds, comparable between slices.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        release: Mapping[str, Any],
        cursor: Mapping[str, Any],
        is_current: Callable[[Mapping[str, str]], bool],
        secrets: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        cleanup: Mapping[str, Any] | None = None,
        asked_at: float = 0.0,
    ) -> None:
        if cursor.get("boot") != host.boot_id():  # the host rebooted since: nothing of the cursor holds
            cursor = {}
        self.release, self.is_current = dict(release), is_current
        known = release.get("log") or {}
        self.phases, self.fatal = known.get("phases", []), known.get("fatal", [])
        self.secrets, self.clock, self.sleep, self.cleanup = secrets, clock, sleep, cleanup or {}
        self.unit = unit_name(release["service"])
        self.log = host.LOGS / f"{release['service']}.log"
        self.log_cursor = logs.Cursor(**cursor.get("log", {}))
        self.reading = logs.Reading(**cursor.get("reading", {}))
        self.timings: dict[str, float] = dict(cursor.get("timings", {}))
        self.began: float = cursor.get("began", clock())
        self.asked_at: float = cursor.get("asked_at", asked_at)
        self.show: dict[str, str] = {}
        self.verdict = Verdict("waiting")

    def cursor(self) -> dict[str, Any]:
        """What the next slice needs."""
        return {
            "boot": host.boot_id(),
            "began": self.began,
            "asked_at": self.asked_at,
            "log": vars(self.log_cursor),
            "reading": self.reading.plain(),
            "timings": self.timings,
        }

    def elapsed_s(self) -> float:
        """Seconds since systemd started the engine; 0 before it did."""
        return max(0.0, self.clock() - self._started_at()) if self._is_this_start() else 0.0

    def _is_this_start(self) -> bool:
        """Whether the unit shows the start that is watched.

        An older process that is still being stopped is none of it; a start that ended is, unless another one is queued.
        """
        running = self.show.get("MainPID", "0") != "0"
        if not self._started_at() or (running and self.show.get("ActiveState") == "deactivating"):
            return False
        return self.is_current(self.show) if running else self._has_begun() or not self.show.get("Job")

    def _has_begun(self) -> bool:
        """Whether systemd has come to the start that was asked for, though its job may still be there.

        An engine that exits with status 0 and leaves processes behind keeps its start waiting for ever.
        """
        return 0 < self.asked_at <= self._started_at()

    def _started_at(self) -> float:
        return int(self.show.get("ExecMainStartTimestampMonotonic") or 0) / 1e6

    def look(self) -> Verdict:
        """Take one look at everything and judge it."""
        self.show = host.show(self.unit)
        self._read_log()
        if self.reading.phase and self.reading.phase not in self.timings:
            self.timings[self.reading.phase] = round(self.elapsed_s(), 2)
        found = self._probe()
        # A server that is met long after its start gets the same time as one that starts now.
        watched_s = self.clock() - self.began
        counted_s = min(self.elapsed_s(), watched_s) if self._is_this_start() else watched_s
        shown = {**self.show, "Job": ""} if self._has_begun() else self.show
        self.verdict = judge(shown, found, counted_s, self.release["startup_timeout_s"])
        if self.verdict.verdict == "ready" and (unlike := self._read_back()):
            self.verdict = Verdict("failed", f"it serves, but it is not what was asked for: {'; '.join(unlike)}")
        if self.verdict.verdict in BAD and self.log_cursor.partial.strip():  # last words without a newline
            logs.read(self.reading, [self.log_cursor.partial], self.phases, fatal=self.fatal)
        if self.verdict.verdict == "ready":
            became_active = int(self.show.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
            self.timings["ready"] = round(became_active - self._started_at(), 2)
        return self.verdict

    def watch(self, slice_s: float) -> Verdict:
        """Look until there is a verdict, the phase changed, or ``slice_s`` are over; 0 waits for the verdict."""
        began, before = self.clock(), self.reading.phase
        while self.look().verdict == "waiting":
            spent = self.clock() - began
            changed = self.reading.phase != before and spent >= SHORTEST_SLICE_S
            if slice_s and (changed or spent >= min(slice_s, SLICE_S)):
                break
            self.sleep(POLL_S)
        return self.verdict

    def message(self, known: causes.Cause | None = None) -> str:
        """What the operator reads when the verdict is bad, with the known cause, if any."""
        journal, service = f"journalctl -u {self.unit}", self.release["service"]
        return message(service, self.verdict, self.reading, self.elapsed_s(), str(self.log), journal, known)

    def known_cause(self, known: Sequence[Mapping[str, Any]]) -> causes.Cause | None:
        """The likeliest of the known causes (``knowledge/causes/``) of a verdict that is bad."""
        chunk, _ = logs.follow(self.log, logs.Cursor(), CAUSE_BYTES)
        lines, rest = logs.split("", redact(chunk, self.secrets))
        # Under a unit that systemd started again the log has several starts.
        opens = [place for place, line in enumerate(lines) if self.phases and re.search(self.phases[0]["match"], line)]
        said = [*lines[opens[-1] if opens else 0 :], rest]
        # The kernel's lines may be about others, and what the engine says itself is nearer.
        kernel = functools.partial(kernel_lines, self.elapsed_s())
        return next(iter(causes.find(known, said, self._facts(), kernel)), None)

    def _facts(self) -> dict[str, Any]:
        """What is known beside the log, see ``causes.FACTS``."""
        release, show = self.release, self.show
        code, status = show.get("ExecMainCode"), show.get("ExecMainStatus", "")
        return {
            "engine": release["engine"],
            "version": release.get("lock", {}).get("engine_version", ""),
            "exit_status": status if code == "1" else "",
            "signal": SIGNAL_NAMES.get(int(status), status) if code in ("2", "3") else "",
            "result": show.get("Result", ""),
            "reason": self.verdict.reason,
            "phase": self.reading.phase,
            "env": self._env(),
            "flags": release.get("flags", {}),
            "arch": functools.cache(architecture),
            "foreign_holders": functools.cache(lambda: foreign_holders(release, self.cleanup, self.secrets)),
        }

    def signals(self) -> dict[str, dict[str, Any]]:
        """How long ago each signal of this start last moved, and what it shows, as the helper saw it last."""
        signals = probe.signals(self.release["service"], self.show.get("InvocationID", ""), self.clock())
        return {name: {**signal, "what": redact(signal["what"], self.secrets)} for name, signal in signals.items()}

    def evidence(self) -> dict[str, Any]:
        """What the verdict rests on, for machines."""
        return {
            "unit": self.show,
            "log": str(self.log),
            "log_tail": self.reading.tail,
            "error_line": self.reading.error,
            "signals": self.signals(),
        }

    def took_effect(self, key: str = "") -> dict[str, Any]:
        """What the ranks and the server run with, against the release (``effects.py``). No secret is in it.

        ``ranks env added unreadable argv argv_source notes``; ``error`` where a process is stuck. It judges nothing:
        the server generates, and an engine that chose otherwise is for a person to know.

        Args:
            key: API key that the server wants, or empty.
        """
        release, pid = self.release, int(self.show.get("MainPID", "0"))
        engine = ENGINES[release["engine"]]
        found: dict[str, Any] = {}
        try:
            processes = aside.ask(lambda: running.ranks(pid, engine), LOOK_S)
            found |= effects.environment(self._env(), processes, release.get("secrets", []))
        except (OSError, aside.StuckError):
            found["error"] = "a process of the engine is stuck in the kernel, or gone"
        says, found["argv_source"] = running.arguments(release, engine, key, self.log)
        served = engine.service_flags(
            release["model"]["path"], release["model"]["served_name"], release["address"], release["port"]
        )
        found["argv"] = effects.arguments({**release["flags"], **served}, says, engine.ARGUMENT_NAMES)
        if "NCCL_DEBUG" in self._env():
            found["nccl"] = running.nccl(self._env(), self.log)
        found["notes"] = effects.notes(found)
        hidden: dict[str, Any] = rewrite(found, functools.partial(redact, secret_texts=self.secrets))
        return hidden

    def _env(self) -> dict[str, str]:
        return {**self.release["env"], **self.release.get("host_env", {})}

    def _read_back(self) -> list[str]:
        """In what the process that serves differs from the release. An override of the unit, say, is no proof of it."""
        process = Path("/proc") / self.show.get("MainPID", "0")
        cmdline, environ, limits = (host.read_text(process / name) or "" for name in ("cmdline", "environ", "limits"))
        return readback.differences(self.release, self._env(), cmdline, environ, limits)

    def _read_log(self) -> None:
        hide = functools.partial(redact, secret_texts=self.secrets)
        lines, self.log_cursor = logs.take(self.log, self.log_cursor, hide)
        logs.read(self.reading, lines, self.phases, self.log_cursor.partial, self.fatal)

    def _probe(self) -> dict[str, Any]:
        """What the probe found of this start so far. A process that is being stopped does not count."""
        if not self._is_this_start():
            return {}
        service, invocation = self.release["service"], self.show.get("InvocationID", "")
        died = redact(str(probe.read_start(service, invocation).get("died") or ""), self.secrets)
        found = {**probe.read(service, invocation), "died": died, "fatal": self.reading.fatal}
        return {**found, "detail": redact(str(found.get("detail", "")), self.secrets)}


def kernel_lines(since_s: float) -> list[str]:
    """What the kernel said of memory and GPUs in so many seconds; no other log has its OOM killer and Xid lines."""
    journal = ["journalctl", "-k", "-q", "-o", "cat", "--no-pager", "-n", "2000", f"--since=-{int(since_s) + 1}s"]
    try:
        text = aside.ask(lambda: host.run(journal).out, LOOK_S)
    except (OSError, aside.StuckError):
        return []
    return [line for line in text.splitlines() if KERNEL.search(line)]


def architecture() -> str:
    """Compute capability of the host's first GPU, ``12.0``; empty where the driver does not say."""
    return next((gpu.compute_capability for gpu in nvml.look(LOOK_S).gpus), "")


def foreign_holders(release: Mapping[str, Any], cleanup: Mapping[str, Any], secrets: Sequence[str]) -> list[str] | None:
    """Who else uses the GPUs of a service, a text each; nobody on a host without GPUs, None where it cannot be told."""

    def look() -> list[str]:
        table = Table()
        if not table.gpus():
            return []
        found, _ = holders.find([release], table, cleanup, table.details(os.getpid()).cgroup)
        foreign = holders.grouped(holder for holder in found if holder.gpus)
        return [redact(holders.described(group, ticks_now()), secrets) for group in foreign]

    try:
        return aside.ask(look, LOOK_S)
    except (OSError, aside.StuckError):
        return None


def read_start(log: Path, phases: Sequence[Mapping[str, str]], secrets: Sequence[str] = ()) -> logs.Reading:
    """What the end of a log says of the newest start in it."""
    chunk, _ = logs.follow(log, logs.Cursor(), logs.FIRST_READ_BYTES)
    lines, rest = logs.split("", redact(chunk, secrets))
    reading = logs.Reading()
    logs.read(reading, lines, phases, rest)
    return reading
