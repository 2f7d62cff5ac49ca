"""Hostile requests over HTTP get the right codes, and floods are bounded."""

from __future__ import annotations

import asyncio
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mcp_server.serving import HttpServer, http_server, make_desk, modern_body, modern_post
from upcall.hosts.mcp.application import LARGEST_BODY, MOST_REQUESTS
from web.serving import get, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
CALL = modern_body("tools/call", {"name": "desk", "arguments": {"prompt": "hello"}})
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


async def status(server: HttpServer, data: Any, path: str = "", **headers: str) -> tuple[int, str]:
    """The status and the text of the answer to a body, sent with the token unless the headers say otherwise."""
    given = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
    body = data if isinstance(data, bytes) else msgspec.json.encode(data)
    async with (
        server.plain_client() as client,
        client.post(server.url + path, data=BytesIO(body), headers=given) as got,
    ):
        return got.status, (await got.content.read(2000)).decode("utf-8", "replace")


async def test_requests_without_the_token_or_from_other_places_are_refused(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server:
        assert (await status(server, CALL, Authorization="Bearer wrong"))[0] == 401
        assert (await status(server, CALL, Authorization=""))[0] == 401
        assert (await status(server, CALL, Authorization=f"Basic {server.token}"))[0] == 401
        assert (await status(server, CALL, Host="evil.example.com"))[0] == 403
        assert (await status(server, CALL, Origin="http://evil.example.com"))[0] == 403
        assert (await status(server, CALL, Origin="null"))[0] == 403
        assert (await status(server, CALL, path="/other"))[0] == 404
        async with server.plain_client(token="wrong") as client, client.get(server.url) as got:
            assert got.status == 401
            assert got.headers["www-authenticate"] == "Bearer"
        async with server.plain_client() as client:
            assert (await modern_post(server, client, CALL))[0] == 200
    assert not (tmp_path / "effects.txt").exists()


async def test_a_new_token_of_serve_ends_the_old_one_in_a_server_that_runs(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server, serving(tmp_path) as before:
        assert before.token == server.token
        async with serving(tmp_path, "--new-token") as after:
            assert after.token != server.token
            assert (await status(server, CALL))[0] == 401
            async with before.client() as client:
                await get(client, "/api/me", 401)
            async with before.client(after.token) as client:
                await get(client, "/api/me")
            async with server.plain_client(after.token) as client:
                assert (await modern_post(server, client, CALL))[0] == 200


async def test_bodies_that_are_too_large_deep_or_broken_are_refused_and_the_server_lives(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server:
        huge = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"p":"' + b"a" * LARGEST_BODY + b'"}}'
        assert (await status(server, huge))[0] == 413

        async def endless() -> Any:
            for _ in range(100):
                yield b" " * 100_000

        async with server.plain_client() as client, client.post(server.url, data=endless()) as got:
            assert got.status == 413
        modern = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call"}
        for body in (
            b"[" * 500_000,
            b'{"a":' * 300_000,
            b"[" + b"1," * 1_900_000 + b"1]",
            b"\xff\xfe",
            b"{",
            b"null",
        ):
            for headers in ({}, modern):
                code, _ = await status(server, body, **headers)
                assert code == 400, (body[:20], headers)
        async with server.plain_client() as client:
            assert (await modern_post(server, client, CALL))[0] == 200


async def test_forged_and_foreign_states_are_invalid_params(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server, server.plain_client() as client:
        ask = modern_body("tools/call", {"name": "desk", "arguments": {"prompt": "name"}})
        _, asked = await modern_post(server, client, ask)
        state, key = asked["result"]["requestState"], next(iter(asked["result"]["inputRequests"]))
        answer = {"inputResponses": {key: {"action": "accept", "content": {"answer": "Rex"}}}}
        for bad in ("", "x", "v1.AAAA", state + "A", state[:-1], state.swapcase(), "v1." + "A" * 100_000):
            body = modern_body("tools/call", {**ask["params"], **answer, "requestState": bad})
            _, refused = await modern_post(server, client, body)
            assert refused["error"]["code"] == -32602, bad[:20]
        other = {"name": "desk", "arguments": {"prompt": "kind"}, **answer, "requestState": state}
        assert (await modern_post(server, client, modern_body("tools/call", other)))[1]["error"]["code"] == -32602
        right = modern_body("tools/call", {**ask["params"], **answer, "requestState": state})
        first, second = [(await modern_post(server, client, right))[1]["result"] for _ in range(2)]
    assert first["structuredContent"]["text"] == "done: registered Rex"
    assert second["structuredContent"]["text"] == "done: registered Rex"
    assert "was not used" in second["content"][0]["text"]
    assert (tmp_path / "effects.txt").read_text() == "registered Rex\n"


async def test_a_flood_of_calls_and_of_sessions_is_bounded(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path, "desk:desk", "--wait", "2") as server:
        async with server.plain_client() as client:
            slow = modern_body("tools/call", {"name": "desk", "arguments": {"prompt": "sleep 10"}})
            answers = await asyncio.gather(*[modern_post(server, client, slow) for _ in range(MOST_REQUESTS + 100)])
            refused = [code for code, _ in answers if code == 429]
            results = [body["result"] for code, body in answers if code == 200]
            begun = [one for one in results if one["structuredContent"].get("status") == "working"]
            assert len(begun) <= 64
            assert len(refused) >= 50
            assert any("already" in one["content"][0]["text"] for one in results if one.get("isError"))
        await asyncio.sleep(4)  # until requests are allowed again
        opened = [await status(server, INITIALIZE) for _ in range(190)]
        await asyncio.sleep(4)
        opened += [await status(server, INITIALIZE) for _ in range(60)]
        assert {code for code, _ in opened} <= {200, 429, 503}
        await asyncio.sleep(4)
        async with server.plain_client() as client:
            hello = await modern_post(server, client, CALL)
    assert sum(code == 200 for code, _ in opened) <= 200
    assert any(code == 503 for code, _ in opened)
    assert hello[0] == 200


async def test_a_client_that_ends_its_session_beside_its_last_messages_leaves_no_trace(tmp_path: Path) -> None:
    make_desk(tmp_path)
    accepts = {"Accept": "application/json, text/event-stream"}
    async with http_server(tmp_path) as server, server.plain_client(**accepts) as client:
        for pause in (0.0, 0.002, 0.005, 0.01, 0.015, 0.02):
            async with client.post(server.url, json=INITIALIZE) as opened:
                await opened.read()
            named = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}

            async def notify(named: dict[str, str]) -> int:
                body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                async with client.post(server.url, json=body, headers=named) as got:
                    return got.status

            async def end(named: dict[str, str], pause: float) -> int:
                await asyncio.sleep(pause)
                async with client.delete(server.url, headers=named) as got:
                    return got.status

            *noted, ended = await asyncio.gather(*(notify(named) for _ in range(4)), end(named, pause))
            assert ended == 200
            assert set(noted) <= {202, 404}


async def test_wrong_tokens_are_counted_and_the_right_one_still_works(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server:
        codes = [(await status(server, CALL, Authorization="Bearer wrong"))[0] for _ in range(40)]
        async with server.plain_client() as client:
            right = await modern_post(server, client, CALL)
    assert codes[:20] == [401] * 20
    assert 429 in codes[20:]
    assert right[0] == 200


async def test_the_token_and_the_key_are_files_that_only_the_user_can_read(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server:
        files = {name: tmp_path / ".upcall" / f"log.db-{name}" for name in ("token", "mcp-key")}
        modes = {name: file.stat().st_mode & 0o777 for name, file in files.items()}
        texts = {name: file.read_text().strip() for name, file in files.items()}
    assert modes == {"token": 0o600, "mcp-key": 0o600}
    assert texts["token"] == server.token
    assert texts["token"] != texts["mcp-key"]
