"""Bytes as OpenAI's servers send them, and a model that asks for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from upcall.errors import ContextTooLong, ModelRefused, ModelUnavailable
from upcall.messages import Response
from upcall.models import OpenAIChat

from .history import HELLO
from .server import Heard, Server, Sleeps, serving, stream

KEY = "sk-very-secret-key-123"


def said(**delta: Any) -> bytes:
    return event({"model": "m-1", "choices": [{"index": 0, "delta": delta}]})


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def tool(
    index: int | None = None, id: str | None = None, name: str | None = None, args: Any = None
) -> dict[str, Any]:
    function = {k: v for k, v in (("name", name), ("arguments", args)) if v is not None}
    piece = {"index": index, "id": id, "type": "function", "function": function}
    return {k: v for k, v in piece.items() if v is not None}


STOP = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": None}})
DONE = b"data: [DONE]\n\n"
OK = stream(said(role="assistant", content=""), said(content="Hé"), said(content="llo 🙂"), STOP, USAGE, DONE)


def model(server: Server, **options: Any) -> OpenAIChat:
    options.setdefault("_sleep", Sleeps())
    return OpenAIChat("m-1", base_url=f"{server.url}/v1", **options)


async def ask(*answers: Any, request: Any = HELLO, **options: Any) -> tuple[Response, Heard, Server]:
    async with serving(*answers) as server:
        chat, heard = model(server, **options), Heard()
        try:
            return await chat.respond(request, heard), heard, server
        finally:
            await chat.close()


async def refused(*answers: Any, **options: Any) -> Exception:
    with pytest.raises((ModelRefused, ModelUnavailable, ContextTooLong)) as caught:
        await ask(*answers, **options)
    assert KEY not in repr(caught.value) + str(caught.value)
    return caught.value
