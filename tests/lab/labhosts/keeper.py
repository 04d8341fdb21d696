"""PID 1 of a lab: owns the namespaces of the whole lab, reaps what is left to it, starts hosts and starts them again.

It takes no orders. A signal (SIGUSR1 from a command, SIGCHLD from the kernel) makes it compare the lab's folder with
what runs, and make the second follow the first. Killing it makes the kernel end every process of the lab, and with
those go all mounts, network links and namespaces. It ends by itself when somebody has deleted the folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from . import boot, kernel
from .cgroups import ControlGroups
from .state import Host, Lab

WAKE = {signal.SIGCHLD, signal.SIGUSR1}
OWN_PID_NAMESPACE = Path("/proc/self/ns/pid")


def main(name: str) -> int:
    """Start the lab's PID 1 and return when it keeps the lab."""
    lab = Lab(name)
    groups = ControlGroups()
    machine_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    groups.enter("v2", lab.cgroup)
    kernel.unshare(
        kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWCGROUP
    )
    groups.enter("v2", f"{lab.cgroup}/keeper")  # out of the subtree's top, which may not hold processes
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        return 0 if os.read(read_end, 1) else 1
    Keeper(lab, groups, machine_proc).run(write_end)
    return 0


class Keeper:
    """The lab's PID 1."""

    def __init__(self, lab: Lab, groups: ControlGroups, machine_proc: int) -> None:
        self._lab = lab
        self._groups = groups
        self._machine_proc = machine_proc
        self._running: dict[int, Host] = {}

    def run(self, ready: int) -> None:
        """Keep the lab, for as long as its folder says that there is one."""
        kernel.Process.myself(self._machine_proc).write(self._lab.pid_file)
        signal.pthread_sigmask(signal.SIG_BLOCK, WAKE)
        self._prepare()
        os.write(ready, b"1")
        os.close(ready)
        while self._lab.pid_file.exists():
            try:
                self._reap()
                self._follow_folder()
            except Exception:  # one bad host must not take the lab down
                traceback.print_exc()
            signal.sigtimedwait(WAKE, 30)

    def _prepare(self) -> None:
        """Mounts and network that all hosts share."""
        kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
        # Here and not in the hosts' namespaces, so that a disk survives the reboot of its host.
        kernel.mount("lab", self._lab.disks, "tmpfs", options="mode=755")
        self._groups.pass_controllers_on(self._lab.cgroup)
        boot.ip(
            "link set lo up",
            f"link add {boot.BRIDGE} type bridge",
            f"addr add {boot.BRIDGE_ADDRESS} dev {boot.BRIDGE}",
            f"link set {boot.BRIDGE} up",
        )

    def _reap(self) -> None:
        """Note what ended. A host whose systemd asked the kernel for a reboot is started again by what follows."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if host := self._running.pop(pid, None):
                self._ended(host, os.waitstatus_to_exitcode(status))

    def _ended(self, host: Host, code: int) -> None:
        """reboot(2) in a pid namespace ends its PID 1: by SIGHUP to restart, by SIGINT to halt or power off."""
        if code == -signal.SIGHUP or not host.exists:
            return
        why = "powered off" if code == -signal.SIGINT else f"its PID 1 ended with {code}"
        host.off.write_text(why + "\n")
        _log(f"{host.name}: {why}")

    def _follow_folder(self) -> None:
        for pid, host in self._running.items():
            if not host.exists:
                os.kill(pid, signal.SIGKILL)  # once it is reaped, the next round removes the host
        busy = {host.name for host in self._running.values()}
        for folder in sorted((self._lab.folder / "hosts").glob("h*")):
            host = Host(self._lab, folder.name)
            if host.name in busy:
                continue
            if not host.exists:
                self._remove(host)
            elif not host.off.exists():
                self._start(host)

    def _remove(self, host: Host) -> None:
        _log(f"{host.name}: removed")
        shutil.rmtree(host.disk, ignore_errors=True)
        self._groups.remove(host.cgroup)
        shutil.rmtree(host.folder)

    def _start(self, host: Host) -> None:
        """Fork the host's PID 1: only the next child enters a new pid namespace, so step back into ours after it."""
        _log(f"{host.name}: starting")
        self._groups.remove(host.cgroup)
        kernel.unshare(kernel.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            boot.become(host, self._groups, self._machine_proc)
        kernel.setns(OWN_PID_NAMESPACE, kernel.CLONE_NEWPID)
        self._running[pid] = host


def _log(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
