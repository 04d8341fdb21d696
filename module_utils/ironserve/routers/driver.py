"""What all kinds of routers have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class RouterError(Exception):
    """A router did not do what it was asked to; the text says why."""


class SilentError(RouterError):
    """It does not answer, or not now: it may be starting."""


class RefusedError(RouterError):
    """It answers, and says no."""


class Worker(NamedTuple):
    """A server that a router sends requests to. ``load`` is what the router says of it, ``id`` its own name for it."""

    url: str
    healthy: bool
    load: int
    model: str
    id: str = ""


class Outcomes(NamedTuple):
    """How many requests a worker answered, and how many it did not."""

    ok: int = 0
    failed: int = 0


class Router(NamedTuple):
    """How a router is reached from its own host. The key is for it and for the servers behind it."""

    url: str
    metrics_url: str
    key: str = ""


LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  what listens everywhere is asked here


def base_url(address: str, port: int) -> str:
    """``http://ADDRESS:PORT``, an IPv6 address in brackets."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def worker_url(address: str, port: int) -> str:
    """The URL under which routers know a server. An address that has brackets already keeps them."""
    return base_url(address.strip("[]"), port)


def router_of(settings: Mapping[str, Any]) -> Router:
    """The router that a host's settings (router.json) describe."""
    address, metrics = (str(settings[name]) for name in ("host", "metrics_host"))
    return Router(
        base_url(LOOPBACK.get(address, address), int(settings["port"])),
        base_url(LOOPBACK.get(metrics, metrics), int(settings["metrics_port"])),
        str(settings.get("api_key") or ""),
    )
