"""What drain.yml and admit.yml say of each host, and why a run does not have its hosts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MAIN = {"service": "main", "status": "ready", "port": 8001, "release_id": "r", "profile": "p"}
SITE = {"ironserve_host_group": "hopper", "ironserve_routers": ["r1"], "ironserve_port": 8000,
        "ironserve_min_serving": "50%"}  # fmt: skip


@pytest.fixture(scope="module")
def filters():
    file = ROOT / "plugins" / "filter" / "ironserve_maintenance.py"
    spec = importlib.util.spec_from_file_location("ironserve_maintenance", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def host(number, **more):
    return {**SITE, "ironserve_address": f"10.0.0.{number}", **more}


def test_a_host_leaves_with_the_port_that_it_has_and_the_others_count_with_theirs(filters):
    hostvars = {"h1": host(1, drain_seen={"services": [MAIN]}), "h2": host(2), "r1": {"ironserve_port": 8000}}
    urls = ["http://10.0.0.1:8001", "http://10.0.0.2:8000"]
    listed = {"drain_router": "r1", "workers": [{"url": url, "healthy": True} for url in urls], "admitted": urls}
    assert filters.drain_problems(["h1"], hostvars, [listed]) == []
    listed["workers"][1]["healthy"] = False
    [problem] = filters.drain_problems(["h1"], hostvars, [listed])
    assert "without h1 router r1 has 0 of 2" in problem
    assert filters.drain_problems(["h1"], hostvars, []) == []  # no router


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
