"""What the action plugin sends to hosts beside the task's own arguments."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def plugin():
    spec = importlib.util.spec_from_file_location(
        "action_service", ROOT / "plugins" / "action" / "inference_service.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_known_causes_travel_in_the_order_of_the_data_and_without_what_only_documents_them(plugin):
    files = sorted((ROOT / "knowledge" / "causes").glob("*.yml"))
    told = plugin.read_causes()
    assert [cause["id"] for cause in told] == [
        cause["id"] for file in files for cause in yaml.safe_load(file.read_text())["causes"]
    ]
    assert not any({"examples", "example_facts", "source"} & set(cause) for cause in told)
    assert len(json.dumps(told)) < 64 << 10  # with each slice of a start, every 15 s


def test_phases_are_those_of_both_engines(plugin):
    assert set(plugin.read_phases()) == {"sglang", "vllm"}
