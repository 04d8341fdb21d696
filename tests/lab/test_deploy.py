"""The whole way of a deploy on test hosts: real sshd, real systemd, the stand-in engine installed from its own lock."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT, UNIT, Fleet, lines_with, recap, standin_hosts


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1 and h2 that see the stand-in's wheelhouse."""
    return standin_hosts(make_lab("-deploy"), 2)


@pytest.fixture
def fleet(hosts, tmp_path):
    return Fleet(hosts, tmp_path)


@pytest.fixture
def served(fleet):
    """h1 serves the profile lab_vllm; what a test broke is put right by this deploy."""
    fleet.model("h1")
    fleet.play("-l", "h1")
    return fleet


def test_check_mode_on_a_fresh_host_shows_everything_and_touches_nothing(fleet):
    fleet.model("h2")
    before = fleet.written("h2")
    output = fleet.play("-l", "h2", "--check", "--diff").stdout
    assert fleet.written("h2") == before
    assert "+ExecStart=/opt/ironserve/runtime/launch main /opt/ironserve/engines/standin-vllm-3.11-" in output
    assert '+Environment="HF_HUB_OFFLINE=1"' in output
    planned = recap(output, "h2")
    assert planned["failed"] == 0
    assert planned["changed"] == recap(fleet.play("-l", "h2").stdout, "h2")["changed"]


def test_a_fresh_deploy_serves_and_the_second_run_changes_nothing(fleet):
    fleet.model("h1")
    output = fleet.play("-l", "h1").stdout
    assert lines_with(output, ["h1", "lab_vllm", "ready"])
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3
    assert fleet.shell("h1", f"systemctl is-enabled {UNIT}") == "enabled"
    record = json.loads(fleet.shell("h1", "tail -n 1 /var/lib/ironserve/main/ledger.jsonl"))
    assert (record["verdict"], record["profile"]) == ("ready", "lab_vllm")
    pid, written = fleet.main_pid("h1"), fleet.written("h1")

    again = fleet.play("-l", "h1")
    assert recap(again.stdout, "h1")["changed"] == 0
    assert (fleet.main_pid("h1"), fleet.written("h1")) == (pid, written)


def test_the_server_runs_as_its_own_user_with_its_own_environment(served):
    pid = served.main_pid("h1")
    assert served.shell("h1", f"stat -c %U /proc/{pid}") == "ironserve"
    environ = served.shell("h1", f"tr '\\0' '\\n' < /proc/{pid}/environ")
    assert "HF_HUB_OFFLINE=1" in environ
    assert "PATH=/opt/ironserve/engines/standin-vllm" in environ
    assert served.shell("h1", "stat -c '%U:%G %a' /var/log/ironserve/main.log") == "root:ironserve 640"
    assert "restart=always" in served.shell("h1", f"systemctl show -p Restart {UNIT}").lower()


def test_a_changed_flag_restarts_once(served):
    served.profile("more", flags={"max-num-seqs": 8})
    starts, pid = served.starts("h1"), served.main_pid("h1")
    output = served.play("-l", "h1", "-e", "profile=more").stdout
    assert "flag --max-num-seqs: 16 -> 8" in output
    assert served.starts("h1") == starts + 1
    assert served.main_pid("h1") != pid
    assert recap(served.play("-l", "h1", "-e", "profile=more").stdout, "h1")["changed"] == 0
    status = served.status("h1")
    assert (status["status"], status["profile"], status["note"]) == ("ready", "more", "inventory wants lab_vllm")


def test_another_name_for_the_same_settings_restarts_nothing(served):
    served.profile("alias")
    pid = served.main_pid("h1")
    output = served.play("-l", "h1", "-e", "profile=alias").stdout
    assert served.main_pid("h1") == pid
    assert "profile: lab_vllm -> alias (no restart)" in output
    assert recap(served.play("-l", "h1", "-e", "profile=alias").stdout, "h1")["changed"] == 0


def test_check_mode_shows_the_line_that_would_change_and_touches_nothing(served):
    served.profile("more", flags={"max-num-seqs": 4})
    before, pid = served.written("h1"), served.main_pid("h1")
    output = served.play("-l", "h1", "-e", "profile=more", "--check", "--diff").stdout
    assert (served.written("h1"), served.main_pid("h1")) == (before, pid)
    removed, added = (lines_with(output, [sign + "ExecStart"]) for sign in "-+")
    assert "--max-num-seqs 16" in removed[0]
    assert "--max-num-seqs 4" in added[0]
    real = served.play("-l", "h1", "-e", "profile=more").stdout
    assert recap(output, "h1")["changed"] == recap(real, "h1")["changed"]


