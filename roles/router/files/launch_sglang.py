"""Starts sglang-router under the Python of its environment: ``launch_sglang.py SETTINGS ADMITTED UNIT``.

Its API key has no variable, and an argument can be read by every user of the host: here it never leaves the process.
The servers that it is meant to send requests to are read from a file, since it forgets them when it restarts.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START_LOOK_S = 1
"""Between two tries at a server that does not answer yet: a second after it serves it gets requests."""

START_TIMEOUT_S = 300
"""A server that does not answer for so long after the router was asked to add it has to be admitted anew."""


def arguments(settings: Mapping[str, Any], workers: Sequence[str]) -> list[str]:
    """The router's arguments, which only its own parser sees."""
    words = {
        "host": settings["host"],
        "port": settings["port"],
        "policy": settings["policy"],
        "prometheus-host": settings["metrics_host"],
        "prometheus-port": settings["metrics_port"],
        "health-check-interval-secs": settings["health_interval_s"],
        "worker-startup-check-interval": START_LOOK_S,
        "worker-startup-timeout-secs": START_TIMEOUT_S,
        "shutdown-grace-period-secs": settings["grace_s"],
        "log-level": "warn",  # at info it writes several lines a request
    }
    argv = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    if settings.get("api_key"):
        argv += [f"--api-key={settings['api_key']}"]  # in one word: a key may begin with a dash
    return [*argv, "--worker-urls", *workers] if workers else argv


def read(path: str, otherwise: str) -> Any:
    """JSON from a file; a router that nobody has admitted a server to yet has no second one."""
    file = Path(path)
    return json.loads(file.read_text(encoding="utf-8") if file.exists() else otherwise)


def digests(paths: Sequence[str]) -> dict[str, str]:
    """What this process was made from: whoever changes one of these files sees that it runs with the old one."""
    return {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths}


def main(settings: str, admitted: str, unit: str) -> None:
    """Become the router."""
    from sglang_router.launch_router import launch_router, parse_router_args  # noqa: PLC0415  only its Python has it

    record = Path(os.environ["RUNTIME_DIRECTORY"]) / "read.json"
    record.write_text(json.dumps(digests((settings, __file__, unit))), encoding="utf-8")
    launch_router(parse_router_args(arguments(read(settings, "{}"), read(admitted, "[]"))))


if __name__ == "__main__":
    main(*sys.argv[1:])
