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

ROOT = Path(__file__).resolve().parents[3]


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
    found = plan(hosts, forks=count)
    serves = {entry["host"] for entry in found["hosts"] if entry["serves"]}
    if found["problems"]:
        assert "ironserve_min_serving" in found["problems"][0]
        assert rollout.share(serving, count, up=True) >= count
        assert serves & {entry["host"] for entry in found["hosts"] if entry["state"] == "changes"}
        return
    changed = {entry["host"] for entry in found["hosts"] if entry["state"] == "changes"}
    assert sorted(found["order"]) == sorted(changed)
    allowed = min(count if most is None else rollout.share(most, count), count - rollout.share(serving, count, up=True))
    assert all(0 < len(batch) <= allowed for batch in batches(found) if serves.intersection(batch))
    assert all(serves.isdisjoint(batch) or serves.issuperset(batch) for batch in batches(found))
    assert plan(dict(reversed(hosts.items())), forks=count) == found, "the order of the inventory matters"


def test_what_an_operator_reads_before_a_roll():
    found = plan(fleet(8, 3, batches=[2], soak_s=60))
    assert plan_text.text(found).splitlines() == [
        "Plan: 3 of 8 hosts change, 5 are there already.",
        "  canary h1, then h2 h3",
        "  about 2m10s without service each (last start), 5m20s in all",
        f"  h1 h2 h3: {FLAG}",
        "  note: hosts of a batch drain, start and are admitted together: each is out for as long as the slowest takes",
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


@pytest.mark.parametrize(
    ("count", "dead", "said", "expected"),
    [
        (1, 1, {"min_serving": 2}, [["h1"]]),
        (2, 2, {"min_serving": 2}, [["h1"], ["h2"]]),
        (4, 4, {"min_serving": 3, "canary": 0, "batches": [4]}, [["h1", "h2", "h3", "h4"]]),
        (4, 4, {"max_unavailable": 1, "canary": 0, "batches": ["100%"]}, [["h1", "h2", "h3", "h4"]]),
        (6, 3, {"min_serving": 4, "batches": [4]}, [["h1"], ["h2", "h3"], ["h4", "h5"], ["h6"]]),
    ],
    ids=["one-of-a-fleet", "a-new-fleet", "after-an-outage", "max-unavailable", "some"],
)
def test_hosts_that_serve_nobody_are_rolled_whatever_has_to_serve(count, dead, said, expected):
    hosts = fleet(count, **said)
    for name in names(dead):
        hosts[name]["services"][0].update(running=False, admitted=False)
    found = plan(hosts, answers(names(count)[dead:]))
    assert (batches(found), found["problems"]) == (expected, [])
    assert found["batches"][0]["at_least"] == {"r1": 0}


def test_a_batch_is_as_slow_as_its_slowest_host_and_the_plan_says_so_where_that_costs_service():
    def told(**said):
        return any("as long as the slowest takes" in note for note in plan(fleet(3, **said))["notes"])

    assert told(batches=[2])
    assert not told(batches=[1])
    assert not told(batches=[2], routers=[])


def test_a_router_needs_what_any_host_behind_it_says_whatever_its_group():
    hosts = {"h1": host("h1", FLAG), "h2": host("h2", FLAG), "h3": host("h3", FLAG, group="b", min_serving=2)}
    found = plan(hosts)
    assert [(batch["hosts"], batch["at_least"]) for batch in found["batches"]] == [
        (["h1"], {"r1": 3}), (["h2"], {"r1": 3}), (["h3"], {"r1": 3})]  # fmt: skip
    assert (rollout.needed(["50%", 1], 5), rollout.needed([], 5)) == (3, 0)


def test_a_router_that_restarted_gets_time_for_as_many_servers_as_the_batch_needs():
    assert plan(fleet(8, max_unavailable=2))["batches"][0]["at_least"] == {"r1": 7}
    assert [batch["at_least"]["r1"] for batch in plan(fleet(4))["batches"]] == [1, 2, 3, 4]


BEYOND = {
    "ironserve_host_group": "lab", "ironserve_routers": ["r1"], "ironserve_port": "8000",
    "ironserve_model": {"path": "/models/tiny", "served_name": "tiny"},
}  # fmt: skip


def test_a_host_beyond_the_run_is_as_the_inventory_has_it():
    assert rollout.declared("h9", {**BEYOND, "ironserve_address": "fd00::9"}) == {
        "group": "lab", "routers": ["r1"],
        "services": [{"service": "main", "url": "http://[fd00::9]:8000", "model_name": "tiny"}],
    }  # fmt: skip
    services = {"a": {"port": 1}, "b": {"port": 2, "model": {"path": "/models/b"}}}
    found = rollout.declared("h9", {**BEYOND, "ironserve_services": services})["services"]
    assert [(each["url"], each["model_name"]) for each in found] == [
        ("http://h9:1", "tiny"), ("http://h9:2", "/models/b")]  # fmt: skip


@pytest.mark.parametrize(
    ("routers", "model", "refused"), [(["r1"], "big", True), (["r1"], "tiny", False), (["r2"], "big", False)]
)
def test_a_model_that_others_behind_the_router_do_not_serve_is_refused_whatever_hosts_are_meant(
    routers, model, refused
):
    said = {**BEYOND, "ironserve_routers": routers, "ironserve_model": {"path": "/m", "served_name": model}}
    found = rollout.plan({"h1": host("h1", FLAG)}, answers(["h1"]), 32, {"h9": rollout.declared("h9", said)})
    assert bool(found["problems"]) == refused
    assert not refused or "tiny on h1; big on h9" in found["problems"][0]


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
    ("said", "words"),
    [
        ({"ironserve_speed_gate": {"single_stream": 0.95, "c128": 0.9}}, ""),
        ({"ironserve_speed_gate": {"singel_stream": 0.95}}, '(did you mean "single_stream"?)'),
        ({"ironserve_speed_gate": {"c64": 0.9}}, "ironserve_speed_gate.c64: is not measured: ironserve_benchmark."
                                                 "concurrencies has 1, 8, 32, 128"),
        ({"ironserve_speed_gate": {"c64": 0.9}, "ironserve_benchmark": {"concurrencies": [64]}}, ""),
        ({"ironserve_speed_gate": {"c8": 0.9}, "ironserve_canary": "0%"}, "the canary is what is measured"),
    ],
    ids=["usual", "misspelt", "not-measured", "measured", "no-canary"],
)  # fmt: skip
def test_a_speed_gate_that_could_compare_nothing_is_refused(said, words):
    problems = Problems()
    rollout.settings({"ironserve_host_group": "lab", **said}, {"lab": ["h1"]}, "h1", problems)
    assert words in " ".join(problems.found)
    assert bool(problems.found) == bool(words)


