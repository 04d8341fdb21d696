"""Preflight: what must be true of a host before anything on it is touched. Everything wrong at once."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import aside, gpu_states, holders, host, runtime, secrets
from .gpus import Reading
from .problems import Problems
from .processes import ticks_now
from .systemd import UNIT_DIRECTORY, service_of
from .takeover import look

MODEL_TIMEOUT_S = 5.0
DRIVER_TIMEOUT_S = 30.0
"""Seconds that the driver may take where the site says nothing of it."""


class Inventory(NamedTuple):
    """What is known of the host from the inventory."""

    services: Sequence[str]
    """Every service that it gives to this host, for messages."""
    host: str
    """The host's name in it, for messages."""
    gpu_count: int = 0
    cleanup: Mapping[str, Any] = {}
    """What the site says of cleanups (``ironserve_cleanup``)."""

    @property
    def driver_timeout_s(self) -> float:
        """Seconds that the driver may take to answer."""
        return float(self.cleanup.get("driver_timeout_s", DRIVER_TIMEOUT_S))


def way_out(unit: str, inventory: Inventory) -> str:
    """What to do about another service of Ironserve's that holds a port: it is its inventory's to move."""
    service = service_of(unit)
    there = f"-e service={service} -l {inventory.host}"
    if inventory.services and service not in inventory.services:
        return (
            f"No inventory names service {service}: if it is the old name of this one, or not wanted any more, "
            f"ansible-playbook playbooks/remove.yml {there}"
        )
    return (
        f"It is service {service} of this host: where that one moves to another port, deploy it first ({there}), "
        f"or stop it, ansible-playbook playbooks/stop.yml {there}"
    )


def check_holders(
    releases: Sequence[Mapping[str, Any]], takeover: bool, inventory: Inventory, problems: Problems
) -> list[dict[str, Any]]:
    """Port and GPUs are free, or held by the service itself, or can be taken over where that was asked for.

    Returns the foreign holders.
    """
    _, found, doubts = look(releases, inventory.cleanup)
    now = ticks_now()
    problems.found += doubts
    for group in holders.grouped(found):
        owner = group.first.owner
        advice = way_out(owner.name, inventory) if owner.kind == "service" else ""
        problems.found += filter(None, [holders.problem(group, takeover, now, advice)])
    return [holders.as_result(holder, now) for holder in found]


TOLD_BY_CHECKS = ("driver_hung", "gpu_lost", "reset_required")
"""States of GPUs that ``host_checks.py`` tells of, with the other facts of the host."""


def check_gpus(
    releases: Sequence[Mapping[str, Any]], inventory: Inventory, reading: Reading, problems: Problems
) -> None:
    """Nothing is known of the GPUs that would stop the clean step of a deploy, after the old server was stopped."""
    named = frozenset(uuid for release in releases for uuid in release.get("gpus") or ())
    scope = named or frozenset(gpu.uuid for gpu in reading.gpus)
    wish = gpu_states.Wish(scope, named, inventory.gpu_count, 0, bool(inventory.cleanup.get("mig")))
    verdict = gpu_states.unusable(reading, wish, DRIVER_TIMEOUT_S)
    if verdict and not reading.failure and verdict.state not in TOLD_BY_CHECKS:
        problems.add("GPUs", "", verdict.message)


def model_problems(path: Path, user: str) -> list[str]:
    """What is wrong with a model's folder, see :func:`check_model`; for a child, since a share that hangs blocks it."""
    problems = Problems()
    check_model(path, user, problems)
    return problems.found


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


WRITTEN = (
    host.STATE, host.LOGS, host.RUNTIME, Path(UNIT_DIRECTORY), Path("/run/systemd/system"), Path(secrets.FOLDER),
    Path("/var/cache/ironserve"), Path("/tmp"), Path("/var/tmp"),  # noqa: S108  looked at, and written to by nobody here
)  # fmt: skip
"""What a deploy and a server write to, beside the environment."""

NEEDED_BYTES = 1 << 20
NEEDED_FILES = 16
"""What a deploy writes beside the environment is small: units, releases, records."""


def full(found: os.statvfs_result) -> str:
    """Why a file system takes nothing more, and what to do about it; empty where it does."""
    free = found.f_bavail * found.f_frsize
    if found.f_flag & os.ST_RDONLY:
        return "is on a file system that is read-only: mount it for writing (dmesg says why it is not)"
    if free < NEEDED_BYTES:
        return f"has {free / 2**20:.1f} MiB free, and a deploy writes there: make room"
    if found.f_files and found.f_favail < NEEDED_FILES:
        return f"has {found.f_favail} inodes free, and a deploy writes files there: remove some"
    return ""


def check_folders(folders: Iterable[Path], problems: Problems) -> None:
    """What a deploy writes to can be written to."""
    for folder in folders:
        why = full(os.statvfs(next(place for place in (folder, *folder.parents) if place.is_dir())))
        if why:
            problems.add(str(folder), "", why)


def check_host(
    releases: Sequence[Mapping[str, Any]],
    user: str,
    takeover: bool,
    inventory: Inventory,
    reading: Reading | None,
    problems: Problems,
) -> list[dict[str, Any]]:
    """Add everything of this host that stands against these releases; return who else holds what they are to have.

    Args:
        releases: what the host is to take.
        user: the service user.
        takeover: what can be taken over is no problem.
        inventory: for messages.
        reading: what the driver tells of the host's GPUs; None on a host without any.
        problems: receives everything that is wrong.
    """
    found = check_holders(releases, takeover, inventory, problems)
    if reading:
        check_gpus(releases, inventory, reading, problems)
    for path in dict.fromkeys(Path(release["model"]["path"]) for release in releases):
        try:
            problems.found += aside.ask(functools.partial(model_problems, path, user), MODEL_TIMEOUT_S)
        except aside.StuckError:
            stuck = (
                f"its disk or network share did not answer in {MODEL_TIMEOUT_S:g} s: see that it is mounted and served"
            )
            problems.add(f"model {path}", "", stuck)
    check_folders([*WRITTEN, *(path.parent for path in runtime.stale())], problems)
    if not host.can_execute(user, sys.executable):
        why = f"user {user} may not execute it, and it runs the launcher of servers"
        problems.add(sys.executable, "", f"{why}: set ansible_python_interpreter to the system's Python")
    if os.geteuid() != 0:
        problems.add("login", "", "is not root and did not become it: it needs sudo")
    if not Path("/run/systemd/system").is_dir():
        problems.add("systemd", "", "is not running on this host")
    return found
