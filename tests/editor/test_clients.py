"""Real clients do what people do in editors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from editor.clients import CLIENTS, Acpx, Ask, Client, connected, effects, sent_requests, until
from editor.raw import COMMAND

pytestmark = pytest.mark.slow


@pytest.fixture(params=CLIENTS, ids=[one.name for one in CLIENTS])
def kind(request: pytest.FixtureRequest) -> type[Client]:
    return request.param


async def test_a_client_runs_tools_and_reads_the_reply(kind: type[Client], folder: Path):
    async with connected(kind, folder, *COMMAND) as client:
        session = await client.new()
        assert await client.prompt(session, "add") == "end_turn"
        calls = client.calls()
        assert [(one["title"], one["name"], one["status"]) for one in calls.values()] == [
            ("Add a=1 b=2", "add", "completed"),
            ("Add a=3 b=4", "add", "completed"),
        ]
        assert client.text() == "I'll add.The tools said: 3 / 7"


async def test_a_permission_shows_the_change_and_lets_the_call_run_once(kind: type[Client], folder: Path):
    async with connected(kind, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "note hello")
        ask = await client.asked()
        assert ask.method == "session/request_permission"
        call = ask.params["toolCall"]
        assert call["content"][0] == {
            "type": "diff", "path": str(folder / "note.txt"), "newText": "hello"
        } | ({"oldText": None} if "oldText" in call["content"][0] else {})  # fmt: skip
        assert call["locations"] == [{"path": str(folder / "note.txt")}]
        assert not (folder / "note.txt").exists()
        await ask.select("Allow once")
        assert await turn == "end_turn"
        assert (folder / "note.txt").read_text() == "hello"


async def test_a_rejected_call_does_not_run(kind: type[Client], folder: Path):
    async with connected(kind, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "deploy live")
        await (await client.asked()).select("Reject")
        assert await turn == "end_turn"
        assert not (folder / "effects.txt").exists()
        assert next(iter(client.calls().values()))["status"] == "failed"


async def test_edited_arguments_are_those_that_run(kind: type[Client], folder: Path):
    async with connected(kind, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "deploy live")
        ask = await client.asked()
        if client.can_choose_any_option:
            await ask.select("Edit")
            form = await client.asked()
            assert form.params["requestedSchema"]["properties"]["where"]["default"] == "live"
            await form.accept(where="staging", times=2)
        else:  # it can't choose among options of one kind: the dialog is closed, and a command edits
            await ask.answer({"outcome": {"outcome": "cancelled"}})
            assert await turn == "end_turn"
            turn = client.prompt(session, '/approve {"where": "staging", "times": 2}')
        assert await turn == "end_turn"
        assert (folder / "effects.txt").read_text() == "deployed staging 2\n"
        assert next(iter(client.calls().values()))["rawInput"] == {"where": "staging", "times": 2}


async def test_an_approval_for_the_session_is_asked_once(kind: type[Client], folder: Path):
    async with connected(kind, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "deploy live")
        await (await client.asked()).select("Allow this call for the session")
        await turn
        assert await client.prompt(session, "deploy live") == "end_turn"
        assert (folder / "effects.txt").read_text() == "deployed live 1\n" * 2


FILLED: dict[str, Any] = {
    "name": "Ann", "mail": "ann@example.org", "amount": 12.5, "count": 4, "urgent": True, "tone": "casual",
    "size": "l", "level": "2", "tags": ["red", "blue"], "extra": '{"deep": 1}',
}  # fmt: skip


async def test_a_form_asks_for_every_kind_of_field(kind: type[Client], folder: Path):
    async with connected(kind, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "survey")
        ask = await client.asked()
        assert ask.method == "elicitation/create"
        asked = sent_requests(client, "elicitation/create")[-1]["requestedSchema"]
        kinds = {name: one["type"] for name, one in asked["properties"].items()}
        assert kinds == {
            "name": "string", "mail": "string", "amount": "number", "count": "integer", "urgent": "boolean",
            "tone": "string", "size": "string", "level": "string", "tags": "array", "extra": "string",
        }  # fmt: skip
        assert asked["properties"]["size"]["oneOf"][1] == {"const": "l", "title": "Large"}
        assert asked["required"] == ["name", "amount"]
        await ask.accept(**{**FILLED, "amount": 1000})  # more than the maximum: asked again, with the reason
        again = await client.asked()
        assert "1000" in again.params["message"] or "100" in again.params["message"]
        await again.accept(**FILLED)
        assert await turn == "end_turn"
        answered = next(one for one in client.calls().values() if one["title"].startswith("clerk asks"))
        assert answered["status"] == "completed"
        assert '"level":2' in client.text().replace(" ", "")
        assert '"extra":{"deep":1}' in client.text().replace(" ", "")


async def test_a_declined_form_is_declined(kind: type[Client], folder: Path):
    async with connected(kind, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "choose")
        ask = await client.asked()
        await ask.answer({"action": "decline"})
        assert await turn == "end_turn"
        assert "declined" in client.text()


async def test_a_cancel_amid_three_children_is_answered_at_once(kind: type[Client], folder: Path):
    async with connected(kind, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "parallel deaf 30")
        await until(lambda: sum(one["status"] == "in_progress" for one in client.calls().values()) >= 6)
        before = time.monotonic()
        await client.cancel(session)
        assert await turn == "cancelled"
        assert time.monotonic() - before < 5  # the client's own time is in it; what the agent needs is a figure


async def test_two_questions_of_a_killed_agent_are_asked_again_and_answered_in_reverse(
    kind: type[Client], folder: Path
):
    async with connected(kind, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "questions first second")
        for _ in range(2):
            await client.asked()
        client.kill()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await turn
    async with connected(kind, folder, *COMMAND) as client:
        await client.load(session)
        if kind is Acpx:  # it shows dialogs only while a prompt runs
            turn = client.prompt(session, "please continue")
        asks = {word: ask for ask in [await client.asked(), await client.asked()] for word in words_of(ask)}
        await asks["second"].accept(answer="two")
        await until(lambda: "second two" in effects(folder))
        await asks["first"].accept(answer="one")
        if kind is Acpx:
            assert await turn == "end_turn"
            assert "You said: please continue" in client.text()
        else:
            await until(lambda: "The tools said: first -> one / second -> two" in client.text())
    assert effects(folder) == "second two\nfirst one\n"


def words_of(ask: Ask) -> list[str]:
    return [word for word in ("first", "second") if word in ask.params["message"]]
