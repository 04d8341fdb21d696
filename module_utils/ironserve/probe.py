"""The probe: asks a server until it generates, and leaves what it finds in a file under /run.

The readiness helper runs it beside the engine. The gate only reads the file; removing it makes the helper ask anew.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from . import host
from .judge import completion_outcome, model_outcome

POLL_S = 0.2
HEALTH_TIMEOUT_S = 25.0
"""SGLang's health handler takes one second at least and up to 20 s before it gives up by itself."""

PROMPT = "The capital of France is"


def result_path(service: str, invocation: str) -> Path:
    """Where the probe of one start of a service leaves its result. The folder is the unit's and outlives a start."""
    return host.RUNTIME / service / f"{invocation}.probe.json"


def end_path(service: str, invocation: str) -> Path:
    """Where the helper says that it ended the engine. A file of its own: a question may still be under way."""
    return host.RUNTIME / service / f"{invocation}.end.probe.json"


def read(service: str, invocation: str) -> dict[str, Any]:
    """The probe's result so far: ``health`` (status or text), ``outcome``, ``detail``, ``at`` (monotonic seconds)."""
    ended = host.read_foreign(end_path(service, invocation))
    try:
        found = json.loads(ended or host.read_foreign(result_path(service, invocation)) or "{}")
    except ValueError:  # written by the engine's user: nothing in it is to be relied on
        return {}
    return found if isinstance(found, dict) else {}


def forget(service: str) -> None:
    """Remove what the probes of this and earlier starts left: the helper asks anew."""
    for file in (host.RUNTIME / service).glob("*.probe.json"):
        with contextlib.suppress(OSError):  # a folder of that name, say: no finding is ever read from it
            file.unlink()


def completion(base: str, model: str, timeout_s: float, key: str = "") -> tuple[str | None, str]:
    """Ask for a few tokens under the expected model name; see ``judge.completion_outcome``."""
    listed = host.get(f"{base}/v1/models", timeout_s, key=key)
    if listed.status == 200:
        outcome, detail = model_outcome(listed.json(), model)
        if outcome:
            return outcome, detail
    answer = _generate(base, model, 4, timeout_s, key)
    if answer.status == 0 and "timed out" in answer.text:
        return "generation_dead", f"the endpoint is up, but no completion came in {timeout_s:.0f} s: generation is dead"
    if answer.status == 0:
        return None, answer.text
    return completion_outcome(answer.status, answer.json(), answer.text)


def one_token(release: Mapping[str, Any], timeout_s: float, key: str) -> bool:
    """Whether the server answers a request for a single token in time."""
    return _generate(release["url"], release["model_name"], 1, timeout_s, key).status == 200


def _generate(base: str, model: str, tokens: int, timeout_s: float, key: str) -> host.Answer:
    request = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0}
    return host.get(f"{base}/v1/completions", timeout_s, request, key)


def watch(release: Mapping[str, Any], alive: Callable[[], bool], invocation: str, key: str = "") -> None:
    """Ask until there is an outcome, the engine is gone, or its time is up. Writes its result at each change."""
    service, base = release["service"], release["url"]
    deadline = time.monotonic() + release["startup_timeout_s"] + release["completion_timeout_s"]
    generating_since: float | None = None
    path = result_path(service, invocation)
    result: dict[str, Any] = {"outcome": None}
    while time.monotonic() < deadline and alive():
        before = dict(result)
        health = host.get(f"{base}{release['health_path']}", HEALTH_TIMEOUT_S)
        result["health"] = health.status or health.text
        if health.status == 200:
            now = time.monotonic()
            if generating_since is None:
                generating_since = now
                host.write_text(path, json.dumps(result))  # it answers: what comes now may take long
            left = generating_since + release["completion_timeout_s"] - now
            result["outcome"], result["detail"] = completion(base, release["model_name"], max(left, 1.0), key)
            if result["outcome"] is None and left <= 0:
                result["outcome"] = "generation_dead"
        elif health.status == 500:
            result.update(outcome="engine_dead", detail=f"health answers 500, the engine is dead: {health.text[:300]}")
        if result != before:
            result["at"] = time.monotonic()
            host.write_text(path, json.dumps(result))
        if result["outcome"]:
            return
        time.sleep(POLL_S)
