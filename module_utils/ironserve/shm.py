"""What crashed engines leave in /dev/shm: files that nobody uses and that take memory until somebody removes them.

Whoever makes such a file removes it at its end, and a process that is killed does not. Crash after crash they fill the
folder, until the next start fails for lack of room. The folder is everybody's: only a regular file of a known family,
of one user, that no process has open or mapped, is a leftover.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from . import processes

SHM = Path("/dev/shm")  # noqa: S108  (it is looked at, not written to)

NEW_S = 5.0
"""A file that was made or cut this recently is no leftover, whatever /proc says: a name is made by one process and
opened by another, and for the moment between the two (milliseconds) nobody may hold it. A look at the process table of
a busy host takes about a second, and what it found has to be still true at its end."""

FAMILIES = tuple(
    re.compile(pattern)
    for pattern in (
        # NCCL: buffers between the ranks of a host (mkstemp in its shmutils.cc; transport/shm.cc, proxy.cc).
        r"nccl-[0-9A-Za-z]{6}",
        # The CUDA driver: what cudaIpc* shares. In SGLang's own sweep (sglang/srt/utils/stale_shm_cleanup.py).
        r"cuda\.shm\.[0-9a-f.]+",
        # Python's multiprocessing: SharedMemory without a name; vLLM's message queues and tensor arenas.
        r"psm_[0-9a-f]+",
        # Python's multiprocessing: locks and semaphores, with the start methods spawn and forkserver.
        r"sem\.mp-[0-9a-z_]{8}",
        # loky (joblib): semaphores. In SGLang's own sweep.
        r"sem\.loky-(?P<pid>[0-9]+)(-[0-9a-z_]+)?",
        # torch.multiprocessing with the strategy file_system: tensors.
        r"torch_(?P<pid>[0-9]+)_[0-9]+(_[0-9]+)?",
        # SGLang: images and video on their way to the scheduler (mm), message queues (mq), and a question whether two
        # ranks share a host (nodecheck); make_shm_name in sglang/srt/utils/stale_shm_cleanup.py.
        r"sgl_shm_[a-z]+_(?P<pid>[0-9]+)_[0-9a-f]{8}",
        # SGLang with several tokenizers: their arguments (sglang/srt/managers/multi_tokenizer_mixin.py).
        r"multi_tokenizer_args_(?P<pid>[0-9]+)",
        # SGLang: the load of each scheduler (sglang/srt/managers/load_snapshot.py). Nothing removes it.
        r"sglang_loads_[\w.-]+_[0-9a-f]{8}\.shm",
        # vLLM: the cache of images between API server and workers (_generate_shm_name in vllm/envs.py).
        r"vllm_mm_[0-9A-Za-z_-]{22}",
        # vLLM: KV cache and encoder cache in host memory (v1/kv_offload/cpu, distributed/ec_transfer): many GiB.
        r"vllm_(offload|ec)_[\w.-]+\.mmap",
        # vLLM: Engram tables that data-parallel ranks share (vllm/models/deepseek_v41/common/engram.py).
        r"vllm_engram_[0-9a-z_]{8}",
    )
)
"""Names that an engine gives, complete. ``pid`` is who made the file. As long as that process lives the file is in use
though nobody may hold it: SGLang closes an image, puts its name into a queue, and the scheduler opens it when it comes
to it. SGLang's ``sgldiffusion-array-*.npy`` travel likewise and name nobody, so that none can be told to be left."""

MAPPED = re.compile(r"^\S+ \S+ \S+ (\S+ \d+)", re.MULTILINE)


class Leftover(NamedTuple):
    """A file that nobody uses, as it was when it was looked at.

    Attributes:
        name: its name in the folder.
        bytes: the memory that it takes, which is less than its length where parts were never written.
        path: where it lies.
        device: of its file system.
        inode: on that.
        uid: whose it is.
        mode: type and permissions.
        changed_ns: when it was last made, cut, linked or given away.
    """

    name: str
    bytes: int
    path: Path
    device: int
    inode: int
    uid: int
    mode: int
    changed_ns: int


