"""Drain: when a server that gets no new requests has none left. What is asked is here; deciding is pure.

An engine's own numbers are not the whole truth. vLLM's metrics and SGLang's scheduler count a request only after its
first step, which may take seconds for a long prompt: in that time all is 0. But its connection is there. So numbers of
0 are believed at once where no connection is open, and else when they stay: an idle connection, which a router keeps
for the next request, is closed by both engines after 5 s.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, NamedTuple

from . import host, secrets
from .engines import ENGINES
from .ports import established
from .readiness import samples
from .slices import duration
from .systemd import unit_name

ASK_S = 3.0
"""An engine that does not answer this long says nothing."""

LOOKS = 2
"""So many looks in a row have to show nothing."""

QUIET_S = 6.0
"""Longer than the 5 s after which an engine closes a connection on which nothing comes."""

LOOK_EVERY_S = 0.5


class Requests(NamedTuple):
    """Requests that an engine works on, and those that wait for it, as it says itself."""

    running: int
    waiting: int


class Look(NamedTuple):
    """One look: ``requests`` is None where the engine does not tell, ``connections`` are open ones to its port."""

    requests: Requests | None
    connections: int


def from_metrics(exposition: str, running: str, waiting: str) -> Requests | None:
    """Requests in the text of /metrics, the sum over all engines; None where it does not have these metrics."""
    found = samples(exposition)
    return Requests(int(found[running]), int(found[waiting])) if running in found and waiting in found else None


def from_loads(document: Mapping[str, Any]) -> Requests | None:
    """Requests in what SGLang's /v1/loads answers, the sum over its data parallel ranks.

    A long prompt that it works on in pieces is in neither of its queues, but its tokens are counted as waiting.
    """
    try:
        loads = list(document["loads"])
        running = sum(int(load["num_running_reqs"]) for load in loads)
        waiting = sum(
            max(int(load["num_waiting_reqs"]), 1 if load.get("num_waiting_uncached_tokens") else 0) for load in loads
        )
    except (KeyError, TypeError, ValueError):
        return None
    return Requests(running, waiting) if loads else None


@dataclass
class Drain:
    """Takes in looks and says when a server is empty.

    Attributes:
        looks: how many in a row showed nothing.
        since: when the first of them was.
    """

    looks: int = 0
    since: float = 0.0

    def is_empty(self, look: Look, at: float) -> bool:
        """Whether after this look nothing is left; ``at`` are seconds of a clock that only goes forward."""
        left = sum(look.requests) if look.requests is not None else look.connections
        if left:
            self.looks = 0
            return False
        self.since = self.since if self.looks else at
        self.looks += 1
        return self.looks >= LOOKS and (not look.connections or at - self.since >= QUIET_S)


def left(look: Look) -> str:
    """What is left, in words: ``3 requests run, 1 waits``."""
    if look.requests is None:
        return f"{look.connections} connections open, the engine does not tell its requests"
    running, waiting = look.requests
    if not running and not waiting:
        return f"no request left, {look.connections} connections still open"
    said = f"{running} requests run" if running != 1 else "1 request runs"
    return f"{said}, {waiting} wait" if waiting != 1 else f"{said}, 1 waits"


def observe(release: Mapping[str, Any], key: str, proc: Path = Path("/proc")) -> Look:
    """Look once. Connections are counted first: the question itself would be one."""
    tables = (host.read_text(proc / "net" / name) or "" for name in ("tcp", "tcp6"))
    connections = sum(established(table, int(release["port"])) for table in tables)
    engine = ENGINES[release["engine"]]
    for path in engine.LOAD_PATHS:
        answer = host.get(f"{release['url']}{path}", ASK_S, key=key)
        found = from_loads(answer.json()) if answer.status == 200 else None
        if found is not None:
            return Look(found, connections)
    if engine.REQUEST_METRICS:
        answer = host.get(f"{release['url']}/metrics", ASK_S, key=key)
        if answer.status == 200:
            return Look(from_metrics(answer.text, *engine.REQUEST_METRICS), connections)
    return Look(None, connections)


class Server:
    """A service of this host that is to end what it has; nobody sends it anything new any more.

    Args:
        service: its name.
        check: whether to look only.
        look: looks once.
        runs: whether its unit has a process.
        clock: monotonic seconds.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        service: str,
        check: bool = False,
        look: Callable[[Mapping[str, Any], str], Look] = observe,
        runs: Callable[[str], bool] = lambda unit: host.show(unit).get("MainPID", "0") != "0",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.service, self.check, self.look, self.runs = service, check, look, runs
        self.clock, self.sleep = clock, sleep
        self.folder = host.STATE / service

    def drained(self, timeout_s: float, cursor: Mapping[str, Any], slice_s: float) -> dict[str, Any]:
        """Wait until nothing is left, for a slice.

        Args:
            timeout_s: after so long what is left is left: no failure, since nobody wanted it to take longer.
            cursor: what the slice before returned, empty at first.
            slice_s: seconds to wait now; 0 waits for the end.
        """
        entered = self.clock()
        began = float(cursor.get("began", entered))
        drain = Drain(int(cursor.get("looks", 0)), float(cursor.get("since", entered)))
        text = host.read_text(host.STATE / self.service / "active" / "release.json")
        release: dict[str, Any] = json.loads(text) if text else {}
        key = self._key(release)
        while True:
            now = self.clock()
            if not release or not self.runs(unit_name(self.service)):
                return _answer("not_running", f"{self.service} does not run", Look(Requests(0, 0), 0), now - began)
            look = self.look(release, key)
            now = self.clock()
            if drain.is_empty(look, now):
                return _answer("drained", f"{self.service} has no request left", look, now - began)
            if self.check:
                return _answer("drained", f"{self.service} would be waited for: {left(look)}", look, now - began)
            if now - began >= timeout_s:
                state = "unknown" if look.requests is None else "timeout"
                said = f"{self.service} was waited for {duration(now - began)}, and no longer: {left(look)}"
                return {**_answer(state, said, look, now - began), "cut": _count(look)}
            if slice_s and now - entered >= slice_s:
                more = {"began": began, "looks": drain.looks, "since": drain.since}
                return {**_answer("waiting", left(look), look, now - began), "slice": _slice(look, now - began, more)}
            self.sleep(LOOK_EVERY_S)

    def _key(self, release: Mapping[str, Any]) -> str:
        """The API key that the server wants, from the files that it reads."""
        texts = (host.read_text(Path(path(self.service))) or "" for path in (secrets.env_path, secrets.config_path))
        env, config = texts
        return secrets.api_key(release["engine"], (env, config)) if release else ""


def _count(look: Look) -> int:
    return sum(look.requests) if look.requests is not None else look.connections


def _answer(state: str, msg: str, look: Look, elapsed_s: float) -> dict[str, Any]:
    requests = look.requests or Requests(-1, -1)
    return {
        "state": state,
        "running": requests.running,
        "waiting": requests.waiting,
        "connections": look.connections,
        "cut": 0,
        "elapsed_s": round(elapsed_s, 1),
        "msg": msg,
        "changed": False,
        "slice": {"done": True},
    }


def _slice(look: Look, elapsed_s: float, cursor: Mapping[str, Any]) -> dict[str, Any]:
    return {"done": False, "phase": f"draining, {left(look)}", "progress": "", "elapsed_s": elapsed_s, "cursor": cursor}
