"""Bytes as Anthropic's servers send them, and a model that asks for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from upcall.errors import ContextTooLong, ModelRefused, ModelUnavailable
from upcall.messages import Response
from upcall.models import Anthropic

from .history import HELLO
from .server import Heard, Server, Sleeps, serving, stream

KEY = "sk-ant-very-secret"


def event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def start(**usage: int) -> bytes:
    return event("message_start", message={"model": "m-1", "role": "assistant", "content": [], "usage": usage})


def block(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def delta(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def text(index: int, *parts: str) -> bytes:
    deltas = [delta(index, "text_delta", text=p) for p in parts]
    return b"".join([block(index, "text", text=""), *deltas, event("content_block_stop", index=index)])


def use(index: int, name: str, *parts: str, id: str = "toolu_1") -> bytes:
    deltas = [delta(index, "input_json_delta", partial_json=p) for p in parts]
    return b"".join([block(index, "tool_use", id=id, name=name, input={}), *deltas])


def stop(reason: str = "end_turn", output: int = 4) -> bytes:
    return event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": output})


PING_EVENT = event("ping")
LAST = event("message_stop")
OK = stream(start(input_tokens=9, output_tokens=1), PING_EVENT, text(0, "Hé", "llo 🙂"), stop(), LAST)
OVERLOADED = event("error", error={"type": "overloaded_error", "message": "Overloaded"})


async def ask(*answers: Any, request: Any = HELLO, **options: Any) -> tuple[Response, Heard, Server]:
    options.setdefault("_sleep", Sleeps())
    async with serving(*answers) as server:
        model, heard = Anthropic("m-1", base_url=server.url, **options), Heard()
        try:
            return await model.respond(request, heard), heard, server
        finally:
            await model.close()


async def refused(*answers: Any, **options: Any) -> Exception:
    with pytest.raises((ModelRefused, ModelUnavailable, ContextTooLong)) as caught:
        await ask(*answers, **options)
    assert KEY not in repr(caught.value) + str(caught.value)
    return caught.value
