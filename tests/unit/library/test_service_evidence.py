"""What the module answers; what it collects is tested in test_evidence.py."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve import evidence, host

FOUND = {"unit": {"MainPID": "0", "ActiveState": "inactive", "Result": "success"}, "release": "r-1"}


@pytest.fixture(autouse=True)
def unit(tmp_path, monkeypatch):
    """A host with a unit; its properties."""
    shown = {"LoadState": "loaded"}
    monkeypatch.setattr(host, "STATE", tmp_path)
    monkeypatch.setattr(host, "show", lambda _: shown)
    monkeypatch.setattr(evidence, "collect", lambda *_: {**FOUND, "at": "2026-11-30T04:00:00+00:00"})
    return shown


def test_a_file_and_ten_lines(run_module, tmp_path):
    answer = run_module("service_evidence", service="main")
    assert answer["evidence_file"] == f"{tmp_path}/main/evidence/20261130T040000Z-r-1.json.gz"
    assert answer["evidence_summary"] == ["no main process, unit is inactive (success)"]
    assert answer["changed"]


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
