"""Secrets that an agent meets are in no answer of the API, in no stream, in no export and in no search."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from upcall import Runtime
from web import vault
from web.serving import Server, get, post, serving, until

ENVIRON = {
    "VAULT_SECRET_KEY": vault.SECRETS["environment"],
    "DATABASE_URL": f"postgres://admin:{vault.SECRETS['database']}@db.example/x",
}
BEHIND = (vault.BEHIND_TOOL, vault.BEHIND_MODEL, vault.BEHIND_SHOW)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


async def stream(client: aiohttp.ClientSession, path: str, seconds: float = 1.0) -> bytes:
    """What a stream sends before it is silent for some time."""
    found = b""
    async with client.get(path) as response:
        assert response.status == 200, path
        with contextlib.suppress(TimeoutError):
            while True:
                found += await asyncio.wait_for(response.content.readany(), seconds)
    return found


async def whole(client: aiohttp.ClientSession, path: str) -> bytes:
    async with client.get(path) as response:
        assert response.status in (200, 404, 422), (path, response.status)
        return await response.read()


async def everything(client: aiohttp.ClientSession) -> dict[str, bytes]:
    """All that every path of the API answers, for every session, event and callback."""
    document = await get(client, "/api/openapi.json")
    sessions = {row["id"]: 0 for row in (await get(client, "/api/sessions"))["sessions"]}
    events = [
        event
        for line in (await stream(client, "/api/events?after=0")).splitlines()
        if line.startswith(b"data: ")
        for event in msgspec.json.decode(line[6:])
    ]
    for event in events:
        sessions[event["session"]] = max(sessions.get(event["session"], 0), event["seq"])
    callbacks = {event["callback_id"] for event in events if "callback_id" in event}
    found: dict[str, bytes] = {}
    for template, methods in document["paths"].items():
        if "get" not in methods:
            continue
        for path in expanded(template, sessions, callbacks):
            endless = template.endswith(("/events", "/live"))
            found[path] = await (stream(client, path, 0.4) if endless else whole(client, path))
    return found


def expanded(template: str, sessions: dict[str, int], callbacks: Iterable[str]) -> list[str]:
    """The paths that a template of the document stands for here."""
    if template.startswith("/api/callbacks"):
        return [template.replace("{id}", one) for one in callbacks]
    queries = {
        "/api/events": ["?after=0"],
        "/api/live": ["?after=0", *[f"?after=0&tree={one}" for one in sessions if "~" not in one]],
        "/api/search": [f"?q={word}" for word in ("hidden", "value", "key", "keeper", "deploy")],
        "/api/sessions/{id}/export": ["?format=jsonl", "?format=html"],
        "/api/sessions": ["", "?q=sk-live", "?status=done"],
        "/api/sessions/{id}/nodes": ["", "?after=0"],
    }.get(template, [""])
    made: list[str] = []
    for session, last in sessions.items() if "{id}" in template else [("", 0)]:
        path = template.replace("{id}", session)
        numbers = range(1, last + 1) if "{seq}" in path else range(1, 5) if "{" in path else [0]
        made += [re.sub(r"\{\w+\}", str(number), path) + query for number in numbers for query in queries]
    return made


def written(body: bytes) -> bytes:
    """The text that the deltas of a stream make together."""
    lines = [line[6:] for line in body.splitlines() if line.startswith(b"data: [{") and b'"call_id"' in line]
    texts = [one.get("text", "") for line in lines for one in msgspec.json.decode(line) if "kind" in one]
    return "".join(text for text in texts if isinstance(text, str)).encode()


def check(found: dict[str, bytes], secrets: Iterable[str]) -> None:
    """Nothing that was found holds a secret, in one piece or in several."""
    found = found | {f"{path} (deltas)": written(body) for path, body in found.items() if b"event: delta" in body}
    for path, body in found.items():
        for secret in secrets:
            assert secret.encode() not in body, (
                path,
                secret,
                body[max(0, body.find(secret.encode()) - 200) :][:400],
            )


async def play_keeper(server: Server, client: aiohttp.ClientSession) -> dict[str, bytes]:
    """Let the keeper meet all secrets; returns what the requests answered and a page's stream said meanwhile."""
    s, found = vault.SECRETS, dict[str, bytes]()

    async def say(path: str, body: Any) -> None:
        async with client.post(path, data=msgspec.json.encode(body)) as response:
            found[path + str(len(found))] = answer = await response.read()
            assert response.status == 200, answer

    async def question() -> str:
        return (await until(client, "/api/inbox", lambda one: one["open"]))["open"][0]["id"]

    watching = asyncio.ensure_future(stream(client, "/api/live?tree=s1&after=0", 4.0))
    await asyncio.sleep(0.5)  # the stream is open
    await say("/api/sessions/s1/prompt", {"text": f"use {s['prompt']} please"})
    await say(f"/api/callbacks/{await question()}/answer", {"value": s["choice"]})
    await say("/api/sessions/s1/steer", {"text": f"try {s['steer']}"})
    await say(f"/api/callbacks/{await question()}/answer", {"value": {"password": s["typed"]}})
    await say(f"/api/callbacks/{await question()}/answer", {"reject": f"no, {s['reason']}"})
    await until(client, "/api/sessions/s1", lambda one: one["session"]["status"] == "done")
    await say("/api/sessions/s1/prompt", {"text": f"fail with {s['answer']}"})
    await until(client, "/api/sessions/s1", lambda one: one["session"]["status"] == "failed")
    start = {"agent": "keeper", "text": f"use {s['prompt']} please", "title": f"with {s['title']}", "id": "s2"}
    await say("/api/sessions", start)
    await question()
    await say("/api/sessions/s2/cancel", {"reason": f"not with {s['reason']}"})
    found["live"] = await watching
    return found


