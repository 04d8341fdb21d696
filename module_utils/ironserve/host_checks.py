"""Checks of a host against a release that is to run on it, by the facts of ``host_facts.py``. Pure; on the controller.

What the facts do not tell is judged by nobody: no check takes silence for a fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from . import kernel, lease, pci, ranks, topology
from .engines import ENGINES
from .findings import Case, Check, Found
from .gpus import explain_failure
from .nccl_values import OLD_LEVELS

LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""The least driver for a CUDA major, https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
A forward compatibility package can do with less on data centre GPUs; a lock brings none."""

CUDA_PACKAGES = {"nvidia-cuda-runtime-cu13": 13, "nvidia-cuda-runtime-cu12": 12,
                 "nvidia-nccl-cu13": 13, "nvidia-nccl-cu12": 12}  # fmt: skip
"""Packages that tell the CUDA major of a lock by their name; there are others of another major beside them."""

RESETS = {"gpu_reset", "reboot", "drain_and_reset", "bus_reset", "system_reboot", "recover_imex_domain"}
"""Recovery actions without which no new program may use the GPU."""

JIT_PACKAGE, AHEAD_OF_TIME = "flashinfer-python", "flashinfer-jit-cache"
BACKEND_FLAGS = ("attention-backend", "prefill-attention-backend", "decode-attention-backend", "moe-runner-backend",
                 "sampling-backend", "mm-attention-backend")  # fmt: skip
BACKEND_VARIABLES = ("VLLM_ATTENTION_BACKEND",)

BUFFER_BYTES, CHANNELS = 4 << 20, 16
"""NCCL's default buffer of a channel (NCCL_BUFFSIZE), and a usual number of channels between the GPUs of a host."""

CACHE_MIB, LOG_MIB = 4096, 1024
"""With less free than this a person should look: compiled kernels are hundreds of files, and a log grows for months."""

STRICT = "strict"


class Members(NamedTuple):
    """The GPUs that the release is going to use, as far as the driver tells of them."""

    gpus: Sequence[Mapping[str, Any]]
    links: Sequence[str]
    """The way between each two of them; empty where it is not known."""

    @property
    def buses(self) -> list[str]:
        """Where they are on the PCI bus."""
        return [str(gpu["bus_id"]) for gpu in self.gpus]


def members(case: Case) -> Members:
    """The GPUs that the release names, or else all of the host."""
    told = case.facts.get("gpus", {}).get("gpus", [])
    chosen = case.gpus
    counted = [gpu["index"] for gpu in told if gpu["index"] >= 0]
    rows = [place for place, index in enumerate(counted) if any(gpu["index"] == index for gpu in chosen)]
    table = case.facts.get("gpus", {}).get("topology", [])
    return Members(chosen, topology.links(table, rows) if len(rows) == len(chosen) else [])


def wants_gpus(case: Case) -> bool:
    """Whether the host is one with GPUs, by its group."""
    return bool(case.hardware.get("gpu_count", 0))


def peers_over_pcie(case: Case) -> bool:
    """Whether GPUs of the release are to work together over PCIe: several ranks, not all joined by NVLink.

    Where nobody tells how GPUs are joined they may be by NVLink, and nothing is said of PCIe.
    """
    return topology.over_pcie(members(case).links) and ranks.expected(case.flags, ENGINES[case.engine]) != 1


def p2p_is_off(case: Case) -> bool:
    """Whether the release keeps NCCL from letting GPUs reach each other's memory."""
    return case.env.get("NCCL_P2P_DISABLE") == "1"


def host_of(case: Case) -> str:
    """Where a fact of the host is."""
    return f"host {case.host}"


def title(gpu: Mapping[str, Any]) -> str:
    """A GPU for a message."""
    number = f"GPU {gpu['index']}" if gpu["index"] >= 0 else "a GPU that the driver counts no more"
    return f"{number} ({gpu['uuid'] or gpu['bus_id']})"


