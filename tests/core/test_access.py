"""What hooks may do with their session: read, write, compact, ask themselves, start children."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.doubles import Asked, Place, crash, log_of, said, turn, types_of
from upcall import (
    Agent,
    Call,
    Callback,
    ChildFailed,
    Context,
    ContextTooLong,
    HookFailed,
    Hooks,
    Message,
    ModelUnavailable,
    Reply,
    Request,
    Response,
    Result,
    Runtime,
    SessionAccess,
    SessionBusy,
    Usage,
    tool,
)
from upcall.events import Compacted, ContextSet, MessageAdded, SessionStarted
from upcall.messages import Instruction, Text, user
from upcall.models import Script, call


@tool
async def echo(word: str) -> str:
    """Say it back."""
    return word


@tool(read_only=True)
async def read() -> str:
    """Read something."""
    return "read"


def ping(request: Request) -> Any:
    """One call, then the end."""
    return "ok" if request.messages[-1].role == "tool" or len(request.messages) > 4 else call("echo", word="hi")


# --- reading and writing ----------------------------------------------------------------


async def test_a_hook_reads_its_session(place: Place) -> None:
    seen: list[Any] = []

    def looks(session: SessionAccess, request: Request) -> None:
        seen.append((session.id, session.agent, session.parent, said(session.get_messages())))

    agent = Agent("a", model=Script(["ok"]), hooks=Hooks(before_model=[looks]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")

    assert seen == [("s", "a", None, ["user: go"])]


async def test_context_is_kept_across_turns_and_runtimes(place: Place) -> None:
    seen: list[Any] = []

    def counts(session: SessionAccess, message: Message) -> None:
        seen.append(session.get_context("turns", 0))
        session.set_context("turns", session.get_context("turns", 0) + 1)

    agent = Agent("a", model=Script(lambda r: "ok"), hooks=Hooks(pre_request=[counts]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("one")
        await session.prompt("two")
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.load("s")
        await session.prompt("three")
        assert session.get_context("turns") == 3
    assert seen == [0, 1, 2]


async def test_context_takes_what_json_can_hold_and_names_what_it_can_not() -> None:
    def keeps(session: SessionAccess) -> None:
        session.set_context("fine", {"list": [1, None, "x"]})
        session.set_context("wrong", object())

    with pytest.raises(HookFailed, match="wrong"):
        await turn(Agent("a", model=Script(["ok"]), hooks=Hooks(begin_session=[keeps])))


async def test_what_begin_session_writes_is_there_from_the_start(place: Place) -> None:
    asked = Asked()

    def greets(session: SessionAccess) -> None:
        session.add_message("user", "I like brevity")
        session.set_context("mood", "brief")

    agent = Agent("a", model=Script(asked.then(lambda r: "ok")), hooks=Hooks(begin_session=[greets]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        assert session.get_context("mood") == "brief"
        await session.prompt("go")
    assert said(asked.requests[0].messages) == ["user: I like brevity", "user: go"]


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("user", Message("user", (Text("note"),))),
        ("assistant", Message("assistant", (Text("note"),))),
        ("system", Message("user", (Instruction("note"),))),
    ],
)
async def test_an_added_message_is_seen_by_the_next_model_call(role: str, expected: Message, place: Place) -> None:
    asked = Asked()

    def adds(session: SessionAccess, message: Message) -> None:
        session.add_message(role, "note")

    agent = Agent("a", model=Script(asked.then(lambda r: "ok")), hooks=Hooks(pre_request=[adds]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")

        assert asked.requests[0].messages[1] == expected
        assert (await runtime.load("s")).get_messages()[1] == expected


async def test_a_role_that_is_none_is_refused() -> None:
    def adds(session: SessionAccess) -> None:
        session.add_message("tool", "note")

    with pytest.raises(HookFailed, match="'user', 'assistant' or 'system'"):
        await turn(Agent("a", model=Script(["ok"]), hooks=Hooks(begin_session=[adds])))


@pytest.mark.parametrize("point", ["post_response", "before_tool", "after_tool"])
async def test_what_is_added_between_a_call_and_its_result_appears_after_the_results(
    point: str, place: Place
) -> None:
    asked = Asked()

    def adds(session: SessionAccess, *passing: Any) -> None:
        if not session.get_context("added"):
            session.set_context("added", True)
            session.add_message("system", "note")

    script = Script(
        asked.then(lambda r: "ok" if len(asked) > 1 else [call("echo", word="x"), call("echo", word="y")])
    )
    hooks = Hooks(**{point: [adds]})  # pyright: ignore[reportArgumentType]
    agent = Agent("a", model=script, tools=[echo], hooks=hooks)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")

        expected = ["user: go", "call echo", "call echo", "= x", "= y", "user: note"]
        assert said(asked.requests[1].messages) == expected
        assert said((await runtime.load("s")).get_messages())[:6] == expected


async def test_what_before_model_adds_is_in_this_very_request_and_stays() -> None:
    asked = Asked()

    def adds(session: SessionAccess, request: Request) -> Request:
        session.add_message("user", f"note {len(asked)}")
        return request.replace(instructions="changed")

    agent = Agent("a", model=Script(asked.then(lambda r: "ok")), hooks=Hooks(before_model=[adds]))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        await session.prompt("again")

    assert said(asked.requests[0].messages) == ["user: go", "user: note 0"]
    assert asked.requests[0].instructions == "changed"
    assert said(asked.requests[1].messages)[1:] == ["user: note 0", "assistant: ok", "user: again", "user: note 1"]


async def test_each_write_is_an_event(place: Place) -> None:
    def writes(session: SessionAccess, message: Message) -> None:
        session.set_context("k", 1)
        session.add_message("user", "note")

    agent = Agent("a", model=Script(["ok"]), hooks=Hooks(pre_request=[writes]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        log = await log_of(runtime)

    assert [(e.key, e.value) for e in log if isinstance(e, ContextSet)] == [("k", 1)]
    assert [e.message.text for e in log if isinstance(e, MessageAdded)] == ["note"]


async def test_equal_writes_of_a_hook_that_died_are_matched_by_digest_and_count(place: Place) -> None:
    runs: list[int] = []

    async def writes(session: SessionAccess, message: Message) -> None:
        runs.append(1)
        session.add_message("user", "twice")
        session.add_message("user", "twice")
        session.set_context("k", 1)
        if len(runs) == 2:
            session.add_message("user", "twice")
        await session.prompt("a side turn stores all of it")

    agent = Agent("a", model=Script(lambda r: "ok"), hooks=Hooks(pre_request=[writes]))
    assert not await crash(place, agent, 3)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        assert (await types_of(runtime)).count("message_added") == 2

        await runtime.resume("s", take_over=True)

        assert len(runs) == 2
        assert (await types_of(runtime)).count("message_added") == 3
        assert (await types_of(runtime)).count("context_set") == 1


# --- summaries and compaction -----------------------------------------------------------


async def test_the_summary_is_the_last_reply_until_something_was_compacted(place: Place) -> None:
    seen: list[str] = []

    async def sums_up(session: SessionAccess, reply: Reply) -> None:
        seen.append(session.get_summary())
        if reply.text == "two":
            await session.trigger_compaction(keep_last=1)
            seen.append(session.get_summary())

    answers = iter(["one", "two", "the story so far"])
    agent = Agent("a", model=Script(lambda r: next(answers)), hooks=Hooks(end_turn=[sums_up]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("first")
        await session.prompt("second")

        assert seen == ["one", "two", "the story so far"]
        assert session.get_summary() == "the story so far"
        assert (await runtime.load("s")).get_summary() == "the story so far"


async def test_compaction_without_a_model_keeps_the_first_prompt_and_the_newest_messages(place: Place) -> None:
    asked = Asked()

    def forgets(session: SessionAccess, message: Message) -> None:
        if message.text == "prompt 4":
            session.compact_messages(keep_last=3)

    agent = Agent(
        "a", model=Script(asked.then(lambda r: f"reply {len(asked)}")), hooks=Hooks(pre_request=[forgets])
    )
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(1, 5):
            await session.prompt(f"prompt {number}")

        expected = ["user: prompt 1", "user: prompt 3", "assistant: reply 3", "user: prompt 4"]
        assert said(asked.requests[-1].messages) == expected
        loaded = await runtime.load("s")
        assert said(loaded.get_messages()) == [*expected, "assistant: reply 4"]
        assert (await loaded.prompt("prompt 5")).text == "reply 5"
        old = [e for e in await log_of(runtime) if e.type == "turn_started"]
        assert len(old) == 5


async def test_compaction_never_parts_a_call_from_its_result() -> None:
    asked = Asked()

    def forgets(session: SessionAccess, request: Request) -> None:
        session.compact_messages(keep_last=1)

    script = Script(asked.then(lambda r: "ok" if len(asked) > 3 else [call("echo", word="x")] * 2))
    await turn(Agent("a", model=script, tools=[echo], hooks=Hooks(before_model=[forgets])))

    for request in asked.requests[1:]:
        assert said(request.messages) == ["user: go", "call echo", "call echo", "= x", "= x"]


async def test_trigger_compaction_has_the_model_summarise_and_continues_with_the_summary(place: Place) -> None:
    asked = Asked()

    async def sums_up(session: SessionAccess, message: Message) -> None:
        if message.text == "three":
            await session.trigger_compaction(keep_last=1)

    script = Script(asked.then(lambda r: Response("SUM", usage=Usage(5, 5)) if r.purpose == "summary" else "ok"))
    agent = Agent("a", instructions="be", model=script, hooks=Hooks(pre_request=[sums_up]), tools=[echo])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("one")
        await session.prompt("two")
        reply = await session.prompt("three")

        summary = asked.requests[2]
        assert [r.purpose for r in asked.requests] == ["turn", "turn", "summary", "turn"]
        assert said(summary.messages)[:5] == [
            "user: one", "assistant: ok", "user: two", "assistant: ok", "user: three",
        ]  # fmt: skip
        assert summary.messages[-1].role == "user"
        first, middle, last = asked.requests[3].messages
        assert (first.text, last.text) == ("one", "three")
        assert "SUM" in middle.text
        assert reply.usage.total == 10
        assert (await runtime.load("s")).get_messages() == session.get_messages()


async def test_compaction_while_calls_are_open_is_noted_and_done_before_the_next_model_call(place: Place) -> None:
    asked, right_after = Asked(), list[int]()

    async def sums_up(session: SessionAccess, call: Call, result: Result) -> None:
        await session.trigger_compaction(keep_last=1)
        right_after.append(len(asked))

    script = Script(asked.then(lambda r: "SUM" if r.purpose == "summary" else ping(r)))
    agent = Agent("a", model=script, tools=[echo], hooks=Hooks(after_tool=[sums_up]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")

        assert right_after == [1]
        assert [r.purpose for r in asked.requests] == ["turn", "summary", "turn"]
        lines = said(asked.requests[2].messages)
        assert lines[0] == "user: go"
        assert "SUM" in lines[1]
        assert lines[-2:] == ["call echo", "= hi"]
        types = await types_of(runtime)
        assert types.index("compaction_asked") < types.index("compacted")
        assert (await runtime.load("s")).get_messages() == session.get_messages()


async def test_a_compaction_happens_once() -> None:
    asked = Asked()

    async def sums_up(session: SessionAccess, call: Call, result: Result) -> None:
        if not session.get_context("done"):
            session.set_context("done", True)
            session.compact_messages(keep_last=2)

    script = Script(asked.then(lambda r: "ok" if len(asked) > 4 else call("echo", word="x")))
    agent = Agent("a", model=script, tools=[echo], hooks=Hooks(after_tool=[sums_up]))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        assert len([e for e in await log_of(runtime) if isinstance(e, Compacted)]) == 1


async def test_before_model_hooks_see_and_change_the_request_of_a_summary_too(place: Place) -> None:
    asked = Asked()

    def hide(session: SessionAccess, request: Request) -> Request:
        return request.replace(messages=[user(m.text.replace("4711", "…")) for m in request.messages])

    def decide(request: Request) -> str:
        return f"{request.purpose} of {request.messages[0].text}"

    agent = Agent("a", model=Script(asked.then(decide)), hooks=Hooks(before_model=[hide]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("the code is 4711")
        await session.trigger_compaction(1)

        assert [r.purpose for r in asked.requests] == ["turn", "summary"]
        assert all("4711" not in m.text for r in asked.requests for m in r.messages)
        assert session.get_summary() == "summary of the code is …"


async def test_a_before_model_hook_that_answers_for_a_summary_is_taken_at_its_word(place: Place) -> None:
    asked = Asked()

    def answers(session: SessionAccess, request: Request) -> str | None:
        return "in short" if request.purpose == "summary" else None

    agent = Agent("a", model=Script(asked.then(lambda r: "ok")), hooks=Hooks(before_model=[answers]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        await session.trigger_compaction(1)

        assert (len(asked), session.get_summary()) == (1, "in short")
        assert (await runtime.load("s")).get_summary() == "in short"


# --- side turns -------------------------------------------------------------------------


async def test_a_side_turn_of_an_agent_with_an_output_type_says_what_it_likes(place: Place) -> None:
    asked, answers = Asked(), list[str]()

    async def asks_itself(session: SessionAccess, message: Message) -> None:
        answers.append(await session.prompt("what do I like?"))

    def decide(request: Request) -> str:
        return "tea, I think" if request.purpose == "side_turn" else "7"

    agent = Agent("a", model=Script(asked.then(decide)), output=int, hooks=Hooks(pre_request=[asks_itself]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("I like tea")

    side, main = asked.requests
    assert (answers, reply.output) == (["tea, I think"], 7)
    assert (side.output, main.output) == (None, {"type": "integer"})


async def test_a_side_turn_reads_the_conversation_and_leaves_no_trace_in_it(place: Place) -> None:
    asked, answers = Asked(), list[str]()

    async def asks_itself(session: SessionAccess, message: Message) -> None:
        answers.append(await session.prompt("what do I like?"))

    def decide(request: Request) -> str:
        return "tea" if request.purpose == "side_turn" else "ok"

    agent = Agent("a", model=Script(asked.then(decide)), tools=[echo], hooks=Hooks(pre_request=[asks_itself]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("I like tea")

        side, main = asked.requests
        assert answers == ["tea"]
        assert said(side.messages) == ["user: I like tea", "user: what do I like?"]
        assert (side.purpose, side.tools) == ("side_turn", main.tools)
        assert said(main.messages) == ["user: I like tea"]
        assert said((await runtime.load("s")).get_messages()) == ["user: I like tea", "assistant: ok"]


async def test_a_side_turn_may_only_use_tools_that_read() -> None:
    asked = Asked()

    async def asks_itself(session: SessionAccess, message: Message) -> None:
        await session.prompt("look around")

    def decide(request: Request) -> Any:
        if request.purpose != "side_turn" or request.messages[-1].role == "tool":
            return "ok"
        return [call("read"), call("echo", word="x")]

    script = Script(asked.then(decide))
    await turn(Agent("a", model=script, tools=[echo, read], hooks=Hooks(pre_request=[asks_itself])))

    may, may_not = asked.requests[1].messages[-1].results
    assert (may.text, may.is_error) == ("read", False)
    assert may_not.is_error
    assert "echo" in may_not.text


async def test_a_side_turn_shows_open_calls_as_in_progress() -> None:
    asked = Asked()

    async def asks_itself(session: SessionAccess, call: Call) -> None:
        await session.prompt("may I?")

    def decide(request: Request) -> Any:
        return "yes" if request.purpose == "side_turn" else ping(request)

    await turn(Agent("a", model=Script(asked.then(decide)), tools=[echo], hooks=Hooks(before_tool=[asks_itself])))

    side = asked.requests[1].messages
    assert [m.role for m in side] == ["user", "assistant", "tool", "user"]
    assert side[2].results[0].call_id == side[1].calls[0].id
    assert "running" in side[2].results[0].text


async def test_a_side_turn_runs_the_model_and_tool_hooks_and_neither_pre_request_nor_end_turn() -> None:
    seen: list[str] = []

    async def asks_itself(session: SessionAccess, message: Message) -> None:
        seen.append(f"pre_request {message.text}")
        await session.prompt("side")

    def looks(session: SessionAccess, request: Request) -> None:
        seen.append(f"before_model {request.messages[-1].text}")
        session.add_message("user", f"note on {request.purpose}")

    hooks = Hooks(
        pre_request=[asks_itself],
        before_model=[looks],
        end_turn=[lambda session, reply: seen.append(f"end_turn {reply.text}")],
    )
    agent = Agent("a", model=Script(lambda r: r.purpose), hooks=hooks)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("main")

        assert seen == ["pre_request main", "before_model side", "before_model main", "end_turn turn"]
        assert said(session.get_messages()) == ["user: main", "user: note on turn", "assistant: turn"]


async def test_two_prompts_of_one_hook_are_two_side_turns() -> None:
    got: list[str] = []

    async def asks_itself(session: SessionAccess, message: Message) -> None:
        got.extend([await session.prompt("one"), await session.prompt("two"), await session.prompt("one")])

    script = Script(lambda r: "re " + r.messages[-1].text)
    await turn(Agent("a", model=script, hooks=Hooks(pre_request=[asks_itself])))
    assert got == ["re one", "re two", "re one"]


async def test_a_side_turn_that_fails_fails_its_hook() -> None:
    async def asks_itself(session: SessionAccess, message: Message) -> None:
        await session.prompt("one")

    agent = Agent("a", model=Script([ModelUnavailable("m", "gone")]), hooks=Hooks(pre_request=[asks_itself]))
    with pytest.raises(HookFailed, match="gone"):
        await turn(agent)


# --- children ---------------------------------------------------------------------------


async def test_a_hook_starts_a_child_whose_reply_it_gets(place: Place) -> None:
    replies: list[Reply] = []
    child = Agent("helper", model=Script(lambda r: f"helped with {r.messages[-1].text}"))

    async def delegates(session: SessionAccess, message: Message) -> None:
        replies.append(await session.start_child("helper", "the dishes"))

    agent = Agent("a", model=Script(["ok"]), hooks=Hooks(pre_request=[delegates]), agents=[child])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")

        (row,) = await runtime.rows(parent="s")
        started = (await log_of(runtime, row.id))[0]
        assert (replies[0].text, replies[0].status) == ("helped with the dishes", "done")
        assert (row.agent, row.status, row.root) == ("helper", "done", "s")
        assert isinstance(started, SessionStarted)
        assert (started.parent, started.depth) == ("s", 1)
        assert (await runtime.load(row.id)).parent == "s"
        assert said((await runtime.load("s")).get_messages()) == ["user: go", "assistant: ok"]


async def test_a_childs_creation_and_its_prompt_are_one_append(place: Place) -> None:
    child = Agent("helper", model=Script(lambda r: "ok"))

    async def delegates(session: SessionAccess, message: Message) -> None:
        await session.start_child(child, "the dishes")

    agent = Agent("a", model=Script(lambda r: "ok"), hooks=Hooks(pre_request=[delegates]))
    for appends in range(1, 5):
        place = Place()
        assert not await crash(place, agent, appends)
        async with Runtime(place.store(), agents=[agent, child]) as runtime:
            for row in await runtime.rows(parent="s"):
                assert (await types_of(runtime, row.id))[:2] == ["session_started", "turn_started"]


async def test_a_hook_that_runs_again_after_a_crash_continues_its_child_or_gets_its_end(place: Place) -> None:
    for appends in range(2, 20):
        place = Place(place.path and place.path.with_name(f"{appends}.db"))
        effects: list[str] = []

        @tool
        async def wash(dish: str, effects: list[str] = effects) -> str:
            """Wash up."""
            return dish

        def scrub(request: Request, effects: list[str] = effects) -> Any:
            effects.append("asked")
            return "clean" if request.messages[-1].role == "tool" else call("wash", dish="cup")

        child = Agent("helper", model=Script(scrub), tools=[wash])

        async def delegates(session: SessionAccess, message: Message) -> None:
            session.set_context("help", (await session.start_child("helper", "the dishes")).text)

        hooks = Hooks(pre_request=[delegates])
        agent = Agent("a", model=Script(lambda r: "ok"), hooks=hooks, agents=[child])
        finished = await crash(place, agent, appends)
        async with Runtime(place.store(), agents=[agent]) as runtime:
            reply = await runtime.resume("s", take_over=True)
            session = await runtime.load("s")
            rows = await runtime.rows(parent="s")
        assert (reply.text, session.get_context("help")) == ("ok", "clean"), appends
        assert [r.status for r in rows] == ["done"], appends
        assert len(effects) <= 3, appends
        if finished:
            return
    pytest.fail("the run makes more appends than that")


async def test_a_childs_id_resumes_its_root(place: Place) -> None:
    child = Agent("helper", model=Script(lambda r: "clean"))

    async def delegates(session: SessionAccess, message: Message) -> None:
        await session.start_child("helper", "the dishes")

    agent = Agent("a", model=Script(lambda r: "ok"), hooks=Hooks(pre_request=[delegates]), agents=[child])
    assert not await crash(place, agent, 3)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        (row,) = await runtime.rows(parent="s")
        reply = await runtime.resume(row.id, take_over=True)
        assert (reply.session_id, reply.text) == ("s", "ok")


async def test_a_child_that_fails_is_an_error_the_hook_may_catch() -> None:
    caught: list[ChildFailed] = []
    child = Agent("helper", model=Script([ModelUnavailable("m", "gone")]))

    async def delegates(session: SessionAccess, message: Message) -> None:
        try:
            await session.start_child("helper", "the dishes")
        except ChildFailed as error:
            caught.append(error)

    agent = Agent("a", model=Script(["ok"]), hooks=Hooks(pre_request=[delegates]), agents=[child])
    assert (await turn(agent)).text == "ok"
    assert caught[0].agent == "helper"
    assert "gone" in str(caught[0])


async def test_a_child_that_a_hook_names_wrongly_is_an_error_with_the_names_there_are() -> None:
    async def delegates(session: SessionAccess, message: Message) -> None:
        await session.start_child("nobody", "the dishes")

    agent = Agent("a", model=Script(["ok"]), hooks=Hooks(pre_request=[delegates]))
    with pytest.raises(HookFailed, match="there is no agent called 'nobody'"):
        await turn(agent)


# --- compaction between turns -----------------------------------------------------------


def summing(request: Request) -> Any:
    """Says what it was told; its summaries count the messages."""
    if request.purpose == "summary":
        return f"{len(request.messages) - 1} messages"
    return f"you said {request.messages[-1].text}"


async def test_a_session_is_compacted_between_turns_and_stays_what_it_was(place: Place) -> None:
    agent = Agent("a", model=Script(summing))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(6):
            await session.prompt(f"number {number}")
        before = await runtime.status("s")
        await session.trigger_compaction(keep_last=2)
        assert (await runtime.status("s"), session.status, before) == ("done", "done", "done")
        assert session.get_summary() == "12 messages"
        again = await runtime.load("s")
        for one in (session, again):
            assert said(one.get_messages())[0].endswith("number 0")
            assert said(one.get_messages())[-2:] == ["user: number 5", "assistant: you said number 5"]
            assert len(one.get_messages()) < 6
        assert (again.status, again.get_summary()) == (session.status, session.get_summary())
        reply = await again.prompt("go on")
        assert reply.text == "you said go on"
        assert (await runtime.resume("s")).text == "you said go on"


async def test_compacting_after_a_request_that_was_too_long_lets_the_failed_turn_continue(place: Place) -> None:
    def short_of_memory(request: Request) -> Any:
        if request.purpose != "summary" and len(request.messages) > 6:
            return ContextTooLong("script", 7, 6)
        return summing(request)

    agent = Agent("a", model=Script(short_of_memory))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(3):
            await session.prompt(f"number {number}")
        with pytest.raises(ContextTooLong):
            await session.prompt("one more")
        await session.trigger_compaction(keep_last=2)
        assert (await runtime.load("s")).status == "failed"
        reply = await runtime.resume("s")
        assert (reply.status, reply.text) == ("done", "you said one more")


async def test_compacting_what_waits_is_done_before_its_next_model_call(place: Place) -> None:
    @tool
    async def doubt(ctx: Context) -> str:
        """Ask."""
        return await ctx.raise_callback("sure?")

    def asks(request: Request) -> Any:
        asked = request.messages[-1].role == "user" and request.messages[-1].text == "ask"
        return call("doubt") if asked and request.purpose != "summary" else summing(request)

    agent = Agent("a", model=Script(asks), tools=[doubt])
    async with Runtime(place.store(), agents=[agent], host=Absent()) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(4):
            await session.prompt(f"number {number}")
        assert (await session.prompt("ask")).status == "waiting"
        await session.trigger_compaction(keep_last=2)
        assert "compacted" not in await types_of(runtime, "s")
        assert await runtime.status("s") == "waiting"
        (callback,) = await runtime.inbox()
        await runtime.answer(callback.id, "yes")
        assert (await runtime.resume("s")).status == "done"
        assert (await types_of(runtime, "s")).count("compacted") == 1


async def test_compacting_while_a_turn_runs_is_refused_and_an_empty_session_has_nothing_to_compact(
    place: Place,
) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Any:
        entered.set()
        await leave.wait()
        return "ok"

    agent = Agent("a", model=Script(slow))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.trigger_compaction()
        assert await types_of(runtime, "s") == ["session_started"]
        turn = asyncio.ensure_future(session.prompt("go"))
        await entered.wait()
        with pytest.raises(SessionBusy):
            await session.trigger_compaction()
        leave.set()
        assert (await turn).text == "ok"


class Absent:
    """A person who leaves every question for later."""

    async def ask(self, callback: Callback) -> None:
        """Nothing now."""

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Nobody was told."""
