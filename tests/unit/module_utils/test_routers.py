"""Routers: what is meant and what a router has, against a small one that answers as sglang-router 0.3.2 does."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import select
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import routers
from ansible.module_utils.ironserve.routers import pool, sglang
from ansible.module_utils.ironserve.routers.pool import Pool

ROOT = Path(__file__).resolve().parents[3]
KEY = "sk-of-a-test"
H1, H2 = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


class FakeRouter:
    """sglang-router's own endpoints. ``slow`` of the next lists still say nothing of what was asked before."""

    def __init__(self) -> None:
        self.workers: dict[str, dict] = {}
        self.healthy, self.slow, self.asked, self.statuses = True, 0, [], itertools.repeat(0)
        self.pending: list = []
        router = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or "{}")
                status, text = router.reply(self.command, self.path, body, self.headers.get("Authorization"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_POST = do_DELETE = answer  # noqa: N815  the names are http.server's

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reply(self, method: str, path: str, body: dict, key: str | None) -> tuple[int, str]:
        if path == "/metrics":
            return 200, 'smg_worker_cb_outcomes_total{worker="http://10.0.0.1:8000",outcome="success"} 7\n'
        if (forced := next(self.statuses)) or key != f"Bearer {KEY}":
            return forced or 401, "not now" if forced else ""
        if method == "GET":
            if self.pending and self.slow <= 0:
                self.pending.pop(0)()
            self.slow -= 1
            return 200, json.dumps({"workers": [*self.workers.values()], "total": len(self.workers)})
        self.asked.append((method, body.get("url") or path, body.get("api_key")))
        if method == "POST":
            entry = {"id": f"id-{len(self.asked)}", "url": body["url"], "model_id": "unknown", "load": 0}
            self.pending.append(lambda: self.workers.setdefault(body["url"], {**entry, "is_healthy": self.healthy}))
            return 202, "{}"
        url = next((url for url, one in self.workers.items() if path == f"/workers/{one['id']}"), None)
        if url is None:
            return 404, "{}"
        self.pending.append(lambda: self.workers.pop(url))
        return 202, "{}"


@pytest.fixture
def router(tmp_path, monkeypatch):
    """A router with its settings in place; ``router.pool`` asks it, one second at most."""
    fake = FakeRouter()
    monkeypatch.setattr(pool.host, "show", lambda unit: {"ActiveState": "active"})
    settings, admitted = tmp_path / "router.json", tmp_path / "state" / "admitted.json"
    port = fake.server.server_port
    said = {"host": "0.0.0.0", "port": port, "metrics_host": "127.0.0.1", "metrics_port": port, "api_key": KEY}
    settings.write_text(json.dumps(said))

    def ask(timeout_s: float = 1, check: bool = False) -> Pool:
        clock = itertools.count(0, 0.25)
        return Pool("sglang", timeout_s, check, settings, admitted, lambda: next(clock), lambda _: None)

    fake.pool, fake.settings, fake.admitted = ask, settings, admitted
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


def meant(router) -> list[str]:
    return json.loads(router.admitted.read_text()) if router.admitted.exists() else []


def test_a_server_is_admitted_once_the_router_calls_it_healthy(router):
    router.slow = 1
    answer = router.pool().admitted(H1)
    assert answer["changed"]
    assert answer["msg"] == f"admitted {H1}"
    assert answer["workers"] == [{"url": H1, "healthy": True, "load": 0, "model": ""}]
    assert answer["admitted"] == meant(router) == [H1]
    assert router.asked == [("POST", H1, KEY)]
    assert answer["errors"] == {H1: {"ok": 7, "failed": 0}}


def test_a_second_time_nothing_is_asked_for(router):
    router.pool().admitted(H1)
    assert not router.pool().admitted(H1)["changed"]
    assert len(router.asked) == 1


def test_a_server_that_the_router_forgot_is_added_again(router):
    router.pool().admitted(H1)
    router.workers.clear()
    assert router.pool().admitted(H1)["changed"]
    assert meant(router) == [H1]


def test_a_server_that_is_drained_is_gone_from_router_and_file(router):
    router.pool().admitted(H1)
    router.pool().admitted(H2)
    router.slow = 1
    answer = router.pool().drained(H1)
    assert answer["changed"]
    assert [one["url"] for one in answer["workers"]] == [H2]
    assert meant(router) == [H2]
    assert not router.pool().drained(H1)["changed"]


@pytest.mark.parametrize("state", ["admitted", "drained"])
def test_check_mode_says_the_same_and_touches_nothing(router, state):
    if state == "drained":
        router.pool().admitted(H1)
    before, asked = meant(router), len(router.asked)
    answer = getattr(router.pool(check=True), state)(H1)
    assert answer["changed"]
    assert answer["msg"].startswith("would ")
    assert (meant(router), len(router.asked)) == (before, asked)


def test_a_server_that_is_never_healthy_is_a_failure_that_says_what_to_look_at(router):
    router.healthy = False
    with pytest.raises(routers.RouterError, match="the router calls it unhealthy") as failure:
        router.pool().admitted(H1)
    assert "the same command tries again" in str(failure.value)
    assert meant(router) == [H1]


def test_a_router_that_starts_is_asked_until_it_answers(router):
    router.statuses = itertools.chain([503, 503], itertools.repeat(0))
    assert router.pool().listed(0)["workers"] == []


def test_a_router_that_is_down_is_said_to_be_with_what_to_look_at(router):
    router.server.shutdown()
    router.server.server_close()
    with pytest.raises(routers.RouterError, match=r"does not answer: .*asked for 1 s.*journalctl -u ironserve-router"):
        router.pool().drained(H1)


def test_a_key_that_the_router_does_not_have_is_not_tried_again(router):
    router.settings.write_text(router.settings.read_text().replace(KEY, "sk-another"))
    with pytest.raises(routers.RouterError, match="is not the one that it runs with") as failure:
        router.pool(timeout_s=1000).listed(0)
    assert KEY not in str(failure.value)
    assert "sk-another" not in str(failure.value)


def test_a_host_without_a_router_says_how_to_get_one(router):
    router.settings.unlink()
    with pytest.raises(routers.RouterError, match="there is no router on this host"):
        router.pool()


def test_a_list_waits_for_as_many_as_are_wanted_and_then_no_longer(router):
    router.pool().admitted(H1)
    router.pending.append(lambda: router.workers.update({H2: {**router.workers[H1], "url": H2}}))
    router.slow = 2
    assert len(router.pool().listed(2)["workers"]) == 2
    assert len(router.pool().listed(3)["workers"]) == 2


def test_a_list_waits_until_all_that_are_admitted_are_listed_and_then_no_longer(router):
    router.pool().admitted(H1)
    router.admitted.write_text(json.dumps([H1, H2]))
    assert len(router.pool().listed(whole=True)["workers"]) == 1  # in vain, and no failure
    router.pending.append(lambda: router.workers.update({H2: {**router.workers[H1], "url": H2, "is_healthy": False}}))
    router.slow = 2
    assert len(router.pool().listed(whole=True)["workers"]) == 2


@pytest.mark.parametrize(("at_least", "goes"), [("0", True), ("1", True), ("2", False), ("33%", True), ("34%", False)])
@pytest.mark.parametrize("check", [False, True])
def test_a_server_stays_where_too_few_others_would_be_left(router, at_least, goes, check):
    """Three are admitted, of which two serve."""
    for url in (H1, H2, "http://10.0.0.3:8000"):
        router.pool().admitted(url)
    router.workers["http://10.0.0.3:8000"]["is_healthy"] = False
    before, asked = meant(router), len(router.asked)
    if goes:
        assert router.pool(check=check).drained(H1, at_least)["changed"]
        return
    with pytest.raises(
        routers.RouterError, match="without it 1 of 3 admitted servers are healthy, and at least 2"
    ) as no:
        router.pool(check=check).drained(H1, at_least)
    assert "ironserve_min_serving" in str(no.value)
    assert (meant(router), len(router.asked)) == (before, asked)


def test_a_server_that_gets_no_requests_may_always_go(router):
    router.pool().admitted(H1)
    router.workers[H1]["is_healthy"] = False
    assert router.pool().drained(H1, "100%")["admitted"] == []
    assert not router.pool().drained(H2, "100%")["changed"]


def test_of_those_that_leave_at_the_same_time_enough_stay(router):
    urls = [f"http://10.0.0.{number}:8000" for number in range(8)]
    for url in urls:
        router.pool().admitted(url)

    def leave(url: str) -> bool:
        try:
            return router.pool(timeout_s=1000).drained(url, "6")["changed"]
        except routers.RouterError:
            return False

    with ThreadPoolExecutor(8) as together:
        assert sum(together.map(leave, urls)) == 2
    assert len(meant(router)) == len(router.workers) == 6


def test_a_server_that_the_router_does_not_get_to_is_pending_no_longer_than_the_lock_is_held(router):
    router.slow = 1000
    with pytest.raises(routers.RouterError, match="does not list it"):
        router.pool(timeout_s=20).admitted(H1)
    assert router.slow < 1000 - pool.LISTED_S / 0.25


def test_many_hosts_come_at_the_same_time_and_none_is_lost(router):
    urls = [f"http://10.0.0.{number}:8000" for number in range(20)]
    together = [threading.Thread(target=router.pool(timeout_s=1000).admitted, args=(url,)) for url in urls]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    assert sorted(meant(router)) == sorted(urls) == sorted(router.workers)


METRICS = """\
# TYPE smg_worker_cb_outcomes_total counter
smg_worker_cb_outcomes_total{worker="http://10.0.0.1:8000",outcome="success"} 1200
smg_worker_cb_outcomes_total{worker="http://10.0.0.1:8000",outcome="failure"} 3
smg_worker_cb_outcomes_total{outcome="failure",worker="http://[fd00::7]:8000/"} 1
smg_worker_health{worker="http://10.0.0.1:8000"} 1
"""


def test_answers_and_failures_are_counted_by_worker():
    assert sglang.parse_outcomes(METRICS) == {H1: (1200, 3), "http://[fd00::7]:8000": (0, 1)}
    assert sglang.parse_outcomes("") == {}


def test_a_worker_that_does_not_say_its_model_has_none():
    document = {"workers": [{"id": "a", "url": f"{H1}/", "model_id": "unknown", "is_healthy": False, "load": 2}]}
    assert sglang.parse_workers(document) == [(H1, False, 2, "", "a")]


@pytest.mark.parametrize("text", [None, "", "{", "{}", "7"])
def test_a_file_that_is_not_a_list_admits_nobody(text):
    assert pool.parse_admitted(text) == []


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("10.0.0.1", H1),
        ("gpu-a01", "http://gpu-a01:8000"),
        ("fd00::7", "http://[fd00::7]:8000"),
        ("[fd00::7]", "http://[fd00::7]:8000"),
    ],
)
def test_the_url_of_a_server(address, url):
    assert routers.worker_url(address, 8000) == url