def check_driver(case: Case) -> Iterator[Found]:
    """There is a driver, it answers, and it is new enough for the engine's CUDA."""
    facts = case.facts.get("gpus", {})
    failure, driver = facts.get("failure", ""), facts.get("driver_version", "")
    if not wants_gpus(case):
        return
    if failure:
        rule = "host-driver-missing" if failure == "absent" else "host-driver-unusable"
        told = explain_failure(failure, facts.get("timeout_s", 30.0), "ironserve_cleanup.driver_timeout_s")
        yield Found(rule, host_of(case), "driver", told)
    major, package = cuda_of(case.packages)
    least = LEAST_DRIVER.get(major, 0)
    version = driver.partition(".")[0]
    if least and version.isdigit() and int(version) < least:
        lock = case.release["lock"].get("name", "")
        text = f"{driver}, and lock {lock} is built for CUDA {major} ({package}), which needs {least} or newer"
        yield Found("host-driver-old", host_of(case), "driver", text)


def cuda_of(packages: Mapping[str, str]) -> tuple[int, str]:
    """The CUDA major that a lock's packages are built for, and the package that says so; 0 where none does."""
    runtime = packages.get("nvidia-cuda-runtime", "")
    if runtime.partition(".")[0].isdigit():
        return int(runtime.partition(".")[0]), f"nvidia-cuda-runtime {runtime}"
    for name, major in CUDA_PACKAGES.items():
        if name in packages:
            return major, name
    local = re.search(r"\+cu(\d\d)\d$", packages.get("torch", ""))
    return (int(local[1]), f"torch {packages['torch']}") if local else (0, "")


def check_declared(case: Case) -> Iterator[Found]:
    """The GPUs are those that the inventory says: how many, which, of what family, joined how."""
    facts = case.facts.get("gpus", {})
    if not wants_gpus(case) or facts.get("failure", "absent"):
        return
    told, where = facts.get("gpus", []), host_of(case)
    there = [gpu for gpu in told if gpu.get("error") != "lost"]
    declared = int(case.hardware["gpu_count"])
    if len(there) != declared:
        fewer = len(there) < declared and not case.release.get("gpus")
        text = f"the driver knows {len(there)}, and ironserve_hardware.gpu_count says {declared}"
        yield Found("host-gpu-count", where, "GPUs", text, "" if fewer else "warning")
    known = {gpu["uuid"] for gpu in told}
    for uuid in case.release.get("gpus") or ():
        if uuid not in known and not uuid.startswith("MIG-"):
            text = f"service {case.release['service']} names {uuid}, which the driver does not know"
            yield Found("host-gpu-unknown", where, "GPUs", text)
    families = sorted({gpu["family"] for gpu in members(case).gpus if gpu.get("family")})
    meant = str(case.hardware.get("gpu_family", ""))
    if families and meant and families != [meant]:
        text = f"{', '.join(families)}, and ironserve_hardware.gpu_family says {meant}"
        yield Found("host-gpu-family", where, "GPUs", text)
    found, wanted = topology.interconnect(members(case).links), case.hardware.get("interconnect", "")
    if found and wanted and found != wanted:
        text = f"{found} ({kinds_of_links(case)}), and ironserve_hardware.interconnect says {wanted}"
        yield Found("host-interconnect", where, "topology", text)


def kinds_of_links(case: Case) -> str:
    """The kinds of links between the release's GPUs, as nvidia-smi topo writes them."""
    return ", ".join(sorted(set(members(case).links)))


def check_gpus(case: Case) -> Iterator[Found]:
    """Each GPU of the release is there and sound."""
    where = host_of(case)
    for gpu in members(case).gpus:
        action = str(gpu.get("recovery_action", "none"))
        rows, ecc = gpu.get("remapped_rows") or {}, gpu.get("ecc") or {}
        if gpu.get("error") in ("lost", "reset_required"):
            what = "no longer answers the driver" if gpu["error"] == "lost" else "needs a reset"
            yield Found("host-gpu-unusable", where, title(gpu), what)
        if action != "none":
            text = f"the driver asks for {action.replace('_', ' ')}"
            yield Found("host-gpu-recovery", where, title(gpu), text, "" if action in RESETS else "warning")
        if rows.get("failure"):
            yield Found("host-gpu-row-failure", where, title(gpu), "a bad row of its memory could not be replaced")
        if rows.get("pending"):
            yield Found("host-gpu-row-pending", where, title(gpu), "a bad row of its memory waits to be replaced")
        if gpu.get("retired_pages_pending"):
            yield Found("host-gpu-row-pending", where, title(gpu), "bad pages of its memory wait to be retired")
        if ecc.get("uncorrected_volatile"):
            text = f"{ecc['uncorrected_volatile']} memory errors since the driver was loaded that ECC could not mend"
            yield Found("host-gpu-ecc", where, title(gpu), text)
        if gpu.get("persistence_mode") is False:
            yield Found("host-gpu-persistence", where, title(gpu), "persistence mode is off")


