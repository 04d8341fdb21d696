"""Profiles: named tuning hypotheses, read from ``NAME.yml``, checked against the schema, merged along ``extends``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .engines import ENGINES
from .flags import check_value
from .problems import Problems, did_you_mean, kind_of, unknown
from .progress import STALL_TIMEOUT_S
from .schema import Key, check_mapping

DEFAULTS = {
    "startup_timeout_s": 3600,
    "completion_timeout_s": 120,
    "stall_timeout_s": STALL_TIMEOUT_S,
    "watchdog_s": 600,
}
"""Seconds. A trillion parameters from a network file system took over 40 minutes in public reports; the first
completion of a cold engine may compile kernels."""

FLAG = Key("flag", "value of the flag", removable=True)
VARIABLE = Key("scalar", "value of the variable", removable=True)


def _seconds(name: str, about: str) -> Key:
    return Key("int", about, low=1, removable=True, default=DEFAULTS[name])


SETTINGS = {
    "nccl_set": Key("str", "name of the host group's NCCL set that the profile opts into", removable=True),
    "flags": Key("mapping", "the server's flags: long names without dashes", values=FLAG),
    "env": Key("mapping", "environment variables of the server", values=VARIABLE),
    "requires": Key(
        "mapping",
        "what host and model must have",
        keys={"gpu_count": Key("int", "GPUs a host, at least", low=0, high=64, removable=True)},
    ),
    "startup_timeout_s": _seconds("startup_timeout_s", "seconds a start may take in all"),
    "stall_timeout_s": Key(
        "seconds",
        "seconds a start may go without anything that moves (log, reads, CPU work, GPU memory); or a mapping of such "
        "limits by phase of the engine's log, of which default is for all others",
        low=1,
        removable=True,
        default=STALL_TIMEOUT_S,
        values=Key("int", "seconds of that phase", low=1),
    ),
    "completion_timeout_s": _seconds("completion_timeout_s", "seconds the first completion may take"),
    "watchdog_s": _seconds(
        "watchdog_s", "seconds without decoding while requests wait, after which systemd kills the engine"
    ),
}
"""What a profile may say for every host, and in a part for one host group or one host."""

PART = Key("mapping", "settings of that part only", keys=SETTINGS)

PROFILE = Key(
    "mapping",
    "a profile",
    keys={
        "description": Key("str", "the hypothesis, in a line", required=True),
        "extends": Key("str", "name of the profile that this one starts from; its own keys win"),
        "engine": Key("str", "the server; inherited where the profile extends another", choices=tuple(ENGINES)),
        **SETTINGS,
        "for_group": Key("mapping", "settings for hosts of one host group, by its name", values=PART),
        "for_host": Key("mapping", "settings for one host, by its name in the inventory", values=PART),
    },
)

SECRET = re.compile(r"(^|[_-])(api[_-]key|secret|password|passphrase)([_-]|$)|(^|[_-])(token|key)$", re.IGNORECASE)
"""Names of flags and variables whose values are nobody's business: a unit and its argv can be read by every user."""

NO_PLACE_FOR_IT = (
    "looks like a secret, and every user of a host can read its units: put it into ironserve_api_key, "
    "ironserve_secret_env or ironserve_secret_flags (docs/secrets.md)"
)

MERGED = ("env", "flags", "requires")
"""Keys whose names are merged one by one; any other key is replaced, and so is a flag whose value is a mapping."""

Place = tuple[Any, ...]
"""Of a setting: ``("nccl_set",)`` or ``("flags", "tp-size")``."""


@dataclass(frozen=True)
class Source:
    """A profile as written: its file and what YAML gave, or why it gave nothing; ``found`` is what is wrong in it."""

    file: str
    data: Any
    error: str = ""
    found: tuple[str, ...] = ()


@dataclass(frozen=True)
class Origin:
    """Where a setting was written."""

    file: str
    key: str

    def __str__(self) -> str:
        return f"{self.file} {self.key}"


