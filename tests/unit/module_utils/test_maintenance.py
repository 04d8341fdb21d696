"""Whether hosts may be drained: what each router would be left with is counted, as a roll counts it."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve import rollout
from ansible.module_utils.ironserve.maintenance import Server, serving, to_keep, too_few
from ansible.module_utils.ironserve.routers import worker_url

H1 = {("h1", "main")}


def server(number, service="main", least=2, routers=("r1",)):
    return Server(f"h{number}", service, worker_url(f"10.0.0.{number}", 8000), routers, least)


def listed(*numbers, unhealthy=(), extra=()):
    urls = [worker_url(f"10.0.0.{number}", 8000) for number in (*numbers, *unhealthy)]
    sick = {worker_url(f"10.0.0.{number}", 8000) for number in unhealthy}
    return {"workers": [{"url": url, "healthy": url not in sick} for url in [*urls, *extra]], "admitted": urls}


def test_as_many_as_are_to_serve_may_stay_and_no_fewer():
    servers = [server(number) for number in (1, 2, 3)]
    assert too_few(H1, servers, {"r1": listed(1, 2, 3)}) == []
    (line,) = too_few({*H1, ("h2", "main")}, servers, {"r1": listed(1, 2, 3)})
    assert line.startswith(
        "without h1, h2 router r1 has 1 of 3 servers, and has to keep 2 (ironserve_min_serving): admit others"
    )


def test_who_is_sick_or_not_admitted_does_not_count():
    servers = [server(number) for number in (1, 2, 3)]
    answers = {"r1": listed(1, unhealthy=[2], extra=["http://10.0.0.3:8000"])}
    assert serving(answers, "r1") == {"http://10.0.0.1:8000"}
    assert too_few(H1, servers, {"r1": listed(1, 2, unhealthy=[3])})


def test_a_server_that_gets_no_requests_may_go_at_any_time():
    servers = [server(number) for number in (1, 2, 3)]
    assert too_few({("h3", "main")}, servers, {"r1": listed(1, unhealthy=[3])}) == []


def test_all_that_a_router_has_stands_in_and_what_another_one_has_does_not():
    mine = [server(1, least=1), server(2, least=1)]
    assert too_few(H1, [*mine, server(3, service="more")], {"r1": listed(1, 3)}) == []
    assert too_few(H1, [*mine, server(3, routers=("r2",))], {"r1": listed(1), "r2": listed(3)})


def test_every_router_is_asked_for():
    servers = [server(number, least=1, routers=("r1", "r2")) for number in (1, 2)]
    (line,) = too_few(H1, servers, {"r1": listed(1, 2), "r2": listed(1)})
    assert "router r2 has 0 of 2" in line


@pytest.mark.parametrize(("least", "count"), [(2, 2), ("25%", 2), ("26%", 3), ("0%", 0)])
def test_a_part_is_of_all_that_a_router_has_or_gets_also_while_some_are_out(least, count):
    servers = [server(number, least=least) for number in range(1, 9)]
    assert to_keep(H1, servers, {"r1": listed(1, 2, 3, 4)}) == {"r1": count}
    assert to_keep(H1, servers[:1], {"r1": listed(*range(1, 9))}) == {"r1": count}


@pytest.mark.parametrize("least", [0, 3, "40%", "100%"])
def test_a_drain_keeps_what_a_roll_keeps(least):
    numbers = range(1, 8)
    answers = {"r1": listed(*numbers)}
    servers = [server(number, least=least) for number in numbers]
    roll = {**rollout.SHARED, "group": "hopper", "routers": ["r1"], "min_serving": least, "forks": None,
            "drain_timeout_s": 0, "members": 7}  # fmt: skip
    service = {"service": "main", "model_name": "m", "reasons": ["new"], "running": True, "restart": True,
               "expected_s": 1, "admitted": True}  # fmt: skip
    hosts = {
        one.host: {"roll": {**roll, "address": one.host}, "services": [{**service, "url": one.url}]} for one in servers
    }
    rolled = rollout.plan(hosts, answers, 9)["groups"]["hopper"]["min_serving"]
    assert to_keep(H1, servers, answers) == rolled
