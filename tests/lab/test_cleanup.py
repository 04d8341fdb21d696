"""GPUs freed on hosts where real processes hold them; only the GPUs and the driver are stood in (tests/gpu)."""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import gpu_hosts
from deploys import ROOT, Fleet, lines_with, standin_hosts

MIB = 76000
SCHEDULER = "sglang::scheduler"
WAIT = "for i in $(seq 200); do {} && exit; sleep 0.05; done; exit 1"


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1 with ten GPUs and nvidia-ml-py, h2 with two GPUs and nvidia-smi alone."""
    lab = standin_hosts(make_lab("-cleanup"), 2)
    gpu_hosts.install(lab, "h1", gpus=10)
    gpu_hosts.install(lab, "h2", gpus=2, pynvml=False)
    lab.exec("h1", ["sh", "-c", "for name in dcgm-exporter train; do cp /usr/bin/hold_gpu /usr/bin/$name; done"])
    return lab


@pytest.fixture(scope="module")
def old_hosts(make_lab):
    """h1 with control groups of version 1, as an old kernel's command line has them."""
    lab = make_lab("-cleanup-v1")
    if "cgroup v1" in (refused := lab("up", 1, "--cgroup", "v1", check=False)).stderr:
        pytest.skip(refused.stderr)
    gpu_hosts.install(lab, "h1", gpus=2)
    return lab


@pytest.fixture(params=["v2", "v1"])
def groups(request, tmp_path):
    """h1 with control groups of this version."""
    fleet = Fleet(request.getfixturevalue("hosts" if request.param == "v2" else "old_hosts"), tmp_path)
    fleet.started = []
    return fleet


@pytest.fixture
def fleet(hosts, tmp_path):
    """The hosts, nobody at their GPUs before and after."""
    fleet = Fleet(hosts, tmp_path)
    fleet.started = []
    yield fleet
    for host, pid in fleet.started:
        fleet.shell(host, f"kill -KILL {pid} 2>/dev/null || true")
    memory = "nvidia-smi --query-gpu=memory.used --format=csv,noheader"
    for host in ("h1", "h2"):
        gpu_hosts.set_faults(hosts, host)
        fleet.shell(host, WAIT.format(f"! {memory} | grep -qv '^0 MiB'"))  # what was just killed counts for a moment


def hold(fleet: Fleet, *words: object, host: str = "h1", program: str = "hold_gpu") -> dict[str, int]:
    """Start a holder as somebody does by hand; pids by title, once all of them hold."""
    said = f"/run/standin-gpu/said.{len(fleet.started)}"
    arguments = " ".join(f"'{word}'" for word in words)
    output = fleet.shell(
        host,
        f"rm -f {said}; setsid nohup {program} {arguments} > {said} 2>&1 < /dev/null & pid=$!; "
        + WAIT.format(f'grep -qs "^ready $pid " {said} && cat {said}'),
    )
    pids = gpu_hosts.processes(output)
    fleet.started += [(host, pid) for pid in pids.values()]
    return pids


def leftovers(fleet: Fleet, gpus: str = "0,1,2,3,4,5,6,7", *words: object, host: str = "h1") -> dict[str, int]:
    """Ranks, and a helper without a GPU, whose leader was killed."""
    pids = hold(fleet, gpus, MIB, "--tree", "--title", SCHEDULER, "--leader", "python3 -m sglang.launch_server",
                "--helper", "sglang::detokenizer", *words, host=host)  # fmt: skip
    leader = pids.pop("python3 -m sglang.launch_server")
    fleet.shell(host, f"kill -KILL {leader}; while kill -0 {leader} 2>/dev/null; do sleep 0.02; done")
    return pids


# Opens and maps GPU 0 and claims memory there, whatever it is called.
PYTHON_HOLDER = """\
import mmap, os, time
files = [os.open(f"/dev/{name}", os.O_RDWR) for name in ("nvidiactl", "nvidia-uvm", "nvidia0")]
maps = mmap.mmap(files[2], 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
ticks = open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]
with open(f"/run/standin-gpu/claims/.{os.getpid()}", "w") as file:
    file.write("100")
os.rename(file.name, f"/run/standin-gpu/claims/{os.getpid()}.{ticks}.0.C")
print("ready", os.getpid(), "holder", flush=True)
time.sleep(600)
"""