def test_a_unit_that_somebody_edited_is_put_back(served):
    served.shell("h1", f"echo 'Nice=5' >> /etc/systemd/system/{UNIT} && systemctl daemon-reload")
    checked = served.play("-l", "h1", "--check").stdout
    output = served.play("-l", "h1").stdout
    assert "the unit file is not the one that was activated" in output
    assert recap(checked, "h1")["changed"] == recap(output, "h1")["changed"]
    assert "Nice" not in served.shell("h1", f"cat /etc/systemd/system/{UNIT}")


def test_sglang_with_eight_ranks_and_the_nccl_set(served):
    served.play("-l", "h1", "-e", "profile=triton_nccl")
    titles = served.shell("h1", "ps -eo args | grep -c '^sglang::scheduler_TP[0-7]$'")
    assert titles == "8"
    rank = served.shell("h1", "ps -eo pid,args | awk '/sglang::scheduler_TP7$/ {print $1}'")
    environ = served.shell("h1", f"tr '\\0' '\\n' < /proc/{rank}/environ")
    assert "NCCL_PROTO=LL" in environ
    assert "NCCL_BUFFSIZE=16777216" in environ
    served.play("-l", "h1")
    assert served.shell("h1", "ps -eo args | grep -c '^sglang::' || true") == "0"


def test_stopped_stays_stopped_over_a_reboot_until_the_next_deploy(served):
    served.play("-l", "h1", playbook="playbooks/stop.yml")
    assert served.main_pid("h1") == 0
    assert recap(served.play("-l", "h1", playbook="playbooks/stop.yml").stdout, "h1")["changed"] == 0
    served.lab.reboot("h1")
    assert served.main_pid("h1") == 0
    assert served.status("h1")["status"] == "stopped"
    served.play("-l", "h1")
    assert served.complete("h1")["usage"]["completion_tokens"] == 3


def test_a_proven_service_comes_back_after_a_reboot(served):
    served.lab.reboot("h1")
    served.shell("h1", "for i in $(seq 100); do curl -sf http://127.0.0.1:8000/health && exit; sleep 0.1; done; exit 1")
    assert recap(served.play("-l", "h1").stdout, "h1")["changed"] == 0


def test_a_server_that_dies_later_starts_again_by_itself(served):
    served.shell(
        "h1",
        "sed -i s/RestartSec=10/RestartSec=0/ /etc/systemd/system/ironserve-main.service && systemctl daemon-reload",
    )
    pid = served.main_pid("h1")
    served.shell("h1", f"kill -9 {pid}")
    served.shell("h1", "for i in $(seq 100); do curl -sf http://127.0.0.1:8000/health && exit; sleep 0.1; done; exit 1")
    assert served.main_pid("h1") not in (0, pid)


def failed_deploy(fleet: Fleet, profile: str) -> str:
    """Deploy a profile that cannot work to h1, where none was good; assert what always holds, return the output."""
    fleet.forget("h1")
    began = time.monotonic()
    result = fleet.play("-l", "h1", "-e", f"profile={profile}", check=False)
    output = result.stdout + result.stderr
    assert result.returncode == 2, output
    assert time.monotonic() - began < 60
    assert fleet.main_pid("h1") == 0
    assert fleet.status("h1")["status"] == "failed"
    assert fleet.shell("h1", "ls /run/systemd/system/ironserve-main.service.d || true") == ""
    assert fleet.shell("h1", "ps -eo user | grep -c ^ironserve || true") == "0"
    assert fleet.shell("h1", f"systemctl is-enabled {UNIT} || true") == "disabled"
    assert "h1: no release was good on this host before: the unit is stopped" in output
    assert "h1: ironserve-main.service is stopped and stays so until the next deploy." in output
    return output


def test_case_49_a_bad_flag_fails_with_the_engines_own_line(served):
    served.profile("bad", flags={"max-num-seqs": 8, "no-such-flag": True})
    output = failed_deploy(served, "bad")
    assert "main did not become ready: the engine exited with status 2" in output
    assert "The engine's own error: vllm: error: unrecognized arguments: --no-such-flag" in output
    assert "Last lines of /var/log/ironserve/main.log:" in output
    assert served.status("h1")["note"] == "the engine exited with status 2"


