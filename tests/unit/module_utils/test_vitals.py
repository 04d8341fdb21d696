"""What moves in an engine beside its log, and what only looks so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import vitals
from ansible.module_utils.ironserve.vitals import MIB, Sample, Usage, Vitals, parse_usage, used
from hypothesis import given
from hypothesis import strategies as st

STAT = "4711 (VLLM::Worker (TP) x) R 1 4711 4711 0 -1 0 {minflt} {cminflt} {majflt} 0 {utime} {stime} 0 0 20 0 9 0 77 1"
IO = "rchar: 900\nwchar: 5\nsyscr: 3\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 0\ncancelled_write_bytes: 0\n"


def test_usage_is_read_from_the_kernels_files():
    stat = STAT.format(minflt=10, cminflt=20, majflt=3, utime=100, stime=50)
    assert parse_usage(stat, IO) == Usage(77, 150, 13, 4096, 900, 3)
    assert parse_usage(stat, "") == Usage(77, 150, 13)


def test_this_process_can_be_sampled():
    seen = vitals.sample([os.getpid(), 2**22 + 1])
    assert list(seen.usage) == [os.getpid()]
    assert seen.has_io
    assert seen.usage[os.getpid()].faults > 0


@pytest.mark.parametrize(
    ("text", "made", "group"),
    [
        ("0::/system.slice/ironserve-main.service\n", "system.slice/ironserve-main.service",
         "system.slice/ironserve-main.service"),
        ("9:name=systemd:/system.slice/x.service\n1:cpu:/\n0::/\n", "systemd/system.slice/x.service",
         "systemd/system.slice/x.service"),
        ("3:cpu:/a\n0::/b\n", "unified/b", "unified/b"),
        ("0::/\n", ".", None),  # everybody's
        ("0::/gone\n", "other", None),
        ("", ".", None),
    ],
)  # fmt: skip
def test_the_control_group_of_a_process(tmp_path: Path, text, made, group):
    (tmp_path / made).mkdir(parents=True, exist_ok=True)
    (tmp_path / made / "cgroup.procs").write_text("1\n2\n")
    assert vitals.control_group(text, tmp_path) == (tmp_path / group if group else None)
    assert vitals.members(tmp_path / made) == [1, 2]


def test_what_began_since_counts_whole_and_what_ended_takes_nothing_back():
    before = {1: Usage(5, 100, 1000, 10, 10, 1), 2: Usage(5, 900, 9, 9, 9, 9)}
    now = {1: Usage(5, 150, 1500, 20, 10, 1), 3: Usage(9, 50, 7, 0, 0, 0)}
    assert used(before, now, 100) == [(0.5, 500, 10, 0, 0), (0.5, 7, 0, 0, 0)]
    assert used({1: Usage(4, 100, 0)}, {1: Usage(5, 30, 0)}, 100)[0].cpu_s == 0.3  # another process of the same pid


def test_one_rank_that_compiles_among_seven_that_spin_is_work():
    vitals_, last = Vitals(ticks_per_s=100), {pid: Usage(1, 0, 0) for pid in range(8)}
    vitals_.look(Sample(last), 0.0)
    now = {pid: Usage(1, 100, 1300 if pid == 3 else 2) for pid in range(8)}
    assert vitals_.look(Sample(now), 1.0) == {"cpu"}
    assert vitals_.said["cpu"] == "8.0 CPUs at work"


class Engine:
    """One process whose usage grows as a test says, looked at once a second."""

    def __init__(self) -> None:
        self.vitals, self.at, self.usage = Vitals(ticks_per_s=100), 0.0, Usage(1, 0, 0)
        self.memory: dict[str, int] | None = None
        self.look()

    def look(self, cpu=0, faults=0, disk=0, read=0, reads=0, span=1.0) -> set[str]:
        self.at += span
        old = self.usage
        self.usage = Usage(1, old[1] + cpu, old[2] + faults, old[3] + disk, old[4] + read, old[5] + reads)
        return self.vitals.look(Sample({7: self.usage}, self.memory), self.at)


def moved_in(seconds: int, **each) -> set[str]:
    engine = Engine()
    return set().union(*(engine.look(**each) for _ in range(seconds)))


@pytest.mark.parametrize(
    ("each", "moved"),
    [
        ({}, set()),
        ({"cpu": 800}, set()),  # eight ranks spin
        ({"cpu": 100, "faults": 30}, set()),  # and somebody asks for its health
        ({"cpu": 1, "faults": 5}, set()),  # somebody asks, and nothing spins
        ({"cpu": 10, "faults": 130}, {"cpu"}),  # a load with a tenth of a core, on a host that is overloaded
        ({"cpu": 90, "faults": 4000}, {"cpu"}),  # a compiler
        ({"cpu": 2, "faults": 4000}, set()),
        ({"read": 1, "reads": 1}, set()),  # the seeds' byte a second
        ({"read": 8_000_000, "reads": 1_000_000}, set()),  # an event that is polled as fast as it goes
        ({"read": 400 * MIB, "reads": 400}, {"io"}),  # weights from the page cache
        ({"disk": 8 * MIB}, {"io"}),
        ({"disk": 100_000}, {"io"}),  # a slow network file system
        ({"disk": 40}, set()),
    ],
)
def test_what_counts_as_movement(each, moved):
    assert moved_in(60, **each) == moved


def test_case_57_a_disk_that_is_read_or_memory_that_fills_moves_although_the_log_does_not():
    assert "io" in moved_in(5, disk=600 * MIB)
    engine = Engine()
    engine.memory = {"GPU-1": 500}
    assert engine.look() == set()
    engine.memory = {"GPU-1": 900}
    assert engine.look() == {"gpu_memory"}
    assert engine.look() == set()


def test_memory_that_creeps_counts_in_all_and_a_driver_that_falls_silent_does_not():
    engine = Engine()
    moved = []
    for mib in range(500, 520):
        engine.memory = {"GPU-1": mib}
        moved.append(engine.look())
    assert moved.count({"gpu_memory"}) == 2
    engine.memory = None
    assert engine.look() == set()
    assert "gpu_memory" not in engine.vitals.said


def test_looks_that_follow_too_fast_are_one_look():
    engine = Engine()
    assert [engine.look(disk=MIB, span=0.25) for _ in range(4)] == [set(), set(), set(), {"io"}]


def test_what_the_signals_show_in_words():
    engine = Engine()
    engine.memory = {"GPU-1": 1024, "GPU-2": 2048}
    engine.look(cpu=800)
    assert engine.vitals.said == {
        "io": "reads nothing", "cpu": "8.0 CPUs spin, nothing is computed", "gpu_memory": "3.0 GiB on 2 GPUs",
    }  # fmt: skip
    engine.look(cpu=100, faults=9000, disk=50 * MIB)
    assert engine.vitals.said["io"] == "reads 50 MiB/s"
    assert engine.vitals.said["cpu"] == "1.0 CPUs at work"


@given(st.text(), st.text())
def test_no_text_in_the_kernels_place_breaks_anything(tmp_path_factory, stat, io):
    folder = tmp_path_factory.mktemp("proc") / "5"
    folder.mkdir()
    (folder / "stat").write_text(stat, errors="surrogatepass")
    (folder / "io").write_text(io, errors="surrogatepass")
    vitals.sample([5], proc=folder.parent)
