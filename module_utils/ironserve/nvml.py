"""The layer that asks the NVIDIA driver: through NVML where nvidia-ml-py is at hand, else through nvidia-smi.

Any call into a driver that hangs may block for ever, and what is blocked in it ignores SIGKILL. So only a child of the
module asks (:class:`Watch`), the module waits for it as long as it means to, and never for its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, NoReturn

from . import aside, smi
from .gpus import Gpu, GpuProcess, Reading, complete, from_json, parse_information, to_json
from .processes import PROC

Reader = Callable[[bool], Reading]
"""Looks once at all GPUs. True looks at everything; False at memory and processes only, the rest as it was before."""

Smi = Callable[..., str]
"""Runs nvidia-smi with these words and returns all that it printed. Raises OSError where there is none."""

ENGINES = Path("/opt/ironserve/engines")

SOURCE = "nvml"
RECOVERY_ACTION_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION. An H200 with driver 580.159 answers it: uiVal 0."""
RECOVERY_ACTIONS = ("none", "gpu_reset", "reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
                    "system_reboot")  # fmt: skip

UNCORRECTED, VOLATILE = 1, 0
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED, and NVML_VOLATILE_ECC: since the driver was loaded."""

NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH = 3, 13, 15, 16, 25
FAILURES = {9: "not_loaded", 12: "absent", 18: "mismatch"}
ERRORS = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset_required", NOT_SUPPORTED: "not_supported"}
NO_HANDLE = {6: "lost", 28: "lost", 999: "lost"}
"""Not found, GPU not found, unknown: a GPU that is counted and gives no handle has fallen off the bus."""

FAST_S, SLOW_S = 0.02, 0.25
"""Between two looks: memory and processes of a GPU cost about 0.5 ms on an H200, nvidia-smi 0.1 s."""
FULL_EVERY_S = 1.0
"""Utilisation alone costs 2 ms a GPU there."""
FRESH_S = 1.0
"""A look that ended longer ago than this is not the newest any more: nobody read meanwhile, and the pipe was full."""

PR_SET_PDEATHSIG = 1


def find_pynvml(engines: Path = ENGINES) -> Any | None:
    """NVIDIA's bindings, from this Python or from the newest engine environment, whose pynvml.py is one file of ctypes.

    The package ``pynvml`` of the same import name is passed over where it cannot tell memory without the reserve.
    """
    with contextlib.suppress(Exception):
        module = importlib.import_module("pynvml")
        if _is_usable(module):
            return module
    files = engines.glob("*/lib/python3*/site-packages/pynvml.py")
    for file in sorted(files, key=lambda file: file.parents[3].stat().st_mtime, reverse=True):
        with contextlib.suppress(Exception):
            spec = importlib.util.spec_from_file_location("pynvml", file)
            if spec and spec.loader:
                module = sys.modules["pynvml"] = importlib.util.module_from_spec(spec)  # it looks itself up there
                spec.loader.exec_module(module)
                if _is_usable(module):
                    return module
    return None


def run_smi(*words: str) -> str:
    """Run nvidia-smi; it ends with this process, however that ends, and has no time limit but that one's."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    done = subprocess.run(
        ["nvidia-smi", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C"},
        preexec_fn=die_with_parent,
        check=False,
    )
    return done.stdout.decode(errors="replace")


