"""One bad entry in a log, written by an older version or by hand, hides none of the others."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from callbacks.doubles import asker
from cli.command import upcall
from quick import slow_after
from upcall import Agent, Callback, Runtime, StoreDamaged
from upcall.models import Script, call
from upcall.observe.mirror import Mirror

Change = Callable[[dict[str, Any]], Any]
AGENT = asker("which colour?", context={"why": "paint"})

AGENTS = """\
from upcall import Agent, Context, tool
from upcall.models import Script, call


@tool
async def work(ctx: Context) -> str:
    return str(await ctx.raise_callback("which colour?", context={"why": "paint"}))


def play(request):
    results = request.messages[-1].results
    return results[0].text if results else call("work")


agent = Agent("developer", model=Script(play), tools=[work])
"""


def deep(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def context(**more: Any) -> Change:
    """A context as an asker could write it before the runtime's facts stood over it."""
    return lambda event: event | {"context": event["context"] | more}


def fields(**more: Any) -> Change:
    """An event with some of its fields changed."""
    return lambda event: event | more


LEGAL: dict[str, Change] = {
    "arguments are a text": context(arguments="text"),
    "arguments are a list": context(arguments=[1, [2]]),
    "arguments are a number": context(arguments=7),
    "arguments are null": context(arguments=None),
    "arguments hold null": context(arguments={"": None, "a\nb": {"c": [None]}}),
    "the task is an object": context(task={"a": 1}),
    "the task is a list": context(task=[]),
    "the tool is an object": context(tool={"a": 1}, arguments={"x": "a\nb"}),
    "the tool is a list": context(tool=["a"]),
    "everything is empty": fields(context={}, given={}),
    "given is nested": context(given=deep(90)),
    "a name is long and has escapes": context(**{"\x1b[2J" * 1000: "\x1b]0;x\x07"}),
    "choices are odd": fields(choices=["", "\x1b[2J", "a\nb"]),
    "the schema is odd": fields(schema={"type": 7, "properties": "text", "enum": {}}),
    "the schema has odd properties": fields(
        schema={"type": "object", "properties": {"a": [], "b": None}, "required": "a"}
    ),
    "the schema is of lists": fields(schema={"anyOf": "x", "$defs": [], "items": 3}),
    "the priority is unknown": fields(priority="urgent"),
    "the intent is long": fields(intent="x" * 10_000),
}
"""What can be read: it is shown with the others."""

UNREADABLE: dict[str, Change] = {
    "nested 960 deep": context(given=deep(960)),
    "nested 5000 deep": context(given=deep(5000)),
    "no object": lambda event: ["callback_raised"],
    "of an unknown type": fields(type="callback_sung"),
    "without its fields": lambda event: {"type": event["type"]},
    "with another type of field": fields(context="text"),
    "with a route that is none": fields(route={}),
    "with a route of texts": fields(route={"stations": "x", "end": 3, "why": []}),
    "no JSON": lambda event: b"{oh no",
    "empty": lambda event: b"",
    "no UTF-8": lambda event: b'{"type":"\xff"}',
}


def body_of(event: Any) -> bytes:
    if isinstance(event, bytes):
        return event
    text = json.dumps(_shallow(event))
    return text.replace('"@', "").replace('@"', "").encode()


def _shallow(value: Any) -> Any:
    """The value with deep lists as marks: Python's own encoder is not deep enough."""
    if isinstance(value, dict):
        return {name: _shallow(one) for name, one in cast("dict[str, Any]", value).items()}
    levels, inner = 0, value
    while isinstance(inner, list) and len(held := cast("list[Any]", inner)) == 1:
        levels, inner = levels + 1, held[0]
    return f"@{'[' * levels}0{']' * levels}@" if levels > 50 else value


