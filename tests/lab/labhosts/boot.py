"""How a forked child of the keeper becomes a host: namespaces, network, disk, mounts, and then systemd."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import traceback
import uuid
from pathlib import Path
from typing import NoReturn

from . import kernel
from .cgroups import ControlGroups
from .kernel import bind, mount
from .state import MAX_HOSTS, Host

BRIDGE = "lab0"
BRIDGE_ADDRESS = "10.99.0.1/16"
LAB_NETWORK = "/proc/1/ns/net"  # PID 1 is the keeper until the host has a /proc of its own
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "container": "lab",  # tells systemd that hardware and clock belong to somebody else
}
LAST_PERSONAL_FILE = "etc/ssh/lab_key.pub"
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}


def become(host: Host, groups: ControlGroups, machine_proc: int) -> NoReturn:
    """Turn this process, PID 1 of a new pid namespace, into the host's systemd."""
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        _redirect_output(host.console)
        groups.enter(host.spec.cgroup, host.cgroup)
        kernel.unshare(
            kernel.CLONE_NEWNS
            | kernel.CLONE_NEWNET
            | kernel.CLONE_NEWUTS
            | kernel.CLONE_NEWIPC
            | kernel.CLONE_NEWCGROUP
        )
        socket.sethostname(host.name)
        _connect(host)
        root = _disk(host)
        _kernel_file_systems(root)
        _control_groups(root, host.spec.cgroup, groups)
        _devices(root)
        for extra in host.spec.binds:
            target = root / extra.target.lstrip("/")
            target.mkdir(parents=True, exist_ok=True)
            bind(Path(extra.source), target, extra.read_only)
        folder = os.open(host.folder, os.O_RDONLY | os.O_DIRECTORY)
        _enter(root)
        # Only now: who enters by this number must find the host's tree, not the machine's.
        kernel.Process.myself(machine_proc).write(Path(f"/proc/self/fd/{folder}") / host.pid_file.name)
        os.execve("/lib/systemd/systemd", ["/lib/systemd/systemd", "--show-status=0"], ENVIRONMENT)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def ip(*commands: str) -> None:
    """Run iproute2 commands, all in one process."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


def _redirect_output(console: Path) -> None:
    output = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _connect(host: Host) -> None:
    """A cable to the lab's bridge. Address and MAC stay the same over reboots, as others remember them."""
    cable = f"ve-{host.name}"
    in_lab = ["nsenter", f"--net={LAB_NETWORK}", "ip", "link"]
    # The kernel takes its time to remove the cable of the boot before.
    subprocess.run([*in_lab, "del", cable], stderr=subprocess.DEVNULL, check=False)
    mac = f"02:00:0a:63:01:{host.number:02x}"
    ip(
        f"link add eth0 address {mac} type veth peer name {cable} netns {LAB_NETWORK}",
        "link set lo up",
        f"addr add {host.address}/16 dev eth0",
        "link set eth0 up",
    )
    subprocess.run([*in_lab, "set", cable, "master", BRIDGE, "down" if host.cut.exists() else "up"], check=True)


def _disk(host: Host) -> Path:
    """The host's own layer over the shared image; relative names, since overlay options cannot hold any path."""
    parts = {name: host.disk / name for name in ("image", "upper", "work", "root")}
    for part in parts.values():
        part.mkdir(parents=True, exist_ok=True)
    bind(Path(host.spec.image), parts["image"], read_only=True)
    os.chdir(host.disk)
    mount("overlay", parts["root"], "overlay", options="lowerdir=image,upperdir=upper,workdir=work")
    if not (parts["upper"] / LAST_PERSONAL_FILE).exists():
        _personalise(parts["root"], host)
    return parts["root"]


def _personalise(root: Path, host: Host) -> None:
    """What makes this host another than its siblings, written once."""
    etc = root / "etc"
    names = "".join(f"10.99.1.{number} h{number}\n" for number in range(1, MAX_HOSTS + 1))
    (etc / "hostname").write_text(f"{host.name}\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
    (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    (etc / "ssh" / "ssh_host_ed25519_key").touch(mode=0o600)
    (etc / "ssh" / "ssh_host_ed25519_key").write_text((host.folder / "ssh_host_key").read_text())
    (root / LAST_PERSONAL_FILE).write_text(host.lab.ssh_key.with_suffix(".pub").read_text())


def _kernel_file_systems(root: Path) -> None:
    """/proc and /sys, with everything that is the whole machine's read-only; /run and /tmp, new at each boot."""
    mount("proc", root / "proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
    bind(root / "proc/sys", root / "proc/sys")
    bind(root / "proc/sys/net", root / "proc/sys/net")  # belongs to the host's own network namespace
    mount("", root / "proc/sys", flags=kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY)
    if (sysrq := root / "proc/sysrq-trigger").exists():
        bind(sysrq, sysrq, read_only=True)
    mount("sysfs", root / "sys", "sysfs", kernel.MS_RDONLY)
    mount("run", root / "run", "tmpfs", options="mode=755")
    mount("tmp", root / "tmp", "tmpfs", options="mode=1777")
    # The kernel's own stays the same when a host reboots; Ansible's reboot module and journald go by it.
    boot_id = root / "run/boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    bind(boot_id, root / "proc/sys/kernel/random/boot_id", read_only=True)
    boot_id.unlink()


def _control_groups(root: Path, version: str, groups: ControlGroups) -> None:
    """New mounts made inside the host's cgroup namespace, which show the host's own subtree as the whole."""
    top = root / "sys/fs/cgroup"
    if version == "v2":
        mount("cgroup2", top, "cgroup2")
        return
    mount("cgroup", top, "tmpfs", options="mode=755")
    for hierarchy in groups.hierarchies("v1"):
        folder = top / hierarchy.path.name
        folder.mkdir()
        named = hierarchy.options.startswith("name=")
        mount("cgroup", folder, "cgroup", options="none," * named + hierarchy.options)


def _devices(root: Path) -> None:
    dev = root / "dev"
    mount("dev", dev, "tmpfs", options="mode=755,size=1m")
    os.umask(0)
    for name, (major, minor) in DEVICES.items():
        os.mknod(dev / name, 0o020666, os.makedev(major, minor))
    os.umask(0o022)
    for folder in ("pts", "shm"):
        (dev / folder).mkdir()
    mount("devpts", dev / "pts", "devpts", options="newinstance,ptmxmode=0666,mode=0620,gid=5")
    mount("shm", dev / "shm", "tmpfs", options="mode=1777")
    for name, target in {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1"}.items():
        (dev / name).symlink_to(target)
    (dev / "stderr").symlink_to("fd/2")
    (dev / "console").touch()


def _enter(root: Path) -> None:
    """Make `root` the root of the mount namespace and let go of the machine's tree."""
    os.chdir(root)
    subprocess.run(["pivot_root", ".", "."], check=True)
    kernel.unmount(".")
    os.chdir("/")
