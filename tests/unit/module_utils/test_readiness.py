"""The readiness helper: what it tells systemd, and when it tells nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable

import pytest
from ansible.module_utils.ironserve import host, probe, readiness
from ansible.module_utils.ironserve.engines import vllm
from ansible.module_utils.ironserve.judge import Seen, Verdict, judge
from ansible.module_utils.ironserve.ranks import Ranks
from ansible.module_utils.ironserve.readiness import Helper, Work, condition, work

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


class Start:
    """A start that shows what the test's world says."""

    def __init__(self, world: World) -> None:
        self.world, self.gpus, self.ranks = world, None, Ranks(vllm, 0)

    def look(self, at: float, excused: bool, generates: bool) -> Seen:
        self.world.looks.append((round(at), excused))
        return Seen(elapsed_s=at, limit_s=65.0, generates_s=5.0 if generates else 0.0)._replace(**self.world.shows)

    def look_at_ranks(self, at: float) -> Ranks:
        self.ranks.lost = dict(self.world.lost)
        return self.ranks

    def pids(self) -> list[int]:
        return []


class World:
    """A clock, what a start shows, and findings that follow it; keeps what systemd was told."""

    def __init__(self) -> None:
        self.now, self.told, self.found, self.events, self.asked = 0.0, [], {}, [], 0
        self.ends_at, self.shows, self.looks, self.lost = 1e9, {}, [], {}

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
    monkeypatch.setattr(readiness, "Start", lambda *_: Start(world))
    monkeypatch.setattr(readiness.nvml, "kernel_gpus", list)
    monkeypatch.setattr(host, "RUNTIME", tmp_path)
    monkeypatch.setattr(host, "start_ticks", lambda pid: 7 if world.now < world.ends_at else None)
    monkeypatch.setattr(probe, "read", lambda *_: world.found)
    monkeypatch.setattr(probe, "watch", watch)
    monkeypatch.setattr(readiness.threading, "Thread", AtOnce)
    world.folder = tmp_path
    return world


def helper(world: World, watchdog_s: float = 0, **more) -> Helper:
    return Helper({**RELEASE, **more}, os.getpid(), "i", "", watchdog_s, 0, world.say, lambda: world.now, world.sleep)


@pytest.fixture
def ended(world, monkeypatch):
    """Why the helper ended the engine, and when."""
    told = []

    def end(self, verdict: Verdict) -> None:
        told.append((round(world.now), *verdict))

    monkeypatch.setattr(Helper, "_end", end)
    return told


def test_ready_is_said_when_tokens_come(world, ended):
    world.at(41, lambda: world.found.update(outcome="ready"))
    world.ends_at = 50
    helper(world).run()
    assert ended == []
    assert world.times("READY=1") == [41]


@pytest.mark.parametrize(
    ("shows", "ends_s", "verdict", "words"),
    [
        ({"stalled": True, "stall_s": 10, "described": "log silent for 12s"}, 3, "stalled", "log silent for 12s"),
        ({"lost_s": 2.0, "ranks": "7 of 8 ranks; sglang::scheduler_TP3 (pid 9) died"}, 3, "failed", "scheduler_TP3"),
        ({"fatal": "EngineDeadError", "fatal_s": 3.0}, 3, "failed", "EngineDeadError"),
        ({}, 65, "timeout", "not ready after 1m05s"),
    ],
)
def test_a_start_that_the_judge_calls_bad_is_ended(world, ended, shows, ends_s, verdict, words):
    world.at(3, lambda: world.shows.update(shows))
    world.ends_at = 90
    helper(world).run()
    assert [(at, said) for at, said, _ in ended] == [(ends_s, verdict)]
    assert words in ended[0][2]
    assert not world.times("READY=1")


def test_a_first_completion_that_takes_long_is_no_stillness(world, ended):
    world.at(3, lambda: world.found.update(health=200))
    world.at(30, lambda: world.found.update(outcome="ready"))
    world.ends_at = 40
    helper(world).run()
    assert world.times("READY=1") == [30]
    assert {excused for at, excused in world.looks if 5 < at < 28} == {True}
    assert {excused for at, excused in world.looks if at < 3} == {False}


