"""The lab itself, tried as its users use it. Needs root and, at the first run, a mirror to build the images from."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ANSIBLE = Path(sys.executable).with_name("ansible")
BOOT_ID = ["cat", "/proc/sys/kernel/random/boot_id"]


@pytest.fixture(scope="module")
def hosts(lab, tmp_path_factory):
    """The shared lab with three hosts: two of Debian 12 and, bound to folders of the machine, one of Debian 13."""
    lab.up(2)
    shared = tmp_path_factory.mktemp("shared")
    (shared / "wheel").write_text("from the machine")
    lab.folders = shared, tmp_path_factory.mktemp("own")
    lab.up(3, suite="trixie", binds=[f"{shared}:/opt/wheels:ro", f"{lab.folders[1]}/{{host}}:/opt/ironserve/engines"])
    return lab


def ansible(lab, pattern: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an ad-hoc command from the machine, as a user would: only the inventory is named."""
    argv = [str(ANSIBLE), "-i", str(lab.inventory), pattern, *(arguments or ("-m", "ping"))]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def traces(lab) -> list[str]:
    """Everything on the machine that belongs to the lab: processes by their control group, mounts, groups, files."""
    subtree = f"ironserve-lab-{lab.name}-"
    found = [str(lab.folder)] if lab.folder.exists() else []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if subtree in (process / "cgroup").read_text() or str(lab.folder) in (process / "mountinfo").read_text():
                found += [command] if (command := (process / "cmdline").read_text()) else []  # a zombie has none
        except OSError:
            continue  # it has just ended
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(lab.folder) in line]
    return found + [str(path) for path in Path("/sys/fs/cgroup").rglob(f"{subtree}*")]


def keeper(lab) -> int:
    return int((lab.folder / "pid").read_text().split()[0])


@pytest.mark.parametrize(("host", "version"), [("h1", "12"), ("h2", "12"), ("h3", "13")])
def test_host_is_a_running_debian(hosts, host, version):
    assert hosts.exec(host, ["systemctl", "is-system-running"]).stdout.strip() == "running"
    assert hosts.exec(host, ["cat", "/etc/debian_version"]).stdout.startswith(version)
    assert hosts.exec(host, ["hostname"]).stdout.strip() == host
    assert hosts.exec(host, ["cat", "/proc/1/comm"]).stdout.strip() == "systemd"


def test_exec_passes_input_output_and_exit_code(hosts):
    assert hosts.exec("h1", ["sh", "-c", "exit 7"], check=False).returncode == 7
    assert hosts.exec("h1", ["tr", "a-z", "A-Z"], input="typed").stdout == "TYPED"
    assert "no-such-program" in hosts.exec("h1", ["no-such-program"], check=False).stderr


def test_exec_is_a_stray_of_no_unit(hosts):
    assert hosts.exec("h1", ["cat", "/proc/self/cgroup"]).stdout.strip().endswith("0::/lab-exec")


def test_command_ends_with_the_one_who_ran_it(hosts):
    with pytest.raises(subprocess.TimeoutExpired):
        hosts.exec("h1", ["sleep", "4711"], timeout=1)
    assert hosts.exec("h1", ["pgrep", "-f", "sleep 4711"], check=False).returncode == 1


def test_hosts_know_each_other(hosts):
    hosts.exec("h1", ["ping", "-c", "1", "-W", "2", "h3"])


def test_there_is_no_way_out(hosts):
    assert "default" not in hosts.exec("h1", ["ip", "route"]).stdout
    assert "default" not in hosts("run", "ip", "route").stdout


def test_the_machine_is_read_only_to_a_host(hosts):
    for knob in ("/proc/sys/vm/swappiness", "/sys/kernel/profiling"):
        assert hosts.exec("h1", ["sh", "-c", f"echo 1 > {knob}"], check=False).returncode != 0
    mounts = hosts.exec("h1", ["cat", "/proc/mounts"]).stdout
    assert "debugfs" not in mounts
    assert "tracefs" not in mounts


def test_ansible_reaches_all_from_outside(hosts):
    result = ansible(hosts, "lab")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("pong") == 3


def test_logins_without_root_and_with_sudo(hosts):
    assert (
        "uid=1000(operator)" in ansible(hosts, "h1", "-e", "ansible_user=operator", "-m", "command", "-a", "id").stdout
    )
    refused = ansible(hosts, "h1", "-e", "ansible_user=operator", "-b", "-m", "command", "-a", "id")
    assert refused.returncode != 0
    assert "uid=0(root)" in ansible(hosts, "h1", "-e", "ansible_user=admin", "-b", "-m", "command", "-a", "id").stdout


def test_binds(hosts):
    own = hosts.folders[1]
    assert hosts.exec("h3", ["cat", "/opt/wheels/wheel"]).stdout == "from the machine"
    assert hosts.exec("h3", ["touch", "/opt/wheels/new"], check=False).returncode != 0
    hosts.exec("h3", ["touch", "/opt/ironserve/engines/made"])
    assert (own / "h3" / "made").exists()


def test_cut_host_is_unreachable_soon_and_comes_back(hosts):
    assert ansible(hosts, "h2").returncode == 0  # a lasting ssh connection is there now
    hosts.cut("h2")
    started = time.monotonic()
    assert "UNREACHABLE" in ansible(hosts, "h2").stdout
    assert time.monotonic() - started < 25
    assert hosts.exec("h2", ["true"]).returncode == 0
    hosts.join("h2")
    assert "pong" in ansible(hosts, "h2").stdout


