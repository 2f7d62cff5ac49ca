"""The program whose agents ask back, to be killed while they wait.

    python -m chaos.asking run CAST FOLDER HOLD SESSION...       start these sessions, or go on with them
    python -m chaos.asking answer FOLDER GATE BY CALLBACK VALUE  answer as soon as the gate is open
    python -m chaos.asking cancel FOLDER GATE SESSION            cancel as soon as the gate is open
    python -m chaos.asking many FOLDER COUNT                     park so many sessions, and measure

FOLDER holds the store, the effects and the gates: files whose being there lets a model or a tool go on. With a HOLD
above 0 there is a person at the screen who says nothing. Every effect and every model call is one line outside the
store, written in one go.
"""

from __future__ import annotations

import asyncio
import gc
import re
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chaos.driver import Effects, say
from upcall import Agent, Call, Callback, Context, Delta, Request, Result, Runtime, SyncContext, tool
from upcall.errors import AlreadySettled, OutcomeUnknown, SessionExists
from upcall.events import AnyEvent, Parked, ToolEnded
from upcall.models import Script, call
from upcall.workspace import run_python

ASKERS = 10
"""How many children of the cast `crowd` ask."""


SHOWN = "While you were at work"
"""How the message begins by which an agent is shown what it was asked aside."""


