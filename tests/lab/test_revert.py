"""A deploy that fails puts the last good release back, and the rollback playbook does so when a person asks for it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import gpu_hosts
from deploys import ROOT, UNIT, Fleet, lines_with, recap, standin_hosts

STATE = "/var/lib/ironserve/main"
ROLLBACK = "playbooks/rollback.yml"


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1, which sees the stand-in's wheelhouse."""
    return standin_hosts(make_lab("-revert"), 1)


@pytest.fixture
def fresh(hosts, tmp_path):
    """h1 has no service; `bad` is a profile that the engine refuses, `good` and `more` are two that work."""
    fleet = Fleet(hosts, tmp_path)
    fleet.forget("h1")
    fleet.model("h1")
    fleet.profile("good", flags={"max-num-seqs": 16}, startup_timeout_s=8, completion_timeout_s=4)
    fleet.profile("more", flags={"max-num-seqs": 8}, startup_timeout_s=8, completion_timeout_s=4)
    fleet.profile("bad", flags={"no-such-flag": True}, startup_timeout_s=8, completion_timeout_s=4)
    return fleet


@pytest.fixture
def served(fresh):
    """h1 serves the profile `good`."""
    fresh.play("-e", "profile=good")
    return fresh


def deploy(fleet: Fleet, profile: str, *words: str, **site) -> str:
    """Deploy a profile that fails; what was printed."""
    result = fleet.play("-e", f"profile={profile}", *words, check=False, **site)
    assert result.returncode == 2, result.stdout + result.stderr
    return result.stdout + result.stderr


def release(fleet: Fleet, link: str = "active") -> str:
    """Id of the release that a link leads to."""
    return fleet.shell("h1", f"readlink {STATE}/{link}").split("/")[-1].split("-")[0]


def ledger(fleet: Fleet) -> list[tuple[str, str]]:
    """Profile and verdict of each launch."""
    lines = fleet.shell("h1", f"cat {STATE}/ledger.jsonl").splitlines()
    return [(record["profile"], record["verdict"]) for record in map(json.loads, lines)]


def assert_serves(fleet: Fleet, profile: str) -> None:
    """The profile serves, is proven, and comes back at boot; nothing of the gate is left."""
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3
    status = fleet.status("h1")
    assert (status["status"], status["profile"], status["enabled"]) == ("ready", profile, True)
    assert release(fleet) == release(fleet, "last-known-good")
    assert "Restart=always" in fleet.shell("h1", f"systemctl show -p Restart {UNIT}")


def test_case_49_a_release_that_dies_is_told_and_the_last_good_one_serves_again(served):
    good, starts = release(served), served.starts("h1")
    began = time.monotonic()
    output = deploy(served, "bad")
    assert time.monotonic() - began < 60
    assert "main did not become ready: the engine exited with status 2" in output
    assert "The engine's own error: vllm: error: unrecognized arguments: --no-such-flag" in output
    assert re.search(rf"h1: put back good \(release {good}\): ready after \d+s", output)
    assert "playbooks/rollback.yml -l h1 -e service=main -e release=ID" in output
    assert re.search(r"^\[h1\] main put back: ready after \d+s$", output, re.MULTILINE)
    assert (recap(output, "h1")["failed"], recap(output, "h1")["changed"] > 0) == (1, True)
    assert lines_with(output, ["h1", "bad", "failed; put back: good", "the engine exited with status 2"])
    assert served.starts("h1") == starts + 2
    assert ledger(served)[-2:] == [("bad", "failed"), ("good", "ready")]
    assert_serves(served, "good")
    row = served.rows("deploy")["h1"]
    assert (row["verdict"], row["put_back"]["profile"], row["put_back"]["verdict"]) == ("failed", "good", "ready")
    assert recap(served.play("-e", "profile=good").stdout, "h1")["changed"] == 0


def test_without_a_good_release_the_unit_is_stopped_and_that_is_said(fresh):
    output = deploy(fresh, "bad")
    assert "h1: no release was good on this host before: the unit is stopped" in output
    assert f"h1: {UNIT} is stopped and stays so until the next deploy." in output
    assert fresh.main_pid("h1") == 0
    assert fresh.shell("h1", f"systemctl is-enabled {UNIT} || true") == "disabled"
    assert fresh.status("h1")["status"] == "failed"
    assert fresh.rows("deploy")["h1"]["note"] == "the engine exited with status 2"


