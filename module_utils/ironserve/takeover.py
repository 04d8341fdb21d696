"""Takes over a port and GPUs from who holds them: stops what owns those processes, and what would start them again."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import holders, host, processes, systemd
from .holders import Group, Holder, Owner
from .processes import Table
from .slices import SLICE_S, duration

POLL_S = 0.2
QUIET_S = 3.0
"""Seconds for which nothing may come back. Longer than the pause of the usual restart loop."""

SHOWN = "LoadState,ActiveState,UnitFileState,TriggeredBy,WantedBy,RequiredBy"
ENABLED = ("enabled", "enabled-runtime", "linked", "linked-runtime", "alias")

Releases = Sequence[Mapping[str, Any]]


class TakeoverError(Exception):
    """What could not be taken over; ``facts`` say what was stopped until then."""

    def __init__(self, message: str, **facts: Any) -> None:
        self.facts = facts
        super().__init__(message)


def look(releases: Releases, settings: Mapping[str, Any] | None = None) -> tuple[Table, list[Holder], list[str]]:
    """Who holds what these releases are to have, with what the container engines and systemd know of them.

    Args:
        releases: what is to have them.
        settings: what the site says of cleanups (``ironserve_cleanup``): whom else to leave alone.
    """
    table = Table()
    found, doubts = holders.find(releases, table, settings, table.details(os.getpid()).cgroup)
    told = [_tell_more(holder, table) for holder in found]
    return table, holders.protect(told, table, os.getpid()), doubts


def _tell_more(holder: Holder, table: Table) -> Holder:
    """Name the container, the one whose port docker itself holds, and the socket unit whose port systemd holds."""
    owner = holder.owner
    if holder.process.pid == 1 and holder.ports:
        unit = listening_unit(host.run(["systemctl", "list-sockets", "--all", "--no-legend"]).out, holder.ports[0])
        owner = Owner("unit", unit or owner.name)
    elif owner.name == "docker.service" and owner.kind in ("unit", "user_unit") and holder.ports:
        publishes = ["docker", "ps", "--no-trunc", "--quiet", "--filter", f"publish={holder.ports[0]}"]
        ids = _run([*_as(owner.uid), *publishes]).out.split()
        owner = Owner("container", ids[0], owner.uid, "docker") if len(ids) == 1 else owner
    if owner != holder.owner:
        holder = replace(holder, owner=owner, refusal=holders.refusal(owner, holder.process.comm))
    if owner.kind != "container":
        return holder
    known = inspect(owner)
    if not known:
        refusal = f"{owner.engine} does not tell about this container: {owner.engine} inspect {owner.name[:12]}"
        return replace(holder, refusal=refusal)
    label = known["name"]
    return replace(holder, label=label, starter=starter_of(table, owner, label))


def starter_of(table: Table, container: Owner, label: str) -> Owner | None:
    """The unit that runs ``docker run --name LABEL`` in the foreground, and would start it again."""
    for process in table.processes.values():
        if process.comm != container.engine:
            continue
        details = table.details(process.pid)
        owner = holders.owner_of(details.cgroup)
        words = {word.rpartition("=")[2] for word in details.argv[1:]}
        if owner.kind in ("unit", "user_unit") and words & {label, container.name, container.name[:12]}:
            return owner
    return None


def listening_unit(list_sockets: str, port: int) -> str:
    """The socket unit that listens on a TCP port, from ``systemctl list-sockets``: ``[::]:8000 a.socket a.service``."""
    for line in list_sockets.splitlines():
        words = line.split()
        if len(words) > 1 and words[0].endswith(f":{port}"):
            return words[1]
    return ""


def inspect(container: Owner) -> dict[str, Any]:
    """What its engine says of a container, in the few words needed; empty when it does not answer."""
    try:
        found = json.loads(_run([*_as(container.uid), container.engine, "inspect", container.name]).out)[0]
        policy = found["HostConfig"].get("RestartPolicy") or {}
    except (ValueError, LookupError, TypeError):
        return {}
    name, retries = policy.get("Name") or "no", policy.get("MaximumRetryCount") or 0
    return {
        "name": found["Name"].lstrip("/"),
        "policy": f"{name}:{retries}" if name == "on-failure" and retries else name,
        "removed": bool(found["HostConfig"].get("AutoRemove")),
    }


def unit_plan(unit: str, shows: Mapping[str, Mapping[str, str]]) -> tuple[list[list[str]], list[str]]:
    """The words for systemctl that stop a unit for good, and those that bring it back.

    Args:
        unit: the unit.
        shows: its properties, and those of the sockets, timers and paths that start it.
    """
    units = [*(name for name in shows if name != unit), unit]
    state = {name: shows[name].get("UnitFileState", "") for name in units}
    enabled = [name for name in units if state[name] in ENABLED]
    # Something else pulls it in at boot, or a generator made it: it has no link of its own that could be removed.
    pulled = [name for name in units if shows[name].get("WantedBy") or shows[name].get("RequiredBy")]
    masked = [name for name in units if state[name] == "generated" or (state[name] == "static" and name in pulled)]
    words = [["disable", *enabled]] if enabled else []
    words += [["mask", *masked]] if masked else []
    undo = [f"systemctl unmask {' '.join(masked)}"] if masked else []
    undo += [f"systemctl enable --now {' '.join(enabled)}"] if enabled else []
    on = [name for name in units if name not in enabled and state[name] != "transient"]
    undo += [f"systemctl start {' '.join(on)}"] if on and not enabled else []
    return [*words, ["stop", "--no-block", *units]], undo


class Takeover:
    """Stops every foreign holder of what these releases are to have; in slices. With ``check`` it only says so."""

    def __init__(
        self, releases: Releases, check: bool, grace_s: float, timeout_s: float, settings: Mapping[str, Any]
    ) -> None:
        self.releases, self.check, self.grace_s, self.timeout_s = releases, check, grace_s, timeout_s
        self.settings = settings
        self.actions: list[str] = []
        self.undo: list[str] = []
        self.first: list[dict[str, Any]] = []
        self.units: list[list[Any]] = []
        self.members: list[list[int]] = []

    def run(self, cursor: Mapping[str, Any], slice_s: float) -> dict[str, Any]:
        """Take over as far as one slice allows; with 0 to the end."""
        self.actions, self.undo = list(cursor.get("actions", [])), list(cursor.get("undo", []))
        self.first = list(cursor.get("holders", []))
        # A slice has room for the time in which nothing may come back.
        ends = time.monotonic() + (max(QUIET_S + 1, min(slice_s, SLICE_S)) if slice_s else float("inf"))
        if cursor.get("boot") == host.boot_id():
            self.units, self.members = list(cursor["units"]), list(cursor["members"])
            began, killed = cursor["began"], cursor["killed"]
        else:  # the first slice, or the host rebooted since
            began, killed = processes.ticks_now(), False
            if not self._begin():
                return self._answer(True)
        quiet_since: float | None = None
        while True:
            left = self._left()
            spent = processes.age_s(began, processes.ticks_now())
            if left:
                quiet_since = None
                if spent >= self.timeout_s:
                    raise self._error(f"still there {duration(spent)} after it was told to stop: {', '.join(left)}")
                if spent >= self.grace_s and not killed:
                    killed = True
                    self._signal(signal.SIGKILL)
            else:
                self._check_nothing_came_back(began)
                quiet_since = quiet_since or time.monotonic()
                if time.monotonic() - quiet_since >= QUIET_S:
                    return self._answer(True)
            if time.monotonic() >= ends:
                state = {"boot": host.boot_id(), "began": began, "killed": killed}
                return self._answer(False, state, ", ".join(left))
            time.sleep(POLL_S)

    def _begin(self) -> bool:
        """Tell everything to stop; whether there was anything."""
        table, found, _ = look(self.releases, self.settings)
        found = [holder for holder in found if not holder.leftover]  # gpu_cleanup ends those
        groups = holders.grouped(found)
        now = processes.ticks_now()
        self.first += [holders.as_result(holder, now) for holder in found]
        refused = [holders.problem(group, True, now) for group in groups]
        if any(refused):
            raise self._error("\n".join(filter(None, refused)))
        for group in groups:
            starter, owner = group.first.starter, group.first.owner
            for unit in (starter, owner):
                if unit and unit.kind in ("unit", "user_unit"):
                    self._stop_unit(unit, group)
            if owner.kind == "container":
                self._stop_container(group.first)
            if owner.kind == "process":
                self._end_tree(table, group)
            else:  # their engine or systemd ends these; they are only waited for
                pids = [[holder.process.pid, holder.process.start_ticks, 0] for holder in group.holders]
                self.members += [entry for entry in pids if entry[0] != 1]  # systemd, for a socket unit
        return bool(groups) and not self.check

    def _stop_unit(self, unit: Owner, group: Group) -> None:
        command = [*_as(unit.uid if unit.kind == "user_unit" else 0), "systemctl"]
        command += ["--user"] if unit.kind == "user_unit" else []

        def show(name: str) -> dict[str, str]:
            return systemd.parse_show(_run([*command, "show", name, f"--property={SHOWN}"]).out)

        shown = show(unit.name)
        names = [*shown.get("TriggeredBy", "").split(), unit.name]
        words, undo = unit_plan(unit.name, {name: show(name) for name in names})
        # A unit that systemd-run made is gone with its processes: its command is all that is left of it.
        undo = undo or [_run_again(group.first)]
        scope = f"user {processes.user_name(unit.uid)}: " if unit.kind == "user_unit" else ""
        again = f"{holders.as_user(unit.uid)} systemctl --user " if scope else "systemctl "
        self.undo += [line.replace("systemctl ", again, 1) for line in undo]
        for line in words:
            self.actions.append(f"{scope}{line[0]} {' '.join(word for word in line[1:] if word[0] != '-')}")
            if not self.check:
                self._must([*command, *line])
        self.units += [[unit.uid if unit.kind == "user_unit" else 0, name] for name in names]

    def _stop_container(self, holder: Holder) -> None:
        owner, known = holder.owner, inspect(holder.owner)
        if not known:  # its unit removed it already
            return
        engine, name = owner.engine, known["name"]
        prefix = f"{holders.as_user(owner.uid)} {engine}" if owner.uid else engine
        if known["policy"] != "no":
            self.actions.append(f"{engine}: set the restart policy of {name} from {known['policy']} to no")
            if not self.check:
                done = _run([*_as(owner.uid), engine, "update", "--restart=no", owner.name])
                if done.rc and engine == "podman":  # before 5.1; nothing but podman-restart.service heeds the policy
                    self.actions.append(f"podman here cannot change it: to keep {name} off at boot, podman rm {name}")
                elif done.rc:
                    raise self._error(f"{engine} update --restart=no {name}: {done.err.strip()}")
        self.actions.append(f"{engine}: stop container {name}")
        again = f"{prefix} start {name}"
        if known["policy"] != "no":
            again = f"{prefix} update --restart={known['policy']} {name} && {again}"
        if known["removed"]:
            again = f"{engine} run …: container {name} was run with --rm and is gone"
        if holder.starter is None:
            self.undo.append(again)
        if not self.check:
            # A stop takes the container's own grace, minutes perhaps: it must outlive this slice and its connection.
            unit = f"ironserve-takeover-{owner.name[:12]}"
            stop = [*_as(owner.uid), _path(engine), "stop", owner.name]
            if host.show(f"{unit}.service").get("ActiveState") not in ("active", "activating"):
                self._must(["systemd-run", "--quiet", "--collect", f"--unit={unit}", *stop])

    def _end_tree(self, table: Table, group: Group) -> None:
        top = group.first.top
        tree = {process.pid: process for holder in group.holders for process in table.tree(holder.top.pid)}
        under = f" and {len(tree) - 1} under it" if len(tree) > 1 else ""
        self.actions.append(f"end pid {top.pid} ({top.comm}){under}")
        self.undo.append(_run_again(group.first))
        self.members += [[process.pid, process.start_ticks, 1] for process in tree.values()]
        if not self.check:
            # Parents first: a loop that lives longer than what it runs starts it again.
            for process in tree.values():
                processes.send(process.pid, process.start_ticks, signal.SIGTERM)

    def _signal(self, number: int) -> None:
        """Signal the bare processes that are left, and what they started meanwhile."""
        table = Table()
        for pid, ticks, ours in list(self.members):
            if ours and not processes.is_gone(table.processes.get(pid), ticks):
                for process in table.tree(pid):
                    processes.send(process.pid, process.start_ticks, number)

    def _left(self) -> list[str]:
        """Which of the processes and units that were told to stop are still there, in words."""
        found = []
        for pid, ticks, _ in self.members:
            process = processes.read(pid)
            if process and not processes.is_gone(process, ticks):
                found.append(f"pid {pid} ({process.comm})")
        for uid, unit in self.units:
            command = [*_as(uid), "systemctl", *(["--user"] if uid else [])]
            show = systemd.parse_show(_run([*command, "show", unit, "--property=ActiveState"]).out)
            if show.get("ActiveState", "inactive") not in ("inactive", "failed"):
                found.append(f"unit {unit}")
        return found

    def _check_nothing_came_back(self, began: int) -> None:
        """A holder that was there before is told to stop as well; one that came since means that somebody starts it."""
        table, found, _ = look(self.releases, self.settings)
        now = processes.ticks_now()
        for group in holders.grouped(holder for holder in found if not holder.leftover):
            process, known = group.first.process, {(pid, ticks) for pid, ticks, _ in self.members}
            if (process.pid, process.start_ticks) in known:
                continue  # it is just ending
            parent = processes.names(table.processes, process.parent)
            said = f"{group.held}: held by {holders.described(group, now)}"
            if process.start_ticks >= began:
                said = f"{said}. Something started it anew: its parent is {parent}; stop that first"
            raise self._error(f"{said}, and was not stopped")

    def _must(self, argv: list[str]) -> None:
        done = _run(argv)
        if done.rc:
            raise self._error(f"{' '.join(argv)}: {done.err.strip() or f'exit status {done.rc}'}")

    def _facts(self) -> dict[str, Any]:
        return {"actions": self.actions, "undo": self.undo, "holders": self.first}

    def _error(self, message: str) -> TakeoverError:
        return TakeoverError(message, **self._facts())

    def _answer(self, done: bool, state: Mapping[str, Any] | None = None, left: str = "") -> dict[str, Any]:
        cursor = {**self._facts(), "units": self.units, "members": self.members, **(state or {})}
        return {
            "changed": bool(self.actions),
            **self._facts(),
            "slice": {
                "done": done, "phase": "waiting until it is gone:" if left else "seeing whether it comes back",
                "progress": left, "expected_s": None, "cursor": cursor,
            },
        }  # fmt: skip


def _run_again(holder: Holder) -> str:
    """How a process comes back that nothing keeps: what was run, by whom, where."""
    top = holder.top
    try:
        folder = str((processes.PROC / str(top.pid) / "cwd").readlink())
    except OSError:
        folder = "an unknown folder"
    command = shlex.join(Table().details(top.pid).argv)
    return f"as user {holder.details.user} in {folder}: {holders.mask(command)}"


def _as(uid: int) -> list[str]:
    """The words that run a command for a user's own systemd or container engine; none for root's."""
    if not uid:
        return []
    runtime = f"/run/user/{uid}"
    variables = [f"XDG_RUNTIME_DIR={runtime}", f"DOCKER_HOST=unix://{runtime}/docker.sock"]
    return ["runuser", "-u", processes.user_name(uid), "--", "env", "--chdir=/", *variables]


def _run(argv: list[str]) -> host.Done:
    """Run a command; one that is not there or hangs has failed."""
    try:
        return host.run(argv)
    except FileNotFoundError:
        return host.Done(127, "", f"{argv[0]} is not installed")
    except subprocess.TimeoutExpired:
        return host.Done(124, "", "no answer within a minute")


def _path(program: str) -> str:
    """A program's path: systemd looks it up in a PATH of its own."""
    found = _run(["sh", "-c", 'command -v "$1"', "sh", program]).out.strip()
    return found if re.match(r"^/", found) else program
