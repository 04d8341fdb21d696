"""Units that are right: quoting by systemd's rules, limits, readiness, watchdog, over a reboot; on a real systemd."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.ironserve import systemd
from ansible.module_utils.ironserve.judge import START_LIMIT
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT, UNIT, Fleet, lines_with, standin_hosts


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1, which sees the stand-in's wheelhouse."""
    return standin_hosts(make_lab("-units"), 1)


@pytest.fixture
def fleet(hosts, tmp_path):
    return Fleet(hosts, tmp_path)


@pytest.fixture
def served(fleet):
    """h1 serves with limits short enough to be waited for; what a test broke is put right by this deploy."""
    fleet.model("h1")
    fleet.profile("quick", stall_timeout_s=4, watchdog_s=20, completion_timeout_s=10)
    fleet.play("-l", "h1", "-e", "profile=quick")
    return fleet


def wait(fleet: Fleet, condition: str, seconds: int = 30) -> None:
    """Wait until a shell condition holds on h1."""
    script = f"for i in $(seq {seconds * 10}); do {condition} && exit; sleep 0.1; done; exit 1"
    if fleet.lab.exec("h1", ["sh", "-c", script], check=False).returncode:
        seen = fleet.shell("h1", f"systemctl status {UNIT} --no-pager; tail -n 30 /var/log/ironserve/main.log || true")
        raise AssertionError(f"{condition}: not in {seconds} s\n{seen}")


def show(fleet: Fleet, name: str) -> str:
    """A property of the unit."""
    return fleet.shell("h1", f"systemctl show -P {name} {UNIT}")


# Quoting. What resolve accepts: text without control characters but line breaks and tabs.
TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs"), include_characters="\n\t"), max_size=20)
AWKWARD = st.sampled_from(
    ["", " ", "a b", "%", "%H", "100% done", "%%", "$", "$x", "${HOME}", "$$", ";", "#", "a;b", "\\", "\\n", '"', "'",
     "''", '{"a": "it\'s"}', "é", "日本", "~", "*", "-", "--", "@x", "!", ":", "+x", "|", "&", "(", "=", "a=b", "\ttab",
     "line\nline"]
)  # fmt: skip
WORD = AWKWARD | TEXT
NAME = st.from_regex(r"X[A-Z]{1,4}", fullmatch=True)
CASES = st.lists(st.tuples(st.lists(WORD, max_size=5), st.dictionaries(NAME, WORD)), min_size=20, max_size=40)

READ_BACK = """
import json, pathlib, subprocess
found = []
for number in range(COUNT):
    unit, dump = f"quote{number}.service", pathlib.Path(f"/run/quote{number}")
    path = "/org/freedesktop/systemd1/unit/" + unit.replace(".", "_2e")
    asked = ["busctl", "--json=short", "get-property", "org.freedesktop.systemd1", path,
             "org.freedesktop.systemd1.Service", "ExecStart", "Environment"]
    start, environment = (json.loads(line)["data"] for line in subprocess.check_output(asked, text=True).splitlines())
    cmdline, environ = ((dump / name).read_bytes().decode().split("\\0")[:-1] for name in ("cmdline", "environ"))
    found.append([start[0][1], environment, cmdline, environ])
print(json.dumps(found))
"""