def run_as(fleet: Fleet, script: str, *argv: str) -> int:
    """Run PYTHON_HOLDER, which is put where ``script`` says, with exactly this argv; its pid."""
    fleet.lab.exec("h1", ["sh", "-c", f"mkdir -p $(dirname {script}) && cat > {script}"], input=PYTHON_HOLDER)
    said = f"/run/standin-gpu/said.{len(fleet.started)}"
    start = f"import os; os.execv('/usr/bin/python3', {list(argv)!r})"
    run = f'rm -f {said}; setsid nohup python3 -c "{start}" > {said} 2>&1 < /dev/null & '
    pid = int(fleet.shell("h1", run + WAIT.format(f"grep -qs ^ready {said} && cat {said}")).split()[1])
    fleet.started.append(("h1", pid))
    return pid


def alive(fleet: Fleet, pids, host: str = "h1") -> set[int]:
    """Those of the pids that run; a zombie does not, unless threads of it do."""
    numbers = " ".join(map(str, pids))
    script = f"for p in {numbers}; do awk '$3 != \"Z\" || $20 > 1 {{print $1}}' /proc/$p/stat 2>/dev/null; done"
    return {int(word) for word in fleet.shell(host, f"{script}; true").split()}


def cleanup(fleet: Fleet, host: str = "h1", check: bool = True, **arguments) -> dict:
    """What the module answers; it has to fail where ``check`` is false."""
    answer = fleet.module(host, "gpu_cleanup", {"grace_s": 5, **arguments}, check=check)
    assert ("FAILED!" in fleet.said) is not check, answer
    return answer


def used(fleet: Fleet, host: str = "h1") -> list[int]:
    """MiB of each GPU by nvidia-smi."""
    words = "--query-gpu=memory.used --format=csv,noheader,nounits"
    return [int(word) for word in fleet.shell(host, f"nvidia-smi {words}").split()]


def test_a_leftover_tree_goes_and_who_is_there_by_right_stays(fleet):
    monitor = hold(fleet, 0, 30, program="dcgm-exporter")
    job = hold(fleet, "8,9", MIB, program="train")
    ranks = leftovers(fleet)
    assert used(fleet) == [MIB + 30] + [MIB] * 9
    looked = fleet.module("h1", "gpu_info", {})
    assert [gpu["memory_used_mib"] for gpu in looked["gpus"]] == used(fleet)
    answer = cleanup(fleet, gpus=[gpu_hosts.uuid(number) for number in range(8)])
    assert answer["state"] == "clean"
    assert {one["pid"] for one in answer["victims"]} == set(ranks.values())
    assert answer["freed_mib"] == 8 * MIB
    assert answer["source"] == "nvml"
    assert alive(fleet, ranks.values()) == set()
    assert alive(fleet, [*monitor.values(), *job.values()]) == {*monitor.values(), *job.values()}
    assert {one["pid"] for one in answer["protected"]} >= set(monitor.values())
    assert [one["class"] for one in answer["reported"]] == ["out_of_scope"]
    assert used(fleet) == [30] + [0] * 7 + [MIB] * 2
    again = cleanup(fleet, gpus=[gpu_hosts.uuid(number) for number in range(8)])
    assert (again["state"], again["changed"], again["actions"]) == ("clean", False, [])


def test_check_mode_lists_and_ends_nothing(fleet):
    ranks = leftovers(fleet, "0,1")
    (fleet.folder / "check.yml").write_text(
        "- hosts: h1\n  gather_facts: false\n  tasks: [{gpu_cleanup: {}, check_mode: true, register: a},"
        " {debug: {var: a}}]\n"
    )
    output = fleet.play(playbook=str(fleet.folder / "check.yml")).stdout
    assert "state: held" in output
    assert lines_with(output, ["[h1] cleanup: would end sglang::scheduler_TP0 (pid "])
    assert alive(fleet, ranks.values()) == set(ranks.values())


def test_a_rank_that_ignores_sigterm_is_killed_once_after_the_grace(fleet):
    ranks = leftovers(fleet, "0,1", "--ignore-term")
    answer = cleanup(fleet, grace_s=1)
    assert answer["state"] == "clean"
    assert [line for line in answer["actions"] if line.startswith("kill ")] == ["kill 3 that did not end within 1s"]
    assert alive(fleet, ranks.values()) == set()


