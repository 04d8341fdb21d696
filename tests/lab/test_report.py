"""The report of a fleet: what hosts have on record, gathered into one page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import Fleet, standin_hosts


@pytest.fixture(scope="module")
def hosts(make_lab):
    return standin_hosts(make_lab("-report"), 1)


@pytest.mark.timeout(600)
def test_the_page_has_every_launch_also_of_a_host_that_is_gone(hosts, tmp_path):
    fleet = Fleet(hosts, tmp_path)
    fleet.model("h1")
    fleet.play()
    fleet.profile("bad", flags={"no-such-flag-at-all": "1"})
    fleet.play("-e", "profile=bad", check=False)

    before = fleet.written("h1")
    fleet.play(playbook="playbooks/report.yml")
    assert fleet.written("h1") == before
    page = (fleet.folder / "reports" / "report.html").read_text()
    [section] = json.loads(fleet.report("report").read_text())["sections"]
    told = {one["profile"]: one for one in section["hypotheses"]}
    assert (told["lab_vllm"]["verdict"], told["bad"]["verdict"]) == ("ready", "failed")
    assert told["bad"]["differs"] == ["--no-such-flag-at-all 1"]
    assert "the engine exited with status 2: " in told["bad"]["bad"][0]["reason"]
    assert "the engine exited with status 2: " in page
    assert section["hardware"][0]["gpu_family"] == "none"
    assert section["hardware"][0]["cpu"]

    # The host is made anew, and then it is gone: what it said stays.
    copy = fleet.folder / "reports" / "ledger" / "h1" / "main.jsonl"
    kept = copy.read_text()
    fleet.shell("h1", ": > /var/lib/ironserve/main/ledger.jsonl")
    fleet.play(playbook="playbooks/report.yml")
    assert copy.read_text() == kept
    fleet.lab.cut("h1")
    result = fleet.play(playbook="playbooks/report.yml", check=False)
    fleet.lab.join("h1")
    page = (fleet.folder / "reports" / "report.html").read_text()
    assert "<b>h1 gave no answer</b>" in page, result.stdout
    assert "the engine exited with status 2: " in page
    assert copy.read_text() == kept
