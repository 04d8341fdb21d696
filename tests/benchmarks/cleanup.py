#!/usr/bin/env python3
"""What a cleanup costs beside the hardware's own time, with stand-in GPUs on this machine. Reports, judges nothing.

usage: cleanup.py [ROUNDS]     (20 by default); JSON in .ironserve/bench-cleanup.json, needs root and gcc

- ``return_s``: from the moment that the victims are dead and the memory is free, as an observer sees it that asks every
  millisecond, to the answer of gpu_cleanup;
- ``scan_s``: one look at a process table of 2,000 processes with 20,000 open files.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "gpu"), str(ROOT)]

import gpu_hosts  # noqa: E402  (needs the folder above)

RANKS, MIB = 8, 76000
PROCESSES, FILES_EACH = 2000, 10

IMPORT = f"""
import sys, time, json, os, ansible.module_utils
ansible.module_utils.__path__.append({str(ROOT / "module_utils")!r})
def now(): return time.clock_gettime(time.CLOCK_BOOTTIME)
"""

CLEAN = """
from ansible.module_utils.ironserve.cleanup import Cleanup, Wish
answer = Cleanup(Wish(shm=False), False).run({}, 0)
print(json.dumps({"at": now(), "state": answer["state"], "elapsed_s": answer["elapsed_s"]}))
"""

# It watches the ranks, too: dead is what /proc does not show, or shows as a zombie.
OBSERVE = """
import pynvml as n
from ansible.module_utils.ironserve import processes
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print("ready", flush=True)
def gone(pid):
    found = processes.read(pid)
    return found is None or processes.is_gone(found, found.start_ticks)
while True:
    used = [n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2).used for gpu in gpus]
    if all(gone(int(pid)) for pid in sys.argv[1:]) and not any(used):
        break
    time.sleep(0.001)
print(now(), flush=True)
"""

SCAN = """
from ansible.module_utils.ironserve import victims
from ansible.module_utils.ironserve.gpus import Reading
from ansible.module_utils.ironserve.processes import Table
began = now()
table = Table()
victims.find(table, Reading(""), victims.Scope(frozenset()), os.getpid())
print(json.dumps({"scan_s": now() - began, "processes": len(table.processes)}))
"""


def python(program: str, environment: dict[str, str], *words: object) -> list[str]:
    """What a program prints, its lines."""
    argv = [sys.executable, "-c", IMPORT + program, *map(str, words)]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def one_cleanup(environment: dict[str, str]) -> dict[str, float]:
    """Leave eight ranks behind, clean them, and see how long after the hardware the module returned."""
    gpus = ",".join(map(str, range(RANKS)))
    leader, pids = gpu_hosts.start(environment, gpus, MIB, "--tree", "--title", "VLLM::Worker")
    ranks = [pid for pid in pids.values() if pid != leader.pid]
    leader.kill()
    leader.wait()
    observer = subprocess.Popen(
        [sys.executable, "-c", IMPORT + OBSERVE, *map(str, ranks)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert observer.stdout
    observer.stdout.readline()
    try:
        done = json.loads(python(CLEAN, environment)[-1])
        assert done["state"] == "clean", done
        free_at = float(observer.communicate(timeout=60)[0])
    finally:
        observer.kill()
    return {"return_s": done["at"] - free_at, "elapsed_s": done["elapsed_s"]}


def scan() -> dict[str, Any]:
    """Look at many processes with many files, five times."""
    with tempfile.TemporaryFile() as file:
        copies = [os.dup(file.fileno()) for _ in range(FILES_EACH - 3)]  # beside the three of every process
        started = [subprocess.Popen(["sleep", "600"], pass_fds=copies) for _ in range(PROCESSES)]
        try:
            looks = [json.loads(python(SCAN, dict(os.environ))[-1]) for _ in range(5)]
        finally:
            for process in started:
                process.kill()
            for process in started:
                process.wait()
            for copy in copies:
                os.close(copy)
    return {
        "scan_s": round(statistics.median(look["scan_s"] for look in looks), 3),
        "scanned_processes": looks[0]["processes"],
        "scanned_files": PROCESSES * FILES_EACH,
    }


def main() -> None:
    """Measure, print, write."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **gpu_hosts.lay_out(Path(folder) / "gpu", gpus=RANKS)}
        series = []
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            series.append(one_cleanup(environment))
    found: dict[str, Any] = {
        name: {
            "median": round(statistics.median(one[name] for one in series), 4),
            "worst": round(max(one[name] for one in series), 4),
        }
        for name in ("return_s", "elapsed_s")
    }
    found |= {"rounds": rounds, "at": time.strftime("%Y-%m-%d"), **scan()}
    (ROOT / ".ironserve" / "bench-cleanup.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