@given(CASES)
# Shrinking would start hundreds of units; a case that fails is short enough as it is.
@settings(
    max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=[Phase.generate]
)
def test_any_argv_and_environment_come_back_identical(hosts, cases):
    fleet = Fleet.__new__(Fleet)
    fleet.lab = hosts
    dump = "/usr/local/bin/dump"
    units = {}
    for number, (argv, env) in enumerate(cases):
        lines = [f"Environment={systemd.quoted(f'{name}={value}')}" for name, value in env.items()]
        command = systemd.exec_line([dump, f"/run/quote{number}", *argv])
        units[f"quote{number}.service"] = "\n".join(["[Service]", "Type=oneshot", *lines, f"ExecStart={command}", ""])
    setup = textwrap.dedent(f"""\
        import json, os, pathlib, subprocess, sys
        pathlib.Path({dump!r}).write_text('#!/bin/sh\\nmkdir -p "$1"; cat /proc/$$/cmdline > "$1/cmdline"; '
            'cat /proc/$$/environ > "$1/environ"\\n')
        os.chmod({dump!r}, 0o755)
        units = json.load(sys.stdin)
        for name, text in units.items():
            pathlib.Path("/run/systemd/system", name).write_text(text)
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        subprocess.run(["systemctl", "start", *units], check=True)
        """)
    hosts.exec("h1", ["python3", "-c", setup], input=json.dumps(units))
    read = hosts.exec("h1", ["python3", "-c", READ_BACK.replace("COUNT", str(len(cases)))])
    for (argv, env), (start, environment, cmdline, environ) in zip(cases, json.loads(read.stdout), strict=True):
        # systemd puts variables in when it executes: until then $$ stands for $.
        assert [word.replace("$$", "$") for word in start[2:]] == argv
        assert cmdline[3:] == argv
        wanted = {f"{name}={value}" for name, value in env.items()}
        assert set(environment) == wanted
        assert wanted <= set(environ)


def test_case_38_percent_and_dollar_arrive_as_they_were_written(fleet):
    model = {"path": "/srv/standin", "served_name": "demo-50%H"}
    fleet.model("h1")
    fleet.profile("signs", env={"MSG": "100% done", "CACHE": "/srv/a%20b"}, flags={"chat-template": "/srv/$x/t.jinja"})
    fleet.play("-l", "h1", "-e", "profile=signs", ironserve_model=model)
    pid = fleet.main_pid("h1")
    argv = fleet.shell("h1", f"tr '\\0' '\\n' < /proc/{pid}/cmdline").splitlines()
    assert argv[argv.index("--served-model-name") + 1] == "demo-50%H"
    assert argv[argv.index("--chat-template") + 1] == "/srv/$x/t.jinja"
    environ = fleet.shell("h1", f"tr '\\0' '\\n' < /proc/{pid}/environ").splitlines()
    assert {"MSG=100% done", "CACHE=/srv/a%20b"} <= set(environ)
    assert fleet.complete("h1", model="demo-50%H")["usage"]["completion_tokens"] == 3


def test_case_38_a_unit_that_systemd_complains_about_never_replaces_a_good_one(served):
    before = served.written("h1")
    play = served.folder / "bad.yml"
    play.write_text(
        textwrap.dedent("""\
        - hosts: h1
          gather_facts: false
          become: true
          tasks:
            - name: Resolve
              resolve_release: {profile: quick}
              register: resolved
            - name: Activate
              inference_release:
                service: main
                state: active
                release: "{{ resolved.releases[0] | combine({'release_id': 'abadabadabad'}) }}"
                unit: |
                  [Service]
                  ExecStart=/bin/true
                  Restrat=always
        """)
    )
    result = served.play(playbook=str(play), check=False)
    assert result.returncode == 2
    assert "systemd refuses the unit" in result.stdout
    assert "Restrat" in result.stdout
    assert served.written("h1") == before


def test_case_40_limits_are_those_of_the_unit_and_a_lower_one_fails_the_gate(served):
    limits = served.shell("h1", f"cat /proc/{served.main_pid('h1')}/limits")
    found = [line.split()[3:5] for line in limits.splitlines() if line.startswith(("Max open files", "Max locked"))]
    assert found == [["8192", "8192"], ["1048576", "1048576"]]  # ironserve_limits of the lab
    assert show(served, "TasksMax") == "infinity"
    override = f"/etc/systemd/system/{UNIT}.d"
    served.shell("h1", f"mkdir {override} && printf '[Service]\\nLimitNOFILE=2000\\n' > {override}/lower.conf")
    served.profile("other", flags={"max-num-seqs": 5})
    result = served.play("-l", "h1", "-e", "profile=other", check=False)
    served.shell("h1", f"rm -r {override} && systemctl daemon-reload")
    assert result.returncode == 2
    assert "max open files: 2000 (hard 2000), and the unit asks for 8192" in result.stdout


