"""The tool `task`: children with ids that follow from the call, side by side, within limits, linked in the log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callbacks.doubles import Desk, answers, asker, at_work, delegates, passes, results, worker
from upcall import Agent, Context, Limits, Request, Runtime, tool
from upcall.events import SessionStarted
from upcall.models import Script, call


def echo(name: str = "developer", **options: Any) -> Agent:
    return Agent(name, model=Script(lambda r: f"{name} did {r.messages[0].text}"), **options)


async def test_task_is_offered_with_the_names_and_descriptions_of_the_agents_below(desk: Desk) -> None:
    seen: list[Request] = []

    def decide(request: Request) -> str:
        seen.append(request)
        return "ok"

    below = [echo("developer", description="writes code"), echo("tester")]
    await desk.prompt(Agent("manager", model=Script(decide), agents=below))

    (task,) = [t for t in seen[0].tools if t.name == "task"]
    assert "developer: writes code; tester" in task.description
    assert task.schema["properties"]["agent"]["enum"] == ["developer", "tester"]


async def test_a_task_starts_a_child_whose_id_follows_from_parent_and_call(desk: Desk) -> None:
    manager = delegates("manager", echo())

    reply = await desk.prompt(manager)

    async with desk.runtime(manager) as runtime:
        (child,) = await runtime.rows(parent="s")
        assert child.id == f"s~{results((await runtime.load('s')).get_messages())[0].call_id}"
        assert ((await runtime.load(child.id)).parent, child.root, child.agent) == ("s", "s", "developer")
    assert reply.text == "developer did do it"


async def test_a_childs_events_name_parent_root_and_depth(desk: Desk) -> None:
    top = delegates("top", delegates("middle", echo()))

    await desk.prompt(top)
    log = await desk.log(top, None)

    started = {e.agent: e for e in log if isinstance(e, SessionStarted)}
    assert [(e.parent, e.root, e.depth) for e in started.values()] == [
        ("", "", 0),
        ("s", "s", 1),
        (started["middle"].session, "s", 2),
    ]
    assert started["developer"].session.startswith(started["middle"].session + "~")


async def test_parallel_tasks_are_parallel_children(desk: Desk) -> None:
    together = asyncio.Barrier(3)

    @tool
    async def meet() -> str:
        """Wait for the others."""
        async with asyncio.timeout(5):
            await together.wait()
        return "met"

    child = Agent("developer", model=worker(call("meet")), tools=[meet])
    manager = Agent(
        "manager",
        model=worker(*(call("task", agent="developer", prompt=str(i)) for i in range(3))),
        agents=[child],
    )

    reply = await desk.prompt(manager)

    assert reply.text == "met; met; met"


async def test_a_child_that_waits_does_not_hold_up_its_siblings(desk: Desk) -> None:
    ended: list[str] = []

    @tool
    async def work(ctx: Context) -> str:
        """Work; the first one asks."""
        text = ctx.get_messages()[0].text
        if text == "0":
            return str(await ctx.raise_callback("which?", kind="request_user_input"))
        ended.append(text)
        return text

    child = at_work(work)
    manager = Agent(
        "manager",
        model=worker(*(call("task", agent="developer", prompt=str(i)) for i in range(3))),
        agents=[child],
    )

    waiting = await desk.prompt(manager)
    assert (waiting.status, sorted(ended)) == ("waiting", ["1", "2"])
    await desk.settle(manager, "this")
    done = await desk.resume(manager)

    assert (done.text, sorted(ended)) == ("this; 1; 2", ["1", "2"])


async def test_equal_provider_ids_never_join_two_children(desk: Desk) -> None:
    prompts = iter(["first", "second"])

    def decide(request: Request) -> Any:
        said = results(request.messages)
        if len(said) == 2:
            return " | ".join(r.text for r in said)
        return call("task", agent="developer", prompt=next(prompts)).replace(id="call_0")

    reply = await desk.prompt(Agent("manager", model=Script(decide), agents=[echo()]))

    assert reply.text == "developer did first | developer did second"


@pytest.mark.parametrize(
    ("limits", "name"), [(Limits(children=1), "children"), (Limits(depth=0), "depth")], ids=["children", "depth"]
)
async def test_children_and_depth_have_limits_that_end_the_turn_by_name(
    limits: Limits, name: str, desk: Desk
) -> None:
    calls = [call("task", agent="developer", prompt=str(i)) for i in range(2)]
    manager = Agent("manager", model=worker(*calls), agents=[echo()], limits=limits)

    reply = await desk.prompt(manager)

    assert (reply.status, reply.limit) == ("limit", name)


async def test_a_depth_that_the_root_sets_holds_for_all_below_it(desk: Desk) -> None:
    lead = delegates("lead", echo())
    manager = delegates("manager", lead, limits=Limits(depth=1))

    await desk.prompt(manager)

    assert "lead ended with limit depth" in results(await desk.messages(manager))[0].text


async def test_depth_and_children_have_defaults(desk: Desk) -> None:
    assert (Limits().depth, Limits().children) == (5, 100)


async def test_a_child_that_fails_or_reaches_a_limit_is_an_error_result_that_says_so(desk: Desk) -> None:
    broken = Agent("broken", model=Script([RuntimeError("boom")]))
    endless = Agent("endless", model=Script(lambda _: call("nothing")), limits=Limits(model_calls=2))
    manager = Agent(
        "manager",
        model=worker(call("task", agent="broken", prompt="x"), call("task", agent="endless", prompt="y")),
        agents=[broken, endless],
    )

    await desk.prompt(manager)
    said = results(await desk.messages(manager))

    assert [r.is_error for r in said] == [True, True]
    assert "boom" in said[0].text
    assert "endless ended with limit model_calls" in said[1].text


async def test_running_the_call_again_continues_the_child_and_asks_no_model_to_plan_again(place: Desk) -> None:
    planned: list[str] = []

    def plan(request: Request) -> Any:
        planned.append(request.agent)
        said = results(request.messages)
        return said[0].text if said else call("task", agent="developer", prompt="x")

    manager = Agent("manager", model=Script(plan), agents=[asker(kind="request_user_input")])

    await place.prompt(manager)
    await place.settle(manager, "blue")
    done = await place.resume(manager)

    assert (done.text, planned) == ("'blue'", ["manager", "manager"])
    async with place.runtime(manager) as runtime:
        assert len(await runtime.rows(parent="s")) == 1


async def test_a_childs_id_resumes_its_whole_tree(desk: Desk) -> None:
    manager = delegates("manager", asker(kind="request_user_input"))
    waiting = await desk.prompt(manager)
    await desk.settle(manager, "blue")

    reply = await desk.resume(manager, waiting.callbacks[0].session_id)

    assert (reply.session_id, reply.text) == ("s", "'blue'")


async def test_an_agent_below_is_not_reached_by_a_name_that_is_not_its_own(desk: Desk) -> None:
    manager = Agent("manager", model=worker(call("task", agent="nobody", prompt="x")), agents=[echo()])

    reply = await desk.prompt(manager)

    assert "task did not run" in reply.text
    assert "developer" in reply.text


async def test_three_levels_deep_a_question_climbs_past_two_who_do_not_know(desk: Desk) -> None:
    top = delegates("top", delegates("middle", asker(), passes("ask top")), answers("blue"))

    async with Runtime(agents=[top]) as runtime:
        reply = await (await runtime.start(top)).prompt("go")

    assert reply.text == "'blue'"
    assert [(s.agent, s.step) for s in reply.callbacks[0].path] == [
        ("middle", "asked"), ("middle", "passed"), ("top", "asked"),
    ]  # fmt: skip


async def test_a_parent_continues_when_its_waiting_child_is_cancelled_by_its_id(place: Desk) -> None:
    boss = delegates("boss", asker(kind="request_user_input"))
    waiting = await place.prompt(boss)
    (callback,) = waiting.callbacks
    async with place.runtime(boss) as runtime, asyncio.timeout(20):
        await runtime.cancel(callback.session_id)
        assert await runtime.status(callback.session_id) == "cancelled"
        assert await runtime.ready() == ["s"]
        assert not await runtime.inbox()
        stop = asyncio.Event()
        working = asyncio.ensure_future(runtime.work(stop))
        async for event in runtime.events("s", follow=True):
            if event.type == "turn_ended":
                break
        stop.set()
        await working
        reply = await runtime.resume("s")

    assert reply.status == "done"
    assert "cancelled" in reply.text


async def test_the_other_children_keep_waiting_when_one_of_them_is_cancelled(place: Desk) -> None:
    below = asker(kind="request_user_input")
    tasks = [call("task", agent=below.name, prompt=text) for text in ("first", "second")]
    boss = Agent("boss", model=worker(*tasks), agents=[below])
    waiting = await place.prompt(boss)
    first, second = waiting.callbacks
    async with place.runtime(boss) as runtime:
        await runtime.cancel(first.session_id)
    again = await place.resume(boss)
    await place.settle(boss, "blue")
    done = await place.resume(boss)

    assert again.status == "waiting"
    assert [one.status for one in done.callbacks if one.id == second.id] == ["answered"]
    assert done.status == "done"
    assert "'blue'" in done.text
