"""The build of an engine environment on its host: looks, starts, watches, finishes. What to do is decided elsewhere."""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import os
import platform
import shutil
import stat
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import environment, host, systemd
from .environment import MANIFEST, State, Wish
from .slices import SLICE_S

POLL_S = 0.3
SHOWN = "LoadState,ActiveState,SubState,Result,InvocationID,Job"


class BuildError(Exception):
    """The environment cannot be had; the text is for an operator."""

    def __init__(self, message: str, **facts: Any) -> None:
        self.facts = facts
        super().__init__(message)


class UvWanted(Exception):  # noqa: N818  a request, not an error
    """The host has no uv, and no wheel of it in reach: somebody must bring one."""


class Build:
    """The environment of one lock on this host."""

    def __init__(self, wish: Wish, uv_wheel: Path | None) -> None:
        self.wish = wish
        self.log, self.secrets = wish.building / "build.log", wish.building / "index.env"
        candidates = [uv_wheel, wish.wheelhouse / "uv" / wish.uv["file"] if wish.wheelhouse else None]
        self.uv_wheel = next((path for path in candidates if path and path.is_file()), None)

    def check(self) -> dict[str, Any]:
        """What :meth:`present` would do; touches nothing."""
        state = self._look()
        step = environment.decide(state, {})
        if step == "done":
            return self._answer(False)
        return self._answer(
            True,
            actions=environment.plan(self.wish, state, self.wish.uv_program.exists()),
            # A build that runs or only has to be finished has passed them.
            problems=self._obstacles(interpreters()) if step == "start" else [],
        )

    def present(self, cursor: Mapping[str, Any], slice_s: float) -> dict[str, Any]:
        """Take the environment as far as one slice allows; with 0 to the end."""
        state, cursor = self._look(), dict(cursor)
        ends = time.monotonic() + (min(slice_s, SLICE_S) if slice_s else float("inf"))
        while (step := environment.decide(state, cursor)) != "done":
            if step == "report" and host.is_going_down():
                # Ended with all else, and begun afresh after the boot: whoever drives this loses the connection first.
                time.sleep(POLL_S)
                return self._answer(True, cursor=cursor)
            if step == "report":
                self.secrets.unlink(missing_ok=True)
                log = host.read_text(self.log) or ""
                raise BuildError(environment.failure(self.wish, self._show(), log, self.log), log=str(self.log))
            if step in ("start", "finish"):
                with alone(self.wish.root):
                    state = self._look()
                    if environment.decide(state, cursor) == step:
                        cursor.setdefault("actions", environment.plan(self.wish, state, self.wish.uv_program.exists()))
                        self._start() if step == "start" else self._finish(state)
            elif time.monotonic() >= ends:
                return self._answer(True, cursor=cursor)
            else:
                time.sleep(POLL_S)
            state = self._look()
            cursor["invocation"] = state.invocation
        return self._answer(bool(cursor), actions=cursor.get("actions", []))

    def _answer(self, changed: bool, cursor: Mapping[str, Any] | None = None, **facts: Any) -> dict[str, Any]:
        manifest = self._manifest() or {}
        phase, done = ("", "") if cursor is None else self._progress()
        return {
            "changed": changed,
            "path": str(self.wish.path),
            "lock_id": self.wish.lock_id,
            "python": manifest.get("python", ""),
            "actions": [],
            "problems": [],
            **facts,
            "slice": {
                "done": cursor is None, "phase": phase, "progress": done, "expected_s": None, "cursor": cursor or {},
            },
        }  # fmt: skip

    def _progress(self) -> tuple[str, str]:
        unpacked = self.wish.building / "cache" / "archive-v0"
        count = len(list(unpacked.iterdir())) if unpacked.exists() else 0
        return environment.progress(host.read_text(self.log) or "", count, len(self.wish.names))

    def _manifest(self) -> dict[str, Any] | None:
        try:
            found = json.loads(host.read_text(self.wish.path / MANIFEST) or "")
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def _look(self) -> State:
        path = self.wish.path
        broken: tuple[str, ...] = ()
        if path.exists():
            usable = os.access(path / "bin" / "python", os.X_OK)
            broken = environment.damage(self._manifest(), self.wish.lock_id, count_files(path), usable)
            if not broken:
                return State(True, (), "none", "")
        show = self._show()
        build = environment.build_state(show) if (self.wish.building / "env").exists() else "none"
        return State(path.exists(), broken, build, show.get("InvocationID", ""))

    def _show(self) -> dict[str, str]:
        return systemd.parse_show(host.run(["systemctl", "show", self.wish.unit, f"--property={SHOWN}"]).out)

    def _forget(self) -> None:
        """End the build and have systemd forget it, so that its name is free."""
        host.systemctl("stop", self.wish.unit)
        if self._show().get("ActiveState") == "failed":
            host.systemctl("reset-failed", self.wish.unit)

    def _obstacles(self, found: Mapping[str, str]) -> list[str]:
        wish = self.wish
        place = next(folder for folder in (wish.root, *wish.root.parents) if folder.exists())
        # What an interrupted build left is removed before the next one begins.
        free_mib = (shutil.disk_usage(place).free + size_of(wish.building)) // 2**20
        glibc = tuple(int(part) for part in platform.libc_ver()[1].split(".") if part.isdigit())
        problems = environment.obstacles(wish, found, free_mib, platform.machine(), glibc)
        if wish.wheels and not wish.wheels.is_dir():
            problems.append(
                f"{wish.wheels} is not on this host: fill it with tools/wheelhouse.py, and show it to the host"
            )
        return problems

    def _start(self) -> None:
        wish = self.wish
        if self._show().get("LoadState") != "not-found":
            self._forget()
        if wish.building.exists():
            shutil.rmtree(wish.building)
        found = interpreters()
        problems = self._obstacles(found)
        if problems:
            raise BuildError("\n".join([f"{wish.lock_id} cannot be built here:", *problems]), problems=problems)
        self._unpack_uv()
        wish.building.mkdir()
        packages = wish.building / "requirements.txt"
        packages.write_text(wish.requirements)
        host.write_text(self.secrets, f"UV_DEFAULT_INDEX='{wish.index_url}'\n" if wish.index_url else "", mode=0o600)
        self._command(environment.venv_argv(wish, found[wish.python]))
        install = environment.install_argv(wish, packages)
        self._command(environment.unit_argv(wish, install, self.log, self.secrets, shutil.which("sync") or "/bin/sync"))

    def _finish(self, state: State) -> None:
        """Give the installed environment its manifest and its name, and leave nothing else behind."""
        wish, env = self.wish, self.wish.building / "env"
        (env / ".lock").unlink(missing_ok=True)
        site = next(env.glob("lib/python3*/site-packages"))
        names = {environment.distribution_name(folder.name) for folder in site.glob("*.dist-info")}
        if names != set(wish.names):
            self._forget()
            differing = ", ".join(sorted(names ^ set(wish.names)))
            raise BuildError(f"{wish.lock_id}: installed and locked packages differ ({differing}); look at {self.log}")
        configuration = dict(line.split(" = ", 1) for line in (env / "pyvenv.cfg").read_text().splitlines())
        manifest = {
            "lock_id": wish.lock_id,
            "python": configuration["version_info"],
            "interpreter": str((env / "bin" / "python").readlink()),
            "uv": wish.uv["version"],
            "built_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "requirements": wish.requirements.splitlines(),
            "files": count_files(env),
        }
        host.write_text(env / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        if state.present:
            shutil.rmtree(wish.aside, ignore_errors=True)
            wish.aside.parent.mkdir(exist_ok=True)
            wish.path.rename(wish.aside)
        env.rename(wish.path)
        self._forget()
        shutil.rmtree(wish.building)

    def _unpack_uv(self) -> None:
        program, wheel, pin = self.wish.uv_program, self.uv_wheel, self.wish.uv
        if program.exists():
            return
        if wheel is None:
            raise UvWanted(pin["file"])
        content = wheel.read_bytes()
        if hashlib.sha256(content).hexdigest() != pin["sha256"]:
            raise BuildError(f"{wheel} is not the uv that is pinned: its sha256 differs from environments/uv.yml")
        program.parent.mkdir(parents=True, exist_ok=True)
        draft = program.with_name("uv.new")
        with zipfile.ZipFile(wheel) as archive:
            draft.write_bytes(archive.read(f"uv-{pin['version']}.data/scripts/uv"))
        draft.chmod(0o755)
        draft.replace(program)

    def _command(self, argv: list[str]) -> None:
        done = host.run(argv)
        if done.rc:
            raise BuildError(
                f"{self.wish.lock_id}: {' '.join(argv[:2])} failed: {done.err.strip() or done.out.strip()}"
            )


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold off other calls while a build is started or finished, or old environments go: never during the build."""
    os.umask(0o022)
    building = root / ".building"
    building.mkdir(parents=True, exist_ok=True)
    building.chmod(0o700)
    handle = os.open(building, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def interpreters() -> dict[str, str]:
    """The host's Pythons that really run, by minor: ``{"3.11": "/usr/bin/python3.11"}``."""
    found: dict[str, str] = {}
    for folder in ["/usr/local/bin", "/usr/bin", *os.environ.get("PATH", "").split(os.pathsep)]:
        for path in sorted(Path(folder).glob("python3.*")) if folder else ():
            minor = path.name[len("python") :]
            if minor in found or not minor[2:].isdigit() or not os.access(path, os.X_OK):
                continue
            if host.run([str(path), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).out.strip() == minor:
                found[minor] = str(path)
    return found


def size_of(folder: Path) -> int:
    """Bytes that a folder's files take; one with several names counts once."""
    sizes = {}
    for path, _, files in os.walk(folder):
        for file in files:
            found = (Path(path) / file).lstat()
            sizes[found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def count_files(env: Path) -> dict[str, int]:
    """Number of files in ``bin`` and under each entry of site-packages; compiled bytecode is not counted."""
    entries = [env / "bin", *(entry for site in env.glob("lib/python3*/site-packages") for entry in site.iterdir())]
    return {entry.name: _count(entry) for entry in entries if entry.name != "__pycache__"}


def _count(entry: Path) -> int:
    if not stat.S_ISDIR(entry.lstat().st_mode if os.path.lexists(entry) else 0):
        return int(os.path.lexists(entry))
    total, folders = 0, [str(entry)]
    while folders:
        for item in os.scandir(folders.pop()):
            if not item.is_dir(follow_symlinks=False):
                total += 1
            elif item.name != "__pycache__":
                folders.append(item.path)
    return total
