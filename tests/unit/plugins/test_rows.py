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
    remove = "ansible-playbook playbooks/remove.yml -e service=old -l h1"
    assert found[1]["note"] == f"no inventory names this service: {remove}"
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


HARDWARE = {"ironserve_host_group": "blackwell", "ironserve_hardware": {"driver": ">=580"}}


def drifting(*differences, errors=(), **system):
    """What a host registers that was asked for drift."""
    rows = [dict(zip(("kind", "key", "declared", "runs"), difference)) for difference in differences]
    services = [{"service": "main", "drift": rows, "errors": list(errors)}]
    return {"services": services, "driver": "595.58.03", "kernel": "6.17.0", **system}


def fleet_status(rows, answers):
    """The rows of hosts that serve as the inventory wants and answered so."""
    seen = {"status_wished": WISHED, "status_seen": {"services": [LOOK], "unknown": []}, **HARDWARE}
    hostvars = {host: {**seen, "serve_drift": answer} for host, answer in answers.items()}
    return rows.status_rows(list(answers), hostvars, "", with_drift=True)


def test_drift_of_a_fleet_with_what_is_declared_and_what_most_hosts_have(rows):
    answers = {f"b{number}": drifting() for number in range(3)}
    answers["b3"] = drifting(("flags", "x", "1", None), driver="570.1", kernel="6.8.0-40")
    found = fleet_status(rows, answers)
    assert [row["drift"] for row in found[:3]] == [[], [], []]
    assert [(row["kind"], row["declared"], row["runs"]) for row in found[3]["drift"]] == [
        ("flags", "1", None), ("driver", ">=580", "570.1"),
        ("kernel", "3 of 4 hosts of group blackwell have 6.17.0", "6.8.0-40")]  # fmt: skip
    cells = rows.status_cells(found)
    assert [cells[0]["drift"], cells[3]["drift"]] == ["none", "3: flags x: declared 1, runs not there"]
    assert rows.status_columns(found)[-2:] == ["drift", "note"]
    lines = rows.status_metrics(found).splitlines()
    assert 'ironserve_drift{host="b3",service="main",kind="driver"} 1' in lines
    assert 'ironserve_drift{host="b0",service="main",kind="driver"} 0' in lines
    assert [line for line in lines if line.startswith("# TYPE")] == [
        "# TYPE ironserve_drift gauge", "# TYPE ironserve_service_ready gauge"]  # fmt: skip


def test_drift_that_cannot_be_told_is_unknown_and_not_none(rows):
    found = fleet_status(rows, {"h1": {"msg": "no route", "unreachable": True}, "h2": drifting(errors=["stuck"])})
    assert [cell["drift"] for cell in rows.status_cells(found)] == ["unknown", "unknown in part"]
    told = [(row["host"], row["kind"], row["key"]) for row in rows.drift_rows(found)]
    assert told == [("h1", "unknown", "no route"), ("h2", "unknown", "stuck")]
    assert 'ironserve_drift{host="h1"' not in rows.status_metrics(found)


def test_a_row_of_drift_is_short_on_the_terminal(rows):
    [row] = rows.drift_cells([{"kind": "unit", "key": "ExecStart", "declared": "--a " * 100, "runs": None}])
    assert (len(row["declared"]) <= 100, row["runs"]) == (True, "not there")


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


def test_what_did_not_take_effect_is_a_note_of_the_deploy_and_the_whole_is_in_the_json(rows):
    effect = {"notes": ["variable A: the release says 1, and 8 of 8 ranks run with 0", "more"], "ranks": 8}
    gates = {"main": {**READY["main"], "took_effect": effect}}
    [row] = rows.deploy_rows(
        ["h1"], {"h1": {"deploy_resolved": RESOLVED, "serve_compared": DIFFERS, "serve_gates": gates}}, False
    )
    assert row["verdict"] == "ready"
    assert row["note"].endswith("variable A: the release says 1, and 8 of 8 ranks run with 0 (and 1 more)")
    assert row["took_effect"] == effect


MAINTENANCE = {"token": "t", "purpose": "maintenance", "user": "eva", "controller": "ctl", "reason": "driver",
               "age_s": 7300, "left_s": None}  # fmt: skip
HELD = {**MAINTENANCE, "purpose": "deploy", "pid": 7, "command": "ansible-playbook deploy.yml", "left_s": 3600}


@pytest.mark.parametrize(
    ("look", "held", "notes", "settled"),
    [
        ({}, MAINTENANCE, ["in maintenance: drained by eva@ctl 2 h ago (driver)"], False),
        ({"status": "stopped"}, MAINTENANCE,
         ["in maintenance: drained by eva@ctl 2 h ago (driver)", "stopped by an operator"], False),
        ({}, HELD, ["held by a run of eva@ctl that began 2 h ago (pid 7, ansible-playbook deploy.yml); it expires in "
                    "60 min"], True),
        ({"status": "down"}, HELD, ["should run and does not", "held by a run of eva@ctl that began 2 h ago (pid 7, "
                                    "ansible-playbook deploy.yml); it expires in 60 min"], False),
    ],
)  # fmt: skip
def test_who_has_the_host_is_told_and_a_maintenance_before_all_that_follows_from_it(rows, look, held, notes, settled):
    [row] = status(rows, services=[{**LOOK, **look}], unknown=[], lease=held)
    assert row["notes"] == notes
    assert row["settled"] == settled


