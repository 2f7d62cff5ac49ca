"""Approvals for the session: they settle what waits already, and never anything that the approver did not see."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from callbacks.doubles import Desk, Person, answers, delegates, never, worker
from upcall import Agent, AnswerRefused, Approve, Callback, Reject, Runtime, tool
from upcall.callbacks import CoveredCall
from upcall.events import CallbackAnswered
from upcall.models import call

Ran = list[str]


@pytest.fixture
def ran() -> Ran:
    return []


def folder(path: str) -> str:
    return path.rpartition("/")[0]


def writer(ran: Ran, *paths: str, name: str = "writer") -> Agent:
    """An agent that writes these files side by side, each only if somebody approves it."""

    @tool(needs_approval=True, approve_patterns={"folder": folder})
    async def write(path: str) -> str:
        """Write."""
        ran.append(path)
        return f"wrote {path}"

    @tool(needs_approval=True, approve_patterns={"folder": folder})
    async def delete(path: str) -> str:
        """Delete."""
        ran.append(f"deleted {path}")
        return f"deleted {path}"

    calls = [call("delete", path=p[1:]) if p.startswith("-") else call("write", path=p) for p in paths]
    return Agent(name, model=worker(*calls), tools=[write, delete])


def entry(inbox: list[Callback], path: str, tool: str = "write") -> Callback:
    return next(c for c in inbox if (c.tool, c.args) == (tool, {"path": path}))


# --- equal calls --------------------------------------------------------------------------


async def test_an_approval_for_the_session_settles_equal_calls_that_wait_already(place: Desk, ran: Ran) -> None:
    agent = writer(ran, "a/x", "a/x", "a/y")
    await place.prompt(agent)
    async with place.runtime(agent) as runtime:
        inbox = await runtime.inbox()
        settled = await runtime.answer(entry(inbox, "a/x").id, Approve(for_session=True), by="ann")
        (left,) = await runtime.inbox()
    equal = {c.id for c in inbox if c.args == {"path": "a/x"}}

    assert set(settled.group) == equal
    assert left.args == {"path": "a/y"}
    reply = await place.resume(agent)
    assert (reply.status, ran) == ("waiting", ["a/x", "a/x"])
    events = {e.callback_id: e for e in await place.log(agent) if isinstance(e, CallbackAnswered)}
    (other,) = equal - {settled.id}
    assert (events[other].by, events[other].covered_by, events[settled.id].covered_by) == ("ann", settled.id, "")


async def test_an_approval_for_once_settles_no_equal_call(place: Desk, ran: Ran) -> None:
    agent = writer(ran, "a/x", "a/x")
    await place.prompt(agent)
    async with place.runtime(agent) as runtime:
        first, _ = await runtime.inbox()
        await runtime.answer(first.id, Approve())
        assert len(await runtime.inbox()) == 1


async def test_only_one_is_settled_with_only(desk: Desk, ran: Ran) -> None:
    agent = writer(ran, "a/x", "a/x")
    await desk.prompt(agent)
    async with desk.runtime(agent) as runtime:
        first, _ = await runtime.inbox()
        await runtime.answer(first.id, Approve(for_session=True), only=True)
        assert len(await runtime.inbox()) == 1


async def test_a_rejection_for_the_session_rejects_equal_calls_that_wait_already(place: Desk, ran: Ran) -> None:
    agent = writer(ran, "a/x", "a/x")
    await place.prompt(agent)
    async with place.runtime(agent) as runtime:
        first, _ = await runtime.inbox()
        await runtime.answer(first.id, Reject("no", for_session=True), by="ann")

    reply = await place.resume(agent)

    assert (reply.status, ran) == ("done", [])
    assert reply.text.count("rejected by ann: no") == 2


async def test_edited_arguments_for_the_session_settle_the_calls_that_equal_the_edited_one(
    place: Desk, ran: Ran
) -> None:
    agent = writer(ran, "a/x", "a/y", "a/x")
    await place.prompt(agent)
    async with place.runtime(agent) as runtime:
        first = next(c for c in await runtime.inbox() if c.args == {"path": "a/x"})
        await runtime.answer(first.id, Approve(args={"path": "a/y"}, for_session=True))
        (left,) = await runtime.inbox()

    assert left.args == {"path": "a/x"}
    await place.resume(agent)
    assert ran == ["a/y", "a/y"]


async def test_an_agents_approval_for_the_session_settles_equal_calls_that_wait_already(
    desk: Desk, ran: Ran
) -> None:
    asked: list[str] = []

    def approve(request: Any) -> Any:
        asked.append(request.messages[-1].text)
        return call("answer_callback", value={"approve": True, "for_session": True})

    below = writer(ran, "a/x", "a/x")
    free = [one.replace(needs_approval=False) for one in below.tools]
    above = delegates("lead", below, approve, tools=free, callback_policy={"may_approve": ["write"]})
    reply = await desk.prompt(above)

    assert (reply.status, ran, len(asked)) == ("done", ["a/x", "a/x"], 1)


async def test_an_approval_covers_nothing_of_another_session(place: Desk, ran: Ran) -> None:
    below = writer(ran, "a/x")
    task = call("task", agent="writer", prompt="do it")
    above = Agent("lead", model=worker(task, task, aside=answers_nothing), agents=[below])
    await place.prompt(above)
    async with place.runtime(above) as runtime:
        first, second = await runtime.inbox()
        assert first.session_id != second.session_id
        assert (first.covers, second.covers) == ({}, {})
        await runtime.answer(first.id, Approve(for_session=True))
        with pytest.raises(AnswerRefused, match="not a call of this session"):
            await runtime.answer(second.id, Approve(pattern="folder", also=(first.id,)))
        assert [c.id for c in await runtime.inbox()] == [second.id]


def answers_nothing(_: Any) -> Any:
    return call("pass_up_callback", reason="not mine")


# --- patterns -----------------------------------------------------------------------------


async def test_the_inbox_lists_for_each_pattern_the_waiting_calls_that_it_covers(place: Desk, ran: Ran) -> None:
    agent = writer(ran, "a/x", "a/y", "b/z", "-a/x")
    await place.prompt(agent)
    inbox = await place.inbox(agent)

    x, y = entry(inbox, "a/x"), entry(inbox, "a/y")
    assert x.patterns == {"folder": "a"}
    assert x.covers == {"folder": (CoveredCall(y.id, {"path": "a/y"}),)}
    assert entry(inbox, "b/z").covers == {}
    assert entry(inbox, "a/x", "delete").covers == {}


async def test_an_approval_by_a_pattern_settles_exactly_the_calls_that_were_listed(place: Desk, ran: Ran) -> None:
    agent = writer(ran, "a/x", "a/y", "a/z", "b/z")
    await place.prompt(agent)
    async with place.runtime(agent) as runtime:
        inbox = await runtime.inbox()
        listed = [one.id for one in entry(inbox, "a/x").covers["folder"]]
        assert listed == [entry(inbox, "a/y").id, entry(inbox, "a/z").id]
        await runtime.answer(entry(inbox, "a/x").id, Approve(pattern="folder", also=tuple(listed[:1])))
        left = {c.args["path"] for c in await runtime.inbox() if c.args}

    assert left == {"a/z", "b/z"}
    await place.resume(agent)
    assert ran == ["a/x", "a/y"]


async def test_an_approval_by_a_pattern_that_lists_nothing_settles_equal_calls_alone(place: Desk, ran: Ran) -> None:
    agent = writer(ran, "a/x", "a/x", "a/y")
    await place.prompt(agent)
    async with place.runtime(agent) as runtime:
        inbox = await runtime.inbox()
        await runtime.answer(entry(inbox, "a/x").id, Approve(pattern="folder"))
        (left,) = await runtime.inbox()

    assert left.args == {"path": "a/y"}
    assert (await place.resume(agent)).status == "waiting"
    assert ran == ["a/x", "a/x"]


async def test_nothing_is_approved_that_the_pattern_does_not_cover_whatever_the_answer_lists(
    place: Desk, ran: Ran
) -> None:
    agent = writer(ran, "a/x", "b/z", "-a/x")
    await place.prompt(agent)
    async with place.runtime(agent) as runtime:
        inbox = await runtime.inbox()
        x = entry(inbox, "a/x")
        for wrong in (entry(inbox, "b/z").id, entry(inbox, "a/x", "delete").id, "q0", ""):
            with pytest.raises(AnswerRefused, match="not a call of this session that the pattern 'folder' covers"):
                await runtime.answer(x.id, Approve(pattern="folder", also=(wrong,)))
        assert len(await runtime.inbox()) == 3
    assert not ran


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Approve(for_session=True, also=("q1",)), "give the pattern"),
        (Approve(pattern="folder", also="q1"), "use a list of callback ids"),  # pyright: ignore[reportArgumentType]
        (Approve(pattern="folder", also=(5,)), "use a list of callback ids"),  # pyright: ignore[reportArgumentType]
    ],
)
async def test_a_list_that_is_not_one_is_refused(answer: Approve, why: str, desk: Desk, ran: Ran) -> None:
    agent = writer(ran, "a/x")
    await desk.prompt(agent)

    with pytest.raises(AnswerRefused, match=why):
        await desk.settle(agent, answer)


async def test_a_listed_call_that_was_rejected_meanwhile_stays_rejected(place: Desk, ran: Ran) -> None:
    agent = writer(ran, "a/x", "a/y")
    await place.prompt(agent)
    async with place.runtime(agent) as runtime:
        inbox = await runtime.inbox()
        listed = tuple(one.id for one in entry(inbox, "a/x").covers["folder"])
        await runtime.answer(listed[0], Reject("no"), by="bob")
        await runtime.answer(entry(inbox, "a/x").id, Approve(pattern="folder", also=listed), by="ann")

    reply = await place.resume(agent)

    assert ran == ["a/x"]
    assert "rejected by bob: no" in reply.text


async def test_an_agent_never_names_what_else_it_approves(desk: Desk, ran: Ran) -> None:
    value = {"approve": True, "for_session": True, "pattern": "folder", "also": ["q1"]}
    below = writer(ran, "a/x", "a/y")
    free = [one.replace(needs_approval=False) for one in below.tools]
    above = delegates("lead", below, answers(value), tools=free, callback_policy={"may_approve": ["write"]})
    reply = await desk.prompt(above)

    assert (reply.status, ran) == ("waiting", [])


# --- hosts and processes ------------------------------------------------------------------


async def test_a_host_is_shown_what_a_pattern_covers_and_covered_calls_leave_its_screen(
    place: Desk, ran: Ran
) -> None:
    both = asyncio.Event()

    async def decide(callback: Callback) -> Any:
        if len(host.seen) == 2:
            both.set()
        await both.wait()
        if callback is host.seen[0]:
            return await never(callback)
        shown = tuple(one.id for one in callback.covers.get("folder", ()))
        return Approve(pattern="folder", also=shown)

    host = Person(decide)
    reply = await place.prompt(writer(ran, "a/x", "a/y"), host=host)

    first, second = host.seen
    assert (reply.status, sorted(ran)) == ("done", ["a/x", "a/y"])
    assert [one.id for one in second.covers["folder"]] == [first.id]
    assert host.withdrawn == [(first.id, f"the answer to {second.id} covers it")]


ANSWERS = """
import asyncio, sys
from upcall import Approve, Runtime

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        inbox = await runtime.inbox()
        shown = next(c for c in inbox if c.args == {"path": "a/x"})
        also = tuple(one.id for one in shown.covers["folder"])
        settled = await runtime.answer(shown.id, Approve(pattern="folder", also=also), by="ann")
        print(len(settled.group))

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.in_file
async def test_a_pattern_picked_in_another_process_settles_what_waits_in_this_one(tmp_path: Path, ran: Ran) -> None:
    agent, host = writer(ran, "a/x", "a/y", "b/z"), Person(never)
    async with Runtime(tmp_path / "log.db", agents=[agent], host=host, hold=60) as runtime:
        session = await runtime.start(agent, id="s")
        asked, output = 0, b""
        async for item in session.stream("go"):
            asked += item.type == "callback_asked"
            if item.type == "callback_asked" and asked == 3:
                there = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", ANSWERS, str(tmp_path / "log.db"), stdout=asyncio.subprocess.PIPE
                )
                output, _ = await there.communicate()
            if item.type == "tool_ended" and len(ran) == 2:
                for left in await runtime.inbox():
                    assert left.args == {"path": "b/z"}
                    await runtime.answer(left.id, Reject("no"))

    assert output.strip() == b"2"
    assert sorted(ran) == ["a/x", "a/y"]


async def test_the_calls_listed_beside_a_pattern_are_bounded_and_the_rest_is_not_settled_with_them(
    place: Desk, ran: Ran
) -> None:
    paths = [f"{'a' * 40_000}/{number}" for number in range(10)]
    agent = writer(ran, *paths)
    await place.prompt(agent)
    async with place.runtime(agent) as runtime:
        inbox = await runtime.inbox()
        assert max(sum(len(one.args["path"]) for one in c.covers["folder"]) for c in inbox) < 100_000
        first = inbox[0]
        shown = tuple([one.id for one in first.covers["folder"]])
        await runtime.answer(first.id, Approve(pattern="folder", also=shown), by="ann")
        assert len(await runtime.inbox()) == len(paths) - 1 - len(shown) > 0
