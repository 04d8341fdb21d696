"""Evidence: what a service shows at one moment, collected before anything is ended, and the file that keeps it.

Reading it can block for ever: a driver that hangs, a process in the kernel whose memory is locked. So each part is read
by a child of its own (:mod:`aside`), all at the same time, and what a child told until its time is up is kept.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import grp
import gzip
import json
import os
import re
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from . import aside, host, logs, nvml, readback, secrets, symptoms, systemd
from .gpus import to_json
from .holders import mask, masked
from .lineage import Lineage
from .processes import PROC, Process, Table, read_file
from .symptoms import summary

DEADLINE_S = 10.0
"""Of the whole, whatever driver and kernel do. Without trouble it takes a second."""
PART_S = 4.0
"""Of a part; those that ask what may hang have less."""
PART_BYTES = 448 << 10
"""Of a part; eight parts are less than 4 MiB."""
COMMAND_S = 2.0
DRIVER_S = 2.0
PYTHON_S = 2.0
"""For all dumps of py-spy, which run at the same time."""
WINDOW_S = 0.5
"""Over which the use of CPU is measured."""

KEPT = 5
STAMP = "%Y%m%dT%H%M%SZ"
FILE_NAME = re.compile(r"\d{8}T\d{6}Z-[\w-]{1,80}\.json\.gz")
LOG_LINES, LOG_BYTES = 200, 1 << 20
EVENTS = 50
KERNEL_READ = 5000
"""Lines of the kernel's log that are looked through."""
DUMP_CHARACTERS, DUMPS = 24_000, 16

Piece = tuple[str, str, Any]
"""Section, key, and what belongs there; mappings told for the same place are joined."""
Part = Callable[[], Iterator[Piece]]
Signals = Mapping[str, Mapping[str, Any]]
Hide = Callable[[str], str]
"""Takes the known secrets out of a text. What cuts or masks a text does it first: nobody finds half a secret."""


def collect(
    service: str,
    release: Mapping[str, Any],
    secret_texts: Sequence[str],
    reading: logs.Reading,
    signals: Signals | None = None,
    deadline_s: float = DEADLINE_S,
) -> dict[str, Any]:
    """All that can be learnt of a service without touching it, in no more time than this; without secrets.

    Args:
        service: the service.
        release: its active release; may be empty.
        secret_texts: what nobody may read. What the host's files of secrets hold is added.
        reading: what the gate read of the log; may be empty.
        signals: of each signal of a start (``log``, ``io``, ``cpu``, ``gpu_memory``) for how long it has not moved,
            ``age_s``, and ``what`` it shows; None where nobody watched them.
        deadline_s: seconds.
    """
    unit = systemd.unit_name(service)
    log = host.LOGS / f"{service}.log"
    texts = sorted({*secret_texts, *known_secrets(service)}, key=len, reverse=True)
    hide = functools.partial(secrets.redact, secret_texts=texts)
    parts: dict[str, Part] = {
        "unit": functools.partial(read_unit, unit, hide),
        "processes": functools.partial(read_processes, unit, hide),
        "Python": functools.partial(read_python, unit, release),
        "GPUs": read_gpus,
        "kernel log": read_kernel,
        "environment": functools.partial(read_environment, unit),
        "log": functools.partial(read_log, log, hide),
        "space": functools.partial(read_space, (Path("/dev/shm"), host.LOGS)),  # noqa: S108  only looked at
    }
    began = time.monotonic()
    found: dict[str, Any] = {
        "service": service,
        "release": host.link_target(host.STATE / service / "active") or "",
        "profile": release.get("profile", ""),
        "engine": release.get("engine", ""),
        "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "phase": reading.phase,
        "progress": reading.progress,
        "error": reading.error,
        "signals": {name: dict(signal) for name, signal in (signals or {}).items()},
        **ask(parts, min(PART_S, deadline_s - 1)),
    }
    found["started"] = _started(found.get("unit", {}), time.monotonic())
    found["took_s"] = round(time.monotonic() - began, 2)
    return without_secrets(found, texts, {**release.get("env", {}), **release.get("host_env", {})})


