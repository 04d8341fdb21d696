"""Who has a host, what happens to a host that is cut off, and maintenance."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT, UNIT, Fleet, lines_with, recap, standin_hosts

FILE = "/var/lib/ironserve/lease.json"
HELD = r"held by a run of eva@laptop that began 1[2-5] min ago"
"""As :func:`hold` has it; a busy machine may take a minute until somebody reads it."""
ACCEPT = "accept=host-driver-missing,flag-unknown,host-leased"


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1 and h2, which see the stand-in's wheelhouse."""
    return standin_hosts(make_lab("-lease"), 2)


@pytest.fixture
def fleet(hosts, tmp_path):
    """Nobody has a host; h1 serves, h2 does not."""
    fleet = Fleet(hosts, tmp_path)
    for host in ("h1", "h2"):
        fleet.shell(host, f"rm -f {FILE}")
        fleet.model(host)
    fleet.profile("more", flags={"max-num-seqs": 8})
    fleet.play("-l", "h1", "-e", "profile=lab_vllm")
    return fleet


def held(fleet: Fleet, host: str) -> dict:
    """The lease on the host; empty: there is none."""
    return json.loads(fleet.shell(host, f"cat {FILE} 2>/dev/null || true") or "{}")


def hold(fleet: Fleet, host: str, left_s: float = 3600, purpose: str = "deploy") -> dict:
    """Have the lease of eva's run on another machine there."""
    now = time.time()
    lease = {
        "token": "eva's", "purpose": purpose, "user": "eva", "controller": "laptop", "machine_id": "x", "boot_id": "y",
        "pid_namespace": "z", "pid": 4711, "start_ticks": 1, "command": "ansible-playbook deploy.yml", "reason": "",
        "at": now - 720, "expires_at": None if purpose == "maintenance" else now + left_s,
    }  # fmt: skip
    fleet.lab.exec(host, ["sh", "-c", f"cat > {FILE}"], input=json.dumps(lease))
    return lease


def roll(fleet: Fleet, name: str = "roll", wait: bool = False) -> str:
    """A playbook that takes the hosts, and gives them back: at once, or once there is a file named ``go``."""
    tasks = [{"ansible.builtin.include_tasks": f"{ROOT}/playbooks/tasks/lease.yml"}]
    if wait:
        go = {"path": str(fleet.folder / "go"), "timeout": 120}
        tasks.append({"ansible.builtin.wait_for": go, "delegate_to": "localhost", "become": False, "run_once": True})
    tasks.append({"ansible.builtin.include_tasks": f"{ROOT}/playbooks/tasks/release_lease.yml"})
    play = {"name": name, "hosts": "all", "gather_facts": False, "become": True, "tasks": tasks}
    file = fleet.folder / f"{name}.yml"
    file.write_text(yaml.safe_dump([play]))
    return str(file)


@contextmanager
def running(fleet: Fleet, *words: str, playbook: str) -> Iterator[subprocess.Popen]:
    """A run in a session of its own, which is ended with it."""
    run = subprocess.Popen(
        fleet.command(*words, playbook=playbook), cwd=ROOT, env=fleet.environment(),
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield run
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)  # lint_kill: the run's own group, it has a session of its own
        run.communicate()


def until(run: subprocess.Popen, words: str) -> None:
    """Read what the run prints up to the words."""
    assert any(words in line for line in run.stdout or ()), f"the run never showed: {words}"


def test_a_second_run_is_refused_with_who_has_the_host_and_keeps_none_of_the_others(fleet):
    with running(fleet, "-l", "h2", playbook=roll(fleet, "first", wait=True)) as first:
        wait_for(lambda: held(fleet, "h2"))
        refused = fleet.play(playbook=roll(fleet), check=False)
        assert refused.returncode == 2
        assert f"h2 is held by a run of root@{os.uname().nodename} that began " in refused.stdout
        assert f" s ago (pid {first.pid}, ansible-playbook {fleet.folder}/first.yml -l h2)" in refused.stdout
        assert "it expires in 2 h" in refused.stdout
        assert [recap(refused.stdout, host)["failed"] for host in ("h1", "h2")] == [1, 1]
        assert held(fleet, "h1") == {}
        assert held(fleet, "h2")["pid"] == first.pid
        (fleet.folder / "go").touch()
        assert first.wait(60) == 0
    assert held(fleet, "h2") == {}