def test_case_49_a_last_good_release_that_fails_too_is_told_first(served):
    good = release(served)
    served.model("h1", {"exit_in": "weights", "exit_status": 7, "exit_message": "ValueError: weights are gone"})
    output = deploy(served, "bad")
    message = output[output.index("Say what happened") :]
    louder = f"h1: put back good (release {good}) FAILED TOO: the engine exited with status 7"
    assert louder in message
    assert message.index(louder) < message.index("main did not become ready: the engine exited with status 2")
    assert "The engine's own error: ValueError: weights are gone" in message
    assert f"h1: {UNIT} is stopped and stays so until the next deploy." in message
    assert lines_with(output, ["h1", "bad", "failed; put back FAILED: good"])
    assert fresh_and_stopped(served)
    assert ledger(served)[-2:] == [("bad", "failed"), ("good", "failed")]


def fresh_and_stopped(fleet: Fleet) -> bool:
    """Nothing runs, nothing starts by itself."""
    enabled = fleet.shell("h1", f"systemctl is-enabled {UNIT} || true")
    return fleet.main_pid("h1") == 0 and enabled == "disabled"


def cut_off(fleet: Fleet, profile: str, words: str) -> None:
    """Start a deploy and kill the controller when it prints the words."""
    run = subprocess.Popen(
        fleet.command("-e", f"profile={profile}"),
        cwd=ROOT, env=fleet.environment(), stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    seen = any(words in line for line in run.stdout or ())
    os.killpg(run.pid, signal.SIGKILL)  # lint_kill: the run's own group, it has a session of its own
    run.communicate()
    assert seen, f"the run never showed: {words}"


def test_a_controller_that_is_killed_in_the_gate_of_a_bad_release_is_made_good_by_the_next_run(served):
    served.profile("hangs", flags={"max-num-seqs": 3}, startup_timeout_s=25)
    served.model("h1", {"hang_in": "weights"})
    cut_off(served, "hangs", "loading weights")
    pid, starts = served.main_pid("h1"), served.starts("h1")
    served.model("h1")  # read at the next start: what hangs hangs on
    output = deploy(served, "hangs")
    assert pid
    assert "main did not become ready" in output
    assert served.starts("h1") == starts + 1, "the server that hung was attached to, then the good one was started"
    assert lines_with(output, ["h1", "hangs", "put back: good"])
    assert_serves(served, "good")


def test_a_reboot_in_the_gate_is_finished_by_the_next_run(served):
    served.profile("other", flags={"max-num-seqs": 3}, startup_timeout_s=15)
    served.model("h1", {"hang_in": "weights"})
    cut_off(served, "other", "loading weights")
    served.model("h1")
    served.lab.reboot("h1")  # what was good had the unit start at boot: so it starts the unproven release
    output = served.play("-e", "profile=other").stdout
    assert lines_with(output, ["h1", "other", "ready"])
    assert_serves(served, "other")
    assert ledger(served)[-1] == ("other", "ready")


def test_a_reboot_in_the_gate_of_a_bad_release_is_made_good_by_the_next_run(served):
    cut_off(served, "bad", "TASK [serve : Start the server")
    served.lab.reboot("h1")
    output = deploy(served, "bad")
    assert lines_with(output, ["h1", "bad", "failed", "put back: good"])
    assert_serves(served, "good")
    assert ledger(served)[-2:] == [("bad", "failed"), ("good", "ready")]


def test_a_release_that_failed_here_is_put_back_only_when_it_is_named(served):
    good = release(served)
    served.play("-e", "profile=more")
    more = release(served)
    served.model("h1", {"exit_in": "weights"})
    served.shell("h1", f"systemctl stop {UNIT}")
    output = deploy(served, "more")  # its last start fails now, and so does that of `good`
    assert "put back good" in output
    served.model("h1")
    refused = served.play(playbook=ROLLBACK, check=False)
    assert refused.returncode == 2
    assert "nothing was touched: h1, main: no release was good on this host before" in refused.stdout + refused.stderr
    assert served.main_pid("h1") == 0

    unknown = served.play("-e", "release=zzz", playbook=ROLLBACK, check=False)
    assert 'no staged release begins with "zzz"; staged here: ' in unknown.stdout + unknown.stderr
    assert re.search(rf"{good}-\w+ \(good, last failed 20\S+\)", unknown.stdout + unknown.stderr)
    served.play("-e", f"release={more[:8]}", playbook=ROLLBACK)
    assert_serves(served, "more")


def test_rollback_there_and_back_and_check_mode_first(served):
    good = release(served)
    served.play("-e", "profile=more")
    more = release(served)
    before, pid = served.written("h1"), served.main_pid("h1")
    checked = served.play("--check", "--diff", playbook=ROLLBACK).stdout
    assert (served.written("h1"), served.main_pid("h1")) == (before, pid)
    assert lines_with(checked, ["h1", "main", "good", good, "would change", "flag --max-num-seqs: 8 -> 16"])
    assert lines_with(checked, ["+ExecStart", "--max-num-seqs 16"])
    output = served.play(playbook=ROLLBACK).stdout
    assert recap(checked, "h1")["changed"] == recap(output, "h1")["changed"]
    assert lines_with(output, ["h1", "main", "good", good, "ready"])
    assert served.flag("h1", "--max-num-seqs") == "16"
    assert_serves(served, "good")
    assert recap(served.play("-e", "profile=good").stdout, "h1")["changed"] == 0
    served.play(playbook=ROLLBACK)
    assert (release(served), served.flag("h1", "--max-num-seqs")) == (more, "8")


def test_a_key_is_there_again_after_a_rollback_to_another_engine_or_nothing_is_touched(fresh):
    key = {"ironserve_api_key": "sk-of-a-test"}
    fresh.play("-e", "profile=good", **key)
    fresh.play("-e", "profile=triton_nccl", **key)
    pid = fresh.main_pid("h1")
    refused = fresh.play(playbook=ROLLBACK, check=False)
    assert refused.returncode == 2
    output = " ".join((refused.stdout + refused.stderr).split())
    assert "cannot be put back: it names the secrets VLLM_API_KEY, which neither" in output
    assert fresh.main_pid("h1") == pid
    output = fresh.play("-vvv", playbook=ROLLBACK, **key).stdout
    assert lines_with(output, ["h1", "main", "good", "ready"])
    assert key["ironserve_api_key"] not in output
    ask = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/v1/models"
    assert fresh.shell("h1", f"{ask}; {ask} -H 'Authorization: Bearer sk-of-a-test'") == "401200"
    assert recap(fresh.play("-e", "profile=good", **key).stdout, "h1")["changed"] == 0


def test_a_clean_step_that_refuses_leaves_the_old_server_and_makes_its_release_the_active_one_again(make_lab, tmp_path):
    fleet = Fleet(standin_hosts(make_lab("-revert-gpu"), 1), tmp_path)
    gpu_hosts.install(fleet.lab, "h1", gpus=2)
    site = {
        "ironserve_hardware": {"gpu_count": 2, "gpu_family": "sm120"},
        "ironserve_cleanup": {"driver_timeout_s": 3},
    }
    fleet.model("h1")
    fleet.play(**site)
    pid, good = fleet.main_pid("h1"), release(fleet)
    unit = fleet.shell("h1", f"cat /etc/systemd/system/{UNIT}")
    fleet.profile("other", flags={"max-num-seqs": 8})
    command = fleet.command("-e", "profile=other", **site)
    run = subprocess.Popen(command, cwd=ROOT, env=fleet.environment(), stdout=subprocess.PIPE, text=True)
    output = ""
    for line in run.stdout or ():
        output += line
        if line.startswith("PLAY [Roll]"):  # the driver answered when validate asked it
            gpu_hosts.set_faults(fleet.lab, "h1", "0 hang")
    assert run.wait() == 2, output
    gpu_hosts.set_faults(fleet.lab, "h1")
    assert "activate" in output.lower()
    assert "driver_hung" in output
    left = f"h1: {UNIT} was left as it is, and lab_vllm (release {good}) is its active release again"
    assert left in output
    assert lines_with(output, ["h1", "other", "failed; put back: lab_vllm"])
    assert fleet.rows("deploy")["h1"]["put_back"]["verdict"] == "kept"
    assert (fleet.main_pid("h1"), release(fleet)) == (pid, good)
    assert fleet.shell("h1", f"cat /etc/systemd/system/{UNIT}") == unit
    assert fleet.status("h1")["settled"] is True
    assert recap(fleet.play(**site).stdout, "h1")["changed"] == 0
    assert fleet.main_pid("h1") == pid


def test_a_rollback_that_fails_puts_back_what_served_before(served):
    served.play("-e", "profile=bad", check=False)
    bad = next(name for name in served.shell("h1", f"ls {STATE}/releases").split() if release(served) not in name)
    result = served.play("-e", f"release={bad}", playbook=ROLLBACK, check=False)
    assert result.returncode == 2
    assert "main did not become ready: the engine exited with status 2" in result.stdout
    assert lines_with(result.stdout, ["h1", "bad", "failed", "put back: good"])
    assert_serves(served, "good")