def ask(parts: Mapping[str, Part], deadline_s: float) -> dict[str, Any]:
    """What the parts tell in that time, each in a child of its own; ``errors`` says of which parts not all came."""
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}
    pids, names, texts = [], {}, {}
    deadline = time.monotonic() + deadline_s
    poll = select.poll()
    for name, part in parts.items():
        pid, pipe = aside.start(functools.partial(_tell, name, part))
        pids.append(pid)
        names[pipe], texts[pipe] = name, b""
        poll.register(pipe, select.POLLIN)
    waiting = set(names)
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for pipe, _ in poll.poll(left_s * 1000):
            chunk = os.read(pipe, 1 << 20)
            texts[pipe] += chunk
            if not chunk or len(texts[pipe]) > PART_BYTES:
                waiting.discard(pipe)
                poll.unregister(pipe)
    for pipe, name in names.items():
        os.close(pipe)
        text = texts[pipe]
        for line in text[:PART_BYTES].splitlines(keepends=True):
            if line.endswith(b"\n"):
                _join(found, *json.loads(line))
        if len(text) > PART_BYTES:
            errors[name] = f"more than {PART_BYTES >> 10} KiB"
        elif pipe in waiting:
            errors[name] = f"not all of it came in {deadline_s:g} s"
    aside.end(*pids)
    found["errors"] = {**found.get("errors", {}), **errors}
    return found


