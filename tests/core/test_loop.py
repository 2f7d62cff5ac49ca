"""One turn: the order of things, tool calls side by side, and what a model is told when something is wrong."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import upcall
from core.doubles import Asked, Place, log_of, said, turn, types_of
from upcall import (
    Agent,
    Call,
    Context,
    Delta,
    Hooks,
    Message,
    ModelUnavailable,
    Reply,
    Request,
    Response,
    Result,
    Runtime,
    ScriptExhausted,
    SessionAccess,
    SessionTakenOver,
    SyncContext,
    Tool,
    tool,
)
from upcall.errors import SetupError, UnknownSession
from upcall.models import Script, call
from upcall.store.memory import MemoryStore


@tool
async def double(number: int) -> int:
    """Double a number."""
    return number * 2


@tool
async def broken() -> str:
    """Always fails."""
    raise RuntimeError("the disk is on fire")


def last_result(request: Request) -> Result:
    return request.messages[-1].results[0]


# --- the picture ------------------------------------------------------------------------


async def test_the_points_are_passed_in_the_order_of_the_picture() -> None:
    passed: list[str] = []

    def begin_session(session: SessionAccess) -> None:
        passed.append("begin_session")

    def pre_request(session: SessionAccess, message: Message) -> None:
        passed.append("pre_request")

    def before_model(session: SessionAccess, request: Request) -> None:
        passed.append("before_model")

    def model(request: Request) -> Any:
        passed.append("model")
        return "done" if request.messages[-1].results else call("noted")

    def post_response(session: SessionAccess, response: Response) -> None:
        passed.append("post_response")

    def before_tool(session: SessionAccess, call: Call) -> None:
        passed.append("before_tool")

    @tool
    async def noted() -> None:
        """Note it."""
        passed.append("tool")

    def after_tool(session: SessionAccess, call: Call, result: Result) -> None:
        passed.append("after_tool")

    def end_turn(session: SessionAccess, reply: Reply) -> None:
        passed.append("end_turn")

    hooks = Hooks(
        begin_session=[begin_session],
        pre_request=[pre_request],
        before_model=[before_model],
        post_response=[post_response],
        before_tool=[before_tool],
        after_tool=[after_tool],
        end_turn=[end_turn],
    )

    await turn(Agent("a", model=Script(model), tools=[noted], hooks=hooks))

    around_the_model = ["before_model", "model", "post_response"]
    around_the_tool = ["before_tool", "tool", "after_tool"]
    assert passed == [
        "begin_session", "pre_request", *around_the_model, *around_the_tool, *around_the_model, "end_turn",
    ]  # fmt: skip


async def test_begin_session_runs_once_and_pre_request_once_a_turn() -> None:
    passed: list[str] = []
    hooks = Hooks(
        begin_session=[lambda session: passed.append("begin")],
        pre_request=[lambda session, message: passed.append(message.text)],
    )
    agent = Agent("a", model=Script(lambda request: "ok"), hooks=hooks)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("one")
        await (await runtime.load("s")).prompt("two")

    assert passed == ["begin", "one", "two"]


async def test_a_turn_reads_as_a_story_in_its_log(place: Place) -> None:
    agent = Agent("a", model=Script([call("double", number=4), "it is 8"]), tools=[double])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start("a", id="s")
        reply = await session.prompt("double 4")

        assert (reply.text, reply.status, reply.session_id) == ("it is 8", "done", "s")
        assert await types_of(runtime) == [
            "session_started", "turn_started", "model_started", "responded", "tool_started", "tool_ended",
            "model_started", "responded", "turn_ended",
        ]  # fmt: skip


async def test_a_model_reads_agent_purpose_instructions_messages_and_tools() -> None:
    asked = Asked()
    agent = Agent("teller", instructions="Be kind.", model=Script(asked.then(lambda r: "hello")), tools=[double])

    await turn(agent, "hi")

    (request,) = asked.requests
    assert (request.agent, request.purpose, request.instructions) == ("teller", "turn", "Be kind.")
    assert said(request.messages) == ["user: hi"]
    assert [(t.name, t.description) for t in request.tools] == [("double", "Double a number.")]
    assert request.tools[0].schema["properties"]["number"]["type"] == "integer"


async def test_the_next_turn_sees_the_turns_before_it(place: Place) -> None:
    asked = Asked()
    agent = Agent("a", model=Script(asked.then(lambda r: f"reply {len(asked)}")))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("one")
        await session.prompt("two")

    assert said(asked.requests[1].messages) == ["user: one", "assistant: reply 1", "user: two"]


async def test_usage_is_the_whole_turns() -> None:
    usage = upcall.Usage(input_tokens=10, output_tokens=3, cached_tokens=4)
    first = Response(calls=(call("double", number=1),), usage=usage)
    agent = Agent("a", model=Script([first, Response("ok", usage=usage)]), tools=[double])

    reply = await turn(agent)

    assert reply.usage == upcall.Usage(input_tokens=20, output_tokens=6, cached_tokens=8)


async def test_call_ids_are_minted_so_that_a_provider_may_repeat_its_own() -> None:
    again = Response(calls=(Call("call_0", "double", {"number": 1}), Call("call_0", "double", {"number": 2})))
    asked = Asked()
    script = Script(asked.then(lambda r: again if len(asked) < 3 else "ok"))

    await turn(Agent("a", model=script, tools=[double]))

    ids = [c.id for m in asked.requests[-1].messages for c in m.calls]
    assert len(ids) == 4
    assert len(set(ids)) == 4
    assert [r.call_id for m in asked.requests[-1].messages for r in m.results] == ids


# --- tools ------------------------------------------------------------------------------


async def test_parallel_calls_run_at_the_same_time() -> None:
    all_there = asyncio.Barrier(3)

    @tool
    async def meet() -> str:
        """Wait until three are here."""
        async with asyncio.timeout(5):
            await all_there.wait()
        return "met"

    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else [call("meet")] * 3))

    await turn(Agent("a", model=script, tools=[meet]))

    assert [r.text for r in asked.requests[1].messages[-1].results] == ["met", "met", "met"]


async def test_plain_functions_run_in_threads_at_the_same_time_too() -> None:
    both_there = threading.Barrier(2, timeout=5)

    @tool
    def meet() -> str:
        """Wait until two are here."""
        both_there.wait()
        return "met" if threading.current_thread() is not threading.main_thread() else "on the loop"

    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else [call("meet")] * 2))

    await turn(Agent("a", model=script, tools=[meet]))

    assert [r.text for r in asked.requests[1].messages[-1].results] == ["met", "met"]


async def test_an_inline_function_runs_on_the_loop() -> None:
    @tool(inline=True)
    def where() -> str:
        """Tell the thread."""
        return threading.current_thread().name

    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else call("where")))

    await turn(Agent("a", model=script, tools=[where]))

    assert last_result(asked.requests[1]).text == threading.main_thread().name


async def test_the_next_plain_function_runs_in_the_thread_that_has_become_idle() -> None:
    threads: list[threading.Thread] = []

    @tool
    def note() -> None:
        """Note the thread."""
        threads.append(threading.current_thread())

    await turn(Agent("a", model=Script([call("note"), call("note"), "ok"]), tools=[note]))

    assert len(threads) == 2
    assert threads[0] is threads[1]


@pytest.mark.slow
async def test_a_program_ends_although_a_plain_function_that_was_cut_off_still_runs() -> None:
    program = """
