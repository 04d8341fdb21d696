"""The ledger: one JSON line for every launch of a service on a host, only ever appended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def parse(text: str) -> list[dict[str, Any]]:
    """The records of a ledger; a line that a crash cut off is left out."""
    records = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def expected_s(records: Iterable[dict[str, Any]], release_id: str) -> float | None:
    """How long the last good start took: of this release, else of any; None when there was none."""
    ready = [record for record in records if record.get("verdict") == "ready" and "ready" in record.get("timings", {})]
    same = [record for record in ready if record.get("release_id") == release_id]
    return float((same or ready)[-1]["timings"]["ready"]) if ready else None


def record(release: Mapping[str, Any], verdict: str, reason: str, timings: Mapping[str, float], at: str) -> str:
    """A line for the ledger."""
    kept = ("release_id", "profile", "declared_profile", "engine", "lock_id", "host_group")
    entry = {"at": at, **{key: release[key] for key in kept}, "verdict": verdict, "reason": reason, "timings": timings}
    return json.dumps(entry, sort_keys=True) + "\n"
