"""The host as modules see it: commands, files, processes, HTTP. It does and decides nothing."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import stat
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from . import systemd

STATE = Path("/var/lib/ironserve")
LOGS = Path("/var/log/ironserve")
RUNTIME = Path("/run/ironserve")

SHOWN = (
    "LoadState,ActiveState,SubState,Result,MainPID,ExecMainCode,ExecMainStatus,ExecMainStartTimestampMonotonic,"
    "ExecMainExitTimestampMonotonic,InvocationID,NRestarts,UnitFileState,ActiveEnterTimestamp,"
    "ActiveEnterTimestampMonotonic,StatusText,Job"
)


class Done(NamedTuple):
    """A finished command."""

    rc: int
    out: str
    err: str


class Answer(NamedTuple):
    """An HTTP answer; status 0 means none came, and ``text`` says why."""

    status: int
    text: str

    def json(self) -> dict[str, Any]:
        """The body as JSON; an empty mapping when it is none."""
        try:
            value = json.loads(self.text)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


def run(argv: list[str], timeout_s: float = 60.0, stdin: str | None = None) -> Done:
    """Run a command in the C locale. Raises FileNotFoundError and subprocess.TimeoutExpired."""
    environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
    done = subprocess.run(
        argv, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s, env=environment,
        check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def systemctl(*words: str) -> None:
    """Run systemctl; raises RuntimeError with its own words when it fails."""
    done = run(["systemctl", *words])
    if done.rc:
        raise RuntimeError(f"systemctl {' '.join(words)}: {done.err.strip() or f'exit status {done.rc}'}")


def is_going_down() -> bool:
    """Whether this host is being shut down or rebooted: what ends now is not to blame for it."""
    return run(["systemctl", "is-system-running"]).out.strip() == "stopping"


def forget_starts(unit: str) -> None:
    """Forget a unit's failure and how often it was started: starts that an operator asked for do not count as a storm.

    systemd refuses where it has not loaded the unit; then there is nothing to forget.
    """
    run(["systemctl", "reset-failed", unit])


def show(unit: str) -> dict[str, str]:
    """The properties of a unit that Ironserve looks at."""
    return systemd.parse_show(run(["systemctl", "show", unit, f"--property={SHOWN}"]).out)


def get(url: str, timeout_s: float, body: dict[str, Any] | None = None, key: str = "", method: str = "") -> Answer:
    """GET, or POST of a JSON body, or another method; with an API key where there is one. No proxy is asked."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, data=data, headers=headers, method=method or None)  # noqa: S310  http only
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return Answer(response.status, response.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        return Answer(error.code, _body(error))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Answer(0, str(getattr(error, "reason", error)) or type(error).__name__)


def _body(error: urllib.error.HTTPError) -> str:
    try:
        return error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""


def read_text(path: Path) -> str | None:
    """A file's text, or None when there is no such file."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return None


def read_foreign(path: Path, limit: int = 65536) -> str | None:
    """A file that another user may have put there: a plain one, its beginning; anything else is as if it were not."""
    content = read_foreign_bytes(path, limit)
    return None if content is None else content.decode(errors="replace")


def read_foreign_bytes(path: Path, limit: int, folder: int | None = None) -> bytes | None:
    """As :func:`read_foreign`; ``folder`` is an open one that a relative path begins at."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


def read_bytes(path: Path) -> bytes | None:
    """A file's bytes, or None when there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def write_text(path: Path, text: str, mode: int = 0o644, group: int = -1) -> None:
    """Write a file as a whole or not at all: beside it first, then renamed."""
    write_bytes(path, text.encode(), mode, group)


def write_bytes(path: Path, content: bytes, mode: int = 0o644, group: int = -1) -> None:
    """As :func:`write_text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chown(name, -1, group)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def inode(path: Path) -> int:
    """The inode of a file, 0 where there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def size(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def link(path: Path, target: str) -> None:
    """Point a symbolic link somewhere else in one step."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(path)


def link_target(path: Path) -> str | None:
    """Last part of what a link points to, or None."""
    return path.readlink().name if path.is_symlink() else None


def boot_id() -> str:
    """Changes with every boot: monotonic times of another boot mean nothing in this one."""
    return (read_text(Path("/proc/sys/kernel/random/boot_id")) or "").strip()


def can_read(user: str, path: Path) -> bool:
    """Whether a user may read a file and enter the folders above it; nobody stands for a user that is not there yet."""
    return _may(user, "-r", str(path))


def can_execute(user: str, path: str) -> bool:
    """Whether a user may execute a file; see :func:`can_read`."""
    return _may(user, "-x", path)


def _may(user: str, what: str, path: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        user = "nobody"
    return run(["runuser", "-u", user, "--", "test", what, path]).rc == 0


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, or None when it is gone: with the pid it names one process."""
    stat = read_text(Path(f"/proc/{pid}/stat"))
    return int(stat.rsplit(")", 1)[1].split()[19]) if stat else None
