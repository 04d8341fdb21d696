"""The OpenAI endpoints of both engines; what differs in their answers is data (``*_answers.yml``)."""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Iterator
from typing import Any

from .generation import OWN_LENGTH, Generator, Request, text_tokens
from .web import Body, Reply


class InvalidRequestError(Exception):
    """The document does not ask for anything that can be generated."""


def to_request(document: dict[str, Any], chat: bool) -> Request:
    """Read a completion request.

    Raises:
        InvalidRequestError: prompt, messages or a limit are missing or of the wrong kind.
    """
    source = document.get("messages" if chat else "prompt")
    if not source:
        raise InvalidRequestError(
            "messages must be given" if chat else "Either prompt or prompt_embeds must be provided and non-empty."
        )
    if chat:
        source = [str(message.get("content") or "") for message in source]
    limit = document.get("max_completion_tokens") or document.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise InvalidRequestError("max_tokens must be at least 1, got " + str(limit) + ".")
    # Completions are limited to 16 tokens by the API's default, chat answers end by themselves.
    return Request(text_tokens(source), limit or OWN_LENGTH, bool(limit) or not chat, zlib.crc32(repr(source).encode()))


class OpenAI:
    """Turns tokens into the answers of /v1/completions and /v1/chat/completions."""

    def __init__(self, generator: Generator, extras: dict[str, dict[str, Any]]) -> None:
        self.generator = generator
        self.extras = extras

    def reply(self, document: dict[str, Any], model: str, chat: bool) -> Reply:
        """Answer one request, streamed if it asks for that."""
        request = to_request(document, chat)
        head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        if not document.get("stream"):
            return Reply(self._whole(request, head, chat))
        with_usage = bool((document.get("stream_options") or {}).get("include_usage"))
        return Reply(events=self._stream(request, head, chat, with_usage))

    def _whole(self, request: Request, head: dict[str, Any], chat: bool) -> Body:
        made = list(self.generator.tokens(request))
        text = "".join(token for token, _ in made)
        choice: dict[str, Any] = {"index": 0}
        if chat:
            choice["message"] = {"role": "assistant", "content": text, **self.extras["message"]}
        else:
            choice["text"] = text
        choice.update(self.extras["chat_choice" if chat else "completion_choice"])
        choice["finish_reason"] = made[-1][1]
        own = self.extras["chat" if chat else "completion"]
        return {**head, "choices": [choice], "usage": self._usage(request, len(made)), **own}

    def _stream(self, request: Request, head: dict[str, Any], chat: bool, with_usage: bool) -> Iterator[Body]:
        if chat:
            head = {**head, "object": "chat.completion.chunk"}
            yield {**head, "choices": [self._stream_choice({"delta": {"role": "assistant", "content": ""}}, None)]}
        made = 0
        for token, reason in self.generator.tokens(request):
            made += 1
            part = {"delta": {"content": token}} if chat else {"text": token}
            yield {**head, "choices": [self._stream_choice(part, reason or None)]}
        if with_usage:
            yield {**head, "choices": [], "usage": self._usage(request, made)}

    def _stream_choice(self, part: dict[str, Any], reason: Any) -> dict[str, Any]:
        return {"index": 0, **part, **self.extras["stream_choice"], "finish_reason": reason}

    def _usage(self, request: Request, made: int) -> dict[str, Any]:
        counts = {"prompt_tokens": request.prompt_tokens, "total_tokens": request.prompt_tokens + made}
        return {**counts, "completion_tokens": made, **self.extras["usage"]}
