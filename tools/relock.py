#!/usr/bin/env python3
"""Make a lock's requirements.txt anew from what its lock.yml wishes for.

usage: tools/relock.py NAME [--upgrade]

NAME is a lock of environments/, or the path of one.

uv resolves from package metadata, for the lock's Python and platform; nothing is installed, and no wheel is downloaded
that the index describes by itself. Of each package the one file is kept that fits the platform best. Versions that are
locked stay as long as lock.yml allows them; with --upgrade every package gets its newest one that fits.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import shim_wheel
import tomllib
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from ironserve.lock import (  # noqa: E402  (needs the folder above)
    LockError,
    Requirement,
    Spec,
    find,
    load,
    load_spec,
    parse_requirements,
)
from ironserve.problems import Problems  # noqa: E402
from pip_settings import find_links, uv  # noqa: E402

Package = tuple[str, str, dict[str, Any]]
"""Name, version and best file."""


class UnresolvedError(Exception):
    """There is no set of files that lock.yml allows; the text is uv's own."""


def main() -> None:
    """Resolve, write requirements.txt, say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", metavar="NAME")
    parser.add_argument("--upgrade", action="store_true")
    options = parser.parse_args()
    try:
        print(relock(find(options.lock, ROOT), options.upgrade)[0])
    except (LockError, UnresolvedError) as error:
        raise SystemExit(str(error)) from error


def relock(folder: Path, upgrade: bool = False) -> tuple[str, int]:
    """Resolve the lock in a folder and write its requirements.txt; say what came out, and the MiB of its files."""
    spec, file = load_spec(folder), folder / "requirements.txt"
    locked = file.read_text(encoding="utf-8") if file.exists() else ""
    kept = () if upgrade or not locked else parse_requirements(locked, str(file), Problems())
    packages = resolve(spec, kept)
    text = requirements(spec, packages)
    if text != locked:
        file.write_text(text, encoding="utf-8")
    lock = load(folder)
    size = -(-sum(found.get("size", 0) for _, _, found in packages) // 2**20)
    state = "as before" if text == locked else "written"
    return f"{lock.id}: {len(lock.requirements)} packages, {size} MiB as far as the index tells; {state}", size


def resolve(spec: Spec, kept: Sequence[Requirement] = ()) -> list[Package]:
    """Every package that the wish leads to, by uv; versions in ``kept`` are preferred to newer ones."""
    overrides = [f"{note.name}=={note.version}" for note in spec.overrides]
    found = compile_with_uv(spec, spec.requires, overrides, [note.name for note in spec.exclude], kept)
    if spec.bare:
        pins = [f"{note.name}=={note.version}" for note in spec.bare]
        found += compile_with_uv(spec, pins, [], [], (), "--no-deps")
    order = {tag: rank for rank, tag in enumerate(tags(spec))}
    return [(item["name"], item["version"], best_file(item["wheels"], order)) for item in found]


def compile_with_uv(
    spec: Spec,
    requires: Sequence[str],
    overrides: Sequence[str],
    exclude: Sequence[str],
    kept: Sequence[Requirement],
    *options: str,
) -> list[dict[str, Any]]:
    """What uv makes of a wish: the packages of its pylock.toml."""
    with tempfile.TemporaryDirectory() as scratch:
        wish, other, leave_out, answer = (
            Path(scratch) / name for name in ("requires.in", "overrides.in", "exclude.in", "pylock.toml")
        )
        wish.write_text("\n".join(requires))
        other.write_text("\n".join(overrides))
        leave_out.write_text("\n".join(exclude))
        if kept:
            answer.write_text(preferences(kept))
        done = subprocess.run(
            [uv(), "pip", "compile", "--quiet", "--no-config", "--only-binary", ":all:", *target(spec),
             *places(spec), *options, "--overrides", str(other), "--excludes", str(leave_out),
             "--format", "pylock.toml", "--output-file", str(answer), str(wish)],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise UnresolvedError(done.stderr.strip())
        packages: list[dict[str, Any]] = tomllib.loads(answer.read_text(encoding="utf-8"))["packages"]
        return packages


def preferences(kept: Sequence[Requirement]) -> str:
    """A pylock.toml of versions and nothing else: uv takes those of an earlier answer where they still fit."""
    entries = (f'[[packages]]\nname = "{item.name}"\nversion = "{item.version}"\n' for item in kept)
    return 'lock-version = "1.0"\ncreated-by = "ironserve"\n' + "".join(entries)


def target(spec: Spec) -> list[str]:
    """The Python and the platform that uv is to resolve for; --python only spares it a search for one to run."""
    platform = "{}-manylinux_{}_{}".format(spec.machine, *spec.glibc)
    return ["--python", sys.executable, "--python-version", spec.python, "--python-platform", platform]


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


def requirements(spec: Spec, packages: list[Package]) -> str:
    """The text of requirements.txt."""
    entries = [(name, version, file["hashes"]["sha256"]) for name, version, file in packages]
    for shim in spec.shims:
        content = shim_wheel.build(shim.name, shim.version, shim.why, shim.files)
        entries.append((shim.name, shim.version, hashlib.sha256(content).hexdigest()))
    head = (
        f"# Made by tools/relock.py from lock.yml, for Python {spec.python} and {spec.platform}: one file a package.\n"
    )
    return head + "".join(
        f"{name}=={version} \\\n    --hash=sha256:{digest}\n" for name, version, digest in sorted(entries)
    )


if __name__ == "__main__":
    main()
