"""A session that is started with an agent object uses that one, whatever other agent of its name a runtime has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upcall import Agent, Context, Hooks, Request, Runtime, SessionAccess, UnknownAgent, tool
from upcall.models import Script, call


def speaker(text: str, **options: Any) -> Agent:
    return Agent("speaker", model=Script(lambda request: text), **options)


def delegating(text: str) -> Agent:
    """A manager with a worker of its own; both have the same names every time."""

    def lead(request: Request) -> Any:
        done = [m.results[0].text for m in request.messages if m.role == "tool"]
        return done[0] if done else call("task", agent="speaker", prompt="go")

    return Agent("manager", model=Script(lead), agents=[speaker(text)])


async def test_two_sessions_with_agents_of_one_name_each_keep_their_own() -> None:
    async with Runtime(agents=[speaker("first")]) as runtime:
        one, two = await runtime.start("speaker"), await runtime.start(speaker("second"))
        three = await runtime.start(speaker("third"))
        replies = [(await session.prompt("go")).text for session in (one, two, three, two)]
        assert replies == ["first", "second", "third", "second"]
        assert (await (await runtime.start("speaker")).prompt("go")).text == "first"


async def test_children_are_those_of_the_session_s_own_agent() -> None:
    async with Runtime(agents=[delegating("first")]) as runtime:
        mine = await runtime.start(delegating("mine"), id="mine")
        assert (await mine.prompt("go")).text == "mine"
        assert (await (await runtime.start("manager")).prompt("go")).text == "first"
        child = (await runtime.rows(parent="mine"))[0].id
        assert (await (await runtime.load(child)).prompt("again")).text == "mine"


async def test_an_agent_whose_own_name_is_new_may_have_one_below_whose_name_is_not() -> None:
    manager = delegating("mine")
    async with Runtime(agents=[speaker("first")]) as runtime:
        assert (await (await runtime.start(manager)).prompt("go")).text == "mine"
        assert (await (await runtime.start("speaker")).prompt("go")).text == "first"


async def test_begin_session_hooks_start_children_of_the_session_s_own_agent() -> None:
    async def begin(session: SessionAccess) -> None:
        session.set_context("heard", (await session.start_child("speaker", "go")).text)

    first, mine = (
        Agent("boss", model=Script(["hi"]), agents=[speaker(text)], hooks=Hooks(begin_session=[begin]))
        for text in ("first", "mine")
    )
    async with Runtime(agents=[first]) as runtime:
        session = await runtime.start(mine)
        assert session.get_context("heard") == "mine"


def asking(after: str) -> Agent:
    @tool
    async def question(ctx: Context) -> str:
        return f"{await ctx.raise_callback('Which?', 'blocker')} {after}"

    def model(request: Request) -> Any:
        last = request.messages[-1]
        return last.results[0].text if last.role == "tool" else call("question")

    return Agent("asker", model=Script(model), tools=[question])


async def test_a_resume_here_uses_the_session_s_own_agent_and_elsewhere_the_one_of_that_name(
    tmp_path: Path,
) -> None:
    async with Runtime(tmp_path / "log.db", agents=[asking("first")]) as runtime:
        for name in ("here", "elsewhere"):
            session = await runtime.start(asking("mine"), id=name)
            reply = await session.prompt("go")
            await runtime.answer(reply.callbacks[0].id, name)
        assert (await runtime.resume("here")).text == "here mine"
    async with Runtime(tmp_path / "log.db", agents=[asking("found by name")]) as runtime:
        assert (await runtime.resume("elsewhere")).text == "elsewhere found by name"


async def test_a_deleted_session_s_agent_is_forgotten_and_its_id_is_free() -> None:
    async with Runtime(agents=[speaker("first")]) as runtime:
        await (await runtime.start(speaker("mine"), id="s")).prompt("go")
        await runtime.delete("s")
        assert (await (await runtime.start("speaker", id="s")).prompt("go")).text == "first"
        with pytest.raises(UnknownAgent) as unknown:
            await runtime.start("nobody")
        assert tuple(unknown.value.known) == ("speaker",)
