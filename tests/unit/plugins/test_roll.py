"""Which hosts a roll goes over, which go back, and what is said of one whose turn failed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLAN = {
    "order": ["h1", "h2", "h3", "h4"],
    "serial": [1, 1, 2],
    "batches": [{"name": "canary", "hosts": ["h1"]}, {"name": "batch 2 of 3", "hosts": ["h2"]},
                {"name": "batch 3 of 3", "hosts": ["h3", "h4"]}],
}  # fmt: skip
BEFORE = {"release_id": "new", "render_id": "r", "last_known_good_id": "old-r", "serve_release": {"service": "main"}}


@pytest.fixture(scope="module")
def roll():
    """The filter plugin."""
    spec = importlib.util.spec_from_file_location("ironserve_roll", ROOT / "plugins/filter/ironserve_roll.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fleet(verdicts, before=BEFORE, **registered):
    """Groups and hostvars of hosts with these verdicts of their turns."""
    hostvars = {
        f"h{number}": {
            "deploy_plan": PLAN,
            "deploy_differing": [{"service": "main"}],
            "serve_compared": {"results": [before]},
            "roll_outcome": {"verdict": verdict} if verdict else None,
            **registered.get(f"h{number}", {}),
        }
        for number, verdict in enumerate(verdicts, 1)
    }
    return {"deploy_differs": ["h4", "h2", "h1", "h3"]}, hostvars


def test_the_order_and_the_batches_are_those_of_the_plan_and_a_run_that_only_plans_has_none(roll):
    groups, hostvars = fleet([None] * 4)
    assert roll.roll_order(groups, hostvars, False) == PLAN["order"]
    assert roll.roll_serial(groups, hostvars) == PLAN["serial"]
    assert roll.roll_order(groups, hostvars, True) == []
    assert (roll.roll_order({}, {}, False), roll.roll_serial({}, {})) == ([], [1])


@pytest.mark.parametrize(
    ("verdicts", "revert_all", "back"),
    [
        (["moved"] * 4, True, []),
        (["moved", "moved", "failed", "moved"], True, ["h4", "h2", "h1"]),
        (["moved", "moved", "lost", "not reached"], True, ["h2", "h1"]),
        (["moved", "failed", "not reached", "not reached"], False, []),
        (["moved", "moved", None, None], True, ["h2", "h1"]),
    ],
    ids=["whole", "one-failed", "one-lost", "not-asked-for", "broke-off"],
)
def test_of_a_roll_that_is_not_whole_all_that_moved_go_back_where_that_is_asked_for(roll, verdicts, revert_all, back):
    assert roll.roll_moved(*fleet(verdicts), revert_all) == back


def test_a_canary_that_soaked_badly_goes_back_whether_the_others_shall_or_not(roll):
    bad = {"roll_soak": {"soak": {"state": "bad", "why": "12 of 700 requests failed"}}}
    groups, hostvars = fleet(["moved", "not reached", "not reached", "not reached"], h2=bad)
    assert roll.roll_moved(groups, hostvars, False) == ["h1"]
    assert roll.roll_moved(groups, hostvars, True) == ["h1"]


@pytest.mark.parametrize(
    ("before", "to"),
    [
        ({}, [{"service": "main", "to": "old-r"}]),
        ({"previous_id": "new-r"}, [{"service": "main", "to": "old-r"}]),  # a run before this one broke off
        ({"last_known_good_id": ""}, []),
        ({"last_known_good_id": "new-r"}, []),
    ],
    ids=["moved", "resumed", "first-deploy", "only-admitted"],
)
def test_a_host_goes_back_to_what_was_good_there_last_and_stays_where_nothing_was(roll, before, to):
    groups, hostvars = fleet(["moved", "failed", None, None], {**BEFORE, **before})
    assert roll.take_back(hostvars["h1"]) == to
    assert roll.roll_moved(groups, hostvars, True) == (["h1"] if to else [])


@pytest.mark.parametrize(
    ("seen", "verdict", "serving"),
    [
        ({}, "failed", True),
        ({"serve_times": {"main": {"out": 1.0}}}, "failed", False),
        ({"serve_times": {"main": {"out": 1.0, "back": 2.0}}}, "failed", True),
        ({"serve_times": {"main": {"out": 1.0, "back": 2.0}, "embed": {"out": 3.0}}}, "failed", False),
        ({"serve_lost": {"main": "main was starting"}}, "lost", False),
    ],
    ids=["before-anything", "out", "put-back", "one-of-two-out", "lost"],
)
def test_a_host_that_failed_counts_as_serving_only_if_all_that_went_out_is_back(roll, seen, verdict, serving):
    outcome = roll.roll_failure({"msg": "why"}, seen)
    assert outcome == {"verdict": verdict, "cause": "why", "serving": serving}
