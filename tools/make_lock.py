#!/usr/bin/env python3
"""Have a lock of an engine's version: write its lock.yml where there is none, and resolve it.

usage: tools/make_lock.py ENGINE VERSION [--python 3.12] [--variant cuda|cpu] [--upgrade]

The folder is environments/ENGINE-VERSION-VARIANT, with -py310 behind it for a Python that is not the variant's usual
one. A lock that is there keeps its lock.yml, and its versions too as long as that allows them (--upgrade takes newer
ones). A new CPU lock is made from the newest CPU lock of the engine, whose shims and exclusions were found by hand.
Where uv finds no set of files, nothing is written.
"""

from __future__ import annotations

import argparse
import bisect
import math
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.version import Version
from relock import UnresolvedError, relock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from ironserve.lock import LockError, load_spec  # noqa: E402  (needs the folder above)

USUAL_PYTHON = {"cuda": "3.12", "cpu": "3.11"}
CUDA = """\
---
engine: {engine}
engine_version: "{version}"
python: "{python}"
platform: manylinux_2_34_x86_64
requires:
  - {engine}=={version}
"""
CUDA_NOTES = """\
installed_mib: {installed}
download_mib: {download}
notes: >-
  For NVIDIA GPUs; torch is the index's CUDA build. Resolved from the index's metadata, and not installed by us yet: try
  it on one host first. installed_mib is an estimate.
"""
UNPACKED = 2.5
"""Installed size by downloaded size, a guess: CPU environments have 4, and CUDA's libraries pack badly."""


def main() -> None:
    """Find or write the lock, resolve it, say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("sglang", "vllm"))
    parser.add_argument("version", type=version)
    parser.add_argument("--python", type=python)
    parser.add_argument("--variant", choices=tuple(USUAL_PYTHON), default="cuda")
    parser.add_argument("--upgrade", action="store_true")
    given = parser.parse_args()
    minor = given.python or USUAL_PYTHON[given.variant]
    folder = ROOT / "environments" / name_of(given.engine, given.version, given.variant, minor)
    try:
        if (folder / "lock.yml").exists():
            print(relock(folder, given.upgrade)[0])
        elif given.variant == "cuda":
            print(new_cuda_lock(folder, given.engine, given.version, minor))
        else:
            print(new_cpu_lock(folder, given.engine, given.version, minor))
    except (LockError, UnresolvedError) as error:
        raise SystemExit(f"{folder.relative_to(ROOT)}: {error}{advice(str(error), given)}") from error


def version(text: str) -> str:
    """A version as an index has it: 0.5.23, 0.5.10.post1."""
    if not re.fullmatch(r"\d+(\.\d+)+((a|b|rc)\d+)?(\.post\d+)?", text):
        raise argparse.ArgumentTypeError(f'"{text}" is no version such as 0.5.23')
    return text


def python(text: str) -> str:
    """A Python minor."""
    if not re.fullmatch(r"3\.\d+", text):
        raise argparse.ArgumentTypeError(f'"{text}" is no Python minor such as 3.12')
    return text


def name_of(engine: str, number: str, variant: str, minor: str) -> str:
    """The lock's name; a Python that is not the usual one is part of it."""
    suffix = "" if minor == USUAL_PYTHON[variant] else f"-py{minor.replace('.', '')}"
    return f"{engine}-{number}-{variant}{suffix}"


def new_cuda_lock(folder: Path, engine: str, number: str, minor: str) -> str:
    """Resolve what the index has for NVIDIA GPUs, and put it into its place."""
    with tempfile.TemporaryDirectory() as scratch:
        draft = Path(scratch) / folder.name
        draft.mkdir()
        wish = CUDA.format(engine=engine, version=number, python=minor)
        (draft / "lock.yml").write_text(wish, encoding="utf-8")
        said, download = relock(draft)
        sizes = CUDA_NOTES.format(
            download=max(download, 1), installed=max(math.ceil(UNPACKED * download / 100), 1) * 100
        )
        (draft / "lock.yml").write_text(wish + sizes, encoding="utf-8")
        shutil.copytree(draft, folder)
    return said


def new_cpu_lock(folder: Path, engine: str, number: str, minor: str) -> str:
    """Resolve what the newest CPU lock of the engine became with this version, and put it into its place."""
    known = {load_spec(file.parent): file.parent for file in folder.parent.glob(f"{engine}-*-cpu/lock.yml")}
    if not known:
        raise LockError(f"there is no CPU lock of {engine} to make it from: write its lock.yml by hand")
    newest = max(known, key=lambda spec: Version(spec.engine_version))
    with tempfile.TemporaryDirectory() as scratch:
        draft = Path(scratch) / folder.name
        shutil.copytree(known[newest], draft, ignore=shutil.ignore_patterns("requirements.txt", "__pycache__"))
        file = draft / "lock.yml"
        text = file.read_text(encoding="utf-8").replace(newest.engine_version, number)
        file.write_text(text.replace(f'python: "{newest.python}"', f'python: "{minor}"'), encoding="utf-8")
        said = relock(draft)[0]
        shutil.copytree(draft, folder)
    return f"{said}\nmade from {newest.name}: see that what it leaves out and adds is still right"


def advice(error: str, given: argparse.Namespace) -> str:
    """What to do about an error of uv's that is known."""
    missing = re.search(r"there is no version of ([\w-]+)==", error)
    if missing:
        return f"\n{near(missing[1], given.version)}"
    if "conclude" not in error:
        return ""
    hand = "\nIf the wishes of the newest CPU lock no longer fit: copy its folder, edit lock.yml, run tools/relock.py."
    return "\nNothing was written." + (hand if given.variant == "cpu" else "")


def near(package: str, number: str) -> str:
    """The versions that the index has around the wanted one."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check", package],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    found = re.search(r"Available versions: (.*)", done.stdout)
    return f"{around(number, found[1].split(', ') if found else [])}. Nothing was written."


def around(number: str, known: list[str]) -> str:
    """Three versions below and three above."""
    versions = sorted(known, key=Version)
    place = bisect.bisect(versions, Version(number), key=Version)
    shown = versions[max(0, place - 3) : place + 3]
    return f"The index has, next to it, {', '.join(shown)}" if shown else "The index has no version of it"


if __name__ == "__main__":
    main()
