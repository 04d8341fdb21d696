"""Whether a model is complete, can be divided among the ranks and fits into their memory. Pure; on the controller.

What is not known yields nothing: a model without a ``config.json`` that describes it, GPUs whose memory nobody saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .engines import ENGINES
from .findings import Case, Found
from .rules import UNKNOWN, fact, first

MIB = 1 << 20

FRACTION_FLAG = {"sglang": "mem-fraction-static", "vllm": "gpu-memory-utilization"}
CONTEXT_FLAG = {"sglang": "context-length", "vllm": "max-model-len"}
CONTEXT_PARALLEL_FLAG = {"sglang": "dcp-size", "vllm": "decode-context-parallel-size"}

DEFAULT_FRACTION = {"sglang": 0.9, "vllm": 0.92}
"""Share of a GPU's memory for weights and cache where no flag says it: vLLM's default in 0.30 to 0.33, and about what
SGLang 0.5.23 works out for a GPU of more than 60 GiB (all but 10 GiB)."""

CACHE_BYTES = {"fp8": 1, "int8": 1, "auto": 2, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2}
"""Bytes of a cached number by how its type begins."""

UNKNOWN_SHARE = ("offload", "expert-parallel", "ep-size")
"""Parts of names of flags with which a rank's share of the weights is no simple quotient."""

FROM_SAFETENSORS = ("auto", "safetensors", "fastsafetensors", "instanttensor")
"""Load formats that read the files which the index of safetensors names; others have files of their own."""

TOLD = 3
"""Files that a message names; more do not help."""


def check(case: Case) -> Iterator[Found]:
    """What is wrong with the model for this release: ``model-weights``, ``model-heads``, ``model-fit``."""
    if case.flags.get("load-format", "auto") in FROM_SAFETENSORS:
        yield from _weights(case)
    if case.flags.get("device") != "cpu":
        yield from _heads(case)
        yield from _fit(case)


def _weights(case: Case) -> Iterator[Found]:
    """Files that are missing, empty or pointers, and sizes that cannot be right."""
    found = case.model.get("weights") or {}
    if error := case.model.get("error"):
        yield Found("model-weights", *_model(case), f"what its files say could not be read: {error}", "warning")
    if found.get("files") == 0 and not found.get("missing"):
        yield Found("model-weights", *_model(case), "the folder has no file of weights")
    wrong = {
        "missing": found.get("missing"),
        "pointers of git-lfs, without what they point to": found.get("pointers"),
        "empty": found.get("empty"),
    }
    for what, names in wrong.items():
        if names:
            listed = ", ".join(names[:TOLD]) + (f" and {len(names) - TOLD} more" if len(names) > TOLD else "")
            verb = "file of weights is" if len(names) == 1 else "files of weights are"
            yield Found("model-weights", *_model(case), f"{len(names)} {verb} {what}: {listed}")
    there, said = found.get("total_mib"), found.get("index_mib")
    # Files have headers beside what the index counts, so less than it says is too little; some indexes are stale.
    if there and said and there < said - 1 and not any(wrong.values()):
        yield Found(
            "model-weights",
            *_model(case),
            f"the files of weights have {there:,} MiB together, their index says {said:,} MiB",
            "warning",
            "Compare the files' sizes with where they come from: a copy may have been cut off, or the index is stale.",
        )


def _heads(case: Case) -> Iterator[Found]:
    """Tensor parallelism that does not divide the attention heads."""
    heads, kv_heads = _whole(case.model.get("heads")), _whole(case.model.get("kv_heads"))
    ranks = _attention_ranks(case)
    if not heads or not ranks:
        return
    if heads % ranks:
        yield Found(
            "model-heads", *_tensor_parallel(case), f"{ranks} ranks cannot share {heads} attention heads evenly"
        )
    elif case.model.get("attention") != "mla" and kv_heads and kv_heads % ranks and ranks % kv_heads:
        yield Found(
            "model-heads",
            *_tensor_parallel(case),
            f"{ranks} ranks can neither share {kv_heads} heads of keys and values evenly nor have copies of them",
            "warning",
        )


