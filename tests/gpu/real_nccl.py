#!/usr/bin/env python3
"""All-reduces on real GPUs with NCCL's defaults, with the variables of a profile, and with a rank that stands still.

usage: real_nccl.py FOLDER [GPUS]     (2 by default; needs PyTorch and free GPUs, nothing else)

It runs what the module nccl_proof runs (module_utils/ironserve/all_reduce.py), without Ansible and systemd, and reads
NCCL's own lines as the gate does. FOLDER gets nccl.json and the whole output of each run; docs/evidence/nccl.md tells
what came of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "module_utils"))

from ironserve import nccl_log  # noqa: E402  (needs the folder above)

SIX = {
    "NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS", "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216", "NCCL_NTHREADS": "512",
}  # fmt: skip
"""The set low_latency of group_vars/blackwell."""
TALK = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH"}
RUNS = {
    "default": {},
    "six": SIX,
    "p2p_disabled": {"NCCL_P2P_DISABLE": "1"},
    "misspelt": {"NCCL_BUFSIZE": "16777216", "NCCL_P2P_LEVEL": "sys", "NCCL_NTHREADS": "abc"},
}
HANG_TIMEOUT_S = 15


def start(folder: Path, world: int, env: dict[str, str], timeout_s: float, *more: str) -> subprocess.Popen[str]:
    """Begin a run; each rank writes its steps to the folder."""
    folder.mkdir(parents=True)
    script = ROOT / "module_utils" / "ironserve" / "all_reduce.py"
    argv = [
        sys.executable,
        str(script),
        "--world",
        str(world),
        "--timeout",
        str(timeout_s),
        "--folder",
        str(folder),
        *more,
    ]
    environment = {**os.environ, **TALK, **env}
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(running: subprocess.Popen[str], folder: Path, env: dict[str, str]) -> dict[str, Any]:
    """Its result, and what NCCL said of its variables and transports."""
    output, _ = running.communicate(timeout=400)
    (folder / "output.txt").write_text(output)
    lines = output.splitlines()
    told = nccl_log.parse(lines)
    result = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
    settings = nccl_log.took_effect(env, lines)
    return {"result": result, "settings": settings, "version": told.version, "transports": told.transports}


def stand_still(folder: Path) -> int:
    """Stop the last rank once it has begun to all-reduce; return its pid."""
    ends = time.monotonic() + 300
    while time.monotonic() < ends:
        file = sorted(folder.glob("rank-*.jsonl"))
        steps = [json.loads(line) for line in file[-1].read_text().splitlines() if line.endswith("}")] if file else []
        if any(step["step"] not in ("start", "join") for step in steps):
            pid = int(steps[-1]["pid"])
            os.kill(pid, signal.SIGSTOP)  # of a process of ours, which our child has not waited for
            return pid
        time.sleep(0.01)
    raise SystemExit("no rank began")


def main() -> None:
    """Run all, print and keep what came of it."""
    folder, world = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    found: dict[str, Any] = {}
    for name, env in RUNS.items():
        began = time.monotonic()
        found[name] = finish(start(folder / name, world, env, 60), folder / name, env)
        print(name, round(time.monotonic() - began, 1), json.dumps(found[name]["result"])[:300], flush=True)
    running = start(folder / "hang", world, SIX, HANG_TIMEOUT_S, "--sizes", ",".join(["67108864"] * 400))
    pid, began = stand_still(folder / "hang"), time.monotonic()
    found["hang"] = {**finish(running, folder / "hang", SIX), "stopped_pid": pid}
    found["hang"]["seconds_to_verdict"] = round(time.monotonic() - began, 1)
    smi = subprocess.run(
        ["nvidia-smi", "--query-gpu=index,memory.used,utilization.gpu", "--format=csv"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found["nvidia_smi_afterwards"] = smi.stdout.splitlines()
    (folder / "nccl.json").write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    print(json.dumps(found["hang"])[:600], found["nvidia_smi_afterwards"], flush=True)


if __name__ == "__main__":
    main()
