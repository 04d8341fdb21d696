"""Engines' own parsers as they were captured, to be asked without the engines."""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.ironserve import engine_flags, parser_probe

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "engine_flags"


def human_readable_int(text: str) -> str:
    """A whole number, perhaps with a suffix, as both engines take for lengths."""
    if not re.fullmatch(r"-?\d+|\d+(\.\d+)?[kKmMgGtT]", text):
        raise ValueError(text)
    return text


TYPES: dict[str, Callable[[str], Any]] = {
    "int": int, "float": float, "loads": json.loads, "human_readable_int": human_readable_int,
    "human_readable_int_or_auto": lambda text: text if text == "auto" else human_readable_int(text),
}  # fmt: skip


def type_of(name: str) -> Callable[[str], Any]:
    """The type by the name that the probe gave it; text for one that is not known here."""
    inner = name.removeprefix("_optional_type(").removesuffix(")") if name.startswith("_optional_type(") else name
    kind = TYPES.get(inner, str)

    def convert(text: str) -> Any:
        return None if inner != name and text == "None" else kind(text)

    convert.__name__ = inner  # argparse names it in its words
    return convert


class Folding(argparse.ArgumentParser):
    """Takes ``--config.key value`` for ``--config JSON``, as vLLM's parser does."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse without the keys of JSON."""
        return super().parse_args([re.sub(r"^(--[^.=]+)\.[^=]*", r"\1", word) for word in args], namespace)


@functools.cache
def described(engine: str) -> dict[str, Any]:
    """The description of ``ENGINE-VERSION``."""
    return json.loads((FOLDER / f"{engine}.json").read_text())


@functools.cache
def parser_of(engine: str) -> argparse.ArgumentParser:
    """A parser with the options that were captured."""
    parser = (Folding if engine.startswith("vllm") else argparse.ArgumentParser)(prog=engine, add_help=False)
    for option in described(engine)["options"]:
        if option["nargs"] == 0:
            parser.add_argument(*option["strings"], dest=option["dest"], action="store_true")
            continue
        kind = type_of(option["type"])
        choices = option["choices"] and [kind(choice) for choice in option["choices"]]
        parser.add_argument(*option["strings"], dest=option["dest"], nargs=option["nargs"], type=kind, choices=choices)
    return parser


@pytest.fixture
def ask_captured() -> Callable[[str, Mapping[str, Any]], dict[str, Any]]:
    """What a captured parser (``sglang-0.5.23``) says of a release, as ``engine_flags`` on a host would."""

    def ask(engine: str, release: Mapping[str, Any]) -> dict[str, Any]:
        faults = parser_probe.faults(parser_of(engine), engine_flags.groups(release["flags"]))
        return engine_flags.answer(described(engine), faults, release)

    return ask
