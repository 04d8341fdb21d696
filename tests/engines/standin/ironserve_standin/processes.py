"""The processes below the server: forked, named as the real ones, told over a socket what to do.

A server gives each child an order (``phase NAME`` while starting, ``step`` for a token) and waits for its answer.
So a child that was stopped, hangs or died has the effect on the server that it has in a real engine.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Callable

import setproctitle

STEP = "step"
ANSWER = b"ok"
PR_SET_PDEATHSIG = 1


class ChildDiedError(Exception):
    """A child closed its side: it is gone."""

    def __init__(self, child: Child) -> None:
        super().__init__(f"{child.name} (pid={child.pid}) is gone")
        self.child = child


@dataclass
class Child:
    """The parent's side of a child."""

    name: str
    pid: int
    channel: socket.socket
    _ended: int | None = None

    def order(self, text: str) -> None:
        """Tell the child what to do."""
        try:
            self.channel.send(text.encode())
        except OSError:
            raise ChildDiedError(self) from None

    def answer(self) -> None:
        """Wait until the child has done it."""
        try:
            done = self.channel.recv(16)
        except OSError:
            done = b""
        if not done:
            raise ChildDiedError(self)

    def status(self) -> int | None:
        """How the child ended, as subprocess tells it (minus the signal); None while it runs."""
        if self._ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._ended = os.waitstatus_to_exitcode(status) if pid else None
        return self._ended

    def signal(self, number: int) -> None:
        """Send a signal; a child that is gone already is no error."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return


@dataclass
class Crew:
    """The children of one process, which get each order together: a step is a collective of all of them."""

    children: list[Child] = field(default_factory=list)
    last_answer: float = 0.0
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def order(self, text: str, among: str = "") -> None:
        """Give an order to the children whose name begins with `among` and wait for all of them.

        Raises:
            ChildDiedError: one of them is gone.
        """
        chosen = [child for child in self.children if child.name.startswith(among)]
        with self._one_at_a_time:
            for child in chosen:
                child.order(text)
            for child in chosen:
                child.answer()
            self.last_answer = time.monotonic()

    def signal(self, number: int) -> None:
        """Send a signal to all of them."""
        for child in self.children:
            child.signal(number)

    def reap(self, limit_s: float) -> None:
        """Wait until all have ended; who has not after `limit_s` is killed. SIGCHLD must be blocked."""
        end = time.monotonic() + limit_s
        while any(child.status() is None for child in self.children):
            left_s = end - time.monotonic()
            if left_s <= 0:
                self.signal(signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, max(left_s, 0.05))


def hear_parents_death(number: int) -> None:
    """Have the kernel send signal `number` to this process when its parent ends."""
    import ctypes  # noqa: PLC0415 - takes 10 ms, and most starts of vLLM need none of it

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def spawn(
    name: str, title: str, body: Callable[[socket.socket], None], inherited: Iterable[Any] = (), orphan_signal: int = 0
) -> Child:
    """Fork a child that runs `body` with its side of the channel.

    `inherited` is closed in the child: a listening socket there would keep the port open after the server's death,
    and another child's channel would hide the death of this process. With `orphan_signal` the child gets that
    signal when this process dies.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return Child(name, pid, ours)
    status = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ours.close()
        for item in inherited:
            item.close()
        if orphan_signal:
            hear_parents_death(orphan_signal)
        setproctitle.setproctitle(title)
        body(theirs)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def follow(channel: socket.socket, obey: Callable[[str], None]) -> None:
    """Carry out orders until the parent's side closes: the parent is gone."""
    while True:
        order = channel.recv(256).decode()
        if not order:
            return
        obey(order)
        channel.send(ANSWER)