def test_a_run_that_was_killed_leaves_its_hosts_to_the_next_one_of_the_same_controller(fleet):
    with running(fleet, playbook=roll(fleet, "first", wait=True)) as first:
        wait_for(lambda: held(fleet, "h1") and held(fleet, "h2"))
    assert held(fleet, "h1")["pid"] == first.pid
    result = fleet.play(playbook=roll(fleet))
    assert lines_with(result.stdout, ["[h1] lease: take the lease, root@", " is gone"])
    assert recap(result.stdout, "h1")["changed"] == 0  # nothing of a run's lease is left
    assert held(fleet, "h1") == held(fleet, "h2") == {}


def test_a_lease_that_has_expired_keeps_nobody_out_and_one_that_has_not_is_left_alone(fleet):
    hold(fleet, "h1", left_s=-1)
    result = fleet.play(playbook=roll(fleet))
    assert lines_with(result.stdout, ["[h1] lease: take the lease, that of eva@laptop has expired"])
    lease = hold(fleet, "h1")
    refused = fleet.play("-l", "h1", playbook=roll(fleet), check=False)
    assert re.search(rf"h1 is {HELD}", refused.stdout)
    assert held(fleet, "h1") == lease
    checked = fleet.play("-l", "h2", "--check", playbook=roll(fleet))
    assert recap(checked.stdout, "h2")["failed"] == 0
    assert held(fleet, "h2") == {}


def test_a_deploy_to_a_host_that_somebody_has_is_refused_before_anything_and_may_be_overruled(fleet):
    pid, lease = fleet.main_pid("h1"), hold(fleet, "h1")
    words = ("-l", "h1", "-e", "profile=more")
    refused = fleet.play(*words, check=False)
    assert refused.returncode == 2
    said = " ".join(refused.stdout.split())
    assert re.search(rf"error: host: lease: {HELD}", said)
    assert "nothing was touched: host-leased stands against it on h1" in said
    assert (fleet.main_pid("h1"), held(fleet, "h1")) == (pid, lease)
    assert fleet.status("h1")["note"].startswith("held by a run of eva@laptop")
    fleet.play(*words, "-e", ACCEPT)
    assert fleet.flag("h1", "--max-num-seqs") == "8"


