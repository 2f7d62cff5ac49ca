"""Tokens with roles at `upcall mcp --http`: what each may call, under whose name, and how a token ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from mcp_server.serving import HttpServer, http_server, make_desk, modern_body, modern_post, text_of
from mcp_server.test_hostile import INITIALIZE
from upcall import Runtime
from upcall.hosts.mcp.roles import role_needed
from web.people import give_token, refusals, revoke

STORE = ("desk:desk", "--store", "log.db")
ACCEPTS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def a_call(name: str, **arguments: Any) -> dict[str, Any]:
    return modern_body("tools/call", {"name": name, "arguments": arguments})


@pytest.mark.parametrize(
    ("message", "role"),
    [
        ({"method": "initialize"}, "viewer"),
        ({"method": "tools/list"}, "viewer"),
        ({"method": "tools/call", "params": {"name": "status"}}, "viewer"),
        ({"method": "tools/call", "params": {"name": "inbox"}}, "viewer"),
        ({"method": "tools/call", "params": {"name": "status", "requestState": "x"}}, "answerer"),
        ({"method": "tools/call", "params": {"name": "inbox", "inputResponses": {}}}, "answerer"),
        ({"method": "tools/call", "params": {"name": "answer"}}, "answerer"),
        ({"method": "tools/call", "params": {"name": "cancel"}}, "operator"),
        ({"method": "tools/call", "params": {"name": "desk"}}, "operator"),
        ({"method": "tools/call", "params": {"name": ["status"]}}, "operator"),
        ({"method": "tools/call", "params": "status"}, "operator"),
        ({"method": "tools/call"}, "operator"),
        ({"method": "tasks/get"}, "viewer"),
        ({"method": "tasks/update"}, "answerer"),
        ({"method": "tasks/cancel"}, "operator"),
        ({"method": "tasks/begin"}, "operator"),
        ({"method": "notifications/cancelled"}, "viewer"),
        ({"id": 1, "result": {"action": "accept"}}, "answerer"),
        ([{"method": "ping"}, {"method": "tools/call", "params": {"name": "answer"}}], "answerer"),
        ("text", "viewer"),
        ([], "viewer"),
        (None, "viewer"),
    ],
)
def test_each_message_needs_the_role_of_what_it_does(message: Any, role: str) -> None:
    assert role_needed(message).role == role


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_each_role_calls_what_it_may_and_answers_bear_the_token_s_name(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path, *STORE) as server:
        tokens = {
            role: await give_token(tmp_path, f"the-{role}", role) for role in ("viewer", "answerer", "operator")
        }
        async with server.plain_client(tokens["operator"]) as operator:
            code, answer = await modern_post(server, operator, a_call("desk", prompt="name"))
            assert code == 200, answer
            asked = list(answer["result"]["inputRequests"])
        async with server.plain_client(tokens["viewer"]) as viewer:
            code, listed = await modern_post(server, viewer, a_call("inbox"))
            assert (code, asked[0] in str(listed)) == (200, True)
            session = asked_session(listed)
            code, shown = await modern_post(server, viewer, a_call("status", session=session))
            assert code == 200
            assert "inputRequests" not in shown["result"]  # a viewer is shown no form
            for body in (
                a_call("desk", prompt="hello"),
                a_call("answer", callback=asked[0], value="Otto"),
                a_call("cancel", session=session),
            ):
                code, problem = await modern_post(server, viewer, body)
                assert (code, "has the role viewer" in problem["error"]) == (403, True), problem
        async with server.plain_client(tokens["answerer"]) as answerer:
            code, problem = await modern_post(server, answerer, a_call("desk", prompt="hello"))
            assert (code, problem["error"]) == (
                403,
                "this needs the role operator, and the token 'the-answerer' has the role answerer",
            )
            code, said = await modern_post(server, answerer, a_call("answer", callback=asked[0], value="Otto"))
            assert (code, "registered Otto" in str(said)) == (200, True), said
        await check_revoked(tmp_path, server, tokens["answerer"])
    async with Runtime(tmp_path / "log.db") as runtime:
        settled = (await runtime.callback(asked[0])).answer
        events = [event async for event in runtime.events(session)]
    assert settled is not None
    assert (settled.by, settled.right) == ("the-answerer", "token")
    assert [getattr(event, "by", "") for event in events if event.type == "turn_started"] == ["the-operator"]
    kept = await refusals(tmp_path)
    assert [(one.by, one.action) for one in kept] == [
        ("the-viewer", "tools/call desk"),
        ("the-viewer", "tools/call answer"),
        ("the-viewer", "tools/call cancel"),
        ("the-answerer", "tools/call desk"),
        ("the-answerer", "POST"),
    ]


def asked_session(listed: dict[str, Any]) -> str:
    """The session of the first question that `inbox` lists."""
    return str(listed["result"]["structuredContent"]["questions"][0]["session_id"])


async def check_revoked(folder: Path, server: HttpServer, token: str) -> None:
    """Revoke the answerer's token while a stream of it is open: the stream ends, and the token is refused."""
    async with server.plain_client(token) as client:
        stream = await opened(server, client)
        await revoke(folder, "the-answerer")
        async with asyncio.timeout(30):
            await stream.read()
        code, _ = await modern_post(server, client, a_call("inbox"))
        assert code == 401


async def opened(server: HttpServer, client: aiohttp.ClientSession) -> aiohttp.ClientResponse:
    """The stream of a client of the era of handshakes, for what the server says by itself."""
    async with client.post(server.url, data=msgspec.json.encode(INITIALIZE), headers=ACCEPTS) as got:
        assert got.status == 200
        session = got.headers["mcp-session-id"]
    stream = await client.get(server.url, headers={**ACCEPTS, "mcp-session-id": session})
    assert stream.status == 200
    return stream


@pytest.mark.slow
async def test_a_connection_belongs_to_the_token_that_opened_it(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path, *STORE) as server:
        ada, ben = [await give_token(tmp_path, name, "operator") for name in ("ada", "ben")]
        begin = msgspec.json.encode(INITIALIZE)
        async with server.plain_client(ada) as client, client.post(server.url, data=begin, headers=ACCEPTS) as got:
            session = got.headers["mcp-session-id"]
        stolen = {**ACCEPTS, "mcp-session-id": session}
        ping = msgspec.json.encode({"jsonrpc": "2.0", "id": 2, "method": "ping"})
        async with server.plain_client(ben) as client, client.post(server.url, data=ping, headers=stolen) as got:
            assert got.status == 404
        async with server.plain_client() as client, client.post(server.url, data=ping, headers=stolen) as got:
            assert got.status == 404
        async with server.plain_client(ada) as client, client.post(server.url, data=ping, headers=stolen) as got:
            assert got.status == 200


@pytest.mark.slow
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_client_of_either_era_works_with_an_operator_s_token(era: str, tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path, *STORE) as server:
        server.token = await give_token(tmp_path, "ada", "operator")
        async with server.session(era) as client:
            result = await client.call_tool("desk", {"prompt": "hello"})
    assert "hello" in text_of(result)
