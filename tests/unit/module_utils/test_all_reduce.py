"""The all-reduces between ranks: what their steps say, how long they may take, and ranks without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import all_reduce
from ansible.module_utils.ironserve.all_reduce import Watch, bus_bandwidth_gb_s, parse, result, size_text, standing
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = Path(all_reduce.__file__)
KIB, MIB = 1 << 10, 1 << 20

# Not PyTorch: as much of it as the script calls, for ranks that do not talk to each other.
TORCH = """
import math
__version__ = "0"
float32 = None
class Tensor(list):
    def __mod__(self, n): return Tensor(x % n for x in self)
    def __mul__(self, n): return Tensor(x * n for x in self)
    def __add__(self, n): return Tensor(x + n for x in self)
    def zero_(self): self[:] = [0.0] * len(self)
def device(*words): return words
def ones(n, device): return Tensor([1.0] * n)
def arange(n, device, dtype): return Tensor(float(i) for i in range(n))
def equal(a, b): return a == b
def nonzero(values): return [i for i, value in enumerate(values) if value]
"""
DISTRIBUTED = """
import os, sys, time
def init_process_group(backend, init_method, rank, world_size, timeout):
    global RANK, WORLD
    RANK, WORLD = rank, world_size
def all_reduce(values):
    how = os.environ.get("RANK_%d" % RANK, "")
    if how == "hangs":
        time.sleep(600)
    if how == "dies":
        raise RuntimeError("NCCL error of a test")
    values[:] = [value * WORLD - RANK * WORLD + WORLD * (WORLD - 1) / 2 if how != "lies" else 7.0 for value in values]
def destroy_process_group(): pass
"""


@pytest.fixture
def ranks(tmp_path):
    """Run the script as people do; how a rank behaves is in RANK_N."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(TORCH)
    (package / "distributed.py").write_text(DISTRIBUTED)

    def run(*words, **env):
        argv = [sys.executable, str(SCRIPT), "--world", "2", "--backend", "gloo", "--sizes", "64,128", *words]
        env = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", **env}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        return done, json.loads(done.stdout.splitlines()[-1])

    return run


def test_ranks_that_agree_pass_with_figures(ranks):
    done, answer = ranks()
    assert done.returncode == 0
    assert (answer["verdict"], answer["ranks"]) == ("passed", {"0": "done", "1": "done"})
    assert set(answer["latency_us"]) == {"64", "128"}


def test_a_rank_that_hangs_is_ended_after_the_limit_and_told(ranks):
    done, answer = ranks("--timeout", "0.5", RANK_1="hangs")
    assert (done.returncode, answer["verdict"]) == (1, "hung")
    assert answer["ranks"]["1"] == "in the first all-reduce, 4 bytes"


def test_a_rank_that_dies_fails_with_its_own_words(ranks):
    done, answer = ranks(RANK_0="dies")
    assert (done.returncode, answer["verdict"]) == (1, "failed")
    assert "RuntimeError: NCCL error of a test" in done.stderr
    assert answer["ranks"] == {"0": "in the first all-reduce, 4 bytes", "1": "done"}


def step(name, **more):
    return {"step": name, "pid": 7, **more}


def test_a_wrong_sum_is_worse_than_anything_else():
    wrong = step("wrong", bytes=32 * KIB, index=3, got=1.0, wanted=2.0)
    answer = result({0: [step("start"), wrong], 1: [step("start")]}, 2, [3, None], hung=True)
    assert answer["verdict"] == "wrong_result"
    assert answer["ranks"] == {"0": "has a wrong sum of 32 KiB", "1": "imports PyTorch"}


@pytest.mark.parametrize(
    ("steps", "statuses", "hung", "verdict"),
    [
        ({0: [step("done")], 1: [step("done")]}, [0, 0], False, "passed"),
        ({0: [step("done")], 1: [step("done")]}, [0, 1], False, "failed"),
        ({0: [step("done")], 1: [step("leave")]}, [0, 0], False, "failed"),
        ({0: [step("done")]}, [0, 0], False, "failed"),
        ({}, [1], False, "failed"),
        ({0: [step("done")], 1: [step("leave")]}, [0, None], True, "hung"),
    ],
)
def test_only_ranks_that_all_come_to_their_end_pass(steps, statuses, hung, verdict):
    assert result(steps, 2, statuses, hung)["verdict"] == verdict


def test_the_clock_of_the_all_reduce_begins_when_all_ranks_have_pytorch():
    watch = Watch(timeout_s=60, began=0, start_s=300)
    one, both = {0: [step("join")], 1: [step("start")]}, {0: [step("join")], 1: [step("join")]}
    assert not watch.is_over(one, 2, 299)
    assert not watch.is_over(both, 2, 299)
    assert not watch.is_over(both, 2, 358)
    assert watch.is_over(both, 2, 360)


def test_ranks_that_never_import_pytorch_are_over_at_last():
    watch = Watch(timeout_s=60, began=0, start_s=300)
    assert not watch.is_over({}, 2, 300)
    assert watch.is_over({0: [step("join")]}, 2, 301)


@pytest.mark.parametrize(
    ("size", "us", "world", "expected"),
    [
        (64 * MIB, 1000.0, 2, 67.109), (64 * MIB, 1000.0, 8, 117.441), (64 * MIB, 1000.0, 1, None),
    ],
)  # fmt: skip
def test_bus_bandwidth_is_counted_as_nccl_tests_does(size, us, world, expected):
    assert bus_bandwidth_gb_s(size, us, world) == expected


@pytest.mark.parametrize(
    ("size", "text"), [(8 * KIB, "8 KiB"), (64 * MIB, "64 MiB"), (100, "100 bytes"), (KIB + 1, "1025 bytes")]
)
def test_sizes_are_told_as_people_say_them(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ([], "has not started"),
        ([step("start"), step("join")], "joins the others"),
        ([step("sum", bytes=8 * KIB)], "in the all-reduce of 8 KiB"),
        ([step("measure", bytes=64 * MIB)], "in the all-reduce of 64 MiB, measuring"),
    ],
)
def test_a_rank_stands_at_its_last_step(said, text):
    assert standing(said) == text


@given(st.text())
def test_steps_of_a_rank_are_read_whatever_is_there(text):
    standing(parse(text))


def test_a_line_that_is_not_whole_yet_is_left_out():
    assert parse('{"step": "start"}\n{"step": "jo') == [{"step": "start"}]
