"""Whose workspace a session has, and files that are kept in its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.doubles import Place
from upcall import (
    Agent,
    BadAgent,
    Context,
    Hooks,
    Request,
    Runtime,
    SessionAccess,
    StoreError,
    chain,
    tool,
)
from upcall.events import ContextSet
from upcall.models import Script, call
from upcall.workspace import Folder, InLog
from workspace.doubles import plays


@tool
async def put(path: str, text: str, ctx: Context) -> str:
    """Write a file."""
    assert ctx.workspace is not None
    await ctx.workspace.write(path, text.encode())
    return "written"


@tool(read_only=True)
async def get(path: str, ctx: Context) -> str:
    """Read a file."""
    assert ctx.workspace is not None
    return (await ctx.workspace.read(path)).decode()


def worker(name: str, *calls: Any, **more: Any) -> Agent:
    return Agent(name, model=plays(*calls), tools=[put, get], **more)


def delegates(below: Agent, *then: Any, **more: Any) -> Agent:
    calls = [call("task", agent=below.name, prompt="go"), *then]
    return Agent("manager", model=plays(*calls), tools=[put, get], agents=[below], **more)


async def test_a_child_without_a_workspace_has_its_parents(tmp_path: Path) -> None:
    leaf = worker("leaf", call("put", path="/from-leaf.txt", text="hi"))
    middle = Agent("middle", model=plays(call("task", agent="leaf", prompt="go")), agents=[leaf])
    manager = delegates(middle, workspace=Folder(tmp_path))

    async with Runtime(agents=[manager]) as runtime:
        await (await runtime.start(manager)).prompt("go")

    assert (tmp_path / "from-leaf.txt").read_text() == "hi"


async def test_a_child_with_a_workspace_of_its_own_keeps_to_it(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    child = worker("child", call("put", path="/x.txt", text="hi"), workspace=Folder(tmp_path / "own"))
    manager = delegates(child, workspace=Folder(tmp_path))

    async with Runtime(agents=[manager]) as runtime:
        await (await runtime.start(manager)).prompt("go")

    assert sorted(p.name for p in tmp_path.rglob("*.txt")) == ["x.txt"]
    assert (tmp_path / "own" / "x.txt").exists()


async def test_a_hook_reads_and_writes_files_and_none_has_a_workspace_by_itself(place: Place) -> None:
    seen: list[Any] = []

    async def begins(session: SessionAccess) -> None:
        assert session.workspace is not None
        await session.workspace.write("/begun.txt", b"yes")

    async def ends(session: SessionAccess, reply: Any) -> None:
        seen.append(session.workspace and await session.workspace.read("/begun.txt"))

    agent = Agent(
        "a", model=Script(["ok"]), workspace=InLog(), hooks=Hooks(begin_session=[begins], end_turn=[ends])
    )
    bare = Agent("b", model=Script(["ok"]), hooks=Hooks(end_turn=[ends]))
    async with Runtime(place.store(), agents=[agent, bare]) as runtime:
        for one in (agent, bare):
            await (await runtime.start(one)).prompt("go")
    assert seen == [b"yes", None]


async def test_files_in_the_log_are_shared_by_a_tree_and_kept_for_the_next_turn(place: Place) -> None:
    child = worker("child", call("get", path="/a.txt"), call("put", path="/b.txt", text="from the child"))
    manager = Agent(
        "manager",
        model=plays(
            call("put", path="/a.txt", text="from the manager"),
            call("task", agent="child", prompt="go"),
            call("get", path="/b.txt"),
        ),
        tools=[put, get],
        agents=[child],
        workspace=InLog(),
    )
    async with Runtime(place.store(), agents=[manager]) as runtime:
        session = await runtime.start(manager, "s")
        await session.prompt("go")
        below = await runtime.load("s~r2c0")
        assert below.get_messages()[2].results[0].text == "from the manager"
        assert session.get_messages()[-2].results[0].text == "from the child"

    again = manager.replace(model=Script([call("get", path="/b.txt"), "done"]))
    async with Runtime(place.store(), agents=[again]) as runtime:
        session = await runtime.load("s")
        await session.prompt("once more")
        assert session.get_messages()[-2].results[0].text == "from the child"


@pytest.mark.parametrize("kind", ["folder", "in log"])
async def test_an_agent_that_is_asked_reads_its_files_in_its_side_turn(
    place: Place, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "work").mkdir()

    def answers(request: Request) -> Any:
        if request.purpose == "side_turn":
            last = request.messages[-1]
            return call("answer_callback", value=last.results[0].text) if last.results else call("get", path="/a")
        done = sum(len(message.results) for message in request.messages)
        return [call("put", path="/a", text="blue"), call("task", agent="child", prompt="go"), "done"][done]

    child = Agent("child", model=plays(call("ask", message="Which colour?", type="query")))
    workspace = InLog() if kind == "in log" else Folder(tmp_path / "work")
    manager = Agent("manager", model=Script(answers), tools=[put, get], agents=[child], workspace=workspace)
    async with Runtime(place.store(), agents=[manager]) as runtime:
        await (await runtime.start(manager, "s")).prompt("go")
        below = await runtime.load("s~r2c0")
        assert "blue" in below.get_messages()[2].results[0].text


async def test_the_agents_of_a_chain_share_what_is_in_its_log(place: Place) -> None:
    first = worker("first", call("put", path="/a", text="handed on"), workspace=InLog())
    second = worker("second", call("get", path="/a"), workspace=InLog())
    both = chain(first, second)
    async with Runtime(place.store(), agents=[both]) as runtime:
        session = await runtime.start(both, "s")
        await session.prompt("go")
        rows = {row.agent: row.id for row in await runtime.rows(parent="s")}
        below = await runtime.load(rows["second"])
        assert below.get_messages()[2].results[0].text == "handed on"


async def test_another_session_has_other_files(place: Place) -> None:
    agent = worker("a", call("put", path="/x", text="1"), workspace=InLog())
    other = worker("b", call("get", path="/x"), workspace=InLog())
    async with Runtime(place.store(), agents=[agent, other]) as runtime:
        await (await runtime.start(agent)).prompt("go")
        session = await runtime.start(other)
        await session.prompt("go")
        assert "no such file" in session.get_messages()[2].results[0].text


async def test_a_file_that_was_written_before_a_crash_is_there_after_it(place: Place) -> None:
    agent = worker(
        "a", call("put", path="/x", text="kept"), call("put", path="/x", text="more"), call("get", path="/x"),
        workspace=InLog(),
    )  # fmt: skip
    for appends in range(2, 20):
        place.clear()
        try:
            async with Runtime(place.dying(appends), agents=[agent]) as runtime:
                await (await runtime.start(agent, "s")).prompt("go")
        except StoreError:
            pass
        else:
            break
        async with Runtime(place.store(), agents=[agent]) as runtime:
            await runtime.resume("s")
            results = [m.results[0] for m in (await runtime.load("s")).get_messages() if m.results]
            lost = [r.text for r in results if "outcome unknown" in r.text]
            assert len(lost) <= 1
            if not lost:
                assert results[-1].text == "more"
            elif "outcome unknown" not in results[-1].text:
                assert results[-1].text in ("kept", "more") or results[-1].is_error


async def test_a_deleted_session_takes_its_files_along(tmp_path: Path) -> None:
    agent = worker("a", call("put", path="/x", text="word " * 100_000), workspace=InLog())
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        kept = [e.value["blocks"] for e in await runtime.store.read("s") if isinstance(e, ContextSet)]
        names = [name for blocks in kept for name in blocks]
        assert [len(await runtime.store.blob(name)) for name in names] == [262_144, 237_856]

        await runtime.delete("s")

        for name in names:
            with pytest.raises(StoreError, match="no body is stored"):
                await runtime.store.blob(name)


@pytest.mark.parametrize(("wrong", "said"), [("work", "'work'"), (Path("work"), "PosixPath"), (InLog, "<class")])
def test_a_workspace_that_is_none_is_refused_by_its_agent(wrong: Any, said: str) -> None:
    with pytest.raises(BadAgent, match=rf"workspace must be a Workspace, such as Folder\('work'\), not {said}"):
        Agent("a", workspace=wrong)
