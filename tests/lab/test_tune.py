"""A tune on a test host: the stand-in engine behaves by profile, the client that measures is the real one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from deploys import CLIENTS, ROOT, Fleet, have_client, standin_hosts

pytestmark = pytest.mark.timeout(1200)

LOAD = {"concurrencies": [1], "input_tokens": 16, "output_tokens": 20, "repetitions": 1, "min_requests": 3}
CRASH = {"exit_in": "kv_cache", "exit_status": 1, "exit_message": "torch.OutOfMemoryError: CUDA out of memory."}
BEHAVES = {
    "plain": {"tokens_per_s": 60}, "hangs": {"hang_in": "weights"}, "crashes": CRASH,
    "babbles": {"tokens_per_s": 300, "completion": {"text": " la"}}, "fastest": {"tokens_per_s": 120},
    "slowest": {"tokens_per_s": 30},
}  # fmt: skip
VERDICTS = {"hangs": "stalled", "crashes": "failed", "babbles": "nonsense"}


class Tuned(Fleet):
    """The fleet with a profile for each way to behave."""

    def tune(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The tune of this file."""
        return self.play(*self.words(*words), playbook="playbooks/tune.yml", check=check, **self.site())

    def words(self, *words: str) -> list[str]:
        """What is said of it."""
        return ["-l", "h1", "-e", f"profiles={','.join(BEHAVES)}", "-e", "rounds=1", *words]

    def site(self) -> dict:
        """What is measured."""
        return {"ironserve_benchmark": LOAD, "ironserve_baselines": str(self.folder / "baselines")}


@pytest.fixture(scope="module")
def fleet(make_lab, tmp_path_factory):
    """h1 serves the profile ``plain``."""
    hosts = have_client(standin_hosts(make_lab("-tune"), 1, binds=[CLIENTS]))
    fleet = Tuned(hosts, tmp_path_factory.mktemp("tune"))
    fleet.limit_s = 900
    numbers = {name: 20 + number for number, name in enumerate(BEHAVES)}
    for name, number in numbers.items():
        fleet.profile(name, flags={"max-num-seqs": number}, stall_timeout_s=5)
    by_flag = [{"flag": "max-num-seqs", "value": numbers[name], "behave": does} for name, does in BEHAVES.items()]
    fleet.model("h1", {"per_flag": by_flag})
    fleet.play("-l", "h1", "-e", "profile=plain")
    return fleet


def test_a_tune_whose_controller_is_killed_goes_on_and_ends_on_the_fastest(fleet):
    argv = fleet.command(*fleet.words(), playbook="playbooks/tune.yml", **fleet.site())
    lost = subprocess.Popen(argv, cwd=ROOT, env=fleet.environment(), stdout=subprocess.PIPE, text=True)
    state, until = fleet.folder / "reports" / "tune", time.monotonic() + 300
    while not any('"measurement"' in file.read_text() for file in state.glob("*/state.json")):
        assert lost.poll() is None, lost.stdout.read()
        assert time.monotonic() < until, "no trial was measured"
        time.sleep(0.5)
    lost.kill()
    lost.wait()

    output = fleet.tune().stdout
    rows = {row["candidate"]: row for row in json.loads(fleet.report("tune").read_text())}
    assert {name: rows[name]["verdict"] for name in VERDICTS} == VERDICTS, output
    assert [rows[name]["trials"] for name in BEHAVES] == [1] * len(BEHAVES)
    assert "fastest is the fastest by single_stream: 1" in output
    assert fleet.status("h1")["profile"] == "fastest"

    records = [json.loads(line) for line in fleet.shell("h1", "cat /var/lib/ironserve/main/ledger.jsonl").splitlines()]
    tuned = [one["profile"] for one in records if one.get("event") == "measurement" and one["tune"]["round"] == 1]
    assert sorted(tuned) == ["babbles", "fastest", "plain", "slowest"]
    assert [one["profile"] for one in records if "verdict" in one and not one.get("tune")] == ["plain", "fastest"]


def test_the_winners_profile_has_its_numbers(fleet):
    text = (fleet.folder / "profiles" / "tuned_lab.yml").read_text()
    assert yaml.safe_load(text)["extends"] == "fastest"
    assert "tok/s" in text


def test_a_rollback_takes_none_of_the_losers(fleet):
    fleet.play("-l", "h1", playbook="playbooks/rollback.yml")
    assert fleet.status("h1")["profile"] == "plain"


def test_a_host_that_is_lost_says_nothing_of_a_candidate_and_without_a_winner_what_was_good_comes_back(fleet):
    words = ["-l", "h1", "-e", "profiles=hangs,crashes", "-e", "rounds=1"]
    argv = fleet.command(*words, playbook="playbooks/tune.yml", serve_reconnect_timeout_s=5, **fleet.site())
    run = subprocess.Popen(argv, cwd=ROOT, env=fleet.environment(), stdout=subprocess.PIPE, text=True)
    folder, until = fleet.folder / "reports" / "tune", time.monotonic() + 120
    known = set(folder.glob("*/state.json"))
    while not any('"open": {' in file.read_text() for file in set(folder.glob("*/state.json")) - known):
        assert run.poll() is None, run.stdout.read()
        assert time.monotonic() < until, "no trial was begun"
        time.sleep(0.1)
    fleet.lab.cut("h1")
    output = run.communicate()[0]
    fleet.lab.join("h1")
    assert run.returncode != 0
    assert "h1: connection lost while" in output
    assert "the same command again goes on from whatever it finds there" in output
    (state,) = set(folder.glob("*/state.json")) - known
    kept = json.loads(state.read_text())
    assert (kept["trials"], kept["open"]["candidate"], kept["finished"]) == ([], "hangs", False)

    result = fleet.play(*words, playbook="playbooks/tune.yml", check=False, **fleet.site())
    assert result.returncode != 0
    assert "no candidate could be measured" in result.stdout
    rows = {row["candidate"]: row["verdict"] for row in json.loads(fleet.report("tune").read_text())}
    assert rows == {"hangs": "stalled", "crashes": "failed"}, result.stdout
    status = fleet.status("h1")
    assert (status["profile"], status["status"]) == ("plain", "ready")


def test_a_tune_that_runs_out_of_time_tells_what_it_did_not_try(fleet):
    result = fleet.play(
        "-l", "h1", "-e", "profiles=plain,slowest", "-e", "budget_min=0.3", playbook="playbooks/tune.yml",
        **fleet.site(),
    )  # fmt: skip
    rows = {row["candidate"]: row for row in json.loads(fleet.report("tune").read_text())}
    assert [rows[name]["trials"] for name in ("plain", "slowest")] == [1, 0], result.stdout
    assert rows["slowest"]["verdict"] == "not tried"
    status = fleet.status("h1")
    assert (status["profile"], status["status"]) == ("plain", "ready")


def test_a_winners_profile_can_be_deployed(fleet):
    fleet.play("-l", "h1", "-e", "profile=tuned_lab", "--check")
    assert fleet.status("h1")["profile"] == "plain"
    fleet.play("-l", "h1", "-e", "profile=tuned_lab")
    status = fleet.status("h1")
    assert (status["profile"], status["status"]) == ("tuned_lab", "ready")