def test_a_load_that_an_operator_stops_is_stopped_and_no_failure(fleet):
    fleet.model("h1", {"hang_in": "weights"})
    fleet.profile("slow", flags={"max-num-seqs": 9})
    command = fleet.command("-l", "h1", "-e", "profile=slow")
    with subprocess.Popen(command, cwd=ROOT, env=fleet.environment(), stdout=subprocess.DEVNULL) as deploy:
        loads = f"systemctl show -P StatusText {UNIT} | grep -q '^starting: loading weights'"
        fleet.shell("h1", f"for n in $(seq 600); do {loads} && exit; sleep 0.1; done; exit 1")
        deploy.kill()  # the controller is gone, the engine loads on
    row = fleet.status("h1")
    assert (row["status"], row["cause"].startswith("loading weights")) == ("starting", True)
    fleet.play("-l", "h1", playbook="playbooks/stop.yml")
    row = fleet.status("h1")
    assert (row["status"], row["cause"]) == ("stopped", "")
    fleet.model("h1")


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        ({"exit_in": "weights", "exit_status": 0, "exit_message": "ValueError: x"}, "the engine exited with status 0"),
        ({"exit_in": "kv_cache", "exit_status": 7, "exit_message": "torch.OutOfMemoryError: CUDA out of memory"},
         "The engine's own error: torch.OutOfMemoryError: CUDA out of memory"),
        ({"completion": "wrong_model"}, 'and not "tiny"'),
        ({"completion": "error_500"}, "a completion was answered with 500"),
        ({"completion": "never"}, "the endpoint is up, but no completion came in 3 s: generation is dead"),
        ({"hang_in": "graphs"}, "not ready after 6s (startup_timeout_s of the profile)"),
        ({"hang_in": "graphs", "sigterm": "ignore"}, "not ready after 6s (startup_timeout_s of the profile)"),
        ({"first_request": "kills"}, "main did not become ready"),
    ],
    ids=["exit-0", "exit-7", "wrong-model", "error-500", "no-tokens", "hang", "hang-deaf", "first-request-kills"],
)  # fmt: skip
def test_a_start_that_fails_says_why_and_leaves_the_unit_stopped(fleet, behaviour, told):
    fleet.model("h1", behaviour)
    fleet.profile("short", startup_timeout_s=6, completion_timeout_s=3, flags={"enforce-eager": False})
    output = failed_deploy(fleet, "short")
    assert told in output, output


def test_a_second_run_attaches_to_a_starting_server(served):
    served.model("h1", {"phases": {"weights": {"delay_s": 12}}})
    served.profile("slow", flags={"max-num-seqs": 2})
    command = served.command("-l", "h1", "-e", "profile=slow")
    first = subprocess.Popen(command, cwd=ROOT, env=served.environment(), stdout=subprocess.PIPE, text=True)
    assert any("loading weights" in line for line in first.stdout), "the first run never showed the phase"
    first.send_signal(signal.SIGKILL)
    first.wait()
    pid, starts = served.main_pid("h1"), served.starts("h1")
    assert pid
    assert served.status("h1")["status"] == "starting"

    output = served.play("-l", "h1", "-e", "profile=slow").stdout
    assert (served.main_pid("h1"), served.starts("h1")) == (pid, starts)
    assert lines_with(output, ["h1", "slow", "ready"])
    assert recap(served.play("-l", "h1", "-e", "profile=slow").stdout, "h1")["changed"] == 0


def test_a_connection_that_is_lost_in_the_gate_is_taken_up_again(served):
    served.model("h1", {"phases": {"weights": {"delay_s": 15}}})
    served.profile("slow", flags={"max-num-seqs": 3})
    command = served.command("-l", "h1", "-e", "profile=slow")
    run = subprocess.Popen(command, cwd=ROOT, env=served.environment(), stdout=subprocess.PIPE, text=True)
    lines = iter(run.stdout)
    assert any("loading weights" in line for line in lines), "the run never showed the phase"
    served.lab.cut("h1")
    assert any("connection lost" in line for line in lines), "the run never noticed"
    served.lab.join("h1")
    rest = "".join(lines)
    assert run.wait() == 0, rest
    assert "connected again" in rest


def test_a_fix_for_a_server_that_crashes_again_and_again(served):
    served.profile("fix", flags={"max-num-seqs": 9})
    served.shell("h1", f"kill -9 {served.main_pid('h1')}")
    waits = (
        "for i in $(seq 100); do systemctl show -P SubState {} | grep -q auto-restart && exit; sleep 0.1; done; exit 1"
    )
    served.shell("h1", waits.format(UNIT))
    served.play("-l", "h1", "-e", "profile=fix")
    assert served.flag("h1", "--max-num-seqs") == "9"


