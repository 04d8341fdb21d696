"""A service on a host: start it under the gate, stop it, look at it. Only this acts on a running unit."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import host, ledger, probe, systemd
from .gate import Gate
from .judge import Verdict
from .releases import Releases
from .slices import SLICE_S, duration

KEEP_LOGS = 5
POLL_S = 0.2
OBSERVE_TIMEOUT_S = 5.0

Phases = Mapping[str, Sequence[Mapping[str, str]]]


def status_word(show: Mapping[str, str], active: str | None, good: str | None, health: int) -> str:
    """A service in a word.

    ``absent`` (nothing was deployed), ``starting`` (runs, has not passed the gate), ``ready``, ``unhealthy`` (passed
    the gate, does not say 200 now), ``stopped`` (by an operator: off at boot too), ``failed``, ``down`` (not running
    for any other reason).
    """
    if active is None:
        return "absent"
    if show.get("MainPID", "0") != "0":
        if active != good:
            return "starting"
        return "ready" if health == 200 else "unhealthy"
    if show.get("ActiveState") in ("failed", "active"):  # active without a process: it ended under the gate
        return "failed"
    return "stopped" if show.get("UnitFileState") != "enabled" else "down"


class Service:
    """One service of the host. With ``check`` every call returns what it would do, and does nothing."""

    def __init__(self, name: str, check: bool) -> None:
        self.name, self.check = name, check
        self.unit = systemd.unit_name(name)
        self.releases = Releases(name)
        self.ledger = self.releases.folder / "ledger.jsonl"

    def started(self, phases: Phases, cursor: Mapping[str, Any], slice_s: float) -> dict[str, Any]:
        """Start the active release, or attach to it where it runs already, and watch it for a slice."""
        release = self.releases.active_release()
        changed = bool(cursor.get("changed"))
        if not cursor:
            if not release and not self.check:
                raise RuntimeError(f"no release of {self.name} is active on this host: deploy one first")
            changed = not self._runs()
            if changed and not self.check:
                self._start()
        if self.check:
            return {"changed": changed, "verdict": "waiting"}
        gate = Gate(release, phases.get(release["engine"], ()), cursor.get("gate", {}))
        verdict = gate.watch(slice_s)
        done = verdict.verdict != "waiting"
        records = ledger.parse(host.read_text(self.ledger) or "")
        answer: dict[str, Any] = {
            "changed": changed,
            "verdict": verdict.verdict,
            "phase": gate.reading.phase,
            "progress": gate.reading.progress,
            "timings": gate.timings,
            "main_pid": int(gate.show.get("MainPID") or 0),
            "slice": {
                "done": done,
                "phase": gate.reading.phase or "starting",
                "progress": gate.reading.progress,
                "expected_s": ledger.expected_s(records, release["release_id"]),
                "cursor": {"changed": changed, "gate": gate.cursor()},
            },
        }
        if done:
            self._record(release, verdict, gate.timings)
        if verdict.verdict in ("failed", "timeout"):
            answer |= {"failed": True, "msg": gate.message(), "cause": verdict.reason, "evidence": gate.evidence()}
        return answer

    def stopped(self, enabled: bool, cursor: Mapping[str, Any], slice_s: float, timeout_s: float) -> dict[str, Any]:
        """Stop the service and wait for a slice until it is gone; without ``enabled`` a reboot keeps it off."""
        show, began = host.show(self.unit), cursor.get("began", time.monotonic())
        changed = bool(cursor.get("changed"))
        if not cursor:
            disable = not enabled and show.get("UnitFileState") == "enabled"
            changed = disable or not self._is_off()
            if changed and not self.check:
                if disable:
                    host.systemctl("--quiet", "disable", self.unit)
                host.systemctl("stop", "--no-block", self.unit)
        slice_ends = time.monotonic() + (min(slice_s, SLICE_S) or timeout_s)
        while not self.check and not self._is_off() and time.monotonic() < slice_ends:
            time.sleep(POLL_S)
        stopped = self.check or self._is_off()
        spent = time.monotonic() - began
        if stopped and changed and not self.check:
            self.releases.drop_in.unlink(missing_ok=True)
            host.systemctl("daemon-reload")
            if host.show(self.unit).get("ActiveState") == "failed":
                host.systemctl("reset-failed", self.unit)
        if not stopped and spent >= timeout_s:
            raise RuntimeError(
                f"{self.unit} is still there {duration(spent)} after systemd was told to stop it; "
                f"systemctl status {self.unit} shows its processes"
            )
        return {
            "changed": changed,
            "slice": {
                "done": stopped,
                "phase": "stopping",
                "progress": "",
                "expected_s": None,
                "cursor": {"changed": changed, "began": began},
            },
        }

    def observed(self) -> dict[str, Any]:
        """One look: what runs, since when, which release, and whether it says that it is healthy."""
        release, show = self.releases.active_release(), host.show(self.unit)
        active = host.link_target(self.releases.folder / "active")
        good = host.link_target(self.releases.folder / "last-known-good")
        pid = int(show.get("MainPID") or 0)
        health = host.get(release["url"] + release["health_path"], OBSERVE_TIMEOUT_S).status if pid and release else 0
        return {
            "changed": False,
            "status": status_word(show, active, good, health),
            "profile": release.get("profile", ""),
            "engine": release.get("engine", ""),
            "release_id": release.get("release_id", ""),
            "last_known_good_id": good or "",
            "port": release.get("port", 0),
            "model": release.get("model_name", ""),
            "main_pid": pid,
            "since": show.get("ActiveEnterTimestamp", ""),
            "health": health,
            "enabled": show.get("UnitFileState") == "enabled",
        }

    def _runs(self) -> bool:
        show = host.show(self.unit)
        return show.get("MainPID", "0") != "0" or show.get("ActiveState") == "activating"

    def _is_off(self) -> bool:
        return host.show(self.unit).get("ActiveState") in ("inactive", "failed")

    def _start(self) -> None:
        """Start the unit, with restarts held back while the gate watches, and with a log of its own."""
        rotate(host.LOGS / f"{self.name}.log")
        probe.forget(self.name)
        host.write_text(self.releases.drop_in, systemd.GATE_DROP_IN_TEXT)
        host.systemctl("daemon-reload")
        if host.show(self.unit).get("ActiveState") == "failed":
            host.systemctl("reset-failed", self.unit)
        # Not "start": to systemd a unit whose engine exited under the gate is still active, and start does nothing.
        host.systemctl("restart", "--no-block", self.unit)

    def _record(self, release: Mapping[str, Any], verdict: Verdict, timings: Mapping[str, float]) -> None:
        at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        with self.ledger.open("a") as file:
            file.write(ledger.record(release, verdict.verdict, verdict.reason, timings, at))


def rotate(log: Path) -> None:
    """Each start has a log of its own: ``main.log`` becomes ``main.log.1`` and so on; an empty one takes its place."""
    if not log.exists() or log.stat().st_size == 0:
        return
    for number in range(KEEP_LOGS - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    owner = log.stat()
    log.replace(log.with_name(f"{log.name}.1"))
    host.write_text(log, "", mode=owner.st_mode & 0o777, group=owner.st_gid)