def test_a_zombie_with_a_living_thread_holds_and_goes(fleet):
    pids = hold(fleet, 0, MIB, "--title", "VLLM::Worker_TP0", "--leave-thread")
    (pid,) = pids.values()
    assert fleet.shell("h1", f"awk '{{print $3}}' /proc/{pid}/stat; ls /proc/{pid}/fd | wc -l").split() == ["Z", "0"]
    assert str(pid) not in fleet.shell("h1", "fuser /dev/nvidia0 2>/dev/null || true").split()  # it finds nobody
    answer = cleanup(fleet)
    assert answer["state"] == "clean"
    assert [one["pid"] for one in answer["victims"]] == [pid]
    assert alive(fleet, [pid]) == set()


def test_a_leader_that_starts_its_ranks_again_goes_with_them(fleet):
    pids = hold(fleet, "0,1", MIB, "--tree", "--title", SCHEDULER, "--leader", "sglang::launcher",
                "--respawn", 50, "--ignore-term")  # fmt: skip
    answer = cleanup(fleet, grace_s=1)
    assert answer["state"] == "clean"
    assert alive(fleet, pids.values()) == set()
    assert used(fleet)[:2] == [0, 0]


def test_what_is_started_again_from_outside_is_fought_three_times_and_named(fleet):
    loop = "for i in $(seq 8); do hold_gpu 0 1000 --title VLLM::EngineCore; done"
    fleet.shell("h1", f"cat > /root/loop.sh <<'E'\n{loop}\nE\n")
    run = "setsid nohup sh /root/loop.sh > /run/standin-gpu/loop 2>&1 < /dev/null & echo $!; "
    output = fleet.shell("h1", run + WAIT.format("grep -qs ready /run/standin-gpu/loop"))
    fleet.started.append(("h1", int(output)))
    answer = cleanup(fleet, check=False)
    assert answer["state"] == "respawning"
    assert f"sh (pid {output})" in answer["msg"]
    assert alive(fleet, [int(output)]) == {int(output)}
    fleet.shell("h1", f"kill -KILL {output}")
    cleanup(fleet)


def test_a_pid_that_passed_to_another_process_is_not_signalled(fleet):
    (bystander,) = hold(fleet, 0, MIB, program="train").values()
    boot = fleet.shell("h1", "cat /proc/sys/kernel/random/boot_id")
    cursor = {"boot": boot, "began": 1.0, "stage": "cleaning", "targets": [[bystander, 4711]], "told_at": 1.0}
    answer = cleanup(fleet, check=False, cursor=cursor, grace_s=0)
    assert answer["state"] == "foreign_holder"
    assert alive(fleet, [bystander]) == {bystander}


def test_a_foreign_job_is_named_and_ends_only_with_consent(fleet):
    (job,) = hold(fleet, 0, MIB, program="train").values()
    ranks = leftovers(fleet, "1")
    answer = cleanup(fleet, check=False)
    assert answer["state"] == "foreign_holder"
    assert f"pid {job} (of user root)" in answer["msg"]
    assert answer["freed_mib"] == MIB
    assert alive(fleet, [job, *ranks.values()]) == {job}  # what was left behind is gone all the same
    agreed = cleanup(fleet, consent_foreign=True)
    assert agreed["state"] == "clean"
    assert alive(fleet, [job]) == set()


# A stop that leaves ranks in the unit's control group: they ignore SIGTERM, and systemd kills the main process only.
STUBBORN = f"""\
[Service]
ExecStart=/usr/bin/hold_gpu 0,1 {MIB} --tree --title VLLM::Worker --leader VLLM::EngineCore --ignore-term
KillMode=process
TimeoutStopSec=1
"""


def test_a_unit_is_stopped_first_and_its_control_group_killed_as_a_whole(groups):
    script = (
        "cat > /etc/systemd/system/ironserve-stub.service && systemctl daemon-reload && systemctl start ironserve-stub"
    )
    groups.lab.exec("h1", ["sh", "-c", script], input=STUBBORN)
    place = "system.slice/ironserve-stub.service/cgroup.procs"
    group = groups.shell("h1", f"cat /sys/fs/cgroup/{place} 2>/dev/null || cat /sys/fs/cgroup/systemd/{place}")
    groups.shell("h1", WAIT.format("test $(ls /run/standin-gpu/claims | wc -l) -ge 2"))
    spared = cleanup(groups)
    assert spared["state"] in ("clean", "in_use")  # a unit that runs, and that nobody named, with all GPUs or some
    assert spared["victims"] == []
    answer = cleanup(groups, service="stub")
    assert answer["state"] == "clean"
    assert answer["actions"][:2] == ["stop ironserve-stub.service",
                                     "kill the control group of ironserve-stub.service with 2 processes"]  # fmt: skip
    assert alive(groups, group.split()) == set()
    assert used(groups)[:2] == [0, 0]
    groups.shell(
        "h1",
        "rm /etc/systemd/system/ironserve-stub.service; systemctl daemon-reload; systemctl reset-failed ironserve-stub",
    )


