"""Facts of a host made of files: what is read, and what is said where it cannot be."""

from __future__ import annotations

import functools
import json
import os
import pwd
import socket
import sys
import tempfile
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import host_facts
from ansible.module_utils.ironserve.host_facts import Place
from jinja2 import Environment

sys.path.insert(0, str(Path(__file__).parent))
from fake_host import LSPCI, config

ROOT = Path(__file__).resolve().parents[3]
RELEASE = {"service": "main", "engine": "sglang", "port": 8000, "flags": {}, "env": {}, "environment": "/opt/e"}
GPU, OTHER = "0000:06:00.0", "0000:75:00.0"


def write(file: Path, text: str | bytes, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(mode)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A host with two GPUs and nothing else; its programs are those in ``bin``."""
    where = Place(**{name: tmp_path / name for name in Place._fields})
    for folder in where:
        folder.mkdir()
    for bus_id in (GPU, OTHER):
        write(where.proc / "driver" / "nvidia" / "gpus" / bus_id / "information", f"GPU UUID: GPU-{bus_id}\n")
    write(where.proc / "cmdline", "ro iommu=pt\n")
    write(
        where.proc / "1" / "limits", "Max locked memory         8388608              8388608              bytes     \n"
    )
    write(where.proc / "1" / "status", "CapEff:\t000001ffffffffff\n")
    write(where.proc / "1" / "uid_map", "         0          0 4294967295\n")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return where


def program(place: Place, name: str, script: str) -> None:
    write(place.proc.parent / "bin" / name, f"#!/bin/sh\n{script}\n", 0o755)


def told(pieces) -> dict:
    found: dict = {}
    for section, key, value in pieces:
        found.setdefault(section, {})[key] = value
    return json.loads(json.dumps(found))


def test_the_kernel_its_modules_and_the_iommu_of_the_gpus(place):
    write(place.sys / "module" / "nvidia_uvm" / "parameters" / "uvm_disable_hmm", "N\n")
    write(place.sys / "module" / "nvidia" / "parameters" / "NVreg_DeviceFileMode", "438\n")
    write(place.proc / "driver" / "nvidia" / "params", 'RegistryDwords: "ForceP2P=0x11"\n')
    write(place.sys / "kernel" / "iommu_groups" / "0" / "type", "DMA-FQ\n")
    write(place.sys / "kernel" / "iommu_groups" / "7" / "type", "identity\n")
    write(place.sys / "bus" / "pci" / "devices" / GPU / "iommu_group" / "type", "identity\n")
    kernel = told(host_facts.read_kernel(place))["kernel"]
    assert kernel["cmdline"] == "ro iommu=pt"
    assert kernel["modules"] == {
        "nvidia": {"NVreg_DeviceFileMode": "438", "RegistryDwords": "ForceP2P=0x11"},
        "nvidia_uvm": {"uvm_disable_hmm": "N"},
    }
    assert kernel["iommu"] == {"groups": 2, "translating": False}  # that of the GPUs, whatever others have
    assert kernel["release"] == os.uname().release


def test_bridges_by_lspci(place):
    program(place, "lspci", f"/bin/cat <<'END'\n{LSPCI}\nEND")
    found = told(host_facts.read_pci(place))["pci"]
    assert found["paths"]["00000000:06:00.0"] == ["0000:00:01.1", "0000:01:00.0", "0000:02:03.0"]
    assert [bridge["bus_id"] for bridge in found["bridges"]] == [
        "0000:00:01.1", "0000:01:00.0", "0000:02:03.0", "0000:70:01.1", "0000:71:00.0", "0000:72:02.0"
    ]  # fmt: skip
    assert found["bridges"][2]["acs"]["ReqRedir"] is False


def test_bridges_by_their_configuration_space_where_there_is_no_lspci(place):
    devices = place.sys / "bus" / "pci" / "devices"
    write(devices / "0000:02:03.0" / "class", "0x060400\n")
    write(devices / "0000:02:03.0" / "config", config().replace(bytes([2, 3, 5]), bytes([2, 6, 6]), 1))
    write(devices / GPU / "class", "0x030200\n")
    found = told(host_facts.read_pci(place))["pci"]
    assert found["paths"] == {"00000000:06:00.0": ["0000:02:03.0"], "00000000:75:00.0": []}
    assert found["bridges"][0]["kind"] == "downstream"
    assert found["bridges"][0]["acs"]["ReqRedir"] is True


def test_lspci_without_rights_says_so(place):
    program(place, "lspci", "echo '00:01.1 PCI bridge: x'; echo '\tCapabilities: <access denied>'")
    with pytest.raises(RuntimeError, match="it needs root"):
        list(host_facts.read_pci(place))


@pytest.mark.parametrize(
    ("journalctl", "dmesg", "codes"),
    [
        ("echo '2026-11-29T21:09:12+00:00 h kernel: NVRM: Xid (PCI:0000:06:00): 79, gone'", "exit 1", [79]),
        ("exit 1", "exit 1", []),  # no line fits
        ("echo 'No journal files were found.' >&2; exit 1", "echo 'NVRM: Xid (PCI:0000:06:00): 48, x'", [48]),
        ("", "echo 'NVRM: Xid (PCI:0000:06:00): 48, x'", [48]),
    ],
)
def test_xids_by_the_journal_or_else_by_dmesg(place, journalctl, dmesg, codes):
    if journalctl:
        program(place, "journalctl", journalctl)
    program(place, "dmesg", dmesg)
    assert [xid["code"] for xid in told(host_facts.read_kernel_log())["kernel"]["xid"]] == codes


def test_numa(place):
    for node in ("node0", "node1", "possible"):
        (place.sys / "devices" / "system" / "node" / node).mkdir(parents=True)
    write(place.sys / "bus" / "pci" / "devices" / GPU / "numa_node", "1\n")
    assert told(host_facts.read_numa(place))["numa"] == {"nodes": 2, "of_gpu": {"00000000:06:00.0": 1}}


def test_the_network(place):
    addresses = [
        {"ifname": "eth0", "flags": ["BROADCAST", "UP"], "addr_info": [{"local": "192.0.2.2"}]},
        {"ifname": "ib0", "flags": [], "addr_info": []},
        {},
    ]
    program(place, "ip", f"echo '{json.dumps(addresses)}'")
    (place.sys / "class" / "infiniband" / "mlx5_0").mkdir(parents=True)
    network = told(host_facts.read_network(place))["network"]
    assert network["interfaces"] == {
        "eth0": {"addresses": ["192.0.2.2"], "up": True}, "ib0": {"addresses": [], "up": False}
    }  # fmt: skip
    assert network["hcas"] == ["mlx5_0"]
    assert network["hostname"] == socket.gethostname()


def test_files_that_nccl_reads(place, tmp_path, monkeypatch):
    monkeypatch.setattr(host_facts.host, "can_read", lambda user, path: user == "ironserve" and path.exists())
    write(place.etc / "nccl.conf", "NCCL_PROTO=LL\n")
    write(tmp_path / "own.conf", "NCCL_ALGO=Ring\n")
    graph = {"NCCL_GRAPH_FILE": str(tmp_path / "own.conf"), "NCCL_TOPO_FILE": "/no/such.xml"}
    release = {**RELEASE, "env": {"NCCL_CONF_FILE": str(tmp_path / "own.conf"), **graph}}
    assert told(host_facts.read_nccl([release], "ironserve", place))["nccl"] == {
        "conf_files": {str(place.etc / "nccl.conf"): "NCCL_PROTO=LL\n", str(tmp_path / "own.conf"): "NCCL_ALGO=Ring\n"},
        "files": {str(tmp_path / "own.conf"): True, "/no/such.xml": False},
    }


@pytest.mark.parametrize(
    ("status", "uid_map", "can_raise"),
    [("CapEff:\t000001ffffffffff", "0 0 4294967295", True), ("CapEff:\t0000000000000000", "0 0 4294967295", False),
     ("CapEff:\t000001ffffffffff", "0 100000 65536", False)],
)  # fmt: skip
def test_what_systemd_may_let_a_server_lock(place, status, uid_map, can_raise):
    write(place.proc / "1" / "status", f"Name:\tsystemd\n{status}\n")
    write(place.proc / "1" / "uid_map", uid_map)
    space = told(host_facts.read_space(place))["space"]
    assert space["memlock"] == {"hard": "8388608", "can_raise": can_raise}
    assert 0 < space["shm"]["free_mib"] <= space["shm"]["total_mib"]


@pytest.fixture
def open_folder():
    """A folder that everybody may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_case_34_tools_are_looked_up_with_the_units_path_and_as_the_service_user(place, open_folder):
    venv, system, private = (open_folder / name for name in ("venv/bin", "system", "private"))
    write(venv / "ninja", "#!/bin/sh\n", 0o755)
    write(system / "gcc", "#!/bin/sh\n", 0o755)
    write(private / "nvcc", "#!/bin/sh\n", 0o700)
    write(open_folder / "cuda" / "bin" / "nvcc", "#!/bin/sh\n", 0o755)
    releases = [
        {**RELEASE, "service": "as-systemd-has-it", "env": {"PATH": f"{system}:{private}"}},
        {**RELEASE, "service": "with-venv", "env": {"PATH": f"{venv}:{system}", "CUDA_HOME": f"{open_folder}/cuda"}},
    ]
    part = functools.partial(host_facts.read_as_user, releases, "nobody", place)
    found = host_facts.evidence.ask({"service user": part}, 10)  # in a child, as gather does
    assert found["errors"] == {}
    assert found["build"]["as-systemd-has-it"]["tools"] == {
        "ninja": "", "nvcc": "", "gcc": f"{system}/gcc", "clang": ""
    }  # fmt: skip
    assert found["build"]["with-venv"]["tools"] == {
        "ninja": f"{venv}/ninja", "nvcc": f"{open_folder}/cuda/bin/nvcc", "gcc": f"{system}/gcc", "clang": ""
    }  # fmt: skip
    assert (found["user"]["name"], found["user"]["exists"]) == ("nobody", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_folders_and_devices_that_the_service_user_may_not_use(place, open_folder):
    home, dev, nobody = open_folder / "home", open_folder / "dev", pwd.getpwnam("nobody")
    for folder in (home / ".cache" / "vllm", home / ".triton", open_folder / "hf"):
        folder.mkdir(parents=True)
    for folder in (home, home / ".cache", home / ".triton"):
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    write(dev / "nvidia0", "", 0o660)
    write(dev / "nvidiactl", "", 0o666)
    release = {**RELEASE, "env": {"HF_HOME": f"{open_folder}/hf", "TMPDIR": "/tmp"}}
    where = place._replace(home=home, dev=dev)
    part = functools.partial(host_facts.read_as_user, [release], "nobody", where)
    found = host_facts.evidence.ask({"service user": part}, 10)
    assert found["user"]["denied_devices"] == [f"{dev}/nvidia0"]
    assert found["space"]["caches"] == {f"{open_folder}/hf": False, "/tmp": True, f"{home}/.cache/vllm": False}


def test_the_path_is_the_one_that_the_unit_has():
    template = (ROOT / "roles" / "serve" / "templates" / "ironserve.service.j2").read_text()
    line = next(line for line in template.splitlines() if line.startswith('Environment={{ ("PATH="'))
    environment = Environment()
    environment.filters["ironserve_unit_variable"] = lambda text: text
    rendered = environment.from_string(line).render(serve_release=RELEASE)
    assert rendered == f"Environment=PATH={host_facts.unit_path(RELEASE)}"
    assert host_facts.unit_path({**RELEASE, "env": {"PATH": "/own"}}) == "/own"


def test_listeners_on_derived_ports_are_told_and_own_ports_are_not_asked_for(place):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        release = {**RELEASE, "flags": {"nccl-port": str(port)}}
        found = told(host_facts.read_ports([release], place._replace(proc=Path("/proc"))))
    assert found["planned"]["ports"] == {"main": {"8000": "its own port", str(port): "--nccl-port"}}
    assert f"(pid {os.getpid()})" in found["ports"][str(port)]


def test_all_parts_are_told_or_say_why_not(place):
    facts = json.loads(json.dumps(host_facts.gather([RELEASE], "nobody", place=place)))
    assert {"kernel", "numa", "network", "nccl", "space", "planned", "user", "build"} <= set(facts)
    assert facts["network"]["error"] == "ip is not installed"  # there is no ip here
    assert facts["network"]["hostname"] == socket.gethostname()
    assert "gpus" not in facts
    assert "pci" not in facts
