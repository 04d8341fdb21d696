"""A service on a host: start it under the gate, stop it, look at it. Only this acts on a running unit."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import evidence, hardware, host, ledger, packages, probe, secrets, systemd
from .gate import Gate
from .judge import BAD, START_LIMIT
from .releases import Releases
from .slices import SLICE_S, duration
from .systemd import exit_text

KEEP_LOGS = 5
POLL_S = 0.2
UNPROVEN_STOP_S = 10.0
OBSERVE_TIMEOUT_S = 5.0
BUSY = (429, 503)
"""What a server that works may say of itself when it has too much to do."""


def status_word(
    show: Mapping[str, str], active: str | None, proven: bool, serves: bool, last: Mapping[str, Any] | None
) -> str:
    """A service in a word.

    ``absent`` (nothing was deployed), ``starting`` (does not generate yet, or has not passed the gate), ``ready``,
    ``unhealthy`` (passed the gate, does not serve now; or runs without any release), ``failed`` (its last launch
    did), ``stopped`` (by an operator: off at boot too), ``down`` (not running for any other reason).

    Args:
        show: properties of the unit.
        active: the active release, None when there is none.
        proven: whether the active release passed the gate.
        serves: whether it says that it is healthy, or works and is too busy to say so.
        last: the last record of the ledger, None when there is none.
    """
    running = show.get("MainPID", "0") != "0"
    if active is None:
        return "unhealthy" if running else "absent"
    if show.get("ActiveState") == "activating":  # between two tries of systemd, too
        return "starting"
    if running:
        if not proven:
            return "starting"
        return "ready" if serves else "unhealthy"
    if show.get("ActiveState") == "failed" or ledger.is_bad(last):
        return "failed"
    return "stopped" if show.get("UnitFileState") != "enabled" else "down"


class Service:
    """One service of the host. With ``check`` every call returns what it would do, and does nothing."""

    def __init__(self, name: str, check: bool, values: secrets.Values | None = None) -> None:
        self.name, self.check = name, check
        self.unit = systemd.unit_name(name)
        self.releases = Releases(name, values=values)
        self.ledger = self.releases.folder / "ledger.jsonl"
        # A rollback leaves the host's files as they are, which may hold other secrets than the inventory has now.
        known = {*secrets.texts(values), *evidence.known_secrets(name)}
        self.secrets = sorted(known, key=len, reverse=True)

    def started(
        self,
        expected: str,
        cursor: Mapping[str, Any],
        slice_s: float,
        causes: Sequence[Mapping[str, Any]] = (),
        cleanup: Mapping[str, Any] | None = None,
        steps: Mapping[str, float] | None = None,
        tune: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Start the active release, or attach to it where it runs already, and watch it for a slice.

        Args:
            expected: folder name of the release that has to be active; empty takes whichever is.
            cursor: what the slice before returned, empty at first.
            slice_s: seconds to watch; 0 waits for the verdict.
            causes: known causes of a failed start.
            cleanup: what the site says of cleanups (``ironserve_cleanup``).
            steps: seconds of what was done before the start, for the ledger.
            tune: which tune tries the release, for the ledger: it is no release that was good here, then.
        """
        active = host.link_target(self.releases.folder / "active")
        if self.check:
            restarts = active != (expected or active) or not self.serves_active() or self.releases.was_edited()
            return {"changed": restarts, "verdict": "waiting"}
        if active is None or active != (expected or active):
            raise RuntimeError(
                f"release {expected or 'any'} is not active on this host, {active or 'none'} is: deploy it"
            )
        changed, asked_at = bool(cursor.get("changed")), 0.0
        if not cursor:
            now = time.monotonic()
            changed = self._start_or_attach()
            asked_at = now if changed else 0.0
        release = self.releases.active_release()
        gate = Gate(
            release,
            cursor.get("gate", {}),
            self.releases.is_current,
            self.secrets,
            cleanup=cleanup,
            asked_at=asked_at,
        )
        verdict = gate.watch(slice_s)
        if verdict.verdict in BAD and self._was_stopped(cursor):
            return self._stopped_by_somebody(changed, gate)
        # After a reboot an unproven release may have started at boot, without the drop-in: it is judged all the same.
        good = host.link_target(self.releases.folder / "last-known-good")
        done, gated = verdict.verdict != "waiting", self.releases.drop_in.exists() or active != good
        records = self._records()
        # A restart begins with the end of what ran before; an engine that still loads may take its whole stop limit.
        stopping = gate.show.get("ActiveState") == "deactivating"
        phase = "stopping the server that ran before" if stopping else gate.reading.phase or "starting"
        answer: dict[str, Any] = {
            "changed": changed,
            "verdict": verdict.verdict,
            "phase": gate.reading.phase,
            "progress": gate.reading.progress,
            "timings": gate.timings,
            "main_pid": int(gate.show.get("MainPID") or 0),
            "under_gate": gated,
            "slice": {
                "done": done,
                "phase": phase,
                "progress": gate.reading.progress,
                "expected_s": ledger.expected_s(records, release["release_id"]),
                # Since the engine began: neither the end of an older one nor a late attachment counts.
                **({"elapsed_s": gate.elapsed_s()} if gate.elapsed_s() else {}),
                "cursor": {"changed": changed, "gated": self.releases.drop_in.exists(), "gate": gate.cursor()},
            },
        }
        if verdict.verdict == "ready":
            answer["took_effect"] = self._took_effect(gate, release)
            answer["notices"] = [f"{self.name}: {note}" for note in answer["took_effect"]["notes"]]
        if done and gated:
            effect = answer.get("took_effect")
            watched = {"phase": gate.reading.phase, "elapsed_s": round(gate.elapsed_s(), 2)}
            error = {"error": gate.reading.error} if verdict.verdict in BAD and gate.reading.error else {}
            more = {**watched, **error, "steps": dict(steps or {}), **({"tune": dict(tune)} if tune else {})}
            unrecorded = self._record(release, verdict.verdict, verdict.reason, gate.timings, effect, more)
            answer["notices"] = [*answer.get("notices", []), *unrecorded]
        if verdict.verdict in BAD:
            kept = evidence.keep(self.name, release, self.secrets, gate.reading, gate.signals())
            known = gate.known_cause(causes)
            answer |= {"failed": True, "msg": gate.message(known), "cause": verdict.reason, "evidence": gate.evidence()}
            if known:
                answer |= {"cause_id": known.id, "advice": known.advice, "permanent": known.permanent}
            answer |= {**kept, "notices": [*answer.get("notices", []), *kept["notices"]]}
        return answer

    def _was_stopped(self, cursor: Mapping[str, Any]) -> bool:
        """Whether somebody stopped for good what this gate watches: that takes the drop-in away. So does a reboot."""
        watched = cursor.get("gated") and cursor.get("gate", {}).get("boot") == host.boot_id()
        return bool(watched) and not self.releases.drop_in.exists()

    def _stopped_by_somebody(self, changed: bool, gate: Gate) -> dict[str, Any]:
        """No failure of the release, and no reason to start another one against the will of who stopped it."""
        why = "somebody stopped it while it was being judged"
        return {
            "changed": changed,
            "failed": True,
            "verdict": "failed",
            "cause": why,
            "msg": f"{self.name} did not become ready: {why}; it stays stopped, and nothing is put back",
            "phase": gate.reading.phase,
            "progress": gate.reading.progress,
            "timings": gate.timings,
            "main_pid": 0,
            "under_gate": False,
            "evidence": {},
            "slice": {"done": True, "phase": "", "progress": "", "expected_s": None, "cursor": {}},
        }

    def stopped(
        self, cursor: Mapping[str, Any], slice_s: float, timeout_s: float, told: tuple[str, str] | None = None
    ) -> dict[str, Any]:
        """Stop the service for good, over a reboot too, and wait for a slice until it is gone.

        Args:
            cursor: what the slice before returned, empty at first.
            slice_s: seconds to wait; 0 waits for the end.
            timeout_s: seconds that the stop may take.
            told: verdict and reason for the ledger, of a release that was not even started, or that was ready and is
                given up for what its measurement said.
        """
        changed, unjudged = bool(cursor.get("changed")), bool(cursor.get("unjudged"))
        invocation = str(cursor.get("invocation", ""))
        if cursor.get("boot") != host.boot_id():  # the first slice, or the host rebooted since
            unjudged = unjudged or self._is_unjudged()
            invocation = invocation or host.show(self.unit).get("InvocationID", "")
            changed = self._stop() or changed
            cursor = {}
        began = cursor.get("began", time.monotonic())
        slice_ends = time.monotonic() + (min(slice_s, SLICE_S) or timeout_s)
        while not self.check and not self._is_off() and time.monotonic() < slice_ends:
            time.sleep(POLL_S)
        stopped, spent = self.check or self._is_off(), time.monotonic() - began
        if not stopped and spent >= timeout_s:
            raise RuntimeError(
                f"{self.unit} is still there {duration(spent)} after systemd was told to stop it; "
                f"systemctl status {self.unit} shows its processes"
            )
        notices: list[str] = []
        if stopped and not self.check and (told or unjudged):
            verdict, why = told or ("stopped", "stopped before there was a verdict")
            known = {"invocation": invocation} if invocation else {}  # systemd forgets it once the unit is gone
            notices = self._record(self.releases.active_release(), verdict, why, {}, more=known)
            host.forget_starts(self.unit)  # how it ended, killed perhaps, is not how it failed
        return {
            "changed": changed,
            "notices": notices,
            "slice": {
                "done": stopped,
                "phase": "stopping",
                "progress": "",
                "expected_s": None,
                "cursor": {
                    "changed": changed,
                    "unjudged": unjudged,
                    "invocation": invocation,
                    "began": began,
                    "boot": host.boot_id(),
                },
            },
        }

    def observed(self) -> dict[str, Any]:
        """One look: what runs, since when, which release, and whether it says that it is healthy."""
        release, show = self.releases.active_release(), host.show(self.unit)
        active = host.link_target(self.releases.folder / "active")
        good = host.link_target(self.releases.folder / "last-known-good")
        pid = int(show.get("MainPID") or 0)
        health = host.get(release["url"] + release["health_path"], OBSERVE_TIMEOUT_S).status if pid and release else 0
        proven = active == good and not self.releases.drop_in.exists() and self.releases.is_current(show)
        records, told = self._records(), show.get("StatusText", "")
        last = records[-1] if records else None
        is_busy = health in BUSY and told.startswith("serving")
        status = status_word(show, active, proven, health == 200 or is_busy, last)
        cause = self._why_failed(show, last) if status == "failed" else ""
        if status == "ready" and is_busy:
            cause = f"busy: its health endpoint says {health}, and tokens come"
        elif status == "ready" and told and not told.startswith("serving"):
            status, cause = "unhealthy", told  # the helper asks for tokens; a health endpoint may well say 200
        elif status == "starting" and active == good and not self.releases.drop_in.exists():
            cause = "it passed the gate, and loads again"
            if show.get("SubState") == "auto-restart":
                cause = f"{self._why_failed(show, None)}; systemd starts it again"
        if status == "starting" and show.get("SubState") != "auto-restart":
            cause = "; ".join(filter(None, [cause, told.partition(": ")[2]]))
        return {
            "service": self.name,
            "unit": self.unit,
            "status": status,
            "cause": cause,
            "secrets": release.get("secrets", []),
            "profile": release.get("profile", ""),
            "declared_profile": release.get("declared_profile", ""),
            "engine": release.get("engine", ""),
            "release_id": release.get("release_id", ""),
            "render_id": (active or "").rpartition("-")[2],
            "last_known_good_id": good or "",
            "address": release.get("address", ""),
            "port": release.get("port", 0),
            "gpus": release.get("gpus", []),
            "model": release.get("model_name", ""),
            "main_pid": pid,
            "since": show.get("ActiveEnterTimestamp", ""),
            "health": health,
            "enabled": show.get("UnitFileState") == "enabled",
            "restarts": int(show.get("NRestarts") or 0),
        }

    def _why_failed(self, show: Mapping[str, str], last: Mapping[str, Any] | None) -> str:
        """Why a service is off that nobody stopped."""
        if last and ledger.is_bad(last):
            return str(last.get("reason", ""))
        if show.get("Result") == "start-limit-hit":
            return START_LIMIT
        found = probe.read(self.name, show.get("InvocationID", ""))
        return str(found.get("detail")) if found.get("final") else f"the engine {exit_text(show) or 'ended'}"

    def serves_active(self) -> bool:
        """A process of the active release is there. One that systemd is about to start again after a crash is none."""
        show = host.show(self.unit)
        there = show.get("MainPID", "0") != "0" and show.get("ActiveState") != "deactivating"
        return there and self.releases.is_current(show)

    def end(self) -> None:
        """Tell systemd to stop what runs, now; what starts it again at boot stays as it is."""
        if self.releases.drop_in.exists():
            self._end_unproven()
        else:
            host.systemctl("stop", "--no-block", self.unit)

    def _is_off(self) -> bool:
        return host.show(self.unit).get("ActiveState") in ("inactive", "failed")

    def _start_or_attach(self) -> bool:
        """Whether something was started. What an earlier probe found of a process that runs on is asked again."""
        found = probe.read(self.name, host.show(self.unit).get("InvocationID", "")).get("outcome")
        if self.serves_active() and found != "no_helper":
            if found:
                probe.forget(self.name)
            return False
        if self.releases.drop_in.exists() and not self._is_off():
            self._end_unproven()
        rotate(host.LOGS / f"{self.name}.log")
        probe.forget(self.name)
        host.write_text(self.releases.drop_in, systemd.GATE_DROP_IN_TEXT)
        host.systemctl("daemon-reload")
        host.forget_starts(self.unit)
        # Not "start": it does nothing to an older release that runs, nor to a unit whose engine exited under the gate.
        host.systemctl("restart", "--no-block", self.unit)
        return True

    def _stop(self) -> bool:
        """Tell systemd to stop the unit and to leave it off at boot; whether there was anything to do."""
        enabled = host.show(self.unit).get("UnitFileState") == "enabled"
        gated, on = self.releases.drop_in.exists(), not self._is_off()
        needed = enabled or gated or on
        if self.check or not needed:
            return needed
        if enabled:
            host.systemctl("--quiet", "disable", self.unit)
        if on:
            self.end()
        if gated:
            self.releases.drop_in.unlink(missing_ok=True)
            host.systemctl("daemon-reload")
        return True

    def _is_unjudged(self) -> bool:
        """Whether a start is under way that the gate has not judged: an operator stops it."""
        show, records = host.show(self.unit), self._records()
        judged = records and records[-1].get("invocation") == show.get("InvocationID")
        return self.releases.drop_in.exists() and show.get("MainPID", "0") != "0" and not judged

    def _end_unproven(self) -> None:
        """End a server that never passed the gate: it serves nobody, and one that loads may not hear SIGTERM."""
        host.systemctl("stop", "--no-block", self.unit)
        ends = time.monotonic() + UNPROVEN_STOP_S
        while not self._is_off() and time.monotonic() < ends:
            time.sleep(POLL_S)
        if not self._is_off():
            host.systemctl("kill", "--signal=SIGKILL", self.unit)

    def _secret_files(self) -> tuple[str, str]:
        """Texts of the files that hold the service's secrets, as the server that runs read them."""
        env, config = (host.read_text(Path(path(self.name))) or "" for path in (secrets.env_path, secrets.config_path))
        return env, config

    def _records(self) -> list[dict[str, Any]]:
        try:
            return ledger.launches(ledger.parse(host.read_text(self.ledger) or ""))
        except OSError:  # no forecast then; that nothing can be recorded is told when it is tried
            return []

    def _took_effect(self, gate: Gate, release: Mapping[str, Any]) -> dict[str, Any]:
        """What the server runs with. It judges nothing: a server that is ready stays so, whatever goes wrong here."""
        try:
            return gate.took_effect(secrets.api_key(release["engine"], self._secret_files()))
        except Exception as error:
            why = f"what took effect could not be read back: {type(error).__name__}: {error}"
            return {"error": why, "notes": [why]}

    def _record(
        self,
        release: Mapping[str, Any],
        verdict: str,
        reason: str,
        timings: Mapping[str, float],
        took_effect: Mapping[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Append to the ledger. That this fails is worth a warning and changes no verdict."""
        at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        known = {
            "hardware": hardware.read(release.get("gpus", [])),
            "nccl_version": (took_effect or {}).get("nccl", {}).get("version") or locked_nccl(release),
            **(more or {}),
        }
        try:
            with self.ledger.open("a") as file:
                start = {
                    "at": at,
                    "staged_id": host.link_target(self.releases.folder / "active") or "",
                    "invocation": host.show(self.unit).get("InvocationID", ""),
                }
                file.write(ledger.record(release, start, verdict, reason, timings, took_effect, known))
        except OSError as error:
            return [f"the launch could not be recorded in {self.ledger}: {error}"]
        return []


def locked_nccl(release: Mapping[str, Any]) -> str:
    """Version of the NCCL in the release's environment; empty where it has none, as on a CPU."""
    folders = Path(release.get("environment", "/nowhere")).glob("lib/python3*/site-packages/nvidia_nccl_cu*.dist-info")
    return next(iter(packages.installed(folder.name for folder in folders).values()), "")


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
