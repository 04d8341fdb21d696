"""One start of an engine over time: slow, hung, broken, as its log, its processes and its GPUs show it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.ironserve import gpus, host, start, vitals
from ansible.module_utils.ironserve.gpus import Gpu, GpuProcess
from ansible.module_utils.ironserve.judge import Verdict, judge_start
from ansible.module_utils.ironserve.start import Start, own_mib
from ansible.module_utils.ironserve.vitals import MIB, Sample, Usage

ROOT = Path(__file__).resolve().parents[3]
HEARTBEAT = "(EngineCore_DP0 pid=77) INFO 11-30 04:00:00 [shm_broadcast.py:501] No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging.\n"  # noqa: E501
ARGS = "(APIServer pid=1) INFO 11-30 03:59:00 [utils.py:233] non-default args: {'model_tag': '/m'}\n"
LOADING = "(EngineCore_DP0 pid=77) INFO 11-30 03:59:30 [gpu_model_runner.py:4118] Starting to load model /m...\n"


class World:
    """A start on a clock: what is written to its log and used by its processes is the test's."""

    def __init__(self, folder: Path, **release) -> None:
        known = yaml.safe_load((ROOT / "knowledge" / "phases" / "vllm.yml").read_text())
        self.release = {
            "service": "main", "engine": "vllm", "flags": {}, "log": known,
            "startup_timeout_s": 7200, "completion_timeout_s": 120, "stall_timeout_s": 900, **release,
        }  # fmt: skip
        self.log, self.usage, self.memory = folder / "main.log", Usage(1, 0, 0), None
        self.log.write_text("")
        self.start = Start(self.release, os.getpid(), 0, 0.0)
        self.start._gpu_memory = lambda pids: self.memory
        self.start.group = folder  # without any process
        self.at = 0.0

    def use(self, cpu: int = 0, faults: int = 0, disk: int = 0) -> None:
        old = self.usage
        self.usage = old._replace(
            cpu_ticks=old.cpu_ticks + cpu, faults=old.faults + faults, disk_bytes=old.disk_bytes + disk
        )

    def write(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)

    def run(self, seconds: int, each: Callable[[int], None] = lambda second: None, every: int = 1) -> Verdict:
        """Look ``every`` so many seconds; the verdict when it is bad, else the last one."""
        for second in range(every, seconds + 1, every):
            self.at += every
            each(second)
            verdict = judge_start(self.start.look(self.at))
            if verdict.verdict != "waiting":
                return verdict
        return verdict


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "LOGS", tmp_path)

    def make(**release) -> World:
        here = World(tmp_path, **release)
        here.write(ARGS + LOADING)
        monkeypatch.setattr(vitals, "sample", lambda pids, memory: Sample({7: here.usage}, memory))
        return here

    return make


