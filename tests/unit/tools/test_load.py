"""What the load client counts as whole, as an error and as a truncated stream, against a server that misbehaves."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import load_chart
import pytest

PROGRAM = Path(load_chart.__file__).with_name("load.py")
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = "data: [DONE]\n\n"


def chunk(text: str = " w", finish_reason: str | None = None) -> str:
    return f"data: {json.dumps({'choices': [{'text': text, 'finish_reason': finish_reason}]})}\n\n"


def usage(tokens: int) -> str:
    return f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': tokens}})}\n\n"


def whole(tokens: int) -> str:
    return HEAD + chunk() * (tokens - 1) + chunk(finish_reason="length") + usage(tokens) + DONE


class Server:
    """Answers the first request as it is told, and all others whole; ``bodies`` is what it was asked."""

    def __init__(self, first: Callable[[int], str]) -> None:
        self.first, self.bodies = first, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as file:
                length = 0
                while (line := file.readline().strip()) != b"":
                    length = int(line.split()[1]) if line.lower().startswith(b"content-length") else length
                body = json.loads(file.read(length)) if length else {}
                self.bodies.append(body)
                answer = self.first if len(self.bodies) == 1 else whole
                file.write(answer(body.get("max_tokens", 0)).encode())


class Ran:
    """A load that has ended."""

    def __init__(self, folder: Path, url: str, *words: str) -> None:
        self.log, summary = folder / "events.jsonl", folder / "summary.json"
        argv = [sys.executable, str(PROGRAM), url, "--log", str(self.log), "--summary", str(summary), *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert summary.exists(), done.stderr
        self.status, self.said, self.sums = done.returncode, done.stdout, json.loads(summary.read_text())
        self.events: list[dict[str, Any]] = load_chart.read(self.log)


BRIEF = ("--streams", "1", "--tokens", "4", "--seconds", "0.5", "--timeout", "2")


@pytest.fixture
def load(tmp_path):
    servers = []

    def run(first: Callable[[int], str], *words: str) -> tuple[Ran, Server]:
        servers.append(Server(first))
        return Ran(tmp_path, servers[-1].url, *BRIEF, *words), servers[-1]

    yield run
    for server in servers:
        server.socket.close()


def test_whole_answers_are_counted_and_each_has_a_prompt_of_its_own(load):
    ran, server = load(whole)
    assert ran.status == 0
    assert ran.sums["sent"] == ran.sums["ok"] == len(server.bodies) > 1
    assert len({body["prompt"] for body in server.bodies}) == len(server.bodies)
    assert all(body["stream"] for body in server.bodies)
    assert ran.said == f"{ran.sums['sent']} requests sent, 0 errors, 0 truncated streams\n"


def test_streams_may_pause_between_their_requests(load):
    ran, server = load(whole, "--streams", "2", "--pause", "30")
    assert (ran.sums["ok"], len(server.bodies)) == (2, 2)


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (lambda n: "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "status 503"),
        (lambda n: "", "disconnected"),
    ],
    ids=["status", "closed"],
)
def test_a_request_that_got_no_answer_is_an_error_and_not_sent_again(load, first, kind):
    ran, server = load(first)
    assert ran.status == 1
    assert (ran.sums["errors_by_kind"], ran.sums["truncated"]) == ({kind: 1}, 0)
    assert [body["prompt"] for body in server.bodies].count(server.bodies[0]["prompt"]) == 1
    assert ran.sums["ok"] == len(server.bodies) - 1


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (lambda n: whole(n).removesuffix(DONE), "no [DONE]"),
        (lambda n: HEAD + chunk(), "no [DONE]"),
        (lambda n: whole(n).replace("length", "abort"), "finish reason abort"),
        (lambda n: HEAD + chunk() + DONE, "finish reason none"),
        (lambda n: HEAD + chunk(finish_reason="length") + usage(1) + DONE, "1 of 2|3|4|5 tokens"),
        (lambda n: HEAD + usage(n) + DONE, "finish reason none"),
        (lambda n: HEAD + 'data: {"error": {"message": "dead"}}\n\n' + DONE, "an error in the stream"),
        (lambda n: HEAD + "data: {\n\n", "a chunk is no JSON"),
        (lambda n: HEAD + "<html>\n", "a line that is no event"),
        (lambda n: whole(n) + chunk(), "data after [DONE]"),
        (lambda n: HEAD.replace("Connection: close", "Content-Length: 999") + chunk(), "disconnected"),
    ],
    ids=["no-done", "cut", "aborted", "no-reason", "short", "empty", "error", "no-json", "no-event", "more", "length"],
)  # fmt: skip
def test_a_stream_that_does_not_end_whole_is_truncated(load, first, kind):
    ran, _ = load(first)
    assert ran.status == 1
    assert (ran.sums["errors"], ran.sums["truncated"]) == (0, 1)
    assert re.sub(r"of \d", "of 2|3|4|5", next(iter(ran.sums["truncated_by_kind"]))) == kind


def test_a_server_that_refuses_is_asked_a_few_times_a_second_only(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ran = Ran(tmp_path, f"http://127.0.0.1:{port}", *BRIEF)
    assert ran.status == 1
    assert ran.sums["errors_by_kind"] == {"refused": ran.sums["sent"]}
    assert 1 <= ran.sums["sent"] <= 4


def test_an_answer_that_never_comes_is_a_timeout_and_the_load_ends(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        ran = Ran(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", *BRIEF)
    assert ran.sums["errors_by_kind"] == {"timeout": 1}
    assert time.monotonic() - began < 20


def test_a_stop_file_lets_what_is_in_flight_end(tmp_path):
    stop = tmp_path / "stop"

    def answer(tokens: int) -> str:
        stop.touch()  # while the first request is in flight
        return whole(tokens)

    server = Server(answer)
    ran = Ran(tmp_path, server.url, *BRIEF[:4], "--seconds", "50", "--stop-file", str(stop))
    assert (ran.status, ran.sums["errors"], ran.sums["ok"]) == (0, 0, ran.sums["sent"])
    assert ran.sums["seconds"] < 20


def test_the_chart_shows_losses_marks_and_workers(tmp_path):
    events = [
        {"at": 100.0, "event": "start", "number": 1},
        {"at": 100.5, "event": "workers", "listed": 2, "healthy": ["a", "b"]},
        {"at": 101.0, "event": "end", "number": 1, "outcome": "ok", "took_s": 1.0},
        {"at": 101.0, "event": "start", "number": 2},
        {"at": 103.0, "event": "end", "number": 2, "outcome": "truncated", "kind": "no [DONE]", "took_s": 2.0},
        {"at": 102.0, "event": "mark", "text": "rollout begins"},  # appended late by another program
    ]
    log, chart = tmp_path / "events.jsonl", tmp_path / "chart.svg"
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    subprocess.run([sys.executable, load_chart.__file__, str(log), str(chart)], check=True, timeout=60)
    drawn = chart.read_text()
    assert "2 requests, 0 errors, 1 truncated streams" in drawn
    assert "2 s: rollout begins" in drawn
    assert "healthy workers of the router" in drawn
    assert load_chart.in_flight(load_chart.read(log), 100.0, 4) == [(0, 1), (1, 1), (2, 1), (3, 0)]
