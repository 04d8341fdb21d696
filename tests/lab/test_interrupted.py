"""A deploy that is cut off anywhere is finished by the next one; a host that cannot be written to is told before."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT, UNIT, Fleet, lines_with, recap, standin_hosts


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1, which sees the stand-in's wheelhouse."""
    return standin_hosts(make_lab("-cut"), 1)


@pytest.fixture
def fleet(hosts, tmp_path):
    fleet = Fleet(hosts, tmp_path)
    fleet.model("h1")
    fleet.play()
    return fleet


def deploy_until(fleet: Fleet, profile: str, task: int) -> str:
    """Start a deploy and kill the controller when it comes to its task number ``task``; the task's name."""
    run = subprocess.Popen(
        fleet.command("-e", f"profile={profile}"),
        cwd=ROOT, env=fleet.environment(), stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    name, seen = "", 0
    for line in run.stdout or ():
        seen += line.startswith("TASK [")
        if seen == task:
            name = re.sub(r"^TASK \[(.*)\].*", r"\1", line.strip())
            os.killpg(run.pid, signal.SIGKILL)  # lint_kill: the run's own group, it has a session of its own
            break
    run.communicate()
    return name


PROVEN = """
cd /var/lib/ironserve/main
[ "$(readlink active)" = "$(readlink last-known-good)" ] && grep -q '"profile": "PROFILE"' active/release.json
systemctl is-enabled --quiet UNIT && systemctl is-active --quiet UNIT && systemctl show -p Restart UNIT | grep -q always
""".replace("UNIT", UNIT)


EVERY = 1 if "IRONSERVE_KILLS" in os.environ else 6
"""At one task of so many the controller is killed, and where the release changes hands; ``make soak-fleet``: at all."""

CHANGES_HANDS = {"serve : Activate the release", "serve : Mark the release as proven"}
DOES_NOTHING = re.compile(r"^(included|skipping): |Validating arguments", re.MULTILINE)
"""Tasks that are skipped or only lead to others, by what is printed of them."""


@pytest.mark.timeout(1200)  # a deploy cut off and a whole one for each task
def test_a_controller_that_is_killed_at_any_task_is_no_obstacle_to_the_next_run(fleet):
    fleet.profile("whole", flags={"max-num-seqs": 100})
    output = fleet.play("-e", "profile=whole").stdout
    _, *tasks = output.split("\nTASK [")
    writing = next(number for number, task in enumerate(tasks, 1) if "Have the engine environments" in task)
    does = [number for number in range(writing, len(tasks)) if not DOES_NOTHING.search(tasks[number - 1])]
    changes = [number for number in does if tasks[number - 1].partition("]")[0] in CHANGES_HANDS]
    reached = []
    # The end of validate, and the last task. A task that only leads to others leaves the state as it was.
    for number in sorted({writing - 1, *does[::EVERY], *changes, len(tasks)}):
        profile = f"cut{number}"
        fleet.profile(profile, flags={"max-num-seqs": number})
        before = fleet.written("h1")
        reached.append(deploy_until(fleet, profile, number))
        if number < writing:  # nothing was touched before
            assert fleet.written("h1") == before
        fleet.play("-e", f"profile={profile}")
        assert fleet.flag("h1", "--max-num-seqs") == str(number), f"killed at {reached[-1]}"
        proven = fleet.lab.exec("h1", ["sh", "-ec", PROVEN.replace("PROFILE", profile)], check=False)
        assert proven.returncode == 0, f"killed at {reached[-1]}"
    assert reached[-1], "the last deploy was not cut off"
    assert set(reached) >= CHANGES_HANDS
    assert recap(fleet.play("-e", f"profile=cut{len(tasks)}").stdout, "h1")["changed"] == 0


FOLDERS = ["/var/lib/ironserve", "/var/log/ironserve", "/etc/systemd/system", "/run/ironserve"]


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_folders_that_cannot_be_written_are_all_named_before_anything_is_touched(fleet, how):
    pid, completion = fleet.main_pid("h1"), fleet.complete("h1")
    fleet.profile("other", flags={"max-num-seqs": 9})
    mount = "mount -t tmpfs -o size=16m,mode=755 cover"
    for folder in FOLDERS:
        # A copy of the folder in a small file system of its own, full to the last block or read-only.
        cover = f"cp -a {folder} /tmp/copy && {mount} {folder} && cp -a /tmp/copy/. {folder}"
        spoil = {
            "full": f"dd if=/dev/zero of={folder}/fill bs=64k 2>/dev/null; true",
            "read-only": f"mount -o remount,ro {folder}",
        }
        fleet.shell("h1", f"rm -rf /tmp/copy; {cover}; {spoil[how]}")
    result = fleet.play("-e", "profile=other", check=False)
    fleet.shell("h1", f"umount {' '.join(FOLDERS)}")
    output = result.stdout + result.stderr
    assert result.returncode == 2, output
    said = {"full": "MiB free", "read-only": "is read-only"}[how]
    assert all(lines_with(output, [f"{folder}: ", said]) for folder in FOLDERS), output
    assert "nothing was touched" in output
    assert fleet.main_pid("h1") == pid
    assert fleet.complete("h1")["model"] == completion["model"]
    fleet.play("-e", "profile=other")
    assert fleet.flag("h1", "--max-num-seqs") == "9"
