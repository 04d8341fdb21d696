"""The proof that the ranks of a release can all-reduce on this host, with its own variables, in bounded time.

P2P that the driver calls OK may hang the first collective for ever, so only a collective proves it. It runs in a
transient unit of its own (``all_reduce.py`` under the engine environment's Python): whatever hangs there is in one
control group, which ends as a whole, and a lost connection leaves nothing behind. The service's unit is not touched.
"""

from __future__ import annotations

import functools
import inspect
import os
import pwd
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from . import all_reduce, evidence, host, nccl_log, nvml, ranks, symptoms
from .all_reduce import START_S, Watch, size_text
from .engines import ENGINES
from .gpus import Reading
from .host_facts import unit_path
from .unit_end import END_S, SYSTEMD, end_transient

HOME = "/var/cache/ironserve"
"""As the unit of a service has it (roles/serve/templates/ironserve.service.j2)."""

PROOF_ENV = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH"}
"""So that NCCL tells what it took and how ranks reach each other; it changes nothing else."""
LOUD_ENV = ("NCCL_DEBUG_FILE",)
"""Variables of a release that would lead its words elsewhere."""

RUN = Path("/run")

RANKS_WITHOUT_GPUS = 2
"""Gloo alone proves nothing."""
POLL_S = 0.2
SHOW_EVERY_S = 1.0
LOOK_S = 6.0
"""For all that is looked at when something hangs."""
SPARE_S = 60.0
"""After which systemd ends a proof that nobody watches any more."""
OUTPUT_BYTES, STEPS_BYTES = 4 << 20, 1 << 20
ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)$")


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        service: whose release it is.
        environment: folder of its engine environment.
        user: who the ranks run as.
        world: number of ranks.
        backend: ``nccl``, or ``gloo`` on a host without GPUs.
        sizes: bytes of the messages.
        env: the variables of the ranks.
        limits: of a unit, ``memlock`` and ``nofile``.
        gpus: UUIDs of the GPUs that are named; none means all of the host.
        timeout_s: seconds from when all ranks have imported PyTorch.
    """

    service: str
    environment: str
    user: str
    world: int
    backend: str
    sizes: tuple[int, ...]
    env: Mapping[str, str]
    limits: Mapping[str, Any]
    gpus: tuple[str, ...]
    timeout_s: float

    @property
    def unit(self) -> str:
        """Its name is of no service: none has an underscore."""
        return f"ironserve-proof_{self.service}.service"

    @property
    def over(self) -> str:
        """``8 GPUs``, or ``2 ranks`` without GPUs."""
        what = "GPU" if self.backend == "nccl" else "rank"
        return f"{self.world} {what}{'' if self.world == 1 else 's'}"

    @property
    def summary(self) -> str:
        """The plan in words."""
        sizes = ", ".join(size_text(size) for size in self.sizes)
        return f"all-reduce {sizes} over {self.over} ({self.backend}) as {self.user}, for {self.timeout_s:g} s at most"


def plan(
    release: Mapping[str, Any],
    gpu_count: int,
    user: str,
    sizes: Sequence[int],
    timeout_s: float,
    engine_env: Mapping[str, str],
) -> Plan:
    """What a proof of this release runs.

    Args:
        release: as ``resolve.py`` makes it.
        gpu_count: GPUs of the host; 0 has Gloo take the place of NCCL.
        user: who the engine runs as.
        sizes: bytes of the messages.
        timeout_s: seconds from when all ranks have imported PyTorch.
        engine_env: variables that the engine sets itself, over the release's; see ``nccl_env.engine_env``.
    """
    count = len(release.get("gpus", ())) or gpu_count
    wanted = ranks.expected(release["flags"], ENGINES[release["engine"]])
    world = (wanted if 0 < wanted <= count else count) or max(wanted, RANKS_WITHOUT_GPUS)
    own = {**release["env"], **release.get("host_env", {}), **engine_env}
    return Plan(
        service=release["service"],
        environment=release["environment"],
        user=user,
        world=world,
        backend="nccl" if count else "gloo",
        sizes=tuple(sizes),
        env={
            "PATH": unit_path(release),
            "HOME": HOME,
            **{name: value for name, value in own.items() if name not in LOUD_ENV},
            **(PROOF_ENV if count else {}),
        },
        limits=release["limits"],
        gpus=tuple(release.get("gpus", ())),
        timeout_s=timeout_s,
    )


def unit_argv(found: Plan, script: Path, folder: Path, output: Path) -> list[str]:
    """The command that has systemd run the ranks, in what the service's unit would give them."""
    properties = {
        "User": found.user, "WorkingDirectory": HOME, "CacheDirectory": "ironserve", "PrivateTmp": "yes",
        "LimitMEMLOCK": found.limits["memlock"], "LimitNOFILE": found.limits["nofile"], "LimitCORE": 0,
        "TasksMax": "infinity", "StandardOutput": f"file:{output}", "StandardError": "inherit",
        "RuntimeMaxSec": f"{START_S + found.timeout_s + SPARE_S:.0f}", "TimeoutStopSec": f"{END_S:.0f}",
    }  # fmt: skip
    return [
        "systemd-run", "--quiet", f"--unit={found.unit}", "--service-type=exec", "--remain-after-exit",
        f"--description=Ironserve proves that {found.service} can all-reduce",
        *(f"--property={name}={value}" for name, value in properties.items()),
        *(f"--setenv={name}={value}" for name, value in sorted(found.env.items())),
        f"{found.environment}/bin/python3", str(script), "--world", str(found.world), "--backend", found.backend,
        "--sizes", ",".join(map(str, found.sizes)), "--timeout", "0", "--folder", str(folder),
    ]  # fmt: skip


