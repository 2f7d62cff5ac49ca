"""What every provider refuses in a conversation, whatever its wire."""

from __future__ import annotations

from collections.abc import Sequence

from models.rules import check_anthropic, check_openai
from upcall import Message, Request
from upcall.models import anthropic_body, openai_body


def check(messages: Sequence[Message]) -> None:
    """Every call is answered right after it and exactly once; no orphans; nothing empty; a user begins."""
    seen: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}] ({message.role}) of {[m.role for m in messages]}"
        assert message.parts, f"{where}: empty"
        if message.role == "tool":
            answered = [r.call_id for r in message.results]
            assert len(answered) == len(message.parts), f"{where}: something beside results"
            assert answered == waiting, f"{where}: results {answered} for calls {waiting}"
            waiting = []
            continue
        assert not waiting, f"{where}: calls without results: {waiting}"
        assert not message.results, f"{where}: a result in it"
        if message.role == "assistant":
            waiting = [c.id for c in message.calls]
            assert len(set(waiting)) == len(waiting), f"{where}: repeated ids {waiting}"
            assert not seen & set(waiting), f"{where}: ids were there before"
            seen |= set(waiting)
        else:
            assert not message.calls, f"{where}: a call in it"
    assert not waiting, f"calls without results at the end: {waiting}"
    if messages:
        assert messages[0].role == "user", f"begins with {messages[0].role}"


def check_wires(request: Request) -> None:
    """Both providers take what the adapters make of it."""
    check_openai(openai_body(request, "gpt")["messages"])
    check_anthropic(anthropic_body(request, "claude"))
