"""A host that already runs an engine by other means: named, left alone, and taken over when asked for.

Stood in: GPUs (ordinary files /dev/nvidia0 and others that a process opens and maps, and a folder mounted over
/proc/driver), docker (a program that records its calls and stops the scope in which a process runs), tmux (a process
that bears its name and starts sessions). Real: systemd, sshd, control groups, signals, the whole deploy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT, Fleet, lines_with, recap, standin_hosts

SERVE = "python3 -m http.server 8000"
WAIT = "for i in $(seq 100); do {} && exit; sleep 0.05; done; exit 1"
UUID = "GPU-81e540af-1718-43f5-3b6a-791b20ddf89{}"
CONTAINER = "3f4a9c0de1b25f6879a0c1d2e3f405162738495a6b7c8d9e0f1a2b3c4d5e6f70"

RELEASE = {
    "service": "main", "port": 8000, "gpus": [], "release_id": "x", "model": {"path": "/srv/standin"},
    "profile": "lab_vllm", "engine": "vllm", "flags": {}, "env": {}, "host_env": {},
    "environment": "/opt/ironserve/engines/none",
    "limits": {"nofile": 8192, "memlock": 1048576},
    "lock": {
        "id": "none", "name": "none", "engine_version": "0.32.0", "folder": str(ROOT / "environments/vllm-0.32.0-cpu")
    },
}  # fmt: skip

UNIT = f"""\
[Service]
ExecStart={SERVE}
Restart=always
RestartSec=0
[Install]
WantedBy=multi-user.target
"""

# As CUDA does: open the device and map it. A monitor opens it only.
USE_GPU = """
import mmap, os, sys, time
files = [os.open(path, os.O_RDWR) for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", sys.argv[1])]
maps = [mmap.mmap(files[2], 4096)] if "monitor" not in sys.argv else []
time.sleep(3600)
"""

TMUX = """
import os, sys, time
open("/proc/self/comm", "w").write("tmux: server")
if os.fork() == 0:
    os.setsid()
    os.execvp("sh", ["sh", "-c", sys.argv[1]])
os.wait()
time.sleep(3600)
"""

DOCKER = f"""\
#!/bin/sh
echo "$*" >> /srv/docker.calls
case "$1" in
inspect) echo '[{{"Name": "/vllm-prod", "HostConfig": {{"RestartPolicy": {{"Name": "unless-stopped"}}}}}}]' ;;
stop) systemctl stop docker-{CONTAINER}.scope ;;
esac
"""


@pytest.fixture(scope="module")
def hosts(make_lab):
    return standin_hosts(make_lab("-takeover"), 1)


@pytest.fixture
def fleet(hosts, tmp_path):
    """h1 with a model, where no service runs and nobody holds anything."""
    fleet = Fleet(hosts, tmp_path)
    fleet.model("h1")
    fleet.shell("h1", f"systemctl disable --now ironserve-main || true; {listening('!')}")
    return fleet


def listening(negated: str = "") -> str:
    return "(" + WAIT.format(f"{negated} curl -so /dev/null http://127.0.0.1:8000/") + ")"


def write(fleet: Fleet, path: str, text: str, mode: str = "644") -> None:
    fleet.lab.exec("h1", ["sh", "-c", f"cat > {path} && chmod {mode} {path}"], input=text)


def holder(fleet: Fleet) -> str:
    """Pid of the process that listens on port 8000."""
    return fleet.shell("h1", "ss -Hltnp 'sport = :8000' | grep -o 'pid=[0-9]*' | head -n 1 | cut -d= -f2")


def ticks(fleet: Fleet, pid: str) -> str:
    """Start time of a process: with its pid it says that this one still runs."""
    return fleet.shell("h1", f"cut -d' ' -f22 /proc/{pid}/stat")


def refused(fleet: Fleet, *words: str, **site) -> str:
    """Deploy where it has to be refused; what holds the port must run on."""
    pid = holder(fleet)
    before = (pid, ticks(fleet, pid)) if pid else None
    result = fleet.play(*words, check=False, **site)
    assert result.returncode == 2, result.stdout
    if before:
        assert (pid, ticks(fleet, pid)) == before
    assert fleet.main_pid("h1") == 0
    output = " ".join((result.stdout + result.stderr).split())
    print(output)
    return output


def named(fleet: Fleet) -> str:
    """What stands in the way, by the module that validate calls."""
    (problem,) = fleet.module("h1", "host_preflight", {"releases": [RELEASE]}, check=False)["problems"]
    return problem


def freed(fleet: Fleet, **more) -> dict:
    """Take over by the module that the roll calls; the port has to be free then."""
    answer = fleet.module("h1", "host_takeover", {"releases": [RELEASE], **more})
    assert holder(fleet) == ""
    return answer


def taken(fleet: Fleet, **site) -> str:
    """Deploy with takeover; it has to end ready."""
    output = fleet.play("-e", "takeover=true", **site).stdout
    assert lines_with(output, ["h1", "lab_vllm", "ready"])
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3
    return output


@pytest.fixture
def foreign_unit(fleet):
    write(fleet, "/etc/systemd/system/my-vllm.service", UNIT)
    fleet.shell("h1", f"systemctl daemon-reload; systemctl enable -q --now my-vllm && {listening()}")
    yield fleet
    fleet.shell("h1", "systemctl disable --now my-vllm; rm /etc/systemd/system/my-vllm.service")


def test_a_foreign_unit_is_named_and_left_alone(foreign_unit):
    written = foreign_unit.written("h1")
    output = refused(foreign_unit)
    pid = holder(foreign_unit)
    assert f"port 8000: held by unit my-vllm.service (pid {pid}, user root, for " in output
    assert (
        f'"{SERVE}". It was left alone: stop it yourself (systemctl disable --now my-vllm.service), or deploy '
        "with -e takeover=true, which stops and disables unit my-vllm.service" in output
    )
    assert foreign_unit.written("h1") == written


def test_check_mode_says_what_would_be_stopped_and_stops_nothing(foreign_unit):
    pid = holder(foreign_unit)
    output = foreign_unit.play("-e", "takeover=true", "--check").stdout
    assert lines_with(output, ["[h1] takeover: would disable my-vllm.service"])
    assert lines_with(output, ["[h1] takeover: would stop my-vllm.service"])
    assert holder(foreign_unit) == pid
    assert foreign_unit.shell("h1", "systemctl is-enabled my-vllm") == "enabled"


def test_a_foreign_unit_is_stopped_and_disabled_over_a_reboot_too(foreign_unit):
    output = taken(foreign_unit)
    assert lines_with(output, ["[h1] takeover: disable my-vllm.service"])
    assert lines_with(output, ["[h1] takeover: stop my-vllm.service"])
    assert lines_with(output, ["[h1] takeover: brought back by: systemctl enable --now my-vllm.service"])
    assert recap(foreign_unit.play("-e", "takeover=true").stdout, "h1")["changed"] == 0
    foreign_unit.lab.reboot("h1")
    assert foreign_unit.shell("h1", "systemctl is-enabled my-vllm || true") == "disabled"
    assert foreign_unit.shell("h1", "systemctl is-active my-vllm || true") == "inactive"
    foreign_unit.shell("h1", WAIT.format("curl -sf http://127.0.0.1:8000/health"))
    assert foreign_unit.main_pid("h1") != 0


def test_what_would_start_a_unit_again_is_stopped_with_it(fleet):
    write(fleet, "/etc/systemd/system/nightly.service", f"[Service]\nExecStart={SERVE}\n")
    timer = "[Timer]\nOnActiveSec=0\nOnUnitInactiveSec=1\n[Install]\nWantedBy=timers.target\n"
    write(fleet, "/etc/systemd/system/nightly.timer", timer)
    fleet.shell("h1", f"systemctl daemon-reload; systemctl enable -q --now nightly.timer; {listening()}")
    freed(fleet)
    assert fleet.shell("h1", "systemctl is-active nightly.timer nightly.service || true").split() == ["inactive"] * 2
    assert fleet.shell("h1", "systemctl is-enabled nightly.timer || true") == "disabled"
    fleet.shell("h1", "rm /etc/systemd/system/nightly.*; systemctl daemon-reload")


def test_a_unit_that_others_pull_in_is_masked(fleet):
    folder = "/usr/lib/systemd/system"
    write(fleet, f"{folder}/vendor.service", f"[Service]\nExecStart={SERVE}\n")
    link = f"mkdir -p {folder}/multi-user.target.wants; ln -s ../vendor.service {folder}/multi-user.target.wants/"
    fleet.shell("h1", f"{link}; systemctl daemon-reload; systemctl start vendor; {listening()}")
    answer = freed(fleet)
    assert answer["undo"] == ["systemctl unmask vendor.service", "systemctl start vendor.service"]
    assert fleet.shell("h1", "systemctl is-active vendor; systemctl is-enabled vendor || true").split() == [
        "inactive", "masked",
    ]  # fmt: skip
    fleet.shell(
        "h1", f"systemctl unmask -q vendor; rm {folder}/vendor.service {folder}/multi-user.target.wants/vendor*"
    )


def test_a_socket_whose_port_systemd_holds_is_taken_over_with_its_service(fleet):
    write(fleet, "/etc/systemd/system/api.socket", "[Socket]\nListenStream=8000\n[Install]\nWantedBy=sockets.target\n")
    write(fleet, "/etc/systemd/system/api.service", "[Service]\nExecStart=sleep 1000\n")
    fleet.shell("h1", "systemctl daemon-reload; systemctl enable -q --now api.socket")
    answer = freed(fleet)
    assert answer["actions"] == ["disable api.socket", "stop api.socket"]
    fleet.shell("h1", "systemctl enable -q --now api.socket; curl -m 0.2 -s http://127.0.0.1:8000/ || true")
    freed(fleet)
    states = fleet.shell("h1", "systemctl is-active api.socket api.service; systemctl is-enabled api.socket || true")
    assert states.split() == ["inactive", "inactive", "disabled"]


def test_a_unit_of_a_users_own_systemd_is_stopped_and_disabled_there(fleet):
    fleet.shell("h1", "useradd -m -u 1500 bob; systemctl start user@1500; mkdir -p /home/bob/.config/systemd/user")
    write(fleet, "/home/bob/.config/systemd/user/mine.service", UNIT.replace("multi-user", "default"))
    bobs = "runuser -u bob -- env XDG_RUNTIME_DIR=/run/user/1500 systemctl --user"
    fleet.shell("h1", f"chown -R bob /home/bob; {bobs} enable -q --now mine; {listening()}")
    answer = freed(fleet)
    assert answer["actions"] == ["user bob: disable mine.service", "user bob: stop mine.service"]
    assert answer["undo"] == [f"{bobs} enable --now mine.service"]
    states = fleet.shell("h1", f"{bobs} is-active mine; {bobs} is-enabled mine || true").split()
    assert states == ["inactive", "disabled"]
    fleet.shell("h1", f"{answer['undo'][0]}; {listening()}; {bobs} disable -q --now mine; systemctl stop user@1500")


def test_a_new_release_that_fails_says_what_was_stopped_and_how_it_comes_back(foreign_unit):
    foreign_unit.model("h1", {"exit_in": "weights", "exit_status": 7})
    result = foreign_unit.play("-e", "takeover=true", check=False)
    assert result.returncode == 2
    message = "h1: the takeover stopped something; bring it back by: systemctl enable --now my-vllm.service"
    assert message in [line.strip() for line in result.stdout.splitlines()], result.stdout
    assert "the engine exited with status 7" in result.stdout
    foreign_unit.shell("h1", f"systemctl enable -q --now my-vllm.service; {listening()}")


def test_a_loop_that_was_started_with_nohup_ends_with_its_engine(fleet):
    loop = f"while true; do {SERVE}; sleep 0.1; done"
    fleet.shell("h1", f"cd /srv && nohup setsid bash -c '{loop}' > /dev/null 2>&1 & {listening()}")
    shell = fleet.shell("h1", f"cut -d' ' -f4 /proc/{holder(fleet)}/stat")
    output = refused(fleet)
    assert f"held by a process under bash (pid {shell}), started with nohup" in output
    assert f"stop it yourself (kill {shell})" in output
    output = taken(fleet)
    assert lines_with(output, [f"[h1] takeover: end pid {shell} (bash) and 1 under it"])
    assert lines_with(output, ["[h1] takeover: brought back by: as user root in /srv: bash -c 'while true"])
    assert fleet.shell("h1", f"test -e /proc/{shell} || echo gone") == "gone"


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(fleet):
    script = "import signal, http.server as h; signal.signal(15, signal.SIG_IGN); h.test(port=8000)"
    fleet.shell("h1", f"setsid python3 -c '{script}' > /dev/null 2>&1 & {listening()}")
    pid = holder(fleet)
    freed(fleet, grace_s=6)
    assert lines_with(fleet.said, [f"[h1] takeover: waiting until it is gone: pid {pid} (python3)"])


def test_what_runs_in_tmux_is_named_with_its_server(fleet):
    write(fleet, "/srv/tmux.py", TMUX)
    fleet.shell("h1", f"setsid python3 /srv/tmux.py 'exec {SERVE}' > /dev/null 2>&1 & {listening()}")
    server = fleet.shell("h1", f"cut -d' ' -f4 /proc/{holder(fleet)}/stat")
    assert f"held by a process started in tmux (server pid {server}) (pid {holder(fleet)}, user root" in named(fleet)
    freed(fleet)
    assert fleet.shell("h1", f"cat /proc/{server}/comm") == "tmux: server"
    fleet.shell("h1", f"kill {server}")


def test_what_somebody_starts_again_is_not_fought_but_its_parent_named(fleet):
    keeper = f"import subprocess as s\nwhile True: s.run('{SERVE}'.split(), start_new_session=True)"
    write(fleet, "/srv/keeper.py", keeper)
    fleet.shell("h1", f"setsid python3 /srv/keeper.py > /dev/null 2>&1 & {listening()}")
    first = holder(fleet)
    parent = fleet.shell("h1", f"cut -d' ' -f4 /proc/{first}/stat")
    result = fleet.play("-e", "takeover=true", check=False)
    assert result.returncode == 2
    assert f"Something started it anew: its parent is python3 (pid {parent}); stop that first" in result.stdout
    assert "ironserve-main.service was left as it is" in " ".join(result.stdout.split())
    fleet.shell("h1", f"kill {parent}; kill {holder(fleet)}")


def test_a_docker_container_is_stopped_by_docker_and_its_restart_policy_set(fleet):
    write(fleet, "/usr/local/bin/docker", DOCKER, mode="755")
    fleet.shell(
        "h1", f"setsid systemd-run --quiet --scope --unit docker-{CONTAINER} {SERVE} >/dev/null 2>&1 & {listening()}"
    )
    output = named(fleet)
    assert "held by docker container vllm-prod (pid" in output
    assert "stop it yourself (docker update --restart=no vllm-prod && docker stop vllm-prod)" in output
    assert "inspect" in fleet.shell("h1", "cat /srv/docker.calls")
    fleet.shell("h1", "rm /srv/docker.calls")
    answer = freed(fleet)
    again = "docker update --restart=unless-stopped vllm-prod && docker start vllm-prod"
    assert answer["undo"] == [again]
    calls = [line for line in fleet.shell("h1", "cat /srv/docker.calls").splitlines() if not line.startswith("inspect")]
    assert calls == [f"update --restart=no {CONTAINER}", f"stop {CONTAINER}"]
    fleet.shell("h1", "rm /usr/local/bin/docker")


def test_a_port_of_another_service_of_ours_is_never_taken_over(fleet):
    fleet.shell("h1", f"systemd-run --quiet --unit ironserve-other {SERVE}; {listening()}")
    output = refused(fleet, "-e", "takeover=true")
    assert "held by unit ironserve-other.service" in output
    assert "It was left alone: No inventory names service other" in output
    assert "playbooks/remove.yml -e service=other -l h1" in output
    fleet.shell("h1", "systemctl stop ironserve-other")


def test_our_own_way_into_the_host_is_never_cut(fleet):
    output = refused(fleet, "-e", "takeover=true", ironserve_port=22)
    assert "port 22: held by" in output
    assert "set ironserve_port to a free port" in output


@pytest.fixture
def gpus(fleet):
    """Two GPUs as a process sees them: device files, and the driver's list under /proc."""
    write(fleet, "/srv/use_gpu.py", USE_GPU)
    for minor in (0, 1):
        folder = f"/proc/driver/nvidia/gpus/0000:0{minor}:00.0"
        mount = "mountpoint -q /proc/driver || mount -t tmpfs tmpfs /proc/driver"
        text = f"Model: \\t NVIDIA H200\\nGPU UUID: \\t {UUID.format(minor)}\\nDevice Minor: \\t {minor}\\n"
        fleet.shell("h1", f"{mount}; mkdir -p {folder}; printf '{text}' > {folder}/information")
    make = "head -c 4096 /dev/zero > $name; chmod 666 $name"
    fleet.shell("h1", f"cd /dev && for name in nvidia0 nvidia1 nvidiactl nvidia-uvm; do {make}; done")
    yield fleet
    fleet.shell("h1", "systemctl stop 'gpu-*'; umount /proc/driver; rm /dev/nvidia*")


