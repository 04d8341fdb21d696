"""Rows of the tables of playbooks/cleanup.yml."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def rows():
    path = ROOT / "plugins" / "filter" / "ironserve_cleanup.py"
    spec = importlib.util.spec_from_file_location("ironserve_cleanup", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def holder(pid, kind, gpus=("GPU-0",), memory=100):
    return {"pid": pid, "class": kind, "gpus": list(gpus), "age_s": 3700.0, "memory_mib": memory, "user": "bob",
            "command": "x" * 100, "why": "of user bob"}  # fmt: skip


GPUS = [{"uuid": f"GPU-{number}", "index": number} for number in range(8)]


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 3, 7], "0-3,7"), ([5, 4], "4-5"), ([0, 2], "0,2")]
)
def test_numbers_of_gpus_are_short(rows, numbers, text):
    assert rows.ranges(numbers) == text


def test_holders_victims_first_and_this_run_not_at_all(rows):
    seen = {
        "gpus": GPUS,
        "victims": [holder(9, "victim", [f"GPU-{number}" for number in range(8)])],
        "protected": [holder(1, "self"), holder(5, "protected")],
        "reported": [holder(3, "out_of_scope", memory=None)],
    }
    hostvars = {
        "h1": {"cleanup_seen": {**seen, "state": "held"}},
        "h2": {"cleanup_seen": {"state": "clean", "msg": ""}},
        "h3": {"cleanup_seen": {"unreachable": True, "msg": "no route"}},
    }
    found = rows.rows(["h1", "h2", "h3"], hostvars)
    assert [(row["host"], row["class"], row.get("pid")) for row in found] == [
        ("h1", "victim", 9), ("h1", "protected", 5), ("h1", "out_of_scope", 3), ("h2", "clean", None),
        ("h3", "unreachable", None),
    ]  # fmt: skip
    assert (found[0]["gpus"], found[0]["age"], found[0]["mib"], len(found[0]["command"])) == ("0-7", "1h01m", 100, 60)
    assert found[2]["mib"] is None
    assert found[4]["why"] == "no route"
    assert rows.summary(["h1", "h2", "h3"], hostvars) == (
        "1 victim on 1 of 3 hosts; 1 protected and 1 other process stay"
    )


def test_results_say_who_has_something_to_do(rows):
    hostvars = {
        "h1": {"cleanup_seen": {"state": "held"}, "cleanup_done": {"state": "clean", "freed_mib": 8, "elapsed_s": 1.0}},
        "h2": {"cleanup_seen": {"state": "held"}, "cleanup_done": {"skipped": True}},
        "h3": {"cleanup_seen": {"state": "driver_hung", "msg": "reboot"}},
        "h4": {"cleanup_seen": {"unreachable": True, "msg": "no route"}},
        "h5": {},
    }
    assert [row["failed"] for row in rows.results(["h2"], hostvars, check_mode=True)] == [False]
    found = rows.results(list(hostvars), hostvars)
    assert [(row["state"], row["failed"], row["freed_mib"]) for row in found] == [
        ("clean", False, 8), ("held", True, 0), ("driver_hung", True, 0), ("unreachable", True, 0),
        ("unknown", True, 0),
    ]  # fmt: skip
    assert found[2]["note"] == "reboot"
    assert "nobody agreed" in found[1]["note"]


def test_a_service_that_stops_is_in_the_table(rows):
    seen = {"gpus": GPUS, "actions": ["stop ironserve-main.service"], "state": "held"}
    hostvars = {"h1": {"cleanup_seen": seen}}
    (row, _) = rows.rows(["h1"], hostvars)
    assert (row["class"], row["command"], row["why"]) == (
        "victim", "ironserve-main.service", "stopped until the next deploy"
    )  # fmt: skip
    assert rows.summary(["h1"], hostvars).startswith("0 victims on 1 of 1 host, 1 service(s) stop;")


def test_wrong_settings_are_told_with_their_keys(rows):
    settings, run = {"protected_exta": ["x"], "grace_s": -1, "mig": "ja"}, {"yes": "flase", "consent_foreign": "true"}
    found = rows.problems(settings, run, "mian", ["main"])
    told = "; ".join(found)
    for word in (
        "protected_exta",
        "did you mean",
        "protected_extra",
        "grace_s",
        "mig",
        "yes",
        "flase",
        "mian",
        "but main",
    ):
        assert word in told
    assert rows.problems({}, {"yes": True, "consent_foreign": "no"}, "", ["main"]) == []
    assert rows.problems(["x"], {}, "", ["main"])
