"""What is known of engines, as data in ``knowledge/``, read on the controller and sent along with a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

UNUSED = ("source", "examples", "example_facts")


def phases(root: Path) -> dict[str, Any]:
    """The log phases of every engine."""
    files = (root / "knowledge" / "phases").glob("*.yml")
    return {file.stem: yaml.safe_load(file.read_text())["phases"] for file in files}


def causes(root: Path) -> list[dict[str, Any]]:
    """The known causes of a failed start, without what only the documentation needs."""
    files = sorted((root / "knowledge" / "causes").glob("*.yml"))
    known = [cause for file in files for cause in yaml.safe_load(file.read_text())["causes"]]
    return [{key: cause[key] for key in cause if key not in UNUSED} for cause in known]
