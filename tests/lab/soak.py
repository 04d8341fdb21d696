#!/usr/bin/env python3
"""Seeded fault scenarios on test hosts: is the verdict of each deploy what was injected, and is nothing left over?

usage: soak.py [--count 200] [--seed 1] [--hosts 2] [--only N]...     needs root and gcc

Each scenario is a whole ``ansible-playbook deploy.yml`` of a profile with which the stand-in engine misbehaves, on a
host where another release serves. The first host has stand-in GPUs. Ends with 1 where anything is not as it has to be.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "lab"), str(ROOT / "tests" / "gpu")]

import gpu_hosts  # noqa: E402  (needs the folder above)
from conftest import LabHandle  # noqa: E402
from deploys import Fleet, standin_hosts  # noqa: E402

SEED = 1
MARK = "stream-interval"
"""A flag that both engines have. Only starts with the scenario's number there misbehave; the last good one is well."""
GPU_MIB = 2000
BAD = ("failed", "stalled", "timeout")
VERDICTS = ("ready", *BAD, "none")
LATE_S = 4.0
"""A hang is to be named within so much more than its limit."""

# Where the log says that a start is when it hangs half-way through a phase of the stand-in; the second set where CUDA
# graphs are off. Nothing is said where the first line of all is still to come.
SAID = {
    "vllm": {
        "arguments": "", "engine": "reading arguments", "distributed": "joining ranks", "weights": "loading weights",
        "compile": "compiling", "profile": "compiling", "kv_cache": "allocating KV cache",
        "graphs": "capturing CUDA graphs", "engine_ready": "warming up", "server": "starting HTTP server",
    },
    "sglang": {
        "arguments": "reading arguments", "distributed": "joining ranks", "weights": "loading weights",
        "kv_cache": "allocating KV cache", "prefill_graphs": "capturing CUDA graphs", "graphs": "capturing CUDA graphs",
        "scheduler_ready": "capturing CUDA graphs", "http": "starting HTTP server", "warmup": "warming up",
        "ready": "warming up",
    },
}  # fmt: skip
SAID_EAGER = {
    "vllm": {"compile": None, "profile": "loading weights", "graphs": None, "engine_ready": "allocating KV cache"},
    "sglang": {"prefill_graphs": None, "graphs": None, "scheduler_ready": "allocating KV cache"},
}
RANK_PHASES = {
    "vllm": ("weights", "compile", "profile", "graphs"),
    "sglang": ("weights", "kv_cache", "prefill_graphs", "graphs", "scheduler_ready"),
}
RANKS_FLAG = {"vllm": "tensor-parallel-size", "sglang": "tp-size"}
EAGER = {"vllm": {"enforce-eager": True}, "sglang": {"attention-backend": "torch_native"}}
GRAPHS = {"vllm": {"enforce-eager": False}, "sglang": {"attention-backend": "triton"}}
STATUSES = (0, 1, 2, 3, 7, 42, 126, 127, 137, 143, 199)
SIGNALS = ("ABRT", "BUS", "FPE", "ILL", "KILL", "SEGV")


@dataclass(frozen=True)
class Scenario:
    """One deploy that goes wrong in a known way, or only looks as if it did.

    Attributes:
        number: from 1 on; the profile is named for it.
        kind: what is tried, a key of :data:`KINDS`.
        behave: how the stand-in behaves with this profile, as in standin.yml.
        settings: the profile's time limits.
        truth: the verdict that has to come out.
        phase: which phase a hang is in, as the message has to say it; empty where none is to be said.
        told: what else the output has to say.
        after: what follows a good start: it is kept as the release that is put back next, or rolled back.
        needs_gpus: whether it is another scenario on a host without GPUs.
    """

    number: int
    kind: str
    engine: str
    ranks: int
    eager: bool
    behave: Mapping[str, Any]
    settings: Mapping[str, Any]
    truth: str
    phase: str = ""
    told: str = ""
    after: str = ""
    needs_gpus: bool = False

    @property
    def name(self) -> str:
        """Name of the profile."""
        return f"soak{self.number}"

    def standin(self) -> dict[str, Any]:
        """The behaviour file: as ``behave`` says with this profile, healthy with any other."""
        mine = {"flag": MARK, "value": self.number, "behave": dict(self.behave)}
        return {"gpu_mib": GPU_MIB, "per_flag": [mine]}

    def profile(self) -> dict[str, Any]:
        """The profile."""
        dummy = "steady" not in json.dumps(self.behave)  # with random weights there is no bar of shards
        return {
            "extends": f"lab_{self.engine}",
            "flags": {
                MARK: self.number,
                RANKS_FLAG[self.engine]: self.ranks,
                "load-format": "dummy" if dummy else "auto",
                **(EAGER if self.eager else GRAPHS)[self.engine],
            },
            **self.settings,
        }


