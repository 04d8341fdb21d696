"""GPUs as the driver tells of them: what they are, what memory is used, by which processes, and what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

BUS_ID = re.compile(r"^([0-9A-Fa-f]+):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])$")

NO_DEVICES = "No devices were found"
"""nvidia-smi's words where the driver has no GPU. NVML says the same by counting none."""


class GpuProcess(NamedTuple):
    """A process that the driver lists for a GPU."""

    pid: int
    type: str
    """``C`` compute, ``G`` graphics, ``M`` through MPS, and several joined by ``+``, as in ``C+G``."""
    memory_mib: int | None
    """None where the driver does not tell, which is not the same as none."""


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment. What the driver does not tell is None."""

    index: int
    """The driver's number for it; -1 where the driver counts it no more."""
    uuid: str
    name: str = ""
    bus_id: str = ""
    """As NVML writes it: ``00000000:0A:00.0``."""
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
    pcie_max_generation: int | None = None
    """What GPU and slot can do together."""
    pcie_max_width: int | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected: int | None = None
    """Errors that ECC could not mend, since the driver was loaded."""
    remap_pending: bool | None = None
    """A row of its memory waits for a reset to be replaced."""
    remap_failure: bool | None = None
    """A row of its memory could not be replaced, ever."""
    retired_pages_pending: bool | None = None
    """As remap_pending, on GPUs before Ampere."""
    bar1_total_mib: int | None = None
    """How much of its memory others reach over PCIe."""
    error: str = ""
    """Why memory could not be read: ``lost``, ``reset_required``, ``not_supported`` or the driver's own words."""

    @property
    def family(self) -> str:
        """``sm120`` for 12.x, ``sm100`` only for major 10, ``sm90``; before 9, where minors differ, ``sm80``, ``sm89``.

        Empty where the driver does not tell the compute capability.
        """
        major, _, minor = self.compute_capability.partition(".")
        if not (major.isdigit() and minor.isdigit()):
            return ""
        return f"sm{major}0" if int(major) >= 9 else f"sm{major}{minor}"

    @property
    def title(self) -> str:
        """``GPU 3 (GPU-…, 00000000:0A:00.0)`` for a message."""
        number = f"GPU {self.index}" if self.index >= 0 else "A GPU that the driver counts no more"
        known = ", ".join(filter(None, (self.uuid, self.bus_id)))
        return f"{number} ({known})" if known else number


@dataclass(frozen=True)
class Reading:
    """All GPUs of a host at one moment, or why there is nothing to read."""

    source: str
    """``nvml`` or ``nvidia-smi``; empty where neither answered."""
    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    failure: str = ""
    """``hung``, ``mismatch``, ``not_loaded``, ``absent`` (no driver's library here) or the driver's own words."""
    problems: tuple[str, ...] = ()
    """What is worth knowing and stops nothing, such as that nvidia-ml-py is not there."""
    topology: tuple[tuple[str, ...], ...] = ()
    """How each GPU reaches each: X, NV<links>, PIX, PXB, PHB, NODE, SYS. Only where it was asked for."""


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
    topology = tuple(tuple(row) for row in data["topology"])
    return Reading(**{**data, "gpus": tuple(gpus), "problems": tuple(data["problems"]), "topology": topology})


def normal_bus_id(text: str) -> str:
    """A PCI address as NVML writes it, whoever wrote it: ``0000:0a:00.0`` is ``00000000:0A:00.0``; "" for others."""
    match = BUS_ID.match(text.strip())
    return f"{match[1][-8:]:0>8}:{match[2]}".upper() if match else ""


def parse_information(bus_id: str, text: str) -> Gpu | None:
    """A GPU as /proc/driver/nvidia/gpus/<bus id>/information knows it, taken for lost until the driver tells of it.

    None for one that the administrator excluded. One that was never opened since the boot has no UUID there yet.
    """
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    if fields.get("GPU Excluded") == "Yes":
        return None
    uuid, minor = fields.get("GPU UUID", ""), fields.get("Device Minor", "")
    return Gpu(
        index=-1,
        uuid="" if "?" in uuid else uuid,
        name=fields.get("Model", ""),
        bus_id=normal_bus_id(bus_id),
        minor=int(minor) if re.fullmatch(r"[0-9]{1,9}", minor) else None,
        processes=None,
        error="lost",
    )