@dataclass(frozen=True)
class Part:
    """Settings that stand together in a profile: its own, or those for one host group or host."""

    file: str
    prefix: str
    data: Mapping[Any, Any]

    def origin(self, path: Place) -> Origin:
        """Where the part says a setting."""
        return Origin(self.file, self.prefix + ".".join(str(name) for name in path))

    def settings(self) -> Iterator[tuple[Place, Any]]:
        """Every setting with its path."""
        for key, value in self.data.items():
            if key in MERGED:
                yield from (((key, name), item) for name, item in _mapping(value).items())
            elif key not in ("for_group", "for_host"):
                yield (key,), value


@dataclass(frozen=True)
class Merged:
    """A profile with all that it extends, for one host: plain values, and where each was written."""

    values: dict[str, Any]
    origins: dict[Place, Origin]


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


def merge(
    name: str, sources: Mapping[str, Source], problems: Problems, group: str = "", host: str = ""
) -> Merged | None:
    """The profile ``name`` with all that it extends, as it holds for a host of a host group.

    From low to high: the defaults; then for each profile, from the one that extends nothing to ``name``, its own
    settings, those for the host group, those for the host. Every part of every profile of the chain is checked, those
    for other groups and hosts too.

    Returns None when there is no such profile, or when one of the chain is no profile at all; ``problems`` says why.
    """
    chain, whole = _chain(name, sources, problems)
    for profile in chain:
        problems.found += [entry for entry in sources[profile].found if entry not in problems.found]
        check_mapping(sources[profile].data, PROFILE, sources[profile].file, "", problems)
    parts = [part for profile in reversed(chain) for part in _parts(sources[profile])]
    if not whole:  # what is inherited is not known, and so neither is the engine; all else was checked
        for part in parts:
            _check_part(part, ENGINES.get(str(engine_of(name, sources))), problems)
        return None
    _check_removals(parts, problems)
    settings: dict[Place, tuple[Any, Origin]] = {
        (key,): (value, Origin("Ironserve", "default")) for key, value in DEFAULTS.items()
    }
    for part in parts:
        if part.prefix in ("", f"for_group.{group}.", f"for_host.{host}."):
            _apply(part, settings)
    values: dict[str, Any] = {key: {} for key in MERGED}
    for path, (value, _) in settings.items():
        if path[0] in MERGED:
            values[path[0]][path[1]] = value
        else:
            values[path[0]] = value
    if "engine" not in values:
        problems.add(sources[name].file, "engine", "is missing: neither the profile nor one that it extends says it")
    for part in parts:
        _check_part(part, ENGINES.get(str(values.get("engine"))), problems)
    return Merged(values, {path: origin for path, (_, origin) in settings.items()})


@dataclass(frozen=True)
class Inventory:
    """Names that a profile may speak of: all groups and hosts, and what the host at hand belongs to."""

    groups: Collection[str]
    hosts: Collection[str]
    host_group: str
    member_of: Collection[str]


def check_names(name: str, sources: Mapping[str, Source], inventory: Inventory, problems: Problems) -> None:
    """Note parts for a group or host that would be passed over although somebody expects otherwise.

    A profile may speak of groups and hosts of another inventory, so a name that is merely unknown is no mistake; nor is
    one that differs from a known name in its digits only, as machines of a row do. One that is nearly a known name is,
    and so is a group that the host is in and that is not its host group.
    """
    chain, _ = _chain(name, sources, Problems())
    for part in (part for profile in chain for part in _parts(sources[profile])):
        kind, _, rest = part.prefix.partition(".")
        known, said = (inventory.groups if kind == "for_group" else inventory.hosts), rest[:-1]
        if not kind:
            continue
        meant = "" if said in known else _nearly(said, known)
        if meant:
            text = f"nothing of this name is in the inventory{meant}; if it is right, name it there"
            problems.add(part.file, f"{kind}.{said}", text)
        if kind == "for_group" and said != inventory.host_group and said in ("all", *inventory.member_of):
            text = f"is a group, and no host group: for_group goes by ironserve_host_group, here {inventory.host_group}"
            problems.add(part.file, f"{kind}.{said}", text)


def _nearly(said: str, known: Collection[str]) -> str:
    return did_you_mean(said, [other for other in known if _without_digits(other) != _without_digits(said)])


def _without_digits(name: str) -> str:
    return re.sub(r"\d+", "0", name)


