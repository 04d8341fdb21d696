"""The readiness helper: what it tells systemd, and when it tells nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

import pytest
from ansible.module_utils.ironserve import host, probe, readiness
from ansible.module_utils.ironserve.engines import vllm
from ansible.module_utils.ironserve.readiness import Helper, LogWatch, Work, condition, work

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 4.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 100.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 1e+06
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 7.0
"""


def test_work_is_added_up_over_engines():
    assert work(METRICS, vllm.WORK_METRICS) == Work(7.0, 1_000_100.0)


@pytest.mark.parametrize("text", ["", "<html>", METRICS.replace("generation", "other")])
def test_metrics_that_are_not_those_of_the_engine_say_nothing(text):
    assert work(text, vllm.WORK_METRICS) is None


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (None, Work(0, 10), "idle"),
        (None, Work(3, 10), "stuck"),
        (Work(3, 10), Work(3, 10), "stuck"),
        (Work(3, 10), Work(3, 11), "moves"),
        (Work(3, 10), Work(0, 11), "moves"),
        (Work(0, 10), Work(0, 10), "idle"),
        (Work(3, 10), None, "mute"),
    ],
)
def test_what_two_looks_at_an_engine_say(before, now, what):
    assert condition(before, now) == what


def test_a_log_moves_by_what_the_engine_writes_and_not_by_our_own_questions(tmp_path):
    log = tmp_path / "main.log"
    watch = LogWatch(log)
    assert not watch.moved()
    log.write_text("loading 1/4\r")
    assert watch.moved()
    assert not watch.moved()
    with log.open("a") as file:
        file.write('INFO:     127.0.0.1:4312 - "GET /health_generate HTTP/1.1" 503 Service Unavailable\n\n')
    assert not watch.moved()
    log.write_text("new\n")
    assert watch.moved()


RELEASE = {
    "service": "main", "engine": "vllm", "url": "http://127.0.0.1:1", "health_path": "/health", "model_name": "tiny",
    "startup_timeout_s": 60, "stall_timeout_s": 10, "completion_timeout_s": 5,
}  # fmt: skip


class AtOnce:
    """A thread that has run when it was started."""

    def __init__(self, target: Callable[..., None], args: tuple, daemon: bool) -> None:
        assert daemon  # the helper ends with the engine, whatever is being asked
        self.run = lambda: target(*args)

    def start(self) -> None:
        self.run()

    def is_alive(self) -> bool:
        return False


class World:
    """A clock, a log and findings that follow it; keeps what systemd was told."""

    def __init__(self) -> None:
        self.now, self.told, self.found, self.events, self.asked = 0.0, [], {}, [], 0
        self.ends_at = 1e9

    def at(self, second: float, action: Callable[[], object]) -> None:
        self.events.append((second, action))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for event in [event for event in self.events if event[0] <= self.now]:
            self.events.remove(event)
            event[1]()

    def say(self, *assignments: str) -> None:
        self.told += [(round(self.now), assignment) for assignment in assignments]

    def times(self, assignment: str) -> list[int]:
        return [second for second, said in self.told if said == assignment]


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World()

    def watch(*_) -> None:
        world.asked += 1

    (tmp_path / "main").mkdir()
    monkeypatch.setattr(host, "LOGS", tmp_path)
    monkeypatch.setattr(host, "RUNTIME", tmp_path)
    monkeypatch.setattr(host, "start_ticks", lambda pid: 7 if world.now < world.ends_at else None)
    monkeypatch.setattr(probe, "read", lambda *_: world.found)
    monkeypatch.setattr(probe, "watch", watch)
    monkeypatch.setattr(readiness.threading, "Thread", AtOnce)
    world.folder, world.log = tmp_path, tmp_path / "main.log"
    return world


def helper(world: World, watchdog_s: float = 0) -> Helper:
    return Helper(RELEASE, os.getpid(), "i", "", watchdog_s, world.say, lambda: world.now, world.sleep)


@pytest.fixture
def ended(world, monkeypatch):
    """Why the helper ended the engine, and when."""
    told = []

    def end(self, why: str) -> None:
        told.append((round(world.now), why))

    monkeypatch.setattr(Helper, "_end", end)
    return told


def test_a_log_that_moves_keeps_a_start_alive_and_ready_is_said_when_tokens_come(world, ended):
    for second in range(1, 40, 6):
        world.at(second, lambda second=second: world.log.open("a").write(f"{second}\n"))
    world.at(41, lambda: world.found.update(outcome="ready"))
    world.ends_at = 50
    helper(world).run()
    assert ended == []
    assert world.times("READY=1") == [41]


def test_a_start_in_which_nothing_moves_is_ended(world, ended):
    world.at(3, lambda: world.log.write_text("a\n"))
    world.ends_at = 30
    helper(world).run()
    assert ended == [(13, "nothing moved in its log for 10s (stall_timeout_s of the profile)")]
    assert not world.times("READY=1")


def test_a_first_completion_that_takes_long_is_no_silence(world, ended):
    world.at(3, lambda: world.found.update(health=200))
    world.at(30, lambda: world.found.update(outcome="ready"))
    world.ends_at = 40
    helper(world).run()
    assert ended == []
    assert world.times("READY=1") == [30]


def test_a_start_that_only_talks_is_ended_after_its_whole_limit(world, ended):
    for second in range(1, 80, 5):
        world.at(second, lambda second=second: world.log.open("a").write(f"{second}\n"))
    world.ends_at = 90
    helper(world).run()
    assert ended == [(65, "not ready after 1m05s (startup_timeout_s and completion_timeout_s)")]


