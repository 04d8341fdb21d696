"""What a lab is on disk: `.ironserve/lab/NAME/` in the checkout. The folder is also how commands talk to the keeper.

id  pid  keeper.log  ssh_key  hosts.yml  known_hosts  group_vars -> the project's
fs/                 empty; inside the lab's mount namespace the hosts' disks
hosts/h1/host.json  what the host is; without it the keeper removes the host
         pid        its systemd, as the machine numbers it
         off        why it is not running; without it the keeper starts the host
         cut        its cable is unplugged
         console.log  ssh_host_key
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from .common import LabError
from .kernel import Process

CHECKOUT = Path(__file__).resolve().parents[3]
STATE = CHECKOUT / ".ironserve" / "lab"
MAX_HOSTS = 99


@dataclass(frozen=True)
class Bind:
    """A folder of the machine that a host sees at `target`."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True)
class Spec:
    """What a host is. The id is new for each host ever made, so that nothing can mistake one for its predecessor."""

    id: str
    suite: str
    image: str
    cgroup: str
    binds: Sequence[Bind]

    @classmethod
    def read(cls, path: Path) -> Spec:
        """The spec that `write` left at `path`."""
        fields = json.loads(path.read_text())
        return cls(**fields | {"binds": [Bind(**bind) for bind in fields["binds"]]})

    def write(self, path: Path) -> None:
        """Leave the spec at `path`."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


class Host:
    """One host of a lab: its names, its address, its files."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.name = name
        self.folder = lab.folder / "hosts" / name
        self.off = self.folder / "off"
        self.cut = self.folder / "cut"
        self.console = self.folder / "console.log"
        self.pid_file = self.folder / "pid"
        self.number = int(name[1:])
        self.address = f"10.99.1.{self.number}"
        self.disk = lab.disks / name

    @property
    def cgroup(self) -> str:
        """Its part of the lab's subtree."""
        return f"{self.lab.cgroup}/{self.name}"

    @property
    def exists(self) -> bool:
        """Whether the lab has this host, running or not."""
        return (self.folder / "host.json").exists()

    @cached_property
    def spec(self) -> Spec:
        """What the host is."""
        return Spec.read(self.folder / "host.json")

    @property
    def ssh_name(self) -> str:
        """What ssh calls it. Ansible keys its lasting connections by that name: it must die with the host."""
        return f"{self.name}.{self.spec.id}"

    @property
    def process(self) -> Process | None:
        """The host's systemd, if it runs."""
        return Process.read(self.pid_file)

    @property
    def state(self) -> str:
        """One of running, cut, off."""
        if not self.process:
            return "off"
        return "cut" if self.cut.exists() else "running"

    def running(self) -> Process:
        """The host's systemd; an error if the host is not there or is off."""
        if not self.exists:
            raise LabError(f"lab {self.lab.name} has no host {self.name}; it has: {self.lab.host_names() or 'none'}")
        if not (process := self.process):
            why = self.off.read_text().strip() if self.off.exists() else "the lab has ended"
            raise LabError(f"{self.name} is off ({why}); console: {self.console}")
        return process

    def create(self, spec: Spec) -> None:
        """Write the host down. It appears under its name only when complete, as the keeper may look at any moment."""
        unfinished = self.folder.with_name(f".{self.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make_key(unfinished / "ssh_host_key", self.name)
        spec.write(unfinished / "host.json")
        unfinished.rename(self.folder)


class Lab:
    """One lab of this checkout, by name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = STATE / name
        self.lock = STATE / f"{name}.lock"
        self.disks = self.folder / "fs"
        self.inventory = self.folder / "hosts.yml"
        self.ssh_key = self.folder / "ssh_key"
        self.known_hosts = self.folder / "known_hosts"
        self.log = self.folder / "keeper.log"
        self.pid_file = self.folder / "pid"

    @property
    def cgroup(self) -> str:
        """The lab's subtree in every cgroup hierarchy."""
        return f"ironserve-lab-{self.name}-{(self.folder / 'id').read_text()}"

    @property
    def keeper(self) -> Process | None:
        """The lab's PID 1, if the lab runs."""
        return Process.read(self.pid_file)

    def running(self) -> Process:
        """The lab's PID 1; an error if the lab does not run."""
        if not (keeper := self.keeper):
            raise LabError(f"lab {self.name} is not running; start it: lab --name {self.name} up 1")
        return keeper

    def hosts(self) -> list[Host]:
        """The hosts that the lab has, in the order of their numbers."""
        found = [Host(self, path.parent.name) for path in self.folder.glob("hosts/h*/host.json")]
        return sorted(found, key=lambda host: host.number)

    def host_names(self) -> str:
        """For messages."""
        return " ".join(host.name for host in self.hosts())

    def create(self) -> None:
        """Write a new lab down, without hosts."""
        (self.folder / "hosts").mkdir(parents=True)
        (self.folder / "id").write_text(secrets.token_hex(4))
        self.disks.mkdir()
        make_key(self.ssh_key, f"lab-{self.name}")
        (self.folder / "group_vars").symlink_to("../../../group_vars")


def make_key(path: Path, comment: str) -> None:
    """A new ed25519 key pair."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path], check=True)
