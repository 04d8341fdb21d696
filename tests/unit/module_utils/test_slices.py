"""The loop that drives slices: what it prints, when, and what it does about a lost connection."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve.slices import drive, duration, line


class LostError(Exception):
    pass


class Clock:
    """Time that passes only when somebody works or sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def run(steps, reconnect_timeout_s=10.0):
    """Drive through ``steps``: (seconds, result or exception). Returns the result, the lines, the cursors handed in."""
    clock, said, cursors, left = Clock(), [], [], iter(steps)

    def execute(cursor):
        cursors.append(cursor)
        seconds, outcome = next(left)
        clock.now += seconds
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    result = drive(execute, said.append, "h1", "main", LostError, reconnect_timeout_s, clock, clock.sleep)
    return result, said, cursors


def waiting(phase, progress="", cursor=None, expected_s=None):
    state = {"done": False, "phase": phase, "progress": progress, "expected_s": expected_s, "cursor": cursor or {}}
    return {"slice": state}


DONE = {"changed": True, "slice": {"done": True, "phase": "", "progress": "", "expected_s": None, "cursor": {}}}


def test_a_line_for_each_change_and_the_cursor_handed_on():
    result, said, cursors = run(
        [(5, waiting("loading", "1/4", {"n": 1})), (5, waiting("loading", "2/4", {"n": 2})), (1, DONE)]
    )
    assert result is DONE
    assert said == ["[h1] main: loading 1/4, 5s", "[h1] main: loading 2/4, 10s"]
    assert cursors == [{}, {"n": 1}, {"n": 2}]


def test_no_line_without_a_change_but_one_every_15_seconds():
    _, said, _ = run([(5, waiting("loading"))] * 7 + [(1, DONE)])
    assert said == ["[h1] main: loading, 5s", "[h1] main: loading, 20s", "[h1] main: loading, 35s"]


def test_the_expected_time_stands_in_the_line():
    assert line("h1", "main", "loading", "", 70, 125) == "[h1] main: loading, 1m10s (last time 2m05s in all)"


def test_a_failure_ends_it():
    failed = {"failed": True, "msg": "no"}
    assert run([(1, failed)])[0] is failed


def test_a_lost_connection_is_said_and_tried_again():
    result, said, cursors = run([(1, waiting("loading", cursor={"n": 1})), (1, LostError("broken pipe")), (1, DONE)])
    assert result is DONE
    assert said[1:] == [
        "[h1] main: connection lost (broken pipe); trying for 10s",
        "[h1] main: connected again after 3s",
    ]
    assert cursors == [{}, {"n": 1}, {"n": 1}]


def test_a_connection_that_stays_lost_is_passed_on():
    with pytest.raises(LostError):
        run([(1, LostError("gone"))] * 20)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.9, "59s"), (60, "1m00s"), (130, "2m10s"), (3900, "1h05m")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
