#!/usr/bin/env python3
"""Bring every file of a lock into a wheelhouse, for hosts that reach no package index.

usage: tools/wheelhouse.py [NAME] [--to FOLDER]

NAME is a lock of environments/, or the path of one.

Files land in FOLDER/LOCK-ID, uv's own wheel in FOLDER/uv; without a lock only uv's wheel is brought. Show FOLDER to the
hosts (a mount, a copy) and name it there in engine_environment_wheelhouse. Safe to repeat: files that are there and
whole are not asked for again, and with nothing missing the network is not touched.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import shim_wheel
from pip_settings import find_links

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from ironserve.lock import LockError, Requirement, Spec, find, load, load_uv  # noqa: E402  (needs the folder above)
from ironserve.slices import duration  # noqa: E402

INDEX = "wheelhouse.json"
AT_ONCE = 4
BATCH = 8
SAY_EVERY_S = 4.0


class FetchError(Exception):
    """A file could not be brought; the text is pip's own."""


@dataclass(frozen=True)
class Source:
    """Where pip is to look, in words and in options."""

    words: str
    options: tuple[str, ...]


class Wheelhouse:
    """A folder of wheels, and a file that says which of them were checked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, int | str]] = {}
        if (folder / INDEX).exists():
            self.files = json.loads((folder / INDEX).read_text(encoding="utf-8"))

    def hashes(self) -> set[str]:
        """The hashes of all files that are as they were when checked."""
        return {
            str(entry["sha256"]) for name, entry in self.files.items() if _stamp(self.folder / name, entry) == entry
        }

    def size(self) -> int:
        """Bytes of all checked files."""
        return sum(int(entry["size"]) for entry in self.files.values())

    def take(self, file: Path, wanted: set[str]) -> None:
        """Check a file and move it in."""
        digest = sha256(file)
        if digest not in wanted:
            raise FetchError(f"{file.name}: sha256 {digest} is not one that the lock allows")
        file.replace(self.folder / file.name)
        self.files[file.name] = _stamp(self.folder / file.name, {"sha256": digest})

    def save(self) -> None:
        """Write down what was checked."""
        draft = self.folder / f"{INDEX}.new"
        draft.write_text(json.dumps(self.files, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        draft.replace(self.folder / INDEX)


def _stamp(file: Path, entry: dict[str, int | str]) -> dict[str, int | str]:
    try:
        found = file.stat()
    except FileNotFoundError:
        return {}
    return {"sha256": entry["sha256"], "size": found.st_size, "mtime_ns": found.st_mtime_ns}


def sha256(file: Path) -> str:
    """The hash of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def alone(folder: Path) -> Iterator[Path]:
    """A scratch folder inside ``folder``, for one run at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SystemExit(f"{folder}: another run is filling it") from error
        scratch = folder / ".partial"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        yield scratch
        shutil.rmtree(scratch)


def download(batch: list[Requirement], spec: Spec, source: Source, scratch: Path) -> list[Path]:
    """Bring the files of a few requirements with pip, which knows this machine's index, proxy and certificates."""
    scratch.mkdir()
    listed = scratch / "requirements.txt"
    listed.write_text("".join(f"{item}\n" for item in batch), encoding="utf-8")
    files = scratch / "files"
    result = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir",
         "--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation", "cp",
         "--python-version", spec.python, *(f"--platform={tag}" for tag in spec.platforms),
         *source.options, "--dest", str(files), "--requirement", str(listed)],
        env={**os.environ, "TMPDIR": str(scratch), "LC_ALL": "C"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if not line.startswith("WARNING: Location")]
        raise FetchError("\n".join(errors) or f"pip ended with {result.returncode}")
    return sorted(files.iterdir())


def batches(requirements: list[Requirement]) -> list[list[Requirement]]:
    """A few requirements each: what one pip brings, and what an interrupted run loses at most."""
    return [requirements[start : start + BATCH] for start in range(0, len(requirements), BATCH)]


