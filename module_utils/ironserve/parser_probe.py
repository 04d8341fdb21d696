"""What an engine's own parser says: the one file that runs inside an engine's environment.

It is handed to the environment's Python as text, followed by a call of :func:`main`, so it imports nothing of
Ironserve. It answers on stdout; whatever an engine prints while it is imported goes to stderr. It starts no engine and
asks for no GPU; ``engine_flags.py`` says where and how it is run.

Request: ``engine``, ``describe`` (bool) and ``asked``: groups of words to be parsed, each list of groups by the digest
that the caller knows it by. Answer: ``description`` (:func:`describe`, where it was asked for) and ``faults``
(:func:`faults`) by digest.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NoReturn

VLLM_PARSERS = ("vllm.utils.argparse_utils", "vllm.utils")
VLLM_COMMANDS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
"""Modules of ``FlexibleArgumentParser`` and of ``make_arg_parser``, the newest place first: 0.32, and before."""

VLLM_CUDA = "vllm.platforms.cuda.CudaPlatform"

SAYS_DEPRECATED = re.compile(r"(?:--\S+ is )?\W*deprecated\b", re.IGNORECASE)
"""How the help of a deprecated flag begins. One that mentions a deprecated value of a flag says so further on."""

OWN_VARIABLES = {"sglang": re.compile(r"(?:SGLANG|SGL)_[A-Z0-9_]+"), "vllm": re.compile(r"VLLM_[A-Z0-9_]+")}
LIBRARIES = ("huggingface_hub", "transformers", "torch")
"""Packages beside the engine that read variables which profiles set, such as HF_HUB_OFFLINE."""

VARIABLE = re.compile(r"""["']([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)["']""")
READS_VARIABLES = re.compile(r"environ|getenv")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TESTS = {"test", "tests"}
"""Folders of a package that only its own tests use."""

TEXT_LENGTH = 300


class RefusedError(Exception):
    """The parser would end the engine here; the text is the parser's."""


def make_parser(engine: str) -> argparse.ArgumentParser:
    """The parser of the engine's server. Raises ImportError or AttributeError where it is somewhere else."""
    if engine == "sglang":
        parser = argparse.ArgumentParser(prog="sglang serve")
        importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
        return parser
    _have_platform()
    kind = _first(VLLM_PARSERS, "FlexibleArgumentParser")
    made: argparse.ArgumentParser = _first(VLLM_COMMANDS, "make_arg_parser")(kind(prog="vllm serve"))
    return made


def _have_platform() -> None:
    """Tell vLLM that it is on an NVIDIA GPU, where it finds no device at all.

    The probe hides GPUs, and without any device vLLM makes no parser ("Failed to infer device type", 0.19 and 0.32).
    """
    plugins = importlib.import_module("vllm.platforms").builtin_platform_plugins
    if not any(map(_finds, plugins.values())):
        plugins["cuda"] = lambda: VLLM_CUDA


def _finds(plugin: Callable[[], str | None]) -> bool:
    """Whether a plugin finds its kind of device; one that fails finds none, as vLLM has it."""
    try:
        return plugin() is not None
    except Exception:
        return False


def _first(modules: Sequence[str], name: str) -> Any:
    """What the first of the modules that has it calls ``name``."""
    for module in modules[:-1]:
        try:
            return getattr(importlib.import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    return getattr(importlib.import_module(modules[-1]), name)


def options(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Every option as plain data: ``strings dest nargs choices type default required deprecated text``.

    ``text`` is the help of a deprecated one, which names what to use in its place.
    """
    marked: Iterable[argparse.Action] = getattr(parser, "_deprecated", ())  # vLLM's own, below Python 3.13
    found = []
    for action in parser._actions:
        if not action.option_strings or action.dest == "help":
            continue
        told = " ".join(str(action.help or "").split())
        deprecated = (
            action in marked
            or bool(getattr(action, "deprecated", False))
            or type(action).__name__.startswith("Deprecated")
            or bool(SAYS_DEPRECATED.match(told))
        )
        found.append(
            {
                "strings": list(action.option_strings),
                "dest": action.dest,
                "nargs": action.nargs,
                "choices": None if action.choices is None else sorted(map(str, action.choices)),
                "type": _type_name(action.type),
                "default": action.default if isinstance(action.default, (str, int, float, bool)) else None,
                "required": action.required,
                "deprecated": deprecated,
                "text": told[:TEXT_LENGTH] if deprecated else "",
            }
        )
    return found


def _type_name(kind: Any) -> str:
    """The name of an option's type; of vLLM's ``_optional_type``, which wraps another, with the other's name."""
    if kind is None:
        return ""
    name = getattr(kind, "__name__", str(kind))
    wrapped = [cell.cell_contents for cell in getattr(kind, "__closure__", None) or ()]
    inner = [_type_name(content) for content in wrapped if callable(content)]
    return f"{name}({', '.join(inner)})" if inner else name


def describe(engine: str, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """All that is to be known of an engine's command line and environment.

    Returns ``engine engine_version abbreviates`` (whether the parser takes the beginning of a flag for the flag),
    ``options``, ``unread`` (dests that no code of the package reads) and ``variables`` that engine and libraries know.
    """
    package = importlib.import_module(engine)
    declared = options(parser)
    return {
        "engine": engine,
        "engine_version": str(getattr(package, "__version__", "")),
        "abbreviates": parser.allow_abbrev,
        "options": declared,
        "unread": sorted(unread({option["dest"] for option in declared}, _sources(engine))),
        "variables": sorted(variables(engine)),
    }


def _sources(package: str) -> Iterator[str]:
    """The sources of a package, without its tests; none where there is no such package. None of it is imported."""
    spec = importlib.util.find_spec(package)
    for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
        for file in folder.rglob("*.py"):
            if not TESTS.intersection(file.relative_to(folder).parts):
                yield file.read_text(errors="replace")


def unread(dests: Iterable[str], sources: Iterable[str]) -> set[str]:
    """Those of ``dests`` that nothing in the sources reads.

    Anything that might be a read counts as one: an attribute, a name, a keyword argument, the same text anywhere, a
    name that is put together from pieces. No read are the places that only declare: a field with its default, a call of
    ``add_argument``, a list of names.
    """
    left = set(dests)
    declares: list[tuple[str, set[str]]] = []
    for text in sources:
        here = left.intersection(WORD.findall(text))
        if here:
            declares.append((text, here))
    for text, here in declares:
        candidates = here & left
        if candidates:
            left -= reads(ast.parse(text), candidates)
    return left


def reads(tree: ast.AST, names: set[str]) -> set[str]:
    """The names that a module reads, see :func:`unread`."""
    found: set[str] = set()
    todo: list[tuple[ast.AST, frozenset[str]]] = [(tree, frozenset())]
    while todo:
        node, declared = todo.pop()
        if isinstance(node, ast.Call) and _called(node) == "add_argument":
            continue
        if isinstance(node, (ast.AnnAssign, ast.Assign)):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            declared = declared.union(target.id for target in targets if isinstance(target, ast.Name))
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and _lists(node.elts):
            continue
        found.update(name for name in _read_by(node) if name in names and name not in declared)
        todo += [(child, declared) for child in ast.iter_child_nodes(node)]
    return found


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _lists(items: Sequence[ast.expr]) -> bool:
    """Whether it is a long list of texts and nothing else, as the order of fields is."""
    return len(items) >= 100 and all(isinstance(item, ast.Constant) for item in items)


def _read_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, (ast.keyword, ast.arg)) and node.arg:
        yield node.arg
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def variables(engine: str) -> set[str]:
    """Names of the environment variables that the engine and its libraries know."""
    known: set[str] = set()
    own = OWN_VARIABLES[engine]
    for text in _sources(engine):
        known.update(own.findall(text))
        known.update(_environment_names(text))
    for library in LIBRARIES:
        for text in _sources(library):
            known.update(_environment_names(text))
    if engine == "vllm":
        known.update(importlib.import_module("vllm.envs").environment_variables)
    return known


def _environment_names(text: str) -> set[str]:
    """Texts of a source that look like names of variables, where it has to do with the environment at all."""
    return set(VARIABLE.findall(text)) if READS_VARIABLES.search(text) else set()


def faults(parser: argparse.ArgumentParser, groups: Sequence[tuple[str, Sequence[str]]]) -> list[dict[str, str]]:
    """What the parser refuses: each flag parsed alone, so that all faults show at once; then all good ones together.

    Args:
        parser: the engine's; what it requires is not asked for.
        groups: name of a flag and its words. An empty ``flag`` in the answer: the fault is in no single one.
    """
    for action in parser._actions:
        action.required = False
    found: list[dict[str, str]] = []
    good: list[str] = []
    for flag, words in groups:
        text = _refusal(parser, words)
        if text:
            found.append({"flag": flag, "text": text})
        else:
            good += words
    together = _refusal(parser, good)
    return [*found, {"flag": "", "text": together}] if together else found


def _refusal(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """Why the parser does not take these words; empty where it does."""

    def leave(status: int = 0, message: str | None = None) -> NoReturn:
        raise RefusedError(message or f"ends with status {status}")

    parser.exit = leave  # type: ignore[method-assign]
    parser.print_usage = lambda file=None: None  # type: ignore[method-assign]  # noqa: ARG005
    try:
        parser.parse_args(list(words))
    except RefusedError as refused:
        text = re.sub(r"^.*?: error: ", "", str(refused), flags=re.DOTALL)
    except (Exception, SystemExit) as error:  # whatever an engine's own types and actions raise ends its start
        text = f"{type(error).__name__}: {error}"
    else:
        return ""
    return " ".join(text.split())[:TEXT_LENGTH]


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request."""
    parser = make_parser(request["engine"])
    described = {"description": describe(request["engine"], parser)} if request["describe"] else {}
    return {**described, "faults": {digest: faults(parser, groups) for digest, groups in request["asked"].items()}}


def main(request: str) -> None:
    """Answer a request, both JSON, on what was stdout; everybody else's stdout is stderr from here on."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump(answer(json.loads(request)), out)
    out.close()
