"""A connection that is lost: Ansible's own way, or a failure that a rescue sees, as the tasks ask for it."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve import remote
from ansible.module_utils.ironserve.slices import RECONNECT_TIMEOUT_S


class LostError(Exception):
    pass


def link(**variables):
    return remote.link(variables, lambda value: 5 if value == "{{ five }}" else value, LostError)


def lose():
    raise LostError("no route\nto host")


def test_nobody_asked_so_the_host_is_unreachable():
    with pytest.raises(LostError):
        link().attempt("main was starting", lose)
    with pytest.raises(LostError):
        link(serve_lost_fails="false").attempt("main was starting", lose)


@pytest.mark.parametrize("yes", [True, "true", "True", "yes"])
def test_a_roll_gets_a_failure_that_says_what_was_going_on(yes):
    answer = link(serve_lost_fails=yes).attempt("main was starting", lose)
    assert (answer["failed"], answer["lost"]) == (True, True)
    assert answer["msg"] == "connection lost while main was starting"
    assert answer["error"] == "no route\nto host"


def test_an_answer_is_handed_on():
    assert link(serve_lost_fails=True).attempt("main was starting", lambda: {"changed": True}) == {"changed": True}


def test_how_long_a_host_may_stay_away_is_the_tasks_to_say():
    assert link().reconnect_timeout_s == RECONNECT_TIMEOUT_S
    assert link(serve_reconnect_timeout_s="{{ five }}").reconnect_timeout_s == 5