import threading, upcall
from upcall.errors import SetupError, UnknownSession
from upcall.models import Script, call
from upcall.store.memory import MemoryStore

@upcall.tool(timeout=0.01)
def stuck() -> None:
    "Never returns."
    threading.Event().wait()

print(upcall.run(upcall.Agent("a", model=Script([call("stuck"), "ok"]), tools=[stuck]), "go").text)
"""
    started = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)

    async with asyncio.timeout(60):
        said, _ = await started.communicate()

    assert said == b"ok\n"
    assert started.returncode == 0


async def test_a_plain_function_that_raises_stop_iteration_has_an_error_result_at_once() -> None:
    @tool
    def first() -> str:
        """Take the first of nothing."""
        return next(iter([]))

    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else call("first")))

    await turn(Agent("a", model=script, tools=[first]))

    result = last_result(asked.requests[1])
    assert result.is_error
    assert "StopIteration" in result.text


async def test_results_are_in_call_order_whatever_the_finish_order(place: Place) -> None:
    finished: list[str] = []
    ends = {name: asyncio.Event() for name in "abc"}
    ends["c"].set()

    @tool
    async def step(name: str, then: str) -> str:
        """Wait for one's turn to end, then let the next one end."""
        await ends[name].wait()
        finished.append(name)
        if then:
            ends[then].set()
        return name.upper()

    asked = Asked()
    calls = [call("step", name="a", then=""), call("step", name="b", then="a"), call("step", name="c", then="b")]
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else calls))
    agent = Agent("a", model=script, tools=[step])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")

        assert finished == ["c", "b", "a"]
        assert [r.text for r in asked.requests[1].messages[-1].results] == ["A", "B", "C"]
        assert (await runtime.load("s")).get_messages() == session.get_messages()


