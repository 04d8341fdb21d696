"""Slow loads: what the ranks do while the log says little or nothing."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Callable

import setproctitle

MIB = 2**20
#: Large enough to be read in many pieces, small enough for eight ranks on a small machine.
FILE_MIB = 8
#: How much memory a compiling rank has at most, and gets anew in each round.
KEPT_PIECES, PIECE_MIB = 8, 2
#: A compiling rank works and rests for so long in turn, so that eight of them leave something of a small machine.
ROUND_S = 0.05

Progress = Callable[[float], None]


def paced(duration_s: float, step_s: float) -> Iterator[float]:
    """Yield the share of `duration_s` that is over, each `step_s` until all of it is."""
    began = time.monotonic()
    due_s = spent_s = 0.0
    while spent_s < duration_s:
        yield spent_s / duration_s
        due_s = min(due_s + step_s, duration_s)
        time.sleep(max(0.0, began + due_s - time.monotonic()))
        spent_s = time.monotonic() - began


def silent_io(load: dict[str, Any], progress: Progress) -> None:
    """Read a file in pieces of 1 MiB, from the disk as far as the file system allows that."""
    with pieces_of(load.get("file")) as read_piece:
        for share in paced(load["seconds"], 1 / load.get("mib_per_s", 8)):
            read_piece()
            progress(share)


@contextlib.contextmanager
def pieces_of(path: str | None) -> Iterator[Callable[[], None]]:
    """Give a function that reads the next MiB of the file at `path`, or else of a file made for that."""
    with Path(path).open("rb") if path else new_file() as file:
        size, place = os.fstat(file.fileno()).st_size, 0

        def read_piece() -> None:
            nonlocal place
            os.posix_fadvise(file.fileno(), place, MIB, os.POSIX_FADV_DONTNEED)
            os.pread(file.fileno(), MIB, place)
            place = place + MIB if place + MIB < size else 0

        yield read_piece


def new_file() -> IO[bytes]:
    """Make a file without a name; as far as this host has a disk for such files, it is there."""
    # /tmp is often in memory, which no read from a disk comes of.
    folder = "/var/tmp" if os.access("/var/tmp", os.W_OK) else None
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - who reads it closes it
    for _ in range(FILE_MIB):
        file.write(os.urandom(MIB))
    file.flush()
    os.fsync(file.fileno())  # only what is on the disk can be dropped from memory
    return file


def memory(load: dict[str, Any], progress: Progress) -> None:
    """Let the memory on the GPU grow, nothing else."""
    for share in paced(load["seconds"], 0.05):
        progress(share)


def compile_kernels(load: dict[str, Any], progress: Progress) -> None:
    """Work as a compiler does: touch new memory and use the CPU, some of it in children that soon end."""
    kept: list[mmap.mmap] = []
    for share in paced(load["seconds"], 2 * ROUND_S):
        pid = os.fork()
        if not pid:
            try:
                setproctitle.setproctitle("ptxas")
                work(ROUND_S / 2)
            finally:
                os._exit(0)
        kept.append(work(ROUND_S / 2))
        del kept[:-KEPT_PIECES]
        os.waitpid(pid, 0)
        progress(share)


def work(duration_s: float) -> mmap.mmap:
    """Fill new memory and use the CPU for a while."""
    end = time.thread_time() + duration_s
    piece = mmap.mmap(-1, PIECE_MIB * MIB)
    piece.write(bytes(len(piece)))
    while time.thread_time() < end:
        pass
    return piece


LOADS: dict[str, Callable[[dict[str, Any], Progress], None]] = {
    "silent_io": silent_io,
    "heartbeat_io": silent_io,
    "memory": memory,
    "compile": compile_kernels,
}


@contextlib.contextmanager
def repeating(action: Callable[[], None], interval_s: float) -> Iterator[None]:
    """Do `action` every `interval_s` beside what the caller does."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(interval_s):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def carry_out(load: dict[str, Any], progress: Progress, beat: Callable[[], None] | None, heartbeat_s: float) -> None:
    """Do one slow load; with `beat` the log has the engine's line of waiting all the while."""
    with repeating(beat, heartbeat_s) if beat else contextlib.nullcontext():
        LOADS[load["how"]](load, progress)
