"""Notifications of long questions are made and sent without holding the event loop."""

from __future__ import annotations

from typing import Any

import pytest

from callbacks.doubles import Desk
from models.server import plain, serving
from security.measuring import measured
from upcall import Agent, Callback, Runtime
from upcall.models import Script, call
from upcall.observe.notify import notification_text
from upcall.observe.redact import Redactor

LETTERS = {"invisible": "a\u200b", "like secrets": "curl -u a:b ", "plain": "the quick brown fox\n"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Apprise imports
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("kind", LETTERS)
async def test_notifications_of_questions_of_a_megabyte_do_not_stall_the_loop(
    desk: Desk, kind: str, count: int
) -> None:
    letters = LETTERS[kind]
    text = letters * (900_000 // len(letters.encode()))
    questions = [call("ask", message=f"{number} {text}") for number in range(count)]
    agent = Agent("a", model=Script([questions, "done"]), can_use_host_interaction=True)
    async with serving(plain(200, "{}")) as server:
        address = server.url.replace("http", "json")
        async with measured() as cost, Runtime(desk.store(), agents=[agent], notify=[address], hold=0) as runtime:
            assert (await (await runtime.start(agent)).prompt("go")).status == "waiting"

    cost.check(growth=400_000_000)  # copies of the text, in a thread
    (posted,) = server.asked
    sent: dict[str, Any] = posted.json
    assert sent["title"] == ("a asks (query, normal)" if count == 1 else "4 questions wait (normal)")
    assert (len(sent["message"]) > 100_000) == (count == 1)


def test_a_line_about_a_long_question_shows_neither_a_secret_nor_a_part_of_one() -> None:
    def asks(number: int, message: str) -> Callback:
        return Callback(f"q{number}", "s", "clerk", message, "query")

    key = "sk-live-1234567890abcdefghij"
    cut = asks(1, "\u200b" * (2_000 - len(key) // 2) + key + " is it" + " x" * 1_000)
    early = asks(2, f"use {key}? " + "x " * 1_000)

    _, body = notification_text(cut, [cut, early], Redactor())

    first, second, *_ = body.splitlines()
    assert first == "> clerk: …"
    assert second.startswith(f"> clerk: use ⟦hidden {len(key)} #1⟧? x x")
    assert second.endswith("…")
