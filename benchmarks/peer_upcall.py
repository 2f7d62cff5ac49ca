"""Upcall: Runtime.start and prompt, Hooks, raise_callback with inbox, answer and resume, the `task` tool."""

from __future__ import annotations

import itertools
import time
from contextlib import AsyncExitStack

from common import (
    ANSWER,
    C,
    CHUNKS,
    FINAL,
    JOINED,
    NA,
    PROGRAM,
    PROMPT,
    QUESTION,
    SUB_REPLY,
    WORD,
    Peer,
    Said,
    expect,
    main,
    number_of,
    sub_model_call,
)
from upcall import kit as pieces
from upcall import Agent, Call, Context, Delta, Hooks, Message, Request, Response, Runtime, tool
from upcall.workspace import Folder, file_tools, shell, todo_tools


class Fake:
    """Calls one tool as often as `fan` says, then repeats the last result."""

    name = "fake"

    def __init__(self, tool: str, args: dict, fan: int = 1, counted: bool = False) -> None:
        self.calls = tuple(Call("", tool, args) for _ in range(fan))
        self.counted = counted

    async def respond(self, request: Request, emit) -> Response:
        C["model"] += 1
        if request.messages[-1].role != "tool":
            return Response(calls=self.calls)
        newest = itertools.takewhile(lambda m: m.role == "tool", reversed(request.messages))
        results = [result for message in newest for result in message.results]
        return Response(f"final: {results[-1].text}" + (f" x{len(results)}" if self.counted else ""))


class Reader:
    """Looks up what the prompt is about, then says what it found out."""

    name = "fake-reader"

    def __init__(self, turns: list[Said]) -> None:
        self.turns = turns

    async def respond(self, request: Request, emit) -> Response:
        C["model"] += 1
        last = request.messages[-1]
        if last.role != "tool":
            said = self.turns[number_of(last.text)]
            return Response(calls=(Call("", "look_up", {"query": said.query}),))
        return Response(self.turns[number_of(last.results[0].text)].answer)


class FakeSub:
    name = "fake-sub"

    async def respond(self, request: Request, emit) -> Response:
        await sub_model_call()
        return Response(SUB_REPLY)


class FakeStream:
    name = "fake-stream"

    async def respond(self, request: Request, emit) -> Response:
        C["model"] += 1
        parts = []
        for i in range(CHUNKS):
            parts.append(f"w{i} ")
            emit("text", parts[-1])
        return Response("".join(parts))


@tool
async def echo(x: str) -> str:
    """Echo x."""
    C["tool"] += 1
    return x


@tool(name="echo")
def echo_sync(x: str) -> str:
    """Echo x."""
    C["tool"] += 1
    return x


@tool
async def ask_human(question: str, ctx: Context) -> str:
    """Ask the person."""
    C["tool_entry"] += 1
    answer = await ctx.raise_callback(question, kind="request_user_input")
    C["tool"] += 1
    return answer


@tool(read_only=True)
async def read_file(path: str) -> str:
    """Read a file."""
    C["tool"] += 1
    return path


async def before_model(session, request):
    C["before_model"] += 1


async def post_response(session, response):
    C["after_model"] += 1


async def before_tool(session, call):
    C["before_tool"] += 1


async def after_tool(session, call, result):
    C["after_tool"] += 1


HOOKS = Hooks(
    before_model=[before_model], post_response=[post_response], before_tool=[before_tool], after_tool=[after_tool]
)


SKILL = """---
name: pdf
description: Reading PDF files.
triggers: [pdf]
---
Read them page by page.
"""


class Desk:
    """A host that takes every question and answers none, so that one can wait in memory too."""

    async def ask(self, callback):
        return None

    def withdraw(self, callback_id, reason):
        pass


class Answering(Desk):
    """A host that answers at once."""

    async def ask(self, callback):
        C["asked"] += 1
        return ANSWER


def fold(events: list) -> list[Message]:
    """The conversation, from the log's events alone."""
    messages: list[Message] = []
    for event in events:
        if event.type in ("turn_started", "responded", "message_added"):
            messages.append(event.message)
        elif event.type == "tool_ended":
            messages.append(Message("tool", (event.result,)))
    return messages


