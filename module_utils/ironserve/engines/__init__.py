"""What Ironserve knows of each engine: one file an engine, the same functions in each."""

from __future__ import annotations

from types import ModuleType

from . import sglang, vllm

ENGINES: dict[str, ModuleType] = {"sglang": sglang, "vllm": vllm}
