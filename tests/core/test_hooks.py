"""Hooks as values and at their points: what is refused, in which order they run, what ends a chain."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from core.doubles import Asked, Place, log_of, said, turn, types_of
from upcall import (
    Agent,
    Answer,
    BadHook,
    Call,
    Callback,
    ContextTooLong,
    HookFailed,
    Hooks,
    Kit,
    Message,
    ModelUnavailable,
    Reply,
    Request,
    Response,
    Result,
    Runtime,
    SessionAccess,
    inherited,
    tool,
)
from upcall.events import HooksPassed, ToolEnded
from upcall.hooks import POINTS
from upcall.messages import user
from upcall.models import Script, call


@tool
async def echo(word: str) -> str:
    """Say it back."""
    return word


def nothing(*passing: Any) -> None:
    """Has no opinion."""


# --- values -----------------------------------------------------------------------------


def test_there_are_nine_points_and_each_is_a_tuple() -> None:
    hooks = Hooks(**{point: [nothing] for point in POINTS})  # pyright: ignore[reportArgumentType]
    assert len(POINTS) == 9
    assert all(getattr(hooks, point) == (nothing,) for point in POINTS)
    assert all(getattr(Hooks(), point) == () for point in POINTS)


def test_hooks_are_never_changed() -> None:
    hooks = Hooks(end_turn=[nothing])
    with pytest.raises(AttributeError):
        hooks.end_turn = ()  # pyright: ignore[reportAttributeAccessIssue]


def test_changing_the_list_that_was_given_changes_no_hooks() -> None:
    given = [nothing]
    hooks = Hooks(end_turn=given)
    given.append(nothing)
    assert hooks.end_turn == (nothing,)


def test_adding_gives_a_new_value_and_leaves_the_old_one() -> None:
    def first(session: SessionAccess, reply: Reply) -> None: ...
    def second(session: SessionAccess, reply: Reply) -> None: ...

    base = Hooks(end_turn=[first])
    more = base.adding(end_turn=[second], before_tool=[nothing])

    assert base.end_turn == (first,)
    assert base.before_tool == ()
    assert more.end_turn == (first, second)
    assert more.before_tool == (nothing,)


def test_a_sum_has_the_left_ones_first_at_every_point() -> None:
    left, right = Hooks(end_turn=[nothing], pre_request=[nothing]), Hooks(end_turn=[print])
    assert (left + right).end_turn == (nothing, print)
    assert (right + left).end_turn == (print, nothing)
    assert (left + right).pre_request == (nothing,)
    assert left + Hooks() == Hooks() + left == left


async def test_agents_derived_from_one_base_share_no_hooks() -> None:
    said_by: list[str] = []
    base = Hooks(end_turn=[lambda session, reply: said_by.append("base")])

    def mine(name: str) -> Any:
        def hook(session: SessionAccess, reply: Reply) -> None:
            said_by.append(name)

        return hook

    agents = [Agent(n, model=Script(["ok"]), hooks=base.adding(end_turn=[mine(n)])) for n in ("a", "b", "c")]
    for agent in agents:
        await turn(agent)

    assert said_by == ["base", "a", "base", "b", "base", "c"]


@pytest.mark.parametrize("make", [Hooks, Hooks().adding])
def test_a_misspelt_point_names_the_nearest_one_and_all_nine(make: Any) -> None:
    with pytest.raises(
        BadHook, match=r"^after_tol is not a hook point; did you mean after_tool\? The hook points are: begin"
    ):
        make(after_tol=[nothing])


@pytest.mark.parametrize("names", ["session, result, call", "call, session, result", "result, call, session"])
def test_arguments_in_another_order_are_refused_with_the_right_one(names: str) -> None:
    swapped = eval(f"lambda {names}: None")
    with pytest.raises(BadHook, match=r"has the parameters \(.*\); declare it as def .*\(session, call, result\)"):
        Hooks(after_tool=[swapped])


def test_arguments_may_have_names_of_their_own() -> None:
    def redact(access: Any, made: Any, result: Any, *, words: Any = ()) -> None: ...
    def words_of(_: Any, reply: Any, *more: Any) -> None: ...

    assert Hooks(after_tool=[redact], end_turn=[words_of]).after_tool == (redact,)


def takes_nothing() -> None: ...


def takes_four(one: Any, two: Any, three: Any, four: Any) -> None: ...


@pytest.mark.parametrize("point", POINTS)
def test_a_wrong_signature_is_refused_at_once_with_the_right_one(point: str) -> None:
    right = ", ".join(POINTS[point])
    for wrong in (takes_nothing, takes_four, inherited(takes_nothing)):
        with pytest.raises(BadHook, match=rf"{point}.*\({right}\)"):
            Hooks(**{point: [wrong]})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", [nothing, "guard", [3], [None]])
def test_what_is_no_list_of_functions_is_refused(wrong: Any) -> None:
    with pytest.raises(BadHook, match="before_tool"):
        Hooks(before_tool=wrong)


def test_a_point_that_is_none_is_refused_with_the_names_of_the_nine() -> None:
    with pytest.raises(BadHook, match="begin_session, pre_request"):
        Hooks().adding(after_lunch=[nothing])


def test_a_callable_object_and_a_method_are_hooks_too() -> None:
    class Guard:
        def __call__(self, session: SessionAccess, call: Call) -> None: ...
        async def check(self, session: SessionAccess, call: Call) -> None: ...

    guard = Guard()
    assert Hooks(before_tool=[guard, guard.check]).before_tool == (guard, guard.check)


def test_on_callback_is_there_and_checked() -> None:
    async def faq(session: SessionAccess, callback: Callback) -> Answer | None:
        return None

    assert Hooks(on_callback=[faq]).on_callback == (faq,)


async def test_the_kits_hooks_come_before_the_users() -> None:
    order: list[str] = []
    kit = Kit(Hooks(pre_request=[lambda session, message: order.append("kit")]), tools=[echo])
    hooks = Hooks(pre_request=[lambda session, message: order.append("mine")])
    agent = Agent("a", model=Script([call("echo", word="hi"), "ok"]), kit=[kit], hooks=hooks)

    assert (await turn(agent)).text == "ok"
    assert order == ["kit", "mine"]


# --- the chain at each point ------------------------------------------------------------


async def test_pre_request_replaces_the_message_for_the_next_hook_and_the_model(place: Place) -> None:
    asked, seen = Asked(), list[str]()

    def adds(word: str) -> Any:
        def hook(session: SessionAccess, message: Message) -> str:
            seen.append(message.text)
            return f"{message.text} {word}"

        return hook

    hooks = Hooks(pre_request=[adds("one"), nothing, adds("two")])
    agent = Agent("a", model=Script(asked.then(lambda r: "ok")), hooks=hooks)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("zero")

        assert seen == ["zero", "zero one"]
        assert said(asked.requests[0].messages) == ["user: zero one two"]
        assert (await runtime.load("s")).get_messages() == session.get_messages()


async def test_pre_request_may_return_a_message() -> None:
    asked = Asked()
    hooks = Hooks(pre_request=[lambda session, message: user("another")])
    await turn(Agent("a", model=Script(asked.then(lambda r: "ok")), hooks=hooks))
    assert said(asked.requests[0].messages) == ["user: another"]


async def test_before_model_hands_a_changed_request_to_the_next_hook_and_the_model() -> None:
    asked, seen = Asked(), list[str]()

    def adds(session: SessionAccess, request: Request) -> Request:
        seen.append(request.instructions)
        return request.replace(instructions=request.instructions + "+")

    hooks = Hooks(before_model=[adds, nothing, adds])
    reply = await turn(Agent("a", instructions="be", model=Script(asked.then(lambda r: "ok")), hooks=hooks))

    assert reply.text == "ok"
    assert seen == ["be", "be+"]
    assert asked.requests[0].instructions == "be++"


async def test_before_model_changes_one_request_and_not_the_conversation() -> None:
    asked = Asked()

    def forgets(session: SessionAccess, request: Request) -> Request:
        return request.replace(messages=[user("only this")])

    agent = Agent("a", model=Script(asked.then(lambda r: "ok")), hooks=Hooks(before_model=[forgets]))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")

        assert said(asked.requests[0].messages) == ["user: only this"]
        assert said(session.get_messages()) == ["user: go", "assistant: ok"]


async def test_a_request_that_a_hook_cut_apart_is_settled_before_the_model_reads_it() -> None:
    asked = Asked()

    def drops_results(session: SessionAccess, request: Request) -> Request:
        return request.replace(messages=[m for m in request.messages if m.role != "tool"])

    script = Script(asked.then(lambda r: "ok" if len(asked) > 1 else call("echo", word="hi")))
    await turn(Agent("a", model=script, tools=[echo], hooks=Hooks(before_model=[drops_results])))

    calling, results = asked.requests[1].messages[1:]
    assert results.results[0].call_id == calling.calls[0].id
    assert "cancelled" in results.results[0].text


@pytest.mark.parametrize("answer", [Response("from the hook"), "from the hook"])
async def test_before_model_with_a_response_ends_the_chain_and_asks_no_model(answer: Response | str) -> None:
    later: list[int] = []
    hooks = Hooks(
        before_model=[lambda session, request: answer, lambda session, request: later.append(1)],
        post_response=[lambda session, response: response.text + "!"],
    )
    reply = await turn(Agent("a", model=Script([]), hooks=hooks))

    assert reply.text == "from the hook!"
    assert later == []


async def test_before_models_response_may_call_tools() -> None:
    def calls_first(session: SessionAccess, request: Request) -> Response | None:
        return None if request.messages[-1].results else Response(calls=(call("echo", word="hi"),))

    script = Script(lambda r: f"got {r.messages[-1].results[0].text}")
    reply = await turn(Agent("a", model=script, tools=[echo], hooks=Hooks(before_model=[calls_first])))
    assert reply.text == "got hi"


async def test_model_failed_with_a_changed_request_asks_again() -> None:
    asked, errors = Asked(), list[Exception]()

    def shorter(session: SessionAccess, request: Request, error: Exception) -> Request:
        errors.append(error)
        return request.replace(instructions="shorter")

    fails = asked.then(lambda r: ContextTooLong("m", 9, 8) if r.instructions == "" else "ok")
    reply = await turn(Agent("a", model=Script(fails), hooks=Hooks(model_failed=[nothing, shorter])))

    assert reply.text == "ok"
    assert [r.instructions for r in asked.requests] == ["", "shorter"]
    assert [type(e) for e in errors] == [ContextTooLong]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_request_from_a_model_failed_hook_reaches_the_next_hook(waits: bool) -> None:
    asked, seen = Asked(), list[str]()

    def adding(text: str) -> Any:
        def hook(session: SessionAccess, request: Request, error: Exception) -> Request:
            seen.append(request.instructions)
            return request.replace(instructions=f"{request.instructions}{text}")

        async def later(session: SessionAccess, request: Request, error: Exception) -> Request:
            return hook(session, request, error)

        return later if waits else hook

    fails = asked.then(lambda r: ModelUnavailable("m", "gone") if r.instructions == "0" else "ok")
    hooks = Hooks(model_failed=[adding("1"), nothing, adding("2")])
    reply = await turn(Agent("a", instructions="0", model=Script(fails), hooks=hooks))

    assert (reply.text, seen) == ("ok", ["0", "01"])
    assert [r.instructions for r in asked.requests] == ["0", "012"]


async def test_a_response_from_a_later_model_failed_hook_is_used_over_an_earlier_request() -> None:
    asked = Asked()
    hooks = Hooks(
        model_failed=[lambda session, request, error: request, lambda session, request, error: Response("sorry")]
    )
    reply = await turn(Agent("a", model=Script(asked.then(lambda r: ModelUnavailable("m", "gone"))), hooks=hooks))
    assert (reply.text, len(asked)) == ("sorry", 1)


async def test_a_conversation_that_one_hook_shortened_is_sent_with_what_the_next_one_changed() -> None:
    asked = Asked()

    def shorter(session: SessionAccess, request: Request, error: Exception) -> Request:
        session.compact_messages(keep_last=1)
        return request

    def briefer(session: SessionAccess, request: Request, error: Exception) -> Request:
        return request.replace(instructions="Be brief.")

    fails = asked.then(lambda r: ContextTooLong("m", 9, 8) if len(r.messages) > 3 else "ok")
    agent = Agent("a", model=Script(fails), hooks=Hooks(model_failed=[shorter, briefer]))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start("a")
        texts = [(await session.prompt(text)).text for text in ("one", "two", "three")]

    assert texts == ["ok"] * 3
    assert [(len(r.messages), r.instructions) for r in asked.requests] == [
        (1, ""), (3, ""), (5, ""), (2, "Be brief."),
    ]  # fmt: skip


async def test_model_failed_asks_again_a_few_times_at_most() -> None:
    asked = Asked()
    agent = Agent(
        "a",
        model=Script(asked.then(lambda r: ModelUnavailable("m", "gone"))),
        hooks=Hooks(model_failed=[lambda session, request, error: request]),
    )
    with pytest.raises(ModelUnavailable):
        await turn(agent)
    assert 2 <= len(asked) <= 6


@pytest.mark.parametrize("answer", [Response("sorry"), "sorry"])
async def test_model_failed_with_a_response_uses_it_and_ends_the_chain(answer: Response | str) -> None:
    later: list[int] = []
    hooks = Hooks(
        model_failed=[lambda session, request, error: answer, lambda session, request, error: later.append(1)]
    )
    reply = await turn(Agent("a", model=Script([ModelUnavailable("m", "gone")]), hooks=hooks))
    assert (reply.text, reply.status) == ("sorry", "done")
    assert later == []


async def test_model_failed_with_none_fails_the_turn_with_the_models_error() -> None:
    agent = Agent("a", model=Script([ModelUnavailable("m", "gone")]), hooks=Hooks(model_failed=[nothing]))
    with pytest.raises(ModelUnavailable, match="gone"):
        await turn(agent)


async def test_model_failed_is_told_of_any_error_that_a_model_raises() -> None:
    errors: list[str] = []

    def saved(session: SessionAccess, request: Request, error: Exception) -> str:
        errors.append(str(error))
        return "sorry"

    reply = await turn(Agent("a", model=Script([RuntimeError("gone")]), hooks=Hooks(model_failed=[saved])))
    assert (reply.text, errors) == ("sorry", ["gone"])


async def test_a_failed_summary_changes_nothing_whatever_the_model_raised() -> None:
    async def compacts(session: SessionAccess, message: Message) -> None:
        await session.trigger_compaction(keep_last=1)

    script = Script(lambda r: RuntimeError("gone") if r.purpose == "summary" else "ok")
    assert (await turn(Agent("a", model=script, hooks=Hooks(pre_request=[compacts])))).text == "ok"


BROKEN: list[tuple[str, Any]] = [
    ("pre_request", Message("user", 5)),  # pyright: ignore[reportArgumentType]
    ("before_model", Response(5)),  # pyright: ignore[reportArgumentType]
    ("post_response", Response("x", calls=[Call("", "echo", "word")])),  # pyright: ignore[reportArgumentType]
    ("before_tool", Call("", "echo", {"word": object()})),
    ("after_tool", Result("", None)),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize(("point", "broken"), BROKEN, ids=[point for point, _ in BROKEN])
async def test_what_the_log_could_not_read_again_is_refused_by_the_hooks_name(
    point: str, broken: Any, place: Place
) -> None:
    def returns(*passing: Any) -> Any:
        return broken

    hooks = Hooks(**{point: [returns]})
    agent = Agent("a", model=Script([call("echo", word="hi"), "ok"]), tools=[echo], hooks=hooks)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        with pytest.raises(HookFailed, match=point):
            await (await runtime.start(agent, "s")).prompt("go")
    async with Runtime(place.store(), agents=[agent]) as runtime:
        assert (await runtime.load("s")).get_messages()[0].text == "go"


async def test_a_request_may_hold_messages_made_of_plain_text() -> None:
    def more(session: SessionAccess, request: Request) -> Request:
        return request.replace(messages=[*request.messages, Message("user", "more")])  # pyright: ignore[reportArgumentType]

    agent = Agent("a", model=Script(lambda r: r.messages[-1].text), hooks=Hooks(before_model=[more]))
    assert (await turn(agent)).text == "more"


async def test_a_messages_text_can_be_replaced() -> None:
    def louder(session: SessionAccess, message: Message) -> Message:
        return message.replace(text=message.text.upper())

    agent = Agent("a", model=Script(lambda r: r.messages[-1].text), hooks=Hooks(pre_request=[louder]))
    assert (await turn(agent, "go")).text == "GO"


async def test_post_response_replaces_the_response_before_its_calls_are_looked_at() -> None:
    ran: list[str] = []

    @tool
    async def danger() -> None:
        """Run."""
        ran.append("danger")

    def no_calls(session: SessionAccess, response: Response) -> Response:
        return response.replace(calls=(), text="I would rather not")

    hooks = Hooks(post_response=[no_calls, lambda session, response: response.text + "."])
    reply = await turn(Agent("a", model=Script([call("danger")]), tools=[danger], hooks=hooks))

    assert reply.text == "I would rather not."
    assert ran == []


async def test_post_response_runs_after_every_response() -> None:
    seen: list[str] = []
    hooks = Hooks(post_response=[lambda session, response: seen.append(response.text)])
    script = Script([["first", call("echo", word="hi")], "second"])
    await turn(Agent("a", model=script, tools=[echo], hooks=hooks))
    assert seen == ["first", "second"]


async def test_before_tool_hands_a_changed_call_to_the_next_hook_and_the_tool() -> None:
    seen: list[str] = []
    asked = Asked()

    def louder(session: SessionAccess, call: Call) -> Call:
        seen.append(call.args["word"])
        return call.replace(args={"word": call.args["word"] + "!"})

    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else call("echo", word="hi")))
    await turn(Agent("a", model=script, tools=[echo], hooks=Hooks(before_tool=[louder, nothing, louder])))

    assert seen == ["hi", "hi!"]
    assert asked.requests[1].messages[-1].results[0].text == "hi!!"


async def test_before_tool_may_send_the_call_to_another_tool() -> None:
    @tool
    async def safer(word: str) -> str:
        """Say it safely."""
        return f"safely {word}"

    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else call("echo", word="hi")))
    hooks = Hooks(before_tool=[lambda session, call: call.replace(name="safer")])
    await turn(Agent("a", model=script, tools=[echo, safer], hooks=hooks))

    assert asked.requests[1].messages[-1].results[0].text == "safely hi"


async def test_before_tool_with_a_result_ends_the_chain_and_the_tool_does_not_run(place: Place) -> None:
    ran: list[str] = []

    @tool
    async def danger() -> None:
        """Run."""
        ran.append("danger")

    def denies(session: SessionAccess, call: Call) -> Result:
        return Result(call.id, "not allowed", is_error=True)

    hooks = Hooks(before_tool=[denies, lambda session, call: ran.append("later")])
    agent = Agent("a", model=Script([call("danger"), "ok"]), tools=[danger], hooks=hooks)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")

        result = session.get_messages()[-2].results[0]
        assert (result.text, result.is_error) == ("not allowed", True)
        assert ran == []
        assert "tool_started" not in await types_of(runtime)


@pytest.mark.parametrize("wrong", ["a string", Response("no"), 3])
async def test_before_tool_needs_a_real_call_or_result(wrong: Any) -> None:
    ran: list[str] = []

    @tool
    async def danger() -> None:
        """Run."""
        ran.append("danger")

    def guard(session: SessionAccess, call: Call) -> Any:
        return wrong

    with pytest.raises(HookFailed, match=r"guard at before_tool.*Call, a Result"):
        await turn(Agent("a", model=Script([call("danger")]), tools=[danger], hooks=Hooks(before_tool=[guard])))
    assert ran == []


async def test_after_tool_sees_failures_too_and_replaces_the_result_for_the_next_hook() -> None:
    seen: list[tuple[str, bool]] = []
    asked = Asked()

    def sees(session: SessionAccess, call: Call, result: Result) -> str:
        seen.append((result.text, result.is_error))
        return f"{call.name}: {result.text[:4]}"

    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else [call("echo", word="hi"), call("no")]))
    await turn(Agent("a", model=script, tools=[echo], hooks=Hooks(after_tool=[sees, sees])))

    results = asked.requests[1].messages[-1].results
    assert results[0].text == "echo: echo"
    assert [r.is_error for r in results] == [False, True]
    assert ("hi", False) in seen
    assert ("echo: hi", False) in seen
    assert len([s for s in seen if s[1]]) == 2


async def test_after_tool_may_return_a_result() -> None:
    asked = Asked()
    hooks = Hooks(after_tool=[lambda session, call, result: Result("whatever", "hidden", is_error=True)])
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else call("echo", word="hi")))
    await turn(Agent("a", model=script, tools=[echo], hooks=hooks))

    calling, results = asked.requests[1].messages[1:]
    assert results.results == (Result(calling.calls[0].id, "hidden", is_error=True),)


async def test_the_result_is_stored_before_after_tool_and_the_replaced_body_is_dropped(place: Place) -> None:
    runtime: Runtime
    stored: list[str] = []

    async def looks(session: SessionAccess, call: Call, result: Result) -> str:
        stored.extend(e.result.text for e in await log_of(runtime) if isinstance(e, ToolEnded))
        return "short"

    script = Script([call("echo", word="long and secret"), "ok"])
    agent = Agent("a", model=script, tools=[echo], hooks=Hooks(after_tool=[looks]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")

        assert stored == ["long and secret"]
        ended = [e for e in await log_of(runtime) if isinstance(e, ToolEnded)]
        passed = [e for e in await log_of(runtime) if isinstance(e, HooksPassed) and e.point == "after_tool"]
        assert [(e.result.text, e.dropped) for e in ended] == [("", True)]
        assert passed[0].result is not None
        assert passed[0].result.text == "short"
        assert said((await runtime.load("s")).get_messages())[2] == "= short"


async def test_end_turn_runs_when_the_reply_is_stored_and_replaces_what_the_caller_gets(place: Place) -> None:
    runtime: Runtime
    seen: list[str] = []

    async def first(session: SessionAccess, reply: Reply) -> str:
        seen.extend(await types_of(runtime))
        return reply.text + " one"

    def second(session: SessionAccess, reply: Reply) -> Reply:
        return reply.replace(text=reply.text + " two")

    agent = Agent("a", model=Script(["zero"]), hooks=Hooks(end_turn=[first, nothing, second]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        reply = await session.prompt("go")

        assert reply.text == "zero one two"
        assert (await runtime.resume("s")).text == "zero one two"
        assert seen[-1] == "responded"
        assert "turn_ended" not in seen
        assert said(session.get_messages()) == ["user: go", "assistant: zero"]


async def test_each_end_turn_hook_is_logged_and_a_resumed_turn_continues_with_the_first_incomplete(
    place: Place,
) -> None:
    runs: list[str] = []

    def one(session: SessionAccess, reply: Reply) -> str:
        runs.append("one")
        return reply.text + " one"

    def two(session: SessionAccess, reply: Reply) -> str:
        runs.append("two")
        if runs.count("two") == 1:
            raise OSError("the printer is out of paper")
        return reply.text + " two"

    agent = Agent("a", model=Script(["zero"]), hooks=Hooks(end_turn=[one, two]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(HookFailed, match="two at end_turn"):
            await session.prompt("go")
        assert session.status == "failed"

        reply = await runtime.resume("s")

        assert (reply.text, reply.status) == ("zero one two", "done")
        assert runs == ["one", "two", "two"]


async def test_end_turn_does_not_run_when_the_turn_fails() -> None:
    ran: list[int] = []
    hooks = Hooks(end_turn=[lambda session, reply: ran.append(1)])
    with pytest.raises(ModelUnavailable):
        await turn(Agent("a", model=Script([ModelUnavailable("m", "gone")]), hooks=hooks))
    assert ran == []


# --- hooks that raise -------------------------------------------------------------------

AT_ONCE = [p for p in POINTS if p not in ("on_callback", "model_failed")]


@pytest.mark.parametrize("point", AT_ONCE)
async def test_a_hook_that_raises_fails_with_hook_failed_naming_the_hook_and_the_point(point: str) -> None:
    def clumsy(*passing: Any) -> None:
        raise KeyError("oops")

    hooks = Hooks(**{point: [clumsy]})  # pyright: ignore[reportArgumentType]
    agent = Agent("a", model=Script([call("echo", word="hi"), "ok"]), tools=[echo], hooks=hooks)
    with pytest.raises(HookFailed, match=f"clumsy at {point} raised KeyError") as caught:
        await turn(agent)
    assert caught.value.point == point
    assert "clumsy" in caught.value.hook
    assert isinstance(caught.value.error, KeyError)
    assert "is kept;" not in str(caught.value)  # this one was in memory


async def test_a_model_failed_hook_that_raises_is_hook_failed_too() -> None:
    def clumsy(session: SessionAccess, request: Request, error: Exception) -> None:
        raise KeyError("oops")

    with pytest.raises(HookFailed, match="clumsy at model_failed"):
        await turn(Agent("a", model=Script([ModelUnavailable("m", "gone")]), hooks=Hooks(model_failed=[clumsy])))


@pytest.mark.parametrize("point", ["pre_request", "before_model", "post_response", "after_tool", "end_turn"])
async def test_a_wrong_return_is_hook_failed_that_says_what_the_point_takes(point: str) -> None:
    def wrong(*passing: Any) -> Any:
        return 3

    hooks = Hooks(**{point: [wrong]})  # pyright: ignore[reportArgumentType]
    agent = Agent("a", model=Script([call("echo", word="hi"), "ok"]), tools=[echo], hooks=hooks)
    with pytest.raises(HookFailed, match=f"wrong at {point}.*returned int"):
        await turn(agent)


async def test_begin_session_that_raises_stores_no_session(place: Place) -> None:
    def clumsy(session: SessionAccess) -> None:
        session.set_context("half", "done")
        raise KeyError("oops")

    agent = Agent("a", model=Script(["ok"]), hooks=Hooks(begin_session=[clumsy]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        with pytest.raises(
            HookFailed, match=r"KeyError: 'oops'\. Fix the hook; no session was started\.$"
        ) as failed:
            await runtime.start(agent, "s")
        assert (failed.value.stored, await runtime.rows()) == (False, [])


async def test_begin_session_of_a_child_that_raises_names_no_session_that_is_not_there(place: Place) -> None:
    def clumsy(session: SessionAccess) -> None:
        raise KeyError("oops")

    child = Agent("child", model=Script(["ok"]), hooks=Hooks(begin_session=[clumsy]))
    first = call("task", agent="child", prompt="go")
    agent = Agent("a", model=Script([first, lambda r: r.messages[-1].results[0].text]), agents=[child])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")
        assert [row.id for row in await runtime.rows()] == ["s"]

    assert reply.text.startswith("task failed: child could not be started: HookFailed: hook ")
    assert reply.text.endswith("Fix the hook; no session was started.")


async def test_begin_session_that_raises_after_it_prompted_stores_no_session(place: Place) -> None:
    async def clumsy(session: SessionAccess) -> None:
        await session.prompt("who am I?")
        raise KeyError("oops")

    agent = Agent("a", model=Script(["nobody"]), hooks=Hooks(begin_session=[clumsy]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        with pytest.raises(HookFailed, match="Fix the hook; no session was started"):
            await runtime.start(agent, "s")
        assert await runtime.rows() == []


async def test_a_before_tool_that_raises_never_lets_the_tool_run_and_resume_repeats_the_step(place: Place) -> None:
    ran: list[str] = []
    broken = [True]

    @tool
    async def pay(who: str) -> str:
        """Pay."""
        ran.append(who)
        return "paid"

    def guard(session: SessionAccess, call: Call) -> None:
        if broken and call.args["who"] == "bob":
            broken.clear()
            raise ConnectionError("the guard is away")

    calls = [call("pay", who="ann"), call("pay", who="bob")]
    agent = Agent("a", model=Script([calls, "ok"]), tools=[pay], hooks=Hooks(before_tool=[guard]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(HookFailed, match="guard at before_tool"):
            await session.prompt("go")
        assert ran == ["ann"]

        reply = await runtime.resume("s")

        assert reply.text == "ok"
        assert ran == ["ann", "bob"]


async def test_an_after_tool_that_raised_runs_again_and_the_tool_does_not(place: Place) -> None:
    ran: list[str] = []

    @tool
    async def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    def notes(session: SessionAccess, call: Call, result: Result) -> str:
        ran.append(result.text)
        if ran.count("paid") == 1:
            raise ConnectionError("no")
        return "noted"

    agent = Agent("a", model=Script([call("pay"), "ok"]), tools=[pay], hooks=Hooks(after_tool=[notes]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(HookFailed):
            await session.prompt("go")
        await runtime.resume("s")

        assert ran == ["pay", "paid", "paid"]
        assert said((await runtime.load("s")).get_messages())[2] == "= noted"


# --- how they are called ----------------------------------------------------------------


@pytest.mark.parametrize("point", AT_ONCE)
async def test_sync_and_async_hooks_run_on_the_loops_own_thread(point: str) -> None:
    threads: list[threading.Thread] = []

    def plain(*passing: Any) -> None:
        threads.append(threading.current_thread())

    async def other(*passing: Any) -> None:
        threads.append(threading.current_thread())

    hooks = Hooks(**{point: [plain, other]})  # pyright: ignore[reportArgumentType]
    await turn(Agent("a", model=Script([call("echo", word="hi"), "ok"]), tools=[echo], hooks=hooks))

    assert len(threads) >= 2
    assert set(threads) == {threading.main_thread()}


async def test_hooks_that_are_not_there_leave_no_trace_in_the_log() -> None:
    agent = Agent("a", model=Script([call("echo", word="hi"), "ok"]), tools=[echo])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        assert "hooks_passed" not in await types_of(runtime)


# --- children ---------------------------------------------------------------------------


async def test_children_run_their_own_hooks_and_the_inherited_ones_first() -> None:
    order: list[str] = []

    def note(name: str) -> Any:
        def hook(session: SessionAccess, request: Request) -> None:
            order.append(f"{name} in {session.agent}")

        return hook

    grandchild = Agent("c", model=Script(lambda r: "c"), hooks=Hooks(before_model=[note("own")]))

    async def delegates(session: SessionAccess, message: Message) -> None:
        await session.start_child({"a": "b", "b": "c"}[session.agent], "go")

    child = Agent("b", model=Script(lambda r: "b"), hooks=Hooks(pre_request=[delegates]), agents=[grandchild])
    hooks = Hooks(pre_request=[delegates], before_model=[inherited(note("guard")), note("private")])
    await turn(Agent("a", model=Script(lambda r: "a"), hooks=hooks, agents=[child]))

    assert order == ["guard in c", "own in c", "guard in b", "guard in a", "private in a"]


async def test_a_hook_that_is_inherited_and_own_runs_once() -> None:
    runs: list[str] = []

    @inherited
    def guard(session: SessionAccess, request: Request) -> None:
        runs.append(session.agent)

    child = Agent("b", model=Script(lambda r: "b"), hooks=Hooks(before_model=[guard]))

    async def delegates(session: SessionAccess, message: Message) -> None:
        await session.start_child("b", "go")

    hooks = Hooks(pre_request=[delegates], before_model=[guard])
    await turn(Agent("a", model=Script(lambda r: "a"), hooks=hooks, agents=[child]))
    assert runs == ["b", "a"]


async def test_a_child_can_not_escape_an_inherited_before_tool() -> None:
    ran: list[str] = []

    @tool
    async def danger() -> None:
        """Run."""
        ran.append("danger")

    @inherited
    def denies(session: SessionAccess, call: Call) -> Result:
        return Result(call.id, "no", is_error=True)

    child = Agent("b", model=Script([call("danger"), "b"]), tools=[danger])

    async def delegates(session: SessionAccess, message: Message) -> None:
        await session.start_child("b", "go")

    hooks = Hooks(pre_request=[delegates], before_tool=[denies])
    await turn(Agent("a", model=Script(["a"]), hooks=hooks, agents=[child]))
    assert ran == []


async def test_a_hook_s_change_of_the_output_from_one_to_true_is_in_the_log() -> None:
    def to_true(session: SessionAccess, reply: Reply) -> Reply:
        return reply.replace(output=[True])

    agent = Agent("a", model=Script(["[1]"]), output=list[int | bool], hooks=Hooks(end_turn=[to_true]))
    async with Runtime(agents=[agent]) as runtime:
        reply = await (await runtime.start(agent, id="s")).prompt("go")
        passed = [
            one.output
            async for one in runtime.events("s")
            if isinstance(one, HooksPassed) and one.point == "end_turn"
        ]
    assert repr((reply.output, passed)) == "([True], [[True]])"


async def test_a_hook_that_changes_one_to_true_in_a_message_is_in_the_rebuilt_request() -> None:
    def truer(session: SessionAccess, request: Request) -> Request:
        changed: list[Message] = []
        for message in request.messages:
            parts = [p.replace(args={"x": True}) if isinstance(p, Call) else p for p in message.parts]
            changed.append(message.replace(parts=tuple(parts)))
        return request.replace(messages=changed)

    agent = Agent(
        "a", model=Script([call("take", x=1), "done"]), tools=[take_number], hooks=Hooks(before_model=[truer])
    )
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        rebuilt = await runtime.model_call("s", 2)

    assert rebuilt is not None
    assert [repr(c.args) for m in rebuilt.request.messages for c in m.calls] == ["{'x': True}"]


@tool(name="take")
def take_number(x: int) -> str:
    """Take a number."""
    return "taken"


async def test_a_call_that_a_hook_changed_to_an_unknown_tool_says_so_and_refers_to_no_list() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    def rename(session: SessionAccess, call: Call) -> Call:
        return call.replace(name="looks")

    agent = Agent("a", model=Script([call("look"), "over"]), tools=[look], hooks=Hooks(before_tool=[rename]))
    async with Runtime(":memory:", agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
        (result,) = [result for message in session.get_messages() for result in message.results]
    assert result.text == "there is no tool called 'looks': a hook changed this call of 'look' to it."


class Price(msgspec.Struct):
    """The output of a typed agent."""

    amount: int
    unit: str = "EUR"


def priced(returned: Any) -> Agent[Price]:
    def hook(session: SessionAccess, reply: Reply[Price]) -> Any:
        return reply.replace(output=returned.output) if isinstance(returned, Out) else returned

    return Agent("a", model=Script(lambda _: '{"amount": 1}'), output=Price, hooks=Hooks(end_turn=[hook]))


class Out(msgspec.Struct):
    """The output that a hook puts into the reply."""

    output: Any


@pytest.mark.parametrize(
    ("returned", "text", "output"),
    [
        (Price(2), '{"amount":2,"unit":"EUR"}', Price(2)),
        ({"amount": 3}, '{"amount":3}', Price(3)),
        (Out(Price(4)), '{"amount": 1}', Price(4)),
        ("changed", "changed", Price(1)),
    ],
    ids=["a value", "a value as JSON", "a reply with an output", "a text"],
)
async def test_an_end_turn_hook_of_a_typed_agent_replaces_the_output_by_a_value_of_its_type(
    returned: Any, text: str, output: Price, place: Place
) -> None:
    agent = priced(returned)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")
        assert (reply.text, reply.output) == (text, output)
        stored = (await runtime.load("s")).reply
        assert stored is not None
        assert (stored.text, stored.output) == (text, output)


@pytest.mark.parametrize("returned", [7, {"unit": "EUR"}, Out(7)], ids=["a number", "a missing field", "a reply"])
async def test_an_end_turn_hook_that_returns_another_type_than_the_agents_output_fails_the_turn(
    returned: Any, place: Place
) -> None:
    agent = priced(returned)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(HookFailed, match=r"is not a value of Price .*a value of Price, or None"):
            await session.prompt("go")
        assert await runtime.status("s") == "failed"
    mended = priced(None)
    async with Runtime(place.store(), agents=[mended]) as runtime:
        assert (await runtime.resume("s")).output == Price(1)