@pytest.mark.parametrize("kind", ["thread", "inline", "async"])
async def test_a_tool_that_leaves_the_program_ends_only_its_own_call(kind: str) -> None:
    def leave() -> None:
        """Leave."""
        raise SystemExit(3)

    async def leave_later() -> None:
        """Leave."""
        raise SystemExit(3)

    made = tool(leave_later, name="leave") if kind == "async" else tool(leave, inline=kind == "inline")
    model = Script([[call("leave"), call("leave")], lambda r: " / ".join(x.text for x in r.messages[-1].results)])
    async with Runtime() as runtime:
        session = await runtime.start(Agent("a", model=model, tools=[made]))
        reply = await session.prompt("go")
    assert reply.text == "leave failed: SystemExit: 3 / leave failed: SystemExit: 3"


async def test_a_tool_that_raises_is_an_error_result_and_the_turn_continues() -> None:
    asked = Asked()
    script = Script(asked.then(lambda r: "sorry" if r.messages[-1].results else call("broken")))

    reply = await turn(Agent("a", model=script, tools=[broken]))

    result = last_result(asked.requests[1])
    assert (reply.text, reply.status) == ("sorry", "done")
    assert result.is_error
    assert "broken" in result.text
    assert "the disk is on fire" in result.text


async def test_one_failing_call_leaves_its_neighbours_results_alone() -> None:
    asked = Asked()
    calls = [call("double", number=1), call("broken"), call("double", number=2)]
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else calls))

    await turn(Agent("a", model=script, tools=[double, broken]))

    results = asked.requests[1].messages[-1].results
    assert [r.is_error for r in results] == [False, True, False]
    assert [results[0].text, results[2].text] == ["2", "4"]


async def test_an_unknown_tool_is_an_error_result_that_names_the_known_ones() -> None:
    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else call("dubble", number=1)))

    await turn(Agent("a", model=script, tools=[double, broken]))

    result = last_result(asked.requests[1])
    assert result.is_error
    assert "dubble" in result.text
    assert "double" in result.text


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({}, "number"),
        ({"number": "many"}, "number"),
        ({"number": 1, "size": 2}, "size"),
        ({"number": 1.5}, "number"),
    ],
)
async def test_wrong_arguments_are_an_error_result_that_names_them(args: dict[str, Any], named: str) -> None:
    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else call("double", **args)))

    await turn(Agent("a", model=script, tools=[double]))

    result = last_result(asked.requests[1])
    assert result.is_error
    assert named in result.text


async def test_arguments_that_were_no_json_object_are_an_error_result_that_shows_them() -> None:
    asked = Asked()
    garbled = Response(calls=(Call("", "double", {}, broken='{"number": '),))
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else garbled))

    await turn(Agent("a", model=script, tools=[double]))

    result = last_result(asked.requests[1])
    assert result.is_error
    assert '{"number": ' in result.text


async def test_no_tool_starts_before_the_response_that_calls_it_is_stored(place: Place) -> None:
    seen: list[str] = []
    runtime: Runtime

    @tool
    async def look() -> str:
        """Look at the log."""
        seen.extend(await types_of(runtime))
        return "ok"

    agent = Agent("a", model=Script([call("look"), "ok"]), tools=[look])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")

    assert seen == ["session_started", "turn_started", "model_started", "responded", "tool_started"]


async def test_a_tool_gets_its_session_and_call_by_annotation() -> None:
    seen: list[str] = []

    @tool
    async def look(ctx: Context) -> None:
        """Look."""
        ctx.set_context("colour", "blue")
        seen.extend([ctx.id, ctx.agent, ctx.call_id, ctx.get_messages()[0].text])

    @tool
    def look_too(ctx: SyncContext) -> str:
        """Look."""
        seen.extend([ctx.id, ctx.agent, ctx.get_context("colour")])
        ctx.set_context("colour", "red")
        return "ok"

    agent = Agent("a", model=Script([call("look"), call("look_too"), "ok"]), tools=[look, look_too])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        call_id = session.get_messages()[1].calls[0].id

        assert seen == ["s", "a", call_id, "go", "s", "a", "blue"]
        assert session.get_context("colour") == "red"


