"""The one stream of a page: rows, questions, counts and text while it is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.types import Message

from upcall import Runtime
from upcall.hosts.web import live_reads
from upcall.observe import Change, Node, apply_changes
from upcall.web import app as web_app
from web.office import clerk
from web.serving import Sent, get, make_agents, post, run_in, sent, serving, until


async def first(stream: AsyncGenerator[Sent], name: str) -> Any:
    """The data of the next event of that name."""
    async with asyncio.timeout(20):
        while (one := await anext(stream)).name != name:
            pass
    return one.data


@pytest.mark.slow
async def test_a_question_of_another_process_is_told_to_the_page_and_so_is_its_answer(tmp_path: Path) -> None:
    make_agents(tmp_path)
    async with (
        serving(tmp_path, "office:clerk", "--store", "log.db") as server,
        server.client() as client,
        client.get("/api/live") as response,
    ):
        stream = sent(response)
        hello = await anext(stream)
        assert (hello.name, hello.data["pos"]) == ("hello", 0)
        late: list[float] = []
        for number in range(5):
            assert await run_in(tmp_path, f"refund {number}", f"s{number}") == "waiting"
            while not (told := await first(stream, "questions"))["open"]:
                pass
            late.append(time.time() - told["open"][0]["created"])
            assert told["open"][0]["message"] == f"How much for {number}?"
            assert (await first(stream, "counts"))["inbox"] == 1

            await post(client, f"/api/callbacks/{told['open'][0]['id']}/answer", {"value": number})
            pressed = time.time()
            settled, done = list[Any](), list[Any]()
            async with asyncio.timeout(20):
                while not (settled and done):
                    one = await anext(stream)
                    settled += one.data["settled"] if one.name == "questions" else ()
                    done += [row for row in one.data if row["text"]] if one.name == "rows" else ()
            assert settled[0]["answer"]["value"] == number
            assert done[0]["text"] == f"{number}: {number}"
            assert time.time() - pressed < 5
        assert sorted(late)[2] < 0.5, late


@pytest.mark.slow
async def test_a_page_that_comes_back_gets_what_changed_meanwhile(tmp_path: Path) -> None:
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        pos = (await get(client, "/api/me"))["pos"]
        await run_in(tmp_path, "refund A", "s1")
        await run_in(tmp_path, "hello", "s2")
        await until(client, "/api/sessions", lambda found: len(found["sessions"]) == 2)
        await asyncio.sleep(0.2)
        async with client.get(f"/api/live?after={pos}") as response:
            stream = sent(response)
            assert {row["id"] for row in await first(stream, "rows")} == {"s1", "s2"}
            assert [card["session_id"] for card in (await first(stream, "questions"))["open"]] == ["s1"]
        async with client.get("/api/live?tree=nope") as response:
            assert response.status == 404


@pytest.mark.slow
async def test_text_is_told_while_it_is_written_and_secrets_in_it_are_hidden(tmp_path: Path) -> None:
    make_agents(tmp_path)
    (tmp_path / "slow.py").write_text(
        "import asyncio\n"
        "from upcall import Agent\n"
        "from upcall.messages import Response\n"
        "class Slow:\n"
        "    name = 'slow'\n"
        "    async def respond(self, request, emit):\n"
        "        for piece in ('the key is sk-li', 've-abcdefghijk', 'lmnopqrstuvwxyz and ', 'that is all'):\n"
        "            emit and emit('text', piece)\n"
        "            await asyncio.sleep(0.2)\n"
        "        return Response('done')\n"
        "writer = Agent('writer', model=Slow())\n"
    )
    async with serving(tmp_path, "slow:writer", "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "writer", "text": "one", "id": "s1"})
        await until(client, "/api/sessions/s1", lambda found: found["session"]["status"] == "done")
        async with client.get("/api/live?tree=s1") as response:
            stream = sent(response)
            await anext(stream)
            await post(client, "/api/sessions/s1/prompt", {"text": "again"})
            text = ""
            while "that is" not in text:
                text += "".join(one["text"] for one in await first(stream, "delta"))
    assert text.startswith("the key is ⟦hidden ")
    assert "sk-li" not in text
    assert "abcdefghijk" not in text


@pytest.mark.slow
async def test_twenty_pages_share_one_reader(tmp_path: Path) -> None:
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        responses = [await client.get("/api/live") for _ in range(20)]
        streams = [sent(response) for response in responses]
        await asyncio.gather(*[anext(stream) for stream in streams])
        async with Runtime(tmp_path / "log.db", agents=[clerk]) as runtime:
            for number in range(10):
                await (await runtime.start("clerk", f"s{number}")).prompt("hello")
        for stream in streams:
            seen: set[str] = set()
            while len(seen) < 10:
                seen |= {row["id"] for row in await first(stream, "rows") if row["status"] == "done"}
        for response in responses:
            response.close()


@pytest.mark.slow
async def test_the_nodes_of_a_tree_with_the_changes_told_live_are_its_nodes_later(tmp_path: Path) -> None:
    await run_in(tmp_path, "hello", "s1")
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        before = await get(client, "/api/sessions/s1/nodes")
        assert {node["kind"] for node in before["nodes"]} >= {"session", "turn", "model", "request", "response"}
        path = f"/api/live?tree=s1&after={before['pos']}"
        changes: list[Change] = []
        async with client.get(path) as response, Runtime(tmp_path / "log.db", agents=[clerk]) as runtime:
            stream = sent(response)
            session = await runtime.load("s1")
            for number in range(10):
                await session.prompt(f"wait 0.0{number}")
            last = (await runtime.store.row("s1")).seq  # pyright: ignore[reportOptionalMemberAccess]
            while not any(change.set.get("end_seq") == last for change in changes):
                changes += msgspec.convert(await first(stream, "nodes"), list[Change])
        after = await get(client, "/api/sessions/s1/nodes")
        asked = await get(client, f"/api/sessions/s1/nodes?after={before['pos']}")
        await get(client, "/api/sessions/nope/nodes", 404)
    now = msgspec.convert(after["nodes"], list[Node])
    assert apply_changes(msgspec.convert(before["nodes"], list[Node]), changes) == now
    assert msgspec.convert(asked["changes"], list[Change]) == changes


async def test_a_page_that_missed_too_many_changes_of_a_tree_is_told_to_read_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_reads, "MOST_CHANGES", 20)
    await run_in(tmp_path, "hello", "s1")
    async with Runtime(tmp_path / "log.db", agents=[clerk]) as runtime:
        await (await runtime.load("s1")).prompt("again")
        application, found, left = web_app(runtime, lambda request: "ada"), b"", asyncio.Event()

        async def receive() -> Message:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal found
            found += message.get("body", b"")
            if b"event: reset" in found and found.endswith(b"\n\n"):
                left.set()

        scope = {"type": "http", "method": "GET", "path": "/api/live", "root_path": "", "scheme": "http"}
        query = {"query_string": b"tree=s1&after=1", "headers": [(b"host", b"test")]}
        async with asyncio.timeout(20):
            await application({**scope, **query}, receive, send)
    assert b'event: reset\ndata: {"tree":true}' in found
    assert b"event: nodes" not in found
