"""Copies of hosts' ledgers on the controller, only ever appended to: a host that is made anew loses nothing. It writes.

A folder for each host, in it a file for each service.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import host, ledger

Ledgers = dict[str, list[dict[str, Any]]]
"""The records of each service of one host."""


def read(folder: Path, service: str = "") -> Ledgers:
    """The copies of one host; ``service``: the only one that is wanted."""
    files = sorted(folder.glob("*.jsonl"))
    return {file.stem: ledger.parse(file.read_text(errors="replace")) for file in files if service in ("", file.stem)}


def keep(folder: Path, ledgers: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Append what the copies lack; a file is written as a whole or not at all."""
    for service, records in ledgers.items():
        file = folder / f"{service}.jsonl"
        lines = dict.fromkeys(_line(record) for record in ledger.parse(host.read_text(file) or ""))
        new = [line for line in map(_line, records) if line not in lines]
        if new:
            host.write_text(file, "".join([*lines, *dict.fromkeys(new)]))


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, sort_keys=True) + "\n"


def age(folder: Path) -> str:
    """From when the copies of a host are, in words."""
    times = [file.stat().st_mtime for file in folder.glob("*.jsonl")]
    if not times:
        return "there is none"
    at = datetime.datetime.fromtimestamp(max(times), datetime.timezone.utc)
    return f"its newest record was copied {at:%Y-%m-%d %H:%M} UTC"
