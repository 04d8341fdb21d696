"""The story that the project began with: a hang in CUDA-graph capture, unattended, and the last good release again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import gpu_hosts
from deploys import ROOT, Fleet, lines_with, standin_hosts
from test_preflight import KIMI

GPU_MIB = 76000
HANG = {
    "gpu_mib": GPU_MIB,
    "per_flag": [{"flag": "attention-backend", "value": "flashinfer",
                  "behave": {"hang_in": "graphs", "hang_how": "pipe_writes", "sigterm": "ignore"}}],
}  # fmt: skip
STALL_S = 5


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1 with eight GPUs."""
    lab = standin_hosts(make_lab("-story"), 1)
    gpu_hosts.install(lab, "h1", gpus=8)
    return lab


def shipped(name: str) -> dict:
    """A profile as it is shipped."""
    return yaml.safe_load((ROOT / "profiles" / f"{name}.yml").read_text())


def used_mib(fleet: Fleet) -> list[int]:
    """What nvidia-smi says of each GPU."""
    said = fleet.shell("h1", "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits")
    return [int(line) for line in said.splitlines()]


def test_the_seeds_hang_is_named_and_triton_serves_again_unattended(hosts, tmp_path):
    fleet = Fleet(hosts, tmp_path)
    # As shipped, but for patience: nobody waits fifteen minutes for a test.
    patience = {"stall_timeout_s": {"capturing CUDA graphs": STALL_S}}
    fleet.profile("flashinfer_nccl", **shipped("flashinfer_nccl"), **patience)
    fleet.model("h1", HANG, config=KIMI)
    fleet.play("-l", "h1", "-e", "profile=triton_nccl")
    pid = fleet.main_pid("h1")
    assert used_mib(fleet) == [GPU_MIB] * 8

    # Preflight knows better; the person of the story did not listen to anybody.
    accept = "accept=sglang-mla-flashinfer-sm120"
    hung = fleet.play("-l", "h1", "-e", "profile=flashinfer_nccl", "-e", accept, check=False)

    assert hung.returncode == 2
    said = " ".join(hung.stdout.split())
    assert "it hangs, nothing moves any more: log silent for" in said
    assert "in phase: capturing CUDA graphs" in said
    assert f"stall_timeout_s of the profile is {STALL_S}s" in said
    assert "Known cause: Capturing CUDA graphs hangs with the attention backend flashinfer" in said
    assert "attention-backend triton" in said
    row = fleet.rows("deploy")["h1"]
    assert (row["profile"], row["verdict"]) == ("flashinfer_nccl", "stalled")
    assert "triton_nccl" in row["note"]

    status = fleet.status("h1")
    assert (status["status"], status["profile"]) == ("ready", "triton_nccl")
    assert fleet.flag("h1", "--attention-backend") == "triton"
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3
    assert fleet.main_pid("h1") not in (0, pid)
    assert used_mib(fleet) == [GPU_MIB] * 8  # of the server that serves, and of nobody else
    evidence = list((tmp_path / "reports" / "evidence" / "h1").iterdir())
    assert len(evidence) == 1
    ledger = [json.loads(line) for line in fleet.shell("h1", "cat /var/lib/ironserve/main/ledger.jsonl").splitlines()]
    assert [(entry["profile"], entry["verdict"]) for entry in ledger] == [
        ("triton_nccl", "ready"), ("flashinfer_nccl", "stalled"), ("triton_nccl", "ready"),
    ]  # fmt: skip
    assert [entry.get("accepted") for entry in ledger] == [None, ["sglang-mla-flashinfer-sm120"], None]
    assert lines_with(hung.stdout, ["put back", "triton_nccl"])


def test_a_proof_of_collectives_that_fails_puts_the_old_server_back(hosts, tmp_path):
    """The stand-in's environment has no PyTorch, so that no rank gets as far as an all-reduce."""
    fleet = Fleet(hosts, tmp_path)
    fleet.model("h1", {"gpu_mib": GPU_MIB}, config=KIMI)
    fleet.play("-l", "h1", "-e", "profile=triton_nccl")
    fleet.profile("next", extends="triton_nccl", flags={"max-running-requests": 7})

    refused = fleet.play("-l", "h1", "-e", "profile=next", "-e", "prove_nccl=true", check=False)

    assert refused.returncode == 2
    said = " ".join(refused.stdout.split())
    assert "No module named 'torch'" in said
    assert "put back: triton_nccl" in said
    status = fleet.status("h1")
    assert (status["status"], status["profile"]) == ("ready", "triton_nccl")
    assert used_mib(fleet) == [GPU_MIB] * 8
    ledger = [json.loads(line) for line in fleet.shell("h1", "cat /var/lib/ironserve/main/ledger.jsonl").splitlines()]
    assert [(entry["profile"], entry["verdict"]) for entry in ledger[-2:]] == [
        ("next", "failed"),
        ("triton_nccl", "ready"),
    ]
    assert "torch" in ledger[-2]["reason"]
    assert fleet.shell("h1", "systemctl list-units --plain --no-legend 'ironserve-proof_*'") == ""
    # A server that runs is in the way of a proof, and stays.
    pid = fleet.main_pid("h1")
    words = ("-l", "h1", "-e", "profile=triton_nccl", "-e", "prove_nccl=true")
    busy = fleet.play(*words, playbook="playbooks/preflight.yml", check=False)
    assert busy.returncode == 2
    assert "its GPUs are in use by pid" in busy.stdout
    assert fleet.main_pid("h1") == pid
