"""What drain.yml and admit.yml say of each host, and why a run does not have its hosts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MAIN = {"service": "main", "status": "ready", "port": 8001, "release_id": "r", "profile": "p"}
SITE = {"ironserve_host_group": "hopper", "ironserve_routers": ["r1"], "ironserve_port": 8000,
        "ironserve_min_serving": "50%"}  # fmt: skip
EVA = {
    "token": "eva's",
    "purpose": "deploy",
    "user": "eva",
    "controller": "ctl",
    "pid": 4711,
    "age_s": 40,
    "left_s": 40,
}


@pytest.fixture(scope="module")
def filters():
    file = ROOT / "plugins" / "filter" / "ironserve_maintenance.py"
    spec = importlib.util.spec_from_file_location("ironserve_maintenance", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def host(number, **more):
    return {**SITE, "ironserve_address": f"10.0.0.{number}", **more}


def answer(name, *urls):
    """What router r1 answers in a loop over routers of that name."""
    return {name: "r1", "workers": [{"url": url, "healthy": True} for url in urls], "admitted": list(urls)}


def test_a_host_leaves_with_the_port_that_it_has_and_the_others_count_with_theirs(filters):
    hostvars = {"h1": host(1, drain_seen={"services": [MAIN]}), "h2": host(2), "r1": host(9)}
    every = ["h1", "h2"]
    listed = answer("drain_router", "http://10.0.0.1:8001", "http://10.0.0.2:8000")
    assert filters.drain_check(["h1"], hostvars, [listed], every) == {"problems": [], "min_serving": {"r1": 1}}
    listed["workers"][1]["healthy"] = False
    [problem] = filters.drain_check(["h1"], hostvars, [listed], every)["problems"]
    assert "without h1 router r1 has 0 of 2" in problem
    assert filters.drain_check(["h1"], hostvars, [], every) == {"problems": [], "min_serving": {}}  # no router


def test_a_number_on_the_command_line_is_one_and_no_percentage(filters):
    hostvars = {"h1": host(1, drain_seen={"services": [MAIN]}, ironserve_min_serving="2")}
    checked = filters.drain_check(["h1"], hostvars, [answer("drain_router")], ["h1"])
    assert checked["min_serving"] == {"r1": 2}


def test_a_host_that_is_in_no_group_serves_nothing_and_is_no_obstacle(filters):
    bastion = {key: value for key, value in host(7).items() if key not in ("ironserve_host_group", "ironserve_port")}
    hostvars = {"h1": host(1, drain_seen={"services": [MAIN]}), "bastion": bastion}
    listed = answer("drain_router", "http://10.0.0.1:8001")
    [problem] = filters.drain_check(["h1"], hostvars, [listed], ["h1", "bastion"])["problems"]
    assert "without h1 router r1 has 0 of 1" in problem


def test_a_host_that_a_living_run_has_is_told_and_no_other(filters, monkeypatch):
    monkeypatch.setattr(filters.lease, "this_run", lambda arguments: {**EVA, "token": "mine"})
    monkeypatch.setattr(filters.lease, "is_gone", lambda lease, here: lease.get("token") == "dead")
    leases = {
        "h1": EVA, "h2": {**EVA, "token": "mine"}, "h3": {**EVA, "token": "dead"}, "h4": {},
        "h5": {**EVA, "purpose": "maintenance", "left_s": None},
    }  # fmt: skip
    hostvars = {name: {"drain_seen": {"lease": lease}} for name, lease in leases.items()}
    [line] = filters.held([*leases], hostvars)
    assert line.startswith("h1 is held by a run of eva@ctl that began 40 s ago (pid 4711); it expires in 40 s.")
    assert "-e accept=host-leased" in line


def test_the_host_of_a_drain_that_failed_says_why_and_is_not_told_to_be_stopped(filters):
    failed = host(1, drain_seen={"services": [MAIN, {**MAIN, "service": "embed"}]}, drain_failed="r1 is silent\nlog",
                  drain_done={"main": {"state": "drained"}})  # fmt: skip
    hostvars = {"h1": failed, "h2": host(2, drain_seen={"services": [MAIN]}, drain_done={"main": {"state": "drained"}})}
    rows = filters.drain_rows(["h1", "h2"], hostvars, check_mode=False)
    assert [(row["host"], row["drain"], row["note"]) for row in rows] == [
        ("h1", "drained", ""), ("h1", "not drained", "r1 is silent"), ("h2", "drained", "")
    ]  # fmt: skip
    assert "stop.yml -l h2. In the end" in filters.drain_summary(["h1", "h2"], hostvars)
    assert filters.drain_summary(["h1"], hostvars) == ""


@pytest.mark.parametrize(
    ("status", "urls", "routers", "out"),
    [
        ("ready", ["http://10.0.0.1:8001"], ["r1"], []),
        ("ready", ["http://10.0.0.2:8001"], ["r1"], ["main"]),
        ("ready", ["http://10.0.0.1:8001"], ["r1", "r2"], ["main"]),
        ("stopped", ["http://10.0.0.1:8001"], ["r1"], ["main"]),
        ("ready", [], [], []),
        ("stopped", [], [], ["main"]),
    ],
)
def test_a_service_is_out_until_it_is_ready_and_every_router_has_it(filters, status, urls, routers, out):
    looks = [{**MAIN, "status": status}]
    assert filters.out_of_service(looks, "10.0.0.1", routers, [answer("admit_router", *urls)]) == out
    silent = {"admit_router": "r1", "unreachable": True, "msg": "no route"}
    assert filters.out_of_service(looks, "10.0.0.1", ["r1"], [silent]) == ["main"]


def test_the_other_services_of_a_host_are_those_that_it_was_to_have_and_has(filters):
    names = ["main", "embed", "new"]
    unknown = [{**MAIN, "service": "embed"}, {**MAIN, "service": "old"}, {**MAIN, "service": "new", "release_id": ""}]
    assert [look["service"] for look in filters.others({"services": [MAIN], "unknown": unknown}, names)] == ["embed"]


def test_requests_that_are_left_after_a_drain_are_told(filters):
    done = {"main": {"state": "timeout", "cut": 3, "elapsed_s": 300.1, "msg": "x"}}
    seen = host(1, drain_seen={"services": [MAIN, {**MAIN, "service": "new", "release_id": ""}]}, drain_done=done)
    main, new = filters.drain_rows(["h1"], {"h1": seen}, check_mode=False)
    assert (main["drain"], main["cut"], main["seconds"]) == ("timeout", 3, 300.1)
    assert main["note"].startswith("3 requests still run and are cut when it is stopped")
    assert (new["drain"], new["note"]) == ("not deployed", "")
    assert filters.drain_rows(["h1"], {"h1": seen}, check_mode=True)[0]["drain"] == "would drain"


@pytest.mark.parametrize(
    ("more", "verdict", "admitted", "note"),
    [
        ({"serve_gates": {"main": {"verdict": "ready"}}, "serve_admitted": {"main": True}}, "ready", "yes", ""),
        ({"serve_gates": {"main": {"verdict": "failed"}}, "admit_failed": "it ended\nlog"}, "failed", "no", "it ended"),
        ({"serve_gates": {"main": {"verdict": "ready"}}, "ironserve_routers": []}, "ready", "no router", ""),
        (
            {"serve_gates": {"main": {"verdict": "ready"}}, "serve_admitted": {"main": True}, "admit_left": ["embed"]},
            "ready",
            "yes",
            "the host stays in maintenance, embed does not serve",
        ),
    ],
)
def test_a_host_is_admitted_after_its_gate(filters, more, verdict, admitted, note):
    seen = {**host(1, admit_seen={"services": [MAIN]}), **more}
    [row] = filters.admit_rows(["h1"], {"h1": seen}, check_mode=False)
    assert (row["verdict"], row["admitted"], row["note"]) == (verdict, admitted, note)


def test_every_host_that_a_run_does_not_have_is_named(filters):
    answers = {
        "h1": {"refused": {}, "holder": {"token": "t"}},
        "h2": {"refused": {"token": "u"}, "msg": "h2 is held by eva"},
        "h3": {"unreachable": True, "msg": "no route"},
    }
    hostvars = {name: {"lease_taken": answer} for name, answer in answers.items()}
    assert filters.lease_problems(list(answers), hostvars) == [
        "h2 is held by eva", "h3: its lease could not be asked for: no route"
    ]  # fmt: skip