async def test_a_plain_def_tool_has_the_calls_of_an_async_one_without_await() -> None:
    helper = Agent("helper", model=Script(["helped"]))
    seen: list[object] = []

    @tool
    def work(ctx: SyncContext) -> str:
        """Work."""
        seen.extend([ctx.parent, ctx.purpose, ctx.get_messages()[0].text, ctx.get_summary(), ctx.spent().calls])
        seen.extend([ctx.start_child("helper", "help me").text, ctx.prompt("what is it about?")])
        ctx.add_message("user", "and hurry")
        seen.append([m.text for m in ctx.get_history()][:1])
        return "worked"

    def decide(request: Request) -> Any:
        if request.purpose == "side_turn":
            return "about work"
        return request.messages[-1].text if request.messages[-1].text == "and hurry" else call("work")

    agent = Agent("a", model=Script(decide), tools=[work], agents=[helper])
    assert (await turn(agent, "go")).text == "and hurry"
    assert seen == [None, "turn", "go", "", 1, "helped", "about work", ["go"]]


async def test_a_name_that_no_context_has_is_an_error_that_lists_what_there_is() -> None:
    @tool
    def work(ctx: SyncContext) -> str:
        """Work."""
        return str(getattr(ctx, "get_" + "mesages"))

    agent = Agent(
        "a", model=Script([call("work"), lambda request: request.messages[-1].results[0].text]), tools=[work]
    )
    assert "a SyncContext has no 'get_mesages'; it has add_message, agent," in (await turn(agent)).text


@pytest.mark.parametrize("made", [double, double.function])
async def test_tools_may_be_plain_typed_functions(made: Tool | Any) -> None:
    agent = Agent("a", model=Script([call("double", number=2), "ok"]), tools=[made])
    assert (await turn(agent)).text == "ok"


# --- a model that fails -----------------------------------------------------------------


