"""Memory on a GPU, as the stand-in driver of the tests counts it (tests/gpu/README.md)."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


class NoSuchGpuError(Exception):
    """A rank has no GPU of its own."""


def state_folder() -> Path:
    """Where the stand-in driver keeps what it knows."""
    return Path(os.environ.get("STANDIN_GPU") or "/run/standin-gpu")


def present() -> bool:
    """Whether this host has the stand-in driver."""
    return (state_folder() / "gpus.conf").is_file()


def uuids() -> list[str]:
    """The UUID of each GPU, in the driver's order."""
    rows = (line.split(" ", 2) for line in (state_folder() / "gpus.conf").read_text().splitlines())
    return [row[2] for row in rows if len(row) == 3 and row[1] == "uuid"]


def visible(wanted: str | None, known: list[str]) -> list[int]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, as places in `known`. As in CUDA an unknown one ends the list."""
    if wanted is None:
        return list(range(len(known)))
    gpus: list[int] = []
    for name in wanted.split(","):
        found = [
            gpu for gpu, uuid in enumerate(known) if name.strip() == str(gpu) or uuid.startswith(name.strip() or "-")
        ]
        if len(found) != 1:
            break
        gpus += found
    return gpus


class Memory:
    """What one rank holds on its GPU: as with the real driver the device stays mapped until the process ends."""

    def __init__(self, rank: int, mib: int, never_freed: bool) -> None:
        gpus = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids())
        if rank >= len(gpus):
            raise NoSuchGpuError(f"rank {rank} of {len(gpus)} visible GPUs")
        self.mib = mib
        self.ending = " never_freed" if never_freed else ""
        self.claimed = -1
        devices = Path(f"{state_folder()}/dev" if "STANDIN_GPU" in os.environ else "/dev")
        names = ("nvidiactl", "nvidia-uvm", f"nvidia{gpus[rank]}")
        self.mappings = [map_device(devices / name) for name in names]
        # The process is told by its start time as well, field 22; the second field may hold blanks.
        ticks = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
        self.claim = state_folder() / "claims" / f"{os.getpid()}.{ticks}.{gpus[rank]}.C"
        self.grow(0)

    def grow(self, share: float) -> None:
        """Hold `share` of all that will be held; it never becomes less."""
        mib = int(self.mib * share)
        if mib <= self.claimed:
            return
        self.claimed = mib
        draft = self.claim.with_name(f".{self.claim.name}")
        draft.write_text(f"{mib}{self.ending}\n")
        draft.replace(self.claim)


def map_device(path: Path) -> mmap.mmap:
    """Map a device as CUDA does; a monitor only opens it."""
    device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(device, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ)
    finally:
        os.close(device)
