"""What every part needs: an error that is one line for the user, progress on stderr, bounded waits, file locks."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class LabError(Exception):
    """Something the user can act on; printed as one line."""

    exit_code = 1


class UsageError(LabError):
    """The machine or the account cannot run a lab at all."""

    exit_code = 2


def say(line: str) -> None:
    """Print a progress line: stderr, so that stdout stays for results."""
    print(line, file=sys.stderr, flush=True)


def wait_until(condition: Callable[[], T | None], timeout_s: float, otherwise: str, interval_s: float = 0.02) -> T:
    """Return the first true value of `condition`; raise LabError(`otherwise`) when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise LabError(f"{otherwise} (waited {timeout_s:.0f} s)")
        time.sleep(interval_s)
    return value


@contextmanager
def locked(path: Path, timeout_s: float = 900) -> Iterator[None]:
    """Hold the lock file `path`; it is removed at the end, so nothing is left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def take() -> int | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            pass  # held by another, or removed by its last holder between open and flock
        os.close(descriptor)
        return None

    if (descriptor := take()) is None:
        say(f"waiting for another lab command that holds {path}")
        descriptor = wait_until(take, timeout_s, f"{path} stayed locked", interval_s=0.1)
    try:
        yield
    finally:
        path.unlink()
        os.close(descriptor)
