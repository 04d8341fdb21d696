"""What the controller sends of its knowledge beside a task's own arguments."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from ansible.module_utils.ironserve import knowledge

ROOT = Path(__file__).resolve().parents[3]


def test_known_causes_travel_in_the_order_of_the_data_and_without_what_only_documents_them():
    files = sorted((ROOT / "knowledge" / "causes").glob("*.yml"))
    told = knowledge.causes(ROOT)
    assert [cause["id"] for cause in told] == [
        cause["id"] for file in files for cause in yaml.safe_load(file.read_text())["causes"]
    ]
    assert not any({"examples", "example_facts", "source"} & set(cause) for cause in told)
    assert len(json.dumps(told)) < 64 << 10  # with each slice of a start, every 15 s


def test_logs_are_known_of_both_engines():
    assert set(knowledge.engine_logs(ROOT)) == {"sglang", "vllm"}
    assert all(set(known) == {"phases", "fatal"} for known in knowledge.engine_logs(ROOT).values())
