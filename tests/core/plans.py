"""Random runs for Hypothesis: scripts of texts and calls, hooks that meddle, people who steer and cancel."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from hypothesis import strategies as st

from upcall import (
    Agent,
    Call,
    Context,
    HookFailed,
    Hooks,
    Limits,
    Message,
    ModelError,
    ModelUnavailable,
    Reply,
    Request,
    Response,
    Result,
    Runtime,
    SessionAccess,
    tool,
)
from upcall.app import open_store
from upcall.events import AnyEvent, decode, encode
from upcall.messages import ToolSpec
from upcall.models import Script, call

CALLS: dict[str, Call] = {
    "good": call("good", word="x"),
    "slow": call("slow"),
    "broken": call("broken"),
    "unknown": call("nowhere", a=1),
    "wrong": call("good", number=3),
    "steer": call("steer"),
    "stop": call("stop"),
}
POINTS = ("begin_session", "pre_request", "before_model", "post_response", "before_tool", "after_tool", "end_turn")
MEDDLING = ("", "", "add_user", "add_system", "add_assistant", "compact 0", "compact 1", "compact 3", "summarise",
            "replace", "side", "raise", "context")  # fmt: skip


@dataclass
class Plan:
    """What the model says turn by turn, what is prompted, and what hooks do, point by point, round and round."""

    turns: list[list[Any]]
    prompts: list[str]
    meddling: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


@dataclass
class Played:
    """A run: its requests, its events as they were appended and as they are stored now, its live state."""

    requests: list[Request] = field(default_factory=list[Request])
    appended: list[AnyEvent] = field(default_factory=list[AnyEvent])
    stored: list[AnyEvent] = field(default_factory=list[AnyEvent])
    tools: tuple[ToolSpec, ...] = ()
    messages: list[Message] = field(default_factory=list[Message])
    loaded: list[Message] = field(default_factory=list[Message])
    context: dict[str, Any] = field(default_factory=dict[str, Any])
    loaded_context: dict[str, Any] = field(default_factory=dict[str, Any])
    effects: Counter[str] = field(default_factory=Counter[str])
    summary: str = ""


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    calls = st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=3)
    says = st.one_of(st.sampled_from(["text", "fails", "nothing"]), calls, calls)
    turns = draw(st.lists(st.lists(says, max_size=3), min_size=1, max_size=3))
    meddling = draw(
        st.dictionaries(
            st.sampled_from(POINTS), st.lists(st.sampled_from(MEDDLING), min_size=1, max_size=3), max_size=3
        )
    )
    if "add_assistant" in meddling.get("begin_session", ()):
        del meddling["begin_session"]  # a conversation that an assistant begins is its author's mistake
    return Plan(turns, [f"prompt {i}" for i in range(len(turns))], {p: [*does] for p, does in meddling.items()})


class Recording:
    """A store that keeps each event as it was when it was appended (in memory: on disk it is stamped later)."""

    def __init__(self, inner: Any, appended: list[AnyEvent]) -> None:
        self._inner, self._appended = inner, appended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, session: str, events: Sequence[AnyEvent], claim: Any, **more: Any) -> Any:
        bodies = [encode(event) for event in events]
        stored = self._inner.append(session, events, claim, **more)
        if session == "s" and stored is None:
            self._record(bodies, events)
        elif session == "s":
            stored.add_done_callback(partial(self._record, bodies, events))
        return stored

    def _record(self, bodies: Sequence[bytes], events: Sequence[AnyEvent], _: object = None) -> None:
        stamped = zip(bodies, events, strict=True)
        self._appended.extend(decode(body, "s", e.seq, e.pos, e.time) for body, e in stamped)


class Player:
    """Plays a plan with a real runtime."""

    def __init__(self, plan: Plan, run: Played, store: Any) -> None:
        self.plan, self.run = plan, run
        self.runtime: Runtime
        self.turn: list[Any] = []
        self.rounds: Counter[str] = Counter()
        self.agent = Agent(
            "a", model=Script(self.decide), tools=self.tools(), hooks=self.hooks(), limits=Limits(model_calls=8)
        )
        run.tools = tuple(t.spec for t in self.agent.toolbox.values())
        self.store = cast("Any", Recording(open_store(store), run.appended))

    def decide(self, request: Request) -> Any:
        self.run.requests.append(request)
        if request.purpose != "turn":
            return f"for {request.purpose}"
        say: Any = self.turn.pop(0) if self.turn else "text"
        match say:
            case "text":
                return f"said {len(self.run.requests)}"
            case "nothing":
                return Response("")
            case "fails":
                return ModelUnavailable("m", "gone")
            case _:
                return [CALLS[name] for name in say]

    def tools(self) -> list[Any]:
        @tool
        async def good(word: str, ctx: Context) -> str:
            """Work."""
            self.run.effects[ctx.call_id] += 1
            return word

        @tool
        async def slow() -> str:
            """Take a while."""
            for _ in range(5):
                await asyncio.sleep(0)
            return "slow"

        @tool
        async def broken() -> str:
            """Fail."""
            raise ValueError("broken")

        @tool
        async def steer() -> str:
            """Somebody says something."""
            await self.runtime.steer("s", "steered")
            return "steered"

        @tool
        async def stop() -> str:
            """Somebody cancels."""
            await self.runtime.cancel("s")
            await asyncio.Event().wait()
            return ""

        return [good, slow, broken, steer, stop]

    def hooks(self) -> Hooks:
        made = {point: [self.meddler(point, does)] for point, does in self.plan.meddling.items()}
        return Hooks(**made)  # pyright: ignore[reportArgumentType]

    def meddler(self, point: str, does: list[str]) -> Any:
        async def hook(session: SessionAccess, *passing: Any) -> Any:
            if session.id != "s":
                return None  # in a side turn
            what = does[self.rounds[point] % len(does)]
            self.rounds[point] += 1
            return await meddle(session, point, what, passing)

        return hook

    async def play(self) -> None:
        async with Runtime(self.store, agents=[self.agent]) as self.runtime:
            try:
                session = await self.runtime.start(self.agent, "s")
            except HookFailed:
                return
            for prompt, turn in zip(self.plan.prompts, self.plan.turns, strict=True):
                self.turn = list(turn)
                try:
                    await session.prompt(prompt)
                except (HookFailed, ModelError):
                    continue
            run, loaded = self.run, await self.runtime.load("s")
            run.messages, run.loaded = session.get_messages(), loaded.get_messages()
            run.context = {"k": session.get_context("k")} if session.get_context("k") else {}
            run.loaded_context = {"k": loaded.get_context("k")} if loaded.get_context("k") else {}
            run.summary = session.get_summary()
            run.stored = [
                decode(encode(_bare(e)), "s", e.seq, e.pos, e.time) async for e in self.runtime.events("s")
            ]
            seen = {e.seq for e in run.appended}
            run.appended += [e for e in run.stored if e.seq not in seen]  # what people did, past `append`
            run.appended.sort(key=lambda e: e.seq)


def _bare(event: AnyEvent) -> AnyEvent:
    return event.replace(session="", seq=0, pos=0, time=0.0)


async def meddle(session: SessionAccess, point: str, what: str, passing: tuple[Any, ...]) -> Any:
    match what.split():
        case ["context"]:
            session.set_context("k", point)
        case ["compact", keep]:
            session.compact_messages(keep_last=int(keep))
        case ["summarise"]:
            await session.trigger_compaction(keep_last=1)
        case ["side"]:
            await session.prompt("aside")
        case ["raise"]:
            raise ValueError("clumsy")
        case ["replace"]:
            return replacement(point, passing)
        case [adds]:
            session.add_message(adds.removeprefix("add_"), f"added at {point}")
        case _:
            pass
    return None


def replacement(point: str, passing: tuple[Any, ...]) -> Any:
    match point, passing[-1] if passing else None:
        case "before_model", Request() as request:
            return request.replace(messages=[m for m in request.messages if m.role != "tool"])
        case "post_response", Response() as response:
            return response.replace(text="replaced", calls=response.calls[:1])
        case "before_tool", Call() as made:
            return Result(made.id, "by a hook")
        case _, Message() | Reply() | Result():
            return "replaced"
        case _:
            return None


async def play(plan: Plan, store: Any = ":memory:") -> Played:
    """Run a plan to its end."""
    run = Played()
    async with asyncio.timeout(20):
        await Player(plan, run, store).play()
    return run
