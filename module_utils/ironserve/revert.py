"""Which release is put back on a host: chosen from what is staged there and what the ledger says of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import ledger
from .ledger import Records

Staged = Mapping[str, Mapping[str, Any]]
"""Releases by the name of their folder."""


def choose(records: Records, staged: Staged, active: str | None, good: str | None, other: bool, begun: str = "") -> str:
    """Folder of the newest good release, empty where there is none.

    The active one is it only if it is the last-known-good: else it is the one that did not get there.

    Args:
        records: the ledger.
        staged: what is staged.
        active: folder of the active release, or None.
        good: folder of the last-known-good, or None.
        other: the active one is not wanted in any case.
        begun: folder of a release that is being put back and has not got there, or empty.
    """
    found = ledger.good_releases(records, staged, good)
    if begun and begun == active != good and begun in found:
        return begun
    if active == good and active in found and not other:
        return str(active)
    return next((folder for folder in found if folder != active), "")


def find(to: str, records: Records, staged: Staged, good: str | None) -> str:
    """Folder of the release that a person names by its id or the beginning of it, or by its folder.

    Of several folders of one release (it was rendered differently) the one that was good last. Raises ValueError with
    all that is staged where nothing or more than one release is meant.
    """
    matches = [folder for folder in staged if folder.startswith(to)]
    if len({folder.split("-")[0] for folder in matches}) == 1:
        judged = [str(entry.get("staged_id")) for entry in reversed(records)]
        newest = [*ledger.good_releases(records, matches, good), *(name for name in judged if name in matches)]
        return next(iter([*newest, *matches]))
    known = "; ".join(_told(folder, staged[folder], records) for folder in sorted(staged)) or "nothing"
    which = "no staged release begins" if not matches else "more than one staged release begins"
    raise ValueError(f'{which} with "{to}"; staged here: {known}')


def _told(folder: str, release: Mapping[str, Any], records: Records) -> str:
    """``3f9c02ab117e-81d20cc4aa05 (lab_vllm, last ready 2026-11-30T08:22:51+00:00)``."""
    entry = ledger.last_record(records, folder)
    judged = f"last {entry.get('verdict')} {entry.get('at')}" if entry else "no start of it is recorded"
    return f"{folder} ({release.get('profile')}, {judged})"