def without_secrets(
    found: dict[str, Any], secret_texts: Sequence[str], env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Evidence without secrets, wherever they stood: known ones, and those that the name of a variable gives away.

    Args:
        found: the evidence.
        secret_texts: the known ones.
        env: variables of the release, for when those of the process could not be read.
    """
    environment = found.get("environment", {})
    values = [*symptoms.hidden(environment), *symptoms.hidden(env or {})]
    guessed = {value for value in values if len(value) >= secrets.SHORTEST}
    texts = sorted({*secret_texts, *guessed}, key=len, reverse=True)
    hide = functools.partial(secrets.redact, secret_texts=texts)
    shown = {name: _shown(name, hide(value)) for name, value in environment.items()}
    changed: dict[str, Any] = symptoms.rewrite({**found, "environment": shown}, hide)
    return changed


def _shown(name: str, value: str) -> str:
    if symptoms.hidden({name: value}):
        return secrets.MASK
    return value if symptoms.SHOWN_NAME.match(name) else mask(value)


def write(folder: Path, found: Mapping[str, Any], group: str = "ironserve") -> Path:
    """Keep evidence in a file of its own, which the group reads; the oldest of more than five go."""
    at = datetime.datetime.fromisoformat(found["at"]).strftime(STAMP)
    path = folder / f"{at}-{found['release'] or 'none'}.json.gz"
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:  # nothing was ever deployed here: root's alone then
        gid = -1
    text = json.dumps({**found, "summary": summary(found)}, indent=1, sort_keys=True) + "\n"
    host.write_bytes(path, gzip.compress(text.encode()), mode=0o640, group=gid)
    for old in sorted(folder.glob("*.json.gz"))[:-KEPT]:
        old.unlink()
    return path


def keep(
    service: str,
    release: Mapping[str, Any],
    secret_texts: Sequence[str],
    reading: logs.Reading,
    signals: Signals | None = None,
) -> dict[str, Any]:
    """Collect and write: ``evidence_file``, ``evidence_summary``, ``notices``. It fails for no reason."""
    try:
        found = collect(service, release, secret_texts, reading, signals)
        path = write(host.STATE / service / "evidence", found)
    except Exception as error:  # whatever it is: the verdict stands without evidence
        reason = secrets.redact(f"{type(error).__name__}: {error}", secret_texts)
        return {"evidence_file": "", "evidence_summary": [], "notices": [f"no evidence was collected: {reason}"]}
    return {"evidence_file": str(path), "evidence_summary": summary(found), "notices": []}


def by_helper(service: str) -> Path:
    """Where the readiness helper keeps what an engine showed that it ends while no gate watches."""
    return host.RUNTIME / service / "evidence"


def adopt(service: str) -> list[Path]:
    """Take what the helper kept to the rest.

    The folder is the service user's, and root acts on it: it is opened itself, whatever a link would make of it, and
    only plain files are taken that are named as :func:`write` names them, for a time that has been.
    """
    adopted = []
    try:
        folder = os.open(by_helper(service), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        latest = datetime.datetime.now(datetime.timezone.utc).strftime(STAMP)
        names = (name for name in os.listdir(folder) if FILE_NAME.fullmatch(name))  # noqa: PTH208  of a descriptor
        for name in sorted(name for name in names if name.split("-")[0] <= latest)[-KEPT:]:
            content = host.read_foreign_bytes(Path(name), 8 * PART_BYTES, folder)
            if content is not None:
                path = host.STATE / service / "evidence" / name
                host.write_bytes(path, content, mode=0o640)
                adopted.append(path)
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)
    return adopted


def known_secrets(service: str) -> list[str]:
    """The secrets in the host's own files, which a call that gets none has to hide as well."""
    env, config = (host.read_text(Path(path(service))) or "" for path in (secrets.env_path, secrets.config_path))
    return [text for text in secrets.texts(secrets.read(env, config)) if len(text) >= secrets.SHORTEST]


def read_unit(unit: str, hide: Hide) -> Iterator[Piece]:
    """All properties of a unit but its environment, which has a part of its own, and its last events."""
    shown = systemd.parse_show(_output("systemctl", "show", unit))
    yield from (("unit", name, mask(hide(value))) for name, value in shown.items() if value and name != "Environment")
    events = _output("journalctl", "--unit", unit, "--lines", str(EVENTS), "--output", "short-iso", "--no-pager")
    yield "events", "lines", events.splitlines()


def read_processes(
    unit: str, hide: Hide, proc: Path = PROC, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Piece]:
    """The processes of a unit, then those that an engine left behind; of each first what never blocks.

    An engine that exited has none, and costs no time here.
    """
    table = Table(proc)
    own = _of_unit(table, unit)
    if own:
        yield from _look(table, own, hide, sleep)
    lineage = Lineage(table)
    known = {process.pid for process in own}
    others = [process for process in table.processes.values() if process.pid not in known]
    left_behind = [process for process in others if lineage.is_left_behind(process)]
    yield from (("processes", str(process.pid), {"left_behind": True}) for process in left_behind)
    if left_behind:
        yield from _look(table, left_behind, hide, sleep)


def _look(table: Table, found: Sequence[Process], hide: Hide, sleep: Callable[[float], None]) -> Iterator[Piece]:
    for process in found:
        folder = table.proc / str(process.pid)
        status = dict(line.split(":", 1) for line in read_file(folder / "status").splitlines() if ":" in line)
        waits_in = read_file(folder / "wchan").strip()
        yield (
            "processes",
            str(process.pid),
            {
                "pid": process.pid,
                "parent": process.parent,
                "state": process.state,
                "threads": process.threads,
                "name": process.comm,
                "wchan": "" if waits_in == "0" else waits_in,
                "memory_mib": int(status.get("VmRSS", "0").split()[0]) >> 10,
            },
        )
    before = {process.pid: _counts(table.proc, process.pid) for process in found}
    began = time.monotonic()
    sleep(WINDOW_S)
    window_s = max(time.monotonic() - began, WINDOW_S)
    per_s = os.sysconf("SC_CLK_TCK")
    for process in found:
        (ticks, moved), (ticks_now, moved_now) = before[process.pid], _counts(table.proc, process.pid)
        percent = max(0.0, (ticks_now - ticks) / per_s / window_s * 100)
        yield (
            "processes",
            str(process.pid),
            {
                "cpu_s": round(ticks / per_s, 1),
                "cpu_percent": round(percent, 1),
                "io_bytes_per_s": max(0, int((moved_now - moved) / window_s)),
            },
        )
    yield from _stacks(table, found)
    for process in found:
        argv = [hide(word) for word in table.details(process.pid).argv]
        yield "processes", str(process.pid), {"title": " ".join(masked(argv))}
    few = copy.copy(table)  # to look at the open files of the whole host takes long
    few.processes = {process.pid: process for process in found}
    for pid, uses in few.users_of()[1].items():
        gpus = {"gpus_open": sorted(uses.opened), "gpus_mapped": sorted(uses.mapped), "shared": sorted(uses.shared)}
        yield "processes", str(pid), gpus


def _stacks(table: Table, found: Sequence[Process]) -> Iterator[Piece]:
    for process in found:
        try:
            stack = (table.proc / str(process.pid) / "stack").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # the process is gone
            continue
        except OSError as error:
            yield "errors", "kernel stack", (error.strerror or str(error)).lower()
            continue
        yield "processes", str(process.pid), {"stack": stack.splitlines()}


def read_python(unit: str, release: Mapping[str, Any]) -> Iterator[Piece]:
    """Where the Python code of each process is, by py-spy, which does not stop them; of those that it can read."""
    beside = Path((release.get("argv") or ["/"])[0]).parent / "py-spy"
    program = shutil.which("py-spy") or (str(beside) if os.access(beside, os.X_OK) else "")
    if not program:
        return
    wanted = [process.pid for process in _of_unit(Table(), unit) if process.state not in "DZ"][:DUMPS]
    asked = {
        pid: subprocess.Popen(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for pid in wanted
    }  # fmt: skip
    deadline = time.monotonic() + PYTHON_S
    for pid, child in asked.items():
        try:
            told = child.communicate(timeout=max(0.0, deadline - time.monotonic()))[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            child.kill()  # and nobody waits for it
            yield "errors", "py-spy", f"no answer in {PYTHON_S:g} s"
            continue
        if child.returncode == 0:
            yield "python", str(pid), told[:DUMP_CHARACTERS]
        else:
            yield "python_errors", str(pid), told[:300]


def read_gpus() -> Iterator[Piece]:
    """One look at the GPUs."""
    reading = to_json(nvml.look(DRIVER_S))
    yield from (("gpus", name, value) for name, value in reading.items())


def read_kernel() -> Iterator[Piece]:
    """The kernel's lines about GPUs, memory and stuck tasks since the boot."""
    journal = ["journalctl", "--dmesg", "--lines", str(KERNEL_READ), "--output", "short-iso", "--no-pager", "--quiet"]
    text = ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        text = _output(*journal)
    yield "kernel", "lines", symptoms.kernel_lines(text or _output("dmesg", "--time-format", "iso"))


def read_environment(unit: str) -> Iterator[Piece]:
    """Limits and environment of the main process; where none runs, the environment that the unit itself gives."""
    shown = systemd.parse_show(_output("systemctl", "show", unit, "--property=MainPID,Environment"))
    process = PROC / shown.get("MainPID", "0")
    if shown.get("MainPID", "0") == "0":
        items = shlex.split(shown.get("Environment", ""))
    else:
        yield from (("limits", name, pair) for name, pair in readback.limits(read_file(process / "limits")).items())
        items = readback.words((process / "environ").read_text(errors="replace"))
    yield from (("environment", *item.split("=", 1)) for item in items if "=" in item)  # type: ignore[misc]


def read_log(path: Path, hide: Hide) -> Iterator[Piece]:
    """The end of an engine's log, and what NCCL and the engine's own errors say in it."""
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        file.seek(max(0, stat.st_size - LOG_BYTES))
        lines, rest = logs.split("", file.read().decode(errors="replace"))
    # Where reading began in the middle of the file, the first line is half a line.
    lines = [hide(line) for line in (*lines[1 if stat.st_size > LOG_BYTES else 0 :], rest) if line.strip()]
    yield "log", "path", str(path)
    yield "log", "silent_s", max(0.0, round(time.time() - stat.st_mtime, 1))
    yield "log", "tail", logs.last(lines, LOG_LINES)
    seen = logs.Reading()
    logs.read(seen, lines, ())
    yield "log", "error", seen.error
    yield "log", "nccl", [line[: logs.LINE_LIMIT] for line in symptoms.nccl_lines(lines)]


def read_space(paths: Sequence[Path]) -> Iterator[Piece]:
    """Room in folders that an engine fills."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            space = shutil.disk_usage(path)
            yield "space", str(path), {"free_mib": space.free >> 20, "total_mib": space.total >> 20}


def _started(unit: Mapping[str, str], now_s: float) -> str:
    """When the main process started, in UTC; empty where it never did. systemd tells a time zone only by its name."""
    since_s = int(unit.get("ExecMainStartTimestampMonotonic") or 0) / 1e6
    if not since_s:
        return ""
    now = datetime.datetime.now(datetime.timezone.utc)
    return (now - datetime.timedelta(seconds=now_s - since_s)).isoformat(timespec="seconds")


def _tell(name: str, part: Part, pipe: Any) -> None:
    """In the child: a line a piece, each as soon as it is known."""
    try:
        for piece in part():
            pipe.write(json.dumps(piece).encode() + b"\n")
            pipe.flush()
    except BrokenPipeError:
        return
    except Exception as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        pipe.write(json.dumps(("errors", name, why)).encode() + b"\n")


def _join(found: dict[str, Any], section: str, key: str, value: Any) -> None:
    place = found.setdefault(section, {})
    both = isinstance(place.get(key), dict) and isinstance(value, dict)
    place[key] = {**place[key], **value} if both else value


def _of_unit(table: Table, unit: str) -> list[Process]:
    return [
        process
        for pid, process in table.processes.items()
        if symptoms.in_unit(read_file(table.proc / str(pid) / "cgroup"), unit)
    ]


def _counts(proc: Path, pid: int) -> tuple[int, int]:
    """CPU ticks and bytes of a process so far; what is gone since used none."""
    stat = read_file(proc / str(pid) / "stat")
    return (symptoms.cpu_ticks(stat) if stat else 0, symptoms.io_bytes(read_file(proc / str(pid) / "io")))


def _output(*argv: str) -> str:
    done = host.run(list(argv), COMMAND_S)
    if done.rc:
        raise RuntimeError(done.err.strip() or f"{argv[0]} ended with status {done.rc}")
    return done.out
