"""nvidia-smi's answers: a real one, its failures, and any text at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.ironserve import smi
from ansible.module_utils.ironserve.gpus import GpuProcess, Reading
from hypothesis import given
from hypothesis import strategies as st

# Two H200, each used by one process; driver 580.159.04.
BUSY = (Path(__file__).parents[2] / "fixtures" / "gpu" / "nvidia-smi-h200x2-busy.xml").read_text()
FIRST, SECOND = "GPU-5b293ee6-012e-5a9c-7cef-6a637982d675", "GPU-2d61e6e4-e1e7-029f-d80e-cdaa9efc9b9c"

TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\t0-31\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t0-31\t0\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \n"
    "\nLegend:\n\n  X    = Self\n"
)


def one(was: str, becomes: str):
    """The first GPU of the capture with one text of it changed."""
    assert was in BUSY
    return smi.parse(BUSY.replace(was, becomes, 1)).gpus[0]


def test_a_real_answer():
    reading = smi.parse(BUSY)
    assert (reading.source, reading.driver_version, reading.cuda_version) == ("nvidia-smi", "580.159.04", "13.0")
    assert (reading.failure, reading.problems) == ("", ())
    first, second = reading.gpus
    assert (first.index, first.uuid, first.name, first.bus_id) == (0, FIRST, "NVIDIA H200", "00000000:00:06.0")
    assert (first.memory_total_mib, first.memory_used_mib, first.memory_reserved_mib) == (143771, 1551, 616)
    assert first.processes == (GpuProcess(592, "C", 1542),)
    assert (first.utilization, first.minor, first.compute_capability, first.error) == (3, 0, "", "")
    assert (first.persistence_mode, first.mig_mode, first.recovery_action) == (True, False, "none")
    assert (first.pcie_generation, first.pcie_width) == (5, 16)
    assert (second.index, second.uuid, second.minor) == (1, SECOND, 1)


def test_the_health_of_a_gpu():
    reading = smi.parse(BUSY)
    assert (reading.gpus[0].pcie_max_generation, reading.gpus[0].pcie_max_width) == (5, 16)
    assert (reading.gpus[0].ecc_enabled, reading.gpus[0].ecc_uncorrected) == (True, 0)
    assert (reading.gpus[0].remap_pending, reading.gpus[0].remap_failure) == (False, False)
    assert (reading.gpus[0].retired_pages_pending, reading.gpus[0].bar1_total_mib) == (None, 262144)
    assert one("<dram_uncorrectable>0", "<dram_uncorrectable>4").ecc_uncorrected == 4
    assert one("<remapped_row_failure>No", "<remapped_row_failure>Yes").remap_failure is True
    assert one("<pending_retirement>N/A", "<pending_retirement>Yes").retired_pages_pending is True


def test_index_and_compute_capability_come_from_a_second_answer():
    numbers = smi.parse_numbers(f"{FIRST}, 1, 9.0\n{SECOND}, 0, [N/A]\nno such thing\n")
    first, second = smi.parse(BUSY, numbers).gpus
    assert (first.index, first.compute_capability) == (1, "9.0")
    assert (second.index, second.compute_capability) == (0, "")
    assert smi.parse_numbers('Field "compute_cap" is not a valid field to query.\n') == {}


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n", "mismatch"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
         "NVIDIA driver is installed and running.\n", "not_loaded"),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "absent"),
        ("Failed to initialize NVML:  Unknown\n Error", "Failed to initialize NVML: Unknown Error"),
        ("", "nvidia-smi printed nothing"),
        ("No devices were found\n", ""),
    ],
)  # fmt: skip
def test_failures(said, failure):
    assert smi.parse(said) == Reading("nvidia-smi", failure=failure)


@pytest.mark.parametrize(
    ("said", "bus_id"),
    [
        ("Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot\n the system to recover "
         "this GPU\n", "00000000:02:00.0"),
        ("Unable to determine the device handle for GPU0000:07:00.0: Unknown Error\n", "00000000:07:00.0"),
        ("Unable to determine the device handle for GPU0: 0000:0B:00.0: Unknown Error\n", "00000000:0B:00.0"),
    ],
)  # fmt: skip
def test_a_gpu_without_a_handle_is_lost_and_hides_no_other(said, bus_id):
    alone = smi.parse(said)
    assert alone.failure.startswith("Unable to determine the device handle")
    assert [(gpu.index, gpu.bus_id, gpu.error, gpu.processes) for gpu in alone.gpus] == [(-1, bus_id, "lost", None)]
    among = smi.parse(said + BUSY)
    assert among.failure == ""
    assert [gpu.error for gpu in among.gpus] == ["", "", "lost"]


@pytest.mark.parametrize(
    ("words", "error"),
    [("GPU is lost", "lost"), ("[GPU is lost]", "lost"), ("GPU requires reset", "reset_required"),
     ("Unknown Error", "Unknown Error"), ("Insufficient Permissions", "Insufficient Permissions")],
)  # fmt: skip
def test_what_stands_where_used_memory_should(words, error):
    gpu = one("<used>1551 MiB</used>", f"<used>{words}</used>")
    assert (gpu.memory_used_mib, gpu.error) == (None, error)


@pytest.mark.parametrize("words", ["N/A", "[N/A]", "Not Supported"])
def test_case_17_memory_that_is_not_supported_is_no_zero(words):
    gpu = one("<used>1551 MiB</used>", f"<used>{words}</used>")
    assert (gpu.memory_used_mib, gpu.error) == (None, "not_supported")


def test_used_memory_that_includes_the_reserve_is_not_taken():
    gpu = one("<reserved>616 MiB</reserved>", "")
    assert (gpu.memory_used_mib, gpu.error) == (None, "not_supported")


def test_case_17_mig_is_told():
    assert one("<current_mig>Disabled", "<current_mig>Enabled").mig_mode


@pytest.mark.parametrize("words", ["N/A", "[N/A]", "Insufficient Permissions"])
def test_case_17_memory_of_a_process_that_is_not_told_is_no_zero(words):
    gpu = one("<used_memory>1542 MiB", f"<used_memory>{words}")
    assert gpu.processes == (GpuProcess(592, "C", None),)


def test_processes_that_are_not_told_are_not_none_at_all():
    start, end = BUSY.index("<processes>"), BUSY.index("</processes>")
    assert smi.parse(BUSY[:start] + "<processes>N/A" + BUSY[end:]).gpus[0].processes is None
    assert smi.parse(BUSY[:start] + "<processes>\n" + BUSY[end:]).gpus[0].processes == ()
    assert one("<type>C<", "<type>C+G<").processes == (GpuProcess(592, "C+G", 1542),)


@pytest.mark.parametrize(
    ("words", "action"),
    [("None", "none"), ("N/A", "none"), ("Reset", "gpu_reset"), ("Reboot", "reboot"), ("Drain P2P", "drain_p2p"),
     ("Drain and Reset", "drain_and_reset")],
)  # fmt: skip
def test_recovery_actions(words, action):
    assert one("<gpu_recovery_action>None<", f"<gpu_recovery_action>{words}<").recovery_action == action


def test_topology():
    assert smi.parse_topology(TOPOLOGY) == (("X", "NV18"), ("NV18", "X"))
    assert smi.parse_topology("\tGPU0\tCPU Affinity\nGPU0\t X \t0-31\n") == (("X",),)
    assert smi.parse_topology(TOPOLOGY.partition("GPU1\tNV18\t X")[0]) == ()
    assert smi.parse_topology("Driver/library version mismatch") == ()


@given(st.one_of(st.text(), st.text().map(lambda text: f"<nvidia_smi_log>{text}</nvidia_smi_log>"),
                 st.integers(0, len(BUSY)).map(lambda end: BUSY[:end])))  # fmt: skip
def test_no_text_and_no_cut_off_answer_raises(text):
    reading = smi.parse(text)
    assert reading.gpus or reading.failure or "No devices" in text or "</nvidia_smi_log>" in text
    smi.parse_numbers(text)
    smi.parse_topology(text)


@given(st.text(alphabet=st.characters(exclude_characters="<>&", exclude_categories=["C"])))
def test_no_value_of_a_field_raises(value):
    for field in ("used>1551 MiB", "uuid>GPU-5b293ee6-012e-5a9c-7cef-6a637982d675", "pid>592", "minor_number>0"):
        assert len(smi.parse(BUSY.replace(field, f"{field.partition('>')[0]}>{value}", 1)).gpus) == 2
