"""Whether the next batch of a roll may begin, and how a canary fares before that."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import batches, canary, rollout

sys.path.insert(0, str(Path(__file__).parent))

from fleets import FLAG, answers, fleet, host, names, plan

MOVED = {"verdict": "moved"}
FAILED = {"verdict": "failed"}
GOOD = {"state": "good"}


def opening(found, hosts, outcomes, up=None, sick=(), soak=None):
    """Why the batch may not begin, with the servers that are up (all)."""
    up = [entry["host"] for entry in found["hosts"]] if up is None else up
    return batches.opening(found, hosts, outcomes, answers(up, sick), soak)


@pytest.mark.parametrize(
    ("outcomes", "said", "why"),
    [
        ({"h1": MOVED}, {}, ""),
        ({"h1": None}, {}, "h1 cannot be reached or broke off, and what runs there is unknown"),
        ({}, {}, "h1 cannot be reached or broke off"),
        ({"h1": {"verdict": "lost"}}, {"max_failures": 9}, "h1 cannot be reached or broke off"),
        ({"h1": FAILED}, {"max_failures": 9}, "canary h1 failed"),
        ({"h1": FAILED}, {"canary": 0}, "h1 failed (ironserve_max_failures: 1)"),
        ({"h1": FAILED}, {"canary": 0, "max_failures": 2, "max_unavailable": 1},
         "h1 is out of service, and no more than 1 may be (ironserve_max_unavailable)"),
        ({"h1": {**FAILED, "serving": True}}, {"canary": 0, "max_failures": 2, "max_unavailable": 1}, ""),
        ({"h1": FAILED}, {"canary": 0, "max_failures": 2, "max_unavailable": 2}, ""),
        ({"h1": {"verdict": "not reached", "cause": "canary h0 failed"}}, {}, "canary h0 failed"),
    ],
    ids=["moved", "no-outcome", "unreachable", "lost", "canary-failed", "failed", "out-of-service", "back-in-service",
         "allowed", "stopped-already"],
)  # fmt: skip
def test_what_became_of_earlier_hosts_decides(outcomes, said, why):
    found = plan(fleet(4, **said))
    assert opening(found, ["h2"], outcomes).startswith(why)
    assert bool(opening(found, ["h2"], outcomes)) == bool(why)


@pytest.mark.parametrize(
    ("up", "sick", "why"),
    [
        (names(4), [], ""),
        (["h1", "h2", "h3"], ["h4"], "router r1 would be left with 2 healthy servers, and needs 3"),
        (["h1", "h2", "h3"], [], "router r1 would be left with 2 healthy servers, and needs 3"),
        (["h1", "h3", "h4"], ["h2"], ""),
        (["h1"], [], ""),
    ],
    ids=["all", "one-sick", "one-gone", "own-is-sick", "own-is-gone"],
)
def test_a_batch_never_leaves_a_router_with_fewer_servers_than_meant(up, sick, why):
    assert opening(plan(fleet(4, min_serving=3)), ["h2"], {"h1": MOVED}, up, sick).startswith(why)


def test_a_port_that_changes_takes_no_more_servers_than_one_that_does_not():
    hosts = fleet(4, min_serving=3, max_unavailable=1)
    for seen in hosts.values():
        seen["services"][0]["wished_url"] = seen["services"][0]["url"].replace("8000", "8001")
    found = plan(hosts)
    old, new = answers(["h2", "h3", "h4"])["r1"], {"url": "http://h1:8001", "healthy": True}
    now = {"r1": {"admitted": [*old["admitted"], new["url"]], "workers": [*old["workers"], new]}}
    assert batches.opening(found, ["h2"], {"h1": MOVED}, now) == ""
    assert batches.opening(found, ["h2"], {"h1": MOVED}, {"r1": old}).startswith("h1 moved, and its routers do not")
    soaks = {name: {**seen, "roll": {**seen["roll"], "soak_s": 60}} for name, seen in hosts.items()}
    assert canary.soak_due(plan(soaks), ["h2"], {"h1": MOVED})["urls"] == ["http://h1:8001"]


@pytest.mark.parametrize(
    ("outcomes", "up", "why"),
    [
        ({"h1": MOVED}, names(5), ""),
        ({"h1": MOVED}, ["h2", "h3", "h4", "h5"], "h1 is out of service, and no more than 1 may be"),
        ({"h1": MOVED}, ["h1", "h2", "h3", "h5"], "h4 is out of service"),
        ({"h1": {**FAILED, "serving": True}}, ["h2", "h3", "h4", "h5"], "h1 is out of service"),
        ({"h1": FAILED}, names(5), "h1 is out of service"),
        ({"h1": MOVED}, names(4), "h5 is out of service"),
        ({"h1": MOVED}, ["h1", "h3", "h4", "h5"], ""),
    ],
    ids=["all", "moved-and-died", "died-since-the-plan", "put-back-and-died", "not-put-back", "beyond", "own"],
)
def test_who_is_out_of_service_is_asked_when_the_batch_begins(outcomes, up, why):
    said = {"max_unavailable": 1, "max_failures": 2, "canary": 0}
    beyond = {"h5": {"group": "lab", "routers": ["r1"],
                     "services": [{"service": "main", "url": "http://h5:8000", "model_name": "tiny"}]}}  # fmt: skip
    found = rollout.plan(fleet(4, **said), answers(names(5)), 32, beyond)
    assert batches.opening(found, ["h2"], outcomes, answers(up)).startswith(why)
    assert bool(batches.opening(found, ["h2"], outcomes, answers(up))) == bool(why)


@pytest.mark.parametrize(
    ("outcomes", "up", "why"),
    [
        ({"h1": MOVED, "h2": MOVED}, names(4), ""),
        ({"h1": MOVED, "h2": MOVED}, ["h2", "h3", "h4"],
         "h1 moved, and its routers do not find it healthy any more (ironserve_max_failures: 1)"),
        ({"h1": MOVED, "h2": FAILED}, ["h3", "h4"], "h2 failed; h1 moved, and its routers do not find it healthy"),
        ({"h1": MOVED, "h2": MOVED}, ["h1", "h2"], ""),
    ],
    ids=["all", "died", "failed-and-died", "others-are-down"],
)  # fmt: skip
def test_a_release_that_dies_after_its_gate_stops_the_roll_like_one_that_fails(outcomes, up, why):
    found = plan(fleet(4, canary=0))
    assert opening(found, ["h3"], outcomes, up).startswith(why)
    assert bool(opening(found, ["h3"], outcomes, up)) == bool(why)
    assert batches.opening(plan(fleet(4, canary=0, max_failures=3)), ["h3"], outcomes, answers(up)) == ""
    alone = plan(fleet(4, canary=0, routers=[]), {})
    assert batches.opening(alone, ["h3"], {"h1": MOVED, "h2": MOVED}, {}) == ""


def test_of_a_host_beyond_the_run_nobody_knows_without_a_router_and_no_limit_asks():
    beyond = {"h5": {"group": "lab", "routers": [], "services": [{"service": "main", "url": "x", "model_name": "t"}]}}
    alone = rollout.plan(fleet(4, routers=[], max_unavailable=1), {}, 32, beyond)
    assert batches.opening(alone, ["h2"], {"h1": MOVED}, {}) == ""
    beyond["h5"]["routers"] = ["r1"]
    free = rollout.plan(fleet(4), answers(names(4)), 32, beyond)
    assert batches.opening(free, ["h2"], {"h1": MOVED}, answers(names(4))) == ""


def test_a_router_that_does_not_answer_closes_the_roll():
    found = plan(fleet(4, min_serving=1))
    down = {"r1": {"failed": True, "msg": "connection refused"}}
    assert batches.opening(found, ["h2"], {"h1": MOVED}, down) == "router r1 does not answer: connection refused"


def test_a_fresh_fleet_of_which_none_serves_is_deployed_whatever_has_to_serve():
    hosts = {name: host(name, FLAG, service={"running": False, "admitted": False}, min_serving=3, max_unavailable=1)
             for name in names(4)}  # fmt: skip
    found = plan(hosts, answers([]))
    assert found["batches"][0]["at_least"] == {"r1": 0}
    assert opening(found, ["h1"], {}, up=[]) == ""
    assert opening(found, ["h3"], {"h1": MOVED, "h2": MOVED}, up=["h1", "h2"]) == ""


@pytest.mark.parametrize(
    ("soak", "why"), [(GOOD, ""), ({}, "canary h1: it did not soak"), ({"state": "bad", "why": "no"}, "canary h1: no")]
)
def test_nothing_follows_a_canary_that_did_not_soak_well(soak, why):
    found = plan(fleet(4, soak_s=60))
    assert opening(found, ["h2"], {"h1": MOVED}, soak=soak).startswith(why)
    assert opening(found, ["h3"], {"h1": MOVED, "h2": MOVED}, soak=None) == ""


def test_a_batch_is_told_with_its_group_only_where_there_are_several():
    found = plan(fleet(4, batches=[3]))
    assert batches.title(found, found["batches"][1]) == "batch 2 of 2: h2 h3 h4"
    both = plan({"h1": host("h1", FLAG), "h2": host("h2", FLAG, group="b")})
    assert batches.title(both, both["batches"][1]) == "b canary: h2"


@pytest.mark.parametrize(
    ("said", "hosts", "outcomes", "due"),
    [
        ({"soak_s": 60}, ["h2"], {"h1": MOVED}, True),
        ({"soak_s": 60}, ["h1"], {}, False),
        ({"soak_s": 60}, ["h3"], {"h1": MOVED, "h2": MOVED}, False),
        ({"soak_s": 60}, ["h2"], {"h1": FAILED}, False),
        ({"soak_s": 0}, ["h2"], {"h1": MOVED}, False),
        ({"soak_s": 60, "canary": 0}, ["h2"], {"h1": MOVED}, False),
    ],
    ids=["after-the-canary", "before-it", "later", "failed-canary", "no-soak", "no-canary"],
)
def test_when_a_soak_is_due(said, hosts, outcomes, due):
    assert bool(canary.soak_due(plan(fleet(3, **said)), hosts, outcomes)) == due


URL = "http://h1:8000"
READY = [{"item": "h1", "services": [{"service": "main", "status": "ready"}]}]
HANGS = [{"item": "h1", "services": [{"service": "main", "status": "unhealthy", "cause": "no token"}]}]


@pytest.mark.parametrize(
    ("elapsed_s", "looks", "then", "now", "state", "why"),
    [
        (10, READY, (0, 0), (500, 0), "waiting", ""),
        (60, READY, (0, 0), (500, 0), "good", ""),
        (60, READY, (100, 50), (600, 52), "good", ""),
        (60, READY, (100, 50), (300, 53), "bad", "3 of 203 requests failed (ironserve_soak_error_rate: 0.01)"),
        (10, READY, (0, 0), (10, 4), "waiting", ""),
        (10, READY, (0, 0), (10, 5), "bad", "5 of 15 requests failed"),
        (60, READY, (900, 0), (20, 0), "good", ""),
        (60, READY, (0, 0), (0, 0), "good", ""),
    ],
    ids=["on-the-way", "good", "few-failures", "many-failures", "few-requests-yet", "early-end", "router-restarted",
         "no-load"],
)  # fmt: skip
def test_how_a_canary_fares(elapsed_s, looks, then, now, state, why):
    due = canary.soak_due(plan(fleet(3, soak_s=60)), ["h2"], {"h1": MOVED})
    before, after = (answers(["h1"], errors={URL: {"ok": ok, "failed": bad}}) for ok, bad in (then, now))
    verdict = canary.soak_verdict(due, elapsed_s, looks, before, after)
    assert verdict["state"] == state
    assert verdict["why"].startswith(why)
    assert verdict["text"].startswith("soak: canary h1 ")


@pytest.mark.parametrize("elapsed_s", [10, 60])
@pytest.mark.parametrize(
    ("looks", "why"),
    [
        (HANGS, "h1 main is unhealthy: no token"),
        ([{"item": "h1", "unreachable": True, "msg": "no route"}], "h1 cannot be asked: no route"),
    ],
    ids=["hangs", "unreachable"],
)
def test_one_bad_look_is_looked_at_again_and_two_in_a_row_are_bad(elapsed_s, looks, why):
    due = canary.soak_due(plan(fleet(3, soak_s=60)), ["h2"], {"h1": MOVED})
    counted = answers(["h1"])

    def look(seen, doubt):
        return canary.soak_verdict(due, elapsed_s, seen, counted, counted, doubt)

    first = look(looks, "")
    assert (first["state"], first["why"], first["wait_s"]) == ("waiting", "", canary.AGAIN_S)
    assert f"{why} (looking again)" in first["text"]
    second = look(looks, first["doubt"])
    assert (second["state"], second["why"]) == ("bad", why)
    well = look(READY, first["doubt"])
    assert (well["state"], well["doubt"]) == ("good" if elapsed_s == 60 else "waiting", "")


def test_a_soak_that_nobody_could_count_is_not_good_behind_a_router_and_is_without_one():
    def over(hosts, routers):
        due = canary.soak_due(plan(hosts), ["h2"], {"h1": MOVED})
        first = canary.soak_verdict(due, 60, READY, {}, routers)
        return (
            first if first["state"] != "waiting" else canary.soak_verdict(due, 60, READY, {}, routers, first["doubt"])
        )

    assert over(fleet(3, soak_s=60), {"r1": {"failed": True}})["why"] == (
        "router r1 does not tell how many requests failed"
    )
    alone = over(fleet(3, soak_s=60, routers=[]), {})
    assert (alone["state"], "no router counts requests" in alone["text"]) == ("good", True)