def test_a_tree_of_ranks_goes_with_either_version_of_control_groups(groups):
    ranks = leftovers(groups, "0,1")
    assert cleanup(groups)["state"] == "clean"
    assert alive(groups, ranks.values()) == set()


def test_case_18_a_process_that_outlives_sigkill_gets_one_and_is_told(old_hosts, tmp_path):
    """Frozen by the old freezer it waits in the kernel (state D) whatever it is sent, as inside a driver that hangs."""
    fleet = Fleet(old_hosts, tmp_path)
    fleet.started = []
    ranks = leftovers(fleet, "0,1")
    stuck = ranks[f"{SCHEDULER}_TP0"]
    freezer = "/sys/fs/cgroup/freezer/stuck"
    fleet.shell("h1", f"mkdir {freezer}; echo {stuck} > {freezer}/cgroup.procs; echo FROZEN > {freezer}/freezer.state")
    try:
        answer = cleanup(fleet, check=False, grace_s=1, timeout_s=2)
        assert answer["state"] == "unkillable"
        assert f"pid {stuck} (sglang::schedul, state D) did not end" in answer["msg"]
        assert "reboot" in answer["msg"]
        assert [line for line in answer["actions"] if line.startswith("kill")] == ["kill 1 that did not end within 1s"]
        assert answer["elapsed_s"] < 8
        assert alive(fleet, ranks.values()) == {stuck}
    finally:
        fleet.shell("h1", f"echo THAWED > {freezer}/freezer.state")
    fleet.shell("h1", WAIT.format(f"! kill -0 {stuck} 2>/dev/null"))
    assert cleanup(fleet)["state"] == "clean"


@pytest.mark.parametrize(
    ("faults", "arguments", "state", "says"),
    [
        (["0 stuck 624", "0 utilization 100"], {}, "wedged_no_owner", "a reset or a reboot is needed"),
        (["0 stuck 624"], {}, "wedged_no_owner", "624 MiB without any process"),
        (["0 hang"], {"driver_timeout_s": 2}, "driver_hung", "reboot"),
        (["init_hang"], {"driver_timeout_s": 2}, "driver_hung", "reboot"),
        (["mismatch"], {}, "driver_unusable", "different versions"),
        (["not_loaded"], {}, "driver_unusable", "not loaded"),
        (["3 lost"], {}, "gpu_lost", "GPU 3"),
        (["9 absent"], {"gpu_count": 10}, "gpu_lost", "does not answer for"),
        ([], {"gpu_count": 12}, "gpu_lost", "knows 10 GPUs, and ironserve_hardware.gpu_count says 12"),
        ([], {"gpus": ["0"]}, "gpu_lost", "knows no GPU 0, but GPU-"),
        (["1 reset_required"], {}, "reset_required", "needs a reset"),
        (["1 recovery 1"], {}, "reset_required", "asks for gpu reset"),
        (["2 mig"], {}, "mig_mode", "GPU 2"),
        (["0 memory_not_supported"], {}, "driver_unusable", "RTX PRO 6000"),
        (["0 ghost 99999 500"], {}, "foreign_holder", "pid 99999, which /proc does not show"),
    ],
)  # fmt: skip
def test_case_5_17_18_what_no_signal_can_mend_is_told(fleet, faults, arguments, state, says):
    gpu_hosts.set_faults(fleet.lab, "h1", *faults)
    answer = cleanup(fleet, check=False, **arguments)
    assert (answer["state"], answer["victims"], answer["actions"]) == (state, [], [])
    assert says in answer["msg"]
    assert answer["elapsed_s"] < 10


