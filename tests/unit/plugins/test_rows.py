"""Rows of the tables, from what hosts registered."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def rows():
    spec = importlib.util.spec_from_file_location("ironserve_rows", ROOT / "plugins" / "filter" / "ironserve_rows.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def status(rows, observed, wanted="p"):
    return rows.status_rows(["h1"], {"h1": {"status_observed": observed, "ironserve_profile": wanted}}, "main")[0]


def test_an_override_is_noted(rows):
    seen = {"status": "ready", "profile": "q", "cause": ""}
    assert status(rows, seen)["note"] == "inventory wants p"
    assert status(rows, seen, wanted="")["note"] == "inventory wants nothing"
    assert status(rows, {**seen, "profile": "p"})["note"] == ""


def test_a_failure_says_its_cause(rows):
    assert status(rows, {"status": "failed", "profile": "q", "cause": "it exited"})["note"] == "it exited"


def test_a_host_that_did_not_answer_has_a_row(rows):
    assert status(rows, {"unreachable": True, "msg": "no route"})["status"] == "unreachable"
    assert status(rows, {"failed": True, "msg": "broken"})["status"] == "unknown"
    assert status(rows, None)["status"] == "unknown"


RESOLVED = {"releases": [{"service": "main", "profile": "q", "declared_profile": "p", "release_id": "r"}]}


def compared(reasons):
    """What the compare of one service registers."""
    return {"results": [{"serve_release": RESOLVED["releases"][0], "reasons": reasons, "previous_id": "old"}]}


DIFFERS, SAME = compared(["flag --n: 1 -> 2"]), compared([])
READY = {"main": {"verdict": "ready", "timings": {"ready": 9.5}}}


@pytest.mark.parametrize(
    ("registered", "check", "verdict"),
    [
        ({"serve_compared": SAME}, False, "unchanged"),
        ({"serve_compared": DIFFERS}, False, "not reached"),
        ({"serve_compared": DIFFERS, "serve_gates": READY}, False, "ready"),
        ({"serve_compared": DIFFERS, "serve_gates": {"main": {"verdict": "waiting"}}}, True, "would change"),
        ({"serve_compared": SAME}, True, "unchanged"),
    ],
)
def test_verdicts_of_a_deploy(rows, registered, check, verdict):
    found = rows.deploy_rows(["h1", "other"], {"h1": {"deploy_resolved": RESOLVED, **registered}, "other": {}}, check)
    assert [(row["host"], row["verdict"], row["note"]) for row in found] == [("h1", verdict, "inventory wants p")]


def test_a_host_of_a_pruning_has_a_row_for_each_thing_and_one_for_all():
    spec = importlib.util.spec_from_file_location("ironserve_prune", ROOT / "plugins" / "filter" / "ironserve_prune.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    gone = {"path": "/e/a", "mib": 2.0, "why": "not needed"}
    seen = {
        "h1": {"prune_done": {"removed": [gone], "kept": [{"path": "/e/b"}], "freed_mib": 2.0}},
        "h2": {"prune_done": {"unreachable": True, "msg": "no route"}},
        "h3": {},
    }
    found = module.prune_rows(list(seen), seen)
    assert [(row["host"], row["mib"], row["path"], row["why"]) for row in found] == [
        ("h1", 2.0, "/e/a", "not needed"),
        ("h1", 2.0, "all", "1 kept"),
        ("h2", None, "", "no route"),
        ("h3", None, "", "not asked"),
    ]
