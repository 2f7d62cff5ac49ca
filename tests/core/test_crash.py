"""A process that dies at any append: nothing that has a result runs again, and the turn comes to its right end."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from core.doubles import Place, crash, log_of, said
from core.rules import check
from upcall import (
    Agent,
    Call,
    Hooks,
    Message,
    Reply,
    Request,
    Response,
    Result,
    Runtime,
    SessionAccess,
    StoreError,
    UnknownSession,
    tool,
)
from upcall.events import AnyEvent, HooksPassed, Responded, ToolEnded, ToolStarted
from upcall.models import Script, call

MOST = 60
"""More appends than the rich run below makes."""


class World:
    """What is outside the log: effects, model calls and hook runs, counted as a bank would."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.asked: Counter[int] = Counter()
        self.hooks: Counter[str] = Counter()

    def agent(self, *, hooked: bool) -> Agent:
        @tool
        async def pay(who: str) -> str:
            """Pay somebody."""
            self.effects[who] += 1
            await asyncio.sleep(0)
            return f"paid {who}"

        @tool(repeatable=True)
        async def look(where: str) -> str:
            """Look somewhere; harmless."""
            self.effects[where] += 1
            return f"saw {where}"

        @tool
        async def fail(why: str) -> str:
            """Fail."""
            self.effects[why] += 1
            raise ValueError(why)

        hooks = self.hooks_of() if hooked else Hooks()
        return Agent("a", model=Script(self.decide), tools=[pay, look, fail], hooks=hooks)

    def decide(self, request: Request) -> Any:
        done = sum(1 for m in request.messages if m.role == "tool")
        self.asked[done] += 1
        steps: list[Any] = [
            call("pay", who="ann"),
            [call("pay", who="bob"), call("look", where="here"), call("fail", why="rain")],
            [call("look", where="there"), call("pay", who="cy")],
        ]
        return steps[done] if done < len(steps) else f"paid after {done} steps"

    def hooks_of(self) -> Hooks:
        def pre_request(session: SessionAccess, message: Message) -> str:
            self.hooks["pre_request"] += 1
            session.add_message("system", "be careful")
            return message.text + "!"

        def before_model(session: SessionAccess, request: Request) -> Request:
            self.hooks["before_model"] += 1
            session.set_context("requests", len(request.messages))
            return request.replace(instructions=f"request of {len(request.messages)}")

        def before_tool(session: SessionAccess, call: Call) -> None:
            self.hooks[f"before {call.id}"] += 1
            session.set_context(f"before {call.id}", True)

        def after_tool(session: SessionAccess, call: Call, result: Result) -> str:
            self.hooks[f"after {call.id}"] += 1
            session.add_message("user", f"noted {call.id}")
            return result.text.upper()

        async def end_turn(session: SessionAccess, reply: Reply) -> str:
            self.hooks["end_turn 0"] += 1
            session.add_message("user", "the end")
            return reply.text + "."

        def last(session: SessionAccess, reply: Reply) -> str:
            self.hooks["end_turn 1"] += 1
            return reply.text + "."

        return Hooks(
            pre_request=[pre_request],
            before_model=[before_model],
            before_tool=[before_tool],
            after_tool=[after_tool],
            end_turn=[end_turn, last],
        )


async def on_disk(place: Place, agent: Agent) -> list[AnyEvent]:
    async with Runtime(place.store(), agents=[agent]) as runtime:
        try:
            return await log_of(runtime)
        except UnknownSession:
            return []


async def crash_after(place: Place, agent: Agent, last: str) -> None:
    """Leave a log that ends with an event of this type."""
    for appends in range(1, MOST):
        place.clear()
        await crash(place, agent, appends)
        log = await on_disk(place, agent)
        if log and log[-1].type == last:
            return
    pytest.fail(f"no append ends with {last}")


def called(log: list[AnyEvent]) -> dict[str, Call]:
    return {c.id: c for e in log if isinstance(e, Responded) for c in e.message.calls}


def subject(made: Call) -> str:
    return next(iter(made.args.values()))


@pytest.mark.slow
@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "hooked"])
@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_a_turn_that_died_at_any_append_continues_and_repeats_nothing(
    tmp_path: Path, kind: str, hooked: bool
) -> None:
    for appends in range(1, MOST):
        place = Place(tmp_path / f"{appends}.db" if kind == "file" else None)
        world = World()
        agent = world.agent(hooked=hooked)
        finished = await crash(place, agent, appends)
        before = await on_disk(place, agent)
        if not any(e.type == "turn_started" for e in before):
            continue
        effects, asked = Counter(world.effects), Counter(world.asked)

        async with Runtime(place.store(), agents=[agent]) as runtime:
            reply = await runtime.resume("s", take_over=True)
            session = await runtime.load("s")
            after = await log_of(runtime)

        where = f"after {appends} appends: {[e.type for e in before]}"
        assert (reply.status, reply.text) == ("done", "paid after 3 steps" + ".." * hooked), where
        assert session.get_summary() == reply.text, where
        check(session.get_messages())
        _nothing_twice(before, after, effects, world, where)
        _no_response_asked_for_again(before, asked, world, where)
        if finished:
            return
    pytest.fail("the run makes more appends than that")


