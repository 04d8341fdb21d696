"""Preflight: what must be true of a host before anything on it is touched. Everything wrong at once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import holders, host
from .problems import Problems
from .processes import ticks_now
from .takeover import look


def check_holders(releases: Sequence[Mapping[str, Any]], takeover: bool, problems: Problems) -> list[dict[str, Any]]:
    """Port and GPUs are free, or held by the service itself, or can be taken over where that was asked for.

    Returns the foreign holders.
    """
    _, found, doubts = look(releases)
    now = ticks_now()
    told = [holders.problem(group, takeover, now) for group in holders.grouped(found)]
    problems.found += filter(None, [*doubts, *told])
    return [holders.as_result(holder, now) for holder in found]


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
    releases: Sequence[Mapping[str, Any]], user: str, takeover: bool, problems: Problems
) -> list[dict[str, Any]]:
    """Add everything of this host that stands against these releases; return who else holds what they are to have."""
    found = check_holders(releases, takeover, problems)
    for release in releases:
        check_model(Path(release["model"]["path"]), user, problems)
    if os.geteuid() != 0:
        problems.add("login", "", "is not root and did not become it: it needs sudo")
    if not Path("/run/systemd/system").is_dir():
        problems.add("systemd", "", "is not running on this host")
    return found
