#!/usr/bin/python3
"""A stand-in for nvidia-smi: shows what libnvidia-ml says in the shapes of the real one (580.159.04 on two H200).

It carries its own pynvml, so that it works where the host's Python has none. README.md says what of it was never seen.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Callable
from xml.etree import ElementTree as ET

sys.path.insert(0, "/usr/lib/standin-gpu")
import pynvml as nvml

Ask = Callable[[], Any]

TOPOLOGY = {0: " X ", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
RECOVERY = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")
# Type of a process by the list that names it.
LISTS = {
    "C": nvml.nvmlDeviceGetComputeRunningProcesses_v3,
    "G": nvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    "M": nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
}


def text(ask: Ask) -> str:
    """What there is to show, or why there is nothing."""
    try:
        return str(ask())
    except nvml.NVMLError_NotSupported:
        return "N/A"
    except nvml.NVMLError as problem:
        return reason(problem)


def reason(problem: nvml.NVMLError) -> str:
    """In the words of the library: pynvml has others for known codes."""
    return nvml.nvmlErrorString(problem.value)


def mib(size: int | None) -> str:
    """As it is shown."""
    return "N/A" if size is None else f"{size // 2**20} MiB"


def driver_version() -> str:
    return nvml.nvmlSystemGetDriverVersion()


def cuda_version() -> str:
    version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{version // 1000}.{version % 1000 // 10}"


def process_name(pid: int) -> str:
    """First word of the command line, of a process that can be seen here."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[0].decode() or "[Not Found]"
    except OSError:
        return "[Not Found]"


