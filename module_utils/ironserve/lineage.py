"""Which processes are an engine's, which of them belong together, and which were left behind.

An engine is a tree: a main process that serves HTTP, and under it schedulers or workers, one a GPU, each of which
renames itself. A rank never survives alone: they are ended together or not at all. All of it is pure.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from .engines import ENGINES
from .processes import Process, Table, is_gone

ENVIRONMENTS = "/opt/ironserve/engines/"

_PYTHON = re.compile(r"^python[\w.+-]*$")
_ADOPTERS = re.compile(
    r"^(systemd|init|(ba|da|z|k|fi|a|tc|c)?sh|tmux(: server)?|screen|SCREEN|zellij|containerd-shim.*|conmon|"
    r"docker-init|tini|dumb-init|catatonit|s6-.*|runsv.*)$"
)
"""Who orphans are given to: pid 1, and what takes in those under it, as a container's init or a user's systemd does."""
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
"""Options of Python that take a word of their own."""

COMM_LENGTH = 15
"""What the kernel keeps of a process's name."""


def _name(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def is_server(argv: Sequence[str]) -> bool:
    """Whether this is an engine's main process. The words count, never the joined line: a path may hold any name."""
    words = list(argv)
    if words and _PYTHON.match(_name(words[0])):
        words = words[1:]
        while words and words[0].startswith("-") and words[0] != "-m":
            words = words[2 if words[0] in _WITH_VALUE else 1 :]
    if words[:1] == ["-m"]:
        return any(words[1:2] == [module] for engine in ENGINES.values() for module in engine.MODULES)
    return any(_name(word) == engine.SCRIPT for engine in ENGINES.values() for word in words[:1]) and words[1:2] == [
        "serve"
    ]


def is_rank(process: Process, argv: Sequence[str], patterns: Sequence[str] = ()) -> bool:
    """Whether this is a scheduler, worker or other helper of an engine, by the title that it gave itself.

    Where only threads of it are left, /proc shows no command any more, but the name.

    Args:
        process: the process.
        argv: its command.
        patterns: titles of other engines, as shell patterns for the first word.
    """
    titles = [engine.TITLE for engine in ENGINES.values()]
    first = argv[0] if argv else ""
    named = any(first.startswith(title) or process.comm.startswith(title[:COMM_LENGTH]) for title in titles)
    return named or any(fnmatch.fnmatchcase(first, pattern) for pattern in patterns)


def is_child(argv: Sequence[str]) -> bool:
    """Whether Python's multiprocessing started this: nobody types such a command."""
    return "--multiprocessing-fork" in argv or any(word.startswith("from multiprocessing.") for word in argv)


class Lineage:
    """The engines' processes among those of a host.

    Args:
        table: the processes.
        service_user: the user as whom engines run; what is its own and Python is an engine's. Empty: not known.
        patterns: see :func:`is_rank`.
    """

    def __init__(self, table: Table, service_user: str = "", patterns: Sequence[str] = ()) -> None:
        self.table, self.service_user, self.patterns = table, service_user, patterns

    def is_engine(self, process: Process) -> bool:
        """Whether this is a process of an engine, by its command, its title, or the environment it runs from."""
        details = self.table.details(process.pid)
        argv = details.argv
        if is_server(argv) or is_rank(process, argv, self.patterns) or argv[0].startswith(ENVIRONMENTS):
            return True
        return details.user == self.service_user != "root" and bool(_PYTHON.match(_name(argv[0])))

    def top(self, process: Process) -> Process | None:
        """The outermost process of the engine to which this one belongs; None where it belongs to none.

        A process that an engine started is the engine's, whatever it is: a compiler, a worker without a title yet.
        """
        outermost = None
        for member in (process, *self.table.ancestors(process.pid)):
            if self.is_engine(member):
                outermost = member
            elif outermost is not None:  # the shell, the script or the unit that started the engine
                break
        return outermost

    def family(self, process: Process) -> list[Process]:
        """All processes of the engine to which this one belongs, main process first; empty where it belongs to none."""
        top = self.top(process)
        return self.table.tree(top.pid) if top else []

    def is_left_behind(self, process: Process) -> bool:
        """Whether nothing serves or waits for this process any more: its engine's main process is gone.

        Ranks are never started by a shell or by pid 1: one that is their child was given to them when its own parent
        died (vllm#55510). One whose parent is anything else, such as a program with an engine inside, is spared.
        """
        top = self.top(process)
        argv = self.table.details(top.pid).argv if top else ()
        if top is None or not (is_rank(top, argv, self.patterns) or is_child(argv)):
            return False
        parent = self.table.processes.get(top.parent)
        if parent is None:
            return False
        gone = is_gone(parent, parent.start_ticks)
        return gone or parent.pid == 1 or bool(_ADOPTERS.match(self.table.program(parent.pid) or parent.comm))

    def strays(self, family: Sequence[Process]) -> list[Process]:
        """Left-behind processes of the same session and user that belong to no living engine: a detokenizer, say.

        Args:
            family: an engine that was left behind.
        """
        found: list[Process] = []
        known = {process.pid for process in family}
        sessions = {process.session for process in family}
        users = {self.table.details(process.pid).user for process in family}
        for process in self.table.processes.values():
            if process.session not in sessions or process.pid in known or not self.is_engine(process):
                continue
            if self.table.details(process.pid).user in users and self.is_left_behind(process):
                found.append(process)
        return found
