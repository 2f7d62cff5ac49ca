"""Agents and hooks that approve: whatever shape an answer has, it grants one call at most that they may run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callbacks.doubles import Decide, Desk, answers, asker, delegates, passes, results
from upcall import (
    Agent,
    Answer,
    AnswerRefused,
    Approve,
    Call,
    Callback,
    Hooks,
    Reject,
    Request,
    SessionAccess,
    tool,
)
from upcall.errors import BadAgent
from upcall.events import CallbackAnswered
from upcall.kit import approve
from upcall.models import Script, call

RAN: list[str] = []
SAFE, FORCE = "git status", "git push --force"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def program(command: str) -> str:
    return command.split()[0]


def is_not_safe(command: str) -> bool:
    return command != SAFE


@tool(needs_approval=True, approve_patterns={"program": program})
async def sh(command: str) -> str:
    """Run a command."""
    RAN.append(command)
    return "ran"


SAFE_ONLY = sh.replace(needs_approval=is_not_safe)
"""What the boss may run itself without asking."""


def boss(aside: Decide, *commands: str, tools: Any = (SAFE_ONLY,), may: Any = ("sh",), **options: Any) -> Agent:
    """An agent whose child runs the commands one after the other, each of them to be approved."""
    todo = commands or (SAFE, FORCE)

    def works(request: Request) -> Any:
        done = len(results(request.messages))
        return call("sh", command=todo[done]) if done < len(todo) else "done"

    child = Agent("child", model=Script(works), tools=[sh])
    return delegates("boss", child, aside, tools=list(tools), callback_policy={"may_approve": list(may)}, **options)


async def settled(desk: Desk, agent: Agent) -> list[CallbackAnswered]:
    await desk.prompt(agent)
    return [event for event in await desk.log(agent, None) if isinstance(event, CallbackAnswered)]


ARGS = {"command": SAFE}
GRANTS: list[Any] = [
    {"pattern": "program"},
    {"approve": True, "pattern": "program"},
    {"approve": True, "pattern": "program", "for_session": True},
    {"approve": True, "pattern": "program", "args": None},
    {"approve": True, "pattern": ["program"]},
    {"approve": {"pattern": "program"}},
    {"args": ARGS, "pattern": "program"},
    {"args": {**ARGS, "pattern": "program"}},
    {"args": {}, "pattern": "program"},
    {"args": None, "pattern": "program"},
    {"value": {"approve": True, "pattern": "program"}},
    {"type": "approve", "pattern": "program"},
    {"Pattern": "program", "args": ARGS},
    [{"approve": True, "pattern": "program"}],
    json.dumps({"approve": True, "pattern": "program"}),
    json.dumps({"args": ARGS, "pattern": "program"}),
    "approve program",
]


@pytest.mark.parametrize("grant", GRANTS, ids=json.dumps)
async def test_no_shape_of_a_models_answer_grants_a_pattern(desk: Desk, grant: Any) -> None:
    assert await settled(desk, boss(answers(grant))) == []
    assert RAN == []


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("grant", [*GRANTS, Approve(pattern="program"), Approve(ARGS, pattern="program")], ids=repr)
async def test_no_shape_of_a_hooks_answer_grants_a_pattern(desk: Desk, grant: Any, wrapped: bool) -> None:
    def hook(session: SessionAccess, callback: Callback) -> Answer:
        return Answer(Answer(grant) if wrapped else grant)

    assert await settled(desk, boss(passes(), hooks=Hooks(on_callback=[hook]))) == []
    assert RAN == []


NO_YES: list[Any] = ["APPROVE", "Approve", "approve ", "\u0430pprove", '"approve"', True, 1, "yes", "y", {}, None]


@pytest.mark.parametrize("value", NO_YES, ids=json.dumps)
async def test_what_only_looks_like_a_yes_approves_nothing(desk: Desk, value: Any) -> None:
    assert await settled(desk, boss(answers(value))) == []
    assert RAN == []


@pytest.mark.parametrize("may", [["Sh"], ["SH"], ["s"], ["sh*"], ["*"], ["sh "], ["s\u04bb"], ["\uff53\uff48"]])
async def test_may_approve_names_tools_exactly(desk: Desk, may: list[str]) -> None:
    try:
        agent = boss(answers("approve"), tools=[sh.replace(needs_approval=False)], may=may)
    except BadAgent:
        return
    assert await settled(desk, agent) == []
    assert RAN == []


async def test_an_agent_does_not_edit_a_call_into_one_that_it_may_not_run(desk: Desk) -> None:
    edits = answers({"args": {"command": FORCE}})
    assert await settled(desk, boss(edits, SAFE)) == []
    assert RAN == []


async def test_an_edit_of_an_agent_for_the_session_covers_what_it_wrote_and_not_what_it_was_asked(
    desk: Desk,
) -> None:
    edits = answers({"args": ARGS, "for_session": True})
    await settled(desk, boss(edits, FORCE, SAFE, FORCE))
    assert RAN == [SAFE, SAFE, SAFE]


UNCHECKED = [
    {"if": "the tests pass"},
    {"Args": {"command": FORCE}},
    {"until": 5},
    {"": 1},
    {"reason": "looks good"},
]


@pytest.mark.parametrize("more", UNCHECKED)
async def test_an_approval_with_a_condition_that_nobody_would_check_is_refused(desk: Desk, more: Any) -> None:
    assert await settled(desk, boss(answers({"approve": True, **more}))) == []
    assert await settled(Desk(), boss(answers({"args": ARGS, **more}))) == []
    assert RAN == []


async def test_a_tool_of_the_same_name_that_does_not_take_the_arguments_gives_no_right(desk: Desk) -> None:
    @tool(name="sh")
    async def other(line: str = "") -> str:
        """Run something else."""
        return line

    assert await settled(desk, boss(answers("approve"), tools=[other])) == []
    assert RAN == []


@pytest.mark.parametrize("where", ["its own", "one above it"])
async def test_a_rule_by_which_the_agent_would_have_to_ask_takes_the_right_away(desk: Desk, where: str) -> None:
    rule = approve({"sh": {"command": "*--force*"}})
    free = [sh.replace(needs_approval=False)]
    agent = boss(answers("approve"), tools=free, kit=[rule] if where == "its own" else [])
    agent = agent if where == "its own" else delegates("top", agent, passes(), kit=[rule])
    await settled(desk, agent)
    assert RAN == [SAFE]


@pytest.mark.parametrize("by", ["its model", "its hook"])
async def test_an_agent_whose_own_rule_raises_approves_nothing_and_the_question_goes_to_a_person(
    desk: Desk, by: str
) -> None:
    def broken(command: str) -> bool:
        raise ValueError("the rule is broken")

    def hook(session: SessionAccess, callback: Callback) -> Answer:
        return Answer(Approve())

    options = {"hooks": Hooks(on_callback=[hook])} if by == "its hook" else {}
    aside = answers("approve") if by == "its model" else passes()
    reply = await desk.prompt(boss(aside, SAFE, tools=[sh.replace(needs_approval=broken)], **options))
    assert (reply.status, RAN) == ("waiting", [])


async def test_a_hook_says_neither_who_answered_nor_by_what_right(desk: Desk) -> None:
    def hook(session: SessionAccess, callback: Callback) -> Answer:
        return Answer(Reject("no"), by="ada", right="os-user", at=1.0)

    found = await settled(desk, boss(passes(), SAFE, hooks=Hooks(on_callback=[hook])))
    assert [(event.by, event.right) for event in found] == [("boss", "hook")]


# --- equal for Python, not for us -----------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"), [(1, True), (True, 1), (1, 1.0), (0, False), ([1], [True]), ({"a": 0.0}, {"a": -0.0})]
)
async def test_the_first_answer_of_a_side_turn_counts_whatever_python_calls_equal(
    desk: Desk, first: Any, second: Any
) -> None:
    def both(request: Request) -> Any:
        return [call("answer_callback", value=first), call("answer_callback", value=second)]

    reply = await desk.prompt(delegates("top", asker(), both))
    assert reply.text == repr(first)


@pytest.mark.parametrize("value", [1, True, 1.0, "1 ", "\uff11", ["1"], None, "True", "TRUE"])
async def test_only_the_very_text_of_a_choice_is_that_choice(desk: Desk, value: Any) -> None:
    agent = asker(choices=["1", "true"])
    await desk.prompt(agent)
    with pytest.raises(AnswerRefused, match="not one of the choices"):
        await desk.settle(agent, value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": [1, 2]}, True),
        ({"enum": [True]}, 1),
        ({"enum": [0]}, False),
        ({"const": 1}, True),
        ({"const": {"a": 1}}, {"a": True}),
        ({"type": "array", "items": {"enum": [1]}}, [True]),
        ({"enum": ["\u00e9"]}, "e\u0301"),
    ],
)
async def test_a_schema_that_lists_a_number_does_not_take_true_for_it(desk: Desk, schema: Any, value: Any) -> None:
    agent = asker(schema=schema)
    await desk.prompt(agent)
    with pytest.raises(AnswerRefused):
        await desk.settle(agent, value)


async def test_a_hook_that_puts_nan_into_an_approved_call_runs_it_with_null(desk: Desk) -> None:
    seen: list[Any] = []

    @tool(needs_approval=True)
    async def pay(amount: float | None) -> str:
        """Pay."""
        seen.append(amount)
        return "paid"

    def hook(session: SessionAccess, made: Call) -> Call:
        return made.replace(args={"amount": float("nan")})

    agent = Agent(
        "a",
        model=Script(lambda r: "done" if results(r.messages) else call("pay", amount=None)),
        tools=[pay],
        hooks=Hooks(before_tool=[hook]),
    )
    await desk.prompt(agent)
    asked = await desk.settle(agent, Approve())
    await desk.resume(agent)
    assert (asked.args, seen) == ({"amount": None}, [None])
