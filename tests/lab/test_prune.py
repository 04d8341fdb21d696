"""Pruning on a real host: what serves or was proven stays, and so does what a deploy may be about to use."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import Fleet, lines_with, recap, standin_hosts

ENGINES = "/opt/ironserve/engines"
# A finished environment that nothing needs, as an earlier lock leaves one behind.
OLDER = """\
cp -a {engines}/standin-vllm-* {engines}/{name}
sed -i 's/"lock_id": "[^"]*"/"lock_id": "{name}"/' {engines}/{name}/ironserve.json
"""
# Everything here was made three days ago.
AGE = f"touch -d '3 days ago' {ENGINES}/*/ironserve.json /var/lib/ironserve/*/releases/*"


@pytest.fixture(scope="module")
def fleet(make_lab, tmp_path_factory) -> Fleet:
    """h1 served vLLM, and serves SGLang; two environments of older locks lie there, one with a process in it."""
    fleet = Fleet(standin_hosts(make_lab("-prune"), 1), tmp_path_factory.mktemp("prune"))
    fleet.model("h1")
    fleet.play()
    for name in ("older-1", "older-2"):
        fleet.shell("h1", OLDER.format(engines=ENGINES, name=name))
    fleet.shell("h1", f"systemd-run --unit ghost {ENGINES}/older-2/bin/python -c 'import time; time.sleep(1e6)'")
    fleet.play("-e", "profile=triton_nccl")
    return fleet


def prune(fleet: Fleet, *words: str) -> tuple[str, dict[str, str]]:
    """What the run printed, and what went with its reason, by the last part of its path."""
    output = fleet.play(*words, playbook="playbooks/prune.yml").stdout
    rows = json.loads(fleet.report("prune").read_text())
    return output, {Path(row["path"]).name: row["why"] for row in rows if row["path"].startswith("/")}


def test_what_is_younger_than_an_hour_stays(fleet: Fleet):
    output, gone = prune(fleet, "-e", "keep=0")
    assert gone == {}
    assert recap(output, "h1")["changed"] == 0


def test_a_number_that_is_none_is_told(fleet: Fleet):
    result = fleet.play("-e", "keep=-1", playbook="playbooks/prune.yml", check=False)
    assert result.returncode != 0
    assert "keep is -1" in result.stdout


def test_check_mode_lists_with_sizes_what_then_goes_and_the_server_serves_on(fleet: Fleet):
    fleet.shell("h1", AGE)
    before, pid = fleet.written("h1"), fleet.main_pid("h1")
    output, planned = prune(fleet, "-e", "keep=0", "--check")
    assert fleet.written("h1") == before
    assert planned["older-1"] == "no release that is kept needs it"
    old_release = next(name for name, why in planned.items() if why == "its environment is not kept")
    assert sorted(planned) == sorted(
        [*(name for name in planned if name.startswith("standin-vllm-")), "older-1", old_release]
    )
    line = lines_with(output, ["h1", f"{ENGINES}/older-1"])[0]
    assert float(line.split()[1]) > 1

    output, gone = prune(fleet, "-e", "keep=0")
    assert gone == planned
    left = fleet.shell("h1", f"ls {ENGINES}").split()
    assert [name.rsplit("-", 1)[0] for name in left] == ["older", "standin-sglang-3.11"]
    assert fleet.shell("h1", f"ls -A {ENGINES}/.trash") == ""
    assert fleet.main_pid("h1") == pid
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3
    assert recap(prune(fleet, "-e", "keep=0")[0], "h1")["changed"] == 0


def test_a_deploy_brings_back_what_was_pruned(fleet: Fleet):
    fleet.play()
    assert fleet.status("h1")["profile"] == "lab_vllm"
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3