def test_case_28_a_token_from_seven_of_eight_ranks_is_not_ready(world, ended):
    world.found.update(outcome="ready")
    world.shows.update(missing=1, ranks="7 of 8 ranks", generates_s=0.2)
    world.at(4, lambda: world.shows.update(generates_s=5.0))
    world.ends_at = 20
    helper(world).run()
    assert not world.times("READY=1")
    assert ended[0][2] == "it generates, and not all of its ranks are there: 7 of 8 ranks"


def test_case_55_a_host_that_follows_is_ready_with_its_ranks_and_asked_nothing(world, ended, monkeypatch):
    following = helper(world, 40, flags={"node-rank": "1", "nnodes": "2", "tensor-parallel-size": "16"})
    monkeypatch.setattr(host, "get", lambda *_, **__: pytest.fail("a dummy server that always says 200 was asked"))
    world.at(6, lambda: setattr(following.watched.ranks, "count", 8))
    world.ends_at = 60
    following.run()
    assert world.times("READY=1") == [6]
    assert world.asked == 0
    assert world.times("WATCHDOG=1")
    found = json.loads(probe.result_path("main", "i").read_text())
    assert judge({"ActiveState": "active", "MainPID": "1"}, found, 7, 60).verdict == "ready"


def test_case_55_a_dead_rank_of_a_host_that_follows_ends_it(world, ended):
    following = helper(world, 40, flags={"node-rank": "1"})
    following.watched.ranks.count = 8
    world.at(10, lambda: world.lost.update({"sglang::scheduler_TP9 (pid 7)": 10.0}))
    world.ends_at = 100
    following.run()
    assert [(at, verdict) for at, verdict, _ in ended] == [(40, "failed")]


def test_an_engine_that_served_and_lost_a_process_is_ended_unless_it_ends_by_itself(world, ended, monkeypatch):
    runs = serving(world, monkeypatch, lambda: (0.0, 5.0))
    world.at(10, lambda: world.lost.update({"VLLM::Worker_TP3 (pid 7)": 10.0}))
    world.ends_at = 60
    runs.run()
    assert [(at, verdict) for at, verdict, _ in ended] == [(40, "failed")]
    assert "VLLM::Worker_TP3 (pid 7) died" in ended[0][2]


def test_a_server_that_answers_wrongly_is_asked_again_and_may_become_ready(world, ended):
    world.at(2, lambda: world.found.update(outcome="wrong_model", detail="serves x"))
    world.at(15, lambda: world.found.update(outcome="ready"))
    world.ends_at = 18
    helper(world).run()
    assert world.times("STATUS=not ready: wrong_model") == [2]
    assert world.times("READY=1") == [15]
    assert world.asked == 12  # at each of eleven looks before there was an outcome, and once ten seconds after it


def test_the_engine_that_is_ended_is_the_one_that_was_started(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "RUNTIME", tmp_path)
    monkeypatch.setattr(readiness, "GATE_DROP_IN", f"{tmp_path}/none")
    (tmp_path / "main").mkdir()
    engine = subprocess.Popen(["/bin/sleep", "60"])
    found = Helper(RELEASE, engine.pid, "i", "", 0)
    found._end(Verdict("stalled", "nothing moves"))
    assert engine.wait(10) == -signal.SIGKILL
    assert probe.read("main", "i") == {"outcome": "stalled", "detail": "nothing moves", "final": True}
    found._end(Verdict("stalled", "nothing moves"))  # of a process that is gone: no other is touched


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
    found._end(Verdict("stalled", "nothing moves"))
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


def test_one_look_between_a_request_and_its_first_token_is_no_hang(world, monkeypatch):
    world.ends_at = 45
    runs = serving(world, monkeypatch, lambda: (1.0, 5.0 if 18 < world.now < 22 else world.now))
    runs.run()
    assert not any("no token comes" in said for _, said in world.told)
    assert len(world.times("WATCHDOG=1")) >= 3


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
