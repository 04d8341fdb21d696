"""The probe: asks a server until it generates, and leaves what it finds in a file under /run.

The readiness helper runs it beside the engine. The gate only reads the file; removing it makes the helper ask anew.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

from . import host, ports
from .judge import completion_outcome, model_outcome, proof_outcome
from .processes import PROC

POLL_S = 0.2
HEALTH_TIMEOUT_S = 25.0
"""SGLang's health handler takes one second at least and up to 20 s before it gives up by itself."""

PROMPT = "The capital of France is"
PROOF_PROMPTS = (PROMPT, "1, 2, 3, 4, 5,", "Once upon a time")
PROOF_TOKENS = 16
"""Asked all at once: a batch goes another way through the engine than a single request."""

REAL_BYTES = 256 << 20
"""Weights smaller than this are of no model that serves people; test models have a few MiB of random numbers."""
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


def result_path(service: str, invocation: str) -> Path:
    """Where the probe of one start of a service leaves its result. The folder is the unit's and outlives a start."""
    return host.RUNTIME / service / f"{invocation}.probe.json"


def start_path(service: str, invocation: str) -> Path:
    """Where the helper says what a start shows: phase, ranks, when each signal last moved."""
    return host.RUNTIME / service / f"{invocation}.start.json"


def end_path(service: str, invocation: str) -> Path:
    """Where the helper says that it ended the engine. A file of its own: a question may still be under way."""
    return host.RUNTIME / service / f"{invocation}.end.probe.json"


def read(service: str, invocation: str) -> dict[str, Any]:
    """The probe's result so far: ``health`` (status or text), ``outcome``, ``detail``, ``at`` (monotonic seconds)."""
    ended = _parsed(host.read_foreign(end_path(service, invocation)))
    found = ended or _parsed(host.read_foreign(result_path(service, invocation)))
    proof = found.get("proof")
    texts = {name: str(found[name]) for name in ("outcome", "detail") if found.get(name) is not None}
    health, at = found.get("health"), found.get("at")
    return {
        **texts,
        **({"health": health} if isinstance(health, (int, str)) else {}),
        **({"at": at} if isinstance(at, (int, float)) else {}),
        **({"final": True} if ended and "outcome" in texts else {}),
        **({"proof": {str(name): str(value) for name, value in proof.items()}} if isinstance(proof, dict) else {}),
    }


def read_start(service: str, invocation: str) -> dict[str, Any]:
    """What the helper saw last of a start: ``at`` (monotonic seconds) and the fields of ``judge.Seen``."""
    return _parsed(host.read_foreign(start_path(service, invocation)))


def signals(service: str, invocation: str, at: float) -> dict[str, dict[str, Any]]:
    """How many seconds ago each signal of a start moved (``age_s``), and what it shows, as the helper saw it last."""
    seen = read_start(service, invocation)
    try:
        since = max(0.0, at - float(seen["at"]))
        return {
            str(name): {"age_s": round(float(signal["age_s"]) + since, 1), "what": str(signal["what"])}
            for name, signal in seen["signals"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):  # of the engine's user, too
        return {}


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):  # written by the engine's user: nothing in it is to be relied on
        return {}
    return found if isinstance(found, dict) else {}


def forget(service: str) -> None:
    """Remove what the probes of this and earlier starts left: the helper asks anew. Its last word on a start stays."""
    for file in (host.RUNTIME / service).glob("*[!d].probe.json"):
        with contextlib.suppress(OSError):  # a folder of that name, say: no finding is ever read from it
            file.unlink()


def tidy(service: str, invocation: str) -> None:
    """Remove what was found of earlier starts: files named for their invocation."""
    for pattern in ("*.json", "*.ready"):
        for file in (host.RUNTIME / service).glob(pattern):
            if not file.name.startswith(f"{invocation}."):
                with contextlib.suppress(OSError):
                    file.unlink()


def completion(base: str, model: str, timeout_s: float, key: str = "") -> tuple[str | None, str]:
    """Ask for a few tokens under the expected model name; see ``judge.completion_outcome``."""
    listed = host.get(f"{base}/v1/models", timeout_s, key=key)
    if listed.status == 200:
        outcome, detail = model_outcome(listed.json(), model)
        if outcome:
            return outcome, detail
    answer = generate(base, model, 4, timeout_s, key)
    if answer.status == 0 and "timed out" in answer.text:
        return "generation_dead", f"the endpoint is up, but no completion came in {timeout_s:.0f} s: generation is dead"
    if answer.status == 0:
        return None, answer.text
    return completion_outcome(answer.status, answer.json(), answer.text)


