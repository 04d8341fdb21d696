"""What a model's files say: configs as their makers wrote them, and weights that are not all there."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from ansible.module_utils.ironserve.model_config import FACTS, INDEX, describe, read
from hypothesis import given
from hypothesis import strategies as st

MODELS = Path(__file__).resolve().parents[2] / "fixtures" / "models"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d" * 32 + "\nsize 4966157032\n"


def facts(name: str) -> dict:
    return describe(json.loads((MODELS / f"{name}.json").read_text()))


def checkpoint(path: Path, names: list[str], mib: int = 1, **index) -> Path:
    """A folder with these shards, of this size and without content, and an index of them."""
    (path / "config.json").write_text("{}")
    for name in names:
        with (path / name).open("wb") as file:
            file.truncate(mib << 20)
    said = {"metadata": {"total_size": len(names) * mib << 20}, "weight_map": dict(enumerate(names)), **index}
    (path / INDEX).write_text(json.dumps(said))
    return path


@pytest.mark.parametrize("name", sorted(file.stem for file in MODELS.glob("*.json")))
def test_a_config_tells_every_fact_but_for_the_weights(name):
    assert {*facts(name), "weights_mib"} == set(FACTS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "kimi-k2.5-text-config",
            {
                "architecture": "KimiK25ForConditionalGeneration", "model_type": "kimi_k2", "attention": "mla",
                "sinks": False, "sparse_attention": None, "hybrid": False, "moe": True, "experts": 384,
                "experts_active": 8, "quantisation": "compressed-tensors", "bits": 4, "format": "pack-quantized",
                "group_size": 32, "heads": 64, "layers": 61, "kv_layers": 61, "max_context": 262144,
                "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            },
        ),
        ("glm-5.2", {"attention": "mla", "sparse_attention": "dsa", "experts": 256, "quantisation": None}),
        (
            "gpt-oss-20b",
            {"attention": "gqa", "sinks": True, "moe": True, "experts_active": 4, "quantisation": "mxfp4",
             "layers": 24, "kv_layers": 12, "head_dim": 64, "kv_heads": 8, "hybrid": False},
        ),
        (
            "qwen3.8-27b-text-config",
            {"attention": "gqa", "hybrid": True, "moe": False, "layers": 64, "kv_layers": 16, "heads": 24,
             "kv_heads": 4, "model_type": "qwen3_5_text", "architecture": "Qwen3_5ForConditionalGeneration"},
        ),
        (
            "nemotron-3-nano",
            {"hybrid": True, "kv_layers": 6, "kv_heads": 2, "head_dim": 128, "attention": "gqa"},
        ),
    ],
)  # fmt: skip
def test_what_published_configs_say(name, expected):
    found = facts(name)
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "fp8", "fmt": "e4m3"}, {"quantisation": "fp8", "format": "e4m3"}),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, {"quantisation": "awq", "bits": 4, "group_size": 128}),
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
         {"quantisation": "modelopt", "format": "NVFP4", "kv_cache_dtype": "fp8"}),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "group_size": 16}},
         {"quantisation": "modelopt", "format": "NVFP4", "group_size": 16}),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
         {"quantisation": "compressed-tensors", "kv_cache_dtype": "fp8"}),
    ],
)  # fmt: skip
def test_what_quantisations_say(config, expected):
    found = describe({"quantization_config": config})
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("heads", "kv_heads", "kind"), [(32, None, "mha"), (32, 32, "mha"), (32, 8, "gqa"), (32, 1, "mqa")]
)
def test_the_kind_of_attention_follows_from_its_heads(heads, kv_heads, kind):
    assert describe({"num_attention_heads": heads, "num_key_value_heads": kv_heads})["attention"] == kind


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({}, 60),
        ({"layer_types": ["linear_attention", "full_attention"] * 30}, 30),
        ({"layer_types": ["sliding_attention"] * 60}, 60),
        ({"linear_attn_config": {"full_attn_layers": [4, 8]}}, None),
        ({"layer_types": ["sliding_attention", "full_attention"] * 30, "global_head_dim": 512}, None),
        ({"compress_ratios": [4, 128]}, None),
    ],
)
def test_which_layers_cache_the_whole_context(config, layers):
    assert describe({"num_hidden_layers": 60, **config})["kv_layers"] == layers


def test_a_whole_checkpoint_has_nothing_wrong(tmp_path):
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    assert read(checkpoint(tmp_path, names)) == {
        "weights": {"files": 3, "missing": [], "pointers": [], "empty": [], "total_mib": 3, "index_mib": 3},
        "weights_mib": 3,
    }


def test_shards_that_are_missing_empty_or_pointers_are_named(tmp_path):
    names = [f"model-{number}.safetensors" for number in range(5)]
    checkpoint(tmp_path, names)
    (tmp_path / names[1]).unlink()
    (tmp_path / names[2]).write_text(POINTER)
    (tmp_path / names[3]).write_text("")
    (tmp_path / names[4]).write_text("small, and no pointer")
    weights = read(tmp_path)["weights"]
    assert (weights["missing"], weights["pointers"], weights["empty"]) == ([names[1]], [names[2]], [names[3]])
    assert (weights["files"], weights["total_mib"], weights["index_mib"]) == (4, 1, 5)


@pytest.mark.parametrize(
    ("files", "counted"),
    [
        (["model.safetensors"], 1),
        (["model-1.safetensors", "model-2.safetensors", "consolidated-1.safetensors"], 2),
        (["consolidated.safetensors"], 1),
        (["model.safetensors", "pytorch_model.bin"], 1),
        (["a.gguf"], 1),
        ([], 0),
    ],
)
def test_without_an_index_the_same_weights_are_counted_once(tmp_path, files, counted):
    checkpoint(tmp_path, files)
    (tmp_path / INDEX).unlink()
    assert read(tmp_path)["weights"]["files"] == counted


@pytest.mark.parametrize(
    ("config", "index", "said"),
    [
        ("{", None, "config.json"),
        (None, None, "config.json"),
        ('{"architectures": {"a": 1}}', None, "config.json"),
        ('{"hidden_size": "x", "num_attention_heads": 2}', None, "config.json"),
        ("{}", "[]", "weights"),
        ("{}", '{"weight_map": {"a": {}}}', "weights"),
    ],
)
def test_what_cannot_be_read_is_told_and_nothing_raises(tmp_path, config, index, said):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    if index is not None:
        (tmp_path / INDEX).write_text(index)
    assert read(tmp_path)["error"].startswith(said)


def test_a_folder_that_is_not_there_is_told(tmp_path):
    assert "No such file" in read(tmp_path / "gone")["error"]


def test_an_empty_config_says_nothing_of_the_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert set(read(tmp_path)) == {"weights", "weights_mib"}


NAMES = st.sampled_from(["text_config", "num_attention_heads", "hidden_size", "layer_types", "quantization_config",
                         "config_groups", "architectures", "num_hidden_layers", "weight_map", "metadata",
                         "full_attention_interval", "total_size", "kv_cache_scheme"])  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(config=ANYTHING, index=ANYTHING)
def test_no_json_makes_it_raise(tmp_path_factory, config, index):
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(config))
    (path / INDEX).write_text(json.dumps(index))
    json.dumps(read(path))


def test_two_hundred_shards_with_a_large_index_take_a_moment(tmp_path):
    names = [f"model-{number:05}-of-00200.safetensors" for number in range(200)]
    tensors = {f"model.layers.{number}.mlp.experts.weight_packed": names[number % 200] for number in range(70_000)}
    checkpoint(tmp_path, names, weight_map=tensors)
    began = time.process_time()
    assert read(tmp_path)["weights"]["files"] == 200
    assert time.process_time() - began < 0.3
