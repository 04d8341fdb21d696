"""Whether hosts may leave service for maintenance: enough others serve behind each of their routers. Pure.

The rule is that of a roll: what a router has to keep is a number, or a part of all servers that it has or gets.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from .rollout import Answers, admitted, needed, serving


class Server(NamedTuple):
    """One service of a host, as routers see it."""

    host: str
    service: str
    url: str
    routers: Sequence[str]
    min_serving: int | str
    """A number, or a percentage of the servers that a router has: ``"25%"``."""


Leaving = Collection[tuple[str, str]]
"""Host and service of each server that is to leave."""


def has(servers: Sequence[Server], answers: Answers, router: str) -> int:
    """How many servers a router has or gets: one that is out now is no less one of them."""
    return len(admitted(answers, router) | {one.url for one in servers if router in one.routers})


def to_keep(leaving: Leaving, servers: Sequence[Server], answers: Answers) -> dict[str, int]:
    """How many servers each router has to keep: as the strictest of those says that are to leave it.

    Args:
        leaving: what is to leave.
        servers: of the whole inventory.
        answers: what router_worker returned, by router.
    """
    found = {}
    for router in sorted(answers):
        said = [one.min_serving for one in servers if (one.host, one.service) in leaving and router in one.routers]
        found[router] = needed(said, has(servers, answers, router))
    return found


def too_few(leaving: Leaving, servers: Sequence[Server], answers: Answers) -> list[str]:
    """What speaks against it, a line for each router that would be left with too few; arguments as :func:`to_keep`.

    A server that no router sends anything to leaves nobody waiting.
    """
    found = []
    for router, least in to_keep(leaving, servers, answers).items():
        now = serving(answers, router)
        own = {one.url: one.host for one in servers if (one.host, one.service) in leaving and one.url in now}
        left = len(now - set(own))
        if own and left < least:
            found.append(
                f"without {', '.join(sorted(set(own.values())))} router {router} has {left} of "
                f"{has(servers, answers, router)} servers, and has to keep {least} (ironserve_min_serving): admit "
                "others, take fewer hosts at a time, or, where that is meant, -e ironserve_min_serving=0"
            )
    return found
