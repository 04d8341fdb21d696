"""The engines' logs: real ones are read to the right phases, and the engine's own error is found."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.ironserve import logs
from hypothesis import given
from hypothesis import strategies as st

VLLM_CPU = [
    "reading arguments", "starting engine", "joining ranks", "loading weights", "allocating KV cache",
    "starting HTTP server", "serving",
]  # fmt: skip
VLLM_GPU = [
    "reading arguments", "starting engine", "joining ranks", "loading weights", "compiling", "allocating KV cache",
    "capturing CUDA graphs", "warming up", "starting HTTP server", "serving",
]  # fmt: skip
SGLANG_CPU = [
    "reading arguments", "joining ranks", "loading weights", "allocating KV cache", "starting HTTP server",
    "warming up", "serving",
]  # fmt: skip
SGLANG_GPU = [*SGLANG_CPU[:4], "capturing CUDA graphs", *SGLANG_CPU[4:]]
REAL = {  # file: phases in order, and the last counters of those that count
    "vllm-0.32.0-cpu.log": (VLLM_CPU, {}),
    "vllm-0.32.0-cpu-b.log": (VLLM_CPU, {}),
    "vllm-0.26.0-h200.log": (VLLM_GPU, {"capturing CUDA graphs": "51/51"}),
    "vllm-0.26.0-h200-sigterm.log": (VLLM_GPU, {"capturing CUDA graphs": "51/51"}),
    "vllm-0.26.0-h200-enginecore-killed.log": (VLLM_GPU, {"capturing CUDA graphs": "51/51"}),
    "sglang-0.5.23-cpu.log": (SGLANG_CPU, {}),
    "sglang-0.5.23-cpu-b.log": (SGLANG_CPU, {}),
    "sglang-0.5.15.post1-h200-b.log": (SGLANG_GPU, {"capturing CUDA graphs": "36/36"}),
    "sglang-0.5.15.post1-h200-cold.log": (SGLANG_GPU, {"capturing CUDA graphs": "36/36"}),
}
FAILED = {  # file: phases until the end
    "vllm-0.26.0-bad-model-path.log": VLLM_GPU[:1],
    "vllm-0.26.0-h200-leftover-holds-memory.log": VLLM_GPU[:3],
}
ENDS_WELL = ["vllm-0.26.0-h200.log", "vllm-0.26.0-h200-sigterm.log", "vllm-0.32.0-cpu-b.log", "sglang-0.5.23-cpu.log",
             "sglang-0.5.15.post1-h200-b.log", "sglang-0.5.15.post1-h200-cold.log"]  # fmt: skip
"""Logs whose end is the operator's doing."""

THREADS = {  # file: phases that its lines open, the last counter
    "vllm-rank.log": (["allocating KV cache"], ""),
    "vllm-tp.log": (["compiling"], ""),
    "vllm-0.11-worker-tp.log": (["allocating KV cache", "capturing CUDA graphs"], "67/67"),
    "vllm-0.11-ep.log": (["loading weights", "capturing CUDA graphs", "warming up"], ""),
    "vllm-0.2x-tp.log": (["loading weights", "compiling"], ""),
    "vllm-0.2x-draft.log": (["compiling"], ""),
    "vllm-ray.log": (["allocating KV cache"], ""),
    "sglang-tp.log": (["loading weights"], "0/30"),
    "sglang-piecewise.log": (["capturing CUDA graphs"], "0/5"),
    "sglang-draft.log": ([], ""),
    "sglang-nextn.log": ([], ""),
}

