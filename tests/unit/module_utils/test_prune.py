"""What a host may forget, and that letting it go is whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import builds, prune
from ansible.module_utils.ironserve.prune import Environment, Found, Leftover, Release, decide

NOW = 1_000_000.0
DAY = 86_400.0
ROOT = Path("/opt/ironserve/engines")
GIB = 2**30


def env(name: str, days: float, ours: bool = True) -> Environment:
    return Environment(ROOT / name, GIB, NOW - days * DAY, ours)


def release(name: str, days: float, *environments: str, roles: tuple[str, ...] = (), service: str = "main") -> Release:
    path = Path(f"/var/lib/ironserve/{service}/releases/{name}")
    return Release(service, path, 1024, NOW - days * DAY, frozenset(environments), roles)


def gone(found: Found, keep: int = 0) -> set[str]:
    return {path.name for path, _, _ in decide(found, keep, NOW).removed}


def why(found: Found, name: str, keep: int = 0) -> str:
    plan = decide(found, keep, NOW)
    return next(why for path, _, why in [*plan.kept, *plan.removed] if path.name == name)


def test_what_active_and_last_known_good_of_any_service_need_stays():
    found = Found(
        [env("a", 9), env("b", 9), env("c", 9), env("d", 9)],
        [
            release("r1", 9, "a", roles=("active",)),
            release("r2", 9, "b", roles=("last-known-good",)),
            release("r3", 9, "c", roles=("active", "last-known-good"), service="other"),
            release("r4", 9, "d"),
        ],
    )
    assert gone(found) == {"d", "r4"}
    assert why(found, "c") == "active and last-known-good of other"


def test_what_a_unit_names_or_a_process_runs_from_stays():
    found = Found(
        [env("a", 9), env("b", 9), env("c", 9)],
        units={ROOT / "a": "ironserve-main.service names it"},
        processes={ROOT / "b": "process 7 runs from it"},
    )
    assert gone(found) == {"c"}
    assert why(found, "b") == "process 7 runs from it"


def test_the_newest_others_stay_as_many_as_are_asked_for():
    found = Found(
        [env("a", 1), env("b", 2), env("c", 3), env("needed", 9)], [release("r", 9, "needed", roles=("active",))]
    )
    assert gone(found, keep=2) == {"c"}
    assert gone(found, keep=1) == {"b", "c"}
    assert gone(found, keep=9) == set()
    assert why(found, "a", keep=2) == "one of the newest 2 beside those that are needed"


def test_an_old_environment_that_was_staged_for_again_is_a_new_one():
    found = Found([env("old", 30), env("newer", 3)], [release("r", 1, "old")])
    assert gone(found, keep=1) == {"newer"}


def test_a_release_goes_with_its_environment_and_keeps_none():
    found = Found([env("a", 3), env("b", 2)], [release("r1", 5, "a"), release("r2", 4, "b")])
    assert gone(found, keep=1) == {"a", "r1"}
    assert why(found, "r1", keep=1) == "its environment is not kept"


def test_a_set_number_of_releases_stays_for_each_service():
    releases = [release(f"{service}{day}", day, service=service) for service in ("x", "y") for day in (1, 2, 3)]
    assert gone(Found(releases=releases), keep=2) == {"x3", "y3"}


def test_a_deploy_under_way_loses_nothing():
    found = Found(
        [env("just-built", 0.01), env("to-be-used", 9)],
        [release("staged", 0.01, "to-be-used")],
        [Leftover(ROOT / ".building/x", 1, NOW - 60, "a build that came to nothing")],
    )
    assert gone(found) == set()
    assert why(found, "to-be-used") == "built or staged for less than an hour ago"


def test_leftovers_go_unless_somebody_is_at_them():
    broken = ROOT / ".broken/b"
    found = Found(
        leftovers=[
            Leftover(broken, 1, 0, "broken, and built again since"),
            Leftover(ROOT / ".building/x", 1, 0, "a build that came to nothing"),
            Leftover(ROOT / ".building/y", 1, 0, "a build that came to nothing", "a build is under way"),
        ],
        processes={broken: "process 7 runs from it"},
    )
    assert gone(found) == {"x"}


def test_a_process_in_a_broken_one_does_not_keep_the_one_that_replaced_it():
    found = Found([env("b", 9)], processes={ROOT / ".broken/b": "process 7 runs from it"})
    assert gone(found) == {"b"}


def test_what_ironserve_did_not_make_is_left_alone():
    found = Found([env("notes", 99, ours=False)])
    assert gone(found) == set()
    assert "remove it by hand" in why(found, "notes")


def test_sizes_are_told():
    result = decide(Found([env("a", 9), env("b", 9)]), 0, NOW).result()
    assert result["changed"]
    assert result["freed_mib"] == 2048
    assert result["removed"][0] == {"path": str(ROOT / "a"), "mib": 1024, "why": "no release that is kept needs it"}
    assert decide(Found(), 0, NOW).result() == {"changed": False, "removed": [], "kept": [], "freed_mib": 0}


class Host:
    """A folder that stands for a host; everything in it is days old."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root, self.state = folder / "engines", folder / "state"
        self.units, self.processes = folder / "units", folder / "proc"
        for path in (self.root, self.state, self.units, self.processes):
            path.mkdir()
        self.running: set[str] = set()
        self.pruner = prune.Pruner(self.root, self.state, self.units, self.processes, self.show)

    def show(self, unit: str) -> dict[str, str]:
        return {"ActiveState": "activating" if unit in self.running else "inactive"}

    def env(self, name: str) -> Path:
        path = self.root / name
        (path / "bin").mkdir(parents=True)
        (path / "bin" / "python").write_text("x" * 2**20)
        (path / "ironserve.json").write_text(json.dumps({"lock_id": name}))
        os.utime(path / "ironserve.json", (0, 0))
        return path

    def release(self, name: str, environment: str, *links: str, service: str = "main") -> Path:
        path = self.state / service / "releases" / name
        path.mkdir(parents=True)
        (path / "release.json").write_text(json.dumps({"environment": f"{self.root}/{environment}"}))
        for link in links:
            (self.state / service / link).symlink_to(f"releases/{name}")
        os.utime(path, (0, 0))
        return path

    def left(self, *parts: str) -> Path:
        path = self.root.joinpath(*parts)
        path.mkdir(parents=True)
        os.utime(path, (0, 0))
        return path

    def process(self, pid: int, file: str, text: str) -> None:
        (self.processes / str(pid)).mkdir()
        (self.processes / str(pid) / file).write_text(text)

    def prune(self, keep: int = 0) -> set[str]:
        planned = self.pruner.plan(keep, NOW).result()
        assert self.pruner.carry_out(keep, NOW).result() == planned
        return {str(Path(item["path"]).relative_to(self.folder)) for item in planned["removed"]}


