"""A table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LEGIBLE = 24
"""The last column keeps that many characters, however narrow the terminal is."""

CUT = "..."


def table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], width: int = 0) -> str:
    """Rows under the names of their columns, left-aligned, two blanks between; an empty cell is a dash.

    Args:
        columns: keys of the rows, in order.
        rows: the rows.
        width: columns of the terminal, to which the last column is cut; 0 cuts nothing.
    """
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    grid = [[column.upper() for column in columns], *cells]
    widths = [max(len(line[number]) for line in grid) for number in range(len(columns))]
    if width:
        room = max(LEGIBLE, width - sum(size + 2 for size in widths[:-1]))
        for line in grid:
            line[-1] = line[-1] if len(line[-1]) <= room else line[-1][: room - len(CUT)] + CUT
    padded = ("  ".join(cell.ljust(size) for cell, size in zip(line, widths)) for line in grid)
    return "\n".join(line.rstrip() for line in padded)


def _cell(value: Any) -> str:
    return "-" if value in (None, "", 0) else " ".join(str(value).split())
