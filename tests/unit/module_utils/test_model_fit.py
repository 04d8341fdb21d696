"""Whether a model is complete, can be divided and fits, against figures that people measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import knowledge
from ansible.module_utils.ironserve.findings import judge
from ansible.module_utils.ironserve.model_config import describe
from ansible.module_utils.ironserve.model_fit import check

sys.path.insert(0, str(Path(__file__).parent))
from rule_cases import case_of

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / "tests" / "fixtures" / "models"
CATALOGUE = knowledge.catalogue(ROOT)
RTX_PRO_6000, H100, H200 = 97887, 81559, 143771
KIMI_MIB = 567_000
"""595 GB of files."""
LLAMA_70B_MIB = 134_570
"""141 GB: 70.6 billion parameters of two bytes."""
WHOLE = {"files": 64, "missing": [], "pointers": [], "empty": [], "total_mib": 640, "index_mib": 640}


def found(name: str, weights_mib: int, gpus: int, memory_mib: int, engine: str = "vllm", **flags) -> list[dict]:
    facts = {
        f"model.{key}": value for key, value in describe(json.loads((MODELS / f"{name}.json").read_text())).items()
    }
    facts |= {
        "model.weights_mib": weights_mib,
        "gpu_count": gpus,
        "gpu_memory_mib": memory_mib,
        "tensor_parallel": gpus,
    }
    facts |= {f"flag.{flag.replace('_', '-')}": value for flag, value in flags.items()}
    return judge(case_of(facts, engine), [check], CATALOGUE)


def severities(findings: list[dict]) -> list[tuple[str, str]]:
    return [(finding["rule"], finding["severity"]) for finding in findings]


def test_kimi_k2_5_int4_fits_on_eight_gpus_of_96_gb():
    """People serve it there, with 170,000 to 232,000 tokens of context at a fraction of 0.94."""
    assert found("kimi-k2.5-text-config", KIMI_MIB, 8, RTX_PRO_6000, "sglang", mem_fraction_static="0.94") == []


def test_as_the_profiles_have_it_sglang_starts_with_a_shorter_context_and_vllm_does_not():
    (note,) = found("kimi-k2.5-text-config", KIMI_MIB, 8, RTX_PRO_6000, "sglang", mem_fraction_static="0.85")
    assert (note["rule"], note["severity"], note["key"]) == ("model-fit", "note", "flags.mem-fraction-static")
    assert note["text"] == (
        "an estimate: the cache of one request of 262,144 tokens takes 17,568 MiB a GPU, and beside the weights "
        "(70,875 MiB: 567,000 MiB of files over 8 ranks) 12,328 MiB are left for about 183,000 tokens; 83,203 MiB are "
        "meant for weights and cache (0.85 of the smallest GPU's 97,887 MiB)"
    )
    (finding,) = found("kimi-k2.5-text-config", KIMI_MIB, 8, RTX_PRO_6000, "vllm", gpu_memory_utilization="0.85")
    assert finding["severity"] == "warning"


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", {"gpu_memory_utilization": "0.85", "kv_cache_dtype": "fp8"}),
        ("vllm", {"gpu_memory_utilization": "0.85", "max_model_len": "150000"}),
        ("vllm", {"gpu_memory_utilization": "0.85", "max_model_len": "auto"}),
        ("vllm", {"gpu_memory_utilization": "0.85", "decode_context_parallel_size": "8"}),
        ("vllm", {"gpu_memory_utilization": "0.85", "kv_cache_dtype": "turboquant"}),
        ("sglang", {"mem_fraction_static": "0.85", "context_length": "128000"}),
    ],
)
def test_what_makes_the_cache_fit(engine, flags):
    assert found("kimi-k2.5-text-config", KIMI_MIB, 8, RTX_PRO_6000, engine, **flags) == []


@pytest.mark.parametrize(
    ("model", "reserved"),
    [("qwen3.8-27b-text-config", 17_366_515_712), ("nemotron-3-nano", 1_725_628_416)],
)
def test_the_cache_of_hybrids_is_what_vllm_reserves_but_for_the_states_of_linear_layers(model, reserved):
    """Bytes that vLLM 0.29.0 reserves for 262,144 tokens, as somebody traced them."""
    (finding,) = found(model, 80_000, 1, 81_000, gpu_memory_utilization="1.0", max_model_len="262144")
    told = int(finding["text"].split("takes ")[1].split(" MiB")[0].replace(",", "")) << 20
    assert 0.93 < told / reserved <= 1


def test_it_does_not_on_four():
    (finding,) = found("kimi-k2.5-text-config", KIMI_MIB, 4, RTX_PRO_6000, "sglang")
    assert (finding["rule"], finding["severity"]) == ("model-fit", "warning")
    assert "the weights take 141,750 MiB a GPU (567,000 MiB of files over 4 ranks)" in finding["text"]


def test_llama_70b_in_bf16_fits_on_two_gpus_of_80_gb_and_not_on_one():
    (finding,) = found("llama-3.1-70b", LLAMA_70B_MIB, 1, H100)
    assert finding["severity"] == "warning"
    assert finding["text"] == (
        "an estimate: the weights take 134,570 MiB a GPU (134,570 MiB of files over 1 rank), and 75,034 MiB are meant "
        "for weights and cache (0.92 of the smallest GPU's 81,559 MiB)"
    )
    assert finding["where"] == "profile p"
    assert found("llama-3.1-70b", LLAMA_70B_MIB, 2, H100, max_model_len="8192") == []
    assert found("llama-3.1-70b", LLAMA_70B_MIB, 4, H100) == []


def test_two_kinds_of_parallelism_divide_the_weights():
    flags = {"pipeline_parallel_size": "2", "max_model_len": "8192"}
    assert found("llama-3.1-70b", LLAMA_70B_MIB, 1, H100, **flags) == []


@pytest.mark.parametrize("flags", [{"cpu_offload_gb": "64"}, {"load_format": "dummy", "device": "cpu"}])
def test_weights_that_live_elsewhere_are_not_judged(flags):
    assert found("llama-3.1-70b", LLAMA_70B_MIB, 1, H100, **flags) == []


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"model.weights_mib": 500_000},
        {"model.weights_mib": 500_000, "gpu_memory_mib": H200, "flag.tensor-parallel-size": "many"},
        {"gpu_memory_mib": H200, "model.heads": None, "model.kv_heads": None},
        {"gpu_memory_mib": H200, "model.weights_mib": 1, "model.heads": "a", "model.layers": None},
    ],
)
def test_what_nobody_knows_yields_nothing(facts):
    assert list(check(case_of(facts, "vllm"))) == []


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "flags", "expected"),
    [
        (64, 8, 8, {}, []),
        (64, 8, 16, {}, []),
        (64, 8, 6, {}, [("model-heads", "error")]),
        (24, 6, 4, {}, [("model-heads", "warning")]),
        (64, 8, 6, {"flag.device": "cpu"}, []),
        (64, 8, 6, {"flag.enable-dp-attention": True, "flag.dp-size": "3"}, []),
        (64, 8, 12, {"flag.enable-dp-attention": True, "flag.dp-size": "2"}, [("model-heads", "error")]),
        (64, 8, 6, {"flag.attn-cp-size": "3"}, []),
    ],
)
def test_tensor_parallelism_divides_the_heads(heads, kv_heads, ranks, flags, expected):
    facts = {"model.attention": "gqa", "model.heads": heads, "model.kv_heads": kv_heads, "tensor_parallel": ranks}
    findings = judge(case_of({**facts, **flags}), [check], CATALOGUE)
    assert severities(findings) == expected
    for finding in findings:
        assert finding["key"] == "flags.tp-size"


def test_what_heads_say():
    (finding,) = judge(case_of({"model.heads": 64, "tensor_parallel": 6}), [check], CATALOGUE)
    assert finding["text"] == "6 ranks cannot share 64 attention heads evenly"


def test_the_latent_of_mla_has_no_heads_to_divide():
    facts = {"model.attention": "mla", "model.heads": 24, "model.kv_heads": 6, "tensor_parallel": 4}
    assert list(check(case_of(facts))) == []


@pytest.mark.parametrize(
    ("weights", "severity", "text"),
    [
        ({"missing": ["model-2.safetensors"]}, "error", "1 file of weights is missing: model-2.safetensors"),
        ({"missing": list("abcde")}, "error", "5 files of weights are missing: a, b, c and 2 more"),
        ({"pointers": ["a", "b"]}, "error",
         "2 files of weights are pointers of git-lfs, without what they point to: a, b"),
        ({"empty": ["a"]}, "error", "1 file of weights is empty: a"),
        ({"total_mib": 320}, "warning", "the files of weights have 320 MiB together, their index says 640 MiB"),
    ],
)  # fmt: skip
def test_weights_that_are_not_all_there_are_told(weights, severity, text):
    (finding,) = judge(case_of({"model.weights": {**WHOLE, **weights}}), [check], CATALOGUE)
    assert (finding["rule"], finding["severity"], finding["text"]) == ("model-weights", severity, text)
    assert (finding["where"], finding["key"]) == ("host h1", "/models/m")


@pytest.mark.parametrize("weights", [{}, {"total_mib": 650}, {"total_mib": 639}, {"index_mib": None}])
def test_whole_weights_are_not_told(weights):
    assert list(check(case_of({"model.weights": {**WHOLE, **weights}}))) == []


def test_random_weights_need_no_files():
    case = case_of({"model.weights": {**WHOLE, "missing": ["a"]}, "flag.load-format": "dummy"})
    assert list(check(case)) == []
