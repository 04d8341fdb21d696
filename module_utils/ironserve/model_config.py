"""What a model's files say of it: ``config.json``, and whether all of its weights are there.

Runs on the host. Only small files are read and the others looked at with stat, so that a checkpoint of hundreds of
shards on a shared file system takes a moment. Nothing here raises: what cannot be read is told under ``error``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MIB = 1 << 20

FACTS = {
    "architecture": "the first of config.json's architectures: KimiK25ForConditionalGeneration",
    "model_type": "config.json's model_type; of a model with a text_config, that of the text model",
    "attention": "mla, or by its heads mha, gqa or mqa",
    "sinks": "whether attention has learnt sinks, as in gpt-oss",
    "sparse_attention": "dsa where an indexer picks the tokens (DeepSeek V3.2, GLM-5), else null",
    "hybrid": "whether some layers are linear attention or Mamba",
    "moe": "whether it is a mixture of experts",
    "experts": "number of routed experts",
    "experts_active": "experts that each token uses",
    "quantisation": "quant_method: compressed-tensors, fp8, modelopt, awq, gptq; null: none",
    "bits": "bits of a quantised weight",
    "format": "the quantisation's format or algorithm: pack-quantized, NVFP4",
    "group_size": "weights that share a scale",
    "kv_cache_dtype": "type of the KV cache that the checkpoint asks for",
    "heads": "attention heads",
    "kv_heads": "heads of keys and values",
    "head_dim": "size of a head",
    "layers": "number of layers",
    "kv_layers": "layers whose KV cache grows with the context",
    "hidden": "size of the hidden state",
    "vocab": "size of the vocabulary",
    "max_context": "longest context, tokens",
    "dtype": "type of the weights that are not quantised",
    "kv_lora_rank": "MLA: size of the latent that is cached for each token and layer",
    "qk_rope_head_dim": "MLA: size of the position part that is cached beside it",
    "weights_mib": "size of all files of weights, MiB",
}
"""What :func:`read` tells of a model that ``config.json`` describes, for rules (``model.NAME``) and their reference."""

SINKS = ("GptOssForCausalLM", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM", "IQuestQ1ForCausalLM")
"""Architectures whose attention always has sinks: config.json does not say so. From SGLang 0.5.23, model_config.py."""

SINK_KEYS = ("add_swa_attention_sink_bias", "add_full_attention_sink_bias", "learnable_sink")
"""Keys with which other models say that theirs has."""

TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where a multimodal model keeps the config of its text model."""

GROWING = ("full_attention", "attention")
"""Entries of ``layer_types`` whose KV cache grows with the context; the others hold a window or a state."""

POINTER = b"version https://git-lfs"
POINTER_SIZE = 1024
"""Bytes: a pointer of git-lfs is smaller, by its specification."""