def _fit(case: Case) -> Iterator[Found]:
    """Weights, or the cache of one request of the longest context, that are larger than the memory meant for them."""
    weights, memory = _whole(case.model.get("weights_mib")), _whole(fact(case, "gpu_memory_mib"))
    ranks, stages = _whole(fact(case, "tensor_parallel")), _whole(fact(case, "pipeline_parallel"))
    if not (weights and memory and ranks and stages) or any(
        word in flag for flag in case.flags for word in UNKNOWN_SHARE
    ):
        return
    fraction = _fraction(case)
    share, meant = weights // (ranks * stages), int(memory * fraction)
    budget = f"{meant:,} MiB are meant for weights and cache ({fraction:g} of the smallest GPU's {memory:,} MiB)"
    divided = f"{weights:,} MiB of files over {ranks * stages} rank{'s' if ranks * stages > 1 else ''}"
    if share > meant:
        yield Found(
            "model-fit", *_memory(case), f"an estimate: the weights take {share:,} MiB a GPU ({divided}), and {budget}"
        )
        return
    context, bytes_per_token = _context(case), _cache_bytes_per_token(case)
    if not context or not bytes_per_token:
        return
    needed, left = context * bytes_per_token // MIB, meant - share
    tokens = left * MIB // bytes_per_token // 1000 * 1000
    if needed > left:
        yield Found(
            "model-fit",
            *_memory(case),
            f"an estimate: the cache of one request of {context:,} tokens takes {needed:,} MiB a GPU, and beside the "
            f"weights ({share:,} MiB: {divided}) {left:,} MiB are left for about {tokens:,} tokens; "
            f"{budget}",
            # SGLang starts all the same and refuses only longer requests; vLLM does not start.
            "note" if case.engine == "sglang" else "",
        )


def _cache_bytes_per_token(case: Case) -> int:
    """Bytes that a token takes in a rank's KV cache; 0 where the model's files do not tell.

    MLA caches one latent a layer in each rank; other attention its keys and values, of which a rank has its share, one
    head at least. Sliding windows, states of linear layers and indexers are left out.
    """
    model, width = case.model, _cache_width(case)
    layers, stages = _whole(model.get("kv_layers")), _whole(fact(case, "pipeline_parallel"))
    if not layers or not stages or model.get("sparse_attention"):
        return 0
    if model.get("attention") == "mla":
        numbers = _whole(model.get("kv_lora_rank")) + _whole(model.get("qk_rope_head_dim"))
    else:
        kv_heads, ranks = _whole(model.get("kv_heads")), _attention_ranks(case)
        numbers = 2 * max(1, kv_heads // ranks) * _whole(model.get("head_dim")) if kv_heads and ranks else 0
    parallel = _whole(case.flags.get(CONTEXT_PARALLEL_FLAG[case.engine], 1)) or 1
    return numbers * -(-layers // stages) * width // parallel


def _cache_width(case: Case) -> int:
    """Bytes of a cached number; 0 for a type that is not known."""
    said = str(case.flags.get("kv-cache-dtype", "auto")).lower()
    if said == "auto":
        said = str(case.model.get("kv_cache_dtype") or said)
    return next((width for name, width in CACHE_BYTES.items() if said.startswith(name)), 0)


def _attention_ranks(case: Case) -> int:
    """Ranks among which the attention heads are divided; 0 where that is not known.

    With data parallel attention each group of ranks has all heads.
    """
    ranks = _whole(fact(case, "tensor_parallel"))
    if "attn-cp-size" in case.flags:
        return 0
    engine = ENGINES[case.engine]
    if any(case.flags.get(name) is True for name in engine.DATA_PARALLEL_INSIDE):
        ranks //= _whole(first(case, engine.PARALLEL_FLAGS[2]) or 1) or 1
    return ranks // (_whole(first(case, engine.ATTENTION_DATA_PARALLEL)) or 1)


def _context(case: Case) -> int:
    """Tokens of the longest request, as a flag says, else as the model does; 0 where the engine fits it to memory."""
    said = case.flags.get(CONTEXT_FLAG[case.engine])
    return _whole(case.model.get("max_context")) if said is None else _whole(said)


def _fraction(case: Case) -> float:
    try:
        return float(str(case.flags[FRACTION_FLAG[case.engine]]))
    except (KeyError, ValueError):
        return DEFAULT_FRACTION[case.engine]


def _whole(value: Any) -> int:
    """A whole number above 0; 0 for anything else, known or not."""
    return int(str(value)) if value is not UNKNOWN and str(value).isdecimal() else 0


def _model(case: Case) -> tuple[str, str]:
    return f"host {case.host}", str(case.release["model"]["path"])


def _tensor_parallel(case: Case) -> tuple[str, str]:
    return _place(case, ENGINES[case.engine].PARALLEL_FLAGS[0])


def _memory(case: Case) -> tuple[str, str]:
    flags = (CONTEXT_FLAG[case.engine], FRACTION_FLAG[case.engine], *ENGINES[case.engine].PARALLEL_FLAGS[0])
    return _place(case, flags)


def _place(case: Case, flags: Sequence[str]) -> tuple[str, str]:
    """Where the first of these flags comes from; the model where there is none."""
    return next((case.place_of_flag(name) for name in flags if name in case.flags), _model(case))
