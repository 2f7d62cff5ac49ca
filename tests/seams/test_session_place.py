"""A session's own place: its title and the folders that it works in and with."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from upcall import Agent, Context, Hooks, Runtime, SessionAccess, SetupError, SyncContext, tool
from upcall.contracts import Selection
from upcall.models import Script, call

PLACE: dict[str, Any] = {"title": "Mend the login page", "folder": "/srv/shop", "roots": ("/srv/docs", "/srv/lib")}


def place_of(session: Any) -> dict[str, Any]:
    return {"title": session.title, "folder": session.folder, "roots": session.roots}


def as_text(session: Any) -> str:
    return json.dumps(place_of(session))


@tool
async def where(ctx: Context) -> str:
    """Say where the session works."""
    return as_text(ctx)


@tool
def where_sync(ctx: SyncContext) -> str:
    """Say where the session works, from a thread."""
    return as_text(ctx)


def repeat(request: Any) -> str:
    return request.messages[-1].results[0].text


@pytest.mark.parametrize("name", ["where", "where_sync"])
async def test_tools_of_both_kinds_read_title_folder_and_roots(name: str) -> None:
    agent = Agent("speaker", model=Script([call(name), repeat]), tools=[where, where_sync])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, **PLACE)
        assert json.loads((await session.prompt("Go.")).text) == {**PLACE, "roots": list(PLACE["roots"])}
        assert place_of(session) == PLACE


async def test_hooks_read_the_place_from_the_first_point_on() -> None:
    seen: list[dict[str, Any]] = []

    def begin(session: SessionAccess) -> None:
        seen.append(place_of(session))

    agent = Agent("a", model=Script(["done"]), hooks=Hooks(begin_session=[begin]))
    async with Runtime(agents=[agent]) as runtime:
        await runtime.start(agent, **PLACE)
    assert seen == [PLACE]


async def test_children_and_side_turns_read_the_place_of_their_root(tmp_path: Path) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []

    def note(session: SessionAccess, request: Any) -> None:
        seen.append((session.purpose, place_of(session)))

    @tool
    async def ask_top(ctx: Context) -> str:
        """Ask the agent above."""
        return await ctx.raise_callback("Which colour?")

    def top_says(request: Any) -> Any:
        if request.purpose == "side_turn":
            return [call("answer_callback", value="blue")]
        if any(message.role == "tool" for message in request.messages):
            return "done"
        return [call("task", agent="below", prompt="Go.")]

    below = Agent("below", model=Script([call("ask_top"), repeat]), tools=[ask_top])
    top = Agent("top", model=Script(top_says), agents=[below], hooks=Hooks(before_model=[note]))
    async with Runtime(tmp_path / "log.db", agents=[top]) as runtime:
        await (await runtime.start(top, id="s", **PLACE)).prompt("Go.")
        rows = await runtime.rows(session="s")
        loaded = [place_of(await runtime.load(row.id)) for row in rows]
    assert {purpose for purpose, _ in seen} == {"turn", "side_turn"}
    assert len(rows) == 3
    assert [place for _, place in seen] + loaded + [place_of(row) for row in rows] == [PLACE] * (len(seen) + 6)


async def test_the_place_is_in_the_first_event_and_left_out_of_it_when_empty(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    agent = Agent("a", model=Script([]))
    async with Runtime(path, agents=[agent]) as runtime:
        await runtime.start(agent, id="placed", **PLACE)
        await runtime.start(agent, id="plain")
    async with Runtime(path) as runtime:
        assert place_of(await runtime.load("placed")) == PLACE
        assert place_of(await runtime.load("plain")) == {"title": "", "folder": None, "roots": ()}
    with closing(sqlite3.connect(path)) as db, db:
        placed, plain = [json.loads(body) for (body,) in db.execute("SELECT body FROM events ORDER BY pos")]
    assert {name: placed[name] for name in PLACE} == {**PLACE, "roots": list(PLACE["roots"])}
    assert not PLACE.keys() & plain.keys()


@pytest.mark.parametrize("durable", [False, True])
async def test_rows_show_the_place_and_are_filtered_by_the_folder(durable: bool, tmp_path: Path) -> None:
    agent = Agent("a", model=Script([]))
    async with Runtime(tmp_path / "log.db" if durable else ":memory:", agents=[agent]) as runtime:
        await runtime.start(agent, id="one", **PLACE)
        await runtime.start(agent, id="two", folder=Path("/srv/shop"))
        await runtime.start(agent, id="three", folder="/srv/docs", tags={"tier": "gold"})
        await runtime.start(agent, id="four", title="No folder")

        async def found(**which: Any) -> list[str]:
            return [row.id for row in await runtime.rows(**which)]

        assert await found(folder="/srv/shop") == await found(folder=Path("/srv/shop")) == ["two", "one"]
        assert await found(folder="/srv/shop", before="two") == ["one"]
        assert await found(folder="/srv/docs", tags={"tier": "gold"}, agent="a", status="idle") == ["three"]
        assert await found(folder="/srv") == await found(folder="/srv/shop", tags={"tier": "gold"}) == []
        rows = {row.id: (row.title, row.folder, row.roots) for row in await runtime.rows()}
        assert rows["one"] == tuple(PLACE.values())
        assert (rows["two"], rows["four"]) == (("", "/srv/shop", ()), ("No folder", "", ()))
        assert [row.id for row in await runtime.store.rows(which=Selection(folder="/srv/docs"))] == ["three"]
        with pytest.raises(SetupError, match="folder must be an absolute path"):
            await runtime.rows(folder="shop")


async def test_the_place_goes_when_its_session_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    agent = Agent("a", model=Script([]))
    async with Runtime(path, agents=[agent]) as runtime:
        await runtime.start(agent, id="gone", **PLACE)
        await runtime.start(agent, id="stays", folder="/srv/shop")
        await runtime.delete("gone")
        await runtime.start(agent, id="gone")
        assert [row.id for row in await runtime.rows(folder="/srv/shop")] == ["stays"]
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute("SELECT title, folder, roots FROM places").fetchall() == [("", "/srv/shop", "[]")]


WRONG: dict[str, dict[str, Any]] = {
    "title must be one line of at most 200 characters": {"title": "x" * 201},
    "title must be one line": {"title": "a\nb"},
    "title must be one line of": {"title": "a\u2028b"},
    "title must be one line of at most": {"title": "\x1b[2J"},
    "title must be one line of at most 200": {"title": "\ud800"},
    "title must be one line of at most 200 characters, not None": {"title": None},
    "title must be one line of at most 200 characters, not 7": {"title": 7},
    "folder must be an absolute path, not 'shop'": {"folder": "shop"},
    "folder must be an absolute path, not ''": {"folder": ""},
    "folder must be an absolute path, not 'shop/x'": {"folder": Path("shop/x")},
    "folder must be an absolute path, such as": {"folder": 7},
    "folder may have at most 4096 characters": {"folder": "/" + "x" * 4096},
    "folder may have at most 4096 characters and no control characters": {"folder": "/a\0b"},
    "roots must be a list of absolute paths": {"roots": "/srv"},
    "roots must be a list of absolute paths, such as": {"roots": 7},
    "a session may have at most 50 roots, not 51": {"roots": ["/srv"] * 51},
    "each of roots must be an absolute path, not 'docs'": {"roots": ["/srv", "docs"]},
    "each of roots must be an absolute path, such as": {"roots": [b"/srv"]},
}


@pytest.mark.parametrize("problem", WRONG)
async def test_a_wrong_title_or_folder_is_refused_before_anything_is_stored(problem: str, tmp_path: Path) -> None:
    agent = Agent("a", model=Script([]))
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        with pytest.raises(SetupError) as caught:
            await runtime.start(agent, **WRONG[problem])
        assert problem in str(caught.value)
        assert len(str(caught.value)) < 400
        assert await runtime.rows() == []


async def test_a_title_and_folders_at_their_bounds_are_stored(tmp_path: Path) -> None:
    agent = Agent("a", model=Script([]))
    path = f"/{'é' * 4095}"
    given: dict[str, Any] = {"title": "👩‍💻" + "é" * 197, "folder": path, "roots": (path,) * 50}
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        await runtime.start(agent, id="s", **given)
        assert place_of(await runtime.load("s")) == given
        assert [place_of(row) for row in await runtime.rows(folder=path)] == [given]
