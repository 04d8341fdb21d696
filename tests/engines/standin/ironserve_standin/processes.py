"""The processes below the server: forked, named as the real ones, told over a socket what to do.

A server gives each child an order (``phase NAME`` while starting, ``step`` for a token) and waits for its answer.
So a child that was stopped, hangs or died has the effect on the server that it has in a real engine.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, NoReturn

import setproctitle

STEP = "step"
READY = "ready"
ANSWER = b"ok"
#: What the phases of the ranks have as their process: SGLang's schedulers, vLLM's workers (or EngineCore without them).
RANK_PROCESSES = ("scheduler", "core.worker")
#: Number of the system call that ends a thread and not its process.
SYS_EXIT = {"x86_64": 60, "aarch64": 93}
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
    #: Its death goes unnoticed: whoever waits for it waits for ever, as in a collective that hangs.
    unnoticed: bool = False
    _ended: int | None = None

    def fileno(self) -> int:
        """The descriptor at which its answers arrive, for select."""
        return self.channel.fileno()

    def order(self, text: str) -> None:
        """Tell the child what to do."""
        try:
            self.channel.send(text.encode())
        except OSError:
            self._missed()

    def answer(self) -> None:
        """Wait until the child has done it."""
        try:
            done = self.channel.recv(16)
        except OSError:
            done = b""
        if not done:
            self._missed()

    def _missed(self) -> NoReturn:
        if self.unnoticed:
            remain()
        raise ChildDiedError(self)

    def has_died(self) -> bool:
        """Whether its parent notices that it has ended."""
        return not self.unnoticed and self.status() is not None

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
            while chosen:
                # Not one after the other: the death of one is seen although another has not answered yet.
                for child in select.select(chosen, (), ())[0]:
                    child.answer()
                    chosen.remove(child)
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


def show_environment(changed: Mapping[str, str]) -> None:
    """Have /proc show this process as if it had been started with these variables, as a rank that was spawned is.

    No value may be longer than it was: there is as much room as the environment took.
    """
    import ctypes  # noqa: PLC0415 - see above

    stat = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    begin, end = int(stat[47]), int(stat[48])
    items = Path("/proc/self/environ").read_bytes().rstrip(b"\0").decode().split("\0")
    text = "\0".join(f"{name}={changed.get(name, value)}" for name, _, value in (item.partition("=") for item in items))
    ctypes.memmove(begin, text.encode().ljust(end - begin, b"\0")[: end - begin], end - begin)


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
        try:
            channel.send(ANSWER)
        except BrokenPipeError:
            return


def remain() -> NoReturn:
    """Do nothing but handle signals, for ever."""
    while True:
        time.sleep(3600)


def later(delay_s: float, action: Callable[[], object]) -> None:
    """Do something after `delay_s`, in a thread that takes no signals: they are for the main thread."""

    def wait() -> None:
        time.sleep(delay_s)
        action()

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def leave_main_thread(work: Callable[[], None]) -> NoReturn:
    """Go on with `work` in another thread and end the main thread: the process is a zombie that holds all it has."""
    import ctypes  # noqa: PLC0415 - see above

    def carry_on() -> None:
        try:
            work()
        finally:
            os._exit(1)

    threading.Thread(target=carry_on).start()
    ctypes.CDLL(None).syscall(SYS_EXIT[os.uname().machine], 0)
    raise AssertionError("the main thread lives on")
