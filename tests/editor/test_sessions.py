"""Sessions in an editor: loaded, listed, closed and deleted, and questions that are settled elsewhere."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from acp_client import Agent as PlainAgent  # pyright: ignore[reportMissingTypeStubs]

from cli.command import upcall
from editor.clients import EVERYTHING, FORMS, PythonSdk, Refused, connected, effects, until
from editor.raw import COMMAND

pytestmark = pytest.mark.slow


def shown(updates: list[dict[str, Any]]) -> list[Any]:
    """What an editor shows after these updates: messages and calls in their order, the newest plan and title."""
    order: list[Any] = []
    known: dict[str, dict[str, Any]] = {}
    for one in updates:
        kind = one["sessionUpdate"]
        if kind.endswith("_chunk"):
            key = f"{kind} {one['messageId']}"
            if key not in known:
                order.append(known.setdefault(key, {"kind": kind, "text": ""}))
            known[key]["text"] += one["content"].get("text", "")
        elif kind in ("tool_call", "tool_call_update"):
            if one["toolCallId"] not in known:
                order.append(known.setdefault(one["toolCallId"], {}))
            known[one["toolCallId"]] |= {k: v for k, v in one.items() if k != "sessionUpdate"}
        elif kind in ("plan", "session_info_update"):
            if kind not in known:
                order.append(known.setdefault(kind, {}))
            known[kind] |= one
    return [one for one in order if one.get("kind") != "user_message_chunk"]


async def test_a_loaded_session_looks_as_it_did_live(folder: Path):
    (folder / "a.txt").write_text("one two")
    async with connected(PythonSdk, folder, *COMMAND) as client:
        session = await client.new()
        for text in ("add", "secret", "todo", "talk", "read a.txt", "readedit a.txt one three", "hello"):
            assert await client.prompt(session, text) == "end_turn"
        turn = client.prompt(session, "deploy live")
        ask = await client.asked()
        await ask.select("Edit")
        await (await client.asked()).accept(where="staging", times=2)
        await turn
        turn = client.prompt(session, "parallel question now")
        for _ in range(3):
            await (await client.asked()).accept(answer="yes")
        await turn
        live = client.sent_updates(session)
    async with connected(PythonSdk, folder, *COMMAND) as client:
        await client.load(session)
        await asyncio.sleep(0.1)
        replayed = client.sent_updates(session)
    assert "sk-live-1234567890abcdef" not in str(live)
    assert shown(replayed) == shown(live)
    said = [one["content"]["text"] for one in replayed if one["sessionUpdate"] == "user_message_chunk"]
    assert said[:2] == ["add", "secret"]


async def test_a_resumed_session_sends_nothing_of_before(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND) as client:
        session = await client.new()
        await client.prompt(session, "add")
    async with connected(PythonSdk, folder, *COMMAND) as client:
        await client.request("session/resume", sessionId=session, cwd=str(folder), mcpServers=[])
        await asyncio.sleep(0.1)
        assert {one["sessionUpdate"] for one in client.sent_updates()} == {"available_commands_update"}
        assert await client.prompt(session, "hello") == "end_turn"
        assert client.text() == "You said: hello"


async def test_sessions_are_listed_closed_and_deleted(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND) as client:
        first, second = await client.new(), await client.new()
        await client.prompt(first, "hello there")
        listed = await client.request("session/list", cwd=str(folder))
        assert {one["sessionId"] for one in listed["sessions"]} == {first, second}
        assert next(one for one in listed["sessions"] if one["sessionId"] == first)["title"] == "hello there"
        assert (await client.request("session/list", cwd="/"))["sessions"] == []
        turn = client.prompt(second, "wait 30")
        await until(lambda: any(one["status"] == "in_progress" for one in client.calls().values()))
        await client.request("session/close", sessionId=second)
        assert await turn == "cancelled"
        with pytest.raises(Refused) as closed:
            await client.prompt(second, "hello")
        assert closed.value.code == -32002
        await client.request("session/delete", sessionId=second)
        listed = await client.request("session/list")
        assert [one["sessionId"] for one in listed["sessions"]] == [first]


async def test_a_mode_and_a_model_are_chosen_as_options(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND) as client:
        session = await client.new()
        await client.request("session/set_mode", sessionId=session, modeId="ask")
        turn = client.prompt(session, "add")
        for _ in range(2):  # tools that need no approval otherwise
            await (await client.asked()).select("Allow once")
        await turn
        options = await client.request(
            "session/set_config_option", sessionId=session, configId="model", value="fast"
        )
        assert {one["id"]: one["currentValue"] for one in options["configOptions"]} == {
            "mode": "ask",
            "model": "fast",
        }
        with pytest.raises(Refused) as wrong:
            await client.request("session/set_config_option", sessionId=session, configId="model", value="none")
        assert wrong.value.code == -32602


async def test_a_prompt_while_a_turn_runs_steers_it(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "wait 0.7")
        await until(client.calls)
        assert await client.prompt(session, "be quick") == "end_turn"
        assert await turn == "end_turn"
        assert client.text() == "You said: be quick"


async def test_a_closed_dialog_leaves_the_question_waiting_and_the_next_message_asks_again(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "question why")
        await (await client.asked()).answer({"action": "cancel"})
        assert await turn == "end_turn"
        assert "clerk asks: why" in client.text()
        turn = client.prompt(session, "go on, please")
        await (await client.asked()).accept(answer="because")
        assert await turn == "end_turn"
        assert effects(folder) == "why because\n"


async def test_a_cancel_after_its_dialog_was_closed_is_a_cancel(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "deploy live")
        ask = await client.asked()
        await ask.answer({"outcome": {"outcome": "cancelled"}})
        await client.cancel(session)
        assert await turn == "cancelled"
        assert effects(folder) == ""


async def test_a_question_that_is_answered_elsewhere_leaves_the_screen_and_the_turn_continues(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "question why")
        await client.asked()  # a dialog that nobody looks at
        waiting = msgspec.json.decode(upcall("inbox", "--json", cwd=folder).stdout)
        assert upcall("answer", waiting[0]["id"], "because", cwd=folder).returncode == 0
        assert await asyncio.wait_for(turn, 10) == "end_turn"
        assert "why -> because" in client.text()
        assert any(b'"method":"$/cancel_request"' in line for line in client.lines() if line.startswith(b"< "))


async def test_an_open_session_that_waits_continues_when_it_is_answered_elsewhere(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND, capabilities={}) as client:
        session = await client.new()
        assert await client.prompt(session, "question why") == "end_turn"
        waiting = msgspec.json.decode(upcall("inbox", "--json", cwd=folder).stdout)
        assert upcall("answer", waiting[0]["id"], "because", cwd=folder).returncode == 0
        await until(lambda: "why -> because" in client.text())


async def test_without_forms_the_choices_are_options(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND, capabilities={}) as client:
        session = await client.new()
        turn = client.prompt(session, "choose")
        ask = await client.asked()
        assert [one["name"] for one in ask.params["options"]] == ["formal", "casual", "Decline to answer"]
        await ask.select("casual")
        assert await turn == "end_turn"
        assert client.text() == "The tools said: casual"


async def test_with_nothing_else_the_next_message_answers(folder: Path):
    agent: Any = PlainAgent([str(Path(sys.executable).with_name("upcall")), *COMMAND[1:]], folder)
    asked = await agent.ask("question why")
    assert "clerk asks:\n\n> why" in asked
    assert "Your next message answers it." in asked
    assert await agent.ask("because") == "The tools said: why -> because"
    both = await agent.ask("questions first second")
    assert "1. clerk asks:\n\n> first" in both
    assert "Which question do you answer?" in await agent.ask("two")
    still = await agent.ask("2: two")
    assert "clerk asks:\n\n> first" in still
    assert await agent.ask("one") == "The tools said: first -> one / second -> two"
    await agent.stop()
    assert effects(folder) == "why because\nsecond two\nfirst one\n"


async def test_children_are_sessions_where_the_editor_knows_them(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND, capabilities={**FORMS, "subagents": {}}) as client:
        session = await client.new()
        turn = client.prompt(session, "parallel question now")
        for _ in range(3):
            ask = await client.asked()
            assert ask.params.get("session_id", ask.params.get("sessionId")) == session
            await ask.accept(answer="yes")
        assert await turn == "end_turn"
        told = [one for one in client.sent_updates(session) if one["sessionUpdate"] == "subagent_update"]
        assert {one["title"] for one in told if "title" in one} == {"worker1", "worker2", "worker3"}
        assert [one["state"]["state"] for one in told if "state" in one].count("idle") == 3
        child = told[0]["sessionId"]
        texts = [one for one in client.sent_updates(child) if one["sessionUpdate"] == "agent_message_chunk"]
        assert "now" in "".join(one["content"]["text"] for one in texts)


async def test_the_next_session_tells_what_waits_since_no_editor_was_open(folder: Path):
    upcall("run", "crew:clerk", "question why", "--id", "before", cwd=folder)
    for capabilities, kind in ((EVERYTHING, "notice"), ({}, "agent_message_chunk")):
        async with connected(PythonSdk, folder, *COMMAND, capabilities=capabilities) as client:
            session = await client.new()
            told = [one for one in client.sent_updates(session) if one["sessionUpdate"] == kind]
            while not told:
                await asyncio.sleep(0.03)
                told = [one for one in client.sent_updates(session) if one["sessionUpdate"] == kind]
            assert "1 question of other sessions" in str(told)
            assert "clerk asks: why (session before)" in str(told)


async def test_the_options_of_what_people_see_work_in_an_editor(folder: Path):
    (folder / "labels.json").write_text('{"add": "Sum up"}')
    (folder / "prices.json").write_text('{"*": [1, 2]}')
    options = ("--log-dir", "logs", "--labels", "labels.json", "--prices", "prices.json", "--capture")
    async with connected(PythonSdk, folder, *COMMAND, *options, "--events-file", "events.jsonl") as client:
        session = await client.new()
        await client.prompt(session, "add")
        assert next(iter(client.calls().values()))["title"] == "Sum up a=1 b=2"
        assert await client.prompt(session, "/cost") == "end_turn"
    assert "Sum up" in "".join(file.read_text() for file in (folder / "logs").iterdir())
    assert "TOOL_ENDED" in (folder / "events.jsonl").read_text()
