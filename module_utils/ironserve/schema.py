"""A small schema for what people write: profiles and site variables. Errors name the key and what was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .problems import Problems, did_you_mean, kind_of

Scalar = (str, int, float)


@dataclass(frozen=True)
class Key:
    """What one key may hold.

    Attributes:
        type: one of ``EXPECTED``; a bool is never taken for a number.
        about: one line for the documentation.
        required: the key must be there.
        choices: the only values allowed.
        low, high: bounds of a number, both included.
        keys: what a mapping may hold; without it the names are free and the values are what ``values`` says.
        values: what each value of a mapping with free names, or each item of a list, must be.
        absolute: the text is an absolute path.
        removable: null is allowed, and takes away what a lower place said.
        default: what holds where nobody says it, for the documentation.
        secret: the value is never said.
    """

    type: str
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    keys: Mapping[str, Key] = field(default_factory=dict)
    values: Key | None = None
    absolute: bool = False
    removable: bool = False
    default: Any = None
    secret: bool = False


EXPECTED = {
    "str": "text",
    "int": "a whole number",
    "number": "a number",
    "bool": "true/false",
    "scalar": "text or a number",
    "size": "text, a number or a mapping",
    "seconds": "a whole number of seconds or a mapping",
    "flag": "true/false, text, a number, a list or a mapping",
    "mapping": "a mapping",
    "list": "a list",
    "share": "a whole number or a percentage, such as 2 or 25%",
}

PERCENTAGE = re.compile(r"(100|[1-9]?\d)%")


def share(said: int | str, whole: int, up: bool = False) -> int:
    """A number as it is, a percentage as its part of ``whole``: rounded down, but one at least, or ``up``."""
    if not str(said).endswith("%"):
        return int(said)
    part = int(str(said).rstrip("%")) * whole
    return -(-part // 100) if up else max(part // 100, min(part, 1))


def _has_type(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted in ("bool", "flag")
    if wanted == "share":
        return isinstance(value, int) or (isinstance(value, str) and bool(PERCENTAGE.fullmatch(value)))
    types: dict[str, Any] = {
        "str": str, "int": int, "number": (int, float), "bool": bool, "scalar": Scalar, "size": (*Scalar, Mapping),
        "seconds": (int, Mapping),
        "flag": (*Scalar, list, Mapping), "mapping": Mapping, "list": list,
    }  # fmt: skip
    return isinstance(value, types[wanted])


def check(value: Any, key: Key, where: str, name: str, problems: Problems) -> None:
    """Add to ``problems`` everything in which ``value`` (found at ``name`` in ``where``) differs from ``key``."""
    if value is None and key.removable:
        return
    if not _has_type(value, key.type):
        quote = ': write it in quotes, "1" or "true", as its reader wants it' if isinstance(value, bool) else ""
        hint = quote if key.type == "scalar" else ""
        got = "something else, which is not shown" if key.secret else kind_of(value)
        problems.add(where, name, f"expected {EXPECTED[key.type]}, got {got}{hint}")
        return
    if key.choices and value not in key.choices:
        problems.add(
            where, name, f'"{value}" is none of {", ".join(key.choices)}{did_you_mean(str(value), key.choices)}'
        )
    if isinstance(value, Mapping):
        check_mapping(value, key, where, name, problems)
        return
    if isinstance(value, str) and key.type == "share":
        value = int(value[:-1])
    if key.low is not None and value < key.low:
        problems.add(where, name, f"{value} is less than {key.low:g}")
    if key.high is not None and value > key.high:
        problems.add(where, name, f"{value} is more than {key.high:g}")
    if key.absolute and not str(value).startswith("/"):
        problems.add(where, name, f'expected an absolute path, got "{value}"')
    if isinstance(value, list) and key.values:
        for number, item in enumerate(value):
            check(item, key.values, where, f"{name}[{number}]", problems)


def check_mapping(value: Mapping[str, Any], key: Key, where: str, name: str, problems: Problems) -> None:
    """The keys and values of a mapping: unknown ones, missing ones, wrong ones."""
    prefix = f"{name}." if name else ""
    for found, item in value.items():
        if key.keys:
            if found not in key.keys:
                known = ", ".join(sorted(key.keys))
                problems.add(
                    where, f"{prefix}{found}", f"unknown key{did_you_mean(str(found), key.keys)}; known: {known}"
                )
                continue
            check(item, key.keys[found], where, f"{prefix}{found}", problems)
        elif key.values:
            check(item, key.values, where, f"{prefix}{found}", problems)
    for wanted, inner in key.keys.items():
        if inner.required and wanted not in value:
            problems.add(where, f"{prefix}{wanted}", f"is missing: {inner.about}")
