"""PCI bridges of a host: what lspci printed on a real one, and the configuration space of one that is made up."""

from __future__ import annotations

import struct
from pathlib import Path

# Eight RTX PRO 6000 behind four switches, see README.md there.
LSPCI = (Path(__file__).parents[2] / "fixtures" / "host" / "lspci-vv-8x-rtx-pro-6000-pex890xx.txt").read_text()


def config(port_type=6, control=0b11101, header=1):
    """Configuration space of a switch's port behind bus 2, with buses 3 to 5 below it."""
    space = bytearray(4096)
    space[0x0E], space[0x34] = header, 0x40
    space[0x18:0x1B] = bytes([2, 3, 5])
    space[0x40:0x44] = bytes([0x05, 0x68, 0, 0])  # MSI, then Express
    space[0x68:0x6C] = bytes([0x10, 0, port_type << 4 | 2, 0])
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x170 << 20)  # AER, then ACS
    struct.pack_into("<IHH", space, 0x170, 0x000D | 1 << 16, 0x5F, control)
    return bytes(space)
