"""A stand-in for nvidia-ml-py: GPUs are data, and any function may fail with any of NVML's errors."""

from __future__ import annotations

from types import SimpleNamespace


class NVMLError(Exception):
    """As NVIDIA's: the number is what counts."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return f"NVML error {self.value}"


class NVMLLibraryMismatchError(Exception):
    """What NVIDIA's bindings make of FunctionNotFound in a function that has versions."""


class FakeNvml:
    """Eight H200 unless told otherwise; ``fails`` names a function, or a function and a GPU, with its error."""

    NVMLError = NVMLError
    NVMLLibraryMismatchError = NVMLLibraryMismatchError
    nvmlMemory_v2 = 0x02000028  # noqa: N815  NVIDIA's name

    def __init__(self, count: int = 8, fails: dict | None = None) -> None:
        self.fails = fails or {}
        self.calls: list[str] = []
        self.used_mib = [0] * count
        self.compute: list[list] = [[] for _ in range(count)]
        self.graphics: list[list] = [[] for _ in range(count)]
        self.recovery = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=0))

    def __getattr__(self, name: str):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments, **named):
            self.calls.append(name)
            error = self.fails.get((name, *arguments[:1]), self.fails.get(name))
            if isinstance(error, int):
                raise NVMLError(error)
            if error:
                raise error
            return self._answer(name, *arguments)

        return call

    def _answer(self, name: str, handle: int = 0, *_):
        mib = 1 << 20
        return {
            "nvmlInit": None,
            "nvmlDeviceGetCount": len(self.used_mib),
            "nvmlSystemGetDriverVersion": b"580.159.04",
            "nvmlSystemGetCudaDriverVersion": 13000,
            "nvmlDeviceGetHandleByIndex": handle,
            "nvmlDeviceGetUUID": f"GPU-{handle}",
            "nvmlDeviceGetName": b"NVIDIA H200",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=f"00000000:0{handle}:00.0"),
            "nvmlDeviceGetMinorNumber": handle,
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3),
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetFieldValues": [self.recovery],
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
            "nvmlDeviceGetRetiredPagesPendingStatus": 0,
            "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Total=262144 * mib),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(
                total=143771 * mib, reserved=615 * mib, used=self.used_mib[handle] * mib
            ),
            "nvmlDeviceGetComputeRunningProcesses": self.compute[handle],
            "nvmlDeviceGetGraphicsRunningProcesses": self.graphics[handle],
            "nvmlDeviceGetMPSComputeRunningProcesses": [],
        }[name]


def process(pid: int, mib: int | None) -> SimpleNamespace:
    """A process as NVML lists it."""
    return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib << 20)
