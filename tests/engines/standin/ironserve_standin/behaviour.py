"""The behaviour file of a model folder, ``standin.yml``: how this start shall go, and how the server shall answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from .data import read_yaml

FILE_NAME = "standin.yml"
HANG_KINDS = ("quiet", "heartbeat", "spin", "pipe_writes")
LOAD_KINDS = ("silent_io", "heartbeat_io", "steady", "memory", "compile")
#: Signals by which a program ends that went wrong.
FATAL_SIGNALS = ("ABRT", "BUS", "FPE", "ILL", "KILL", "SEGV")


class BehaviourError(Exception):
    """The behaviour file says something that the stand-in does not know."""


Check = Callable[[str, Any], None]


def seconds(key: str, value: Any) -> None:
    """Accept a number of at least zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise BehaviourError(f"{key}: {value!r} is not a number of at least 0")


def more_than_zero(key: str, value: Any) -> None:
    """Accept a number above zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise BehaviourError(f"{key}: {value!r} is not a number above 0")


def whole(least: int) -> Check:
    """Accept a whole number of at least `least`."""

    def check(key: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BehaviourError(f"{key}: {value!r} is not a whole number of at least {least}")

    return check


def status(key: str, value: Any) -> None:
    """Accept an exit status."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 255:
        raise BehaviourError(f"{key}: {value!r} is not an exit status (0 to 255)")


def existing_file(key: str, value: Any) -> None:
    """Accept the path of a file."""
    of_type(str, "a path")(key, value)
    if not Path(value).is_file():
        raise BehaviourError(f"{key}: there is no file {value}")


def of_type(kind: type, noun: str) -> Check:
    """Accept values of one type, called `noun` in the message."""

    def check(key: str, value: Any) -> None:
        if not isinstance(value, kind):
            raise BehaviourError(f"{key}: {value!r} is not {noun}")

    return check


def one_of(*choices: str | int, **keys: Check) -> Check:
    """Accept one of `choices`, or where there are `keys` a mapping with some of them."""

    def check(key: str, value: Any) -> None:
        if keys and isinstance(value, dict):
            mapping(**keys)(key, value)
        elif value not in choices or isinstance(value, bool):
            known = [*map(str, choices), *([f"{{{', '.join(keys)}}}"] if keys else [])]
            raise BehaviourError(f"{key}: {value!r} is none of {', '.join(known)}")

    return check


def mapping(*needed: str, **keys: Check) -> Check:
    """Accept a mapping with some of `keys`, all of `needed` among them."""

    def check(key: str, value: Any) -> None:
        of_type(dict, "a mapping")(key, value)
        for name, item in value.items():
            if name not in keys:
                raise BehaviourError(f"{key}: unknown key {name!r} (known: {', '.join(sorted(keys))})")
            keys[name](f"{key}.{name}", item)
        missing = [name for name in needed if name not in value]
        if missing:
            raise BehaviourError(f"{key}: {', '.join(missing)} is missing")

    return check


def mapping_of(item: Check) -> Check:
    """Accept a mapping with any keys, whose values pass `item`."""

    def check(key: str, value: Any) -> None:
        of_type(dict, "a mapping")(key, value)
        for name, entry in value.items():
            item(f"{key}.{name}", entry)

    return check


def anything(key: str, value: Any) -> None:
    """Accept all."""


def list_of(item: Check) -> Check:
    """Accept a list of what passes `item`."""

    def check(key: str, value: Any) -> None:
        of_type(list, "a list")(key, value)
        for number, entry in enumerate(value):
            item(f"{key}[{number}]", entry)

    return check


def part_of_a_file(key: str, value: Any) -> None:
    """Accept what a behaviour file may hold, without conditions of its own."""
    mapping(**{name: check for name, check in CHECKS.items() if name != "per_flag"})(key, value)