DRIVER_S = 30.0
"""Seconds that the driver may take to say who uses the GPUs."""


def in_use(reading: Reading, gpus: Sequence[str]) -> str:
    """Who uses these GPUs (all of the host where none is named), for a person; empty where nobody does."""
    chosen = [gpu for gpu in reading.gpus if not gpus or gpu.uuid in gpus]
    pids = sorted({process.pid for gpu in chosen for process in gpu.processes or () if "C" in process.type})
    return f"pid {', '.join(map(str, pids))}" if pids else ""


class ProofError(Exception):
    """The proof could not be run; the text is for an operator."""


class Proof:
    """One run of a plan on this host."""

    def __init__(
        self,
        found: Plan,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.plan, self.clock, self.sleep = found, clock, sleep

    def run(self) -> dict[str, Any]:
        """Run it to its end, or end it: the answer of the module."""
        if not SYSTEMD.is_dir():
            raise ProofError("no systemd runs on this host: nothing could end what hangs")
        if not os.access(f"{self.plan.environment}/bin/python3", os.X_OK):
            raise ProofError(f"{self.plan.environment} is not on this host: build it first (playbooks/prestage.yml)")
        began = self.clock()
        end_transient(self.plan.unit, self.clock, self.sleep)  # one that a lost connection left behind
        if self.plan.backend == "nccl" and (users := in_use(nvml.look(DRIVER_S), self.plan.gpus)):
            free = "a deploy with -e prove_nccl=true does it while they are free"
            raise ProofError(f"its GPUs are in use by {users}; {free}")
        with self._folder() as (script, folder, output):
            try:
                done = host.run(unit_argv(self.plan, script, folder, output))
                if done.rc:
                    raise ProofError(f"systemd did not start the proof: {done.err.strip() or done.out.strip()}")
                hung, status = self._watch(folder)
                seen = self._look() if hung else {}
            finally:
                stuck = end_transient(self.plan.unit, self.clock, self.sleep)
            steps = self._steps(folder)
            lines = (host.read_foreign(output, OUTPUT_BYTES) or "").splitlines()
        answer = all_reduce.result(steps, self.plan.world, [status], hung)
        return report(self.plan, answer, steps, lines, seen, stuck, self.clock() - began)

    @contextmanager
    def _folder(self) -> Iterator[tuple[Path, Path, Path]]:
        """The script, a folder that its user may write to, and its output: root's, as all else there."""
        try:
            uid = pwd.getpwnam(self.plan.user).pw_uid
        except KeyError:
            raise ProofError(f"there is no user {self.plan.user} on this host: run playbooks/prestage.yml") from None
        prefix = f"ironserve-proof_{self.plan.service}_"
        for left in RUN.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)
        top = Path(tempfile.mkdtemp(prefix=prefix, dir=RUN))
        try:
            top.chmod(0o755)
            script, folder = top / "all_reduce.py", top / "ranks"
            host.write_text(script, inspect.getsource(all_reduce))
            folder.mkdir(mode=0o700)
            os.chown(folder, uid, -1)
            yield script, folder, top / "output"
        finally:
            shutil.rmtree(top, ignore_errors=True)

    def _steps(self, folder: Path) -> dict[int, list[dict[str, Any]]]:
        texts = {rank: host.read_foreign(folder / f"rank-{rank}.jsonl", STEPS_BYTES) for rank in range(self.plan.world)}
        return {rank: all_reduce.parse(text) for rank, text in texts.items() if text}

    def _watch(self, folder: Path) -> tuple[bool, int]:
        """Wait for its end; whether its time was up, and the status it ended with."""
        watch, asked_at = Watch(self.plan.timeout_s, self.clock()), float("-inf")
        while not watch.is_over(self._steps(folder), self.plan.world, self.clock()):
            if self.clock() - asked_at >= SHOW_EVERY_S:
                asked_at = self.clock()
                show = host.show(self.plan.unit)
                if not show.get("ActiveState"):
                    raise ProofError(f"systemd does not say what becomes of {self.plan.unit}")
                if show.get("SubState") != "running" and show.get("ActiveState") != "activating":
                    return False, int(show.get("ExecMainStatus") or 1)
            self.sleep(POLL_S)
        return True, 0

    def _look(self) -> dict[str, Any]:
        """Where the ranks are now, what the GPUs do, and what the kernel said."""
        parts: dict[str, evidence.Part] = {
            "processes": functools.partial(evidence.read_processes, self.plan.unit, str),
            "GPUs": evidence.read_gpus,
            "kernel log": evidence.read_kernel,
        }
        return evidence.ask(parts, LOOK_S)