def _parts(source: Source) -> Iterator[Part]:
    """The parts of a profile, from low to high."""
    yield Part(source.file, "", source.data)
    for kind in ("for_group", "for_host"):
        for name, data in _mapping(source.data.get(kind)).items():
            yield Part(source.file, f"{kind}.{name}.", _mapping(data))


def _removes(path: Place, value: Any) -> bool:
    key = SETTINGS.get(path[0]) if isinstance(path[0], str) else None
    return value is None and key is not None and (path[0] in MERGED or key.removable)


def _apply(part: Part, settings: dict[Place, tuple[Any, Origin]]) -> None:
    for path, value in part.settings():
        if not _removes(path, value):
            settings[path] = (value, part.origin(path))
        elif len(path) == 1 and path[0] in DEFAULTS:
            settings[path] = (DEFAULTS[path[0]], Origin("Ironserve", "default"))
        else:
            settings.pop(path, None)


def _check_removals(parts: Iterable[Part], problems: Problems) -> None:
    """A part may remove what a lower one says, for any host: a name that none of them says is a mistake."""
    said: set[Place] = set()
    for part in parts:
        for path, value in part.settings():
            if _removes(path, value) and path not in said:
                alike = [str(other[-1]) for other in said if other[:-1] == path[:-1]]
                text = f"null removes what is inherited, and nothing is{did_you_mean(str(path[-1]), alike)}"
                origin = part.origin(path)
                problems.add(origin.file, origin.key, text)
        said |= {path for path, value in part.settings() if not _removes(path, value)}


def _check_part(part: Part, engine: ModuleType | None, problems: Problems) -> None:
    """The names and values of flags and variables, as they are written."""
    for name, value in _mapping(part.data.get("flags")).items():
        _check_flag_name(name, engine, part, problems)
        origin = part.origin(("flags", name))
        check_value(value, problems.at(origin.file, origin.key))
    for name in _mapping(part.data.get("env")):
        if SECRET.search(str(name)):
            problems.add(part.file, f"{part.prefix}env.{name}", NO_PLACE_FOR_IT)


def _chain(name: str, sources: Mapping[str, Source], problems: Problems) -> tuple[list[str], bool]:
    """The profile and all that it extends, nearest first, and whether it is whole: one of them may be no profile."""
    chain: list[str] = []
    current: object = name
    while isinstance(current, str):
        said_in = sources[chain[-1]].file if chain else "profile"
        if current in chain:
            problems.add(said_in, "extends", f"goes in a circle: {' -> '.join([*chain, current])}")
            return chain, False
        if current not in sources:
            problems.add(said_in, "extends" if chain else "", unknown("profile", current, sources))
            return chain, False
        source = sources[current]
        if not isinstance(source.data, Mapping):
            if source.error:
                problems.add(source.file, "", f"cannot be read: {source.error}")
            elif not source.found:
                problems.add(source.file, "", f"expected a mapping of keys, got {kind_of(source.data)}")
            problems.found += source.found
            return chain, False
        chain.append(current)
        current = source.data.get("extends")
    return chain, True


def _check_flag_name(flag: object, engine: ModuleType | None, part: Part, problems: Problems) -> None:
    """A flag is a long name without dashes in front, holds no secret, and is none that the service itself sets."""
    key = f"{part.prefix}flags"
    if not isinstance(flag, str) or not flag.strip():
        problems.add(part.file, key, f"a flag's name is text, got {kind_of(flag)}")
        return
    first, dot, rest = flag.partition(".")  # vLLM's --compilation-config.cudagraph_mode: the rest is a key of JSON
    if flag.startswith("-") or "_" in first or flag != flag.strip():
        proper = (first.lstrip("-").replace("_", "-") + dot + rest).strip()
        problems.add(
            part.file, f"{key}.{flag}", f'write the flag without dashes in front and with dashes inside: "{proper}"'
        )
    elif re.search(r"[\s=]", flag):
        problems.add(part.file, f"{key}.{flag}", "a flag's name ends before its value, which comes after the colon")
    elif SECRET.search(flag):
        problems.add(part.file, f"{key}.{flag}", NO_PLACE_FOR_IT)
    elif engine and flag in engine.SERVICE_FLAGS:
        problems.add(part.file, f"{key}.{flag}", f"is set by the service: use {engine.SERVICE_FLAGS[flag]}")


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
