"""Python packages: their names, and which are installed in an environment. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

DIST_INFO = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)\.dist-info")


def normal_name(name: str) -> str:
    """A package's name as indexes compare it: ``Foo_Bar.baz`` is ``foo-bar-baz``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(names: Iterable[str]) -> dict[str, str]:
    """Version of each package, from the names of what is in site-packages."""
    found = filter(None, map(DIST_INFO.fullmatch, names))
    return {normal_name(match["name"]): match["version"] for match in found}
