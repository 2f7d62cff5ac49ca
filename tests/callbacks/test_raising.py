"""Asking: from tools and from the model, what a question may hold, and what nobody's answer means."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from callbacks.doubles import Desk, Person, answers, asker, at_work, delegates, never, passes, worker
from upcall import (
    Agent,
    AnswerRefused,
    Call,
    Callback,
    Context,
    Hooks,
    Message,
    Reply,
    Request,
    Result,
    Runtime,
    SessionAccess,
    SyncContext,
    tool,
)
from upcall.callbacks import question_digest
from upcall.events import encode
from upcall.models import Script, call
from upcall.workspace import run_python

DEEP: Any = functools.reduce(lambda inner, _: (inner,), range(5_000), ())

# --- who asks -----------------------------------------------------------------------------


async def test_an_async_tool_asks_and_gets_the_answers_value(place: Desk) -> None:
    agent = asker(kind="request_user_input")

    waiting = await place.prompt(agent)
    await place.settle(agent, {"colour": "blue"})
    done = await place.resume(agent)

    assert (waiting.status, done.status, done.text) == ("waiting", "done", "{'colour': 'blue'}")


async def test_a_sync_tool_asks_from_its_thread_and_gets_the_answer(place: Desk) -> None:
    threads: list[threading.Thread] = []

    @tool
    def work(ctx: SyncContext) -> str:
        """Ask."""
        threads.append(threading.current_thread())
        full = ctx.raise_callback_full("which?", "clarification")
        return f"{ctx.raise_callback('how?', choices=['so', 'thus'])} {full.answer and full.answer.value}"

    agent = at_work(work)

    await place.prompt(agent)
    await place.settle(agent, "this")
    again = await place.resume(agent)
    await place.settle(agent, "so")
    done = await place.resume(agent)

    assert (again.status, done.text) == ("waiting", "so this")
    assert all(t is not threading.main_thread() for t in threads)


async def test_a_sync_tool_keeps_a_once_effect_over_its_questions(desk: Desk) -> None:
    bought: list[str] = []

    @tool
    def paint(ctx: SyncContext) -> str:
        """Paint."""
        price = ctx.once("buy", lambda: len(bought) or bought.append("paint") or 5)
        return f"{price} {ctx.raise_callback('which colour?')}"

    agent = Agent("developer", model=worker(call("paint")), tools=[paint])

    await desk.prompt(agent)
    await desk.settle(agent, "blue")
    done = await desk.resume(agent)

    assert (done.text, bought) == ("5 blue", ["paint"])


async def test_the_model_asks_with_the_tool_ask(desk: Desk) -> None:
    agent = Agent(
        "developer", model=worker(call("ask", message="A or B?", type="clarification", choices=["A", "B"]))
    )

    waiting = await desk.prompt(agent)
    await desk.settle(agent, "B")
    done = await desk.resume(agent)

    asked = waiting.callbacks[0]
    assert (asked.message, asked.intent, asked.choices, asked.agent) == (
        "A or B?", "clarification", ("A", "B"), "developer",
    )  # fmt: skip
    assert done.text == "B"


async def test_a_callback_shows_the_task_as_hooks_have_left_it_and_the_log_no_other(desk: Desk) -> None:
    def hide(_: SessionAccess, message: Message) -> str:
        return message.text.replace("4711", "…")

    agent = asker().replace(hooks=Hooks(pre_request=[hide]))
    waiting = await desk.prompt(agent, "the code is 4711")

    assert waiting.callbacks[0].context["task"] == "the code is …"
    assert all(b"4711" not in encode(event) for event in await desk.log(agent))
    await desk.settle(agent, "blue")
    assert (await desk.resume(agent)).text == "'blue'"


@pytest.mark.parametrize(
    ("options", "offered"),
    [
        ({}, False),
        ({"host": Person(never)}, True),
        ({"host": Person(never), "ask": False}, False),
        ({"host": Person(never), "can_use_host_interaction": False}, False),
    ],
)
async def test_ask_is_offered_only_if_somebody_can_be_asked(options: dict[str, Any], offered: bool) -> None:
    host = options.pop("host", None)
    names: list[str] = []

    def decide(request: Request) -> str:
        names.extend(t.name for t in request.tools)
        return "ok"

    agent = Agent("developer", model=Script(decide), **options)
    async with Runtime(agents=[agent], host=host) as runtime:
        await (await runtime.start(agent)).prompt("go")

    assert ("ask" in names) is offered


async def test_a_child_is_offered_ask_where_only_its_caller_can_be_asked() -> None:
    child = Agent("developer", model=worker(call("ask", message="which?")), can_use_host_interaction=False)
    manager = delegates("manager", child, answers("this"))
    async with Runtime(agents=[manager]) as runtime:
        reply = await (await runtime.start(manager)).prompt("go")

    assert reply.text == "this"


async def test_raise_callback_full_tells_who_answered_by_what_right_and_path(desk: Desk) -> None:
    found: list[Callback] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask."""
        found.append(await ctx.raise_callback_full("which?"))
        return "ok"

    manager = delegates("manager", at_work(work), passes("no idea"))

    await desk.prompt(manager)
    await desk.settle(manager, "this", by="ann")
    await desk.resume(manager)

    answer = found[0].answer
    assert answer is not None
    assert (answer.value, answer.by, answer.right, answer.at) == ("this", "ann", "asserted", desk.clock.now)
    assert [(s.agent, s.step, s.reason) for s in found[0].path] == [
        ("manager", "asked", "hop 1"), ("manager", "passed", "no idea"),
        ("user", "asked", "developer may ask a person (the agent developer has can_use_host_interaction: true)"),
    ]  # fmt: skip
    assert found[0].status == "answered"