#: Starts put together from the messages in the source of versions of which there is no whole real log.
BY_SOURCE = {
    "sglang 0.5.3, draft model": (
        "[2025-10-16 09:05:50] server_args=ServerArgs(model_path='/m', watchdog_timeout=300)\n"
        "[2025-10-16 09:06:08 TP1] Init torch distributed begin.\n"
        "[2025-10-16 09:06:10 TP0] Load weight begin. avail mem=137.34 GB\n"
        "\rLoading safetensors checkpoint shards:   0% Completed | 0/30 [00:00<?, ?it/s]\n"
        "\rLoading safetensors checkpoint shards: 100% Completed | 30/30 [00:40<00:00,  1.33s/it]\n"
        "[2025-10-16 09:07:10 TP0] KV Cache is allocated. #tokens: 1024, KV size: 1.00 GB\n"
        "[2025-10-16 09:07:11 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=9.00 GB\n"
        "\r  0%|          | 0/4 [00:00<?, ?it/s]"
        "\rCapturing batches (bs=1 avail_mem=8.99 GB): 100%|██████████| 4/4 [00:01<00:00,  3.0it/s]\n"
        "[2025-10-16 09:07:14 TP0] Load weight begin. avail mem=8.00 GB\n"
        "\rLoading safetensors checkpoint shards: 100% Completed | 1/1 [00:01<00:00,  1.33s/it]\n"
        "[2025-10-16 09:07:16 TP0] KV Cache is allocated. #tokens: 1024, KV size: 0.10 GB\n"
        "[2025-10-16 09:07:16 TP0] Capture draft cuda graph begin. This can take up to several minutes.\n"
        "\rCapturing batches (bs=1 avail_mem=7.99 GB):  75%|███████▌  | 3/4 [00:01<00:00,  3.0it/s]\n"
        "[2025-10-16 09:07:19] INFO:     Started server process [1]\n"
        "[2025-10-16 09:07:19] INFO:     Application startup complete.\n"
        "[2025-10-16 09:07:23] The server is fired up and ready to roll!\n",
        SGLANG_GPU, {"loading weights": "30/30", "capturing CUDA graphs": "3/4"},
    ),
    "sglang 0.5.9, piecewise": (
        "[2026-03-17 07:15:00] server_args=ServerArgs(model_path='/m', soft_watchdog_timeout=300)\n"
        "[2026-03-17 07:15:20 DP0 TP0] Init torch distributed begin.\n"
        "[2026-03-17 07:15:30 DP0 TP0] Load weight begin. avail mem=90.00 GB\n"
        "\rMulti-thread loading shards:  50% Completed | 2/4 [00:06<00:07,  3.54s/it]"
        "\rMulti-thread loading shards: 100% Completed | 4/4 [00:12<00:00,  3.54s/it]\n"
        "[2026-03-17 07:16:10 DP0 TP0] KV Cache is allocated. #tokens: 9, K size: 1.00 GB, V size: 1.00 GB\n"
        "[2026-03-17 07:16:38 DP0 TP0] Capture piecewise CUDA graph begin. avail mem=10.81 GB\n"
        "\rCompiling num tokens (num_tokens=20):  20%|██        | 1/5 [00:05<?, ?it/s]\n"
        "[2026-03-17 07:17:00] INFO:     Waiting for application startup.\n"
        "[2026-03-17 07:17:00] INFO:     Application startup complete.\n"
        "[2026-03-17 07:17:03] The server is fired up and ready to roll!\n",
        SGLANG_GPU, {"loading weights": "4/4", "capturing CUDA graphs": "1/5"},
    ),
    "sglang 0.5.23, KV cache sized after the graphs": (
        "[2026-11-29 18:34:23] server_args={'model_path': '/m', 'watchdog_timeout': 300}\n"
        "[2026-11-29 18:34:45 TP0] Init parallel begin.\n"
        "[2026-11-29 18:34:48 TP0] Load weight begin. avail mem=21.19 GB\n"
        "[2026-11-29 18:34:49 TP0] Capture target prefill CUDA graph begin. backend=breakable\n"
        "\rCapturing prefill shape (num_tokens=512 avail_mem=9.00 GB):  50%|█████     | 1/2 [00:00<00:00, 4.0it/s]\n"
        "[2026-11-29 18:34:52 TP0] Capture target decode CUDA graph begin. backend=full\n"
        "\rCapturing batches (bs=8 avail_mem=9.00 GB): 100%|██████████| 7/7 [00:00<00:00, 4.0it/s]\n"
        "[2026-11-29 18:34:54 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 8192\n"
        "[2026-11-29 18:34:54] INFO:     Started server process [3811]\n"
        "[2026-11-29 18:34:55] INFO:     Application startup complete.\n"
        "[2026-11-29 18:34:57] The server is fired up and ready to roll!\n",
        [phase for phase in SGLANG_GPU if phase != "allocating KV cache"], {"capturing CUDA graphs": "7/7"},
    ),
    "vllm 0.9": (
        "INFO 07-28 23:02:00 [cli_args.py:325] non-default args: {'model': '/m'}\n"
        "INFO 07-28 23:02:10 [core.py:69] Initializing a V1 LLM engine (v0.9.2) with config: model='/m'\n"
        "(VllmWorker rank=0 pid=21) INFO 07-28 23:02:20 [parallel_state.py:1076] rank 0 in world size 2 is assigned as"
        " DP rank 0, PP rank 0, TP rank 0, EP rank 0\n"
        "(VllmWorker rank=0 pid=21) INFO 07-28 23:02:25 [gpu_model_runner.py:1770] Starting to load model /m...\n"
        "\rLoading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  2.76it/s]\n"
        "(VllmWorker rank=0 pid=21) INFO 07-28 23:02:26 [backends.py:519] Dynamo bytecode transform time: 5.04 s\n"
        "INFO 07-28 23:02:27 [kv_cache_utils.py:833] GPU KV cache size: 176,240 tokens\n"
        "\rCapturing CUDA graph shapes:  69%|██████▊   | 46/67 [00:12<00:05, 4.0it/s]"
        "\rCapturing CUDA graph shapes: 100%|██████████| 67/67 [00:17<00:00, 4.0it/s]\n"
        "(VllmWorker rank=0 pid=21) INFO 07-28 23:02:45 [gpu_model_runner.py:2326] Graph capturing finished in 7 s\n"
        "INFO 07-28 23:02:46 [api_server.py:1457] Starting vLLM API server 0 on http://0.0.0.0:8000\n"
        "INFO:     Application startup complete.\n",
        VLLM_GPU, {"loading weights": "1/1", "capturing CUDA graphs": "67/67"},
    ),
    "vllm 0.11 to 0.33, tensor parallel, draft model": (
        "(APIServer pid=1) INFO 05-06 20:58:00 [utils.py:253] non-default args: {'model': '/m'}\n"
        "(EngineCore_DP0 pid=2) INFO 05-06 20:59:00 [core.py:93] Initializing a V1 LLM engine (v0.11.0) with config:\n"
        "(Worker_TP1 pid=4) INFO 05-06 20:59:10 [parallel_state.py:1208] rank 1 in world size 2 is assigned as DP\n"
        "(Worker_TP0 pid=3) INFO 05-06 20:59:20 [gpu_model_runner.py:2602] Starting to load model /m...\n"
        "(Worker_TP0 pid=3) \rLoading safetensors checkpoint shards:  89% Completed | 8/9 [00:28<00:04,  4.14s/it]\n"
        "(Worker_TP0 pid=3) \rLoading safetensors checkpoint shards: 100% Completed | 9/9 [00:29<00:00,  3.32s/it]\n"
        "(Worker_TP0 pid=3) INFO 05-06 20:59:57 [default_loader.py:267] Loading weights took 24.84 seconds\n"
        "(Worker_TP0 pid=3) INFO 05-06 20:59:58 [gpu_model_runner.py:2630] Loading drafter model...\n"
        "(Worker_TP0 pid=3) \rLoading safetensors checkpoint shards: 100% Completed | 1/1 [00:01<00:00,  1.00s/it]\n"
        "(Worker_TP0 pid=3) INFO 05-06 21:00:16 [monitor.py:40] Starting torch.compile\n"
        "(Worker_TP0 pid=3) INFO 05-06 21:00:26 [gpu_worker.py:298] Available KV cache memory: 11.17 GiB\n"
        "\rCapturing CUDA graphs (decode, FULL):  97%|█████████▋| 65/67 [00:15<00:00,  4.58it/s]\n"
        "(Worker_TP0 pid=3) INFO 05-06 21:00:46 [gpu_model_runner.py:3480] Graph capturing finished in 7 secs\n"
        "(APIServer pid=1) INFO 05-06 21:00:50 [api_server.py:1912] Starting vLLM server on http://0.0.0.0:8000\n"
        "(APIServer pid=1) INFO:     Application startup complete.\n",
        VLLM_GPU, {"loading weights": "1/1", "capturing CUDA graphs": "65/67"},
    ),
}  # fmt: skip


