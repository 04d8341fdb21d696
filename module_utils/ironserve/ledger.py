"""The ledger: one JSON line for every launch of a service on a host and for every measurement, only ever appended."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Records = Sequence[Mapping[str, Any]]
"""What :func:`parse` returns."""


def read(path: Path) -> list[dict[str, Any]]:
    """The launches of a ledger; one that is not there or cannot be read has none."""
    try:
        return launches(parse(path.read_text(errors="replace")))
    except OSError:
        return []


def append(path: Path, entry: Mapping[str, Any]) -> None:
    """Add a line, which is on the disk then; after a line that a crash cut off it is a line of its own."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        cut = b"\n" if end and file.read(1) != b"\n" else b""
        file.write(cut + json.dumps(entry, sort_keys=True).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


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


def launches(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of them that are launches."""
    return [record for record in records if "event" not in record]


def is_bad(launch: Mapping[str, Any] | None) -> bool:
    """Whether it says no to what was launched; that somebody stopped it says nothing."""
    return launch is not None and str(launch.get("verdict")) not in ("ready", "stopped")


def measurements(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of them that are measurements of a running server."""
    return [record for record in records if record.get("event") == "measurement"]


def expected_s(records: Iterable[dict[str, Any]], release_id: str) -> float | None:
    """How long the last good start took: of this release, else of any; None when there was none."""
    ready = [record for record in records if record.get("verdict") == "ready" and "ready" in record.get("timings", {})]
    same = [record for record in ready if record.get("release_id") == release_id]
    return float((same or ready)[-1]["timings"]["ready"]) if ready else None


def last_record(records: Records, folder: str) -> Mapping[str, Any]:
    """The newest record of what is staged in a folder, empty where there is none.

    Ledgers of older versions do not say the folder; their records are told by the release's id, which it begins with.
    """
    for entry in reversed(records):
        if entry.get("staged_id", folder) == folder and folder.startswith(str(entry.get("release_id"))):
            return entry
    return {}


def good_releases(
    records: Records, staged: Collection[str], good: str | None = None, without: str | None = None
) -> list[str]:
    """Folders of the releases that may be put back, newest first: the last that each was judged here, it was ready.

    A ready launch of a tune makes none good, since it was only tried; a failed one counts like any other.

    Args:
        records: the ledger.
        staged: folders that are still there.
        good: the last-known-good; it is one even if no record of its start is there.
        without: a folder that is not wanted.
    """
    # One that a tune only tried was measured and never served.
    records = [entry for entry in records if not (entry.get("tune") and entry.get("verdict") == "ready")]
    newest = [str(entry.get("staged_id")) for entry in reversed(records)]
    if good and good not in newest:
        newest.insert(0, good)
    judged = [entry for entry in records if entry.get("verdict") != "stopped"]  # by an operator: no judgement
    found = []
    for folder in dict.fromkeys(newest):
        judged_well = last_record(judged, folder).get("verdict", "ready") == "ready"
        if folder in staged and folder != without and judged_well:
            found.append(folder)
    return found


def model(release: Mapping[str, Any]) -> dict[str, str]:
    """The model of a release, ``name path revision``."""
    told = release.get("model", {})
    return {
        "name": release.get("model_name", ""),
        "path": told.get("path", ""),
        "revision": told.get("revision", ""),
    }


def record(
    release: Mapping[str, Any],
    start: Mapping[str, str],
    verdict: str,
    reason: str,
    timings: Mapping[str, float],
    took_effect: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> str:
    """A line for the ledger.

    Args:
        release: what was launched.
        start: ``at`` (when), ``staged_id`` (the release's folder) and ``invocation`` (systemd's id of the start).
        verdict: the gate's, or ``stopped`` where somebody stopped it before there was one.
        reason: of a verdict that is not ``ready``.
        timings: seconds to each phase.
        took_effect: what a server that is ready runs with, see ``Gate.took_effect``.
        more: what else is known of the launch: ``phase elapsed_s error hardware nccl_version steps tune``.
    """
    kept = ("release_id", "profile", "declared_profile", "engine", "lock_id", "host_group")
    entry = {**start, **{key: release[key] for key in kept}, "verdict": verdict, "reason": reason, "timings": timings}
    entry |= {key: release[key] for key in ("flags", "env") if key in release}  # no secret is in either
    entry |= {"engine_version": release.get("lock", {}).get("engine_version", ""), "model": model(release)}
    entry |= more or {}
    if release.get("accepted"):  # rules that a person overruled for this launch
        entry["accepted"] = release["accepted"]
    if took_effect is not None:
        entry["took_effect"] = took_effect
    return json.dumps(entry, sort_keys=True) + "\n"
