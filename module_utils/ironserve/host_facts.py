"""What a host is, as far as it matters to a server that is to start on it: GPUs, kernel, PCI, network, tools, space.

It only reads, and what the driver tells is given to it. Each part is read by a child of its own, all at the same time,
so that a name server or a disk that hangs costs one part and not the look; what could not be read says so in its part's
``error``. Judging it is the controller's, ``host_checks.py``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import evidence, host, kernel, model_config, nvml, pci, systemd
from .engines import ENGINES
from .evidence import Part, Piece
from .gpus import Reading, as_result
from .holders import owner_of
from .processes import PROC, Table, names
from .readback import limits

DEADLINE_S = 5.0
"""Of all parts together; without trouble they take a tenth of a second."""
COMMAND_S = 3.0

SYS = Path("/sys")
SHM = Path("/dev/shm")  # noqa: S108  only looked at
HOME = Path("/var/cache/ironserve")
"""HOME of a server."""
PLACES = (HOME, Path("/opt/ironserve/engines"), host.LOGS, host.STATE)

TOOLS = ("ninja", "nvcc", "gcc", "clang")
"""What engines call to compile kernels: FlashInfer and torch ninja, that nvcc, Triton a C compiler."""

SYSTEM_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CACHE_VARIABLES = (
    "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR",
    "FLASHINFER_WORKSPACE_BASE", "FLASHINFER_JIT_DIR", "VLLM_CACHE_ROOT", "SGLANG_CACHE_DIR", "CUDA_CACHE_PATH",
    "TMPDIR",
)  # fmt: skip
"""Variables of a profile that name a folder to which the server writes."""

CACHE_DEPTH, CACHE_FOLDERS = 2, 500
"""How deep, and how many folders of the caches are looked at."""

CAP_SYS_RESOURCE = 1 << 24
SEPARATE = {"kernel log": "kernel", "service user": "build"}
"""Parts that tell into another one's section."""


class Place(NamedTuple):
    """Where the host's files are; elsewhere in tests."""

    proc: Path = PROC
    sys: Path = SYS
    shm: Path = SHM
    home: Path = HOME
    etc: Path = Path("/etc")
    dev: Path = Path("/dev")


def gather(
    releases: Sequence[Mapping[str, Any]],
    user: str = "ironserve",
    gpus: Mapping[str, Any] | None = None,
    place: Place = Place(),  # noqa: B008  immutable
) -> dict[str, Any]:
    """The facts of the host that its releases are judged by, JSON-plain, by part; docs/hosts.md lists them.

    Args:
        releases: what the host is to take.
        user: the service user.
        gpus: what the driver tells, see :func:`told_of`; None on a host that has none.
        place: where the host's files are.
    """
    parts: dict[str, Part] = {
        "kernel": functools.partial(read_kernel, place),
        "numa": functools.partial(read_numa, place),
        "network": functools.partial(read_network, place),
        "nccl": functools.partial(read_nccl, releases, user, place),
        "space": functools.partial(read_space, place),
        "ports": functools.partial(read_ports, releases, place),
        "models": functools.partial(read_models, releases),
        "service user": functools.partial(read_as_user, releases, user, place),
    }
    if gpus:
        parts["pci"] = functools.partial(read_pci, place)
        parts["kernel log"] = read_kernel_log
    found = evidence.ask(parts, DEADLINE_S)
    for name, why in found.pop("errors").items():
        found.setdefault(SEPARATE.get(name, name), {})["error"] = why
    return {**found, "gpus": gpus} if gpus else found


def unit_path(release: Mapping[str, Any]) -> str:
    """PATH of the server's unit, as its template writes it; a profile's own PATH replaces that."""
    return str(release["env"].get("PATH", f"{release['environment']}/bin:{SYSTEM_PATH}"))


def told_of(reading: Reading, timeout_s: float) -> dict[str, Any]:
    """GPUs as the module gpu_info tells them, with ``failure`` where the driver told nothing in so many seconds."""
    return {
        "driver_version": reading.driver_version,
        "cuda_version": reading.cuda_version,
        "failure": reading.failure,
        "timeout_s": timeout_s,
        "topology": [list(row) for row in reading.topology],
        "gpus": [as_result(gpu) for gpu in reading.gpus],
    }


