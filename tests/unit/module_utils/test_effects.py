"""What took effect: ranks and servers as they are, against a release."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.ironserve import effects
from ansible.module_utils.ironserve.engines import ENGINES

LOGS = Path(__file__).resolve().parents[2] / "fixtures" / "engine_logs"
UUIDS = [f"GPU-{digit * 8}-0000-1111-2222-333333333333" for digit in "abcdefgh"]


def ranks(*, engine="sglang::scheduler", count=8, of=None, **environ):
    """Ranks TP0 and so on with one environment; ``of`` has what single ones have otherwise, None: zeroed."""
    found = []
    for rank in range(count):
        own = (of or {}).get(rank, {})
        items = {"PATH": "/bin", **environ, **(own or {})}
        text = "\0" * 400 if own is None else "".join(f"{name}={value}\0" for name, value in items.items())
        found.append(effects.process(f"{engine}_TP{rank}", 100 + rank, text))
    return found


def test_ranks_that_have_all_of_it_are_no_news():
    found = effects.environment({"NCCL_PROTO": "LL"}, ranks(NCCL_PROTO="LL"))
    assert found == {"ranks": 8, "env": {}, "added": {}, "unreadable": []}
    assert effects.notes({**found, "argv": {}}) == []


def test_a_variable_that_sglang_0_5_3_overwrites_is_told_with_what_the_ranks_run_with():
    found = effects.environment({"NCCL_CUMEM_ENABLE": "1"}, ranks(NCCL_CUMEM_ENABLE="0", CUDA_DEVICE_MAX_CONNECTIONS=8))
    names = [f"TP{rank}" for rank in range(8)]
    assert found["env"] == {"NCCL_CUMEM_ENABLE": {"release": "1", "runs": "0", "ranks": names}}
    assert found["added"] == {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    assert effects.notes(found) == ["variable NCCL_CUMEM_ENABLE: the release says 1, and 8 of 8 ranks run with 0"]


def test_one_rank_of_eight_that_differs_is_named():
    found = effects.environment({"NCCL_PROTO": "LL"}, ranks(NCCL_PROTO="LL", of={3: {"NCCL_PROTO": "Simple"}}))
    assert found["env"] == {"NCCL_PROTO": {"release": "LL", "runs": "Simple", "ranks": ["TP3"]}}
    assert effects.notes(found) == ["variable NCCL_PROTO: the release says LL, and 1 of 8 ranks run with Simple"]


def test_a_variable_that_no_rank_has_is_told_as_such():
    found = effects.environment({"NCCL_ALGO": "Ring"}, ranks())
    assert found["env"]["NCCL_ALGO"]["runs"] is None
    assert effects.notes(found) == ["variable NCCL_ALGO: the release says Ring, and no rank has it"]


def test_an_environment_that_setproctitle_zeroed_is_unreadable_and_not_empty():
    found = effects.environment({"NCCL_PROTO": "LL"}, ranks(NCCL_PROTO="LL", of={1: None, 2: None}))
    assert (found["env"], found["unreadable"]) == ({}, [101, 102])
    assert effects.notes(found) == ["the environment of 2 of 8 ranks cannot be read back (pid 101, 102)"]


def test_a_rank_may_see_its_own_gpu_alone_and_no_foreign_one():
    wanted = {"CUDA_VISIBLE_DEVICES": ",".join(UUIDS[:4])}
    own = {rank: {"CUDA_VISIBLE_DEVICES": UUIDS[rank]} for rank in range(4)}
    assert effects.environment(wanted, ranks(count=4, of=own))["env"] == {}
    foreign = effects.environment(wanted, ranks(count=1, of={0: {"CUDA_VISIBLE_DEVICES": UUIDS[7]}}))["env"]
    assert foreign["CUDA_VISIBLE_DEVICES"]["runs"] == UUIDS[7]


def test_values_that_differ_among_the_ranks_are_all_named():
    of = {0: {"NCCL_NVLS_ENABLE": "0"}, 1: {"NCCL_NVLS_ENABLE": "1"}}
    assert effects.environment({}, ranks(count=3, of=of))["added"] == {"NCCL_NVLS_ENABLE": "0 | 1 | not set"}


def test_no_secret_is_said():
    processes = ranks(VLLM_API_KEY="sk-of-the-service", SGLANG_OTHER_TOKEN="sk-of-somebody", HF_TOKEN="hf")
    found = effects.environment({}, processes, secrets=["VLLM_API_KEY", "HF_TOKEN"])
    assert found["added"] == {"SGLANG_OTHER_TOKEN": "********"}


@pytest.mark.parametrize(
    ("log", "engine", "flags"),
    [
        ("sglang-0.5.23-cpu.log", "sglang",
         {"model-path": "/srv/lab/tiny-llama", "tensor-parallel-size": "1", "context-length": "1024",
          "dtype": "bfloat16", "mem-fraction-static": "0.1", "disable-overlap-schedule": True, "load-format": "dummy",
          "max-running-requests": "8", "kv-cache-dtype": "auto"}),
        ("sglang-0.5.15.post1-h200-b.log", "sglang",
         {"model": "/srv/models/llama-1b", "tp-size": "1", "context-length": "4096", "load-format": "dummy"}),
        ("vllm-0.32.0-cpu.log", "vllm",
         {"served-model-name": "tiny", "max-model-len": "1024", "enforce-eager": True, "max-num-seqs": "16"}),
        ("vllm-0.26.0-h200.log", "vllm", {"max-model-len": "4096", "served-model-name": ["tiny-1b"], "dtype": "auto"}),
    ],
)  # fmt: skip
def test_arguments_of_real_starts_are_those_of_their_flags_and_another_one_is_told(log, engine, flags):
    known = ENGINES[engine]
    says = effects.arguments_in((LOGS / log).read_text(errors="replace"), known.ARGUMENTS_LINE)
    assert effects.arguments(flags, says, known.ARGUMENT_NAMES) == {}
    length = "context-length" if engine == "sglang" else "max-model-len"
    other = effects.arguments({**flags, length: "2048"}, says, known.ARGUMENT_NAMES)
    assert other[length]["release"] == "2048"
    assert effects.notes({"argv": other}) == [
        f"flag --{length}: the release says 2048, and the server runs with {other[length]['runs']}"
    ]


def test_the_arguments_of_the_newest_start_in_a_log_count():
    log = (
        "[t] server_args={'tp_size': 1}\nx\n[t] server_args=ServerArgs(tp_size=8, mode=<Mode.A: 1>, d={'a': [1, 2]})\n"
    )
    assert effects.arguments_in(log, ENGINES["sglang"].ARGUMENTS_LINE) == {"tp_size": 8, "d": {"a": [1, 2]}}
    assert effects.arguments_in("nothing\n", ENGINES["sglang"].ARGUMENTS_LINE) == {}


@pytest.mark.parametrize(
    ("wanted", "runs"),
    [
        ("8", 8), ("0.85", 0.85), (True, True), ("true", True), ("16k", 16000), ("16K", 16384), ("1,2,4", [1, 2, 4]),
        (["1", "2"], (1, 2)), ("tiny", ["tiny"]), ('{"mode":3}', {"mode": 3, "cache": None}), ('{"a":1}', '{"a": 1}'),
        ("TRITON_MLA", "triton_mla"), (["a"], "a"), (True, "a-mode"),
    ],
)  # fmt: skip
def test_two_ways_to_write_a_value_are_the_same(wanted, runs):
    assert effects.same(wanted, runs)


@pytest.mark.parametrize(
    ("wanted", "runs"),
    [("8", 4), (True, False), ('{"mode":3}', {"mode": 2}), ("1,2", [1, 2, 4]), ("a", "b"), ("8", True), (["a"], ["b"])],
)
def test_two_values_are_not_the_same(wanted, runs):
    assert not effects.same(wanted, runs)


def test_what_a_release_leaves_to_the_engine_is_listed_and_is_no_fault():
    found = {"argv": effects.arguments({"kv-cache-dtype": "auto"}, {"kv_cache_dtype": "fp8"}, {})}
    assert found["argv"] == {"kv-cache-dtype": {"release": "auto", "runs": "fp8", "engine_chose": True}}
    assert effects.notes(found) == []


def test_what_nccl_took_otherwise_is_told_and_what_it_did_not_read_is_not():
    settings = {"NCCL_PROTO": "taken", "NCCL_IB_HCA": "not read", "NCCL_BUFFSIZE": "other: 4194304"}
    assert effects.notes({"nccl": {"settings": settings}}) == ["variable NCCL_BUFFSIZE: NCCL itself took 4194304"]


def test_a_negated_flag_is_the_flag_that_is_off_and_what_the_server_does_not_say_is_not_judged():
    says = {"enable_prefix_caching": False, "attention_backend": None}
    flags = {"no-enable-prefix-caching": True, "attention-backend": "triton", "cuda-graph-max-bs": "8"}
    assert effects.arguments(flags, says, {}) == {}
    assert list(effects.arguments(flags, {"enable_prefix_caching": True}, {})) == ["no-enable-prefix-caching"]
