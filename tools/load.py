#!/usr/bin/env python3
"""Keep a number of streaming completions in flight at an OpenAI endpoint, and check every one to its last token.

usage: tools/load.py http://ROUTER:30000 --log events.jsonl [--streams 50] [--tokens 40] [--stop-file FILE] ...

Each stream is a request with a prompt and a length of its own on a connection of its own; when one ends, the next one
begins.
Nothing is sent a second time: what breaks is counted, and after an error a stream pauses for a moment. It ends at a
SIGTERM, when the stop file appears, or after --seconds: no further request is sent, those in flight have --timeout to
end. A second SIGTERM breaks them off, which counts as an error. The exit status is 0 if every request ended whole.

The log has a line of JSON for each start, each end and, with --watch, each look at the router's workers; others may
append {"at": seconds since the epoch, "event": "mark", "text": "..."}. tools/load_chart.py draws it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import aiohttp

PAUSE_S = 0.2
"""Of a stream after an error: a server that refuses everything is not to be asked ten thousand times a second."""
LOOK_S = 0.2


class BrokenError(Exception):
    """A request that did not end whole.

    Attributes:
        is_truncated: whether an answer had begun.
    """

    def __init__(self, kind: str, is_truncated: bool = False) -> None:
        super().__init__(kind)
        self.kind = kind
        self.is_truncated = is_truncated


@dataclass
class Answer:
    """What has come of a streamed completion so far."""

    chunks: int = 0
    tokens: int = 0
    finish_reason: str = ""
    is_done: bool = False

    def begin(self, status: int) -> None:
        """Raise BrokenError unless the HTTP status is that of an answer."""
        if status != 200:
            raise BrokenError(f"status {status}")

    def take(self, text: str) -> None:
        """Take the data of one event.

        Raises:
            BrokenError: it is not what comes at this place of a whole answer.
        """
        if self.is_done:
            raise BrokenError("data after [DONE]", is_truncated=True)
        if text == "[DONE]":
            self.is_done = True
            return
        try:
            data = json.loads(text)
        except ValueError:
            raise BrokenError("a chunk is no JSON", is_truncated=True) from None
        if not isinstance(data, dict) or "choices" not in data:
            raise BrokenError("an error in the stream", is_truncated=True)
        for choice in data["choices"]:
            self.chunks += 1
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.tokens = (data.get("usage") or {}).get("completion_tokens") or self.tokens

    def check(self, tokens: int) -> None:
        """Raise BrokenError unless the answer is whole and has so many tokens.

        The server says how many there are; one chunk may hold several, and none holds less than one.
        """
        if not self.is_done:
            raise BrokenError("no [DONE]", is_truncated=True)
        if self.finish_reason != "length":
            raise BrokenError(f"finish reason {self.finish_reason or 'none'}", is_truncated=True)
        if self.tokens != tokens or not 1 <= self.chunks <= tokens + 1:
            raise BrokenError(f"{self.tokens} of {tokens} tokens", is_truncated=True)


async def events(content: aiohttp.StreamReader) -> AsyncIterator[str]:
    """The data of each server-sent event of a body."""
    async for line in content:
        text = line.decode(errors="replace").strip()
        if text.startswith("data:"):
            yield text.removeprefix("data:").strip()
        elif text:
            raise BrokenError("a line that is no event", is_truncated=True)


@dataclass
class Load:
    """Streams that are kept in flight, and what became of them."""

    url: str
    model: str
    tokens: int
    timeout_s: float
    key: str
    log: TextIO
    between_s: float = 0
    sent: int = 0
    ok: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    truncated: Counter[str] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)
    healthy: list[int] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, event: str, **more: Any) -> None:
        """Write a line of the log, with the time."""
        print(json.dumps({"at": round(time.time(), 3), "event": event, **more}), file=self.log, flush=True)

    async def stream(self, session: aiohttp.ClientSession) -> None:
        """One request after the other, until the load stops."""
        while not self.stopping.is_set():
            self.sent += 1
            number, began = self.sent, time.monotonic()
            self.tell("start", number=number)
            try:
                await self.request(session, number, self.length(number))
            except (BrokenError, aiohttp.ClientError, OSError, asyncio.CancelledError) as error:
                broken = as_broken(error)
                self.lose(number, broken, time.monotonic() - began)
                if isinstance(error, asyncio.CancelledError):
                    raise
                await self.pause(PAUSE_S)
            else:
                took_s = time.monotonic() - began
                self.ok += 1
                self.took_s.append(took_s)
                self.tell("end", number=number, outcome="ok", took_s=round(took_s, 3))
                if self.between_s:
                    await self.pause(self.between_s)

    def length(self, number: int) -> int:
        """Tokens of a request, from half to one and a half of what was asked for: else all would end at one moment."""
        return max(1, self.tokens // 2 + number % self.tokens)

    async def request(self, session: aiohttp.ClientSession, number: int, tokens: int) -> None:
        """Ask for one completion of so many tokens and read it to its end; raise what broke it."""
        body = {
            "model": self.model,
            "prompt": f"Request {number}: tell a story that nobody has told before",
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        answer, begun = Answer(), False
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                session.post(f"{self.url}/v1/completions", json=body) as response,
            ):
                begun = response.status == 200
                answer.begin(response.status)
                async for text in events(response.content):
                    answer.take(text)
                answer.check(tokens)
        except BrokenError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            if begun:
                raise BrokenError(as_broken(error).kind, is_truncated=True) from error
            raise

    def lose(self, number: int, broken: BrokenError, took_s: float) -> None:
        """Count a request that did not end whole."""
        (self.truncated if broken.is_truncated else self.errors)[broken.kind] += 1
        outcome = "truncated" if broken.is_truncated else "error"
        self.tell("end", number=number, outcome=outcome, kind=broken.kind, took_s=round(took_s, 3))

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the load."""
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return

    async def watch(self, session: aiohttp.ClientSession) -> None:
        """Write down, several times a second, which workers the router has."""
        while not self.stopping.is_set():
            try:
                async with asyncio.timeout(self.timeout_s), session.get(f"{self.url}/workers") as response:
                    workers = (await response.json())["workers"]
                urls = sorted(worker["url"] for worker in workers if worker["is_healthy"])
                self.healthy.append(len(urls))
                self.tell("workers", listed=len(workers), healthy=urls)
            except (aiohttp.ClientError, OSError, KeyError, TypeError, ValueError) as error:
                self.tell("workers", error=str(error) or type(error).__name__)
            await self.pause(LOOK_S)

    def summary(self, seconds: float) -> dict[str, Any]:
        """What became of all requests."""
        took = sorted(self.took_s)
        lost = {"errors": sum(self.errors.values()), "truncated": sum(self.truncated.values())}
        return {
            "sent": self.sent,
            "ok": self.ok,
            **lost,
            "unaccounted": self.sent - self.ok - sum(lost.values()),
            "errors_by_kind": dict(self.errors),
            "truncated_by_kind": dict(self.truncated),
            "seconds": round(seconds, 1),
            "requests_per_s": round(self.ok / seconds, 1) if seconds else 0,
            "took_median_s": round(took[len(took) // 2], 3) if took else None,
            "took_max_s": round(took[-1], 3) if took else None,
            "workers_min": min(self.healthy, default=None),
        }


def as_broken(error: BaseException) -> BrokenError:
    """The kind of loss that an exception is."""
    if isinstance(error, BrokenError):
        return error
    if isinstance(error, TimeoutError):
        return BrokenError("timeout")
    if isinstance(error, aiohttp.ClientConnectorError):
        return BrokenError("refused")
    if isinstance(error, asyncio.CancelledError):
        return BrokenError("broken off here")
    return BrokenError("disconnected")


async def keep(arguments: argparse.Namespace, log: TextIO) -> dict[str, Any]:
    """Keep the load up until it is told to stop; what became of it."""
    url, limit_s = arguments.url.rstrip("/"), arguments.timeout
    load = Load(url, arguments.model, arguments.tokens, limit_s, key(arguments), log, arguments.pause)
    loop = asyncio.get_running_loop()
    headers = {"Authorization": f"Bearer {load.key}"} if load.key else {}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # no request meets a connection that was just closed
    limits = aiohttp.ClientTimeout(total=None)  # each request has its own
    began = time.monotonic()
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=limits) as session:
        tasks = [asyncio.create_task(load.stream(session)) for _ in range(arguments.streams)]
        if arguments.watch:
            tasks.append(asyncio.create_task(load.watch(session)))

        def stop() -> None:
            if load.stopping.is_set():
                for task in tasks:
                    task.cancel()
            load.stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        ends = began + arguments.seconds
        while not load.stopping.is_set():
            if time.monotonic() > ends or (arguments.stop_file and arguments.stop_file.exists()):
                load.stopping.set()
            await load.pause(0.1)
        await asyncio.gather(*tasks, return_exceptions=True)
    return load.summary(time.monotonic() - began)


def key(arguments: argparse.Namespace) -> str:
    """The API key, from a file: an argument could be read by everybody."""
    return arguments.key_file.read_text().strip() if arguments.key_file else ""


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="where the router, or one server, is: http://ADDRESS:PORT")
    parser.add_argument("--log", type=Path, required=True, help="events as lines of JSON; appended to")
    parser.add_argument("--summary", type=Path, help="file for the sums as JSON")
    parser.add_argument("--model", default="tiny", help="served name of the model (tiny)")
    parser.add_argument("--streams", type=int, default=50, help="requests in flight at any time (50)")
    parser.add_argument("--tokens", type=int, default=40, help="mean length of an answer in tokens (40)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds that one request may take (60)")
    parser.add_argument("--pause", type=float, default=0, help="seconds from an answer to the next request (0)")
    parser.add_argument("--seconds", type=float, default=600, help="the longest that the load goes on (600)")
    parser.add_argument("--stop-file", type=Path, help="the load ends when this file is there")
    parser.add_argument("--key-file", type=Path, help="file with the API key")
    parser.add_argument("--watch", action="store_true", help="also look which workers the router has")
    return parser.parse_args(words)


def main() -> int:
    """Keep the load up, say what became of it."""
    arguments = parse()
    with arguments.log.open("a") as log:
        summary = asyncio.run(keep(arguments, log))
    if arguments.summary:
        arguments.summary.write_text(json.dumps(summary, indent=2) + "\n")
    print("{sent} requests sent, {errors} errors, {truncated} truncated streams".format(**summary))
    return 0 if summary["sent"] and summary["ok"] == summary["sent"] else 1


if __name__ == "__main__":
    sys.exit(main())