@cache
def knowledge_of(engine: str):
    return yaml.safe_load((Path(__file__).parents[3] / "knowledge" / "phases" / f"{engine}.yml").read_text())


@pytest.fixture
def knowledge():
    return knowledge_of


@pytest.fixture
def phases():
    return lambda engine: knowledge_of(engine)["phases"]


@pytest.fixture
def real_log(root):
    """Text of a real log with its carriage returns."""

    def load(name: str) -> str:
        return (root / "tests" / "fixtures" / "engine_logs" / name).read_bytes().decode(errors="replace")

    return load


def follow(text: str, phases, chunk: int, fatal=()):
    """Read a log as it grows, ``chunk`` characters at a time; the phases in the order in which they were seen."""
    reading, partial, seen = logs.Reading(), "", []
    for start in range(0, len(text), chunk):
        lines, partial = logs.split(partial, text[start : start + chunk])
        for line in lines:
            logs.read(reading, [line], phases, fatal=fatal)
            if reading.phase and (not seen or seen[-1] != reading.phase):
                seen.append(reading.phase)
        logs.read(reading, [], phases, partial)
    return reading, seen


def counters(text: str, phases) -> dict[str, str]:
    """The last counter of each phase."""
    reading, found = logs.Reading(), {}
    for line in logs.split("", text)[0]:
        logs.read(reading, [line], phases)
        if reading.progress:
            found[reading.phase] = reading.progress
    return found


