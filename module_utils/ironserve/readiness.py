"""The readiness helper: lives beside the engine in its unit and tells systemd what only a question can show.

While the engine starts: that it generates (READY=1). A start in which nothing moves it ends itself: systemd's own limit
could be extended while something moves, but every daemon-reload loses the extension and kills the start (252 and 257).
While it serves: that it decodes, or that nothing waits (WATCHDOG=1); systemd ends an engine of which it hears nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

from . import host, notify, probe
from .engines import ENGINES
from .slices import duration
from .systemd import GATE_DROP_IN, unit_name

POLL_S = 0.2
LOOK_AT_LEAST_EVERY_S = 30.0
EVIDENCE_S = 30.0
"""Longer than evidence takes, with an answer to the controller and the next call before it."""
ASK_AGAIN_AFTER_S = 10.0
"""A server whose first answer was wrong is asked again: where no gate watches, the next one may be right."""


SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
ACCESS_LINE = re.compile(rb'"[A-Z]+ \S+ HTTP/1\.')
"""A line about a request. A start does not move because somebody, this helper most of all, asks whether it is ready."""


class Work(NamedTuple):
    """What an engine's metrics say: requests in it, and all tokens that it ever processed."""

    requests: float
    tokens: float


def work(exposition: str, names: Mapping[str, tuple[str, ...]]) -> Work | None:
    """Read it from the text of /metrics; None where the engine does not have these metrics.

    Args:
        exposition: Prometheus text.
        names: for ``requests`` and ``tokens`` the metrics to add up.
    """
    sums: dict[str, float] = {}
    for name, value in SAMPLE.findall(exposition):
        with contextlib.suppress(ValueError):  # a line that only looks like a sample
            sums[name] = sums.get(name, 0.0) + float(value)
    if not all(name in sums for several in names.values() for name in several):
        return None
    return Work(*(sum(sums[name] for name in names[kind]) for kind in Work._fields))


def condition(before: Work | None, now: Work | None) -> str:
    """``moves``, ``stuck`` (requests are in it, and no token came since the last look), ``idle`` or ``mute``."""
    if now is None:
        return "mute"
    if before is not None and now.tokens != before.tokens:
        return "moves"
    return "stuck" if now.requests else "idle"


class LogWatch:
    """Says whether an engine's log moved since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = self._size()

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def moved(self) -> bool:
        """Whether the engine wrote anything but lines about requests."""
        size, before = self._size(), self.size
        self.size = size
        if size <= before:
            return size < before  # a log that is smaller is a new one
        try:
            with self.path.open("rb") as file:
                file.seek(before)
                lines = re.split(rb"[\r\n]+", file.read(size - before))
        except OSError:
            return False
        return any(line.strip() and not ACCESS_LINE.search(line) for line in lines)


class Helper:
    """Watches one start of one engine to its end.

    Args:
        release: the active release, as ``release.json`` has it.
        main_pid: the engine's pid.
        invocation: systemd's id of this start.
        key: API key that the server wants, or empty.
        watchdog_s: the unit's WatchdogSec.
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
        log, limit_s = LogWatch(host.LOGS / f"{self.release['service']}.log"), self.release["stall_timeout_s"]
        began = moved_at = asked_at = self.clock()
        whole_s = self.release["startup_timeout_s"] + self.release["completion_timeout_s"]
        told = ""
        while self.alive():
            found, now = self._found(), self.clock()
            if found.get("outcome") == "ready":
                return True
            if not found.get("outcome") or now - asked_at >= ASK_AGAIN_AFTER_S:
                self._ask()
                asked_at = now
            # The first completion of a cold engine may compile for minutes without a word; it has a limit of its own.
            if log.moved() or (found.get("health") == 200 and not found.get("outcome")):
                moved_at = now
            if now - moved_at >= limit_s:
                self._end(f"nothing moved in its log for {duration(limit_s)} (stall_timeout_s of the profile)")
                return False
            if now - began >= whole_s:
                self._end(f"not ready after {duration(whole_s)} (startup_timeout_s and completion_timeout_s)")
                return False
            status = f"STATUS=not ready: {found['outcome']}" if found.get("outcome") else "STATUS=starting"
            if status != told:
                self.say(status)
                told = status
            self.sleep(POLL_S)
        return False

    def serve(self) -> None:
        """Feed the watchdog while there is reason to, and ask anew when somebody removed the last finding."""
        every_s = min(self.watchdog_s / 4, LOOK_AT_LEAST_EVERY_S) if self.watchdog_s else LOOK_AT_LEAST_EVERY_S
        self.say("READY=1", "STATUS=serving")
        moved_at, next_look = self.clock(), self.clock()
        while self.alive():
            if not self._found().get("outcome"):
                self._ask()
            if self.watchdog_s and self.clock() >= next_look:
                good, what = self.look(every_s)
                if good:
                    moved_at = self.clock()
                    self.say("WATCHDOG=1", f"STATUS=serving, {what}")
                else:
                    silent_s = self.clock() - moved_at
                    self.say(f"STATUS={what} for {silent_s:.0f} s; ended after {self.watchdog_s:.0f} s of that")
                next_look = self.clock() + every_s
            self.sleep(POLL_S)

    def look(self, timeout_s: float) -> tuple[bool, str]:
        """Whether the engine decodes, or could if it were asked; and what it does, in words."""
        names = self.engine.WORK_METRICS
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

    def _end(self, why: str) -> None:
        """Say why, then kill the engine: the process that this helper was started for, and no other."""
        finding = probe.end_path(self.release["service"], self.invocation)
        host.write_text(finding, json.dumps({"outcome": "stalled", "detail": why}))
        # A gate that watches sees this at once, and collects evidence of the engine, then stops the unit.
        gate = Path(GATE_DROP_IN.format(unit=unit_name(self.release["service"])))
        until = self.clock() + EVIDENCE_S
        while gate.exists() and self.alive() and self.clock() < until:
            self.sleep(POLL_S)
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(self.main_pid)
            if self.alive():
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)

    def _found(self) -> dict[str, Any]:
        return probe.read(self.release["service"], self.invocation)

    def _ask(self) -> None:
        """Have the probe at work in a thread: a first completion may take minutes, in which the log is watched."""
        if self.asking is None or not self.asking.is_alive():
            self.asking = threading.Thread(
                target=probe.watch, args=(self.release, self.alive, self.invocation, self.key), daemon=True
            )
            self.asking.start()