def complete(reading: Reading, known: Sequence[Gpu]) -> Reading:
    """A reading with the GPUs that the kernel's driver knows (:func:`parse_information`) and the reading lacks.

    A GPU that fell off the bus is told of as lost then, so that seven of eight do not look like seven of seven. What
    has a number and no identity, since the driver gives no handle of it, is named by what is missing, in bus order.
    A reading that failed says nothing of the GPUs that it lacks.
    """
    by_bus = {gpu.bus_id: gpu for gpu in known if gpu.bus_id}
    told = {name for gpu in reading.gpus for name in (gpu.bus_id, gpu.uuid) if name}
    missing = [gpu for gpu in known if not reading.failure and gpu.bus_id not in told and gpu.uuid not in told]
    found = []
    for gpu in reading.gpus:
        kernel = None
        if not gpu.uuid:
            kernel = by_bus.get(gpu.bus_id) if gpu.bus_id else missing.pop(0) if missing else None
        found.append(replace(kernel, index=gpu.index, error=gpu.error) if kernel else gpu)
    gpus = (*found, *missing)
    return replace(reading, gpus=gpus, failure=reading.failure if gpus or reading.failure else NO_DEVICES)


PARTS = {
    "pcie": {"generation": "pcie_generation", "width": "pcie_width",
             "max_generation": "pcie_max_generation", "max_width": "pcie_max_width"},
    "ecc": {"enabled": "ecc_enabled", "uncorrected_volatile": "ecc_uncorrected"},
    "remapped_rows": {"pending": "remap_pending", "failure": "remap_failure"},
}  # fmt: skip
"""What a result has in a mapping of its own, each name with the field of :class:`Gpu`."""


def as_result(gpu: Gpu) -> dict[str, Any]:
    """A GPU as the module gpu_info returns it."""
    data = asdict(gpu)
    listed = None if gpu.processes is None else [one._asdict() for one in gpu.processes]
    parts = {key: {name: data.pop(field) for name, field in fields.items()} for key, fields in PARTS.items()}
    return {**data, "family": gpu.family, "processes": listed, **parts}


def explain_failure(failure: str, timeout_s: float, option: str = "timeout_s") -> str:
    """Why no GPU could be read, and what to do about it, for the person at the terminal.

    Args:
        failure: of a :class:`Reading`.
        timeout_s: seconds that the driver was given.
        option: what raises that.
    """
    known = {
        "hung": f"The NVIDIA driver did not answer within {timeout_s:g} s. If its GPUs were idle until now and "
        "persistence mode is off, the driver starts each of them anew, which takes seconds a GPU: turn it on "
        f"(systemctl enable --now nvidia-persistenced) or raise {option}. Otherwise the driver hangs, and so does "
        "whatever asks it: look for NVRM and Xid in dmesg, then reboot the host",
        "mismatch": "The NVIDIA driver that runs in the kernel and the driver's libraries are of different versions: "
        "the driver was updated and not loaded again. Reboot the host, or stop all that uses a GPU and load the "
        "kernel modules again (modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia)",
        "not_loaded": "The NVIDIA driver is installed and not loaded: see what modprobe nvidia says. After a new "
        "kernel its modules may have to be built for it (dkms status)",
        "absent": "There is neither nvidia-smi here nor libnvidia-ml.so.1 with nvidia-ml-py to ask it: install the "
        "NVIDIA driver with its tools, or take the host out of the group of GPU hosts",
        NO_DEVICES: "The NVIDIA driver runs and has no GPU: look for them with lspci -d 10de:, and for NVRM in dmesg",
    }
    return known.get(failure, f"No GPU could be read: {failure}. Look for NVRM and Xid in dmesg")


def explain_error(gpu: Gpu) -> str:
    """What is wrong with one GPU, and what to do about it; "" when nothing is."""
    known = {
        "lost": "no longer answers the driver (fell off the bus?): look for Xid 79 in dmesg, then reboot the host",
        "reset_required": f"needs a reset: stop all that uses it, then nvidia-smi --gpu-reset -i {gpu.uuid}",
        "not_supported": "has a driver that does not tell how much of its memory is used",
    }
    if gpu.error:
        return f"{gpu.title} {known.get(gpu.error, f'cannot be read: {gpu.error}')}"
    if gpu.recovery_action != "none":
        return f"{gpu.title}: the driver asks for {gpu.recovery_action.replace('_', ' ')} to recover it"
    return ""