class Draw:
    """What the kinds of scenarios draw from: one random source, and the engine that was drawn already."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.engine = random.choice(("vllm", "sglang"))
        self.eager = random.random() < 0.3
        self.ranks = random.choices((1, 2, 8), (5, 4, 1))[0]

    def one(self, choices: Sequence[Any]) -> Any:
        """One of several."""
        return self.random.choice(choices)

    def seconds(self, low: float, high: float) -> float:
        """A time."""
        return round(self.random.uniform(low, high), 1)

    def phases(self) -> dict[str, str]:
        """The phases of a start, each with what the log says when it hangs there."""
        said = {**SAID[self.engine], **(SAID_EAGER[self.engine] if self.eager else {})}
        return {name: text for name, text in said.items() if text is not None}

    def rank_phase(self) -> str:
        """A phase of the ranks in which the helper has seen them all."""
        return self.one([name for name in RANK_PHASES[self.engine] if name in self.phases()])


def limits(stall_s: int = 20, startup_s: int = 60, completion_s: int = 10) -> dict[str, Any]:
    """The time limits of a profile."""
    return {"stall_timeout_s": stall_s, "startup_timeout_s": startup_s, "completion_timeout_s": completion_s}


def hang(how: str, **more: Any) -> Callable[[Draw], dict[str, Any]]:
    """A start that hangs somewhere in that way."""

    def draw(draw: Draw) -> dict[str, Any]:
        phase = draw.one(list(draw.phases()))
        stall_s = draw.random.randint(3, 5)
        return {
            "behave": {"hang_in": phase, "hang_how": how, **more},
            "settings": {**limits(stall_s), "stall_timeout_s": stall_limit(draw, stall_s, draw.phases()[phase])},
            "truth": "stalled",
            "phase": draw.phases()[phase],
        }

    return draw


def stall_limit(draw: Draw, stall_s: int, phase: str) -> int | dict[str, int]:
    """A limit for all phases, or for this one and a long one for all others."""
    return {phase: stall_s, "default": 60} if phase and draw.random.random() < 0.4 else stall_s


def deaf(draw: Draw) -> dict[str, Any]:
    """Something that cannot be ended by SIGTERM."""
    if draw.random.random() < 0.7:
        return hang(draw.one(("quiet", "spin")), sigterm="ignore")(draw)
    behave = {"completion": "never", "health": "always_200", "sigterm": "ignore"}
    return {"behave": behave, "settings": limits(completion_s=3), "truth": "failed", "told": "generation is dead"}


def exits(draw: Draw) -> dict[str, Any]:
    """An end with any status or signal in any phase: half-way, or after a while in which nothing went on."""
    phase = draw.one(list(draw.phases()))
    behave: dict[str, Any] = {"exit_in": phase, "exit_message": draw.one(("", "RuntimeError: of a test"))}
    told = ""
    if draw.random.random() < 0.5:
        behave |= {"exit_after_s": draw.seconds(0.5, 4), "hang_in": phase}
    if draw.random.random() < 0.7:
        behave["exit_status"] = draw.one(STATUSES)
        told = f"exited with status {behave['exit_status']}"
    else:
        name = draw.one(SIGNALS)
        behave["exit_how"] = {"signal": name}
        told = f"was killed by SIG{name}"
    return {"behave": behave, "settings": limits(), "truth": "failed", "told": told}


def rank_dies(draw: Draw) -> dict[str, Any]:
    """The others notice it and end."""
    rank = {"number": draw.random.randrange(draw.ranks), "die_in": draw.rank_phase()}
    return {"behave": {"rank": rank}, "settings": limits(), "truth": "failed"}


def rank_dies_unnoticed(draw: Draw) -> dict[str, Any]:
    """The others wait for it for ever, as in a collective."""
    draw.ranks = max(2, draw.ranks)
    rank = {"number": draw.random.randrange(draw.ranks), "die_in": draw.rank_phase(), "notice": False}
    behave = {"rank": rank, "hang_how": draw.one(("quiet", "spin")), "phases": {"distributed": {"delay_s": 3}}}
    return {"behave": behave, "settings": limits(), "truth": "failed", "told": "died"}


def ready(draw: Draw, behave: Mapping[str, Any], stall_s: int = 5) -> dict[str, Any]:
    """A start that is good, whatever it looks like."""
    return {"behave": behave, "settings": limits(stall_s), "truth": "ready", "after": draw.one(("keep", "rollback"))}


def port_early(draw: Draw) -> dict[str, Any]:
    """Something answers long before anything can be generated."""
    early = draw.one(({"port": "early"}, {"models_early": True}))
    return ready(draw, {**early, "phases": {"weights": {"delay_s": draw.seconds(2, 4)}}})


def port_late(draw: Draw) -> dict[str, Any]:
    """The log says that the port is open, and it is not."""
    return ready(draw, {"port": {"late_s": draw.seconds(1, 3)}})


def dead_behind_health(draw: Draw) -> dict[str, Any]:
    """/health says 200 over an engine that is dead."""
    if draw.random.random() < 0.5:
        behave: dict[str, Any] = {"completion": "never", "health": "always_200"}
        return {"behave": behave, "settings": limits(completion_s=3), "truth": "failed", "told": "generation is dead"}
    behave = {"engine_core": {"die_after_s": 0}, "health": "always_200", "death_notice_s": 60}
    return {"behave": behave, "settings": limits(completion_s=5), "truth": "failed"}


def first_request_kills(draw: Draw) -> dict[str, Any]:
    """It is well until it is asked."""
    return {"behave": {"first_request": "kills"}, "settings": limits(), "truth": "failed"}


def orphans(draw: Draw) -> dict[str, Any]:
    """Workers outlive the engine that the first request kills; its server ends before it could answer, or after."""
    draw.ranks = max(2, draw.ranks)
    behave = {"first_request": "kills", "workers": {"orphan": True}, "death_notice_s": draw.one((0, 0.2, 2))}
    return {"behave": behave, "settings": limits(), "truth": "failed"}


def zombie_leader(draw: Draw) -> dict[str, Any]:
    """The thread that runs the model of a rank is gone, another one holds on to its memory."""
    draw.ranks = max(2, draw.ranks)
    return {"behave": {"workers": {"zombie_leader": True}}, "settings": limits(), "truth": "failed"}


def slow_steady(draw: Draw) -> dict[str, Any]:
    """Far slower than the stall limit, and the log tells of each step."""
    if draw.eager or draw.random.random() < 0.5:
        return ready(draw, {"load": {"how": "steady", "seconds": draw.seconds(7, 11), "interval_s": 1.0}})
    return ready(draw, {"phases": {"graphs": {"delay_s": draw.seconds(7, 11)}}})


def silent_load(draw: Draw) -> dict[str, Any]:
    """The log tells nothing, or the same again and again, and reads, CPU or GPU memory show that it goes on."""
    how = draw.one(("silent_io", "silent_io", "heartbeat_io", "compile", "memory"))
    if how == "compile":
        draw.eager, draw.ranks = False, min(2, draw.ranks)  # half a core a rank
    load = {"how": how, "seconds": draw.seconds(8, 11)}
    if how == "memory":
        return {**ready(draw, {"load": load, "gpu_mib": 60000}), "needs_gpus": True}
    return ready(draw, {"load": load})


def never_freed(draw: Draw) -> dict[str, Any]:
    """GPU memory stays in use when its process is gone."""
    behave: dict[str, Any] = {"gpu_memory": "never_freed"}
    if draw.random.random() < 0.5:
        behave |= {"exit_in": "kv_cache", "exit_status": 1}
        return {"behave": behave, "settings": limits(), "truth": "failed", "needs_gpus": True}
    found = hang("spin")(draw)
    return {**found, "behave": {**behave, **found["behave"]}, "needs_gpus": True}


def wrong_answers(draw: Draw) -> dict[str, Any]:
    """It serves, and not what was asked for."""
    behave, told = draw.one(
        (
            ({"completion": "wrong_model"}, 'and not "tiny"'),
            ({"completion": "error_500"}, "a completion was answered with 500"),
            ({"completion": {"finish_reason": "abort"}}, "abort"),
            ({"health": 500}, "health answers 500"),
        )
    )
    return {"behave": behave, "settings": limits(), "truth": "failed", "told": told}


def too_slow(draw: Draw) -> dict[str, Any]:
    """Steady, and not done in its time."""
    load = {"how": "steady", "seconds": 100, "interval_s": 1.0}
    settings = limits(stall_s=5, startup_s=draw.random.randint(7, 10), completion_s=3)
    return {"behave": {"load": load}, "settings": settings, "truth": "timeout", "phase": "loading weights"}


def healthy(draw: Draw) -> dict[str, Any]:
    """Nothing is wrong."""
    return ready(draw, draw.one(({}, {"completion": {"slow_s": 2}}, {"phases": {"kv_cache": {"delay_s": 2}}})))


KINDS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "hang_quiet": hang("quiet"),
    "hang_pipe_writes": hang("pipe_writes"),
    "hang_heartbeat": hang("heartbeat"),
    "hang_spin": hang("spin"),
    "deaf": deaf,
    "exits": exits,
    "rank_dies": rank_dies,
    "rank_dies_unnoticed": rank_dies_unnoticed,
    "port_early": port_early,
    "port_late": port_late,
    "dead_behind_health": dead_behind_health,
    "first_request_kills": first_request_kills,
    "orphans": orphans,
    "zombie_leader": zombie_leader,
    "slow_steady": slow_steady,
    "silent_load": silent_load,
    "never_freed": never_freed,
    "wrong_answers": wrong_answers,
    "too_slow": too_slow,
    "healthy": healthy,
}


def scenario(seed: int, number: int) -> Scenario:
    """One scenario, the same whatever others there are. Each score of them has every kind once."""
    score, place = divmod(number - 1, len(KINDS))
    deck = list(KINDS)
    Random(f"{seed} deck {score}").shuffle(deck)
    draw = Draw(Random(f"{seed} {number}"))
    found = KINDS[deck[place]](draw)
    return Scenario(
        number=number, kind=deck[place], engine=draw.engine, ranks=draw.ranks, eager=draw.eager, **found
    )  # fmt: skip


def scenarios(seed: int, count: int) -> list[Scenario]:
    """The first so many scenarios of a seed."""
    return [scenario(seed, number) for number in range(1, count + 1)]


def shares(wanted: Iterable[Scenario], hosts: Sequence[str]) -> dict[str, list[Scenario]]:
    """Who does what: the first host has GPUs, all others take what needs none, so that all have the same to do."""
    found: dict[str, list[Scenario]] = {host: [] for host in hosts}
    for one in sorted(wanted, key=lambda one: not one.needs_gpus):
        host = hosts[0] if one.needs_gpus else min(hosts, key=lambda host: len(found[host]))
        found[host].append(one)
    return {host: sorted(share, key=lambda one: one.number) for host, share in found.items()}


# What is left on a host, asked until nothing is odd or 5 s are over: what ends takes a moment.
INSPECT = r"""
import collections, json, os, pathlib, pwd, re, subprocess, time
UNIT = "ironserve-main.service"
def out(*argv):
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
def stat(pid):
    head, rest = pathlib.Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)
    fields = rest.split()
    return head.split("(", 1)[1], fields[0], int(fields[19])
