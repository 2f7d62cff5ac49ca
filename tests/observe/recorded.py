"""Logs of run trees that were really run, with scripted models."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any

from upcall import Agent, Approve, Callback, Context, Hooks, Reject, Request, Runtime, Team, chain, tool
from upcall.contracts import SessionAccess
from upcall.events import AnyEvent
from upcall.messages import Call, Message, Response, Result, user
from upcall.models import Script, call
from upcall.workspace import run_python

SECRET = "sk-proj-abcDEF0123456789"


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


class Desk:
    """A person who approves with a change, rejects what is called "all", and gives the first choice."""

    async def ask(self, callback: Callback) -> Any:
        if callback.tool:
            if callback.args and callback.args.get("what") == "all":
                return Reject("not everything")
            return Approve(args={**(callback.args or {}), "count": 1})
        return callback.choices[0] if callback.choices else "as you like"

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Nothing is on a screen."""


async def parallel_calls() -> list[AnyEvent]:
    """Three calls of one tool that finish in reverse order; the first one fails."""
    ended: list[asyncio.Event] = [asyncio.Event() for _ in range(4)]
    ended[3].set()

    @tool
    async def fetch(page: int) -> str:
        """Fetch a page."""
        await ended[page + 1].wait()
        ended[page].set()
        if page == 0:
            raise LookupError("page 0 is not there")
        return f"page {page}"

    def think(request: Request) -> Any:
        return "; ".join(results(request)) or [call("fetch", page=n) for n in range(3)]

    return await _run(Agent("reader", model=Script(think), tools=[fetch]), "Fetch three pages")


PROGRAM = """
for page in ["Home", "Sign in"]:
    colour = "grey"
    if page == "Sign in":
        colour = raise_callback("Which colour?", "clarification", choices=["green", "blue"])
    print(write_page(page, colour))
"""


@tool
async def read_settings(ctx: Context) -> str:
    """Read the settings."""
    return str(await ctx.raise_callback("settings.ini is missing. Make one?", "blocker", choices=["yes", "no"]))


@tool(label="Write page")
def write_page(name: str, colour: str) -> str:
    """Write a page."""
    return f"{name} is {colour}"


def _team() -> Team:
    plan = [
        {"role": "developer", "task": task, "sequence": 1, "caller": "manager"} for task in ("Service", "Pages")
    ]

    def manage(request: Request) -> Any:
        if request.purpose != "side_turn":
            return json.dumps(plan)
        if "missing" in request.messages[-1].text:
            return call("answer_callback", value="yes")
        return call("pass_up_callback", reason="a matter of taste")

    def develop(request: Request) -> Any:
        done = results(request)
        if done:
            return f"Done: {done[0]}"
        return call("run_python", code=PROGRAM) if "Pages" in request.messages[0].text else call("read_settings")

    developer = Agent("developer", model=Script(develop), tools=[read_settings, write_page, run_python()])
    reviewer = Agent("reviewer", model=Script(lambda _: "All is there."))
    return Team(Agent("manager", model=Script(manage)), {"developer": developer}, reviewer)


async def team() -> list[AnyEvent]:
    """A team: a plan, two workers at once, a side turn that answers, one that passes up, a program that asks."""
    return await _run(_team(), "Build the sign-in page", host=Desk())


async def chained() -> list[AnyEvent]:
    """A chain of two agents, prompted twice."""
    a = Agent("a", model=Script(lambda request: f"a({request.messages[-1].text})"))
    b = Agent("b", model=Script(lambda request: f"b({request.messages[-1].text})"))
    return await _run(chain(a, b), "one", "two")


@tool(needs_approval=True)
def delete(what: str, count: int = 9) -> str:
    """Delete things."""
    return f"deleted {count} of {what}"


async def approvals() -> list[AnyEvent]:
    """Two approvals: one with edited arguments, one rejected."""
    turns = [[call("delete", what="old"), call("delete", what="all")], "Deleted what I may."]
    return await _run(Agent("cleaner", model=Script(turns), tools=[delete]), "Clean up", host=Desk())