def engine_of(name: str) -> str:
    return name.split("-", maxsplit=1)[0].split(maxsplit=1)[0]


@pytest.mark.parametrize("name", REAL)
def test_phases_of_a_real_start(name, phases, real_log):
    order, counts = REAL[name]
    text = real_log(name)
    assert follow(text, phases(engine_of(name)), 997)[1] == order
    assert counters(text, phases(engine_of(name))) == counts


@pytest.mark.parametrize("name", FAILED)
def test_phases_of_a_real_start_that_fails(name, phases, real_log):
    assert follow(real_log(name), phases("vllm"), 997)[1] == FAILED[name]


@pytest.mark.parametrize("name", BY_SOURCE)
def test_phases_of_a_start_by_the_source(name, phases):
    text, order, counts = BY_SOURCE[name]
    assert follow(text, phases(engine_of(name)), 97)[1] == order
    assert counters(text, phases(engine_of(name))) == counts


@pytest.mark.parametrize("name", THREADS)
def test_lines_of_other_versions(name, phases, real_log):
    order, progress = THREADS[name]
    reading, seen = follow(real_log(f"threads/{name}"), phases(engine_of(name)), 997)
    assert (seen, reading.progress) == (order, progress)


def test_both_engines_call_their_phases_by_the_same_names(phases):
    assert {phase["name"] for phase in phases("sglang")} < {phase["name"] for phase in phases("vllm")}


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


def healthy(name: str, text: str) -> str:
    """The part of a real log in which the engine is well: all of it, or up to its being ready."""
    ready = "Application startup complete" if name.startswith("vllm") else "ready to roll!"
    return text if name in ENDS_WELL else text[: text.index(ready)]


@pytest.mark.parametrize("name", [*REAL, *(f"threads/{name}" for name in THREADS)])
def test_no_line_of_a_healthy_log_is_fatal(name, knowledge, real_log):
    text = real_log(name)
    text = text if name.startswith("threads/") else healthy(name, text)
    for engine in ("vllm", "sglang"):
        assert [line for line in logs.split("", text)[0] if logs.why_fatal(line, knowledge(engine)["fatal"])] == []


@pytest.mark.parametrize("name", BY_SOURCE)
def test_no_line_of_a_start_by_the_source_is_fatal(name, knowledge):
    reading, _ = follow(BY_SOURCE[name][0], (), 97, knowledge(engine_of(name))["fatal"])
    assert reading.fatal == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("vllm-0.32.0-cpu.log", "the engine process died"),
        ("vllm-0.26.0-h200-enginecore-killed.log", "the engine process died"),
        ("vllm-0.26.0-h200-leftover-holds-memory.log", "the engine process failed to start"),
        ("threads/vllm-failed.log", "the engine process failed to start"),
        ("threads/vllm-died.log", "the engine process died"),
        ("sglang-0.5.23-cpu-b.log", "a process of the engine died"),
        ("threads/sglang-watchdog.log", "the watchdog found that a batch hangs"),
        ("threads/sglang-exception.log", "a process of the engine failed"),
    ],
)
def test_a_log_says_why_its_start_never_serves(name, why, knowledge, real_log):
    known = knowledge(engine_of(name.split("/")[-1]))
    assert follow(real_log(name), known["phases"], 997, known["fatal"])[0].fatal == why


