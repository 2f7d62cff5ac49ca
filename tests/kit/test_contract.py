"""What hooks and tools may use that the pieces of the kit are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.doubles import Asked, Place, log_of, said, turn
from upcall import (
    Agent,
    BadHook,
    Call,
    Context,
    ContextTooLong,
    Hooks,
    Kit,
    Message,
    Request,
    Response,
    Result,
    Runtime,
    SessionAccess,
    Spent,
    Tool,
    Usage,
    approval_rule,
    inherited,
    tool,
)
from upcall.events import ToolEnded
from upcall.models import Script, call


@tool
async def echo(word: str) -> str:
    """Say it back."""
    return word


# --- compaction -------------------------------------------------------------------------


async def test_instructions_stay_when_a_conversation_is_compacted_and_each_only_once(place: Place) -> None:
    asked = Asked()

    def begins(session: SessionAccess) -> None:
        session.add_message("system", "Be kind.")

    def adds(session: SessionAccess, message: Message) -> None:
        session.add_message("system", "Be brief.")
        if message.text == "4":
            session.compact_messages(keep_last=1)

    hooks = Hooks(begin_session=[begins], pre_request=[adds])
    agent = Agent("a", model=Script(asked.then(lambda r: "ok")), hooks=hooks)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(1, 5):
            await session.prompt(str(number))

    assert said(asked.requests[-1].messages) == ["user: Be kind.", "user: 1", "user: Be brief."]


async def test_pinned_context_is_shown_after_a_compaction_and_what_is_no_longer_pinned_is_not(
    place: Place,
) -> None:
    asked = Asked()

    async def pins(session: SessionAccess, message: Message) -> None:
        session.set_context("pinned.todo", f"open: {message.text}" if message.text != "6" else "")
        session.set_context("other", "never shown")
        if message.text in ("3", "5", "6"):
            await session.trigger_compaction(keep_last=1)

    script = Script(asked.then(lambda r: "SUM" if r.purpose == "summary" else "ok"))
    agent = Agent("a", model=script, hooks=Hooks(pre_request=[pins]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        seen: list[list[str]] = []
        for number in range(1, 7):
            await session.prompt(str(number))
            seen.append(said(asked.requests[-1].messages))

    summary = "user: Summary of the conversation so far:\nSUM"
    assert seen[2] == ["user: 1", f"{summary}\n\nopen: 3", "user: 3"]
    assert seen[4] == ["user: 1", f"{summary}\n\nopen: 5", "user: 5"]
    assert seen[5] == ["user: 1", summary, "user: 6"]


async def test_what_a_turn_continues_from_stays_however_few_messages_are_kept() -> None:
    asked = Asked()

    async def shrinks(session: SessionAccess, response: Response) -> None:
        if response.calls:
            session.add_message("user", "a note")
            session.add_message("user", "another")
            await session.trigger_compaction(keep_last=1)

    script = Script(
        asked.then(
            lambda r: "SUM" if r.purpose == "summary" else "done" if len(asked) > 2 else call("echo", word="x")
        )
    )
    await turn(Agent("a", model=script, tools=[echo], hooks=Hooks(post_response=[shrinks])))

    assert said(asked.requests[2].messages)[-4:] == ["call echo", "= x", "user: a note", "user: another"]


async def test_a_summary_of_what_is_too_long_is_made_of_less(place: Place) -> None:
    asked = Asked()

    async def sums_up(session: SessionAccess, message: Message) -> None:
        if message.text == "5":
            await session.trigger_compaction(keep_last=1)

    def decide(request: Request) -> Any:
        if request.purpose == "summary":
            return ContextTooLong("m", None, None) if len(request.messages) > 6 else "SUM"
        return "ok"

    agent = Agent("a", model=Script(asked.then(decide)), hooks=Hooks(pre_request=[sums_up]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(1, 6):
            await session.prompt(str(number))

    assert [len(r.messages) for r in asked.requests if r.purpose == "summary"] == [10, 6]
    assert said(asked.requests[-1].messages) == [
        "user: 1",
        "user: Summary of the conversation so far:\nSUM",
        "user: 5",
    ]


async def test_the_whole_conversation_stays_readable_after_compactions(place: Place) -> None:
    read: list[list[str]] = []

    async def forgets(session: SessionAccess, message: Message) -> None:
        session.compact_messages(keep_last=1)
        read.append(said(await session.get_history()))

    agent = Agent("a", model=Script(lambda r: f"to {r.messages[-1].text}"), hooks=Hooks(pre_request=[forgets]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(1, 4):
            await session.prompt(str(number))

    assert read[-1] == ["user: 1", "assistant: to 1", "user: 2", "assistant: to 2", "user: 3"]


# --- what a run tree has used -----------------------------------------------------------


async def test_what_is_spent_counts_children_side_turns_and_summaries_and_survives_restarts(place: Place) -> None:
    seen: list[Spent] = []

    async def looks(session: SessionAccess, message: Message) -> None:
        if message.text == "two":
            await session.prompt("a side turn")
            await session.trigger_compaction(keep_last=1)
        seen.append(await session.spent())

    def big(request: Request) -> Any:
        if request.purpose == "turn" and request.messages[-1].role != "tool" and request.messages[-1].text == "one":
            return Response("", [call("task", agent="small", prompt="help")], usage=Usage(10, 1), model="big-1")
        return Response("ok", usage=Usage(10, 1, 5), model="big-1")

    small = Agent("small", model=Script(lambda r: Response("yes", usage=Usage(3, 4), model="small-1")))
    agent = Agent("a", model=Script(big), agents=[small], hooks=Hooks(pre_request=[looks]))
    for text in ("one", "two", "three"):
        async with Runtime(place.store(), agents=[agent]) as runtime:
            session = await (runtime.start(agent, "s") if text == "one" else runtime.load("s"))
            await session.prompt(text)

    assert [s.calls for s in seen] == [0, 5, 6]
    assert seen[2].usage == {"big-1": Usage(50, 5, 20), "small-1": Usage(3, 4)}
    assert seen[2].tokens == 62
    assert 0 < seen[1].seconds < seen[2].seconds < 60


async def test_a_hook_knows_whether_it_runs_in_a_side_turn() -> None:
    seen: list[str] = []

    async def looks(session: SessionAccess, request: Request) -> None:
        seen.append(session.purpose)

    async def asks(session: SessionAccess, message: Message) -> None:
        await session.prompt("?")

    await turn(Agent("a", model=Script(lambda r: "ok"), hooks=Hooks(before_model=[looks], pre_request=[asks])))

    assert seen == ["side_turn", "turn"]


# --- approval rules ---------------------------------------------------------------------


def test_an_approval_rule_stands_at_before_tool_only() -> None:
    with pytest.raises(BadHook, match="before_tool"):
        Hooks().adding(post_response=[approval_rule(lambda tool, args: True)])


async def test_a_rule_is_asked_about_the_call_that_hooks_have_made_of_it(tmp_path: Path) -> None:
    asked: list[Any] = []

    def rule(tool: Tool, args: Any) -> bool:
        asked.append((tool.name, dict(args)))
        return True

    def changes(session: SessionAccess, call: Call) -> Call:
        return call.replace(args={"word": "changed"})

    hooks = Hooks(before_tool=[approval_rule(rule), changes])
    agent = Agent("a", model=Script([call("echo", word="x"), "ok"]), tools=[echo], hooks=hooks)
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")

        assert reply.status == "waiting"
        assert [c.args for c in await runtime.inbox()] == [{"word": "changed"}]
    assert asked == [("echo", {"word": "changed"})]


async def test_a_rule_that_raises_never_lets_the_tool_run() -> None:
    def rule(tool: Tool, args: Any) -> bool:
        raise ValueError("clumsy")

    hooks = Hooks(before_tool=[approval_rule(rule)])
    script = Script([call("echo", word="x"), lambda r: r.messages[-1].results[0].text])
    reply = await turn(Agent("a", model=script, tools=[echo], hooks=hooks))

    assert "echo was not run" in reply.text
    assert "clumsy" in reply.text


async def test_an_agent_can_not_approve_what_a_rule_would_have_it_ask_for(tmp_path: Path) -> None:
    def boss(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("answer_callback", value="approve")
        return "done" if request.messages[-1].role == "tool" else call("task", agent="low", prompt="echo")

    low = Agent("low", model=Script(lambda r: "ok" if r.messages[-1].role == "tool" else call("echo", word="x")),
                tools=[echo])  # fmt: skip
    top = Agent(
        "top", model=Script(boss), tools=[echo], agents=[low], callback_policy={"may_approve": ["echo"]},
        hooks=Hooks(before_tool=[inherited(approval_rule(lambda tool, args: tool.name == "echo"))]),
    )  # fmt: skip
    async with Runtime(tmp_path / "log.db", agents=[top]) as runtime:
        reply = await (await runtime.start(top, "s")).prompt("go")

        assert reply.status == "waiting"
        waiting = await runtime.inbox()
        assert [(c.agent, c.tool, c.status) for c in waiting] == [("low", "echo", "open")]


# --- keepers of results -----------------------------------------------------------------


async def test_a_kit_takes_what_a_tool_returned_before_it_is_stored(place: Place) -> None:
    kept: list[Any] = []

    async def keeper(ctx: Context, call: Call, value: Any) -> str | None:
        kept.append((ctx.agent, call.name, value))
        return "short" if isinstance(value, bytes) else None

    @tool
    async def read(size: int) -> bytes | str:
        """Read."""
        return b"\xff" * size if size else "little"

    script = Script([[call("read", size=9), call("read", size=0)], "ok"])
    agent = Agent("a", model=script, tools=[read], kit=[Kit(results=[keeper])])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        results = [e.result for e in await log_of(runtime) if isinstance(e, ToolEnded)]

    assert kept == [("a", "read", b"\xff" * 9), ("a", "read", "little")]
    assert results == [Result("r1c0", "short"), Result("r1c1", "little")]


async def test_a_keeper_that_raises_makes_an_error_result() -> None:
    def keeper(ctx: Context, call: Call, value: Any) -> None:
        raise OSError("the disk is full")

    script = Script([call("echo", word="x"), lambda r: r.messages[-1].results[0].text])
    reply = await turn(Agent("a", model=script, tools=[echo], kit=[Kit(results=[keeper])]))

    assert reply.text == "echo failed: OSError: the disk is full"
