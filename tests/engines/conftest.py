"""Start stand-in engines from their wheel, and end every process that came of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
sys.path.insert(0, str(Path(__file__).parent))
from build_standin import build
from standin_server import PATIENCE_S, Running, Start, free_port


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in installed from its wheel, as an installer does it."""
    folder = tmp_path_factory.mktemp("site")
    wheel = build(tmp_path_factory.mktemp("wheel"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, str(wheel)], check=True)
    return folder


@pytest.fixture
def start(site: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a server: ``start("vllm", behaviour={...}, flags=[...], env={...})``. All of it is killed in the end."""
    started: list[Running] = []

    def begin(
        engine: str,
        behaviour: dict[str, Any] | None = None,
        flags: list[str] | None = None,
        env: dict[str, str] | None = None,
        port: int = 0,
        model: Path | None = None,
    ) -> Running:
        folder = model or tmp_path / f"model-{len(started)}"
        if model is None:
            folder.mkdir()
        if behaviour is not None:
            (folder / "standin.yml").write_text(yaml.safe_dump(behaviour))
        port = port or free_port()
        log = tmp_path / f"engine-{len(started)}.log"
        program = {
            "vllm": [str(site / "bin" / "vllm"), "serve", str(folder)],
            "sglang": ["-m", "sglang.launch_server", "--model-path", str(folder)],
            "sglang serve": [str(site / "bin" / "sglang"), "serve", "--model-path", str(folder)],
        }[engine]
        command = [sys.executable, *program, "--host", "127.0.0.1", "--port", str(port), *(flags or [])]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(site), **(env or {})},
                start_new_session=True,
            )
        started.append(Running(engine.split(maxsplit=1)[0], process, port, log, time.monotonic()))
        return started[-1]

    yield begin
    for server in started:
        # The group is the server's own; a child that outlived the server is in it as well. Not pid by pid: a child that
        # was just forked has its parent's command line, and one that is forked meanwhile is in no list.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)  # lint_kill: see above
        server.process.wait(PATIENCE_S)
