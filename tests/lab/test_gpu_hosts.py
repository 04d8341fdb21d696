"""GPUs on test hosts: what tests/gpu installs is what a host with a driver shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import gpu_hosts

ENGINE = ("0,1", 60000, "--tree", "--title", "sglang::scheduler", "--leader", "sglang")


@pytest.fixture(scope="module")
def hosts(make_lab):
    lab = make_lab("-gpu")
    lab.up(1)
    gpu_hosts.install(lab, "h1")
    return lab


@pytest.fixture
def shell(hosts):
    """Run a script on h1; in the end no fault is left."""
    yield lambda script, check=True: hosts.exec("h1", ["sh", "-c", script], check=check).stdout.strip()
    gpu_hosts.set_faults(hosts, "h1")


def test_a_host_has_eight_gpus_and_still_has_them_after_a_reboot(hosts, shell):
    for _ in range(2):
        assert shell("nvidia-smi -L").splitlines() == [
            f"GPU {gpu}: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: {gpu_hosts.uuid(gpu)})" for gpu in range(8)
        ]
        assert len(shell("ls /dev/nvidia?").split()) == 8
        assert f"{gpu_hosts.uuid(7)}\nBus Location: \t 0000:71:00.0\nDevice Minor: \t 7" in shell(
            "cat /proc/driver/nvidia/gpus/0000:71:00.0/information"
        )
        assert shell("systemctl is-system-running") == "running"
        hosts.reboot("h1")


def test_an_engine_in_a_unit_holds_its_gpus_and_is_seen_by_its_mapped_devices(hosts, shell):
    pids = gpu_hosts.hold(hosts, "h1", "engine", *ENGINE)
    rank = pids["sglang::scheduler_TP1"]
    apps = shell("nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory,name --format=csv,noheader,nounits")
    assert f"{gpu_hosts.uuid(1)}, {rank}, 60000, sglang::scheduler_TP1" in apps.splitlines()
    assert shell(f"grep -o '/dev/nvidia[0-9]' /proc/{rank}/maps") == "/dev/nvidia1"
    assert shell("systemctl show -P MainPID engine") == str(pids["sglang"])
    shell("systemctl stop engine")
    assert shell("nvidia-smi --query-compute-apps=pid --format=csv,noheader") == ""


def test_faults_come_and_go_while_the_host_runs(hosts, shell):
    gpu_hosts.set_faults(hosts, "h1", "0 absent", "3 stuck 500")
    assert len(shell("nvidia-smi -L").splitlines()) == 7
    assert shell("nvidia-smi -i 2 --query-gpu=memory.used --format=csv,noheader") == "500 MiB"
    gpu_hosts.set_faults(hosts, "h1")
    assert len(shell("nvidia-smi -L").splitlines()) == 8


def test_pynvml_is_where_it_was_asked_for(hosts, shell):
    import_it = "python3 -c 'import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())'"
    assert shell(import_it) == "8"
    gpu_hosts.install(hosts, "h1", gpus=2, pynvml=False)
    assert shell(f"{import_it} 2>&1 || true").endswith("No module named 'pynvml'")
    assert len(shell("nvidia-smi -L").splitlines()) == 2
