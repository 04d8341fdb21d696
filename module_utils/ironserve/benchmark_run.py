"""What the unit of a measurement runs: all runs one after the other, each finished one a line in a file.

It needs nobody who watches. A module reads the file, so that a lost connection loses nothing.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

from . import aside, client, continuations, gpu_samples, host, prompts, secrets
from .engines import ENGINES
from .prompts import WARM_UP
from .readiness import samples

STEPS, SAMPLES, PLAN = "steps.jsonl", "samples.jsonl", "plan.json"
"""Files in the folder of a measurement."""

ASK_S = 5.0
TOLD_S = 3.0
"""An engine counts a request a moment after it has answered it."""
POLL_S = 0.2
TAIL_LINES = 5

Tell = Callable[..., None]


def order(load: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Repetition and level of each run: every level once, then all again, so that a drift is in all levels."""
    for repetition in range(WARM_UP, load["repetitions"]):
        for level in load["concurrencies"]:
            yield repetition, level


def main(argv: list[str]) -> None:
    """Measure as the plan in a folder says; the folder is the argument."""
    folder = Path(argv[1])
    plan = json.loads((folder / PLAN).read_text())
    key = api_key(plan["release"])
    sampler = gpu_samples.start(folder / SAMPLES)
    with (folder / STEPS).open("a") as out:

        def tell(step: str, **what: Any) -> None:
            out.write(json.dumps({"step": step, **what}) + "\n")
            out.flush()

        try:
            measure(plan, key, folder, tell)
            tell("end")
        except (continuations.ContinuationError, client.ResultError, OSError) as error:
            tell("failed", msg=secrets.redact(str(error), [key] if key else []))
        finally:
            aside.end(sampler)


def api_key(release: Mapping[str, Any]) -> str:
    """The key that the server wants, from the files that it reads."""
    paths = (secrets.env_path(release["service"]), secrets.config_path(release["service"]))
    env, config = (host.read_text(Path(path)) or "" for path in paths)
    return secrets.api_key(release["engine"], (env, config))


def measure(plan: Mapping[str, Any], key: str, folder: Path, tell: Tell) -> None:
    """Ask for the continuations, then do all runs; tell of each thing that is done."""
    release, load = plan["release"], plan["load"]
    before = counted(release, key)
    tell("counted", requests=before)
    texts = continuations.ask(release, key)
    tell("continuations", texts=texts)
    sent = sum(map(len, texts))
    for repetition, level in order(load):
        tell("begin", repetition=repetition, level=level, at=time.monotonic())
        began = time.monotonic()
        run = one_run(plan, key, folder, level, repetition)
        tell("run", repetition=repetition, level=level, began=began, ended=time.monotonic(), run=run)
        sent += run["requests"]
    until = time.monotonic() + TOLD_S
    after = counted(release, key)
    while before is not None and after is not None and after - before < sent and time.monotonic() < until:
        time.sleep(POLL_S)
        after = counted(release, key)
    tell("counted", requests=after, sent=sent)


def one_run(plan: Mapping[str, Any], key: str, folder: Path, level: int, repetition: int) -> dict[str, Any]:
    """Have the client do one run; raises ``client.ResultError`` where it gave no figures."""
    release, load = plan["release"], plan["load"]
    texts = prompts.of_run(load, level, repetition)
    asked, result, log = folder / "prompts.jsonl", folder / "result.json", folder / "client.log"
    result.unlink(missing_ok=True)
    client.write_prompts(asked, texts, load)
    argv = client.command(
        plan["environment"], release["url"], release["model_name"], asked, level, len(texts), load, result
    )  # fmt: skip
    own = {"HOME": str(folder), "PATH": f"{plan['environment']}/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    with log.open("w") as out:
        done = subprocess.run(
            argv, env={**own, **client.env(key)}, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            check=False,
        )  # fmt: skip
    where = f"{level} at a time, {'warm-up' if repetition == WARM_UP else f'repetition {repetition + 1}'}"
    if done.returncode:
        said = " | ".join(log.read_text(errors="replace").split("\n")[-TAIL_LINES:]).strip(" |")
        raise client.ResultError(f"{where}: {client.NAME} ended with status {done.returncode}: {said}")
    try:
        return client.parse(host.read_text(result) or "")
    except client.ResultError as error:
        raise client.ResultError(f"{where}: {error}") from error


def counted(release: Mapping[str, Any], key: str) -> float | None:
    """How many requests the engine says that it has answered; None where it does not say."""
    answer = host.get(f"{release['url']}/metrics", ASK_S, key=key)
    return samples(answer.text).get(ENGINES[release["engine"]].FINISHED_METRIC) if answer.status == 200 else None
