"""What a host may forget: engine environments and staged releases that nothing needs any more.

Needed is what ``active`` or ``last-known-good`` of any service leads to, what a unit of Ironserve's names, and what a
process runs from. Of the rest a set number stays, first what a rollback would put back and then the newest, and
whatever is younger than an hour: a deploy may be under way, and a release that it has staged keeps an old
environment. Between the look at an old environment and the staging are seconds; one that is removed just then is
missed when the unit is verified, before anything is touched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import builds, environment, host, ledger, revert, systemd

GRACE_S = 3600.0
"""Younger than this, nothing goes."""
LINKS = ("active", "last-known-good")


@dataclass(frozen=True)
class Environment:
    """A finished environment.

    Attributes:
        path: where it lies.
        size: its bytes.
        built_at: when it was built.
        ours: it has a manifest of its name. Anything else is not touched.
    """

    path: Path
    size: int
    built_at: float
    ours: bool


@dataclass(frozen=True)
class Release:
    """A staged release.

    Attributes:
        service: whose it is.
        path: where it lies.
        size: its bytes.
        staged_at: when.
        environments: those that it refers to, by name.
        roles: which of the service's links lead to it.
        way_back: it is what a rollback would put back.
    """

    service: str
    path: Path
    size: int
    staged_at: float
    environments: frozenset[str]
    roles: tuple[str, ...]
    way_back: bool = False


@dataclass(frozen=True)
class Leftover:
    """Something that is of no use to anybody but a person who looks into it.

    Attributes:
        path: where it lies.
        size: its bytes.
        left_at: when it was left.
        why: what it is.
        busy: why it cannot go, or empty.
    """

    path: Path
    size: int
    left_at: float
    why: str
    busy: str = ""


@dataclass(frozen=True)
class Found:
    """What is on the host; ``units`` and ``processes`` say by an environment's path who uses it."""

    environments: Sequence[Environment] = ()
    releases: Sequence[Release] = ()
    leftovers: Sequence[Leftover] = ()
    units: Mapping[Path, str] = field(default_factory=dict)
    processes: Mapping[Path, str] = field(default_factory=dict)


@dataclass
class Plan:
    """What goes and what stays, each with its bytes and the reason."""

    removed: list[tuple[Path, int, str]] = field(default_factory=list)
    kept: list[tuple[Path, int, str]] = field(default_factory=list)

    def judge(self, path: Path, size: int, stays: str, goes: str) -> None:
        """Note a thing: it stays where there is a reason to, else it goes."""
        (self.kept if stays else self.removed).append((path, size, stays or goes))

    def result(self) -> dict[str, Any]:
        """The module's answer, JSON-plain."""
        return {
            "changed": bool(self.removed),
            "removed": [_row(*item) for item in self.removed],
            "kept": [_row(*item) for item in self.kept],
            "freed_mib": _mib(sum(size for _, size, _ in self.removed)),
        }


def _row(path: Path, size: int, why: str) -> dict[str, Any]:
    return {"path": str(path), "mib": _mib(size), "why": why}


def _mib(size: int) -> float:
    return round(size / 2**20, 1)


def decide(found: Found, keep: int, now: float) -> Plan:
    """What goes, when ``keep`` environments beside the needed ones are to stay, and as many releases a service."""
    plan = Plan()
    stay = _environments_that_stay(found, keep, now)
    for env in found.environments:
        plan.judge(env.path, env.size, stay.get(env.path.name, ""), "no release that is kept needs it")
    for service in sorted({release.service for release in found.releases}):
        mine = [release for release in found.releases if release.service == service]
        _judge_releases(plan, mine, set(stay), keep, now)
    for left in found.leftovers:
        used = found.processes.get(left.path, "")
        young = f"{left.why}, less than an hour ago" if now - left.left_at < GRACE_S else ""
        plan.judge(left.path, left.size, left.busy or used or young, left.why)
    return plan


