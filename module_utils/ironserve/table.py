"""A table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under the names of their columns, left-aligned, two blanks between; an empty cell is a dash."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    grid = [[column.upper() for column in columns], *cells]
    widths = [max(len(line[number]) for line in grid) for number in range(len(columns))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths)) for line in grid)
    return "\n".join(line.rstrip() for line in padded)


def _cell(value: Any) -> str:
    return "-" if value in (None, "", 0) else " ".join(str(value).split())
