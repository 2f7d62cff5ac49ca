"""Microsoft Agent Framework (core): Agent.run, middleware, approval_mode, file stores, as_tool."""

from __future__ import annotations

import itertools
import warnings

warnings.filterwarnings("ignore")  # FileSessionStore is marked experimental

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FileHistoryProvider,
    FileSessionStore,
    FunctionInvocationLayer,
    Message,
    chat_middleware,
    function_middleware,
    tool,
)
from agent_framework.observability import ChatTelemetryLayer

from common import ANSWER, C, CHUNKS, PROMPT, SUB_REPLY, WORD, Peer, main, sub_model_call

ids = itertools.count()


def say(text: str) -> ChatResponse:
    return ChatResponse(messages=[Message("assistant", [Content.from_text(text)])])


def call(name: str, args: dict) -> Content:
    n = next(ids)
    return Content.from_function_call(f"call_{n}", name, arguments=args, id=f"fc_{n}")


class Fake(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, BaseChatClient):
    """The layers a shipped client has, over an in-process model."""

    tool_name, args = "echo", {"x": WORD}

    def _inner_get_response(self, *, messages, stream, options, **kw):
        if stream:
            return self._build_response_stream(self.chunks())
        return self.respond(messages)

    async def respond(self, messages):
        C["model"] += 1
        return self.reply(messages)

    def reply(self, messages):
        last = messages[-1].contents[-1]
        if last.type == "function_result":
            return say(f"final: {last.result}")
        return ChatResponse(messages=[Message("assistant", [call(self.tool_name, self.args)])])


class FakeAsk(Fake):
    tool_name, args = "paint", {"colour": ANSWER}


class FakeParent(Fake):
    fan = 1

    def reply(self, messages):
        got = [c for m in messages for c in m.contents if c.type == "function_result"]
        if got:
            return say(f"final: {got[-1].result} x{len(got)}")
        return ChatResponse(
            messages=[Message("assistant", [call("helper", {"task": PROMPT}) for _ in range(self.fan)])]
        )


class FakeSub(Fake):
    async def respond(self, messages):
        await sub_model_call()
        return say(SUB_REPLY)

    async def chunks(self):  # as_tool streams the child
        await sub_model_call()
        yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(SUB_REPLY)])


class FakeStream(Fake):
    async def chunks(self):
        C["model"] += 1
        for i in range(CHUNKS):
            yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(f"w{i} ")])


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


@tool(approval_mode="always_require")
async def paint(colour: str) -> str:
    """Paint it."""
    C["tool_entry"] += 1
    C["tool"] += 1
    return colour


@chat_middleware
async def chat_hook(context, call_next):
    C["before_model"] += 1
    await call_next()
    C["after_model"] += 1


@function_middleware
async def function_hook(context, call_next):
    C["before_tool"] += 1
    await call_next()
    C["after_tool"] += 1


class AgentFramework(Peer):
    name = "agent-framework"
    dists = ("agent-framework-core",)
    imports = "from agent_framework import Agent, tool"
    notes = {
        "W3": "approval of a tool call",
        "W3d": "no SQLite in core; FileSessionStore (experimental): one JSON file a session, no fsync",
        "W4": "no SQLite in core; FileHistoryProvider: a JSON Lines file a session, no fsync",
        "W6d": "FileSessionStore: one JSON file a session, no fsync",
    }
    sids = itertools.count()

    def agent(self, client, tools, **kw):
        return Agent(client=client, instructions="You are a bot.", name="bot", tools=tools, **kw)

    async def turn(self, hooks=False, sync_tool=False, session=False):
        agent = self.agent(
            Fake(),
            [echo_sync if sync_tool else echo],
            middleware=[chat_hook, function_hook] if hooks else None,
        )

        async def run():
            s = agent.create_session() if session else None
            return (await agent.run(PROMPT, session=s)).text

        return run

    async def start(self, agent, session):
        r = await agent.run(PROMPT, session=session)
        (q,) = r.user_input_requests
        assert q.function_call.name == "paint", q
        C["asked"] += 1
        return q

    async def finish(self, agent, session, q):
        m = Message("user", [q.to_function_approval_response(approved=True)])
        return (await agent.run(m, session=session)).text

    def pending(self, session):
        """The open approval request, from the session's own history."""
        for m in reversed(session.state["in_memory"]["messages"]):
            for c in m.contents:
                if c.type == "function_approval_request":
                    return c
        raise AssertionError("no open request in the stored session")

    async def park(self, agent, store, sid):
        s = agent.create_session(session_id=sid)
        await self.start(agent, s)
        await store.set(sid, s)

    async def unpark(self, agent, store, sid):
        s = await store.get(sid)
        text = await self.finish(agent, s, self.pending(s))
        await store.set(sid, s)
        return text

    async def ask(self, db):
        agent = self.agent(FakeAsk(), [paint])
        if db is None:

            async def run():
                s = agent.create_session()
                return await self.finish(agent, s, await self.start(agent, s))

            return run

        async def run():
            sid = f"s{next(self.sids)}"
            await self.park(agent, FileSessionStore(db), sid)
            return await self.unpark(agent, FileSessionStore(db), sid)

        return run

    async def growth(self, db):
        history = FileHistoryProvider(db)
        agent = self.agent(Fake(), [echo], context_providers=[history])
        s = AgentSession(session_id="one")

        async def run():
            return (await agent.run(PROMPT, session=s)).text

        async def close():
            return len(await history.get_messages("one"))

        return run, close, "jsonl"

    async def wait(self, db):
        agent = self.agent(FakeAsk(), [paint])

        async def close():
            pass

        if db is None:
            held = {}

            async def park(i):
                s = agent.create_session(session_id=i)
                held[i] = (s, await self.start(agent, s))

            async def answer(i):
                return await self.finish(agent, *held.pop(i))

            return park, answer, close
        store = FileSessionStore(db)
        return (lambda i: self.park(agent, store, i)), (lambda i: self.unpark(agent, store, i)), close

    async def sub(self, fan):
        child = Agent(client=FakeSub(), name="helper", description="Helps.", instructions="You help.")
        client = FakeParent()
        client.fan = fan
        agent = self.agent(client, [child.as_tool()])

        async def run():
            return (await agent.run(PROMPT)).text

        return run

    async def stream(self):
        agent = self.agent(FakeStream(), [])

        async def run():
            seen, parts = 0, []
            async for u in agent.run(PROMPT, stream=True):
                if u.text:
                    seen += 1
                    parts.append(u.text)
            return seen, "".join(parts)

        return run


if __name__ == "__main__":
    main(AgentFramework)
