"""Sessions as users drive them: start, load, resume, busy, steer, output types, the sync door."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

import upcall
from core.doubles import Asked, Place, Stuck, crash, said, turn, types_of
from upcall import (
    Agent,
    BadAgent,
    Context,
    Delta,
    Hooks,
    Limits,
    OutputInvalid,
    Reply,
    Request,
    Runtime,
    SessionBusy,
    SessionExists,
    SessionTakenOver,
    SetupError,
    UnknownAgent,
    UnknownSession,
    UpcallError,
    tool,
)
from upcall.contracts import Claim
from upcall.errors import StoreUnavailable
from upcall.models import Script, call
from upcall.store.memory import MemoryStore


@tool
def later() -> str:
    """Later."""
    return "later"


# --- starting and loading ---------------------------------------------------------------


async def test_start_takes_a_name_or_an_agent_and_makes_up_an_id() -> None:
    agent = Agent("a", model=Script(lambda r: "ok"))
    async with Runtime(agents=[agent]) as runtime:
        by_name, by_agent = await runtime.start("a"), await runtime.start(agent)

        assert by_name.id != by_agent.id
        assert (by_name.agent, by_name.parent, by_name.status) == ("a", None, "idle")


async def test_start_accepts_an_agent_the_runtime_did_not_know() -> None:
    agent = Agent("a", model=Script(["ok"]))
    async with Runtime() as runtime:
        session = await runtime.start(agent)
        assert (await session.prompt("hi")).text == "ok"


async def test_start_with_an_id_that_is_taken_is_session_exists(place: Place) -> None:
    agent = Agent("a", model=Script(["ok"]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        await runtime.start(agent, id="login-page")
        with pytest.raises(SessionExists, match="login-page"):
            await runtime.start(agent, id="login-page")
    async with Runtime(place.store(), agents=[agent]) as runtime:
        with pytest.raises(SessionExists):
            await runtime.start(agent, id="login-page")


@pytest.mark.parametrize("id", ["", "a b", "a/b", "a~b", "x" * 201])
async def test_an_id_that_can_not_be_one_is_refused(id: str) -> None:
    agent = Agent("a", model=Script(["ok"]))
    async with Runtime(agents=[agent]) as runtime:
        with pytest.raises(UpcallError, match="invalid session id"):
            await runtime.start(agent, id=id)


async def test_an_unknown_agent_is_an_error_that_lists_the_known_with_those_below() -> None:
    below = Agent("below", model=Script([]))
    async with Runtime(agents=[Agent("above", model=Script([]), agents=[below])]) as runtime:
        with pytest.raises(UnknownAgent, match="above, below"):
            await runtime.start("besides")


async def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(BadAgent, match="name"):
        Runtime(agents=[Agent("a", model=Script([])), Agent("a", model=Script([]))])


async def test_an_unknown_session_is_an_error_wherever_its_id_is_given(place: Place) -> None:
    async with Runtime(place.store(), agents=[Agent("a", model=Script([]))]) as runtime:
        with pytest.raises(UnknownSession, match="nobody"):
            await runtime.load("nobody")
        with pytest.raises(UnknownSession):
            await runtime.resume("nobody")
        with pytest.raises(UnknownSession):
            await runtime.cancel("nobody")
        with pytest.raises(UnknownSession):
            await runtime.steer("nobody", "left")
        with pytest.raises(UnknownSession):
            _ = [e async for e in runtime.events("nobody")]


async def test_a_loaded_session_reads_the_same_and_continues_in_another_runtime(place: Place) -> None:
    @tool
    async def keep(value: int, ctx: Context) -> str:
        """Keep a value."""
        ctx.set_context("kept", {"value": value})
        return "kept"

    asked = Asked()
    script = asked.then(lambda r: f"reply {len(asked)}" if r.messages[-1].role == "tool" else call("keep", value=7))
    agent = Agent("a", model=Script(script), tools=[keep])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        first = await runtime.start(agent, "s")
        await first.prompt("one")
    async with Runtime(place.store(), agents=[agent]) as runtime:
        second = await runtime.load("s")

        assert second.get_messages() == first.get_messages()
        assert second.get_context("kept") == {"value": 7}
        assert second.get_context("lost", "nothing") == "nothing"
        assert second.get_summary() == first.get_summary() == "reply 2"
        assert second.status == "done"
        assert (await second.prompt("two")).text == "reply 4"


# --- the last reply ---------------------------------------------------------------------


@dataclass
class Size:
    width: int


def ends(how: str) -> Agent:
    """An agent whose turns end so."""
    shout = Hooks(end_turn=[lambda session, reply: reply.text.upper()])
    return {
        "done": Agent("a", model=Script(lambda r: "hello"), hooks=shout),
        "output": Agent("a", model=Script(lambda r: '{"width": 3}'), output=Size),
        "limit": Agent("a", model=Script(lambda r: call("later")), tools=[later], limits=Limits(model_calls=2)),
    }[how]


@pytest.mark.parametrize("how", ["done", "output", "limit"])
async def test_a_loaded_session_has_the_reply_that_its_last_turn_gave(how: str, place: Place) -> None:
    async with Runtime(place.store(), agents=[ends(how)]) as runtime:
        session = await runtime.start("a", "s")
        assert session.reply is None
        await session.prompt("one")
        replies = [await session.prompt("two")]
    async with Runtime(place.store(), agents=[ends(how)]) as runtime:
        replies += [cast("Reply", (await runtime.load("s")).reply), await runtime.resume("s")]

    assert replies[0] == replies[1] == replies[2]


async def test_a_loaded_session_has_its_reply_where_the_runtime_does_not_know_its_agent(place: Place) -> None:
    async with Runtime(place.store(), agents=[ends("output")]) as runtime:
        await (await runtime.start("a", "s")).prompt("go")
    async with Runtime(place.store()) as runtime:
        reply = (await runtime.load("s")).reply

    assert reply is not None
    assert (reply.text, reply.status, reply.output) == ('{"width": 3}', "done", None)


async def test_a_loaded_session_has_no_reply_before_its_first_turn_or_after_one_that_failed(place: Place) -> None:
    agent = Agent("a", model=Script([RuntimeError("gone")]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start("a", "s")
        assert (await runtime.load("s")).reply is None
        with pytest.raises(RuntimeError, match="gone"):
            await session.prompt("go")
        loaded = await runtime.load("s")

    assert (loaded.status, loaded.reply) == ("failed", None)


async def test_a_loaded_child_has_its_own_reply(place: Place) -> None:
    child = Agent("child", model=Script(lambda r: "from below"))
    parent = Agent("parent", model=Script([call("task", agent="child", prompt="go"), "over"]), agents=[child])
    async with Runtime(place.store(), agents=[parent]) as runtime:
        await (await runtime.start("parent", "s")).prompt("go")
        reply = (await runtime.load("s~r1c0")).reply

    assert reply is not None
    assert (reply.text, reply.session_id) == ("from below", "s~r1c0")


# --- resuming ---------------------------------------------------------------------------


async def test_resume_with_nothing_to_do_returns_the_last_reply(place: Place) -> None:
    asked = Asked()
    agent = Agent("a", model=Script(asked.then(lambda r: "ok")))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        reply = await session.prompt("go")
        before = await types_of(runtime)

        assert await runtime.resume("s") == reply
        assert await types_of(runtime) == before
        assert len(asked) == 1


async def test_closing_a_runtime_interrupts_its_turns_and_resume_finishes_them(place: Place) -> None:
    agent = Agent("a", model=Stuck("never mind"))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        stream = session.stream("go")
        await anext(stream)
        await stream.aclose()
    async with Runtime(place.store(), agents=[agent.replace(model=Script(["finished"]))]) as runtime:
        assert await runtime.status("s") == "interrupted"

        reply = await runtime.resume("s")

        assert (reply.text, reply.status) == ("finished", "done")
        assert said((await runtime.load("s")).get_messages()) == ["user: go", "assistant: finished"]


async def test_a_prompt_on_an_interrupted_session_first_finishes_that_turn(place: Place) -> None:
    agent = Agent("a", model=Stuck())
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        stream = session.stream("one")
        await anext(stream)
        await stream.aclose()
    again = agent.replace(model=Script(lambda r: f"re {r.messages[-1].text}"))
    async with Runtime(place.store(), agents=[again]) as runtime:
        session = await runtime.load("s")

        reply = await session.prompt("two")

        assert reply.text == "re two"
        assert said(session.get_messages()) == ["user: one", "assistant: re one", "user: two", "assistant: re two"]


async def test_who_streams_a_prompt_on_an_interrupted_session_sees_both_turns(place: Place) -> None:
    agent = Agent("a", model=Script(lambda r: f"to {r.messages[-1].text}"))
    assert not await crash(place, agent, 2)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.load("s")
        seen = [item.type async for item in session.stream("next") if not isinstance(item, Delta)]
        assert [t for t in seen if t.startswith("turn_")] == [
            "turn_resumed",
            "turn_ended",
            "turn_started",
            "turn_ended",
        ]


async def test_resume_says_in_the_log_that_the_agent_has_changed(place: Place) -> None:
    agent = Agent("a", model=Stuck(), instructions="old")
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        stream = session.stream("one")
        await anext(stream)
        await stream.aclose()
    changed = agent.replace(model=Script(["ok"]), instructions="new")
    async with Runtime(place.store(), agents=[changed]) as runtime:
        await runtime.resume("s")
        resumed: Any = [e async for e in runtime.events("s") if e.type == "turn_resumed"]

        assert resumed[0].setup


# --- one at a time ----------------------------------------------------------------------


async def test_a_second_prompt_on_a_busy_session_is_session_busy_and_harms_nothing(place: Place) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> str:
        begun.set()
        await go.wait()
        return "first"

    agent = Agent("a", model=Script([slow, "second"]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await begun.wait()

        with pytest.raises(SessionBusy, match="s"):
            await session.prompt("two")
        with pytest.raises(SessionBusy):
            await (await runtime.load("s")).prompt("two")
        joined = asyncio.ensure_future(runtime.resume("s"))
        go.set()

        assert ((await running).text, (await joined).text) == ("first", "first")
        assert (await session.prompt("three")).text == "second"


@pytest.mark.slow
async def test_who_is_taken_over_is_told_and_writes_nothing_more(tmp_path: Path) -> None:
    place = Place(tmp_path / "log.db")
    model = Stuck("Once ")
    agent = Agent("a", model=model)
    async with Runtime(place.store(), agents=[agent]) as first:
        session = await first.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await model.speaking.wait()
        again = agent.replace(model=Script(["mine now"]))
        async with Runtime(place.store(), agents=[again]) as second:
            async for event in second.events("s", follow=True):
                if event.type == "model_started":
                    break

            reply = await second.resume("s", take_over=True)

            with pytest.raises(SessionTakenOver):
                async with asyncio.timeout(20):
                    await running
            assert reply.text == "mine now"
            assert said((await second.load("s")).get_messages()) == ["user: one", "assistant: mine now"]


async def test_many_sessions_run_at_once_and_leave_no_task_behind(place: Place) -> None:
    all_there = asyncio.Barrier(50)

    async def meet(request: Request) -> str:
        await all_there.wait()
        return request.messages[-1].text

    agent = Agent("a", model=Script(meet))
    before = len(asyncio.all_tasks())
    async with Runtime(place.store(), agents=[agent]) as runtime:
        sessions = [await runtime.start(agent) for _ in range(50)]
        async with asyncio.timeout(20):
            replies = await asyncio.gather(*(s.prompt(f"number {i}") for i, s in enumerate(sessions)))

    assert [r.text for r in replies] == [f"number {i}" for i in range(50)]
    assert len(asyncio.all_tasks()) == before


# --- steering ---------------------------------------------------------------------------


async def test_steering_is_seen_by_the_next_model_call_after_the_results(place: Place) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        """Work."""
        begun.set()
        await go.wait()
        return "worked"

    asked = Asked()
    script = Script(asked.then(lambda r: call("work") if len(asked) == 1 else "ok"))
    agent = Agent("a", model=script, tools=[work])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("go"))
        await begun.wait()
        await session.steer("left")
        await session.steer("then right")
        go.set()
        await running

        expected = ["user: go", "call work", "= worked", "user: left", "user: then right"]
        assert said(asked.requests[1].messages) == expected
        assert said((await runtime.load("s")).get_messages()) == [*expected, "assistant: ok"]


async def test_steering_an_idle_session_waits_for_its_next_prompt(place: Place) -> None:
    asked = Asked()
    agent = Agent("a", model=Script(asked.then(lambda r: "ok")))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.steer("gently")
        await session.prompt("go")
        await session.prompt("again")

        assert said(asked.requests[0].messages) == ["user: go", "user: gently"]
        assert said(asked.requests[1].messages) == ["user: go", "user: gently", "assistant: ok", "user: again"]


# --- typed replies ----------------------------------------------------------------------


@dataclass
class Point:
    x: int
    y: int


async def test_a_reply_of_the_output_type_is_checked_and_given_as_a_value() -> None:
    asked = Asked()
    agent = Agent("a", model=Script(asked.then(lambda r: '{"x": 1, "y": 2}')), output=Point)

    reply = await turn(agent)

    assert reply.output == Point(1, 2)
    assert asked.requests[0].output is not None


async def test_a_fence_around_the_json_is_taken_off() -> None:
    assert (await turn(Agent("a", model=Script(["```json\n[1, 2]\n```"]), output=list[int]))).output == [1, 2]


@pytest.mark.parametrize("wrong", ["no idea", "[" * 5_000])
async def test_a_wrong_reply_is_given_back_with_its_error_and_asked_again(place: Place, wrong: str) -> None:
    asked = Asked()
    answers = iter(['{"x": 1}', wrong, '{"x": 1, "y": 2}'])
    agent = Agent("a", model=Script(asked.then(lambda r: next(answers))), output=Point)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        reply = await session.prompt("where?")

        assert reply.output == Point(1, 2)
        assert asked.requests[1].messages[-1].role == "user"
        assert "y" in asked.requests[1].messages[-1].text
        assert "JSON" in asked.requests[2].messages[-1].text
        assert (await runtime.load("s")).get_messages() == session.get_messages()


async def test_after_three_wrong_replies_it_is_output_invalid_and_the_session_is_kept() -> None:
    asked = Asked()
    agent = Agent("a", model=Script(asked.then(lambda r: f"no {len(asked)}")), output=int)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(OutputInvalid, match="3 tries") as caught:
            await session.prompt("how many?")

        assert len(asked) == 3
        assert (caught.value.agent, caught.value.text) == ("a", "no 3")
        assert session.status == "failed"


async def test_an_output_type_that_json_can_not_describe_is_refused_at_once() -> None:
    with pytest.raises(BadAgent, match="output"):
        Agent("a", model=Script([]), output=object())


async def test_end_turn_sees_the_checked_reply_only() -> None:
    seen: list[Reply] = []
    hooks = Hooks(end_turn=[lambda session, reply: seen.append(reply)])
    await turn(Agent("a", model=Script(["none", "5"]), output=int, hooks=hooks))
    assert [r.text for r in seen] == ["5"]


# --- the sync door ----------------------------------------------------------------------


def test_run_is_one_turn_without_async() -> None:
    reply = upcall.run(Agent("a", model=Script(["hello"])), "hi")
    assert (reply.text, reply.status) == ("hello", "done")
    assert reply.session_id


def test_run_with_the_id_of_a_kept_session_continues_it(tmp_path: Path) -> None:
    store, agent = tmp_path / "log.db", Agent("a", model=Script(lambda request: f"{len(request.messages)}"))
    replies = [upcall.run(agent, "hi", store=store, id="notes") for _ in range(2)]
    assert [(r.text, r.session_id) for r in replies] == [("1", "notes"), ("3", "notes")]


def test_run_does_not_continue_another_agents_session(tmp_path: Path) -> None:
    store, below = tmp_path / "log.db", Agent("b", model=Script(["hello"]))
    upcall.run(below, "hi", store=store, id="notes")
    with pytest.raises(SetupError, match="'notes' is a session of 'b', not of 'a'; use another id"):
        upcall.run(Agent("a", model=Script(["hello"]), agents=[below]), "hi", store=store, id="notes")


def test_run_raises_what_failed_the_turn() -> None:
    with pytest.raises(upcall.ScriptExhausted):
        upcall.run(Agent("a", model=Script([])), "hi")


def test_what_is_given_in_a_wrong_place_is_told_with_the_right_one() -> None:
    run, runtime, agent, script = cast("list[Any]", [upcall.run, Runtime, Agent, Script])
    a = agent("a", model=Script(["hello"]))
    for wrong, says in [
        (lambda: run("hi", a), "takes an Agent and a prompt, not 'hi' and Agent('a')"),
        (lambda: run(a, None), "takes an Agent and a prompt, not Agent('a') and None"),
        (lambda: run(a, "hi", store=5), "a store is a path, ':memory:', 'postgresql://…' or a Store, not 5"),
        (lambda: runtime(agents=a), "agents must be a list: Runtime(..., agents=[a])"),
        (
            lambda: runtime(agents=["a"]),
            "agents must be a list of agents, but it contains 'a'; to read agents from files",
        ),
        (lambda: runtime(host="me"), "a host needs `async ask(callback)`"),
        (lambda: agent("b", tools=later), "tools must be a list of functions: tools=[later]"),
        (lambda: script("hello"), "a list of replies: Script(['hello'])"),
    ]:
        with pytest.raises(SetupError, match=re.escape(says)):
            wrong()


@pytest.mark.parametrize("given", [None, 3, ["hi"], {"role": "user"}])
async def test_what_is_no_prompt_is_refused_and_the_session_continues_without_it(given: Any) -> None:
    async with Runtime(agents=[Agent("a", model=Script(["hello"]))]) as runtime:
        session = await runtime.start("a")
        with pytest.raises(SetupError, match=re.escape(f"a prompt must be a string or a Message, not {given!r}")):
            await session.prompt(given)
        assert (await session.prompt("hi")).text == "hello"
        assert [message.text for message in session.get_messages()] == ["hi", "hello"]


async def test_run_inside_a_running_loop_is_an_error_that_points_to_runtime() -> None:
    with pytest.raises(UpcallError, match="Runtime"):
        upcall.run(Agent("a", model=Script(["hello"])), "hi")


async def test_an_agent_without_a_model_is_an_error_that_says_how_to_give_one() -> None:
    with pytest.raises(BadAgent, match="model="):
        await turn(Agent("a"))


# --- the log, as people read it ---------------------------------------------------------


async def test_events_are_read_from_any_position(place: Place) -> None:
    agent = Agent("a", model=Script(lambda r: "ok"))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        for name in ("s", "t"):
            await (await runtime.start(agent, name)).prompt("go")
        everything = [e async for e in runtime.events()]
        of_one = [e async for e in runtime.events("t")]

        assert [e.pos for e in everything] == sorted({e.pos for e in everything})
        assert [e.seq for e in of_one] == list(range(1, len(of_one) + 1))
        assert [e async for e in runtime.events("t", after=2)] == of_one[2:]
        assert [e async for e in runtime.events(after=everything[3].pos)] == everything[4:]
        assert {e.session for e in everything} == {"s", "t"}


async def test_followed_events_come_without_gaps(place: Place) -> None:
    agent = Agent("a", model=Script(lambda r: "ok"))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("go"))
        seen: list[int] = []
        async for event in runtime.events("s", follow=True):
            seen.append(event.seq)
            if event.type == "turn_ended":
                break
        await running

        assert seen == list(range(1, len(seen) + 1))


class HeardOfLater(MemoryStore):
    """Stores what nobody waits for at once, and says so a moment later, as a writer in a thread does."""

    def append(self, *args: Any, lazy: bool = False, **options: Any) -> Any:
        super().append(*args, lazy=lazy, **options)
        if lazy:
            heard = asyncio.get_running_loop().create_future()
            heard.set_result(None)
            return heard
        return None


async def test_whoever_watches_sees_events_in_their_order_however_late_the_store_tells() -> None:
    async with Runtime(HeardOfLater(), agents=[Agent("a", model=Script(["hello"]))]) as runtime:
        session = await runtime.start("a")
        seen = [item.seq async for item in session.stream("go") if not isinstance(item, Delta)]

    assert seen == sorted(seen)
    assert len(seen) == 4


class Full(MemoryStore):
    """A store that can't give a run tree to somebody else."""

    async def claim(self, root: str, *, take_over: bool = False) -> Claim:
        if take_over:
            raise StoreUnavailable("memory", "the disk is full")
        return await super().claim(root)


