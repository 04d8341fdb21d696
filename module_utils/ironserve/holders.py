"""Who holds the port or the GPUs of a service: whom it belongs to, and whether and how that can be taken over.

All of it is pure: :mod:`processes` looks, :mod:`takeover` acts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .lineage import Lineage
from .processes import Details, Process, Table, age_s, user_name
from .slices import duration
from .systemd import unit_name

COMMAND_SHOWN = 160

# Of the driver, of monitors and of the desktop. They use a GPU beside any engine, and killing some of them freezes it
# (dcgm-exporter#84). Told by the name of the executable, never by free text.
PROTECTED = {
    "nvidia-persistenced", "nvidia-fabricmanager", "nv-fabricmanager", "nvidia-imex", "nvidia-powerd", "nvidia-smi",
    "nv-hostengine", "dcgm-exporter", "dcgmi", "gpud", "nvtop", "nvitop", "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server", "nvidia-container-runtime", "nvidia-container-cli", "nvidia-container-toolkit",
    "nvidia-ctk", "nvidia-cdi-hook", "nvidia-device-plugin", "node_exporter", "prometheus-node-exporter",
    "nvidia_gpu_exporter", "telegraf", "netdata", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "sddm",
}  # fmt: skip

# They run what somebody else told them to: what is in their control group is not theirs, and stopping them stops much
# else. (Without logind, what was started through ssh is in ssh.service.)
CARRIERS = re.compile(
    r"^(sshd?(@.*)?|crond?|cronie|atd|anacron|supervisord?|(serial-|console-)?getty(@.*)?|"
    r"lightdm|gdm3?|sddm|slurmd)\.(service|socket)$"
)
# Their children are programs of their own, each with a life of its own.
SUPERVISORS = re.compile(
    r"^(supervisord|circusd|runsv(dir)?|s6-.*|monit|pm2.*|slurmstepd|systemd|cron|crond|atd|sshd)$"
)
# Never stopped: the host or many others need them.
ESSENTIAL = re.compile(
    r"^((sshd?(@.*)?|docker|containerd|crio|cri-docker|kubelet|k3s.*|rke2.*|podman|dbus(-broker)?|polkit|"
    r"NetworkManager|networking|systemd-.*|user@.*|nvidia-.*)\.(service|socket)|init\.scope)$"
)

SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "ash", "tcsh", "csh"}
HELPERS = {"tee", "cat", "ts", "sed", "awk", "grep", "logger", "rotatelogs", "multilog", "sleep"}
MULTIPLEXERS = re.compile(r"^(tmux(: server)?|screen|SCREEN|zellij|byobu.*)$")

_CONTAINER = re.compile(r"^(docker|libpod|nerdctl)-(?:conmon-)?([0-9a-f]{64})(?:\.scope)?$")
_MACHINE = re.compile(r"^(machine-.*\.scope|lxc\.payload\..*|lxc|nomad(\.slice)?|htcondor|libvirt|garden)$")
"""Control groups of what runs others' work: nspawn, libvirt, LXC, Nomad, HTCondor."""
_KUBERNETES = re.compile(r"kubepods|^(cri-containerd|crio)-")
_POD = re.compile(r"\bpod([0-9a-f]{8}[0-9a-f_-]*)")
_ID = re.compile(r"^[0-9a-f]{64}$")
_UNIT = re.compile(r"^[\w:.\\@-]+\.(service|scope|socket|mount)$")
_USER_MANAGER = re.compile(r"^user@(\d+)\.service$")
_SLURM = re.compile(r"^job_(\d+)$")
_SECRET = re.compile(
    r"(?i)([\w-]*(?:api[-_]?key|access[-_]?key|token|secret|passw(?:or)?d|bearer)[\"']?"
    r"(?:\s*[=:]\s*|\s+)[\"']?)(?!-)([^\s\"',}]+)"
)
_CREDENTIALS = re.compile(r"(://[^/\s:@]*:)[^@/\s]+@")
_KEYS = re.compile(r"\b(sk|hf)[-_][A-Za-z0-9_-]{6,}")


class Owner(NamedTuple):
    """Whom a process belongs to.

    ``kind`` is ``unit``, ``user_unit`` (a unit of a user's own systemd), ``container``, ``process`` (nohup, tmux, a
    shell; ``name`` is then the scope or service in which it runs, where there is one), ``service`` (another one of
    Ironserve's), ``kubernetes``, ``slurm``, ``machine`` (a virtual machine, or what runs others' work and is not known
    closer) or ``driver``.
    """

    kind: str
    name: str = ""
    uid: int = 0
    engine: str = ""
    """Of a container: docker, podman or nerdctl."""


