#!/usr/bin/env python3
"""Make a lock's requirements.txt anew from what its lock.yml wishes for.

usage: tools/relock.py environments/NAME

uv resolves from package metadata, for the lock's Python and platform; nothing is installed, and no wheel is downloaded
that the index describes by itself. Of each package the one file is kept that fits the platform best.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import shim_wheel
import tomllib
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from ironserve.lock import LockError, Spec, load, load_spec  # noqa: E402  (needs the folder above)
from pip_settings import find_links, uv  # noqa: E402


def main() -> None:
    """Resolve, write requirements.txt, say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", type=Path, metavar="environments/NAME")
    folder = parser.parse_args().lock
    try:
        spec = load_spec(folder)
        packages = resolve(spec)
        (folder / "requirements.txt").write_text(requirements(spec, packages), encoding="utf-8")
        lock = load(folder)
    except (LockError, subprocess.CalledProcessError) as error:
        raise SystemExit(str(error)) from error
    size = sum(file.get("size", 0) for _, _, file in packages) / 2**20
    print(f"{lock.id}: {len(lock.requirements)} packages, {size:.0f} MiB of files whose size the index tells")


def resolve(spec: Spec) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, version and best file of every package, by uv."""
    with tempfile.TemporaryDirectory() as scratch:
        wish, leave_out, answer = (Path(scratch) / name for name in ("requires.in", "exclude.in", "pylock.toml"))
        wish.write_text("\n".join(spec.requires))
        leave_out.write_text("\n".join(note.name for note in spec.exclude))
        platform = "{}-manylinux_{}_{}".format(spec.machine, *spec.glibc)
        subprocess.run(
            [uv(), "pip", "compile", "--quiet", "--no-config", "--only-binary", ":all:",
             "--python-version", spec.python, "--python-platform", platform,
             *places(spec),
             "--excludes", str(leave_out), "--format", "pylock.toml", "--output-file", str(answer), str(wish)],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        found = tomllib.loads(answer.read_text(encoding="utf-8"))["packages"]
    order = {tag: rank for rank, tag in enumerate(tags(spec))}
    return [(item["name"], item["version"], best_file(item["wheels"], order)) for item in found]


def places(spec: Spec) -> list[str]:
    """Where uv looks beside the index. Only a lock that wants local versions (+cpu) may see them: they would win."""
    if not spec.local_index:
        return []
    known = find_links()
    if known:
        return [word for place in known for word in ("--find-links", place)]
    return ["--extra-index-url", spec.local_index, "--index-strategy", "unsafe-best-match"]


def tags(spec: Spec) -> list[Tag]:
    """The tags of files that fit, best first."""
    version = tuple(map(int, spec.python.split(".")))
    return [*cpython_tags(version, platforms=spec.platforms), *compatible_tags(version, platforms=spec.platforms)]


def best_file(files: list[dict[str, Any]], order: dict[Tag, int]) -> dict[str, Any]:
    """The file whose tag stands first in the order."""

    def rank(file: dict[str, Any]) -> int:
        return min((order[tag] for tag in parse_wheel_filename(wheel(file))[3] if tag in order), default=len(order))

    return min(files, key=rank)


def wheel(file: dict[str, Any]) -> str:
    """The name of a file in pylock.toml."""
    return str(file.get("name") or unquote(urlsplit(file.get("url") or file["path"]).path).rsplit("/", 1)[-1])


def requirements(spec: Spec, packages: list[tuple[str, str, dict[str, Any]]]) -> str:
    """The text of requirements.txt."""
    entries = [(name, version, file["hashes"]["sha256"]) for name, version, file in packages]
    for shim in spec.shims:
        content = shim_wheel.build(shim.name, shim.version, shim.why)
        entries.append((shim.name, shim.version, hashlib.sha256(content).hexdigest()))
    head = (
        f"# Made by tools/relock.py from lock.yml, for Python {spec.python} and {spec.platform}: one file a package.\n"
    )
    return head + "".join(
        f"{name}=={version} \\\n    --hash=sha256:{digest}\n" for name, version, digest in sorted(entries)
    )


if __name__ == "__main__":
    main()
