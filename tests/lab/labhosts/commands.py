"""What the subcommands do, from outside the lab."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from . import images, inventory
from .boot import BRIDGE_ADDRESS, ENVIRONMENT
from .cgroups import ControlGroups
from .common import LabError, UsageError, locked, say, wait_until
from .kernel import Process
from .state import CHECKOUT, MAX_HOSTS, STATE, Bind, Host, Lab, Spec

BOOT_TIMEOUT_S = 90
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_OF_A_HOST = 6
"""Counted on hosts of the suites bookworm and trixie: five of systemd's, one of dbus-daemon's."""


def require_machine() -> None:
    """Raise UsageError where a lab cannot exist."""
    if sys.platform != "linux":
        raise UsageError("the lab needs Linux: it is made of namespaces and control groups")
    if os.geteuid() != 0:
        raise UsageError("the lab needs root, to make namespaces and mounts: run it with sudo")


def parse_host(lab: Lab, name: str) -> Host:
    """The host that a user means by `h1`."""
    if not re.fullmatch(r"h[1-9][0-9]?", name):
        raise LabError(f"{name!r} is no host of lab {lab.name}; it has: {lab.host_names() or 'none'}")
    return Host(lab, name)


def up(lab: Lab, count: int, suite: str, binds: Sequence[Bind], cgroup: str) -> None:
    """Make the lab have hosts h1..hCOUNT, all running."""
    if not 1 <= count <= MAX_HOSTS:
        raise LabError(f"a lab has 1 to {MAX_HOSTS} hosts")
    _check_cgroup(cgroup, suite)
    _require_tools("socat", "ssh-keygen", "ip", "nsenter")
    image = images.ensure(suite)
    with locked(lab.lock):
        if not lab.keeper:
            if lab.folder.exists():
                say(f"lab {lab.name} had ended without `down`: clearing that up, its hosts start anew")
            _remove(lab)
            _start(lab)
        hosts = [Host(lab, f"h{number}") for number in range(1, count + 1)]
        starting = [host for host in hosts if not host.process]
        for host in starting:
            if not host.exists:
                host.create(Spec(secrets.token_hex(4), suite, str(image), cgroup, _binds_of(host, binds)))
            host.off.unlink(missing_ok=True)
        inventory.write(lab)
        if starting:
            _warn_about_inotify(len(starting))  # before they boot: they would be counted twice
        lab.running().send(signal.SIGUSR1)
        say(f"lab {lab.name}: starting {' '.join(h.name for h in starting)}" if starting else "all hosts run already")
        _all_ready(starting)
    _print_next_steps(lab)


def down(lab: Lab, names: Sequence[str]) -> None:
    """Remove the named hosts, or the whole lab, or what a crash has left of it."""
    with locked(lab.lock):
        if not names:
            _remove(lab)
            return
        hosts = [parse_host(lab, name) for name in names]
        keeper = lab.running()
        for host in hosts:
            (host.folder / "host.json").unlink(missing_ok=True)
        keeper.send(signal.SIGUSR1)
        wait_until(
            lambda: not any(host.folder.exists() for host in hosts),
            20,
            f"{' '.join(names)}: not removed; see {lab.log}",
        )
        inventory.write(lab)


def reboot(host: Host) -> None:
    """Reboot as an administrator would, and wait until the host is back."""
    before = host.running()
    # Its words about the missing logind are of no use, and its exit code is lost when the host is quicker.
    subprocess.run(into(host, ["systemctl", "reboot"]), env=_environment(), stderr=subprocess.DEVNULL, check=False)
    if not before.wait(BOOT_TIMEOUT_S):
        raise LabError(f"{host.name} did not shut down in {BOOT_TIMEOUT_S} s; console: {host.console}")
    _all_ready([host])


def plug(host: Host, connected: bool) -> None:
    """Pull the host's cable, or put it back. The mark comes first: a host that boots now looks at it."""
    host.running()
    if connected:
        host.cut.unlink(missing_ok=True)
    else:
        host.cut.touch()
    link = ["ip", "link", "set", f"ve-{host.name}", "up" if connected else "down"]
    subprocess.run(["nsenter", "-t", str(host.lab.running().pid), "-n", "--", *link], check=True)