def _environments_that_stay(found: Found, keep: int, now: float) -> dict[str, str]:
    """The names of the environments that stay, with the first reason of each."""
    stay: dict[str, str] = {}
    last: dict[str, float] = {}
    for release in found.releases:
        for name in release.environments:
            last[name] = max(last.get(name, 0.0), release.staged_at)
            if release.roles:
                stay.setdefault(name, f"{' and '.join(release.roles)} of {release.service}")
    way_back = {name for release in found.releases if release.way_back for name in release.environments}
    others = []
    for env in found.environments:
        wanted_at = max(env.built_at, last.get(env.path.name, 0.0))
        user = found.units.get(env.path) or found.processes.get(env.path)
        if user:
            stay.setdefault(env.path.name, user)
        elif not env.ours:
            stay.setdefault(
                env.path.name, f"has no {environment.MANIFEST} of its name: remove it by hand if it is nobody's"
            )
        elif now - wanted_at < GRACE_S:
            stay.setdefault(env.path.name, "built or staged for less than an hour ago")
        elif env.path.name not in stay:
            others.append((env.path.name in way_back, wanted_at, env.path.name))
    for *_, name in sorted(others, reverse=True)[:keep]:
        stay[name] = f"one of the newest {keep} beside those that are needed"
    return stay


def _judge_releases(plan: Plan, releases: Sequence[Release], stay: set[str], keep: int, now: float) -> None:
    """The releases of one service: first what a rollback puts back, then the newest."""
    room = keep
    for release in sorted(releases, key=lambda item: (item.way_back, item.staged_at), reverse=True):
        stays, goes = " and ".join(release.roles), "an older release"
        if not stays and now - release.staged_at < GRACE_S:
            stays = "staged less than an hour ago"
        elif not stays and not release.environments <= stay:
            goes = "its environment is not kept"
        elif not stays and room > 0:
            stays, room = f"one of the newest {keep} beside those that are needed", room - 1
        plan.judge(release.path, release.size, stays, goes)