UNEXPECTED = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""What a file of an unexpected shape makes the functions below raise."""

INDEX = "model.safetensors.index.json"
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


def read(path: Path) -> dict[str, Any]:
    """What the files in a model's folder say, JSON-plain.

    The keys are those of :data:`FACTS` (null: the config says that there is none), unless ``config.json`` describes
    nothing, and ``weights{files missing[] pointers[] empty[] total_mib index_mib}``: names of shards that the index
    names and that are not there, of files that are pointers of git-lfs, of empty files; the size of all in MiB, and
    the one that the index says (null: none). ``error``: why a file could not be read.
    """
    told: dict[str, Any] = {}
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        config, told["error"] = {}, f"config.json: {error}"
    if isinstance(config, dict) and config:
        try:
            told.update(describe(config))
        except UNEXPECTED as error:
            told["error"] = f"config.json: {error!r}"
    try:
        told["weights"] = weights(path)
        told["weights_mib"] = told["weights"]["total_mib"]
    except (OSError, *UNEXPECTED) as error:
        told.setdefault("error", f"weights: {error!r}")
    return told


def describe(config: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a ``config.json``, see :data:`FACTS`, but for the weights'."""
    text: dict[str, Any] = next((config[part] for part in TEXT_PARTS if isinstance(config.get(part), dict)), {})
    said = {**config, **{key: value for key, value in text.items() if value is not None}}
    architectures = config.get("architectures") or text.get("architectures") or []
    heads, kv_heads = _first(said, "num_attention_heads", "n_head"), said.get("num_key_value_heads")
    hidden, layers = _first(said, "hidden_size", "n_embd"), _first(said, "num_hidden_layers", "n_layer")
    experts = _first(said, "n_routed_experts", "num_local_experts", "num_experts")
    head_dim = said.get("head_dim") or (hidden // heads if hidden and heads else None)
    mla = bool(said.get("kv_lora_rank"))
    growing = _growing(said, layers)
    return {
        "architecture": architectures[0] if architectures else None,
        "model_type": said.get("model_type"),
        "attention": "mla" if mla else _kind(heads, kv_heads),
        "sinks": any(name in SINKS for name in architectures) or any(said.get(key) for key in SINK_KEYS),
        "sparse_attention": "dsa" if said.get("index_topk") else None,
        "hybrid": _hybrid(said),
        "moe": bool(experts and experts > 1),
        "experts": experts,
        "experts_active": _first(said, "num_experts_per_tok", "experts_per_token"),
        **quantisation(said),
        "heads": heads,
        "kv_heads": kv_heads if kv_heads is not None else heads,
        "head_dim": head_dim,
        "layers": layers,
        "kv_layers": growing,
        "hidden": hidden,
        "vocab": said.get("vocab_size"),
        "max_context": said.get("max_position_embeddings"),
        "dtype": _first(said, "dtype", "torch_dtype"),
        "kv_lora_rank": said.get("kv_lora_rank"),
        "qk_rope_head_dim": said.get("qk_rope_head_dim"),
    }


def quantisation(said: Mapping[str, Any]) -> dict[str, Any]:
    """Method, bits, format and group size of quantised weights, and the type of KV cache that goes with them.

    compressed-tensors has them in its first group of layers, ModelOpt under names of its own.
    """
    config = said.get("quantization_config") or {}
    config = {**config, **(config.get("quantization") or {})}
    group: Mapping[str, Any] = next(iter((config.get("config_groups") or {}).values()), {})
    of_weights = group.get("weights") or {}
    cache = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    if isinstance(cache, Mapping):
        cache = f"{cache.get('type', '')}{cache.get('num_bits', '')}".replace("float8", "fp8")
    return {
        "quantisation": config.get("quant_method") or ("modelopt" if config.get("quant_algo") else None),
        "bits": _first(config, "bits", "w_bit") or of_weights.get("num_bits"),
        "format": config.get("quant_algo") or config.get("format") or group.get("format") or config.get("fmt"),
        "group_size": config.get("group_size") or of_weights.get("group_size"),
        "kv_cache_dtype": str(cache).lower() if cache else None,
    }


def weights(path: Path) -> dict[str, Any]:
    """Which files of weights are there, as :func:`read` returns it."""
    index = path / INDEX
    said = json.loads(index.read_text(encoding="utf-8")) if index.exists() else {}
    named = sorted(set((said.get("weight_map") or {}).values()))
    names = named or list(_unnamed(path))
    sizes = {name: _size(path / name) for name in names}
    there = {name: size for name, size in sizes.items() if size is not None}
    total = (said.get("metadata") or {}).get("total_size")
    return {
        "files": len(there),
        "missing": [name for name, size in sizes.items() if size is None],
        "pointers": [name for name, size in there.items() if 0 < size < POINTER_SIZE and _is_pointer(path / name)],
        "empty": [name for name, size in there.items() if not size],
        "total_mib": sum(there.values()) // MIB,
        "index_mib": int(total) // MIB if total else None,
    }


def _unnamed(path: Path) -> Iterator[str]:
    """Files of weights where no index names them; of two formats of the same weights the first one."""
    files = sorted(entry.name for entry in path.iterdir() if entry.suffix in WEIGHTS)
    for suffix in WEIGHTS:
        if found := [name for name in files if name.endswith(suffix)]:
            yield from [name for name in found if not name.startswith("consolidated")] or found
            return


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def _is_pointer(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(POINTER)) == POINTER


def _first(said: Mapping[str, Any], *names: str) -> Any:
    """The first of these keys that has a value; models differ in how they call the same thing."""
    return next((said[name] for name in names if said.get(name) is not None), None)


def _kind(heads: int | None, kv_heads: int | None) -> str | None:
    """How query heads share keys and values."""
    if not heads:
        return None
    if kv_heads is None or kv_heads == heads:
        return "mha"
    return "mqa" if kv_heads == 1 else "gqa"


def _hybrid(said: Mapping[str, Any]) -> bool:
    """Whether some layers keep a state of fixed size instead of keys and values."""
    types: Sequence[str] = said.get("layer_types") or said.get("layers_block_type") or []
    if any("linear" in kind or "mamba" in kind for kind in types):
        return True
    keys = ("full_attention_interval", "hybrid_override_pattern", "linear_attn_config", "attn_layer_period")
    return any(said.get(key) for key in keys)


def _growing(said: Mapping[str, Any], layers: int | None) -> int | None:
    """Number of layers whose KV cache grows with the context: all, unless the config says which; None: it is not known.

    Where such layers have heads of their own size (Gemma 4) or cache a compressed context (DeepSeek V4), their number
    would not tell the size of the cache.
    """
    types: Sequence[str] = said.get("layer_types") or said.get("layers_block_type") or []
    if said.get("global_head_dim") or said.get("compress_ratios"):
        return None
    if types:
        return sum(kind in GROWING for kind in types) or layers
    if said.get("hybrid_override_pattern"):
        return str(said["hybrid_override_pattern"]).count("*")
    if layers and said.get("full_attention_interval"):
        return int(layers) // int(said["full_attention_interval"])
    return None if _hybrid(said) else layers
