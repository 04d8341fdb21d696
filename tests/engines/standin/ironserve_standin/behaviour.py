"""The behaviour file of a model folder, ``standin.yml``: how this start shall go, and how the server shall answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from .data import read_yaml

FILE_NAME = "standin.yml"
HANG_KINDS = ("quiet", "heartbeat", "spin", "pipe_writes")


class BehaviourError(Exception):
    """The behaviour file says something that the stand-in does not know."""


Check = Callable[[str, Any], None]


def seconds(key: str, value: Any) -> None:
    """Accept a number of at least zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise BehaviourError(f"{key}: {value!r} is not a number of at least 0")


def count(key: str, value: Any) -> None:
    """Accept a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BehaviourError(f"{key}: {value!r} is not a whole number of at least 1")


def status(key: str, value: Any) -> None:
    """Accept an exit status."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 255:
        raise BehaviourError(f"{key}: {value!r} is not an exit status (0 to 255)")


def of_type(kind: type, noun: str) -> Check:
    """Accept values of one type, called `noun` in the message."""

    def check(key: str, value: Any) -> None:
        if not isinstance(value, kind):
            raise BehaviourError(f"{key}: {value!r} is not {noun}")

    return check


def one_of(*choices: str | int, or_seconds: str = "") -> Check:
    """Accept one of `choices`, or a mapping with the single key `or_seconds` and a number."""

    def check(key: str, value: Any) -> None:
        if or_seconds and isinstance(value, dict):
            mapping(**{or_seconds: seconds})(key, value)
        elif value not in choices or isinstance(value, bool):
            known = ", ".join(str(choice) for choice in choices)
            raise BehaviourError(
                f"{key}: {value!r} is none of {known}" + (f", {{{or_seconds}: N}}" if or_seconds else "")
            )

    return check


def mapping(**keys: Check) -> Check:
    """Accept a mapping with some of `keys`."""

    def check(key: str, value: Any) -> None:
        of_type(dict, "a mapping")(key, value)
        for name, item in value.items():
            if name not in keys:
                raise BehaviourError(f"{key}: unknown key {name!r} (known: {', '.join(sorted(keys))})")
            keys[name](f"{key}.{name}", item)

    return check


def mapping_of(item: Check) -> Check:
    """Accept a mapping with any keys, whose values pass `item`."""

    def check(key: str, value: Any) -> None:
        of_type(dict, "a mapping")(key, value)
        for name, entry in value.items():
            item(f"{key}.{name}", entry)

    return check


#: The keys of the file with their checks; their defaults are those of Behaviour.
CHECKS: dict[str, Check] = {
    "phases": mapping_of(mapping(delay_s=seconds)),
    "hang_in": of_type(str, "the name of a phase"),
    "hang_how": one_of(*HANG_KINDS),
    "heartbeat_s": seconds,
    "exit_in": of_type(str, "the name of a phase"),
    "exit_status": status,
    "exit_message": of_type(str, "text"),
    "weights": mapping(shards=count, seconds=seconds),
    "completion": one_of("normal", "never", "wrong_model", "error_500", or_seconds="slow_s"),
    "models_early": of_type(bool, "true or false"),
    "health": one_of("normal", "always_200", 500, or_seconds="delay_s"),
    "engine_core": mapping(die_after_s=seconds),
    "death_notice_s": seconds,
    "first_request": one_of("normal", "kills"),
    "sigterm": one_of("normal", "ignore"),
    "sigterm_s": seconds,
    "port": one_of("normal", "early", or_seconds="late_s"),
    "tokens_per_s": seconds,
    "ttft_s": seconds,
}


@dataclass
class Behaviour:
    """What the behaviour file asks for; without a file a healthy, fast server. README.md says what each key does."""

    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    hang_in: str | None = None
    hang_how: str = "quiet"
    heartbeat_s: float = 1.0
    exit_in: str | None = None
    exit_status: int | None = None
    exit_message: str = ""
    weights: dict[str, Any] = field(default_factory=dict)
    completion: str | dict[str, float] = "normal"
    models_early: bool = False
    health: str | int | dict[str, float] = "normal"
    engine_core: dict[str, float] = field(default_factory=dict)
    death_notice_s: float = 0.2
    first_request: str = "normal"
    sigterm: str = "normal"
    sigterm_s: float = 0.2
    port: str | dict[str, float] = "normal"
    tokens_per_s: float = 2000
    ttft_s: float = 0.0

    def delay_s(self, phase: str) -> float:
        """How long `phase` takes."""
        return self.phases.get(phase, {}).get("delay_s", 0.0)

    @property
    def opens_early(self) -> bool:
        """Whether the port answers before the engine can generate."""
        return self.port == "early" or self.models_early


def option_s(value: object, name: str, default: float = 0.0) -> float:
    """Return the seconds of a choice that was given as a mapping, such as ``{late_s: 2}``."""
    return float(value.get(name, default)) if isinstance(value, dict) else default


def parse(document: Any, phases: Sequence[str]) -> Behaviour:
    """Turn the document of a behaviour file into a Behaviour.

    Raises:
        BehaviourError: an unknown key, a wrong value or an unknown phase.
    """
    mapping(**CHECKS)(FILE_NAME, document)
    named = [*document.get("phases", {}), *(document[name] for name in ("hang_in", "exit_in") if name in document)]
    for phase in named:
        if phase not in phases:
            raise BehaviourError(f"{FILE_NAME}: no phase {phase!r} (phases: {', '.join(phases)})")
    return Behaviour(**document)


def load(model: str, phases: Sequence[str]) -> Behaviour:
    """Read the behaviour file of the model folder, if there is one."""
    path = Path(model) / FILE_NAME
    return parse(read_yaml(path) or {}, phases) if path.is_file() else Behaviour()
