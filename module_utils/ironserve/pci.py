"""PCI bridges, as lspci or their configuration space tells of them, and which of them lie between GPUs. Pure.

Two GPUs behind one switch reach each other through its downstream ports, others through root ports as well. A port
whose ACS redirects requests or completions sends what comes from below up to the CPU instead.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
"""Of the ACS control register, from bit 0 (PCI Express Base Specification, 7.7.11.3), in lspci's words."""

LSPCI = ("lspci", "-D", "-vv", "-d", "::0604")
"""All PCI-to-PCI bridges, with their domains."""

HEAD = re.compile(r"^((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) ", re.MULTILINE)
BUS = re.compile(r"^\s+Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", re.MULTILINE)
PORT = re.compile(r"Express \(v\d+\) (Root Port|Upstream Port|Downstream Port)")
CONTROL = re.compile(r"ACSCtl:\s*(.*)")
HIDDEN = "<access denied>"

KINDS = {"Root Port": "root_port", "Upstream Port": "upstream", "Downstream Port": "downstream"}
PORT_TYPES = {4: "root_port", 5: "upstream", 6: "downstream"}
"""Of the PCI Express capabilities register; any other is a plain bridge here."""

EXPRESS_CAPABILITY = 0x10
ACS_CAPABILITY = 0x0D
FIRST_CAPABILITY, FIRST_EXTENDED = 0x34, 0x100
MOST_CAPABILITIES = 64
"""No device has more; a list that goes on is a loop."""


class Bridge(NamedTuple):
    """A PCI-to-PCI bridge: a port of the CPU or of a switch."""

    bus_id: str
    """As the kernel writes it, ``0000:02:03.0``."""
    kind: str
    """``root_port``, ``upstream``, ``downstream`` or ``bridge``."""
    secondary: int
    subordinate: int
    """First and last bus below it."""
    acs: Mapping[str, bool] | None
    """The ACS control register; None where it has none, or where nobody may read it."""

    def leads_to(self, bus_id: str) -> bool:
        """Whether a device is below it."""
        domain, bus = place(bus_id)
        return domain == place(self.bus_id)[0] and self.secondary <= bus <= self.subordinate


def place(bus_id: str) -> tuple[int, int]:
    """Domain and bus of ``0000:02:03.0``, ``02:03.0`` or NVML's ``00000000:02:03.0``; (-1, -1) for other text."""
    match = re.fullmatch(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):[0-9a-fA-F]{2}\.[0-9a-fA-F]", bus_id)
    return (int(match[1] or "0", 16), int(match[2], 16)) if match else (-1, -1)


def parse_lspci(text: str) -> list[Bridge]:
    """The bridges in what ``lspci -vv`` printed, of all devices or of some, with domains or without."""
    found = []
    heads = list(HEAD.finditer(text))
    for head, end in zip(heads, [*(head.start() for head in heads[1:]), len(text)]):
        block = text[head.end() : end]
        bus, port, control = BUS.search(block), PORT.search(block), CONTROL.search(block)
        if bus:
            found.append(
                Bridge(
                    head[1].lower() if head[1].count(":") == 2 else f"0000:{head[1].lower()}",
                    KINDS[port[1]] if port else "bridge",
                    int(bus[1], 16),
                    int(bus[2], 16),
                    {bit: f"{bit}+" in control[1].split() for bit in ACS_BITS} if control else None,
                )
            )
    return found


def parse_config(bus_id: str, config: bytes) -> Bridge | None:
    """The bridge whose configuration space this is; None where it is another device, or too short to tell."""
    if len(config) < 64 or config[0x0E] & 0x7F != 1:
        return None
    kind = "bridge"
    for offset in _capabilities(config):
        if config[offset] == EXPRESS_CAPABILITY and offset + 4 <= len(config):
            kind = PORT_TYPES.get(config[offset + 2] >> 4, "bridge")
    acs = None
    for offset, number in _extended(config):
        if number == ACS_CAPABILITY and offset + 8 <= len(config):
            control = struct.unpack_from("<H", config, offset + 6)[0]
            acs = {bit: bool(control >> place & 1) for place, bit in enumerate(ACS_BITS)}
    return Bridge(bus_id, kind, config[0x19], config[0x1A], acs)


def _capabilities(config: bytes) -> Iterator[int]:
    offset = config[FIRST_CAPABILITY] & 0xFC
    for _ in range(MOST_CAPABILITIES):
        if not 64 <= offset < len(config) - 1:
            return
        yield offset
        offset = config[offset + 1] & 0xFC


def _extended(config: bytes) -> Iterator[tuple[int, int]]:
    offset = FIRST_EXTENDED
    for _ in range(MOST_CAPABILITIES):
        if not FIRST_EXTENDED <= offset <= len(config) - 4:
            return
        (head,) = struct.unpack_from("<I", config, offset)
        yield offset, head & 0xFFFF
        offset = head >> 20 & 0xFFC


def paths(gpus: Iterable[str], bridges: Iterable[Bridge]) -> dict[str, list[str]]:
    """For each GPU the bridges that lead to it, the root port first. They follow from the buses that each has below."""
    known = sorted(bridges, key=lambda bridge: (place(bridge.bus_id)[0], bridge.secondary))
    return {gpu: [bridge.bus_id for bridge in known if bridge.leads_to(gpu)] for gpu in gpus}


def between(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """The bridges that lie between two devices, given the path to each: all below the last that both have.

    That last one is where a switch turns the traffic around; it passes nothing on.
    """
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    return [*one[common:], *other[common:]]


def redirects(acs: Mapping[str, bool] | None) -> bool:
    """Whether a port sends up what GPUs below it mean for each other."""
    return acs is not None and (acs["ReqRedir"] or acs["CmpltRedir"])
