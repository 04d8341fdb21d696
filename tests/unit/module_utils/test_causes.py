"""Known causes of a failed start, from the data itself and from real logs. Numbers are those of the field cases."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.ironserve import logs
from ansible.module_utils.ironserve.causes import FACTS, PLACEHOLDER, Cause, architecture, find

ROOT = Path(__file__).resolve().parents[3]
LOGS = ROOT / "tests" / "fixtures" / "engine_logs"
FILES = sorted((ROOT / "knowledge" / "causes").glob("*.yml"))
CAUSES = [cause for file in FILES for cause in yaml.safe_load(file.read_text())["causes"]]
KEYS = {"id": str, "engine": str, "match": list, "cause": str, "permanent": bool, "advice": str, "source": list,
        "examples": list}  # fmt: skip
OPTIONAL = {"since": str, "before": str, "needs": dict, "unless": dict, "default": dict, "consequence": bool,
            "example_facts": dict}  # fmt: skip
EXAMPLES = [(cause, example) for cause in CAUSES for example in cause["examples"]]
HOLDER = "pid 4002 (VLLM::EngineCore, user vllm)"


def facts_of(cause: dict) -> dict:
    engine = "vllm" if cause["engine"] == "any" else cause["engine"]
    return {"engine": engine, **cause.get("example_facts", {})}


def first(text: str, **facts) -> Cause | None:
    return next(iter(find(CAUSES, text.splitlines(), facts)), None)


def of_log(name: str, engine: str, **facts) -> list[str]:
    lines, rest = logs.split("", (LOGS / name).read_bytes().decode())
    return [cause.id for cause in find(CAUSES, [*lines, rest], {"engine": engine, **facts})]


def test_ids_are_unique_and_there_are_many():
    ids = [cause["id"] for cause in CAUSES]
    assert len(set(ids)) == len(ids) >= 25
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in ids)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause["id"])
def test_a_cause_has_what_it_needs_and_nothing_else(cause):
    for key, kind in KEYS.items():
        assert isinstance(cause[key], kind), key
    for key in set(cause) - set(KEYS):
        assert isinstance(cause[key], OPTIONAL[key]), key
    assert cause["engine"] in ("any", "sglang", "vllm")
    assert cause["match"] or cause["needs"]
    assert all(source.startswith("https://") for source in cause["source"])
    assert cause["source"]
    assert set(cause.get("needs", {})) | set(cause.get("unless", {})) <= set(FACTS)


@pytest.mark.parametrize(("cause", "example"), EXAMPLES, ids=[cause["id"] for cause, _ in EXAMPLES])
def test_the_first_cause_of_every_example_is_its_own(cause, example):
    told = first(example, **facts_of(cause))
    assert told.id == cause["id"]
    assert not PLACEHOLDER.search(told.cause + told.advice)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause["id"])
def test_every_pattern_is_seen_in_an_example(cause):
    lines = ["\n".join(logs.bare(line) for line in example.splitlines()) for example in cause["examples"]]
    for pattern in cause["match"]:
        assert any(re.search(pattern, line, re.MULTILINE) for line in lines), pattern


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "NotImplementedError: No compiled cutlass_scaled_mm for CUDA device capability: 120. Required capability: 90",
    ],
)
def test_case_3_a_missing_kernel_is_one_cause_that_names_the_architecture_and_no_memory_setting(message):
    generic = "Possible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
    for engine, text in (("vllm", message), ("sglang", f"Exception: Capture cuda graph failed: {message}\n{generic}")):
        found = find(CAUSES, text.splitlines(), {"engine": engine, "exit_status": 1, "arch": "12.0"})
        assert [cause.id for cause in found] == ["kernel_not_built"]
        assert found[0].permanent
        assert "12.0" in found[0].cause
        assert "backend" in found[0].advice
        assert not re.search(r"mem-fraction|gpu-memory-utilization|smaller|lower", found[0].advice)


def test_case_7_a_crash_of_the_custom_all_reduce_names_both_remedies():
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512"}
    log = (
        "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'\n"
        "Worker proc VllmWorker-1 died unexpectedly, shutting down executor."
    )
    found = first(log, engine="vllm", env=env, flags={"tensor-parallel-size": 2})
    assert found.id == "custom_all_reduce_expandable_segments"
    assert "expandable_segments:True" in found.advice
    assert "disable-custom-all-reduce" in found.advice
    assert first(log, engine="vllm", env={}).id == "custom_all_reduce_failed"


def test_case_11_too_little_free_memory_beside_a_foreign_holder_is_a_leftover_process():
    message = (
        "ValueError: Free memory on device cuda:0 (9.47/139.8 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 128.62 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    found = first(message, engine="vllm", foreign_holders=[HOLDER])
    assert found.id == "leftover_holds_gpu_memory"
    assert HOLDER in found.cause
    assert "lower" not in found.advice
    alone = first(message, engine="vllm", foreign_holders=[])
    assert alone.id == "gpu_memory_taken_unseen"
    assert "9.47 of 139.8 GiB" in alone.cause


def test_case_34_a_missing_ninja_is_a_missing_build_tool():
    assert (
        "build tool" in first("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", engine="sglang").cause
    )


def test_case_4_a_stall_over_pcie_points_to_acs_unless_p2p_is_off():
    log = "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs."
    facts = {"engine": "vllm", "reason": "it hangs, nothing moves any more", "phase": "capturing CUDA graphs"}
    assert first(log, **facts).id == "p2p_hang"
    assert first(log, **facts, env={"NCCL_P2P_DISABLE": "1"}) is None
    assert first(log, **{**facts, "reason": "the engine exited with status 1"}) is None


@pytest.mark.parametrize(
    ("version", "cause"), [("0.17.1", "bad_flag"), ("0.18.0", "flag_swap_space"), ("", "flag_swap_space")]
)
def test_case_44_a_version_range_counts_where_the_version_is_known(version, cause):
    log = "vllm serve: error: unrecognized arguments: --swap-space 4"
    assert first(log, engine="vllm", version=version).id == cause


def test_case_46_an_abbreviation_that_became_ambiguous_names_the_flag():
    full = "--cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill"
    log = f"sglang serve: error: ambiguous option: --cuda-graph-max-bs could match {full}"
    found = first(log, engine="sglang", exit_status=2)
    assert found.id == "flag_ambiguous"
    assert "--cuda-graph-max-bs-decode" in found.cause


def test_case_49_a_bad_flag_is_named():
    found = first("usage: vllm\nvllm: error: unrecognized arguments: --no-such-flag", engine="vllm", exit_status=2)
    assert found.cause.endswith("--no-such-flag.")


@pytest.mark.parametrize(
    ("name", "engine"), [("vllm-0.26.0-h200-sigterm.log", "vllm"), ("vllm-0.32.0-cpu-b.log", "vllm"),
                         ("vllm-0.26.0-h200.log", "vllm"), ("sglang-0.5.15.post1-h200-b.log", "sglang"),
                         ("sglang-0.5.23-cpu.log", "sglang")]
)  # fmt: skip
def test_the_log_of_a_good_start_tells_no_cause(name, engine):
    assert of_log(name, engine) == []


SERVES = re.compile(r"Application startup complete|The server is fired up and ready to roll")
STARTS = [(file.name, file.read_text()) for file in sorted(LOGS.glob("*.log"))]
HEALTHY = [(name, text[: served.end()]) for name, text in STARTS if (served := SERVES.search(text))]


@pytest.mark.parametrize(("name", "start"), HEALTHY, ids=[name for name, _ in HEALTHY])
def test_no_pattern_at_all_is_found_in_a_start_that_served(name, start):
    """Whatever engine, version and facts: a cause whose conditions happen to hold must not be told of a healthy log."""
    lines, rest = logs.split("", start)
    text = "\n".join(logs.bare(line)[: logs.LINE_LIMIT] for line in [*lines, rest])
    found = {pattern for cause in CAUSES for pattern in cause["match"] if re.search(pattern, text, re.MULTILINE)}
    assert found == set()


def test_there_are_healthy_starts_of_both_engines():
    assert {name.split("-")[0] for name, _ in HEALTHY} == {"sglang", "vllm"}
    assert len(HEALTHY) >= 8


LOWER = re.compile(
    r"\b(?:lower|smaller|less|reduce|decrease)\b[^.;]{0,80}(?:utilization|mem-fraction|max-model-len|max-num)"
)


def test_only_causes_of_memory_advise_less_of_it_and_only_where_nobody_else_is_known_to_hold_it():
    for cause in CAUSES:
        if LOWER.search(cause["advice"]):
            assert cause.get("needs", {}).get("foreign_holders") is False or cause["id"] == "gpu_memory_taken_unseen"
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 80.00 MiB."
    assert first(log, engine="vllm", foreign_holders=[]).id == "cuda_out_of_memory"
    assert first(log, engine="vllm") is None  # nobody could look
    assert first(log, engine="vllm", foreign_holders=[HOLDER]).id == "leftover_holds_gpu_memory"


def test_further_lines_are_read_only_where_the_log_tells_nothing_but_a_consequence():
    read = []

    def kernel():
        read.append(1)
        return ["Out of memory: Killed process 1201 (VLLM::EngineCor) total-vm:180GB"]

    def told(log):
        return [cause.id for cause in find(CAUSES, [log], {"engine": "vllm"}, kernel)]

    assert told("OSError: [Errno 98] Address already in use") == ["address_in_use"]
    assert read == []
    assert told("RuntimeError: Engine core initialization failed.") == ["host_out_of_memory", "engine_core_died"]
    assert told("nothing that is known") == ["host_out_of_memory"]
    assert len(read) == 2


def test_that_the_kernel_killed_somebody_else_is_no_cause():
    assert first("Out of memory: Killed process 99 (backup.sh) total-vm:1kB, anon-rss:1kB", engine="vllm") is None
    assert first("Out of memory: Killed process 99 (python3) total-vm:1kB", engine="vllm").id == "host_out_of_memory"


def test_the_log_of_a_bad_start_tells_its_cause_before_what_follows_from_it():
    leftover = "vllm-0.26.0-h200-leftover-holds-memory.log"
    assert of_log("vllm-0.26.0-bad-model-path.log", "vllm") == ["model_path_wrong"]
    assert of_log(leftover, "vllm", foreign_holders=[HOLDER]) == ["leftover_holds_gpu_memory", "engine_core_died"]
    assert of_log(leftover, "vllm", foreign_holders=[]) == ["gpu_memory_taken_unseen", "engine_core_died"]
    assert of_log("vllm-0.26.0-h200-enginecore-killed.log", "vllm") == ["engine_core_died"]
    assert of_log("vllm-0.32.0-cpu.log", "vllm") == ["engine_core_died"]
    assert of_log("sglang-0.5.23-cpu-b.log", "sglang") == ["child_killed", "sglang_child_failed"]


def test_the_earliest_line_counts_but_a_consequence_never_before_its_cause():
    log = ["EngineDeadError: EngineCore encountered an issue", "OSError: [Errno 98]", "No CUDA GPUs are available"]
    found = [cause.id for cause in find(CAUSES, log, {"engine": "vllm"})]
    assert found == ["address_in_use", "no_gpu_visible", "engine_core_died"]


def test_a_cause_of_another_engine_does_not_fit():
    assert first("RuntimeError: Engine core initialization failed", engine="sglang") is None


def test_a_cause_may_be_told_by_facts_alone():
    found = first("", engine="vllm", result="oom-kill", signal="SIGKILL")
    assert (found.id, found.line) == ("unit_out_of_memory", "")


def test_a_fact_that_costs_time_is_found_out_only_where_a_pattern_was_found():
    asked = []

    def foreign_holders():
        asked.append(1)
        return [HOLDER]

    assert first("all is well", engine="vllm", foreign_holders=foreign_holders) is None
    assert asked == []
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 80.00 MiB."
    assert first(log, engine="vllm", foreign_holders=foreign_holders).id == "leftover_holds_gpu_memory"
    assert asked


@pytest.mark.parametrize(("text", "written"), [("120", "12.0"), ("sm_90a", "9.0"), ("sm100", "10.0"), ("12.0", "12.0")])
def test_an_architecture_is_written_as_a_compute_capability(text, written):
    assert architecture(text) == written


def test_the_line_is_told_without_the_engines_prefix():
    line = "(EngineCore pid=1201) ERROR 11-29 19:47:25 [core.py:1330] RuntimeError: No CUDA GPUs are available"
    assert first(f"before\n{line}\nafter", engine="vllm").line == "RuntimeError: No CUDA GPUs are available"


def test_no_pattern_takes_long_on_any_text():
    """Two MiB of what makes patterns go back and forth: one letter, blanks, quotes, and pieces of every example."""
    pieces = [
        "a",
        " ",
        "'",
        "/",
        "1",
        "--x ",
        "\\",
        "(",
        *{word + " " for _, text in EXAMPLES for word in text.split()},
    ]
    limit, size = logs.LINE_LIMIT, 1 << 20
    texts = ["\n".join([(piece * limit)[:limit]] * 10) for piece in pieces]
    mixed = "\n".join(example for _, example in EXAMPLES)
    texts.append((mixed * (size // len(mixed) + 1))[:size])
    patterns = {pattern for cause in CAUSES for pattern in cause["match"]}
    slow = []
    for pattern in patterns:
        compiled = re.compile(pattern, re.MULTILINE)
        began = time.process_time()
        for text in texts:
            for _ in compiled.finditer(text):
                pass
        spent = time.process_time() - began
        if spent > 1.5:  # seconds; a pattern that goes back and forth takes minutes
            slow.append((pattern, spent))
    assert slow == []


def test_a_long_log_is_searched_in_bounded_time():
    lines = (LOGS / "vllm-0.26.0-h200.log").read_text().splitlines()
    long = (lines * (1 + (1 << 20) // sum(map(len, lines))))[:20_000]
    began = time.process_time()
    assert find(CAUSES, long, {"engine": "vllm"}) == []
    assert time.process_time() - began < 5.0
