"""Locks: what an engine environment is made of, to the byte.

A lock is a folder ``environments/NAME`` with two files. ``lock.yml`` says what was wished for and for which Python and
platform; ``requirements.txt`` is what that became: one exact version and the sha256 of one file for every package.
What a shim carries beside its name lies in ``shims/NAME``.
The id of a lock is its name and a hash of what would be installed, so comments, order and blank lines do not matter.

Used on the controller only (the hosts get the text and the id): what it imports may import yaml.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .packages import normal_name
from .problems import Problems, did_you_mean, unknown
from .schema import Key, check
from .yaml_text import pairs

NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
PLATFORM = re.compile(r"manylinux_2_(?P<glibc>\d+)_(?P<machine>x86_64|aarch64)")
PYTHON = re.compile(r"3\.\d+")
PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^\]]*\])?==(?P<version>[A-Za-z0-9.!+_-]+)")
HASH = re.compile(r"--hash=sha256:(?P<hex>[0-9a-f]{64})")


class LockError(Exception):
    """A lock cannot be used; the text lists everything that is wrong with it, with file and line."""

    def __init__(self, text: str, found: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.found = list(found) or [text]


@dataclass(frozen=True)
class Requirement:
    """One package of a lock: an exact version and the hashes of the files that may be installed for it."""

    name: str
    version: str
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{digest}" for digest in self.hashes)])


@dataclass(frozen=True)
class Uv:
    """The pinned uv: the tool that builds environments, by processor."""

    version: str
    wheels: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Note:
    """A package that a lock adds, leaves out or takes otherwise by hand, and why.

    ``files`` are those that a shim carries: path in its wheel, and text.
    """

    name: str
    why: str
    version: str = ""
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Spec:
    """What ``lock.yml`` says."""

    name: str
    engine: str
    engine_version: str
    python: str
    platform: str
    requires: tuple[str, ...]
    overrides: tuple[Note, ...] = ()
    exclude: tuple[Note, ...] = ()
    bare: tuple[Note, ...] = ()
    shims: tuple[Note, ...] = ()
    local_index: str = ""
    installed_mib: int = 0
    download_mib: int = 0
    notes: str = ""

    @property
    def glibc(self) -> tuple[int, int]:
        """The oldest C library that the lock's files run with."""
        found = PLATFORM.fullmatch(self.platform)
        return (2, int(found["glibc"])) if found else (0, 0)

    @property
    def platforms(self) -> list[str]:
        """The platform tags of files that fit, best first."""
        glibc = [f"manylinux_2_{minor}" for minor in range(self.glibc[1], 4, -1)]
        return [f"{tag}_{self.machine}" for tag in (*glibc, "manylinux2014", "manylinux2010", "manylinux1", "linux")]

    @property
    def machine(self) -> str:
        """The processor's name, as ``uname -m`` writes it."""
        found = PLATFORM.fullmatch(self.platform)
        return found["machine"] if found else ""


@dataclass(frozen=True)
class Lock:
    """A whole lock: the wish and what it became."""

    spec: Spec
    requirements: tuple[Requirement, ...]

    @property
    def packages(self) -> dict[str, str]:
        """The version of each package, by its normal name: lower case, dashes."""
        return {one.name: one.version for one in self.requirements}

    @property
    def id(self) -> str:
        """The name and a hash of what would be installed."""
        return lock_id(self.spec, self.requirements)

    @property
    def text(self) -> str:
        """The requirements as one normal form: a line each, sorted, no comments."""
        return "".join(f"{requirement}\n" for requirement in self.requirements)

    @property
    def wheelhouse_only(self) -> tuple[str, ...]:
        """Packages that no package index has: they can only come from a wheelhouse."""
        return tuple(item.name for item in self.requirements if "+" in item.version)