def check_links(case: Case) -> Iterator[Found]:
    """The PCIe link of each GPU is as wide as can be, as fast as its neighbours', and lets others reach its memory."""
    where, chosen = host_of(case), members(case).gpus
    best = {str(gpu.get("name")): 0 for gpu in chosen}
    for gpu in chosen:
        name = str(gpu.get("name"))
        best[name] = max(best[name], (gpu.get("pcie") or {}).get("max_generation") or 0)
    for gpu in chosen:
        link = gpu.get("pcie") or {}
        width, most, generation = link.get("width"), link.get("max_width"), link.get("max_generation")
        if width and most and width < most:
            yield Found("host-pcie-width", where, title(gpu), f"its PCIe link has {width} of {most} lanes")
        if generation and generation < best[str(gpu.get("name"))]:
            text = f"its slot does PCIe generation {generation}, another one's {best[str(gpu.get('name'))]}"
            yield Found("host-pcie-generation", where, title(gpu), text)
        bar, total = gpu.get("bar1_total_mib"), gpu.get("memory_total_mib")
        if bar and total and bar < total and peers_over_pcie(case):
            text = f"others reach {bar:,} of its {total:,} MiB (BAR1)"
            yield Found("host-bar1", where, title(gpu), text)


def check_xids(case: Case) -> Iterator[Found]:
    """What the driver reported of these GPUs since the boot, where it outlives the program that met it.

    Where the driver itself tells what a GPU needs after such an Xid, and says that it needs nothing, it may have been
    reset since: that is for a person to know, and nothing to stop for.
    """
    by_bus = {gpu["bus_id"]: gpu for gpu in members(case).gpus}
    major = str(case.facts.get("gpus", {}).get("driver_version", "")).partition(".")[0]
    for xid in case.facts.get("kernel", {}).get("xid", []):
        known, gpu = kernel.XIDS.get(xid["code"]), by_bus.get(xid["bus_id"])
        if known is None or gpu is None:
            continue
        told = major.isdigit() and 0 < known.told_since <= int(major)
        settled = told and gpu.get("recovery_action") == "none" and not gpu.get("error")
        at = f" at {xid['at']}" if xid["at"] else ""
        text = f"Xid {xid['code']}{at}, {known.meaning}: {xid['text']}"
        if settled and known.severity == "error":
            text += "; the driver asks for nothing now"
        yield Found("host-xid", host_of(case), title(gpu), text, "warning" if settled else known.severity)


def check_p2p(case: Case) -> Iterator[Found]:
    """Where GPUs may reach each other over PCIe, nothing on the way sends that up to the CPU and the IOMMU."""
    if not peers_over_pcie(case):
        return
    where, off = host_of(case), p2p_is_off(case)
    facts = case.facts.get("kernel", {})
    translating = facts.get("iommu", {}).get("translating")
    bridges, direct = redirecting(case), may_use_p2p(case)
    if bridges:
        shown = ", ".join(f"{bridge['bus_id']} ({bridge['kind'].replace('_', ' ')})" for bridge in bridges)
        text = f"{len(bridges)} bridges between its GPUs redirect what these send each other: {shown}"
        yield Found("host-acs", where, "PCI", text, acs_severity(case, translating, bridges), acs_advice(case, bridges))
    if translating and direct:
        yield Found("host-iommu", where, "IOMMU", "it translates addresses, and these GPUs are to talk over PCIe")
    modules = facts.get("modules", {})
    if modules.get("nvidia_uvm", {}).get("uvm_disable_hmm") in ("N", "0") and not off:
        yield Found("host-hmm", where, "nvidia_uvm", "uvm_disable_hmm is off")
    options = kernel.parse_options(facts.get("cmdline", ""))
    missing = [name for name in ("pcie_aspm", "pcie_port_pm") if facts.get("cmdline") and options.get(name) != "off"]
    if missing and case.family == "sm120":
        text = f"its command line lacks {' and '.join(f'{name}=off' for name in missing)}"
        yield Found("host-pcie-power", where, "kernel", text)


