"""The plan of a roll: who changes and why, in which batches, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import plan_text, rollout, site
from ansible.module_utils.ironserve.problems import Problems
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from fleets import FLAG, answers, batches, fleet, host, names, plan


@pytest.mark.parametrize(
    ("count", "said", "expected"),
    [
        (4, {}, [["h1"], ["h2"], ["h3"], ["h4"]]),
        (8, {"batches": [2, 4]}, [["h1"], ["h2", "h3"], ["h4", "h5", "h6", "h7"], ["h8"]]),
        (8, {"batches": [1, 2]}, [["h1"], ["h2"], ["h3", "h4"], ["h5", "h6"], ["h7", "h8"]]),
        (8, {"batches": ["25%"], "canary": 2}, [["h1", "h2"], ["h3", "h4"], ["h5", "h6"], ["h7", "h8"]]),
        (8, {"batches": ["50%"], "canary": 0}, [["h1", "h2", "h3", "h4"], ["h5", "h6", "h7", "h8"]]),
        (3, {"batches": ["10%"]}, [["h1"], ["h2"], ["h3"]]),
        (6, {"batches": [4], "max_unavailable": 2}, [["h1"], ["h2", "h3"], ["h4", "h5"], ["h6"]]),
        (6, {"batches": [6], "max_unavailable": "50%"}, [["h1"], ["h2", "h3", "h4"], ["h5", "h6"]]),
        (6, {"batches": [6], "min_serving": 4}, [["h1"], ["h2", "h3"], ["h4", "h5"], ["h6"]]),
        (6, {"batches": [6], "min_serving": "75%"}, [["h1"], ["h2"], ["h3"], ["h4"], ["h5"], ["h6"]]),
        (11, {"batches": [8]}, [["h1"], names(9)[1:], ["h10", "h11"]]),
    ],
)
def test_canary_and_batches(count, said, expected):
    found = plan(fleet(count, **said))
    assert (batches(found), found["problems"]) == (expected, [])
    assert found["serial"] == [len(batch) for batch in expected]
    assert found["order"] == [name for batch in expected for name in batch]


@given(
    count=st.integers(1, 40),
    changing=st.integers(0, 40),
    canary=st.one_of(st.integers(0, 5), st.sampled_from(["0%", "10%", "100%"])),
    sizes=st.lists(st.one_of(st.integers(1, 9), st.sampled_from(["1%", "25%", "100%"])), max_size=3),
    most=st.one_of(st.none(), st.integers(1, 9), st.sampled_from(["1%", "50%"])),
    serving=st.one_of(st.integers(0, 10), st.sampled_from(["0%", "50%", "99%"])),
    down=st.sets(st.integers(0, 39)),
)
def test_every_host_that_changes_is_in_one_batch_that_the_settings_allow(
    count, changing, canary, sizes, most, serving, down
):
    said = {"canary": canary, "batches": sizes, "max_unavailable": most, "min_serving": serving}
    hosts = fleet(count, min(changing, count), **said)
    for number in down:
        if number < count:
            hosts[f"h{number + 1}"]["services"][0]["running"] = False
    found = plan(hosts)
    if found["problems"]:
        assert "ironserve_min_serving" in found["problems"][0]
        assert rollout.share(serving, count, up=True) >= count
        return
    changed = {entry["host"] for entry in found["hosts"] if entry["state"] == "changes"}
    assert sorted(found["order"]) == sorted(changed)
    allowed = min(count if most is None else rollout.share(most, count), count - rollout.share(serving, count, up=True))
    assert all(0 < len(batch) <= allowed for batch in batches(found))
    assert plan(dict(reversed(hosts.items()))) == found, "the order of the inventory matters"


def test_what_an_operator_reads_before_a_roll():
    found = plan(fleet(8, 3, batches=[2], soak_s=60))
    assert plan_text.text(found).splitlines() == [
        "Plan: 3 of 8 hosts change, 5 are there already.",
        "  canary h1, then h2 h3",
        "  about 2m10s without service each (last start), 5m20s in all",
        f"  h1 h2 h3: {FLAG}",
        "  note: draining takes up to 5m00s a host beside that",
    ]
    assert "there already: h4 h5 h6 h7 h8" in plan_text.text(found, whole=True)
    assert plan_text.text(plan(fleet(8, 0))) == "Plan: nothing changes, 8 of 8 hosts are there already."


def test_a_fleet_of_32_hosts_with_one_reason_is_one_line_and_whole_names_all():
    found = plan(fleet(32, batches=[8]))
    short = plan_text.text(found)
    assert f"  h1 h2 h3 h4 h5 h6 and 26 more: {FLAG}" in short
    assert "canary h1, then 4 batches of up to 8 hosts, the first h2 h3 h4 h5 h6 h7 h8 h9" in short
    assert all(f" {name}" in plan_text.text(found, whole=True) for name in names(32))


def test_hosts_with_other_reasons_have_a_line_of_their_own_and_many_reasons_are_cut():
    hosts = {"h1": host("h1", FLAG), "h2": host("h2", *"abcde"), "h3": host("h3", FLAG)}
    lines = plan_text.text(plan(hosts)).splitlines()
    at = lines.index("  h2: a")
    assert f"  h1 h3: {FLAG}" in lines
    assert [line.strip() for line in lines[at + 1 : at + 4]] == ["b", "c", "and 2 more: -e plan=true tells all"]
    assert "      e" in plan_text.text(plan(hosts), whole=True)


@pytest.mark.parametrize(
    ("service", "said"),
    [
        ({"expected_s": None}, "how long a start takes is not known yet"),
        ({"restart": False}, "no server is restarted"),
        ({"running": False, "restart": False, "admitted": False}, "about 2m10s for each to start"),
    ],
)
def test_how_long_it_takes(service, said):
    assert said in plan_text.text(plan({"h1": host("h1", FLAG, service=service)}))


def test_groups_are_rolled_one_after_the_other_each_with_its_own_canary():
    hosts = {name: host(name, FLAG, group="b" if number % 2 else "a") for number, name in enumerate(names(5))}
    found = plan(hosts)
    assert [(batch["group"], batch["name"], batch["hosts"]) for batch in found["batches"]] == [
        ("a", "canary", ["h1"]), ("a", "batch 2 of 3", ["h3"]), ("a", "batch 3 of 3", ["h5"]),
        ("b", "canary", ["h2"]), ("b", "batch 2 of 2", ["h4"])]  # fmt: skip
    assert "  group b: canary h2, then h4" in plan_text.text(found)


def test_hosts_that_serve_nobody_come_first_so_that_the_fleet_is_whole_before_more_is_taken_out():
    hosts = fleet(4)
    hosts["h3"]["services"][0]["admitted"] = False
    found = plan(hosts)
    assert found["order"] == ["h3", "h1", "h2", "h4"]
    assert "h3: out of service now, and first for that" in found["notes"]


def test_without_a_router_it_is_said_that_nothing_is_drained():
    found = plan(fleet(2, routers=[]), {})
    assert found["notes"] == ["no router, nothing is drained: all hosts"]
    assert found["hosts"][0]["services"][0]["admitted"] is None


@pytest.mark.parametrize(
    ("hosts", "forks", "said"),
    [
        (fleet(9, batches=[8]), 5,
         "-f: Ansible works on 5 hosts at a time, and the largest batch has 8: run with -f 8"),
        (fleet(9, batches=[8], forks=4), 32, "ironserve_forks: is 4, and the largest batch has 8 hosts"),
        (fleet(3, min_serving=3), 32, "group lab: ironserve_min_serving: 3 of 3 behind router r1 have to serve"),
        (fleet(3, min_serving="100%", routers=[]), 32, "group lab: ironserve_min_serving: 3 of 3 hosts have to serve"),
        ({"h1": host("h1", FLAG), "h2": host("h2", canary=2)}, 32,
         "group lab: ironserve_canary: is not the same on all its hosts: 1 on h1; 2 on h2"),
        ({"h1": host("h1", FLAG), "h2": host("h2", service={"model_name": "other"})}, 32,
         "router r1: has servers with different models, and would send requests to the wrong one: tiny on h1; "
         "other on h2"),
    ],
    ids=["forks", "own-forks", "min-serving", "min-serving-without-router", "not-the-same", "models"],
)  # fmt: skip
def test_what_could_not_go_as_the_settings_want_is_refused(hosts, forks, said):
    [problem] = plan(hosts, forks=forks)["problems"]
    assert problem.startswith(said)


def test_all_that_is_wrong_is_told_at_once():
    hosts = {**fleet(3, min_serving=5), "h9": host("h9", FLAG, group="b", canary=7, service={"model_name": "x"})}
    hosts["h8"] = host("h8", FLAG, group="b")
    assert len(plan(hosts)["problems"]) == 3


def test_a_run_with_few_hosts_of_a_large_fleet_counts_what_the_router_has():
    found = plan({"h1": host("h1", FLAG, min_serving=6)}, answers(names(8)))
    assert found["problems"] == []
    assert found["batches"][0]["at_least"] == {"r1": 7}


def test_routers_that_do_not_exist_are_told_with_what_was_meant():
    problems = Problems()
    said = {"ironserve_host_group": "lab", "ironserve_routers": ["r2", "rr1"]}
    rollout.settings(said, {"router": ["r1"], "lab": ["h1", "r1"]}, "h1", problems)
    assert problems.found[0].startswith('host h1: ironserve_routers: unknown router "r2"')
    assert '(did you mean "r1"?)' in problems.found[1]


@pytest.mark.parametrize(
    ("routers", "lacking"),
    [
        (answers(["h1"]), []),
        (answers([]), ["not admitted by router r1"]),
        ({"r1": {"admitted": ["http://h1:8000"], "workers": []}}, ["not admitted by router r1"]),
        (answers([], sick=["h1"]), []),
    ],
    ids=["admitted", "forgotten", "lost-by-a-restart", "sick"],
)
def test_a_server_that_a_router_does_not_have_differs(routers, lacking):
    roll = host("h1")["roll"]
    release = {"service": "main", "profile": "p", "release_id": "r", "model_name": "tiny", "port": 8000}
    [seen] = rollout.seen_of([{"serve_release": release, "reasons": [], "running": True}], roll, routers)
    assert (seen["reasons"], seen["admitted"]) == (lacking, not lacking)


def test_numbers_of_a_command_line_are_numbers():
    said = {"ironserve_soak_s": "30", "ironserve_soak_error_rate": "0.05", "ironserve_canary": "2",
            "ironserve_min_serving": "50%"}  # fmt: skip
    assert site.numbers_as_such(said) == {
        "ironserve_soak_s": 30, "ironserve_soak_error_rate": 0.05, "ironserve_canary": 2,
        "ironserve_min_serving": "50%"}  # fmt: skip
