"""Declarations: nothing that was declared can be changed, and no tool disappears behind a built-in one."""

from __future__ import annotations

from typing import Any

import pytest

from upcall import (
    Agent,
    Answer,
    Approve,
    BadAgent,
    Call,
    Callback,
    Context,
    Hooks,
    Kit,
    Limits,
    Message,
    Reject,
    Reply,
    Request,
    Response,
    Result,
    Runtime,
    Team,
    Usage,
    chain,
    tool,
)
from upcall.callbacks import Step
from upcall.contracts import Delta, Spent
from upcall.core.routing.policy import CallbackPolicy, Policy
from upcall.core.routing.route import Route, Station
from upcall.models import Script, call


@tool
def later() -> str:
    """Later."""
    return "later"


def agent(**options: Any) -> Agent:
    return Agent("a", model=Script(["ok"]), **options)


# --- frozen -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["name", "instructions", "model", "tools", "agents", "hooks", "limits", "output"])
def test_an_agent_that_is_assigned_to_says_which_copy_to_make_instead(name: str) -> None:
    one = agent()
    before = getattr(one, name)
    with pytest.raises(AttributeError, match=rf"'a' is immutable, so {name} can't be set; agent.replace\({name}="):
        setattr(one, name, "changed")
    with pytest.raises(AttributeError, match="is immutable"):
        delattr(one, name)
    assert getattr(one, name) is before


@pytest.mark.parametrize("name", ["policy", "toolbox", "source", "instruction", "_given"])
def test_what_is_no_argument_of_an_agent_can_not_be_assigned_either(name: str) -> None:
    one = agent()
    with pytest.raises(AttributeError, match=f"so {name} can't be set; build another one"):
        setattr(one, name, "changed")


def test_a_copy_that_is_replaced_has_the_change_and_leaves_the_first_as_it_was() -> None:
    one = agent(instructions="Be brief.")
    other = one.replace(instructions="Be long.")
    assert (one.instructions, other.instructions) == ("Be brief.", "Be long.")
    with pytest.raises(AttributeError, match="is immutable"):
        other.instructions = "Be odd."


@pytest.mark.parametrize("made", [chain(agent(), name="line"), Team(agent(), {"worker": Agent("b")})])
def test_a_team_or_chain_that_is_assigned_to_says_to_build_it_again(made: Agent) -> None:
    for name in ("name", "steps", "roles", "loop", "description"):
        with pytest.raises(AttributeError, match=r"is immutable, .* build it again with other arguments"):
            setattr(made, name, "changed")


ROUTE = Route("a", "query", "callback_to_caller", (), "nobody", "why")
VALUES: list[Any] = [
    later, Hooks(), Kit(), Limits(), Policy(), CallbackPolicy(), Message("user", ()), Call("c", "n", {}),
    Result("c", "t"), Request("a", "turn", "", ()), Response("t"), Reply("t"), Usage(), Spent(), Delta("s", "t"),
    Callback("q", "s", "a", "m"), Answer(1), Approve(), Reject(), Step("a", "asked"), ROUTE,
    Station("a", "ask", "why"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_no_public_value_can_be_assigned_to_or_lose_a_field(value: Any) -> None:
    fields = getattr(value, "__struct_fields__", ("before_tool", "anything"))
    for name in (fields[0], fields[-1]):
        with pytest.raises(AttributeError):
            setattr(value, name, None)
        with pytest.raises(AttributeError):
            delattr(value, name)


# --- built-in tools -----------------------------------------------------------------------


def named(name: str) -> Any:
    @tool(name=name)
    async def own(text: str, ctx: Context) -> str:
        """Do something of its own."""
        return text

    return own


BELOW = [Agent("below", model=Script(["ok"]))]
ANSWERING = ("answer_callback", "pass_up_callback", "reword_callback")


@pytest.mark.parametrize("name", ["task", "ask", *ANSWERING])
@pytest.mark.parametrize("by", ["tools", "kit"])
def test_a_tool_with_the_name_of_a_built_in_one_is_refused_when_it_is_declared(name: str, by: str) -> None:
    given = {"tools": [named(name)]} if by == "tools" else {"kit": [Kit(tools=[named(name)])]}
    with pytest.raises(
        BadAgent, match=f"agent 'a': its tool '{name}' has the same name as the built-in tool by which"
    ):
        agent(agents=BELOW, **given)


@pytest.mark.parametrize("name", ANSWERING)
def test_an_agent_without_others_below_it_may_be_asked_too_so_it_has_no_tool_called_so(name: str) -> None:
    with pytest.raises(BadAgent, match="by which an agent answers callbacks"):
        agent(tools=[named(name)])


@pytest.mark.parametrize(("name", "options"), [("task", {}), ("ask", {"ask": False})])
async def test_a_tool_may_have_the_name_of_one_that_the_agent_is_not_given(name: str, options: Any) -> None:
    one = Agent("a", model=Script([call(name, text="mine"), say]), tools=[named(name)], **options)
    async with Runtime(agents=[one]) as runtime:
        assert (await (await runtime.start(one)).prompt("go")).text == "mine"


def say(request: Request) -> str:
    return request.messages[-1].results[0].text


async def test_the_names_that_are_refused_are_those_of_the_tools_that_agents_are_given() -> None:
    seen: list[str] = []

    def looks(request: Request) -> str:
        seen.extend(one.name for one in request.tools)
        return "ok"

    boss = Agent("boss", model=Script(looks), agents=BELOW)

    class Somebody:
        async def ask(self, callback: Callback) -> None: ...

        def withdraw(self, callback_id: str, reason: str) -> None: ...

    async with Runtime(agents=[boss], host=Somebody()) as runtime:
        await (await runtime.start(boss)).prompt("go")

    assert sorted(seen) == sorted(["task", "ask", *ANSWERING])
    for name in seen:
        with pytest.raises(BadAgent, match="the same name as the built-in tool"):
            boss.replace(tools=[named(name)])