@pytest.mark.parametrize(
    ("engine", "line", "why"),
    [
        ("vllm", "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
         "the engine process failed to start"),
        ("vllm", "Exception: WorkerProc initialization failed due to an exception in a background process.",
         "a worker failed to start"),
        ("vllm", "(EngineCore pid=1) ERROR 06-03 12:30:47 [m.py:1] Worker proc VllmWorker-3 died unexpectedly (exit"
         " code: -9), shutting down executor.", "a worker died"),
        ("vllm", "(EngineCore pid=1) ERROR 06-03 12:30:47 [core.py:1] EngineCore encountered a fatal error.",
         "the engine process failed"),
        ("sglang", "[2026-11-29 18:54:32] Received sigquit from a child process. It usually means the child failed.",
         "a process of the engine failed"),
        ("sglang", "[2026-11-29 18:54:32] SIGQUIT received. signum=None, frame=None. It usually means one",
         "a process of the engine failed"),
        ("sglang", "[2026-11-29 18:54:32] Initialization failed. warmup error: Traceback", "the warm-up failed"),
        ("sglang", "[2026-11-29 18:54:32 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
         "the watchdog found that a batch hangs"),
        ("sglang", "[2026-11-29 18:54:32 TP0] Scheduler watchdog timeout (self.watchdog_timeout=60, self.soft=True)",
         ""),
        ("sglang", "[2026-11-29 18:34:23] server_args=ServerArgs(watchdog_timeout=300, soft_watchdog_timeout=None)",
         ""),
    ],
)  # fmt: skip
def test_lines_after_which_an_engine_never_serves(engine, line, why, knowledge):
    assert logs.why_fatal(line, knowledge(engine)["fatal"]) == why


def test_a_new_start_forgets_why_the_one_before_never_served(knowledge):
    known, reading = knowledge("vllm"), logs.Reading()
    logs.read(reading, ["non-default args: 1", "EngineDeadError"], known["phases"], fatal=known["fatal"])
    assert reading.fatal == "the engine process died"
    logs.read(reading, ["non-default args: 1"], known["phases"], fatal=known["fatal"])
    assert reading.fatal == ""


def test_an_error_of_the_start_before_is_forgotten(phases):
    reading = logs.Reading()
    logs.read(reading, ["non-default args: 1", "Application startup complete", "ValueError: old"], phases("vllm"))
    logs.read(reading, ["non-default args: 2"], phases("vllm"))
    assert reading.error == ""


def moved(movement, text: str, phases=()) -> list[bool]:
    """Whether each of the lines of a text was a movement."""
    return [movement.feed([line], phases) for line in logs.split("", text)[0]]


def shards(k: int, total: int, ahead: str = "\r") -> str:
    seconds = f"[{k * 15 // 60:02}:{k * 15 % 60:02}<20:00, {14 + k % 3}.04s/it]"
    return f"{ahead}Loading safetensors checkpoint shards: {100 * k // total:3}% Completed | {k}/{total} {seconds}"


@pytest.mark.parametrize("worker", ["", "(Worker_TP{} pid=170{}) ", "(VllmWorker rank={} pid=170{}) "])
def test_case_31_every_higher_count_of_a_long_load_is_a_movement(worker, phases):
    """50 minutes, a shard every 15 s: bars of four workers between carriage returns, the last one behind by a shard."""
    movement, reading, partial = logs.Movement(), logs.Reading(), ""
    movement.feed(["(Worker_TP0 pid=1700) INFO 01-10 10:00:00 [a.py:1] Starting to load model /m..."], phases("vllm"))
    for k in range(1, 162):
        bars = "".join(worker.format(rank, rank) + shards(max(0, k - rank // 3), 161) for rank in range(4))
        lines, partial = logs.split(partial, bars)
        logs.read(reading, lines, phases("vllm"), partial)
        assert movement.feed(lines, phases("vllm"), partial), k
        again = bars + bars  # tqdm writes its bar again while nothing happens
        lines, partial = logs.split(partial, again)
        assert not movement.feed(lines, phases("vllm"), partial), k
    logs.read(reading, [shards(161, 161)], phases("vllm"))
    assert (reading.phase, reading.progress) == ("loading weights", "161/161")


def test_a_worker_that_is_behind_moves_the_log_by_its_own_count():
    """vLLM writes the prefix of a worker, then the carriage return of its bar."""
    movement = logs.Movement()
    lead, behind = "(Worker_DP0 pid=1) ", "(Worker_DP1 pid=2) "
    moved(movement, lead + shards(161, 161) + "\n" + behind + shards(100, 161) + "\n")
    assert moved(movement, behind + shards(101, 161) + "\n") == [False, True]
    assert moved(movement, lead + shards(161, 161) + "\n" + behind + shards(101, 161) + "\n") == [False] * 4


def test_case_57_a_heartbeat_is_no_movement():
    movement = logs.Movement()
    text = (
        "(EngineCore pid=110) INFO 05-15 16:{:02}:26 [shm_broadcast.py:681] No available shared memory broadcast block "
    )
    text += "found in 60 seconds. This typically happens when some processes are hanging\n"
    assert [moved(movement, text.format(minute)) for minute in range(10)] == [[True]] + [[False]] * 9


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-29 18:34:{0}] still waiting after {0}.5 seconds (0x7f{0}a0, deadbeef00{0})",
        "DEBUG 04-18 18:08:{0} [core_client.py:421] Waiting for 1 core engine proc(s) to start: {{0}}",
        "(Worker_TP0 pid={0}) INFO 04-18 18:08:{0} [a.py:{0}] spinning",
        "Capturing batches (bs=8 avail_mem={0}.1 GB):  25%|██▌       | 1/4 [00:{0}<00:{0}, {0}.0s/it]",
    ],
)
def test_the_same_line_again_is_no_movement_whatever_its_numbers(line):
    movement = logs.Movement()
    assert [movement.feed([line.format(number)], ()) for number in (10, 11, 59)] == [True, False, False]