def odd():
    main, found = int(out("systemctl", "show", "-P", "MainPID", UNIT) or 0), []
    try:
        user, began = pwd.getpwnam("ironserve").pw_uid, stat(main)[2] if main else 0
    except (KeyError, OSError):
        return ["the main process is gone"]
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            name, state, start = stat(folder.name)
            inside = UNIT in (folder / "cgroup").read_text()
            owner = folder.stat().st_uid
        except OSError:
            continue
        if state in "ZX":
            found.append(f"zombie {name} ({folder.name})")
        elif inside and start < began:
            found.append(f"{name} ({folder.name}) is older than the server")
        elif owner == user and not inside:
            found.append(f"{name} ({folder.name}) of the service user outside of the unit")
    return found
until = time.monotonic() + 5
left = odd()
while left and time.monotonic() < until:
    time.sleep(0.2)
    left = odd()
names = collections.Counter()
for top in ("/tmp", "/var/tmp", "/dev/shm", "/run/ironserve", "/run/systemd/system"):
    for folder, folders, files in os.walk(top):
        names.update(re.sub(r"[0-9a-f]{8,}|-\w{6}(?=/|$)|\d+", "*", f"{folder}/{name}") for name in folders + files)
used = []
if os.path.exists("/run/standin-gpu/gpus.conf"):
    used = [int(line) for line in out("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").split()]
