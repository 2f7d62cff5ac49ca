"""Documents 0 and 2 through the runtime, and the table of callbacks as the log tells it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from callbacks.doubles import Desk, Person, answers, asker, delegates, passes, results, worker
from upcall import Agent, Approve, Context, Request, Runtime, SyncContext, tool
from upcall.callbacks import Callback
from upcall.contracts import EVERYTHING
from upcall.core.log.state import SessionState
from upcall.events import CallbackRaised
from upcall.models import Script, call
from upcall.store.callback_index import CallbackIndex
from upcall.store.rules import effects_of

# --- document 0: its five tests, by meaning -----------------------------------------------


async def test_who_is_given_a_task_has_its_caller_to_ask(desk: Desk) -> None:
    manager = delegates("manager", asker("Cannot find config.py", "blocker"), answers("create it"))

    reply = await desk.prompt(manager)

    assert reply.text == "'create it'"
    assert [(s.agent, s.step) for s in reply.callbacks[0].path] == [("manager", "asked")]


def test_raise_callback_is_there_for_tools_sync_and_async() -> None:
    assert callable(Context.raise_callback)
    assert callable(SyncContext.raise_callback)


async def test_without_a_caller_a_query_is_none_with_a_warning_and_the_agent_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = asker("which?", use_host=False)
    with caplog.at_level(logging.WARNING, "upcall"):
        async with Runtime(agents=[agent]) as runtime:
            reply = await (await runtime.start(agent)).prompt("go")

    assert (reply.status, reply.text) == ("done", "None")
    assert "nobody answered" in caplog.text


async def test_callbacks_are_logged_to_the_event_stream_and_its_file(tmp_path: Path) -> None:
    file = tmp_path / "_events.jsonl"
    manager = delegates("manager", asker("Cannot find config.py required...", "blocker"), answers("create it"))
    async with Runtime(tmp_path / "log.db", agents=[manager], events_file=file) as runtime:
        await (await runtime.start(manager, "s")).prompt("go")
        raised = [e async for e in runtime.events() if isinstance(e, CallbackRaised)]

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    (line,) = [one for one in lines if one["event_type"] == "AGENT_CALLBACK"]
    assert [e.message for e in raised] == ["Cannot find config.py required..."]
    assert line["timestamp"].endswith("Z")
    for key, value in {
        "from": "developer", "to": "manager", "type": "blocker", "message": "Cannot find config.py required...",
    }.items():  # fmt: skip
        assert line["data"][key] == value


async def test_what_an_agent_runs_can_raise_a_callback(desk: Desk) -> None:
    @tool
    async def read_config(path: str, ctx: Context) -> str:
        """Read a configuration file."""
        return str(await ctx.raise_callback(f"Cannot find {path}", "blocker", context={"attempted": path}))

    child = Agent("developer", model=worker(call("read_config", path="config.py")), tools=[read_config])
    reply = await desk.prompt(delegates("manager", child, answers("x = 1")))

    assert reply.text == "x = 1"


@pytest.mark.parametrize("intent", ["query", "blocker", "clarification", "error", "whatever"])
async def test_every_type_of_document_0_and_any_other_word_is_processed(desk: Desk, intent: str) -> None:
    reply = await desk.prompt(delegates("manager", asker("x", intent), answers("y")))

    assert (reply.text, reply.callbacks[0].intent) == ("'y'", intent)


async def test_a_callers_that_fails_is_no_answer(desk: Desk) -> None:
    """Document 0 caught everything and returned None; document 2 took a failed caller's text for an answer."""
    reply = await desk.prompt(delegates("manager", asker("x", "blocker"), lambda _: RuntimeError("boom")))

    assert (reply.status, reply.callbacks[0].answer) == ("waiting", None)


# --- document 2: its scenarios ------------------------------------------------------------


async def test_caller_mediated_clarification_may_resolve_transform_or_escalate(desk: Desk) -> None:
    def reword(_: Request) -> Any:
        return call("reword_callback", message="more precisely?", reason="context")

    resolves = await desk.prompt(delegates("manager", asker(intent="clarification"), answers("A")), id="resolve")
    transforms = await desk.prompt(delegates("manager", asker(intent="clarification"), reword), id="transform")
    escalates = await desk.prompt(delegates("manager", asker(intent="clarification"), passes()), id="escalate")

    assert resolves.text == "'A'"
    assert transforms.callbacks[0].reworded == "more precisely?"
    assert [c.status for c in escalates.callbacks] == ["open"]


async def test_direct_user_clarification_asks_no_agent(desk: Desk) -> None:
    manager = delegates("manager", asker("your name?", "user_input", kind="request_user_input"))

    reply = await desk.prompt(manager, host=Person(lambda _: "Ann"))

    assert reply.text == "'Ann'"


async def test_agent_only_resolution_reaches_the_caller_and_never_the_person(desk: Desk) -> None:
    """Document 2: request_resolution never reached a caller, yet reached the person from a parallel child."""
    child = asker("which?", kind="request_resolution")
    calls = [call("task", agent="developer", prompt=p) for p in "ab"]
    person = Person(lambda _: "I should not be asked")
    knows = Agent("manager", model=worker(*calls, aside=answers("A")), agents=[child])
    does_not = Agent("manager", model=worker(*calls, aside=passes()), agents=[child])

    solved = await desk.prompt(knows, id="solved", host=person)
    failed = await desk.prompt(does_not, id="failed", host=person)

    assert solved.text == "'A'; 'A'"
    assert failed.text.count("request_resolution never asks a person") == 2
    assert person.seen == []