def read_models(releases: Iterable[Mapping[str, Any]]) -> Iterator[Piece]:
    """What the files of each service's model say."""
    for release in releases:
        yield "models", release["service"], model_config.read(Path(release["model"]["path"]))


def read_kernel(place: Place) -> Iterator[Piece]:
    """Release, command line, parameters of modules, and whether the IOMMU translates what GPUs ask for."""
    told = os.uname()
    yield "kernel", "release", told.release
    yield "kernel", "machine", told.machine
    yield "kernel", "cmdline", (place.proc / "cmdline").read_text(errors="replace").strip()
    yield "kernel", "cpu_vendor", kernel.parse_cpu_vendor(host.read_text(place.proc / "cpuinfo") or "")
    modules = {
        folder.name: {file.name: _line(file) for file in sorted((folder / "parameters").glob("*"))}
        for folder in [*sorted((place.sys / "module").glob("nvidia*")), place.sys / "module" / "pcie_aspm"]
        if folder.is_dir()
    }
    if "nvidia" in modules:
        parameters = host.read_text(place.proc / "driver" / "nvidia" / "params") or ""
        modules["nvidia"].update(kernel.parse_driver_parameters(parameters))
    yield "kernel", "modules", modules
    groups = list((place.sys / "kernel" / "iommu_groups").glob("*"))
    types = [_line(place.sys / "bus" / "pci" / "devices" / gpu / "iommu_group" / "type") for gpu in _gpus(place)]
    known = [word for word in types if word] or [_line(group / "type") for group in groups]
    yield "kernel", "iommu", {"groups": len(groups), "translating": kernel.translates(known)}


def read_kernel_log() -> Iterator[Piece]:
    """The Xids of this boot."""
    options = ["--dmesg", "--quiet", "--no-pager", "--output=short-iso"]
    try:
        done = host.run(["journalctl", *options, "--grep=NVRM: Xid"], COMMAND_S)
        text = done.out if done.rc == 0 or not done.err.strip() else _command("dmesg", "--time-format", "iso")
    except (OSError, subprocess.TimeoutExpired):
        text = _command("dmesg", "--time-format", "iso")
    yield "kernel", "xid", kernel.parse_xids(text)


def read_pci(place: Place) -> Iterator[Piece]:
    """The bridges of the host, and those that lead to each GPU."""
    bridges = list(_bridges(place))
    gpus = [gpu.bus_id for gpu in nvml.kernel_gpus(place.proc)]
    yield "pci", "paths", pci.paths(gpus, bridges)
    used = {bus_id for path in pci.paths(gpus, bridges).values() for bus_id in path}
    yield (
        "pci",
        "bridges",
        [
            {"bus_id": bridge.bus_id, "kind": bridge.kind, "acs": bridge.acs}
            for bridge in bridges
            if bridge.bus_id in used
        ],
    )


def _bridges(place: Place) -> list[pci.Bridge]:
    """By lspci, which whoever looks into it by hand will use; by their configuration space where there is no lspci."""
    with contextlib.suppress(FileNotFoundError):
        text = _command(*pci.LSPCI)
        if pci.HIDDEN in text:
            raise RuntimeError("lspci may not read the capabilities of bridges: it needs root")
        return pci.parse_lspci(text)
    found = []
    for folder in sorted((place.sys / "bus" / "pci" / "devices").glob("*")):
        if _line(folder / "class").startswith("0x0604"):
            found.append(pci.parse_config(folder.name, (folder / "config").read_bytes()))
    return [bridge for bridge in found if bridge]


def read_numa(place: Place) -> Iterator[Piece]:
    """How many NUMA nodes, and the node of each GPU; -1: the firmware does not say."""
    yield "numa", "nodes", len(list((place.sys / "devices" / "system" / "node").glob("node[0-9]*")))
    files = {gpu: place.sys / "bus" / "pci" / "devices" / gpu / "numa_node" for gpu in _gpus(place)}
    told = {gpu.bus_id: _line(files[_in_sysfs(gpu.bus_id)]) for gpu in nvml.kernel_gpus(place.proc)}
    yield "numa", "of_gpu", {bus_id: int(text) for bus_id, text in told.items() if text.lstrip("-").isdigit()}


