"""What a host is, in a few words: enough to tell whether two measurements were made on the same hardware."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from . import aside, drift, host, nvml, topology
from .gpus import Gpu, Reading
from .processes import PROC

LOOK_S = 3.0
"""The driver gets as long to answer; what it does not say then is told by the kernel, or empty."""

NO_GPU = "none"


def read(
    gpus: Collection[str] = (), timeout_s: float = LOOK_S, proc: Path = PROC, look: Callable[..., Reading] = nvml.look
) -> dict[str, Any]:
    """``gpu_family gpus driver interconnect kernel cpu`` of a host; a driver that hangs costs ``timeout_s``, no more.

    Args:
        gpus: UUIDs of those that count; empty, all.
        timeout_s: seconds for the driver.
        proc: where /proc is.
        look: asks the driver.
    """
    told = os.uname()
    found: dict[str, Any] = {
        "gpu_family": NO_GPU,
        "gpus": [],
        "driver": "",
        "interconnect": "",
        "kernel": told.release,
        "cpu": cpu_model(host.read_text(proc / "cpuinfo") or "") or told.machine,
    }
    try:
        found["driver"], known = aside.ask(lambda: _of_kernel(proc), timeout_s)
    except (OSError, aside.StuckError):
        return {**found, "gpu_family": ""}  # there is a driver, and nothing more is known
    if not known:
        return found
    reading = look(timeout_s, topology=True)
    shown = reading.gpus or tuple(known)
    places = [place for place, gpu in enumerate(shown) if not gpus or gpu.uuid in gpus]
    families = sorted({shown[place].family for place in places} - {""})
    found["gpu_family"] = ", ".join(families)
    found["gpus"] = [shown[place].name for place in places]
    found["interconnect"] = topology.interconnect(topology.links(reading.topology, places))
    return found


def _of_kernel(proc: Path) -> tuple[str, list[Gpu]]:
    """Version of the driver, and the GPUs that it has in the kernel."""
    version = host.read_text(proc / "driver" / "nvidia" / "version") or ""
    return drift.driver_version(version), nvml.kernel_gpus(proc)


def cpu_model(cpuinfo: str) -> str:
    """The CPU's name from the text of /proc/cpuinfo; empty where it has none, as on ARM."""
    match = re.search(r"^model name\s*:\s*(.+?)\s*$", cpuinfo, re.MULTILINE)
    return match[1] if match else ""
