"""A workspace that one session has in place of its agent's, given again by whoever continues it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from upcall import Agent, Context, Hooks, Runtime, SessionAccess, SetupError, chain, tool
from upcall.models import Script, call
from upcall.workspace import Folder


@tool
async def look(ctx: Context) -> str:
    """Read the file that says which folder this is."""
    files = ctx.workspace
    return (await files.read("name.txt")).decode() if files is not None else "no workspace"


@tool
async def ask_then_look(ctx: Context) -> str:
    """Ask a person, then read the file that says which folder this is."""
    answer = await ctx.raise_callback("Go on?")
    files = ctx.workspace
    assert files is not None
    return f"{answer} {(await files.read('name.txt')).decode()}"


def repeat(request: Any) -> str:
    return request.messages[-1].results[0].text


def folder(path: Path, name: str) -> Folder:
    (path / name).mkdir(exist_ok=True)
    (path / name / "name.txt").write_text(name)
    return Folder(path / name)


def looking(name: str = "looking", workspace: Folder | None = None) -> Agent:
    return Agent(name, model=Script([call("look"), repeat] * 4), tools=[look], workspace=workspace)


def asking(workspace: Folder | None = None) -> Agent:
    model = Script([call("ask_then_look"), repeat])
    return Agent("asking", model=model, tools=[ask_then_look], workspace=workspace)


async def test_a_session_works_in_its_own_workspace_and_others_in_that_of_the_agent(tmp_path: Path) -> None:
    agent = looking(workspace=folder(tmp_path, "agents"))
    async with Runtime(agents=[agent]) as runtime:
        one = await runtime.start(agent, workspace=folder(tmp_path, "one"))
        two = await runtime.start(agent, workspace=folder(tmp_path, "two"))
        plain = await runtime.start(agent)
        said = [(await session.prompt("Go.")).text for session in (one, two, plain, one)]
    assert said == ["one", "two", "agents", "one"]


@pytest.mark.parametrize("below_has_one", [False, True])
async def test_agents_below_share_it_unless_they_have_their_own(below_has_one: bool, tmp_path: Path) -> None:
    below = looking("below", folder(tmp_path, "below") if below_has_one else None)
    top = Agent(
        "top",
        model=Script([call("task", agent="below", prompt="Go."), repeat]),
        agents=[below],
        workspace=folder(tmp_path, "agents"),
    )
    async with Runtime(agents=[top]) as runtime:
        session = await runtime.start(top, workspace=folder(tmp_path, "own"))
        assert ("below" if below_has_one else "own") in (await session.prompt("Go.")).text


async def test_the_steps_of_a_chain_share_it(tmp_path: Path) -> None:
    line = chain(looking("first"), looking("second"))
    async with Runtime(agents=[line]) as runtime:
        session = await runtime.start(line, workspace=folder(tmp_path, "own"))
        assert (await session.prompt("Go.")).text == "own"


async def test_hooks_and_side_turns_of_the_session_work_in_it(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def note(session: SessionAccess, *_: Any) -> None:
        files = session.workspace
        assert files is not None
        seen.append((session.purpose, (await files.read("name.txt")).decode()))

    @tool
    async def think(ctx: Context) -> str:
        """Think aside."""
        return await ctx.prompt("What is this?")

    agent = Agent(
        "thinking",
        model=Script(lambda request: "done" if len(request.messages) > 1 else [call("think")]),
        tools=[think],
        hooks=Hooks(begin_session=[note], before_model=[note]),
        workspace=folder(tmp_path, "agents"),
    )
    async with Runtime(agents=[agent]) as runtime:
        await (await runtime.start(agent, workspace=folder(tmp_path, "own"))).prompt("Go.")
    assert {name for _, name in seen} == {"own"}
    assert {purpose for purpose, _ in seen} == {"turn", "side_turn"}


async def waiting(tmp_path: Path, agent: Agent) -> None:
    """Leave a session with its own workspace waiting for an answer, and answer it."""
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0.0) as runtime:
        reply = await (await runtime.start(agent, id="s", workspace=folder(tmp_path, "own"))).prompt("Go.")
        assert reply.status == "waiting"
        (asked,) = await runtime.inbox()
        await runtime.answer(asked.id, "yes")


@pytest.mark.parametrize("how", ["load", "resume"])
async def test_another_process_gives_it_again_to_load_or_resume(how: str, tmp_path: Path) -> None:
    await waiting(tmp_path, asking())
    agent = Agent("asking", model=Script([repeat]), tools=[ask_then_look], workspace=folder(tmp_path, "agents"))
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        again = folder(tmp_path, "own")
        if how == "load":
            reply = await (await runtime.load("s", workspace=again)).resume()
        else:
            reply = await runtime.resume("s", workspace=again)
    assert reply.text == "yes own"


async def test_without_it_nothing_of_a_resumed_session_runs_and_the_error_says_so(tmp_path: Path) -> None:
    await waiting(tmp_path, asking())
    ran: list[str] = []

    def note(session: SessionAccess, *_: Any) -> None:
        ran.append(session.id)

    hooks = Hooks(before_tool=[note], before_model=[note], pre_request=[note])
    own = folder(tmp_path, "agents")
    agent = Agent("asking", model=Script([repeat]), tools=[ask_then_look], workspace=own, hooks=hooks)
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        session = await runtime.load("s")
        assert session.status == "waiting"
        before = [event async for event in runtime.events()]
        for attempt in (runtime.resume("s"), session.resume(), session.prompt("Go.")):
            with pytest.raises(SetupError, match=r"'s' was started with a workspace .* not stored; give it again"):
                await attempt
        assert ([event async for event in runtime.events()], ran) == (before, [])
        assert (await runtime.resume("s", workspace=folder(tmp_path, "own"))).text == "yes own"


async def test_a_worker_leaves_a_session_alone_whose_workspace_it_does_not_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await waiting(tmp_path, asking())
    stop = asyncio.Event()

    def end(session: SessionAccess, reply: Any) -> None:
        stop.set()

    agent = Agent(
        "asking",
        model=Script([call("ask_then_look"), repeat]),
        tools=[ask_then_look],
        workspace=folder(tmp_path, "agents"),
        hooks=Hooks(end_turn=[end]),
    )
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0.0) as runtime:
        await (await runtime.start(agent, id="other")).prompt("Go.")
        (asked,) = await runtime.inbox()
        await runtime.answer(asked.id, "yes")
        await runtime.work(stop)
        assert ((await runtime.load("other")).get_summary(), await runtime.ready()) == ("yes agents", ["s"])
    assert "session s can't be resumed: session 's' was started with a workspace of its own" in caplog.text


async def test_a_child_that_is_prompted_by_its_own_id_needs_the_workspace_of_its_root(tmp_path: Path) -> None:
    def top() -> Agent:
        return Agent("top", model=Script([call("task", agent="looking", prompt="Go."), repeat]), agents=[looking()])

    async with Runtime(tmp_path / "log.db", agents=[top()]) as runtime:
        await (await runtime.start("top", id="s", workspace=folder(tmp_path, "own"))).prompt("Go.")
        (child,) = await runtime.rows(parent="s")
    async with Runtime(tmp_path / "log.db", agents=[top()]) as runtime:
        with pytest.raises(SetupError, match="'s' was started with a workspace of its own"):
            await (await runtime.load(child.id)).prompt("Again.")
        session = await runtime.load(child.id, workspace=folder(tmp_path, "own"))
        assert (await session.prompt("Again.")).text == "own"


async def test_a_workspace_is_refused_where_the_session_had_none_or_where_it_is_none(tmp_path: Path) -> None:
    agent = looking()
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        wrong: list[Any] = [tmp_path, Folder, "work"]
        for value in wrong:
            with pytest.raises(SetupError, match="workspace must be a Workspace"):
                await runtime.start(agent, id="s", workspace=value)
        assert await runtime.rows() == []
        await runtime.start(agent, id="s")
        with pytest.raises(SetupError, match="'s' was started without a workspace of its own"):
            await runtime.load("s", workspace=folder(tmp_path, "own"))
        with pytest.raises(SetupError, match="'s' was started without a workspace of its own"):
            await runtime.resume("s", workspace=folder(tmp_path, "own"))


async def test_a_new_session_of_a_deleted_id_does_not_have_its_workspace(tmp_path: Path) -> None:
    agent = looking(workspace=folder(tmp_path, "agents"))
    async with Runtime(agents=[agent]) as runtime:
        await runtime.start(agent, id="s", workspace=folder(tmp_path, "own"))
        await runtime.delete("s")
        assert (await (await runtime.start(agent, id="s")).prompt("Go.")).text == "agents"
