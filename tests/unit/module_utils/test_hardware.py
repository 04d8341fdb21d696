"""What a host is, in a few words, also where its driver does not answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import hardware
from ansible.module_utils.ironserve.gpus import Gpu, Reading

sys.path.insert(0, str(Path(__file__).parent))
from fake_proc import INFORMATION

VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: AMD EPYC 9575F 64-Core Processor\n")
    return tmp_path


@pytest.fixture
def driver(proc):
    folder = proc / "driver" / "nvidia"
    (folder / "gpus" / "0000:00:06.0").mkdir(parents=True)
    (folder / "version").write_text(VERSION)
    (folder / "gpus" / "0000:00:06.0" / "information").write_text(INFORMATION)
    return proc


def seen(*_, **__) -> Reading:
    names = ("NVIDIA RTX PRO 6000", "NVIDIA RTX PRO 6000", "NVIDIA H200")
    gpus = tuple(Gpu(place, f"GPU-{place}", name, compute_capability=f"{12 - 3 * (place > 1)}.0")
                 for place, name in enumerate(names))  # fmt: skip
    return Reading("nvml", gpus, "580.95.05", topology=(("X", "PIX", "SYS"), ("PIX", "X", "SYS"), ("SYS", "SYS", "X")))


def hangs(*_, **__) -> Reading:
    return Reading("", failure="hung")


def unasked(*_, **__) -> Reading:
    raise AssertionError("the driver was asked on a host without GPUs")


def test_a_host_without_gpus_asks_no_driver(proc):
    found = hardware.read(proc=proc, look=unasked)
    assert (found["gpu_family"], found["gpus"], found["driver"]) == ("none", [], "")
    assert found["cpu"] == "AMD EPYC 9575F 64-Core Processor"
    assert found["kernel"]


def test_the_gpus_of_a_service_and_the_way_between_them(driver):
    found = hardware.read(["GPU-0", "GPU-1"], proc=driver, look=seen)
    assert found["gpus"] == ["NVIDIA RTX PRO 6000"] * 2
    assert (found["gpu_family"], found["interconnect"], found["driver"]) == ("sm120", "switch", "580.95.05")
    assert hardware.read(proc=driver, look=seen)["gpu_family"] == "sm120, sm90"


def test_a_driver_that_hangs_leaves_what_the_kernel_knows(driver):
    found = hardware.read(proc=driver, look=hangs)
    assert found["gpus"] == ["NVIDIA H200"]
    assert (found["gpu_family"], found["driver"]) == ("", "580.95.05")


def test_of_an_arm_cpu_the_architecture_is_told():
    assert hardware.cpu_model("processor\t: 0\nBogoMIPS\t: 100.00\n") == ""