@dataclass(frozen=True)
class Holder:
    """A process that holds a port or GPUs that a service is to have."""

    process: Process
    details: Details
    owner: Owner
    top: Process
    """The process to end: the outermost that exists only for this one, such as the shell that runs its script."""
    ports: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    where: str = ""
    """How a bare process was started, in words: ``in tmux (pid 12)``, ``with nohup``."""
    label: str = ""
    """Name of a container, where its engine told it."""
    starter: Owner | None = None
    """The unit that runs a container in the foreground and would start it again."""
    refusal: str = ""
    """Why it cannot be taken over; what else to do."""
    leftover: bool = False
    """An engine left it behind on GPUs: the clean step of a deploy ends it, and it stands in nobody's way."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for all processes that are stopped together."""
        return (self.owner, self.top.pid if self.owner.kind in ("process", "driver") else 0)


@dataclass
class Group:
    """The holders that belong together: one thing to stop."""

    holders: list[Holder] = field(default_factory=list)

    @property
    def first(self) -> Holder:
        """The one that names the group: the oldest."""
        return min(self.holders, key=lambda holder: (holder.process.start_ticks, holder.process.pid))

    @property
    def held(self) -> str:
        """``port 8000 and GPU GPU-81e5…``."""
        numbers = sorted({port for holder in self.holders for port in holder.ports})
        gpus = sorted({gpu for holder in self.holders for gpu in holder.gpus})
        parts = [f"port {number}" for number in numbers]
        if gpus:
            parts.append(f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(gpus)}")
        return " and ".join(parts)


def mask(line: str) -> str:
    """A command without what looks like a secret in it."""
    line = _CREDENTIALS.sub(r"\1***@", _SECRET.sub(r"\1***", line))
    return _KEYS.sub(r"\1-***", line)


def masked(argv: Sequence[str]) -> list[str]:
    """The words of a command without what looks like a secret in them."""
    words = [mask(word) for word in argv]
    for number, (name, value) in enumerate(zip(argv, argv[1:])):
        if mask(f"{name} {value}") == f"{name} ***":
            words[number + 1] = "***"
    return words


def shown(argv: Sequence[str]) -> str:
    """A command for a message: one line, shortened, without secrets."""
    line = mask(" ".join(" ".join(argv).split()))
    return line if len(line) <= COMMAND_SHOWN else line[: COMMAND_SHOWN - 1] + "…"


def cgroup_paths(text: str) -> list[str]:
    """The control groups that say whom a process belongs to, from /proc/PID/cgroup: systemd's own (v2 or v1) first."""
    found = []
    for line in text.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        rank = 0 if controllers == "name=systemd" else 1 if number == "0" else 2
        if path.strip("/"):
            found.append((rank, path))
    return [path for _, path in sorted(found, key=lambda entry: entry[0])]


def owner_of(cgroup: str, own: str = "") -> Owner:
    """The owner of a process, from the text of /proc/PID/cgroup (v1 and v2).

    Args:
        cgroup: that text.
        own: the same of the process that asks. In the machine in which it runs itself nothing belongs to that machine.
    """
    owner = _owner_of(cgroup)
    return Owner("process") if owner.kind == "machine" and own and owner == _owner_of(own) else owner


def _owner_of(cgroup: str) -> Owner:
    owners = [_owner_of_path(path) for path in cgroup_paths(cgroup)]
    # With v1 a container of cgroupfs shows in the controllers only, not in systemd's own hierarchy.
    special = [owner for owner in owners if owner.kind in ("container", "kubernetes", "slurm", "machine")]
    return (special or owners or [Owner("process")])[0]