def redirecting(case: Case) -> list[Mapping[str, Any]]:
    """The bridges on the way between GPUs of the release, not joined by NVLink, whose ACS redirects, in bus order."""
    facts, found = case.facts.get("pci", {}), members(case)
    paths, buses = facts.get("paths", {}), found.buses
    pairs = [(one, other) for place, one in enumerate(buses) for other in buses[place + 1 :]]
    on_the_way = {
        bus_id
        for (one, other), link in zip(pairs, found.links)
        if topology.over_pcie([link])
        for bus_id in pci.between(paths.get(one, []), paths.get(other, []))
    }
    return [one for one in facts.get("bridges", []) if one["bus_id"] in on_the_way and pci.redirects(one["acs"])]


LEVEL_OF = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}
"""NCCL's word for the farthest way that each kind of link is; it does not tell NODE from PHB (paths.cc)."""


def may_use_p2p(case: Case) -> bool:
    """Whether NCCL would let GPUs of the release that are not joined by NVLink reach each other's memory.

    By itself it does up to PXB, and between two GPUs at a CPU of AMD's at any distance; NCCL_P2P_LEVEL says otherwise.
    """
    if p2p_is_off(case):
        return False
    found = members(case)
    ways = [LEVEL_OF[link] for link in found.links if link in LEVEL_OF]
    two = len(found.gpus) == 2 and case.facts.get("kernel", {}).get("cpu_vendor", "AuthenticAMD") == "AuthenticAMD"
    level = case.env.get("NCCL_P2P_LEVEL") or ("SYS" if two else "PXB")
    word = OLD_LEVELS[min(int(level), len(OLD_LEVELS) - 1)] if level.isdecimal() else level
    if word not in topology.DISTANCES:
        return word not in ("LOC", "NVL", "NVB", "C2C")  # P2C and PXN are beyond PXB; what is no level NCCL ignores
    return any(topology.DISTANCES.index(way) <= topology.DISTANCES.index(word) for way in ways)


def acs_severity(case: Case, translating: bool | None, bridges: Sequence[Mapping[str, Any]]) -> str:
    """An error where GPUs are to reach each other through these bridges; strict sites want it always.

    With P2P off it is worth knowing; where NCCL goes through host memory, or no IOMMU translates, a person should look.
    Who has switches has them for P2P.
    """
    if case.hardware.get("acs") == STRICT:
        return "error"
    if p2p_is_off(case):
        return "note"
    switched = any(bridge["kind"] == "downstream" for bridge in bridges)
    return "error" if translating is not False and (switched or may_use_p2p(case)) else "warning"


def acs_advice(case: Case, bridges: Sequence[Mapping[str, Any]]) -> str:
    """What to do on this host, with commands to copy."""
    commands = "; ".join(f"setpci -s {bridge['bus_id']} ECAP_ACS+0x6.w=0000" for bridge in bridges[:2])
    more = f", and so for each of the {len(bridges)}" if len(bridges) > 2 else ""
    other = "" if case.hardware.get("acs") == STRICT else "; or set NCCL_P2P_DISABLE=1 in the profile"
    return f"Turn ACS off after every boot ({commands}{more}), or in the BIOS{other}."


def proposed_nccl(facts: Mapping[str, Any], chosen: Members, blocked: bool = False) -> dict[str, Any]:
    """The NCCL variables that a topology suggests: ``variables``, and ``why``. A start for measuring, not its result.

    Args:
        facts: of the host.
        chosen: the GPUs that are to work together.
        blocked: something on the way redirects what they send each other.
    """
    far = topology.farthest(chosen.links)
    if len(chosen.gpus) < 2 or not chosen.links:
        return {"variables": {}, "why": ""}
    if not topology.over_pcie(chosen.links):
        return {"variables": {}, "why": "all GPUs reach each other over NVLink, where NCCL's own choice is the best"}
    if topology.interconnect(chosen.links) == "mixed":
        return {"variables": {}, "why": "some GPUs are joined by NVLink, others not: NCCL knows which"}
    if blocked or facts.get("kernel", {}).get("iommu", {}).get("translating"):
        return {"variables": {"NCCL_P2P_DISABLE": "1"}, "why": "ACS or the IOMMU is in the way between GPUs"}
    if topology.DISTANCES.index(far) <= topology.DISTANCES.index("PXB"):
        return {"variables": {}, "why": "all GPUs are behind PCIe switches, where NCCL lets them reach each other"}
    if facts.get("kernel", {}).get("cpu_vendor") == "AuthenticAMD" and len(chosen.gpus) <= 2:
        return {"variables": {}, "why": "two GPUs at a CPU of AMD's, where NCCL lets them reach each other"}
    level = "SYS" if far == "SYS" else "PHB"
    why = f"no NVLink, and GPUs as far apart as {far}: without it NCCL lets them talk through host memory beyond PXB"
    return {"variables": {"NCCL_P2P_LEVEL": level}, "why": why}


