"""The gate's judgement: from what a unit, its log and its probe show to a verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .logs import Reading
from .slices import duration
from .systemd import exit_text

if TYPE_CHECKING:  # the launcher on hosts has this file and not that one
    from .causes import Cause


class Verdict(NamedTuple):
    """``waiting``, ``ready``, ``failed`` or ``timeout``, with the reason of the last two."""

    verdict: str
    reason: str = ""


def judge(show: Mapping[str, str], probe: Mapping[str, Any], elapsed_s: float, startup_timeout_s: float) -> Verdict:
    """Judge a start.

    Args:
        show: properties of the unit.
        probe: what the probe found: ``outcome`` is None until it knows, else ``ready`` or a kind of failure that
            ``detail`` explains.
        elapsed_s: seconds that count against the limit.
        startup_timeout_s: seconds a start may take in all.
    """
    if show.get("Result") == "start-limit-hit":
        return Verdict("failed", "systemd gave up: it was started too often in a short time")
    state, ended = show.get("ActiveState", ""), exit_text(show)
    running = show.get("MainPID", "0") != "0"
    queued = bool(show.get("Job"))  # systemd has not come to it yet: what it shows is the start before
    if probe.get("outcome") == "stalled":
        return Verdict("failed", str(probe.get("detail", "")))
    if not (running or queued) and (ended or state in ("failed", "inactive")):
        how = f"the engine {ended}" if ended else f"the unit is {state} ({show.get('Result', 'no result')})"
        return Verdict("failed", how)
    if probe.get("outcome") == "ready" and state == "active":
        return Verdict("ready")
    if probe.get("outcome") not in (None, "ready"):
        return Verdict("failed", str(probe.get("detail", "")))
    if elapsed_s >= startup_timeout_s:
        return Verdict("timeout", f"not ready after {duration(startup_timeout_s)} (startup_timeout_s of the profile)")
    return Verdict("waiting")


def completion_outcome(status: int, body: Mapping[str, Any], text: str) -> tuple[str | None, str]:
    """What a completion's answer means: ``(outcome, detail)``; outcome None means ask again.

    A working engine may be busy for a moment (429, 503); any other error is the engine's own word that it cannot.
    """
    if status in (429, 503):
        return None, f"busy ({status})"
    if status == 401:
        return "needs_key", "the server wants an API key (401) that this release does not carry"
    if status != 200:
        message = body.get("error") or body.get("message") or text[:300]
        if isinstance(message, Mapping):
            message = message.get("message", "")
        return "error", f"the endpoint is up, but a completion was answered with {status}: {message}"
    tokens = (body.get("usage") or {}).get("completion_tokens") or 0
    if tokens < 1:
        return "no_tokens", "the endpoint is up, but a completion gave no token"
    return "ready", f"{tokens} tokens"


def model_outcome(body: Mapping[str, Any], expected: str) -> tuple[str | None, str]:
    """Whether the list of models has the expected name: ``(None, "")`` or ``("wrong_model", detail)``."""
    names = [str(entry.get("id")) for entry in body.get("data") or []]
    if expected in names:
        return None, ""
    return "wrong_model", f'the server serves {", ".join(names) or "no model"} and not "{expected}"'


def message(
    service: str,
    verdict: Verdict,
    reading: Reading,
    elapsed_s: float,
    log: str,
    journal: str,
    known: Cause | None = None,
) -> str:
    """What the operator reads after a failed start; ``known`` is the known cause that fits best."""
    where = f", in phase: {reading.phase}" if reading.phase else ""
    lines = [f"{service} did not become ready: {verdict.reason} ({duration(elapsed_s)} after its start{where})."]
    if reading.error:
        lines.append(f"The engine's own error: {reading.error}")
    if known:
        lines += [f"Known cause: {known.cause}", f"What to do: {known.advice}"]
    if reading.tail:
        lines.append(f"Last lines of {log}:")
        lines += [f"    {line}" for line in reading.tail]
    else:
        lines.append(f"{log} has no line of this start; the unit's events: {journal}")
    return "\n".join(lines)