def execute(host: Host, command: Sequence[str]) -> NoReturn:
    """Become the command inside the host, in a control group of the host that is no unit's."""
    argv = into(host, command)
    ControlGroups().enter(host.spec.cgroup, f"{host.cgroup}/lab-exec")
    os.execvpe(argv[0], argv, _environment())


def run(lab: Lab, command: Sequence[str]) -> NoReturn:
    """Become a command that sees the machine's files, but the lab's network."""
    os.execvp("nsenter", ["nsenter", "-t", str(lab.running().pid), "-m", "-n", "-p", f"--wd={Path.cwd()}", *command])


def connect(lab: Lab, name: str, port: int) -> NoReturn:
    """Become the relay of ssh. It joins the lab's pid namespace so as to end with the lab."""
    host = parse_host(lab, name.partition(".")[0])
    host.running()
    if "." in name and name != host.ssh_name:
        raise LabError(f"{name} is gone; {host.name} is now {host.ssh_name}")
    os.execvp("nsenter", _relay(host, port))


def lab_states() -> list[dict[str, Any]]:
    """Every lab of this checkout with its hosts."""
    labs = [Lab(path.name) for path in sorted(STATE.glob("*")) if path.is_dir()]
    return [
        {
            "name": lab.name,
            "running": lab.keeper is not None,
            "inventory": str(lab.inventory),
            "hosts": [
                {
                    "name": host.name,
                    "state": host.state,
                    "suite": host.spec.suite,
                    "cgroup": host.spec.cgroup,
                    "address": host.address,
                    "pid": host.process.pid if host.process else None,
                }
                for host in lab.hosts()
            ],
        }
        for lab in labs
    ]


def into(host: Host, command: Sequence[str]) -> list[str]:
    """The argv that runs `command` in all namespaces of the host; it is ended when whoever runs it is killed."""
    pid = str(host.running().pid)
    return ["nsenter", "-t", pid, "-m", "-u", "-i", "-n", "-p", "-C", "--", "setpriv", "--pdeathsig=KILL", *command]


def _environment() -> dict[str, str]:
    """A root login's, and nothing of the machine's."""
    return ENVIRONMENT | {"HOME": "/root", "USER": "root", "TERM": os.environ.get("TERM", "dumb")}


def _relay(host: Host, port: int) -> list[str]:
    target = f"TCP:{host.address}:{port},connect-timeout=10"
    return ["nsenter", "-t", str(host.lab.running().pid), "-n", "-p", "--", "socat", "STDIO", target]


def _require_tools(*programs: str) -> None:
    packages = {"ssh-keygen": "openssh-client", "ip": "iproute2", "nsenter": "util-linux"}
    if missing := [packages.get(program, program) for program in programs if not shutil.which(program)]:
        raise LabError(f"the lab needs: apt-get install {' '.join(missing)}")


def _check_cgroup(version: str, suite: str) -> None:
    ControlGroups().hierarchies(version)
    if version == "v1" and suite != "bookworm":
        raise LabError("--cgroup v1 needs --suite bookworm: later systemd refuses v1")


def _binds_of(host: Host, binds: Sequence[Bind]) -> list[Bind]:
    """The binds with {host} filled in. Only a folder of the host's own is made: a mistyped shared one is an error."""
    found = []
    for bind in binds:
        source = Path(bind.source.replace("{host}", host.name)).absolute()
        if "{host}" in bind.source:
            source.mkdir(parents=True, exist_ok=True)
        if not source.is_dir():
            raise LabError(f"--bind: {source} is no folder")
        found.append(Bind(str(source), bind.target, bind.read_only))
    return found