print(json.dumps({"left": left, "names": names, "used_mib": used}))
"""

# As the reset of a GPU does: memory that no process holds any more is free.
RESET = r"""
cd /run/standin-gpu/claims 2>/dev/null || exit 0
for claim in *.C; do [ -e "/proc/${claim%%.*}" ] || rm -f "$claim"; done
"""


# What a person who looks into a scenario that went wrong wants to see of the host.
SHOW = r"""
journalctl -u ironserve-main -n 30 --no-pager -o short-precise
tail -n 3 /var/lib/ironserve/main/ledger.jsonl
tail -n 15 /var/log/ironserve/main.log /var/log/ironserve/main.log.1
ps -eo user,pid,ppid,stat,etimes,cgroup:60,args | grep -e ironserve -e ' Z'
"""


@dataclass
class Outcome:
    """What became of a scenario; ``problems`` is what was not as it has to be, empty where all was."""

    scenario: Scenario
    host: str
    verdict: str = "none"
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    late_s: float | None = None
    said: str = ""

    def line(self) -> str:
        """One line for the terminal."""
        one = self.scenario
        late = "" if self.late_s is None else f", {self.late_s:+.1f} s after its limit"
        what = f"{one.number:4} {self.host} {one.kind:20} {one.engine:6} x{one.ranks} {one.truth:7} -> {self.verdict:7}"
        return f"{what} {'NOT OK' if self.problems else 'ok':6} {self.seconds:5.1f} s{late}"

    def told(self, seed: int) -> str:
        """All that is known of one that was not as it has to be."""
        again = f"tests/lab/soak.py --seed {seed} --only {self.scenario.number}"
        problems = "\n".join(f"  - {problem}" for problem in self.problems)
        return f"{self.line()}\n{problems}\n  again: {again}\n  {json.dumps(asdict(self.scenario))}\n{self.said}"


def differences(one: Scenario, verdict: str, status: int, said: str, evidence: Collection[Path]) -> list[str]:
    """In what a deploy differs from the truth.

    Args:
        one: what was deployed.
        verdict: that of the report.
        status: the exit status of the run.
        said: what it printed, with single blanks.
        evidence: the files that it fetched.
    """
    found = {
        f"the verdict is {verdict} and not {one.truth}": verdict != one.truth,
        f"the run ended with status {status}": (status == 0) != (one.truth == "ready"),
        f"the message does not name the phase {one.phase}": one.phase and f"in phase: {one.phase}" not in said,
        f"nothing says: {one.told}": one.told not in said,
        "no evidence was fetched": verdict in BAD and not evidence,
    }
    return [problem for problem, holds in found.items() if holds]


@dataclass(frozen=True)
class Served:
    """A release that was good on a host."""

    profile: str
    ranks: int = 1


class Host:
    """One test host, on which one scenario follows the other; something good serves before each of them."""

    def __init__(self, lab: Any, name: str, folder: Path, has_gpus: bool) -> None:
        folder.mkdir(parents=True)
        self.fleet, self.name, self.has_gpus = Fleet(lab, folder), name, has_gpus
        self.good: list[Served] = []  # newest last, as the ledger has them
        self.known: Counter[str] = Counter()

    def prepare(self) -> None:
        """Have a good release served, and know what belongs to a host that serves."""
        if self.has_gpus:
            gpu_hosts.install(self.fleet.lab, self.name, gpus=8)
        self.fleet.profile("good", extends="lab_vllm", **limits())
        self.fleet.model(self.name, {"gpu_mib": GPU_MIB})
        # Twice, so that what one start leaves for the next is known, too.
        for profile in ("lab_sglang", "good"):
            self.play("-e", f"profile={profile}")
        self.good = [Served("lab_sglang"), Served("good")]
        self.known = Counter(self.inspect()["names"])

    def play(self, *words: str, **options: Any) -> Any:
        """A playbook, for this host only."""
        return self.fleet.play("-l", self.name, *words, **options)

    def inspect(self) -> dict[str, Any]:
        """What is on the host, see :data:`INSPECT`."""
        return json.loads(self.fleet.lab.exec(self.name, ["python3", "-c", INSPECT]).stdout)

    def run(self, one: Scenario) -> Outcome:
        """Deploy the scenario's profile and look at everything."""
        outcome, began = Outcome(one, self.name), time.monotonic()
        try:
            self.deploy(one, outcome)
            self.settle(one, outcome)
            outcome.problems += self.problems_left()
        except Exception:  # the other scenarios are run all the same
            outcome.problems.append(traceback.format_exc())
        if outcome.problems:
            self.recover(outcome)
        outcome.seconds = time.monotonic() - began
        return outcome

    def deploy(self, one: Scenario, outcome: Outcome) -> None:
        """Deploy, and compare what is said with the truth."""
        evidence = self.evidence()
        self.fleet.profile(one.name, **one.profile())
        self.fleet.model(self.name, one.standin())
        self.fleet.report("deploy").unlink(missing_ok=True)
        result = self.play("-e", f"profile={one.name}", check=False)
        outcome.said = result.stdout + result.stderr
        said = " ".join(outcome.said.split())
        outcome.verdict = self.fleet.rows("deploy")[self.name]["verdict"]
        outcome.problems += differences(one, outcome.verdict, result.returncode, said, self.evidence() - evidence)
        if outcome.verdict == "stalled":
            outcome.late_s = self.late_s(one, said)

    def evidence(self) -> set[Path]:
        """The files of evidence that were fetched and hold something."""
        folder = self.fleet.folder / "reports" / "evidence" / self.name
        return {file for file in folder.glob("*") if file.stat().st_size}

    def late_s(self, one: Scenario, said: str) -> float | None:
        """Seconds from the moment that a hang was as long as its limit to the verdict; times are of whole seconds."""
        ended = re.search(r"\((\d+)s after its start", said)
        ledger = self.fleet.shell(self.name, "cat /var/lib/ironserve/main/ledger.jsonl").splitlines()
        record = next((entry for entry in map(json.loads, reversed(ledger)) if entry["profile"] == one.name), {})
        limit = one.settings["stall_timeout_s"]
        limit_s = limit if isinstance(limit, int) else limit[one.phase]
        began_s = record.get("timings", {}).get(one.phase, 0.0)
        return int(ended[1]) - began_s - limit_s if ended else None

    def settle(self, one: Scenario, outcome: Outcome) -> None:
        """Know what has to serve now; a good start is kept or rolled back."""
        if outcome.verdict == "ready":
            self.good.append(Served(one.name, one.ranks))
            if one.after == "rollback":
                outcome.said += self.play(playbook="playbooks/rollback.yml").stdout
                self.good.append(self.good.pop(-2))
        self.fleet.shell(self.name, RESET)

    def problems_left(self) -> list[str]:
        """Whether the last good release serves, and what is on the host that does not belong there."""
        served, found = self.good[-1], self.inspect()
        problems = list(found["left"])
        status = self.fleet.status(self.name)
        if (status.get("status"), status.get("profile")) != ("ready", served.profile):
            problems.append(f"status is {status.get('status')} with {status.get('profile')}, not with {served.profile}")
        elif not self.fleet.complete(self.name)["usage"]["completion_tokens"]:
            problems.append("a completion gave no token")
        new = Counter(found["names"]) - self.known
        problems += [f"{count} more of {name}" for name, count in new.items()]
        wanted = [GPU_MIB * (gpu < served.ranks) for gpu in range(8)] if self.has_gpus else []
        if found["used_mib"] != wanted:
            problems.append(f"used MiB of the GPUs: {found['used_mib']}, not {wanted}")
        return problems

    def recover(self, outcome: Outcome) -> None:
        """Keep what the host shows, then have it serve again, so that the next scenario says something of its own."""
        try:
            outcome.said += self.fleet.shell(self.name, SHOW, check=False)
            self.fleet.forget(self.name)
            self.fleet.shell(self.name, RESET)
            self.prepare()
        except Exception:  # what follows will say so
            outcome.problems.append(f"the host did not recover: {traceback.format_exc()}")


