"""What is known of engines, as data in ``knowledge/``, read on the controller and sent along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML has it: ten times as fast, and each host of a fleet is judged in a process of its own."""

UNUSED = ("source", "examples", "example_facts")


def engine_logs(root: Path) -> dict[str, Any]:
    """What the log of each engine says, ``phases`` and ``fatal``; a release carries it to its host."""
    files = (root / "knowledge" / "phases").glob("*.yml")
    return {file.stem: _load(file.read_text()) for file in files}


def causes(root: Path) -> list[dict[str, Any]]:
    """The known causes of a failed start, without what only the documentation needs."""
    files = sorted((root / "knowledge" / "causes").glob("*.yml"))
    known = [cause for file in files for cause in _load(file.read_text())["causes"]]
    return [{key: cause[key] for key in cause if key not in UNUSED} for cause in known]


def nccl(root: Path) -> dict[str, Any]:
    """What NCCL takes as names and values of its variables; see ``nccl_env.py``."""
    names, variables = ((root / "knowledge" / "nccl" / f"{name}.yml").read_text() for name in ("names", "variables"))
    return {**_load(names), **_load(variables)}


def catalogue(root: Path, known: list[dict[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
    """Every rule that may find something, by id: the checks that are code, and the rules that are data.

    ``known``: these rules, where they were read already.
    """
    return {entry["id"]: entry for entry in [*_entries(root, "checks"), *(rules(root) if known is None else known)]}


def rules(root: Path) -> list[dict[str, Any]]:
    """The rules that are data, in the order of their files."""
    return _entries(root, "rules")


def _entries(root: Path, kind: str) -> list[dict[str, Any]]:
    files = sorted((root / "knowledge" / kind).glob("*.yml"))
    return [entry for file in files for entry in _load(file.read_text())[kind]]


def engines(root: Path) -> dict[str, Any]:
    """Flags and variables of other versions and builds of each engine, see ``flag_checks.py``."""
    return {file.stem: _load(file.read_text()) for file in (root / "knowledge" / "engines").glob("*.yml")}


def _load(text: str) -> Any:
    return yaml.load(text, LOADER)  # noqa: S506  both are safe loaders
