"""Write log lines and progress bars the way that the engines do: at once, and bars by carriage returns."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, Callable

#: What stands before the text of a line: takes the text, returns the whole line.
Dress = Callable[[str], str]
BLOCKS = " ▏▎▍▌▋▊▉█"


def vllm_dress(name: str) -> Dress:
    """Lines of vLLM: ``(EngineCore pid=13800) INFO 11-29 18:55:13 [core.py:133] text``."""

    def dress(text: str) -> str:
        level, rest = text.split(" ", 1)
        return f"({name} pid={os.getpid()}) {level} {time.strftime('%m-%d %H:%M:%S')} {rest}"

    return dress


def sglang_dress(rank: str = "") -> Dress:
    """Lines of SGLang: ``[2026-11-29 18:34:45] text``, with the rank after the time where there are several."""

    def dress(text: str) -> str:
        return f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{' ' + rank if rank else ''}] {text}"

    return dress


class Log:
    """The output of one process. Unbuffered: whole lines, in the order in which they were written."""

    def __init__(self, dress: Dress) -> None:
        self.dress = dress
        self._in_bar = False

    def line(self, text: str) -> None:
        """Write a line as the engine's logger does."""
        self.raw(self.dress(text))

    def raw(self, text: str, stream: int = 1) -> None:
        """Write a line as it stands; a bar that stopped half-way is closed first, as tqdm does."""
        self._write(("\n" if self._in_bar else "") + text + "\n", stream)
        self._in_bar = False

    def bar(self, text: str, last: bool) -> None:
        """Write one state of a progress bar; only the last one ends the line."""
        self._write("\r" + text + ("\n" if last else ""), 2)
        self._in_bar = not last

    @staticmethod
    def _write(text: str, stream: int) -> None:
        data = text.encode()
        while data:
            data = data[os.write(stream, data) :]


def clock(value_s: float) -> str:
    """Minutes and seconds as tqdm shows them."""
    return f"{int(value_s) // 60:02d}:{int(value_s) % 60:02d}"


def bar_states(style: str, text: str, items: list[Any], duration_s: float) -> Iterator[str]:
    """Yield the states of a progress bar from nothing to complete, as tqdm would show them in `duration_s`."""
    total = len(items)
    for done in range(total + 1):
        spent = duration_s * done / total
        times = f"{clock(spent)}<{clock(duration_s - spent)}" if done else "00:00<?"
        rate = f"{done / spent if spent else 1000:5.2f}it/s" if done else "?it/s"
        label = text.format(item=items[min(done, total - 1)])
        if style == "completed":
            yield f"{label}: {100 * done // total:3d}% Completed | {done}/{total} [{times}, {rate}]\n"[:-1]
        else:
            yield f"{label}: {100 * done // total:3d}%|{blocks(done / total)}| {done}/{total} [{times}, {rate}]"


def blocks(share: float) -> str:
    """Ten characters of bar, filled to `share` with eighths of a block."""
    full, eighths = divmod(int(share * 80), 8)
    return ("█" * full + (BLOCKS[eighths] if full < 10 else "")).ljust(10)
