"""Greedy answers to a few fixed prompts: by them a measurement shows that a server says what its model says.

They are asked one at a time, so that nothing but the server itself makes two answers differ, and twice, so that it is
known how well it agrees with itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from . import probe

PROMPTS = (
    "The capital of France is",
    "1, 2, 3, 4, 5,",
    "Once upon a time",
    "Water boils at a temperature of",
    "The first president of the United States was",
    "To make a cup of tea, first",
    "The opposite of hot is",
    "def fibonacci(n):",
)
"""Never changed: a recorded baseline has the answers to them."""

TOKENS = 32
TIMES = 2
TIMEOUT_S = 120.0


class ContinuationError(Exception):
    """A prompt had no answer; the text is for an operator."""


def ask(
    release: Mapping[str, Any], key: str, generate: Callable[..., Any] = probe.generate, timeout_s: float = TIMEOUT_S
) -> list[list[str]]:
    """The answers to all prompts, asked :data:`TIMES` times. Raises ContinuationError."""
    return [[_one(release, key, prompt, generate, timeout_s) for prompt in PROMPTS] for _ in range(TIMES)]


def _one(release: Mapping[str, Any], key: str, prompt: str, generate: Callable[..., Any], timeout_s: float) -> str:
    answer = generate(release["url"], release["model_name"], TOKENS, timeout_s, key, prompt)
    choices = answer.json().get("choices")
    if answer.status != 200 or not choices:
        status = f"status {answer.status}: " if answer.status else ""
        raise ContinuationError(f'no answer to the prompt "{prompt}": {status}{answer.text[:200]}')
    return str(choices[0].get("text", ""))
