"""The parser of ``vllm serve``, where the real engine has it."""

from __future__ import annotations

from argparse import ArgumentParser

from ironserve_standin.flags import add_flags


def make_arg_parser(parser: ArgumentParser) -> ArgumentParser:
    """Declare the flags of ``vllm serve`` on `parser`."""
    parser.add_argument("model_tag", nargs="?")
    return add_flags(parser, "vllm")
