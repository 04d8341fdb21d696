"""Records of hosts become sections of a report."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import gathered, hypotheses

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plays"))
import report_story


@pytest.fixture(scope="module")
def sections():
    return {section["group"]: section for section in hypotheses.sections(report_story.ledgers())}


def by_title(rows):
    return {row["title"]: row for row in rows}


def test_a_hypothesis_that_only_ever_hung_is_told_with_phase_and_cause(sections):
    row = by_title(sections["blackwell"]["hypotheses"])["flashinfer_nccl"]
    assert (row["verdict"], row["counts"], row["ready_s"]) == ("timeout", {"stalled": 1, "timeout": 1}, None)
    assert [bad["phase"] for bad in row["bad"]] == ["capturing CUDA graphs"] * 2
    assert "--attention-backend flashinfer" in row["differs"]
    assert "NCCL_PROTO LL" in row["differs"]
    assert "--tp-size 8" not in row["differs"]  # as in the baseline


def test_a_release_is_compared_with_the_profile_baseline_and_what_was_disturbed_is_left_out(sections):
    section = sections["blackwell"]
    assert [one["title"] for one in section["comparisons"]] == ["triton_nccl", "vllm_nccl"]
    rows = {(row["metric"], row["level"]): row for row in by_title(section["comparisons"])["vllm_nccl"]["rows"]}
    single, most = rows["output_tok_s", "1"], rows["output_tok_s", "128"]
    assert (single["verdict"], most["verdict"]) == ("faster", "slower")
    assert single["words"].startswith("faster by ")
    assert (single["runs_old"], single["runs_new"]) == (10, 5)  # two measurements, without the one of gpu-a04
    assert by_title(section["speed"])["baseline"]["levels"]["1"]["n"] == 10
    assert any("37 requests of others" in note for note in section["notes"])


def test_three_runs_a_side_decide_nothing(sections):
    [one] = sections["lab"]["comparisons"]
    assert {row["words"].partition(":")[0] for row in one["rows"]} == {"undecided"}


def test_a_recorded_baseline_that_cannot_be_compared_says_why():
    recorded = report_story.measurement("baseline", "2026-11-01T00:00:00Z", (60.0, 400.0), client={
        "name": "vllm bench serve", "version": "0.31.0", "lock_id": "c0"})  # fmt: skip
    found = hypotheses.sections(report_story.ledgers(), {"blackwell/main": recorded})
    section = next(section for section in found if section["group"] == "blackwell")
    assert section["baseline"] == "the recorded baseline (baseline, 2026-11-01)"
    assert all(not one["rows"] for one in section["comparisons"])
    assert any("the client differs" in why for why in section["comparisons"][0]["why_not"])


def test_the_time_without_service_is_split():
    assert hypotheses.parts(report_story.launch("baseline", "2026-11-26T08:12:03Z")) == {
        "drain": 42.0,
        "stop and clean": 19.5,
        "NCCL proof": 12.2,
        "begin": 33.0,  # before its log began, too
        "load": 369.0,
        "memory and compiling": 29.0,
        "capture": 117.0,
        "proof": 23.0,
    }


def test_a_launch_that_hung_has_its_last_phase_until_the_verdict():
    hung = report_story.launch("flashinfer_nccl", "2026-11-26T11:02:00Z", "stalled", elapsed_s=1331.0)
    assert hypotheses.phases(hung)["capturing CUDA graphs"] == 900.0


def test_records_of_older_versions_are_told_as_far_as_they_go():
    old = {"release_id": "ab", "staged_id": "ab-1", "profile": "old", "engine": "vllm", "host_group": "lab",
           "verdict": "ready", "reason": "", "at": "2025-01-01T00:00:00Z", "timings": {"ready": 10.0}}  # fmt: skip
    [section] = hypotheses.sections({"h1": {"main": [old]}})
    assert (section["hardware"], section["comparisons"], section["speed"]) == ([], [], [])
    assert section["hypotheses"][0]["differs"] == []


def test_a_launch_that_was_ready_and_refused_for_its_speed_is_one():
    ready = report_story.launch("baseline", "2026-11-26T08:12:03Z", invocation="i1")
    told = {"at": "2026-11-26T08:42:00Z", "verdict": "slower", "reason": "beyond noise", "timings": {}}
    again = report_story.launch("baseline", "2026-11-26T09:12:03Z", invocation="i2")
    [section] = hypotheses.sections({"h1": {"main": [ready, {**ready, **told}, again]}})
    [row] = section["hypotheses"]
    assert (row["launches"], row["counts"]) == (2, {"ready": 1, "slower": 1})
    assert [bad["reason"] for bad in row["bad"]] == ["beyond noise"]
    assert row["ready_s"]["n"] == 2


def test_two_releases_of_one_profile_are_told_apart():
    records = [{"release_id": name, "profile": "p"} for name in ("aaaaaaaa", "bbbbbbbb")]
    found = hypotheses.titles({record["release_id"]: record for record in records})
    assert list(found.values()) == ["p aaaaaa", "p bbbbbb"]


def test_copies_are_only_appended_to_also_when_a_host_was_made_anew(tmp_path):
    first, second, third = ({"at": str(place)} for place in range(3))
    gathered.keep(tmp_path / "h1", {"main": [first, second]})
    gathered.keep(tmp_path / "h1", {"main": [first, second]})
    assert gathered.read(tmp_path / "h1") == {"main": [first, second]}
    gathered.keep(tmp_path / "h1", {"main": [third], "chat": [first]})
    assert gathered.read(tmp_path / "h1") == {"main": [first, second, third], "chat": [first]}
    assert gathered.read(tmp_path / "h1", "chat") == {"chat": [first]}
    assert gathered.read(tmp_path / "h2") == {}
    assert gathered.age(tmp_path / "h2") == "there is none"
