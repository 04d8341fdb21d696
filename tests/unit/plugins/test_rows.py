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


LOOK = {"service": "main", "status": "ready", "profile": "p", "release_id": "r", "port": 8000, "address": "0.0.0.0",
        "gpus": [], "secrets": [], "cause": "", "health": 200, "unit": "ironserve-main.service",
        "main_pid": 5}  # fmt: skip
RELEASE = {"service": "main", "profile": "p", "release_id": "r", "port": 8000, "address": "0.0.0.0", "gpus": [],
           "secrets": []}  # fmt: skip
WISHED = {"services": {"main": "p"}, "releases": [RELEASE]}


def status(rows, look=LOOK, wished=WISHED, service="", **seen):
    seen = seen or {"services": [look], "unknown": []}
    return rows.status_rows(["h1"], {"h1": {"status_wished": wished, "status_seen": seen}}, service)


@pytest.mark.parametrize(
    ("look", "wished", "notes"),
    [
        ({}, {}, []),
        ({"profile": "q"}, {}, ["inventory wants p"]),
        ({"profile": "q"}, {"services": {"main": ""}, "releases": [], "problems": ["h1: x: is not set"]},
         ["inventory wants nothing"]),
        ({"release_id": "old"}, {}, ["same profile, but inventory resolves to release r now: deploy would change it"]),
        ({"port": 9000, "gpus": ["GPU-1"]}, {},
         ["inventory says port 8000 now; inventory says gpus none now: deploy would change it"]),
        ({"status": "failed", "profile": "q", "cause": "it exited"}, {}, ["it exited", "inventory wants p"]),
        ({"status": "stopped", "release_id": "old"}, {},
         ["stopped by an operator", "same profile, but inventory resolves to release r now: deploy would change it"]),
        ({"secrets": ["HF_TOKEN"]}, {}, ["inventory says secrets none now: deploy would change it"]),
        ({"status": "unhealthy", "cause": "requests wait and no token comes for 40 s"}, {},
         ["requests wait and no token comes for 40 s"]),
        ({"status": "starting", "cause": "the engine was killed by SIGKILL; systemd starts it again"}, {},
         ["the engine was killed by SIGKILL; systemd starts it again"]),
        ({"status": "absent", "profile": "", "release_id": ""}, {}, ["not deployed yet"]),
        ({"status": "unhealthy", "health": 0}, {}, ["its health endpoint says nothing"]),
        ({}, {"releases": [], "problems": ["profiles/p.yml: flags: x", "more"]},
         ["the inventory does not resolve: profiles/p.yml: flags: x"]),
    ],
    ids=["settled", "override", "override-of-nothing", "other-release", "other-port", "failed", "stopped",
         "other-secrets", "hangs", "crashed", "absent", "unhealthy", "unresolved"],
)  # fmt: skip
def test_a_service_against_the_inventory_the_most_urgent_first(rows, look, wished, notes):
    [row] = status(rows, {**LOOK, **look}, {**WISHED, **wished})
    assert row["notes"] == notes
    assert row["note"] == (notes[0] if notes else "")
    assert row["settled"] == (not notes)


def test_a_host_that_did_not_answer_has_its_rows(rows):
    wished = {"services": {"a": "p", "b": "p"}, "releases": []}
    found = status(rows, wished=wished, unreachable=True, msg="no route")
    assert [(row["service"], row["status"], row["note"]) for row in found] == [
        ("a", "unreachable", "no route"), ("b", "unreachable", "no route")]  # fmt: skip
    assert status(rows, msg="broken")[0]["status"] == "unknown"
    [row] = rows.status_rows(["h1"], {"h1": {}}, "")
    assert (row["service"], row["status"], row["settled"]) == ("main", "unknown", False)


