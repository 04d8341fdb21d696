"""What runs of a service now: its processes as /proc shows them, what its server says of itself. It only looks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from . import effects, host, nccl_log, processes, vitals
from .processes import PROC, read_file
from .ranks import Member, ranks_among, titled

INFO_TIMEOUT_S = 5.0
"""SGLang answers after a question to its schedulers: milliseconds, or never."""

LOG_BYTES = 4 << 20
"""A start says its arguments at the beginning of its log, and each start has a log of its own."""


def command(main_pid: int) -> str:
    """Text of /proc/PID/cmdline of a service's main process."""
    return read_file(PROC / str(main_pid) / "cmdline")


def main_process(main_pid: int) -> effects.Process:
    """The main process of a service."""
    return effects.process("main process", main_pid, read_file(PROC / str(main_pid) / "environ"))


def ranks(main_pid: int, engine: ModuleType) -> list[effects.Process]:
    """The ranks in the unit of a main process; that process itself where none named itself.

    It may wait for ever for a process that is stuck in the kernel: see :mod:`aside`.
    """
    group = vitals.control_group(read_file(PROC / str(main_pid) / "cgroup"))
    found = [processes.read(pid) for pid in (vitals.members(group) if group else [main_pid])]
    alive = {one.pid: Member(one, _title(one, engine)) for one in found if one and one.state not in "ZX"}
    members = ranks_among(titled(alive, engine), engine)
    return [
        effects.process(member.title, member.process.pid, read_file(PROC / str(member.process.pid) / "environ"))
        for member in members
    ] or [main_process(main_pid)]


def _title(process: processes.Process, engine: ModuleType) -> str:
    """The first word of its command line, where its name says that it has a title."""
    return command(process.pid).split("\0")[0].strip() if process.comm.startswith(engine.TITLE) else ""


def arguments(release: Mapping[str, Any], engine: ModuleType, key: str, log: Path) -> tuple[dict[str, Any], str]:
    """With which arguments a server says that it runs, and where it says it: ``server_info``, ``log`` or nowhere.

    Args:
        release: the active release.
        engine: what is known of the engine, from ``engines/``.
        key: API key that the server wants, or empty.
        log: the service's log.
    """
    for path in engine.INFO_PATHS:
        answer = host.get(release["url"] + path, INFO_TIMEOUT_S, key=key)
        if answer.status == 200:
            return answer.json(), "server_info"
        if answer.status != 404:
            break
    found = effects.arguments_in(beginning(log), engine.ARGUMENTS_LINE)
    return found, "log" if found else ""


def nccl(env: Mapping[str, str], log: Path) -> dict[str, Any]:
    """``version`` and ``settings`` as NCCL tells them where NCCL_DEBUG has it talk, see ``nccl_log.took_effect``."""
    lines = beginning(log).splitlines()
    return {"version": nccl_log.parse(lines).version, "settings": nccl_log.took_effect(env, lines)}


def beginning(log: Path) -> str:
    """The beginning of a log, empty where there is none."""
    try:
        with log.open("rb") as file:
            return file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