def test_case_41_restarts_end_after_three_failed_loads_and_a_deploy_starts_all_the_same(served):
    text = served.shell("h1", f"cat /etc/systemd/system/{UNIT}")
    said = {
        key: int(value) for key, value in re.findall(r"^(StartLimit\w+|RestartSec|TimeoutStartSec)=(\d+)", text, re.M)
    }
    startup_s = yaml.safe_load((ROOT / "profiles" / "lab_vllm.yml").read_text())["startup_timeout_s"]
    for fails_after_s in (120, startup_s):  # the case's, and the longest load
        assert said["StartLimitIntervalSec"] > said["StartLimitBurst"] * (fails_after_s + said["RestartSec"])
    assert said["TimeoutStartSec"] > startup_s  # case 31: only the helper ends a start
    assert show(served, "Restart") == "always"  # case 29: an engine that dies may exit with status 0
    served.shell("h1", f"for n in 1 2 3 4 5; do systemctl restart {UNIT} || exit 0; done")
    assert show(served, "Result") == "start-limit-hit"
    row = served.status("h1")
    assert (row["status"], row["cause"]) == ("failed", START_LIMIT)
    assert lines_with(served.play("-l", "h1").stdout, ["h1", "ready"])


def test_the_engine_is_the_main_process_and_hears_nothing_of_systemds_channel(served):
    pid = served.main_pid("h1")
    assert "vllm" in served.shell("h1", f"tr '\\0' ' ' < /proc/{pid}/cmdline")
    environ = served.shell("h1", f"tr '\\0' '\\n' < /proc/{pid}/environ")
    assert "NOTIFY_SOCKET" not in environ
    assert "WATCHDOG" not in environ
    assert show(served, "Type") == "notify"
    assert "serving" in show(served, "StatusText")
    owners = served.shell("h1", "ps -eo user:20,args | awk '/runtime\\/launch/ && !/awk/ {print $1}'").split()
    assert owners == ["ironserve", "ironserve"]


def test_a_helper_that_is_killed_costs_no_server(served):
    pid = served.main_pid("h1")
    helpers = "ps -eo pid,ppid,args | awk '/runtime\\/launch/ && !/awk/ {print $1, $2}'"
    pairs = [line.split() for line in served.shell("h1", helpers).splitlines()]
    worker = next(child for child, parent in pairs if parent in {other for other, _ in pairs})
    served.shell("h1", f"kill -9 {worker}")
    wait(served, f"[ $({helpers} | wc -l) = 2 ] && ! kill -0 {worker} 2>/dev/null")
    # Longer than the watchdog: the one that took over feeds it.
    stamp = show(served, "WatchdogTimestampMonotonic")
    wait(served, f"[ $(systemctl show -P WatchdogTimestampMonotonic {UNIT}) -gt $(({stamp} + 5000000)) ]")
    assert served.main_pid("h1") == pid


@pytest.mark.parametrize("asked", [False, True], ids=["idle", "with-a-request"])
def test_a_server_that_hangs_is_ended_by_the_watchdog_and_started_again(served, asked):
    pid = served.main_pid("h1")
    core = served.shell("h1", "ps -eo pid,args | awk '/VLLM::EngineCore$/ {print $1}'")
    served.shell("h1", f"kill -STOP {core}")
    if asked:
        request = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 3})
        curl = f"curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' -d '{request}'"
        served.shell("h1", f"nohup {curl} >/dev/null 2>&1 &")
    else:
        wait(served, f"systemctl show -P StatusText {UNIT} | grep -q 'no answer to a request for one token'")
        status = served.status("h1")
        assert (status["status"], status["settled"]) == ("unhealthy", False)
        assert "no answer to a request for one token" in status["note"]
    wait(served, f"p=$(systemctl show -P MainPID {UNIT}) && [ $p != 0 ] && [ $p != {pid} ]", 90)
    wait(served, f"[ $(systemctl show -P ActiveState {UNIT}) = active ]")
    assert served.complete("h1")["usage"]["completion_tokens"] == 3
    assert "Watchdog timeout" in served.shell("h1", f"journalctl -u {UNIT} -o cat")