def one_token(release: Mapping[str, Any], timeout_s: float, key: str) -> bool:
    """Whether the server answers a request for a single token in time."""
    return generate(release["url"], release["model_name"], 1, timeout_s, key).status == 200


def proof(release: Mapping[str, Any], timeout_s: float, key: str) -> tuple[str | None, str]:
    """Ask for a few short completions at once; see ``judge.proof_outcome``."""

    def ask(prompt: str) -> host.Answer:
        return generate(release["url"], release["model_name"], PROOF_TOKENS, timeout_s, key, prompt)

    with ThreadPoolExecutor(len(PROOF_PROMPTS)) as pool:
        answers = list(pool.map(ask, PROOF_PROMPTS))
    silent = [answer.text for answer in answers if answer.status == 0]
    if any("timed out" in text for text in silent):
        return (
            "generation_dead",
            f"it gave a first token, and then no answer to {len(silent)} of {len(answers)} requests",
        )
    if silent:
        return None, silent[0]
    return proof_outcome([(answer.status, answer.json(), answer.text) for answer in answers], is_real(release))


def is_real(release: Mapping[str, Any]) -> bool:
    """Whether the model has trained weights, as far as a host can tell: one that is no folder here was fetched."""
    if release.get("flags", {}).get("load-format") == "dummy":
        return False
    folder = Path(release.get("model", {}).get("path", ""))
    if not folder.is_dir():
        return True
    return sum(file.stat().st_size for file in folder.iterdir() if file.suffix in WEIGHTS) >= REAL_BYTES


def foreign_listener(port: int, pids: Iterable[int], proc: Path = PROC) -> bool:
    """Whether somebody listens on the port, and none of these processes does. What answers there is another server."""
    tables = [host.read_text(proc / "net" / name) or "" for name in ("tcp", "tcp6")]
    sockets = {f"socket:[{inode}]" for table in tables for inode in ports.listening_inodes(table, port)}
    if not sockets:
        return False
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in (proc / str(pid) / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) in sockets:
                        return False
    return True


def generate(base: str, model: str, tokens: int, timeout_s: float, key: str, prompt: str = PROMPT) -> host.Answer:
    """The greedy completion of a prompt."""
    request = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    return host.get(f"{base}/v1/completions", timeout_s, request, key)


def watch(
    release: Mapping[str, Any],
    alive: Callable[[], bool],
    invocation: str,
    key: str = "",
    members: Callable[[], Iterable[int]] = tuple,
) -> None:
    """Ask until there is an outcome, the engine is gone, or its time is up. Writes its result at each change.

    A server that gave a token is ``ready``; the ``proof`` that what it says makes sense comes right after.

    Args:
        release: the active release.
        alive: whether the engine's main process is there.
        invocation: systemd's id of this start.
        key: API key that the server wants, or empty.
        members: pids of the unit. Empty: nobody asks who listens on the port.
    """
    service, base = release["service"], release["url"]
    deadline = time.monotonic() + release["startup_timeout_s"] + release["completion_timeout_s"]
    generating_since: float | None = None
    path = result_path(service, invocation)
    result: dict[str, Any] = {"outcome": None}
    while time.monotonic() < deadline and alive():
        before = dict(result)
        health = host.get(f"{base}{release['health_path']}", HEALTH_TIMEOUT_S)
        result["health"] = health.status or health.text
        if health.status and (own := list(members())) and foreign_listener(release["port"], own):
            detail = f"port {release['port']} is answered by a process that is none of this unit's"
            result.update(outcome="foreign_listener", detail=detail)
        elif health.status == 200:
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
            break
        time.sleep(POLL_S)
    if result["outcome"] == "ready":
        _prove(release, alive, key, path, result)


def _prove(release: Mapping[str, Any], alive: Callable[[], bool], key: str, path: Path, result: dict[str, Any]) -> None:
    ends = time.monotonic() + release["completion_timeout_s"]
    outcome, detail = None, ""
    while outcome is None and alive():
        left = ends - time.monotonic()
        outcome, detail = proof(release, max(left, 1.0), key)
        if outcome is None and left <= 0:
            outcome = "busy"
        if outcome is None:
            time.sleep(POLL_S)
    host.write_text(path, json.dumps({**result, "proof": {"outcome": outcome, "detail": detail}}))
