"""The engines' logs: real ones are read to the right phases, and the engine's own error is found."""

from __future__ import annotations

import pytest
import yaml
from ansible.module_utils.ironserve import logs
from hypothesis import given
from hypothesis import strategies as st

VLLM_CPU = [
    "reading arguments", "starting engine", "loading weights", "allocating KV cache", "starting HTTP server", "serving",
]  # fmt: skip
VLLM_GPU = [
    "reading arguments", "starting engine", "loading weights", "compiling", "allocating KV cache",
    "capturing CUDA graphs", "starting HTTP server", "serving",
]  # fmt: skip
SGLANG_CPU = ["reading arguments", "joining ranks", "loading weights", "allocating KV cache", "warming up", "serving"]
SGLANG_GPU = [
    "reading arguments", "joining ranks", "loading weights", "allocating KV cache", "capturing CUDA graphs",
    "warming up", "serving",
]  # fmt: skip
REAL = {
    "vllm-0.32.0-cpu.log": VLLM_CPU,
    "vllm-0.32.0-cpu-b.log": VLLM_CPU,
    "vllm-0.26.0-h200.log": VLLM_GPU,
    "vllm-0.26.0-h200-sigterm.log": VLLM_GPU,
    "sglang-0.5.23-cpu.log": SGLANG_CPU,
    "sglang-0.5.23-cpu-b.log": SGLANG_CPU,
    "sglang-0.5.15.post1-h200-b.log": SGLANG_GPU,
}


@pytest.fixture
def phases(root):
    def load(engine: str):
        return yaml.safe_load((root / "knowledge" / "phases" / f"{engine}.yml").read_text())["phases"]

    return load


@pytest.fixture
def real_log(root):
    """Text of a real log with its carriage returns."""

    def load(name: str) -> str:
        return (root / "tests" / "fixtures" / "engine_logs" / name).read_bytes().decode(errors="replace")

    return load


def follow(text: str, phases, chunk: int):
    """Read a log as it grows, ``chunk`` characters at a time; the phases in the order in which they were seen."""
    reading, partial, seen = logs.Reading(), "", []
    for start in range(0, len(text), chunk):
        lines, partial = logs.split(partial, text[start : start + chunk])
        for line in lines:
            logs.read(reading, [line], phases)
            if reading.phase and (not seen or seen[-1] != reading.phase):
                seen.append(reading.phase)
        logs.read(reading, [], phases, partial)
    return reading, seen


@pytest.mark.parametrize("name", REAL)
def test_phases_of_a_real_start(name, phases, real_log):
    _, seen = follow(real_log(name), phases(name.split("-")[0]), 997)
    assert seen == REAL[name]


def test_a_bar_counts_before_its_line_ends(phases):
    reading = logs.Reading()
    bar = "Capturing CUDA graphs (PIECEWISE):  47%|████▋     | 24/51 [00:00<00:01, 25.36it/s]"
    logs.read(reading, [], phases("vllm"), bar)
    assert (reading.phase, reading.progress) == ("capturing CUDA graphs", "24/51")
    assert reading.tail == []


def test_of_a_bar_the_tail_keeps_the_last_state():
    reading = logs.Reading()
    lines, rest = logs.split(
        "", "start\nLoading shards:  25% | 1/4\rLoading shards:  50% | 2/4\rLoading shards: 100% | 4/4\ndone\n"
    )
    logs.read(reading, lines, [])
    assert reading.tail == ["start", "Loading shards: 100% | 4/4", "done"]
    assert rest == ""


def test_a_second_start_in_the_same_log_begins_anew(phases):
    reading = logs.Reading()
    start = "(APIServer pid=1) INFO 11-29 18:54:58 [a.py:1] non-default args: {}"
    ready = "INFO:     Application startup complete."
    logs.read(reading, [start, ready], phases("vllm"))
    assert reading.phase == "serving"
    logs.read(reading, [start], phases("vllm"))
    assert reading.phase == "reading arguments"


@given(st.text(max_size=80), st.integers(1, 7))
def test_no_line_is_lost_or_read_twice_however_the_log_arrives(text, chunk):
    whole, rest = logs.split("", text)
    lines, partial = [], ""
    for start in range(0, len(text), chunk):
        new, partial = logs.split(partial, text[start : start + chunk])
        lines += new
    # A "\r\n" that is cut in two gives an empty piece, which is no line.
    assert [line for line in lines if line.strip()] == [line for line in whole if line.strip()]
    assert partial == rest


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["usage: vllm serve", "vllm serve: error: unrecognized arguments: --foo"],
         "vllm serve: error: unrecognized arguments: --foo"),
        (["launch_server.py: error: argument --tp-size: invalid int value: 'x'", "more"],
         "launch_server.py: error: argument --tp-size: invalid int value: 'x'"),
        (["(EngineCore pid=5) ERROR 11-29 18:55:35 [core.py:9] torch.OutOfMemoryError: CUDA out of memory.", "at exit"],
         "torch.OutOfMemoryError: CUDA out of memory."),
        (["ValueError: the cause", "RuntimeError: Engine core initialization failed. See root cause above."],
         "ValueError: the cause"),
        (["RuntimeError: Engine core initialization failed. See root cause above."],
         "RuntimeError: Engine core initialization failed. See root cause above."),
        (["[2026-11-29 18:34:45 TP0] ERROR something", "fine"], "ERROR something"),
        (["all is well", "INFO: nothing"], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_the_engines_own_error(lines, error):
    reading = logs.Reading()
    logs.read(reading, lines, [])
    assert reading.error == error


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("vllm-0.26.0-bad-model-path.log", "huggingface_hub.errors.HFValidationError: Repo id must be in the form"),
        ("vllm-0.26.0-h200-leftover-holds-memory.log", "ValueError: Free memory on device cuda:0"),
        ("vllm-0.26.0-h200-enginecore-killed.log", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered"),
    ],
)
def test_the_error_of_a_real_failure(name, error, phases, real_log):
    reading, _ = follow(real_log(name), phases("vllm"), 4096)
    assert reading.error.startswith(error)


def test_an_error_of_the_start_before_is_forgotten(phases):
    reading = logs.Reading()
    logs.read(reading, ["non-default args: 1", "Application startup complete", "ValueError: old"], phases("vllm"))
    logs.read(reading, ["non-default args: 2"], phases("vllm"))
    assert reading.error == ""
