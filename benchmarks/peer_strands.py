"""Strands Agents: Agent per session, hooks, tool_context.interrupt, SnapshotSessionManager, as_tool."""

from __future__ import annotations

import itertools
import os

os.environ.setdefault("OTEL_SDK_DISABLED", "true")

from strands import Agent, ToolContext, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.hooks import AfterModelCallEvent, AfterToolCallEvent, BeforeModelCallEvent, BeforeToolCallEvent
from strands.hooks import HookProvider
from strands.models import Model
from strands.session import SnapshotSessionManager
from strands.storage import LocalFileStorage

from common import ANSWER, C, CHUNKS, PROMPT, QUESTION, SUB_REPLY, WORD, Peer, main, sub_model_call

ids = itertools.count()


def say(text: str):
    yield {"messageStart": {"role": "assistant"}}
    yield {"contentBlockDelta": {"delta": {"text": text}}}
    yield {"contentBlockStop": {}}
    yield {"messageStop": {"stopReason": "end_turn"}}


def calls(*wanted: tuple[str, str]):
    yield {"messageStart": {"role": "assistant"}}
    for name, args in wanted:
        use = {"name": name, "toolUseId": f"call_{next(ids)}"}
        yield {"contentBlockStart": {"start": {"toolUse": use}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": args}}}}
        yield {"contentBlockStop": {}}
    yield {"messageStop": {"stopReason": "tool_use"}}


class Fake(Model):
    tool_name, args = "echo", '{"x": "%s"}' % WORD

    def update_config(self, **kw):
        pass

    def get_config(self):
        return {}

    def structured_output(self, *a, **kw):
        raise NotImplementedError

    async def stream(self, messages, *a, **kw):
        C["model"] += 1
        for e in self.reply(messages):
            yield e

    def reply(self, messages):
        got = [c["toolResult"] for c in messages[-1]["content"] if "toolResult" in c]
        if got:
            return say(f"final: {got[-1]['content'][0]['text']}")
        return calls((self.tool_name, self.args))


class FakeAsk(Fake):
    tool_name, args = "ask_human", '{"question": "%s"}' % QUESTION


class FakeParent(Fake):
    fan = 1

    def reply(self, messages):
        got = [c["toolResult"] for c in messages[-1]["content"] if "toolResult" in c]
        if got:
            texts = {r["content"][0]["text"].rstrip("\n") for r in got}
            return say(f"final: {'|'.join(sorted(texts))} x{len(got)}")
        return calls(*((f"helper{i}", '{"input": "%s"}' % PROMPT) for i in range(self.fan)))


class FakeSub(Fake):
    async def stream(self, messages, *a, **kw):
        await sub_model_call()
        for e in say(SUB_REPLY):
            yield e


class FakeStream(Fake):
    async def stream(self, messages, *a, **kw):
        C["model"] += 1
        yield {"messageStart": {"role": "assistant"}}
        for i in range(CHUNKS):
            yield {"contentBlockDelta": {"delta": {"text": f"w{i} "}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


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


@tool(context=True)
async def ask_human(question: str, tool_context: ToolContext) -> str:
    """Ask the human a question."""
    C["tool_entry"] += 1
    answer = tool_context.interrupt("ask", reason=question)
    C["tool"] += 1
    return answer


class Hooks(HookProvider):
    def register_hooks(self, registry, **kw):
        for event, key in (
            (BeforeModelCallEvent, "before_model"),
            (AfterModelCallEvent, "after_model"),
            (BeforeToolCallEvent, "before_tool"),
            (AfterToolCallEvent, "after_tool"),
        ):
            registry.add_callback(event, self.counter(key))

    def counter(self, key):
        async def hook(event) -> None:
            C[key] += 1

        return hook


def text_of(result) -> str:
    return str(result).rstrip("\n")


class Strands(Peer):
    name = "strands"
    dists = ("strands-agents",)
    imports = "from strands import Agent, tool"
    notes = {
        "W1": "an Agent is the session, so each turn builds one",
        "W3d": "no SQLite; SnapshotSessionManager on LocalFileStorage: one JSON file a session, no fsync",
        "W4": "no SQLite; SnapshotSessionManager rewrites the whole snapshot each turn, no fsync; window of 40 messages turned off",
        "W6d": "SnapshotSessionManager on LocalFileStorage, Agent dropped after the pause",
        "W7p": "eight Agent objects: parallel calls to one agent-as-tool fail as 'already processing a request'",
    }
    sids = itertools.count()

    def agent(self, model, tools, **kw):
        return Agent(model=model, tools=tools, system_prompt="You are a bot.", callback_handler=None, **kw)

    async def turn(self, hooks=False, sync_tool=False, session=False):
        if session:
            from common import NA

            raise NA("same as W1: the Agent object is the in-memory session")
        model, tools = Fake(), [echo_sync if sync_tool else echo]
        h = [Hooks()] if hooks else None

        async def run():
            return text_of(await self.agent(model, tools, hooks=h).invoke_async(PROMPT))

        return run

    async def start(self, agent):
        r = await agent.invoke_async(PROMPT)
        (i,) = r.interrupts
        assert r.stop_reason == "interrupt" and i.reason == QUESTION, r
        C["asked"] += 1
        return i.id

    async def finish(self, agent, iid):
        r = await agent.invoke_async([{"interruptResponse": {"interruptId": iid, "response": ANSWER}}])
        return text_of(r)

    def durable(self, db, sid):
        manager = SnapshotSessionManager(sid, storage=LocalFileStorage(str(db)))
        return self.agent(FakeAsk(), [ask_human], session_manager=manager, agent_id="bot")

    async def ask(self, db):
        model = FakeAsk()
        if db is None:

            async def run():
                agent = self.agent(model, [ask_human])
                return await self.finish(agent, await self.start(agent))

            return run

        async def run():
            sid = f"s{next(self.sids)}"
            iid = await self.start(self.durable(db, sid))
            return await self.finish(self.durable(db, sid), iid)

        return run

    async def growth(self, db):
        manager = SnapshotSessionManager("one", storage=LocalFileStorage(str(db)))
        agent = self.agent(
            Fake(), [echo], session_manager=manager, conversation_manager=NullConversationManager(), agent_id="bot"
        )

        async def run():
            return text_of(await agent.invoke_async(PROMPT))

        async def close():
            return len(agent.messages)

        return run, close, "json"

    async def wait(self, db):
        model = FakeAsk()
        held = {}

        async def close():
            held.clear()

        async def park(i):
            agent = self.agent(model, [ask_human])
            held[i] = (agent, await self.start(agent))

        async def answer(i):
            return await self.finish(*held.pop(i))

        async def park_db(i):
            held[i] = await self.start(self.durable(db, i))

        async def answer_db(i):
            return await self.finish(self.durable(db, i), held.pop(i))

        return (park, answer, close) if db is None else (park_db, answer_db, close)

    async def sub(self, fan):
        tools = []
        for i in range(fan):
            child = Agent(model=FakeSub(), name=f"helper{i}", system_prompt="You help.", callback_handler=None)
            tools.append(child.as_tool(name=f"helper{i}", description="Helps."))
        model = FakeParent()
        model.fan = fan

        async def run():
            return text_of(await self.agent(model, tools).invoke_async(PROMPT))

        return run

    async def stream(self):
        model = FakeStream()

        async def run():
            seen, parts = 0, []
            async for e in self.agent(model, []).stream_async(PROMPT):
                if "data" in e:
                    seen += 1
                    parts.append(e["data"])
            return seen, "".join(parts)

        return run


if __name__ == "__main__":
    main(Strands)
