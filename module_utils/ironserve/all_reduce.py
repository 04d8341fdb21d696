"""All-reduces between processes of one host: do they end, is the sum right, how long do they take?

usage: all_reduce.py --world N [--backend nccl] [--sizes BYTES,...] [--timeout S] [--folder DIR]

Runs under the Python of an engine environment, and needs PyTorch alone; Ironserve itself is not there. One process a
rank; each writes what it does, a line of JSON a step, to DIR/rank-N.jsonl. The last line of the output is the result as
JSON: verdict (passed, hung, failed, wrong_result), ranks, latency_us, bus_bandwidth_gb_s. Exits with 0 if it passed.

With --timeout 0 somebody else has to end what hangs.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import functools
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

SIZES = (8 << 10, 32 << 10, 256 << 10, 64 << 20)
"""Bytes: messages of decoding, and one that shows the bandwidth."""

START_S = 300.0
"""To import PyTorch from a disk that has nothing cached."""
OTHERS_S = 5.0
"""After one rank failed the others have this long to say something, too."""
POLL_S = 0.1
NEVER = datetime.timedelta(days=1)
"""For PyTorch's own limit: whoever waits for the result ends what hangs, and wants to see it stand."""

ROUNDS = 5
SMALL = 1 << 20
SMALL_CALLS, LARGE_CALLS = 50, 4
"""All-reduces that are timed together, of messages below and from SMALL on."""
PATTERN = 251
"""Elements repeat after so many, which is no multiple of any chunk: one that lands in the wrong place is seen."""

Steps = Mapping[int, Sequence[Mapping[str, Any]]]
"""Of each rank what it did, the newest last."""


def main(argv: Sequence[str]) -> int:
    """Run all ranks, or the one that is named."""
    parser = argparse.ArgumentParser(description="All-reduces between processes of one host.")
    parser.add_argument("--world", type=int, required=True, help="number of ranks")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, by commas")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds from when all ranks have PyTorch; 0: none")
    parser.add_argument("--folder", help="where ranks write and meet; a temporary one by default")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    sizes = [int(size) for size in given.sizes.split(",")]
    if given.rank is not None:
        return _rank(given.rank, given.world, given.backend, sizes, Path(given.folder))
    with tempfile.TemporaryDirectory() as temporary:
        found = _all(given.world, given.backend, given.sizes, given.timeout, Path(given.folder or temporary))
    print(json.dumps(found), flush=True)
    return 0 if found["verdict"] == "passed" else 1


def _all(world: int, backend: str, sizes: str, timeout_s: float, folder: Path) -> dict[str, Any]:
    """Start a process for each rank, wait for them, and end what hangs."""
    words = ["--world", str(world), "--backend", backend, "--sizes", sizes, "--folder", str(folder)]
    argv = [sys.executable, str(Path(__file__).resolve()), *words]
    children = [subprocess.Popen([*argv, "--rank", str(rank)], stdin=subprocess.DEVNULL) for rank in range(world)]
    watch = Watch(timeout_s, time.monotonic())
    hung, failed_at = False, 0.0
    while any(child.poll() is None for child in children) and not hung:
        now, steps = time.monotonic(), read(folder)
        if any(child.poll() for child in children):
            failed_at = failed_at or now
        hung = watch.is_over(steps, world, now) if timeout_s else False
        if failed_at and now - failed_at > OTHERS_S:
            break
        time.sleep(POLL_S)
    statuses = [child.poll() for child in children]
    for child in children:  # ours, and not waited for yet: the pid is theirs
        if child.poll() is None:
            child.kill()
            child.wait()
    return result(read(folder), world, statuses, hung)


class Watch:
    """How long ranks may take: to import PyTorch, and from then on for all the rest."""

    def __init__(self, timeout_s: float, began: float, start_s: float = START_S) -> None:
        self.timeout_s, self.began, self.start_s = timeout_s, began, start_s
        self.joining_since: float | None = None

    def is_over(self, steps: Steps, world: int, now: float) -> bool:
        """Whether the time is up; ``now`` is of the same clock as ``began``, in seconds."""
        if self.joining_since is None:
            if len(joined(steps)) < world:
                return now - self.began > self.start_s
            self.joining_since = now
        return now - self.joining_since > self.timeout_s


def joined(steps: Steps) -> list[int]:
    """The ranks that have imported PyTorch."""
    return [rank for rank, said in steps.items() if any(step["step"] == "join" for step in said)]


def read(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """What the ranks wrote so far."""
    found = {}
    for path in sorted(folder.glob("rank-*.jsonl")):
        with contextlib.suppress(OSError, ValueError):
            found[int(path.stem.split("-")[1])] = parse(path.read_text(errors="replace"))
    return found


def parse(text: str) -> list[dict[str, Any]]:
    """The steps of a rank; a line that is not whole yet, or no step at all, is left out."""
    steps = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, KeyError, AttributeError, TypeError):
            step = json.loads(line)
            numbers = [value for key, value in step.items() if key not in ("step", "nccl", "torch")]
            if isinstance(step["step"], str) and all(isinstance(value, (int, float)) for value in numbers):
                steps.append(step)
    return steps


