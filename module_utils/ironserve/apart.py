"""Work in a child that may never come back: what asks a driver or the kernel can block for ever, and ignore SIGKILL.

The child tells through a pipe, and nobody waits for its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Callable

END_S = 0.2
"""A child that is not stuck ends within this after SIGKILL."""


def start(work: Callable[[Any], None]) -> tuple[int, int]:
    """Fork a child that does the work, which gets a binary file to tell through; its pid, and where to read from.

    The child keeps nothing else open: ssh waits for whoever has the module's stdout.
    """
    pipe, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  names are all that is wanted
                if int(name) > 2 and int(name) != out:
                    with contextlib.suppress(OSError):  # the listing's own
                        os.close(int(name))
            with os.fdopen(out, "wb") as file:
                work(file)
        finally:
            os._exit(0)
    os.close(out)
    os.set_blocking(pipe, False)
    return pid, pipe


def end(*pids: int) -> None:
    """End children, and do not wait for one that the kernel holds: it ends when the kernel lets it go."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    left, deadline = set(pids), time.monotonic() + END_S
    while left and time.monotonic() < deadline:
        left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(0.002)
