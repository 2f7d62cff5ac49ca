"""The index beside the log: lists, counts and search, from whatever any process wrote."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import apsw
import pytest

from upcall import Agent, Hooks, Runtime, tool
from upcall.contracts import Store
from upcall.hosts.web.index.file import open_index, position
from upcall.hosts.web.index.writer import IndexWriter
from upcall.messages import Result
from upcall.models import Script, call
from upcall.observe.redact import Redactor
from web.office import clerk
from web.serving import get, make_agents, post, run_in, serving, until

SECRET = "sk-live-abcdefghijklmnop"


@pytest.mark.slow
async def test_search_finds_every_script_and_says_where(tmp_path: Path) -> None:
    texts = {"s1": "the quick brown fox", "s2": "請幫我退款給客戶", "s3": "быстрая лиса и مرحبا بالعالم"}
    for session, text in texts.items():
        await run_in(tmp_path, text, session)
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        for word, session in (
            ("quick BROWN", "s1"),
            ("退款給", "s2"),
            ("лиса", "s3"),
            ("مرحبا", "s3"),
            ("ick bro", "s1"),
        ):
            hits = await until(client, f"/api/search?q={word}", lambda found: found["hits"])
            assert {hit["session"] for hit in hits["hits"]} == {session}
            assert {hit["kind"] for hit in hits["hits"]} == {"prompt", "reply"}
            assert all(word.split()[0].casefold() in hit["snippet"].casefold() for hit in hits["hits"])
            assert {hit["title"] for hit in hits["hits"]} == {texts[session]}
        prompt = next(hit for hit in hits["hits"] if hit["kind"] == "prompt")
        assert (prompt["seq"], prompt["node"]) == (2, "s1/t1")
        assert (await get(client, "/api/search?q=nothing%20like%20it"))["hits"] == []
        assert [hit["session"] for hit in (await get(client, "/api/search?q=退款"))["hits"]] == ["s2"]
        for wrong in ("/api/search", "/api/search?q=", f"/api/search?q={'x' * 201}"):
            await get(client, wrong, 422)
        for odd in ('"', "a OR b", "NEAR(a b)", "*%25*", "x' --", '""" AND'):
            await get(client, f"/api/search?q={odd}")
    assert stat.S_IMODE((tmp_path / "log.db-index").stat().st_mode) == 0o600


@pytest.mark.slow
async def test_secrets_are_in_no_search_and_not_in_the_file(tmp_path: Path) -> None:
    @tool
    async def read_key() -> str:
        """Read."""
        return f"password: hunter2hunter2 behind a hook, and {SECRET}"

    def hide(session: Any, called: Any, result: Result) -> Result:
        return result.replace(text="(hidden by a hook) kept words")

    script = Script([call("read_key"), "ready"])
    agent = Agent("keeper", model=script, tools=[read_key], hooks=Hooks(after_tool=(hide,)))
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        await (await runtime.start("keeper", "s1")).prompt(f"use {SECRET} please")
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        await until(client, "/api/search?q=kept words", lambda found: found["hits"])
        await until(client, "/api/search?q=please", lambda found: found["hits"])
        for secret in (SECRET, SECRET[8:], "hunter2", "behind a hook"):
            assert (await get(client, f"/api/search?q={secret}"))["hits"] == []
        (row,) = (await get(client, "/api/sessions"))["sessions"]
        assert row["title"].startswith("use ⟦hidden ")
    stored = (tmp_path / "log.db-index").read_bytes()
    assert SECRET.encode() not in stored
    assert b"hunter2" not in stored


@pytest.mark.slow
async def test_a_body_that_hooks_pass_unchanged_is_found(tmp_path: Path) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "an ordinary pebble"

    agent = Agent(
        "keeper",
        model=Script([call("look"), "ready"]),
        tools=[look],
        hooks=Hooks(after_tool=(lambda session, called, result: None,)),
    )
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        await (await runtime.start("keeper", "s1")).prompt("look around")
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        (hit,) = (await until(client, "/api/search?q=pebble", lambda found: found["hits"]))["hits"]
        assert (hit["kind"], hit["snippet"], hit["node"]) == ("result", "an ordinary pebble", "s1/r1c0")


