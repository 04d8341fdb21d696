"""The command lines of the engines: parsers built from the flag lists (``*_flags.yml``)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from . import VLLM_VERSION
from .data import engine_data, read_yaml

KINDS: dict[str, dict[str, Any]] = {
    "switches": {"action": "store_true"},
    "optional": {"action": argparse.BooleanOptionalAction},
    "values": {},
    "integers": {"type": int},
    "numbers": {"type": float},
    "lists": {"nargs": "+"},
}


class FlagParser(argparse.ArgumentParser):
    """An argparse parser that reads ``--config FILE.yaml`` first, as both engines do: the command line wins."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse `args` with the flags of the configuration file before them."""
        return super().parse_known_args(with_config_file(sys.argv[1:] if args is None else list(args)), namespace)


class FlexibleFlagParser(FlagParser):
    """vLLM's parser: ``_`` for ``-`` in flags, and ``--config-flag.key value`` for a key of a JSON flag."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse `args` after writing them in the plain form."""
        return super().parse_known_args(fold_dotted(sys.argv[1:] if args is None else list(args)), namespace)


def with_config_file(arguments: list[str]) -> list[str]:
    """Put the flags of the file after ``--config`` in front of the other flags."""
    if "--config" not in arguments[:-1]:
        return arguments
    place = arguments.index("--config")
    document = read_yaml(Path(arguments[place + 1])) or {}
    from_file = []
    for name, value in document.items():
        flag = f"--{str(name).replace('_', '-')}"
        if value is True:
            from_file.append(flag)
        elif value is not False:
            from_file += [flag, *([str(item) for item in value] if isinstance(value, list) else [str(value)])]
    return [*arguments[:place], *from_file, *arguments[place + 2 :]]


def fold_dotted(arguments: list[str]) -> list[str]:
    """Turn ``--attention-config.backend X`` into ``--attention-config '{"backend": "X"}'``, and ``_`` into ``-``."""
    plain: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--"):
            plain.append(argument)
            continue
        name, dot, key = flag.replace("_", "-").partition(".")
        if dot:
            plain += [name, json.dumps({key: value if equals else next(rest, "")})]
        else:
            plain.append(name + equals + value)
    return plain


def add_flags(parser: argparse.ArgumentParser, engine: str) -> argparse.ArgumentParser:
    """Declare the flags of `engine` on `parser`."""
    data = engine_data(f"{engine}_flags")
    for kind, settings in KINDS.items():
        for name in data.get(kind, []):
            add_flag(parser, data, name, settings)
    for name, choices in data["choices"].items():
        add_flag(parser, data, name, {"choices": choices})
    return parser


def add_flag(parser: argparse.ArgumentParser, data: dict[str, Any], name: str, settings: dict[str, Any]) -> None:
    """Declare one flag with its aliases and its default."""
    has_default = name in data["defaults"] and parser.argument_default is not argparse.SUPPRESS
    default = {"default": data["defaults"][name]} if has_default else {}
    spellings = [f"--{name}", *data["aliases"].get(name, [])]
    parser.add_argument(*spellings, help=data.get("deprecated", {}).get(name), **{**settings, **default})


def vllm_parser(argument_default: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``vllm``."""
    top = FlexibleFlagParser(prog="vllm", description="vLLM CLI")
    top.add_argument("-v", "--version", action="version", version=VLLM_VERSION)
    commands = top.add_subparsers(dest="command", required=True, metavar="{chat,complete,serve,launch,bench,run-batch}")
    serve = commands.add_parser("serve", usage="vllm serve [model_tag] [options]", argument_default=argument_default)
    serve.add_argument("model_tag", nargs="?")
    add_flags(serve, "vllm")
    return top


def parse_vllm(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line of ``vllm``."""
    arguments = vllm_parser().parse_args(argv)
    arguments.model = arguments.model_tag or arguments.model
    return arguments


def parse_sglang(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line of SGLang's server."""
    return add_flags(FlagParser(), "sglang").parse_args(argv)


def given(arguments: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Return the arguments that differ from the engine's defaults."""
    defaults = vars(add_flags(argparse.ArgumentParser(), engine).parse_args([]))
    return {name: value for name, value in vars(arguments).items() if value != defaults.get(name) and name != "command"}


def spelled(engine: str, argv: list[str] | None = None) -> dict[str, Any]:
    """Return all flags of the engine, under all their names: the values that the command line gives, None without."""
    quiet = argparse.SUPPRESS
    parser = vllm_parser(quiet) if engine == "vllm" else add_flags(FlagParser(argument_default=quiet), engine)
    values = vars(parser.parse_args(argv))
    data = engine_data(f"{engine}_flags")
    names = {name: [name, *data["aliases"].get(name, [])] for name in flag_names(data)}
    return {
        alias.lstrip("-"): values.get(name.replace("-", "_")) for name, aliases in names.items() for alias in aliases
    }


def flag_names(data: dict[str, Any]) -> list[str]:
    """Return the names of all flags in the data of an engine."""
    return [name for kind in (*KINDS, "choices") for name in data.get(kind, [])]