def fill(house: Wheelhouse, spec: Spec, missing: list[Requirement], total: int, scratch: Path) -> None:
    """Bring what is missing, several files at a time, with a line every few seconds."""
    began = said = time.monotonic()
    local = [item for item in missing if "+" in item.version]
    common = Source("the index", ())
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(from_local, item, spec, scratch / item.name) for item in local]
        running += [
            pool.submit(download, batch, spec, common, scratch / str(number))
            for number, batch in enumerate(batches([item for item in missing if item not in local]))
        ]
        waiting, failures = set(running), []
        wanted = {digest for item in missing for digest in item.hashes}
        while waiting:
            done, waiting = concurrent.futures.wait(waiting, timeout=1, return_when="FIRST_COMPLETED")
            for future in done:
                try:
                    for file in future.result():
                        house.take(file, wanted)
                except FetchError as error:
                    failures.append(str(error))
            house.save()
            if time.monotonic() - said >= SAY_EVERY_S:
                said = time.monotonic()
                print(progress(house, spec, total, scratch, said - began), flush=True)
    if failures:
        raise FetchError("\n".join(failures))


def from_local(item: Requirement, spec: Spec, scratch: Path) -> list[Path]:
    """Bring a version with a local part (+cpu): no common index has those."""
    places = find_links()
    if places:
        try:
            files = download([item], spec, Source("find-links", ("--no-index",)), scratch)
        except FetchError:
            shutil.rmtree(scratch)
        else:
            print(f"{item.name}=={item.version}: from pip's find-links ({' '.join(places)})", flush=True)
            return files
    if not spec.local_index:
        raise FetchError(f"{item.name}=={item.version}: not in pip's find-links, and lock.yml names no local_index")
    print(f"{item.name}=={item.version}: from {spec.local_index}", flush=True)
    return download([item], spec, Source(spec.local_index, ("--index-url", spec.local_index)), scratch)


def progress(house: Wheelhouse, spec: Spec, total: int, scratch: Path, elapsed_s: float) -> str:
    """One line: wheels and MiB so far."""
    coming = sum(size_of(file) for file in scratch.rglob("*"))
    whole = f" of {spec.download_mib}" if spec.download_mib else ""
    return f"{len(house.files)}/{total} wheels, {(house.size() + coming) / 2**20:.0f}{whole} MiB, {duration(elapsed_s)}"


def size_of(file: Path) -> int:
    """Bytes of a file that another process may remove at any moment."""
    try:
        return file.stat().st_size if file.is_file() else 0
    except FileNotFoundError:
        return 0


def bring(folder: Path, spec: Spec, requirements: tuple[Requirement, ...]) -> Wheelhouse:
    """Fill ``folder`` with the files of the requirements."""
    house = Wheelhouse(folder)
    have = house.hashes()
    missing = [item for item in requirements if have.isdisjoint(item.hashes)]
    if not missing:
        return house
    with alone(folder) as scratch:
        shims = {shim.name: shim for shim in spec.shims}
        for item in [item for item in missing if item.name in shims]:
            shim = shims[item.name]
            file = scratch / shim_wheel.file_name(shim.name, shim.version)
            file.write_bytes(shim_wheel.build(shim.name, shim.version, shim.why, shim.files))
            house.take(file, set(item.hashes))
            missing.remove(item)
        fill(house, spec, missing, len(requirements), scratch)
    return house


def main() -> None:
    """Bring uv, then the lock's files, and say where they lie."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", nargs="?", metavar="NAME")
    parser.add_argument("--to", type=Path, default=ROOT / ".ironserve" / "wheelhouse", metavar="FOLDER")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        pin = load_uv(ROOT / "environments" / "uv.yml")
        lock = load(find(options.lock, ROOT)) if options.lock else None
        for machine, wheel in pin.wheels.items():
            if lock is None or machine == lock.spec.machine:
                spec = Spec("uv", "", pin.version, "3.12", f"manylinux_2_28_{machine}", ())
                bring(options.to / "uv", spec, (Requirement("uv", pin.version, (wheel["sha256"],)),))
        if lock:
            house = bring(options.to / lock.id, lock.spec, lock.requirements)
            print(
                f"{house.folder}: {len(lock.requirements)} wheels, {house.size() / 2**20:.0f} MiB, "
                f"all checked ({duration(time.monotonic() - began)})"
            )
    except LockError as error:
        raise SystemExit(str(error)) from error
    except FetchError as error:
        raise SystemExit(f"{error}\nRun the same command again: what has come stays.") from error


if __name__ == "__main__":
    main()
