"""OpenAI Agents SDK: Runner.run, RunHooks, needs_approval + RunState, SQLiteSession, as_tool."""

from __future__ import annotations

import itertools

from agents import Agent, Model, RunConfig, RunHooks, Runner, RunState, SQLiteSession, Usage, function_tool
from agents import ModelResponse, set_tracing_disabled
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from common import ANSWER, C, CHUNKS, NA, PROMPT, SUB_REPLY, WORD, AppStore, Peer, main, sub_model_call

set_tracing_disabled(True)  # on by default; it would post to a service

ids = itertools.count()


def say(text: str) -> ResponseOutputMessage:
    return ResponseOutputMessage(
        id=f"msg_{next(ids)}",
        type="message",
        role="assistant",
        status="completed",
        content=[ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])],
    )


def call(name: str, args: str) -> ResponseFunctionToolCall:
    n = next(ids)
    return ResponseFunctionToolCall(
        id=f"fc_{n}", call_id=f"call_{n}", type="function_call", name=name, arguments=args
    )


class Fake(Model):
    tool_name, args = "echo", '{"x": "%s"}' % WORD

    async def get_response(self, system_instructions, input, *a, **kw):
        C["model"] += 1
        return ModelResponse(output=self.reply(input), usage=Usage(), response_id=None)

    def reply(self, input):
        last = input[-1] if isinstance(input, list) else {}
        if last.get("type") == "function_call_output":
            return [say(f"final: {last['output']}")]
        return [call(self.tool_name, self.args)]

    def stream_response(self, *a, **kw):
        raise NotImplementedError


class FakeAsk(Fake):
    tool_name, args = "paint", '{"colour": "%s"}' % ANSWER


class FakeParent(Fake):
    def __init__(self, fan: int) -> None:
        self.fan = fan

    def reply(self, input):
        n = 0
        if isinstance(input, list):
            n = len(list(itertools.takewhile(lambda i: i.get("type") == "function_call_output", reversed(input))))
        if n:
            return [say(f"final: {input[-1]['output']} x{n}")]
        return [call("helper", '{"input": "%s"}' % PROMPT) for _ in range(self.fan)]


class FakeSub(Fake):
    async def get_response(self, *a, **kw):
        await sub_model_call()
        return ModelResponse(output=[say(SUB_REPLY)], usage=Usage(), response_id=None)


class FakeStream(Fake):
    async def stream_response(self, *a, **kw):
        C["model"] += 1
        parts = []
        for i in range(CHUNKS):
            parts.append(f"w{i} ")
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta",
                item_id="m",
                output_index=0,
                content_index=0,
                delta=parts[-1],
                logprobs=[],
                sequence_number=i,
            )
        yield ResponseCompletedEvent(
            type="response.completed",
            sequence_number=CHUNKS,
            response=Response(
                id="r",
                created_at=0,
                model="fake",
                object="response",
                output=[say("".join(parts))],
                parallel_tool_calls=True,
                tool_choice="auto",
                tools=[],
            ),
        )


@function_tool
async def echo(x: str) -> str:
    """Echo x."""
    C["tool"] += 1
    return x


@function_tool(name_override="echo")
def echo_sync(x: str) -> str:
    """Echo x."""
    C["tool"] += 1
    return x


@function_tool(needs_approval=True)
async def paint(colour: str) -> str:
    """Paint it."""
    C["tool_entry"] += 1
    C["tool"] += 1
    return colour


class Hooks(RunHooks):
    async def on_llm_start(self, *a, **k):
        C["before_model"] += 1

    async def on_llm_end(self, *a, **k):
        C["after_model"] += 1

    async def on_tool_start(self, *a, **k):
        C["before_tool"] += 1

    async def on_tool_end(self, *a, **k):
        C["after_tool"] += 1


class OpenAIAgents(Peer):
    name = "openai-agents"
    dists = ("openai-agents", "openai")
    imports = "from agents import Agent, Runner, function_tool"
    notes = {
        "W3": "approval of a tool call, held as a RunState object",
        "W3d": "SQLiteSession for the history; the pending RunState is a string the app stores (one INSERT here)",
        "W6": "app holds the RunState objects",
        "W6d": "SQLiteSession + RunState string in the app's own table",
    }
    sessions = itertools.count()

    def agent(self, model, tools):
        return Agent(name="bot", instructions="You are a bot.", model=model, tools=tools)

    async def turn(self, hooks=False, sync_tool=False, session=False):
        agent = self.agent(Fake(), [echo_sync if sync_tool else echo])
        h = Hooks() if hooks else None

        async def run():
            s = SQLiteSession(f"s{next(self.sessions)}") if session else None
            r = await Runner.run(agent, PROMPT, hooks=h, session=s)
            if s:
                s.close()
            return r.final_output

        return run

    async def start(self, agent, session=None):
        r = await Runner.run(agent, PROMPT, session=session)
        (i,) = r.interruptions
        assert i.tool_name == "paint", i
        C["asked"] += 1
        return r.to_state()

    async def finish(self, agent, state, session=None):
        (i,) = state.get_interruptions()
        state.approve(i)
        r = await Runner.run(agent, state, session=session)
        return r.final_output

    async def park(self, agent, db, store, sid):
        s = SQLiteSession(sid, db)
        state = await self.start(agent, s)
        store.put(sid, state.to_string())
        s.close()

    async def unpark(self, agent, db, store, sid):
        s = SQLiteSession(sid, db)
        state = await RunState.from_string(agent, store.get(sid))
        text = await self.finish(agent, state, s)
        s.close()
        return text

    async def ask(self, db):
        agent = self.agent(FakeAsk(), [paint])
        if db is None:

            async def run():
                return await self.finish(agent, await self.start(agent))

            return run
        app = db.with_name("app.db")
        box = [AppStore(app)]

        async def run():
            sid = f"s{next(self.sessions)}"
            await self.park(agent, db, box[0], sid)
            box[0].close()
            box[0] = AppStore(app)
            return await self.unpark(agent, db, box[0], sid)

        async def close():
            box[0].close()

        run.close = close
        return run

    async def growth(self, db):
        agent = self.agent(Fake(), [echo])
        s = SQLiteSession("one", db)

        async def run():
            return (await Runner.run(agent, PROMPT, session=s)).final_output

        async def close():
            n = len(await s.get_items())
            s.close()
            return n

        return run, close, "sqlite"

    async def wait(self, db):
        agent = self.agent(FakeAsk(), [paint])
        if db is None:
            held = {}

            async def park(i):
                held[i] = await self.start(agent)

            async def answer(i):
                return await self.finish(agent, held.pop(i))

            async def close():
                held.clear()

            return park, answer, close
        store = AppStore(db.with_name("app.db"))

        async def close():
            store.close()

        return (lambda i: self.park(agent, db, store, i)), (lambda i: self.unpark(agent, db, store, i)), close

    async def sub(self, fan):
        child = Agent(name="helper", instructions="You help.", model=FakeSub())
        agent = self.agent(FakeParent(fan), [child.as_tool("helper", "Helps.")])

        async def run():
            return (await Runner.run(agent, PROMPT)).final_output

        return run

    async def stream(self):
        agent = self.agent(FakeStream(), [])

        async def run():
            seen, parts = 0, []
            r = Runner.run_streamed(agent, PROMPT)
            async for e in r.stream_events():
                if e.type == "raw_response_event" and e.data.type == "response.output_text.delta":
                    seen += 1
                    parts.append(e.data.delta)
            assert r.final_output == "".join(parts)
            return seen, "".join(parts)

        return run


if __name__ == "__main__":
    main(OpenAIAgents)
