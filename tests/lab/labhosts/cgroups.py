"""The lab's own subtree in the machine's control groups: nothing outside of it is touched.

A machine has the unified hierarchy (v2) at /sys/fs/cgroup or, as a hybrid, at /sys/fs/cgroup/unified beside the v1
controllers. The mount table says which.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .common import LabError, wait_until


@dataclass(frozen=True)
class Hierarchy:
    """One mounted hierarchy; `options` is what a further mount of a v1 one has to name."""

    path: Path
    options: str


class ControlGroups:
    """The machine's hierarchies, read once: inside a cgroup namespace the mount table tells other roots."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Hierarchy]] = {"v1": {}, "v2": {}}
        versions = {"cgroup": "v1", "cgroup2": "v2"}
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            place, _, kind = line.partition(" - ")
            root, path = place.split()[3:5]
            fstype, _, options = kind.split(" ", 2)
            if root == "/" and (version := versions.get(fstype)):
                options = ",".join(option for option in options.split(",") if option not in {"rw", "ro", "xattr"})
                self._found[version].setdefault(options if version == "v1" else "", Hierarchy(Path(path), options))

    def hierarchies(self, version: str) -> list[Hierarchy]:
        """Those of "v1" (one for each controller or set of controllers) or "v2" (one)."""
        if not self._found[version]:
            raise LabError(f"this machine has no cgroup {version} hierarchy" + "; use --cgroup v2" * (version == "v1"))
        return list(self._found[version].values())

    def enter(self, version: str, group: str) -> None:
        """Make `group`, a path below the root of each hierarchy of this version, and move this process into it."""
        for hierarchy in self.hierarchies(version):
            path = hierarchy.path
            for name in group.split("/"):
                path /= name
                path.mkdir(exist_ok=True)
                if version == "v1" and hierarchy.options == "cpuset":
                    _inherit_cpuset(path)
            (path / "cgroup.procs").write_text("0")

    def pass_controllers_on(self, group: str) -> None:
        """Let the children of `group` have each v2 controller that it has itself; it may hold no process then."""
        path = self.hierarchies("v2")[0].path / group
        for controller in (path / "cgroup.controllers").read_text().split():
            with suppress(OSError):  # the kernel may refuse one, as it does `cpu` beside real-time processes
                (path / "cgroup.subtree_control").write_text(f"+{controller}")

    def remove(self, group: str) -> None:
        """End what is left in `group` and remove it; the kernel may need a moment to see that it is empty."""
        for hierarchy in (*self._found["v2"].values(), *self._found["v1"].values()):
            path = hierarchy.path / group
            if (path / "cgroup.kill").exists():
                (path / "cgroup.kill").write_text("1")
            wait_until(partial(_removed, path), 5, f"control group {path} still holds processes")


def _inherit_cpuset(path: Path) -> None:
    """A new v1 cpuset is empty and refuses processes."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (path / name).read_text().strip():
            (path / name).write_text((path.parent / name).read_text())


def _removed(path: Path) -> bool:
    if not path.is_dir():
        return True
    try:
        for folder in sorted(path.rglob("*/"), reverse=True):
            folder.rmdir()
        path.rmdir()
    except OSError:
        return False
    return True
