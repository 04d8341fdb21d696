"""The launcher as one file on the host: a zip of the modules that it needs, which the host's own Python executes.

One file is replaced as a whole, and its path in the units never changes: a new version of Ironserve restarts nothing.
"""

from __future__ import annotations

import inspect
import io
import sys
import zipfile
from pathlib import Path
from types import ModuleType

from . import engines, host, judge, launcher, logs, notify, ports, probe, readiness, slices, systemd
from .engines import sglang, vllm

PATH = Path("/opt/ironserve/runtime/launch")

MODULES: tuple[ModuleType, ...] = (
    engines, sglang, vllm, host, judge, launcher, logs, notify, ports, probe, readiness, slices, systemd,
)  # fmt: skip

STARTED_BY = "import sys\n\nfrom ironserve.launcher import main\n\nmain(sys.argv)\n"
STAMP = (1980, 1, 1, 0, 0, 0)


def content(interpreter: str = sys.executable) -> bytes:
    """The bytes of the file, always the same for the same sources and interpreter.

    The interpreter is told to look at no variable and no site folder: they are meant for the engine.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        sources = {"__main__.py": STARTED_BY, "ironserve/__init__.py": ""}
        for module in MODULES:
            inside = module.__name__.split("ironserve.", 1)[1].replace(".", "/")
            package = "/__init__" if hasattr(module, "__path__") else ""
            sources[f"ironserve/{inside}{package}.py"] = inspect.getsource(module)
        for name, source in sorted(sources.items()):
            archive.writestr(zipfile.ZipInfo(name, STAMP), source)
    return f"#!{interpreter} -IS\n".encode() + buffer.getvalue()


def is_current() -> bool:
    """Whether the host has the launcher of this version."""
    return host.read_bytes(PATH) == content()


def install() -> None:
    """Put the launcher in its place, as a whole."""
    host.write_bytes(PATH, content(), mode=0o755)
