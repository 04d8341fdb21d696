"""Nothing wrong reaches a GPU: what is judged, told and refused while the old server serves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import gpu_hosts
from deploys import Fleet, lines_with, standin_hosts

PLAYBOOK = "playbooks/preflight.yml"
NOTHING = "accept=host-driver-missing"
"""Overrules what all test hosts overrule, but for flags that nobody knows."""

KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {
        "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 64, "num_key_value_heads": 64, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 384,
        "num_experts_per_tok": 8, "vocab_size": 163840, "max_position_embeddings": 262144,
    },
}  # fmt: skip
"""What of Kimi-K2.5's config.json says what kind of model it is (moonshotai/Kimi-K2.5 on Hugging Face)."""


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1 and h2 with eight GPUs each."""
    lab = standin_hosts(make_lab("-preflight"), 2)
    for host in ("h1", "h2"):
        gpu_hosts.install(lab, host, gpus=8)
    return lab


@pytest.fixture(scope="module")
def served(hosts, tmp_path_factory):
    """triton_nccl serves an MLA model on both hosts, as shipped; pid and files of each."""
    fleet = Fleet(hosts, tmp_path_factory.mktemp("served"))
    for host in ("h1", "h2"):
        fleet.model(host, config=KIMI)
    fleet.play("-e", "profile=triton_nccl")
    return {host: (fleet.main_pid(host), fleet.written(host)) for host in ("h1", "h2")}


@pytest.fixture
def fleet(hosts, served, tmp_path):
    """The fleet, with a check at the end that the old servers and their files were left alone."""
    fleet = Fleet(hosts, tmp_path)
    yield fleet
    assert {host: (fleet.main_pid(host), fleet.written(host)) for host in ("h1", "h2")} == served


def errors(output: str) -> list[str]:
    """The lines of a report that say what is wrong."""
    return [line.strip() for line in output.splitlines() if line.strip().startswith("error")]


def test_flashinfer_for_an_mla_model_is_refused_in_one_line_and_triton_passes(fleet):
    refused = fleet.play("-e", "profile=flashinfer_nccl", playbook=PLAYBOOK, check=False)
    assert refused.returncode == 2
    (line,) = set(errors(refused.stdout))
    assert line.startswith("error: profiles/flashinfer_nccl.yml: flags.attention-backend: ")
    for word in ("FlashInfer", "MLA", "sm120", "[sglang-mla-flashinfer-sm120]"):
        assert word in line
    assert "hosts:  h1, h2" in refused.stdout
    assert "attention-backend: triton" in refused.stdout
    assert lines_with(refused.stdout, ["sglang-mla-flashinfer-sm120", "fired"])

    passed = fleet.play("-e", "profile=triton_nccl", playbook=PLAYBOOK)
    assert not errors(passed.stdout)
    assert "changed=0" in passed.stdout
    rows = lines_with(passed.stdout, ["sglang-mla-flashinfer-sm120", "silent"])  # one table for hosts that are alike
    assert rows
    assert all("triton" in row for row in rows)


def test_a_deploy_stops_there_too_and_the_old_server_serves(fleet):
    refused = fleet.play("-e", "profile=flashinfer_nccl", check=False)
    assert refused.returncode == 2
    assert "2 hosts judged: 1 error" in refused.stdout
    said = " ".join(refused.stdout.split())
    assert "nothing was touched: sglang-mla-flashinfer-sm120 stands against it on h1, h2, see the report above" in said
    assert refused.stdout.count("with an MLA model on sm120 hung") == 1  # the report is printed once
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3


def test_all_faults_of_all_hosts_come_in_one_report_each_once(fleet):
    env = {"NCCL_BUFSIZE": "1", "NCCL_NTHREADS": "abc", "NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "1"}
    flags = {"mem-fraction": 0.5, "enable-ep-moe": True}
    fleet.profile("wrong", extends="triton_nccl", nccl_set=None, env=env, flags=flags)
    gpu_hosts.set_faults(fleet.lab, "h2", "3 recovery 1")
    refused = fleet.play("-e", "profile=wrong", "-e", NOTHING, playbook=PLAYBOOK, check=False)
    gpu_hosts.set_faults(fleet.lab, "h2")
    report = json.loads(fleet.report("preflight").read_text())
    found = {finding["rule"]: finding["severity"] for finding in report["h1"]["findings"]}
    assert found.items() >= {
        "nccl-unknown": "error", "nccl-value": "error", "nccl-contradiction": "warning", "flag-unknown": "error",
        "flag-abbreviated": "error",
    }.items()  # fmt: skip
    assert 'NCCL_BUFSIZE: is no variable of NCCL\'s (did you mean "NCCL_BUFFSIZE"?)' in refused.stdout
    lines = errors(refused.stdout)
    assert len(lines) == len(set(lines))
    assert any("GPU 3" in line and "reset" in line for line in lines)
    assert report["h2"]["considered"]["main"]


def test_a_rule_may_be_overruled_by_name_and_a_misspelt_one_is_told(fleet):
    words = ("-l", "h1", "-e", "profile=flashinfer_nccl")
    wrong = fleet.play(*words, "-e", "accept=sglang-mla-flashinfer-sm12", playbook=PLAYBOOK, check=False)
    assert wrong.returncode == 2
    assert 'unknown rule "sglang-mla-flashinfer-sm12" (did you mean "sglang-mla-flashinfer-sm120"?)' in wrong.stdout
    passed = fleet.play(*words, "-e", "accept=sglang-mla-flashinfer-sm120", playbook=PLAYBOOK)
    assert "error, accepted: profiles/flashinfer_nccl.yml" in passed.stdout


def test_a_gpu_host_without_a_driver_is_refused(fleet):
    gpu_hosts.set_faults(fleet.lab, "h1", "not_loaded")
    refused = fleet.play("-l", "h1", "-e", "profile=baseline", playbook=PLAYBOOK, check=False)
    gpu_hosts.set_faults(fleet.lab, "h1")
    assert refused.returncode == 2
    assert any("driver" in line for line in errors(refused.stdout))


@pytest.mark.parametrize(
    "playbook", ["rollback", "stop", "remove", "prune", "cleanup", "diagnose", "status", "preflight"]
)
def test_a_misspelt_variable_stops_every_playbook(fleet, playbook):
    refused = fleet.play("-e", "relase=abc", playbook=f"playbooks/{playbook}.yml", check=False)
    assert refused.returncode == 2 or playbook == "status"
    assert 'relase: is no variable of a run (did you mean "release"?)' in refused.stdout


def test_flags_are_judged_once_there_is_an_environment_and_before_the_old_server_is_touched(hosts, served, tmp_path):
    fleet = Fleet(hosts, tmp_path)
    fleet.profile("bad", extends="lab_vllm", flags={"max-num-seq": 8, "no-such-flag": True})
    words = ("-l", "h1", "-e", "profile=bad", "-e", NOTHING)
    before = fleet.play(*words, playbook=PLAYBOOK)  # vLLM's environment is not there yet
    assert lines_with(before.stdout, ["note: host:", "its environment is not on the host yet", "[flag-unverified]"])
    refused = fleet.play(*words, check=False)
    assert refused.returncode == 2
    assert "PLAY [Prepare all hosts" in refused.stdout
    assert "PLAY [Roll]" not in refused.stdout
    assert "flags.no-such-flag: vLLM 0.32.0 has no --no-such-flag" in refused.stdout
    assert lines_with(refused.stdout, ["flags.max-num-seq", "only the beginning of --max-num-seqs"])
    assert fleet.main_pid("h1") == served["h1"][0]
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3


def test_a_host_that_is_off_is_named_and_the_others_are_judged(hosts, served, tmp_path):
    fleet = Fleet(hosts, tmp_path)
    fleet.lab.cut("h2")
    result = fleet.play("-e", "profile=triton_nccl", playbook=PLAYBOOK, check=False)
    fleet.lab.join("h2")
    assert result.returncode != 0
    assert "1 host judged" in result.stdout
    assert "not judged, see above: h2" in result.stdout
