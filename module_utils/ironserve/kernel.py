"""What the kernel says: its command line, its log's lines about GPUs, parameters of modules, the IOMMU. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from .gpus import normal_bus_id
from .symptoms import XID

AT = re.compile(r"^(\d{4}-\d\d-\d\dT\S+) ")

TEXT_CHARACTERS = 200


class Xid(NamedTuple):
    """What NVIDIA's catalogue says of an Xid: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html."""

    meaning: str
    severity: str
    """``error`` where it asks for a reset of the GPU or of the host, ``warning`` where a person decides."""
    told_since: int = 0
    """Since which driver the recovery action tells it, too (the column "Xid 154 linkage"); 0: never."""


XIDS = {
    46: Xid("the GPU stopped processing", "error"),
    48: Xid("double bit ECC error", "error", 565),
    62: Xid("a micro-controller of the GPU halted", "error", 565),
    64: Xid("a row of memory could not be replaced", "error", 565),
    74: Xid("NVLink error", "error", 565),
    79: Xid("the GPU fell off the bus", "error", 565),
    94: Xid("a memory error that was contained", "warning", 565),
    95: Xid("a memory error that was not contained", "error", 565),
    109: Xid("a context switch timed out", "error", 570),
    110: Xid("security fault", "error", 565),
    119: Xid("the GPU's own processor (GSP) did not answer", "error"),
    120: Xid("error in the GPU's own processor (GSP)", "error", 565),
    136: Xid("an NVLink could not be trained", "error", 565),
    140: Xid("ECC error that was not recovered", "error"),
    143: Xid("the GPU could not be initialised", "error", 575),
    155: Xid("an NVLink went down, perhaps on purpose", "warning", 565),
    156: Xid("resources of the GPU were retired", "error", 565),
    158: Xid("the GPU timed out for good", "error"),
}
"""Those that outlive the program that met them. 13, 31, 43, 45 are of programs; 63 and 92 ask for nothing."""


def parse_xids(text: str) -> list[dict[str, Any]]:
    """The Xids in lines of the kernel's log: of each GPU and code the last, ``at bus_id code text``, the newest last.

    ``at`` is empty where a line does not begin with a time. A GPU may repeat one Xid ten thousand times.
    """
    last: dict[tuple[str, int], dict[str, Any]] = {}
    for line in text.splitlines():
        found = XID.search(line)
        bus_id = normal_bus_id(f"{found['bus']}.0") if found else ""
        if found and bus_id and len(found["number"]) < 6:
            at, key = AT.match(line), (bus_id, int(found["number"]))
            last.pop(key, None)
            said = found["text"].strip()[:TEXT_CHARACTERS]
            last[key] = {"at": at[1] if at else "", "bus_id": bus_id, "code": key[1], "text": said}
    return list(last.values())


def parse_options(cmdline: str) -> dict[str, str]:
    """The options of the kernel's command line; of one that is given again the last, as the kernel takes most."""
    return {name: value for name, _, value in (word.partition("=") for word in cmdline.split())}


def parse_driver_parameters(text: str) -> dict[str, str]:
    """The text of /proc/driver/nvidia/params as a mapping."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip().strip('"') for name, colon, value in pairs if colon}


def parse_cpu_vendor(cpuinfo: str) -> str:
    """``GenuineIntel``, ``AuthenticAMD``; empty where /proc/cpuinfo has no such line, as on ARM."""
    match = re.search(r"^vendor_id\s*:\s*(\S+)", cpuinfo, re.MULTILINE)
    return match[1] if match else ""


def translates(types: Iterable[str]) -> bool | None:
    """Whether the IOMMU translates addresses, from the types of groups (/sys/kernel/iommu_groups/*/type).

    ``DMA`` and ``DMA-FQ`` translate, ``identity`` passes through, no group at all means that the IOMMU is off. None
    where nothing but other words is there.
    """
    words = {word.strip() for word in types}
    if any(word.startswith("DMA") for word in words):
        return True
    return False if not words or "identity" in words else None