@pytest.mark.slow
async def test_lists_are_filtered_counted_and_paged(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "log.db", agents=[clerk]) as runtime:
        for number in range(7):
            session = await runtime.start("clerk", f"s{number}", tags={"customer": "acme" if number % 2 else "zed"})
            await session.prompt(f"refund order-{number}" if number < 2 else f"hello number {number}")
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        await until(client, "/api/search?q=hello", lambda one: one["indexed"] == 1)
        found = await until(client, "/api/sessions?limit=3", lambda one: one["counts"]["all"] == 7)
        assert [row["id"] for row in found["sessions"]] == ["s6", "s5", "s4"]
        assert found["counts"] == {"all": 7, "running": 0, "waiting": 2, "failed": 0}
        more = await get(client, f"/api/sessions?limit=3&before={found['next']}")
        assert [row["id"] for row in more["sessions"]] == ["s3", "s2", "s1"]
        last = await get(client, f"/api/sessions?limit=3&before={more['next']}")
        assert ([row["id"] for row in last["sessions"]], last["next"]) == (["s0"], None)

        for query, ids in (
            ("status=waiting", ["s1", "s0"]),
            ("tag=customer=acme&status=done", ["s5", "s3"]),
            ("q=NUMBER 4", ["s4"]),
            ("q=order&status=waiting&limit=1", ["s1"]),
            ("q=order&before=s1", ["s0"]),
            ("agent=nobody", []),
            ("q=%25", []),
        ):
            rows = (await get(client, f"/api/sessions?{query}"))["sessions"]
            assert [row["id"] for row in rows] == ids, query
        assert [row["questions"] for row in found["sessions"]] == [0, 0, 0]
        assert last["sessions"][0]["questions"] == 1


@pytest.mark.slow
async def test_an_index_that_is_deleted_broken_or_of_another_log_is_made_again(tmp_path: Path) -> None:
    await run_in(tmp_path, "the first stone", "s1")
    index = tmp_path / "log.db-index"
    for spoil in (index.unlink, lambda: index.write_bytes(b"not a database" * 1000)):
        async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
            await until(client, "/api/search?q=first stone", lambda found: found["hits"])
        spoil()
    for file in tmp_path.glob("log.db*"):
        if file.is_file() and "index" not in file.name:
            file.unlink()
    await run_in(tmp_path, "a second stone", "s1")
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        await until(client, "/api/search?q=second stone", lambda found: found["hits"])
        assert (await get(client, "/api/search?q=first stone"))["hits"] == []


@pytest.mark.slow
async def test_two_servers_write_one_index(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, "--store", "log.db") as one,
        serving(tmp_path, "--store", "log.db") as two,
        one.client() as first,
        two.client() as second,
    ):
        await asyncio.gather(get(first, "/api/sessions"), get(second, "/api/sessions"))
        async with Runtime(tmp_path / "log.db", agents=[clerk]) as runtime:
            for number in range(60):
                await (await runtime.start("clerk", f"s{number}")).prompt("hello pebble")
        for client in (first, second):
            found = await until(client, "/api/search?q=pebble&limit=100", lambda found: len(found["hits"]) == 100)
            assert len({(hit["session"], hit["seq"]) for hit in found["hits"]}) == 100
            counts = (await until(client, "/api/sessions", lambda found: found["counts"]["all"] == 60))["counts"]
            assert counts["failed"] == 0


async def test_a_server_that_starts_while_another_indexes_new_events_leaves_the_index_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db-index"
    await run_in(tmp_path, "the first stone", "s1")
    async with Runtime(tmp_path / "log.db", agents=[clerk]) as runtime:
        await index(path, Watched(runtime.store))
        made, before = path.stat().st_ino, await runtime.store.last()

        async def meanwhile() -> None:
            await (await runtime.start("clerk", "s2")).prompt("a second stone")
            await index(path, Watched(runtime.store))

        await index(path, Watched(runtime.store, meanwhile))
        assert await runtime.store.last() > before
        assert path.stat().st_ino == made


