"""Servers that are killed, clients that leave, and two clients that answer the same question."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from mcp_types import CallToolResult, ElicitResult, InputRequiredResult

from cli.command import COMMAND
from mcp_server.serving import (
    HttpServer,
    accept,
    client_on,
    effects,
    http_server,
    make_desk,
    modern_body,
    modern_post,
    own_server,
    replying,
    stdio_session,
    text_of,
    until,
)
from mcp_server.test_stdio import INITIALIZE, INITIALIZED, started, tool_call
from upcall import Runtime

pytestmark = pytest.mark.timeout(240)


async def ask_and_keep(client: Any, prompt: str) -> InputRequiredResult:
    """Call the agent, and keep what it asks instead of answering it."""
    asked = await client.session.call_tool("desk", {"prompt": prompt}, allow_input_required=True)
    assert isinstance(asked, InputRequiredResult)
    return asked


async def continue_call(client: Any, prompt: str, asked: InputRequiredResult, **content: Any) -> Any:
    """Repeat a call with what was answered."""
    assert asked.input_requests
    responses: dict[str, Any] = {key: accept(**content) for key in asked.input_requests}
    return await client.session.call_tool(
        "desk", {"prompt": prompt}, input_responses=responses, request_state=asked.request_state,
        allow_input_required=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "content", "effect"), [
    ("name", {"answer": "Rex"}, "registered Rex"),
    ("pay 3 ann", {"decision": "approve"}, "paid 3 to ann"),
])  # fmt: skip
async def test_a_server_is_killed_with_a_question_open_and_the_next_one_completes_the_call_once(
    tmp_path: Path, prompt: str, content: dict[str, Any], effect: str
) -> None:
    make_desk(tmp_path)
    first = HttpServer(tmp_path)
    await first.start()
    async with first.session("modern", replying(accept())) as client:
        asked = await ask_and_keep(client, prompt)
        await first.stop(signal.SIGKILL)
    async with http_server(tmp_path) as second, second.session("modern", replying(accept())) as client:
        result = await continue_call(client, prompt, asked, **content)
        again = await continue_call(client, prompt, asked, **content)
    assert isinstance(result, CallToolResult)
    assert effect in result.structured_content["text"]
    assert again.structured_content["text"] == result.structured_content["text"]
    assert "was not used" in text_of(again)
    assert effects(tmp_path) == [effect]


@pytest.mark.slow
async def test_a_state_of_a_stdio_server_that_has_ended_is_accepted_by_the_next_one(tmp_path: Path) -> None:
    make_desk(tmp_path)
    ask = replying(accept())
    async with stdio_session(tmp_path, "modern", ask) as client:
        asked = await ask_and_keep(client, "name")
    async with stdio_session(tmp_path, "modern", ask) as client:
        result = await continue_call(client, "name", asked, answer="Rex")
    assert result.structured_content["text"] == "done: registered Rex"
    assert effects(tmp_path) == ["registered Rex"]


@pytest.mark.slow
async def test_a_task_whose_server_was_killed_in_the_middle_of_a_call_is_continued_by_the_next_one(
    tmp_path: Path,
) -> None:
    make_desk(tmp_path)
    has_tasks: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    call = modern_body("tools/call", {"name": "desk", "arguments": {"prompt": "sleep 60"}}, has_tasks)
    first = HttpServer(tmp_path)
    await first.start()
    async with first.plain_client() as http:
        _, begun = await modern_post(first, http, call)
    await first.stop(signal.SIGKILL)
    task = begun["result"]["taskId"]
    get = modern_body("tasks/get", {"taskId": task}, has_tasks)
    async with http_server(tmp_path) as second, second.plain_client() as http:

        async def ended() -> Any:
            found = (await modern_post(second, http, get))[1]["result"]
            return found if found["status"] == "completed" else None

        found = await until(ended)
    assert begun["result"]["resultType"] == "task"
    assert "interrupted" in found["result"]["structuredContent"]["text"]  # the model was told, and replied


@pytest.mark.slow
async def test_a_client_that_leaves_cancels_nothing(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server, Runtime(tmp_path / ".upcall" / "log.db") as runtime:

        async def running(count: int) -> Any:
            return len([row for row in await runtime.rows() if row.status in ("running", "done")]) == count

        async def all_done() -> Any:
            rows = await runtime.rows()
            return len(rows) == 2 and all(row.status == "done" for row in rows)

        call = modern_body("tools/call", {"name": "desk", "arguments": {"prompt": "sleep 1"}})
        async with server.plain_client() as http:
            leaving = asyncio.ensure_future(modern_post(server, http, call))
            await until(lambda: running(1))
            leaving.cancel()
        async with server.session("legacy") as client:
            cancelled = asyncio.ensure_future(client.call_tool("desk", {"prompt": "sleep 1"}))
            await until(lambda: running(2))
            cancelled.cancel()
        await until(all_done)


@pytest.mark.slow
async def test_a_question_asked_over_stdio_waits_in_the_inbox_when_the_client_leaves(tmp_path: Path) -> None:
    make_desk(tmp_path)
    shown = anyio.Event()

    async def never(message: str, schema: dict[str, Any]) -> ElicitResult:
        shown.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with stdio_session(tmp_path, "legacy", never) as client:
        call = asyncio.ensure_future(client.call_tool("desk", {"prompt": "name"}))
        await shown.wait()
        call.cancel()
    listing = await asyncio.create_subprocess_exec(
        *COMMAND, "inbox", "--json", cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await listing.communicate()
    assert [one["message"] for one in msgspec.json.decode(out)] == ["What is its name?"]


async def test_a_form_of_a_server_that_ended_is_shown_again_by_the_next_one(tmp_path: Path) -> None:
    make_desk(tmp_path)
    shown = anyio.Event()

    async def never(message: str, schema: dict[str, Any]) -> ElicitResult:
        shown.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with own_server(tmp_path) as server, client_on(server.protocol, "legacy", never) as client:
        call = asyncio.ensure_future(client.call_tool("desk", {"prompt": "name"}))
        await shown.wait()
        call.cancel()
    async with own_server(tmp_path) as server:
        session = (await server.calls.runtime.rows())[0].id
        async with client_on(server.protocol, "legacy", replying(accept(answer="Rex"))) as client:
            result = await client.call_tool("status", {"session": session})
    assert result.structured_content["text"] == "done: registered Rex"
    assert effects(tmp_path) == ["registered Rex"]


async def test_of_two_clients_that_answer_the_same_question_the_first_one_counts(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with (
        own_server(tmp_path) as server,
        client_on(server.protocol, "modern", replying(accept())) as one,
        client_on(server.protocol, "modern", replying(accept())) as other,
    ):
        asked = await ask_and_keep(one, "name")
        first = await continue_call(one, "name", asked, answer="Rex")
        second = await continue_call(other, "name", asked, answer="Max")
    assert first.structured_content["text"] == "done: registered Rex"
    assert second.structured_content["text"] == "done: registered Rex"
    assert "was not used: it was answered by ann" in text_of(second)
    assert effects(tmp_path) == ["registered Rex"]


async def test_a_form_disappears_when_the_question_is_answered_elsewhere(tmp_path: Path) -> None:
    make_desk(tmp_path)
    shown, withdrawn = anyio.Event(), anyio.Event()

    async def ask(message: str, schema: dict[str, Any]) -> ElicitResult:
        shown.set()
        try:
            await anyio.sleep_forever()
        finally:
            withdrawn.set()
        raise AssertionError

    async with own_server(tmp_path) as server, client_on(server.protocol, "legacy", ask) as client:
        call = asyncio.ensure_future(client.call_tool("desk", {"prompt": "name"}))
        await shown.wait()
        async with Runtime(tmp_path / "log.db") as elsewhere:
            waits = (await elsewhere.inbox())[0]
            await elsewhere.answer(waits.id, "Max", by="bob")
        result = await call
        await withdrawn.wait()
    assert result.structured_content["text"] == "done: registered Max"
    assert "settled elsewhere" in text_of(result)
    assert effects(tmp_path) == ["registered Max"]


async def test_a_session_that_was_answered_at_the_command_line_continues_in_the_server(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with own_server(tmp_path) as server, client_on(server.protocol, "modern") as client:
        asked = await client.call_tool("desk", {"prompt": "name"})
        async with Runtime(tmp_path / "log.db") as elsewhere:
            await elsewhere.answer(asked.structured_content["questions"][0]["id"], "Max", by="bob")
        await until(lambda: _effects_soon(tmp_path))
        reply = await client.call_tool("status", {"session": asked.structured_content["session"]})
    assert reply.structured_content["text"] == "done: registered Max"


async def _effects_soon(folder: Path) -> list[str]:
    return effects(folder)


async def test_another_principal_and_a_changed_state_or_call_are_refused(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with own_server(tmp_path) as server, client_on(server.protocol, "modern", replying(accept())) as client:
        asked = await ask_and_keep(client, "name")
        state = asked.request_state or ""
        forged = asked.model_copy(update={"request_state": state[:-2] + ("AA" if state[-2:] != "AA" else "BB")})
        with pytest.raises(Exception, match="Invalid or expired requestState"):
            await continue_call(client, "name", forged, answer="Rex")
        with pytest.raises(Exception, match="Invalid or expired requestState"):
            await continue_call(client, "kind", asked, answer="cat")
    async with (
        own_server(tmp_path, user="bob") as server,
        client_on(server.protocol, "modern", replying(accept())) as client,
    ):
        with pytest.raises(Exception, match="Invalid or expired requestState"):
            await continue_call(client, "name", asked, answer="Rex")
    assert effects(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_question_of_a_stdio_server_that_was_killed_is_answered_in_the_next_one(
    tmp_path: Path, era: str
) -> None:
    make_desk(tmp_path)
    async with started(tmp_path) as pipe:
        if era == "legacy":
            able: dict[str, Any] = {**INITIALIZE["params"], "capabilities": {"elicitation": {"form": {}}}}
            await pipe.send({**INITIALIZE, "params": able}, INITIALIZED, tool_call(2, "name"))
            while (await pipe.receive()).get("method") != "elicitation/create":
                pass
        else:
            await pipe.send(modern_body("tools/call", {"name": "desk", "arguments": {"prompt": "name"}}))
            assert (await pipe.answer_to(1))["result"]["resultType"] == "input_required"
        pipe.process.kill()
        await pipe.process.wait()
    async with stdio_session(tmp_path, era) as client:
        waiting = await client.call_tool("inbox", {})
        (question,) = waiting.structured_content["questions"]
        reply = await client.call_tool("answer", {"callback": question["id"], "value": "Rex"})
        session = reply.structured_content["session"]

        async def done() -> Any:
            found = await client.call_tool("status", {"session": session})
            return found.structured_content["status"] == "done" and found.structured_content["text"]

        assert await until(done) == "done: registered Rex"
    assert question["message"] == "What is its name?"
    assert effects(tmp_path) == ["registered Rex"]