def read_network(place: Place) -> Iterator[Piece]:
    """Interfaces with their addresses, InfiniBand devices, the host's name and what it resolves to."""
    yield "network", "hcas", sorted(folder.name for folder in (place.sys / "class" / "infiniband").glob("*"))
    yield "network", "hostname", socket.gethostname()
    interfaces = {
        one["ifname"]: {
            "addresses": [address["local"] for address in one.get("addr_info", ()) if "local" in address],
            "up": "UP" in one.get("flags", ()),
        }
        for one in json.loads(_command("ip", "-json", "address", "show"))
        if one
    }
    yield "network", "interfaces", interfaces
    addresses: list[str] = []
    with contextlib.suppress(OSError):  # a name that resolves to nothing
        addresses = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)})
    yield "network", "hostname_addresses", addresses


NCCL_FILES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")
"""Variables that name a file which has to be there."""


def read_nccl(releases: Iterable[Mapping[str, Any]], user: str, place: Place) -> Iterator[Piece]:
    """The files of variables that NCCL would read in these servers, and whether it could read others that they name.

    A file of variables that is not there is not in the list.
    """
    named = [Path(release["env"]["NCCL_CONF_FILE"]) for release in releases if "NCCL_CONF_FILE" in release["env"]]
    files = [place.etc / "nccl.conf", place.home / ".nccl.conf", *named]
    texts = {str(file): host.read_foreign(file) for file in files if file.is_absolute()}
    yield "nccl", "conf_files", {path: text for path, text in texts.items() if text is not None}
    others = {release["env"][name] for release in releases for name in NCCL_FILES if name in release["env"]}
    yield "nccl", "files", {path: host.can_read(user, Path(path)) for path in sorted(others) if path.startswith("/")}


def read_space(place: Place) -> Iterator[Piece]:
    """Room in /dev/shm and where servers write, and how much memory systemd may let a server lock."""
    yield "space", "disk", {str(path): _free_mib(path)[1] for path in PLACES}
    total, free = _free_mib(place.shm)
    yield "space", "shm", {"total_mib": total, "free_mib": free}
    hard = limits(host.read_text(place.proc / "1" / "limits") or "").get("Max locked memory", ("", ""))[1]
    status = host.read_text(place.proc / "1" / "status") or ""
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    # The first user namespace maps every id to itself; in another one nobody may raise a limit.
    first = (host.read_text(place.proc / "1" / "uid_map") or "").split() == ["0", "0", "4294967295"]
    yield "space", "memlock", {"hard": hard, "can_raise": first and bool(int(mask, 16) & CAP_SYS_RESOURCE)}


def read_ports(releases: Iterable[Mapping[str, Any]], place: Place) -> Iterator[Piece]:
    """Who listens on the ports that servers derive from theirs, but for the server that is to be replaced itself.

    ``planned``: the ports that each of these releases is going to take, with what for.
    """
    planned = {
        release["service"]: {
            release["port"]: "its own port",
            **ENGINES[release["engine"]].derived_ports(release),
        }
        for release in releases
    }
    yield (
        "planned",
        "ports",
        {service: {str(port): what for port, what in ports.items()} for service, ports in planned.items()},
    )
    derived = {
        port: service for service, ports in planned.items() for port, what in ports.items() if what != "its own port"
    }
    table = Table(place.proc)
    listening = table.listening(list(derived))
    holds, _ = table.users_of(list(listening)) if listening else ({}, {})
    told = {str(port): "a process that does not show" for port in listening.values()}
    for pid, inodes in holds.items():
        owner = owner_of(table.details(pid).cgroup)
        for port in (listening[inode] for inode in inodes):
            who = f"{names(table.processes, pid)} of {owner.name}" if owner.name else names(table.processes, pid)
            told[str(port)] = "" if owner.name == systemd.unit_name(derived[port]) else who
    yield from (("ports", number, who) for number, who in told.items() if who)