# --- what a question holds ----------------------------------------------------------------


async def test_the_context_is_filled_with_the_task_the_tool_and_its_arguments(desk: Desk) -> None:
    @tool
    async def read(path: str, ctx: Context) -> str:
        """Read."""
        return await ctx.raise_callback("missing", context={"attempted": path, "tries": 2})

    agent = Agent("developer", model=worker(call("read", path="a.txt")), tools=[read])

    reply = await desk.prompt(agent, "read the notes")

    assert reply.callbacks[0].context == {
        "task": "read the notes", "tool": "read", "arguments": {"path": "a.txt"}, "attempted": "a.txt", "tries": 2,
    }  # fmt: skip


@pytest.mark.parametrize("given", ["config.py", ["a", "b"], 3])
async def test_a_context_that_is_no_object_is_kept_under_a_key(given: Any, desk: Desk) -> None:
    reply = await desk.prompt(asker(context=given))

    assert reply.callbacks[0].context["context"] == given


async def test_a_wrong_choice_is_told_the_choices_and_the_callback_stays_open(desk: Desk) -> None:
    agent = asker(choices=["red", "blue"])
    await desk.prompt(agent)
    before = await desk.log(agent)

    with pytest.raises(AnswerRefused, match="'green' is not one of the choices: 'red', 'blue'"):
        await desk.settle(agent, "green")

    assert await desk.log(agent) == before
    assert (await desk.settle(agent, "blue")).status == "answered"


async def test_a_typed_answer_is_checked_by_its_schema(desk: Desk) -> None:
    schema = {
        "type": "object",
        "properties": {"port": {"type": "integer", "minimum": 1}},
        "required": ["port"],
        "additionalProperties": False,
    }
    agent = asker(schema=schema)
    await desk.prompt(agent)
    before = await desk.log(agent)

    for wrong, why in [
        ({}, "port"),
        (
            {"port": 0},
            r'open: {"port": 0} is not a valid answer: port must be .* 1; expected object with port$',
        ),
        ({"port": "80"}, "integer"),
        ({"port": 80, "host": "x"}, "host"),
        ("80", 'open: "80" is not a valid answer: it must be object'),
        (None, "object"),
    ]:
        with pytest.raises(AnswerRefused, match=why) as refused:
            await desk.settle(agent, wrong)
        assert "stays open" in str(refused.value)

    assert await desk.log(agent) == before
    await desk.settle(agent, {"port": 80})
    assert (await desk.resume(agent)).text == "{'port': 80}"


async def test_an_answer_that_json_can_not_hold_is_refused(desk: Desk) -> None:
    agent = asker()
    await desk.prompt(agent)

    for wrong in (object(), "\ud800", {1, 2}.__iter__()):
        with pytest.raises(AnswerRefused, match="must be a JSON value"):
            await desk.settle(agent, wrong)
    with pytest.raises(AnswerRefused, match="at most 100 levels deep: it is nested too deeply"):
        await desk.settle(agent, DEEP)


