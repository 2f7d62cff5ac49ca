"""What each provider refuses, as checks that raise AssertionError. For Hypothesis tests of whole runs too."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, cast

ID = re.compile(r"[A-Za-z0-9]{9}")
"""An id that every server takes."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_openai(messages: list[dict[str, Any]], given: Collection[str] = ()) -> None:
    """Chat completions: every call answered at once, by exactly one tool message; nothing empty.

    `given` are the ids that this server gave; it takes them back, each for one call.
    """
    waiting: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        where = f"messages[{index}] ({role})"
        assert role in ("system", "user", "assistant", "tool"), where
        if role == "tool":
            assert message["tool_call_id"] in waiting, f"{where}: no open call {message['tool_call_id']}"
            assert isinstance(content, str), where
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, f"{where}: calls without results: {waiting}"
        if role == "assistant":
            calls = message.get("tool_calls")
            assert content or calls, f"{where}: empty"
            assert calls is None or calls, f"{where}: tool_calls is an empty list"
            waiting = [_openai_call(where, call, given) for call in calls or ()]
            assert len({*waiting, *seen}) == len(waiting) + len(seen), f"{where}: repeated ids"
            seen.update(waiting)
        else:
            _openai_content(where, content)
    assert not waiting, f"calls without results at the end: {waiting}"


def _openai_call(where: str, call: dict[str, Any], given: Collection[str]) -> str:
    assert call["type"] == "function", where
    assert call["id"] in given or ID.fullmatch(call["id"]), f"{where}: id {call['id']!r}"
    assert NAME.fullmatch(call["function"]["name"]), f"{where}: name {call['function']['name']!r}"
    assert isinstance(json.loads(call["function"]["arguments"]), dict), where
    return call["id"]


def _openai_content(where: str, content: Any) -> None:
    assert content, f"{where}: empty"
    parts = cast("list[dict[str, Any]]", content) if isinstance(content, list) else []
    for part in parts:
        if part["type"] == "text":
            assert part["text"], f"{where}: empty text"
        else:
            assert part["type"] == "image_url", where
            assert re.match(r"https?://|data:image/", part["image_url"]["url"]), where


def check_anthropic(body: dict[str, Any], given: Collection[str] = ()) -> None:
    """Messages: roles in turn from the user on, results first and complete, no empty text, four breakpoints."""
    messages = body["messages"]
    assert messages, "no messages"
    assert body["max_tokens"] >= 1
    assert [m["role"] for m in messages] == [("user", "assistant")[i % 2] for i in range(len(messages))], "roles"
    assert messages[-1]["role"] == "user", "ends with the assistant"
    marks = json.dumps(body).count('"cache_control"')
    assert marks <= 4, f"{marks} cache breakpoints"
    seen: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}] ({message['role']})"
        assert message["content"], f"{where}: empty"
        if message["role"] == "user":
            waiting = _anthropic_user(where, message["content"], waiting)
        else:
            waiting = _anthropic_assistant(where, message["content"], seen, given)
    assert not waiting, f"calls without results at the end: {waiting}"
    if seen:
        assert body.get("tools"), "tool_use without tools"
    for tool in body.get("tools", ()):
        assert NAME.fullmatch(tool["name"]), tool["name"]
        assert tool["input_schema"]["type"] == "object", tool["name"]
    for block in body.get("system", ()):
        _text("system", block)
    if (thinking := body.get("thinking")) and thinking["type"] == "enabled":
        assert 1024 <= thinking["budget_tokens"] < body["max_tokens"]


def _anthropic_user(where: str, content: list[dict[str, Any]], waiting: list[str]) -> list[str]:
    answered: list[str] = []
    for position, block in enumerate(content):
        if block["type"] == "tool_result":
            assert position == len(answered), f"{where}: a result after something else"
            answered.append(block["tool_use_id"])
            for inner in block.get("content", ()):
                _shown(where, inner)
        else:
            _shown(where, block)
    assert sorted(answered) == sorted(waiting), f"{where}: results {answered} for calls {waiting}"
    return []


def _anthropic_assistant(
    where: str, content: list[dict[str, Any]], seen: set[str], given: Collection[str]
) -> list[str]:
    calls: list[str] = []
    for block in content:
        if block["type"] == "tool_use":
            assert block["id"] in given or ID.fullmatch(block["id"]), f"{where}: id {block['id']!r}"
            assert block["id"] not in seen, f"{where}: repeated id {block['id']}"
            assert NAME.fullmatch(block["name"]), f"{where}: name {block['name']!r}"
            assert isinstance(block["input"], dict), where
            seen.add(block["id"])
            calls.append(block["id"])
        elif block["type"] == "thinking":
            assert block["signature"], f"{where}: thinking without signature"
            assert "cache_control" not in block, where
        elif block["type"] == "redacted_thinking":
            assert block["data"], where
        else:
            _text(where, block)
    assert content[-1]["type"] not in ("thinking", "redacted_thinking"), f"{where}: ends with a thought"
    return calls


def _shown(where: str, block: dict[str, Any]) -> None:
    if block["type"] == "image":
        source = block["source"]
        assert source["type"] in ("base64", "url"), where
        assert source.get("data") or source.get("url"), where
    else:
        _text(where, block)


def _text(where: str, block: dict[str, Any]) -> None:
    assert block["type"] == "text", f"{where}: {block['type']}"
    assert block["text"].strip(), f"{where}: empty text"
