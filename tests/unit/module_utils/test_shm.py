"""Leftovers in /dev/shm: what is one, what is not, and that nothing else is ever removed."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import shm
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from fake_proc import fake_process

LATER_S = 60.0
NAMES = [
    "nccl-abc123", "cuda.shm.3e8.1a2b.1", "psm_1a2b3c4d", "sem.mp-i5tprxj_", "sem.loky-9-a_b2", "torch_777_26_0",
    "sgl_shm_mm_4001_0a1b2c3d", "multi_tokenizer_args_4001", "sglang_loads_a53d50080cf7_fc908370.shm",
    "vllm_mm_AAAAAAAAAAAAAAAAAAAA-_", "vllm_offload_7f1b_dp0.mmap", "vllm_ec_7f1b.mmap", "vllm_engram_0a_b1c2d",
]  # fmt: skip
BEGINNINGS = (
    "nccl-", "cuda.shm.", "psm_", "sem.mp-", "sem.loky-", "torch_", "sgl_shm_", "multi_tokenizer_args_",
    "sglang_loads_", "vllm_mm_", "vllm_offload_", "vllm_ec_", "vllm_engram_",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


@pytest.fixture
def proc(tmp_path):
    proc = tmp_path / "proc"
    proc.mkdir()
    fake_process(proc, 1)
    return proc


@pytest.fixture
def memory():
    """A folder on the real tmpfs, removed with what is left in it."""
    folder = Path("/dev/shm") / f"ironserve-test-{uuid.uuid4().hex}"
    folder.mkdir()
    yield folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def make(folder: Path, *names: str, size: int = 4096) -> None:
    for name in names:
        (folder / name).write_bytes(b"x" * size)


def maps(path: Path, shown: str = "") -> str:
    """The line of a mapped file in /proc/PID/maps."""
    found = path.stat()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x} {found.st_ino}"
    return f"7fd37a0e9000-7fd37a0ea000 rw-s 00000000 {place}                     {shown or path}\n"


def look(folder: Path, proc: Path, uid: int | None = None, later_s: float = LATER_S) -> list[shm.Leftover]:
    return shm.leftovers(folder, os.getuid() if uid is None else uid, proc, time.time() + later_s)


def names(folder: Path, proc: Path, **more) -> list[str]:
    return [file.name for file in look(folder, proc, **more)]


def test_case_20_only_files_of_known_families_that_nobody_uses_go(folder, proc):
    left = ["nccl-abc123", "psm_1a2b", "sem.loky-9", "torch_777_1"]
    stays = ["PostgreSQL.123", "nccl-live01", "pulse-shm-1"]
    make(folder, *left, *stays)
    fake_process(proc, 6001, comm="other", maps=maps(folder / "nccl-live01"))
    found = look(folder, proc)
    assert [file.name for file in found] == left
    assert [file.bytes for file in found] == [(folder / name).stat().st_blocks * 512 for name in left]
    assert sorted(path.name for path in folder.iterdir()) == sorted(left + stays)  # looking removes nothing
    assert shm.remove(found) == (left, sum(file.bytes for file in found))
    assert sorted(path.name for path in folder.iterdir()) == stays


def test_every_family_is_known(folder, proc):
    make(folder, *NAMES)
    assert names(folder, proc) == sorted(NAMES)


@given(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
    | st.builds(str.__add__, st.sampled_from(["pulse-shm-", "PostgreSQL.", "x", "sem.", "/"]), st.sampled_from(NAMES))
)
def test_no_name_outside_the_families_is_known(name):
    assert name.startswith(BEGINNINGS) or not shm.family(name)


@given(st.sampled_from(NAMES), st.sampled_from([".bak", "\n", " (deleted)", "é", "/", "~"]))
def test_a_name_with_more_behind_it_is_another_name(name, more):
    assert not shm.family(name + more)


def test_files_of_other_users_stay(folder, proc):
    make(folder, "nccl-abc123")
    assert names(folder, proc, uid=os.getuid() + 1) == []


def test_only_regular_files_count(folder, proc):
    (folder / "psm_1a").mkdir()
    (folder / "psm_1b").symlink_to(folder / "elsewhere")
    os.mkfifo(folder / "psm_1c")
    assert names(folder, proc) == []


def test_a_new_file_stays(folder, proc):
    make(folder, "psm_1a2b")
    assert names(folder, proc, later_s=shm.NEW_S - 1) == []
    assert names(folder, proc, later_s=shm.NEW_S + 1) == ["psm_1a2b"]


def test_without_a_file_that_may_be_one_no_process_is_looked_at(folder, tmp_path):
    make(folder, "pulse-shm-1")
    assert names(folder, tmp_path / "there is no such folder") == []


@pytest.mark.parametrize(
    ("link", "used"),
    [
        ("/dev/shm/psm_1a2b", True),
        ("/run/containers/3f/shm/psm_1a2b", True),
        ("/dev/shm/psm_1a2b (deleted)", False),
        ("/dev/shm/psm_1a2b3", False),
        ("socket:[42]", False),
    ],
)
def test_a_file_that_is_open_is_in_use(folder, proc, link, used):
    make(folder, "psm_1a2b")
    fake_process(proc, 10, fds=["/dev/null", link])
    assert names(folder, proc) == ([] if used else ["psm_1a2b"])


def test_a_mapped_file_is_known_by_its_inode_and_not_by_the_name_that_maps_shows(folder, proc):
    make(folder, "sem.mp-aaaaaaaa", "sem.mp-bbbbbbbb", "pulse-shm-1")
    fake_process(proc, 10, maps="".join([
        maps(folder / "sem.mp-aaaaaaaa", "/dev/shm/sem.9RqcnK (deleted)"),
        maps(folder / "pulse-shm-1", "/dev/shm/sem.mp-bbbbbbbb (deleted)"),
    ]))  # fmt: skip
    assert names(folder, proc) == ["sem.mp-bbbbbbbb"]


def test_a_process_whose_first_thread_ended_still_holds_in_its_other_threads(folder, proc):
    make(folder, "nccl-abc123", "psm_1a2b")
    fake_process(
        proc, 20, state="Z", threads=2, thread=21,
        fds=["/dev/shm/psm_1a2b"], thread_maps=maps(folder / "nccl-abc123"),
    )  # fmt: skip
    assert names(folder, proc) == []


@pytest.mark.parametrize(
    "name", ["sgl_shm_mm_4001_0a1b2c3d", "torch_4001_1_0", "sem.loky-4001-a", "multi_tokenizer_args_4001"]
)
@pytest.mark.parametrize(("state", "left"), [("S", False), ("Z", True)])
def test_what_names_its_maker_is_in_use_while_that_one_lives(folder, proc, name, state, left):
    make(folder, name)
    fake_process(proc, 4001, state=state)
    assert names(folder, proc) == ([name] if left else [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("hidden", ["fd", "maps"])
def test_a_process_that_cannot_be_looked_into_may_use_anything(folder, proc, hidden):
    make(folder, "nccl-abc123")
    (fake_process(proc, 10) / hidden).chmod(0)
    with pytest.raises(PermissionError):
        look(folder, proc)


def test_a_file_that_changed_since_stays(folder, proc):
    make(folder, "psm_1a", "psm_1b", "psm_1c", "psm_1d")
    found = look(folder, proc)
    (folder / "psm_1a").unlink()  # gone meanwhile
    (folder / "psm_1b").rename(folder / "aside")
    make(folder, "psm_1b")  # made anew
    (folder / "psm_1c").unlink()
    (folder / "psm_1c").symlink_to(folder / "aside")
    os.truncate(folder / "psm_1d", 100)  # taken into use again
    assert shm.remove(found) == ([], 0)
    assert sorted(path.name for path in folder.iterdir()) == ["aside", "psm_1b", "psm_1c", "psm_1d"]


HOLDER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_a_real_process_keeps_what_it_maps_until_it_ends(memory, tmp_path):
    make(memory, "nccl-abc123", "nccl-live01", size=10_000)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(memory / "nccl-live01")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    (tmp_path / str(holder.pid)).symlink_to(f"/proc/{holder.pid}")
    assert holder.stdout.readline() == "mapped\n"
    assert shm.remove(look(memory, tmp_path)) == (["nccl-abc123"], 12_288)
    holder.communicate("")
    assert shm.remove(look(memory, tmp_path)) == (["nccl-live01"], 12_288)


def test_a_real_semaphore_is_in_use_though_maps_shows_another_name(proc):
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    name = f"sem.{semaphore._semlock.name.lstrip('/')}"
    assert name in names(shm.SHM, proc)
    (proc / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    assert name not in names(shm.SHM, proc)
