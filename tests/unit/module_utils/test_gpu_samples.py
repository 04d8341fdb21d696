"""What GPUs did during runs: samples through NVML, and their summary."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import gpu_samples

sys.path.insert(0, str(Path(__file__).parent))
from fake_nvml import FakeNvml


class EndedError(Exception):
    """Somebody ended the child."""


class Nvml(FakeNvml):
    """GPUs under load: the first is held back by heat and power; ``lacks`` are functions that these bindings lack."""

    lacks: tuple[str, ...] = ()

    def __getattr__(self, name: str):
        if name in self.lacks:
            raise AttributeError(name)
        return super().__getattr__(name)

    def _answer(self, name: str, handle: int = 0, *rest):
        more = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": len(self.used_mib),
            "nvmlDeviceGetClockInfo": 1500 + handle,
            "nvmlDeviceGetPowerUsage": 699_500,
            "nvmlDeviceGetTemperature": 83,
            "nvmlDeviceGetCurrentClocksEventReasons": 0 if handle else 0x24,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0 if handle else 0x24,
        }
        return more[name] if name in more else super()._answer(name, handle, *rest)


def watch(pynvml, count=3):
    lines, now = [], [0.0]

    def sleep(seconds):
        now[0] += seconds
        if len(lines) == count:
            raise EndedError

    with pytest.raises(EndedError):
        gpu_samples.watch(pynvml, lines.append, lambda: None, lambda: now[0], sleep)
    return gpu_samples.parse("".join(lines))


def test_each_gpu_is_looked_at_every_second():
    samples = watch(Nvml(2))
    assert [sample["at"] for sample in samples] == [0, 1, 2]
    assert samples[0]["gpus"] == [
        {"index": 0, "uuid": "GPU-0", "name": "NVIDIA H200", "sm_clock_mhz": 1500, "power_w": 699.5,
         "temperature_c": 83, "utilization": 3, "throttled": ["power cap", "thermal, software"]},
        {"index": 1, "uuid": "GPU-1", "name": "NVIDIA H200", "sm_clock_mhz": 1501, "power_w": 699.5,
         "temperature_c": 83, "utilization": 3, "throttled": []},
    ]  # fmt: skip


def test_older_drivers_and_bindings_tell_it_under_the_old_name():
    nvml = Nvml(1)
    nvml.lacks = ("nvmlDeviceGetCurrentClocksEventReasons",)
    assert watch(nvml, 1)[0]["gpus"][0]["throttled"] == ["power cap", "thermal, software"]
    nvml = Nvml(1, {"nvmlDeviceGetCurrentClocksEventReasons": 13})
    assert watch(nvml, 1)[0]["gpus"][0]["throttled"] == ["power cap", "thermal, software"]


def test_what_a_gpu_does_not_tell_is_left_out():
    samples = watch(Nvml(1, {"nvmlDeviceGetPowerUsage": 3}), 1)
    found = gpu_samples.summary(samples, [(0, 10)])
    assert "power_w" not in found[0]
    assert found[0]["sm_clock_mhz"] == {"min": 1500, "median": 1500, "max": 1500}


@pytest.mark.parametrize("nvml", [Nvml(0), Nvml(1, {"nvmlInit": 12}), Nvml(1, {"nvmlDeviceGetHandleByIndex": 15})])
def test_without_a_gpu_nothing_is_sampled(nvml):
    lines = []
    gpu_samples.watch(nvml, lines.append, lambda: None)
    assert lines == []
    assert gpu_samples.summary([], [(0, 10)]) == []


def sample(at, clock, *throttled, uuid="GPU-0"):
    gpu = {"index": 0, "uuid": uuid, "name": "n", "power_w": 100.0, "temperature_c": 50, "utilization": 100}
    return {"at": at, "gpus": [{**gpu, "sm_clock_mhz": clock, "throttled": list(throttled)}]}


def test_only_samples_of_measured_runs_and_of_the_services_gpus_count():
    samples = [sample(0, 100), sample(11, 1000, "power cap"), sample(15, 1200), sample(25, 1), sample(31, 1400),
               sample(32, 1400, "power cap"), sample(33, 7, uuid="GPU-9")]  # fmt: skip
    (found,) = gpu_samples.summary(samples, [(10, 20), (30, 40)], ["GPU-0"])
    assert found["sm_clock_mhz"] == {"min": 1000, "median": 1300, "max": 1400}
    assert found["throttled"] == {"power cap": 0.5}


def test_half_a_line_of_samples_is_not_read():
    assert gpu_samples.parse(json.dumps(sample(1, 2)) + '\n{"at": 2}\n{"a') == [sample(1, 2)]