def test_a_router_is_outdated_until_it_has_read_what_was_written(launcher, tmp_path, monkeypatch):
    shown = {"MainPID": "7"}
    monkeypatch.setattr(pool.host, "show", lambda unit: shown)
    settings, record = tmp_path / "router.json", tmp_path / "read.json"
    settings.write_text("{}")
    assert pool.outdated([settings], record)  # it left no word of what it has read
    record.write_text(json.dumps(launcher.digests([str(settings)])))
    assert not pool.outdated([settings], record)
    settings.write_text('{"port": 8100}')
    assert pool.outdated([settings], record)
    shown["MainPID"] = "0"
    assert not pool.outdated([settings], record)


@pytest.fixture(scope="module")
def launcher():
    """The launcher, which the router's own Python executes."""
    spec = importlib.util.spec_from_file_location("launch", ROOT / "roles" / "router" / "files" / "launch_sglang.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SETTINGS = {
    "host": "::", "port": 8000, "policy": "round_robin", "metrics_host": "127.0.0.1", "metrics_port": 29000,
    "health_interval_s": 5, "grace_s": 180, "api_key": "--dashes",
}  # fmt: skip


def test_the_launcher_gives_settings_and_key_to_the_routers_parser_and_no_server(launcher):
    argv = launcher.arguments(SETTINGS)
    assert argv[:2] == ["--host", "::"]
    assert "--api-key=--dashes" in argv
    assert "--worker-urls" not in argv