def test_levels_that_nobody_says_are_those_of_the_role():
    said = (ROOT / "roles" / "benchmark" / "vars" / "main.yml").read_text()
    assert f"'concurrencies': {list(rollout.LEVELS)}" in said
    assert f"'timeout_s': {rollout.MEASURE_S}}}" in said


@pytest.mark.parametrize(("gate", "longer"), [({}, 0), ({"single_stream": 0.9}, 2 * 100)])
def test_hosts_are_held_for_what_measuring_may_take(gate, longer):
    site = {"ironserve_host_group": "lab", "ironserve_speed_gate": gate, "ironserve_benchmark": {"timeout_s": 100}}
    roll = rollout.settings(site, {"lab": ["h1", "h2"]}, "h1", Problems())
    hosts = {name: host(name, FLAG, measure=roll["measure"]) for name in ("h1", "h2")}
    hosts["h1"]["services"] = [*hosts["h1"]["services"], {**hosts["h1"]["services"][0], "service": "chat"}]
    found = plan(hosts)
    assert found["batches"][0]["name"] == "canary"
    assert found["measure_s"] == longer


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


def new_port(name, active, **roll):
    """A host whose port becomes 8001."""
    seen = host(name, **roll)
    release = {"service": "main", "profile": "p", "release_id": "r", "model_name": "tiny", "port": 8001}
    result = {"serve_release": release, "reasons": ["port: 8000 -> 8001"], "running": True, "restart": True,
              "active_port": active}  # fmt: skip
    return {"roll": seen["roll"], "services": rollout.seen_of([result], seen["roll"], answers(names(4)))}


def test_a_host_whose_port_changes_is_one_that_serves_and_is_drained_where_routers_have_it():
    said = {"min_serving": 3, "batches": [4], "canary": 0}
    found = plan({name: new_port(name, 8000, **said) for name in names(4)}, answers(names(4)))
    assert all(entry["serves"] for entry in found["hosts"])
    service = found["hosts"][0]["services"][0]
    assert (service["url"], service["wished_url"]) == ("http://h1:8000", "http://h1:8001")
    assert found["groups"]["lab"]["servers"] == {"r1": 4}
    assert batches(found) == [["h1"], ["h2"], ["h3"], ["h4"]]
    assert found["batches"][0]["at_least"] == {"r1": 4}


@pytest.mark.parametrize("active", [None, 8001])
def test_without_an_active_release_the_port_that_is_meant_counts(active):
    [service] = new_port("h1", active)["services"]
    assert (service["url"], service["admitted"]) == ("http://h1:8001", False)


def test_numbers_of_a_command_line_are_numbers():
    said = {"ironserve_soak_s": "30", "ironserve_soak_error_rate": "0.05", "ironserve_canary": "2",
            "ironserve_min_serving": "50%"}  # fmt: skip
    assert site.numbers_as_such(said) == {
        "ironserve_soak_s": 30, "ironserve_soak_error_rate": 0.05, "ironserve_canary": 2,
        "ironserve_min_serving": "50%"}  # fmt: skip


NUMBERS = sorted(name for name, key in site.VARIABLES.items() if key.type in ("int", "share", "number"))


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_may_be_said_on_a_command_line(name):
    key, problems = site.VARIABLES[name], Problems()
    said = "0.5" if key.type == "number" and not key.low else str(max(int(key.low or 0), 1))
    site.check_said(site.numbers_as_such({name: said}), "h1", problems)
    assert problems.found == []
    for wrong in ("ten", "1.", "nan", "1e3", "-1", ""):
        site.check_said(site.numbers_as_such({name: wrong}), "h1", problems)
    assert len(problems.found) == 6
