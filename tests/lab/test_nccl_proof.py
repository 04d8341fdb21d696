"""The proof of all-reduces with the PyTorch of a real engine on a test host: two ranks that pass, hang, die."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT
from real_engines import VLLM, RealFleet, real_host

UNIT = "ironserve-proof_main.service"
GROUP = f"/sys/fs/cgroup/system.slice/{UNIT}"
LONG = [8192, 512 << 20]
"""Bytes; half a GiB takes two ranks on two cores many seconds."""

STOP = r"""
import glob, json, os, signal, sys, time
print("waiting", flush=True)
ends = time.monotonic() + 120
while time.monotonic() < ends:
    for path in glob.glob("/run/ironserve-proof_*/ranks/rank-1.jsonl"):
        steps = [json.loads(line) for line in open(path).read().splitlines(True) if line.endswith("\n")]
        if steps and steps[-1].get("bytes", 0) > 1 << 20:
            process = os.pidfd_open(steps[-1]["pid"])
            group = open(f"/proc/{steps[-1]['pid']}/cgroup").read()
            assert "ironserve-proof_main.service" in group, group
            signal.pidfd_send_signal(process, signal.SIGNAL)
            print(json.dumps(steps[-1]), flush=True)
            sys.exit()
    time.sleep(0.02)
sys.exit("rank 1 never got there")
"""
"""Sends a signal to rank 1 while it all-reduces the large message; it holds the process before it looks whose it is."""


pytestmark = pytest.mark.timeout(1500)
"""With cold caches the first test fetches the engine's wheels and builds its environment."""


@pytest.fixture(scope="module")
def real(make_lab, tmp_path_factory):
    """h1 with the environment of vLLM and a staged release; in the service's unit something else runs."""
    lab = make_lab("-nccl-proof")
    real_host(lab, VLLM)
    fleet = RealFleet(lab, tmp_path_factory.mktemp("proof"), VLLM)
    argv = fleet.command("-l", "h1", "-e", "profile=good", playbook="playbooks/prestage.yml")
    done = subprocess.run(
        argv, cwd=ROOT, env=fleet.environment(), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    fleet.shell("h1", "systemd-run --quiet --unit ironserve-main.service sleep infinity")
    yield fleet
    for program in fleet.running:
        program.end()
    lab.down()


@pytest.fixture
def prove(real):
    """Call the module as Ansible does, and see that nothing is left, whatever it answered."""
    release = json.loads(real.shell("h1", "cat /var/lib/ironserve/main/releases/*/release.json"))
    server = real.main_pid("h1")

    def run(**arguments):
        variables = {**release["env"], **arguments.pop("env", {})}
        return real.module("h1", "nccl_proof", {"release": {**release, "env": variables}, **arguments}, check=False)

    yield run
    assert real.shell("h1", f"systemctl show -P LoadState {UNIT}") == "not-found"
    assert real.shell("h1", f"cat {GROUP}/cgroup.procs 2>/dev/null", check=False) == ""
    assert real.shell("h1", "ls -d /run/ironserve-proof_* 2>/dev/null", check=False) == ""
    assert real.main_pid("h1") == server > 0


def test_two_ranks_pass_and_are_measured(prove):
    answer = prove()
    assert answer["verdict"] == "passed"
    assert (answer["world_size"], answer["backend"], answer["changed"]) == (2, "gloo", False)
    assert set(answer["latency_us"]) == {"8192", "32768", "262144", "67108864"}
    assert 0 < answer["latency_us"]["8192"] < answer["latency_us"]["67108864"]
    assert answer["bus_bandwidth_gb_s"] > 0
    assert answer["ranks"] == {"0": "done", "1": "done"}
    assert answer["msg"].startswith("all-reduce over 2 ranks: 8 KiB ")


def test_a_proof_that_nobody_watches_any_more_is_ended_by_the_next_one(real, prove):
    real.shell(
        "h1", f"mkdir /run/ironserve-proof_main_0 && systemd-run -q --unit {UNIT} sh -c 'sleep 600 & exec sleep 600'"
    )
    left = real.shell("h1", f"cat {GROUP}/cgroup.procs").split()
    answer = prove(sizes=[8192])
    assert answer["verdict"] == "passed"
    assert real.shell("h1", f"ls -d {' '.join(f'/proc/{pid}' for pid in left)} 2>/dev/null", check=False) == ""


def test_a_rank_that_stands_still_is_told_and_everything_is_ended_in_time(real, prove):
    stop = real.on_host(STOP.replace("signal.SIGNAL", "signal.SIGSTOP"))
    began = time.monotonic()
    answer = prove(sizes=LONG, timeout_s=15)
    assert stop.result()["bytes"] == LONG[1]
    assert answer["verdict"] == "hung"
    assert "FAILED!" in real.said
    assert answer["msg"].startswith("all-reduce of 512 MiB over 2 ranks did not end within 15 s. ")
    assert "rank 1: in the all-reduce of 512 MiB" in answer["msg"]
    assert "is stopped by a signal or a debugger" in answer["ranks"]["1"]
    assert answer["msg"].endswith("Somebody stopped rank 1: run the proof again.")
    assert answer["left"] == []
    assert time.monotonic() - began < 60


def test_a_rank_that_dies_fails_the_proof_at_once(real, prove):
    stop = real.on_host(STOP.replace("signal.SIGNAL", "signal.SIGKILL"))
    answer = prove(sizes=LONG)
    assert stop.result()["bytes"] == LONG[1]
    assert answer["verdict"] == "failed"
    assert "rank 1 in the all-reduce of 512 MiB" in answer["msg"]
    assert answer["elapsed_s"] < 60


def test_the_variables_of_the_release_are_those_of_the_ranks(prove):
    answer = prove(env={"GLOO_SOCKET_IFNAME": "^lo,docker0"})
    assert answer["verdict"] == "failed"
    assert "Unable to find address for: ^lo" in answer["msg"]


def test_without_an_environment_it_says_what_to_do(real, prove):
    release = json.loads(real.shell("h1", "cat /var/lib/ironserve/main/releases/*/release.json"))
    answer = prove(release={**release, "environment": "/opt/ironserve/engines/none"})
    assert answer["msg"].endswith(
        "/opt/ironserve/engines/none is not on this host: build it first (playbooks/prestage.yml)"
    )
