"""Model calls that are rebuilt from the log equal those that the models got."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from observe.recorded import results
from upcall import Agent, Context, Hooks, Request, Runtime, tool
from upcall.contracts import SessionAccess
from upcall.errors import ContextTooLong
from upcall.messages import Message, Response, Text, Usage, user
from upcall.models import Script, call
from upcall.settings import Settings


class Recording:
    """A model that remembers its requests, in order, and what it replied."""

    def __init__(self, think: Any, name: str = "recording") -> None:
        self.name, self._script = name, Script(think)
        self.requests: list[Request] = []

    async def respond(self, request: Request, emit: Any) -> Response:
        self.requests.append(request.replace(messages=list(request.messages)))
        return (await self._script.respond(request, emit)).replace(usage=Usage(7, 3, 2), model="m-1", stop="end")


def as_logged(request: Request) -> Request:
    settings = request.settings.for_log() if request.settings is not None and request.settings.given() else None
    return request.replace(messages=list(request.messages), settings=settings)


async def rebuilt(runtime: Runtime, tree: str) -> list[Request]:
    log = [event async for event in runtime.events(tree=tree)]
    calls = [await runtime.model_call(e.session, seq=e.seq) for e in log if e.type == "model_started"]
    assert None not in calls
    return [as_logged(one.request) for one in calls if one is not None]


def hooks_that_change_everything() -> Hooks:
    def pre_request(session: SessionAccess, message: Message) -> Message:
        return user(f"{message.text}, please")

    def before_model(session: SessionAccess, request: Request) -> Request:
        note = Message("user", (Text(f"call {len(request.messages)}"),))
        session.add_message("user", "a note of a hook")
        settings = Settings(temperature=0.5, extra_headers={"X-Run": "secret"})
        kept = request.messages[1:] if len(request.messages) > 3 else request.messages
        return request.replace(
            messages=[note, *kept],
            instructions=f"{request.instructions}!",
            tools=request.tools[:1],
            settings=settings,
        )

    def post_response(session: SessionAccess, response: Response) -> Response | None:
        return response.replace(text=f"<{response.text}>") if response.text else None

    return Hooks(pre_request=[pre_request], before_model=[before_model], post_response=[post_response])


@tool
async def paint(thing: str, ctx: Context) -> str:
    """Paint something."""
    return f"{thing} is {await ctx.raise_callback('Which colour?', 'clarification')}"


@tool
def look(thing: str) -> str:
    """Look at something."""
    return f"saw {thing}"


def painter(request: Request) -> Any:
    if request.purpose == "summary":
        return "what happened so far"
    if request.purpose == "side_turn" or any(message.results for message in request.messages[-2:]):
        return "done"
    return [call("look", thing="wall"), call("look", thing="door")]


@pytest.mark.parametrize("hooks", [Hooks(), hooks_that_change_everything()], ids=["plain", "hooked"])
async def test_rebuilt_requests_equal_those_the_model_got_across_turns_hooks_and_compactions(hooks: Hooks) -> None:
    turns: list[Any] = []

    async def end_turn(session: SessionAccess, reply: Any) -> None:
        turns.append(reply)
        if len(turns) == 3:
            await session.trigger_compaction()
        elif len(turns) == 2:
            session.compact_messages(keep_last=2)
        await session.prompt("what did you do?")

    model = Recording(painter)
    settings = Settings(max_tokens=900, tool_choice="auto", extra_headers={"X-Team": "blue"})
    agent = Agent(
        "painter",
        instructions="Paint well.",
        model=model,
        tools=[look, paint],
        settings=settings,
        hooks=hooks.adding(end_turn=[end_turn]),
    )
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, id="run")
        for prompt in ("one", "two", "three", "four"):
            await session.prompt(prompt)

        assert [one.purpose for one in model.requests].count("summary") == 1
        assert await rebuilt(runtime, "run") == [as_logged(request) for request in model.requests]


async def test_rebuilt_requests_equal_those_the_models_got_across_delegation_side_turns_and_a_resume(
    tmp_path: Path,
) -> None:
    def lead(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("pass_up_callback", reason="ask the customer")
        return results(request)[-1] if results(request) else call("task", agent="painter", prompt="the wall")

    def paint_it(request: Request) -> Any:
        return (
            results(request)[-1] if results(request) else [call("look", thing="wall"), call("paint", thing="wall")]
        )

    log = tmp_path / "log.db"
    below, above = Recording(paint_it), Recording(lead)
    agent = Agent(
        "lead",
        model=above,
        agents=[Agent("painter", model=below, tools=[look, paint], description="paints")],
        can_use_host_interaction=True,
    )
    async with Runtime(log, agents=[agent]) as runtime:
        session = await runtime.start(agent, id="run")
        assert (await session.prompt("Paint the wall")).status == "waiting"
        (question,) = await runtime.inbox()
        await runtime.answer(question.id, "green")
    async with Runtime(log, agents=[agent]) as runtime:
        assert (await runtime.resume("run")).status == "done"
        found = await rebuilt(runtime, "run")

    got = [as_logged(request) for request in (*above.requests, *below.requests)]
    assert len(found) == len(got) == 5
    assert all(one in got for one in found)
    assert all(one in found for one in got)


async def test_requests_that_are_sent_again_after_a_failure_are_rebuilt_each_as_it_was() -> None:
    tries = iter([ContextTooLong("m-1", 9, 5), None])

    def fail_once(request: Request) -> Any:
        if request.purpose == "turn" and (failure := next(tries, None)):
            raise failure
        return "a summary" if request.purpose == "summary" else "done"

    async def model_failed(session: SessionAccess, request: Request, error: Exception) -> Request:
        return request.replace(messages=request.messages[-1:])

    model = Recording(fail_once)
    agent = Agent("a", model=model, hooks=Hooks(model_failed=[model_failed]))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, id="run")
        await session.prompt("hello")

        assert len(model.requests) == 2
        assert await rebuilt(runtime, "run") == [as_logged(request) for request in model.requests]
        first, second = [await runtime.model_call("run", number) for number in (1, 2)]
    assert first is not None
    assert second is not None
    assert first.error
    assert second.response is not None


async def test_a_model_call_has_its_response_as_the_hooks_left_it_its_tokens_and_its_times() -> None:
    model = Recording(painter)
    agent = Agent("painter", model=model, tools=[look], hooks=hooks_that_change_everything())
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, id="run")
        await session.prompt("one")
        first, second, none = [await runtime.model_call("run", number) for number in (1, 2, 3)]

    assert none is None
    assert first is not None
    assert first.response is not None
    assert [one.name for one in first.response.calls] == ["look", "look"]
    assert (first.response.usage, first.response.model, first.response.stop) == (Usage(7, 3, 2), "m-1", "end")
    assert second is not None
    assert second.response is not None
    assert (second.response.text, second.changed_by_hook, second.by_hook) == ("<done>", True, False)
    assert second.ended is not None
    assert second.started <= second.ended
