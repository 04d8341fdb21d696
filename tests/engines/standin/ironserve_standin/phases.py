"""Play the phases of a start: their lines and bars, with the delays, hangs and ends that the behaviour asks for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, NoReturn

from .behaviour import Behaviour
from .log import Log, bar_states


@dataclass(frozen=True)
class Phase:
    """One phase of a start, as the data file of the engine has it."""

    name: str
    process: str
    steps: list[Any]
    unless: str = ""


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
    _, writing = os.pipe()
    while True:
        os.write(writing, b"\0")
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
    leads: bool = True

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
        # A phase without lines still has a moment at which the behaviour may strike.
        writes = list(self._writes(phase.steps, delay_s)) or [lambda: None]
        for number, write in enumerate(writes):
            if number == len(writes) // 2:
                self._strike(phase.name)
            write()
            time.sleep(delay_s / len(writes))

    def _strike(self, phase: str) -> None:
        """Half-way through a phase: what was printed says that it began, nothing says that it ended."""
        if self.behaviour.hang_in == phase:
            HANGS[self.behaviour.hang_how](self.behaviour, self.log, self.heartbeat)
        if self.behaviour.exit_in == phase:
            for text in self.behaviour.exit_message.splitlines():
                self.log.raw(text, stream=2)
            raise ExitRequestedError

    def _writes(self, entries: list[Any], delay_s: float) -> Iterator[Callable[[], None]]:
        """Turn the entries of a data file into single writes."""
        for entry in entries:
            step: dict[str, Any] = {"line": entry} if isinstance(entry, str) else entry
            if step.get("unless") in self.facts or ("when" in step and step["when"] not in self.facts):
                continue
            if "bar" in step and self.leads:
                yield from self._bar_writes(step["bar"], delay_s)
            for kind, write in (("line", self.log.line), ("raw", self.log.raw)):
                if kind in step:
                    yield partial(write, step[kind].format(pid=os.getpid(), **self.values))

    def _bar_writes(self, bar: dict[str, Any], duration_s: float) -> Iterator[Callable[[], None]]:
        items = bar["items"] if "items" in bar else list(range(int(str(bar["total"]).format(**self.values))))
        states = list(bar_states(bar.get("style", "tqdm"), bar["text"], items, duration_s))
        for number, state in enumerate(states, 1):
            yield partial(self.log.bar, state, number == len(states))
