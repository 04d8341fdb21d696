"""What a host's facts are judged to be for a release: each fault alone on a sound host, and the sound host itself."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import host_checks, kernel, knowledge, pci, smi
from ansible.module_utils.ironserve.findings import Case, judge
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from fake_host import LSPCI

ROOT = Path(__file__).resolve().parents[3]
HOST = ROOT / "tests" / "fixtures" / "host"
CATALOGUE = knowledge.catalogue(ROOT)
SWITCHED = smi.parse_topology((HOST / "nvidia-smi-topo-8x-rtx-pro-6000-pex890xx.txt").read_text())
BUSES = ["06", "07", "75", "76", "84", "85", "F4", "F5"]
PACKAGES = {"torch": "2.14.1", "nvidia-cuda-runtime": "13.0.96", "flashinfer-python": "0.7.2", "triton": "3.8.0",
            "nvidia-nccl-cu13": "2.30.7"}  # fmt: skip
SYSTEMD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"


def gpu(index: int, **more) -> dict:
    sound = {
        "index": index, "minor": index, "uuid": f"GPU-{index}", "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "bus_id": f"00000000:{BUSES[index]}:00.0", "family": "sm120", "memory_total_mib": 97887, "error": "",
        "recovery_action": "none", "persistence_mode": True, "bar1_total_mib": 131072, "retired_pages_pending": None,
        "pcie": {"generation": 1, "width": 16, "max_generation": 5, "max_width": 16},
        "ecc": {"enabled": True, "uncorrected_volatile": 0}, "remapped_rows": {"pending": False, "failure": False},
    }  # fmt: skip
    return {**sound, **more}


def pci_facts(text: str = LSPCI) -> dict:
    bridges = pci.parse_lspci(text)
    return {
        "bridges": [{"bus_id": one.bus_id, "kind": one.kind, "acs": one.acs} for one in bridges],
        "paths": pci.paths([gpu(index)["bus_id"] for index in range(8)], bridges),
    }


def sound_facts() -> dict:
    """The host of the fixtures, with nothing to say against it."""
    return {
        "gpus": {"driver_version": "595.58.03", "cuda_version": "13.2", "failure": "",
                 "topology": [list(row) for row in SWITCHED], "gpus": [gpu(index) for index in range(8)]},
        "kernel": {"cmdline": (HOST / "cmdline-8x-rtx-pro-6000.txt").read_text() + " pcie_aspm=off pcie_port_pm=off",
                   "cpu_vendor": "AuthenticAMD", "modules": {"nvidia_uvm": {"uvm_disable_hmm": "Y"}}, "xid": [],
                   "iommu": {"groups": 0, "translating": False}},
        "pci": pci_facts(),
        "build": {"main": {"path": "/opt/e/bin:/usr/bin", "environment": True,
                           "tools": {"ninja": "/opt/e/bin/ninja", "nvcc": "/usr/local/cuda/bin/nvcc",
                                     "gcc": "/usr/bin/gcc", "clang": ""}}},
        "space": {"shm": {"total_mib": 773000, "free_mib": 773000}, "caches": {"/srv/hf": True},
                  "memlock": {"hard": "8388608", "can_raise": True},
                  "disk": {"/var/cache/ironserve": 900000, "/var/log/ironserve": 900000}},
        "ports": {}, "planned": {"ports": {"main": {"8000": "its own port"}}},
        "user": {"name": "ironserve", "exists": True, "denied_devices": []},
    }  # fmt: skip


def case(facts: dict | None = None, hardware: dict | None = None, packages: dict | None = None, **release) -> Case:
    whole = {
        "service": "main", "profile": "triton_nccl", "engine": "sglang", "flags": {"tp-size": "8"}, "port": 8000,
        "lock": {"name": "sglang-0.5.23-cuda", "engine_version": "0.5.23"}, "environment": "/opt/e", "gpus": [],
        "limits": {"nofile": 65535, "memlock": "infinity"}, "env": {"NCCL_P2P_LEVEL": "SYS"}, "host_env": {},
    }  # fmt: skip
    return Case(
        "gpu-a01",
        {**whole, **release},
        sound_facts() if facts is None else facts,
        {"gpu_count": 8, "gpu_family": "sm120", **(hardware or {})},
        PACKAGES if packages is None else packages,
    )


def found(one: Case) -> dict[str, str]:
    """What a person is told: the severity of each rule that found something, but for what only describes the host."""
    findings = judge(one, [host_checks.check], CATALOGUE)
    return {finding["rule"]: finding["severity"] for finding in findings if finding["rule"] != "host-topology"}


def texts(one: Case, rule: str) -> list[str]:
    findings = judge(one, [host_checks.check], CATALOGUE)
    return [f"{finding['key']}: {finding['text']}" for finding in findings if finding["rule"] == rule]


def with_gpu(index: int, **more) -> dict:
    facts = sound_facts()
    facts["gpus"]["gpus"][index].update(more)
    return facts


def changed(*path: str, to) -> dict:
    facts = sound_facts()
    place = facts
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return facts


def test_nothing_is_said_against_a_sound_host():
    assert found(case()) == {}


def test_nothing_is_said_where_nobody_looked():
    assert found(case(facts={})) == {}


# The driver


@pytest.mark.parametrize(
    ("failure", "rule"), [("absent", "host-driver-missing"), ("hung", "host-driver-unusable")]
)  # fmt: skip
def test_a_host_with_gpus_needs_a_driver_that_answers(failure, rule):
    facts = changed("gpus", to={"driver_version": "", "failure": failure, "timeout_s": 7, "topology": [], "gpus": []})
    assert found(case(facts)) == {rule: "error"}
    assert found(case(facts, hardware={"gpu_count": 0})) == {}
    assert ("within 7 s" in texts(case(facts), rule)[0]) == (failure == "hung")


@pytest.mark.parametrize(
    ("driver", "packages", "least"),
    [
        ("570.172.08", PACKAGES, 580),
        ("580.159.04", PACKAGES, 0),
        ("515.65.01", {"nvidia-nccl-cu12": "2.27.5"}, 525),
        ("570.172.08", {"nvidia-cuda-runtime-cu12": "12.8.90"}, 0),
        ("515.65.01", {"torch": "2.8.0+cu128"}, 525),
        ("515.65.01", {"torch": "2.13.0+cpu"}, 0),
        ("", PACKAGES, 0),
    ],
)
def test_the_driver_has_to_be_new_enough_for_the_cuda_of_the_lock(driver, packages, least):
    one = case(changed("gpus", "driver_version", to=driver), packages=packages)
    if least:
        assert found(one)["host-driver-old"] == "error"
        assert f"needs {least} or newer" in texts(one, "host-driver-old")[0]
    else:
        assert "host-driver-old" not in found(one)


# What the inventory says


def test_a_missing_gpu_is_an_error_and_one_too_many_a_warning():
    fewer = case(changed("gpus", "gpus", to=[gpu(index) for index in range(7)]))
    assert found(fewer)["host-gpu-count"] == "error"
    assert "the driver knows 7, and ironserve_hardware.gpu_count says 8" in texts(fewer, "host-gpu-count")[0]
    assert found(case(hardware={"gpu_count": 4}))["host-gpu-count"] == "warning"


def test_a_gpu_that_the_driver_does_not_know_is_named():
    one = case(gpus=["GPU-3", "GPU-gone"])
    assert found(one)["host-gpu-unknown"] == "error"
    assert "GPU-gone" in texts(one, "host-gpu-unknown")[0]


def test_another_family_than_the_groups():
    one = case(hardware={"gpu_family": "sm90"})
    assert found(one) == {"host-gpu-family": "error"}
    assert "sm120, and ironserve_hardware.gpu_family says sm90" in texts(one, "host-gpu-family")[0]


def test_another_interconnect_than_the_groups():
    assert found(case(hardware={"interconnect": "nvlink"})) == {"host-interconnect": "warning"}
    assert found(case(hardware={"interconnect": "switch"})) == {}


# Sound GPUs


@pytest.mark.parametrize(
    ("fault", "rule", "severity"),
    [
        ({"error": "reset_required"}, "host-gpu-unusable", "error"),
        ({"recovery_action": "gpu_reset"}, "host-gpu-recovery", "error"),
        ({"recovery_action": "drain_p2p"}, "host-gpu-recovery", "warning"),
        ({"remapped_rows": {"pending": False, "failure": True}}, "host-gpu-row-failure", "error"),
        ({"remapped_rows": {"pending": True, "failure": False}}, "host-gpu-row-pending", "warning"),
        ({"retired_pages_pending": True}, "host-gpu-row-pending", "warning"),
        ({"ecc": {"enabled": True, "uncorrected_volatile": 3}}, "host-gpu-ecc", "warning"),
        ({"persistence_mode": False}, "host-gpu-persistence", "warning"),
        ({"bar1_total_mib": 256}, "host-bar1", "warning"),
        ({"pcie": {"width": 8, "max_width": 16, "max_generation": 5}}, "host-pcie-width", "warning"),
        ({"pcie": {"width": 16, "max_width": 16, "max_generation": 4}}, "host-pcie-generation", "warning"),
    ],
)
def test_a_fault_of_one_gpu(fault, rule, severity):
    one = case(with_gpu(3, **fault))
    assert found(one) == {rule: severity}
    assert texts(one, rule)[0].startswith("GPU 3 (GPU-3): ")


def test_what_a_driver_does_not_tell_is_no_fault():
    unknown = {"width": None, "max_width": None, "max_generation": None}
    silent = with_gpu(3, pcie=unknown, ecc={}, remapped_rows={}, persistence_mode=None, bar1_total_mib=None)
    assert found(case(silent)) == {}


def test_faults_of_gpus_that_another_service_uses_are_not_this_ones():
    facts = with_gpu(7, recovery_action="reboot")
    assert found(case(facts, gpus=["GPU-0", "GPU-1"])) == {}
    assert "host-gpu-recovery" in found(case(facts, gpus=["GPU-6", "GPU-7"]))


@pytest.mark.parametrize(
    ("code", "driver", "severity"),
    [
        (79, "595.58.03", "warning"),  # the driver tells what such a GPU needs, and it needs nothing
        (79, "550.54.15", "error"),
        (119, "595.58.03", "error"),  # which it does not tell
        (48, "535.183.01", "error"),
        (95, "535.183.01", "error"),
        (74, "535.183.01", "error"),
        (94, "535.183.01", "warning"),
        (155, "565.57.01", "warning"),
        (109, "565.57.01", "error"),
        (109, "570.86.10", "warning"),
        (13, "535.183.01", ""),
        (31, "535.183.01", ""),
        (63, "535.183.01", ""),
    ],
)
def test_xids_of_this_boot(code, driver, severity):
    line = f"2026-11-29T21:09:12+00:00 gpu-a01 kernel: NVRM: Xid (PCI:0000:76:00): {code}, pid=12, what it says"
    facts = changed("kernel", "xid", to=kernel.parse_xids(line))
    facts["gpus"]["driver_version"] = driver
    one = case(facts, packages={})
    assert found(one) == ({"host-xid": severity} if severity else {})
    assert found(case(facts, packages={}, gpus=["GPU-0", "GPU-1"])) == {}
    if severity:
        assert f"Xid {code} at 2026-11-29T21:09:12+00:00" in texts(one, "host-xid")[0]


def test_an_xid_of_a_gpu_that_still_needs_something_is_an_error():
    facts = with_gpu(3, recovery_action="gpu_reset")
    facts["kernel"]["xid"] = [{"at": "", "bus_id": gpu(3)["bus_id"], "code": 48, "text": "DBE"}]
    assert found(case(facts)) == {"host-gpu-recovery": "error", "host-xid": "error"}


# What lies between GPUs

CASE_4 = ("0000:02:03.0", "0000:72:02.0")


def text_of_case_4() -> str:
    """Root ports without redirect; two downstream ports of switches with it."""
    blocks = LSPCI.split("\n\n")
    for place, block in enumerate(blocks):
        if any(block.startswith(bus_id.removeprefix("0000:")) for bus_id in CASE_4):
            assert "ReqRedir- CmpltRedir-" in block
            blocks[place] = block.replace("ReqRedir- CmpltRedir-", "ReqRedir+ CmpltRedir+")
    return "\n\n".join(blocks)


def facts_of_case_4() -> dict:
    """That text, a command line without iommu=, PHB and NODE between the GPUs."""
    facts = sound_facts()
    facts["pci"] = pci_facts(text_of_case_4())
    facts["kernel"]["cmdline"] = "BOOT_IMAGE=/vmlinuz-6.17.0-20-generic ro pcie_aspm=off pcie_port_pm=off"
    facts["kernel"]["iommu"] = {"groups": 80, "translating": True}
    facts["gpus"]["topology"] = [
        ["X" if one == other else "PHB" if one // 2 == other // 2 else "NODE" for other in range(8)] for one in range(8)
    ]
    return facts


def test_case_4_acs_on_two_downstream_ports_is_reported_with_both_and_p2p_has_to_be_off():
    one = case(facts_of_case_4(), env={})
    assert found(one)["host-acs"] == "error"
    (told,) = texts(one, "host-acs")
    assert told == (
        "PCI: 2 bridges between its GPUs redirect what these send each other: "
        "0000:02:03.0 (downstream), 0000:72:02.0 (downstream)"
    )
    (finding,) = [one for one in judge(one, [host_checks.check], CATALOGUE) if one["rule"] == "host-acs"]
    assert "setpci -s 0000:02:03.0 ECAP_ACS+0x6.w=0000" in finding["do"]
    assert "set NCCL_P2P_DISABLE=1 in the profile" in finding["do"]


def test_case_4_passes_with_p2p_off_in_the_profile_unless_the_site_is_strict():
    off = {"NCCL_P2P_DISABLE": "1"}
    assert found(case(facts_of_case_4(), env=off)) == {"host-acs": "note"}
    strict = case(facts_of_case_4(), hardware={"acs": "strict"}, env=off)
    assert found(strict) == {"host-acs": "error"}
    assert "NCCL_P2P_DISABLE" not in judge(strict, [host_checks.check], CATALOGUE)[0]["do"]


def test_case_4_all_bridges_without_redirect_pass():
    facts = facts_of_case_4()
    facts["pci"] = pci_facts(LSPCI)
    assert "host-acs" not in found(case(facts, env={}))


def test_acs_counts_on_the_way_between_the_services_own_gpus_only():
    facts = facts_of_case_4()
    assert "host-acs" in found(case(facts, gpus=["GPU-0", "GPU-1"]))  # 06 and 07, behind 02:03.0 and 02:04.0
    assert "host-acs" not in found(case(facts, gpus=["GPU-4", "GPU-5"]))
    assert "host-acs" not in found(case(facts, gpus=["GPU-0"]))


def test_nothing_between_gpus_matters_to_a_server_with_one_rank_or_where_nobody_knows_how_they_are_joined():
    assert found(case(facts_of_case_4(), flags={"tp-size": "1"}, env={})) == {}
    unknown = facts_of_case_4()
    unknown["gpus"]["topology"] = []
    assert found(case(unknown, env={})) == {}


def test_acs_on_a_root_port_above_a_switch_that_all_gpus_share_is_not_in_the_way():
    text = LSPCI.replace("ReqRedir- CmpltRedir-", "ReqRedir+ CmpltRedir+", 1)  # 00:01.1
    facts = changed("pci", to=pci_facts(text))
    assert "host-acs" not in found(case(facts, gpus=["GPU-0", "GPU-1"]))
    assert "host-acs" in found(case(facts, gpus=["GPU-0", "GPU-2"]))


def test_acs_without_an_iommu_that_translates_is_slow_and_no_error():
    facts = facts_of_case_4()
    facts["kernel"]["iommu"] = {"groups": 0, "translating": False}
    assert found(case(facts, env={}))["host-acs"] == "warning"


def test_nothing_of_pcie_matters_where_nvlink_joins_the_gpus():
    facts = facts_of_case_4()
    facts["gpus"]["topology"] = [["X" if one == other else "NV18" for other in range(8)] for one in range(8)]
    facts["kernel"]["modules"] = {"nvidia_uvm": {"uvm_disable_hmm": "N"}}
    facts["gpus"]["gpus"] = [gpu(index, bar1_total_mib=256) for index in range(8)]
    assert found(case(facts, env={})) == {}


def test_notes_for_gpus_without_nvlink():
    facts = changed("kernel", "modules", to={"nvidia_uvm": {"uvm_disable_hmm": "N"}})
    facts["kernel"]["cmdline"] = "ro pcie_aspm=off"
    facts["kernel"]["iommu"] = {"groups": 80, "translating": True}
    assert found(case(facts)) == {
        "host-iommu": "warning", "host-hmm": "note", "host-pcie-power": "note", "host-nccl-proposal": "note"
    }  # fmt: skip
    assert "pcie_port_pm=off" in texts(case(facts), "host-pcie-power")[0]


@pytest.mark.parametrize(
    ("link", "way"),
    [("NV18", "all over NVLink (NV18)"), ("PIX", "over PCIe, some behind one switch (PIX)"),
     ("NODE", "over PCIe, each at the CPU (NODE)")],
)  # fmt: skip
def test_a_preflight_tells_what_lies_between_the_gpus(link, way):
    table = [["X" if one == other else link for other in range(8)] for one in range(8)]
    one = case(changed("gpus", "topology", to=table))
    buses = [gpu["bus_id"] for gpu in one.facts["gpus"]["gpus"]]
    facts = {**one.facts, "numa": {"nodes": 2, "of_gpu": {bus: place // 4 for place, bus in enumerate(buses)}}}
    assert texts(case(facts), "host-topology") == [f"topology: 8 GPUs reach each other {way}, on NUMA nodes 0, 1"]


@pytest.mark.parametrize(
    ("link", "variables"),
    [("PIX", {}), ("PXB", {}), ("PHB", {"NCCL_P2P_LEVEL": "PHB"}), ("NODE", {"NCCL_P2P_LEVEL": "PHB"}),
     ("SYS", {"NCCL_P2P_LEVEL": "SYS"}), ("NV18", {})],
)  # fmt: skip
def test_what_a_topology_suggests_to_nccl(link, variables):
    table = [["X" if one == other else link for other in range(8)] for one in range(8)]
    one = case(changed("gpus", "topology", to=table), env={})
    assert host_checks.proposed_nccl(one.facts, host_checks.members(one))["variables"] == variables
    assert found(one) == ({"host-nccl-proposal": "note"} if variables else {})
    assert found(case(one.facts, env=variables)) == {}
    assert found(case(one.facts, env={"NCCL_P2P_DISABLE": "1"})) == {}


def test_two_gpus_at_a_cpu_of_amds_reach_each_other_by_default():
    facts = changed("gpus", "topology", to=[["X", "SYS"], ["SYS", "X"]])
    facts["gpus"]["gpus"] = [gpu(0), gpu(1)]
    assert found(case(facts, hardware={"gpu_count": 2}, env={})) == {}
    facts["kernel"]["cpu_vendor"] = "GenuineIntel"
    assert found(case(facts, hardware={"gpu_count": 2}, env={})) == {"host-nccl-proposal": "note"}


# Tools, space, ports


def built(path: str, environment: bool = True, **tools) -> dict:
    all_of_them = {"ninja": "", "nvcc": "", "gcc": "/usr/bin/gcc", "clang": "", **tools}
    return changed("build", to={"main": {"path": path, "tools": all_of_them, "environment": environment}})


def test_case_34_ninja_that_is_only_beside_the_interpreter_is_missing_on_the_units_path():
    """ExecStart=/opt/venv/bin/python, PATH as systemd gives it, and ninja in /opt/venv/bin."""
    facts = built(SYSTEMD_PATH, nvcc="/usr/bin/nvcc")
    one = case(facts, environment="/opt/venv", flags={"tp-size": "8", "attention-backend": "flashinfer"})
    assert found(one) == {"host-build-ninja": "error"}
    (told,) = texts(one, "host-build-ninja")
    assert told == (
        f"ninja: is not on the unit's PATH ({SYSTEMD_PATH}) for user ironserve, "
        "and --attention-backend flashinfer compiles kernels with it"
    )
    without_backend = case(facts, environment="/opt/venv")
    assert found(without_backend) == {"host-build-ninja": "warning"}


def test_case_34_an_environment_that_is_not_there_yet_brings_its_ninja():
    packages = {**PACKAGES, "ninja": "1.13.2"}
    facts = built("/opt/e/bin:/usr/bin", environment=False, nvcc="/usr/bin/nvcc")
    assert found(case(facts, packages=packages)) == {}
    assert found(case(built(SYSTEMD_PATH, environment=False, nvcc="/usr/bin/nvcc"), packages=packages)) != {}


def test_compilers_matter_where_something_compiles():
    nothing = built("/opt/e/bin", gcc="")
    assert found(case(nothing)) == {
        "host-build-ninja": "warning", "host-build-nvcc": "warning", "host-build-cc": "warning"
    }  # fmt: skip
    assert found(case(nothing, packages={"torch": "2.13.0+cpu"})) == {}
    ahead = {**PACKAGES, "flashinfer-jit-cache": "0.7.2"}
    assert found(case(nothing, packages=ahead)) == {"host-build-cc": "warning"}
    assert found(case(nothing, packages=ahead, env={"CC": "/opt/gcc", "NCCL_P2P_LEVEL": "SYS"})) == {}
    assert found(case(built("/opt/e/bin", gcc="", clang="/usr/bin/clang"), packages=ahead)) == {}


def test_room_in_shared_memory_is_measured_against_ranks_channels_and_buffers():
    facts = changed("space", "shm", to={"total_mib": 64})
    one = case(facts)
    assert found(one) == {"host-shm": "warning"}
    assert "8 ranks with 16 channels of 4 MiB may share 512" in texts(one, "host-shm")[0]
    assert found(case(changed("space", "shm", to={"total_mib": 512}))) == {}
    larger = {"NCCL_BUFFSIZE": "16777216", "NCCL_MAX_NCHANNELS": "32", "NCCL_P2P_LEVEL": "SYS"}
    assert found(case(changed("space", "shm", to={"total_mib": 512}), env=larger)) == {"host-shm": "warning"}
    assert found(case(facts, flags={})) == {}


def test_space_caches_limits_and_devices():
    assert found(case(changed("space", "disk", "/var/cache/ironserve", to=100))) == {"host-disk": "warning"}
    one = case(changed("space", "caches", to={"/srv/hf": False, "/srv/triton": True}))
    assert found(one) == {"host-cache": "warning"}
    assert texts(one, "host-cache") == ["/srv/hf: user ironserve may not write there"]
    low = changed("space", "memlock", to={"hard": "8388608", "can_raise": False})
    assert found(case(low)) == {"host-memlock": "warning"}
    assert found(case(low, limits={"memlock": 1048576, "nofile": 8192})) == {}
    denied = case(changed("user", "denied_devices", to=["/dev/nvidia0"]))
    assert found(denied) == {"host-device": "error"}
    assert texts(denied, "host-device") == ["devices: user ironserve may not use /dev/nvidia0"]
    assert found(case(denied.facts, gpus=["GPU-1"])) == {}


def test_derived_ports_that_others_hold_or_are_to_take():
    facts = changed("ports", to={"8234": "nginx (pid 77) of nginx.service", "9000": "somebody"})
    facts["planned"]["ports"] = {
        "main": {"8000": "its own port", "8233": "data parallel attention", "8234": "its tokenizer"},
        "chat": {"8233": "its own port", "8001": "--nccl-port"},
    }  # fmt: skip
    one = case(facts)
    assert found(one) == {"host-port": "error"}
    assert texts(one, "host-port") == [
        "port 8234: held by nginx (pid 77) of nginx.service; the server takes it for its tokenizer",
        "port 8233: service chat takes it, too (its own port); this one for data parallel attention",
    ]


def test_a_part_that_could_not_be_read_is_told_and_stops_nothing():
    facts = {"pci": {"error": "lspci may not read the capabilities of bridges: it needs root"}, "gpus": {"error": "x"}}
    assert found(case(facts)) == {"host-unread": "note"}
    assert len(texts(case(facts), "host-unread")) == 2


def test_every_rule_is_in_the_catalogue_and_every_rule_of_the_catalogue_is_found_by_something_here():
    code = Path(host_checks.__file__).read_text()
    listed = {rule for rule in CATALOGUE if rule.startswith("host-")}
    assert {rule for rule in listed if f'"{rule}"' not in code} == set()
    assert all(CATALOGUE[rule]["severity"] in ("error", "warning", "note") for rule in listed)
    assert all(CATALOGUE[rule]["why"] and CATALOGUE[rule]["do"] for rule in listed)


@given(st.data())
def test_facts_of_which_parts_are_missing_are_judged(data):
    """Any part may be missing or be an error; what is left is judged."""
    facts = copy.deepcopy(sound_facts())
    for part in list(facts):
        what = data.draw(st.sampled_from(["keep", "drop", "error", "thin"]))
        if what == "drop":
            del facts[part]
        elif what == "error":
            facts[part] = {"error": "x"}
        elif what == "thin":
            for key in list(facts[part]):
                if data.draw(st.booleans()):
                    del facts[part][key]
    assert set(found(case(facts)).values()) <= {"note", "warning", "error"}


@pytest.mark.parametrize(
    ("purpose", "text", "do"),
    [
        ("deploy", "held by a run of eva@ctl that began 12 min ago", "Wait until that run ends"),
        ("maintenance", "in maintenance: drained by eva@ctl 12 min ago", "playbooks/admit.yml"),
    ],
)
def test_a_host_that_somebody_else_has_is_an_error_that_may_be_overruled(purpose, text, do):
    held = {"token": "t", "purpose": purpose, "user": "eva", "controller": "ctl", "age_s": 720, "left_s": 60}
    one = case({**sound_facts(), "lease": held})
    [finding] = judge(one, [host_checks.check], CATALOGUE, ["host-leased"])[:1]
    assert (finding["rule"], finding["severity"], finding["accepted"]) == ("host-leased", "error", True)
    assert finding["text"].startswith(text)
    assert do in finding["do"]
    assert found(case({**sound_facts(), "lease": {}})) == {}
