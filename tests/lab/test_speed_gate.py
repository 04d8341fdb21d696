"""A roll whose canary is measured: h1 is the canary of h1 and h2; the stand-in engine, the real client."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import baseline

sys.path.insert(0, str(Path(__file__).parent))
from deploys import CLIENTS, Fleet, have_client, standin_hosts

pytestmark = pytest.mark.timeout(900)

LOAD = {"concurrencies": [1], "input_tokens": 16, "output_tokens": 20, "repetitions": 4, "min_requests": 3}
BEHAVIOUR = {
    "tokens_per_s": 50,
    "per_flag": [{"flag": "max-num-seqs", "value": 24, "behave": {"tokens_per_s": 40}}],
}


class Gated(Fleet):
    """The fleet with a speed gate."""

    def roll(self, *words: str, check: bool = True):
        """A run with the gate's settings."""
        return self.play(*words, check=check, ironserve_speed_gate={"single_stream": 0.95}, **self.settings())

    def settings(self) -> dict:
        """What is measured, and where the baseline is."""
        return {"ironserve_benchmark": LOAD, "ironserve_baselines": str(self.folder / "baselines")}

    def records(self, host: str) -> list[dict]:
        """The ledger."""
        return [json.loads(line) for line in self.shell(host, "cat /var/lib/ironserve/main/ledger.jsonl").splitlines()]

    def row(self, host: str) -> dict:
        """What the last deploy's report has of it."""
        return next(row for row in json.loads(self.report("deploy").read_text()) if row["host"] == host)


@pytest.fixture(scope="module")
def fleet(make_lab, tmp_path_factory):
    """Hosts on which nothing was ever deployed."""
    hosts = have_client(standin_hosts(make_lab("-speed"), 2, binds=[CLIENTS]))
    fleet = Gated(hosts, tmp_path_factory.mktemp("speed"))
    for host in ("h1", "h2"):
        fleet.model(host, BEHAVIOUR)
    fleet.profile("slow", flags={"max-num-seqs": 24})
    return fleet


def test_without_a_baseline_the_canary_alone_is_measured_and_the_roll_goes_on(fleet):
    fleet.roll("-e", "profile=lab_vllm")
    row = fleet.row("h1")
    assert (row["verdict"], row["speed"]["verdict"]) == ("ready", "no baseline")
    assert "playbooks/benchmark.yml -l HOST -e baseline=true records one" in row["note"]
    assert {fleet.status(host)["status"] for host in ("h1", "h2")} == {"ready"}
    measured = [[one for one in fleet.records(host) if one.get("event")] for host in ("h1", "h2")]
    assert [len(each) for each in measured] == [1, 0]
    file = baseline.path(str(fleet.folder / "baselines"), "lab", "main")
    baseline.write(file, measured[0][0], "2026-11-30T23:00:00+00:00", "h1")


def test_a_canary_that_is_a_fifth_slower_goes_back_and_nobody_follows_it(fleet):
    before = fleet.status("h1")["release_id"], fleet.main_pid("h2")
    result = fleet.roll("-e", "profile=slow", check=False)
    assert result.returncode == 2
    assert "slower than the baseline, beyond noise: single_stream" in result.stdout
    row = fleet.row("h1")
    assert (row["verdict"], row["put_back"]["verdict"], row["speed"]["verdict"]) == ("slower", "ready", "slower")
    assert 0.75 < row["speed"]["rows"][0]["ratio"] < 0.88
    assert fleet.row("h2")["verdict"] == "not reached"
    assert (fleet.status("h1")["release_id"], fleet.main_pid("h2")) == before
    # No rollback takes it for one that was good here.
    slow = [one for one in fleet.records("h1") if one.get("profile") == "slow" and "verdict" in one]
    assert [one["verdict"] for one in slow] == ["ready", "slower"]
    assert slow[0]["invocation"] == slow[1]["invocation"]
    assert "slower than the baseline" in slow[1]["reason"]
    assert "intervals are of the runs of one start each" in slow[1]["reason"]


def test_a_baseline_that_cannot_be_read_is_refused_before_any_host_is_touched(fleet):
    file = baseline.path(str(fleet.folder / "baselines"), "lab", "main")
    before, good = [fleet.written(host) for host in ("h1", "h2")], file.read_text()
    file.write_text(good[:100])
    result = fleet.roll("-e", "profile=slow", check=False)
    file.write_text(good)
    assert result.returncode != 0
    assert "main.json: is no JSON" in result.stdout
    assert "restore it from git, or record one anew" in result.stdout
    assert [fleet.written(host) for host in ("h1", "h2")] == before