def _start(lab: Lab) -> None:
    lab.create()
    with lab.log.open("wb") as log:
        started = subprocess.run(
            [sys.executable, "-m", "labhosts.keeper", lab.name],
            cwd=CHECKOUT / "tests" / "lab",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=False,
        )
    if started.returncode != 0:
        last = lab.log.read_text().strip().rpartition("\n")[2]
        raise LabError(f"lab {lab.name} did not start: {last}; see {lab.log}")


def _remove(lab: Lab) -> None:
    """Remove the lab, whatever state it is in. The folder goes last, so that a failed try can be repeated."""
    if keeper := lab.keeper:
        keeper.send(signal.SIGKILL)
        if not keeper.wait(20):
            raise LabError(f"lab {lab.name}: its PID 1 ({keeper.pid}) did not end")
    if (lab.folder / "id").exists():
        ControlGroups().remove(lab.cgroup)
    shutil.rmtree(lab.folder, ignore_errors=True)


def _all_ready(hosts: Sequence[Host]) -> None:
    with ThreadPoolExecutor(max_workers=max(1, len(hosts))) as pool:
        list(pool.map(_ready, hosts))


def _ready(host: Host) -> None:
    """Return when systemd has finished the boot and sshd answers."""

    def boot_started() -> Process | None:
        if host.off.exists():
            host.running()
        return host.process

    where = f"console: {host.console}"
    wait_until(boot_started, BOOT_TIMEOUT_S, f"{host.name} did not start; {where}")
    state = wait_until(
        lambda: _booted(host), BOOT_TIMEOUT_S, f"{host.name} did not finish its boot; {where}", interval_s=0.1
    )
    if state == "degraded":
        failed = _ask(host, "systemctl", "list-units", "--failed", "--plain", "--no-legend")
        say(f"{host.name} is degraded: {' '.join(line.split()[0] for line in failed.splitlines())}")
    if not host.cut.exists():
        wait_until(lambda: _ssh_answers(host), BOOT_TIMEOUT_S, f"{host.name}: sshd does not answer; {where}")


def _booted(host: Host) -> str | None:
    state = _ask(host, "systemctl", "is-system-running", "--wait")
    return state if state in {"running", "degraded"} else None


def _ask(host: Host, *command: str) -> str:
    """What the command prints, at once or not at all: it may come too early in a boot."""
    argv = into(host, command)
    try:
        result = subprocess.run(argv, env=_environment(), capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return result.stdout.strip()


def _ssh_answers(host: Host) -> bool:
    """Whether sshd shows its key over the lab's network."""
    scan = ["ssh-keyscan", "-T", "5", "-t", "ed25519", host.address]
    argv = ["nsenter", "-t", str(host.lab.running().pid), "-n", "--", *scan]
    return b"ssh-ed25519" in subprocess.run(argv, capture_output=True, check=False).stdout


def _warn_about_inotify(starting: int) -> None:
    """Say where the machine has too few inotify instances left: systemd then ends with 255 instead of booting."""
    limit, used = int(INOTIFY.read_text()), sum(_inotify_instances(folder) for folder in Path("/proc").glob("[0-9]*"))
    if used + starting * INOTIFY_OF_A_HOST > limit:
        say(
            f"{used} of {limit} inotify instances are in use, {starting} more host(s) may not boot: "
            f"sysctl -w fs.inotify.max_user_instances=1024, or take labs down"
        )


def _inotify_instances(folder: Path) -> int:
    try:
        return sum(str(entry.readlink()) == "anon_inode:inotify" for entry in (folder / "fd").iterdir())
    except OSError:  # it ended meanwhile
        return 0


def _print_next_steps(lab: Lab) -> None:
    path = lab.inventory
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    program = f"tests/lab/lab{'' if lab.name == 'lab' else f' --name {lab.name}'}"
    say(f"lab {lab.name}: {lab.host_names()} (lab side of their network: {BRIDGE_ADDRESS})")
    say("next:")
    say(f"  ansible -i {path} lab -m ping")
    say(f"  ansible-playbook -i {path} deploy.yml")
    say(f"  {program} exec h1 systemctl status")
    say(f"  {program} down")
