"""The readiness helper: lives beside the engine in its unit and tells systemd what only a question can show.

While the engine starts: that it generates (READY=1). A start that the judge calls hung or broken it ends itself:
systemd's own limit could be extended while something moves, but every daemon-reload loses the extension and kills the
start (252 and 257). While it serves: that it decodes, or that nothing waits (WATCHDOG=1); systemd ends an engine of
which it hears nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

from . import evidence, host, notify, nvml, probe, processes
from .engines import ENGINES
from .judge import BAD, Seen, Verdict, judge_ranks, judge_start
from .ranks import node_rank
from .start import Start
from .systemd import GATE_DROP_IN, unit_name

POLL_S = 0.2
LOOK_EVERY_S = 1.0
RANKS_EVERY_S = 2.0
GPUS_EVERY_S = 0.5
LOOK_AT_LEAST_EVERY_S = 30.0
EVIDENCE_S = 30.0
"""A gate that watches sees the verdict, collects evidence of the engine and stops the unit, all within this."""
ASK_AGAIN_AFTER_S = 10.0
"""A server whose first answer was wrong is asked again: where no gate watches, the next one may be right."""


SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)


class Work(NamedTuple):
    """What an engine's metrics say: requests in it, and all tokens that it ever processed."""

    requests: float
    tokens: float


def samples(exposition: str) -> dict[str, float]:
    """The samples in the text of /metrics by name, those of one name added up."""
    sums: dict[str, float] = {}
    for name, value in SAMPLE.findall(exposition):
        with contextlib.suppress(ValueError):  # a line that only looks like a sample
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def work(exposition: str, names: Mapping[str, tuple[str, ...]]) -> Work | None:
    """Read it from the text of /metrics; None where the engine does not have these metrics.

    Args:
        exposition: Prometheus text.
        names: for ``requests`` and ``tokens`` the metrics to add up.
    """
    sums = samples(exposition)
    if not all(name in sums for several in names.values() for name in several):
        return None
    return Work(*(sum(sums[name] for name in names[kind]) for kind in Work._fields))


def look_every_s(watchdog_s: float) -> float:
    """Seconds between two looks of the helper, in each of which it may ask an idle engine for a token."""
    return min(watchdog_s / 4, LOOK_AT_LEAST_EVERY_S) if watchdog_s else LOOK_AT_LEAST_EVERY_S


def condition(before: Work | None, now: Work | None) -> str:
    """``moves``, ``stuck`` (requests are in it, and no token came since the last look), ``idle`` or ``mute``."""
    if now is None:
        return "mute"
    if before is not None and now.tokens != before.tokens:
        return "moves"
    return "stuck" if now.requests else "idle"


