"""From what is on a host to the steps of a release: nothing to do is a result of its own."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve.releases import State, decide
from ansible.module_utils.ironserve.render import changed_directives, render_id, staged_id

LAUNCHER = "/opt/ironserve/runtime/launch"
UNIT = "[Service]\nExecStart=/bin/a --n 16\n"
RELEASE = {
    "release_id": "aaaaaaaaaaaa", "engine": "vllm", "lock_id": "l", "model": {"path": "/m"}, "flags": {"n": 16},
    "env": {}, "profile": "p", "startup_timeout_s": 9, "completion_timeout_s": 9,
}  # fmt: skip
WISHED = staged_id("aaaaaaaaaaaa", UNIT)
PATH = "/etc/systemd/system/ironserve-main.service"
RUNNING = {"MainPID": "42", "ActiveState": "active", "UnitFileState": "enabled"}
SETTLED = State(True, WISHED, WISHED, RELEASE, UNIT, RUNNING, False, True, [], True)
FRESH = State(False, None, None, {}, None, {"MainPID": "0", "ActiveState": "inactive"}, False, False, [LAUNCHER], True)


def plan(state=SETTLED, wish="active", release=RELEASE, unit=UNIT, **changes):
    state = State(**{**vars(state), **changes})
    return decide(state, wish, staged_id(release["release_id"], unit), release, unit, PATH)


def test_a_settled_host_has_nothing_to_do():
    result = plan().result()
    assert (result["settled"], result["changed"], result["restart"], result["reasons"]) == (True, False, False, [])
    assert "diff" not in result


def test_a_new_comment_changes_nothing():
    assert render_id(UNIT) == render_id("# by somebody\n" + UNIT + "\n")
    assert plan(unit="# new\n" + UNIT).result()["settled"]


def test_a_fresh_host_gets_everything():
    result = plan(FRESH).result()
    assert result["actions"] == [f"write {LAUNCHER}", f"stage {WISHED}", f"write {PATH}", f"activate {WISHED}"]
    assert result["reasons"] == ["no release is active", "the unit is inactive"]
    assert result["diff"]["before"] == ""
    assert result["diff"]["after"] == UNIT
    assert not result["restart"]


def test_staging_touches_neither_unit_nor_link():
    assert plan(FRESH, wish="present").actions == [f"write {LAUNCHER}", f"stage {WISHED}"]


def test_a_changed_flag_is_named_and_restarts():
    new = {**RELEASE, "release_id": "bbbbbbbbbbbb", "flags": {"n": 8, "x": True}}
    result = plan(release=new, unit=UNIT.replace("16", "8"), staged=False).result()
    assert result["reasons"] == ["flag --n: 16 -> 8", "flag --x: not set -> True"]
    assert result["restart"]
    assert result["previous_id"] == WISHED


def test_another_engine_is_named_without_all_its_flags():
    new = {**RELEASE, "release_id": "bbbbbbbbbbbb", "engine": "sglang", "flags": {"x": True}}
    assert plan(release=new, staged=False).result()["reasons"] == ["engine: vllm -> sglang"]


def test_a_changed_directive_is_named_and_restarts():
    result = plan(unit=UNIT + "Nice=5\n", staged=False).result()
    assert result["reasons"] == ["unit: + Nice=5"]
    assert result["restart"]


def test_another_name_for_the_same_settings_restarts_nothing():
    result = plan(release={**RELEASE, "profile": "q"}, staged=False).result()
    assert result["reasons"] == ["profile: p -> q (no restart)"]
    assert result["actions"] == [f"stage {WISHED}"]
    assert not result["restart"]


def test_a_start_that_never_passed_the_gate_is_not_settled_and_not_restarted():
    result = plan(good=None).result()
    assert result["reasons"] == ["the active release has not passed the gate"]
    assert (result["changed"], result["restart"], result["running"]) == (False, False, True)


def test_another_version_of_the_launcher_restarts_nothing():
    result = plan(stale=[LAUNCHER]).result()
    assert result["actions"] == [f"write {LAUNCHER}"]
    assert not result["settled"]
    assert not result["restart"]


def test_a_server_that_still_starts_is_waited_for():
    loading = {**RUNNING, "ActiveState": "activating"}
    assert plan(show=loading).result()["reasons"] == ["the server is still starting"]


def test_a_gate_that_never_let_go_is_not_settled():
    assert plan(gated=True).result()["reasons"] == ["the active release has not passed the gate"]


def test_a_process_of_an_older_release_is_not_settled_and_restarts():
    result = plan(current=False).result()
    assert result["reasons"] == ["an older release still runs"]
    assert (result["changed"], result["restart"]) == (False, True)


@pytest.mark.parametrize("state", ["failed", "inactive"])
def test_a_server_that_is_down_is_a_reason(state):
    result = plan(show={"MainPID": "0", "ActiveState": state, "UnitFileState": "enabled"}).result()
    assert result["reasons"] == [f"the unit is {state}"]
    assert not result["changed"]


def test_a_unit_that_somebody_edited_is_put_back():
    result = plan(unit=UNIT, **{}).result()
    assert result["settled"]
    edited = decide(
        State(**{**vars(SETTLED), "unit": UNIT + "Nice=1\n"}), "active", WISHED, RELEASE, UNIT, PATH
    ).result()
    assert edited["reasons"] == ["the unit file is not the one that was activated"]
    assert edited["actions"] == [f"write {PATH}"]
    assert edited["restart"]


def test_an_interrupted_activation_is_finished():
    half = plan(active=None, good=None, release=RELEASE)
    assert half.actions == [f"activate {WISHED}"]


def test_proving_is_done_once():
    assert plan(wish="proven").actions == []
    assert plan(wish="proven", good=None).actions == [f"last-known-good {WISHED}, enabled at boot"]
    assert plan(wish="proven", gated=True).actions != []


def test_changed_directives_leave_comments_out():
    assert changed_directives("# a\nA=1\nB=2", "# b\nA=1\nB=3") == ["- B=2", "+ B=3"]


OLDER = {"release": WISHED, "activated": 7.5, "started": "8000000"}


@pytest.mark.parametrize(
    ("before", "show", "restart"),
    [
        (OLDER, {}, False),
        ({**OLDER, "release": "another"}, {}, True),
        (OLDER, {"ExecMainStartTimestampMonotonic": "9000000"}, True),
        ({}, {}, True),
    ],
    ids=["its-own", "of-another-release", "started-since", "not-known"],
)
def test_an_activation_that_is_taken_back_restarts_nothing_if_the_old_process_still_runs(before, show, restart):
    show = {**RUNNING, "ExecMainStartTimestampMonotonic": "8000000", **show}
    newer = {**RELEASE, "release_id": "bbbbbbbbbbbb", "flags": {"n": 8}}
    state = {"active": "bbbbbbbbbbbb-1", "unit": UNIT.replace("16", "8"), "current": False, "show": show}
    back = decide(State(**{**vars(SETTLED), **state, "release": newer, "before": before}), "active", WISHED, RELEASE,
                  UNIT, PATH)  # fmt: skip
    assert back.actions == [f"write {PATH}", f"activate {WISHED}"]
    assert back.result()["restart"] == restart
    assert back.resumed_at == (None if restart else 7.5)


def test_the_last_start_is_told_for_what_is_wished():
    assert plan(expected_s=130.5).result()["expected_s"] == 130.5
    assert plan().result()["expected_s"] is None
