"""The probe: asks a starting server until it generates, and leaves what it finds in a file under /run.

It runs beside the module that started it, detached, so that neither the end of a slice nor a lost connection costs an
answer that is under way: the first completion of a cold engine may take minutes.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from . import host
from .judge import completion_outcome, model_outcome

POLL_S = 0.2
HEALTH_TIMEOUT_S = 25.0
"""SGLang's health handler takes one second at least and up to 20 s before it gives up by itself."""

PROMPT = "The capital of France is"


def result_path(service: str, invocation: str) -> Path:
    """Where the probe of one start of a service leaves its result."""
    return host.RUNTIME / f"{service}.{invocation}.probe.json"


def read(service: str, invocation: str) -> dict[str, Any]:
    """The probe's result so far: ``health`` (status or text), ``outcome``, ``detail``, ``at`` (monotonic seconds)."""
    text = host.read_text(result_path(service, invocation))
    return json.loads(text) if text else {}


def forget(service: str) -> None:
    """Remove what the probes of earlier starts left."""
    for file in host.RUNTIME.glob(f"{service}.*.probe.json"):
        file.unlink(missing_ok=True)


def running(result: dict[str, Any]) -> bool:
    """Whether the process that writes this result still lives."""
    return bool(result) and host.start_ticks(result["pid"]) == result["start_ticks"]


def completion(base: str, model: str, timeout_s: float) -> tuple[str | None, str]:
    """Ask for a few tokens under the expected model name; see ``judge.completion_outcome``."""
    listed = host.get(f"{base}/v1/models", timeout_s)
    if listed.status == 200:
        outcome, detail = model_outcome(listed.json(), model)
        if outcome:
            return outcome, detail
    request = {"model": model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    answer = host.get(f"{base}/v1/completions", timeout_s, request)
    if answer.status == 0 and "timed out" in answer.text:
        return "generation_dead", f"the endpoint is up, but no completion came in {timeout_s:.0f} s: generation is dead"
    if answer.status == 0:
        return None, answer.text
    return completion_outcome(answer.status, answer.json(), answer.text)


def watch(release: dict[str, Any], main_pid: int, invocation: str) -> None:
    """Ask until there is an outcome, the engine is gone, or its time is up. Writes its result at each change."""
    service, base = release["service"], release["url"]
    engine_ticks = host.start_ticks(main_pid)
    deadline = time.monotonic() + release["startup_timeout_s"] + release["completion_timeout_s"]
    generating_since: float | None = None
    result: dict[str, Any] = {"pid": os.getpid(), "start_ticks": host.start_ticks(os.getpid()), "outcome": None}
    # Before the first question: as long as there is no result, whoever looks starts another probe.
    host.write_text(result_path(service, invocation), json.dumps(result), mode=0o600)
    while time.monotonic() < deadline and engine_ticks and host.start_ticks(main_pid) == engine_ticks:
        before = dict(result)
        health = host.get(f"{base}{release['health_path']}", HEALTH_TIMEOUT_S)
        result["health"] = health.status or health.text
        if health.status == 200:
            now = time.monotonic()
            generating_since = generating_since or now
            left = generating_since + release["completion_timeout_s"] - now
            result["outcome"], result["detail"] = completion(base, release["model_name"], max(left, 1.0))
            if result["outcome"] is None and left <= 0:
                result["outcome"] = "generation_dead"
        elif health.status == 500:
            result.update(outcome="engine_dead", detail=f"health answers 500, the engine is dead: {health.text[:300]}")
        if result != before:
            result["at"] = time.monotonic()
            host.write_text(result_path(service, invocation), json.dumps(result), mode=0o600)
        if result["outcome"]:
            return
        time.sleep(POLL_S)


def detach(release: dict[str, Any], main_pid: int, invocation: str) -> None:
    """Run :func:`watch` in a process of its own that outlives this one."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.closerange(3, 256)
    try:
        watch(release, main_pid, invocation)
    finally:
        os._exit(0)