def read_as_user(releases: Sequence[Mapping[str, Any]], user: str, place: Place) -> Iterator[Piece]:
    """What only the service user can tell: the tools that it finds, the folders that it may write, the GPUs it may use.

    It is called in a child, which becomes that user for good; nobody stands in where it is not there yet.
    """
    nodes = sorted([*place.dev.glob("nvidia[0-9]*"), *place.dev.glob("nvidiactl"), *place.dev.glob("nvidia-uvm")])
    built = {release["service"]: Path(release["environment"]).is_dir() for release in releases}
    exists = _become(user)
    yield "user", "name", user
    yield "user", "exists", exists
    yield "user", "denied_devices", [str(node) for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    folders = {Path(release["env"][name]) for release in releases for name in CACHE_VARIABLES if name in release["env"]}
    if exists:
        yield "space", "caches", {str(path): writable for path, writable in _caches(folders, place.home)}
    for release in releases:
        path = unit_path(release)
        toolkits = [release["env"][name] for name in ("CUDA_HOME", "CUDA_PATH") if release["env"].get(name)]
        searched = {"nvcc": os.pathsep.join([*(f"{toolkit}/bin" for toolkit in toolkits), path])}
        tools = {tool: shutil.which(tool, path=searched.get(tool, path)) or "" for tool in TOOLS}
        yield "build", release["service"], {
            "path": path, "tools": tools, "environment": built[release["service"]]
        }  # fmt: skip


def _become(user: str) -> bool:
    """Become the user, or nobody where there is none; whether there is one. Raises PermissionError without root."""
    try:
        entry, exists = pwd.getpwnam(user), True
    except KeyError:
        entry, exists = pwd.getpwnam("nobody"), False
    if os.geteuid() != entry.pw_uid:
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    return exists


def _caches(folders: Iterable[Path], home: Path) -> Iterator[tuple[Path, bool]]:
    """The folders to which a server writes, and whether this process may.

    Of what lies in HOME only what may not be written: systemd gives HOME itself to the user at each start, and all in
    it where it was another's.
    """
    for folder in sorted(folders):
        there = next((place for place in (folder, *folder.parents) if os.access(place, os.F_OK)), folder)
        yield folder, os.access(there, os.W_OK | os.X_OK)
    with contextlib.suppress(OSError):
        if home.stat().st_uid == os.geteuid():
            yield from ((inside, False) for inside in _inside(home) if not os.access(inside, os.W_OK | os.X_OK))


def _inside(home: Path) -> list[Path]:
    found: list[Path] = []
    level = [home]
    for _ in range(CACHE_DEPTH):
        below: list[Path] = []
        for folder in level:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                below += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        level = below[: CACHE_FOLDERS - len(found)]
        found += level
    return found


def _gpus(place: Place) -> list[str]:
    """The GPUs that the kernel's driver knows, as /sys names them."""
    return [_in_sysfs(gpu.bus_id) for gpu in nvml.kernel_gpus(place.proc)]


def _in_sysfs(bus_id: str) -> str:
    """``0000:0a:00.0`` for NVML's ``00000000:0A:00.0``; a domain of more than four digits is written as it is."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain.lstrip('0'):0>4}:{rest}"


def _line(file: Path) -> str:
    """A file's only line; empty where it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _free_mib(path: Path) -> tuple[int, int]:
    """Size, and what is free, of the file system that a path is on or will be on."""
    found = os.statvfs(next(place for place in (path, *path.parents) if place.is_dir()))
    return found.f_blocks * found.f_frsize >> 20, found.f_bavail * found.f_frsize >> 20


def _command(*argv: str) -> str:
    try:
        done = host.run(list(argv), COMMAND_S)
    except FileNotFoundError:
        raise FileNotFoundError(f"{argv[0]} is not installed") from None
    if done.rc:
        raise RuntimeError(done.err.strip() or f"{argv[0]} ended with status {done.rc}")
    return done.out
