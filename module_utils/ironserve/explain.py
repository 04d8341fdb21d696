"""What a profile became for one host, with the place that each value comes from: rows, and the rows as text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from .flags import argv_of, in_order, named_in
from .profiles import DEFAULTS, Merged


def explain(
    release: Mapping[str, Any], merged: Merged, of_service: Mapping[str, Any], engine: ModuleType
) -> dict[str, Any]:
    """The origins of a release; ``of_service`` are the flags that the service sets.

    Returns ``argv``: ``words`` and ``origin`` for each flag in the order of the command, the program first, so that all
    words together are the release's argv. ``env`` and ``settings``: ``name``, ``value`` and ``origin``.
    """
    model, group = release["model"], release["host_group"]
    flags = {**release["flags"], **of_service}
    program, said = engine.command(release["environment"], model["path"]), f"lock {release['lock']['name']}"
    positional = ", service: ironserve_model.path" if model["path"] in program else ""
    rows = [{"words": program, "origin": f"engine {release['engine']}, {said}{positional}"}]
    for name in in_order(flags, engine.FLAG_ORDER):
        origin = _of_service(name, engine) if name in of_service else _of_flag(name, merged, group)
        rows.append({"words": argv_of(name, flags[name]), "origin": origin})
    env = [
        {"name": name, "value": value, "origin": _of_variable(name, merged, group)}
        for name, value in sorted(release["env"].items())
    ]
    env += [{"name": name, "value": value, "origin": "service: gpus"} for name, value in release["host_env"].items()]
    settings = [{"name": key, "value": _plain(release[key]), "origin": str(merged.origins[key,])} for key in DEFAULTS]
    return {"argv": rows, "env": env, "settings": settings}


def _plain(value: Any) -> Any:
    """Limits by phase in a line."""
    return ", ".join(f"{name} {limit}" for name, limit in value.items()) if isinstance(value, Mapping) else value


def _of_service(name: str, engine: ModuleType) -> str:
    return f"service: {'the file of its secrets' if name == 'config' else engine.SERVICE_FLAGS[name]}"


def _of_flag(name: str, merged: Merged, group: str) -> str:
    sizes = dict.fromkeys(named_in(merged.values["flags"][name]))
    of_group = [f"size {size} of host group {group}" for size in sizes]
    return ", ".join([str(merged.origins["flags", name]), *of_group])


def _of_variable(name: str, merged: Merged, group: str) -> str:
    if ("env", name) in merged.origins:
        return str(merged.origins["env", name])
    return f"{merged.origins['nccl_set',]}, NCCL set {merged.values['nccl_set']} of host group {group}"


def text(host: str, release: Mapping[str, Any], origins: Mapping[str, Any]) -> str:
    """The release for a person: command and environment a line each with origins, then the command to copy."""
    whose = host if release["service"] == "main" else f"{host}, service {release['service']}"
    pieces = [
        f"{whose}: profile {release['profile']}, host group {release['host_group']}, release {release['release_id']}",
        "",
        *_columns([(shlex.join(row["words"]), row["origin"]) for row in origins["argv"]]),
        "",
        *_columns([(f"{row['name']}={shlex.quote(row['value'])}", row["origin"]) for row in origins["env"]]),
        *([""] if origins["env"] else []),
        *_columns([(f"{row['name']}: {row['value']}", row["origin"]) for row in origins["settings"]]),
        *([""] if release["secrets"] else []),
        *_columns([(name, "secret: never shown, and to be added to the command below") for name in release["secrets"]]),
        "",
        "To copy:",
        command_line(release),
    ]
    return "\n".join(pieces)


def command_line(release: Mapping[str, Any]) -> str:
    """Environment and command in one line for a shell."""
    env = {**release["env"], **release["host_env"]}
    assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(env.items())]
    return " ".join([*assignments, shlex.join(release["argv"])])


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    """Lines of two columns; a first column that is very wide does not push the others aside."""
    width = max((len(first) for first, _ in rows if len(first) <= WIDEST), default=0)
    return [f"  {first.ljust(width)}  # {second}" for first, second in rows]


WIDEST = 72
