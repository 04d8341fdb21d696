#!/usr/bin/env python3
"""Make the stand-in engine installable like a real one: a lock for each engine and host Python, and its wheelhouse.

usage: standin_lock.py [PYTHON ...]    (3.11 is Debian 12, 3.13 is Debian 13; both by default)

Locks land in .ironserve/standin/standin-ENGINE-PYTHON, wheels in .ironserve/wheelhouse, where the toolkit's own
tools/wheelhouse.py puts them. Safe to repeat.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml
from build_standin import build

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".ironserve" / "standin"
sys.path.insert(0, str(ROOT / "tools"))

import shim_wheel  # noqa: E402  (needs the folder above)

ENGINES = {"vllm": "0.32.0", "sglang": "0.5.23"}
PYTHONS = ("3.11", "3.13")
WHY = "The stand-in has its own name, and a lock has its engine's."


def pinned(name: str) -> str:
    """A package's pin and hashes as requirements/dev.txt has them."""
    text = (ROOT / "requirements" / "dev.txt").read_text()
    found = re.search(rf"^{name}==(\S+)(.*?)(?=^\S)", text, re.MULTILINE | re.DOTALL)
    if not found:
        raise SystemExit(f"requirements/dev.txt does not pin {name}")
    hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}", found[2])
    return " ".join([f"{name}=={found[1]}", *hashes])


def sha256(content: bytes) -> str:
    """As a requirements file writes it."""
    return f"--hash=sha256:{hashlib.sha256(content).hexdigest()}"


def write(file: Path, text: str) -> None:
    """Write a file as a whole, or leave it alone: a deploy of another test may be reading it."""
    if not file.exists() or file.read_text() != text:
        draft = file.with_name(f"{file.name}.new")
        draft.write_text(text)
        draft.replace(file)


def make_lock(engine: str, python: str, wheel: Path) -> Path:
    """Write the lock of one engine for one Python; return its folder."""
    version = ENGINES[engine]
    folder = HOME / f"standin-{engine}-{python}"
    folder.mkdir(parents=True, exist_ok=True)
    shim = {"name": engine, "version": version, "why": WHY}
    lock = {
        "engine": engine,
        "engine_version": version,
        "python": python,
        "platform": "manylinux_2_31_x86_64",
        "requires": ["ironserve-standin"],
        "shims": [shim],
        "installed_mib": 8,
    }
    write(folder / "lock.yml", yaml.safe_dump(lock, sort_keys=False))
    requirements = [
        f"ironserve-standin==1.0.0 {sha256(wheel.read_bytes())}",
        f"{engine}=={version} {sha256(shim_wheel.build(engine, version, WHY))}",
        pinned("pyyaml"),
        pinned("setproctitle"),
    ]
    write(folder / "requirements.txt", "\n".join(requirements) + "\n")
    return folder


def main() -> None:
    """Make the locks and fill their wheelhouses."""
    wheel = build(HOME / "dist")
    places = f"{os.environ.get('PIP_FIND_LINKS', '')} {wheel.parent}".strip()
    for python in sys.argv[1:] or PYTHONS:
        for engine in ENGINES:
            folder = make_lock(engine, python, wheel)
            command = [sys.executable, str(ROOT / "tools" / "wheelhouse.py"), str(folder)]
            subprocess.run(command, env={**os.environ, "PIP_FIND_LINKS": places}, check=True)


if __name__ == "__main__":
    main()
