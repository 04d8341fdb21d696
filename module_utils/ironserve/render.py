"""What a release becomes on one host: the unit's directives and their id."""

from __future__ import annotations

import difflib

from .resolve import digest


def directives(unit: str) -> list[str]:
    """The lines of a unit that mean something: no comments, no blank lines."""
    stripped = (line.strip() for line in unit.splitlines())
    return [line for line in stripped if line and not line.startswith(("#", ";"))]


def render_id(unit: str, secrets: str = "") -> str:
    """Twelve hex digits over the unit's directives (a comment changes nothing) and the keyed hash of its secrets."""
    return digest([*directives(unit), *([f"secrets {secrets}"] if secrets else [])])


def staged_id(release_id: str, unit: str, secrets: str = "") -> str:
    """Name of a release's folder on the host: release id and render id, since either may change alone."""
    return f"{release_id}-{render_id(unit, secrets)}"


def changed_directives(before: str, after: str) -> list[str]:
    """What differs between two units, a line each, ``- old`` and ``+ new``."""
    lines = difflib.ndiff(directives(before), directives(after))
    return [line for line in lines if line.startswith(("- ", "+ "))]
