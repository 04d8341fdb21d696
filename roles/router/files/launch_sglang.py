"""Starts sglang-router under the Python of its environment: ``launch_sglang.py SETTINGS ADMITTED UNIT``.

Its API key has no variable, and an argument can be read by every user of the host: here it never leaves the process.

It forgets its servers when it ends, so which ones are meant is kept in a file, and a small process beside it, the
keeper, adds those that it lacks. The router itself is told of none when it starts: it would go on trying to add one
that is down, and have it as soon as that one answers, though it was taken out, and started anew, in between.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, Callable

LOOK_S = 1
"""Between two looks of the keeper: a second after a server answers it gets requests."""

ASK_S = 2
"""What a server or the router gets to answer one question of the keeper."""

START_TIMEOUT_S = 4
"""How long the router itself tries to add a server that it was asked to add."""

LISTED_S = 5
"""How long the keeper waits until the router lists what it was asked to add: longer than the router tries."""

TOGETHER = 32
"""So many servers are asked at a time whether they answer."""

PR_SET_PDEATHSIG = 1
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  what listens everywhere is asked here


def arguments(settings: Mapping[str, Any]) -> list[str]:
    """The router's arguments, which only its own parser sees."""
    words = {
        "host": settings["host"],
        "port": settings["port"],
        "policy": settings["policy"],
        "prometheus-host": settings["metrics_host"],
        "prometheus-port": settings["metrics_port"],
        "health-check-interval-secs": settings["health_interval_s"],
        "worker-startup-check-interval": 1,
        "worker-startup-timeout-secs": START_TIMEOUT_S,
        "shutdown-grace-period-secs": settings["grace_s"],
        "log-level": "warn",  # at info it writes several lines a request
    }
    argv = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    if settings.get("api_key"):
        argv += [f"--api-key={settings['api_key']}"]  # in one word: a key may begin with a dash
    return argv


def read(path: str, otherwise: str) -> Any:
    """JSON from a file; a router that nobody has admitted a server to yet has no second one."""
    file = Path(path)
    return json.loads(file.read_text(encoding="utf-8") if file.exists() else otherwise)


def digests(paths: Sequence[str]) -> dict[str, str]:
    """What this process was made from: whoever changes one of these files sees that it runs with the old one."""
    return {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths}


class Keeper:
    """Adds to the router what is meant to be behind it and is not.

    A server is added only while it is in the file, under the lock that whoever changes the file takes
    (``module_utils/ironserve/routers/pool.py``), and only when it answers; and the lock is given back once the router
    lists it. So nothing that the router was asked to add is pending when a server is taken out.
    """

    def __init__(self, settings: Mapping[str, Any], admitted: str) -> None:
        host = LOOPBACK.get(str(settings["host"]), str(settings["host"]))
        self.router = f"http://[{host}]:{settings['port']}" if ":" in host else f"http://{host}:{settings['port']}"
        self.key = str(settings.get("api_key") or "")
        self.admitted, self.lock = admitted, Path(admitted).with_name(".lock")

    def look(self) -> list[str]:
        """Add what is lacking and answers; what was added."""
        lacking = self._lacking()
        with ThreadPoolExecutor(TOGETHER) as pool:
            answering = {url for url, answers in zip(lacking, pool.map(self._answers, lacking)) if answers}
        if not answering:
            return []
        with self.lock.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            added = [url for url in self._lacking() if url in answering]
            for url in added:
                self._ask(f"{self.router}/workers", {"url": url, **({"api_key": self.key} if self.key else {})})
            until = time.monotonic() + LISTED_S
            while set(added) & set(self._lacking()) and time.monotonic() < until:
                time.sleep(LOOK_S / 10)
        return added

    def _lacking(self) -> list[str]:
        """In the file, and not listed by the router."""
        meant = read(self.admitted, "[]")
        listed = {one["url"].rstrip("/") for one in json.loads(self._ask(f"{self.router}/workers"))["workers"]}
        return [url for url in meant if url not in listed]

    def _answers(self, url: str) -> bool:
        try:
            self._ask(f"{url}/health")
        except (OSError, ValueError, HTTPException):
            return False
        return True

    def _ask(self, url: str, body: Mapping[str, Any] | None = None) -> bytes:
        """What is answered; an OSError where that is no success."""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {})}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(url, data, headers)  # noqa: S310  http, by its settings
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=ASK_S) as answer:
            text: bytes = answer.read()
        return text


def keep(keeper: Keeper, goes_on: Callable[[], bool]) -> None:
    """Look each second. A look that fails says so once; a router that does not answer is starting, or ends."""
    said = ""
    while goes_on():
        try:
            keeper.look()
            said = ""
        except urllib.error.HTTPError as error:
            said = _say(f"cannot add servers: {error.url} answers {error.code}", said)
        except urllib.error.URLError:
            pass
        except Exception as error:  # the next look may do
            said = _say(f"cannot add servers: {error}", said)
        time.sleep(LOOK_S)


def _say(text: str, before: str) -> str:
    if text != before:
        print(text, file=sys.stderr, flush=True)
    return text


def fork_keeper(settings: Mapping[str, Any], admitted: str) -> int:
    """Start the keeper; it ends with this process, however that ends. Its pid."""
    router = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        keep(Keeper(settings, admitted), lambda: os.getppid() == router)
    finally:
        os._exit(0)


def main(settings: str, admitted: str, unit: str) -> None:
    """Become the router, with the keeper beside it."""
    record = Path(os.environ["RUNTIME_DIRECTORY"]) / "read.json"
    record.write_text(json.dumps(digests((settings, __file__, unit))), encoding="utf-8")
    said = read(settings, "{}")
    fork_keeper(said, admitted)  # before the router's code is there, which has threads
    from sglang_router.launch_router import launch_router, parse_router_args  # noqa: PLC0415  only its Python has it

    launch_router(parse_router_args(arguments(said)))


if __name__ == "__main__":
    main(*sys.argv[1:])