def wait_for(condition, timeout_s: float = 60):
    """What the condition gives once it holds."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, "in vain"
        time.sleep(0.2)
    return found


@pytest.mark.timeout(600)
def test_a_host_that_is_cut_off_in_the_gate_is_lost_and_the_same_command_goes_on(fleet):
    fleet.profile("slow", flags={"max-num-seqs": 4}, startup_timeout_s=200)
    fleet.model("h1", {"hang_in": "weights"})
    roll_asks = ("-l", "h1", "-e", "profile=slow", "-e", "serve_lost_fails=true", "-e", "serve_reconnect_timeout_s=5")
    with running(fleet, *roll_asks, playbook="deploy.yml") as run:
        until(run, "loading weights")
        fleet.lab.cut("h1")
        began = time.monotonic()
        output = run.stdout.read()
        assert run.wait(60) == 2
    took = time.monotonic() - began
    fleet.lab.join("h1")
    assert "h1: connection lost while main was starting; its state is unknown: service main may serve" in output
    assert lines_with(output, ["[h1] main: connection lost", "trying for 5s"])
    assert (recap(output, "h1")["failed"], recap(output, "h1")["unreachable"]) == (1, 0)
    for task in ("Choose the release to put back", "Fetch the evidence", "Leave the unit stopped"):
        assert task not in output
    assert took < 60, "something else was sent to a host that does not answer"
    row = fleet.rows("deploy")["h1"]
    assert (row["verdict"], row["note"]) == ("lost", "connection lost while main was starting")
    fleet.model("h1")
    fleet.shell("h1", f"systemctl kill -s KILL {UNIT}")  # the load that hangs
    fleet.play("-l", "h1", "-e", "profile=slow")
    assert fleet.flag("h1", "--max-num-seqs") == "4"


def test_without_being_asked_a_lost_host_is_unreachable_as_ever(fleet):
    fleet.lab.cut("h1")
    result = fleet.play("-l", "h1", playbook="playbooks/stop.yml", check=False)
    fleet.lab.join("h1")
    assert recap(result.stdout, "h1")["unreachable"] == 1


def test_a_host_in_maintenance_serves_on_is_touched_by_no_deploy_and_ends_it_behind_the_gate(fleet):
    pid = fleet.main_pid("h1")
    checked = fleet.play("-l", "h1", "--check", playbook="playbooks/drain.yml")
    assert lines_with(checked.stdout, ["h1", "main", "no router"])
    assert held(fleet, "h1") == {}
    drained = fleet.play("-l", "h1", "-e", "reason='new driver'", playbook="playbooks/drain.yml")
    assert recap(drained.stdout, "h1")["changed"] > 0
    assert "playbooks/admit.yml -l h1" in " ".join(drained.stdout.split())
    assert fleet.main_pid("h1") == pid
    again = fleet.play("-l", "h1", playbook="playbooks/drain.yml")
    assert recap(again.stdout, "h1")["changed"] == 0
    note = fleet.status("h1")["note"]
    assert note.startswith("in maintenance: drained by root@")
    assert note.endswith("(new driver)")
    refused = fleet.play("-l", "h1", "-e", "profile=more", check=False)
    assert "host-leased stands against it on h1" in " ".join(refused.stdout.split())

    fleet.play("-l", "h1", playbook="playbooks/stop.yml")
    checked = fleet.play("-l", "h1", "--check", playbook="playbooks/admit.yml")
    assert lines_with(checked.stdout, ["h1", "main", "would be judged"])
    assert fleet.main_pid("h1") == 0
    admitted = fleet.play("-l", "h1", playbook="playbooks/admit.yml")
    assert lines_with(admitted.stdout, ["h1", "main", "lab_vllm", "ready", "no router"])
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3
    assert held(fleet, "h1") == {}
    status = fleet.status("h1")
    assert (status["status"], status["enabled"], status["note"]) == ("ready", True, "")
    again = fleet.play("-l", "h1", playbook="playbooks/admit.yml")
    assert recap(again.stdout, "h1")["changed"] == 0


def test_a_host_whose_server_does_not_come_back_stays_in_maintenance_and_says_so(fleet):
    fleet.play("-l", "h1", playbook="playbooks/drain.yml")
    fleet.play("-l", "h1", playbook="playbooks/stop.yml")
    fleet.model("h1", {"exit_in": "weights", "exit_status": 7, "exit_message": "ValueError: the driver is too new"})
    failed = fleet.play("-l", "h1", playbook="playbooks/admit.yml", check=False)
    assert failed.returncode == 2
    assert "h1 is not back in service, and stays in maintenance: " in failed.stdout
    assert "ValueError: the driver is too new" in failed.stdout
    assert held(fleet, "h1")["purpose"] == "maintenance"
    fleet.model("h1")
    fleet.play("-l", "h1", playbook="playbooks/admit.yml")
    assert held(fleet, "h1") == {}
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3


def test_a_host_that_a_run_has_is_not_drained_and_neither_are_others_of_the_same_command(fleet):
    lease = hold(fleet, "h2")
    refused = fleet.play(playbook="playbooks/drain.yml", check=False)
    assert refused.returncode == 2
    assert "h2 is held by a run of eva@laptop" in refused.stdout
    assert (held(fleet, "h1"), held(fleet, "h2")) == ({}, lease)


def test_services_of_a_host_that_a_run_has_are_not_stopped_unless_that_is_meant(fleet):
    pid, lease = fleet.main_pid("h1"), hold(fleet, "h1")
    for words in (("playbooks/stop.yml",), ("playbooks/remove.yml", "-e", "service=other")):
        refused = fleet.play(*words[1:], playbook=words[0], check=False)
        assert refused.returncode == 2
        assert "nothing was touched:" in refused.stdout
        assert re.search(rf"h1 is {HELD}", refused.stdout)
        assert (fleet.main_pid("h1"), held(fleet, "h1")) == (pid, lease)
    fleet.play("-l", "h1", "-e", "accept=host-leased", playbook="playbooks/stop.yml")
    assert (fleet.main_pid("h1"), held(fleet, "h1")) == (0, lease)


def test_an_admission_that_is_killed_keeps_a_host_that_was_never_drained_for_a_while_only(fleet):
    fleet.model("h1", {"hang_in": "weights"})
    fleet.play("-l", "h1", playbook="playbooks/stop.yml")
    with running(fleet, "-l", "h1", playbook="playbooks/admit.yml") as run:
        until(run, "loading weights")
        lease = held(fleet, "h1")
    assert (lease["purpose"], lease["expires_at"] > time.time()) == ("deploy", True)
    fleet.model("h1")
    fleet.shell("h1", f"systemctl kill -s KILL {UNIT}")  # the load that hangs
    fleet.play("-l", "h1", "-e", "profile=lab_vllm")
    assert held(fleet, "h1") == {}