def _owner_of_path(path: str) -> Owner:
    parts = [part for part in path.split("/") if part and part != ".."]
    if any(_KUBERNETES.search(part) for part in parts):
        pod = _POD.search(path)
        return Owner("kubernetes", pod[1].replace("_", "-") if pod else "")
    uid = next((int(found[1]) for found in map(_USER_MANAGER.match, parts) if found), 0)
    for index, part in enumerate(parts):
        container = _CONTAINER.match(part)
        if container:
            return Owner("container", container[2], uid, container[1].replace("libpod", "podman"))
        # The driver cgroupfs of docker: /docker/ID, or below the control group of dockerd.
        if _ID.match(part) and index and parts[index - 1] in ("docker", "libpod_parent", "podman"):
            return Owner("container", part, uid, "docker" if parts[index - 1] == "docker" else "podman")
        if _MACHINE.match(part) or _ID.match(part):  # an id in a group of another engine: containerd's, say
            return Owner("machine", part)
        job = _SLURM.match(part)
        if job and any("slurm" in earlier for earlier in parts[:index]):
            return Owner("slurm", job[1])
    # As systemd reads it: slices, then the unit; what lies below the unit is the unit's own affair.
    rest = [part for part in parts if not part.endswith(".slice")]
    if not rest or not _UNIT.match(rest[0]):
        return Owner("process")
    unit = rest[0]
    if _USER_MANAGER.match(unit):
        if len(rest) < 2 or not _UNIT.match(rest[1]):
            return Owner("process", unit, uid)
        return Owner("user_unit" if rest[1].endswith(".service") else "process", rest[1], uid)
    if unit.startswith("ironserve-"):
        return Owner("service", unit.replace("ironserve-proof_", "ironserve-"))  # a proof of a service is its own
    if unit == "init.scope" or not (unit.endswith(".scope") or CARRIERS.match(unit)):
        return Owner("unit", unit)
    return Owner("process", unit)


def is_shell(argv: Sequence[str]) -> bool:
    """Whether a command is a shell."""
    return bool(argv) and argv[0].lstrip("-").rsplit("/", 1)[-1] in SHELLS


def is_interactive(argv: Sequence[str]) -> bool:
    """Whether this is a shell at which somebody sits, and not one that runs a script or a command."""
    if not is_shell(argv):
        return False
    words = argv[1:]
    return not any(word == "-c" or re.match(r"^-[a-z]*c$", word) or not word.startswith(("-", "+")) for word in words)


def top_of(table: Table, process: Process) -> Process:
    """The outermost ancestor in the same session that exists only for this process: its script, ``uv run``.

    A script that runs something else beside it is left alone: that may be the engine of another service. Any other
    parent, such as the engine's main process, is the parent of its workers.
    """
    top = process
    cgroup = table.details(process.pid).cgroup
    for parent in table.ancestors(process.pid):
        argv = table.details(parent.pid).argv
        beside = [child for child in table.children(parent.pid) if child.pid != top.pid and child.comm not in HELPERS]
        same = parent.session == process.session and table.details(parent.pid).cgroup == cgroup
        apart = is_interactive(argv) or SUPERVISORS.match(parent.comm) or (is_shell(argv) and beside)
        if not same or apart or parent.pid == 1:
            break
        top = parent
    return top


def how_started(table: Table, process: Process, details: Details, owner: Owner) -> str:
    """Where a bare process comes from, in words."""
    for parent in table.ancestors(process.pid):
        if MULTIPLEXERS.match(parent.comm):
            return f"started in {parent.comm.split(':')[0].lower()} (server pid {parent.pid})"
    words = ["with nohup"] if details.ignores_hangup else []
    if owner.name:
        words.append(f"in {owner.name}")
    return f"started {' '.join(words)}" if words else ""


def protected(settings: Mapping[str, Any]) -> frozenset[str]:
    """Names of executables that are never signalled, with what the site says of them (``ironserve_cleanup``)."""
    return (frozenset(PROTECTED) - set(settings.get("unprotected") or ())) | set(settings.get("protected_extra") or ())


def is_protected(table: Table, process: Process, names: Iterable[str]) -> str:
    """The name by which a process is protected: its executable's, or its own, of which the kernel keeps 15 letters."""
    program = table.program(process.pid)
    return next((name for name in names if name == program or name[:15] == process.comm), "")