def run(
    lab: Any, folder: Path, wanted: Iterable[Scenario], hosts: Sequence[str], say: Callable[[Outcome], object]
) -> None:
    """Run scenarios on hosts that see the stand-in's wheels, one after the other on each; ``say`` hears of each."""
    turn, given_up = threading.Lock(), threading.Event()

    def work(name: str, share: Sequence[Scenario]) -> None:
        host = Host(lab, name, folder / name, has_gpus=name == hosts[0])
        host.prepare()
        for one in share:
            if given_up.is_set():
                return
            outcome = host.run(one)
            with turn:
                say(outcome)

    with ThreadPoolExecutor(len(hosts)) as pool:
        try:
            for done in as_completed([pool.submit(work, name, share) for name, share in shares(wanted, hosts).items()]):
                done.result()
        finally:  # after an interrupt nobody waits for more than the scenarios under way
            given_up.set()


def confusion(outcomes: Iterable[Outcome]) -> str:
    """The table of truth against verdict."""
    counts = Counter((outcome.scenario.truth, outcome.verdict) for outcome in outcomes)
    rows = [["truth", *VERDICTS], *([truth, *(counts[truth, one] for one in VERDICTS)] for truth in VERDICTS[:-1])]
    return "\n".join("".join(f"{cell!s:>9}" for cell in row) for row in rows)