async def test_a_failed_model_fails_the_turn_and_resume_asks_again(place: Place) -> None:
    agent = Agent("a", model=Script([ModelUnavailable("m", "overloaded"), "here I am"]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(ModelUnavailable, match="overloaded"):
            await session.prompt("hello?")
        assert session.status == "failed"

        reply = await runtime.resume("s")

        assert (reply.text, reply.status) == ("here I am", "done")
        assert said((await runtime.load("s")).get_messages()) == ["user: hello?", "assistant: here I am"]


async def test_a_failed_turn_keeps_the_results_it_has(place: Place) -> None:
    ran: list[int] = []

    @tool
    async def once(number: int) -> str:
        """Count."""
        ran.append(number)
        return "counted"

    agent = Agent("a", model=Script([call("once", number=1), ModelUnavailable("m", "gone"), "ok"]), tools=[once])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(ModelUnavailable):
            await session.prompt("go")

        reply = await runtime.resume("s")

        assert reply.text == "ok"
        assert ran == [1]


async def test_a_session_whose_turn_failed_takes_a_new_prompt() -> None:
    asked = Asked()
    answers = iter([ModelUnavailable("m", "gone"), "ok"])
    agent = Agent("a", model=Script(asked.then(lambda r: next(answers))))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        with pytest.raises(ModelUnavailable):
            await session.prompt("one")

        assert (await session.prompt("two")).text == "ok"
        assert said(asked.requests[-1].messages) == ["user: one", "user: two"]


async def test_a_script_that_runs_out_says_so() -> None:
    with pytest.raises(ScriptExhausted, match="no reply left"):
        await turn(Agent("a", model=Script([])))


# --- watching ---------------------------------------------------------------------------


async def test_a_stream_shows_events_and_text_while_it_is_written(place: Place) -> None:
    agent = Agent("a", model=Script([call("double", number=1), "two it is"]), tools=[double])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        items = [item async for item in session.stream("go")]

        deltas = "".join(i.text for i in items if isinstance(i, Delta))
        events = [i for i in items if not isinstance(i, Delta)]
        assert deltas == "two it is"
        assert events == (await log_of(runtime))[1:]
        assert session.reply is not None
        assert session.reply.text == "two it is"


async def test_a_stream_raises_what_failed_the_turn() -> None:
    agent = Agent("a", model=Script([ModelUnavailable("m", "gone")]))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        with pytest.raises(ModelUnavailable):
            _ = [item async for item in session.stream("go")]


async def test_leaving_a_stream_does_not_cancel_its_turn(place: Place) -> None:
    left = asyncio.Event()

    async def slow(request: Request) -> str:
        await left.wait()
        return "finished anyway"

    agent = Agent("a", model=Script([slow]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        stream = session.stream("go")
        await anext(stream)
        await stream.aclose()
        left.set()

        async for event in runtime.events("s", follow=True):
            if event.type == "turn_ended":
                break
        assert said((await runtime.load("s")).get_messages()) == ["user: go", "assistant: finished anyway"]


# --- what others see of a log in memory ------------------------------------------------------


async def test_a_tool_that_reads_its_own_log_finds_its_own_start() -> None:
    seen: list[str] = []

    @tool
    async def look() -> str:
        """Look."""
        seen.extend([event.type async for event in runtime.events("s")])
        return "seen"

    agent = Agent("a", model=Script([call("look"), "ok"]), tools=[look])
    async with Runtime(agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        assert seen == ["session_started", "turn_started", "model_started", "responded", "tool_started"]
        assert [event.seq async for event in runtime.events("s")] == list(range(1, 10))


async def test_while_a_model_thinks_others_see_since_when() -> None:
    now, asked = [100.0], asyncio.Event()

    async def think(request: Request) -> str:
        asked.set()
        await go_on.wait()
        return "ok"

    go_on = asyncio.Event()
    agent = Agent("a", model=Script(think))
    async with Runtime(MemoryStore(lambda: now[0]), agents=[agent]) as runtime:
        running = asyncio.create_task((await runtime.start(agent, "s")).prompt("go"))
        await asked.wait()
        assert await runtime.status("s") == "running"
        now[0] = 160.0
        go_on.set()
        await running
        times = {event.type: event.time async for event in runtime.events("s")}
        assert (times["model_started"], times["responded"]) == (100.0, 160.0)


async def test_events_of_parent_and_child_stand_in_the_order_in_which_they_happened() -> None:
    child = Agent("child", model=Script(lambda r: "done"))
    task = call("task", agent="child", prompt="do")
    agent = Agent("a", model=Script([[task, task], "ok"]), agents=[child])
    async with Runtime(agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        order = [(event.session.rpartition("~")[2], event.type) async for event in runtime.events()]
        for number in (0, 1):
            name = f"r1c{number}"
            mine = [i for i, (session, _) in enumerate(order) if session == name]
            started = [i for i, (s, t) in enumerate(order) if (s, t) == ("s", "tool_started")][number]
            ended = [i for i, (s, t) in enumerate(order) if (s, t) == ("s", "tool_ended")][number]
            assert started < mine[0] <= mine[-1] < ended


async def test_the_events_of_a_session_and_all_below_it_are_read_and_followed_by_position() -> None:
    child = Agent("child", model=Script(lambda r: "done"))
    agent = Agent("a", model=Script([call("task", agent="child", prompt="do"), "ok"]), agents=[child])
    async with Runtime(agents=[agent, Agent("b", model=Script(["ok"]))]) as runtime:
        await (await runtime.start("b", "other")).prompt("go")
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("go"))
        followed: list[int] = []
        async for event in runtime.events(tree="s", follow=True):
            followed.append(event.pos)
            if event.session == "s" and event.type == "turn_ended":
                break
        await running
        every = [event async for event in runtime.events() if event.session != "other"]
        assert [event async for event in runtime.events(tree="s")] == every
        assert followed == [event.pos for event in every]
        assert [event async for event in runtime.events(after=every[2].pos, tree="s")] == every[3:]
        with pytest.raises(UnknownSession):
            await anext(runtime.events(tree="nobody"))
        with pytest.raises(SetupError, match="not both"):
            await anext(runtime.events("s", tree="s"))
        assert [row.id for row in await runtime.rows(parent="", before="s")] == ["other"]
        with pytest.raises(UnknownSession):
            await runtime.rows(before="nobody")


async def test_a_turn_that_was_taken_over_and_continues_harms_nobody_else() -> None:
    started, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Does not stop when it is told to."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await go_on.wait()
        ended.set()
        return "done"

    other = Agent("b", model=Script(lambda r: "ok"))
    agent = Agent("a", model=Script([[call("stubborn"), call("stubborn")]]), tools=[stubborn])
    async with Runtime(agents=[agent, other]) as runtime:
        first = asyncio.create_task((await runtime.start(agent, "s")).prompt("go"))
        await started.wait()
        claim = await runtime.store.claim("s", take_over=True)
        go_on.set()
        await ended.wait()
        reply = await (await runtime.start(other)).prompt("go")
        assert reply.text == "ok"
        with pytest.raises(SessionTakenOver):
            await first
        await runtime.store.release(claim)
        assert "tool_ended" not in await types_of(runtime)


async def test_lone_surrogates_in_a_response_are_replaced_and_the_turn_is_stored(tmp_path: Path) -> None:
    @tool
    async def echo(text: str) -> str:
        """Repeat a text."""
        return text

    lone = chr(0xD800)
    replies = [[call("echo", text=f"a{lone}"), call(f"e{lone}", deep={lone: [lone]})], f"done{lone}"]
    agent = Agent("a", model=Script(replies), tools=[echo])
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")
        messages = (await runtime.load("s")).get_messages()

    assert reply.text == "done\ufffd"
    assert messages[1].calls[0].args == {"text": "a\ufffd"}
