"""The stand-in's output against the logs of real engines: the same lines in the same order."""

from __future__ import annotations

import os
import re
import signal
from functools import cache
from pathlib import Path

import pytest
from standin_server import Running, Start, wait_until

LOGS = Path(__file__).parent.parent / "fixtures" / "engine_logs"
QUICK = {"sigterm_s": 0.02, "death_notice_s": 0.02, "health": {"delay_s": 0}}

#: What differs between two runs of the same engine, or between CPU and GPU, and is no phase.
MASKS = (
    (r"^See https://nanobind.*html(?=\[)", ""),  # a library's last words without a newline
    (r"^\(\w+ pid=\d+\) (?=INFO: )", ""),  # 0.26.0 puts the process before uvicorn's lines, 0.32.0 does not
    (r"^\((Worker|EngineCore)\w* pid=\d+\)", "(engine)"),  # one GPU: EngineCore works itself; CPU: a worker
    (r"^\(APIServer pid=\d+\)", "(api)"),
    (r"(INFO|WARNING|ERROR) \d\d-\d\d [\d:]{8} \[\w+\.py:\d+\]", r"\1"),
    (r"^\[\d{4}-[-\d: ]+\] ", ""),
    (r"(with config: |non-default args: |server_args=|num_tokens=\[|bs=\[).*", r"\1..."),
    (r": +\d+%.*", ": bar"),
    (r"\b[CG]PU KV cache", "KV cache"),
    (r"available_[cg]pu_mem", "available_mem"),
    (r"c(pu|uda) graph: \w+", "graph"),
    (r"distributed_init_method=\S+", "distributed_init_method=ADDRESS"),
    (r"ETP rank \d+, ", ""),
    (r"(?<![\w.:/])/[\w./-]+", "PATH"),
    (r"backend=(gloo|nccl)", "backend=B"),
    (r"http:/*[\w.:/]+", "URL"),
    (r"\d[\d,.]*", "N"),
    (r"\(num_tokens=.*|\(bs=.*", "(..."),
)
#: Requests, rates and garbage that depend on the visitors.
NOISE = re.compile(r' - "|Route: |throughput|^Prefill batch|^Decode batch')


def masked(text: str) -> list[str]:
    """The lines of a log (and each bar once), masked, each where it came first."""
    lines = []
    for part in re.split(r"[\r\n]+", text):
        line = part.strip()
        if line and not NOISE.search(line):
            for pattern, replacement in MASKS:
                line = re.sub(pattern, replacement, line)
            lines.append(line)
    return list(dict.fromkeys(lines))


@cache
def real(name: str) -> list[str]:
    return masked((LOGS / name).read_text())


def run(start: Start, engine: str, end: str, flags: list[str]) -> list[str]:
    """The masked log of a start with the given end."""
    server = start(engine, QUICK, flags=["--load-format", "dummy", *flags]).ready()
    if end == "SIGTERM":
        server.process.send_signal(signal.SIGTERM)
    else:
        os.kill(server.child(end), signal.SIGKILL)
    server.ends()
    wait_until("the children's end", lambda: not server.family())
    return masked(server.text)


NO_GRAPHS = ["--disable-cuda-graph"]
EAGER = ["--enforce-eager", "--distributed-executor-backend", "mp"]
#: The phases that must be found in both logs, by a part of their lines (masked).
VLLM_PHASES = [
    "non-default args",
    "Resolved architecture",
    "Initializing a VN LLM engine",
    "world_size=N",
    "rank N in world size N",
    "init engine (profile, create kv cache, warmup model) took N s",
    "Supported tasks",
    "Starting vLLM server on URL",
    "INFO:     Started server process",
    "INFO:     Application startup complete.",
]
VLLM_GPU_PHASES = [
    "Using FLASH_ATTN attention backend",
    "Model loading took",
    "Dynamo bytecode transform time",
    "torch.compile took N s in total",
    "Available KV cache memory",
    "Capturing CUDA graphs (PIECEWISE): bar",
    "Capturing CUDA graphs (FULL): bar",
    "Graph capturing finished",
]
VLLM_SIGTERM = [
    "API server: shutdown triggered",
    "stopping engine client mode=abort timeout=Ns",
    "EngineCore: trigger received signal=SIGTERM",
    "MPClient: complete",
    "INFO:     Application shutdown complete.",
]
VLLM_DEAD = [
    "MPClient: engine core exited unexpectedly",
    "EngineDeadError: EngineCore encountered an issue.",
    "INFO:     Application shutdown complete.",
    "INFO:     Finished server process",
]
SGLANG_PHASES = [
    "server_args=",
    "Load weight begin.",
    "Load weight end.",
    "KV Cache is allocated.",
    "Memory pool end.",
    "max_total_num_tokens=N",
    "INFO:     Application startup complete.",
    "INFO:     Uvicorn running on URL",
    "The server is fired up and ready to roll!",
]
SGLANG_GPU_PHASES = [
    "Capture target prefill CUDA graph begin.",
    "Capturing num tokens (",
    "Capture target prefill CUDA graph end.",
    "Capture target decode CUDA graph begin.",
    "Capturing batches (",
    "Capture target decode CUDA graph end.",
]
SGLANG_SIGTERM = ["SIGTERM received.", "Gracefully exiting... Remaining number of requests N", "kill_process_tree"]
SGLANG_DEAD = ["Subprocess scheduler_N", "SIGQUIT received.", "No live scheduler processes found", "kill_process_tree"]

