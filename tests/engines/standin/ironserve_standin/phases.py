"""Play the phases of a start: their lines and bars, with the delays, hangs and ends that the behaviour asks for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, NoReturn

from . import gpu
from .behaviour import Behaviour
from .log import Log, bar_states
from .processes import RANK_PROCESSES, later


@dataclass(frozen=True)
class Phase:
    """One phase of a start, as the data file of the engine has it."""

    name: str
    process: str
    steps: list[Any]
    unless: str = ""

    @property
    def is_of_ranks(self) -> bool:
        """Whether every rank goes through it."""
        return self.process in RANK_PROCESSES


def hang_quiet(behaviour: Behaviour, log: Log, heartbeat: str) -> NoReturn:
    """Sleep for ever."""
    while True:
        time.sleep(3600)


def hang_heartbeat(behaviour: Behaviour, log: Log, heartbeat: str) -> NoReturn:
    """Print the engine's line of waiting again and again: a log that grows without any progress."""
    while True:
        log.line(heartbeat)
        time.sleep(behaviour.heartbeat_s)


def hang_spin(behaviour: Behaviour, log: Log, heartbeat: str) -> NoReturn:
    """Burn one core, as a collective does that waits for a peer."""
    while True:
        pass


def hang_pipe_writes(behaviour: Behaviour, log: Log, heartbeat: str) -> NoReturn:
    """Write one byte a second to a pipe: the loop that strace showed in the hang on SM120."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, b"\0")
        except BlockingIOError:  # full, after most of a day
            os.read(reading, 2**20)
        time.sleep(1)


HANGS: dict[str, Callable[[Behaviour, Log, str], NoReturn]] = {
    "quiet": hang_quiet,
    "heartbeat": hang_heartbeat,
    "spin": hang_spin,
    "pipe_writes": hang_pipe_writes,
}


class ExitRequestedError(Exception):
    """The behaviour ends the server in this phase."""


@dataclass
class Player:
    """Plays phases in one process."""

    behaviour: Behaviour
    log: Log
    values: dict[str, object]
    facts: frozenset[str]
    heartbeat: str
    rank: int = 0
    _memory: gpu.Memory | None = None

    def lines(self, entries: list[Any]) -> None:
        """Write lines of an event, outside of any phase."""
        for write in self._writes(entries, 0):
            write()

    def play(self, phase: Phase) -> None:
        """Play one phase.

        Raises:
            ExitRequestedError: the behaviour wants the end here.
        """
        if phase.unless in self.facts:
            return
        delay_s = self.behaviour.delay_s(phase.name)
        if phase.name == "weights" and "dummy" not in self.facts:
            delay_s += self.behaviour.weights.get("seconds", 0.0)
        if phase.is_of_ranks:
            self._take_gpu()
        # A phase without lines still has a moment at which the behaviour may strike.
        writes = list(self._writes(phase.steps, delay_s)) or [lambda: None]
        for number, write in enumerate(writes):
            if number == len(writes) // 2:
                self._load(phase.name)
                self._strike(phase.name)
            write()
            if phase.name == "weights" and not self._loads_slowly("weights"):
                self._progress((number + 1) / len(writes))
            time.sleep(delay_s / len(writes))
        if phase.name == "weights":
            self._progress(1.0)

    def last_words(self) -> None:
        """Print what the server says before it ends."""
        for text in self.behaviour.exit_message.splitlines():
            self.log.raw(text, stream=2)

    def doom(self) -> None:
        """The server is ready: a rank that shall die after a while has this long to live."""
        if self.rank == self.behaviour.rank.get("number"):
            later(self.behaviour.rank["die_after_s"], lambda: os.kill(os.getpid(), signal.SIGKILL))

    def _strike(self, phase: str) -> None:
        """Half-way through a phase: what was printed says that it began, nothing says that it ended."""
        rank = self.behaviour.rank
        if rank.get("die_in") == phase:
            if self.rank == rank["number"]:
                os.kill(os.getpid(), signal.SIGKILL)
            if not rank.get("notice", True):
                # A collective without one of its ranks.
                HANGS[self.behaviour.hang_how](self.behaviour, self.log, self.heartbeat)
        if self.behaviour.hang_in == phase:
            HANGS[self.behaviour.hang_how](self.behaviour, self.log, self.heartbeat)
        if self.behaviour.exit_in == phase and self.behaviour.exit_after_s is None:
            self.last_words()
            raise ExitRequestedError

    def _loads_slowly(self, phase: str) -> bool:
        """Whether the middle of the phase takes its time; a steady load is nothing but a slow bar."""
        return bool(self.behaviour.load_in(phase)) and not self.behaviour.load_in(phase, "steady")

    def _load(self, phase: str) -> None:
        """Be slow in the middle of a phase, in the way that the behaviour wants."""
        if self._loads_slowly(phase):
            load = self.behaviour.load
            from .loads import carry_out  # noqa: PLC0415 - takes 10 ms, and most starts need none of it

            beat = partial(self.log.line, self.heartbeat) if load["how"] == "heartbeat_io" and self.rank == 0 else None
            carry_out(load, self._progress, beat, self.behaviour.heartbeat_s)

    def _take_gpu(self) -> None:
        """Hold the rank's GPU from now on, if the host has stand-in GPUs and memory shall be held there."""
        if self._memory is None and self.behaviour.gpu_mib and gpu.present():
            try:
                self._memory = gpu.Memory(self.rank, self.behaviour.gpu_mib, self.behaviour.gpu_memory == "never_freed")
            except gpu.NoSuchGpuError:
                self.log.raw("RuntimeError: CUDA error: invalid device ordinal", stream=2)
                raise SystemExit(1) from None

    def _progress(self, share: float) -> None:
        """Have that share of the weights on the GPU."""
        if self._memory is not None:
            self._memory.grow(share)

    def _writes(self, entries: list[Any], delay_s: float) -> Iterator[Callable[[], None]]:
        """Turn the entries of a data file into single writes."""
        for entry in entries:
            step: dict[str, Any] = {"line": entry} if isinstance(entry, str) else entry
            if step.get("unless") in self.facts or ("when" in step and step["when"] not in self.facts):
                continue
            if "bar" in step and self.rank == 0:
                yield from self._bar_writes(step["bar"], delay_s)
            for kind, write in (("line", self.log.line), ("raw", self.log.raw)):
                if kind in step:
                    yield partial(write, step[kind].format(pid=os.getpid(), **self.values))

    def _bar_writes(self, bar: dict[str, Any], duration_s: float) -> Iterator[Callable[[], None]]:
        items = bar["items"] if "items" in bar else list(range(int(str(bar["total"]).format(**self.values))))
        # The only bar whose total the behaviour says is the one of the weights.
        steady = (
            self.behaviour.load_in("weights", "steady") if "items" not in bar and bar["total"] == "{shards}" else {}
        )
        pause_s = steady["seconds"] / len(items) if steady else 0.0
        states = list(bar_states(bar.get("style", "tqdm"), bar["text"], items, duration_s + pause_s * len(items)))
        for number, state in enumerate(states, 1):
            yield partial(self._advance, state, last=number == len(states), pause_s=pause_s)

    def _advance(self, state: str, last: bool, pause_s: float) -> None:
        self.log.bar(state, last)
        time.sleep(0.0 if last else pause_s)