@pytest.mark.parametrize("host", ["h2", "h3"])
def test_reboot_keeps_the_disk_only(hosts, host):
    hosts.exec(host, ["sh", "-c", "touch /var/lib/kept /run/lost /tmp/lost"])
    before = hosts.exec(host, BOOT_ID).stdout
    hosts.reboot(host)
    assert hosts.exec(host, BOOT_ID).stdout != before
    assert hosts.exec(host, ["ls", "/var/lib/kept"]).returncode == 0
    assert hosts.exec(host, ["ls", "/run/lost", "/tmp/lost"], check=False).stdout == ""
    assert "pong" in ansible(hosts, host).stdout


def test_ansible_reboots_a_host(hosts):
    # The module's own command, shutdown, schedules by logind, which is off in a lab.
    result = ansible(hosts, "h2", "-m", "reboot", "-a", "reboot_timeout=60 reboot_command='systemctl reboot'")
    assert "rebooted: true" in result.stdout, result.stdout + result.stderr


def test_powered_off_host_stays_off_until_up(hosts):
    hosts.exec("h2", ["systemctl", "poweroff"], check=False)
    deadline = time.monotonic() + 20
    while not (hosts.folder / "hosts/h2/off").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    refused = hosts.exec("h2", ["true"], check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "h2 is off (powered off)" in refused.stderr
    hosts.up(2)
    hosts.exec("h2", ["true"])


def test_list(hosts):
    labs = {lab["name"]: lab for lab in json.loads(hosts("list", "--json").stdout)}
    assert [host["suite"] for host in labs[hosts.name]["hosts"]] == ["bookworm", "bookworm", "trixie"]
    assert {host["state"] for host in labs[hosts.name]["hosts"]} == {"running"}


def test_up_again_changes_nothing(hosts):
    pids = [path.read_text() for path in sorted(hosts.folder.glob("hosts/*/pid"))]
    hosts.up(3)
    assert pids == [path.read_text() for path in sorted(hosts.folder.glob("hosts/*/pid"))]


def test_new_host_of_an_old_name_is_no_stranger_to_ssh(hosts):
    assert "pong" in ansible(hosts, "h2").stdout
    hosts("down", "h2")
    assert "h2" not in hosts.inventory.read_text()
    hosts.up(2)
    assert "pong" in ansible(hosts, "h2").stdout


def test_cgroup_v1_host_enforces_memory_max(make_lab):
    lab = make_lab("-v1")
    if "cgroup v1" in (refused := lab("up", 1, "--cgroup", "v1", check=False)).stderr:
        pytest.skip(refused.stderr)
    hog = ["python3", "-c", "x = b'1' * (200 << 20)"]
    limits = ["-p", "MemoryMax=64M", "-p", "MemorySwapMax=0"]
    assert lab.exec("h1", ["systemd-run", "-q", "--wait", *hog]).returncode == 0
    assert lab.exec("h1", ["systemd-run", "-q", "--wait", *limits, *hog], check=False).returncode != 0
    lab.down()


def test_labs_side_by_side_and_down_leaves_nothing(hosts, make_lab):
    other = make_lab("-other")
    other.up(1)
    assert "pong" in ansible(other, "h1").stdout
    assert traces(other)
    other.down()
    assert traces(other) == []
    other.down()
    assert "pong" in ansible(hosts, "h1").stdout


@pytest.mark.parametrize("cure", ["down", "up"])
def test_killed_lab_is_cleared_up(make_lab, cure):
    lab = make_lab(f"-killed-{cure}")
    lab.up(1)
    assert "pong" in ansible(lab, "h1").stdout
    killed = os.pidfd_open(keeper(lab))
    signal.pidfd_send_signal(killed, signal.SIGKILL)
    select.select([killed], [], [], 60)  # until it is gone: before, `up` may still find its hosts running
    os.close(killed)
    if cure == "down":
        lab.down()
        assert traces(lab) == []
    lab.up(1)
    assert "pong" in ansible(lab, "h1").stdout
    lab.down()
    assert traces(lab) == []


@pytest.mark.parametrize("arguments", [["up", "1"], ["down"], ["list"]])
def test_needs_root_and_says_so(arguments):
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from labhosts.cli import main; sys.exit(main())"
    argv = [*nobody, "/usr/bin/python3", "-c", program, str(ROOT / "tests" / "lab"), *arguments]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "lab: the lab needs root, to make namespaces and mounts: run it with sudo\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exec", "h1", "true"], "has no host h1"),
        (["exec", "web", "true"], "'web' is no host"),
        (["exec", "h1"], "which command?"),
        (["up", "0"], "1 to 99 hosts"),
        (["up", "1", "--bind", "/no/such/folder:/opt/x"], "/no/such/folder is no folder"),
        (["up", "1", "--suite", "trixie", "--cgroup", "v1"], "v1"),
        (["run", "true"], "is not running"),
        (["images", "sid"], "no image for 'sid'"),
    ],
)
def test_errors_are_one_clear_line(make_lab, arguments, message):
    lab = make_lab("-errors")
    result = lab(*arguments, check=False)
    lab.down()
    assert result.returncode == 1
    assert message in result.stderr
    assert [line for line in result.stderr.splitlines() if line.startswith("lab: ")] == result.stderr.splitlines()