def test_a_busy_server_is_never_ended_by_the_watchdog(served):
    served.model("h1", {"tokens_per_s": 20})
    served.profile("busy", watchdog_s=3, flags={"max-num-seqs": 7})
    served.play("-l", "h1", "-e", "profile=busy")
    pid = served.main_pid("h1")
    request = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 160, "ignore_eos": True})
    curl = f"curl -sf http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' -d '{request}'"
    answer = json.loads(served.shell("h1", curl))
    assert answer["usage"]["completion_tokens"] == 160
    assert served.main_pid("h1") == pid


def test_a_start_that_moves_is_left_alone_over_a_reload_of_systemd_too(served):
    # A shard a second, longer than the limit; shorter than that limit no busy machine keeps the stand-in from running.
    served.model("h1", {"phases": {"weights": {"delay_s": 14}}, "weights": {"shards": 14, "seconds": 14}})
    served.profile("moves", stall_timeout_s=8, flags={"max-num-seqs": 3, "load-format": "auto"})
    command = served.command("-l", "h1", "-e", "profile=moves")
    run = subprocess.Popen(command, cwd=ROOT, env=served.environment(), stdout=subprocess.PIPE, text=True)
    lines = iter(run.stdout)
    assert any("loading weights" in line for line in lines), "the run never showed the phase"
    wait(served, "grep -q 'Completed | 9/14' /var/log/ironserve/main.log")
    served.shell("h1", "systemctl daemon-reload")
    rest = "".join(lines)
    assert run.wait() == 0, rest


def test_a_start_in_which_nothing_moves_is_ended(served):
    served.forget("h1")
    served.model("h1", {"hang_in": "weights"})
    served.profile("hangs", stall_timeout_s=4, flags={"max-num-seqs": 4})
    result = served.play("-l", "h1", "-e", "profile=hangs", check=False)
    assert result.returncode == 2
    said = " ".join(result.stdout.split())
    assert "it hangs, nothing moves any more: log silent for" in said
    assert "stall_timeout_s of the profile is 4s" in said


def test_after_a_reboot_a_start_that_hangs_is_tried_again_and_the_boot_does_not_wait(served):
    served.model("h1", {"hang_in": "weights"})
    served.lab.reboot("h1")
    wait(served, "systemctl is-active --quiet multi-user.target")
    assert show(served, "ActiveState") == "activating"
    assert served.status("h1")["status"] == "starting"
    wait(served, f"[ $(systemctl show -P NRestarts {UNIT}) -ge 1 ]", 60)
    served.model("h1")
    wait(served, f"[ $(systemctl show -P ActiveState {UNIT}) = active ]", 60)
    assert served.complete("h1")["usage"]["completion_tokens"] == 3
    assert served.status("h1")["status"] == "ready"
    # No gate watched, so the helper kept what the hang looked like.
    left = "ls /run/ironserve/main/evidence/*.json.gz"
    kept = Path(served.shell("h1", left).splitlines()[-1]).name
    served.play("-l", "h1", playbook="playbooks/diagnose.yml")
    assert not served.shell("h1", f"{left} 2>/dev/null || true")
    fetched = served.folder / "reports" / "evidence" / "h1" / kept
    seen = json.loads(gzip.decompress(fetched.read_bytes()))
    assert seen["phase"] == "loading weights"
    assert min(signal["age_s"] for signal in seen["signals"].values()) >= 4


def test_case_36_json_flags_reach_the_engine_as_the_json_that_was_meant(fleet):
    meant = {
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
        "compilation-config": {"cudagraph_mode": "FULL_AND_PIECEWISE", "custom_ops": ["all"]},
        "hf-overrides": {"a value with": "a single quote ' and a space"},
    }
    fleet.model("h1")
    quoted = {**meant, "hf-overrides": json.dumps(meant["hf-overrides"])}
    fleet.profile("json", stall_timeout_s=30, flags=quoted)
    fleet.play("-l", "h1", "-e", "profile=json")
    script = f"tr '\\0' '\\n' < /proc/{fleet.main_pid('h1')}/cmdline"
    words = fleet.shell("h1", script).splitlines()
    assert {name: json.loads(words[words.index(f"--{name}") + 1]) for name in meant} == meant
