"""Engine environments: what makes one whole, what to do about one that is not, and how its build is told.

An environment lies in ``ROOT/<lock id>`` and is never changed. It is built in ``ROOT/.building/<lock id>`` by a
transient systemd unit, gets its manifest and is renamed into its place; so a folder with its final name and a manifest
is a finished one, and anything else is built again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .packages import normal_name
from .slices import duration

MANIFEST = "ironserve.json"
SPARE_MIB = 256
"""Free space asked for beyond the installed size."""


@dataclass(frozen=True)
class Wish:
    """The environment that is wanted on the host."""

    lock_id: str
    python: str
    platform: str
    requirements: str
    installed_mib: int
    uv: Mapping[str, str]
    root: Path
    wheelhouse: Path | None
    index_url: str | None
    timeout_s: float

    @property
    def path(self) -> Path:
        """Where the finished environment lies."""
        return self.root / self.lock_id

    @property
    def building(self) -> Path:
        """Where it is built."""
        return self.root / ".building" / self.lock_id

    @property
    def aside(self) -> Path:
        """Where a broken one is kept for a look."""
        return self.root / ".broken" / self.lock_id

    @property
    def uv_program(self) -> Path:
        """The unpacked uv."""
        return self.root / ".uv" / self.uv["version"] / "uv"

    @property
    def unit(self) -> str:
        """The transient unit that builds: its name lets only one build of a lock run at a time."""
        return unit_of(self.lock_id)

    @property
    def wheels(self) -> Path | None:
        """The folder of this lock's files in the wheelhouse."""
        return self.wheelhouse / self.lock_id if self.wheelhouse else None

    @property
    def names(self) -> list[str]:
        """The packages of the lock, as its normal form lists them: a line each."""
        return [line.split("==")[0] for line in self.requirements.splitlines()]

    @property
    def source(self) -> str:
        """Where the files come from, in words; never the address, which may hold a password."""
        places = [f"the wheelhouse {self.wheels}"] if self.wheels else []
        if self.index_url or not places:
            places.append("the package index that the role names" if self.index_url else "PyPI")
        return " and ".join(places)


@dataclass(frozen=True)
class State:
    """What is found on the host.

    Attributes:
        present: there is something under the final name.
        damage: why that cannot be used; empty for a healthy one.
        build: ``none``, ``running``, ``installed`` (to be finished) or ``failed``.
        invocation: systemd's id of that build, which tells a failure of now from one of yesterday.
    """

    present: bool
    damage: tuple[str, ...]
    build: str
    invocation: str


def unit_of(lock_id: str) -> str:
    """The name of the unit that builds the environment of a lock."""
    return f"ironserve-environment-{lock_id}.service"


def decide(state: State, cursor: Mapping[str, Any]) -> str:
    """What comes next: ``done``, ``wait``, ``finish``, ``report`` a failed build, or ``start`` one."""
    if state.present and not state.damage:
        return "done"
    if state.build == "running":
        return "wait"
    if state.build == "installed":
        return "finish"
    if state.build == "failed" and cursor.get("invocation") == state.invocation:
        return "report"
    return "start"


def plan(wish: Wish, state: State, has_uv: bool) -> list[str]:
    """What a build does, in words: the same in check mode as in earnest."""
    actions = [] if has_uv else [f"unpack uv {wish.uv['version']} to {wish.uv_program}"]
    actions.append(f"build {wish.path} with {len(wish.names)} packages from {wish.source}")
    if state.present:
        actions.append(f"move the broken one aside to {wish.aside}: {'; '.join(state.damage)}")
    return actions


def build_state(show: Mapping[str, str]) -> str:
    """The state of a build from the properties of its unit."""
    active = show.get("ActiveState", "inactive")
    if active == "active":
        return "installed" if show.get("SubState") == "exited" else "running"
    if active == "failed":
        return "failed"
    return "none" if active == "inactive" and not show.get("Job") else "running"


def damage(
    manifest: Mapping[str, Any] | None, lock_id: str, files: Mapping[str, int], interpreter: bool
) -> tuple[str, ...]:
    """Why a finished environment cannot be used.

    Args:
        manifest: what ``ironserve.json`` holds, or None where it cannot be read.
        lock_id: the lock that it should have been built from.
        files: number of files under each entry of the environment, as :func:`count_files` of the builder tells.
        interpreter: its ``bin/python`` can be executed.
    """
    if manifest is None or manifest.get("lock_id") != lock_id:
        return (f"it has no {MANIFEST} of this lock",)
    found = [] if interpreter else [f"its interpreter {manifest['interpreter']} is gone"]
    built = manifest["files"]
    wrong = [name for name in sorted({*built, *files}) if built.get(name, 0) != files.get(name, 0)]
    found += [f"{name} has {files.get(name, 0)} files, and had {built.get(name, 0)} when built" for name in wrong[:3]]
    if len(wrong) > 3:
        found.append(f"and {len(wrong) - 3} more")
    return tuple(found)


