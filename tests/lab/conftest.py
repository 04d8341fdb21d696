"""Test hosts for tests: `lab` is one lab for a whole file, `make_lab` gives further ones that a test may wreck.

A lab goes when its file is through: a host holds about six of the machine's inotify instances, often 128 in all,
and where none is left, systemd does not boot.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "lab" / "lab"


LONGEST = (
    "deploy", "rollout", "revert", "real_engines", "cleanup", "soak", "interrupted", "benchmark", "lease", "tune",
    "units", "rollout_real", "speed_gate",
)  # fmt: skip
"""Files that take minutes, in the order in which workers take them: else all wait for one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the longest files first."""
    place = {f"test_{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


class LabHandle:
    """One lab, driven by the same command that people type."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = ROOT / ".ironserve" / "lab" / name
        self.inventory = self.folder / "hosts.yml"

    def __call__(self, *arguments: object, check: bool = True, **options) -> subprocess.CompletedProcess[str]:
        """Run `lab --name NAME ARGUMENTS`; its output is in the result, and in the error where `check` fails."""
        argv = [str(PROGRAM), "--name", self.name, *map(str, arguments)]
        result = subprocess.run(argv, **{"capture_output": True, "text": True, "timeout": 600} | options, check=False)
        if check and result.returncode != 0:
            pytest.fail(f"{' '.join(argv)} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
        return result

    def up(self, count: int, suite: str = "bookworm", binds: Sequence[str] = (), cgroup: str = "v2") -> None:
        """Have h1..hCOUNT running; `binds` are "SRC:DST[:ro]"."""
        self("up", count, "--suite", suite, "--cgroup", cgroup, *(word for bind in binds for word in ("--bind", bind)))

    def exec(self, host: str, argv: Sequence[str], check: bool = True, **options) -> subprocess.CompletedProcess[str]:
        """Run a command in the host as root."""
        return self("exec", host, *argv, check=check, **options)

    def cut(self, host: str) -> None:
        """Pull the host's cable."""
        self("cut", host)

    def join(self, host: str) -> None:
        """Put the host's cable back."""
        self("join", host)

    def reboot(self, host: str) -> None:
        """Reboot the host and wait until it is back."""
        self("reboot", host)

    def down(self) -> None:
        """Remove the lab."""
        self("down")


@pytest.fixture(scope="module")
def make_lab() -> Iterator[Callable[[str], LabHandle]]:
    """A lab of its own for a test that wrecks it; the argument tells it from others of this session."""
    if os.geteuid() != 0:
        pytest.skip("test hosts need root")
    made = []

    def make(label: str) -> LabHandle:
        made.append(LabHandle(f"test-{os.getpid()}{label}"))
        return made[-1]

    yield make
    for lab in made:
        lab.down()


@pytest.fixture(scope="module")
def lab(make_lab) -> LabHandle:
    """The lab that the tests of a file share. It has no hosts until a test calls `up`."""
    return make_lab("")
