"""What a service answers about a start that failed."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.ironserve import gate, host, probe
from ansible.module_utils.ironserve.services import Service

RELEASE = {"service": "main", "engine": "vllm", "release_id": "r", "profile": "p", "declared_profile": "p",
           "lock_id": "l", "host_group": "g", "startup_timeout_s": 60, "env": {}}  # fmt: skip
FAILED = {"ActiveState": "failed", "MainPID": "0", "ExecMainCode": "1", "ExecMainStatus": "2", "Result": "exit-code",
          "ExecMainStartTimestampMonotonic": "1000000"}  # fmt: skip
KNOWN = {"id": "bad_flag", "engine": "vllm", "match": [r"unrecognized arguments: (?P<flag>\S+)"], "permanent": True,
         "cause": "{flag} is unknown.", "advice": "Correct {flag}."}  # fmt: skip


@pytest.fixture
def service(tmp_path, monkeypatch):
    for name in ("STATE", "LOGS", "RUNTIME"):
        monkeypatch.setattr(host, name, tmp_path)
    monkeypatch.setattr(host, "show", lambda unit: FAILED)
    monkeypatch.setattr(probe, "read", lambda *_: {})
    monkeypatch.setattr(gate, "kernel_lines", lambda since_s: [])
    staged = tmp_path / "main" / "releases" / "r-1"
    staged.mkdir(parents=True)
    (staged / "release.json").write_text(json.dumps(RELEASE))
    (tmp_path / "main" / "active").symlink_to(staged)
    (tmp_path / "main.log").write_text("vllm: error: unrecognized arguments: --no-such-flag\n")
    return Service("main", check=False)


def test_a_failed_start_is_answered_with_its_known_cause(service):
    answer = service.started("", {"changed": True}, 0, [KNOWN])
    assert answer["failed"]
    assert (answer["cause_id"], answer["permanent"]) == ("bad_flag", True)
    assert answer["cause"] == "the engine exited with status 2"
    assert answer["advice"] == "Correct --no-such-flag."
    assert "Known cause: --no-such-flag is unknown.\nWhat to do: Correct --no-such-flag.\n" in answer["msg"]


def test_a_failed_start_of_no_known_cause_is_answered_without(service):
    answer = service.started("", {"changed": True}, 0)
    assert answer["failed"]
    assert not {"cause_id", "advice", "permanent"} & set(answer)
    assert "Known cause" not in answer["msg"]