CASES = [
    ("vllm", "vllm-0.32.0-cpu.log", "VLLM::EngineCore", EAGER[:1], [*VLLM_PHASES, *VLLM_DEAD]),
    ("vllm", "vllm-0.32.0-cpu-b.log", "SIGTERM", EAGER, [*VLLM_PHASES, *VLLM_SIGTERM]),
    ("vllm", "vllm-0.26.0-h200.log", "SIGTERM", [], [*VLLM_PHASES, *VLLM_GPU_PHASES]),
    ("vllm", "vllm-0.26.0-h200-sigterm.log", "SIGTERM", [], [*VLLM_PHASES, *VLLM_GPU_PHASES, *VLLM_SIGTERM]),
    ("vllm", "vllm-0.26.0-h200-enginecore-killed.log", "VLLM::EngineCore", [], [*VLLM_PHASES, *VLLM_DEAD]),
    ("sglang", "sglang-0.5.23-cpu.log", "SIGTERM", NO_GRAPHS, [*SGLANG_PHASES, *SGLANG_SIGTERM]),
    (
        "sglang",
        "sglang-0.5.23-cpu-b.log",
        "sglang::scheduler",
        ["--disable-cuda-graph"],
        [*SGLANG_PHASES, *SGLANG_DEAD],
    ),
    ("sglang", "sglang-0.5.15.post1-h200-b.log", "SIGTERM", [], [*SGLANG_PHASES, *SGLANG_GPU_PHASES]),
]


@pytest.mark.parametrize(("engine", "log", "end", "flags", "phases"), CASES, ids=[case[1] for case in CASES])
def test_same_lines_in_the_same_order(
    start: Start, engine: str, log: str, end: str, flags: list[str], phases: list[str]
) -> None:
    ours, theirs = run(start, engine, end, flags), real(log)
    shared = [line for line in ours if line in theirs]
    assert shared == [line for line in theirs if line in ours]
    assert [phase for phase in phases if not any(phase in line for line in shared)] == []


#: Lines that no log at hand shows, since all of them are of starts with dummy weights. From the engines' sources.
NEVER_SEEN = {
    "vllm": ["Loading safetensors checkpoint shards: bar", "(engine) INFO Loading weights took N seconds"],
    "sglang": ["Loading safetensors checkpoint shards: bar"],
}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_other_line_was_seen_in_a_real_log(start: Start, engine: str) -> None:
    seen = {line for log in LOGS.glob(f"{engine}-*.log") for line in real(log.name)}
    ours = run(start, engine, "SIGTERM", ["--load-format", "auto"])
    assert [line for line in ours if line not in seen] == NEVER_SEEN[engine]


def test_missing_model_folder_of_vllm_ends_as_the_real_one(start: Start, tmp_path: Path) -> None:
    server = start("vllm", model=tmp_path / "missing")
    server.ends()
    theirs = real("vllm-0.26.0-bad-model-path.log")
    ours = masked(server.text)
    assert ours[-1] == theirs[-1]
    assert [line for line in ours if line in theirs] == [line for line in theirs if line in ours]


def names(text: str) -> set[str]:
    """The metrics that a text declares, with their types."""
    return set(re.findall(r"^# TYPE (\S+ \w+)$", text, flags=re.M))


@pytest.mark.parametrize(
    ("engine", "file", "unseen"),
    [
        ("vllm", "vllm-0.26.0-metrics.txt", set()),
        # Appears in the real one with the first aborted request.
        ("sglang", "sglang-0.5.15.post1-metrics.txt", {"sglang:num_aborted_requests_total counter"}),
    ],
)
def test_metrics_have_the_real_names_types_and_labels(start: Start, engine: str, file: str, unseen: set[str]) -> None:
    flags = ["--enable-metrics"] if engine == "sglang" else []
    server = start(engine, flags=[*flags, "--served-model-name", "tiny-1b"]).ready()
    ours, theirs = metrics_of(server), (LOGS / file).read_text()
    assert names(ours) - names(theirs) == unseen
    aborted = "sglang:num_aborted_requests_total"
    series = {line.rsplit(" ", 1)[0] for line in ours.splitlines() if not line.startswith(("#", aborted))}
    assert series <= {line.rsplit(" ", 1)[0] for line in theirs.splitlines()}


def metrics_of(server: Running) -> str:
    answer = server.ask("/metrics")
    assert answer
    return answer.text
