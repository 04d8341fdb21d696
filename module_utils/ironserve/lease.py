"""The lease on a host: who changes it at the moment, so that two controllers never do so at the same time.

A run takes it on every host that it is going to change and gives it back in the end. One that died leaves it: it
expires by the host's clock, and the machine on which that run's process is gone takes it over at once. Maintenance is a
lease that does not expire: playbooks/drain.yml takes it, playbooks/admit.yml ends it, whoever calls them.

A lease is JSON-plain: ``token purpose user controller machine_id boot_id pid_namespace pid start_ticks command reason
at expires_at``. Deciding is pure; :func:`carry_out` is the only part that touches the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

from . import host, processes

FILE = host.STATE / "lease.json"
LOCK = host.RUNTIME / "lease.lock"

Lease = dict[str, Any]

PURPOSES = ("deploy", "maintenance")

PLACE = ("machine_id", "boot_id", "pid_namespace")
"""Where a pid means something."""


class Step(NamedTuple):
    """What becomes of a host's lease."""

    held: Lease
    """Who has it afterwards; empty: nobody."""
    changed: bool
    action: str
    refused: Lease
    """Who has it, where that is somebody else; nothing changes then."""


def parse(text: str | None) -> Lease:
    """The lease that a file holds; empty where it holds none: what is no lease keeps nobody out."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return {}
    good = isinstance(found, dict) and found.get("purpose") in PURPOSES and isinstance(found.get("at"), (int, float))
    return found if good and found.get("token") else {}


def expired(lease: Mapping[str, Any], now: float) -> bool:
    """Whether nobody has to respect it any more."""
    return lease.get("expires_at") is not None and float(lease["expires_at"]) <= now


def standing(lease: Mapping[str, Any], now: float) -> Lease:
    """The lease with ``age_s`` and ``left_s`` (None: it does not expire); empty where there is none or it expired."""
    if not lease or expired(lease, now):
        return {}
    ends = lease.get("expires_at")
    return {**lease, "age_s": max(0.0, now - lease["at"]), "left_s": None if ends is None else ends - now}


def take(held: Mapping[str, Any], mine: Mapping[str, Any], now: float, replaces: str = "", force: bool = False) -> Step:
    """Have the lease: take one that is free, renew one's own, join a maintenance; else it is refused.

    Args:
        held: what the host's file says.
        mine: the lease that is wanted.
        now: the host's clock.
        replaces: token of a lease whose holder is known to be gone.
        force: a person overruled whoever has it.
    """
    before = standing(held, now)
    if before and before["purpose"] == mine["purpose"] == "maintenance":
        return Step(dict(held), False, "", {})
    if before and before["token"] == mine["token"] and before["purpose"] == mine["purpose"]:
        return Step({**mine, "at": held["at"]}, False, "", {})
    if before and before["token"] not in (mine["token"], replaces) and not force:
        return Step(dict(held), False, "", before)
    what = "begin the maintenance" if mine["purpose"] == "maintenance" else "take the lease"
    return Step(dict(mine), True, f"{what}{_over(held, before, replaces)}", {})


def _over(held: Mapping[str, Any], before: Mapping[str, Any], replaces: str) -> str:
    """How it comes that somebody else's lease is no obstacle."""
    if not held:
        return ""
    if not before:
        return f", that of {who(held)} has expired"
    return f", {who(held)} is gone" if held["token"] == replaces else f", which {who(held)} has"


def release(held: Mapping[str, Any], token: str, purpose: str) -> Step:
    """Give the lease back: one's own, or a maintenance whoever began it. Another one's is left alone."""
    ends = held and held["purpose"] == purpose and (purpose == "maintenance" or held["token"] == token)
    if not ends:
        return Step(dict(held), False, "", {})
    what = f"end the maintenance that {who(held)} began" if purpose == "maintenance" else "give the lease back"
    return Step({}, True, what, {})


def ago(seconds: float) -> str:
    """A time as people say it: ``40 s``, ``12 min``, ``2 h``, ``3 days``."""
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (129600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} days"


def who(lease: Mapping[str, Any]) -> str:
    """``root@ctl``."""
    return f"{lease.get('user') or '?'}@{lease.get('controller') or '?'}"


def told(lease: Mapping[str, Any], gone: bool = False) -> str:
    """A lease that stands, in a line; ``gone``: the process of its holder is."""
    age = f"{ago(lease['age_s'])} ago"
    if lease["purpose"] == "maintenance":
        reason = f" ({lease['reason']})" if lease.get("reason") else ""
        return f"in maintenance: drained by {who(lease)} {age}{reason}"
    if gone:
        return f"a run of {who(lease)} that began {age} ended without giving its lease back"
    command = f", {lease['command']}" if lease.get("command") else ""
    ends = "" if lease["left_s"] is None else f"; it expires in {ago(lease['left_s'])}"
    return f"held by a run of {who(lease)} that began {age} (pid {lease.get('pid')}{command}){ends}"