def check_turn(events: list, messages: list[Message]) -> None:
    """One whole turn of W1 is in the log, in order, and is what the session says it is."""
    expect("sequence", [e.seq for e in events], list(range(1, len(events) + 1)))
    types = [e.type for e in events]
    order = [
        "session_started",
        "turn_started",
        "responded",
        "tool_started",
        "tool_ended",
        "responded",
        "turn_ended",
    ]
    expect("events", [t for t in types if t in order], order)
    expect("status", events[-1].status, "done")
    folded = fold(events)
    expect("folded log", folded, messages)
    user, asked, told, last = folded
    expect("prompt", user.text, PROMPT)
    expect("call", [(c.name, c.args) for c in asked.calls], [("echo", {"x": WORD})])
    expect("result", [r.text for r in told.results], [WORD])
    expect("final text", last.text, FINAL)


class Upcall(Peer):
    name = "upcall"
    dists = ("upcall",)
    load_dists = ("psycopg",)
    imports = "from upcall import Agent, Runtime, tool"
    notes = {
        "W1": "every session's log is read back and folded after the clock has stopped",
        "W3": "a question from inside the tool, found in the inbox, answered by id",
        "W7": "the built-in task tool",
        "W7p": "the built-in task tool",
        "W10": "a skill, an AGENTS.md, tools and rules that are there and that the turn does not need",
        "W11": "run_python; the CPU time is without the interpreter's own process",
        "W12": "Runtime with the URL of the database, or the path of the file; start and prompt",
        "W11d": "run_python: resumed at the line of the question, no file is read again",
    }
    sids = itertools.count()

    def agent(self, model, tools=(), **kw) -> Agent:
        return Agent("bot", instructions="You are a bot.", model=model, tools=list(tools), **kw)

    def asker(self) -> Agent:
        return self.agent(Fake("ask_human", {"question": QUESTION}), [ask_human])

    async def turn(self, hooks=False, sync_tool=False, session=False):
        if session:
            raise NA("same as W1: a session is always in the runtime's store")
        agent = self.agent(
            Fake("echo", {"x": WORD}), [echo_sync if sync_tool else echo], hooks=HOOKS if hooks else Hooks()
        )
        runtime = await Runtime(":memory:", agents=[agent]).__aenter__()
        ids = []

        async def run():
            s = await runtime.start(agent)
            reply = await s.prompt(PROMPT)
            ids.append(s.id)
            return reply.text

        async def read_back():
            for i in ids:
                events = [event async for event in runtime.events(i)]
                check_turn(events, (await runtime.load(i)).get_messages())
            await runtime.__aexit__(None, None, None)
            return len(ids)

        run.read_back = read_back
        return run

    async def many(self, where, worker, turns):
        @tool
        async def look_up(query: str) -> str:
            """Look something up."""
            C["tool"] += 1
            return turns[number_of(query)].found

        agent = self.agent(Reader(turns), [look_up])
        runtime = await Runtime(where, agents=[agent]).__aenter__()

        async def begin():
            session = await runtime.start(agent)

            async def turn(prompt):
                return (await session.prompt(prompt)).text

            return turn

        async def close():
            await runtime.__aexit__(None, None, None)

        return begin, close

    async def deep(self):
        raise NA("measured with upcall-deep")

    async def kits(self, folder):
        (folder / "AGENTS.md").write_text("Be brief.")
        (folder / "skills/pdf").mkdir(parents=True)
        (folder / "skills/pdf/SKILL.md").write_text(SKILL)
        made = {
            "skills": pieces.skills(folder / "skills"),
            "prompt": pieces.prompt(),
            "memory": pieces.memory("AGENTS.md"),
            "compact": pieces.compact(),
            "evict": pieces.evict(),
            "approve": pieces.approve({"write_file": True, "shell": {"command": "rm *"}}),
            "budget": pieces.budget(calls=10**9),
            "rate_limit": pieces.rate_limit(1e-6),
            "stuck": pieces.stuck(),
            "log_calls": pieces.log_calls(),
            "file_tools": file_tools(),
            "shell": shell(),
            "todo_tools": todo_tools(),
        }
        kinds = {"none": [], **{name: [piece] for name, piece in made.items()}, "all": list(made.values())}
        return {name: await self.fresh(kit, Folder(folder)) for name, kit in kinds.items()}

    async def fresh(self, kit, workspace):
        agent = self.agent(Fake("echo", {"x": WORD}), [echo], kit=kit, workspace=workspace)
        runtime = await Runtime(":memory:", agents=[agent]).__aenter__()

        async def run():
            s = await runtime.start(agent)
            return (await s.prompt(PROMPT)).text

        return run

    async def park(self, runtime, sid):
        s = await runtime.start("bot", id=sid)
        reply = await s.prompt(PROMPT)
        expect("status", reply.status, "waiting")
        expect("question", [c.message for c in reply.callbacks], [QUESTION])
        C["asked"] += 1

    async def unpark(self, runtime, sid):
        (waiting,) = [c for c in await runtime.inbox() if c.session_id == sid]
        await runtime.answer(waiting.id, ANSWER, by="bench")
        return (await runtime.resume(sid)).text

    def runtime(self, db, agent) -> Runtime:
        """On disk a question waits by itself; in memory it needs somebody who could be asked."""
        if db:
            return Runtime(str(db), agents=[agent])
        return Runtime(":memory:", agents=[agent], host=Desk(), hold=0)

    async def ask(self, db):
        agent = self.asker()
        stack = AsyncExitStack()
        box = [await stack.enter_async_context(self.runtime(db, agent))]

        async def run():
            sid = f"s{next(self.sids)}"
            await self.park(box[0], sid)
            if db:
                await stack.aclose()
                box[0] = await stack.enter_async_context(self.runtime(db, agent))
            return await self.unpark(box[0], sid)

        run.close = stack.aclose
        return run

    async def growth(self, db):
        stack = AsyncExitStack()
        agent = self.agent(Fake("echo", {"x": WORD}), [echo])
        runtime = await stack.enter_async_context(Runtime(str(db), agents=[agent]))
        s = await runtime.start(agent, id="one")

        async def run():
            return (await s.prompt(PROMPT)).text

        async def close():
            history = len(s.get_messages())
            await stack.aclose()
            return history

        return run, close, "sqlite"

    async def wait(self, db):
        stack = AsyncExitStack()
        runtime = await stack.enter_async_context(self.runtime(db, self.asker()))
        return (lambda i: self.park(runtime, i)), (lambda i: self.unpark(runtime, i)), stack.aclose

    async def sub(self, fan):
        helper = Agent("helper", instructions="You help.", description="Helps.", model=FakeSub())
        agent = self.agent(Fake("task", {"agent": "helper", "prompt": PROMPT}, fan, counted=True), agents=[helper])
        runtime = await Runtime(":memory:", agents=[agent]).__aenter__()

        async def run():
            s = await runtime.start(agent)
            return (await s.prompt(PROMPT)).text

        return run

    async def stream(self):
        agent = self.agent(FakeStream())
        runtime = await Runtime(":memory:", agents=[agent]).__aenter__()

        async def run():
            s = await runtime.start(agent)
            seen, parts = 0, []
            async for event in s.stream(PROMPT):
                if isinstance(event, Delta):
                    seen += 1
                    parts.append(event.text)
            return seen, "".join(parts)

        return run

    def programmer(self) -> Agent:
        from upcall.workspace import run_python

        code = PROGRAM.format(read="read_file", ask="raise_callback", end=f"print({JOINED}, end='')")
        return self.agent(Fake("run_python", {"code": code}), [run_python(), read_file])

    async def code(self, db):
        agent = self.programmer()
        stack = AsyncExitStack()
        if not db:
            runtime = await stack.enter_async_context(Runtime(":memory:", agents=[agent], host=Answering()))

            async def inline():
                s = await runtime.start(agent)
                return (await s.prompt(PROMPT)).text

            inline.close = stack.aclose
            return inline
        box = [await stack.enter_async_context(self.runtime(db, agent))]

        async def run():
            sid = f"s{next(self.sids)}"
            reply = await (await box[0].start("bot", id=sid)).prompt(PROMPT)
            while reply.status == "waiting":
                C["asked"] += 1
                await stack.aclose()
                box[0] = await stack.enter_async_context(self.runtime(db, agent))
                saved = [e async for e in box[0].events(sid) if e.type == "program_saved"][-1]
                run.snapshots.append(len(await box[0].store.blob(saved.blob)))
                (waiting,) = await box[0].inbox()
                c, t = time.process_time_ns(), time.perf_counter_ns()
                await box[0].answer(waiting.id, ANSWER, by="bench")
                reply = await box[0].resume(sid)
                run.resumes.append((time.perf_counter_ns() - t, time.process_time_ns() - c))
            return reply.text

        run.close, run.resumes, run.snapshots = stack.aclose, [], []
        return run


if __name__ == "__main__":
    main(Upcall)
