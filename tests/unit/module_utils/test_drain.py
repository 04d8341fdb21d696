"""Drain: when a server has nothing left, and what is said of what it has."""

from __future__ import annotations

import itertools
import json

import pytest
from ansible.module_utils.ironserve import drain, host, ports
from ansible.module_utils.ironserve.drain import Drain, Look, Requests, Server
from ansible.module_utils.ironserve.engines import vllm

IDLE = Requests(0, 0)


def verdicts(*looks: Look, every_s: float = 0.5) -> list[bool]:
    state = Drain()
    return [state.is_empty(look, number * every_s) for number, look in enumerate(looks)]


def test_two_looks_that_show_nothing_are_enough_where_no_connection_is_open():
    assert verdicts(Look(Requests(1, 0), 1), Look(IDLE, 0), Look(IDLE, 0)) == [False, False, True]


def test_a_request_between_two_looks_starts_the_count_anew():
    assert verdicts(Look(IDLE, 0), Look(Requests(0, 1), 1), Look(IDLE, 0), Look(IDLE, 0)) == [False, False, False, True]


def test_numbers_of_zero_over_an_open_connection_have_to_last():
    """A prompt in its first step is in no number yet, and its connection is there."""
    looks = [Look(IDLE, 1)] * 14
    assert verdicts(*looks).index(True) == 12  # 6 s at two looks a second
    assert not any(verdicts(*looks[:11], Look(Requests(1, 0), 1), *looks[:11]))


def test_an_engine_that_tells_nothing_is_empty_when_no_connection_is_open():
    assert verdicts(Look(None, 2), Look(None, 0), Look(None, 0)) == [False, False, True]


METRICS = """\
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_running{engine="1"} 1.0
vllm:num_requests_waiting{engine="0"} 4.0
"""


def test_requests_are_read_from_vllms_metrics_over_all_engines():
    assert drain.from_metrics(METRICS, *vllm.REQUEST_METRICS) == (3, 4)
    assert drain.from_metrics("", *vllm.REQUEST_METRICS) is None


LOAD = {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 1, "num_waiting_uncached_tokens": 0}


@pytest.mark.parametrize(
    ("document", "requests"),
    [
        ({"loads": [LOAD, {**LOAD, "dp_rank": 1}]}, (6, 2)),
        ({"loads": [{**LOAD, "num_running_reqs": 0, "num_waiting_reqs": 0}]}, (0, 0)),
        # A long prompt that is worked on in pieces.
        ({"loads": [{**LOAD, "num_running_reqs": 0, "num_waiting_reqs": 0, "num_waiting_uncached_tokens": 9}]}, (0, 1)),
        ({"loads": []}, None),
        ({"detail": "Not Found"}, None),
        ({"loads": [{"num_running_reqs": None}]}, None),
    ],
)
def test_requests_are_read_from_sglangs_loads(document, requests):
    assert drain.from_loads(document) == requests


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (Look(Requests(3, 1), 5), "3 requests run, 1 waits"),
        (Look(Requests(1, 0), 5), "1 request runs, 0 wait"),
        (Look(IDLE, 2), "no request left, 2 connections still open"),
        (Look(None, 2), "2 connections open, the engine does not tell its requests"),
    ],
)
def test_what_is_left_is_said(look, said):
    assert drain.left(look) == said


TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100000A:1F40 0300000A:C001 01 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 0100000A:1F40 0300000A:C002 06 00000000:00000000 00:00000000 00000000     0        0 0 1
   3: 0100000A:C003 0300000A:1F40 01 00000000:00000000 00:00000000 00000000     0        0 3 1
"""


def test_open_connections_to_a_port_are_counted_and_no_others():
    assert ports.established(TCP, 8000) == 1
    assert ports.established("", 8000) == 0


class Scene:
    """A service whose looks are given; time goes on by itself."""

    def __init__(self, folder, monkeypatch) -> None:
        monkeypatch.setattr(host, "STATE", folder)
        active = folder / "main" / "active"
        active.mkdir(parents=True)
        (active / "release.json").write_text(json.dumps({"engine": "vllm", "port": 8000, "url": "http://127.0.0.1:1"}))
        self.now, self.looks, self.running, self.active = 0.0, iter(()), True, active

    def drained(self, *looks: Look, timeout_s: float = 60, cursor=None, slice_s: float = 0, check: bool = False):
        self.looks = itertools.chain(looks[:-1], itertools.repeat(looks[-1])) if looks else self.looks
        server = Server(
            "main", check, lambda release, key: next(self.looks), lambda unit: self.running, lambda: self.now, self.wait
        )
        return server.drained(timeout_s, cursor or {}, slice_s)

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def scene(tmp_path, monkeypatch):
    return Scene(tmp_path, monkeypatch)


def test_a_server_is_waited_for_until_its_last_request_ended(scene):
    answer = scene.drained(Look(Requests(2, 1), 3), Look(Requests(1, 0), 3), Look(IDLE, 0))
    assert (answer["state"], answer["cut"], answer["elapsed_s"]) == ("drained", 0, 1.5)


def test_requests_that_are_left_in_time_are_counted_and_no_failure(scene):
    answer = scene.drained(Look(Requests(2, 1), 3), timeout_s=10)
    assert (answer["state"], answer["cut"]) == ("timeout", 3)
    assert answer["msg"] == "main was waited for 10s, and no longer: 2 requests run, 1 waits"
    assert not answer["changed"]


def test_an_engine_that_tells_nothing_leaves_it_unknown_what_was_cut(scene):
    answer = scene.drained(Look(None, 2), timeout_s=10)
    assert (answer["state"], answer["cut"], answer["running"]) == ("unknown", 2, -1)


def test_a_server_that_does_not_run_has_nothing_to_wait_for(scene):
    scene.running = False
    assert scene.drained(Look(IDLE, 0))["state"] == "not_running"
    (scene.active / "release.json").unlink()
    assert scene.drained(Look(IDLE, 0))["state"] == "not_running"


def test_slices_go_on_where_the_last_one_ended(scene):
    first = scene.drained(*[Look(Requests(1, 0), 1)] * 20, Look(IDLE, 0), slice_s=5)
    assert first["state"] == "waiting"
    assert not first["slice"]["done"]
    assert first["slice"]["phase"] == "draining, 1 request runs, 0 wait"
    second = scene.drained(cursor=first["slice"]["cursor"], slice_s=60)
    assert (second["state"], second["elapsed_s"]) == ("drained", 10.0)  # since the first slice began


def test_the_time_limit_holds_over_slices(scene):
    answer = scene.drained(Look(Requests(1, 0), 1), timeout_s=12, slice_s=5)
    while answer["state"] == "waiting":
        answer = scene.drained(cursor=answer["slice"]["cursor"], timeout_s=12, slice_s=5)
    assert (answer["state"], answer["elapsed_s"]) == ("timeout", 12.0)


def test_check_mode_looks_once(scene):
    answer = scene.drained(Look(Requests(2, 0), 2), check=True)
    assert (answer["state"], answer["running"], scene.now) == ("drained", 2, 0.0)
    assert answer["msg"] == "main would be waited for: 2 requests run, 0 wait"