def way_out(lease: Mapping[str, Any]) -> str:
    """What to do about somebody else's lease that stands."""
    if lease["purpose"] == "maintenance":
        return (
            "When the maintenance is over, ansible-playbook playbooks/admit.yml -l HOST; until then leave the host out "
            "(-l '!HOST'). -e accept=host-leased ends the maintenance with this run."
        )
    return (
        "Wait until that run ends, or leave the host out (-l '!HOST'). Where nobody works there any more: wait until "
        "the lease expires, or -e accept=host-leased."
    )


def refusal(lease: Mapping[str, Any], inventory_name: str) -> str:
    """Why a host cannot be had, and what to do."""
    way = way_out(lease).replace("HOST", inventory_name)
    return f"{inventory_name} is {told(lease)}. Nothing was touched there. {way}"


def token_of(holder: Mapping[str, Any]) -> str:
    """Names one run: the same wherever in it somebody asks."""
    keys = (*PLACE, "controller", "pid", "start_ticks")
    return hashlib.sha256("\0".join(str(holder.get(key)) for key in keys).encode()).hexdigest()[:16]


def is_gone(lease: Mapping[str, Any], here: Mapping[str, Any], lives: Callable[[int, int], bool] | None = None) -> bool:
    """Whether the run that holds the lease was one of this machine, since its boot, and its process ended.

    Args:
        lease: somebody's.
        here: who asks, see :func:`holder`.
        lives: whether a process with that pid and start time does; by /proc where it is not given.
    """
    same_place = all(lease.get(key) == here[key] for key in PLACE) and here["boot_id"]
    if not same_place or lease.get("purpose") != "deploy" or not isinstance(lease.get("start_ticks"), int):
        return False
    return not (lives or _lives)(int(lease["pid"]), lease["start_ticks"])


def _lives(pid: int, start_ticks: int) -> bool:
    process = processes.read(pid)
    if process is None:  # gone, or another user's on a system that hides those
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
    return not processes.is_gone(process, start_ticks)


def holder(pid: int, command: str) -> Lease:
    """Who this run is: the process ``pid`` on this machine. On the controller."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        user = str(os.getuid())
    namespace = Path("/proc/self/ns/pid")
    found = {
        "user": user,
        "controller": socket.gethostname(),
        "machine_id": (host.read_text(Path("/etc/machine-id")) or "").strip(),
        "boot_id": host.boot_id(),
        "pid_namespace": str(namespace.readlink()) if namespace.is_symlink() else "",
        "pid": pid,
        "start_ticks": host.start_ticks(pid),
        "command": command,
    }
    return {"token": token_of(found), **found}


def this_run(arguments: Mapping[str, Any]) -> Lease:
    """Who the run is that a plugin belongs to, see :func:`holder`: its tasks are children of the process people start.

    Args:
        arguments: Ansible's own of that process. Of them only playbooks and limit are told: others may hold secrets.
    """
    parent = multiprocessing.parent_process()
    pid = (parent and parent.pid) or os.getpid()
    playbooks, limit = (arguments.get(key) for key in ("args", "subset"))
    words = [*(playbooks if isinstance(playbooks, (list, tuple)) else ()), *(("-l", limit) if limit else ())]
    return holder(pid, " ".join(["ansible-playbook", *map(str, words)]))


def of_others(standing_lease: Mapping[str, Any], here: Mapping[str, Any]) -> Lease:
    """A lease that keeps this run out: empty for its own, and for one that it may take over."""
    own = standing_lease.get("token") == here["token"] or is_gone(standing_lease, here)
    return {} if own else dict(standing_lease)


def read(now: float | None = None) -> Lease:
    """The lease that stands on this host, see :func:`standing`."""
    return standing(parse(host.read_text(FILE)), time.time() if now is None else now)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def carry_out(decide: Callable[[Lease], Step], check: bool) -> Step:
    """Do on this host what is decided of its lease, while nobody else decides; with ``check`` only say it."""
    if check:
        return decide(parse(host.read_text(FILE)))
    with _locked():
        before = parse(host.read_text(FILE))
        step = decide(before)
        if step.held and step.held != before:
            host.write_text(FILE, json.dumps(step.held, indent=2, sort_keys=True) + "\n")
        elif not step.held:
            FILE.unlink(missing_ok=True)
    return step
