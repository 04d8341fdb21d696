"""Measurements of stand-in engines by the real client: h1 and h2 serve, one with vLLM, one with SGLang."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import CLIENTS, ROOT, Fleet, have_client, standin_hosts

API_KEY = "sk-benchmark-0123456789"
UNIT = "ironserve-benchmark_main.service"
SMALL = {"concurrencies": [1], "input_tokens": 16, "output_tokens": 20, "repetitions": 1, "min_requests": 4}
PACE = {"tokens_per_s": 100, "ttft_s": 0.05}


class Measured(Fleet):
    """The fleet, and what its ledgers have."""

    def site(self, **load: Any) -> dict[str, Any]:
        """Variables of a run."""
        return {
            "ironserve_benchmark": {**SMALL, **load},
            "ironserve_baselines": str(self.folder / "baselines"),
            "ironserve_api_key": API_KEY,
        }

    def measure(self, *words: str, check: bool = True, **load: Any) -> subprocess.CompletedProcess[str]:
        """playbooks/benchmark.yml with a small load."""
        return self.play(*words, playbook="playbooks/benchmark.yml", check=check, **self.site(**load))

    def records(self, host: str) -> list[dict[str, Any]]:
        """The measurements in the ledger of a host."""
        lines = self.shell(host, "cat /var/lib/ironserve/main/ledger.jsonl").splitlines()
        return [each for each in map(json.loads, lines) if each.get("event") == "measurement"]

    def begun(self, *words: str, **load: Any) -> subprocess.Popen[str]:
        """A run whose measurement has begun: its first run is under way."""
        argv = self.command(*words, playbook="playbooks/benchmark.yml", **self.site(**load))
        run = subprocess.Popen(argv, cwd=ROOT, env=self.environment(), stdout=subprocess.PIPE, text=True)
        steps, until = "/run/ironserve-benchmark_main/steps.jsonl", time.monotonic() + 60
        while self.shell("h1", f"grep -c begin {steps} 2>/dev/null || true") in ("", "0"):
            assert time.monotonic() < until, "the measurement does not begin"
            time.sleep(0.2)
        return run


@pytest.fixture(scope="module")
def measured(make_lab, tmp_path_factory):
    """h1 serves with vLLM, h2 with SGLang, both with a key; both have the client."""
    hosts = have_client(standin_hosts(make_lab("-benchmark"), 2, binds=[CLIENTS]))
    fleet = Measured(hosts, tmp_path_factory.mktemp("benchmark"))
    for host in ("h1", "h2"):
        fleet.model(host, PACE)
    fleet.play("-l", "h1", "-e", "profile=lab_vllm", ironserve_api_key=API_KEY)
    fleet.play("-l", "h2", "-e", "profile=triton_nccl", ironserve_api_key=API_KEY)
    return fleet


@pytest.mark.timeout(900)  # with a cold cache the client's environment is built first
def test_both_engines_are_measured_by_one_command_and_the_numbers_are_those_of_their_pace(measured):
    checked = measured.measure("--check", concurrencies=[1, 4])
    assert "would measure main with vllm bench serve, 1, 4 at a time" in checked.stdout
    assert measured.records("h1") == []

    output = measured.measure("-vvv", concurrencies=[1, 4]).stdout
    for host in ("h1", "h2"):
        (record,) = measured.records(host)
        runs = {level: found[0] for level, found in record["levels"].items()}
        # 20 tokens take 50 ms for the first and 10 ms for each other: 83 tokens a second, at the most.
        assert 60 < runs["1"]["output_tok_s"] < 84
        assert 200 < runs["4"]["output_tok_s"] < 336
        assert 50 <= runs["1"]["ttft_ms"]["p50"] < 100
        assert 9.9 <= runs["1"]["itl_ms"]["p50"] < 20
        assert [len(texts) for texts in record["continuations"]] == [8, 8]
        assert (record["disturbed"], record["gpus"]) == ("", [])
        assert record["hardware"]["gpu_family"] == "none"
        assert record["client"]["lock_id"].startswith("vllm-bench-0.32.0-py311-")
    rows = json.loads(measured.report("benchmark").read_text())
    assert [(row["host"], row["level"]) for row in rows] == [("h1", 1), ("h1", 4), ("h2", 1), ("h2", 4)]
    assert "no baseline is recorded" in rows[1]["note"]

    assert API_KEY not in output
    for host in ("h1", "h2"):
        assert measured.shell(host, f"journalctl | grep -c {API_KEY} || true") == "0"
        assert measured.shell(host, "ls -d /run/ironserve-benchmark_* 2>/dev/null || true") == ""


@pytest.mark.timeout(600)
def test_a_baseline_is_recorded_and_compared_with(measured):
    measured.measure("-l", "h1", "-e", "baseline=true")
    file = measured.folder / "baselines" / "lab" / "main.json"
    assert json.loads(file.read_text())["host"] == "h1"
    output = measured.measure("-l", "h1").stdout
    rows = json.loads(measured.report("benchmark-compared").read_text())
    assert {row["metric"] for row in rows} == {"output_tok_s", "ttft_ms", "itl_ms"}
    assert {row["verdict"] for row in rows} == {"undecided"}  # of one run each
    assert 0.8 < rows[0]["ratio"] < 1.25
    assert "against the baseline of 2" in output

    several = measured.measure("-e", "baseline=true", check=False)
    assert several.returncode != 0
    assert "several hosts of group lab cannot be its baseline" in several.stdout


@pytest.mark.timeout(600)
def test_a_second_command_attaches_to_what_a_lost_controller_began(measured):
    measured.shell("h1", "mount -o remount,noexec /run")  # as hardened hosts have it
    before = len(measured.records("h1"))
    lost = measured.begun("-l", "h1", seed=2)
    assert API_KEY not in measured.shell("h1", f"ps -eo args; systemctl show {UNIT}")
    lost.kill()
    lost.wait()
    began = measured.shell("h1", f"systemctl show -P InvocationID {UNIT}")
    measured.measure("-l", "h1", seed=2)
    assert len(measured.records("h1")) == before + 1
    started = f"journalctl -o cat -u {UNIT} INVOCATION_ID={began} + UNIT={UNIT} | grep -c ^Started || true"
    assert int(measured.shell("h1", started)) == before + 1


@pytest.mark.timeout(600)
def test_a_host_that_cannot_be_reached_keeps_no_other_from_being_measured(measured):
    before = len(measured.records("h2"))
    measured.lab.cut("h1")
    result = measured.measure("-e", "serve_reconnect_timeout_s=5", check=False)
    measured.lab.join("h1")
    assert result.returncode != 0
    assert len(measured.records("h2")) == before + 1
    notes = {row["host"]: row["note"] for row in json.loads(measured.report("benchmark").read_text())}
    assert "connection lost" in notes["h1"], result.stdout


@pytest.mark.timeout(600)
def test_requests_of_others_and_a_restart_make_a_measurement_worthless(measured):
    run = measured.begun("-l", "h1")
    request = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 1})
    asked = f"curl -sf -H 'Authorization: Bearer {API_KEY}' -H 'Content-Type: application/json' -d '{request}'"
    measured.shell("h1", f"for n in $(seq 40); do {asked} http://127.0.0.1:8000/v1/completions >/dev/null; done")
    output = run.communicate()[0]
    assert run.returncode == 0, output
    record = measured.records("h1")[-1]
    assert record["disturbed"].startswith("the engine answered ")
    assert "disturbed: the engine answered" in output

    count = len(measured.records("h1"))
    run = measured.begun("-l", "h1")
    measured.shell("h1", "systemctl restart ironserve-main.service")
    output = run.communicate()[0]
    assert run.returncode != 0
    assert "service main was stopped or restarted while it was measured" in output
    assert len(measured.records("h1")) == count
    assert measured.shell("h1", f"systemctl is-active {UNIT} || true") == "inactive"
