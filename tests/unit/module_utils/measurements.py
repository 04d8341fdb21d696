"""Measurements as the benchmark records them, with seeded noise."""

from __future__ import annotations

import random
from typing import Any

SENTENCES = [
    f"{start} {middle} {end}, and then the story goes on for a while until it stops here."
    for start, middle, end in [
        ("Paris", "is the", "capital"), ("Six", "seven eight", "nine"), ("There was", "a king", "once"),
        ("Water", "boils at", "hundred degrees"), ("def", "main():", "return"), ("The train", "left at", "noon"),
        ("Blue", "and green", "are colours"), ("Yes", "it does", "work"),
    ]
]  # fmt: skip


def run(rng: random.Random, speed: float, noise: float = 0.015) -> dict[str, Any]:
    """A run at about this many tokens a second."""
    tok_s = speed * rng.lognormvariate(0, noise)
    return {
        "output_tok_s": tok_s,
        "request_s": tok_s / 128,
        "total_tok_s": 5 * tok_s,
        "ttft_ms": {"p50": 9000 / tok_s, "p95": 12000 / tok_s, "p99": 15000 / tok_s},
        "itl_ms": {"p50": 1000 / tok_s, "p95": 1100 / tok_s, "p99": 1300 / tok_s},
        "requests": 8,
        "failed": 0,
        "elapsed_s": 1024 / tok_s,
    }


def measurement(
    seed: int = 1, factor: float = 1.0, runs: int = 5, noise: float = 0.015, **other: Any
) -> dict[str, Any]:
    """A measurement that is ``factor`` times as fast as the usual one; ``other`` are keys that differ."""
    rng = random.Random(seed)
    speeds = {"1": 63.6, "8": 400.0, "128": 1536.0}
    return {
        "event": "measurement",
        "at": "2026-11-30T22:50:00Z",
        "profile": "baseline",
        "model": {"name": "kimi", "path": "/models/kimi", "revision": "abc"},
        "client": {"name": "aiperf", "version": "0.4.0", "lock_id": "0123"},
        "load": {
            "concurrencies": [1, 8, 128], "input_tokens": 512, "output_tokens": 128, "repetitions": runs,
            "requests_per_stream": 2, "min_requests": 8, "seed": 1, "prompts": "0123456789abcdef",
        },
        "hardware": {"gpu_family": "sm120", "gpus": ["NVIDIA RTX PRO 6000"], "driver": "580.95.05"},
        "levels": {level: [run(rng, speed * factor, noise) for _ in range(runs)] for level, speed in speeds.items()},
        "gpus": [],
        "continuations": [SENTENCES, SENTENCES],
        "disturbed": "",
        **other,
    }  # fmt: skip
