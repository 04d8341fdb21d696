"""Preflight: what must be true of a host before anything on it is touched. Everything wrong at once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import host
from .problems import Problems
from .systemd import service_of, unit_name


def way_out(unit: str | None, services: Sequence[str], inventory_name: str) -> str:
    """What to do about a holder that was left alone: another service of Ironserve's is its inventory's to move."""
    service = service_of(unit or "")
    if not service:
        return "It was left alone: stop it, or set ironserve_port to a free port"
    there = f"-e service={service} -l {inventory_name}"
    if services and service not in services:
        return (
            f"No inventory names service {service}: if it is the old name of this one, or not wanted any more, "
            f"ansible-playbook playbooks/remove.yml {there}"
        )
    return (
        f"It is service {service} of this host: where that one moves to another port, deploy it first ({there}), "
        f"or stop it, ansible-playbook playbooks/stop.yml {there}"
    )


def check_port(
    port: int,
    unit: str,
    listeners: Sequence[host.Listener],
    problems: Problems,
    services: Sequence[str] = (),
    inventory_name: str = "HOST",
) -> None:
    """The port is free, or held by this service itself; else who holds it."""
    for holder in listeners:
        if holder.unit != unit:
            belongs = f", unit {holder.unit}" if holder.unit else ""
            problems.add(
                f"port {port}",
                "",
                f'taken by pid {holder.pid} (user {holder.user}{belongs}): "{holder.command[:200]}". '
                f"{way_out(holder.unit, services, inventory_name)}",
            )


def check_model(path: Path, user: str, problems: Problems) -> None:
    """The model's folder is there and has a config.json that the service user can read."""
    where = f"model {path}"
    if not path.is_dir():
        problems.add(where, "", "no such folder (ironserve_model.path): copy or mount the model there")
        return
    try:
        json.loads((path / "config.json").read_text())
    except FileNotFoundError:
        problems.add(where, "", "holds no config.json, so no engine can load it (ironserve_model.path)")
    except (OSError, ValueError) as error:
        problems.add(where, "", f"config.json cannot be read: {error}")
    else:
        if not host.can_read(user, path / "config.json"):
            problems.add(where, "", f"user {user} may not read config.json, or not enter a folder above it: chmod them")


def check_host(
    releases: Sequence[Mapping[str, Any]], user: str, services: Sequence[str], inventory_name: str, problems: Problems
) -> None:
    """Everything of this host that stands against these releases.

    Args:
        releases: what the host is to take.
        user: the service user.
        services: every service that the inventory gives to this host.
        inventory_name: of the host, for commands in messages.
        problems: receives everything that is wrong.
    """
    for release in releases:
        holders = host.listeners(release["port"])
        check_port(release["port"], unit_name(release["service"]), holders, problems, services, inventory_name)
        check_model(Path(release["model"]["path"]), user, problems)
    if os.geteuid() != 0:
        problems.add("login", "", "is not root and did not become it: it needs sudo")
    if not Path("/run/systemd/system").is_dir():
        problems.add("systemd", "", "is not running on this host")
