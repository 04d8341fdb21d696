"""What nvidia-smi prints, as data. Its answers are as driver 580.159 gives them, its failures as users report them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from xml.etree import ElementTree

from .gpus import NO_DEVICES, Gpu, GpuProcess, Reading, normal_bus_id

SOURCE = "nvidia-smi"

QUERY = ("-q", "-x")
NUMBERS = ("--query-gpu=uuid,index,compute_cap", "--format=csv,noheader")
"""What the XML does not tell."""
TOPOLOGY = ("topo", "-m")

FAILURES = {
    "Driver/library version mismatch": "mismatch",
    "couldn't communicate with the NVIDIA driver": "not_loaded",
    "couldn't find libnvidia-ml.so": "absent",
}

NO_HANDLE = re.compile(
    r"Unable to determine the device handle for GPU\s*(?:\d+:\s*)?([0-9A-Fa-f]+:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)"
)
"""``GPU 0000:02:00.0: GPU is lost``, ``GPU0000:07:00.0: Unknown Error``, ``GPU0: 0000:0B:00.0: …``: a lost GPU each."""

NUMBER = re.compile(r"\s*([0-9]{1,9})\s*(?:MiB|%|x)?\s*")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
GPU_COLUMN = re.compile(r"GPU\d+")


class Numbers(NamedTuple):
    """What :data:`NUMBERS` tells of one GPU."""

    number: int
    compute_capability: str


def parse(text: str, numbers: Mapping[str, Numbers] | None = None) -> Reading:
    """The reading that ``nvidia-smi -q -x`` printed, its complaints (it prints them to stdout) among it.

    Args:
        text: all that it printed; a complaint may stand before the XML or instead of it.
        numbers: index and compute capability by UUID. Without them a GPU's index is its place in the list.
    """
    before, opening, rest = text.partition("<nvidia_smi_log>")
    lost = tuple(
        Gpu(-1, "", bus_id=normal_bus_id(bus_id), processes=None, error="lost") for bus_id in NO_HANDLE.findall(before)
    )
    if not opening:
        return Reading(SOURCE, lost, failure=_failure(before))
    try:
        root = ElementTree.fromstring(opening + rest)  # noqa: S314  nvidia-smi's own, of this host
    except (ElementTree.ParseError, ValueError) as error:
        return Reading(SOURCE, lost, failure=f"nvidia-smi's answer cannot be read: {error}")
    gpus = tuple(_gpu(place, element, numbers or {}) for place, element in enumerate(root.findall("gpu")))
    return Reading(SOURCE, (*gpus, *lost), _text(root, "driver_version"), _text(root, "cuda_version"))


def parse_numbers(text: str) -> dict[str, Numbers]:
    """What ``nvidia-smi --query-gpu=uuid,index,compute_cap --format=csv,noheader`` printed, by UUID."""
    found = {}
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        number = _number(words[1]) if len(words) == 3 else None
        if number is not None:
            told = re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", words[2])
            found[words[0]] = Numbers(number, words[2] if told else "")
    return found


def parse_topology(text: str) -> tuple[tuple[str, ...], ...]:
    """The GPUs' part of the table that ``nvidia-smi topo -m`` printed; empty for other text."""
    lines = [[word.strip() for word in line.split("\t")] for line in ANSI.sub("", text).splitlines()]
    head = next((words for words in lines if "GPU0" in words[1:]), [])
    count = sum(1 for word in head if GPU_COLUMN.fullmatch(word))
    rows = [words[1 : count + 1] for words in lines if words is not head and GPU_COLUMN.fullmatch(words[0])]
    square = len(rows) == count and all(len(row) == count for row in rows)
    return tuple(tuple(row) for row in rows) if square else ()


def _failure(text: str) -> str:
    """Why there is no XML. That there is no GPU is no failure here: see :func:`gpus.complete`."""
    if NO_DEVICES in text:
        return ""
    for words, failure in FAILURES.items():
        if words in text:
            return failure
    return " ".join(text.split())[:300] or "nvidia-smi printed nothing"


