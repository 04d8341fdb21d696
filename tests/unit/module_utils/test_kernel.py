"""What the kernel of real hosts said, and any text at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.ironserve import kernel
from hypothesis import given
from hypothesis import strategies as st

HOST = Path(__file__).parents[2] / "fixtures" / "host"


def test_the_last_xid_of_each_gpu_and_code_is_kept():
    found = kernel.parse_xids((HOST / "dmesg-xids-reported.txt").read_text())
    assert [(xid["bus_id"], xid["code"]) for xid in found] == [
        ("00000000:2B:00.0", 79), ("00000000:01:00.0", 79), ("00000000:01:00.0", 154), ("00000000:CB:00.0", 13),
        ("00000000:CB:00.0", 109), ("00000000:9B:00.0", 119), ("00000000:10:1C.0", 63), ("00000019:01:00.0", 149),
        ("00000000:9B:00.0", 94),
    ]  # fmt: skip
    assert found[0]["text"] == "GPU has fallen off the bus."
    assert "cache_mgr_main" in found[5]["text"]


def test_a_healthy_boot_has_none():
    assert kernel.parse_xids((HOST / "dmesg-8x-rtx-pro-6000.txt").read_text()) == []


def test_the_time_of_a_line_is_kept():
    line = "2026-11-29T21:09:12+00:00 gpu-a01 kernel: NVRM: Xid (PCI:0000:06:00): 48, pid=12, DBE"
    (xid,) = kernel.parse_xids(line)
    assert (xid["at"], xid["code"], xid["text"]) == ("2026-11-29T21:09:12+00:00", 48, "pid=12, DBE")


def test_options_of_a_real_command_line():
    options = kernel.parse_options((HOST / "cmdline-8x-rtx-pro-6000.txt").read_text())
    assert (options["iommu"], options["amd_iommu"], options["ro"]) == ("off", "off", "")
    assert "pcie_aspm" not in options


def test_the_drivers_parameters():
    text = 'EnableMSI: 1\nRegistryDwords: "ForceP2P=0x11;RMForceP2PType=1"\nDeviceFileMode: 438\n'
    assert kernel.parse_driver_parameters(text) == {
        "EnableMSI": "1", "RegistryDwords": "ForceP2P=0x11;RMForceP2PType=1", "DeviceFileMode": "438"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("types", "translating"),
    [
        (["DMA-FQ", "DMA-FQ"], True),
        (["identity", "DMA"], True),
        (["identity"], False),
        ([], False),
        (["blocked"], None),
    ],
)
def test_whether_the_iommu_translates(types, translating):
    assert kernel.translates(types) is translating


def test_the_cpu():
    assert kernel.parse_cpu_vendor("processor\t: 0\nvendor_id\t: AuthenticAMD\n") == "AuthenticAMD"
    assert kernel.parse_cpu_vendor("CPU implementer\t: 0x41\n") == ""


@given(st.text() | st.text().map(lambda rest: f"NVRM: Xid (PCI:{rest}): 79, x"))
def test_any_text_is_read(text):
    for xid in kernel.parse_xids(text):
        assert isinstance(xid["code"], int)
    kernel.parse_options(text)
    kernel.parse_driver_parameters(text)
    kernel.parse_cpu_vendor(text)
