"""GPUs as the driver tells of them: what they are, what memory is used, by which processes, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class GpuProcess(NamedTuple):
    """A process that the driver lists for a GPU."""

    pid: int
    type: str
    """``C`` compute, ``G`` graphics, ``M`` through MPS."""
    memory_mib: int | None
    """None where the driver does not tell, which is not the same as none."""


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment. What the driver does not tell is None."""

    index: int
    uuid: str
    name: str = ""
    bus_id: str = ""
    minor: int | None = None
    """Its device node is /dev/nvidia<minor>."""
    compute_capability: str = ""
    """``12.0``"""
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    """Without the driver's reserve: NVML's v2 figure, which nvidia-smi shows too; the v1 figure is never 0."""
    memory_reserved_mib: int | None = None
    utilization: int | None = None
    """Percent. Says nothing about idleness: it may stay at 100 on a Blackwell GPU that nobody uses."""
    processes: tuple[GpuProcess, ...] | None = ()
    """None where the driver does not tell."""
    persistence_mode: bool | None = None
    mig_mode: bool = False
    recovery_action: str = "none"
    """What the driver asks for: none, gpu_reset, reboot, drain_p2p, drain_and_reset, ..."""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    error: str = ""
    """Why memory could not be read: ``lost``, ``reset_required``, ``not_supported`` or the driver's own words."""

    @property
    def family(self) -> str:
        """``sm120`` for 12.x, ``sm100`` only for major 10, ``sm90``…: kernels are built for a major version."""
        major = self.compute_capability.partition(".")[0]
        return f"sm{major}0" if major.isdigit() else ""


@dataclass(frozen=True)
class Reading:
    """All GPUs of a host at one moment, or why there is nothing to read."""

    source: str
    """``nvml`` or ``nvidia-smi``."""
    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    failure: str = ""
    """``hung``, ``mismatch``, ``not_loaded``, ``absent`` (no driver's library here) or the driver's own words."""
    problems: tuple[str, ...] = ()
    """What is worth knowing and stops nothing, such as that nvidia-ml-py is not there."""


def to_json(reading: Reading) -> dict[str, Any]:
    """A reading as plain JSON, as the watching child sends it."""
    return asdict(reading)


def from_json(data: Mapping[str, Any]) -> Reading:
    """The reading that :func:`to_json` made this of."""
    gpus = []
    for found in data["gpus"]:
        listed = found["processes"]
        gpus.append(
            Gpu(**{**found, "processes": None if listed is None else tuple(GpuProcess(*one) for one in listed)})
        )
    return Reading(**{**data, "gpus": tuple(gpus), "problems": tuple(data["problems"])})
