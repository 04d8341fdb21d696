"""The probe against real HTTP servers on loopback: what it asks, what it leaves."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import threading
import time

import pytest
from ansible.module_utils.ironserve import host, judge, probe

COMPLETION = {"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 3}}


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers from a table; counts what it was asked."""

    answers: dict[str, tuple[int, dict]]
    asked: list[str]

    def reply(self) -> None:
        self.asked.append(self.path)
        status, body = self.answers.get(self.path, (404, {}))
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self.reply()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply()

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Start a server with a table of answers; give the release that a probe of it needs."""
    monkeypatch.setattr(host, "RUNTIME", tmp_path)
    servers = []

    def begin(**answers):
        table = {
            "/health": (200, {}),
            "/v1/models": (200, {"data": [{"id": "tiny"}]}),
            "/v1/completions": (200, COMPLETION),
            **{path.replace("_", "/"): answer for path, answer in answers.items()},
        }
        handler = type("Handler", (Engine,), {"answers": table, "asked": []})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        release = {
            "service": "main", "url": f"http://127.0.0.1:{server.server_port}", "health_path": "/health",
            "port": server.server_port, "model_name": "tiny", "startup_timeout_s": 2, "completion_timeout_s": 1,
        }  # fmt: skip
        return release, handler

    yield begin
    for server in servers:
        server.shutdown()


def outcome(release) -> dict:
    probe.watch(release, lambda: True, "i")
    return probe.read("main", "i")


def test_a_server_that_generates_is_ready(serve):
    release, handler = serve()
    found = outcome(release)
    assert (found["outcome"], found["detail"]) == ("ready", "3 tokens")
    assert found["at"] <= time.monotonic()
    assert found["proof"] == {"outcome": "ready", "detail": "3 completions"}
    assert handler.asked == ["/health", "/v1/models"] + ["/v1/completions"] * 4


def test_a_server_whose_first_token_was_its_last_is_found_out(serve):
    release, handler = serve()
    answer = handler.reply

    def once(self):
        if handler.asked.count("/v1/completions"):
            self.connection.settimeout(3)
            self.connection.recv(1)  # until the probe hangs up
        else:
            answer(self)

    handler.reply = once
    found = outcome(release)
    assert found["outcome"] == "ready"
    assert found["proof"]["outcome"] == "generation_dead"


@pytest.mark.parametrize("kib", [0, 300])
def test_whether_a_model_is_real_is_seen_by_its_weights(tmp_path, monkeypatch, kib):
    monkeypatch.setattr(probe, "REAL_BYTES", 256 << 10)
    (tmp_path / "model.safetensors").write_bytes(b"0" * (kib << 10))
    release = {"model": {"path": str(tmp_path)}}
    assert probe.is_real(release) is (kib == 300)
    assert not probe.is_real({**release, "flags": {"load-format": "dummy"}})
    assert probe.is_real({"model": {"path": "org/name-of-a-hub"}})


def test_another_process_that_answers_on_the_port_is_not_this_server(serve):
    release, _ = serve()
    own = subprocess.Popen(["/bin/sleep", "60"])
    try:
        probe.watch(release, lambda: True, "i", members=lambda: [own.pid])
        found = probe.read("main", "i")
        assert found["outcome"] == "foreign_listener"
        assert f"port {release['port']} is answered by a process that is none of this unit's" in found["detail"]
        probe.watch(release, lambda: True, "i", members=lambda: [own.pid, os.getpid()])
        assert probe.read("main", "i")["outcome"] == "ready"
    finally:
        own.kill()
        own.wait()


def test_case_28_health_500_is_a_dead_engine(serve):
    release, _ = serve(_health=(500, {"error": "dead"}))
    assert outcome(release)["outcome"] == "engine_dead"


def test_case_33_the_wrong_model_is_told(serve):
    release, _ = serve(**{"_v1_models": (200, {"data": [{"id": "old"}]})})
    assert outcome(release)["outcome"] == "wrong_model"


def test_a_key_is_sent_where_the_server_wants_one(serve):
    release, handler = serve()
    answer, told = handler.reply, []
    handler.reply = lambda self: (told.append(self.headers.get("Authorization")), answer(self))
    probe.watch(release, lambda: True, "i", "sk-TEST")
    assert told == [None] + ["Bearer sk-TEST"] * 5


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"final": true}', '{"outcome": "ready", "proof": "x"}', '{"outcome": 7, "proof": {"outcome": []}}',
     '{"outcome": ["ready"], "detail": {"a": 1}, "health": {}, "at": "x"}', '"x"', "null"],
)  # fmt: skip
@pytest.mark.parametrize("path", [probe.result_path, probe.end_path])
def test_whatever_the_engines_user_leaves_there_the_judge_can_read(tmp_path, monkeypatch, text, path):
    monkeypatch.setattr(host, "RUNTIME", tmp_path)
    host.write_text(path("main", "i"), text)
    judge.judge({"ActiveState": "active", "MainPID": "1"}, probe.read("main", "i"), 1, 60)
    host.write_text(probe.start_path("main", "i"), text)
    assert probe.signals("main", "i", 1.0) == {}


def test_a_helpers_last_word_outlives_what_is_asked_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "RUNTIME", tmp_path)
    host.write_text(probe.result_path("main", "i"), '{"outcome": "ready"}')
    host.write_text(probe.end_path("main", "i"), '{"outcome": "stalled", "detail": "it hangs"}')
    probe.forget("main")
    assert probe.read("main", "i") == {"outcome": "stalled", "detail": "it hangs", "final": True}
    assert not probe.result_path("main", "i").exists()


def test_a_result_that_is_no_json_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "RUNTIME", tmp_path)
    host.write_text(probe.result_path("main", "i"), "[1")
    assert probe.read("main", "i") == {}
    host.write_text(probe.result_path("main", "i"), "[1]")
    assert probe.read("main", "i") == {}


@pytest.mark.parametrize("words", [b"not http at all\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
def test_an_answer_that_breaks_off_is_no_answer(words):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(words)

        threading.Thread(target=answer, daemon=True).start()
        got = host.get(f"http://127.0.0.1:{server.getsockname()[1]}/health", 5)
    assert got.status == 0
    assert got.text