def _gpu(place: int, element: ElementTree.Element, numbers: Mapping[str, Numbers]) -> Gpu:
    uuid = _text(element, "uuid")
    known = numbers.get(uuid, Numbers(place, ""))
    reserved = _number(_text(element, "fb_memory_usage/reserved"))
    # Drivers that do not tell their reserve (before 510) count it as used: such a figure is never 0.
    used = _number(_text(element, "fb_memory_usage/used")) if reserved is not None else None
    return Gpu(
        index=known.number,
        uuid=uuid,
        name=_text(element, "product_name"),
        bus_id=normal_bus_id(element.get("id", "")),
        minor=_number(_text(element, "minor_number")),
        compute_capability=known.compute_capability,
        memory_total_mib=_number(_text(element, "fb_memory_usage/total")),
        memory_used_mib=used,
        memory_reserved_mib=reserved,
        utilization=_number(_text(element, "utilization/gpu_util")),
        processes=_processes(element.find("processes")),
        persistence_mode=_said(element, "persistence_mode"),
        mig_mode=_text(element, "mig_mode/current_mig") == "Enabled",
        recovery_action=_recovery_action(_text(element, "gpu_recovery_action")),
        pcie_generation=_number(_text(element, "pci/pci_gpu_link_info/pcie_gen/current_link_gen")),
        pcie_width=_number(_text(element, "pci/pci_gpu_link_info/link_widths/current_link_width")),
        pcie_max_generation=_number(_text(element, "pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
        pcie_max_width=_number(_text(element, "pci/pci_gpu_link_info/link_widths/max_link_width")),
        ecc_enabled=_said(element, "ecc_mode/current_ecc"),
        ecc_uncorrected=_uncorrected(element.find("ecc_errors/volatile")),
        remap_pending=_said(element, "remapped_rows/remapped_row_pending"),
        remap_failure=_said(element, "remapped_rows/remapped_row_failure"),
        retired_pages_pending=_said(element, "retired_pages/pending_retirement"),
        bar1_total_mib=_number(_text(element, "bar1_memory_usage/total")),
        error="" if used is not None else _error(_text(element, "fb_memory_usage/used")),
    )


def _processes(element: ElementTree.Element | None) -> tuple[GpuProcess, ...] | None:
    if element is None or (len(element) == 0 and (element.text or "").strip()):
        return None
    found = []
    for one in element.iter("process_info"):
        pid = _number(_text(one, "pid"))
        if pid is not None:
            found.append(GpuProcess(pid, _text(one, "type"), _number(_text(one, "used_memory"))))
    return tuple(found)


def _uncorrected(volatile: ElementTree.Element | None) -> int | None:
    """Errors of all memories that ECC could not mend; None where none of the figures is told."""
    counts = [
        _number(part.text or "") for part in (() if volatile is None else volatile) if "uncorrectable" in part.tag
    ]
    told = [count for count in counts if count is not None]
    return sum(told) if told else None


def _said(element: ElementTree.Element, path: str) -> bool | None:
    """Yes or no; None where the driver says neither."""
    return {"Enabled": True, "Yes": True, "Disabled": False, "No": False}.get(_text(element, path))


def _recovery_action(text: str) -> str:
    """In NVML's words. Of nvidia-smi's only ``None`` was seen on a host; N/A asks for nothing."""
    word = text.strip("[]").lower().replace(" ", "_")
    return {"": "none", "n/a": "none", "reset": "gpu_reset"}.get(word, word)


def _error(text: str) -> str:
    """Why there is no figure for used memory, from what stands in its place."""
    words = text.strip("[] ")
    if "lost" in words:
        return "lost"
    if "requires re" in words:  # "GPU requires reset"; older drivers say restart
        return "reset_required"
    return "not_supported" if _number(text) is not None or words in ("", "N/A", "Not Supported") else words


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _number(text: str) -> int | None:
    """A number with or without its unit. N/A, [N/A], Insufficient Permissions and the like are not 0 but None."""
    match = NUMBER.fullmatch(text)
    return int(match[1]) if match else None