def make_agents(folder: Path) -> tuple[str, ...]:
    shutil.copy(Path(vault.__file__), folder / "vault.py")
    return "vault:keeper", "vault:guard", "--store", "log.db"


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_no_secret_that_an_agent_meets_is_shown_or_found_anywhere(tmp_path: Path) -> None:
    s = vault.SECRETS
    async with Runtime(tmp_path / "log.db", agents=[vault.keeper]) as runtime:
        tags, data = {"token": s["tag"], "note": "plain"}, {"password": s["data"], "more": [s["environment"]]}
        await runtime.start("keeper", "s1", title=f"with {s['title']}", tags=tags, data=data)
    async with serving(tmp_path, *make_agents(tmp_path)) as server, server.client() as client:
        told = await play_keeper(server, client)
        check(told, s.values())
        assert "found ⟦hidden 20 #1⟧ and ⟦hidden 25 #2⟧".encode() in told["live"]
        await until(client, "/api/search?q=thanks", lambda one: one["hits"])
        found = await everything(client)
        assert len(found) >= 90  # every path, for every session, event and callback
        check(found, s.values())
        for secret in s.values():
            for part in (secret, secret[:8], secret[-8:]):
                hits = (await get(client, f"/api/search?q={part}"))["hits"]
                assert not any(secret in str(hit) for hit in hits), secret
                await asyncio.sleep(0.11)  # searches have a rate
            assert (await get(client, f"/api/search?q={secret}"))["hits"] == []
            await asyncio.sleep(0.11)
    async with Runtime(tmp_path / "log.db") as runtime:
        stored = str([event async for event in runtime.events()])
    assert [name for name, secret in s.items() if secret not in stored] == [
        "shown"
    ]  # each was met; that is a delta
    for file in tmp_path.glob("log.db-index*"):
        check({file.name: file.read_bytes()}, s.values())


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_what_a_hook_is_about_to_hide_is_shown_by_no_process_while_it_runs(tmp_path: Path) -> None:
    agents = make_agents(tmp_path)
    async with (
        serving(tmp_path, *agents) as one,
        serving(tmp_path, "--store", "log.db") as two,
        one.client() as runs,
        two.client() as follows,
    ):
        async with watched(runs) as first, watched(follows) as second:
            await post(runs, "/api/sessions", {"agent": "guard", "text": "look", "id": "g1"})
            await waits(tmp_path, "tool-start")  # and the streams of the tree are open
            (tmp_path / "tool-start").touch()
            for hook in ("tool-hook", "model-hook"):
                await waits(tmp_path, hook)  # and what was written is with both servers
                if hook == "tool-hook":
                    check({"one": bytes(first), "two": bytes(second)}, BEHIND)
                for client in (runs, follows):
                    check(await everything(client), BEHIND)
                    for secret in BEHIND:
                        assert (await get(client, f"/api/search?q={secret}"))["hits"] == []
                (tmp_path / hook).touch()
            for client in (runs, follows):
                done = await until(client, "/api/sessions/g1", lambda one: one["session"]["status"] == "done")
                assert done["session"]["text"] == "(hidden by the model's hook)"
                await until(client, "/api/search?q=hidden by the tool", lambda one: one["hits"])
                check(await everything(client), BEHIND)
        check({"one": bytes(first), "two": bytes(second)}, BEHIND)
        assert b"hidden by the tool" in bytes(first)  # the streams were open
    for file in tmp_path.glob("log.db-index*"):
        check({file.name: file.read_bytes()}, BEHIND)


async def waits(folder: Path, name: str) -> None:
    """Return soon after the agent has begun to wait for a file."""
    while not (folder / f"{name}-waits").exists():
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.4)


@contextlib.asynccontextmanager
async def watched(client: aiohttp.ClientSession) -> AsyncGenerator[bytearray]:
    """All that the streams of a server send meanwhile."""
    found = bytearray()

    async def follow(path: str) -> None:
        async with client.get(path) as response:
            async for piece in response.content.iter_any():
                found.extend(piece)

    async def follow_tree() -> None:
        while (await client.get("/api/sessions/g1")).status != 200:
            await asyncio.sleep(0.02)
        await follow("/api/live?tree=g1&after=0")

    tasks = [asyncio.ensure_future(one) for one in (follow("/api/events"), follow("/api/live"), follow_tree())]
    await asyncio.sleep(0.2)
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