def find(
    releases: Sequence[Mapping[str, Any]], table: Table, settings: Mapping[str, Any] | None = None, own: str = ""
) -> tuple[list[Holder], list[str]]:
    """Every foreign process that holds a port or a GPU of these releases, and what could not be told.

    Args:
        releases: what is to have them.
        table: the processes of the host.
        settings: what the site says of cleanups (``ironserve_cleanup``).
        own: see :func:`owner_of`.
    """
    settings = settings or {}
    ports_wanted = {release["port"] for release in releases}
    known, lineage = table.gpus(), Lineage(table, patterns=settings.get("patterns") or ())
    never = protected(settings)
    inodes = table.listening(ports_wanted)
    holds, files = table.users_of(inodes)
    # Whatever called nvmlInit has the devices open; what maps one is about to use it: docs/evidence/gpu-holders.md.
    uses = {pid: found.mapped for pid, found in files.items() if found.mapped}
    doubts = unknown_gpus(releases, known)
    found = []
    for pid in sorted({*holds, *uses}):
        details = table.details(pid)
        owner = owner_of(details.cgroup, own)
        if is_protected(table, table.processes[pid], never):
            owner = Owner("driver", table.processes[pid].comm)
        served, held_ports, held_gpus = [], set(), set()
        for release in releases:
            if owner == Owner("service", unit_name(release["service"])):
                continue
            listened = {inodes[inode] for inode in holds.get(pid, ())} & {release["port"]}
            # Other services of ours have GPUs of their own; drivers and monitors share them with everybody.
            minors = uses.get(pid, frozenset()) if owner.kind not in ("service", "driver") else set()
            wanted = set(release.get("gpus") or ())
            gpus = {known.get(n, f"/dev/nvidia{n}") for n in minors if not wanted or known.get(n) in wanted}
            if listened or gpus:
                served.append(release["service"])
                held_ports |= listened
                held_gpus |= gpus
        if served:
            holder = _holder(
                table, pid, details, owner, tuple(sorted(held_ports)), tuple(sorted(held_gpus)), tuple(served)
            )
            left = owner.kind == "process" and not held_ports and lineage.is_left_behind(holder.process)
            found.append(replace(holder, leftover=left))
    if set(inodes) - {inode for held in holds.values() for inode in held}:
        hidden = sorted({inodes[inode] for inode in set(inodes) - {i for held in holds.values() for i in held}})
        doubts += [f"port {port}: taken by a process that /proc of this host does not show: stop it" for port in hidden]
    return found, doubts


def _holder(
    table: Table,
    pid: int,
    details: Details,
    owner: Owner,
    ports: tuple[int, ...],
    gpus: tuple[str, ...],
    services: tuple[str, ...],
) -> Holder:
    process = table.processes[pid]
    top, where = process, ""
    if owner.kind == "process":
        top, where = top_of(table, process), how_started(table, process, details, owner)
    return Holder(process, details, owner, top, ports, gpus, services, where, refusal=refusal(owner, process.comm))


def unknown_gpus(releases: Sequence[Mapping[str, Any]], known: Mapping[int, str]) -> list[str]:
    """GPUs that a release names and of which nobody can tell who uses them.

    A GPU that nothing opened since boot shows its UUID as question marks: then nobody uses it. The driver does not list
    parts of a GPU (MIG) there.
    """
    idle = any("?" in uuid for uuid in known.values())
    missing = {gpu for release in releases for gpu in release.get("gpus") or () if gpu not in known.values()}
    return [
        f"GPU {gpu}: cannot tell who uses it, since /proc/driver/nvidia/gpus does not list it: "
        "compare ironserve_services with nvidia-smi -L on this host"
        for gpu in sorted(missing)
        if not idle and not gpu.startswith("MIG-")
    ]


def refusal(owner: Owner, comm: str) -> str:
    """Why what holds a port or GPU must not be stopped here, and what else to do; empty when it may be."""
    if owner.kind == "service":
        return f"it is {owner.name} of Ironserve: give one of the two another port, or stop that service"
    if owner.kind == "driver":
        return f"{comm} belongs to the driver or watches it: set ironserve_port to a free port"
    if owner.kind == "kubernetes":
        return "it belongs to Kubernetes, which would start it again: drain the node or delete the pod"
    if owner.kind == "slurm":
        return f"it belongs to a job of Slurm: scancel {owner.name}"
    if owner.kind == "machine":
        return f"it runs in {owner.name}: stop it where that is managed"
    if owner.kind == "process" and SUPERVISORS.match(comm):
        return f"{comm} is needed for more than this: set ironserve_port to a free port, or stop it yourself"
    if owner.kind in ("unit", "user_unit") and ESSENTIAL.match(owner.name):
        return f"{owner.name} is needed for more than this: set ironserve_port to a free port, or stop it yourself"
    return ""


def protect(holders: Iterable[Holder], table: Table, pid: int) -> list[Holder]:
    """The holders, those refused on which our own connection to the host depends."""
    # Not pid 1, everybody's ancestor: it holds ports for its socket units, and init.scope is refused as such.
    mine = {pid, *(process.pid for process in table.ancestors(pid))} - {1}
    ours = owner_of(table.details(pid).cgroup)

    def carries_us(holder: Holder) -> bool:
        return bool(mine & {holder.process.pid, holder.top.pid}) or (ours.kind != "process" and holder.owner == ours)

    said = "this connection to the host runs through it: set ironserve_port to a free port, or stop it yourself"
    return [
        replace(holder, refusal=said) if carries_us(holder) and not holder.refusal else holder for holder in holders
    ]