def lateness(outcomes: Iterable[Outcome]) -> str:
    """How long after their limit hangs were named."""
    late = [outcome.late_s for outcome in outcomes if outcome.late_s is not None]
    over = sum(seconds > LATE_S for seconds in late)
    return f"{len(late)} hangs, {over} of them named more than {LATE_S:.0f} s after their limit" + (
        f" (worst {max(late):+.1f} s)" if late else ""
    )


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description="Seeded fault scenarios on test hosts.")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--only", type=int, action="append", help="number of a scenario; may be given again")
    arguments = parser.parse_args()
    wanted = [scenario(arguments.seed, number) for number in arguments.only or range(1, arguments.count + 1)]
    hosts = [f"h{number}" for number in range(1, min(arguments.hosts, len(wanted)) + 1)]
    outcomes: list[Outcome] = []

    def say(outcome: Outcome) -> None:
        outcomes.append(outcome)
        print(outcome.line(), flush=True)

    lab = LabHandle("soak")
    lab.down()
    try:
        standin_hosts(lab, len(hosts))
        with tempfile.TemporaryDirectory() as folder:
            run(lab, Path(folder), wanted, hosts, say)
    except KeyboardInterrupt:
        print("interrupted; so far:")
    finally:
        lab.down()
    bad = [outcome for outcome in outcomes if outcome.problems]
    for outcome in bad:
        print(f"\n{outcome.told(arguments.seed)}")
    print(f"\n{confusion(outcomes)}\n\n{lateness(outcomes)}; {len(bad)} of {len(outcomes)} scenarios not ok")
    return 1 if bad or len(outcomes) < len(wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
