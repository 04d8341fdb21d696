"""The ranks of an engine on a host: how many there have to be, how many are there, and which of its processes died.

An engine's processes name themselves (``sglang::scheduler_TP0``, ``VLLM::EngineCore``). A child that one of them forks
for a compiler has the name, too, until it takes another one: what is called like its own parent is none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from .processes import Process


class Member(NamedTuple):
    """A process of an engine's unit; ``title`` is the first word of its command line, empty if unreadable."""

    process: Process
    title: str


def _number(flags: Mapping[str, Any], names: Iterable[str], otherwise: int = 1) -> int:
    values = (str(flags.get(name, "")) for name in names)
    return next((int(value) for value in values if value.isdigit()), otherwise)


def node_rank(flags: Mapping[str, Any], engine: ModuleType) -> int:
    """Which of the hosts that serve one model together this one is; only 0 answers requests."""
    return _number(flags, engine.NODE_RANK_FLAGS, 0)


def expected(flags: Mapping[str, Any], engine: ModuleType) -> int:
    """How many ranks a server has on this host; 0 where its flags do not tell.

    Args:
        flags: the release's flags, long names without dashes.
        engine: what is known of the engine, from ``engines/``.
    """
    if any(name in flags and flags[name] not in here for name, here in engine.RANKS_ELSEWHERE.items()):
        return 0
    tensor, pipeline, data, nodes = (_number(flags, names) for names in engine.PARALLEL_FLAGS)
    world = tensor * pipeline * (1 if any(name in flags for name in engine.DATA_PARALLEL_INSIDE) else data)
    return world // nodes if world % nodes == 0 else 0


def _is_fork(member: Member, parent: Member | None) -> bool:
    """Whether it is named like its own parent: by the whole title, or by what the kernel keeps of it, 15 characters."""
    return parent is not None and (parent.title == member.title or parent.process.comm == member.process.comm)


def titled(alive: Mapping[int, Member], engine: ModuleType) -> list[Member]:
    """The processes that named themselves as an engine's do, of those that are alive, by pid."""
    return [
        member
        for member in alive.values()
        if member.title.startswith(engine.TITLE) and not _is_fork(member, alive.get(member.process.parent))
    ]


def ranks_among(members: Iterable[Member], engine: ModuleType) -> list[Member]:
    """The ranks among an engine's processes: of the first kind of which there is any."""
    found = list(members)
    kinds = ([member for member in found if member.title.startswith(kind)] for kind in engine.RANK_TITLES)
    return next(filter(None, kinds), [])


@dataclass
class Ranks:
    """The processes of one start of an engine that have a title, over time.

    Args:
        engine: what is known of the engine, from ``engines/``.
        wanted: how many ranks there have to be, 0 if unknown.
    """

    engine: ModuleType
    wanted: int
    count: int = 0
    """Ranks that are there now."""
    seen: dict[tuple[int, int], str] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)
    """Processes that died, as ``sglang::scheduler_TP3 (pid 4711)``, and when that was seen. None of them comes back."""

    def look(self, members: Iterable[Member], at: float) -> None:
        """Take in who is there. One whose first thread ended is gone: that thread runs the model."""
        alive = {member.process.pid: member for member in members if member.process.state not in "ZX"}
        own = titled(alive, self.engine)
        for member in own:
            self.seen[member.process.pid, member.process.start_ticks] = member.title
        for (pid, ticks), title in list(self.seen.items()):
            if pid not in alive or alive[pid].process.start_ticks != ticks:
                self.lost.setdefault(f"{title} (pid {pid})", at)
                del self.seen[pid, ticks]
        self.count = len(ranks_among(own, self.engine))

    def lost_for_s(self, at: float) -> float:
        """Seconds since the first one died, 0 if none did."""
        return at - min(self.lost.values()) if self.lost else 0.0

    def missing(self) -> int:
        """How many ranks are not there; 0 where nothing ever named itself, as in an engine that does not do that."""
        return max(0, self.wanted - self.count) if self.seen or self.lost else 0

    def said(self) -> str:
        """``VLLM::Worker_TP3 (pid 4711) died; 7 of 8 ranks are there``; ranks first, since others end with them."""
        there = f"{self.count} of {self.wanted} ranks are there" if self.wanted else f"{self.count} ranks are there"
        died = self.died()
        # Ranks that died before anybody saw their names are what is missing, not those that ended with them.
        told = [f"{died} died", there] if died.startswith(self.engine.RANK_TITLES) else [there, f"{died} died"]
        return "; ".join(told) if died else there

    def died(self) -> str:
        """Those that died, ranks first."""
        return ", ".join(sorted(self.lost, key=lambda name: not name.startswith(self.engine.RANK_TITLES)))