def test_a_service_that_no_inventory_names_is_told_with_the_command_that_removes_it(rows):
    old = {**LOOK, "service": "old"}
    found = status(rows, services=[LOOK], unknown=[old])
    assert found[1]["note"] == "no inventory names this service: playbooks/remove.yml -e service=old -l h1"
    assert (found[0]["settled"], found[1]["settled"], found[1]["named"]) == (True, False, False)
    assert rows.status_summary(found, "") == (
        "2 services on 1 host: 1 ready as the inventory wants, 1 that no inventory names"
    )
    assert [row["service"] for row in status(rows, service="old", services=[LOOK], unknown=[old])] == ["old"]


def test_the_summary_of_a_fleet(rows):
    looks = [{**LOOK, "service": name, **more} for name, more in (("a", {}), ("b", {"status": "failed"}), ("c", {}))]
    wished = {"services": dict.fromkeys("abc", "p"), "releases": [{**RELEASE, "service": "c", "release_id": "new"}]}
    assert rows.status_summary(status(rows, wished=wished, services=looks), "") == (
        "3 services on 1 host: 1 ready as the inventory wants, 1 ready, but not as the inventory wants, 1 failed"
    )
    assert rows.status_summary([], "x") == 'no host has a service "x"'


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
        ({"serve_compared": DIFFERS, "serve_gates": READY, "serve_failures": {"main": "no space"}}, False, "failed"),
        ({"serve_compared": DIFFERS, "serve_failures": {"main": "no space"}}, False, "failed"),
        ({"serve_compared": DIFFERS, "serve_gates": {"main": {"verdict": "waiting"}}}, True, "would change"),
        ({"serve_compared": SAME}, True, "unchanged"),
    ],
)
def test_verdicts_of_a_deploy(rows, registered, check, verdict):
    found = rows.deploy_rows(["h1", "other"], {"h1": {"deploy_resolved": RESOLVED, **registered}, "other": {}}, check)
    note = registered.get("serve_failures", {}).get("main", "inventory wants p")
    assert [(row["host"], row["verdict"], row["note"]) for row in found] == [("h1", verdict, note)]


@pytest.mark.parametrize(
    ("back", "note"),
    [
        ({"verdict": "ready", "profile": "p", "release_id": "g"}, "put back: p (g), ready; no flag"),
        ({"verdict": "kept", "profile": "p", "release_id": "g"}, "put back: p (g), never stopped; no flag"),
        ({"verdict": "timeout", "profile": "p", "release_id": "g"}, "put back FAILED: p (g), timeout; no flag"),
        ({"verdict": "error", "profile": "", "release_id": ""}, "put back FAILED; no flag"),
        ({"verdict": "none", "profile": "", "release_id": ""}, "no flag"),
    ],
    ids=["ready", "kept", "failed", "broken", "none"],
)
@pytest.mark.parametrize("verdict", ["failed", "stalled", "timeout"])
def test_what_was_put_back_is_told_beside_the_verdict_of_what_was_wished(rows, verdict, back, note):
    registered = {
        "serve_gates": {"main": {"verdict": verdict}, "main put back": {"verdict": "ready"}},
        "serve_failures": {"main": "no flag"},
        "serve_reverts": {"main": back},
    }
    seen = {"h1": {"deploy_resolved": RESOLVED, "serve_compared": DIFFERS, **registered}}
    [row] = rows.deploy_rows(["h1"], seen, False)
    assert (row["verdict"], row["note"], row["put_back"]) == (verdict, note, back)


def test_a_rollback_has_a_row_for_each_service_that_was_chosen_for(rows):
    chosen = {"serve_service": "main", "release": RELEASE, "reasons": ["flag --n: 2 -> 1"], "previous_id": "old"}
    seen = {"h1": {"serve_chosen": {"results": [chosen]}, "serve_gates": READY}, "h2": {}}
    [row] = rows.rollback_rows(["h1", "h2"], seen, False)
    assert (row["profile"], row["verdict"], row["ready_s"], row["why"]) == ("p", "ready", 9.5, "flag --n: 2 -> 1")
    assert rows.rollback_rows(["h1"], seen, True)[0]["verdict"] == "would change"


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