def leftovers(folder: Path, uid: int, proc: Path, now_s: float) -> list[Leftover]:
    """The leftovers of a user; ``now_s`` is the time before the call. Changes nothing.

    The process table is read only when some file may be one. Reading it waits for a process that is stuck in the kernel
    with its memory locked: whoever must not wait calls this from a child.

    Raises:
        PermissionError: a process cannot be looked into, so that any file may be in use. Only root sees all.
    """
    files = candidates(folder, uid, now_s)
    held = in_use(files, proc) if files else set()
    return [file for file in files if file.name not in held]


def candidates(folder: Path, uid: int, now_s: float) -> list[Leftover]:
    """Files of a known family that belong to this user and are not new, by name."""
    found = []
    for path in sorted(folder.iterdir()):
        if family(path.name):
            with suppress(FileNotFoundError):
                file = _look(path)
                if stat.S_ISREG(file.mode) and file.uid == uid and now_s - file.changed_ns / 1e9 > NEW_S:
                    found.append(file)
    return found


def family(name: str) -> re.Match[str] | None:
    """The match of a name with its family; None for a name that is not known."""
    return next(filter(None, (pattern.fullmatch(name) for pattern in FAMILIES)), None)


def in_use(files: Collection[Leftover], proc: Path) -> set[str]:
    """Names of those files that a live process has open or mapped, or that name their maker while it lives.

    Raises:
        PermissionError: a process cannot be looked into.
    """
    table = processes.Table(proc).processes
    names = {file.name for file in files}
    mapped = {f"{os.major(file.device):02x}:{os.minor(file.device):02x} {file.inode}": file.name for file in files}
    held = {name for name in names if _is_alive(table.get(_maker(name)))}
    for process in table.values():
        for place in map(Path, processes.places(proc, process)):
            # In this order: a process maps a file first and closes it then.
            held |= names & _open_names(place / "fd")
            held |= {mapped[found] for found in mapped.keys() & _mapped_places(place / "maps")}
    return held


def remove(files: Iterable[Leftover]) -> tuple[list[str], int]:
    """Remove leftovers, right after they were found; the names of those that went, and their bytes.

    A file that is not the one that was looked at, or was changed since, stays; one that is gone is no error. Whoever
    maps a file in the moment between keeps it: what goes is its name.

    Raises:
        OSError: a file cannot be removed.
    """
    removed = [file for file in files if _unlink(file)]
    return [file.name for file in removed], sum(file.bytes for file in removed)


def _look(path: Path, folder: int | None = None) -> Leftover:
    """The file as it is now, links not followed; in a folder that is open already, where there is one."""
    found = os.stat(path if folder is None else path.name, dir_fd=folder, follow_symlinks=False)
    return Leftover(
        path.name, found.st_blocks * 512, path,
        found.st_dev, found.st_ino, found.st_uid, found.st_mode, found.st_ctime_ns,
    )  # fmt: skip


def _unlink(file: Leftover) -> bool:
    folder = os.open(file.path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Its bytes may have grown: to write into a mapped file touches no time.
        if _look(file.path, folder)._replace(bytes=file.bytes) != file:
            return False
        os.unlink(file.name, dir_fd=folder)
    except FileNotFoundError:
        return False
    finally:
        os.close(folder)
    return True


def _maker(name: str) -> int:
    """Pid in a name, 0 where there is none."""
    match = family(name)
    return int(match.groupdict().get("pid") or 0) if match else 0


def _is_alive(process: processes.Process | None) -> bool:
    return process is not None and not processes.is_gone(process, process.start_ticks)


def _open_names(folder: Path) -> set[str]:
    """Last parts of what the links of /proc/PID/fd lead to: in another mount namespace the folder is another.

    ``nccl-abc123 (deleted)`` is not the file of that name any more, and is another name here.
    """
    names = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for link in folder.iterdir():
            with suppress(FileNotFoundError):
                names.add(link.readlink().name)
    return names


def _mapped_places(maps: Path) -> set[str]:
    """Device and inode of each file that is mapped.

    Not its path: that is of the mapping process's mount namespace, and glibc makes a semaphore under another name,
    which maps shows as deleted for as long as the maker lives.
    """
    with suppress(FileNotFoundError, ProcessLookupError):
        return set(MAPPED.findall(maps.read_text(errors="replace")))
    return set()