class Place:
    """The files that the processes of one test share."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self.effects = folder, folder / "log.db", folder / "effects"

    def gate(self, name: str) -> Path:
        return self.folder / f"{name}.open"

    def open(self, *names: str) -> None:
        for name in names:
            self.gate(name).touch()

    async def passing(self, name: str) -> None:
        """Return when the gate is open."""
        while not self.gate(name).exists():
            await asyncio.sleep(0.003)

    def noted(self) -> list[list[str]]:
        """Every line of the effects, in words."""
        return [line.split() for line in self.effects.read_text().splitlines()] if self.effects.exists() else []


class Silent:
    """A person at the screen who never says anything."""

    async def ask(self, callback: Callback) -> Any:
        say("shown", callback.message)
        await asyncio.Event().wait()

    def withdraw(self, callback_id: str, reason: str) -> None:
        say("taken away", callback_id, reason)


def results(request: Request) -> list[Result]:
    return [r for m in request.messages for r in m.results]


class Cast:
    """What the agents of one test share: where they note what they do."""

    def __init__(self, place: Place) -> None:
        self.place, self.effects = place, Effects(place.effects)

    def note_model(self, request: Request) -> str:
        """Write down who is asked what for; returns what it is about."""
        subject = re.findall(r"part\d+", request.messages[0 if request.purpose == "turn" else -1].text) or ["all"]
        self.effects.note("model", request.agent, request.purpose, subject[0])
        return subject[0]

    def aside(self, request: Request, known: Sequence[str], subject: str) -> Any:
        """A side turn that waits for its gate, then answers what it knows and passes the rest up."""
        seen = [part for m in request.messages if SHOWN in m.text for part in re.findall(r"part\d+", m.text)]

        async def decide() -> Call:
            say("aside", request.agent, subject)
            await self.place.passing(f"{request.agent}.{subject}")
            self.effects.note("decided", request.agent, subject, *seen)
            if subject in known:
                return call("answer_callback", value=f"by-{request.agent}")
            if "reword" in known:
                return call("reword_callback", message=f"{subject}, in better words", reason="it was unclear")
            return call("pass_up_callback", reason=f"{request.agent} does not know {subject}")

        return decide()

    def delegating(self, name: str, below: Agent, plan: Callable[[str], list[Call]], *known: str) -> Agent:
        """An agent that hands out its work and joins what comes back."""

        def decide(request: Request) -> Any:
            subject = self.note_model(request)
            if request.purpose == "side_turn":
                return self.aside(request, known, subject)
            said = results(request)
            return f"{name}({' '.join(sorted(r.text for r in said))})" if said else plan(subject)

        return Agent(name, model=Script(decide), agents=[below])

    def working(self, name: str, *tools: Any, repeat: bool = True) -> Agent:
        """An agent that calls its first tool, again if that was interrupted, and says what it said."""

        def decide(request: Request) -> Any:
            subject = self.note_model(request)
            said = results(request)
            if not said or (repeat and said[-1].text.startswith("interrupted")):
                return call(tools[0].name, part=subject)
            return f"{name}: {said[-1].text}"

        return Agent(name, model=Script(decide), tools=list(tools))


def firm(cast: Cast) -> Agent:
    """A manager, three developers side by side, a tester below each that asks the person, then whoever knows."""
    effects = cast.effects

    @tool
    async def check(part: str, ctx: Context) -> str:
        """Check a part."""
        await ctx.once("rent", effects.note, "rent", part, ctx.id, ctx.call_id)
        leave = await ctx.raise_callback(f"may {part} begin?", "user_input", kind="request_user_input")
        how = await ctx.raise_callback(f"how is {part} checked?", "clarification")
        effects.note("checked", part, ctx.id, ctx.call_id, leave, how)
        return f"{part} {leave} {how}"

    def task(part: str) -> list[Call]:
        return [call("task", agent="tester", prompt=f"check {part}")]

    def tasks(_: str) -> list[Call]:
        return [call("task", agent="developer", prompt=f"build part{n}") for n in range(3)]

    tester = cast.working("tester", check)
    developer = cast.delegating("developer", tester, task, "part0")
    return cast.delegating("manager", developer, tasks, "part1")


def crowd(cast: Cast) -> Agent:
    """Ten children side by side, each with a question of its own to the person."""
    effects = cast.effects

    @tool
    async def paint(part: str, ctx: Context) -> str:
        """Paint a part."""
        await ctx.once("buy", effects.note, "buy", ctx.id, ctx.call_id)
        colour = await ctx.raise_callback(f"which colour has {part}?", "blocker", kind="request_user_input")
        effects.note("painted", ctx.id, ctx.call_id, part, colour)
        return f"{part}:{colour}"

    def tasks(_: str) -> list[Call]:
        return [call("task", agent="painter", prompt=f"paint part{n}") for n in range(ASKERS)]

    return cast.delegating("foreman", cast.working("painter", paint), tasks)


def pair(cast: Cast) -> Agent:
    """A manager that answers the two developers it waits for."""

    def tasks(_: str) -> list[Call]:
        return [call("task", agent="developer", prompt=f"build part{n}") for n in range(2)]

    return cast.delegating("manager", cast.working("developer", asks_above), tasks, "part0", "part1")


def ladder(cast: Cast) -> Agent:
    """A manager above a lead above a developer that asks; the lead only finds better words."""
    developer = cast.working("developer", asks_above)
    lead = cast.delegating("lead", developer, lambda _: [call("task", agent="developer", prompt="part0")], "reword")
    return cast.delegating("manager", lead, lambda _: [call("task", agent="lead", prompt="part0")], "part0")


@tool
async def asks_above(part: str, ctx: Context) -> str:
    """Ask whoever is above."""
    hops = 1 if ctx.id.startswith("short") else None
    return f"{part} {await ctx.raise_callback(f'how is {part} built?', 'blocker', max_bubble_hops=hops)}"


def knots(cast: Cast) -> Agent:
    """One agent whose three tools ask in a gather, in a task group within `try`, and in a thread."""
    effects = cast.effects

    def fill(request: Request) -> Any:
        cast.note_model(request)
        said = results(request)
        names = ("gathered", "grouped", "threaded")
        return " | ".join(r.text for r in said) if said else [call(name) for name in names]

    @tool
    async def gathered(ctx: Context) -> str:
        """Ask twice at once."""
        return " ".join(await asyncio.gather(*[ctx.raise_callback(f"gathered {n}", "blocker") for n in range(2)]))

    @tool
    async def grouped(ctx: Context) -> str:
        """Ask twice in a task group, with everything that could swallow a parking."""
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(ctx.raise_callback(f"grouped {n}", "blocker")) for n in range(2)]
        except Exception:
            effects.note("swallowed")
            raise
        finally:
            effects.note("finally")
        return " ".join(t.result() for t in asked)

    @tool
    def threaded(ctx: SyncContext) -> str:
        """Ask from a thread."""
        try:
            ctx.once("rent", effects.note, "rent")
            return ctx.raise_callback("threaded", "blocker")
        except Exception:
            effects.note("swallowed")
            raise

    return Agent("sailor", model=Script(fill), tools=[gathered, grouped, threaded])


def one(cast: Cast) -> Agent:
    """One agent that asks the person, and says when the answer reaches its code."""
    effects = cast.effects

    @tool
    async def wait(part: str, ctx: Context) -> str:
        """Wait for a word."""
        timeout = 0.3 if ctx.id.startswith("brief") else None
        word = await ctx.raise_callback(f"what about {ctx.id}?", "blocker", timeout=timeout)
        effects.note("got", ctx.id, ctx.call_id, word)
        if not ctx.id.startswith("many"):
            say("got", ctx.id, time.time())
        if ctx.id.startswith("held"):
            await cast.place.passing("held")
        effects.note("used", ctx.id, ctx.call_id, word)
        return f"{part} {word}"

    return cast.working("clerk", wait, repeat=False)


def till(cast: Cast) -> Agent:
    """One agent whose tool charges once, however often it is run again."""
    effects = cast.effects

    async def charge(session: str, call_id: str) -> str:
        say("at", "charging")
        await asyncio.sleep(0.001)
        effects.note("charged", session, call_id)
        say("at", "charged")
        await asyncio.sleep(0.001)
        return "paid"

    @tool(repeatable=True)
    async def pay(part: str, ctx: Context) -> str:
        """Pay for a part."""
        say("at", "entered")
        try:
            paid = await ctx.once("charge", charge, ctx.id, ctx.call_id)
        except OutcomeUnknown:
            return f"{part} unknown"
        say("at", "paid")
        await asyncio.sleep(0.001)
        return f"{part} {paid}"

    return cast.working("cashier", pay, repeat=False)


def echo(cast: Cast) -> Agent:
    """A manager whose provider calls every call `call_0`, in every turn, with children that ask."""

    @tool
    async def ask_for(part: str, ctx: Context) -> str:
        """Ask for a part."""
        return await ctx.raise_callback(f"give me {part}", "blocker", kind="request_user_input")

    child = cast.working("child", ask_for)

    def decide(request: Request) -> Any:
        cast.note_model(request)
        said = [r.text for r in results(request)]
        number = sum(m.role == "assistant" for m in request.messages)
        if len(said) >= 4:
            return " ".join(said)
        return [
            Call("call_0", "task", {"agent": "child", "prompt": f"fetch part{2 * number + n}"}) for n in range(2)
        ]

    return Agent("parent", model=Script(decide), agents=[child])


def stray(cast: Cast) -> Agent:
    """One agent with a tool that fails beside its question, and one that only asks."""

    @tool
    async def fails(ctx: Context) -> str:
        """Ask, and fail meanwhile."""

        async def fail() -> str:
            await cast.place.passing("fail")
            raise ValueError("it failed")

        return " ".join(await asyncio.gather(ctx.raise_callback("left behind", "blocker"), fail()))

    @tool
    async def asks(ctx: Context) -> str:
        """Ask."""
        return await ctx.raise_callback("still open", "blocker")

    def decide(request: Request) -> Any:
        said = results(request)
        return " | ".join(r.text for r in said) if said else [call("fails"), call("asks")]

    return Agent("hasty", model=Script(decide), tools=[fails, asks])


PROGRAM = """
said = []
for path in ["one", "two", "three", "four", "five"]:
    try:
        text = read_file(path)
    except RuntimeError as error:
        assert "interrupted" in str(error), error
        text = path + "?"
    if path in ("three", "five"):
        print("asking about", path)
        text += "=" + raise_callback(f"what about {text}?", "blocker")
    said.append(text)
