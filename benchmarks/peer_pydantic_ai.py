"""Pydantic AI: Agent.run, Hooks capability, requires_approval + DeferredToolRequests, Conversation."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone

from pydantic_ai import Agent, DeferredToolRequests, ModelResponse, PartDeltaEvent, PartStartEvent
from pydantic_ai import CallDeferred, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.capabilities import Hooks
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits

from common import ANSWER, C, CHUNKS, JOINED, NA, PROGRAM, PROMPT, SUB_REPLY, WORD, AppStore, Peer, main
from common import number_of, sub_model_call

ids = itertools.count()


def reply(*parts) -> ModelResponse:
    # With usage given, FunctionModel does not re-count the whole history's tokens.
    return ModelResponse(parts=list(parts), usage=RequestUsage(input_tokens=1, output_tokens=1))


def call(name: str, args: dict) -> ToolCallPart:
    return ToolCallPart(name, args, tool_call_id=f"call_{next(ids)}")


def fake(tool_name: str, args: dict):
    async def model(messages, info):
        C["model"] += 1
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart):
            return reply(TextPart(f"final: {last.content}"))
        return reply(call(tool_name, args))

    return FunctionModel(model)


def fake_parent(fan: int):
    async def model(messages, info):
        C["model"] += 1
        got = [p for p in messages[-1].parts if isinstance(p, ToolReturnPart)]
        if got:
            return reply(TextPart(f"final: {got[-1].content} x{len(got)}"))
        return reply(*(call("helper", {"request": PROMPT}) for _ in range(fan)))

    return FunctionModel(model)


def fake_reader(turns):
    async def model(messages, info):
        C["model"] += 1
        last = messages[-1].parts[-1]
        said = turns[number_of(last.content)]
        if isinstance(last, ToolReturnPart):
            return reply(TextPart(said.answer))
        return reply(call("look_up", {"query": said.query}))

    return FunctionModel(model)


async def sub_model(messages, info):
    await sub_model_call()
    return reply(TextPart(SUB_REPLY))


@dataclass
class Streamed(StreamedResponse):
    _at: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    model_name = "fake"
    provider_name = None
    provider_url = None

    @property
    def timestamp(self):
        return self._at

    async def close_stream(self):
        pass

    async def _get_event_iterator(self):
        for i in range(CHUNKS):
            for e in self._parts_manager.handle_text_delta(vendor_part_id="content", content=f"w{i} "):
                yield e


class FakeStream(Model):
    model_name = "fake"
    system = "fake"

    async def request(self, *a):
        raise NotImplementedError

    @asynccontextmanager
    async def request_stream(self, messages, model_settings, model_request_parameters, run_context=None):
        C["model"] += 1
        _, params = self.prepare_request(model_settings, model_request_parameters)
        yield Streamed(model_request_parameters=params)


async def echo(x: str) -> str:
    """Echo x."""
    C["tool"] += 1
    return x


def echo_sync(x: str) -> str:
    """Echo x."""
    C["tool"] += 1
    return x


echo_sync.__name__ = "echo"


def make_hooks() -> Hooks:
    hooks = Hooks()

    @hooks.on.before_model_request
    async def bm(ctx, request_context):
        C["before_model"] += 1
        return request_context

    @hooks.on.after_model_request
    async def am(ctx, *, request_context, response):
        C["after_model"] += 1
        return response

    @hooks.on.before_tool_execute
    async def bt(ctx, *, call, tool_def, args):
        C["before_tool"] += 1
        return args

    @hooks.on.after_tool_execute
    async def at(ctx, *, call, tool_def, args, result):
        C["after_tool"] += 1
        return result

    return hooks


NO_STOP = "a call inside run_code has to be settled while it runs: the program can't stop and go on later"


class PydanticAI(Peer):
    name = "pydantic-ai"
    dists = ("pydantic-ai-slim", "pydantic")
    load_dists = ("dbos", "psycopg")
    imports = "from pydantic_ai import Agent"
    notes = {
        "W3": "approval of a tool call, held as a Conversation object",
        "W3d": "no SQLite store ships; the app stores the Conversation's JSON (one INSERT here)",
        "W4": "no SQLite store ships; Conversation held in memory",
        "W6": "app holds the Conversation objects",
        "W6d": "the Conversation's JSON in the app's own table",
        "W12": "the DBOSDurability capability; a turn is a workflow, whose arguments are the prompt and the history",
        "W11": "CodeMode of pydantic-ai-harness; CPU time without the interpreter's own process",
    }
    sids = itertools.count()

    async def turn(self, hooks=False, sync_tool=False, session=False):
        agent = Agent(
            fake("echo", {"x": WORD}),
            instructions="You are a bot.",
            tools=[echo_sync if sync_tool else echo],
            capabilities=[make_hooks()] if hooks else [],
        )
        if not session:

            async def run():
                return (await agent.run(PROMPT)).output

            return run
        from pydantic_ai.conversation_store import InMemoryConversationStore  # newer than what code mode takes

        store = InMemoryConversationStore()

        async def run():
            sid = f"s{next(self.sids)}"
            c = await store.load(sid) or Conversation(conversation_id=sid)
            r = await agent.run(PROMPT, conversation=c)
            await store.save(r)
            return r.output

        return run

    def ask_agent(self):
        agent = Agent(
            fake("paint", {"colour": ANSWER}),
            instructions="You are a bot.",
            output_type=[str, DeferredToolRequests],
        )

        @agent.tool_plain(requires_approval=True)
        async def paint(colour: str) -> str:
            """Paint it."""
            C["tool_entry"] += 1
            C["tool"] += 1
            return colour

        return agent

    async def start(self, agent):
        r = await agent.run(PROMPT)
        (q,) = r.output.approvals
        assert q.tool_name == "paint", q
        C["asked"] += 1
        return r.conversation

    async def finish(self, agent, c):
        results = c.deferred_tool_requests.build_results(approve_all=True)
        return (await agent.run(conversation=c, deferred_tool_results=results)).output

    async def park(self, agent, store, sid):
        c = await self.start(agent)
        store.put(sid, ConversationTypeAdapter.dump_json(c).decode())

    async def unpark(self, agent, store, sid):
        return await self.finish(agent, ConversationTypeAdapter.validate_json(store.get(sid)))

    async def ask(self, db):
        agent = self.ask_agent()
        if db is None:

            async def run():
                return await self.finish(agent, await self.start(agent))

            return run
        box = [AppStore(db)]

        async def run():
            sid = f"s{next(self.sids)}"
            await self.park(agent, box[0], sid)
            box[0].close()
            box[0] = AppStore(db)
            return await self.unpark(agent, box[0], sid)

        async def close():
            box[0].close()

        run.close = close
        return run

    async def growth(self, db):
        agent = Agent(fake("echo", {"x": WORD}), instructions="You are a bot.", tools=[echo])
        box = [Conversation()]

        async def run():
            # The default limit is 50 model requests a conversation, not a run.
            r = await agent.run(PROMPT, conversation=box[0], usage_limits=UsageLimits(request_limit=None))
            box[0] = r.conversation
            return r.output

        async def close():
            return len(box[0].messages)

        return run, close, "memory"

    async def many(self, where, worker, turns):
        from dbos import DBOS
        from pydantic_ai.durable_exec.dbos import DBOSDurability

        config = {"name": "bench", "system_database_url": where, "executor_id": str(worker), "log_level": "ERROR"}
        DBOS(config={**config, "application_version": "1"})

        @DBOS.step()
        async def look_up(query: str) -> str:
            """Look something up."""
            C["tool"] += 1
            return turns[number_of(query)].found

        agent = Agent(
            fake_reader(turns),
            name="bot",
            instructions="You are a bot.",
            tools=[look_up],
            capabilities=[DBOSDurability()],
        )

        @DBOS.workflow()
        async def one_turn(prompt: str, history: list):
            result = await agent.run(prompt, message_history=history, usage_limits=UsageLimits(request_limit=None))
            return result.output, result.new_messages()

        DBOS.launch()

        async def begin():
            history = []

            async def turn(prompt):
                text, new = await one_turn(prompt, history)
                history.extend(new)
                return text

            return turn

        async def close():
            DBOS.destroy()

        return begin, close

    async def wait(self, db):
        agent = self.ask_agent()
        if db is None:
            held = {}

            async def park(i):
                held[i] = await self.start(agent)

            async def answer(i):
                return await self.finish(agent, held.pop(i))

            async def close():
                held.clear()

            return park, answer, close
        store = AppStore(db)

        async def close():
            store.close()

        return (lambda i: self.park(agent, store, i)), (lambda i: self.unpark(agent, store, i)), close

    async def sub(self, fan):
        child = Agent(FunctionModel(sub_model), instructions="You help.")
        agent = Agent(fake_parent(fan), instructions="You are a bot.")

        @agent.tool
        async def helper(ctx, request: str) -> str:
            """Ask the helper."""
            return (await child.run(request, usage=ctx.usage)).output

        async def run():
            return (await agent.run(PROMPT)).output

        return run

    async def stream(self):
        agent = Agent(FakeStream(), instructions="You are a bot.")

        async def run():
            seen, parts = 0, []
            async with agent.run_stream_events(PROMPT) as events:
                async for e in events:
                    if isinstance(e, PartDeltaEvent):
                        seen += 1
                        parts.append(e.delta.content_delta)
                    elif isinstance(e, PartStartEvent):
                        seen += 1
                        parts.append(e.part.content)
            return seen, "".join(parts)

        return run

    async def code(self, db):
        if db:
            raise NA(NO_STOP)
        from pydantic_ai.capabilities import HandleDeferredToolCalls
        from pydantic_ai_harness import CodeMode

        async def settle(ctx, requests):
            C["asked"] += len(requests.calls)
            return requests.build_results(calls={c.tool_call_id: ANSWER for c in requests.calls})

        program = PROGRAM.format(read="await read_file", ask="await ask_human", end=JOINED)
        agent = Agent(
            fake("run_code", {"code": program}), capabilities=[CodeMode(), HandleDeferredToolCalls(handler=settle)]
        )

        @agent.tool_plain
        async def read_file(path: str) -> str:
            """Read a file."""
            C["tool"] += 1
            return path

        @agent.tool_plain
        async def ask_human(message: str) -> str:
            """Ask the person."""
            raise CallDeferred

        async def run():
            return (await agent.run(PROMPT)).output

        return run


if __name__ == "__main__":
    main(PydanticAI)
