"""What other frameworks of hooks, skills and compaction got wrong, each as a test that it is right here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.doubles import Asked, Place, crash, said
from core.rules import check
from upcall import Agent, Approve, Hooks, Message, Request, Runtime, SessionAccess, tool
from upcall.kit import approve, compact
from upcall.models import Script, call

RAN: list[Any] = []


@tool
async def write_file(path: str, mode: str = "") -> str:
    """Write."""
    RAN.append((path, mode))
    return "written"


@tool
async def echo(word: str) -> str:
    """Say it back."""
    return word


async def test_agents_derived_from_one_base_share_no_list_of_hooks() -> None:
    ended: list[str] = []

    def bridge(to: str) -> Any:
        def hook(session: SessionAccess, reply: Any) -> None:
            ended.append(f"{session.agent} to {to}")

        return hook

    base = Hooks()
    hooks = {"c": base, "b": base.adding(end_turn=[bridge("c")]), "a": base.adding(end_turn=[bridge("b")])}
    for name in "abc":
        agent = Agent(name, model=Script(["ok"]), hooks=hooks[name])
        async with Runtime(agents=[agent]) as runtime:
            await (await runtime.start(agent)).prompt("go")

    assert ended == ["a to b", "b to c"]


async def test_the_summary_that_is_stored_is_what_the_model_wrote(place: Place) -> None:
    summary = "Ada wants the blue one, by Friday."
    script = Script(lambda r: summary if r.purpose == "summary" else "x" * 40)
    agent = Agent("a", model=script, kit=[compact(20, keep_last=2)])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(6):
            await session.prompt(f"prompt {number}")
    async with Runtime(place.store(), agents=[agent]) as runtime:
        loaded = await runtime.load("s")
        assert loaded.get_summary() == summary
        assert said(loaded.get_messages())[1] == f"user: Summary of the conversation so far:\n{summary}"


async def test_a_loaded_session_has_its_whole_conversation(place: Place) -> None:
    script = Script(lambda r: "ok" if r.messages[-1].results else call("echo", word=r.messages[-1].text))
    agent = Agent("a", model=script, tools=[echo])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("one")
        before = session.get_messages()
    async with Runtime(place.store(), agents=[agent]) as runtime:
        loaded = await runtime.load("s")
        assert loaded.get_messages() == before
        assert said(before) == ["user: one", "call echo", "= one", "assistant: ok"]


async def test_dangling_calls_are_settled_for_every_model_call_of_a_turn() -> None:
    asked = Asked()

    def cuts(session: SessionAccess, request: Request) -> Request:
        return request.replace(messages=[m for m in request.messages if m.role != "tool"])

    script = Script(asked.then(lambda r: "ok" if len(asked) > 4 else [call("echo", word="x")] * 2))
    agent = Agent("a", model=script, tools=[echo], hooks=Hooks(before_model=[cuts]))
    async with Runtime(agents=[agent]) as runtime:
        await (await runtime.start(agent)).prompt("go")

    assert len(asked) == 5
    for request in asked.requests:
        check(request.messages)
    assert sum("cancelled" in line for line in said(asked.requests[-1].messages)) == 8


async def test_calls_that_a_crash_left_open_are_settled_for_every_later_model_call(place: Place) -> None:
    asked = Asked()

    def decide(request: Request) -> Any:
        check(request.messages)
        return "ok" if len(request.messages) > 4 else call("echo", word="x")

    agent = Agent("a", model=Script(asked.then(decide)), tools=[echo])
    for appends in range(2, 12):
        place.clear()
        if await crash(place, agent, appends):
            return
        async with Runtime(place.store(), agents=[agent]) as runtime:
            await runtime.resume("s", take_over=True)
            await (await runtime.load("s")).prompt("and then?")
    raise AssertionError("its turn never ended")


async def test_a_conversation_that_was_summarised_is_not_summarised_on_the_next_call() -> None:
    asked = Asked()
    script = Script(asked.then(lambda r: "SUM " * 40 if r.purpose == "summary" else "x" * 400))
    agent = Agent("a", instructions="i" * 4000, model=script, kit=[compact(10, keep_last=2)])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        for number in range(30):
            await session.prompt(f"prompt {number}")

    purposes = "".join(r.purpose[0] for r in asked.requests)
    assert "sts" not in purposes
    assert 3 <= purposes.count("s") <= 15


async def test_the_kept_window_never_begins_with_an_orphaned_result() -> None:
    for keep in range(1, 6):
        asked = Asked()

        def shrinks(session: SessionAccess, message: Message, keep: int = keep) -> None:
            session.compact_messages(keep_last=keep)

        script = Script(
            asked.then(lambda r: "ok" if r.messages[-1].role == "tool" else [call("echo", word="x")] * 2)
        )
        agent = Agent("a", model=script, tools=[echo], hooks=Hooks(pre_request=[shrinks]))
        async with Runtime(agents=[agent]) as runtime:
            session = await runtime.start(agent)
            for number in range(4):
                await session.prompt(f"prompt {number}")
        for request in asked.requests:
            check(request.messages)


async def test_an_approval_inside_a_child_reaches_the_person(tmp_path: Path) -> None:
    RAN.clear()
    script = Script(lambda r: "ok" if r.messages[-1].results else call("write_file", path="x"))
    child = Agent("child", model=script, tools=[write_file], can_use_host_interaction=False)
    top = Agent(
        "top",
        model=Script(
            lambda r: "ok" if any(m.results for m in r.messages) else call("task", agent="child", prompt="go")
        ),
        agents=[child],
        kit=[approve({"write_file": True})],
    )
    async with Runtime(tmp_path / "log.db", agents=[top]) as runtime:
        await (await runtime.start(top, "s")).prompt("go")
        (callback,) = await runtime.inbox()
        assert (callback.agent, callback.tool) == ("child", "write_file")
        await runtime.answer(callback.id, Approve(), by="me")
        assert (await runtime.resume("s")).status == "done"
    assert RAN == [("x", "")]


async def test_edited_arguments_are_taken_as_they_are_so_that_one_can_be_removed(tmp_path: Path) -> None:
    RAN.clear()
    script = Script(lambda r: "ok" if r.messages[-1].results else call("write_file", path="x", mode="force"))
    agent = Agent("a", model=script, tools=[write_file], kit=[approve("all_ask")])
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        await runtime.answer((await runtime.inbox())[0].id, Approve(args={"path": "y"}), by="me")
        await runtime.resume("s")
    assert RAN == [("y", "")]