def spoil(path: Path, session: str, change: Change, kind: str = "callback_raised") -> None:
    """Rewrite the first event of that type in a session of a log that nobody has open."""
    with closing(sqlite3.connect(path)) as db, db:
        (number,) = db.execute("SELECT n FROM sessions WHERE id = ?", (session,)).fetchone()
        rows = db.execute("SELECT key, body FROM events WHERE key >> 32 = ? ORDER BY key", (number,)).fetchall()
        key, body = next((key, json.loads(body)) for key, body in rows if json.loads(body)["type"] == kind)
        db.execute("UPDATE events SET body = ? WHERE key = ?", (body_of(change(body)), key))
    db.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "team.py").write_text(AGENTS)
    asyncio.run(_fill(tmp_path / "log.db"))
    return tmp_path


async def _fill(path: Path) -> None:
    async with Runtime(path, agents=[AGENT]) as runtime:
        for name in ("first", "bad", "last"):
            await (await runtime.start(AGENT, name)).prompt("go")


async def listed(path: Path) -> dict[str, Callback]:
    async with Runtime(path, agents=[AGENT]) as runtime:
        return {callback.session_id: callback for callback in await runtime.inbox()}


@pytest.mark.slow
@pytest.mark.parametrize("shape", slow_after(6, [*LEGAL]))
def test_a_question_of_any_legal_shape_is_shown_with_the_others(folder: Path, shape: str) -> None:
    spoil(folder / "log.db", "bad", LEGAL[shape])

    assert {*asyncio.run(listed(folder / "log.db"))} == {"first", "bad", "last"}
    for words in (
        ["inbox"],
        ["inbox", "--json"],
        ["show", "bad"],
        ["sessions"],
        ["events"],
        ["show", "bad", "--json"],
    ):
        shown = upcall(*words, "--store", "log.db", cwd=folder)
        assert shown.returncode == 0, shown.stderr
        if words[0] == "inbox":
            assert shown.stdout.count("which colour?") >= 3
            assert "\x1b]0" not in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize("damage", slow_after(4, [*UNREADABLE]))