async def test_orchestration_layers_are_skipped_by_sidecar_and_by_hints(desk: Desk) -> None:
    def tree(child: Agent, **middle: Any) -> Agent:
        return delegates("top", delegates("controller", child, **middle), answers("by top"))

    sidecar = tree(asker(), callback_policy={"passthrough_child_callbacks": True})
    through = tree(asker(passthrough_agents=["controller"]))
    only = tree(asker(resolvable_by=["top"]))

    for n, top in enumerate((sidecar, through, only)):
        reply = await desk.prompt(top, id=f"s{n}")
        assert reply.text == "'by top'"
        assert ("controller", "skipped") in [(s.agent, s.step) for s in reply.callbacks[0].path]


async def test_parallel_children_may_all_wait_for_the_person(desk: Desk) -> None:
    child = asker(kind="request_user_input")
    calls = [call("task", agent="developer", prompt=p) for p in "ab"]
    manager = Agent("manager", model=worker(*calls), agents=[child])

    waiting = await desk.prompt(manager)
    await desk.settle(manager, "A")
    done = await desk.resume(manager)

    assert (len(waiting.callbacks), done.text) == (2, "'A'; 'A'")


async def test_passthrough_is_read_from_the_one_being_passed_and_not_from_the_asker(desk: Desk) -> None:
    child = asker(policy={"passthrough_child_callbacks": True})

    reply = await desk.prompt(delegates("manager", child, answers("asked anyway")))

    assert reply.text == "'asked anyway'"


# --- document 2: its failure modes, each with what tells the author -------------------------


async def test_missing_can_use_host_interaction_fails_direct_user_input_by_its_key(desk: Desk) -> None:
    reply = await desk.prompt(asker("name?", kind="request_user_input", use_host=False))

    assert "can_use_host_interaction: true in Agent('developer', ...)" in reply.text


async def test_missing_can_query_caller_means_no_escalation_and_the_error_names_the_key(desk: Desk) -> None:
    child = asker("stuck", "blocker", query_caller=False, use_host=False)

    reply = await desk.prompt(delegates("manager", child))

    assert "manager (skipped: the agent developer has can_query_caller: false)" in reply.text
    assert "can_query_caller: true in Agent('developer', ...)" in reply.text


async def test_a_wrong_kind_says_which_would_have_gone_further(desk: Desk) -> None:
    child = asker("stuck", "blocker", kind="request_user_input", use_host=False)

    reply = await desk.prompt(delegates("manager", child))

    assert "the kind callback_to_caller" in reply.text


async def test_over_aggressive_passthrough_names_each_parent_that_was_skipped(desk: Desk) -> None:
    child = asker("stuck", "blocker", passthrough_child_callbacks=True, use_host=False)

    reply = await desk.prompt(delegates("top", delegates("middle", child)))

    for name in ("middle", "top"):
        assert f"{name} (skipped: the hint passthrough_child_callbacks skips every agent above)" in reply.text


async def test_a_bad_resolvable_by_is_noted_with_who_is_there(desk: Desk) -> None:
    child = asker("stuck", "blocker", resolvable_by=["mangaer"], use_host=False)

    reply = await desk.prompt(delegates("manager", child))

    assert "names 'mangaer', who is not above developer; above it: manager" in reply.text


# --- the table beside the log -------------------------------------------------------------


@pytest.mark.slow
async def test_the_callbacks_table_is_what_rebuilding_from_the_log_gives(place: Desk) -> None:
    @tool(needs_approval=True)
    async def deploy() -> str:
        """Deploy."""
        return "deployed"

    @tool
    async def work(n: int, ctx: Context) -> str:
        """Ask in many ways."""
        ways: list[dict[str, Any]] = [
            {},
            {"kind": "request_user_input", "priority": "high"},
            {"timeout": 60, "default": "late"},
            {"choices": ["a", "b"], "fallback_target": "fail"},
            {"kind": "request_resolution", "callback_type": "error"},
        ]
        return str(await ctx.raise_callback(f"{n}?", **ways[n]))

    def aside(request: Request) -> Any:
        text = request.messages[-1].text
        if "0?" in text:
            return call("answer_callback", value="mine")
        return (
            call("reword_callback", message="say", reason="up")
            if "1?" in text
            else call("pass_up_callback", reason="no")
        )

    def child(request: Request) -> Any:
        said = results(request.messages)
        return "ok" if said else [*(call("work", n=n) for n in range(5)), call("deploy")]

    below = Agent("developer", model=Script(child), tools=[work, deploy])
    manager = delegates("manager", below, aside)

    await place.prompt(manager)
    await _compare(place, manager)
    await place.settle(manager, "person", "1?")
    await place.settle(manager, Approve(for_session=True), "May developer run deploy?")
    await place.resume(manager)
    await _compare(place, manager)
    place.clock.tick(61)
    await place.resume(manager)
    held = await _compare(place, manager)

    assert {h.status for h in held} == {"answered", "expired", "withdrawn"}


async def _compare(place: Desk, agent: Agent) -> list[Callback]:
    """The table, once it equals both what its events and what the sessions themselves make of it."""
    rebuilt, states = CallbackIndex(), dict[str, SessionState]()
    async with place.runtime(agent) as runtime:
        async for event in runtime.events():
            rebuilt.update(event.session, "s", effects_of([event], event.seq))
            states.setdefault(event.session, SessionState(event.session)).apply(event)
        held = await runtime.store.callbacks(root="s")
        inbox = await runtime.store.callbacks(inbox=True)
    assert held == rebuilt.of_tree("s")
    assert inbox == rebuilt.for_person(EVERYTHING, runtime.store.now(), 1000)
    assert [one.replace(awaited=False) for one in held] == [
        states[one.session_id].turn.callbacks[one.id] for one in held
    ]
    return held