def report(
    found: Plan,
    answer: Mapping[str, Any],
    steps: all_reduce.Steps,
    lines: Sequence[str],
    seen: Mapping[str, Any],
    stuck: Sequence[int],
    elapsed_s: float,
) -> dict[str, Any]:
    """The answer of the module.

    Args:
        found: what was run.
        answer: what the ranks found, by ``all_reduce.result``.
        steps: of each rank what it did.
        lines: their output.
        seen: what was looked at when their time was up.
        stuck: pids that could not be ended.
        elapsed_s: seconds that all of it took.
    """
    told = nccl_log.parse(lines)
    ranks_at = {rank: _at(text, steps.get(int(rank), ()), seen) for rank, text in answer["ranks"].items()}
    if answer["verdict"] == "hung":
        text = _hung(found, ranks_at, steps, told, seen)
    elif answer["verdict"] == "wrong_result":
        text = _wrong(found, steps)
    elif answer["verdict"] == "failed":
        text = _failed(found, answer, lines, told)
    else:
        text = _passed(found, answer)
    if stuck:
        pids = ", ".join(map(str, stuck))
        text += (
            f" The kernel does not let go of pid {pids}, which was killed: only a reset of the GPUs or a reboot helps."
        )
    own = {name: value for name, value in found.env.items() if name not in PROOF_ENV}
    return {
        **answer,
        "ranks": ranks_at,
        "backend": found.backend,
        "nccl_version": told.version or answer["nccl_version"],
        "settings": nccl_log.took_effect(own, lines) if found.backend == "nccl" else {},
        "transports": told.transports,
        "warnings": told.warnings,
        "left": list(stuck),
        "elapsed_s": round(elapsed_s, 1),
        "msg": text,
    }


def _passed(found: Plan, answer: Mapping[str, Any]) -> str:
    latencies = ", ".join(f"{size_text(int(size))} {us:g} us" for size, us in answer["latency_us"].items())
    bandwidth = answer["bus_bandwidth_gb_s"]
    return f"all-reduce over {found.over}: {latencies}" + (f"; bus bandwidth {bandwidth:g} GB/s" if bandwidth else "")


def _at(text: str, said: Sequence[Mapping[str, Any]], seen: Mapping[str, Any]) -> str:
    """Where a rank stands, with what its process does: ``in the all-reduce of 32 KiB, spins at 100 %``."""
    process = seen.get("processes", {}).get(str(said[-1].get("pid")) if said else "", {})
    return f"{text}, {symptoms.doing(process)}" if process.get("state") else text


