"""What a person sees of deploys, with the project's own callback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT, Fleet, lines_with, standin_hosts


class Shown(Fleet):
    """Test hosts whose deploys show what people see."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "ANSIBLE_STDOUT_CALLBACK": "ironserve"}


@pytest.fixture(scope="module")
def hosts(make_lab):
    return standin_hosts(make_lab("-output"), 2)


@pytest.fixture
def fleet(hosts, tmp_path):
    fleet = Shown(hosts, tmp_path)
    for host in ("h1", "h2"):
        fleet.model(host)
    return fleet


NOISE = re.compile(r"^(TASK|PLAY|ok:|changed:|included:|skipping:|fatal:)", re.MULTILINE)


def test_a_deploy_shows_its_stages_and_a_second_one_only_those_that_a_host_is_in(fleet):
    output = fleet.play().stdout
    assert not NOISE.search(output)
    stages = [line for line in output.splitlines() if line.startswith("== ")]
    assert [stage.split()[1] for stage in stages] == [
        "Resolve",
        "Validate",
        "Plan",
        "Prepare",
        "Hold",
        "Roll",
        "Give",
        "Report",
    ]
    assert all(lines_with(output, [host, "lab_vllm", "ready"]) for host in ("h1", "h2"))
    assert re.fullmatch(r"done in [\dms]+", output.splitlines()[-1])
    again = fleet.play().stdout
    stages = [line for line in again.splitlines() if line.startswith("== ")]
    assert [stage.split()[1] for stage in stages] == ["Resolve", "Validate", "Plan", "Report"]


def test_of_a_deploy_that_fails_each_error_is_told_once_with_a_command_to_copy(fleet):
    fleet.play()
    fleet.profile("bad", flags={"no-such-flag-at-all": "1"})
    result = fleet.play("-e", "profile=bad", check=False)
    output = result.stdout
    assert result.returncode == 2
    assert not NOISE.search(output + result.stderr)
    assert output.count("main did not become ready") == 1
    assert output.count("[flag-unknown]") == 1  # found, and accepted by the tests' site
    turn, report = output.split("== Report")
    assert len(lines_with(turn, ["[h1] FAILED: main did not become ready"])) == 1  # at once, and in whole
    assert "put back lab_vllm" in turn
    assert "put back lab_vllm" not in report
    assert len(lines_with(report, ["[h1] FAILED: h1, main: failed"])) == 1
    assert len(lines_with(output, ["[roll] stops before batch 2"])) == 1
    assert f"ansible-playbook -i {fleet.lab.inventory.relative_to(ROOT)} playbooks/rollback.yml -l h1" in output
    assert re.fullmatch(r"FAILED in [\dms]+: h1", output.splitlines()[-1])


def test_an_unreachable_host_stops_a_deploy_and_is_told_once(fleet):
    fleet.profile("next", flags={"max-num-seqs": 9})
    fleet.lab.cut("h2")
    result = fleet.play("-e", "profile=next", check=False)
    listed = fleet.play(playbook="playbooks/prune.yml", check=False)
    cleaned = fleet.play("-e", "yes=true", playbook="playbooks/cleanup.yml", check=False)
    fleet.lab.join("h2")
    assert (result.returncode, result.stdout.count("UNREACHABLE")) == (4, 1), result.stdout
    assert lines_with(result.stdout, ["[h2] UNREACHABLE: ", "ssh"]), result.stdout
    assert "-l 'all:!h2' leaves out" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("unreachable: h2; nothing was touched")
    # A line of the table, and the exit status that says so.
    assert (listed.returncode, cleaned.returncode) == (4, 4), listed.stdout + cleaned.stdout
    assert lines_with(cleaned.stdout, ["h2", "unreachable"])
    assert {row["state"] for row in json.loads(fleet.report("cleanup").read_text())} >= {"unreachable"}


@pytest.mark.timeout(600)
def test_ctrl_c_in_the_roll_tells_who_was_at_work_and_the_same_command_goes_on(fleet):
    fleet.model("h1", {"phases": {"weights": {"delay_s": 12}}})
    fleet.profile("slow", flags={"max-num-seqs": 11})
    run = subprocess.Popen(
        fleet.command("-e", "profile=slow"), cwd=ROOT, env=fleet.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert any(line.startswith("[h1] main: ") for line in run.stdout or ()), "the first host was never at work"
    os.killpg(run.pid, signal.SIGINT)  # lint_kill: the run's own group, as a terminal does; it has a session of its own
    rest, _ = run.communicate(timeout=60)
    assert run.returncode == 99
    [last] = lines_with(rest, ["cut off after"])
    assert "h1 was at work; no other host was touched. The same command goes on from here" in last
    assert f"ansible-playbook -i {fleet.lab.inventory.relative_to(ROOT)} playbooks/status.yml" in last
    fleet.play("-e", "profile=slow")
    assert fleet.flag("h2", "--max-num-seqs") == "11"