def result(steps: Steps, world: int, statuses: Iterable[int | None], hung: bool) -> dict[str, Any]:
    """What the ranks found: ``verdict`` and the figures of rank 0, and of each rank where it stands.

    Args:
        steps: of each rank.
        world: number of ranks.
        statuses: of each rank how it ended, None where it had to be ended.
        hung: whether their time was up.
    """
    wrong = [step for said in steps.values() for step in said if step["step"] == "wrong"]
    done = [rank for rank, said in steps.items() if said and said[-1]["step"] == "done"]
    if wrong:
        verdict = "wrong_result"
    elif hung:
        verdict = "hung"
    else:
        verdict = "passed" if len(done) == world and not any(statuses) else "failed"
    measured = {step["bytes"]: step["us"] for step in steps.get(0, ()) if step["step"] == "measured"}
    largest = max(measured, default=0) if verdict == "passed" else 0
    versions = [step["nccl"] for step in steps.get(0, ()) if step.get("nccl")]
    return {
        "verdict": verdict,
        "world_size": world,
        "nccl_version": versions[0] if versions else "",
        "latency_us": {str(size): us for size, us in measured.items()},
        "bus_bandwidth_gb_s": bus_bandwidth_gb_s(largest, measured[largest], world) if largest else None,
        "ranks": {str(rank): standing(steps.get(rank, ())) for rank in range(world)},
    }


def bus_bandwidth_gb_s(size: int, us: float, world: int) -> float | None:
    """Bytes over time, times 2(n-1)/n, as nccl-tests counts it; None of a single rank, which sends nothing."""
    return round(size / us / 1000 * 2 * (world - 1) / world, 3) if world > 1 and us else None


def standing(said: Sequence[Mapping[str, Any]]) -> str:
    """What a rank is at, by its last step."""
    if not said:
        return "has not started"
    last = said[-1]
    size = size_text(int(last.get("bytes", 0)))
    return {
        "start": "imports PyTorch",
        "join": "joins the others",
        "first": "in the first all-reduce, 4 bytes",
        "sum": f"in the all-reduce of {size}",
        "measure": f"in the all-reduce of {size}, measuring",
        "measured": f"after the all-reduce of {size}",
        "wrong": f"has a wrong sum of {size}",
        "leave": "leaves the others",
        "done": "done",
    }.get(str(last["step"]), str(last["step"]))


def size_text(size: int) -> str:
    """``32 KiB``, ``64 MiB``, ``100 bytes``."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def _rank(rank: int, world: int, backend: str, sizes: Sequence[int], folder: Path) -> int:
    """One rank, from its start to its end."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank outlives who started it
    if os.getppid() != parent:
        return 1
    with (folder / f"rank-{rank}.jsonl").open("w", buffering=1) as file:

        def say(step: str, **more: Any) -> None:
            file.write(json.dumps({"step": step, "pid": os.getpid(), **more}) + "\n")

        say("start")
        torch = importlib.import_module("torch")
        dist = importlib.import_module("torch.distributed")
        say("join", torch=str(torch.__version__))
        on_gpu = backend == "nccl"
        if on_gpu:
            torch.cuda.set_device(rank)
        device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
        meeting = f"file://{folder}/meeting"
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world, timeout=NEVER)
        version = ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else ""

        def wait() -> None:
            if on_gpu:
                torch.cuda.synchronize()

        say("first", nccl=version)
        dist.all_reduce(torch.ones(1, device=device))
        wait()
        for size in sizes:
            say("sum", bytes=size)
            pattern = torch.arange(max(1, size // 4), device=device, dtype=torch.float32) % PATTERN
            values = pattern + rank
            dist.all_reduce(values)
            wait()
            wanted = pattern * world + world * (world - 1) / 2
            if not torch.equal(values, wanted):
                at = int(torch.nonzero(values != wanted)[0])
                say("wrong", bytes=size, index=at, got=float(values[at]), wanted=float(wanted[at]))
                return 3
            pattern.zero_()  # its sums stay finite, however often they are added up
            say("measure", bytes=size)
            say("measured", bytes=size, us=_measure(functools.partial(dist.all_reduce, pattern), wait, size))
        say("leave")
        dist.destroy_process_group()
        say("done")
    return 0


def _measure(call: Any, wait: Any, size: int) -> float:
    """Microseconds of a call: the median of some rounds of several calls, after one round that does not count."""
    calls, times = SMALL_CALLS if size < SMALL else LARGE_CALLS, []
    for _ in range(1 + ROUNDS):
        wait()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        times.append((time.perf_counter() - began) / calls * 1e6)
    return round(statistics.median(times[1:]), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