def _hung(
    found: Plan,
    ranks_at: Mapping[str, str],
    steps: all_reduce.Steps,
    told: nccl_log.Told,
    seen: Mapping[str, Any],
) -> str:
    groups: dict[str, list[str]] = {}
    for rank, text in ranks_at.items():
        groups.setdefault(text, []).append(rank)
    where = "; ".join(f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}: {at}" for at, names in groups.items())
    missing = found.world - len(all_reduce.joined(steps))
    if missing:
        return (
            f"{missing} of {found.over} did not get as far as the first all-reduce in {START_S:g} s. {where}. "
            f"Look at the disk or network share of {found.environment}."
        )
    sizes = [int(step["bytes"]) for said in steps.values() for step in said[-1:] if "bytes" in step]
    what = f"all-reduce of {size_text(min(sizes))}" if sizes else "first all-reduce"
    gpus = [
        f"GPU {gpu['index']} {gpu['utilization']} %"
        for gpu in seen.get("gpus", {}).get("gpus", ())
        if gpu.get("utilization") is not None
    ]
    pieces = [f"{what} over {found.over} did not end within {found.timeout_s:g} s. {where}."]
    pieces += [f"Use of the GPUs: {', '.join(gpus)}."] if gpus else []
    pieces += [f"NCCL warned: {'; '.join(told.warnings[-2:])}."] if told.warnings else []
    return " ".join([*pieces, _advice(found, told, ranks_at)])


def _advice(found: Plan, told: nccl_log.Told, ranks_at: Mapping[str, str]) -> str:
    stopped = [rank for rank, text in ranks_at.items() if "stopped by a signal" in text]
    if stopped:
        return f"Somebody stopped rank {', '.join(stopped)}: run the proof again."
    if found.backend == "gloo":
        return (
            "Gloo's ranks do not reach each other: look at GLOO_SOCKET_IFNAME and at what the host's name resolves to."
        )
    if len(told.complete) < found.world and not told.transports:
        return (
            f"NCCL's communicator was not complete ({len(told.complete)} of {found.world} ranks), network "
            f"{told.network or 'unknown'}: look at NCCL_SOCKET_IFNAME, and at a firewall on the host's own addresses."
        )
    over_p2p = [name for name in told.transports if name.startswith("P2P")]
    if over_p2p:
        return (
            f"The ranks use {', '.join(over_p2p)}: P2P says that it works, and hangs. Try NCCL_P2P_DISABLE=1 in the "
            "NCCL set of the host group; if that passes, ACS or the IOMMU redirects the traffic between the GPUs: "
            "switch ACS off on every bridge between them (lspci -vvv shows ReqRedir+ under ACSCtl), and boot with "
            "iommu=pt."
        )
    ways = ", ".join(told.transports) or "nothing that NCCL told of"
    return f"The ranks use {ways}: look at /dev/shm (df), and at what the kernel says (dmesg, Xid)."


def _failed(found: Plan, answer: Mapping[str, Any], lines: Sequence[str], told: nccl_log.Told) -> str:
    errors = [match[1] for line in lines if (match := ERROR.match(line.strip()))]
    first = [f"rank {rank} {text}" for rank, text in answer["ranks"].items() if text != "done"]
    why = "; ".join([*told.warnings[-2:], *errors[:1]]) or (lines[-1].strip() if lines else "the ranks said nothing")
    return f"all-reduce over {found.over} failed: {why}. Its ranks stood: {', '.join(first) or 'all were done'}."


def _wrong(found: Plan, steps: all_reduce.Steps) -> str:
    wrong = [(rank, step) for rank, said in steps.items() for step in said if step["step"] == "wrong"]
    rank, step = wrong[0]
    return (
        f"all-reduce of {size_text(int(step['bytes']))} over {found.over} gave a wrong sum: rank {rank} has "
        f"{step['got']:g} at element {step['index']}, and {step['wanted']:g} is right. Serve nothing like this: P2P or "
        "a GPU corrupts data. Try NCCL_P2P_DISABLE=1 in the NCCL set; look at ACS, the IOMMU and Xids in dmesg."
    )
