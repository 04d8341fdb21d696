"""What took effect, read back from the ranks and from the server after a deploy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import Fleet, lines_with, standin_hosts

KEY = "sk-of-a-test"


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1, which sees the stand-in's wheelhouse."""
    return standin_hosts(make_lab("-effects"), 1)


@pytest.fixture
def fleet(hosts, tmp_path):
    fleet = Fleet(hosts, tmp_path)
    fleet.forget("h1")
    env = {"NCCL_CUMEM_ENABLE": "1", "NCCL_PROTO": "LL"}
    fleet.profile("eight_sglang", extends="lab_sglang", env=env, flags={"tp-size": 8})
    fleet.profile("eight_vllm", env=env, flags={"tensor-parallel-size": 8})
    return fleet


def took_effect(fleet: Fleet) -> dict:
    """As the report of the deploy has it; the ledger has the same."""
    [row] = json.loads(fleet.report("deploy").read_text())
    assert row["verdict"] == "ready"
    ledger = fleet.shell("h1", "tail -n 1 /var/lib/ironserve/main/ledger.jsonl")
    assert json.loads(ledger)["took_effect"] == row["took_effect"]
    return row["took_effect"]


@pytest.mark.parametrize(("profile", "source"), [("eight_sglang", "server_info"), ("eight_vllm", "log")])
def test_settings_that_took_effect_are_no_news(fleet, profile, source):
    fleet.model("h1")
    result = fleet.play("-e", f"profile={profile}", ironserve_api_key=KEY)
    effect = took_effect(fleet)
    assert effect == {"ranks": 8, "env": {}, "added": {}, "unreadable": [], "argv": {}, "argv_source": source,
                      "notes": []}  # fmt: skip
    assert "WARNING" not in result.stdout + result.stderr


def test_what_the_engine_overwrote_and_what_it_runs_otherwise_is_told_and_the_server_serves(fleet):
    fleet.model("h1", {"rank_env": {"NCCL_CUMEM_ENABLE": "0"}, "says": {"max_running_requests": 4}})
    result = fleet.play("-e", "profile=eight_sglang", ironserve_api_key=KEY)
    effect, ranks = took_effect(fleet), [f"TP{rank}" for rank in range(8)]
    assert effect["env"] == {"NCCL_CUMEM_ENABLE": {"release": "1", "runs": "0", "ranks": ranks}}
    assert effect["argv"] == {"max-running-requests": {"release": "8", "runs": 4, "engine_chose": False}}
    told = "variable NCCL_CUMEM_ENABLE: the release says 1, and 8 of 8 ranks run with 0"
    assert effect["notes"] == [told, "flag --max-running-requests: the release says 8, and the server runs with 4"]
    assert lines_with(result.stdout, ["h1", "eight_sglang", "ready"])
    assert fleet.rows("deploy")["h1"]["note"].endswith(f"{told} (and 1 more)")
    said = " ".join((result.stdout + result.stderr).split())
    assert all(f"main: {note}" in said for note in effect["notes"])
    assert KEY not in result.stdout + result.stderr + fleet.report("deploy").read_text()

    inventory = {"ironserve_profile": "eight_sglang", "ironserve_api_key": KEY}
    fleet.play("-e", "drift=true", playbook="playbooks/status.yml", **inventory)
    [row] = json.loads(fleet.report("status").read_text())
    assert [(one["kind"], one["key"], one["declared"], one["runs"]) for one in row["drift"]] == [
        ("env", "NCCL_CUMEM_ENABLE", "1", "0 (8 of 8 ranks)")
    ]