" ".join(said)
"""
"""Loops over five files, and asks at the third and at the fifth."""


def reader(cast: Cast) -> Agent:
    """One agent that writes a program: each file it reads is noted outside the store."""
    effects = cast.effects

    @tool
    async def read_file(path: str, ctx: Context) -> str:
        """Read a file."""
        effects.note("read", ctx.id, path)
        say("reads", ctx.id, path)
        await asyncio.sleep(0.001)
        return f"{ctx.id}/{path}"

    def decide(request: Request) -> Any:
        cast.note_model(request)
        said = results(request)
        return said[-1].text.replace("\n", " ") if said else call("run_python", code=PROGRAM)

    return Agent("reader", model=Script(decide), tools=[run_python(), read_file])


CASTS: dict[str, Callable[[Cast], Agent]] = {
    "firm": firm, "crowd": crowd, "one": one, "till": till, "echo": echo, "pair": pair, "ladder": ladder,
    "knots": knots, "stray": stray, "reader": reader,
}  # fmt: skip


def tell(item: AnyEvent | Delta) -> None:
    """Say what is on disk now."""
    if isinstance(item, Delta):
        return
    say("stored", item.session, item.seq, item.type)
    if isinstance(item, ToolEnded):
        say("result", item.result.text.splitlines()[0])
    if isinstance(item, Parked):
        say("parked", item.session)


async def go(runtime: Runtime, agent: Agent, session_id: str) -> None:
    try:
        session = await runtime.start(agent, id=session_id)
        async for item in session.stream("go"):
            tell(item)
        reply = session.reply
    except SessionExists:
        reply = await runtime.resume(session_id, sink=tell)
    assert reply is not None
    say("reply", session_id, reply.status, " ".join(reply.text.splitlines()))


async def run(name: str, folder: str, hold: str, *sessions: str) -> None:
    place = Place(Path(folder))
    agent = CASTS[name](Cast(place))
    host = Silent() if float(hold) else None
    async with Runtime(place.store, agents=[agent], host=host, hold=float(hold)) as runtime:
        await asyncio.gather(*[go(runtime, agent, s) for s in sessions])
        await asyncio.sleep(0)
        say("left over", len(asyncio.all_tasks()) - 1)
        say("idle")
        await place.passing("end")


async def waits_for(runtime: Runtime, number: int) -> str:
    held = await runtime.store.callbacks(root=f"many{number}")
    return held[0].id


async def go_on(runtime: Runtime, number: int) -> float:
    """Answer one and run it to its end; returns the seconds of CPU that took."""
    callback_id, used = await waits_for(runtime, number), time.process_time()
    await runtime.answer(callback_id, "yes", by="ops")
    assert (await runtime.resume(f"many{number}")).status == "done"
    return time.process_time() - used


def resident() -> int:
    """Bytes of memory that this process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def park(runtime: Runtime, agent: Agent, first: int, last: int, beside: int = 50) -> None:
    """Sessions that ask and are parked, some side by side."""

    async def ask(number: int) -> None:
        session = await runtime.start(agent, id=f"many{number}")
        assert (await session.prompt("go")).status == "waiting"

    for begin in range(first, last, beside):
        await asyncio.gather(*[ask(n) for n in range(begin, min(begin + beside, last))])


