"""How pip and uv are set up on this machine: what both must be told alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def find_links() -> list[str]:
    """Places where pip looks for files beside its index (PIP_FIND_LINKS, pip config): uv must be given them."""
    lines = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    values = [line.split("=", 1)[1].strip("'\"") for line in lines if line.split("=", 1)[0].endswith("find-links")]
    return sorted({place for value in values for place in value.replace("\\n", " ").split()})


def uv() -> str:
    """The uv of the Python that runs this."""
    beside = Path(sys.executable).with_name("uv")
    if not beside.exists():
        raise SystemExit(f"no uv beside {sys.executable}: run this with the project's .venv (make setup)")
    return str(beside)
