"""The parser of the server's flags, where the real engine has it."""

from __future__ import annotations

import argparse

from ironserve_standin.flags import add_flags


class ServerArgs:
    """The server's flags."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Declare the flags on `parser`."""
        add_flags(parser, "sglang")