@pytest.mark.parametrize("fault", ["0 hang", "mismatch", "2 mig"])
def test_nobody_is_signalled_where_the_outcome_could_not_be_measured(fleet, fault):
    ranks = leftovers(fleet, "1,2")
    gpu_hosts.set_faults(fleet.lab, "h1", fault)
    cleanup(fleet, check=False, driver_timeout_s=2)
    assert alive(fleet, ranks.values()) == set(ranks.values())


@pytest.mark.parametrize(
    ("faults", "state"),
    [
        (["0 memory_not_supported", "0 name NVIDIA GB10"], "not_measurable"),
        (["0 process_memory_none", "1 process_memory_none"], "clean"),
        (["0 utilization 100"], "clean"),
        (["0 no_process_v3", "1 no_process_v3"], "clean"),
    ],
)
def test_case_17_what_a_driver_does_not_tell_stops_no_cleanup(fleet, faults, state):
    ranks = leftovers(fleet, "0,1")
    gpu_hosts.set_faults(fleet.lab, "h1", *faults)
    answer = cleanup(fleet)
    assert answer["state"] == state
    assert alive(fleet, ranks.values()) == set()
    if "no_process_v3" in faults[0]:
        assert answer["source"] == "nvidia-smi"


def test_seven_of_eight_are_cleaned_and_the_lost_one_is_told(fleet):
    ranks = leftovers(fleet, "0,1")
    gpu_hosts.set_faults(fleet.lab, "h1", "9 lost")
    answer = cleanup(fleet, check=False)
    assert answer["state"] == "gpu_lost"
    assert alive(fleet, ranks.values()) == set()


def test_without_nvidia_ml_py_nvidia_smi_is_asked_and_that_is_said(fleet):
    ranks = leftovers(fleet, "0,1", host="h2")
    answer = cleanup(fleet, host="h2")
    assert (answer["state"], answer["source"]) == ("clean", "nvidia-smi")
    assert "nvidia-ml-py is not there" in " ".join(answer["problems"])
    assert alive(fleet, ranks.values(), host="h2") == set()
    gpu_hosts.set_faults(fleet.lab, "h2", "0 hang")
    hung = cleanup(fleet, host="h2", check=False, driver_timeout_s=2)
    assert hung["state"] == "driver_hung"
    fleet.shell("h2", WAIT.format("! grep -qs '[n]vidia-smi' /proc/[0-9]*/cmdline"))  # its child went as well


def test_case_48_an_engines_name_among_its_own_arguments_is_no_reason(fleet):
    words = ["sglang.launch_server*", "vllm serve*", "*python*", "sh"]
    (bystander,) = hold(fleet, 0, MIB, "--title", "python3 -m sglang.launch_server_helper").values()
    answer = cleanup(fleet, patterns=words)
    assert answer["state"] == "clean"
    assert [one["pid"] for one in answer["victims"]] == [bystander]  # asked for by its title