def grouped(holders: Iterable[Holder]) -> list[Group]:
    """One group for each thing to stop."""
    groups: dict[tuple[Any, ...], Group] = {}
    for holder in holders:
        groups.setdefault(holder.key, Group()).holders.append(holder)
    return list(groups.values())


def owner_text(holder: Holder) -> str:
    """The owner as an operator knows it."""
    owner = holder.owner
    if owner.kind == "container":
        text = f"{owner.engine} container {holder.label or owner.name[:12]}"
        return f"{text}, run by {owner_name(holder.starter)}" if holder.starter else text
    if owner.kind == "process":
        top = "" if holder.top.pid == holder.process.pid else f" under {holder.top.comm} (pid {holder.top.pid})"
        return f"a process{top}{', ' if holder.where and top else ' ' if holder.where else ''}{holder.where}"
    return owner_name(owner)


def owner_name(owner: Owner) -> str:
    """A unit as an operator knows it."""
    if owner.kind == "user_unit":
        return f"unit {owner.name} of user {user_name(owner.uid)}"
    return {
        "kubernetes": "pod",
        "slurm": "Slurm job",
        "driver": "daemon",
        "process": "process",
        "machine": "machine",
    }.get(owner.kind, "unit") + (f" {owner.name}" if owner.name else "")


def by_hand(holder: Holder) -> str:
    """The command with which an operator stops it."""
    owner, name = holder.starter or holder.owner, holder.label or holder.owner.name[:12]
    if owner.kind == "unit":
        return f"systemctl disable --now {owner.name}"
    if owner.kind == "user_unit":
        return f"{as_user(owner.uid)} systemctl --user disable --now {owner.name}"
    if owner.kind == "container":
        engine = f"{as_user(owner.uid)} {owner.engine}" if owner.uid else owner.engine
        return f"{engine} update --restart=no {name} && {engine} stop {name}"
    return f"kill {holder.top.pid}"


def as_user(uid: int) -> str:
    """How root talks to a user's own systemd and containers; ``-M bob@`` would need logind."""
    return f"runuser -u {user_name(uid)} -- env XDG_RUNTIME_DIR=/run/user/{uid}"


def by_takeover(holder: Holder) -> str:
    """What ``takeover=true`` does with it."""
    owner = holder.starter or holder.owner
    if owner.kind in ("unit", "user_unit"):
        return f"stops and disables {owner_name(owner)}"
    if owner.kind == "container":
        return f"stops {owner.engine} container {holder.label or owner.name[:12]} and sets its restart policy to no"
    return f"ends pid {holder.top.pid} and its children"


def described(group: Group, now_ticks: int) -> str:
    """Who it is: ``unit my-vllm.service (pid 77, user bob, for 3h12m): "python3 -m vllm …"``."""
    first = group.first
    others = f" and {len(group.holders) - 1} more" if len(group.holders) > 1 else ""
    since = duration(age_s(first.process.start_ticks, now_ticks))
    return (
        f"{owner_text(first)} (pid {first.process.pid}{others}, user {first.details.user}, for {since}): "
        f'"{shown(first.details.argv)}"'
    )


def problem(group: Group, takeover: bool, now_ticks: int, advice: str = "") -> str:
    """What stands in the way and what to do about it; empty when taking over does it.

    Where somebody knows better than this what to do about the holder, it is given as ``advice``.
    """
    first = group.first
    if all(holder.leftover for holder in group.holders):
        return ""
    refused = next((holder.refusal for holder in group.holders if holder.refusal), "")
    if takeover and not refused:
        return ""
    said = f"{group.held}: held by {described(group, now_ticks)}. It was left alone: "
    if refused:
        return f"{said}{advice or refused}"
    return f"{said}stop it yourself ({by_hand(first)}), or deploy with -e takeover=true, which {by_takeover(first)}"


def as_result(holder: Holder, now_ticks: int) -> dict[str, Any]:
    """A holder in a module's answer."""
    owner = holder.owner
    return {
        "pid": holder.process.pid,
        "start_ticks": holder.process.start_ticks,
        "age_s": round(age_s(holder.process.start_ticks, now_ticks), 1),
        "user": holder.details.user,
        "command": shown(holder.details.argv),
        "owner": {"kind": owner.kind, "name": holder.label or owner.name, "text": owner_text(holder)},
        "ports": list(holder.ports),
        "gpus": list(holder.gpus),
        "services": list(holder.services),
        "refusal": holder.refusal,
        "leftover": holder.leftover,
    }