WAYS = {
    "nvlink": "all over NVLink", "mixed": "some over NVLink, others over PCIe",
    "switch": "over PCIe, some behind one switch", "direct": "over PCIe, each at the CPU",
}  # fmt: skip


def check_topology(case: Case) -> Iterator[Found]:
    """What lies between the GPUs of the release, for whoever reads a preflight."""
    found, nodes = members(case), case.facts.get("numa", {}).get("of_gpu", {})
    way = WAYS.get(topology.interconnect(found.links), "")
    if way:
        named = sorted({nodes[bus] for bus in found.buses if nodes.get(bus, -1) >= 0})
        numa = f", on NUMA node{'s' if len(named) > 1 else ''} {', '.join(map(str, named))}" if named else ""
        text = f"{len(found.gpus)} GPUs reach each other {way} ({', '.join(sorted(set(found.links)))}){numa}"
        yield Found("host-topology", host_of(case), "topology", text)


def check_nccl(case: Case) -> Iterator[Found]:
    """How the release's variables differ from what the topology suggests."""
    if not peers_over_pcie(case):
        return
    proposed = proposed_nccl(case.facts, members(case), bool(redirecting(case)))
    decides = ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE")
    differing = {name: value for name, value in proposed["variables"].items() if case.env.get(name) != value}
    if differing and not p2p_is_off(case):
        has = ", ".join(f"{name}={case.env[name]}" for name in decides if name in case.env) or "neither"
        wish = ", ".join(f"{name}={value}" for name, value in differing.items())
        text = f"{proposed['why']}: {wish} may be worth a measurement; the release has {has}"
        yield Found("host-nccl-proposal", host_of(case), "topology", text)


def check_build(case: Case) -> Iterator[Found]:
    """The tools with which an engine compiles kernels are on the unit's PATH, for the service user."""
    built = case.facts.get("build", {}).get(case.release["service"])
    if not built or not wants_gpus(case):
        return
    tools, where = built["tools"], host_of(case)
    looked = f"is not on the unit's PATH ({built['path']}) for user {case.facts.get('user', {}).get('name', '')}"
    backend, compiles = jit_backend(case), JIT_PACKAGE in case.packages and AHEAD_OF_TIME not in case.packages
    with_it = (
        f"and {backend} compiles kernels with it"
        if backend
        else "and FlashInfer compiles with it where the engine chooses it"
    )
    will_come = not built["environment"] and "ninja" in case.packages and built["path"].startswith(
        f"{case.release['environment']}/bin"
    )  # fmt: skip
    if compiles and not tools["ninja"] and not will_come:
        yield Found("host-build-ninja", where, "ninja", f"{looked}, {with_it}", "" if backend else "warning")
    if compiles and not tools["nvcc"]:
        yield Found("host-build-nvcc", where, "nvcc", f"{looked}, {with_it}")
    if not (tools["gcc"] or tools["clang"] or case.env.get("CC")) and "triton" in case.packages:
        yield Found("host-build-cc", where, "gcc", f"{looked}, nor is clang, and Triton compiles its launchers with it")


def jit_backend(case: Case) -> str:
    """The setting by which the release itself asks for FlashInfer; empty where it leaves that to the engine."""
    told = {f"--{name} {case.flags[name]}": str(case.flags[name]) for name in BACKEND_FLAGS if name in case.flags}
    told.update({f"{name}={case.env[name]}": case.env[name] for name in BACKEND_VARIABLES if name in case.env})
    return next((setting for setting, value in told.items() if value.lower().startswith("flashinfer")), "")