def test_without_a_key_the_launcher_names_none(launcher):
    assert not [word for word in launcher.arguments({**SETTINGS, "api_key": ""}) if word.startswith("--api-key")]


class FakeServer:
    """A server that answers ``status`` to /health; None, nothing listens there."""

    def __init__(self) -> None:
        self.status = 200
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(server.status if self.path == "/health" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def end(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server():
    fake = FakeServer()
    yield fake
    fake.end()


@pytest.fixture
def kept(router, launcher, server):
    """A router that lost the server that is admitted to it, and its keeper."""
    router.pool().admitted(server.url)
    router.workers.clear()
    router.asked.clear()
    return launcher.Keeper(json.loads(router.settings.read_text()), str(router.admitted))


def test_the_keeper_adds_what_the_router_lacks_and_then_nothing(router, server, kept):
    router.slow = 1
    assert kept.look() == [server.url]
    assert list(router.workers) == [server.url]  # it waited for that
    assert kept.look() == []
    assert router.asked == [("POST", server.url, KEY)]


def test_the_keeper_adds_a_server_only_once_it_answers(router, server, kept):
    server.status = 503
    assert kept.look() == []
    server.status = 200
    assert kept.look() == [server.url]


def test_a_server_that_is_down_keeps_no_other_from_coming_back(router, server, kept):
    gone = FakeServer()
    gone.end()
    router.admitted.write_text(json.dumps([gone.url, server.url]))
    assert kept.look() == [server.url]
    assert meant(router) == [gone.url, server.url]


def test_a_server_that_was_taken_out_while_it_was_down_never_comes_back(router, server, kept):
    server.status = 503
    kept.look()
    router.pool().drained(server.url)
    server.status = 200
    assert kept.look() == []
    assert router.asked == []


def test_a_server_that_is_taken_out_while_the_keeper_waits_for_the_lock_is_not_added(router, server, kept):
    with ThreadPoolExecutor(1) as beside, router.pool()._alone():
        looked = beside.submit(kept.look)
        assert not wait([looked], timeout=0.5).done
        router.admitted.write_text("[]")
    assert looked.result() == []
    assert router.asked == []


def test_a_server_is_taken_out_only_once_it_is_listed_that_the_keeper_adds(router, server, kept):
    """What is pending when it is taken out would be there afterwards."""
    router.slow = 30
    with ThreadPoolExecutor(1) as beside:
        looked = beside.submit(kept.look)
        while not router.asked:
            assert not looked.done()
        router.pool(timeout_s=1000).drained(server.url)
        assert looked.result() == [server.url]
    assert (router.workers, meant(router)) == ({}, [])
    assert not router.pending


def test_a_server_that_never_gets_listed_does_not_hold_the_lock_for_ever(router, server, kept, launcher, monkeypatch):
    monkeypatch.setattr(launcher, "LISTED_S", 0.2)
    router.slow = 10_000
    kept.look()
    assert router.pool().drained(server.url)["admitted"] == []


def test_the_keeper_goes_on_after_a_fault_and_says_it_once(kept, router, launcher, monkeypatch, capsys):
    monkeypatch.setattr(launcher, "LOOK_S", 0)
    kept.admitted = str(router.admitted.parent / "broken.json")
    Path(kept.admitted).write_text("{")
    looks = iter([True] * 3 + [False])
    launcher.keep(kept, lambda: next(looks))
    assert capsys.readouterr().err.count("cannot add servers") == 1


KEEPER = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("launch", sys.argv[1])
launch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launch)
print(launch.fork_keeper({"host": "127.0.0.1", "port": 9}, "/nowhere/admitted.json"), flush=True)
sys.stdin.read()
"""


def test_the_keeper_ends_with_the_router_even_when_that_is_killed(launcher):
    argv = [sys.executable, "-c", KEEPER, launcher.__file__]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as router:
        keeper = os.pidfd_open(int(router.stdout.readline()))
        try:
            assert select.select([keeper], [], [], 0) == ([], [], [])
            router.kill()
            assert select.select([keeper], [], [], 10)[0] == [keeper]
        finally:
            os.close(keeper)