def uses(fleet: Fleet, name: str, *words: str) -> str:
    """Have a unit whose process uses a GPU, or only watches it; return its pid."""
    fleet.shell("h1", f"systemd-run --quiet --unit gpu-{name} python3 /srv/use_gpu.py {' '.join(words)}")
    pid = fleet.shell("h1", f"systemctl show -P MainPID gpu-{name}")
    fleet.shell("h1", WAIT.format(f"ls -l /proc/{pid}/fd | grep -q {words[0]}"))
    if "monitor" not in words:
        fleet.shell("h1", WAIT.format(f"grep -q {words[0]} /proc/{pid}/maps"))
    return pid


def test_who_uses_a_gpu_is_taken_over_and_who_watches_it_is_left_alone(gpus):
    monitor, engine = uses(gpus, "watch", "/dev/nvidia0", "monitor"), uses(gpus, "engine", "/dev/nvidia1")
    output = refused(gpus)
    assert f"GPU {UUID.format(1)}: held by unit gpu-engine.service (pid {engine}, user root" in output
    assert "gpu-watch" not in output
    taken(gpus)
    assert gpus.shell("h1", f"test -e /proc/{engine} || echo gone") == "gone"
    assert gpus.shell("h1", f"test -e /proc/{monitor} && echo there") == "there"


def test_only_gpus_that_the_service_is_to_have_are_taken_over(gpus):
    """By the module itself: a release names GPUs as soon as a host has several services."""
    pids = [uses(gpus, f"e{minor}", f"/dev/nvidia{minor}") for minor in (0, 1)]
    release = {**RELEASE, "gpus": [UUID.format(1)]}
    output = gpus.module("h1", "host_takeover", {"releases": [release]})
    assert output["actions"] == ["stop gpu-e1.service"]
    assert [gpus.shell("h1", f"test -e /proc/{pid} && echo there || echo gone") for pid in pids] == ["there", "gone"]
    assert gpus.module("h1", "host_takeover", {"releases": [release]})["changed"] is False
    release["gpus"] = ["GPU-unknown"]
    output = gpus.module("h1", "host_preflight", {"releases": [release]}, check=False)
    assert "GPU GPU-unknown: cannot tell who uses it" in json.dumps(output)
