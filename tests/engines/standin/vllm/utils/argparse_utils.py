"""The kind of parser that vLLM uses, where the real engine has it."""

from ironserve_standin.flags import FlexibleFlagParser as FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
