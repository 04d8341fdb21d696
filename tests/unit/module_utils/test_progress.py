"""Slow or hung."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve.progress import Progress, stall_limit_s

QUIET = {"log": "log silent", "io": "reads nothing", "cpu": "CPUs idle"}


def watched(seconds: int, moves: dict[str, int], said: dict[str, str] | None = None, step: float = 1.0) -> Progress:
    """A start in which each of ``moves`` moves every so many seconds."""
    progress = Progress(0.0)
    for number in range(1, int(seconds / step) + 1):
        at = number * step
        progress.look({name for name, every in moves.items() if at % every == 0}, said or QUIET, at)
    return progress


@pytest.mark.parametrize("name", ["log", "io", "cpu", "gpu_memory"])
def test_any_signal_that_moves_is_progress(name):
    assert not watched(5000, {name: 60}).is_stalled(900)
    assert watched(5000, {}).is_stalled(900)


def test_nothing_is_stalled_a_moment_before_its_limit():
    assert not watched(899, {}).is_stalled(900)
    assert watched(900, {}).is_stalled(900)


def test_case_57_a_silent_log_alone_is_no_hang():
    assert not watched(5000, {}, {"log": "log silent"}).is_stalled(900)
    assert watched(5000, {}, {"log": "log silent", "cpu": "CPUs idle"}).is_stalled(900)


def test_what_nobody_could_see_does_not_count():
    progress = watched(10, {})
    progress.look((), QUIET, 4000.0)  # the host was suspended for an hour
    assert progress.still_s == 15.0


def test_while_a_completion_with_its_own_limit_is_waited_for_nothing_stalls():
    progress = Progress(0.0)
    for at in range(1, 2000):
        progress.look((), QUIET, float(at), excused=at < 1500)
    assert progress.still_s == 500.0


@pytest.mark.parametrize(
    ("said", "phase", "limit"),
    [
        (900, "loading weights", 900),
        ({"capturing CUDA graphs": 300}, "capturing CUDA graphs", 300),
        ({"capturing CUDA graphs": 300}, "loading weights", 900),
        ({"default": 100, "capturing CUDA graphs": 300}, "", 100),
        (None, "", 900),
    ],
)
def test_a_phase_may_have_a_limit_of_its_own(said, phase, limit):
    assert stall_limit_s(said, phase) == limit


def test_every_signal_says_when_it_moved():
    progress = watched(100, {"io": 40})
    assert progress.plain(100.0) == {
        "log": {"age_s": 100.0, "what": "log silent"},
        "io": {"age_s": 20.0, "what": "reads nothing"},
        "cpu": {"age_s": 100.0, "what": "CPUs idle"},
    }
    assert progress.described(100.0) == "log silent for 1m40s, reads nothing for 20s, CPUs idle for 1m40s"
