"""Work that may block for ever, done aside: in a child of its own, for which nobody waits longer than meant.

What is blocked inside the kernel ignores SIGKILL. So such a child holds nothing of its parent's open, and its parent
does not wait for its end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import select
import signal
import time
from typing import Any, BinaryIO, Callable, TypeVar

Answer = TypeVar("Answer")

END_S = 0.2
"""A child that is not stuck ends within this after SIGKILL."""


class StuckError(Exception):
    """No answer came in time."""


def detach(keep: int) -> None:
    """In a child: hold nothing open but one descriptor. ssh waits for everybody who holds the module's stdout."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  names are all that is wanted
        if int(name) > 2 and int(name) != keep:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


def start(work: Callable[[BinaryIO], None]) -> tuple[int, int]:
    """Fork a child that does the work, which gets a file to tell through; its pid, and where to read from.

    The caller closes the descriptor and ends the child (:func:`end`).
    """
    pipe, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            detach(out)
            with os.fdopen(out, "wb") as file:
                work(file)
        finally:
            os._exit(0)
    os.close(out)
    os.set_blocking(pipe, False)
    return pid, pipe


def end(*pids: int) -> None:
    """End children, and do not wait for one that the kernel holds: it ends when that lets it go."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    left, deadline = set(pids), time.monotonic() + END_S
    while left := {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0] == 0}:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.002)


def ask(function: Callable[[], Answer], timeout_s: float) -> Answer:
    """What a function returns or raises, called in a child.

    Args:
        function: changes nothing but what it returns; that has to be picklable.
        timeout_s: seconds to wait for it.

    Raises:
        StuckError: it did not return in time.
    """
    pid, pipe = start(functools.partial(_tell, function))
    try:
        answer: Answer = _hear(pipe, time.monotonic() + timeout_s)
        return answer
    finally:
        os.close(pipe)
        end(pid)


def _hear(pipe: int, deadline: float) -> Any:
    text = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise StuckError
        chunk = os.read(pipe, 1 << 20)
        if not chunk:
            break
        text += chunk
    if not text:
        raise StuckError
    value, error = pickle.loads(text)  # noqa: S301  our own child's
    if error:
        raise error
    return value


def _tell(function: Callable[[], Any], pipe: BinaryIO) -> None:
    answer: tuple[Any, Exception | None]
    try:
        answer = (function(), None)
    except Exception as error:
        answer = (None, error)
    pickle.dump(answer, pipe)
