"""GPUs as data: families, what a reading lacks, words for people."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.ironserve import gpus
from ansible.module_utils.ironserve.gpus import Gpu, GpuProcess, Reading

# H200, driver 580.159.04: the kernel's own list.
INFORMATION = """\
Model: \t\t NVIDIA H200
IRQ:   \t\t 41
GPU UUID: \t GPU-8f319f5c-9498-a3d5-96d9-63b056d7bc9a
Video BIOS: \t 96.00.a5.00.1a
Bus Type: \t PCIe
Bus Location: \t 0000:00:06.0
Device Minor: \t 0
GPU Firmware: \t 580.159.04
GPU Excluded:\t No
"""


def kernel(bus: str, uuid: str) -> Gpu:
    text = INFORMATION.replace("GPU-8f319f5c-9498-a3d5-96d9-63b056d7bc9a", uuid)
    return gpus.parse_information(f"0000:{bus}:00.0", text)


@pytest.mark.parametrize(
    ("capability", "family"),
    [("12.0", "sm120"), ("12.1", "sm120"), ("10.0", "sm100"), ("10.3", "sm100"), ("11.0", "sm110"), ("9.0", "sm90"),
     ("8.9", "sm89"), ("8.6", "sm86"), ("8.0", "sm80"), ("", ""), ("12", ""), ("x.y", "")],
)  # fmt: skip
def test_families(capability, family):
    assert Gpu(0, "GPU-1", compute_capability=capability).family == family


def test_a_reading_survives_json():
    listed = (GpuProcess(592, "C", 1542), GpuProcess(593, "C+G", None))
    reading = Reading(
        "nvml",
        (Gpu(0, "GPU-1", processes=listed), Gpu(-1, "GPU-2", processes=None, error="lost")),
        problems=("a problem",),
        topology=(("X", "SYS"), ("SYS", "X")),
    )
    assert gpus.from_json(json.loads(json.dumps(gpus.to_json(reading)))) == reading


@pytest.mark.parametrize(
    ("text", "normal"),
    [("0000:0a:00.0", "00000000:0A:00.0"), ("00000000:0A:00.0", "00000000:0A:00.0"), ("", ""), ("GPU-1", "")],
)
def test_one_way_to_write_a_bus_address(text, normal):
    assert gpus.normal_bus_id(text) == normal


def test_a_gpu_as_the_kernel_knows_it():
    found = gpus.parse_information("0000:00:06.0", INFORMATION)
    assert (found.uuid, found.name, found.minor) == ("GPU-8f319f5c-9498-a3d5-96d9-63b056d7bc9a", "NVIDIA H200", 0)
    assert (found.index, found.bus_id, found.error) == (-1, "00000000:00:06.0", "lost")
    never_opened = INFORMATION.replace("8f319f5c-9498-a3d5-96d9-63b056d7bc9a", "????????-????-????-????-????????????")
    assert gpus.parse_information("0000:00:06.0", never_opened).uuid == ""
    assert gpus.parse_information("0000:00:06.0", INFORMATION.replace("Excluded:\t No", "Excluded:\t Yes")) is None


def test_seven_of_eight_do_not_look_like_seven_of_seven():
    known = [kernel(f"0{number}", f"GPU-{number}") for number in range(8)]
    seven = tuple(
        Gpu(index, f"GPU-{number}", bus_id=f"00000000:0{number}:00.0")
        for index, number in enumerate((0, 1, 2, 4, 5, 6, 7))
    )
    found = gpus.complete(Reading("nvml", seven), known)
    assert found.gpus[:7] == seven
    assert (found.gpus[7].index, found.gpus[7].uuid, found.gpus[7].error) == (-1, "GPU-3", "lost")
    assert found.failure == ""


def test_a_gpu_that_is_counted_and_gives_no_handle_is_named_by_what_is_missing():
    known = [kernel("01", "GPU-1"), kernel("02", "GPU-2")]
    good = Gpu(0, "GPU-1", bus_id="00000000:01:00.0")
    found = gpus.complete(Reading("nvml", (good, Gpu(1, "", error="reset_required"))), known)
    assert [(gpu.index, gpu.uuid, gpu.error) for gpu in found.gpus] == [
        (0, "GPU-1", ""),
        (1, "GPU-2", "reset_required"),
    ]


def test_a_reading_that_failed_says_nothing_of_the_gpus_that_it_lacks():
    known = [kernel("01", "GPU-1"), kernel("02", "GPU-2")]
    refused = Reading("nvidia-smi", (Gpu(-1, "", bus_id="00000000:02:00.0", error="lost"),), failure="its words")
    assert [(gpu.uuid, gpu.error) for gpu in gpus.complete(refused, known).gpus] == [("GPU-2", "lost")]


def test_no_gpu_is_a_failure_only_where_the_kernel_knows_none():
    assert gpus.complete(Reading("nvml"), []).failure == "No devices were found"
    assert gpus.complete(Reading("nvml"), [kernel("01", "GPU-1")]).failure == ""
    assert gpus.complete(Reading("nvml", failure="mismatch"), []).failure == "mismatch"


def test_a_gpu_as_the_module_returns_it():
    gpu = Gpu(
        0, "GPU-1", compute_capability="9.0", pcie_generation=1, pcie_width=8, pcie_max_generation=5, pcie_max_width=16,
        ecc_enabled=True, ecc_uncorrected=3, remap_pending=True, remap_failure=False, bar1_total_mib=256,
        processes=(GpuProcess(1, "C", 2),),
    )  # fmt: skip
    result = gpus.as_result(gpu)
    assert result["family"] == "sm90"
    assert result["pcie"] == {"generation": 1, "width": 8, "max_generation": 5, "max_width": 16}
    assert result["ecc"] == {"enabled": True, "uncorrected_volatile": 3}
    assert result["remapped_rows"] == {"pending": True, "failure": False}
    assert (result["retired_pages_pending"], result["bar1_total_mib"]) == (None, 256)
    assert result["processes"] == [{"pid": 1, "type": "C", "memory_mib": 2}]
    assert gpus.as_result(Gpu(0, "GPU-1", processes=None))["processes"] is None
    assert json.dumps(result)


@pytest.mark.parametrize(
    ("failure", "what_to_do"),
    [("mismatch", "Reboot the host, or"), ("not_loaded", "modprobe nvidia"), ("absent", "install the NVIDIA driver"),
     (gpus.NO_DEVICES, "lspci -d 10de:"), ("Unknown Error", "dmesg")],
)  # fmt: skip
def test_each_failure_says_what_to_do(failure, what_to_do):
    assert what_to_do in gpus.explain_failure(failure, 30.0)


def test_case_18_a_hung_driver_is_told_with_its_limit_and_the_reboot():
    said = gpus.explain_failure("hung", 30.0)
    assert "did not answer within 30 s" in said
    assert "reboot the host" in said


def test_what_is_wrong_with_one_gpu():
    assert gpus.explain_error(Gpu(0, "GPU-1")) == ""
    lost = Gpu(-1, "GPU-1", bus_id="00000000:0A:00.0", error="lost")
    assert gpus.explain_error(lost).startswith(
        "A GPU that the driver counts no more (GPU-1, 00000000:0A:00.0) no longer"
    )
    assert "nvidia-smi --gpu-reset -i GPU-1" in gpus.explain_error(Gpu(3, "GPU-1", error="reset_required"))
    assert gpus.explain_error(Gpu(3, "GPU-1", error="Odd")) == "GPU 3 (GPU-1) cannot be read: Odd"
    assert "asks for drain and reset" in gpus.explain_error(Gpu(3, "GPU-1", recovery_action="drain_and_reset"))
