"""The HTTP side that both engines share: routing, JSON, server-sent events, keys and the access log."""

from __future__ import annotations

import hmac
import json
import socket
import threading
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Callable, Union

Body = Union[str, dict[str, Any], None]

ANSWERS_S = 5.0
"""For a client that reads nothing."""


class Reply:
    """An answer: a status with JSON, text or nothing, or a stream of events."""

    def __init__(
        self, body: Body = None, status: int = 200, events: Iterable[Body] | None = None, kind: str = "text/plain"
    ) -> None:
        self.body = body
        self.status = status
        self.events = events
        self.kind = kind


Route = Callable[[dict[str, Any]], Reply]


class Site:
    """What a handler needs to know of its engine."""

    def __init__(self, routes: dict[tuple[str, str], Route], access_log: Callable[[str], None]) -> None:
        self.routes = routes
        self.access_log = access_log
        self.key: str | None = None
        self.needs_key: Callable[[str], bool] = lambda path: False
        self.wrong_body: Callable[[str], Reply] = lambda message: Reply({"error": message}, 400)
        self.failures: dict[type[Exception], Callable[[Exception], Reply]] = {}


class Server(ThreadingHTTPServer):
    """A server that binds and listens at two different times, as vLLM does."""

    daemon_threads = True
    request_queue_size = 128
    site: Site

    def __init__(self, host: str, port: int, site: Site) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), Handler, bind_and_activate=False)
        self.site = site
        self.answering = 0
        self.answered = threading.Condition()

    def server_bind(self) -> None:
        """Bind without the reverse lookup of HTTPServer, which may take seconds on a host without DNS."""
        TCPServer.server_bind(self)

    def finish_answers(self) -> None:
        """Wait until all that was generated is sent, as uvicorn does before it ends."""
        with self.answered:
            self.answered.wait_for(lambda: not self.answering, timeout=ANSWERS_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    #: Without it a streamed token may wait 40 ms for the acknowledgement of the one before.
    disable_nagle_algorithm = True

    def version_string(self) -> str:
        """Both engines are served by uvicorn."""
        return "uvicorn"

    def _answer(self) -> None:
        path = self.path.split("?", 1)[0]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.answered:
            self.server.answering += 1
        try:
            self._send(self._reply(path, body))
        finally:
            with self.server.answered:
                self.server.answering -= 1
                self.server.answered.notify_all()

    do_GET = do_POST = do_HEAD = _answer  # noqa: N815 - the names are http.server's

    def _reply(self, path: str, body: bytes) -> Reply:
        site = self.server.site
        if site.key and site.needs_key(path) and not self._has_key(site.key):
            return Reply({"error": "Unauthorized"}, 401)
        methods = {method for method, known in site.routes if known == path}
        if not methods:
            return Reply({"detail": "Not Found"}, 404)
        route = site.routes.get((self.command, path))
        if route is None:
            return Reply({"detail": "Method Not Allowed"}, 405)
        try:
            document = json.loads(body) if body else {}
        except ValueError as error:
            return site.wrong_body(str(error))
        try:
            return route(document)
        except tuple(site.failures) as failure:
            return site.failures[type(failure)](failure)

    def _has_key(self, key: str) -> bool:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), key.encode())

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        if reply.events is not None:
            self._send_events(reply.events)
            return
        data = b"" if reply.body is None else encode(reply.body)
        if reply.body is not None:
            is_json = isinstance(reply.body, dict)
            self.send_header("Content-Type", "application/json" if is_json else f"{reply.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _send_events(self, events: Iterable[Body]) -> None:
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in events:
                self._chunk(b"data: " + encode(event) + b"\n\n")
        except tuple(self.server.site.failures) as failure:
            reply = self.server.site.failures[type(failure)](failure)
            self._chunk(b"data: " + encode(reply.body) + b"\n\n")
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Write the access line of uvicorn."""
        status = HTTPStatus(int(code))
        host, port = self.client_address[:2]
        line = f'INFO:     {host}:{port} - "{self.requestline}" {status.value} {status.phrase}'
        self.server.site.access_log(line)

    def log_error(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Say what uvicorn says to garbage."""
        self.server.site.access_log("WARNING:  Invalid HTTP request received.")


def encode(body: Body) -> bytes:
    """Return the bytes of a body: text as it is, anything else as compact JSON."""
    return body.encode() if isinstance(body, str) else json.dumps(body, separators=(",", ":")).encode()
