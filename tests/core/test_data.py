"""What an application gives its sessions: data and tags, which are kept, and dependencies, which are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import upcall
from upcall import Agent, Context, Hooks, Runtime, SessionAccess, SyncContext, Team, UnknownSession, chain, tool
from upcall.errors import SetupError
from upcall.events import SessionStarted, TurnStarted
from upcall.messages import user
from upcall.models import Script, call
from upcall.teams import bridge

ORDER: dict[str, Any] = {"customer": {"id": 17, "name": "Ada"}, "items": ["lamp", None, 2.5]}
TAGS = {"customer": "acme", "tier": "gold"}


@dataclass
class Deps:
    """What a program has at hand and no log could hold."""

    greet: Callable[[str], str]


@tool
async def read_async(ctx: Context[Deps]) -> str:
    """Say what an async tool reads."""
    return f"{ctx.data['customer']['id']} {ctx.tags['customer']} {ctx.deps.greet('you')}"


@tool
def read_sync(ctx: SyncContext[Deps]) -> str:
    """Say what a plain tool reads."""
    return f"{ctx.data['customer']['id']} {ctx.tags['customer']} {ctx.deps.greet('you')}"


@tool
async def seen(ctx: Context) -> str:
    """Say whose data this is."""
    return f"{ctx.agent}: {ctx.data.get('customer', {}).get('name')} {ctx.tags.get('tier')} {ctx.deps}"


def says(agent: str, *steps: Any, **options: Any) -> Agent:
    return Agent(agent, model=Script([*steps, lambda r: r.messages[-1].results[0].text]), **options)


# --- reading ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["read_async", "read_sync"])
async def test_tools_of_both_kinds_read_data_tags_and_dependencies(name: str) -> None:
    agent = says("clerk", call(name), tools=[read_async, read_sync])
    async with Runtime(agents=[agent], deps=Deps(lambda who: f"hello {who}")) as runtime:
        session = await runtime.start(agent, data=ORDER, tags=TAGS)
        reply = await session.prompt("Go.")
        assert (session.data, session.tags) == (ORDER, TAGS)
    assert reply.text == "17 acme hello you"


async def test_hooks_read_data_tags_and_dependencies_from_the_first_point_on() -> None:
    heard: list[tuple[str, Any, Any, Any]] = []

    def note(point: str) -> Callable[..., None]:
        def hook(session: SessionAccess[str], *_: Any) -> None:
            heard.append((point, session.data, session.tags, session.deps.upper()))

        return hook

    points = ("begin_session", "pre_request", "before_model", "post_response", "end_turn")
    hooks = Hooks(begin_session=[note(points[0])]).adding(**{p: [note(p)] for p in points[1:]})
    agent = Agent("clerk", model=Script(["hi"]), hooks=hooks)
    async with Runtime(agents=[agent], deps="db") as runtime:
        await (await runtime.start(agent, data=ORDER, tags=TAGS)).prompt("Go.")
    assert heard == [(point, ORDER, TAGS, "DB") for point in points]


async def test_without_any_there_are_empty_data_empty_tags_and_no_dependencies() -> None:
    agent = says("clerk", call("seen"), tools=[seen])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        assert (session.data, session.tags) == ({}, {})
        assert (await session.prompt("Go.")).text == "clerk: None None None"


@pytest.mark.parametrize("deps", [dict, len, Deps, lambda: "called"])
async def test_dependencies_that_can_be_called_reach_plain_tools_as_they_are(deps: Any) -> None:
    found: list[Any] = []

    @tool
    def look(ctx: SyncContext) -> None:
        """Look at them."""
        found.append(ctx.deps)

    agent = says("clerk", call("look"), tools=[look])
    async with Runtime(agents=[agent], deps=deps) as runtime:
        await (await runtime.start(agent)).prompt("Go.")
    assert found == [deps]


async def test_what_a_tool_does_to_the_data_that_it_reads_is_seen_by_nobody_else() -> None:
    @tool
    async def change(ctx: Context) -> str:
        """Change what was read."""
        ctx.data["customer"]["name"] = "Eve"
        ctx.tags["tier"] = "lead"
        mine = ctx.data
        mine["items"].append("more")
        return f"{ctx.data == ORDER} {ctx.tags == TAGS}"

    agent = says("clerk", call("change"), tools=[change])
    given = {**ORDER, "items": [*ORDER["items"]]}
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, data=given, tags=TAGS)
        given["items"].append("later")
        assert (await session.prompt("Go.")).text == "True True"
        assert session.data == ORDER


# --- children -----------------------------------------------------------------------------


async def test_children_of_every_kind_read_what_their_root_was_given(tmp_path: Path) -> None:
    def inner(name: str) -> Agent:
        return says(name, call("seen"), tools=[seen])

    top = says("top", call("task", agent="below", prompt="Go."), agents=[inner("below")])
    planner = Agent("planner", model=Script(['[{"role": "worker", "task": "Go.", "sequence": 1}]']))
    crew = Team(planner, {"worker": inner("worker")}, name="crew")
    both = chain(inner("first"), inner("second"), name="both")
    bridged = Agent("left", model=Script(["left"]), hooks=Hooks(end_turn=[bridge(inner("right"))]))
    expected = {"top": ["below"], "crew": ["worker01"], "both": ["first", "second"], "left": ["right"]}
    async with Runtime(tmp_path / "log.db", agents=[top, crew, both, bridged], deps="db") as runtime:
        for name in expected:
            await (await runtime.start(name, id=name, data=ORDER, tags=TAGS)).prompt("Go.")
        for name, below in expected.items():
            rows = [row for row in await runtime.rows(session=name) if row.agent in below]
            loaded = [await runtime.load(row.id) for row in rows]
            assert {one.agent for one in loaded} == {*below}
            assert [(one.data, one.tags) for one in loaded] == [(ORDER, TAGS)] * len(below)
            texts = {m.text for one in loaded for m in one.get_messages() if m.role == "assistant" and m.text}
            assert texts == {f"{one}: Ada gold db" for one in below}


async def test_a_child_that_another_process_resumes_reads_the_same_data(tmp_path: Path) -> None:
    @tool
    async def order(ctx: Context) -> str:
        """Ask, then say what was read."""
        size = await ctx.raise_callback("Which size?", "blocker")
        return f"{size} {ctx.data['customer']['name']} {ctx.tags['tier']} {ctx.deps}"

    def agents() -> list[Agent]:
        below = says("below", call("order"), tools=[order], can_query_caller=False)
        return [says("top", call("task", agent="below", prompt="Go."), agents=[below])]

    def continued() -> list[Agent]:
        last = Script(lambda r: r.messages[-1].results[0].text)
        below = Agent("below", model=last, tools=[order], can_query_caller=False)
        return [Agent("top", model=last, agents=[below])]

    async with Runtime(tmp_path / "log.db", agents=agents(), deps="one") as runtime:
        reply = await (await runtime.start("top", id="s", data=ORDER, tags=TAGS)).prompt("Go.")
    async with Runtime(tmp_path / "log.db", agents=continued(), deps="two") as runtime:
        (asked,) = await runtime.inbox(tags=TAGS)
        assert (asked.tags, [dict(one.tags) for one in reply.callbacks]) == (TAGS, [TAGS])
        await runtime.answer(asked.id, "small")
        assert "small Ada gold two" in (await runtime.resume("s")).text


async def test_side_turns_read_the_data_of_their_run_tree() -> None:
    heard: list[tuple[str, Any]] = []

    def note(session: SessionAccess, _: Any) -> None:
        heard.append((session.purpose, session.data))

    @tool
    async def wonder(ctx: Context) -> str:
        """Ask the agent above."""
        return await ctx.raise_callback("Which one?", "blocker")

    below = says("below", call("wonder"), tools=[wonder])
    steps = [call("task", agent="below", prompt="Go."), call("answer_callback", value="this"), "done"]
    top = Agent("top", model=Script(steps), agents=[below], hooks=Hooks(before_model=[note]))
    async with Runtime(agents=[top]) as runtime:
        assert (await (await runtime.start(top, data=ORDER)).prompt("Go.")).text == "done"
    assert heard == [("turn", ORDER), ("side_turn", ORDER), ("turn", ORDER)]


async def test_a_callback_tells_a_host_the_tags_of_its_run_tree() -> None:
    class Desk:
        async def ask(self, callback: upcall.Callback) -> str:
            return callback.tags["tier"]

        def withdraw(self, callback_id: str, reason: str) -> None: ...

    @tool
    async def wonder(ctx: Context) -> str:
        """Ask the person."""
        return await ctx.raise_callback("Which tier?", "blocker")

    below = says("below", call("wonder"), tools=[wonder], can_query_caller=False)
    top = says("top", call("task", agent="below", prompt="Go."), agents=[below])
    async with Runtime(agents=[top], host=Desk()) as runtime:
        assert "gold" in (await (await runtime.start(top, tags=TAGS)).prompt("Go.")).text


async def test_a_compacted_child_still_reads_what_its_root_was_given(tmp_path: Path) -> None:
    below = says("below", call("seen"), tools=[seen])
    top = says("top", call("task", agent="below", prompt="Go."), agents=[below])
    async with Runtime(tmp_path / "log.db", agents=[top]) as runtime:
        await (await runtime.start(top, id="s", data=ORDER, tags=TAGS)).prompt("Go.")
        (child,) = await runtime.rows(agent="below")
        session = await runtime.load(child.id)
        assert session.data == ORDER
    again = below.replace(model=Script(["a summary", call("seen"), lambda r: r.messages[-1].results[0].text]))
    async with Runtime(tmp_path / "log.db", agents=[top.replace(agents=[again])]) as runtime:
        session = await runtime.load(child.id)
        await session.trigger_compaction(keep_last=1)
        assert (await runtime.load(child.id)).data == ORDER
        assert (await session.prompt("Once more.")).text == "below: Ada gold None"


# --- what is kept, and what is not --------------------------------------------------------


async def test_data_and_tags_are_in_the_first_event_and_dependencies_nowhere(tmp_path: Path) -> None:
    agent = Agent("clerk", model=Script(["hi"]))
    async with Runtime(tmp_path / "log.db", agents=[agent], deps="a secret thing") as runtime:
        await (await runtime.start(agent, id="s", data=ORDER, tags=TAGS)).prompt("Go.")
        first = (await runtime.store.read("s"))[0]
        loaded = await runtime.load("s")
    assert isinstance(first, SessionStarted)
    assert (first.data, first.tags) == (ORDER, TAGS) == (loaded.data, loaded.tags)
    assert b"a secret thing" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


WRONG: dict[str, dict[str, Any]] = {
    "data must be a JSON object": {"data": ["a list"]},
    "data must be a JSON object, such as": {"data": "text"},
    "data can contain only JSON values": {"data": {"when": object()}},
    "data takes at most 1000000 bytes": {"data": {"text": "x" * 1_000_000}},
    "nested too deeply": {"data": {"deep": nested(100)}},
    "tags must map names to values": {"tags": ["customer"]},
    "a session may have at most 50 tags, not 51": {"tags": {f"t{n}": "" for n in range(51)}},
    "are text": {"tags": {"order": 17}},
    "are text, such as": {"tags": {17: "order"}},
    "'' is not a valid name of a tag": {"tags": {"": "x"}},
    "'a=b' is not a valid name": {"tags": {"a=b": "x"}},
    "'a b' is not a valid name": {"tags": {"a b": "x"}},
    "'a\\nb' is not a valid name": {"tags": {"a\nb": "x"}},
    "is not a valid name of a tag: use 1 to 100": {"tags": {"n" * 101: "x"}},
    "is not a valid value of the tag 'a': use at most 200": {"tags": {"a": "x" * 201}},
    "is not a valid value of the tag 'b'": {"tags": {"b": "\x1b[2J"}},
    "'\\ud800' is not a valid value": {"tags": {"b": "\ud800"}},
}


@pytest.mark.parametrize("problem", WRONG)
async def test_wrong_data_and_tags_are_refused_before_anything_is_stored(problem: str, tmp_path: Path) -> None:
    agent = Agent("clerk", model=Script(["hi"]))
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        with pytest.raises(SetupError) as refused:
            await runtime.start(agent, id="s", **WRONG[problem])
        assert problem in str(refused.value)
        assert len(str(refused.value)) < 400
        assert await runtime.rows() == []


async def test_data_and_tags_at_their_bounds_are_kept(tmp_path: Path) -> None:
    agent = Agent("clerk", model=Script(["hi"]))
    data = {"text": "x" * (1_000_000 - len('{"text":""}'))}
    tags = {f"{n:0100}": "é" * 200 for n in range(50)}
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        await runtime.start(agent, id="s", data=data, tags=tags)
        loaded = await runtime.load("s")
        assert (loaded.data, loaded.tags) == (data, tags)
        assert [row.tags for row in await runtime.rows(tags=tags)] == [tags]


async def test_data_is_kept_as_json_gives_it_back() -> None:
    @dataclass
    class Order:
        number: int
        lines: tuple[str, ...]

    agent = Agent("clerk", model=Script(["hi"]))
    async with Runtime(agents=[agent]) as runtime:
        of_class: Any = Order(17, ("lamp",))
        assert (await runtime.start(agent, data=of_class)).data == {"number": 17, "lines": ["lamp"]}
        assert (await runtime.start(agent, data={"big": 2**70, "pi": math.pi})).data == {
            "big": 2**70,
            "pi": math.pi,
        }


# --- finding ------------------------------------------------------------------------------


async def test_rows_and_inbox_are_filtered_by_session_agent_status_and_tags() -> None:
    @tool
    async def wonder(ctx: Context) -> str:
        """Ask the person."""
        return await ctx.raise_callback("Which one?", "blocker", kind="request_user_input")

    class Nobody:
        async def ask(self, callback: upcall.Callback) -> None: ...

        def withdraw(self, callback_id: str, reason: str) -> None: ...

    asker = Agent("asker", model=Script(lambda _: call("wonder")), tools=[wonder])
    quiet = Agent("quiet", model=Script(lambda _: "done"))
    async with Runtime(agents=[asker, quiet], host=Nobody(), hold=0) as runtime:
        for name, agent, tags in (("a", asker, TAGS), ("b", asker, {}), ("c", quiet, TAGS)):
            await (await runtime.start(agent, id=name, tags=tags)).prompt("Go.")
        await runtime.start(quiet, id="d")

        async def rows(**wanted: Any) -> str:
            return "".join(row.id for row in await runtime.rows(**wanted))

        async def inbox(**wanted: Any) -> str:
            return "".join(callback.session_id for callback in await runtime.inbox(**wanted))

        assert (await rows(), await inbox()) == ("dcba", "ab")
        assert (await rows(session="b"), await inbox(session="b")) == ("b", "b")
        assert (await rows(agent="quiet"), await inbox(agent="quiet")) == ("dc", "")
        assert (await rows(status="waiting"), await rows(status="done"), await rows(status="idle")) == (
            "ba",
            "c",
            "d",
        )
        assert (await rows(tags=TAGS), await inbox(tags=TAGS)) == ("ca", "a")
        assert await rows(tags=TAGS, agent="asker", status="waiting", session="a", limit=1) == "a"
        (callback,) = await runtime.inbox(session="a", agent="asker", status="open", tags=TAGS)
        await runtime.answer(callback.id, "this", by="ops")
        (settled,) = await runtime.inbox(status="answered")
        assert (await inbox(), settled.id, settled.answer and settled.answer.value) == ("b", callback.id, "this")


async def test_a_filter_that_can_match_nothing_is_an_error_and_not_an_empty_list() -> None:
    async with Runtime() as runtime:
        for listing in (runtime.rows, runtime.inbox):
            with pytest.raises(UnknownSession):
                await listing(session="nobody")
            with pytest.raises(SetupError, match="tags must map names to values"):
                await listing(tags="customer=acme")  # type: ignore[arg-type]
        with pytest.raises(SetupError, match=r"'waitin' is not a valid status: use idle,.* Did you mean waiting"):
            await runtime.rows(status="waitin")
        with pytest.raises(SetupError, match="'waiting' is not a valid status: use open, answered"):
            await runtime.inbox(status="waiting")


async def test_a_listed_session_says_what_it_is_doing_as_its_status_does(tmp_path: Path) -> None:
    agent = Agent("clerk", model=Script(["hi"]))
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        await runtime.start(agent, id="s")
        claim = await runtime.store.claim("s")
        stored = runtime.store.append("s", [TurnStarted(1, user("Go."))], claim)
        assert stored is None or await stored is None
        running = [row.status for row in await runtime.rows()]
        await runtime.store.release(claim)
        assert (running, [row.status for row in await runtime.rows()]) == (["running"], ["interrupted"])
        assert await runtime.status("s") == "interrupted"


# --- the sync door ------------------------------------------------------------------------


def test_the_sync_door_takes_all_three(tmp_path: Path) -> None:
    def agent() -> Agent:
        return says("clerk", call("seen"), tools=[seen])

    store = tmp_path / "log.db"
    first = upcall.run(agent(), "Go.", store=store, id="s", data=ORDER, tags=TAGS, deps="db")
    again = upcall.run(agent(), "Go.", store=store, id="s", data=ORDER, tags=TAGS, deps="other")
    later = upcall.run(agent(), "Go.", store=store, id="s")
    texts = [reply.text for reply in (first, again, later)]
    assert texts == ["clerk: Ada gold db", "clerk: Ada gold other", "clerk: Ada gold None"]


@pytest.mark.parametrize("changed", [{"data": {"customer": 18}}, {"tags": {"tier": "lead"}}, {"tags": {}}])
def test_the_data_and_tags_of_a_session_can_not_be_changed_later(tmp_path: Path, changed: dict[str, Any]) -> None:
    agent = Agent("clerk", model=Script(["hi", "again"]))
    upcall.run(agent, "Go.", store=tmp_path / "log.db", id="s", data=ORDER, tags=TAGS)
    with pytest.raises(SetupError, match=f"session 's' was started with other {next(iter(changed))}"):
        upcall.run(agent, "Go.", store=tmp_path / "log.db", id="s", **changed)
