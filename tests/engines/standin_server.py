"""A started stand-in server as a test sees it: ask it, read its log, look at its processes."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

#: Far more than anything here takes: a test that waits this long has failed.
PATIENCE_S = 15.0


def wait_until(what: str, condition: Callable[[], Any]) -> Any:
    """Return the first true value of `condition`."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"waited {PATIENCE_S} s in vain for {what}")


@dataclass
class Answer:
    """An HTTP answer."""

    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def events(self) -> list[Any]:
        """The documents of a stream; its end mark is checked here."""
        parts = [part.removeprefix("data: ") for part in self.text.split("\n\n") if part]
        assert parts.pop() == "[DONE]"
        return [json.loads(part) for part in parts]


@dataclass
class Running:
    """A stand-in server that was started."""

    engine: str
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    began: float

    @property
    def text(self) -> str:
        return self.log.read_bytes().decode()

    def ask(self, path: str, document: Any = None, timeout_s: float = PATIENCE_S, **headers: str) -> Answer | None:
        """Ask the server; None if the port refuses."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            body = None if document is None else json.dumps(document)
            connection.request("GET" if document is None else "POST", path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read().decode())
        except ConnectionRefusedError:
            return None
        finally:
            connection.close()

    def status(self, path: str) -> int:
        """The status of a GET; 0 if the port refuses."""
        answer = self.ask(path)
        return answer.status if answer else 0

    def complete(self, **document: Any) -> Answer:
        """Ask for a completion."""
        answer = self.ask("/v1/completions", {"prompt": "one two three", "max_tokens": 4, **document})
        assert answer
        return answer

    def ready(self) -> Running:
        """Wait until the server says that it serves."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.text
            if self.engine == "vllm":
                return self.status("/health") == 200
            return "ready to roll" in self.text

        wait_until("readiness", is_ready)
        return self

    def logs(self, text: str) -> None:
        """Wait for a text in the log."""
        wait_until(f"{text!r} in the log", lambda: text in self.text)

    def family(self) -> dict[str, int]:
        """Title (or command line) and pid of the live processes of the server's process group."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else []
                if fields and fields[0] != "Z" and int(fields[2]) == self.process.pid:
                    found[(entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()] = int(
                        entry.name
                    )
            except OSError:
                continue
        return found

    def child(self, title: str) -> int:
        """The pid of a child by its title."""
        return wait_until(title, lambda: self.family().get(title))

    def ends(self) -> int:
        """Wait for the end and return the exit status (minus the signal)."""
        return self.process.wait(PATIENCE_S)


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Start = Callable[..., Running]
