"""The one judge of a start: from what unit, log, processes and answers show to a verdict. Pure.

The readiness helper asks it beside the engine, and ends what is hung or broken; the gate and ``status`` read what the
helper found, and add what only systemd knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .logs import Reading, folded
from .slices import duration
from .systemd import exit_text

if TYPE_CHECKING:  # the launcher on hosts has this file and not that one
    from .causes import Cause
    from .ranks import Ranks

FATAL_GRACE_S = 3.0
"""An engine that said its last word mostly ends by itself within this, and its status says more."""
LOST_GRACE_S = 2.0
"""So does one of which a process died; what the others still show is evidence, so the wait is short."""

SERVING_LOST_GRACE_S = 30.0
"""One that served gets the time to end by itself, with its own words in its log."""
INCOMPLETE_GRACE_S = 5.0

START_LIMIT = "systemd gave up: it was started too often in a short time"

BAD = ("failed", "stalled", "timeout")

SHOWN_LINES = 12
"""Of the log, in a message; the evidence has more."""

REPETITION_TOKENS = 8
"""Shorter texts may repeat themselves and be right."""


class Verdict(NamedTuple):
    """``waiting``, ``ready``, ``failed``, ``stalled`` or ``timeout``, with the reason of the last three."""

    verdict: str
    reason: str = ""


class Seen(NamedTuple):
    """What a start showed at its last look.

    Attributes:
        phase, progress: where the log says it is, ``capturing CUDA graphs`` and ``3/52``.
        elapsed_s, limit_s: since it began, and how long it may take in all.
        stalled: nothing moved for ``stall_s``, the limit of this phase.
        signals: when each signal last moved and what it shows, see ``progress.Progress.plain``.
        described: the same in words.
        ranks: how many ranks are there, and who died, in words.
        died: who died, in words; empty if nobody did.
        lost_s: seconds since one of the engine's processes died, 0 if none did.
        missing: ranks that there have to be and are not.
        generates_s: seconds since it gave a token, 0 before.
        fatal, fatal_s: why this start never serves, as a line of its log says, and seconds since that was read.
    """

    phase: str = ""
    progress: str = ""
    elapsed_s: float = 0.0
    limit_s: float = 0.0
    stalled: bool = False
    stall_s: float = 0.0
    signals: Mapping[str, Mapping[str, Any]] = {}
    described: str = ""
    ranks: str = ""
    died: str = ""
    lost_s: float = 0.0
    missing: int = 0
    generates_s: float = 0.0
    fatal: str = ""
    fatal_s: float = 0.0


def judge_start(seen: Seen) -> Verdict:
    """Judge a start from beside the engine; never ``ready``, which only an answer shows."""
    if seen.fatal and seen.fatal_s >= FATAL_GRACE_S:
        return Verdict("failed", f"its log says that {seen.fatal}")
    if seen.lost_s >= LOST_GRACE_S:
        return _lost(seen.ranks)
    if seen.stalled:
        limit = f"stall_timeout_s of the profile is {duration(seen.stall_s)}"
        return Verdict("stalled", f"it hangs, nothing moves any more: {seen.described}; {limit}")
    if seen.elapsed_s >= seen.limit_s:
        return Verdict("timeout", f"not ready after {duration(seen.limit_s)} (startup_timeout_s, completion_timeout_s)")
    if seen.generates_s >= INCOMPLETE_GRACE_S and seen.missing:
        return Verdict("failed", f"it generates, and not all of its ranks are there: {seen.ranks}")
    return Verdict("waiting")


def judge_ranks(ranks: Ranks, at: float) -> Verdict:
    """Judge the processes of an engine that serves: one that lost any does not come back by itself."""
    return _lost(ranks.said()) if ranks.lost_for_s(at) >= SERVING_LOST_GRACE_S else Verdict("waiting")


def _lost(ranks: str) -> Verdict:
    return Verdict("failed", f"part of the engine is gone, which never comes back: {ranks}")


def judge(show: Mapping[str, str], probe: Mapping[str, Any], elapsed_s: float, startup_timeout_s: float) -> Verdict:
    """Judge a start.

    Args:
        show: properties of the unit.
        probe: what the probe found: ``outcome`` is None until it knows, else ``ready`` or a kind of failure that
            ``detail`` explains. ``died``: processes of the engine that were seen to die before it ended. ``fatal``: why
            it never serves, as its log says.
        elapsed_s: seconds that count against the limit.
        startup_timeout_s: seconds a start may take in all.
    """
    if show.get("Result") == "start-limit-hit":
        return Verdict("failed", START_LIMIT)
    state, ended = show.get("ActiveState", ""), exit_text(show)
    running = show.get("MainPID", "0") != "0"
    queued = bool(show.get("Job"))  # systemd has not come to it yet: what it shows is the start before
    if probe.get("final"):  # the helper's last word, before it ends the engine
        return Verdict(str(probe["outcome"]) if probe["outcome"] in BAD else "failed", str(probe.get("detail", "")))
    if not (running or queued) and (ended or state in ("failed", "inactive")):
        after = f", after {probe['died']} died" if probe.get("died") else ""
        said = f"; its log says that {probe['fatal']}" if probe.get("fatal") else ""
        how = (
            f"the engine {ended}{after}{said}" if ended else f"the unit is {state} ({show.get('Result', 'no result')})"
        )
        return Verdict("failed", how)
    proof = probe.get("proof") or {}
    if probe.get("outcome") == "ready" and proof.get("outcome", "ready") != "ready":
        return Verdict("failed", str(proof.get("detail", "")))
    if probe.get("outcome") == "ready" and state == "active" and proof:
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


def proof_outcome(answers: Sequence[tuple[int, Mapping[str, Any], str]], is_real: bool) -> tuple[str | None, str]:
    """What a few short completions show of a server that generates: ``(outcome, detail)``; None means ask again.

    Args:
        answers: of each completion status, body and text of the answer.
        is_real: the model has trained weights. One made for tests says anything.
    """
    texts = []
    for status, body, text in answers:
        outcome, detail = completion_outcome(status, body, text)
        if outcome != "ready":
            return outcome, detail
        choice = (body.get("choices") or [{}])[0]
        if choice.get("finish_reason") not in ("stop", "length"):
            return "bad_finish", f"a completion ended for a reason that is none: {choice.get('finish_reason')}"
        texts.append((str(choice.get("text") or ""), int(body["usage"]["completion_tokens"])))
    if is_real and texts and all(tokens >= REPETITION_TOKENS and repeats_itself(text) for text, tokens in texts):
        shown = ", ".join(f'"{text[:24]}"' for text, _ in texts)
        return "degenerate", f"it generates, but nonsense: every completion repeats itself ({shown})"
    return "ready", f"{len(texts)} completions"


def repeats_itself(text: str) -> bool:
    """Whether a text is one short piece again and again, such as ``!!!!!!!!``, or nothing but blanks.

    So talks a model whose numbers went wrong, by a broken kernel or a wrong quantisation.
    """
    piece = text.strip()
    return not piece or any(
        piece == (piece[:size] * len(piece))[: len(piece)] for size in range(1, len(piece) // 4 + 1)
    )


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
    where = f", in phase: {f'{reading.phase} {reading.progress}'.strip()}" if reading.phase else ""
    lines = [f"{service} did not become ready: {verdict.reason} ({duration(elapsed_s)} after its start{where})."]
    if reading.error:
        lines.append(f"The engine's own error: {reading.error}")
    if known:
        lines += [f"Known cause: {known.cause}", f"What to do: {known.advice}"]
    if reading.tail:
        lines.append(f"Last lines of {log}:")
        lines += [f"    {line}" for line in folded(reading.tail, SHOWN_LINES)]
    else:
        lines.append(f"{log} has no line of this start; the unit's events: {journal}")
    return "\n".join(lines)