def test_a_deploy_that_lost_a_host_does_not_say_that_it_failed_there(rows):
    lost = {"serve_failures": {"main": "connection lost while main was starting"}, "serve_lost": {"main": "x"}}
    compared = {"results": [{"serve_release": RELEASE, "reasons": ["flag --x: 1 -> 2"], "previous_id": "q"}]}
    seen = {"deploy_resolved": {"releases": [RELEASE]}, "serve_compared": compared, **lost}
    [row] = rows.deploy_rows(["h1"], {"h1": seen}, check_mode=False)
    assert (row["verdict"], row["note"]) == ("lost", "connection lost while main was starting")


ROLL = {"routers": ["r1"]}


def rolled(rows, outcome=None, **registered):
    """The row of a host that had its turn in a roll."""
    resolved = {**RESOLVED, "roll": ROLL}
    compared = {"results": [{**DIFFERS["results"][0], "running": True}]}
    seen = {"deploy_resolved": resolved, "serve_compared": compared, "roll_outcome": outcome, **registered}
    [row] = rows.deploy_rows(["h1"], {"h1": seen}, False)
    return row


MOVED = {"verdict": "moved", "cause": ""}
TIMES = {"main": {"out": 1000.0, "left": True, "back": 1130.4}}


@pytest.mark.parametrize(
    ("registered", "cells", "whole"),
    [
        ({"outcome": MOVED, "serve_gates": READY, "serve_admitted": {"main": True}, "serve_times": TIMES},
         ["ready", "2m10s", "9s", "flag --n: 1 -> 2; inventory wants p"], True),
        ({"outcome": MOVED, "serve_gates": READY, "serve_admitted": {"main": False}, "serve_times": {"main": {}}},
         ["ready; not admitted", "", "9s", "flag --n: 1 -> 2; inventory wants p"], False),
        ({"outcome": {"verdict": "lost", "cause": "no route to h1"}},
         ["lost", "", "", "no route to h1"], False),
        ({"outcome": {"verdict": "failed", "cause": "router r1 does not answer"}},
         ["failed", "", "", "router r1 does not answer"], False),
        ({"outcome": {"verdict": "failed", "cause": "x"}, "serve_times": TIMES,
          "serve_gates": {"main": {"verdict": "stalled"}}, "serve_failures": {"main": "nothing moves " + "x " * 60},
          "serve_reverts": {"main": {"verdict": "ready", "profile": "p", "release_id": "g"}}},
         ["stalled; put back: p", "2m10s", "", "nothing moves x"], False),
        ({"outcome": {"verdict": "taken back", "cause": ""}, "serve_gates": READY, "serve_times": TIMES},
         ["taken back", "2m10s", "9s", "flag --n: 1 -> 2; inventory wants p"], False),
        ({"outcome": {"verdict": "failed", "cause": "the old one does not start", "stuck": True}, "serve_gates": READY},
         ["failed", "", "9s", "the old one does not start"], False),
        ({"outcome": {"verdict": "not reached", "cause": "canary h0 failed"}},
         ["not reached", "", "", "canary h0 failed"], False),
        ({"outcome": None}, ["not reached", "", "", "flag --n: 1 -> 2; inventory wants p"], False),
    ],
    ids=["moved", "not-admitted", "lost", "failed-before-the-gate", "failed", "taken-back", "not-taken-back",
         "stopped-before", "not-reached"],
)  # fmt: skip
def test_the_table_of_a_roll_and_whether_the_fleet_is_whole(rows, registered, cells, whole):
    row = rolled(rows, **registered)
    [cell] = rows.deploy_cells([row])
    assert [cell[key] for key in ("verdict", "downtime", "gate")] == cells[:3]
    assert cell["cause"].startswith(cells[3])
    assert len(cell["cause"]) <= 80
    assert (cell["old"], cell["new"]) == ("old", "q r")
    summary = rows.deploy_summary([row], False)
    assert summary.startswith("fleet is whole: 1 of 1 host runs" if whole else "fleet is NOT whole: 0 of 1 host runs")
    assert list(rows.fleet_failures([row])) == ([] if whole else ["h1"])


def test_a_server_that_runs_what_is_meant_but_was_not_admitted_is_told_so_until_it_is(rows):
    seen = {"deploy_resolved": {**RESOLVED, "roll": ROLL}, "serve_compared": SAME}
    seen["deploy_unadmitted"] = {"main": ["not admitted by router r1"]}
    [row] = rows.deploy_rows(["h1"], {"h1": seen}, False)
    assert (row["verdict"], row["why"], row["admitted"]) == ("not reached", "not admitted by router r1", None)
    [row] = rows.deploy_rows(["h1"], {"h1": {**seen, "roll_outcome": MOVED, "serve_admitted": {"main": True}}}, False)
    assert (row["verdict"], row["admitted"]) == ("moved", True)
    [row] = rows.deploy_rows(["h1"], {"h1": {**seen, "deploy_unadmitted": {}}}, False)
    assert (row["verdict"], row["admitted"]) == ("unchanged", True)


def test_hosts_that_were_not_reached_fail_only_where_no_other_did(rows):
    lost = rolled(rows, outcome={"verdict": "lost", "cause": "no route"})
    left = {**rolled(rows), "host": "h2"}
    assert rows.fleet_failures([lost, left]) == {"h1": "h1, main: lost: no route; what it runs is unknown"}
    assert list(rows.fleet_failures([left])) == ["h2"]
    assert rows.deploy_summary([lost, left], False) == (
        "fleet is NOT whole: 0 of 2 hosts run what is meant. lost: h1; not reached: h2. The same command goes on"
    )


def test_services_have_a_column_only_where_they_have_names_of_their_own(rows):
    one = rolled(rows)
    assert rows.deploy_columns([one]) == ["host", "old", "new", "verdict", "downtime", "gate", "cause"]
    assert "service" in rows.deploy_columns([one, {**one, "service": "embed"}])
