"""How a canary fares while it soaks: whether its services stay ready, and how many requests fail. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .batches import Outcomes, batch_of
from .rollout import Answers, listed
from .slices import duration

LOOK_S = 10.0
"""Seconds between two looks at a canary that soaks."""

AGAIN_S = 3.0
"""Seconds until it is looked again after a look that was bad, or that failed. One alone says nothing."""

EARLY_FAILURES = 5
"""Failed requests at which a soak may end early: of the first few requests one that fails is no rate yet."""


def soak_due(found: Mapping[str, Any], hosts: Sequence[str], outcomes: Outcomes) -> dict[str, Any]:
    """The soak that has to be before a batch, empty where there is none: not after a canary, or one that failed.

    ``services``: names by host; ``urls`` by router; ``looks``: how often at most it is looked.
    """
    _, before = batch_of(found, hosts)
    if not before or before[-1]["name"] != "canary":
        return {}
    canaries, group = before[-1]["hosts"], found["groups"][before[-1]["group"]]
    if not group["soak_s"] or any((outcomes.get(host) or {}).get("verdict") != "moved" for host in canaries):
        return {}
    entries = {entry["host"]: entry for entry in found["hosts"]}
    services = {host: [service["service"] for service in entries[host]["services"]] for host in canaries}
    return {
        "hosts": canaries,
        "services": services,
        "urls": sorted(service["wished_url"] for host in canaries for service in entries[host]["services"]),
        "routers": sorted(before[-1]["at_least"]),
        "soak_s": group["soak_s"],
        "error_rate": group["soak_error_rate"],
        "looks": 2 * (int(group["soak_s"] // LOOK_S) + 2),  # each may be doubted once
    }


def soak_verdict(
    due: Mapping[str, Any],
    elapsed_s: float,
    looks: Sequence[Mapping[str, Any]],
    before: Answers,
    after: Answers,
    doubt: str = "",
) -> dict[str, Any]:
    """How a canary fares: ``state`` (waiting, good, bad), ``why`` it is bad, ``ok`` and ``failed`` requests, ``text``.

    A canary that is not ready, or of which nobody can tell, is bad at the second such look in a row; ``doubt`` says
    what was wrong at the first. ``wait_s``: seconds until the next look.

    Args:
        due: what :func:`soak_due` returned.
        elapsed_s: since it began.
        looks: what ``host_services`` returned for each canary, as results of a loop over the hosts.
        before: what the routers counted when it began.
        after: the same now. One that does not answer says nothing.
        doubt: that of the look before.
    """
    ok, failed = _requests(due["urls"], before, after)
    over, total = elapsed_s >= due["soak_s"], ok + failed
    bad_rate = failed > 0 and failed >= due["error_rate"] * total
    unknown_rate = [router for router in due["routers"] if "errors" not in (after.get(router) or {})]
    now = _unwell(looks)
    if over and unknown_rate and not now:
        now = f"router {listed(unknown_rate)} does not tell how many requests failed"
    why = now if doubt else ""
    if bad_rate and not why and (over or failed >= EARLY_FAILURES):
        why = f"{failed} of {total} requests failed (ironserve_soak_error_rate: {due['error_rate']})"
    requests = f"{failed} of {total} requests failed" if due["routers"] else "no router counts requests"
    state = "bad" if why else "good" if over and not now else "waiting"
    done = min(elapsed_s, due["soak_s"])
    how_long = f"{duration(done)} of {duration(due['soak_s'])}"
    seen = why or (f"{now} (looking again)" if now else "ready")
    return {
        "state": state,
        "why": why,
        "ok": ok,
        "failed": failed,
        "doubt": now,
        "wait_s": AGAIN_S if now else min(LOOK_S, max(0.0, due["soak_s"] - elapsed_s)),
        "text": f"soak: canary {listed(due['hosts'])} {seen}, {requests}, {how_long}",
    }


def _requests(urls: Sequence[str], before: Answers, after: Answers) -> tuple[int, int]:
    """Requests that went well and that failed between two looks at the routers, of these servers."""
    found = {"ok": 0, "failed": 0}
    for router, answer in after.items():
        for url in urls:
            now, then = ((each.get("errors") or {}).get(url) or {} for each in (answer, before.get(router) or {}))
            for key in found:
                # A router that restarted meanwhile counts from nothing again.
                grown = now.get(key, 0) - then.get(key, 0)
                found[key] += int(grown if grown >= 0 else now.get(key, 0))
    return found["ok"], found["failed"]


def _unwell(looks: Sequence[Mapping[str, Any]]) -> str:
    """Which canary is not ready, and why."""
    for look in looks:
        if "services" not in look:
            return f"{look.get('item', 'it')} cannot be asked: {str(look.get('msg', 'no answer')).splitlines()[0]}"
        for service in look["services"]:
            if service["status"] != "ready":
                cause = f": {service['cause']}" if service.get("cause") else ""
                return f"{look.get('item', 'it')} {service['service']} is {service['status']}{cause}"
    return ""