#: The keys of the file with their checks; their defaults are those of Behaviour.
CHECKS: dict[str, Check] = {
    "phases": mapping_of(mapping(delay_s=seconds)),
    "hang_in": of_type(str, "the name of a phase"),
    "hang_how": one_of(*HANG_KINDS),
    "heartbeat_s": seconds,
    "exit_in": of_type(str, "the name of a phase"),
    "exit_after_s": seconds,
    "exit_status": status,
    "exit_how": mapping("signal", signal=one_of(*FATAL_SIGNALS)),
    "exit_message": of_type(str, "text"),
    "rank": mapping(
        "number",
        number=whole(0),
        die_in=of_type(str, "the name of a phase"),
        die_after_s=seconds,
        notice=of_type(bool, "true or false"),
    ),
    "rank_env": mapping_of(of_type(str, "text")),
    "says": mapping_of(anything),
    "weights": mapping(shards=whole(1), seconds=seconds),
    "load": mapping(
        "how",
        "seconds",
        how=one_of(*LOAD_KINDS),
        seconds=seconds,
        phase=of_type(str, "the name of a phase"),
        mib_per_s=more_than_zero,
        file=existing_file,
        interval_s=more_than_zero,
    ),
    "gpu_mib": whole(0),
    "gpu_memory": one_of("normal", "never_freed"),
    "completion": one_of(
        "normal",
        "never",
        "wrong_model",
        "error_500",
        slow_s=seconds,
        text=of_type(str, "text"),
        finish_reason=one_of("length", "stop", "abort"),
    ),
    "models_early": of_type(bool, "true or false"),
    "health": one_of("normal", "always_200", 500, delay_s=seconds),
    "engine_core": mapping(die_after_s=seconds),
    "death_notice_s": seconds,
    "first_request": one_of("normal", "kills"),
    "workers": mapping(orphan=of_type(bool, "true or false"), zombie_leader=of_type(bool, "true or false")),
    "sigterm": one_of("normal", "ignore"),
    "sigterm_s": seconds,
    "port": one_of("normal", "early", late_s=seconds),
    "tokens_per_s": seconds,
    "ttft_s": seconds,
    "per_flag": list_of(
        mapping("flag", "behave", flag=of_type(str, "the name of a flag"), value=anything, behave=part_of_a_file)
    ),
}


@dataclass
class Behaviour:
    """What the behaviour file asks for; without a file a healthy, fast server. README.md says what each key does."""

    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    hang_in: str | None = None
    hang_how: str = "quiet"
    heartbeat_s: float = 1.0
    exit_in: str | None = None
    exit_after_s: float | None = None
    exit_status: int | None = None
    exit_how: dict[str, str] = field(default_factory=dict)
    exit_message: str = ""
    rank: dict[str, Any] = field(default_factory=dict)
    rank_env: dict[str, str] = field(default_factory=dict)
    says: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    load: dict[str, Any] = field(default_factory=dict)
    gpu_mib: int = 0
    gpu_memory: str = "normal"
    completion: str | dict[str, Any] = "normal"
    models_early: bool = False
    health: str | int | dict[str, float] = "normal"
    engine_core: dict[str, float] = field(default_factory=dict)
    death_notice_s: float = 0.2
    first_request: str = "normal"
    workers: dict[str, bool] = field(default_factory=dict)
    sigterm: str = "normal"
    sigterm_s: float = 0.2
    port: str | dict[str, float] = "normal"
    tokens_per_s: float = 2000
    ttft_s: float = 0.0
    per_flag: list[dict[str, Any]] = field(default_factory=list)

    def delay_s(self, phase: str) -> float:
        """How long `phase` takes."""
        return self.phases.get(phase, {}).get("delay_s", 0.0)

    def load_in(self, phase: str, kind: str = "") -> dict[str, Any]:
        """The slow load of that phase, if there is one (and of that kind)."""
        return self.load if self.load.get("phase") == phase and kind in ("", self.load["how"]) else {}

    def option(self, name: str, default: Any = None) -> Any:
        """An option of the completions."""
        return self.completion.get(name, default) if isinstance(self.completion, dict) else default

    @property
    def opens_early(self) -> bool:
        """Whether the port answers before the engine can generate."""
        return self.port == "early" or self.models_early