async def hooked() -> list[AnyEvent]:
    """Hooks at every point change the prompt, request, response, call, result and reply; one starts a child."""
    helper = Agent("helper", model=Script(lambda _: "helped"))

    def pre_request(session: SessionAccess, message: Message) -> Message:
        return user(f"{message.text}, please")

    def before_model(session: SessionAccess, request: Request) -> Request:
        return request.replace(messages=[*request.messages, user("Be brief.")], instructions="Be brief.")

    def post_response(session: SessionAccess, response: Response) -> Response | None:
        return response.replace(text="I replaced this") if response.text else None

    def before_tool(session: SessionAccess, asked: Call) -> Call | Result | None:
        if asked.args["what"] == "nothing":
            return Result(asked.id, "a hook gave this")
        return asked.replace(args={"what": f"{asked.args['what']}!"})

    def after_tool(session: SessionAccess, asked: Call, result: Result) -> Result | None:
        return result.replace(text="hidden by a hook") if SECRET in result.text else None

    async def end_turn(session: SessionAccess, reply: Any) -> str:
        child = await session.start_child(helper, "help me")
        side = await session.prompt("what did you do?")
        session.set_context("child", child.text)
        return f"{reply.text} ({side})"

    @tool
    def look(what: str) -> str:
        """Look at something."""
        return f"{what} {SECRET}" if what == "keys!" else f"saw {what}"

    def think(request: Request) -> Any:
        if request.purpose == "side_turn":
            return "I looked"
        if not results(request):
            return [call("look", what="lamp"), call("look", what="keys"), call("look", what="nothing")]
        return "looked"

    hooks = Hooks(
        pre_request=[pre_request],
        before_model=[before_model],
        post_response=[post_response],
        before_tool=[before_tool],
        after_tool=[after_tool],
        end_turn=[end_turn],
    )
    return await _run(Agent("looker", model=Script(think), tools=[look], hooks=hooks, agents=[helper]), "Look")


async def compacted() -> list[AnyEvent]:
    """A session that is compacted twice: without the model, and by a summary."""

    async def end_turn(session: SessionAccess, reply: Any) -> None:
        if reply.text == "two":
            session.compact_messages(keep_last=2)
        if reply.text == "three":
            await session.trigger_compaction()

    def think(request: Request) -> str:
        return "a summary" if request.purpose == "summary" else request.messages[-1].text

    agent = Agent("echo", model=Script(think), hooks=Hooks(end_turn=[end_turn]))
    return await _run(agent, "one", "two", "three", "four")


async def delegated() -> list[AnyEvent]:
    """An agent gives work to two others at once; one asks back and is answered, the other fails."""

    @tool
    async def paint(ctx: Context) -> str:
        """Paint it."""
        return f"painted {await ctx.raise_callback('Which colour?', 'clarification')}"

    def lead(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("reword_callback", message="Which colour does the customer like?", reason="theirs to say")
        done = results(request)
        return [call("task", agent=n, prompt=f"do {n}") for n in ("painter", "breaker")] if not done else done[0]

    def break_down(_: Request) -> Any:
        raise RuntimeError("it broke")

    painter = Agent(
        "painter", model=Script(lambda r: results(r)[0] if results(r) else call("paint")), tools=[paint]
    )
    breaker = Agent("breaker", model=Script(break_down))
    return await _run(Agent("lead", model=Script(lead), agents=[painter, breaker]), "Paint it", host=Desk())


async def parked() -> list[AnyEvent]:
    """A question that waits while nobody is there; then it is answered and the turn is resumed. Then a failure."""

    @tool
    async def order(ctx: Context) -> str:
        """Order something."""
        return f"ordered {await ctx.raise_callback('How many?', kind='request_user_input')}"

    def think(request: Request) -> Any:
        if request.messages[-1].text == "fail":
            raise RuntimeError("no more")
        return results(request)[-1] if request.messages[-1].results else call("order")

    agent = Agent("buyer", model=Script(think), tools=[order], can_use_host_interaction=True)
    folder = tempfile.TemporaryDirectory()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(folder.cleanup)
        runtime = await stack.enter_async_context(Runtime(f"{folder.name}/log.db", agents=[agent]))
        session = await runtime.start(agent, id="buy")
        reply = await session.prompt("Buy lamps")
        assert reply.status == "waiting"
        (callback,) = await runtime.inbox()
        await runtime.answer(callback.id, "five")
        await runtime.resume("buy")
        with contextlib.suppress(Exception):
            await session.prompt("fail")
        await session.steer("quickly")
        await session.prompt("again")
        await runtime.cancel("buy", reason="enough")
        return [event async for event in runtime.events(tree="buy")]


async def _run(agent: Any, *prompts: str, host: Any = None) -> list[AnyEvent]:
    async with Runtime(agents=[agent], host=host) as runtime:
        session = await runtime.start(agent, id="run")
        for prompt in prompts:
            await session.prompt(prompt)
        return [event async for event in runtime.events(tree="run")]


RECORDED: dict[str, Callable[[], Coroutine[Any, Any, list[AnyEvent]]]] = {
    one.__name__: one for one in (parallel_calls, team, chained, approvals, hooked, compacted, delegated, parked)
}


def recorded(name: str) -> list[AnyEvent]:
    """Return the events of one of the runs."""
    with asyncio.Runner() as runner:
        return runner.run(RECORDED[name]())
