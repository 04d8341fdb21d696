"""The state of GPUs after a cleanup: free, or what keeps them and what a person must do about it. All of it is pure.

Idle is memory and processes, never utilisation: on Blackwell that may stay at 100 % for days after a kernel was killed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from . import holders
from .gpus import Gpu, Reading, explain_error, explain_failure
from .processes import Process, names
from .victims import Found, Held

SETTLE_S = 5.0
"""Memory without an owner has to fall within this, counted from the last time that it fell. Measured on an H200: 60 GiB
are free 0.2 s after SIGKILL, 32 GiB of four processes after 0.36 s (docs/evidence/gpu-cleanup.md)."""

PINNED_SETTLE_S = 2.0
"""The same where utilisation stands at 100 % beside it: then nothing falls any more (rtx6kpro#15)."""

ENDED_SETTLE_S = 1.0
"""The memory of those that were ended has fallen by then, where it does not have to be waited for."""

UNIFIED = ("GB10", "Thor", "Orin", "Tegra")
"""In names of GPUs that share the host's memory: the driver tells no memory of theirs, and nothing is wrong. A discrete
GPU that says the same is broken."""

SUCCESS = ("clean", "held", "in_use", "not_measurable")
"""States in which the module does not fail."""

ADVICE = {
    "wedged_no_owner": "a reset or a reboot is needed: stop monitors (dcgm, gpud), nvidia-smi --gpu-reset -i UUID",
    "unkillable": "SIGKILL was sent once, and more of them change nothing: reboot the host",
    "foreign_holder": (
        "it was left alone: end it yourself, give the service other GPUs, or run playbooks/cleanup.yml "
        "-e consent_foreign=true, which ends it"
    ),
    "respawning": "end what starts them first",
    "zombie": "a zombie cannot be killed: restart or end its parent, which has to reap it",
    "gpu_lost": "unless the inventory is wrong it fell off the bus (dmesg | grep -i xid): reboot the host",
    "mig_mode": "its memory may belong to several tenants: clean it by hand, or set ironserve_cleanup: {mig: true}",
}
"""What a person must do, by state; docs/cleanup.md has a section for each."""


class Verdict(NamedTuple):
    """A state and why."""

    state: str
    why: str = ""

    @property
    def failed(self) -> bool:
        """Whether a person has to do something before these GPUs can be used."""
        return self.state not in SUCCESS

    @property
    def message(self) -> str:
        """What and why, and what to do."""
        told = ": ".join(filter(None, (self.why, ADVICE.get(self.state))))
        return f"{told} (docs/cleanup.md#{self.state})" if self.failed else told


class Wish(NamedTuple):
    """What is measured against."""

    scope: frozenset[str]
    named: frozenset[str]
    """UUIDs that were asked for; none: all of the host."""
    expected: int
    """How many GPUs the host has; 0: not known."""
    free_threshold_mib: int
    mig: bool


def several(gpus: Sequence[Gpu]) -> str:
    """The names of GPUs in a sentence."""
    return ", ".join(gpu.title for gpu in gpus)


def spared_mib(gpu: Gpu, held: Collection[Held]) -> int | None:
    """Memory of those who may stay; None where the driver does not tell it of one that it lists."""
    mine = [one.memory_mib[gpu.uuid] for one in held if gpu.uuid in one.memory_mib and "driver" in one.seen]
    return None if None in mine else sum(value or 0 for value in mine)


def is_free(gpu: Gpu, found: Found, ended: Collection[int], threshold_mib: int) -> bool:
    """Whether its memory is free but for those who may stay, and the driver lists none of those who were ended."""
    if any(process.pid in ended for process in gpu.processes or ()):
        return False
    if gpu.memory_used_mib is None:
        return True  # not measurable: judged by processes
    spared = spared_mib(gpu, found.of("protected"))
    return gpu.memory_used_mib - (spared or 0) <= threshold_mib


def cannot_be_measured(gpu: Gpu) -> bool:
    """Whether it tells no memory without anything being wrong with it."""
    return gpu.memory_used_mib is None and (
        gpu.error == "absent" or (gpu.error == "not_supported" and any(name in gpu.name for name in UNIFIED))
    )


def before_anything(reading: Reading, wish: Wish, driver_timeout_s: float) -> Verdict | None:
    """What speaks against a cleanup before anybody was signalled: the old server is left as it is then."""
    if reading.failure and reading.failure != "absent":
        state = "driver_hung" if reading.failure == "hung" else "driver_unusable"
        return Verdict(state, explain_failure(reading.failure, driver_timeout_s, "driver_timeout_s"))
    partitioned = [gpu for gpu in reading.gpus if gpu.mig_mode and gpu.uuid in wish.scope]
    instances = [uuid for uuid in wish.named if uuid.startswith("MIG-")]
    if not wish.mig and (partitioned or instances):
        return Verdict("mig_mode", f"{several(partitioned) or ', '.join(instances)} is in MIG mode")
    return None


def unusable(reading: Reading, wish: Wish, driver_timeout_s: float) -> Verdict | None:
    """What is known to be wrong with these GPUs whatever is cleaned: nothing is stopped for them."""
    scoped = [gpu for gpu in reading.gpus if gpu.uuid in wish.scope]
    return before_anything(reading, wish, driver_timeout_s) or lost(reading, wish) or broken(scoped)


def lost(reading: Reading, wish: Wish) -> Verdict | None:
    """GPUs that should be there and are not."""
    if reading.failure == "absent":  # then nobody can tell
        return None
    known = {gpu.uuid for gpu in reading.gpus if gpu.error != "lost"}
    gone = [gpu.title for gpu in reading.gpus if gpu.error == "lost" and (gpu.uuid in wish.scope or not wish.named)]
    if gone:
        return Verdict("gpu_lost", f"the driver does not answer for {', '.join(gone)}")
    unknown = sorted(uuid for uuid in wish.named - {gpu.uuid for gpu in reading.gpus} if not uuid.startswith("MIG-"))
    if unknown:
        there = ", ".join(sorted(known))
        why = (
            f"the driver knows no GPU {', '.join(unknown)}, but {there or 'none'} (UUIDs, as nvidia-smi -L prints them)"
        )
        return Verdict("gpu_lost", why)
    if not wish.named and len(known) < wish.expected:
        why = f"the driver knows {len(known)} GPUs, and ironserve_hardware.gpu_count says {wish.expected}"
        return Verdict("gpu_lost", why)
    return None


def broken(gpus: Sequence[Gpu]) -> Verdict | None:
    """GPUs that the driver itself calls unusable."""
    for gpu in gpus:
        if gpu.error == "reset_required" or (not gpu.error and gpu.recovery_action != "none"):
            return Verdict("reset_required", explain_error(gpu))
        if gpu.memory_used_mib is None and not cannot_be_measured(gpu) and gpu.error != "lost":
            why = f"{explain_error(gpu) or gpu.title}, and {gpu.name or 'a discrete GPU'} should"
            return Verdict("driver_unusable", f"{why}: update the driver, or reboot; else have the board looked at")
    return None


def foreign(found: Found, wish: Wish) -> Verdict | None:
    """Somebody whom a cleanup does not end uses one of the GPUs in scope."""
    others = found.of("foreign", "self", "out_of_scope")
    users = [held for held in others if held.uses and wish.scope & set(held.memory_mib)]
    if not users:
        return None
    told = "; ".join(f'pid {held.process.pid} ({held.why}): "{holders.shown(held.details.argv)}"' for held in users[:4])
    more = f" and {len(users) - 4} more" if len(users) > 4 else ""
    return Verdict("foreign_holder", f"held by {told}{more}")


def judge(
    reading: Reading,
    found: Found,
    wish: Wish,
    processes: Mapping[int, Process],
    quiet_s: float,
    ended: Collection[int] = (),
) -> Verdict | None:
    """The state once all victims are gone; None while there is something to wait for.

    Args:
        reading: what the driver says now.
        found: everybody at the GPUs, looked at after the victims went.
        wish: what is measured against.
        processes: the processes of the host, for names of parents.
        quiet_s: seconds since memory fell last, or since the last victim went.
        ended: pids of the victims.
    """
    gpus = [gpu for gpu in reading.gpus if gpu.uuid in wish.scope]
    held = foreign(found, wish)
    if held:
        # What was ended beside it gives its memory back first, and so the figures that are told are true.
        return None if ended and quiet_s < ENDED_SETTLE_S else held
    kept = [gpu for gpu in gpus if not is_free(gpu, found, ended, wish.free_threshold_mib)]
    if kept:
        pinned = all(gpu.utilization == 100 for gpu in kept)
        if quiet_s < (PINNED_SETTLE_S if pinned else SETTLE_S):
            return None
    gone = lost(reading, wish) or broken(gpus)
    if gone or not kept:
        return gone or free(reading, gpus)
    return without_owner(kept, found, processes)


def free(reading: Reading, gpus: Sequence[Gpu]) -> Verdict:
    """Clean, or as clean as can be told."""
    if reading.failure == "absent":
        return Verdict("not_measurable", "there is no NVIDIA driver here to ask; no process of an engine holds a GPU")
    if not gpus:
        return Verdict("in_use", "services of Ironserve's that run use all GPUs of this host")
    unknown = [gpu for gpu in gpus if cannot_be_measured(gpu)]
    if unknown:
        why = f"{several(unknown)}: the driver tells no memory; no process of an engine is there"
        return Verdict("not_measurable", why)
    return Verdict("clean")


def without_owner(kept: Sequence[Gpu], found: Found, processes: Mapping[int, Process]) -> Verdict:
    """Memory that stays though nobody is left who could be ended."""
    uuids = {gpu.uuid for gpu in kept}
    amounts = ", ".join(f"{gpu.title} {gpu.memory_used_mib} MiB" for gpu in kept)
    untold = [held for held in found.of("protected") if any(held.memory_mib.get(uuid, 0) is None for uuid in uuids)]
    if untold and all(spared_mib(gpu, untold) is None for gpu in kept):
        told = ", ".join(f"{held.process.comm} (pid {held.process.pid})" for held in untold)
        return Verdict(
            "not_measurable", f"{amounts}: the driver does not tell how much of it is of {told}, which may stay"
        )
    for pid, places in found.zombies.items():
        if uuids & set(places):
            parent = names(processes, processes[pid].parent)
            return Verdict(
                "zombie", f"{amounts}, listed for pid {pid}, which ended: it has to be reaped by its parent, {parent}"
            )
    for pid, places in found.hidden.items():
        if uuids & set(places):
            why = f"{amounts}, listed for pid {pid}, which /proc does not show: it runs in another pid namespace"
            return Verdict("foreign_holder", why)
    pinned = " and 100 % utilisation" if all(gpu.utilization == 100 for gpu in kept) else ""
    return Verdict("wedged_no_owner", f"{amounts}{pinned} without any process, and it does not fall")


def unkillable(left: Sequence[Process]) -> Verdict:
    """Processes that SIGKILL did not end."""
    told = ", ".join(f"pid {process.pid} ({process.comm}, state {process.state})" for process in left)
    return Verdict("unkillable", f"{told} did not end")


def respawning(again: Sequence[Process], processes: Mapping[int, Process]) -> Verdict:
    """Victims that come back as often as they are ended."""
    told = ", ".join(sorted({names(processes, process.parent) for process in again}))
    return Verdict(
        "respawning", f"{len(again)} processes came back each time they were ended; what starts them: {told}"
    )
