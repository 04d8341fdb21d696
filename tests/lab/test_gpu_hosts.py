"""GPUs on test hosts: what tests/gpu installs is what a host with a driver shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import findings, host_checks, knowledge
from ansible.module_utils.ironserve.findings import Case

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


GATHER = """
import json, os, sys, time, types
sys.path.insert(0, "/srv/ironserve")
package = types.ModuleType("ansible"); package.__path__ = []
inner = types.ModuleType("ansible.module_utils"); inner.__path__ = ["/srv/ironserve"]
sys.modules.update({"ansible": package, "ansible.module_utils": inner})
from ansible.module_utils.ironserve import host_facts, nvml
began = time.monotonic()
gpus = host_facts.told_of(nvml.look(3, topology=True), 3)
facts = host_facts.gather(json.loads(sys.argv[1]), "ironserve", gpus)
print(json.dumps({**facts, "took_s": time.monotonic() - began}))
"""
RELEASE = {
    "service": "main", "profile": "flashinfer_nccl", "engine": "sglang", "port": 8000, "env": {}, "host_env": {},
    "flags": {"tp-size": "8", "attention-backend": "flashinfer", "enable-dp-attention": True, "dp-size": "8"},
    "environment": "/opt/e", "gpus": [], "lock": {"name": "sglang-0.5.23-cuda", "engine_version": "0.5.23"},
    "limits": {"nofile": 65535, "memlock": "infinity"}, "model": {"path": "/srv/models/none"},
}  # fmt: skip
PACKAGES = {"nvidia-cuda-runtime": "13.0.96", "flashinfer-python": "0.7.2", "triton": "3.8.0"}
HARDWARE = {"gpu_count": 8, "gpu_family": "sm120"}
ROOT = Path(__file__).resolve().parents[2]

# What lspci prints of eight GPUs, each at a root port of its own: all that is read of it.
ROOT_PORT = """\
0000:00:{place:02x}.0 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153e (prog-if 00 [Normal decode])
\tBus: primary=00, secondary={bus:02x}, subordinate={bus:02x}, sec-latency=0
\tCapabilities: [58] Express (v2) Root Port (Slot+), MSI 00
\tCapabilities: [2a0 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{acs} CmpltRedir{acs} UpstreamFwd+ EgressCtrl- DirectTrans-

"""


@pytest.fixture(scope="module")
def judged(hosts):
    """Gather facts on h1, and judge them here: severity by rule; facts; texts."""
    hosts.exec("h1", ["mkdir", "-p", "/srv/ironserve"])
    packed = subprocess.run(
        ["tar", "-C", str(ROOT / "module_utils"), "-cf", "-", "ironserve"], stdout=subprocess.PIPE, check=True
    )
    hosts.exec("h1", ["tar", "-C", "/srv/ironserve", "-xf", "-"], input=packed.stdout, text=False)
    gpu_hosts.install(hosts, "h1")
    catalogue = knowledge.catalogue(ROOT)

    def judge(**changes):
        release = {**RELEASE, **changes}
        answer = hosts.exec("h1", ["python3", "-c", GATHER, json.dumps([release])]).stdout
        facts = json.loads(answer)
        case = Case("h1", release, facts, HARDWARE, PACKAGES)
        return facts, {one["rule"]: one for one in findings.judge(case, [host_checks.check], catalogue)}

    return judge


def lspci(hosts, acs: str) -> None:
    ports = "".join(ROOT_PORT.format(place=gpu + 1, bus=1 + 16 * gpu, acs=acs) for gpu in range(8))
    script = "cat > /usr/bin/lspci && chmod 755 /usr/bin/lspci"
    hosts.exec("h1", ["sh", "-c", script], input=f"#!/bin/sh\ncat <<'END'\n{ports}END\n")


def test_the_facts_of_a_host_are_what_it_was_given(hosts, shell, judged):
    lspci(hosts, "-")
    facts, _ = judged()
    assert facts["gpus"]["driver_version"] == "595.58.03"
    assert [gpu["uuid"] for gpu in facts["gpus"]["gpus"]] == [gpu_hosts.uuid(gpu) for gpu in range(8)]
    first = facts["gpus"]["gpus"][0]
    assert first["pcie"] == {"generation": 5, "width": 16, "max_generation": 5, "max_width": 16}
    assert (first["ecc"], first["bar1_total_mib"]) == ({"enabled": True, "uncorrected_volatile": 0}, 131072)
    assert facts["gpus"]["topology"][0] == ["X", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert facts["pci"]["paths"]["00000000:71:00.0"] == ["0000:00:08.0"]
    assert [bridge["kind"] for bridge in facts["pci"]["bridges"]] == ["root_port"] * 8
    assert facts["kernel"]["cmdline"] == shell("cat /proc/cmdline")
    assert facts["network"]["hostname"] == "h1"
    assert facts["build"]["main"]["path"].startswith("/opt/e/bin:/usr/local/cuda/bin:")
    assert facts["planned"]["ports"]["main"]["8233"] == "data parallel attention"
    assert {part: told["error"] for part, told in facts.items() if isinstance(told, dict) and "error" in told} == {}


@pytest.mark.parametrize(
    ("faults", "rule", "severity"),
    [
        (["3 ecc 1 4"], "host-gpu-ecc", "warning"),
        (["3 remapped_rows 0 1"], "host-gpu-row-failure", "error"),
        (["3 remapped_rows 1 0"], "host-gpu-row-pending", "warning"),
        (["3 recovery 1"], "host-gpu-recovery", "error"),
        (["3 pcie 5 16 5 8"], "host-pcie-width", "warning"),
        (["3 bar1_mib 256"], "host-bar1", "warning"),
        (["3 persistence 0"], "host-gpu-persistence", "warning"),
        (["3 compute 9.0"], "host-gpu-family", "error"),
        (["3 absent"], "host-gpu-count", "error"),
        (["driver 570.172.08"], "host-driver-old", "error"),
        (["not_loaded"], "host-driver-unusable", "error"),
    ],
)
def test_a_fault_of_a_host_is_found(hosts, shell, judged, faults, rule, severity):
    lspci(hosts, "-")
    gpu_hosts.set_faults(hosts, "h1", *faults)
    _, found = judged()
    assert found[rule]["severity"] == severity


def test_case_18_a_driver_that_hangs_costs_its_time_limit_and_nothing_else(hosts, shell, judged):
    lspci(hosts, "-")
    gpu_hosts.set_faults(hosts, "h1", "init_hang")
    facts, found = judged()
    assert 3 <= facts["took_s"] < 5
    assert facts["gpus"]["failure"] == "hung"
    assert found["host-driver-unusable"]["severity"] == "error"
    assert len(facts["pci"]["bridges"]) == 8


def test_a_gpu_without_a_fault_has_no_finding(hosts, shell, judged):
    lspci(hosts, "-")
    _, found = judged()
    assert {rule for rule in found if rule.startswith(("host-gpu", "host-pcie-w", "host-driver", "host-acs"))} == set()


def test_case_4_acs_is_found_on_a_host(hosts, shell, judged):
    lspci(hosts, "+")
    _, found = judged()
    assert "8 bridges between its GPUs redirect" in found["host-acs"]["text"]
    assert "0000:00:01.0 (root port), 0000:00:02.0 (root port)" in found["host-acs"]["text"]
    _, found = judged(env={"NCCL_P2P_DISABLE": "1"})
    assert found["host-acs"]["severity"] == "note"


def test_case_34_ninja_beside_the_interpreter_is_not_on_the_units_path(hosts, shell, judged):
    """A PATH in the profile replaces the unit's own, and the environment's bin is not on it."""
    shell("mkdir -p /opt/venv/bin && printf '#!/bin/sh\n' > /opt/venv/bin/ninja && chmod 755 /opt/venv/bin/ninja")
    systemd_path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
    _, found = judged(environment="/opt/venv", env={"PATH": systemd_path})
    assert found["host-build-ninja"]["severity"] == "error"
    assert f"is not on the unit's PATH ({systemd_path})" in found["host-build-ninja"]["text"]
    _, found = judged(environment="/opt/venv")
    assert "host-build-ninja" not in found


def test_a_port_that_the_server_derives_and_somebody_holds_is_found(hosts, shell, judged):
    serve = "python3 -m http.server 8235"
    listens = "for i in $(seq 100); do ss -Hltn sport = :8235 | grep -q . && exit; sleep 0.05; done; exit 1"
    shell(f"systemd-run -q --unit squatter {serve}; {listens}")
    try:
        _, found = judged()
    finally:
        shell("systemctl stop squatter")
    assert "held by python3 (pid" in found["host-port"]["text"]
    assert "squatter.service" in found["host-port"]["text"]
    assert "detokenizer" in found["host-port"]["text"]