def test_a_process_of_an_older_release_is_never_proven(served):
    # As after a crash between two stages: what runs was started before the release that is active was activated.
    served.shell("h1", "python3 -c 'import time; print(time.monotonic())' > /run/ironserve/main.activated")
    pid = served.main_pid("h1")
    assert served.status("h1")["status"] == "starting"
    output = served.play("-l", "h1").stdout
    assert "an older release still runs" in output
    assert served.main_pid("h1") not in (0, pid)
    assert served.status("h1")["status"] == "ready"


def test_a_gate_that_was_killed_is_finished_by_the_next_run(served):
    served.shell("h1", f"systemctl stop {UNIT}")
    served.model("h1", {"phases": {"weights": {"delay_s": 8}}})
    first = subprocess.Popen(
        served.command("-l", "h1"), cwd=ROOT, env=served.environment(), stdout=subprocess.PIPE, text=True
    )
    assert any("loading weights" in line for line in first.stdout), "the first run never showed the phase"
    first.kill()
    first.wait()
    assert served.status("h1")["status"] == "starting"
    assert lines_with(served.play("-l", "h1").stdout, ["h1", "ready", "has not passed the gate"])
    assert "Restart=always" in served.shell("h1", f"systemctl show -p Restart {UNIT}")
    assert served.status("h1")["status"] == "ready"


def test_what_goes_wrong_after_ready_does_not_stop_the_server(served):
    served.profile("late", flags={"max-num-seqs": 10})
    good = "/var/lib/ironserve/main/last-known-good"
    served.shell("h1", f"rm {good} && mkdir -p {good}/in-the-way")
    result = served.play("-l", "h1", "-e", "profile=late", check=False)
    served.shell("h1", f"rm -r {good}")
    assert result.returncode == 2
    assert "was left as it is" in result.stdout
    assert served.flag("h1", "--max-num-seqs") == "10"
    assert recap(served.play("-l", "h1", "-e", "profile=late").stdout, "h1")["failed"] == 0


def test_a_ledger_that_cannot_be_written_changes_no_verdict(served):
    served.profile("unrecorded", flags={"max-num-seqs": 11})
    ledger = "/var/lib/ironserve/main/ledger.jsonl"
    served.shell("h1", f"mv {ledger} {ledger}.aside && mkdir {ledger}")
    result = served.play("-l", "h1", "-e", "profile=unrecorded")
    served.shell("h1", f"rmdir {ledger} && mv {ledger}.aside {ledger}")
    assert "the launch could not be recorded" in result.stdout + result.stderr
    assert served.flag("h1", "--max-num-seqs") == "11"


def test_a_proven_server_that_hangs_is_found_and_left_to_the_operator(served):
    served.profile("renamed", completion_timeout_s=2)
    core = served.shell("h1", "ps -eo pid,args | awk '/VLLM::EngineCore$/ {print $1}'")
    pid = served.main_pid("h1")
    served.shell("h1", f"kill -STOP {core}")
    result = served.play("-l", "h1", "-e", "profile=renamed", check=False)
    served.shell("h1", f"kill -CONT {core}")
    assert result.returncode == 2
    assert "generation is dead" in result.stdout
    assert "was left as it is" in result.stdout
    assert served.main_pid("h1") == pid


def test_a_failed_roll_ends_with_a_report_and_no_further_host(fleet):
    fleet.model("h1", {"exit_in": "weights"})
    fleet.model("h2")
    fleet.play("-l", "h2")
    pid = fleet.main_pid("h2")
    fleet.profile("wide", flags={"max-num-seqs": 12})
    result = fleet.play("-e", "profile=wide", check=False)
    assert result.returncode == 2
    assert {host: row["verdict"] for host, row in fleet.rows("deploy").items()} == {"h1": "failed", "h2": "not reached"}
    assert "[roll] stops before batch 2 of 2: h2: canary h1 failed" in result.stdout
    assert fleet.main_pid("h2") == pid


def test_debian_13_and_more_starts_than_systemd_takes_for_a_storm(make_lab, tmp_path):
    fleet = Fleet(standin_hosts(make_lab("-trixie"), 1, "trixie"), tmp_path)
    fleet.model("h1")
    fleet.play(lab_python="3.13")
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3
    assert recap(fleet.play(lab_python="3.13").stdout, "h1")["changed"] == 0
    for number in range(1, 5):
        fleet.profile(f"n{number}", flags={"max-num-seqs": number})
        fleet.play("-e", f"profile=n{number}", lab_python="3.13")
    fleet.shell("h1", f"kill -9 {fleet.main_pid('h1')}")
    fleet.shell("h1", "for i in $(seq 200); do curl -sf http://127.0.0.1:8000/health && exit; sleep 0.1; done; exit 1")
