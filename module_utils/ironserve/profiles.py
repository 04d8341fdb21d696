"""Profiles: named tuning hypotheses, read from ``NAME.yml``, checked against the schema, merged along ``extends``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
        "completion_timeout_s": Key("int", "seconds the first completion may take", low=1),
    },
)

DEFAULTS = {"startup_timeout_s": 3600, "completion_timeout_s": 120}
"""Seconds. A trillion parameters from a network file system took over 40 minutes in public reports; the first
completion of a cold engine may compile kernels."""

MERGED = ("env", "flags", "requires")
"""Keys that a child merges into its parent's; all others it replaces."""


@dataclass(frozen=True)
class Source:
    """A profile as written: its file and what YAML gave."""

    file: str
    data: Any


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
    if name not in sources:
        problems.add("profile", "", unknown("profile", name, sources))
        return None
    chain: list[str] = []
    current: str | None = name
    while current is not None:
        if current in chain:
            problems.add(sources[chain[-1]].file, "extends", f"goes in a circle: {' -> '.join([*chain, current])}")
            return None
        if current not in sources:
            problems.add(sources[chain[-1]].file, "extends", unknown("profile", current, sources))
            return None
        chain.append(current)
        source = sources[current]
        if not isinstance(source.data, Mapping):
            problems.add(source.file, "", f"expected a mapping of keys, got {kind_of(source.data)}")
            return None
        check_mapping(source.data, PROFILE, source.file, "", problems)
        parent = source.data.get("extends")
        current = parent if isinstance(parent, str) else None
    merged: dict[str, Any] = dict(DEFAULTS)
    for ancestor in reversed(chain):
        for key, value in sources[ancestor].data.items():
            if key in MERGED and isinstance(value, Mapping):
                merged[key] = {**merged.get(key, {}), **value}
            else:
                merged[key] = value
    merged.pop("extends", None)
    if "engine" not in merged:
        problems.add(sources[name].file, "engine", "is missing: neither the profile nor one that it extends says it")
    for key in MERGED:
        if not isinstance(merged.setdefault(key, {}), Mapping):
            merged[key] = {}
    _check_flag_names(name, merged, sources, chain, problems)
    return merged


def _check_flag_names(
    name: str, merged: Mapping[str, Any], sources: Mapping[str, Source], chain: list[str], problems: Problems
) -> None:
    """Flags are long names without dashes, and none that the service itself sets."""
    engine = ENGINES.get(str(merged.get("engine")))
    for flag in merged["flags"]:
        file = next(
            (sources[a].file for a in chain if flag in (sources[a].data.get("flags") or {})), sources[name].file
        )
        if not isinstance(flag, str) or not flag.strip():
            problems.add(file, "flags", f"a flag's name is text, got {kind_of(flag)}")
        elif flag.startswith("-") or "_" in flag or flag != flag.strip():
            proper = flag.strip().lstrip("-").replace("_", "-")
            problems.add(
                file, f"flags.{flag}", f'write the flag without dashes in front and with dashes inside: "{proper}"'
            )
        elif engine and flag in engine.SERVICE_FLAGS:
            problems.add(file, f"flags.{flag}", f"is set by the service: use {engine.SERVICE_FLAGS[flag]}")
