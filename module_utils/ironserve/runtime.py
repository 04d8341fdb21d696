"""What all services of a host share: the launcher, and what rotates their logs.

The launcher is one file, a zip of the modules that it needs, which the host's own Python executes. It is replaced as a
whole, and its path in the units never changes: a new version of Ironserve restarts nothing.
"""

from __future__ import annotations

import inspect
import io
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from . import (
    aside,
    engines,
    evidence,
    gpus,
    holders,
    host,
    judge,
    launcher,
    lineage,
    logs,
    notify,
    nvml,
    ports,
    probe,
    problems,
    processes,
    progress,
    ranks,
    readback,
    readiness,
    secrets,
    slices,
    smi,
    start,
    symptoms,
    systemd,
    vitals,
)  # fmt: skip
from .engines import sglang, vllm

LAUNCHER = Path("/opt/ironserve/runtime/launch")
LOGROTATE = Path("/etc/logrotate.d/ironserve")

LOGROTATE_TEXT = """\
# Written by Ironserve. A server that runs for months would fill the disk with lines about requests. It keeps its log
# open, so the log is copied and cut. A deploy gives each start a log of its own and counts them in the same way.
/var/log/ironserve/*.log {
    size 256M
    rotate 5
    copytruncate
    missingok
    notifempty
    nomail
}
"""

MODULES: tuple[ModuleType, ...] = (
    aside, engines, sglang, vllm, evidence, gpus, holders, host, judge, launcher, lineage, logs, notify, nvml,
    ports, probe, problems, processes, progress, ranks, readback, readiness, secrets, slices, smi, start, symptoms,
    systemd, vitals,
)  # fmt: skip

STARTED_BY = "import sys\n\nfrom ironserve.{} import main\n\nmain(sys.argv)\n"
STAMP = (1980, 1, 1, 0, 0, 0)


def launcher_file(interpreter: str = sys.executable) -> bytes:
    """The bytes of the launcher."""
    return program(MODULES, "launcher", interpreter)


def program(modules: Iterable[ModuleType], main: str, interpreter: str = sys.executable) -> bytes:
    """The bytes of a file that runs ``main(sys.argv)`` of a module, always the same for the same sources.

    The interpreter is told to look at no variable and no site folder: they are meant for the engine.

    Args:
        modules: all that it needs of ours.
        main: name of the module whose ``main`` it runs.
        interpreter: the Python that runs it.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        sources = {"__main__.py": STARTED_BY.format(main), "ironserve/__init__.py": ""}
        for module in modules:
            inside = module.__name__.split("ironserve.", 1)[1].replace(".", "/")
            package = "/__init__" if hasattr(module, "__path__") else ""
            sources[f"ironserve/{inside}{package}.py"] = inspect.getsource(module)
        for name, source in sorted(sources.items()):
            archive.writestr(zipfile.ZipInfo(name, STAMP), source)
    return f"#!{interpreter} -IS\n".encode() + buffer.getvalue()


def files() -> dict[Path, tuple[bytes, int]]:
    """Content and mode of each file that all services of a host share."""
    shared = {LAUNCHER: (launcher_file(), 0o755)}
    if LOGROTATE.parent.is_dir():
        shared[LOGROTATE] = (LOGROTATE_TEXT.encode(), 0o644)
    return shared


def stale() -> list[Path]:
    """Those of the files that are not there, or not as this version has them."""
    return [path for path, (content, _) in files().items() if host.read_bytes(path) != content]


def install() -> None:
    """Put what is stale in its place, each file as a whole."""
    for path, (content, mode) in files().items():
        if host.read_bytes(path) != content:
            host.write_bytes(path, content, mode=mode)
