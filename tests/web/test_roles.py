"""Tokens with roles at `upcall serve`: what each role may do, under whose name, and how a token ends."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.requests import Request

from upcall import Runtime
from upcall.hosts.http.open_requests import OpenRequests
from upcall.hosts.http.people import People
from upcall.hosts.web.openapi import document
from upcall.hosts.web.roles import role_needed
from upcall.store.memory import MemoryStore
from upcall.tokens import Token, digest_of, new_token
from web.people import give_token, refusals, revoke
from web.serving import Server, get, make_agents, post, run_in, sent, serving, until

WRITES: Sequence[tuple[str, Any]] = (
    ("/api/sessions", {"agent": "clerk", "text": "hello"}),
    ("/api/sessions/s1/prompt", {"text": "hello"}),
    ("/api/sessions/s1/steer", {"text": "hello"}),
    ("/api/sessions/s1/cancel", {}),
    ("/api/sessions/s1/resume", {}),
)
READS = ("/api/me", "/api/agents", "/api/sessions", "/api/sessions/s1", "/api/inbox", "/api/openapi.json")


# --- what each role may do ----------------------------------------------------------------


@pytest.mark.slow
async def test_each_role_may_do_what_it_says_and_nothing_more_and_refusals_are_kept(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    await run_in(tmp_path, "refund A-17", "s1")
    tokens = {role: await give_token(tmp_path, f"the-{role}", role) for role in ("viewer", "answerer", "operator")}
    async with serving(tmp_path, agent, "--store", "log.db") as server:
        async with server.client(tokens["viewer"]) as viewer:
            for path in READS:
                await get(viewer, path)
            (card,) = (await get(viewer, "/api/inbox"))["open"]
            assert not card["can_answer"]
            answer = {"value": "10", "digest": card["seen"]}
            for path, body in (*WRITES, (f"/api/callbacks/{card['id']}/answer", answer)):
                problem = await post(viewer, path, body, 403)
                assert "has the role viewer" in problem["error"]
            assert (
                "needs the role answerer"
                in (await get(viewer, f"/api/callbacks/{card['id']}?reveal=1", 403))["error"]
            )
            me = await get(viewer, "/api/me")
            assert (me["user"], me["role"], me["view_only"]) == ("the-viewer", "viewer", True)
            assert not me["can_start"]
            assert not (await get(viewer, "/api/sessions/s1"))["session"]["can_resume"]
        async with server.client(tokens["answerer"]) as answerer:
            for path, body in WRITES:
                problem = await post(answerer, path, body, 403)
                assert problem["error"] == (
                    "this needs the role operator, and the token 'the-answerer' has the role answerer"
                )
            me = await get(answerer, "/api/me")
            assert (me["view_only"], me["can_operate"], me["can_start"]) == (False, False, False)
            settled = await post(answerer, f"/api/callbacks/{card['id']}/answer", answer)
            assert (settled["answer"]["by"], settled["answer"]["right"]) == ("the-answerer", "token")
        async with server.client(tokens["operator"]) as operator:
            await post(operator, "/api/sessions", {"agent": "clerk", "text": "wait 100", "id": "s2"})
            await until(operator, "/api/sessions/s2", lambda found: found["session"]["status"] == "running")
            await post(operator, "/api/sessions/s2/cancel", {"reason": "enough"})
            assert (await get(operator, "/api/me"))["can_start"]
    async with Runtime(tmp_path / "log.db") as runtime:
        events = [event async for event in runtime.events("s2")]
    found = {event.type: event for event in events}
    assert getattr(found["turn_started"], "by", "") == "the-operator"
    cancelled: Any = found["cancel_requested"]
    assert (cancelled.by, cancelled.right, cancelled.reason) == ("the-operator", "token", "enough")
    kept = await refusals(tmp_path)
    assert [(one.by, one.action, one.target) for one in kept[:2]] == [
        ("the-viewer", "POST", "/api/sessions"),
        ("the-viewer", "POST", "/api/sessions/s1/prompt"),
    ]
    assert {one.by for one in kept} == {"the-viewer", "the-answerer"}
    assert len(kept) == len(WRITES) * 2 + 2
    assert {one.address for one in kept} == {"127.0.0.1"}


def test_whatever_is_not_named_needs_an_operator() -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "QUERY", "post"):
        assert role_needed(method, "/api/anything") == "operator"
    assert role_needed("POST", "/api/callbacks/q1/answer") == "answerer"
    for path in ("/api/callbacks/q1/answer/", "/api/callbacks/answer", "/x/api/callbacks/q1/answer"):
        assert role_needed("POST", path) == "operator"
    assert role_needed("GET", "/api/callbacks/q1", "1") == role_needed("HEAD", "/api/x", "yes") == "answerer"


def test_the_document_says_which_role_each_operation_needs() -> None:
    paths = document("1", "")["paths"]
    needed = {(path, method): one["x-role"] for path, found in paths.items() for method, one in found.items()}
    assert {role for (_, method), role in needed.items() if method == "get"} == {"viewer"}
    assert {path for (path, _), role in needed.items() if role == "answerer"} == {"/api/callbacks/{id}/answer"}
    assert all(role == "operator" for (path, _), role in needed.items() if path.endswith(("/prompt", "/cancel")))
    assert "Needs the role `operator`." in paths["/api/sessions"]["post"]["description"]


@pytest.mark.slow
async def test_a_page_of_a_viewer_is_told_of_questions_that_only_others_may_answer(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    await run_in(tmp_path, "hello", "s0")
    tokens = {role: await give_token(tmp_path, role, role) for role in ("viewer", "answerer")}
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as own:
        seen: dict[str, bool] = {}

        async def watch(role: str, watching: asyncio.Event) -> None:
            async with server.client(tokens[role]) as client, client.get("/api/live") as response:
                async for one in sent(response):
                    watching.set()
                    if one.name == "questions":
                        seen[role] = one.data["open"][0]["can_answer"]
                        return

        begun = {role: asyncio.Event() for role in tokens}
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for role, watching in begun.items():
                group.create_task(watch(role, watching))
            for watching in begun.values():
                await watching.wait()
            await post(own, "/api/sessions", {"agent": "clerk", "text": "refund A"})
    assert seen == {"viewer": False, "answerer": True}


# --- how a token ends ---------------------------------------------------------------------


@pytest.mark.slow
async def test_a_revoked_token_ends_its_streams_and_is_refused_within_a_second(tmp_path: Path) -> None:
    await run_in(tmp_path, "hello", "s1")
    token, other = await give_token(tmp_path, "ada", "viewer"), await give_token(tmp_path, "ben", "viewer")
    async with (
        serving(tmp_path, "--store", "log.db") as server,
        server.client(token) as ada,
        server.client(other) as ben,
    ):
        streams = [await ada.get(path) for path in ("/api/events", "/api/live", "/api/sessions/s1/events")]
        kept = await ben.get("/api/events")
        assert all(one.status == 200 for one in (*streams, kept))
        await revoke(tmp_path, "ada")
        revoked = time.monotonic()
        for one in streams:
            async with asyncio.timeout(20):
                await one.read()  # it ends as a stream does, without a broken connection
        taken = time.monotonic() - revoked
        await get(ada, "/api/me", 401)
        await get(ben, "/api/me")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await kept.read()
        kept.close()
    assert taken < 5.0, taken  # a second, on a machine with nothing else to do
    (refused,) = await refusals(tmp_path)
    assert (refused.by, refused.reason) == ("ada", "the token was revoked")


async def test_a_token_is_looked_up_again_before_half_a_second_has_passed() -> None:
    store, now, token = MemoryStore(), [0.0], new_token()
    await store.add_token(Token("ada", "viewer", digest_of(token)))
    people = People(store, lambda: now[0])
    assert await people.find(_request(f"Bearer {token}")) is not None
    await store.revoke_token("ada")
    now[0] = 0.5
    assert await people.find(_request(f"Bearer {token}")) is None


async def test_a_request_that_waits_when_its_token_is_revoked_is_answered_with_401() -> None:
    valid, said = [True], list[Any]()

    async def is_valid(digest: str) -> bool:
        return valid[0]

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        valid[0] = False
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def silent() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        said.append(message)

    async with asyncio.timeout(20):
        await OpenRequests(is_valid).run("digest", slow, {"type": "http"}, silent, send)
    assert [one.get("status") for one in said] == [401, None]
    assert b"the token was revoked" in said[1]["body"]


# --- what is kept of refusals -------------------------------------------------------------


def _request(authorization: str, path: str = "/api/me", client: str = "192.0.2.7") -> Request:
    headers = [(b"authorization", authorization.encode("latin-1"))]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
    return Request({**scope, "client": (client, 1), "server": ("x", 80), "scheme": "http"})


async def test_nobody_can_flush_out_the_refusals_of_others() -> None:
    store, now = MemoryStore(), [0.0]
    people = People(store, lambda: now[0])
    for number in range(500):
        await people.record_unknown(_request("Bearer wrong", client=f"192.0.2.{number % 250}"))
        await people.record(_request(""), "ada", "too weak")
    found = await store.refusals()
    assert (sum(not one.by for one in found), sum(one.by == "ada" for one in found)) == (20, 60)
    now[0] = 1.0
    await people.record(_request(""), "ada", "too weak")
    assert len(await store.refusals()) == 81


async def test_what_a_client_words_is_kept_short_and_printable() -> None:
    store = MemoryStore()
    await People(store).record(_request("", "/api/a\0b\x1b[31m\u202e\ud800" + "x" * 5000), "ada", "no\nway")
    (kept,) = await store.refusals()
    assert kept.target.isprintable()
    assert len(kept.target) == 200
    assert kept.reason == "no?way"


async def test_a_request_without_a_token_is_not_kept() -> None:
    store = MemoryStore()
    for header in ("", "Basic YTpi", "Bearer", "Bearer "):
        await People(store).record_unknown(_request(header))
    assert await store.refusals() == []


# --- hostile clients ----------------------------------------------------------------------


@pytest.mark.slow
async def test_odd_tokens_are_refused_and_no_answer_or_message_repeats_one(tmp_path: Path) -> None:
    await run_in(tmp_path, "hello", "s1")
    token = await give_token(tmp_path, "ada", "operator")
    server = Server(tmp_path, "--store", "log.db")
    await server.start()
    odd = (
        f"Bearer {token}x", f"Bearer {token[:-1]}", f"Basic {token}", f"Bearer {digest_of(token)}",
        f"Bearer  {token} x", "Bearer ' OR 1=1 --", "Bearer upcall_" + "'" * 43, "Bearer " + "é" * 50,
        "Bearer ada", token,
    )  # fmt: skip
    async with aiohttp.ClientSession(server.url) as client:
        for header in odd:
            async with client.get("/api/me", headers={"Authorization": header}) as response:
                assert response.status == 401, header
                assert token not in await response.text()
        for path in (
            f"/api/me?token={token}",
            f"/api/me?access_token={token}",
            f"/api/me?authorization=Bearer%20{token}",
        ):
            async with client.get(path) as response:
                assert response.status == 401
        async with client.get("/api/me", headers={"Cookie": f"token={token}"}) as response:
            assert response.status == 401
        async with client.get("/api/me", headers={"Authorization": f"bearer {token}"}) as response:
            assert (await response.json())["user"] == "ada"
        claims = {"Authorization": f"Bearer {token}", "X-User": "root", "X-Forwarded-User": "root"}
        async with client.get("/api/me", headers=claims) as response:
            assert (await response.json())["user"] == "ada"
    _, errors = await server.stop()
    kept = await refusals(tmp_path)
    assert token not in errors + repr(kept)
    assert {one.reason for one in kept} == {"the token is not valid"}


@pytest.mark.slow
async def test_ten_megabytes_of_headers_and_broken_ones_get_a_plain_error(tmp_path: Path) -> None:
    await run_in(tmp_path, "hello", "s1")
    token = await give_token(tmp_path, "ada", "viewer")
    async with serving(tmp_path, "--store", "log.db") as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        for header in (
            b"Authorization: Bearer " + b"a" * 10_000_000,
            b"Authorization: Bearer " + token.encode() + b"\0",
            b"Authorization: Bearer " + token.encode() + b"\r\n X-Evil: 1",
            b"X: y\r\n" * 200_000,
        ):
            answer = await _raw(
                host, int(port), b"GET /api/me HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n"
            )
            assert answer.split(b" ")[1:2] in ([b"400"], [b"401"], [b"431"], []), answer[:200]
            assert token.encode() not in answer
        async with server.client(token) as client:
            await get(client, "/api/me")


async def _raw(host: str, port: int, request: bytes) -> bytes:
    """What a server answers to some bytes before it closes the connection; b"" if it only closes it."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(60):
            writer.write(request)
            await writer.drain()
            return await reader.read(1000)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.slow
async def test_tokens_in_somebody_elses_log_open_nothing(tmp_path: Path) -> None:
    await run_in(tmp_path, "hello", "s1")
    token = await give_token(tmp_path, "planted", "operator")
    (tmp_path / ".upcall").mkdir(mode=0o700)
    with closing(sqlite3.connect(tmp_path / "log.db")) as db, db:
        db.execute("DELETE FROM counters WHERE name LIKE 'origin:%'")  # nobody here has noted its id
    (tmp_path / "log.db").rename(tmp_path / ".upcall" / "log.db")
    async with serving(tmp_path) as server:
        async with server.client(token) as client:
            await get(client, "/api/me", 401)
        async with server.client() as client:
            assert (await get(client, "/api/me"))["view_only"]