@pytest.mark.parametrize(
    "line",
    [
        '[2026-11-29 18:34:50] INFO:     127.0.0.1:48432 - "GET /health HTTP/1.1" 200 OK',
        '[2026-11-29 18:34:50] INFO:     127.0.0.1:48432 - "GET /health HTTP/1.1" 503 Service Unavailable',
        '(APIServer pid=479) INFO:     127.0.0.1:44316 - "GET /health HTTP/1.1" 200 OK',
        'INFO:     127.0.0.1:52808 - "POST /v1/completions HTTP/1.1" 200 OK',
    ],
)
def test_a_line_about_a_request_is_no_movement(line):
    assert not logs.Movement().feed([line], ())


def test_ranks_say_the_same_each_for_itself():
    movement = logs.Movement()
    line = "[2025-10-16 09:06:10 TP{}] Load weight begin. avail mem=137.29 GB\n"
    assert moved(movement, line.format(3) + line.format(5) + line.format(3)) == [True, True, False]


def test_a_log_line_right_behind_a_bar_counts_for_itself():
    movement = logs.Movement()
    bar = "Compiling num tokens (num_tokens=20):   0%|          | 0/5 [00:00<?, ?it/s]"
    movement.feed([bar], ())
    assert movement.feed([bar + "[2026-03-17 07:16:46 TP0] Initializing SGLangBackend"], ())
    assert not movement.feed([bar + "[2026-03-17 07:16:47 TP0] Initializing SGLangBackend"], ())


def test_a_bar_moves_the_log_before_its_line_ends(phases):
    movement = logs.Movement()
    assert movement.feed([], phases("vllm"), shards(3, 161))
    assert not movement.feed([], phases("vllm"), shards(3, 161))
    assert movement.feed([], phases("vllm"), shards(4, 161))
    assert not movement.feed([shards(4, 161)], phases("vllm"))


def test_another_total_is_another_counter():
    movement = logs.Movement()
    assert moved(movement, shards(161, 161) + shards(1, 4) + shards(4, 4) + shards(2, 4) + "\n") == [
        True,
        True,
        True,
        False,
    ]


def test_a_later_phase_is_a_movement_and_one_that_is_over_none(phases):
    movement = logs.Movement()
    assert movement.feed(["KV Cache is allocated. #tokens: 1"], phases("sglang"))
    assert movement.phase == "allocating KV cache"
    movement.feed(["[TP0] Load weight begin."], phases("sglang"))
    assert movement.phase == "allocating KV cache"


def test_a_new_start_forgets_what_the_log_said_before(phases):
    movement = logs.Movement()
    start = ["server_args={}", "Load weight begin.", shards(161, 161)]
    assert [movement.feed([line], phases("sglang")) for line in start] == [True] * 3
    assert [movement.feed([line], phases("sglang")) for line in start] == [True] * 3
    assert movement.starts == 1