def option_s(value: object, name: str, default: float = 0.0) -> float:
    """Return the seconds of a choice that was given as a mapping, such as ``{late_s: 2}``."""
    return float(value.get(name, default)) if isinstance(value, dict) else default


@dataclass(frozen=True)
class Start:
    """What of a start its behaviour file may name."""

    phases: Sequence[str]
    #: The phases that every rank goes through, and how many ranks there are.
    rank_phases: Sequence[str] = ()
    ranks: int = 1
    #: All flags of the engine: their values, None where the command line does not have them. Not read without need.
    flags: Callable[[], Mapping[str, Any]] = dict


def parse(document: Any, start: Start) -> Behaviour:
    """Turn the document of a behaviour file into a Behaviour.

    Raises:
        BehaviourError: an unknown key, phase, rank or flag, a wrong value, or keys that contradict each other.
    """
    mapping(**CHECKS)(FILE_NAME, document)
    for condition in document.get("per_flag", []):
        if applies(condition, start.flags()):
            document = {**document, **condition["behave"]}
    behaviour = Behaviour(**document)
    if behaviour.load and "phase" not in behaviour.load:
        behaviour.load = {**behaviour.load, "phase": usual_phase(behaviour.load["how"], start.phases)}
    check_phases(behaviour, start)
    check_whole(behaviour, start)
    return behaviour


def applies(condition: Mapping[str, Any], flags: Mapping[str, Any]) -> bool:
    """Whether an entry of ``per_flag`` is meant: the flag is given, with that value where the entry has one."""
    name = condition["flag"]
    if name not in flags:
        raise BehaviourError(f"{FILE_NAME}: per_flag: no flag {name!r}")
    given = flags[name]
    values = given if isinstance(given, list) else [given]
    return given is not None and ("value" not in condition or str(condition["value"]) in map(str, values))


def usual_phase(how: str, phases: Sequence[str]) -> str:
    """Where a slow load takes place if the file does not say it."""
    if how == "compile":
        return "compile" if "compile" in phases else "prefill_graphs"
    return "weights"


def check_phases(behaviour: Behaviour, start: Start) -> None:
    """Find phases that the engine does not have, or that its ranks do not go through."""
    of_ranks = [behaviour.load.get("phase"), behaviour.rank.get("die_in")]
    for phase in [*behaviour.phases, behaviour.hang_in, behaviour.exit_in, *of_ranks]:
        if phase is not None and phase not in start.phases:
            raise BehaviourError(f"{FILE_NAME}: no phase {phase!r} (phases: {', '.join(start.phases)})")
    for phase in of_ranks:
        if phase is not None and phase not in start.rank_phases:
            raise BehaviourError(f"{FILE_NAME}: {phase} is no phase of the ranks ({', '.join(start.rank_phases)})")


def check_whole(behaviour: Behaviour, start: Start) -> None:
    """Find keys that need others or exclude each other."""
    rank, exits = behaviour.rank, behaviour.exit_after_s is not None or behaviour.exit_how
    problems = {
        "exit_after_s and exit_how need exit_in": exits and behaviour.exit_in is None,
        "exit_status and exit_how exclude each other": behaviour.exit_how and behaviour.exit_status is not None,
        "rank: one of die_in, die_after_s is needed": rank and ("die_in" in rank) == ("die_after_s" in rank),
        f"rank.number: {rank.get('number')} is not below {start.ranks}, the number of ranks": (
            rank and rank["number"] >= start.ranks
        ),
        f"load: how: {behaviour.load.get('how')} is for the phase weights": (
            behaviour.load.get("how") in ("steady", "memory") and behaviour.load["phase"] != "weights"
        ),
        "load: how: memory needs gpu_mib": behaviour.load.get("how") == "memory" and not behaviour.gpu_mib,
    }
    for text, holds in problems.items():
        if holds:
            raise BehaviourError(f"{FILE_NAME}: {text}")


def load(model: str, start: Start) -> Behaviour:
    """Read the behaviour file of the model folder, if there is one."""
    path = Path(model) / FILE_NAME
    return parse(read_yaml(path) or {}, start) if path.is_file() else Behaviour()
