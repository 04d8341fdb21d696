#!/usr/bin/env python3
"""gpu_cleanup against real GPUs: who goes, who stays, what nvidia-smi says, and how long it takes. Needs root.

usage: real.py [ROUNDS]     (5 by default); JSON to $OUT or .ironserve/real-gpu

Needs ansible-core, nvidia-ml-py and setproctitle, and for what goes through nvidia-smi a /usr/bin/python3 without
nvidia-ml-py (in PYTHONPATH it may be in a folder of its own, which that one does not see).

It holds and frees memory of GPU 0 (and of GPU 1, where there is one), so nobody else may use them. Every figure comes
from the modules as Ansible calls them, or from NVML asked every millisecond.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pynvml as nvml
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOLD = Path(__file__).with_name("hold_cuda.py")
OUT = Path(os.environ.get("OUT", ROOT / ".ironserve" / "real-gpu"))
SCHEDULER = "sglang::scheduler"

started: list[subprocess.Popen[str]] = []
pids: list[int] = []


def hold(*words: object, program: str = sys.executable) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a holder in a session of its own; the process, and all pids once they hold."""
    argv = [program, str(HOLD), *map(str, words)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    started.append(process)
    found: list[int] = []
    assert process.stdout
    while process.pid not in found:
        line = process.stdout.readline()
        assert line, f"{argv} ended with {process.wait()}"
        found.append(int(line.split()[1]))
        pids.append(found[-1])
    return process, found


def leftovers(gpu: int, gib: int, count: int) -> list[int]:
    """Ranks whose parent was killed."""
    parent, found = hold(gpu, gib, "--title", SCHEDULER, "--children", count)
    parent.kill()
    parent.wait()
    return [pid for pid in found if pid != parent.pid]


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie does not, unless threads of it do."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return False
    return fields[0] != "Z" or int(fields[17]) > 1


def module(name: str, with_bindings: bool = True, **arguments: object) -> dict[str, Any]:
    """What a module answers through Ansible, with the seconds of the whole command.

    Args:
        name: of the module.
        with_bindings: whether it may find nvidia-ml-py; else it runs under the system's Python.
        arguments: its arguments.
    """
    hidden = None if with_bindings else Path(nvml.__file__).parent
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder and Path(folder) != hidden]
    interpreter = sys.executable if with_bindings else "/usr/bin/python3"
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1",
                   "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1", "ANSIBLE_STDOUT_CALLBACK": "minimal",
                   "PYTHONPATH": ":".join(folders)}  # fmt: skip
    argv = [sys.executable, "-m", "ansible", "adhoc", "localhost", "-i", "localhost,", "-c", "local", "-m", name,
            "-e", f"ansible_python_interpreter={interpreter}"]  # fmt: skip
    argv += ["-a", json.dumps(arguments)] if arguments else []
    began = time.monotonic()
    text = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = text.stdout
    try:
        answer = yaml.safe_load(said[said.index("\n", said.index("localhost | ")) :])
    except ValueError:
        raise SystemExit(f"{argv}:\n{said}{text.stderr}") from None
    return {**answer, "command_s": round(time.monotonic() - began, 2)}


def nvidia_smi() -> list[str]:
    """Memory by GPU and the processes, as nvidia-smi shows them."""
    memory = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader"]
    apps = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader"]
    return [line for argv in (memory, apps) for line in subprocess.check_output(argv, text=True).splitlines()]


def used(gpu: int) -> int:
    """MiB that NVML calls used, without the reserve."""
    memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(gpu), version=nvml.nvmlMemory_v2)
    return int(memory.used >> 20)


