"""Tools that change while a session runs, come from toolsets, and obey the same rules as an agent's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seams.toolsets import Shelf, asks, echo
from upcall import (
    Agent,
    Limits,
    Reply,
    Request,
    Response,
    Runtime,
    Session,
    SessionReads,
    Team,
    Tool,
    ToolsetFailed,
    tool,
)
from upcall.errors import RuntimeClosed
from upcall.events import ModelStarted
from upcall.kit import approve
from upcall.models import Script, call


def names(request: Request) -> list[str]:
    return [one.name for one in request.tools if one.name not in ("ask", "task") and "callback" not in one.name]


def last_result(session: Session) -> str:
    return [m for m in session.get_messages() if m.role == "tool"][-1].results[0].text


async def test_a_tool_that_comes_and_goes_between_two_model_calls_is_declared_and_runs_as_it_is_there() -> None:
    shelf, seen = Shelf(echo("a")), list[list[str]]()

    def model(request: Request) -> Any:
        seen.append(names(request))
        if len(seen) == 1:
            shelf.tools = [echo("b")]
            return call("a", text="1")
        if len(seen) == 2:
            shelf.tools = []
            return call("b", text="2")
        return call("b", text="3") if len(seen) == 3 else "done"

    agent = Agent("worker", model=Script(model), tools=[shelf])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
        results = [m.results[0] for m in session.get_messages() if m.role == "tool"]
    assert seen == [["a"], ["b"], [], []]
    assert [r.text for r in results[:2]] == ["a says 1", "b says 2"]
    assert results[2].is_error
    assert "there is no tool called 'b'" in results[2].text


async def test_a_call_whose_tool_is_gone_when_its_turn_comes_gets_an_error_that_the_model_can_read() -> None:
    gone = Agent("worker", model=Script([call("never", text="x"), "done"]), tools=[Shelf(echo("other"))])
    async with Runtime(agents=[gone]) as runtime:
        session = await runtime.start(gone)
        assert (await session.prompt("go")).status == "done"
        assert "The tools are: " in last_result(session)
        assert "other" in last_result(session)


def crew(shelf: Shelf, **options: Any) -> Agent:
    """An agent whose model calls `wait` once, from the request alone, and then repeats the result."""

    def model(request: Request) -> Any:
        last = request.messages[-1]
        return last.results[0].text if last.role == "tool" else call("wait", text="How long?")

    return Agent("worker", model=Script(model), tools=[shelf], **options)


async def parked(path: Path) -> None:
    async with Runtime(path, agents=[agent := crew(Shelf(asks("wait")))]) as runtime:
        session = await runtime.start(agent, id="s")
        reply = await session.prompt("go")
        assert reply.status == "waiting"
        await runtime.answer(reply.callbacks[0].id, "an hour", by="ops")


async def test_a_parked_call_continues_in_another_runtime_where_its_tool_is_there_again(tmp_path: Path) -> None:
    await parked(tmp_path / "log.db")
    async with Runtime(tmp_path / "log.db", agents=[crew(Shelf(asks("wait")))]) as runtime:
        assert (await runtime.resume("s")).text == "wait was told an hour"


async def test_a_parked_call_whose_tool_is_gone_gets_an_error_with_its_answer(tmp_path: Path) -> None:
    await parked(tmp_path / "log.db")
    async with Runtime(tmp_path / "log.db", agents=[crew(Shelf(echo("other")))]) as runtime:
        reply = await runtime.resume("s")
        assert "there is no tool called 'wait'" in reply.text
        assert "an hour" in reply.text


async def test_a_toolset_that_fails_on_resume_loses_no_answer(tmp_path: Path) -> None:
    await parked(tmp_path / "log.db")
    shelf = Shelf(asks("wait"))
    agent = crew(Failing(shelf, failures=1))  # pyright: ignore[reportArgumentType]
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        with pytest.raises(ToolsetFailed, match=r"'shelf'.*ConnectionError: no route"):
            await runtime.resume("s")
        assert await runtime.status("s") == "failed"
        assert (await runtime.resume("s")).text == "wait was told an hour"


class Failing:
    """A toolset that fails a few times, then works."""

    def __init__(self, shelf: Shelf, failures: int) -> None:
        self.name, self.shelf, self.failures = shelf.name, shelf, failures

    async def list_tools(self, session: SessionReads) -> Sequence[Any]:
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionError("no route")
        return await self.shelf.list_tools(session)


class Hanging:
    """A toolset that never answers, and does not end when it is cancelled."""

    name = "deaf"

    def __init__(self) -> None:
        self.free = asyncio.Event()

    async def list_tools(self, session: SessionReads) -> Sequence[Any]:
        while not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                continue
        return []


async def test_a_toolset_that_hangs_fails_the_turn_within_its_time_and_can_be_cancelled() -> None:
    deaf = Hanging()
    asyncio.get_running_loop().call_later(20, deaf.free.set)  # or a failed test would never end
    agent = Agent("a", model=Script(["hi"]), tools=[deaf], limits=Limits(toolset_seconds=0.1))
    patient = Agent("b", model=Script(["hi"]), tools=[deaf])
    async with Runtime(agents=[agent, patient]) as runtime:
        session, began = await runtime.start(agent), time.monotonic()
        with pytest.raises(ToolsetFailed, match=r"'deaf': it did not list its tools within 0.1 s"):
            await session.prompt("go")
        assert time.monotonic() - began < 5
        waiting = await runtime.start(patient)
        turn = asyncio.ensure_future(waiting.prompt("go"))
        async for event in runtime.events(waiting.id, follow=True):
            if event.type == "turn_started":
                break
        await waiting.cancel()
        assert (await turn).status == "cancelled"
        deaf.free.set()


@pytest.mark.parametrize(
    ("offers", "problem"),
    [
        (lambda: [echo("own")], "'shelf'.*'own'.*the agent itself"),
        (lambda: [echo("ask")], "'shelf'.*'ask'.*the agent itself"),
        (lambda: [echo("answer_callback")], "'shelf'.*the runtime"),
        (lambda: [echo("of_other")], "'shelf'.*'of_other'.*toolset 'other'"),
        (lambda: [echo("twice"), echo("twice")], "'shelf'.*'twice'.*toolset 'shelf'"),
        (lambda: ["no tool"], "'shelf'.*a typed function"),
        (lambda: None, "'shelf'.*TypeError"),
        (lambda: [echo("t")] * 2000, "2000 tools"),
        (lambda: [echo(f"t{n}", description="x" * 20_000) for n in range(300)], "bytes"),
    ],
)
async def test_what_a_toolset_offers_wrongly_fails_the_turn_with_both_names(
    offers: Callable[[], Any], problem: str
) -> None:
    @tool
    def own(text: str) -> str:
        return text

    shelf, other = Shelf(), Shelf(echo("of_other"), name="other")
    agent = Agent("a", model=Script(["hi"]), tools=[own, other, Offering(offers)])
    async with Runtime(":memory:", agents=[agent], host=Person()) as runtime:
        with pytest.raises(ToolsetFailed, match=problem):
            await (await runtime.start(agent)).prompt("go")
    assert shelf.asked == []


class Offering:
    """A toolset that offers whatever it is told to."""

    name = "shelf"

    def __init__(self, offers: Callable[[], Any]) -> None:
        self.offers = offers

    async def list_tools(self, session: SessionReads) -> Any:
        return self.offers()


class Person:
    """A host that leaves everything waiting."""

    async def ask(self, callback: Any) -> Any:
        return None

    def withdraw(self, callback_id: str, reason: str) -> None: ...


async def test_approvals_of_the_tool_and_of_the_kit_apply_to_a_toolset_s_tools(tmp_path: Path) -> None:
    for options, kit in (({"needs_approval": True}, []), ({}, [approve("all_ask")])):
        shelf = Shelf(echo("wait", **options))
        async with Runtime(tmp_path / f"{len(kit)}.db", agents=[agent := crew(shelf, kit=kit)]) as runtime:
            session = await runtime.start(agent)
            reply = await session.prompt("go")
            assert [(c.tool, c.args) for c in reply.callbacks] == [("wait", {"text": "How long?"})]
            await runtime.answer(reply.callbacks[0].id, "approve", by="ops")
            assert (await session.resume()).text == "wait says How long?"


@pytest.mark.parametrize(
    ("manager_has", "outcome"), [([echo("wait")], "wait says How long?"), ([], "it has no tool wait itself")]
)
async def test_the_permission_ceiling_knows_the_tools_of_the_approver_s_toolsets(
    manager_has: list[Tool], outcome: str, tmp_path: Path
) -> None:
    def lead(request: Request) -> Any:
        if request.purpose == "side_turn":
            results = [m for m in request.messages if m.role == "tool" and "no tool wait" in m.results[0].text]
            return (
                call("pass_up_callback", reason="may not") if results else call("answer_callback", value="approve")
            )
        done = [m.results[0].text for m in request.messages if m.role == "tool"]
        return done[0] if done else call("task", agent="worker", prompt="go")

    worker = crew(Shelf(echo("wait", needs_approval=True)))
    shelf = Shelf(*manager_has)
    manager = Agent(
        "manager", model=Script(lead), tools=[shelf], agents=[worker], callback_policy={"may_approve": ["wait"]}
    )
    async with Runtime(tmp_path / "log.db", agents=[manager]) as runtime:
        session = await runtime.start(manager, id="m")
        reply = await session.prompt("go")
        if manager_has:
            assert reply.text == outcome
        else:
            assert reply.status == "waiting"
            side = [row.id for row in await runtime.rows() if row.kind == "side_turn"]
            assert outcome in str((await runtime.load(side[0])).get_messages())
    assert {*shelf.asked} == {"m turn"}  # the side turn declares what the turn declares


async def test_a_child_has_the_toolsets_of_its_own_agent_and_not_its_parent_s() -> None:
    seen: dict[str, list[str]] = {}

    def lead(request: Request) -> Any:
        seen["manager"] = names(request)
        return "done" if request.messages[-1].role == "tool" else call("task", agent="worker", prompt="go")

    def work(request: Request) -> str:
        seen["worker"] = names(request)
        return "done"

    below, above = Shelf(echo("below")), Shelf(echo("above"))
    worker = Agent("worker", model=Script(work), tools=[below])
    manager = Agent("manager", model=Script(lead), tools=[above], agents=[worker])
    async with Runtime(agents=[manager]) as runtime:
        session = await runtime.start(manager, id="m")
        await session.prompt("go")
    assert seen == {"manager": ["above"], "worker": ["below"]}
    assert above.asked == ["m turn", "m turn"]
    assert len(below.asked) == 1
    assert below.asked[0].startswith("m~")


async def test_a_team_s_manager_keeps_its_toolset() -> None:
    shelf = Shelf(echo("look"))
    plan = '[{"role": "dev", "task": "x", "sequence": 1, "caller": "boss"}]'
    boss = Agent("boss", model=Script([plan]), tools=[shelf])
    team = Team(manager=boss, roles={"dev": Agent("dev", model=Script(["did it"]))})
    async with Runtime(agents=[team]) as runtime:
        reply: Reply = await (await runtime.start(team)).prompt("go")
        assert reply.status == "done"
    assert shelf.asked


async def test_the_log_has_for_every_model_call_exactly_the_tools_that_were_sent(tmp_path: Path) -> None:
    shelf, sent = Shelf(echo("a")), list[Any]()

    def model(request: Request) -> Any:
        sent.append(request.tools)
        shelf.tools = [echo("b")] if len(sent) == 1 else [echo("a")]
        return call(request.tools[-1].name, text="x") if len(sent) < 4 else "done"

    agent = Agent("a", model=Script(model), tools=[shelf])
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
        logged, newest = list[bytes](), ""
        async for event in runtime.events(session.id):
            if isinstance(event, ModelStarted):
                newest = event.tools or newest
                logged.append(await runtime.store.blob(newest))
    assert logged == [msgspec.json.encode(tools) for tools in sent]


class Slow:
    """A model whose first call never ends."""

    name = "slow"

    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def respond(self, request: Request, emit: Any) -> Response:
        self.began.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_model_call_that_is_repeated_after_a_crash_has_the_tools_of_its_log(tmp_path: Path) -> None:
    slow, seen = Slow(), list[list[str]]()

    def model(request: Request) -> Any:
        seen.append(names(request))
        return call("a", text="x") if len(seen) == 1 else "done"

    async with Runtime(tmp_path / "log.db") as runtime:
        session = await runtime.start(Agent("a", model=slow, tools=[Shelf(echo("a"))]), id="s")
        turn = asyncio.ensure_future(session.prompt("go"))
        await slow.began.wait()
        await runtime.close()
        with pytest.raises(RuntimeClosed):
            await turn
    later = Agent("a", model=Script(model), tools=[Shelf(echo("b"))])
    async with Runtime(tmp_path / "log.db", agents=[later]) as runtime:
        assert (await runtime.resume("s")).status == "done"
        assert "there is no tool called 'a'" in last_result(await runtime.load("s"))
    assert seen == [["a"], ["b"]]


async def test_a_summary_between_turns_declares_the_toolset_s_tools(tmp_path: Path) -> None:
    seen = list[list[str]]()

    def model(request: Request) -> Any:
        seen.append(names(request))
        return "summary" if request.purpose == "summary" else "hi"

    agent = Agent("a", model=Script(model), tools=[Shelf(echo("a"))])
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        session = await runtime.start(agent)
        for text in ("one", "two", "three"):
            await session.prompt(text)
        await session.trigger_compaction(keep_last=1)
    assert seen == [["a"]] * 4
