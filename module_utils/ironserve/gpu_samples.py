"""What GPUs did while a server was measured: clock, power, temperature, use and throttling, a sample a second.

Asked through NVML in a child of its own, since a driver that hangs may hold whoever asks it for ever.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, Callable

from . import aside, nvml

EVERY_S = 1.0

CLOCK_SM, TEMPERATURE_GPU = 1, 0
"""NVML_CLOCK_SM and NVML_TEMPERATURE_GPU of nvml.h."""

THROTTLES = {
    0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "thermal, software", 0x40: "thermal, hardware", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""Bits of nvmlClocksEventReasons (throttle reasons, in older drivers). 1, that a GPU is idle, slows down nobody."""

REASONS = ("Event", "Throttle")
"""The function's name since driver 535, and before."""

FIGURES = ("sm_clock_mhz", "power_w", "temperature_c", "utilization")

Sample = Mapping[str, Any]
"""``at`` (monotonic seconds) and ``gpus``, each with ``index uuid name``, the figures and ``throttled`` in words."""


def start(file: Path) -> int:
    """Start the child that appends a line a second to a file; its pid. It ends where there is no GPU to ask."""
    pid, pipe = aside.start(functools.partial(_watch, file))
    os.close(pipe)
    return pid


def _watch(file: Path, _: BinaryIO) -> None:
    pynvml = nvml.find_pynvml()
    if pynvml is not None:
        with file.open("a") as out:
            watch(pynvml, out.write, out.flush)


def watch(
    pynvml: Any,
    write: Callable[[str], Any],
    flush: Callable[[], Any],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Write samples until somebody ends this process; return at once where the driver has no GPU."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return
    while handles:
        at = clock()
        gpus = [_look(pynvml, index, handle) for index, handle in enumerate(handles)]
        write(json.dumps({"at": at, "gpus": gpus}) + "\n")
        flush()
        sleep(max(0.0, at + EVERY_S - clock()))


def _look(pynvml: Any, index: int, handle: Any) -> dict[str, Any]:
    """One GPU; a figure that it does not tell is None."""

    def ask(function: str, *arguments: Any) -> Any:
        try:
            return getattr(pynvml, function)(handle, *arguments)
        except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, AttributeError):
            return None

    power, rates = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetUtilizationRates")
    asked = (ask(f"nvmlDeviceGetCurrentClocks{word}Reasons") for word in REASONS)
    reasons = next((mask for mask in asked if mask is not None), 0)
    texts = {key: ask(f"nvmlDeviceGet{function}") or "" for key, function in (("uuid", "UUID"), ("name", "Name"))}
    return {
        "index": index,
        **{key: text.decode() if isinstance(text, bytes) else text for key, text in texts.items()},
        "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", CLOCK_SM),
        "power_w": None if power is None else power / 1000,
        "temperature_c": ask("nvmlDeviceGetTemperature", TEMPERATURE_GPU),
        "utilization": rates.gpu if rates else None,
        "throttled": [words for bit, words in THROTTLES.items() if reasons & bit],
    }


def parse(text: str) -> list[Sample]:
    """The samples in a file; a line that is not whole, or none of ours, is left out."""
    found: list[Sample] = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            sample = json.loads(line)
            found.append({"at": float(sample["at"]), "gpus": list(sample["gpus"])})
    return found


def summary(
    samples: Iterable[Sample], windows: Sequence[tuple[float, float]], uuids: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """For each GPU the least, median and largest of its figures, and the share of samples in which it was throttled.

    Args:
        samples: all that were taken.
        windows: from when to when runs were measured; other samples do not count.
        uuids: the GPUs that are meant; none means all.
    """
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for sample in samples:
        if any(began <= sample["at"] <= ended for began, ended in windows):
            for gpu in sample["gpus"]:
                if not uuids or gpu["uuid"] in uuids:
                    seen.setdefault(gpu["uuid"], []).append(gpu)
    return [_of_gpu(looks) for looks in seen.values()]


def _of_gpu(looks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    figures = {}
    for name in FIGURES:
        values = [look[name] for look in looks if look[name] is not None]
        if values:
            figures[name] = {"min": min(values), "median": median(values), "max": max(values)}
    reasons = [reason for look in looks for reason in look["throttled"]]
    throttled = {reason: round(reasons.count(reason) / len(looks), 3) for reason in sorted(set(reasons))}
    return {**{key: looks[0][key] for key in ("index", "uuid", "name")}, **figures, "throttled": throttled}
