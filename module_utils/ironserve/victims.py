"""Whom a cleanup of GPUs ends and whom it leaves alone.

The driver's process lists, open device files, mappings and shared memory are merged by pid; each holder gets one word:

- ``victim``: of the service's unit, of the service user, or an engine's process on the GPUs in scope, and all that ends
  with it; with consent foreign ones, too;
- ``protected``: of the driver, a monitor, the desktop; known by its executable or name, never by free text;
- ``self``: this run, what carries it, and other runs of Ansible;
- ``out_of_scope``: on other GPUs, or of another service that runs;
- ``foreign``: everybody else.

All of it is pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import holders, shm
from .gpus import Reading
from .holders import Owner
from .lineage import Lineage
from .processes import Details, GpuFiles, Process, Table, age_s, is_gone

ANSIBLE = re.compile(r"/ansible-tmp-|/\.ansible/tmp/|/ansible_[\w.]+_payload")
"""Where Ansible's modules run from."""


@dataclass(frozen=True)
class Scope:
    """What a cleanup is for."""

    gpus: frozenset[str]
    """UUIDs of the GPUs that are to be free."""
    taken: frozenset[str] = frozenset()
    """UUIDs that services use that run, where a cleanup is for all others."""
    unit: str = ""
    """The unit whose processes are the caller's own; empty: none."""
    running_units: frozenset[str] = frozenset()
    """Units of Ironserve's that run. What is left of one that does not is nobody's."""
    service_user: str = "ironserve"
    patterns: tuple[str, ...] = ()
    """Titles of engines beside SGLang's and vLLM's, as shell patterns."""
    protected: frozenset[str] = frozenset(holders.PROTECTED)
    leftovers_only: bool = False
    """Spare all but the unit's own and what engines left behind: somebody may be served by the rest."""
    consent_foreign: bool = False
    agreed: frozenset[tuple[int, int]] | None = None
    """Pid and start time of those who were shown to a person who agreed. Nobody else ends. None: nobody was asked."""


@dataclass(frozen=True)
class Held:
    """A process that has something to do with a GPU."""

    process: Process
    details: Details
    owner: Owner
    memory_mib: Mapping[str, int | None]
    """By UUID; None where the driver does not tell."""
    seen: tuple[str, ...]
    """``driver`` lists it; it has a device ``mapped``, one ``open``, or a file of an engine in ``shm`` (/dev/shm)
    open; nothing where it only goes with others."""
    kind: str = ""
    why: str = ""

    @property
    def uses(self) -> bool:
        """Whether it has a context, or is about to. Whatever asks NVML only has the devices open."""
        return "driver" in self.seen or "mapped" in self.seen


@dataclass
class Found:
    """Everybody at the GPUs of a host, and who is to end."""

    held: list[Held] = field(default_factory=list)
    targets: list[Process] = field(default_factory=list)
    """The victims' whole engines, main processes first."""
    hidden: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Pids that the driver lists and /proc does not show, with their GPUs."""
    zombies: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The same for those that ended and that their parents did not reap."""

    def of(self, *kinds: str) -> list[Held]:
        """The holders of these kinds."""
        return [held for held in self.held if held.kind in kinds]


def listed(reading: Reading) -> dict[int, dict[str, int | None]]:
    """By pid what the driver says of it: memory in MiB by UUID."""
    found: dict[int, dict[str, int | None]] = {}
    for gpu in reading.gpus:
        for process in gpu.processes or ():
            mine = found.setdefault(process.pid, {})
            known = mine.get(gpu.uuid, 0)  # one process may be listed as compute and as graphics
            mine[gpu.uuid] = None if known is None or process.memory_mib is None else max(known, process.memory_mib)
    return found