def check_space(case: Case) -> Iterator[Found]:
    """There is room for what ranks share and for what servers write, and the unit can have the limits it asks for."""
    facts, where = case.facts.get("space", {}), host_of(case)
    count = ranks.expected(case.flags, ENGINES[case.engine])
    buffer, channels = (number(case.env.get(name), otherwise) for name, otherwise in
                        (("NCCL_BUFFSIZE", BUFFER_BYTES), ("NCCL_MAX_NCHANNELS", CHANNELS)))  # fmt: skip
    needed = count * channels * buffer >> 20
    # All of it, not what is free: the server that runs has its own share until it stops, and cleanups remove leftovers.
    total = facts.get("shm", {}).get("total_mib")
    if total is not None and count > 1 and wants_gpus(case) and total < needed:
        text = (
            f"{total:,} MiB in all; {count} ranks with {channels} channels of {buffer >> 20} MiB may share {needed:,}"
        )
        yield Found("host-shm", where, "shared memory", text)
    for path, least in (("/var/cache/ironserve", CACHE_MIB), ("/var/log/ironserve", LOG_MIB)):
        left = facts.get("disk", {}).get(path)
        if left is not None and left < least and wants_gpus(case):
            yield Found("host-disk", where, path, f"{left:,} MiB free")
    for path, writable in facts.get("caches", {}).items():
        if not writable:
            user = case.facts.get("user", {}).get("name", "")
            yield Found("host-cache", where, path, f"user {user} may not write there")
    memlock, wanted = facts.get("memlock", {}), str(case.release["limits"]["memlock"])
    hard = memlock.get("hard", "")
    if hard.isdigit() and not memlock.get("can_raise") and (wanted == "infinity" or int(hard) < int(wanted)):
        text = f"systemd may let a process lock {hard} bytes, and the release asks for {wanted}"
        yield Found("host-memlock", where, "limits.memlock", text)


def number(text: str | None, otherwise: int) -> int:
    """A variable as a positive number; what is none is judged elsewhere."""
    return int(text) if text and text.isdigit() and int(text) else otherwise


def check_user(case: Case) -> Iterator[Found]:
    """The service user may use the devices of the release's GPUs."""
    user = case.facts.get("user", {})
    others = {f"nvidia{gpu['minor']}" for gpu in case.facts.get("gpus", {}).get("gpus", ())}
    others -= {f"nvidia{gpu['minor']}" for gpu in members(case).gpus}
    denied = [node for node in user.get("denied_devices", []) if node.rpartition("/")[2] not in others]
    if denied and wants_gpus(case):
        text = f"user {user['name']} may not use {', '.join(denied)}"
        yield Found("host-device", host_of(case), "devices", text)


def check_ports(case: Case) -> Iterator[Found]:
    """The ports that the server takes beside its own are free, and no other service of the host is to take them."""
    planned = case.facts.get("planned", {}).get("ports", {})
    mine, where = planned.get(case.release["service"], {}), host_of(case)
    own = str(case.release["port"])
    for port, who in case.facts.get("ports", {}).items():
        if port in mine and port != own:
            yield Found("host-port", where, f"port {port}", f"held by {who}; the server takes it for {mine[port]}")
    for service, ports in planned.items():
        for port in ports if service != case.release["service"] else ():
            if port in mine and (port != own or ports[port] != mine[port]):
                text = f"service {service} takes it, too ({ports[port]}); this one for {mine[port]}"
                yield Found("host-port", where, f"port {port}", text)


def check_unread(case: Case) -> Iterator[Found]:
    """Parts of the host that nobody could look at, and so nobody judged."""
    for part, told in case.facts.items():
        if isinstance(told, Mapping) and isinstance(told.get("error"), str):
            yield Found("host-unread", host_of(case), part, told["error"])


def check_lease(case: Case) -> Iterator[Found]:
    """Nobody else changes the host at the moment, and it is not in maintenance."""
    held = case.facts.get("lease")
    if held:
        yield Found("host-leased", host_of(case), "lease", lease.told(held), do=lease.way_out(held))


CHECKS: tuple[Check, ...] = (
    check_lease, check_driver, check_declared, check_gpus, check_links, check_xids, check_p2p, check_topology,
    check_nccl, check_build, check_space, check_user, check_ports, check_unread,
)  # fmt: skip


def check(case: Case) -> Iterable[Found]:
    """All that these checks find."""
    for one in CHECKS:
        yield from one(case)