def test_case_11_ranks_of_a_killed_api_server_go_whoever_took_them_in(fleet):
    """The launcher takes in orphans (PR_SET_CHILD_SUBREAPER), as a container's init or a user's systemd does."""
    launcher = (
        "import ctypes, os, subprocess, sys\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "api = subprocess.Popen(['sh', '-c', 'hold_gpu 0,1 900 --tree --title VLLM::Worker --leader VLLM::EngineCore & "
        "wait'])\n"
        "print('api', api.pid, flush=True)\n"
        "api.wait()\n"
        "os.waitpid(-1, 0)\n"
    )
    fleet.lab.exec("h1", ["sh", "-c", "cat > /root/launcher.py"], input=launcher)
    said = "/run/standin-gpu/launcher"
    run = f"rm -f {said}; setsid nohup python3 /root/launcher.py > {said} 2>&1 < /dev/null & "
    output = fleet.shell("h1", run + WAIT.format(f"grep -qs 'VLLM::EngineCore' {said} && cat {said}"))
    pids = gpu_hosts.processes("\n".join(line for line in output.splitlines() if line.startswith("ready ")))
    api = next(line.split()[1] for line in output.splitlines() if line.startswith("api "))
    fleet.started += [("h1", pid) for pid in pids.values()]
    fleet.shell("h1", f"kill -KILL {api}")
    parent = fleet.shell("h1", WAIT.format(f"! kill -0 {api} 2>/dev/null && ps -o comm= -p $(ps -o ppid= -p "
                                           f"{pids['VLLM::EngineCore']})"))  # fmt: skip
    assert parent.startswith("python3")
    answer = cleanup(fleet)
    assert {one["pid"] for one in answer["victims"]} == set(pids.values())
    assert alive(fleet, pids.values()) == set()
    assert used(fleet)[:2] == [0, 0]


def test_case_13_commands_are_judged_by_their_words(fleet):
    """The first two of these are engines: a server, and a rank by its title."""
    pids = [
        run_as(fleet, "/opt/venv/bin/sglang", "python3", "/opt/venv/bin/sglang", "serve", "--port", "19000"),
        *hold(fleet, 0, 100, "--title", "sglang::detokenizer").values(),
        run_as(fleet, "/srv/_work/sglang/test/run_suite.py", "python3", "/srv/_work/sglang/test/run_suite.py"),
        run_as(fleet, "/etc/systemd/system/sglang.service", "vim", "/etc/systemd/system/sglang.service"),
    ]
    fleet.shell("h1", "rm /etc/systemd/system/sglang.service")
    answer = cleanup(fleet, check=False)
    assert answer["state"] == "foreign_holder"
    assert {one["pid"] for one in answer["victims"]} == set(pids[:2])
    assert alive(fleet, pids) == set(pids[2:])


def test_case_14_holders_by_right_are_listed_and_live_on(fleet):
    names = ("nvidia-persistenced", "nv-hostengine", "dcgm-exporter", "nv-fabricmanager", "Xorg", "gnome-shell")
    kinds = {"Xorg": "G", "gnome-shell": "G"}
    by_right = []
    for name in names:
        fleet.shell("h1", f"cp /usr/bin/hold_gpu /usr/local/bin/{name}")
        by_right += hold(fleet, 0, 10, "--type", kinds.get(name, "C"), program=name).values()
    fleet.shell("h1", "mkdir -p /srv/x && cp /usr/bin/hold_gpu /srv/x/nvidia-smi")
    by_right += hold(fleet, 0, 10, program="/srv/x/nvidia-smi").values()
    (scheduler,) = hold(fleet, 0, MIB, "--title", "sglang::scheduler").values()
    answer = cleanup(fleet, consent_foreign=True)
    assert answer["state"] == "clean"
    assert [one["pid"] for one in answer["victims"]] == [scheduler]
    assert {one["pid"] for one in answer["protected"] if one["class"] == "protected"} == set(by_right)
    assert alive(fleet, [scheduler, *by_right]) == set(by_right)


def test_case_21_a_zombie_is_waited_for_no_longer_than_it_makes_sense(fleet):
    """The driver lists a zombie whose parent does not reap it; its child is alive and holds the GPU."""
    keeper = (
        "import os, time\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.spawnlp(os.P_NOWAIT, 'hold_gpu', 'hold_gpu', '0', '5000', '--title', 'VLLM::Worker_TP0')\n"
        "    os._exit(0)\n"
        "print('zombie', child, flush=True)\n"
        "time.sleep(600)\n"
    )
    fleet.lab.exec("h1", ["sh", "-c", "cat > /root/keeper.py"], input=keeper)
    said = "/run/standin-gpu/keeper"
    run = f"rm -f {said}; setsid nohup python3 /root/keeper.py > {said} 2>&1 < /dev/null & echo keeper $!; "
    output = fleet.shell("h1", run + WAIT.format(f"grep -qs ^ready {said} && grep -qs ^zombie {said} && cat {said}"))
    told = {line.split()[0]: int(line.split()[1]) for line in output.splitlines()}
    fleet.started += [("h1", told["keeper"]), ("h1", told["ready"])]
    gpu_hosts.set_faults(fleet.lab, "h1", f"0 ghost {told['zombie']} 5000", "0 stuck 5000")
    answer = cleanup(fleet, check=False)
    assert answer["state"] == "zombie"
    assert f"pid {told['zombie']}, which ended" in answer["msg"]
    assert f"python3 (pid {told['keeper']})" in answer["msg"]
    assert [one["pid"] for one in answer["victims"]] == [told["ready"]]
    assert alive(fleet, [told["ready"], told["keeper"]]) == {told["keeper"]}
    assert answer["elapsed_s"] < 10


def test_case_20_what_crashed_engines_left_in_shared_memory(fleet):
    fleet.shell("h1", "id ironserve 2>/dev/null || useradd --system ironserve")
    keep = ["nccl-live01", "pulse-shm-1", "PostgreSQL.123"]
    gone = ["nccl-abc123", "psm_1a2b", "sem.loky-9", "torch_777_1"]
    names = " ".join([*keep, *gone])
    fleet.shell("h1", f"cd /dev/shm; for f in {names}; do head -c 100000 /dev/zero > $f; chown ironserve $f; done; "
                      "true")  # fmt: skip
    program = "import mmap,os,time; f=os.open('/dev/shm/nccl-live01',os.O_RDWR); m=mmap.mmap(f,4096); os.close(f); "
    program += "print('mapped',flush=True); time.sleep(600)"
    run = f'setsid python3 -c "{program}" > /run/mapped 2>&1 < /dev/null & echo $!; '
    pid = fleet.shell("h1", run + WAIT.format("grep -qs mapped /run/mapped"))
    fleet.started.append(("h1", int(pid)))
    # A file that was made this moment may be somebody's who is about to open it.
    assert cleanup(fleet)["shm_removed"] == []
    old = "python3 -c \"import os,time,sys; sys.exit(time.time() - os.stat('/dev/shm/psm_1a2b').st_ctime < 6)\""
    fleet.shell("h1", WAIT.format(old))
    answer = cleanup(fleet)
    assert sorted(one["name"] for one in answer["shm_removed"]) == sorted(gone)
    assert sum(one["bytes"] for one in answer["shm_removed"]) >= 4 * 100000
    assert sorted(fleet.shell("h1", "ls /dev/shm").split()) == sorted(keep)
    fleet.shell("h1", f"cd /dev/shm; rm {' '.join(keep)}")


SITE = {
    "ironserve_hardware": {"gpu_count": 10, "gpu_family": "sm120"},
    "ironserve_gpus": [gpu_hosts.uuid(number) for number in range(8)],
}


def test_a_deploy_onto_leftovers_ends_ready_with_only_them_gone(fleet):
    fleet.model("h1")
    stay = {*hold(fleet, 0, 30, program="dcgm-exporter").values(), *hold(fleet, "8,9", MIB, program="train").values()}
    ranks = leftovers(fleet)
    checked = fleet.play("-l", "h1", "--check", **SITE).stdout
    assert lines_with(checked, ["[h1] cleanup: would end sglang::scheduler_TP0 (pid ", "and 6 more"])
    assert alive(fleet, ranks.values()) == set(ranks.values())
    output = fleet.play("-l", "h1", **SITE).stdout
    assert lines_with(output, ["h1", "ready"])
    assert lines_with(output, [f"[h1] cleanup: {8 * MIB} MiB of GPU memory free"])
    assert alive(fleet, [*ranks.values(), *stay]) == stay
    pid = fleet.main_pid("h1")
    # A changed release: the old server is stopped by the clean step, by systemd and within its own limit.
    fleet.profile("other", flags={"max-num-seqs": 3})
    output = fleet.play("-l", "h1", "-e", "profile=other", **SITE).stdout
    assert lines_with(output, ["[h1] cleanup: stop ironserve-main.service"])
    assert fleet.main_pid("h1") not in (0, pid)
    assert alive(fleet, stay) == stay
    fleet.play("-l", "h1", playbook="playbooks/stop.yml")


def test_a_deploy_onto_a_wedged_gpu_fails_with_what_to_do(fleet):
    fleet.model("h1")
    fleet.play("-l", "h1", **SITE)
    good = fleet.status("h1")["release_id"]
    fleet.profile("third", flags={"max-num-seqs": 7})
    gpu_hosts.set_faults(fleet.lab, "h1", "2 stuck 624")
    result = fleet.play("-l", "h1", "-e", "profile=third", check=False, **SITE)
    assert result.returncode == 2
    output = " ".join(result.stdout.split())
    assert "624 MiB without any process" in output
    assert "docs/cleanup.md#wedged_no_owner" in output
    # What served before is started again, though its GPUs are not all free either; that is said.
    row = fleet.rows("deploy")["h1"]
    assert (row["verdict"], row["put_back"]["verdict"], row["put_back"]["release_id"]) == ("failed", "ready", good)
    assert f"h1: put back lab_vllm (release {good}): ready after" in output
    assert "h1: on the way: GPUs not freed: " in output
    assert fleet.status("h1")["status"] == "ready"
    assert "third" in fleet.shell("h1", "grep wedged_no_owner /var/lib/ironserve/main/ledger.jsonl")
    gpu_hosts.set_faults(fleet.lab, "h1")
    assert lines_with(fleet.play("-l", "h1", **SITE).stdout, ["h1", "unchanged"])
    fleet.play("-l", "h1", playbook="playbooks/stop.yml")


def test_a_deploy_with_a_hung_driver_leaves_the_old_server_alone(fleet):
    fleet.model("h1")
    fleet.play("-l", "h1", **SITE)
    pid = fleet.main_pid("h1")
    gpu_hosts.set_faults(fleet.lab, "h1", "0 hang")
    fleet.profile("next", flags={"max-num-seqs": 5})
    result = fleet.play("-l", "h1", "-e", "profile=next", check=False, **SITE)
    assert result.returncode == 2
    told = ["error: host: driver: The NVIDIA driver did not answer", "[host-driver-unusable]"]
    assert lines_with(result.stdout, told)
    assert "nothing was touched" in result.stdout  # validate told it
    assert fleet.main_pid("h1") == pid
    assert fleet.status("h1")["status"] == "ready"
    gpu_hosts.set_faults(fleet.lab, "h1")
    assert lines_with(fleet.play("-l", "h1", "-e", "profile=next", **SITE).stdout, ["h1", "next", "ready"])
    fleet.play("-l", "h1", playbook="playbooks/stop.yml")


def test_the_playbook_lists_asks_and_cleans(fleet):
    ranks = leftovers(fleet, "0,1")
    site = {"playbook": "playbooks/cleanup.yml", "ironserve_hardware": {"gpu_count": 0, "gpu_family": "none"}}
    checked = fleet.play("--check", **site).stdout
    assert lines_with(checked, ["h1", "victim", str(ranks[f"{SCHEDULER}_TP0"]), f"{MIB}", "left behind"])
    assert lines_with(checked, ["victims on 1 of 2 hosts"])
    asked = fleet.play(check=False, **site)  # nobody is there to answer, and silence is no
    assert asked.returncode == 2
    assert "nobody agreed" in asked.stdout
    assert alive(fleet, ranks.values()) == set(ranks.values()), asked.stdout
    done = fleet.play("-e", "yes=true", **site).stdout
    assert lines_with(done, ["h1", "clean", str(2 * MIB)])
    assert alive(fleet, ranks.values()) == set()
    rows = {row["host"]: row for row in json.loads(fleet.report("cleanup").read_text())}
    assert rows["h1"]["freed_mib"] == 2 * MIB
    assert rows["h2"]["state"] == "clean"
    gpu_hosts.set_faults(fleet.lab, "h2", "0 stuck 700")
    failed = fleet.play("-e", "yes=true", check=False, **site)
    assert failed.returncode == 2
    assert lines_with(failed.stdout, ["h2", "wedged_no_owner"])


@pytest.mark.parametrize(("word", "goes"), [("no", False), ("yes", True)])
def test_the_playbook_does_what_the_person_at_the_terminal_answers(fleet, word, goes):
    ranks = leftovers(fleet, "0,1")
    site = {"ironserve_hardware": {"gpu_count": 0, "gpu_family": "none"}}
    command = shlex.join(fleet.command("-l", "h1", playbook="playbooks/cleanup.yml", **site))
    run = subprocess.Popen(
        ["script", "-qec", command, "/dev/null"], cwd=ROOT, env=fleet.environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert run.stdin
    assert run.stdout
    said = ""
    try:
        while chunk := os.read(run.stdout.fileno(), 65536):
            said += chunk.decode(errors="replace")
            if "yes or no" in said:
                break
        assert "left behind by" in said  # who goes is shown before the question
        # Ansible forgets what was typed before it listens: so it is typed again every second until it is heard.
        answered = ""
        for _ in range(60):
            run.stdin.write(f"{word}\n".encode())
            run.stdin.flush()
            ends = time.monotonic() + 1
            while "TASK" not in answered and select.select([run.stdout], [], [], max(0, ends - time.monotonic()))[0]:
                answered += os.read(run.stdout.fileno(), 65536).decode(errors="replace")
            if "TASK" in answered:
                break
        said += answered
        said += run.stdout.read().decode(errors="replace")
    finally:
        run.stdin.close()
        try:
            run.wait(60)
        finally:
            run.kill()
    assert run.returncode == (0 if goes else 2), said
    assert (alive(fleet, ranks.values()) == set()) is goes, said
