"""Whether hosts may be drained: what each router would be left with is counted, for each service of each group."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve.maintenance import Server, at_least, serving, too_few
from ansible.module_utils.ironserve.routers import worker_url


def server(number, service="main", group="hopper", least=2, routers=("r1",)):
    return Server(f"h{number}", service, group, worker_url(f"10.0.0.{number}", 8000), routers, least)


def listed(*numbers, unhealthy=(), extra=()):
    urls = [worker_url(f"10.0.0.{number}", 8000) for number in (*numbers, *unhealthy)]
    sick = {worker_url(f"10.0.0.{number}", 8000) for number in unhealthy}
    return {
        "workers": [{"url": f"{url}/", "healthy": url not in sick} for url in [*urls, *extra]],
        "admitted": urls,
    }


def test_as_many_as_are_to_serve_may_stay_and_no_fewer():
    servers = [server(number) for number in (1, 2, 3)]
    assert too_few({("h1", "main")}, servers, {"r1": listed(1, 2, 3)}) == []
    (line,) = too_few({("h1", "main"), ("h2", "main")}, servers, {"r1": listed(1, 2, 3)})
    assert line.startswith(
        "without h1, h2 router r1 has 1 of 3 servers of service main in group hopper, and ironserve_min_serving says 2"
    )


def test_who_is_sick_or_not_admitted_does_not_count():
    servers = [server(number) for number in (1, 2, 3)]
    assert serving(listed(1, unhealthy=[2], extra=["http://10.0.0.3:8000"])) == {"http://10.0.0.1:8000"}
    assert too_few({("h1", "main")}, servers, {"r1": listed(1, 2, unhealthy=[3])})


def test_a_server_that_gets_no_requests_may_go_at_any_time():
    servers = [server(number) for number in (1, 2, 3)]
    assert too_few({("h3", "main")}, servers, {"r1": listed(1, unhealthy=[3])}) == []


def test_other_groups_services_and_routers_do_not_stand_in():
    mine = [server(1, least=1), server(2, least=1)]
    for other in (server(3, group="blackwell"), server(3, service="embed"), server(3, routers=("r2",))):
        answers = {"r1": listed(1, 3)}
        assert too_few({("h1", "main")}, [*mine, other], answers), other
    assert too_few({("h1", "main")}, [*mine, server(3)], {"r1": listed(1, 2, 3)}) == []


def test_every_router_is_asked_for():
    servers = [server(number, least=1, routers=("r1", "r2")) for number in (1, 2)]
    (line,) = too_few({("h1", "main")}, servers, {"r1": listed(1, 2), "r2": listed(1)})
    assert "router r2 has 0 of 2" in line


@pytest.mark.parametrize(("share", "of", "count"), [(2, 8, 2), ("2", 8, 2), ("25%", 8, 2), ("25%", 9, 3), ("0%", 9, 0)])
def test_a_part_of_a_server_is_a_whole_one(share, of, count):
    assert at_least(share, of) == count