def merge(table: Table, reading: Reading, files: Mapping[int, GpuFiles], lineage: Lineage, own: str = "") -> Found:
    """Everybody who has something to do with a GPU, by all three sources.

    The driver's list says exactly where a process has a context. A mapping says where it may make one. An open file
    says nothing of which GPU: whatever calls nvmlInit opens all. So an engine's process that only has them open counts
    where the rest of its engine is.
    """
    uuids = {gpu.minor: gpu.uuid for gpu in reading.gpus if gpu.minor is not None} or table.gpus()
    contexts = listed(reading)
    found = Found()

    def gpus_of(pid: int) -> dict[str, int | None]:
        if pid in contexts:
            return contexts[pid]
        mapped = files[pid].mapped if pid in files else ()
        return {uuids.get(minor, f"/dev/nvidia{minor}"): None for minor in mapped}

    def is_at(pid: int) -> bool:
        """Whether it has to do with a GPU, or is an engine's orphan that still keeps shared memory."""
        if pid in contexts or files[pid].opened:
            return True
        return any(map(shm.family, files[pid].shared)) and lineage.is_left_behind(table.processes[pid])

    for pid in sorted(filter(is_at, {*contexts, *files})):
        process = table.processes.get(pid)
        if process is None or is_gone(process, process.start_ticks):
            (found.hidden if process is None else found.zombies)[pid] = tuple(gpus_of(pid))
            continue
        seen = [
            word
            for word, true in (
                ("driver", pid in contexts),
                ("mapped", pid in files and bool(files[pid].mapped)),
                ("open", pid in files and bool(files[pid].opened)),
                ("shm", pid in files and any(map(shm.family, files[pid].shared))),
            )
            if true
        ]
        memory = gpus_of(pid)
        if not memory:
            for member in lineage.family(process):
                memory = {**memory, **dict.fromkeys(gpus_of(member.pid))}
        if not memory:
            opened = files[pid].opened if pid in files else ()
            memory = {uuids.get(minor, f"/dev/nvidia{minor}"): None for minor in opened}
        details = table.details(pid)
        found.held.append(Held(process, details, holders.owner_of(details.cgroup, own), memory, tuple(seen)))
    return found


def carriers(table: Table, pid: int) -> set[int]:
    """This process, its ancestors up to pid 1, and its session."""
    me = table.processes[pid]
    mine = {1, pid, *(process.pid for process in table.ancestors(pid))}
    return mine | {process.pid for process in table.processes.values() if process.session == me.session}


def is_ansible(argv: Sequence[str]) -> bool:
    """Whether this is a module of Ansible, or a shell that runs one. Its arguments may name an engine."""
    return any(ANSIBLE.search(word) for word in argv)


def classify(held: Held, scope: Scope, lineage: Lineage, carrying: Collection[int]) -> tuple[str, str]:
    """The word for a holder, and why so."""
    process, details, owner = held.process, held.details, held.owner
    if process.pid in carrying or is_ansible(details.argv):
        return "self", "this run goes through it or shares its session, or it is Ansible's"
    name = holders.is_protected(lineage.table, process, scope.protected)
    if name:
        return "protected", f"{name} belongs to the driver, watches it, or is the desktop's"
    if owner.kind == "service" and owner.name != scope.unit and owner.name in scope.running_units:
        return "out_of_scope", f"of {owner.name}, which runs"
    if held.memory_mib and not scope.gpus & set(held.memory_mib):
        beside = scope.taken & set(held.memory_mib)
        return "out_of_scope", "on GPUs of a service that runs: name it (-e service=)" if beside else "on other GPUs"
    if owner.kind == "service":
        return "victim", f"of {owner.name}" if owner.name == scope.unit else f"left of {owner.name}, which does not run"
    if owner.kind != "process":
        return "foreign", f"of {holders.owner_name(owner)}"
    behind = lineage.is_left_behind(process)
    if scope.leftovers_only and not behind:
        return "foreign", f"of user {details.user}, and it may serve somebody: deploy with -e takeover=true to end it"
    top = lineage.top(process)
    if behind:
        return "victim", "left behind by an engine whose main process is gone"
    if top:
        return "victim", f"of an engine that runs (pid {top.pid}): whom it serves loses it"
    if details.user == scope.service_user != "root":
        return "victim", f"of user {details.user}"
    return "foreign", f"of user {details.user}"