async def test_an_answer_of_more_than_a_megabyte_is_refused_with_both_sizes(desk: Desk) -> None:
    agent = asker()
    await desk.prompt(agent)

    with pytest.raises(AnswerRefused, match=r"may have at most 1000000 bytes of JSON.*: it has 1000001 bytes"):
        await desk.settle(agent, "x" * 999_999)
    await desk.settle(agent, "x" * 999_998)

    assert (await desk.resume(agent)).status == "done"


@pytest.mark.parametrize(
    ("message", "options", "why"),
    [
        ("x" * 1_000_001, {}, "a callback may have at most 1000000 bytes"),
        ("q", {"context": {"x": "y" * 1_000_001}}, "a callback may have at most 1000000 bytes"),
        ("q", {"choices": ["x" * 600_000, "y" * 600_000]}, "a callback may have at most 1000000 bytes"),
        ("q", {"context": {"x": object()}}, "only JSON values"),
        ("q", {"context": {"x": DEEP}}, "at most 100 levels deep: it is nested too deeply"),
        ("q", {"choices": "yes"}, "choices"),
        ("q", {"choices": ["a"], "schema": {"type": "string"}}, "choices or a schema, not both"),
        ("q", {"schema": {"type": "nonsense"}}, "schema"),
        ("q", {"schema": {"$ref": "http://127.0.0.1:9/x.json"}}, "other schemas are not fetched"),
        (
            "q",
            {"kind": "callback_to_nobody"},
            "callback_to_caller, request_user_input, request_resolution, callback",
        ),
        ("q", {"priority": "urgent"}, "low, normal, high, critical"),
        ("q", {"timeout": 0}, "timeout=0"),
        ("q", {"choices": ["a"], "default": "b"}, "not one of the choices"),
        ("q", {"schema": {"type": "string"}, "default": 5}, "does not fit the schema"),
        ("q", {"max_bubble_hops": -1}, "max_bubble_hops must be a whole number of 0 or more"),
        ("q", {"resolvable_by": "lead"}, r"resolvable_by must be a list"),
        ("q", {"passthrough_child_callbacks": "false"}, "must be True or False"),
        ("q", {"nonsense": 1}, "nonsense"),
        (" ", {}, "needs a message"),
    ],
)
async def test_a_question_that_can_not_be_asked_is_an_error_at_once(
    desk: Desk, message: str, options: dict[str, Any], why: str
) -> None:
    agent = asker(message, **options)

    reply = await desk.prompt(agent)

    assert reply.status == "done"
    assert "work failed:" in reply.text
    assert why.replace("\\", "") in reply.text
    assert not await desk.inbox(agent)


# --- kinds and intents --------------------------------------------------------------------


