"""Generate tokens at a given speed, one collective step of the children per token, and count what was done."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable

from .behaviour import Behaviour, option_s
from .processes import STEP, ChildDiedError, Crew

#: Without a limit from the client an answer has this many tokens and ends by itself.
OWN_LENGTH = 16
#: A line about decoding every so many tokens.
DECODE_LOG_INTERVAL = 40
#: Words of the answers; the n-th token after the same prompt is always the same, as in greedy decoding.
VOCABULARY = [f" w{number}" for number in range(97)]


class EngineDeadError(Exception):
    """The process that generates is gone."""


class GenerationFailedError(Exception):
    """The behaviour makes every request fail inside the server."""


@dataclass
class Stats:
    """What the metrics endpoints show. Written by request threads under one lock."""

    running: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    #: Grows with every token, and only when a request is finished: the engines differ in which one they show.
    generated: int = 0
    generated_finished: int = 0
    throughput: float = 0.0
    finished: dict[str, int] = field(default_factory=lambda: {"length": 0, "stop": 0, "abort": 0})
    times: dict[str, list[float]] = field(default_factory=lambda: {"ttft": [], "itl": [], "e2e": [], "queue": []})


@dataclass
class Request:
    """One request for text."""

    prompt_tokens: int
    limit: int
    limited_by_client: bool
    seed: int
    health_probe: bool = False


@dataclass
class Generator:
    """Makes the tokens of all requests."""

    behaviour: Behaviour
    crew: Crew
    log_decode: Callable[[int], None]
    stats: Stats = field(default_factory=Stats)
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Set when requests in flight shall end at once.
    aborting: threading.Event = field(default_factory=threading.Event)
    #: Until the server is ready only its own warm-up generates, and that goes well.
    ready: bool = False

    def tokens(self, request: Request) -> Iterator[tuple[str, str]]:
        """Yield each token with the reason of the end, empty but for the last one.

        Raises:
            EngineDeadError: a process of the engine is gone.
            GenerationFailedError: by behaviour.
        """
        began = last = time.monotonic()
        reason = ""
        made = 0
        with self.lock:
            self.stats.running += 1
        try:
            self._misbehave(request)
            while not reason:
                self._pause(made)
                self._step()
                now = time.monotonic()
                self._count_token(request, made, now - last, now - began)
                token = self.behaviour.option("text", VOCABULARY[(request.seed + made) % len(VOCABULARY)])
                made += 1
                last = now
                reason = self._reason(request, made)
                yield token, reason
        finally:
            with self.lock:
                self.stats.running -= 1
                if not request.health_probe:
                    self._count_end(reason or "abort", made, time.monotonic() - began)

    def _reason(self, request: Request, made: int) -> str:
        """Why the request ends after `made` tokens; empty if it goes on."""
        if self.aborting.is_set():
            return "abort"
        if made < request.limit:
            return ""
        return str(self.behaviour.option("finish_reason", "length" if request.limited_by_client else "stop"))

    def _misbehave(self, request: Request) -> None:
        if not self.ready:
            return
        if self.behaviour.first_request == "kills" and not request.health_probe:
            self.crew.children[0].signal(9)
        if self.behaviour.completion == "never":
            self.aborting.wait()
        if self.behaviour.completion == "error_500":
            raise GenerationFailedError("stand-in: every request fails")
        time.sleep(option_s(self.behaviour.completion, "slow_s"))

    def _pause(self, number: int) -> None:
        if number == 0:
            time.sleep(self.behaviour.ttft_s)
        elif self.behaviour.tokens_per_s:
            time.sleep(1 / self.behaviour.tokens_per_s)

    def _step(self) -> None:
        try:
            self.crew.order(STEP)
        except ChildDiedError:
            raise EngineDeadError from None

    def _count_token(self, request: Request, number: int, gap_s: float, since_start_s: float) -> None:
        if request.health_probe:
            return
        with self.lock:
            if number == 0:
                self.stats.prompt_tokens += request.prompt_tokens
                self.stats.times["ttft"].append(gap_s)
                self.stats.times["queue"].append(0.0)
            else:
                self.stats.times["itl"].append(gap_s)
                self.stats.throughput = self.stats.running * number / max(since_start_s, 1e-6)
            self.stats.generated += 1
            due = self.stats.generated % DECODE_LOG_INTERVAL == 0
        if due:
            self.log_decode(self.stats.generated)

    def _count_end(self, reason: str, made: int, took_s: float) -> None:
        self.stats.requests += 1
        self.stats.generated_finished += made
        self.stats.finished[reason] += 1
        self.stats.times["e2e"].append(took_s)


def text_tokens(prompt: Any) -> int:
    """How many tokens a prompt has: ids as they are given, of text its words."""
    if isinstance(prompt, str):
        return max(1, len(prompt.split()))
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return sum(text_tokens(item) for item in prompt)
    return max(1, len(prompt or []))