class Gpu:
    """One GPU; each property asks the library."""

    def __init__(self, index: int) -> None:
        self.index = index
        try:
            self.handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as problem:
            print(f"Unable to determine the device handle for GPU{index}: {reason(problem)}")
            sys.exit(problem.value)

    def name(self) -> str:
        return nvml.nvmlDeviceGetName(self.handle)

    def uuid(self) -> str:
        return nvml.nvmlDeviceGetUUID(self.handle)

    def minor(self) -> int:
        return nvml.nvmlDeviceGetMinorNumber(self.handle)

    def bus_id(self) -> str:
        return nvml.nvmlDeviceGetPciInfo(self.handle).busId

    def compute_capability(self) -> str:
        return "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(self.handle))

    def persistence(self) -> str:
        return "Enabled" if nvml.nvmlDeviceGetPersistenceMode(self.handle) else "Disabled"

    def mig(self) -> str:
        return "Enabled" if nvml.nvmlDeviceGetMigMode(self.handle)[0] else "Disabled"

    def recovery(self) -> str:
        (field,) = nvml.nvmlDeviceGetFieldValues(self.handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        return RECOVERY[field.value.uiVal] if field.value.uiVal < len(RECOVERY) else str(field.value.uiVal)

    def memory(self, part: str) -> str:
        return mib(getattr(nvml.nvmlDeviceGetMemoryInfo(self.handle, version=nvml.nvmlMemory_v2), part))

    def utilization(self) -> str:
        return f"{nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu} %"

    def power(self) -> str:
        return f"{nvml.nvmlDeviceGetPowerUsage(self.handle) / 1000:.2f} W"

    def link(self, which: str) -> int:
        return getattr(nvml, f"nvmlDeviceGet{which}")(self.handle)

    def bar1(self) -> str:
        return mib(nvml.nvmlDeviceGetBAR1MemoryInfo(self.handle).bar1Total)

    def ecc(self) -> str:
        return "Enabled" if nvml.nvmlDeviceGetEccMode(self.handle)[0] else "Disabled"

    def uncorrected(self) -> int:
        return nvml.nvmlDeviceGetTotalEccErrors(self.handle, 1, nvml.NVML_VOLATILE_ECC)

    def remapped(self, which: int) -> str:
        return "Yes" if nvml.nvmlDeviceGetRemappedRows(self.handle)[which] else "No"

    def retired_pages_pending(self) -> str:
        return "Yes" if nvml.nvmlDeviceGetRetiredPagesPendingStatus(self.handle) else "No"

    def processes(self, types: str = "CGM") -> list[tuple[str, Any]]:
        """Type and process, by pid."""
        found = [(kind, process) for kind in types for process in LISTS[kind](self.handle)]
        return sorted(found, key=lambda one: one[1].pid)


# ---- -q -x ----


def add(parent: ET.Element, tag: str, content: Ask | str | None = None) -> ET.Element:
    """A new element; an answer of the library is asked for here."""
    element = ET.SubElement(parent, tag)
    if content is not None:
        element.text = content if isinstance(content, str) else text(content)
    return element


def add_gpu(log: ET.Element, gpu: Gpu) -> None:
    top = add(log, "gpu")
    top.set("id", gpu.bus_id())
    add(top, "product_name", gpu.name)
    add(top, "persistence_mode", gpu.persistence)
    mode = add(top, "mig_mode")
    add(mode, "current_mig", gpu.mig)
    add(mode, "pending_mig", gpu.mig)
    add(top, "uuid", gpu.uuid)
    add(top, "minor_number", gpu.minor)
    add(top, "gpu_recovery_action", gpu.recovery)
    pci = add(top, "pci")
    add(pci, "pci_bus_id", gpu.bus_id)
    link = add(pci, "pci_gpu_link_info")
    generation, width = add(link, "pcie_gen"), add(link, "link_widths")
    add(generation, "max_link_gen", lambda: gpu.link("MaxPcieLinkGeneration"))
    add(generation, "current_link_gen", lambda: gpu.link("CurrPcieLinkGeneration"))
    add(width, "max_link_width", lambda: f"{gpu.link('MaxPcieLinkWidth')}x")
    add(width, "current_link_width", lambda: f"{gpu.link('CurrPcieLinkWidth')}x")
    memory = add(top, "fb_memory_usage")
    for part in ("total", "reserved", "used", "free"):
        add(memory, part, lambda part=part: gpu.memory(part))
    add(add(top, "bar1_memory_usage"), "total", gpu.bar1)
    add(add(top, "utilization"), "gpu_util", gpu.utilization)
    mode = add(top, "ecc_mode")
    add(mode, "current_ecc", gpu.ecc)
    add(mode, "pending_ecc", gpu.ecc)
    errors = add(add(top, "ecc_errors"), "volatile")
    add(errors, "dram_uncorrectable", gpu.uncorrected)
    add(add(top, "retired_pages"), "pending_retirement", gpu.retired_pages_pending)
    remapped = add(top, "remapped_rows")
    add(remapped, "remapped_row_pending", lambda: gpu.remapped(2))
    add(remapped, "remapped_row_failure", lambda: gpu.remapped(3))
    add_processes(add(top, "processes"), gpu)


def add_processes(element: ET.Element, gpu: Gpu) -> None:
    try:
        found = gpu.processes()
    except nvml.NVMLError as problem:
        element.text = reason(problem)
        return
    element.text = None if found else "\n\t\t"  # as the real one closes an empty list
    for kind, process in found:
        info = add(element, "process_info")
        add(info, "gpu_instance_id", "N/A")
        add(info, "compute_instance_id", "N/A")
        add(info, "pid", str(process.pid))
        add(info, "type", kind)
        add(info, "process_name", process_name(process.pid))
        add(info, "used_memory", mib(process.usedGpuMemory))


def print_xml(gpus: list[Gpu]) -> None:
    log = ET.Element("nvidia_smi_log")
    add(log, "timestamp", time.strftime("%a %b %e %H:%M:%S %Y"))
    add(log, "driver_version", driver_version)
    add(log, "cuda_version", cuda_version)
    add(log, "attached_gpus", str(nvml.nvmlDeviceGetCount()))
    for gpu in gpus:
        add_gpu(log, gpu)
    ET.indent(log, "\t")
    print('<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">')
    print(ET.tostring(log, encoding="unicode"))


# ---- --query-...=FIELDS --format=csv[,noheader][,nounits] ----

GPU_FIELDS: dict[str, Callable[[Gpu], Any]] = {
    "index": lambda gpu: gpu.index,
    "uuid": Gpu.uuid,
    "name": Gpu.name,
    "driver_version": lambda gpu: driver_version(),
    "pci.bus_id": Gpu.bus_id,
    "compute_cap": Gpu.compute_capability,
    "persistence_mode": Gpu.persistence,
    "mig.mode.current": Gpu.mig,
    "gpu_recovery_action": Gpu.recovery,
    "memory.total": lambda gpu: gpu.memory("total"),
    "memory.reserved": lambda gpu: gpu.memory("reserved"),
    "memory.used": lambda gpu: gpu.memory("used"),
    "memory.free": lambda gpu: gpu.memory("free"),
    "utilization.gpu": Gpu.utilization,
    "power.draw": Gpu.power,
    "pcie.link.gen.max": lambda gpu: gpu.link("MaxPcieLinkGeneration"),
    "pcie.link.gen.current": lambda gpu: gpu.link("CurrPcieLinkGeneration"),
    "pcie.link.width.max": lambda gpu: gpu.link("MaxPcieLinkWidth"),
    "pcie.link.width.current": lambda gpu: gpu.link("CurrPcieLinkWidth"),
}
APP_FIELDS: dict[str, Callable[[tuple[Gpu, Any]], Any]] = {
    "gpu_uuid": lambda app: app[0].uuid(),
    "pid": lambda app: app[1].pid,
    "used_gpu_memory": lambda app: mib(app[1].usedGpuMemory),
    "process_name": lambda app: process_name(app[1].pid),
}
GPU_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}
APP_ALIASES = {"used_memory": "used_gpu_memory", "name": "process_name"}
UNITS = {"memory": "MiB", "used_gpu_memory": "MiB", "utilization": "%", "power": "W"}


