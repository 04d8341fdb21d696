"""``sglang serve``: the recommended way to start the server."""

from __future__ import annotations

import sys
from typing import NoReturn

from ironserve_standin.sglang import main as serve


def main() -> NoReturn:
    """Entry point of the console script ``sglang``."""
    if sys.argv[1:2] != ["serve"]:
        raise SystemExit("usage: sglang serve --model-path MODEL [options]")
    serve(sys.argv[2:])
