"""What the module answers; what it collects is tested in test_evidence.py."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.ironserve import evidence, host

PHASES = [{"name": "loading weights", "match": "load", "progress": r"load (\d+)/(\d+)"}]
FOUND = {"unit": {"MainPID": "0", "ActiveState": "inactive", "Result": "success"}, "release": "r-1"}


@pytest.fixture(autouse=True)
def unit(tmp_path, monkeypatch):
    """A host with a unit; its properties."""
    shown = {"LoadState": "loaded"}
    monkeypatch.setattr(host, "STATE", tmp_path)
    monkeypatch.setattr(host, "RUNTIME", tmp_path)
    monkeypatch.setattr(host, "show", lambda _: shown)
    monkeypatch.setattr(evidence, "collect", lambda *_: {**FOUND, "at": "2026-11-30T04:00:00+00:00"})
    return shown


def test_a_file_and_ten_lines(run_module, tmp_path):
    answer = run_module("service_evidence", service="main")
    assert answer["evidence_file"] == f"{tmp_path}/main/evidence/20261130T040000Z-r-1.json.gz"
    assert answer["evidence_summary"] == ["no main process, unit is inactive (success)"]
    assert answer["changed"]


def test_the_phase_of_a_start_is_what_the_log_says_without_secrets(run_module, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(host, "LOGS", tmp_path)
    monkeypatch.setattr(evidence, "known_secrets", lambda service: ["sk-SECRET"])
    monkeypatch.setattr(
        evidence, "collect", lambda *words: told.append(words) or {"at": "2026-11-30T04:00:00+00:00", **FOUND}
    )
    staged = tmp_path / "main" / "releases" / "r-1"
    staged.mkdir(parents=True)
    (staged / "release.json").write_text(json.dumps({"service": "main", "engine": "vllm", "log": {"phases": PHASES}}))
    (tmp_path / "main" / "active").symlink_to(staged)
    (tmp_path / "main.log").write_text("load 2/9\nValueError: sk-SECRET\n")
    run_module("service_evidence", service="main")
    reading = told[0][3]
    assert (reading.phase, reading.progress, reading.error) == ("loading weights", "2/9", "ValueError: ********")


def test_in_check_mode_no_file(run_module, tmp_path):
    answer = run_module("service_evidence", check=True, service="main")
    assert (answer["evidence_file"], answer["changed"]) == ("", False)
    assert answer["evidence_summary"] == ["no main process, unit is inactive (success)"]
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_is_not_there(run_module, unit, tmp_path):
    unit["LoadState"] = "not-found"
    answer = run_module("service_evidence", service="chat")
    assert answer["evidence_summary"] == ["there is no service chat on this host"]
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_none(run_module):
    assert "is no name for a service" in run_module("service_evidence", service="../x")["msg"]
