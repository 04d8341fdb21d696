"""Whether hosts may leave service for maintenance: enough others serve behind each of their routers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Server(NamedTuple):
    """One service of a host, as routers see it."""

    host: str
    service: str
    group: str
    """The kind of hardware: what is to serve is counted for each service of each group."""
    url: str
    routers: Sequence[str]
    min_serving: int | str
    """A number, or a percentage of the servers of its kind: ``"25%"``."""


def at_least(share: int | str, of: int) -> int:
    """How many of so many a number or percentage means: a part of one is a whole one."""
    text = str(share).strip()
    return -(-of * int(text[:-1]) // 100) if text.endswith("%") else int(text)


def serving(listed: Mapping[str, Any]) -> set[str]:
    """The URLs that a router sends requests to, from what router_worker returned: admitted, and healthy."""
    healthy = {str(worker["url"]).rstrip("/") for worker in listed.get("workers", ()) if worker.get("healthy")}
    return healthy & {str(url).rstrip("/") for url in listed.get("admitted", ())}


def too_few(
    leaving: Collection[tuple[str, str]], servers: Iterable[Server], listed: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """What speaks against it, a line each: of which servers behind which router too few would be left.

    A server that no router sends anything to leaves nobody waiting.

    Args:
        leaving: host and service of each server that is to leave.
        servers: of the whole inventory.
        listed: what router_worker returned, by router.
    """
    known = list(servers)
    kinds = sorted({(one.group, one.service) for one in known if (one.host, one.service) in leaving})
    found = []
    for router, answer in sorted(listed.items()):
        now = serving(answer)
        for group, service in kinds:
            alike = [one for one in known if (one.group, one.service) == (group, service) and router in one.routers]
            go = sorted(one.host for one in alike if (one.host, one.service) in leaving and one.url in now)
            stay = [one.host for one in alike if (one.host, one.service) not in leaving and one.url in now]
            least = max((at_least(one.min_serving, len(alike)) for one in alike), default=0)
            if go and len(stay) < least:
                found.append(
                    f"without {', '.join(go)} router {router} has {len(stay)} of {len(alike)} servers of service "
                    f"{service} in group {group}, and ironserve_min_serving says {least}: admit others, take fewer "
                    "hosts at a time, or, where that is meant, -e ironserve_min_serving=0"
                )
    return found