def test_case_31_a_load_of_fifty_minutes_with_steady_progress_is_waited_for(world):
    here = world(stall_timeout_s=60)

    def bar(second: int) -> None:
        if second % 15 == 0:
            k = min(161, second * 161 // 3000)
            here.write(f"Loading safetensors checkpoint shards:  {k * 100 // 161}% Completed | {k}/161 [00:01<00:09]\r")
            here.write(f"(Worker_TP3 pid=9) Loading safetensors checkpoint shards:  1% Completed | {k // 2}/161\r")

    assert here.run(3000, bar).verdict == "waiting"
    assert (here.start.reading.phase, here.start.reading.progress) == ("loading weights", "80/161")


def test_case_31_the_same_count_again_and_again_is_a_hang(world):
    here = world(stall_timeout_s=60)
    bar = "Loading safetensors checkpoint shards:  11% Completed | 18/161 [00:01<00:09]\r"
    verdict = here.run(600, lambda second: here.write(bar))
    assert verdict.verdict == "stalled"
    assert here.at == pytest.approx(62, abs=2)
    assert 'log repeats "Loading safetensors checkpoint shards:  11%' in verdict.reason


def test_case_57_a_silent_head_log_while_the_workers_read_is_a_load(world):
    here = world(stall_timeout_s=300)

    def reading(second: int) -> None:
        here.use(disk=600 * MIB)
        if second % 60 == 0:
            here.write(HEARTBEAT)

    assert here.run(600, reading).verdict == "waiting"
    assert here.start.progress.signals["io"].said == "reads 600 MiB/s"


@pytest.mark.parametrize("moves", ["io", "cpu", "gpu_memory"])
def test_case_57_one_signal_that_moves_is_enough(world, moves):
    here = world(stall_timeout_s=60)
    here.memory = {"GPU-1": 1000}

    def each(second: int) -> None:
        if moves == "io":
            here.use(disk=2 * MIB)
        elif moves == "cpu":
            here.use(cpu=100, faults=3000)
        elif second % 30 == 0:
            here.memory = {"GPU-1": 1000 + second * 10}

    assert here.run(600, each).verdict == "waiting"


HANGS = {
    "quiet": lambda here, second: None,
    "heartbeats": lambda here, second: here.write(HEARTBEAT) if second % 60 == 0 else None,
    "eight ranks at 100 %": lambda here, second: here.use(cpu=800),
    "a byte a second into a pipe": lambda here, second: here.use(cpu=1, faults=1),
    "somebody who asks": lambda here, second: here.write('INFO: 127.0.0.1:4312 - "GET /health HTTP/1.1" 503\n'),
}


@pytest.mark.parametrize("how", HANGS)
def test_a_hang_is_told_at_its_limit_and_in_its_phase_however_it_looks(world, how):
    here = world(stall_timeout_s={"default": 900, "capturing CUDA graphs": 120})
    here.memory = {"GPU-1": 76000}
    here.write("Capturing CUDA graphs (decode, FULL):   6%|6         | 3/51 [00:01<00:09,  4.1it/s]\r")
    verdict = here.run(2000, lambda second: HANGS[how](here, second))
    assert verdict.verdict == "stalled"
    last = 60 if how == "heartbeats" else 1  # the first heartbeat is a line that was never there before
    assert last + 119 <= here.at <= last + 122
    seen = here.start.look(here.at)
    assert (seen.phase, seen.progress) == ("capturing CUDA graphs", "3/51")
    assert "stall_timeout_s of the profile is 2m00s" in verdict.reason
    assert "74.2 GiB on 1 GPUs for" in verdict.reason


def test_a_load_that_goes_on_for_ever_is_out_of_time(world):
    here = world(startup_timeout_s=1000)
    assert here.run(3000, lambda second: here.use(disk=2 * MIB), every=5).verdict == "timeout"
    assert here.at == 1120


def test_a_fatal_line_ends_a_start_whose_process_lives_on(world):
    here = world()
    here.run(10)
    here.write("(EngineCore pid=77) ERROR 11-30 04:00:01 [core.py:1165] EngineCore encountered a fatal error.\n")
    verdict = here.run(20)
    assert verdict == Verdict("failed", "its log says that the engine process failed")
    assert here.at == pytest.approx(14, abs=1)


def test_what_was_in_the_log_before_this_start_is_of_another_one(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "LOGS", tmp_path)
    here = World(tmp_path)
    here.write("ERROR EngineCore encountered a fatal error.\nApplication startup complete\n")
    here.start = Start(here.release, os.getpid(), here.log.stat().st_size, 0.0)
    here.write(ARGS)
    seen = here.start.look(1.0)
    assert (seen.phase, seen.fatal) == ("reading arguments", "")


def test_ranks_are_real_processes_that_named_themselves(tmp_path, monkeypatch):
    """Two children that carry a rank's title as real ones do: in command line and name."""
    monkeypatch.setattr(host, "LOGS", tmp_path)
    (tmp_path / "main.log").write_text("")
    titled = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'VLLM::Worker_TP'); print(flush=True); time.sleep(60)"
    children = [
        subprocess.Popen(
            [f"VLLM::Worker_TP{number}", "-c", titled], executable="/usr/bin/python3", stdout=subprocess.PIPE
        )
        for number in range(2)
    ]
    try:
        for child in children:
            child.stdout.readline()
        release = {
            "service": "main", "engine": "vllm", "flags": {"tensor-parallel-size": "2"}, "startup_timeout_s": 60,
            "completion_timeout_s": 5, "stall_timeout_s": 60,
        }  # fmt: skip
        here = Start(release, os.getpid(), 0, 0.0)
        here.group = None  # the tree of this process
        assert (here.look(1.0).missing, here.ranks.count) == (0, 2)
        children[1].kill()
        children[1].wait()
        seen = here.look(4.0)
        assert (seen.missing, seen.lost_s) == (1, 0.0)
        assert judge_start(here.look(6.0)) == Verdict(
            "failed",
            f"part of the engine is gone, which never comes back: VLLM::Worker_TP1 (pid {children[1].pid}) died; "
            "1 of 2 ranks are there",
        )
    finally:
        for child in children:
            child.kill()
            child.wait()
            child.stdout.close()


@pytest.mark.parametrize(
    ("users", "mib"),
    [
        ((GpuProcess(7, "compute", 700), GpuProcess(8, "compute", 5)), 700),
        ((GpuProcess(8, "compute", 500),), 1000),
        ((), 1000),
        (None, 1000),
    ],
)
def test_memory_is_the_engines_own_where_the_driver_says_whose_it_is(users, mib):
    assert own_mib(users, {7}, 1000) == mib


def test_only_the_services_gpus_count(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "LOGS", tmp_path)
    (tmp_path / "main.log").write_text("")
    release = {
        "service": "main",
        "engine": "sglang",
        "gpus": ["GPU-b"],
        "startup_timeout_s": 1,
        "completion_timeout_s": 1,
    }

    class Watch:
        pid = None
        reading = gpus.Reading("nvml", (Gpu(0, "GPU-a", memory_used_mib=9), Gpu(1, "GPU-b", memory_used_mib=5)))

        def latest(self, timeout_s):
            return self.reading

    here = start.Start(release, os.getpid(), 0, 0.0, Watch())
    assert here._gpu_memory(set()) == {"GPU-b": 5}
    Watch.reading = None  # the driver hangs: what it said last still stands, and does not move
    assert here._gpu_memory(set()) == {"GPU-b": 5}
    Watch.reading = gpus.Reading("", failure="not_loaded")
    assert here._gpu_memory(set()) is None
