#!/usr/bin/env python3
"""Write a tiny Llama that real engines start on with --load-format dummy: a config and a tokenizer, no weights.

usage: make_tiny_model.py FOLDER

Standard library only, no network, the same bytes every time. The tokenizer is byte-level with no merges: a token is a
byte.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 264
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level BPE: itself if printable, else one from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def files() -> dict[str, Any]:
    """What each file of the model holds."""
    unused = [f"<|unused_{number}|>" for number in range(VOCABULARY - len(SPECIALS) - 256)]
    tokens = [*SPECIALS, *byte_letters(), *unused]
    ends = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-06,
            "tie_word_embeddings": False,
            **ends,
        },
        "generation_config.json": ends,
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False, "special": token in SPECIALS}
                for number, token in enumerate(tokens) if token in SPECIALS or token in unused
            ],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                "vocab": {token: number for number, token in enumerate(tokens)},
                "merges": [],
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[0],
            "eos_token": SPECIALS[2],
            "pad_token": SPECIALS[0],
            "model_max_length": 2048,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT,
        },
    }  # fmt: skip


def write(folder: Path) -> None:
    """Write the model into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    write(Path(sys.argv[1]))