def _nothing_twice(
    before: list[AnyEvent], after: list[AnyEvent], effects: Counter[str], world: World, where: str
) -> None:
    ended = {e.call_id for e in before if isinstance(e, ToolEnded)}
    started = {e.call_id for e in before if isinstance(e, ToolStarted)} - ended
    how = {e.call_id: e for e in after if isinstance(e, ToolEnded)}
    assert len([e for e in after if isinstance(e, ToolEnded)]) == 6, where
    for call_id, made in called(after).items():
        name = subject(made)
        if call_id in ended:
            assert world.effects[name] == effects[name], f"{name} ran again {where}"
        elif call_id in started and made.name != "look":
            assert world.effects[name] == effects[name] <= 1, f"{name} ran again {where}"
            assert how[call_id].how == "interrupted", where
        else:
            assert world.effects[name] == effects[name] + 1, f"{name} did not run {where}"
            assert how[call_id].how == "ran", where


def _no_response_asked_for_again(before: list[AnyEvent], asked: Counter[int], world: World, where: str) -> None:
    answered = sum(isinstance(e, Responded) for e in before)
    for step in range(answered):
        assert world.asked[step] == asked[step], f"response {step} was asked for again {where}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_hooks_whose_outcome_is_logged_are_not_run_again_after_a_crash(tmp_path: Path, kind: str) -> None:
    for appends in range(1, MOST):
        place = Place(tmp_path / f"{appends}.db" if kind == "file" else None)
        world = World()
        agent = world.agent(hooked=True)
        finished = await crash(place, agent, appends)
        before = await on_disk(place, agent)
        if not any(e.type == "turn_started" for e in before):
            continue
        hooks = Counter(world.hooks)
        passed = [(e.point, e.at) for e in before if isinstance(e, HooksPassed)]

        async with Runtime(place.store(), agents=[agent]) as runtime:
            await runtime.resume("s", take_over=True)
            session = await runtime.load("s")

        where = f"after {appends} appends: {[e.type for e in before]}"
        if ("pre_request", "") in passed:
            assert world.hooks["pre_request"] == hooks["pre_request"], where
        for point, at in passed:
            if point == "end_turn":
                assert world.hooks[f"end_turn {at}"] == hooks[f"end_turn {at}"], where
            if point == "after_tool":
                assert world.hooks[f"after {at}"] == hooks[f"after {at}"], where
        lines = said(session.get_messages())
        assert lines.count("user: be careful") == 1, where
        assert lines.count("user: the end") == 1, where
        for call_id in called(before):
            assert lines.count(f"user: noted {call_id}") == 1, where
        if finished:
            return
    pytest.fail("the run makes more appends than that")


async def test_a_call_that_started_and_did_not_end_is_interrupted_outcome_unknown(place: Place) -> None:
    seen: list[Result] = []
    runs: list[int] = []

    @tool
    async def pay() -> str:
        """Pay."""
        runs.append(1)
        return "paid"

    def decide(request: Request) -> Any:
        seen.extend(request.messages[-1].results)
        return "I will look first" if request.messages[-1].results else call("pay")

    agent = Agent("a", model=Script(decide), tools=[pay])
    await crash_after(place, agent, "tool_started")
    runs.clear()

    async with Runtime(place.store(), agents=[agent]) as runtime:
        reply = await runtime.resume("s", take_over=True)

    assert reply.text == "I will look first"
    assert runs == []
    assert seen[-1].is_error
    assert "interrupted, outcome unknown" in seen[-1].text


async def test_a_resumed_model_call_reads_what_hooks_made_of_its_request(tmp_path: Path) -> None:
    place = Place(tmp_path / "log.db")
    requests: list[Request] = []
    runs: list[int] = []

    def decide(request: Request) -> str:
        requests.append(request)
        return "ok"

    def changes(session: SessionAccess, request: Request) -> Request:
        runs.append(1)
        extra = Message("user", request.messages[0].parts)
        return request.replace(instructions=f"run {len(runs)}", messages=[*request.messages, extra], tools=())

    hooks = Hooks(before_model=[changes])
    agent = Agent("a", model=Script(decide), hooks=hooks, tools=[tool(_nothing)])
    await crash_after(place, agent, "model_started")
    runs.clear()
    first = requests[-1]

    async with Runtime(place.store(), agents=[agent]) as runtime:
        await runtime.resume("s", take_over=True)

    assert runs == []
    assert requests[-1] == first
    assert requests[-1].instructions.startswith("run ")


async def _nothing() -> None:
    """Do nothing."""


async def test_a_crashed_turn_can_crash_again_while_it_resumes(place: Place) -> None:
    world = World()
    agent = world.agent(hooked=True)
    await crash(place, agent, 3)
    for appends in range(2, MOST):
        try:
            async with Runtime(place.dying(appends), agents=[agent]) as runtime:
                reply = await runtime.resume("s", take_over=True)
        except StoreError:
            continue
        assert reply.text == "paid after 3 steps.."
        assert all(count <= 1 for who, count in world.effects.items() if who in ("ann", "bob", "cy", "rain"))
        return
    pytest.fail("it never came to an end")


async def test_a_response_by_a_model_failed_hook_survives_a_crash(place: Place) -> None:
    from upcall import ModelUnavailable

    hooks = Hooks(model_failed=[lambda session, request, error: Response("from the hook")])
    agent = Agent("a", model=Script(lambda r: ModelUnavailable("m", "gone")), hooks=hooks)
    for appends in range(2, 9):
        place = Place()
        finished = await crash(place, agent, appends)
        async with Runtime(place.store(), agents=[agent]) as runtime:
            assert (await runtime.resume("s", take_over=True)).text == "from the hook"
        if finished:
            return
    pytest.fail("the run makes more appends than that")