class Pruner:
    """The environments and releases of this host."""

    def __init__(
        self,
        root: Path,
        state: Path = host.STATE,
        units: Path = Path(systemd.UNIT_DIRECTORY),
        processes: Path = Path("/proc"),
        show: Callable[[str], Mapping[str, str]] = host.show,
    ) -> None:
        self.root, self.state, self.units, self.processes, self.show = root, state, units, processes, show
        self.trash = root / ".trash"

    def plan(self, keep: int, now: float) -> Plan:
        """What would go; touches nothing."""
        return decide(self.look(), keep, now)

    def carry_out(self, keep: int, now: float) -> Plan:
        """Let go what is not needed: first out of its place, by one rename each, and then from the disk.

        Builds are begun and finished under the same lock. A run that is killed leaves nothing that is half there under
        its name; the next one finds the rest among the leftovers.
        """
        with builds.alone(self.root) if self.root.is_dir() else nullcontext():
            plan = self.plan(keep, now)
            aside = [self._put_aside(path) for path, _, _ in plan.removed]
        for path in aside:
            shutil.rmtree(path)
        return plan

    def _put_aside(self, path: Path) -> Path:
        """Rename within the same file system; what is aside already stays where it is."""
        if path.parent == self.trash or path.name.startswith((".removed-", ".staging-")):
            return path
        if self.root in path.parents:
            self.trash.mkdir(mode=0o700, exist_ok=True)
            target = self.trash / "-".join(path.relative_to(self.root).parts)
        else:
            target = path.with_name(f".removed-{path.name}")
        if target.exists():
            shutil.rmtree(target)
        path.rename(target)
        return target

    def look(self) -> Found:
        """What is on the host."""
        return Found(
            [self._environment(path) for path in _folders(self.root) if not path.name.startswith(".")],
            [self._release(path) for path in self._staged() if not path.name.startswith(".")],
            [*self._leftovers(), *self._left_by_deploys()],
            self._named_by_units(),
            self._run_by_processes(),
        )

    def _environment(self, path: Path) -> Environment:
        manifest = path / environment.MANIFEST
        try:
            ours = json.loads(host.read_text(manifest) or "{}").get("lock_id") == path.name
        except (ValueError, AttributeError):
            ours = False
        return Environment(path, builds.size_of(path), _time(manifest if ours else path), ours)

    def _staged(self) -> Iterator[Path]:
        for service in _folders(self.state):
            yield from _folders(service / "releases")

    def _release(self, path: Path) -> Release:
        service = path.parents[1]
        text = "\n".join(host.read_text(file) or "" for file in path.iterdir() if file.is_file())
        roles = tuple(link for link in LINKS if host.link_target(service / link) == path.name)
        names, way_back = frozenset(self._names_in(text)), path.name == self._way_back(service)
        return Release(service.name, path, builds.size_of(path), _time(path), names, roles, way_back)

    def _way_back(self, service: Path) -> str:
        """Folder of the release that a rollback of the service would put back."""
        active, good = (host.link_target(service / link) for link in LINKS)
        staged: dict[str, dict[str, Any]] = {path.name: {} for path in _folders(service / "releases")}
        return revert.choose(ledger.read(service / "ledger.jsonl"), staged, active, good, other=True)

    def _names_in(self, text: str) -> set[str]:
        """The environments of this root that a text mentions."""
        return set(re.findall(rf"{re.escape(str(self.root))}/([^/\s\"':.][^/\s\"':]*)", text))

    def _leftovers(self) -> Iterator[Leftover]:
        building = []
        for path in _folders(self.root / ".building"):
            state = environment.build_state(self.show(environment.unit_of(path.name)))
            busy = "" if state in ("none", "failed") else "a build is under way"
            building.append(busy)
            yield Leftover(path, builds.size_of(path), _time(path), "a build that came to nothing", busy)
        for path in _folders(self.root / ".broken"):
            yield Leftover(path, builds.size_of(path), 0.0, "broken, and built again since")
        for path in _folders(self.root.parent / "flags"):  # what a parser answered, beside the environments
            if not (self.root / path.name).is_dir():
                yield Leftover(path, builds.size_of(path), _time(path), "answers of a parser that is gone")
        for path in _folders(self.trash):
            yield Leftover(path, builds.size_of(path), 0.0, "an interrupted removal")
        versions = sorted(_folders(self.root / ".uv"), key=_time)
        for path in versions[:-1]:
            yield Leftover(path, builds.size_of(path), 0.0, "an older uv", next(filter(None, building), ""))

    def _left_by_deploys(self) -> Iterator[Leftover]:
        for path in self._staged():
            if path.name.startswith(".removed-"):
                yield Leftover(path, builds.size_of(path), 0.0, "an interrupted removal")
            elif path.name.startswith(".staging-"):
                yield Leftover(path, builds.size_of(path), _time(path), "an interrupted deploy")

    def _named_by_units(self) -> dict[Path, str]:
        """Environments that a unit file of Ironserve's names, enabled or not."""
        found = {}
        for file in sorted(self.units.glob("ironserve-*.service")):
            for name in self._names_in(host.read_text(file) or ""):
                found[self.root / name] = f"{file.name} names it"
        return found

    def _run_by_processes(self) -> dict[Path, str]:
        """Environments that a process has files of in its memory, or was started from, wherever they lie by now."""
        roots = "|".join(re.escape(str(root)) for root in {self.root, self.root.resolve()})
        pattern = re.compile(rf"(?:{roots})/((?:\.broken/)?[^./\s\0][^/\s\0]*)/".encode())
        found = {}
        for process in self.processes.iterdir():
            if not process.name.isdigit():
                continue
            for file in ("cmdline", "maps"):
                try:
                    text = (process / file).read_bytes()
                except OSError:
                    continue  # it has ended meanwhile
                for name in pattern.findall(text):
                    found[self.root / os.fsdecode(name)] = f"process {process.name} runs from it"
        return found


def _folders(parent: Path) -> list[Path]:
    """The folders in a folder, none where it is not there; links are not followed."""
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())


def _time(path: Path) -> float:
    return path.stat().st_mtime
