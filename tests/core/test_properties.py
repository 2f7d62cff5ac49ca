"""Whatever a model, tools, hooks and people do: every request is valid, and the log folds to what was live."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.plans import Plan, Played, plans, play
from core.rules import check, check_wires
from quick import examples
from upcall import (
    Agent,
    Call,
    Hooks,
    Message,
    Reply,
    Request,
    Result,
    Runtime,
    SessionAccess,
    tool,
)
from upcall.core.log.state import SessionState
from upcall.events import ToolEnded
from upcall.messages import user
from upcall.models import Script, call


def played(plan: Plan, store: Any = ":memory:") -> Played:
    return asyncio.run(play(plan, store))


@given(plans())
@example(Plan([[["broken"]], ["text"]], ["one", "two"], {"before_model": ["replace"], "after_tool": ["summarise"]}))
def test_every_request_of_every_run_is_valid_by_both_providers_rules(plan: Plan) -> None:
    for request in played(plan).requests:
        check(request.messages)
        check_wires(request)


@pytest.mark.slow
@given(plans())
def test_any_fold_of_any_prefix_of_any_run_gives_a_valid_request(plan: Plan) -> None:
    run = played(plan)
    state = SessionState("s")
    for event in run.appended:
        state.apply(event)
        messages = [*state.conversation.messages(), user("what now?")]
        check(messages)
        check_wires(Request("a", "turn", "", messages, run.tools))


@given(plans())
def test_the_log_folds_to_the_live_conversation(plan: Plan) -> None:
    run = played(plan)
    state = SessionState("s")
    for event in run.stored:
        state.apply(event)
    assert state.conversation.messages() == run.messages
    assert state.context == run.context
    assert (state.conversation.summary or state.conversation.reply_text) == run.summary


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(plans())
def test_a_log_read_back_from_disk_is_the_live_conversation(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = played(plan, Path(folder) / "log.db")
    assert run.loaded == run.messages
    assert run.loaded_context == run.context


@pytest.mark.slow
@given(plans())
def test_every_call_of_every_run_is_settled_once_and_no_result_is_logged_twice(plan: Plan) -> None:
    run = played(plan)
    ended = [e.call_id for e in run.appended if isinstance(e, ToolEnded)]
    assert len(ended) == len(set(ended))
    assert all(count <= 1 for count in run.effects.values())


@pytest.mark.slow
@given(plans())
def test_every_turn_of_every_run_has_one_end(plan: Plan) -> None:
    types = [e.type for e in played(plan).appended]
    assert types.count("turn_started") == types.count("turn_ended") - types.count("turn_resumed")


# --- composing hooks --------------------------------------------------------------------

words = st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=5)


@given(words, words, words)
def test_adding_hooks_is_associative_and_keeps_the_order(one: Any, two: Any, three: Any) -> None:
    def hooks(given: list[str | None]) -> Hooks:
        return Hooks(end_turn=[_says(word) for word in given])

    a, b, c = hooks(one), hooks(two), hooks(three)
    assert (a + b) + c == a + (b + c)
    assert (a + b).end_turn == (*a.end_turn, *b.end_turn)
    assert a.adding(end_turn=list(b.end_turn)) == a + b


def _says(word: str | None) -> Any:
    def hook(session: SessionAccess, passing: Any) -> str | None:
        return None if word is None else passing.text + word

    return hook


@given(words)
@example([None, "a", None, "b"])
def test_a_chain_hands_on_what_each_hook_returns_and_none_is_no_opinion(chain: list[str | None]) -> None:
    asked: list[Request] = []

    def model(request: Request) -> str:
        asked.append(request)
        return "r"

    hooks = Hooks(
        pre_request=[_says(w) for w in chain],
        post_response=[_says(w) for w in chain],
        end_turn=[_says(w) for w in chain],
    )

    async def run() -> Reply:
        agent = Agent("a", model=Script(model), hooks=hooks)
        async with Runtime(agents=[agent]) as runtime:
            return await (await runtime.start(agent)).prompt("p")

    reply = asyncio.run(run())

    added = "".join(w for w in chain if w)
    assert asked[0].messages[0].text == "p" + added
    assert reply.text == "r" + added + added


@given(st.lists(st.sampled_from(["none", "change", "result"]), max_size=6))
def test_a_before_tool_chain_ends_at_its_first_result(chain: list[str]) -> None:
    ran: list[int] = []
    received: list[str] = []

    @tool
    async def echo(word: str) -> str:
        """Say it back."""
        received.append(word)
        return word

    def hook_at(index: int, kind: str) -> Any:
        def hook(session: SessionAccess, call: Call) -> Call | Result | None:
            ran.append(index)
            if kind == "change":
                return call.replace(args={"word": call.args["word"] + str(index)})
            return Result(call.id, f"by {index}") if kind == "result" else None

        return hook

    hooks = Hooks(before_tool=[hook_at(i, kind) for i, kind in enumerate(chain)])

    async def run() -> list[Message]:
        agent = Agent("a", model=Script([call("echo", word="w"), "ok"]), tools=[echo], hooks=hooks)
        async with Runtime(agents=[agent]) as runtime:
            session = await runtime.start(agent)
            await session.prompt("p")
            return session.get_messages()

    messages = asyncio.run(run())

    last = chain.index("result") if "result" in chain else None
    upto = len(chain) if last is None else last
    changed = "w" + "".join(str(i) for i, kind in enumerate(chain[:upto]) if kind == "change")
    assert ran == list(range(len(chain) if last is None else last + 1))
    assert received == ([changed] if last is None else [])
    assert messages[2].results[0].text == (changed if last is None else f"by {last}")


def test_the_plans_reach_what_they_should() -> None:
    """A generator that never steers, cancels, compacts or fails would prove little."""
    meddling = {"after_tool": ["add_user", "compact 1"], "end_turn": ["summarise"]}
    calls = [["good", "broken", "unknown", "wrong", "steer"], ["stop"]]
    run = played(Plan([calls, ["fails"], ["text"]], ["one", "two", "three"], meddling))
    types = {e.type for e in run.appended}
    assert {
        "steered", "cancel_requested", "compaction_asked", "compacted", "message_added", "model_failed",
    } <= types  # fmt: skip