def obstacles(
    wish: Wish, interpreters: Mapping[str, str], free_mib: int, machine: str, glibc: tuple[int, ...]
) -> list[str]:
    """What stands in the way of a build, each with what to do about it.

    Args:
        wish: the environment.
        interpreters: the host's Pythons, ``{"3.11": "/usr/bin/python3.11"}``.
        free_mib: free space where it is built.
        machine: the host's processor as ``uname -m`` writes it.
        glibc: the version of the host's C library.
    """
    found = []
    needed = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", wish.platform)
    if needed and needed[3] != machine:
        found.append(f"the lock is for {needed[3]}, and this host is {machine}: choose a lock for {machine}")
    elif needed and (int(needed[1]), int(needed[2])) > glibc:
        has = ".".join(map(str, glibc))
        found.append(f"the lock needs glibc {needed[1]}.{needed[2]}, and this host has {has}: it needs a newer system")
    if wish.python not in interpreters:
        known = ", ".join(f"{path} ({minor})" for minor, path in sorted(interpreters.items())) or "none"
        found.append(
            f"no Python {wish.python} on this host (found: {known}): install the distribution's python{wish.python}, "
            f"or choose a lock for a Python that is here"
        )
    if free_mib < wish.installed_mib + SPARE_MIB:
        found.append(
            f"{wish.root} has {free_mib} MiB free, and needs {wish.installed_mib} MiB and {SPARE_MIB} MiB to spare: "
            f"make room there"
        )
    if wish.index_url and re.search(r"[\s'\"\\]", wish.index_url):
        found.append("the index address holds a blank, a quote or a backslash: write it percent-encoded")
    return found


def install_argv(wish: Wish, packages: Path) -> list[str]:
    """The command that installs all packages: exactly those of the lock, each checked against its hash."""
    wheels = ["--find-links", str(wish.wheels)] if wish.wheels else []
    if wheels and not wish.index_url:
        wheels = ["--offline", "--no-index", *wheels]
    return [
        str(wish.uv_program), "pip", "install", "--no-config", *wheels, "--require-hashes", "--no-deps", "--no-build",
        "--compile-bytecode", "--link-mode", "hardlink", "--python", str(wish.building / "env/bin/python"),
        "--requirement", str(packages),
    ]  # fmt: skip


def venv_argv(wish: Wish, interpreter: str) -> list[str]:
    """The command that makes the empty environment: it can be renamed, and nothing is downloaded."""
    return [
        str(wish.uv_program), "venv", "--no-config", "--no-python-downloads", "--relocatable",
        "--python", interpreter, str(wish.building / "env"),
    ]  # fmt: skip


def unit_argv(wish: Wish, argv: Iterable[str], log: Path, secrets: Path, sync: str) -> list[str]:
    """The command that has systemd run the install: it outlives the ssh session, and its end can be asked for later.

    What was installed is on the disk before systemd calls the unit a success.
    """
    return [
        "systemd-run", "--quiet", "--no-block", f"--unit={wish.unit}", "--remain-after-exit", "--service-type=oneshot",
        f"--description=Ironserve builds {wish.lock_id}",
        f"--property=TimeoutStartSec={wish.timeout_s:.0f}", "--property=UMask=0022", "--property=Nice=10",
        f"--property=StandardOutput=file:{log}", "--property=StandardError=inherit",
        f"--property=EnvironmentFile={secrets}",
        f"--property=ExecStartPost={sync} -f {wish.building / 'env'}",
        "--setenv=LC_ALL=C", f"--setenv=UV_CACHE_DIR={wish.building / 'cache'}",
        *argv,
    ]  # fmt: skip


def progress(log: str, unpacked: int, total: int) -> tuple[str, str]:
    """Phase and progress of a running build, from uv's output so far and the number of wheels unpacked."""
    if "Installed " in log:
        return "compiling bytecode", ""
    if "Prepared " in log:
        return "installing", f"{total} packages"
    return "unpacking", f"{min(unpacked, total)}/{total} wheels"


def failure(wish: Wish, show: Mapping[str, str], log: str, log_path: Path) -> str:
    """What an operator reads about a build that failed: how it ended, uv's own words, what to do."""
    result = show.get("Result", "")
    if result == "timeout":
        return (
            f"{wish.lock_id}: not built within {duration(wish.timeout_s)}, and ended; {wish.source} may be slow. "
            f"Run again with a larger engine_environment_timeout_s. The log on the host is {log_path}."
        )
    if result in ("signal", "core-dump", "oom-kill"):
        return (
            f"{wish.lock_id}: the build was killed ({result}); nothing of it is used. "
            f"Run again: it starts afresh. The log on the host is {log_path}."
        )
    words = error_lines(log) or ["(uv said nothing)"]
    return "\n".join([
        f"{wish.lock_id}: uv could not build it from {wish.source}:",
        *(f"  {line}" for line in words),
        *advice(log, wish),
        f"Nothing of it is used, and the next run starts afresh. The log on the host is {log_path}.",
    ])  # fmt: skip


def error_lines(log: str) -> list[str]:
    """The error as uv tells it: from its first error line to the end, without blank lines and passwords."""
    lines = log.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("error")), len(lines))
    shown = [line.rstrip() for line in lines[start:] if line.strip()] or lines[-3:]
    return [re.sub(r"://[^/\s@]+@", "://***@", line) for line in shown[:12]]


def advice(log: str, wish: Wish) -> list[str]:
    """What to do about an error of uv's that is known."""
    if "Hash mismatch" in log:
        return [
            "The file is not the one that was locked. Fetch it anew with tools/wheelhouse.py, or distrust its source."
        ]
    if "not found in the provided package locations" in log or "there is no version of" in log:
        return [
            f"A wheel is missing in {wish.source}: run tools/wheelhouse.py with this lock, and show it to the host."
        ]
    if "401 Unauthorized" in log or "403 Forbidden" in log:
        return ["The index refuses: look at user name and password in the index address, percent-encoded."]
    if "No space left" in log:
        return [f"Make room in {wish.root}; the lock's installed_mib may be too small."]
    if "Failed to extract" in log:
        return ["A wheel is damaged or cut off: fetch it anew with tools/wheelhouse.py."]
    return []


def distribution_name(folder: str) -> str:
    """The package that a ``NAME-VERSION.dist-info`` folder belongs to."""
    return normal_name(folder[: -len(".dist-info")].rsplit("-", 1)[0])
