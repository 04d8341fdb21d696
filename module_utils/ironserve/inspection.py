"""One look at all services of a host: what they do, and what of them is not as declared. It changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import aside, drift, evidence, host, packages, readback, running, systemd
from .engines import ENGINES
from .holders import mask, masked
from .secrets import redact
from .services import Service

READ_S = 1.5
"""For /proc of one service: a process that is stuck in the kernel may block who reads it."""

DRIVER_FILE = Path("/proc/driver/nvidia/version")


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


def differences(wished: Sequence[Mapping[str, Any]], locked: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """What of a host's services is not as declared, and its driver and kernel.

    ``services[{service drift[{kind key declared runs}] errors[]}] driver kernel``; no secret is in it.

    Args:
        wished: for each service the ``release`` and the text of its ``unit`` as they would be deployed now.
        locked: version of each package by lock id.
    """
    return {
        "services": [_differences(want["release"], want["unit"], locked) for want in wished],
        "driver": drift.driver_version(host.read_text(DRIVER_FILE) or ""),
        "kernel": os.uname().release,
    }


def _differences(release: Mapping[str, Any], unit: str, locked: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    service, lock_id = release["service"], release["lock"]["id"]
    name = systemd.unit_name(service)
    wanted = "--property=MainPID,FragmentPath,DropInPaths,NeedDaemonReload"
    show = systemd.parse_show(host.run(["systemctl", "show", name, wanted]).out)
    pid, on_disk = int(show.get("MainPID") or 0), host.read_text(Path(systemd.UNIT_DIRECTORY) / name)
    rows: list[drift.Row] = []
    errors: list[str] = []
    if not pid and on_disk is None and host.link_target(host.STATE / service / "active") is None:
        return {"service": service, "drift": rows, "errors": errors}  # nothing was deployed, which status says
    if pid:
        try:
            rows += aside.ask(lambda: _of_process(pid, release), READ_S)
        except aside.StuckError:
            errors.append("flags and env: a process of the engine is stuck in the kernel")
    drop_ins = {path: host.read_text(Path(path)) or "" for path in show.get("DropInPaths", "").split()}
    rows += drift.unit(name, unit, on_disk, show, drop_ins)
    rows += drift.packages(locked[lock_id], _installed(release["environment"]), lock_id)
    known = evidence.known_secrets(service)
    hidden = [{key: text and mask(redact(text, known)) for key, text in row.items()} for row in rows]
    return {"service": service, "drift": hidden, "errors": errors}


def _of_process(pid: int, release: Mapping[str, Any]) -> list[drift.Row]:
    """In what the processes of a service differ from its release."""
    runs = readback.words(running.command(pid))
    env = {**release["env"], **release.get("host_env", {})}
    main, ranks = running.main_process(pid), running.ranks(pid, ENGINES[release["engine"]])
    flags = drift.flags(masked(release["argv"]), masked(runs))
    return flags + drift.environment(env, main, ranks, release.get("secrets", []))


def _installed(environment: str) -> dict[str, str] | None:
    """The packages of an engine environment, None where there is none."""
    folders = list(Path(environment).glob("lib/python3*/site-packages"))
    return packages.installed(os.listdir(folders[0])) if folders else None  # noqa: PTH208  names are all that is wanted