@pytest.mark.parametrize("intent", ["query", "clarification", "musing", "Blocker!"])
async def test_what_may_be_ignored_returns_none_with_a_warning(
    intent: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = asker("which?", intent)
    with caplog.at_level(logging.WARNING, "upcall"):
        async with Runtime(agents=[agent]) as runtime:
            reply = await (await runtime.start(agent)).prompt("go")

    assert reply.text == "None"
    assert "agent 'developer' asked 'which?' but nobody answered; raise_callback returned None" in caplog.text


async def test_the_warning_shows_a_long_question_on_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    agent = asker("which?\n" * 100_000, "query")
    with caplog.at_level(logging.WARNING, "upcall"):
        async with Runtime(agents=[agent]) as runtime:
            await (await runtime.start(agent)).prompt("go")

    (warning,) = [one.getMessage() for one in caplog.records if "nobody answered" in one.getMessage()]
    assert len(warning) < 400
    assert "\n" not in warning


@pytest.mark.parametrize("intent", ["blocker", "error", "approval", "user_input", "preference"])
async def test_what_must_not_be_ignored_raises_and_names_what_would_have_helped(intent: str) -> None:
    agent = asker("config.py is missing", intent)
    async with Runtime(agents=[agent]) as runtime:
        reply = await (await runtime.start(agent)).prompt("go")

    assert f"nobody may answer the {intent} 'config.py is missing' from developer." in reply.text
    assert "Nobody is above developer." in reply.text
    assert "It could reach others with: a live host, or a store on disk." in reply.text


def by_a_tool(intent: str) -> Agent:
    return asker("may I?", intent, use_host=False)


def by_a_plain_function(intent: str) -> Agent:
    @tool
    def work(ctx: SyncContext) -> str:
        """Ask."""
        return repr(ctx.raise_callback("may I?", intent))

    return Agent("developer", model=worker(call("work")), tools=[work], can_use_host_interaction=False)


def by_its_model(intent: str) -> Agent:
    model = worker(call("ask", message="may I?", type=intent))
    return Agent("developer", model=model, can_use_host_interaction=False)


def by_a_program(intent: str) -> Agent:
    model = worker(call("run_python", code=f"raise_callback('may I?', {intent!r})"))
    return Agent("developer", model=model, tools=[run_python()], can_use_host_interaction=False)


def by_a_hook(intent: str) -> Agent:
    async def asks(session: SessionAccess, call: Call) -> Result:
        return Result("", repr(await session.raise_callback("may I?", intent)))

    hooks = Hooks(before_tool=[asks])
    model = worker(call("echo", word="x"))
    return Agent("developer", model=model, tools=[echo], hooks=hooks, can_use_host_interaction=False)


@tool
async def echo(word: str) -> str:
    """Say it."""
    return word


@pytest.mark.parametrize("door", [by_a_tool, by_a_plain_function, by_its_model, by_a_program])
@pytest.mark.parametrize("intent", ["bloker", "aproval", "User-Input"])
async def test_a_typo_in_an_intent_fails_closed_through_every_door(
    door: Callable[[str], Agent], intent: str, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    manager = delegates("manager", door(intent), passes(), can_use_host_interaction=False)

    with caplog.at_level(logging.WARNING, "upcall"):
        reply = await desk.prompt(manager)

    assert f"nobody may answer the {intent} 'may I?' from developer" in reply.text
    assert reply.callbacks[0].intent == intent
    assert caplog.text.count(f"the intent {intent!r} looks like") == 1


async def test_a_typo_in_a_hooks_intent_fails_its_turn(desk: Desk) -> None:
    manager = delegates("manager", by_a_hook("errror"), passes(), can_use_host_interaction=False)

    reply = await desk.prompt(manager)

    assert "CallbackUnresolved: nobody may answer the errror 'may I?' from developer" in reply.text


async def test_a_typo_does_not_change_how_a_question_is_matched_to_the_log(place: Desk) -> None:
    agent = asker("which?", "Bloker")
    waiting = await place.prompt(agent)
    await place.settle(agent, "this")
    done = await place.resume(agent)

    assert (waiting.callbacks[0].intent, done.text) == ("Bloker", "'this'")
    assert waiting.callbacks[0].digest == question_digest("which?", "Bloker", "callback_to_caller")


@pytest.mark.parametrize("intent", ["approval", "aproval", "Approval"])
async def test_neither_an_approval_nor_a_near_miss_of_one_has_a_default(intent: str, desk: Desk) -> None:
    reply = await desk.prompt(asker("may I?", intent, default=True))

    assert "an approval can't have a default" in reply.text
    assert not reply.callbacks


async def test_required_says_whether_it_must_be_answered_whatever_the_intent() -> None:
    query = asker("which?", "query", required=True)
    blocker = asker("which?", "blocker", required=False)

    assert "nobody may answer the query 'which?'" in (await alone(query)).text
    assert (await alone(blocker)).text == "None"


async def test_a_program_says_whether_its_question_must_be_answered(desk: Desk) -> None:
    code = "raise_callback('which?', required=True)"
    agent = Agent("developer", model=worker(call("run_python", code=code)), tools=[run_python()])

    assert "nobody may answer the query 'which?'" in (await alone(agent)).text


@pytest.mark.parametrize("required", ["yes", 1, 0])
async def test_required_that_is_neither_true_nor_false_is_an_error_at_once(required: Any, desk: Desk) -> None:
    reply = await desk.prompt(asker("which?", required=required))

    assert f"required={required!r}: use True, False" in reply.text
    assert not reply.callbacks


async def alone(agent: Agent) -> Reply:
    """One turn where nobody can be asked: nobody is above, no host is there, and the log is in memory."""
    async with Runtime(agents=[agent]) as runtime:
        return await (await runtime.start(agent)).prompt("go")


# --- a default ----------------------------------------------------------------------------

UNRESOLVED: list[dict[str, Any]] = [
    {},
    {"intent": "blocker"},
    {"intent": "bloker"},
    {"required": True},
    {"kind": "request_resolution"},
    {"kind": "request_user_input", "use_host": False},
    {"fallback_target": "fail"},
    {"policy": {"fallback_target": "fail"}},
    {"policy": {"fallback_target": "nobody"}},
]


@pytest.mark.parametrize("how", UNRESOLVED)
async def test_a_default_comes_back_where_nobody_may_be_asked(how: dict[str, Any]) -> None:
    reply = await alone(asker("which?", default="formal", **how))

    assert reply.text == "'formal'"
    assert [c.status for c in reply.callbacks] == ["withdrawn"]


@pytest.mark.parametrize("intent", ["query", "blocker"])
async def test_a_default_comes_back_where_everybody_passed(intent: str, place: Desk) -> None:
    child = asker("which?", intent, default="formal", use_host=False)

    reply = await place.prompt(delegates("manager", child, passes(), can_use_host_interaction=False))

    assert (reply.status, reply.text) == ("done", "'formal'")
    assert [(s.agent, s.step) for s in reply.callbacks[0].path] == [("manager", "asked"), ("manager", "passed")]


async def test_none_is_a_default_where_nobody_answers_what_must_be_answered() -> None:
    assert (await alone(asker("which?", "blocker", default=None))).text == "None"


async def test_a_default_that_came_back_is_not_asked_for_again_when_the_call_runs_again(place: Desk) -> None:
    @tool
    async def work(ctx: Context) -> str:
        """Ask twice: first what nobody may answer, then a person."""
        first = await ctx.raise_callback("tone?", kind="request_resolution", default="formal")
        return f"{first} {await ctx.raise_callback('to whom?')}"

    agent = at_work(work)
    await place.prompt(agent)
    await place.settle(agent, "Ann")

    assert (await place.resume(agent)).text == "formal Ann"


async def test_an_explicit_fail_raises_for_a_query_too(desk: Desk) -> None:
    by_hint = await desk.prompt(asker(fallback_target="fail"), id="hint")
    by_sidecar = await desk.prompt(asker(policy={"fallback_target": "fail"}), id="sidecar")

    assert "The person was not asked: the hint fallback_target is 'fail'." in by_hint.text
    assert "The person was not asked: the agent developer has callback_policy.fallback_target" in by_sidecar.text


async def test_request_user_input_without_the_right_asks_no_agent_and_raises(desk: Desk) -> None:
    child = asker("name?", kind="request_user_input", use_host=False)
    manager = delegates("manager", child)

    reply = await desk.prompt(manager)

    assert "manager (skipped: request_user_input goes straight to the person)" in reply.text
    assert "the agent developer has can_use_host_interaction: false" in reply.text
    assert "can_use_host_interaction: true in Agent('developer', ...)" in reply.text


async def test_request_resolution_that_nobody_settles_raises_and_never_reaches_the_inbox(desk: Desk) -> None:
    manager = delegates("manager", asker("which?", kind="request_resolution"), passes("no idea"))

    reply = await desk.prompt(manager)

    assert "It passed: manager (passed it up: no idea)." in reply.text
    assert "request_resolution never asks a person" in reply.text
    assert not await desk.inbox(manager)


@pytest.mark.parametrize(
    ("intent", "kind"),
    [("user_input", "request_user_input"), ("preference", "request_user_input"), ("query", "callback_to_caller")],
)
async def test_the_old_kind_callback_becomes_what_its_intent_means(desk: Desk, intent: str, kind: str) -> None:
    manager = delegates("manager", asker("which?", intent, kind="callback"), answers("mine"))

    reply = await desk.prompt(manager)

    assert reply.callbacks[0].kind == kind
    assert reply.text == ("'mine'" if kind == "callback_to_caller" else "")


async def test_a_hand_raised_approval_never_authorises_a_tool(desk: Desk) -> None:
    ran: list[str] = []

    @tool(needs_approval=True)
    async def deploy(env: str) -> str:
        """Deploy."""
        ran.append(env)
        return "deployed"

    @tool
    async def prepare(ctx: Context) -> str:
        """Ask by hand."""
        return str(await ctx.raise_callback("May developer run deploy?", "approval"))

    def decide(request: Request) -> Any:
        last = request.messages[-1]
        return (
            call("deploy", env="prod") if last.role == "tool" and "yes" in last.results[0].text else call("prepare")
        )

    agent = Agent("developer", model=Script(decide), tools=[deploy, prepare])

    await desk.prompt(agent)
    await desk.settle(agent, "yes")
    reply = await desk.resume(agent)

    assert (reply.status, ran) == ("waiting", [])
    assert [c.tool for c in await desk.inbox(agent)] == ["deploy"]
