#!/usr/bin/env python3
"""Ask the index whether it still has every file of a lock, and let uv plan its installation. Nothing is downloaded.

usage: tools/dry_run.py NAME

It shows that the index has the locked files, by their hashes, and that they fit the lock's Python and platform. That
the engine runs it does not show.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import shim_wheel
from pip_settings import uv
from relock import UnresolvedError, compile_with_uv, places, target

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from ironserve.lock import Lock, LockError, find, load  # noqa: E402  (needs the folder above)
from ironserve.packages import normal_name  # noqa: E402  (needs the folder above)


def main() -> None:
    """Have it planned, and say how that went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", metavar="NAME")
    try:
        lock = load(find(parser.parse_args().lock, ROOT))
        missing = gone(lock)
    except (LockError, UnresolvedError) as error:
        raise SystemExit(str(error)) from error
    if missing:
        raise SystemExit(f"{lock.id}: the index has no file with the locked hash of {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as scratch:
        done = plan(lock, Path(scratch))
    if done.returncode:
        raise SystemExit(f"{lock.id}: {done.stderr.strip()}")
    count = sum(line.startswith(" + ") for line in done.stderr.splitlines())
    print(f"{lock.id}: {count} packages would be installed, for Python {lock.spec.python} and {lock.spec.platform}")


def gone(lock: Lock) -> list[str]:
    """Packages of which the index does not have the locked file; uv's own dry run asks for versions only."""
    shims = {normal_name(shim.name) for shim in lock.spec.shims}
    listed = [item for item in lock.requirements if item.name not in shims]
    pins = [f"{item.name}=={item.version}" for item in listed]
    found = compile_with_uv(lock.spec, pins, [], [], (), "--no-deps")
    known = {normal_name(item["name"]): {file["hashes"]["sha256"] for file in item["wheels"]} for item in found}
    return [pin for pin, item in zip(pins, listed, strict=True) if known.get(item.name, set()).isdisjoint(item.hashes)]


def plan(lock: Lock, scratch: Path) -> subprocess.CompletedProcess[str]:
    """The plan of uv for an empty folder; shims are made there, since no index has them."""
    for shim in lock.spec.shims:
        content = shim_wheel.build(shim.name, shim.version, shim.why, shim.files)
        (scratch / shim_wheel.file_name(shim.name, shim.version)).write_bytes(content)
    beside = ["--find-links", str(scratch)] if lock.spec.shims else []
    packages = scratch / "requirements.txt"
    packages.write_text(lock.text, encoding="utf-8")
    return subprocess.run(
        [uv(), "pip", "install", "--dry-run", "--no-config", "--require-hashes", "--no-deps", "--no-build",
         "--target", str(scratch / "empty"), *target(lock.spec), *places(lock.spec), *beside,
         "--requirement", str(packages)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