def brief(answer: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The parts of a cleanup's answer that evidence is made of."""
    names = ("state", "msg", "freed_mib", "elapsed_s", "command_s", "actions", "source", "gpus")
    told = {name: answer.get(name) for name in names}
    for name in ("victims", "protected", "reported"):
        held = (one for one in answer.get(name, []) if one["class"] != "self")
        told[name] = [f"{one['pid']} {one['command'][:48]} {one['memory_mib']} MiB {one['seen']}" for one in held]
    return {**told, "nvidia_smi": nvidia_smi(), **more}


def hardware_s(targets: list[int], gpu: int, idle: int) -> float:
    """Seconds from SIGKILL to memory that is free, nothing of Ironserve's beside it."""
    began = time.monotonic()
    for pid in targets:
        os.kill(pid, signal.SIGKILL)
    while used(gpu) > idle:
        time.sleep(0.001)
    return time.monotonic() - began


def timed(rounds: int, make: Any, idle: int) -> dict[str, Any]:
    """The hardware's own time and the module's, for the same processes, one after the other."""
    own, cleaned, commands = [], [], []
    for _ in range(rounds):
        own.append(hardware_s(make(), 0, idle))
        make()
        answer = module("gpu_cleanup", shm=False)
        assert answer["state"] == "clean", answer
        cleaned.append(answer["elapsed_s"])
        commands.append(answer["command_s"])
    names = {"hardware_s": own, "module_s": cleaned, "command_s": commands}
    return {name: {"median": round(statistics.median(values), 3), "all": [round(value, 3) for value in values]}
            for name, values in names.items()}  # fmt: skip


def run(rounds: int) -> dict[str, Any]:
    """All of it, in the order of docs/evidence/gpu-cleanup.md."""
    nvml.nvmlInit()
    count, idle = nvml.nvmlDeviceGetCount(), used(0)
    uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(gpu)) for gpu in range(count)]
    found: dict[str, Any] = {
        "uname": platform.release(), "driver": nvml.nvmlSystemGetDriverVersion(), "gpus": count, "idle_mib": idle,
        "gpu_info": module("gpu_info"),
    }  # fmt: skip

    ranks = leftovers(0, 24, 4)
    before = nvidia_smi()
    seen = module("gpu_cleanup", consent_foreign=False, shm=False)
    found["orphans"] = brief(seen, before=before, alive=[pid for pid in ranks if is_alive(pid)])

    link = Path("/tmp/dcgm-exporter")
    link.unlink(missing_ok=True)
    link.symlink_to(sys.executable)
    monitor, _ = hold(0, 4, program=str(link))
    watcher = subprocess.Popen(["nvidia-smi", "-l", "1"], stdout=subprocess.DEVNULL, start_new_session=True)
    ranks = leftovers(0, 24, 2)
    found["beside_protected"] = brief(
        module("gpu_cleanup", shm=False),
        alive={"ranks": [pid for pid in ranks if is_alive(pid)], "dcgm-exporter": is_alive(monitor.pid),
               "nvidia-smi": is_alive(watcher.pid)},
    )  # fmt: skip
    watcher.kill()
    monitor.kill()

    train, _ = hold(0, 8)
    found["foreign"] = brief(module("gpu_cleanup", shm=False), alive=is_alive(train.pid))
    found["foreign_with_consent"] = brief(
        module("gpu_cleanup", shm=False, consent_foreign=True), alive=is_alive(train.pid)
    )

    stubborn, _ = hold(0, 8, "--title", "VLLM::Worker_TP0", "--ignore-term")
    found["ignores_sigterm"] = brief(module("gpu_cleanup", shm=False, grace_s=2), alive=is_alive(stubborn.pid))

    half, _ = hold(0, 8, "--title", "VLLM::Worker_TP0", "--leave-thread")
    while Path(f"/proc/{half.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.01)
    stat = Path(f"/proc/{half.pid}/stat").read_text().split()[:3]
    files = len(os.listdir(f"/proc/{half.pid}/fd"))  # noqa: PTH208
    found["zombie_with_a_thread"] = brief(
        module("gpu_cleanup", shm=False), stat=stat, open_files_shown=files, alive=is_alive(half.pid)
    )

    if count > 1:
        neighbour, _ = hold(1, 8)
        ranks = leftovers(0, 24, 2)
        found["other_gpu"] = brief(
            module("gpu_cleanup", shm=False, gpus=[uuids[0]]),
            alive={"ranks": [pid for pid in ranks if is_alive(pid)], "on GPU 1": is_alive(neighbour.pid)},
        )
        neighbour.kill()
        neighbour.wait()

    ranks = leftovers(0, 24, 2)
    found["through_nvidia_smi"] = brief(
        module("gpu_cleanup", with_bindings=False, shm=False),
        alive=[pid for pid in ranks if is_alive(pid)],
    )

    found["one_process_60_gib"] = timed(rounds, lambda: [hold(0, 60, "--title", "VLLM::Worker_TP0")[0].pid], idle)
    found["four_orphans_8_gib"] = timed(rounds, lambda: leftovers(0, 8, 4), idle)
    return found


def main() -> None:
    """Run, write, print; leave nothing behind."""
    OUT.mkdir(parents=True, exist_ok=True)
    try:
        found = run(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
        (OUT / "gpu-cleanup.json").write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found, indent=1))
    finally:
        for pid in pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
