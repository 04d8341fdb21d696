"""A measurement of a server that runs: how fast it generates at some concurrencies, what its GPUs did, what it says.

All of it runs in a transient unit of its own (``benchmark_run.py``). A slice only reads what the unit has told so far,
and a call that finds the unit at work on the same thing attaches to it: so a lost connection loses nothing. One that
measures another server, or with another load, is ended first, its control group as a whole.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import os
import pwd
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from . import (
    benchmark_run,
    client,
    continuations,
    gpu_samples,
    hardware,
    host,
    ledger,
    probe,
    prompts,
    readiness,
    runtime,
    systemd,
)
from .benchmark_run import PLAN, SAMPLES, STEPS, order
from .prompts import WARM_UP
from .releases import Releases
from .slices import duration
from .unit_end import SYSTEMD, end_transient

RUN = Path("/run")
PROGRAM = (*runtime.MODULES, benchmark_run, client, continuations, gpu_samples, prompts)
"""What the unit needs of ours, in one file."""

POLL_S = 0.5
SHOW_EVERY_S = 2.0
STEPS_BYTES, SAMPLES_BYTES, OUTPUT_BYTES = 4 << 20, 256 << 20, 64 << 10

Steps = Sequence[Mapping[str, Any]]


class BenchmarkError(Exception):
    """Nothing was measured; the text is for an operator."""


class SetupError(BenchmarkError):
    """The host lacks something that a measurement needs; the server is not to blame."""


def unit_of(service: str) -> str:
    """The unit that measures a service. Its name is of no service: none has an underscore."""
    return f"ironserve-benchmark_{service}.service"


def folder_of(service: str) -> Path:
    """Its folder, which belongs to the service user."""
    return RUN / f"ironserve-benchmark_{service}"


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        release: the active release.
        invocation: systemd's id of the start that is measured.
        environment: folder of the client's environment.
        load: see :func:`record`; without its digest.
        user: who the client runs as.
        timeout_s: seconds after which systemd ends it.
    """

    release: Mapping[str, Any]
    invocation: str
    environment: str
    load: Mapping[str, Any]
    user: str
    timeout_s: float

    @property
    def service(self) -> str:
        """Whose server it is."""
        return str(self.release["service"])

    @property
    def unit(self) -> str:
        """The transient unit that does it."""
        return unit_of(self.service)

    @property
    def folder(self) -> Path:
        """Where the unit leaves what it finds."""
        return folder_of(self.service)

    @property
    def content(self) -> dict[str, Any]:
        """What the unit reads; no secret is in it."""
        return {
            "release": self.release, "invocation": self.invocation, "environment": self.environment, "load": self.load
        }  # fmt: skip

    @property
    def id(self) -> str:
        """Two plans of the same id measure the same in the same way."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def summary(self) -> str:
        """The plan in words."""
        levels, repetitions = ", ".join(map(str, self.load["concurrencies"])), self.load["repetitions"]
        return (
            f"measure {self.service} with {client.NAME}, {levels} at a time, {self.load['input_tokens']} tokens in and "
            f"{self.load['output_tokens']} out, {repetitions} {'time' if repetitions == 1 else 'times'} after a warm-up"
        )


def unit_argv(plan: Plan) -> list[str]:
    """The command that has systemd run all of it."""
    properties = {
        "User": plan.user, "WorkingDirectory": plan.folder, "PrivateTmp": "yes", "LimitNOFILE": 65535, "LimitCORE": 0,
        "TasksMax": "infinity", "StandardOutput": f"file:{plan.folder}/output", "StandardError": "inherit",
        "RuntimeMaxSec": f"{plan.timeout_s:.0f}", "TimeoutStopSec": "10",
    }  # fmt: skip
    return [
        "systemd-run", "--quiet", f"--unit={plan.unit}", "--service-type=exec", "--remain-after-exit",
        f"--description=Ironserve measures {plan.service}",
        *(f"--property={name}={value}" for name, value in properties.items()),
        sys.executable, "-IS", str(plan.folder / "benchmark"), str(plan.folder),  # /run may be mounted noexec
    ]  # fmt: skip


def parse(text: str) -> list[dict[str, Any]]:
    """The steps that the unit has told; a line that is not whole yet is left out."""
    found = []
    for line in text.splitlines():
        try:
            step = json.loads(line)
        except ValueError:
            continue
        if isinstance(step, dict) and "step" in step:
            found.append(step)
    return found


def of(kind: str, steps: Steps) -> list[Mapping[str, Any]]:
    """The steps of a kind."""
    return [step for step in steps if step["step"] == kind]


def measured(steps: Steps) -> list[Mapping[str, Any]]:
    """The runs that count."""
    return [step for step in of("run", steps) if step["repetition"] != WARM_UP]


def progress(steps: Steps, load: Mapping[str, Any], now: float) -> tuple[str, str]:
    """Phase, and how far it is: ``repetition 2 of 5, 32 at a time (61 %, about 3 min left)``.

    The warm-up tells how long a run of each level takes; each newer run tells it better.
    """
    begun = of("begin", steps)
    if not begun:
        return "measuring,", "asking for the continuations"
    repetition, level = int(begun[-1]["repetition"]), int(begun[-1]["level"])
    what = f"repetition {repetition + 1} of {load['repetitions']}" if repetition != WARM_UP else "warm-up"
    where = f"{what}, {level} at a time"
    done = of("run", steps)
    took = {int(run["level"]): float(run["ended"]) - float(run["began"]) for run in done}
    if not all(level in took for level in load["concurrencies"]):
        return "measuring,", where
    spent = sum(float(run["ended"]) - float(run["began"]) for run in done)
    left = sum(took[level] for _, level in list(order(load))[len(done) :])
    if len(done) < len(begun):  # one is under way
        so_far = min(max(0.0, now - float(begun[-1]["at"])), took[level])
        spent, left = spent + so_far, left - so_far
    share = 100 * spent / (spent + left) if spent + left > 0 else 100
    return "measuring,", f"{where} ({share:.0f} %, about {_about(left)} left)"


def _about(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(5, 5 * round(seconds / 5))} s"


def disturbed(steps: Steps, release: Mapping[str, Any]) -> str:
    """Why others' requests make a measurement worthless, by the engine's own counters; empty where there were none.

    The readiness helper asks an idle server for a token now and then: that many are no others.
    """
    counts = of("counted", steps)
    before, after = counts[0]["requests"], counts[-1]["requests"]
    if before is None or after is None:
        return ""
    runs = of("run", steps)
    elapsed_s = float(runs[-1]["ended"]) - float(runs[0]["began"]) if runs else 0.0
    helper = elapsed_s / readiness.look_every_s(float(release.get("watchdog_s") or 0)) + 2
    others = after - before - counts[-1]["sent"]
    if others <= helper:
        return ""
    return f"the engine answered {others:.0f} requests of others meanwhile, beside {counts[-1]['sent']:.0f} of its own"


def is_counted(steps: Steps) -> bool:
    """Whether the engine tells how many requests it answers."""
    return all(step["requests"] is not None for step in of("counted", steps))


def record(
    plan: Plan,
    steps: Steps,
    samples: Sequence[gpu_samples.Sample],
    start: Mapping[str, Any],
) -> dict[str, Any]:
    """The measurement as the ledger keeps it.

    Args:
        plan: what was measured.
        steps: all that the unit told.
        samples: of the GPUs.
        start: ``at``, ``staged_id``, ``client``, ``hardware``, and ``tune`` where one made it.
    """
    release, runs = plan.release, measured(steps)
    windows = [(float(run["began"]), float(run["ended"])) for run in runs]
    return {
        "event": "measurement",
        "invocation": plan.invocation,
        **{key: release[key] for key in ("release_id", "profile", "engine", "lock_id", "host_group")},
        "engine_version": release["lock"]["engine_version"],
        "model": ledger.model(release),
        "load": {**plan.load, "prompts": prompts.digest(plan.load)},
        "levels": {
            str(level): [run["run"] for run in runs if run["level"] == level] for level in plan.load["concurrencies"]
        },
        "gpus": gpu_samples.summary(samples, windows, release.get("gpus", ())),
        "continuations": of("continuations", steps)[0]["texts"],
        "disturbed": disturbed(steps, release),
        **start,
    }


class Benchmark:
    """The measurement of one service on this host.

    Args:
        service: its name.
        environment: folder of the client's environment.
        load: the concurrencies and so on.
        user: who the client runs as.
        timeout_s: seconds that all of it may take.
        clock: monotonic seconds.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        service: str,
        environment: str,
        load: Mapping[str, Any],
        user: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.service, self.environment, self.load, self.user, self.timeout_s = (
            service, environment, load, user, timeout_s
        )  # fmt: skip
        self.clock, self.sleep = clock, sleep
        self.releases = Releases(service)
        self.ledger = self.releases.folder / "ledger.jsonl"

    def plan(self) -> Plan:
        """What would be measured. Raises BenchmarkError where no server of the active release is ready."""
        if not SYSTEMD.is_dir():
            raise SetupError("no systemd runs on this host")
        release, show = self.releases.active_release(), host.show(self.releases.unit)
        if not release:
            raise BenchmarkError(f"service {self.service} was never deployed here: deploy it first")
        if show.get("MainPID", "0") == "0":
            raise BenchmarkError(f"service {self.service} does not run: playbooks/status.yml tells why")
        if not self.releases.is_current(show):
            raise BenchmarkError(
                f"service {self.service} runs another release than the active one, {release['release_id']}: deploy it"
            )
        invocation = show.get("InvocationID", "")
        found = probe.read(self.service, invocation)
        if found.get("outcome") != "ready":
            why = found.get("detail") or found.get("outcome") or "it has not generated yet"
            raise BenchmarkError(f"service {self.service} is not ready: {why}")
        return Plan(release, invocation, self.environment, self.load, self.user, self.timeout_s)

    def check(self, plan: Plan) -> None:
        """Raise BenchmarkError where the client cannot run."""
        if not os.access(f"{plan.environment}/bin/python3", os.X_OK):
            raise SetupError(f"the client's environment {plan.environment} is not on this host")
        try:
            pwd.getpwnam(plan.user)
        except KeyError:
            raise SetupError(f"there is no user {plan.user} on this host: run playbooks/prestage.yml") from None

    def measured(self, start: Mapping[str, Any], cursor: Mapping[str, Any], slice_s: float) -> dict[str, Any]:
        """Measure, or attach to what measures, for a slice.

        Args:
            start: what the record says of client and tune.
            cursor: what the slice before returned, empty at first.
            slice_s: seconds to wait now; 0 waits for the end.
        """
        try:
            return self._measured(start, cursor, slice_s)
        except BenchmarkError:
            self._end()
            raise

    def _measured(self, start: Mapping[str, Any], cursor: Mapping[str, Any], slice_s: float) -> dict[str, Any]:
        entered, shown_at = self.clock(), float("-inf")
        known = int(cursor.get("recorded", len(self._recorded())))
        if cursor:
            self._still_runs(cursor["invocation"])
        plan = self.plan()
        if not cursor and not self._is_planned(plan):
            self.check(plan)
            self._end()
            self._begin(plan)
        while True:
            steps, alive = self._steps(plan), True
            if not of("end", steps) and self.clock() - shown_at >= SHOW_EVERY_S:
                shown_at = self.clock()
                self._still_runs(plan.invocation)
                alive = self._runs(plan)
                steps = self._steps(plan)  # what it told last, before it ended
            found = self._record(plan, start) if of("end", steps) else None
            if found or not alive:  # or another call, of a controller that was lost, has recorded it meanwhile
                found = found or next(iter(self._recorded()[known:]), None)
            if found:
                return self._answer(found)
            if of("failed", steps) or not alive:
                self._still_runs(plan.invocation)
                raise BenchmarkError(f"service {self.service} could not be measured: {self._why(plan, steps)}")
            if slice_s and self.clock() - entered >= slice_s:
                return self._slice(plan, steps, known)
            self.sleep(POLL_S)

    def _still_runs(self, invocation: str) -> None:
        """Raise BenchmarkError where the server is not the one whose measurement began."""
        show = host.show(self.releases.unit)
        if show.get("InvocationID") != invocation or show.get("MainPID", "0") == "0":
            raise BenchmarkError(
                f"service {self.service} was stopped or restarted while it was measured (journalctl -u "
                f"{self.releases.unit} tells when): measure it again once it stays up"
            )

    def _slice(self, plan: Plan, steps: Steps, known: int) -> dict[str, Any]:
        phase, how_far = progress(steps, plan.load, self.clock())
        return {
            "msg": f"{phase} {how_far}",
            "slice": {
                "done": False, "phase": phase, "progress": how_far, "elapsed_s": self._elapsed_s(plan),
                "cursor": {"invocation": plan.invocation, "recorded": known},
            },
        }  # fmt: skip

    def _recorded(self) -> list[dict[str, Any]]:
        """The measurements in the ledger."""
        return ledger.measurements(ledger.parse(host.read_text(self.ledger) or ""))

    def _record(self, plan: Plan, start: Mapping[str, Any]) -> dict[str, Any] | None:
        """Record what was measured, and remove what it left; None where another call has done so at this moment."""
        with (host.RUNTIME / f"{self.service}.measured.lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            steps = self._steps(plan)
            if not of("end", steps):
                return None
            said = {
                "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "staged_id": host.link_target(self.releases.folder / "active") or "",
                **{key: value for key, value in start.items() if value},
                "hardware": hardware.read(plan.release.get("gpus", ())),
                "counted": is_counted(steps),
                "elapsed_s": self._elapsed_s(plan),
            }
            samples = gpu_samples.parse(host.read_foreign(plan.folder / SAMPLES, SAMPLES_BYTES) or "")
            found = record(plan, steps, samples, said)
            ledger.append(self.ledger, found)
            self._end()
            return found

    def _answer(self, found: dict[str, Any]) -> dict[str, Any]:
        not_told = "" if found["counted"] else " (the engine does not count its requests: others may have run)"
        told = f"; DISTURBED: {found['disturbed']}" if found["disturbed"] else not_told
        return {
            "measurement": found,
            "msg": f"{self.service} was measured in {duration(found['elapsed_s'])}{told}",
            "slice": {"done": True},
        }

    def _why(self, plan: Plan, steps: Steps) -> str:
        """Why it ended early."""
        show = host.show(plan.unit)
        if failed := of("failed", steps):
            return str(failed[0].get("msg"))
        if host.read_foreign(plan.folder / "id") != plan.id:
            return "somebody ended it, or measures it with another load"
        if show.get("Result") == "timeout":
            return f"it was not through after {duration(plan.timeout_s)}: measure less, or raise timeout_s"
        said = (host.read_foreign(plan.folder / "output", OUTPUT_BYTES) or "").strip().splitlines()
        return f"it {systemd.exit_text(show) or 'was ended'}" + (f": {said[-1]}" if said else "")

    @staticmethod
    def _is_planned(plan: Plan) -> bool:
        """Whether the unit works on this plan, or has worked on it and nobody has fetched what it found."""
        is_on = host.show(plan.unit).get("ActiveState") in ("active", "activating")
        return is_on and host.read_foreign(plan.folder / "id") == plan.id

    @staticmethod
    def _runs(plan: Plan) -> bool:
        show = host.show(plan.unit)
        if not show.get("ActiveState"):
            raise SetupError(f"systemd does not say what becomes of {plan.unit}")
        at_work = show["ActiveState"] == "activating" or show.get("SubState") == "running"
        return at_work and host.read_foreign(plan.folder / "id") == plan.id

    @staticmethod
    def _steps(plan: Plan) -> list[dict[str, Any]]:
        if host.read_foreign(plan.folder / "id") != plan.id:
            return []
        return parse(host.read_foreign(plan.folder / STEPS, STEPS_BYTES) or "")

    def _elapsed_s(self, plan: Plan) -> float:
        """Seconds since the unit began."""
        began = int(host.show(plan.unit).get("ExecMainStartTimestampMonotonic") or 0) / 1e6
        return round(self.clock() - began, 1)

    def _begin(self, plan: Plan) -> None:
        owner = pwd.getpwnam(plan.user)
        plan.folder.mkdir(mode=0o700)
        host.write_bytes(plan.folder / "benchmark", runtime.program(PROGRAM, "benchmark_run"), mode=0o755)
        host.write_text(plan.folder / PLAN, json.dumps(plan.content, sort_keys=True))
        host.write_text(plan.folder / "id", plan.id)
        os.chown(plan.folder, owner.pw_uid, owner.pw_gid)
        done = host.run(unit_argv(plan))
        if done.rc:
            shutil.rmtree(plan.folder, ignore_errors=True)
            raise SetupError(f"systemd did not start the measurement: {done.err.strip() or done.out.strip()}")

    def _end(self) -> None:
        """End the unit, and remove what it left."""
        end_transient(unit_of(self.service), self.clock, self.sleep)
        shutil.rmtree(folder_of(self.service), ignore_errors=True)
