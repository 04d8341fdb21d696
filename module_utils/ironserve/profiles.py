"""Profiles: named tuning hypotheses, read from ``NAME.yml``, checked against the schema, merged along ``extends``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .engines import ENGINES
from .problems import Problems, kind_of, unknown
from .schema import Key, check_mapping

FLAG = Key("flag", "true (the bare flag), false (no flag), text or a number")

PROFILE = Key(
    "mapping",
    "a profile",
    keys={
        "description": Key("str", "the hypothesis, in a line", required=True),
        "extends": Key("str", "name of the profile that this one starts from; its own keys win"),
        "engine": Key("str", "the server", choices=tuple(ENGINES)),
        "nccl_set": Key("str", "name of the host group's NCCL set that the profile opts into"),
        "env": Key("mapping", "environment variables of the server", values=Key("scalar", "value of the variable")),
        "flags": Key(
            "mapping", "the server's flags, long names without dashes; ${name} is a size of the group", values=FLAG
        ),
        "requires": Key(
            "mapping",
            "what host and model must have",
            keys={"gpu_count": Key("int", "GPUs a host, at least", low=0, high=64)},
        ),
        "startup_timeout_s": Key("int", "seconds a start may take in all", low=1),
        "stall_timeout_s": Key("int", "seconds a start may go without its log moving", low=1),
        "watchdog_s": Key("int", "seconds a server may go without a token while requests wait", low=1),
        "completion_timeout_s": Key("int", "seconds the first completion may take", low=1),
    },
)

DEFAULTS = {"startup_timeout_s": 3600, "stall_timeout_s": 900, "watchdog_s": 600, "completion_timeout_s": 120}
"""Seconds. A trillion parameters from a network file system took over 40 minutes in public reports; the first
completion of a cold engine may compile kernels."""

SECRET = re.compile(r"(^|[_-])(api[_-]key|secret|password|passphrase)([_-]|$)|(^|[_-])(token|key)$", re.IGNORECASE)
"""Names of flags and variables whose values are nobody's business: a unit and its argv can be read by every user."""

NO_PLACE_FOR_IT = (
    "looks like a secret, and every user of a host can read its units: put it into ironserve_api_key, "
    "ironserve_secret_env or ironserve_secret_flags (docs/secrets.md)"
)

MERGED = ("env", "flags", "requires")
"""Keys that a child merges into its parent's; all others it replaces."""


@dataclass(frozen=True)
class Source:
    """A profile as written: its file and what YAML gave, or why it gave nothing."""

    file: str
    data: Any
    error: str = ""


def engine_of(name: str, sources: Mapping[str, Source]) -> str | None:
    """The engine of a profile, its own or that of the nearest one that it extends; None where that cannot be said."""
    seen: set[str] = set()
    while name in sources and name not in seen and isinstance(sources[name].data, Mapping):
        seen.add(name)
        data = sources[name].data
        if "engine" in data:
            return str(data["engine"])
        name = str(data.get("extends"))
    return None


def merge(name: str, sources: Mapping[str, Source], problems: Problems) -> dict[str, Any] | None:
    """The profile ``name`` with all that it extends, every profile of the chain checked.

    Returns None when there is no such profile, or when one of the chain is no profile at all; ``problems`` says why.
    """
    chain = _chain(name, sources, problems)
    if chain is None:
        return None
    for profile in chain:
        check_mapping(sources[profile].data, PROFILE, sources[profile].file, "", problems)
    merged: dict[str, Any] = dict(DEFAULTS)
    for profile in reversed(chain):
        merged |= {key: value for key, value in sources[profile].data.items() if key not in MERGED}
    for key in MERGED:
        parts = (_mapping(sources[profile].data.get(key)) for profile in reversed(chain))
        merged[key] = {name: value for part in parts for name, value in part.items()}
    if "engine" not in merged:
        problems.add(sources[name].file, "engine", "is missing: neither the profile nor one that it extends says it")
    for flag in merged["flags"]:
        _check_flag_name(
            flag, ENGINES.get(str(merged.get("engine"))), _file_of("flags", flag, sources, chain), problems
        )
    for variable in merged["env"]:
        if SECRET.search(str(variable)):
            problems.add(_file_of("env", variable, sources, chain), f"env.{variable}", NO_PLACE_FOR_IT)
    return merged


def _chain(name: str, sources: Mapping[str, Source], problems: Problems) -> list[str] | None:
    """The profile and all that it extends, nearest first; None where one of them is no profile."""
    chain: list[str] = []
    current: object = name
    while isinstance(current, str):
        said_in = sources[chain[-1]].file if chain else "profile"
        if current in chain:
            problems.add(said_in, "extends", f"goes in a circle: {' -> '.join([*chain, current])}")
            return None
        if current not in sources:
            problems.add(said_in, "extends" if chain else "", unknown("profile", current, sources))
            return None
        source = sources[current]
        if source.error or not isinstance(source.data, Mapping):
            unreadable = f"is not readable as YAML: {source.error}"
            problems.add(
                source.file,
                "",
                unreadable if source.error else f"expected a mapping of keys, got {kind_of(source.data)}",
            )
            return None
        chain.append(current)
        current = source.data.get("extends")
    return chain


def _check_flag_name(flag: object, engine: ModuleType | None, file: str, problems: Problems) -> None:
    """A flag is a long name without dashes in front, holds no secret, and is none that the service itself sets."""
    if not isinstance(flag, str) or not flag.strip():
        problems.add(file, "flags", f"a flag's name is text, got {kind_of(flag)}")
    elif flag.startswith("-") or "_" in flag or flag != flag.strip():
        proper = flag.strip().lstrip("-").replace("_", "-")
        problems.add(
            file, f"flags.{flag}", f'write the flag without dashes in front and with dashes inside: "{proper}"'
        )
    elif SECRET.search(flag):
        problems.add(file, f"flags.{flag}", NO_PLACE_FOR_IT)
    elif engine and flag in engine.SERVICE_FLAGS:
        problems.add(file, f"flags.{flag}", f"is set by the service: use {engine.SERVICE_FLAGS[flag]}")


def _file_of(key: str, name: object, sources: Mapping[str, Source], chain: list[str]) -> str:
    """The file of the nearest profile in the chain that says ``name`` under ``key``."""
    return next(sources[profile].file for profile in chain if name in _mapping(sources[profile].data.get(key)))


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