def names(wish: str, aliases: dict[str, str]) -> list[str]:
    """Fields by the names that the header has."""
    return [aliases.get(name.strip(), name.strip()) for name in wish.split(",")]


def print_csv(rows: list[Any], chosen: list[str], fields: dict[str, Callable[[Any], Any]], form: str) -> None:
    """One line a row; values that the library has not are in brackets."""
    for name in chosen:
        if name not in fields:
            print(f'Field "{name}" is not a valid field to query.\n')
            sys.exit(2)
    units = [UNITS.get(name.split(".", maxsplit=1)[0]) for name in chosen]
    if "noheader" not in form:
        print(", ".join(f"{name} [{unit}]" if unit else name for name, unit in zip(chosen, units)))
    for row in rows:
        values = [bracketed(lambda name=name, row=row: fields[name](row)) for name in chosen]
        if "nounits" in form:
            values = [value.removesuffix(f" {unit}") for value, unit in zip(values, units)]
        print(", ".join(values))


def bracketed(ask: Ask) -> str:
    """As in CSV."""
    try:
        value = str(ask())
    except nvml.NVMLError:
        return f"[{text(ask)}]"
    return "[N/A]" if value == "N/A" else value


# ---- topo -m ----


def print_topology(gpus: list[Gpu]) -> None:
    first, *more = [f"GPU{gpu.index}" for gpu in gpus]
    print("\t".join(["", f"\033[4m{first}", *more, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID\033[0m"]))
    for gpu in gpus:
        levels = [nvml.nvmlDeviceGetTopologyCommonAncestor(gpu.handle, other.handle) for other in gpus]
        print("\t".join([f"GPU{gpu.index}", *(TOPOLOGY[level] for level in levels), "N/A", "N/A", "", "N/A"]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="nvidia-smi", allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-q", "--query", action="store_true")
    parser.add_argument("-x", "--xml-format", action="store_true")
    parser.add_argument("-i", "--id", metavar="INDEX or UUID, ...")
    parser.add_argument("--query-gpu", metavar="FIELDS")
    parser.add_argument("--query-compute-apps", metavar="FIELDS")
    parser.add_argument("--format", default="")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("topo").add_argument("-m", "--matrix", action="store_true", required=True)
    wish = parser.parse_args()

    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibRmVersionMismatch as problem:
        print(f"Failed to initialize NVML: {reason(problem)}\nNVML library version: 595.58")
        sys.exit(problem.value)
    except nvml.NVMLError_DriverNotLoaded as problem:
        print(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running.\n"
        )
        sys.exit(problem.value)

    gpus = [Gpu(index) for index in range(nvml.nvmlDeviceGetCount())]
    if wish.id:
        wanted = wish.id.split(",")
        gpus = [gpu for gpu in gpus if str(gpu.index) in wanted or gpu.uuid() in wanted]
    if not gpus:
        print("No devices were found")
        sys.exit(6)

    if wish.list_gpus:
        for gpu in gpus:
            print(f"GPU {gpu.index}: {gpu.name()} (UUID: {gpu.uuid()})")
    elif wish.query and wish.xml_format:
        print_xml(gpus)
    elif wish.query_gpu:
        print_csv(gpus, names(wish.query_gpu, GPU_ALIASES), GPU_FIELDS, wish.format)
    elif wish.query_compute_apps:
        apps = [(gpu, process) for gpu in gpus for _, process in gpu.processes("C")]
        print_csv(apps, names(wish.query_compute_apps, APP_ALIASES), APP_FIELDS, wish.format)
    elif wish.command == "topo":
        print_topology(gpus)
    else:
        parser.error("the stand-in knows -L, -q -x, --query-gpu, --query-compute-apps and topo -m")


if __name__ == "__main__":
    main()
