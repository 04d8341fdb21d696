"""How GPUs reach each other, from the table of ``nvidia-smi topo -m``. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Ways over PCIe, ever farther: one switch, several, the CPU's host bridge, several of one NUMA node, several nodes."""

SWITCHED = frozenset({"PIX", "PXB"})
NVLINK = re.compile(r"NV\d+")


def links(table: Sequence[Sequence[str]], members: Collection[int]) -> list[str]:
    """The way between each two of these GPUs (places in the table); empty where the table does not have them all."""
    places = sorted(members)
    if any(place >= len(table) or len(table[place]) != len(table) for place in places):
        return []
    return [table[one][other] for one in places for other in places if one < other]


def over_nvlink(found: Sequence[str]) -> bool:
    """Whether all of them reach each other over NVLink."""
    return bool(found) and all(NVLINK.fullmatch(link) for link in found)


def over_pcie(found: Sequence[str]) -> bool:
    """Whether some reach each other over PCIe."""
    return any(link in DISTANCES for link in found)


def farthest(found: Sequence[str]) -> str:
    """The longest way over PCIe among them; empty where there is none."""
    return max((link for link in found if link in DISTANCES), key=DISTANCES.index, default="")


def interconnect(found: Sequence[str]) -> str:
    """``nvlink``, ``mixed`` (some over NVLink), ``switch`` (some behind one PCIe switch), ``direct``; else empty."""
    if over_nvlink(found):
        return "nvlink"
    if any(NVLINK.fullmatch(link) for link in found):
        return "mixed"
    if any(link in SWITCHED for link in found):
        return "switch"
    return "direct" if over_pcie(found) else ""