async def test_a_turn_that_could_not_be_taken_over_is_still_known_to_run_here() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> str:
        """Wait until the test says so."""
        begun.set()
        await go_on.wait()
        return "held"

    model = Script(lambda r: "done" if r.messages[-1].role == "tool" else call("hold"))
    async with Runtime(Full(), agents=[Agent("a", model=model, tools=[hold])]) as runtime:
        session = await runtime.start("a", "s")
        running = asyncio.ensure_future(session.prompt("go"))
        await begun.wait()
        with pytest.raises(StoreUnavailable):
            await runtime.resume("s", take_over=True)
        joined = asyncio.ensure_future(runtime.resume("s"))
        await asyncio.sleep(0)
        go_on.set()
        assert [(await one).text for one in (running, joined)] == ["done", "done"]


class SlowlyFull(MemoryStore):
    """A store that can't give a run tree to somebody else, and takes its time to say so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def claim(self, root: str, *, take_over: bool = False) -> Claim:
        if take_over:
            self.asked.set()
            await self.go.wait()
            raise StoreUnavailable("memory", "the disk is full")
        return await super().claim(root)


async def test_a_turn_that_ended_while_a_take_over_failed_is_forgotten() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def model(request: Request) -> str:
        begun.set()
        await go_on.wait()
        return "done"

    store = SlowlyFull()
    async with Runtime(store, agents=[Agent("a", model=Script(model))]) as runtime:
        session = await runtime.start("a", "s")
        running = asyncio.ensure_future(session.prompt("go"))
        await begun.wait()
        taking = asyncio.ensure_future(runtime.resume("s", take_over=True))
        await store.asked.wait()
        go_on.set()
        await running
        store.go.set()
        with pytest.raises(StoreUnavailable):
            await taking
        assert (await asyncio.wait_for(session.prompt("again"), 20)).text == "done"