def test_a_server_that_answers_wrongly_is_asked_again_and_may_become_ready(world, ended):
    world.at(2, lambda: world.found.update(outcome="wrong_model", detail="serves x"))
    world.at(9, lambda: world.log.write_text("moves\n"))
    world.at(15, lambda: world.found.update(outcome="ready"))
    world.ends_at = 18
    helper(world).run()
    assert world.times("STATUS=not ready: wrong_model") == [2]
    assert world.times("READY=1") == [15]
    assert world.asked == 12  # at each of eleven looks before there was an outcome, and once ten seconds after it


def test_the_engine_that_is_ended_is_the_one_that_was_started(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "RUNTIME", tmp_path)
    (tmp_path / "main").mkdir()
    engine = subprocess.Popen(["/bin/sleep", "60"])
    found = Helper(RELEASE, engine.pid, "i", "", 0)
    found._end("nothing moved")
    assert engine.wait(10) == -signal.SIGKILL
    assert probe.read("main", "i") == {"outcome": "stalled", "detail": "nothing moved"}
    found._end("nothing moved")  # of a process that is gone: no other is touched


def test_under_a_gate_the_engine_that_is_ended_is_left_for_evidence_first(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "RUNTIME", tmp_path)
    monkeypatch.setattr(readiness, "GATE_DROP_IN", str(tmp_path / "{unit}.conf"))
    (tmp_path / "main").mkdir()
    (tmp_path / "ironserve-main.service.conf").touch()
    engine = subprocess.Popen(["/bin/sleep", "60"])
    slept = []

    def sleep(seconds):
        assert engine.poll() is None
        assert probe.read("main", "i")["outcome"] == "stalled"
        slept.append(seconds)

    found = Helper(RELEASE, engine.pid, "i", "", 0, clock=lambda: sum(slept), sleep=sleep)
    found._end("nothing moved")
    assert engine.wait(10) == -signal.SIGKILL
    assert sum(slept) == pytest.approx(readiness.EVIDENCE_S, abs=0.3)


def test_a_helper_that_takes_over_goes_on_where_the_killed_one_was(world, monkeypatch):
    runs = serving(world, monkeypatch, lambda: (0.0, 5.0))
    (world.folder / "main" / "i.ready").write_text("")
    world.found = {}
    world.ends_at = 15
    runs.run()
    assert world.times("READY=1") == [0]
    assert world.times("WATCHDOG=1")


def test_metrics_that_cannot_be_read_are_no_crash_and_forget_nothing(world, monkeypatch):
    answers = iter([host.Answer(200, METRICS), host.Answer(0, "timed out"), host.Answer(500, "Internal Server Error"),
                    host.Answer(200, METRICS.replace("1e+06", "2e+06"))])  # fmt: skip
    monkeypatch.setattr(host, "get", lambda *_, **__: next(answers))
    monkeypatch.setattr(probe, "one_token", lambda *_: False)
    looks = [helper(world, 40).look] * 4
    assert [look(10)[0] for look in looks] == [False, False, False, True]


def test_a_server_that_counts_nothing_is_asked_for_a_token_with_patience(world, monkeypatch):
    waited = []
    monkeypatch.setattr(host, "get", lambda *_, **__: host.Answer(200, "# nothing\n"))
    monkeypatch.setattr(probe, "one_token", lambda _, timeout_s, __: waited.append(timeout_s) or True)
    assert helper(world, 40).look(10) == (True, "generating")
    assert waited == [20]


def serving(world, monkeypatch, looks: Callable[[], tuple[float, float] | None], one_token: bool = True) -> Helper:
    """A helper of a server that is ready; `looks` gives requests and tokens at each look."""
    world.found = {"outcome": "ready"}
    monkeypatch.setattr(host, "get", lambda *_, **__: host.Answer(200, ""))
    monkeypatch.setattr(readiness, "work", lambda *_: Work(*seen) if (seen := looks()) else None)
    monkeypatch.setattr(probe, "one_token", lambda *_: one_token)
    return helper(world, watchdog_s=40)


def test_the_watchdog_is_fed_while_tokens_come(world, monkeypatch):
    world.ends_at = 35
    serving(world, monkeypatch, lambda: (3.0, world.now)).run()
    assert len(world.times("WATCHDOG=1")) == 3  # the first look has nothing to compare with


def test_the_watchdog_is_fed_while_nothing_waits_and_one_token_comes(world, monkeypatch):
    world.ends_at = 35
    serving(world, monkeypatch, lambda: (0.0, 5.0)).run()
    assert len(world.times("WATCHDOG=1")) == 4


@pytest.mark.parametrize("looks", [(2.0, 5.0), None, (0.0, 5.0)], ids=["stuck", "mute", "idle-and-dead"])
def test_the_watchdog_is_not_fed_when_requests_wait_or_nobody_answers(world, monkeypatch, looks):
    world.ends_at = 35
    serving(world, monkeypatch, lambda: looks, one_token=False).run()
    assert not world.times("WATCHDOG=1")
    assert any("ended after 40 s of that" in said for _, said in world.told)


def test_a_finding_that_was_removed_is_asked_for_anew(world, monkeypatch):
    runs = serving(world, monkeypatch, lambda: (0.0, 5.0))
    world.at(5, lambda: world.found.pop("outcome"))
    world.at(8, lambda: world.found.update(outcome="ready"))
    world.ends_at = 12
    runs.run()
    assert world.asked >= 1
    assert world.times("READY=1") == [0]
