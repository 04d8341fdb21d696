"""Slow or hung: when each signal of a starting engine last moved, and for how long none has. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .slices import duration

SIGNALS = {"log": "log", "io": "reads", "cpu": "CPU", "gpu_memory": "GPU memory"}
"""The signals, with the words for a message. ``vitals.py`` says when those beside the log move."""

UNSEEN_S = 5.0
"""Of a longer time between two looks no more than this counts as stillness: a host that was suspended, or so busy that
nobody could look, has not shown that nothing moved."""

STALL_TIMEOUT_S = 900
"""Healthy starts were silent for ten minutes in public reports, with nothing but reads to show that they moved."""

DEFAULT = "default"
"""Key of the limit that holds for phases without one of their own."""


def stall_limit_s(stall_timeout_s: Any, phase: str) -> float:
    """The stall limit that holds in a phase.

    Args:
        stall_timeout_s: what the release says: a number, or limits by phase, of which ``default`` is for all others.
        phase: where the start is.
    """
    if not isinstance(stall_timeout_s, Mapping):
        return float(stall_timeout_s or STALL_TIMEOUT_S)
    return float(stall_timeout_s.get(phase, stall_timeout_s.get(DEFAULT, STALL_TIMEOUT_S)))


@dataclass
class Signal:
    """One signal: when it last moved, and what it shows."""

    moved_at: float
    said: str = ""


@dataclass
class Progress:
    """All signals of one start.

    Args:
        began: when it began; every signal counts as having moved then.

    Attributes:
        still_s: seconds in which nothing moved.
    """

    began: float
    signals: dict[str, Signal] = field(default_factory=dict)
    still_s: float = 0.0
    _at: float | None = None

    def look(self, moved: Iterable[str], said: Mapping[str, str], at: float, excused: bool = False) -> None:
        """Take in one look.

        Args:
            moved: signals that moved since the look before.
            said: what each signal shows; one that is not in it is not known.
            at: seconds of a clock that only goes forward.
            excused: whether stillness is of no account now, since something with a limit of its own is waited for.
        """
        moved = set(moved)
        for name in {*said, *moved}:
            signal = self.signals.setdefault(name, Signal(self.began))
            signal.said = said.get(name, "")
            if name in moved:
                signal.moved_at = at
        since = min(at - (self.began if self._at is None else self._at), UNSEEN_S)
        self._at = at
        self.still_s = 0.0 if moved or excused else self.still_s + since

    def is_stalled(self, limit_s: float) -> bool:
        """Whether nothing moved for that long. A log alone never says it: another signal has to be known."""
        return self.still_s >= limit_s and any(name != "log" for name in self.signals)

    def plain(self, at: float) -> dict[str, dict[str, Any]]:
        """For each signal its age in seconds since it moved, and what it shows; JSON-plain."""
        return {
            name: {"age_s": round(max(0.0, at - signal.moved_at), 1), "what": signal.said}
            for name, signal in self.signals.items()
        }

    def described(self, at: float) -> str:
        """``log silent for 15m02s, reads nothing for 15m01s, CPUs idle for 15m02s``."""
        told = [name for name in SIGNALS if name in self.signals]
        return ", ".join(
            f"{self.signals[name].said or f'{SIGNALS[name]} still'} for {duration(at - self.signals[name].moved_at)}"
            for name in told
        )
