"""One look at all services of a host, and at what Ironserve left there that nobody names any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import host, systemd
from .services import Service


def look(names: Sequence[str]) -> dict[str, Any]:
    """The services that are named, and the others of this host.

    All are asked at the same time: a server that hangs takes as long as its question may, and so do eight.
    """
    others = sorted(present() - set(names))
    with ThreadPoolExecutor(max_workers=16) as pool:
        seen = list(pool.map(_observe, [*names, *others]))
    return {"services": seen[: len(names)], "unknown": seen[len(names) :]}


def _observe(name: str) -> dict[str, Any]:
    return Service(name, check=True).observed()


def present() -> set[str]:
    """The services that this host has a unit or a folder of."""
    units = {path.name for path in Path(systemd.UNIT_DIRECTORY).glob("ironserve-*.service")}
    # A unit whose file is gone may still run.
    listed = host.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "ironserve-*.service"]).out
    units |= set(listed.split())
    folders = {path.name for path in host.STATE.iterdir() if path.is_dir()} if host.STATE.is_dir() else set()
    return services_in(units, folders)


def services_in(units: Iterable[str], folders: Iterable[str]) -> set[str]:
    """The services that units and state folders are named for; what has another kind of name belongs to none."""
    named = {systemd.service_of(unit) for unit in units}
    return {name for name in {*named, *folders} if name and systemd.SERVICE_NAME.fullmatch(name)}