def lock_id(spec: Spec, requirements: Iterable[Requirement]) -> str:
    """The id of a lock: ``NAME-`` and 12 hex digits over requirements, shims, Python minor and platform."""
    covered = {
        "python": spec.python,
        "platform": spec.platform,
        "shims": sorted([normal_name(shim.name), shim.version] for shim in spec.shims),
        "requirements": sorted([item.name, item.version, *sorted(item.hashes)] for item in requirements),
    }
    digest = hashlib.sha256(json.dumps(covered, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return f"{spec.name}-{digest[:12]}"


def parse_requirements(text: str, file: str, problems: Problems) -> tuple[Requirement, ...]:
    """Read a hash-locked requirements file; note everything that is wrong with it."""
    found: dict[str, Requirement] = {}
    for line, entry in _logical_lines(text):
        where = f"{file}:{line}"
        try:
            requirement = _requirement(entry)
        except ValueError as error:
            problems.add(where, "", str(error))
            continue
        if requirement.name in found:
            problems.add(where, requirement.name, "is listed twice")
        found[requirement.name] = requirement
    if not found and not problems:
        problems.add(file, "", "no requirements")
    return tuple(found[name] for name in sorted(found))


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Requirements with the line each begins on: comments and blank lines left out, continued lines joined."""
    entry, began = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        content = re.sub(r"(^|\s)#.*", "", raw).strip()
        began = began if entry else number
        entry = f"{entry} {content.rstrip(chr(92)).strip()}".strip()
        if entry and not content.endswith("\\"):
            yield began, entry
            entry = ""
    if entry:
        yield began, entry


def _requirement(entry: str) -> Requirement:
    """Read ``name==1.0 --hash=sha256:...``; raise a ValueError that says what is wrong."""
    subject, *rest = entry.split()
    if subject.startswith("-"):
        raise ValueError(f"{subject}: options have no place in a lock; the role says where files come from")
    pin = PIN.fullmatch(subject)
    if not pin:
        raise ValueError(f"{entry.partition(' --hash')[0]}: not an exact pin (name==version)")
    hashes = []
    for word in rest:
        digest = HASH.fullmatch(word)
        if not digest:
            raise ValueError(f"{subject}: {word!r} is not --hash=sha256: with 64 hex digits")
        hashes.append(digest["hex"])
    if not hashes:
        raise ValueError(f"{subject}: no --hash; nothing is installed that is not known to the byte")
    return Requirement(normal_name(pin["name"]), pin["version"], tuple(sorted(set(hashes))))


NOTE = {"name": Key("str", "name of the package", required=True), "why": Key("str", "the reason", required=True)}
SHIM = {**NOTE, "version": Key("str", "version that it claims", required=True)}
PINNED = {**NOTE, "version": Key("str", "its version", required=True)}
NOTES = ("overrides", "exclude", "bare", "shims")
KEYS = {
    "engine": Key("str", "the engine, or the router", required=True, choices=("sglang", "sglang-router", "vllm")),
    "engine_version": Key("str", 'its version, in quotes: "0.32.0"', required=True),
    "python": Key("str", 'the Python minor, in quotes: "3.12"', required=True),
    "platform": Key("str", "the oldest platform it runs on: manylinux_2_28_x86_64", required=True),
    "requires": Key("list", "what was wished for: [vllm==0.32.0]", required=True, values=Key("str", "a requirement")),
    "overrides": Key(
        "list",
        "packages taken in a version that others do not allow",
        values=Key("mapping", "a package", keys=PINNED),
    ),
    "exclude": Key("list", "packages left out by hand", values=Key("mapping", "a package", keys=NOTE)),
    "bare": Key("list", "packages taken without what they require", values=Key("mapping", "a package", keys=PINNED)),
    "shims": Key(
        "list", "packages made here: a name, and what shims/NAME holds", values=Key("mapping", "a package", keys=SHIM)
    ),
    "local_index": Key("str", "index of the versions with a local part (+cpu)"),
    "installed_mib": Key("int", "size on the host's disk", low=1),
    "download_mib": Key("int", "size of all files", low=1),
    "notes": Key("str", "what a person should know"),
}
UV_WHEEL = {
    "file": Key("str", "name of the wheel", required=True),
    "sha256": Key("str", "its hash", required=True),
}
UV_KEYS = {
    "version": Key("str", "version of uv, in quotes", required=True),
    "wheels": Key(
        "mapping", "a wheel for each processor", required=True, values=Key("mapping", "a wheel", keys=UV_WHEEL)
    ),
}
PATTERNS = {"python": PYTHON, "platform": PLATFORM, "local_index": re.compile(r"https://\S+")}


def parse_spec(text: str, name: str, file: str, problems: Problems) -> Spec | None:
    """Read ``lock.yml``; note everything that is wrong with it, and answer nothing then."""
    before = len(problems.found)
    if not NAME.fullmatch(name):
        problems.add(file, "", f'a lock may be named with a-z, 0-9, "." and "-" only, not "{name}"')
    values: dict[str, Any] = {}
    for line, key, value in pairs(text, file, problems):
        where = f"{file}:{line}"
        values[key] = value
        known = KEYS.get(key)
        if known is None:
            problems.add(where, key, f"unknown key{did_you_mean(key, KEYS)}; known: {', '.join(KEYS)}")
            continue
        check(value, known, where, key, problems)
        if key in PATTERNS and isinstance(value, str) and not PATTERNS[key].fullmatch(value):
            problems.add(where, key, f'"{value}" is not {known.about}')
    for key, known in KEYS.items():
        if known.required and key not in values:
            problems.add(file, key, f"is missing: {known.about}")
    if len(problems.found) > before:
        return None
    for key in NOTES:
        values[key] = tuple(Note(**item) for item in values.get(key, ()))
    return Spec(name=name, **{**values, "requires": tuple(values["requires"])})


def contradictions(spec: Spec, requirements: Iterable[Requirement], file: str, problems: Problems) -> None:
    """Note where ``lock.yml`` and ``requirements.txt`` do not fit each other."""
    versions = {item.name: item.version for item in requirements}
    wanted = {normal_name(note.name): note.version for note in (*spec.shims, *spec.overrides, *spec.bare)}
    wanted.setdefault(spec.engine, spec.engine_version)
    for name, version in wanted.items():
        if versions.get(name) != version:
            problems.add(file, name, f"is {versions.get(name, 'missing')}, and lock.yml says {version}")
    for note in spec.exclude:
        if normal_name(note.name) in versions:
            problems.add(file, note.name, f"is listed, and lock.yml leaves it out: {note.why}")


def find(name: str, root: Path) -> Path:
    """The folder of a lock: a name in ``environments/`` of the checkout ``root``, or a path, absolute or from there."""
    folder = root / name if "/" in name else root / "environments" / name
    if not folder.is_dir():
        raise LockError(
            unknown("lock", name, (file.parent.name for file in (root / "environments").glob("*/lock.yml")))
        )
    return folder


def load(folder: Path) -> Lock:
    """Read the lock in a folder; raise a LockError with everything that is wrong with it."""
    problems = Problems()
    file = folder / "requirements.txt"
    spec = _spec(folder, problems)
    requirements = parse_requirements(_read(file, problems), str(file), problems)
    if spec and requirements:
        contradictions(spec, requirements, str(file), problems)
    if problems or not spec:
        raise LockError(problems.report(f"the lock {folder} cannot be used"), problems.found)
    return Lock(spec, requirements)


def load_spec(folder: Path) -> Spec:
    """Read only ``lock.yml``: what a lock is to become."""
    problems = Problems()
    spec = _spec(folder, problems)
    if problems or not spec:
        raise LockError(problems.report(f"the lock {folder} cannot be used"))
    return spec


def load_uv(file: Path) -> Uv:
    """Read ``environments/uv.yml``; raise a LockError with everything that is wrong with it."""
    problems = Problems()
    values = {key: value for _, key, value in pairs(_read(file, problems), str(file), problems)}
    check(values, Key("mapping", "the pinned uv", keys=UV_KEYS), str(file), "", problems)
    if problems:
        raise LockError(problems.report("uv's pin cannot be used"))
    return Uv(**values)


def _spec(folder: Path, problems: Problems) -> Spec | None:
    file = folder / "lock.yml"
    text = _read(file, problems)
    spec = parse_spec(text, folder.resolve().name, str(file), problems) if text else None
    if not spec:
        return None
    shims = [replace(shim, files=_shim_files(folder / "shims" / shim.name, problems)) for shim in spec.shims]
    return replace(spec, shims=tuple(shims))


def _shim_files(folder: Path, problems: Problems) -> tuple[tuple[str, str], ...]:
    """What a shim carries: every file of its folder, by its path there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return tuple((path.relative_to(folder).as_posix(), _read(path, problems)) for path in paths)


def _read(file: Path, problems: Problems) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        problems.add(str(file), "", f"cannot be read: {error.strerror}")
        return ""
    except UnicodeDecodeError:
        problems.add(str(file), "", "is not UTF-8 text")
        return ""
    if not text.strip():
        problems.add(str(file), "", "is empty")
    return text
