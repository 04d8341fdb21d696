"""What a launch or a measurement ran on, as the ledger keeps it. It asks no driver, which may hang."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import drift, host, nvml
from .processes import PROC


def look(said: Mapping[str, Any], uuids: Sequence[str] = (), proc: Path = PROC) -> dict[str, Any]:
    """``gpu_family gpus driver interconnect kernel cpu``.

    Args:
        said: what the site says of the host's hardware (``ironserve_hardware``).
        uuids: the GPUs of the service; none means all of the host.
        proc: where /proc is.
    """
    gpus = [gpu.name for gpu in nvml.kernel_gpus(proc) if not uuids or gpu.uuid in uuids]
    return {
        "gpu_family": str(said.get("gpu_family") or "none"),
        "gpus": gpus,
        "driver": drift.driver_version(host.read_text(proc / "driver" / "nvidia" / "version") or ""),
        "interconnect": str(said.get("interconnect") or ""),
        "kernel": os.uname().release,
        "cpu": parse_cpu(host.read_text(proc / "cpuinfo") or ""),
    }


def parse_cpu(cpuinfo: str) -> str:
    """Name of the CPU; empty where /proc/cpuinfo has none, as on ARM."""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else ""