def kernel_gpus(proc: Path = PROC) -> list[Gpu]:
    """The GPUs that the kernel's driver knows, in bus order, each as lost: see :func:`gpus.complete`."""
    found = []
    for file in sorted((proc / "driver" / "nvidia" / "gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            found.append(parse_information(file.parent.name, file.read_text(errors="replace")))
    return [gpu for gpu in found if gpu]


class NvmlReader:
    """Looks through NVML.

    Args:
        pynvml: NVIDIA's bindings.
        proc: where /proc is.
    """

    def __init__(self, pynvml: Any, proc: Path = PROC) -> None:
        self.pynvml = pynvml
        self.proc = proc
        self.lacks = ""
        """The function that this driver's library is too old for; nvidia-smi, which came with it, knows another way."""
        self._before: Reading | None = None

    def __call__(self, full: bool) -> Reading:
        """One look. NVML is opened by the first and stays open."""
        nvml = self.pynvml
        before = self._before
        try:
            if before is None:
                nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
            if full or before is None:
                before = Reading(
                    SOURCE,
                    driver_version=_text(nvml.nvmlSystemGetDriverVersion()),
                    cuda_version=_cuda_version(self._ask("nvmlSystemGetCudaDriverVersion")),
                )
        except nvml.NVMLError as error:
            return Reading(SOURCE, failure=FAILURES.get(error.value, str(error)))
        known = {gpu.index: gpu for gpu in before.gpus}
        gpus = tuple(self._gpu(index, known.get(index)) for index in range(count))
        self._before = complete(replace(before, gpus=gpus), kernel_gpus(self.proc))
        return self._before

    def _gpu(self, index: int, known: Gpu | None) -> Gpu:
        try:
            handle = self.pynvml.nvmlDeviceGetHandleByIndex(index)
            if known is None or not known.uuid:
                known = self._describe(index, handle)
        except self.pynvml.NVMLError as error:
            return _unreadable(known or Gpu(index, ""), {**ERRORS, **NO_HANDLE}.get(error.value, str(error)))
        try:
            memory = self.pynvml.nvmlDeviceGetMemoryInfo(handle, version=self.pynvml.nvmlMemory_v2)
        except self.pynvml.NVMLError as error:
            if error.value in (FUNCTION_NOT_FOUND, VERSION_MISMATCH):
                self.lacks = "nvmlDeviceGetMemoryInfo_v2"
                return replace(_unreadable(known, "not_supported"), processes=self._processes(handle))
            unreadable = _unreadable(known, ERRORS.get(error.value, str(error)))
            return replace(unreadable, processes=self._processes(handle))
        return replace(
            known,
            memory_total_mib=memory.total >> 20,
            memory_used_mib=memory.used >> 20,
            memory_reserved_mib=memory.reserved >> 20,
            processes=self._processes(handle),
            error="",
        )

    def _describe(self, index: int, handle: Any) -> Gpu:
        """All but memory and processes. Raises NVMLError when even the UUID is not told."""
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        persistence = self._ask("nvmlDeviceGetPersistenceMode", handle)
        ecc = self._ask("nvmlDeviceGetEccMode", handle)
        remapped = self._ask("nvmlDeviceGetRemappedRows", handle)
        retired = self._ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
        bar1 = self._ask("nvmlDeviceGetBAR1MemoryInfo", handle)
        return Gpu(
            index=index,
            uuid=_text(self.pynvml.nvmlDeviceGetUUID(handle)),
            name=_text(self._ask("nvmlDeviceGetName", handle) or ""),
            bus_id=_text(pci.busId).upper() if pci else "",
            minor=self._ask("nvmlDeviceGetMinorNumber", handle),
            compute_capability="{}.{}".format(*capability) if capability else "",
            utilization=rates.gpu if rates else None,
            persistence_mode=None if persistence is None else bool(persistence),
            mig_mode=bool((self._ask("nvmlDeviceGetMigMode", handle) or [0])[0]),
            recovery_action=self._recovery_action(handle),
            pcie_generation=self._ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            pcie_width=self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
            pcie_max_generation=self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_max_width=self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            ecc_enabled=bool(ecc[0]) if ecc else None,
            ecc_uncorrected=self._ask("nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE),
            remap_pending=bool(remapped[2]) if remapped else None,
            remap_failure=bool(remapped[3]) if remapped else None,
            retired_pages_pending=None if retired is None else bool(retired),
            bar1_total_mib=bar1.bar1Total >> 20 if bar1 else None,
        )

    def _recovery_action(self, handle: Any) -> str:
        values = self._ask("nvmlDeviceGetFieldValues", handle, [RECOVERY_ACTION_FIELD])
        if not values or values[0].nvmlReturn:
            return "none"
        number = int(values[0].value.uiVal)
        return RECOVERY_ACTIONS[number] if number < len(RECOVERY_ACTIONS) else f"action {number}"

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        """Those of all three lists; None when that of CUDA's processes is not told."""
        nvml = self.pynvml
        try:
            lists = {"C": nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        except nvml.NVMLLibraryMismatchError:  # what FunctionNotFound is made of
            self.lacks = "nvmlDeviceGetComputeRunningProcesses_v3"
            return None
        except nvml.NVMLError:
            return None
        lists["G"] = self._ask("nvmlDeviceGetGraphicsRunningProcesses", handle) or []
        lists["M"] = self._ask("nvmlDeviceGetMPSComputeRunningProcesses", handle) or []
        found: dict[int, GpuProcess] = {}
        for kind, listed in lists.items():
            for one in listed:
                memory = None if one.usedGpuMemory is None else one.usedGpuMemory >> 20
                also = found.get(one.pid)
                if also:
                    memory = max((figure for figure in (also.memory_mib, memory) if figure is not None), default=None)
                types = kind if also is None or also.type == kind else f"{also.type}+{kind}"
                found[one.pid] = GpuProcess(one.pid, types, memory)
        return tuple(found.values())

    def _ask(self, function: str, *arguments: Any) -> Any | None:
        """What NVML tells, or None where it does not."""
        try:
            return getattr(self.pynvml, function)(*arguments)
        except (self.pynvml.NVMLError, self.pynvml.NVMLLibraryMismatchError):
            return None


class SmiReader:
    """Looks through nvidia-smi, which tells everything each time.

    Args:
        run: runs it.
        proc: where /proc is.
    """

    def __init__(self, run: Smi = run_smi, proc: Path = PROC) -> None:
        self.run = run
        self.proc = proc
        self._numbers: dict[str, smi.Numbers] = {}

    def __call__(self, full: bool) -> Reading:
        """One look; a full one also asks for index and compute capability of GPUs that are new."""
        try:
            reading = smi.parse(text := self.run(*smi.QUERY), self._numbers)
            if full and any(gpu.uuid and gpu.uuid not in self._numbers for gpu in reading.gpus):
                self._numbers = smi.parse_numbers(self.run(*smi.NUMBERS))
                reading = smi.parse(text, self._numbers)
        except OSError:
            return Reading(smi.SOURCE, failure="absent")
        return complete(reading, kernel_gpus(self.proc))


def open_reader(
    find: Callable[[], Any | None] = find_pynvml, run: Smi = run_smi, proc: Path = PROC, topology: bool = False
) -> Reader:
    """The best reader of this host: NVML; nvidia-smi where NVML cannot be asked or is too old.

    Args:
        find: finds NVIDIA's bindings.
        run: runs nvidia-smi.
        proc: where /proc is.
        topology: whether a full look tells the topology as well, which only nvidia-smi does.
    """
    pynvml = find()
    through_nvml = NvmlReader(pynvml, proc) if pynvml else None
    through_smi = SmiReader(run, proc)

    def read(full: bool) -> Reading:
        why = "nvidia-ml-py is not there"
        what_to_do = f"; any engine environment under {ENGINES} brings it (playbooks/prestage.yml builds one)"
        reading = Reading("", failure="absent")
        if through_nvml:
            reading = through_nvml(full)
            lacks = through_nvml.lacks
            if reading.failure in ("not_loaded", "mismatch") or not (reading.failure or lacks):
                return reading
            why = f"NVML lacks {lacks}" if lacks else f"NVML answers: {reading.failure}"
            what_to_do = "; update the NVIDIA driver" if lacks else ""
        asked = through_smi(full)
        if asked.failure == "absent":
            problems = () if reading.failure else (f"{why}, and nvidia-smi is not there{what_to_do}",)
            return replace(reading, source="" if reading.failure == "absent" else SOURCE, problems=problems)
        return replace(asked, problems=(f"{why}, so nvidia-smi is asked, which is slower{what_to_do}",))

    def read_with_topology(full: bool) -> Reading:
        reading = read(full)
        if reading.failure or not full:
            return reading
        try:
            table = smi.parse_topology(run(*smi.TOPOLOGY))
        except OSError:
            table = ()
        problems = reading.problems if table else (*reading.problems, "nvidia-smi topo -m does not tell the topology")
        return replace(reading, topology=table, problems=problems)

    return read_with_topology if topology else read


class Watch:
    """A child that looks at all GPUs again and again, as often as is cheap: 50 times a second at first, then 4 times.

    Use as a context manager; a new one looks often again. One child, so that NVML is opened once and a driver that
    hangs catches one process only.

    Args:
        reader: opens the reader, in the child.
        pause_s: seconds between two looks, for whoever looks for hours; None looks as often as is cheap.
    """

    def __init__(self, reader: Callable[[], Reader] = open_reader, pause_s: float | None = None) -> None:
        self._pipe, out = os.pipe()
        os.set_blocking(self._pipe, False)
        self._text = b""
        self.pid: int | None = os.fork()
        """The child, as long as it is not known to have ended."""
        if self.pid == 0:
            _child(out, reader, pause_s)
        os.close(out)

    def __enter__(self) -> Watch:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the child."""
        self.close()

    def fileno(self) -> int:
        """Readable when there is something new, or the child ended; for poll, together with pidfds."""
        return self._pipe

    def latest(self, timeout_s: float) -> Reading | None:
        """The newest look of the child; waits for it, at most so long.

        None when nothing new came: the driver hangs, or takes its time. What ended longer ago than FRESH_S is not new.
        """
        began = time.monotonic()
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while True:
            reading = self._newest(began - FRESH_S)
            left = began + timeout_s - time.monotonic()
            if reading or left <= 0:
                return reading
            poll.poll(left * 1000)

    def close(self) -> None:
        """End the child, and do not wait for one that the driver holds: it ends when the driver lets it go."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self.pid:
            aside.end(self.pid)
            self.pid = None

    def _newest(self, since: float) -> Reading | None:
        ended = False
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipe, 1 << 20):
                self._text += chunk
            ended = True
        lines, _, self._text = self._text.rpartition(b"\n")
        if lines:
            newest = json.loads(lines.rpartition(b"\n")[2])
            if newest["at"] >= since:
                return from_json(newest["reading"])
        return Reading("", failure="the process that asks it ended unexpectedly") if ended else None


def look(timeout_s: float = 30.0, topology: bool = False, reader: Callable[..., Reader] = open_reader) -> Reading:
    """One full look, or a failure; it takes no longer than asked for, whatever the driver does.

    Args:
        timeout_s: without persistence mode the driver starts each GPU anew, which takes seconds a GPU.
        topology: whether to tell the topology as well.
        reader: opens the reader, in the child.
    """
    with Watch(functools.partial(reader, topology=topology)) as watch:
        return watch.latest(timeout_s) or Reading("", failure="hung")


def _child(out: int, reader: Callable[[], Reader], pause_s: float | None) -> NoReturn:
    """Look and tell until nobody listens."""
    try:
        aside.detach(out)
        with os.fdopen(out, "wb") as pipe:
            _tell(pipe, reader, pause_s)
    finally:
        os._exit(0)


def _tell(pipe: Any, reader: Callable[[], Reader], wanted_s: float | None) -> None:
    began = time.monotonic()
    full_at = began - FULL_EVERY_S
    try:
        read = reader()
        while True:
            at = time.monotonic()
            full = at - full_at >= FULL_EVERY_S
            full_at = at if full else full_at
            reading = read(full)
            _send(pipe, reading)
            cheap_s = min(SLOW_S, max(FAST_S, (at - began) * FAST_S)) if reading.source == SOURCE else SLOW_S
            pause_s = cheap_s if wanted_s is None else wanted_s
            time.sleep(max(0.0, at + pause_s - time.monotonic()))
    except BrokenPipeError:
        return
    except Exception as error:
        _send(pipe, Reading("", failure=f"{type(error).__name__}: {error}"))


def _send(pipe: Any, reading: Reading) -> None:
    pipe.write(json.dumps({"at": time.monotonic(), "reading": to_json(reading)}).encode() + b"\n")
    pipe.flush()


def _is_usable(module: Any) -> bool:
    return all(
        hasattr(module, name) for name in ("nvmlMemory_v2", "NVMLLibraryMismatchError", "nvmlDeviceGetFieldValues")
    )


def _unreadable(gpu: Gpu, error: str) -> Gpu:
    """A GPU of which nothing is known at this moment but what does not change."""
    return replace(
        gpu, memory_used_mib=None, memory_reserved_mib=None, utilization=None, processes=None, error=error
    )  # fmt: skip


def _text(value: str | bytes) -> str:
    """Older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _cuda_version(number: int | None) -> str:
    """13000 is ``13.0``."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""