async def many(folder: str, count: str) -> None:
    """Park many, then measure: what each costs, the inbox, going on with one, and doing nothing."""
    place, number, warm = Place(Path(folder)), int(count), 200
    agent = one(Cast(place))
    async with Runtime(place.store, agents=[agent]) as runtime:
        await park(runtime, agent, 0, warm)
        before = resident()
        await park(runtime, agent, warm, number)
        say("memory_bytes", (resident() - before) / (number - warm))
        looks: list[float] = []
        for _ in range(9):
            started = time.perf_counter()
            assert len(await runtime.inbox(limit=50)) == 50
            looks.append(time.perf_counter() - started)
        say("inbox_ms", sorted(looks)[4] * 1000)
        say("resume_cpu_ms", sorted([await go_on(runtime, n) for n in range(number - 9, number)])[4] * 1000)
        await runtime.answer(await waits_for(runtime, number - 10), "yes")
        started = time.perf_counter()
        say("ready", len(await runtime.ready()))
        say("ready_ms", (time.perf_counter() - started) * 1000)
        used, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(1)
        say("idle_percent", (time.process_time() - used) / (time.perf_counter() - began) * 100)


async def answer(folder: str, gate: str, by: str, callback_id: str, value: str) -> None:
    place = Place(Path(folder))
    async with Runtime(place.store) as runtime:
        await runtime.inbox()
        say("ready")
        await place.passing(gate)
        try:
            settled = await runtime.answer(callback_id, value, by=by)
        except AlreadySettled as error:
            say("already", error.status, error.by or "-")
        else:
            assert settled.answer is not None
            say("answered", settled.answer.by, settled.answer.value)


async def cancel(folder: str, gate: str, session: str) -> None:
    place = Place(Path(folder))
    async with Runtime(place.store) as runtime:
        await runtime.inbox()
        say("ready")
        await place.passing(gate)
        await runtime.cancel(session, "no longer needed")
        say("cancelled")


async def main(mode: str, *rest: str) -> None:
    modes: dict[str, Any] = {"run": run, "answer": answer, "cancel": cancel, "many": many}
    await modes[mode](*rest)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