@pytest.fixture
def target(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_what_nothing_needs_is_gone_from_the_disk_and_the_rest_is_as_it_was(target: Host):
    needed, old = target.env("needed"), target.env("old")
    active, older = target.release("r2", "needed", "active", "last-known-good"), target.release("r1", "old")
    assert target.prune() == {"engines/old", "state/main/releases/r1"}
    assert (needed / "bin" / "python").exists()
    assert (active / "release.json").exists()
    assert not old.exists()
    assert sorted(path.name for path in older.parent.iterdir()) == ["r2"]
    assert list((target.root / ".trash").iterdir()) == []
    assert target.prune() == set()


def test_the_plan_touches_nothing(target: Host):
    target.env("old")
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in target.folder.rglob("*"))
    assert target.pruner.plan(0, NOW).removed
    assert sorted((str(path), path.lstat().st_mtime_ns) for path in target.folder.rglob("*")) == before


def test_a_unit_file_keeps_what_it_names(target: Host):
    target.env("named")
    unit = f'[Service]\nEnvironment="PATH={target.root}/named/bin:/usr/bin"\n'
    (target.units / "ironserve-main.service").write_text(unit)
    assert target.prune() == set()


@pytest.mark.parametrize(
    ("file", "text"),
    [("cmdline", "{root}/used/bin/python3\0-m\0x"), ("maps", "7f0-7f1 r-xp 0 08:01 5   {root}/used/lib/a.so\n")],
)
def test_a_process_keeps_what_it_runs_from_whatever_its_title_is(target: Host, file: str, text: str):
    target.env("used")
    target.process(7, file, text.format(root=target.root))
    assert target.prune() == set()


def test_a_removal_that_was_interrupted_is_finished_by_the_next(target: Host, monkeypatch):
    target.env("old")
    target.release("r1", "old")
    with monkeypatch.context() as patch:
        patch.setattr(prune.shutil, "rmtree", lambda path: (_ for _ in ()).throw(OSError("the power went")))
        with pytest.raises(OSError, match="the power went"):
            target.pruner.carry_out(0, NOW)
    assert not (target.root / "old").exists()
    assert target.prune() == {"engines/.trash/old", "state/main/releases/.removed-r1"}
    assert list((target.root / ".trash").iterdir()) == []


def test_leftovers_of_builds_go_but_not_those_of_one_under_way(target: Host):
    target.left(".building", "dead")
    target.left(".building", "alive")
    target.left(".broken", "bad")
    target.running.add("ironserve-environment-alive.service")
    assert target.prune() == {"engines/.building/dead", "engines/.broken/bad"}


def test_only_the_newest_uv_stays_and_all_while_something_is_built(target: Host):
    target.left(".uv", "1.0")
    os.utime(target.left(".uv", "2.0"), (9, 9))
    target.left(".building", "alive")
    target.running.add("ironserve-environment-alive.service")
    assert target.prune() == set()
    shutil.rmtree(target.root / ".building" / "alive")
    assert target.prune() == {"engines/.uv/1.0"}


def test_nothing_goes_while_a_build_begins_or_ends(target: Host):
    old = target.env("old")
    pruning = threading.Thread(target=target.prune)
    with builds.alone(target.root):
        pruning.start()
        pruning.join(0.2)
        assert old.exists()
    pruning.join(30)
    assert not old.exists()


def test_a_host_without_ironserve_has_nothing_to_prune(tmp_path: Path):
    pruner = prune.Pruner(tmp_path / "none", tmp_path / "no-state", tmp_path / "no-units", tmp_path)
    assert pruner.carry_out(0, NOW).result()["changed"] is False
    assert list(tmp_path.iterdir()) == []


def test_what_a_rollback_puts_back_stays_before_what_is_newer():
    back = Release("main", Path("/r/back"), 1, NOW - 9 * DAY, frozenset({"old"}), (), way_back=True)
    found = Found(
        [env("now", 9), env("old", 9), env("new", 2)],
        [release("active", 9, "now", roles=("active", "last-known-good")), back, release("failed", 2, "new")],
    )
    assert gone(found, keep=1) == {"new", "failed"}
    assert gone(found, keep=0) == {"new", "failed", "old", "back"}
