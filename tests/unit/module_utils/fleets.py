"""Fleets as plans see them: hosts with what the comparison found, routers with what they have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ansible.module_utils.ironserve import rollout

FLAG = "flag --max-num-seqs: 64 -> 128"


def names(count: int) -> list[str]:
    return [f"h{number}" for number in range(1, count + 1)]


def host(name: str, *reasons: str, routers: Iterable[str] = ("r1",), service: dict[str, Any] | None = None,
         **roll: Any) -> dict[str, Any]:  # fmt: skip
    """A host with one service that differs for ``reasons``; it runs and is admitted."""
    roll = {
        "group": "lab", **rollout.SHARED, "forks": None, "drain_timeout_s": 300, "routers": list(routers),
        "address": name, "members": 0, **roll,
    }  # fmt: skip
    found = {
        "service": "main", "profile": "p", "release_id": "new", "model_name": "tiny", "url": f"http://{name}:8000",
        "wished_url": f"http://{name}:8000",
        "previous_id": "old-x", "reasons": list(reasons), "running": True, "restart": bool(reasons),
        "expected_s": 130.0, "admitted": True if roll["routers"] else None, **(service or {}),
    }  # fmt: skip
    return {"roll": roll, "services": [found]}


def fleet(count: int, changing: int | None = None, **said: Any) -> dict[str, Any]:
    """h1 to hCOUNT, of which the first ``changing`` (all) differ."""
    changing = count if changing is None else changing
    return {
        name: host(name, *([FLAG] if number < changing else []), **said) for number, name in enumerate(names(count))
    }


def answers(up: Iterable[str], sick: Iterable[str] = (), errors: dict[str, Any] | None = None) -> dict[str, Any]:
    """What router r1 has: servers of the hosts that are ``up``, those of ``sick`` unhealthy."""
    urls, ill = ([f"http://{name}:8000" for name in hosts] for hosts in (up, sick))
    workers = [{"url": url, "healthy": url in urls, "load": 0, "model": "tiny"} for url in [*urls, *ill]]
    return {"r1": {"admitted": [*urls, *ill], "workers": workers, "errors": errors or {}}}


def plan(hosts: dict[str, Any], routers: dict[str, Any] | None = None, forks: int = 32) -> dict[str, Any]:
    """The plan where every host that is there is admitted."""
    return rollout.plan(hosts, answers(hosts) if routers is None else routers, forks)


def batches(found: dict[str, Any]) -> list[list[str]]:
    return [batch["hosts"] for batch in found["batches"]]