def test_an_entry_that_can_not_be_read_hides_no_other(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "log.db"
    spoil(path, "bad", UNREADABLE[damage])

    found = asyncio.run(listed(path))
    assert {"first", "last"} <= {*found} <= {"first", "bad", "last"}
    if "bad" not in found:
        assert "session 'bad' can't be read" in caplog.text
    for words in (
        ["inbox"],
        ["inbox", "--json"],
        ["sessions"],
        ["sessions", "--json"],
        ["events"],
        ["show", "last"],
    ):
        shown = upcall(*words, "--store", "log.db", cwd=folder)
        assert shown.returncode == 0, (words, shown.stderr)
        for name in ("first", "last"):
            assert name in shown.stdout or words[0] == "show", words
    for words in (["events", "bad"], ["show", "bad"], ["show", "bad", "--json"]):
        shown = upcall(*words, "--store", "log.db", cwd=folder)
        assert "RecursionError" not in shown.stderr, words


@pytest.mark.slow
@pytest.mark.parametrize("damage", [fields(data={"x": deep(960)}), fields(data="x"), UNREADABLE["no JSON"]])
@pytest.mark.parametrize("kind", slow_after(2, ["session_started", "turn_started", "responded", "tool_started"]))
def test_a_session_that_can_not_be_read_hides_no_other(folder: Path, damage: Change, kind: str) -> None:
    spoil(folder / "log.db", "bad", damage, kind)

    for words in (
        ["sessions"],
        ["sessions", "--json"],
        ["inbox"],
        ["inbox", "--json"],
        ["events"],
        ["show", "last"],
    ):
        shown = upcall(*words, "--store", "log.db", cwd=folder)
        assert shown.returncode == 0, (words, shown.stderr)
        if "--json" in words:
            assert {"first", "last"} <= {one.get("session_id", one["id"]) for one in json.loads(shown.stdout)}


@pytest.mark.parametrize("damage", ["nested 960 deep", "without its fields", "with a route that is none"])
def test_the_others_are_answered_and_resumed(folder: Path, damage: str) -> None:
    path = folder / "log.db"

    async def answer() -> None:
        async with Runtime(path, agents=[AGENT]) as runtime:
            for callback in await runtime.inbox():
                await runtime.answer(callback.id, "blue")

    asyncio.run(answer())
    spoil(path, "bad", UNREADABLE[damage])
    resumed = upcall("resume", "--all", "--agents", "team:agent", "--store", "log.db", "--json", cwd=folder)

    ended = {one["id"]: one["status"] for one in map(json.loads, resumed.stdout.splitlines())}
    assert (ended["first"], ended["last"]) == ("done", "done")
    assert "bad" in resumed.stderr


async def test_work_resumes_the_others(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await _fill(path)
    async with Runtime(path, agents=[AGENT]) as runtime:
        for callback in await runtime.inbox():
            await runtime.answer(callback.id, "blue")
    spoil(path, "bad", UNREADABLE["nested 960 deep"])

    stop = asyncio.Event()
    async with Runtime(path, agents=[AGENT]) as runtime:
        working = asyncio.ensure_future(runtime.work(stop=stop))
        while {await runtime.status("first"), await runtime.status("last")} != {"done"}:
            await asyncio.sleep(0.01)
        stop.set()
        await working
        with pytest.raises(StoreDamaged, match="session 'bad'"):
            await runtime.resume("bad")


async def test_an_answer_reaches_its_turn_though_another_event_of_the_same_moment_can_not_be_read(
    tmp_path: Path,
) -> None:
    """Two processes: one runs, the other answers; in between stands an event that can't be read."""
    path = tmp_path / "log.db"
    await _fill(path)
    agent = asker("live?", name="live")
    async with Runtime(path, agents=[agent, AGENT], hold=60.0, host=_Nobody()) as running:
        turn = asyncio.ensure_future((await running.start(agent, "live")).prompt("go"))
        async with Runtime(path, agents=[agent]) as other:
            while not (waiting := [c for c in await other.inbox() if c.session_id == "live"]):
                await asyncio.sleep(0.01)
            with sqlite3.connect(path, timeout=30) as db:
                (last,) = db.execute("SELECT max(pos) FROM events").fetchone()
                (number,) = db.execute("SELECT n FROM sessions WHERE id = 'bad'").fetchone()
                (key,) = db.execute("SELECT max(key) FROM events WHERE key >> 32 = ?", (number,)).fetchone()
                db.execute("INSERT INTO events VALUES (?, ?, 0, ?)", (key + 1, last + 1, b'{"type":"steered"'))
                db.execute("UPDATE counters SET value = ? WHERE name = 'pos'", (last + 1,))
            db.close()
            await other.answer(waiting[0].id, "yes")
        reply = await asyncio.wait_for(turn, 60)
    assert reply.text == "'yes'"


class _Nobody:
    """A host at which nobody answers."""

    async def ask(self, callback: Callback) -> None:
        await asyncio.Event().wait()

    def withdraw(self, callback_id: str, reason: str) -> None:
        pass


async def test_a_mirror_writes_what_it_can_of_any_event(tmp_path: Path) -> None:
    from upcall.events import CallbackRaised

    odd: list[Any] = [{}, {"stations": "x"}, {"stations": [7]}]
    mirror = Mirror(tmp_path / "events.jsonl")
    for route in odd:
        mirror(CallbackRaised("q1", "r1c0", "a", "which?", "query", "callback_to_caller", route, "d"))
    mirror(
        CallbackRaised("q2", "r1c0", "a", "deep?", "query", "callback_to_caller", {}, "d", given={"x": deep(960)})
    )
    mirror(CallbackRaised("q3", "r1c0", "a", "last?", "query", "callback_to_caller", {}, "d"))
    mirror.close()

    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["data"].get("message") for line in lines][-1] == "last?"
    assert {line["event_type"] for line in lines} == {"AGENT_CALLBACK"}
    assert len(lines) == 5


async def test_a_question_at_the_depth_of_960_is_refused_where_it_is_raised(tmp_path: Path) -> None:
    def play(request: Any) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call("ask", message="x", choices=deep(960))

    async with Runtime(tmp_path / "log.db", agents=[agent := Agent("a", model=Script(play))]) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")
        assert reply.status == "done"
        assert await runtime.inbox() == []
