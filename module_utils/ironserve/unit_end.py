"""The end of a service's unit before its GPUs are cleaned: by systemd first, then its control group as a whole."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import Callable

from . import host, processes, systemd
from .services import Service

CGROUPS = Path("/sys/fs/cgroup")
SYSTEMD = Path("/run/systemd/system")
END_S = 10.0
"""Until the control group of a transient unit is empty; what the kernel holds longer is told."""
POLL_S = 0.2
ROUNDS = 5
"""How often a control group without cgroup.kill is gone through: whatever forks meanwhile is seen by the next one."""


class UnitEnd:
    """The unit of one service, to be stopped.

    Every question is an error where systemd does not answer: no answer must not be taken for a unit that is off.
    """

    def __init__(self, service: str) -> None:
        self.name = systemd.unit_name(service)
        self.service = Service(service, check=False)

    def is_off(self) -> bool:
        """Whether no process of it runs or is about to. Raises RuntimeError where systemd does not answer."""
        show = host.show(self.name)
        if "ActiveState" not in show:
            raise RuntimeError(f"systemd does not tell about {self.name}: systemctl status {self.name}")
        return show["ActiveState"] in ("inactive", "failed")

    def is_current(self) -> bool:
        """Whether it runs the release that is active."""
        return not self.is_off() and self.service.serves_active()

    def group(self) -> str:
        """Its control group; empty where it has none."""
        shown = host.run(["systemctl", "show", self.name, "--property=ControlGroup"]).out
        return systemd.parse_show(shown).get("ControlGroup", "").strip("/")

    def tell(self) -> None:
        """Tell systemd to stop it: drained, and within the unit's own limit."""
        self.service.end()

    @staticmethod
    def end_group(group: str) -> int:
        """Kill what is left in a control group as a whole, so that nothing can fork away; how many there were."""
        folder = folder_of(group)
        first = members(folder) if group else []
        if first and (folder / "cgroup.kill").exists():  # v2, Linux 5.14 and newer
            with contextlib.suppress(OSError):  # systemd removes it when it is empty
                (folder / "cgroup.kill").write_text("1")
            return len(first)
        for _ in range(ROUNDS if first else 0):
            for pid in members(folder):
                process = processes.read(pid)
                # With the start time in hand: a pid that passed on since is of another group.
                if process and f"/{group}" in (host.read_text(processes.PROC / str(pid) / "cgroup") or ""):
                    processes.send(pid, process.start_ticks, signal.SIGKILL)
        return len(first)


def end_transient(
    unit: str, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> list[int]:
    """End the control group of a transient unit, and only that; the pids that the kernel does not let go."""
    shown = host.run(["systemctl", "show", unit, "--property=ControlGroup"]).out
    group = systemd.parse_show(shown).get("ControlGroup", "").strip("/")
    UnitEnd.end_group(group)
    deadline = clock() + END_S
    while (left := members(folder_of(group)) if group else []) and clock() < deadline:
        sleep(POLL_S)
    host.run(["systemctl", "stop", *(["--no-block"] if left else []), unit])
    host.forget_starts(unit)
    return left


def folder_of(group: str) -> Path:
    """The folder of a control group; under version 1 that in systemd's own hierarchy."""
    folder = CGROUPS / group
    return folder if (folder / "cgroup.procs").exists() else CGROUPS / "systemd" / group


def members(folder: Path) -> list[int]:
    """Pids of a control group and of those under it; none of one that is gone."""
    pids = []
    with contextlib.suppress(OSError):  # systemd removes it while it is read
        for file in sorted(folder.rglob("cgroup.procs")):
            pids += [int(pid) for pid in (host.read_text(file) or "").split()]
    return pids


def running_units() -> frozenset[str]:
    """Units of Ironserve's that have processes by right; none where there is no systemd.

    Raises RuntimeError where systemd does not answer: all that it runs would look like leftovers.
    """
    if not SYSTEMD.is_dir():
        return frozenset()
    states = "--state=active,activating,deactivating,reloading"
    done = host.run(["systemctl", "list-units", "--plain", "--no-legend", states, "ironserve-*.service"])
    if done.rc:
        said = done.err.strip() or f"exit status {done.rc}"
        raise RuntimeError(f"systemd does not tell which services run, so nothing was ended: systemctl: {said}")
    return frozenset(line.split()[0] for line in done.out.splitlines() if line.strip())
