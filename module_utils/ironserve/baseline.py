"""The baseline of a host group: the measurement that it is compared with, a file beside the inventory, kept in git."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import compare, host

NEEDED: Mapping[str, Sequence[str]] = {
    "model": ("name", "path"), "client": ("name", "version"), "load": (), "hardware": ("gpu_family",), "levels": (),
    "continuations": (),
}  # fmt: skip
"""What a comparison reads of a measurement, and of each part."""

HOW = "record one anew"


def path(folder: str, group: str, service: str) -> Path:
    """Where the baseline of a service of a host group is kept."""
    return Path(folder) / group / f"{service}.json"


def read(file: Path) -> dict[str, Any] | None:
    """The baseline: ``measurement``, ``recorded_at``, ``host``; None where none was recorded.

    Raises ValueError, in an operator's words, for a file that cannot be read or is none.
    """
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{file}: the baseline cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{file}: is no JSON ({error}): restore it from git, or {HOW}") from error
    measurement = found.get("measurement") if isinstance(found, dict) else None
    if missing := _missing(measurement if isinstance(measurement, dict) else {}):
        raise ValueError(f"{file}: the measurement in it has no {', '.join(missing)}: {HOW}")
    return found


def _missing(measurement: Mapping[str, Any]) -> list[str]:
    """What a measurement lacks, or has in another shape."""
    missing = []
    for key, inner in NEEDED.items():
        part = measurement.get(key)
        if not isinstance(part, list if key == "continuations" else dict):
            missing.append(key)
        else:
            missing += [f"{key}.{name}" for name in inner if name not in part]
    levels = measurement.get("levels")
    runs = [run for level in levels.values() for run in level] if isinstance(levels, dict) else []
    if not all(isinstance(run, dict) and isinstance(run.get("output_tok_s"), (int, float)) for run in runs):
        missing.append("levels.*.output_tok_s")
    return missing


def write(file: Path, measurement: Mapping[str, Any], recorded_at: str, host_name: str) -> None:
    """Record a baseline, as a whole or not at all, in a form of which git shows what changed.

    Raises ValueError for a measurement that nothing should be compared with, or a place that cannot be written.
    """
    if measurement.get("disturbed"):
        raise ValueError(f"no baseline was recorded, the measurement was disturbed: {measurement['disturbed']}")
    if failed := compare.failed(measurement):
        raise ValueError(f"no baseline was recorded: {failed}")
    silent = [level for level, runs in measurement["levels"].items() if any(run["output_tok_s"] <= 0 for run in runs)]
    if silent:
        raise ValueError(f"no baseline was recorded, a run gave no token at {', '.join(silent)} at a time")
    found = {"measurement": measurement, "recorded_at": recorded_at, "host": host_name}
    try:
        host.write_text(file, json.dumps(found, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise ValueError(f"{file}: the baseline cannot be written: {error.strerror}") from error