class Watched:
    """A log that notes when all of it was read. Something may happen just after its end was looked at."""

    def __init__(self, store: Store, *meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._store, self._meanwhile = store, list(meanwhile)
        self.was_read = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def last(self) -> int:
        found = await self._store.last()
        while self._meanwhile:
            await self._meanwhile.pop()()
        return found

    async def wait(self, position: int, seconds: float) -> None:
        self.was_read.set()
        await self._store.wait(position, seconds)


async def index(path: Path, log: Watched) -> None:
    """Index a log up to its end, as a server does."""
    runtime = cast("Runtime", SimpleNamespace(store=log))
    following = asyncio.ensure_future(IndexWriter(path, Redactor()).follow(runtime))
    await asyncio.wait_for(log.was_read.wait(), 60)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def test_an_index_that_another_server_has_locked_for_long_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upcall.hosts.web.index.file.BUSY_MS", 20)
    path = tmp_path / "log.db-index"
    writer: Any = open_index(path)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO state VALUES ('position', '7')")
    with pytest.raises(apsw.BusyError):
        open_index(path)
    writer.execute("COMMIT")
    writer.close()

    again: Any = open_index(path)
    assert position(again) == 7
    again.close()


@pytest.mark.slow
async def test_a_run_that_two_servers_could_continue_is_continued_once(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    assert await run_in(tmp_path, "refund order-1", "s1") == "waiting"
    async with (
        serving(tmp_path, agent, "--store", "log.db") as one,
        serving(tmp_path, agent, "--store", "log.db") as two,
        one.client() as first,
        two.client() as second,
    ):
        (card,) = (await get(first, "/api/inbox"))["open"]
        assert [other["id"] for other in (await get(second, "/api/inbox"))["open"]] == [card["id"]]
        await post(second, f"/api/callbacks/{card['id']}/answer", {"value": 1})
        await post(first, f"/api/callbacks/{card['id']}/answer", {"value": 2}, 409)
        for client in (first, second):
            await until(client, "/api/sessions/s1", lambda found: found["session"]["status"] == "done")
            assert (await get(client, "/api/inbox"))["open"] == []
    async with Runtime(tmp_path / "log.db") as runtime:
        kinds = [type(event).__name__ for event in await runtime.store.read("s1")]
    assert (kinds.count("CallbackAnswered"), kinds.count("TurnEnded")) == (1, 1)


@pytest.mark.slow
async def test_servers_that_begin_to_read_a_log_in_several_threads_do_not_crash(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "log.db", agents=[clerk]) as runtime:
        for number in range(200):
            await (await runtime.start("clerk", f"s{number}")).prompt("wait 0")
    for _ in range(5):
        async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
            paths = [
                "/api/sessions",
                "/api/inbox",
                "/api/sessions/s1/nodes",
                "/api/sessions/s2/events/2",
                "/api/me",
            ]
            await asyncio.gather(*[get(client, path) for path in paths])
        for file in tmp_path.glob("log.db-index*"):
            file.unlink()


TRIGGER = (
    "CREATE TRIGGER planted AFTER INSERT ON state BEGIN INSERT INTO names VALUES (99, '', '', '', '', ''); END"
)


@pytest.mark.parametrize(
    "change", [TRIGGER, "CREATE VIEW planted AS SELECT 1", "DROP INDEX trees_by_status", "mode", "journal"]
)
def test_an_index_that_somebody_else_made_is_made_again(change: str, tmp_path: Path) -> None:
    path, journal = tmp_path / "log.db-index", tmp_path / "log.db-index-journal"
    made: Any = open_index(path)
    made.execute("INSERT INTO state VALUES ('position', '7')")
    if change not in ("mode", "journal"):
        made.execute(change)
    made.close()
    if change == "mode":
        path.chmod(0o644)
    if change == "journal":
        journal.write_bytes(b"planted")
        os.utime(journal, (1, 1))

    again: Any = open_index(path)
    declared = {str(name) for (name,) in again.execute("SELECT name FROM sqlite_schema")}
    kept = position(again)
    again.close()

    assert kept == 0
    assert "planted" not in declared
    assert "trees_by_status" in declared
    assert not journal.exists()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
