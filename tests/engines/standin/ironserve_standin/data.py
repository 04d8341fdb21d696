"""Read the data files of the package: phases, flags, answers and metrics of each engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

#: libyaml is ten times faster, and reading these files is a good part of the time until ready.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FOLDER = Path(__file__).parent / "data"


def read_yaml(path: Path) -> Any:
    """Return what the YAML file at `path` holds."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)


def engine_data(name: str) -> Any:
    """Return data file `name` (such as ``vllm_flags``) of the package."""
    return read_yaml(FOLDER / f"{name}.yml")