class Helper:
    """Watches one start of one engine to its end.

    Args:
        release: the active release, as ``release.json`` has it.
        main_pid: the engine's pid.
        invocation: systemd's id of this start.
        key: API key that the server wants, or empty.
        watchdog_s: the unit's WatchdogSec.
        log_offset: where this start begins in the service's log.
        say: tells systemd.
        clock: monotonic seconds.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        release: Mapping[str, Any],
        main_pid: int,
        invocation: str,
        key: str,
        watchdog_s: float,
        log_offset: int = 0,
        say: Callable[..., None] = notify.say,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.release, self.main_pid, self.invocation, self.key = dict(release), main_pid, invocation, key
        self.watchdog_s, self.say, self.clock, self.sleep = watchdog_s, say, clock, sleep
        self.ticks = host.start_ticks(main_pid)
        self.engine = ENGINES[release["engine"]]
        self.asking: threading.Thread | None = None
        self.seen: Work | None = None
        self.is_follower = node_rank(release.get("flags", {}), self.engine) > 0
        self.watched = Start(self.release, main_pid, log_offset, clock())

    def run(self) -> None:
        """Until the engine ends. A helper that takes the place of a killed one goes on where that was."""
        served = host.RUNTIME / self.release["service"] / f"{self.invocation}.ready"
        if served.exists() or self.start():
            host.write_text(served, "")
            self.serve()

    def alive(self) -> bool:
        """Whether the engine's process is still the one that this helper was started for."""
        return self.ticks is not None and host.start_ticks(self.main_pid) == self.ticks

    def start(self) -> bool:
        """Watch the start until the server generates; False when the engine ended before, or was ended."""
        start, told, looked_at, asked_at = self.watched, "", -LOOK_EVERY_S, self.clock()
        start.gpus = nvml.Watch(pause_s=GPUS_EVERY_S) if nvml.kernel_gpus() else None
        try:
            while self.alive():
                found, now = self._found(), self.clock()
                outcome = found.get("outcome")
                if now - looked_at >= LOOK_EVERY_S or outcome == "ready":
                    looked_at = now
                    # A first completion may compile for minutes without a word; it has a limit of its own.
                    excused = found.get("health") == 200 and not outcome
                    seen = start.look(now, excused, generates=outcome == "ready")
                    self._show(seen, now)
                    verdict = judge_start(seen)
                    if verdict.verdict in BAD:
                        self._end(verdict)
                        return False
                    if self.is_follower and start.ranks.count and not seen.missing:
                        self._say_follows(seen)
                        return True
                    if outcome == "ready" and not seen.missing:
                        return True
                if outcome != "ready" and (not outcome or now - asked_at >= ASK_AGAIN_AFTER_S) and not self.is_follower:
                    self._ask()
                    asked_at = now
                status = f"not ready: {outcome}" if outcome else f"starting: {seen.phase} {seen.progress}".rstrip(": ")
                if status != told:
                    self.say(f"STATUS={status}")
                    told = status
                self.sleep(POLL_S)
            return False
        finally:
            if start.gpus:
                start.gpus.close()
                start.gpus = None

    def serve(self) -> None:
        """Feed the watchdog while there is reason to, and ask anew when somebody removed the last finding."""
        every_s = look_every_s(self.watchdog_s)
        self.say("READY=1", "STATUS=serving")
        moved_at = next_look = ranks_at = self.clock()
        evidence_of = 0.0
        while self.alive():
            now = self.clock()
            if not self._found().get("outcome") and not self.is_follower:
                self._ask()
            if now - ranks_at >= RANKS_EVERY_S:
                ranks_at = now
                verdict = judge_ranks(self.watched.look_at_ranks(now), now)
                if verdict.verdict in BAD:
                    self._end(verdict)
                    return
            if self.watchdog_s and now >= next_look:
                good, what = self.look(every_s)
                if good:
                    moved_at = self.clock()
                    self.say("WATCHDOG=1", f"STATUS=serving, {what}")
                else:
                    silent_s = self.clock() - moved_at
                    if silent_s >= self.watchdog_s / 2 and evidence_of != moved_at:  # once, before systemd strikes
                        evidence_of = moved_at
                        self._keep_evidence()
                    if silent_s >= 1.5 * every_s:  # at one look alone a request may just have come
                        self.say(f"STATUS={what} for {silent_s:.0f} s; ended after {self.watchdog_s:.0f} s of that")
                next_look = self.clock() + every_s
            self.sleep(POLL_S)

    def look(self, timeout_s: float) -> tuple[bool, str]:
        """Whether the engine decodes, or could if it were asked; and what it does, in words."""
        names = self.engine.WORK_METRICS
        if self.is_follower:  # it answers nobody but the host that leads, and its health says 200 whatever it does
            return True, "following"
        if not names:
            status = host.get(self.release["url"] + self.release["health_path"], probe.HEALTH_TIMEOUT_S).status
            return status == 200, "decoding" if status == 200 else f"health says {status or 'nothing'}"
        answer = host.get(f"{self.release['url']}/metrics", timeout_s, key=self.key)
        now = work(answer.text, names) if answer.status == 200 else None
        what = condition(self.seen, now)
        self.seen = now or self.seen
        if what == "moves":
            return True, "decoding"
        if what == "stuck":
            return False, "requests wait and no token comes"
        # A server that counts nothing (--disable-log-stats) is asked for a token through its queue, and gets the time.
        patience_s = max(timeout_s, self.watchdog_s / 2) if answer.status == 200 and now is None else timeout_s
        if probe.one_token(self.release, patience_s, self.key):
            return True, "idle" if now else "generating"
        return False, "no answer to a request for one token"

    def _say_follows(self, seen: Seen) -> None:
        """The finding of a host that answers nobody: whether the server generates is seen at the host that leads."""
        detail = f"{seen.ranks}; it follows: whether the server generates is judged at the host of rank 0"
        finding = {"outcome": "ready", "detail": detail, "proof": {"outcome": "ready", "detail": detail}}
        host.write_text(probe.result_path(self.release["service"], self.invocation), json.dumps(finding))

    def _show(self, seen: Seen, at: float) -> None:
        """Leave what was seen where the gate and whoever collects evidence find it."""
        path = probe.start_path(self.release["service"], self.invocation)
        host.write_text(path, json.dumps({"at": at, **seen._asdict()}))

    def _keep_evidence(self) -> None:
        """Keep what the engine shows, where nobody else will: it is about to be ended, and no gate watches."""
        service, start = self.release["service"], self.watched
        try:
            known, signals = evidence.known_secrets(service), start.progress.plain(self.clock())
            found = evidence.collect(service, self.release, known, start.reading, signals)
            evidence.write(evidence.by_helper(service), found)
        except Exception:
            traceback.print_exc()  # into the helper's log; the engine is ended all the same

    def _end(self, verdict: Verdict) -> None:
        """Say why, then kill the engine: the process that this helper was started for, and no other."""
        finding = probe.end_path(self.release["service"], self.invocation)
        host.write_text(finding, json.dumps({"outcome": verdict.verdict, "detail": verdict.reason, "final": True}))
        gate = Path(GATE_DROP_IN.format(unit=unit_name(self.release["service"])))
        until = self.clock() + EVIDENCE_S
        while gate.exists() and self.alive() and self.clock() < until:
            self.sleep(POLL_S)
        if self.alive() and self.ticks is not None:  # no gate watches, or none any more
            self._keep_evidence()
            processes.send(self.main_pid, self.ticks, signal.SIGKILL)

    def _found(self) -> dict[str, Any]:
        return probe.read(self.release["service"], self.invocation)

    def _ask(self) -> None:
        """Have the probe at work in a thread: a first completion may take minutes, in which the log is watched."""
        if self.asking is None or not self.asking.is_alive():
            self.asking = threading.Thread(
                target=probe.watch,
                args=(self.release, self.alive, self.invocation, self.key, self.watched.pids),
                daemon=True,
            )
            self.asking.start()