def test_movement_remembers_a_limited_number_of_shapes():
    movement = logs.Movement()
    words = [
        "".join(chr(97 + number // 26**place % 26) for place in range(4)) for number in range(logs.SHAPE_LIMIT + 50)
    ]
    movement.feed(words, ())
    assert len(movement.shapes) == logs.SHAPE_LIMIT
    assert not movement.feed(["a new line"], ())
    assert [movement.feed([shards(k, 9)], ()) for k in (1, 2)] == [True, True]
    movement.feed([f"{word} 1/2 " for word in words], ())
    assert len(movement.counters) == logs.SHAPE_LIMIT
    assert movement.feed([shards(3, 9)], ())
    assert len(json.dumps(movement.plain())) < 200_000


def test_movement_travels_as_json(phases, real_log):
    movement = logs.Movement()
    lines, _ = logs.split("", real_log("vllm-0.26.0-h200.log"))
    movement.feed(lines, phases("vllm"))
    again = logs.Movement(**json.loads(json.dumps(movement.plain())))
    assert again == movement
    assert not again.feed(lines[50:], phases("vllm"))


PIECES = st.sampled_from([
    "\n", "\r", "\r\n", " ", "(Worker_TP0 pid=1) ", "(Worker_TP1 pid=2) INFO 01-02 10:11:12 [a.py:3] ",
    "\nnon-default args: ", "\nserver_args=", "[2026-11-29 18:34:45 TP0] ", "Load weight begin. ",
    "Loading safetensors checkpoint shards: ", " 12% |", " 3/16", "1 ", "5/161 ", "KV Cache is allocated",
    "Capturing CUDA graphs ", "[00:01<00:02, 3.0it/s]", "é█▌", "\x1b[36m", "\x1b", "\0", "EngineDeadError",
    "ValueError: x", "GPU KV cache size", '"GET /health HTTP/1.1" 200 OK', "x" * 700, "word",
])  # fmt: skip
LOGS = st.lists(PIECES | st.text(max_size=6), max_size=40).map("".join)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@given(text=LOGS, sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8))
def test_however_a_log_arrives_it_says_the_same(engine, text, sizes):
    known, found = knowledge_of(engine), []
    for cuts in ([len(text) or 1], sizes):
        reading, movement, partial, at, turn = logs.Reading(), logs.Movement(), "", 0, 0
        while at < len(text):
            size = cuts[turn % len(cuts)]
            lines, partial = logs.split(partial, text[at : at + size])
            logs.read(reading, lines, known["phases"], partial, known["fatal"])
            movement.feed(lines, known["phases"], partial)
            at, turn = at + size, turn + 1
        found.append((reading, movement.plain(), partial))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", REAL)
def test_a_real_log_says_the_same_in_pieces(name, phases, real_log):
    text, known = real_log(name), phases(engine_of(name))
    found = []
    for size in (len(text), 61):
        movement, partial = logs.Movement(), ""
        for at in range(0, len(text), size):
            lines, partial = logs.split(partial, text[at : at + size])
            movement.feed(lines, known, partial)
        found.append(movement.plain())
    assert found[0] == found[1]


def test_a_huge_line_is_kept_short():
    partial, reading, movement = "", logs.Reading(), logs.Movement()
    for _ in range(10):
        lines, partial = logs.split(partial, "\ufffdAB 7/" * 200_000)
        logs.read(reading, lines, ({"name": "a", "match": "never"},), partial)
        movement.feed(lines, ({"name": "a", "match": "never"},), partial)
        assert (lines, len(partial) <= logs.PIECE_LIMIT) == ([], True)
    lines, partial = logs.split(partial, "\nnext\n")
    logs.read(reading, lines, ())
    assert [len(line) for line in reading.tail] == [logs.LINE_LIMIT, 4]


class Log:
    """A log that is written and rotated, and followed meanwhile."""

    def __init__(self, folder, limit: int = 1 << 20) -> None:
        self.path, self.older, self.limit = folder / "main.log", folder / "main.log.1", limit
        self.cursor = logs.Cursor()
        self.path.touch()
        self.look()

    def write(self, data: bytes, path=None) -> None:
        with (path or self.path).open("ab") as file:
            file.write(data)

    def copy_and_truncate(self) -> None:
        self.older.write_bytes(self.path.read_bytes())
        with self.path.open("r+b") as file:
            file.truncate()

    def rename(self) -> None:
        self.path.rename(self.older)

    def look(self) -> str:
        """Everything that is new; the cursor goes through JSON each time."""
        found = []
        while True:
            text, cursor = logs.follow(self.path, self.cursor, self.limit)
            self.cursor = logs.Cursor(**json.loads(json.dumps(asdict(cursor))))
            if not text:
                return "".join(found)
            found.append(text)


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def test_what_is_new_is_read_once(log):
    log.write(b"one\ntw")
    assert log.look() == "one\ntw"
    assert log.look() == ""
    log.write(b"o\n")
    assert log.look() == "o\n"


def test_a_log_that_is_not_there_yet_is_empty(tmp_path):
    assert logs.follow(tmp_path / "main.log", logs.Cursor(), 9) == ("", logs.Cursor())


def test_a_character_that_is_cut_in_two_comes_whole(log):
    bar = "▏█é".encode()
    seen = ""
    for byte in bar:
        log.write(bytes([byte]))
        seen += log.look()
    assert seen == "▏█é"


def test_bytes_that_are_no_text_hurt_nobody(log):
    log.write(b"\xff\xfe\x00junk\n\xe2\x96")
    assert log.look() == "\ufffd\ufffdjunk\n"
    log.write(b"\x88\n")
    assert log.look() == "█\n"


def test_of_a_long_log_that_is_met_only_the_end_is_read_from_the_beginning_of_a_line(log):
    log.write(b"old line\n" * 100 + b"new line\n")
    text, cursor = logs.follow(log.path, logs.Cursor(), 20)
    assert text == "old line\nnew line\n"
    assert logs.follow(log.path, cursor, 20)[0] == ""


def test_of_what_is_new_no_more_than_the_limit_comes_at_once(tmp_path):
    log = Log(tmp_path, limit=16)
    log.write(b"0123456789" * 10)
    text, _ = logs.follow(log.path, log.cursor, log.limit)
    assert len(text) == 16
    assert log.look() == "0123456789" * 10


@pytest.mark.parametrize("limit", [5, 1 << 20])
def test_a_renamed_log_is_read_to_its_end_before_the_new_one(tmp_path, limit):
    log = Log(tmp_path, limit)
    log.write(b"read\n")
    log.look()
    log.write(b"unread\n")
    log.rename()
    log.write(b"new\n")
    assert log.look() == "unread\nnew\n"
    assert log.look() == ""


def test_a_server_that_writes_on_into_the_renamed_log_is_read(log):
    log.write(b"one\n")
    log.rename()
    assert log.look() == "one\n"
    log.write(b"two\n", log.older)
    assert log.look() == "two\n"
    log.path.touch()
    log.write(b"three\n", log.older)
    assert log.look() == "three\n"
    log.write(b"new\n")
    assert log.look() == "new\n"


def test_a_log_that_was_renamed_twice_is_lost_and_the_new_one_read(log):
    log.write(b"one\n")
    log.look()
    log.path.unlink()
    log.older.write_bytes(b"another\n" * 9)
    log.write(b"new\n")
    assert log.look() == "new\n"


@pytest.mark.parametrize("limit", [5, 1 << 20])
@pytest.mark.parametrize("after", [b"", b"new\n", b"new line, longer than all before\n" * 3])
def test_a_log_that_was_copied_and_truncated_is_read_once(tmp_path, after, limit):
    log = Log(tmp_path, limit)
    log.write(b"read line\n")
    log.look()
    log.write(b"unread line\n")
    log.copy_and_truncate()
    log.write(after)
    assert log.look() == "unread line\n" + after.decode()
    log.write(b"on it goes\n")
    assert log.look() == "on it goes\n"


def test_a_line_that_the_old_file_breaks_off_in_is_not_joined_with_the_new_file(log):
    log.write(b"half a li")
    assert log.look() == "half a li"
    log.rename()
    log.cursor = logs.Cursor(**{**asdict(log.cursor), "partial": "half a li"})
    log.write(b"server_args=1\n")
    assert log.look() == "\nserver_args=1\n"


@pytest.mark.parametrize("rotate", [Log.copy_and_truncate, Log.rename])
def test_every_line_is_read_once_however_often_the_log_is_rotated(log, rotate):
    seen = ""
    for number in range(60):
        log.write(f"line {number} █\n".encode())
        if number % 7 == 3:
            rotate(log)
        if number % 3:
            seen += log.look()
    assert (seen + log.look()).split("\n")[:-1] == [f"line {number} █" for number in range(60)]


def test_lines_that_all_ranks_write_alike_are_one_line_of_a_message():
    lines = [f"[2026-11-30 09:17:08 TP{rank}] Capture target decode CUDA graph begin. avail mem={12 + rank}.60 GB"
             for rank in range(8)]  # fmt: skip
    told = logs.folded(["Traceback", *lines, "ValueError: x"], 12)
    assert told == ["Traceback", f"{lines[7]} (8 lines like it)", "ValueError: x"]
    assert logs.folded(["Traceback", *lines, "ValueError: x"], 1) == ["ValueError: x"]