def was_agreed(process: Process, lineage: Lineage, agreed: Collection[tuple[int, int]]) -> bool:
    """Whether a person agreed to the end of this process, or of one that started it since."""
    line = (process, *lineage.table.ancestors(process.pid))
    return any((member.pid, member.start_ticks) in agreed for member in line)


def find(table: Table, reading: Reading, scope: Scope, pid: int) -> Found:
    """Everybody at the GPUs, judged, and all processes that are to end.

    Args:
        table: the processes of the host.
        reading: what the driver says.
        scope: what the cleanup is for.
        pid: the process that asks.
    """
    _, files = table.users_of()
    own = table.details(pid).cgroup
    lineage = Lineage(table, scope.service_user, scope.patterns)
    found = merge(table, reading, files, lineage, own)
    carrying = carriers(table, pid)
    held = {one.process.pid: one for one in found.held}
    for number, one in held.items():
        kind, why = classify(one, scope, lineage, carrying)
        if kind == "foreign" and one.uses and scope.consent_foreign:
            kind, why = "victim", f"foreign, {why}; it was consented to end it"
        if kind == "victim" and scope.agreed is not None and not was_agreed(one.process, lineage, scope.agreed):
            kind, why = "foreign", "it came after the question was asked: run the cleanup again"
        held[number] = replace(one, kind=kind, why=why)
    targets: dict[int, Process] = {}
    for one in held.values():
        if one.kind == "victim":
            targets.update({member.pid: member for member in _with_its_engine(one.process, lineage)})
    spared = carrying | {number for number, one in held.items() if one.kind in ("protected", "self")}
    # A foreign process may have started an engine that has nothing to do with these GPUs.
    tops = {top for one in held.values() if one.kind == "victim" and (top := lineage.top(one.process))}
    for one in held.values():
        same = lineage.top(one.process) in tops or lineage.is_left_behind(one.process)
        if one.kind == "out_of_scope" and not same:
            spared |= {one.process.pid, *(member.pid for member in lineage.family(one.process))}
    for number, member in sorted(targets.items()):
        details = table.details(number)
        if number in spared or is_ansible(details.argv) or is_gone(member, member.start_ticks):
            continue
        found.targets.append(member)
        known = held.get(number) or Held(member, details, holders.owner_of(details.cgroup, own), {}, ())
        if known.kind != "victim":
            held[number] = replace(known, kind="victim", why="goes with its engine")
    # Whoever would start the others again goes first.
    found.targets.sort(key=lambda member: len(list(table.ancestors(member.pid))))
    found.held = list(held.values())
    return found


def _with_its_engine(process: Process, lineage: Lineage) -> list[Process]:
    """All that end with a victim: its engine and what else is left of that; with a foreign one what it started."""
    family = lineage.family(process) or lineage.table.tree(process.pid)
    return [*family, *lineage.strays(family)] if lineage.is_left_behind(process) else family


def as_result(held: Held, now_ticks: int) -> dict[str, Any]:
    """A holder in a module's answer."""
    memory = [value for value in held.memory_mib.values() if value is not None]
    return {
        "pid": held.process.pid,
        "ppid": held.process.parent,
        "start_ticks": held.process.start_ticks,
        "age_s": round(age_s(held.process.start_ticks, now_ticks), 1),
        "user": held.details.user,
        "state": held.process.state,
        "name": held.process.comm,
        "argv": holders.masked(held.details.argv),
        "command": holders.shown(held.details.argv),
        "cgroup": next(iter(holders.cgroup_paths(held.details.cgroup)), ""),
        "unit": held.owner.name if held.owner.kind in ("unit", "user_unit", "service") else "",
        "container_id": held.owner.name if held.owner.kind == "container" else "",
        "gpus": sorted(held.memory_mib),
        "memory_mib": sum(memory) if memory else None,
        "seen": list(held.seen),
        "class": held.kind,
        "why": held.why,
    }
