"""What is known of engines, as data in ``knowledge/``, read on the controller and sent along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

UNUSED = ("source", "examples", "example_facts")


def engine_logs(root: Path) -> dict[str, Any]:
    """What the log of each engine says, ``phases`` and ``fatal``; a release carries it to its host."""
    files = (root / "knowledge" / "phases").glob("*.yml")
    return {file.stem: yaml.safe_load(file.read_text()) for file in files}


def causes(root: Path) -> list[dict[str, Any]]:
    """The known causes of a failed start, without what only the documentation needs."""
    files = sorted((root / "knowledge" / "causes").glob("*.yml"))
    known = [cause for file in files for cause in yaml.safe_load(file.read_text())["causes"]]
    return [{key: cause[key] for key in cause if key not in UNUSED} for cause in known]
