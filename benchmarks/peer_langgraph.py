"""langchain.agents.create_agent on LangGraph."""

from __future__ import annotations

import itertools
import os

os.environ.setdefault("LANGSMITH_TRACING", "false")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.tools import tool
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from common import ANSWER, C, CHUNKS, PROMPT, QUESTION, SUB_REPLY, WORD, Peer, main, number_of, sub_model_call

ids = itertools.count()


def call(name: str, args: dict) -> dict:
    return {"name": name, "args": args, "id": f"call_{next(ids)}", "type": "tool_call"}


class Fake(BaseChatModel):
    """Replies from the last message alone, so it costs the same at any history length."""

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools, **kw):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kw):
        raise RuntimeError("async only")

    async def _agenerate(self, messages, stop=None, run_manager=None, **kw):
        C["model"] += 1
        return ChatResult(generations=[ChatGeneration(message=self.reply(messages))])

    def reply(self, messages):
        last = messages[-1]
        if isinstance(last, ToolMessage):
            return AIMessage(content=f"final: {last.content}")
        return AIMessage(content="", tool_calls=[call("echo", {"x": WORD})])


class FakeAsk(Fake):
    def reply(self, messages):
        last = messages[-1]
        if isinstance(last, ToolMessage):
            return AIMessage(content=f"final: {last.content}")
        return AIMessage(content="", tool_calls=[call("ask_human", {"question": QUESTION})])


class FakeParent(Fake):
    fan: int = 1
    tool_name: str = "helper"

    def sub_args(self) -> dict:
        return {"request": PROMPT}

    def reply(self, messages):
        n = len(list(itertools.takewhile(lambda m: isinstance(m, ToolMessage), reversed(messages))))
        if n:
            return AIMessage(content=f"final: {messages[-1].content} x{n}")
        return AIMessage(content="", tool_calls=[call(self.tool_name, self.sub_args()) for _ in range(self.fan)])


class FakeSub(Fake):
    async def _agenerate(self, messages, stop=None, run_manager=None, **kw):
        await sub_model_call()
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=SUB_REPLY))])


class FakeReader(Fake):
    turns: list

    def reply(self, messages):
        last = messages[-1]
        said = self.turns[number_of(last.content)]
        if isinstance(last, ToolMessage):
            return AIMessage(content=said.answer)
        return AIMessage(content="", tool_calls=[call("look_up", {"query": said.query})])


class FakeStream(Fake):
    async def _astream(self, messages, stop=None, run_manager=None, **kw):
        C["model"] += 1
        for i in range(CHUNKS):
            yield ChatGenerationChunk(
                message=AIMessageChunk(content=f"w{i} ", chunk_position="last" if i == CHUNKS - 1 else None)
            )


@tool
async def echo(x: str) -> str:
    """Echo x."""
    C["tool"] += 1
    return x


@tool("echo")
def echo_sync(x: str) -> str:
    """Echo x."""
    C["tool"] += 1
    return x


@tool
async def ask_human(question: str) -> str:
    """Ask the human a question."""
    C["tool_entry"] += 1
    answer = interrupt(question)
    C["tool"] += 1
    return answer


class Hooks(AgentMiddleware):
    async def abefore_model(self, state, runtime):
        C["before_model"] += 1

    async def aafter_model(self, state, runtime):
        C["after_model"] += 1

    async def awrap_tool_call(self, request, handler):
        C["before_tool"] += 1
        r = await handler(request)
        C["after_tool"] += 1
        return r


def user(text: str = PROMPT) -> dict:
    return {"messages": [{"role": "user", "content": text}]}


class LangGraph(Peer):
    name = "langgraph"
    dists = ("langchain", "langgraph", "langchain-core", "langgraph-checkpoint-sqlite")
    load_dists = ("langgraph-checkpoint-postgres", "psycopg")
    imports = "from langchain.agents import create_agent; from langchain.tools import tool"
    notes = {"W12": "AsyncPostgresSaver on a pool of 20 connections, its default durability (async)"}
    threads = itertools.count()

    def agent(self, model, tools, **kw):
        return create_agent(model, tools=tools, system_prompt="You are a bot.", **kw)

    async def turn(self, hooks=False, sync_tool=False, session=False):
        agent = self.agent(
            Fake(),
            [echo_sync if sync_tool else echo],
            middleware=[Hooks()] if hooks else [],
            checkpointer=InMemorySaver() if session else None,
        )

        async def run():
            config = {"configurable": {"thread_id": f"t{next(self.threads)}"}} if session else None
            r = await agent.ainvoke(user(), config)
            return r["messages"][-1].content

        return run

    async def start(self, agent, thread):
        r = await agent.ainvoke(user(), {"configurable": {"thread_id": thread}})
        (i,) = r["__interrupt__"]
        assert i.value == QUESTION, i
        C["asked"] += 1

    async def finish(self, agent, thread):
        r = await agent.ainvoke(Command(resume=ANSWER), {"configurable": {"thread_id": thread}})
        return r["messages"][-1].content

    async def open(self, db):
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        cm = AsyncSqliteSaver.from_conn_string(str(db))
        return cm, await cm.__aenter__()

    async def ask(self, db):
        agent = self.agent(FakeAsk(), [ask_human], checkpointer=InMemorySaver())
        if db is None:

            async def run():
                t = f"t{next(self.threads)}"
                await self.start(agent, t)
                return await self.finish(agent, t)

            return run

        box = [await self.open(db)]
        agent.checkpointer = box[0][1]

        async def run():
            t = f"t{next(self.threads)}"
            await self.start(agent, t)
            await box[0][0].__aexit__(None, None, None)
            box[0] = await self.open(db)
            agent.checkpointer = box[0][1]
            return await self.finish(agent, t)

        async def close():
            await box[0][0].__aexit__(None, None, None)

        run.close = close
        return run

    async def growth(self, db):
        cm, saver = await self.open(db)
        agent = self.agent(Fake(), [echo], checkpointer=saver)
        config = {"configurable": {"thread_id": "one"}}

        async def run():
            r = await agent.ainvoke(user(), config)
            run.n = len(r["messages"])
            return r["messages"][-1].content

        async def close():
            await cm.__aexit__(None, None, None)
            return run.n

        return run, close, "sqlite"

    async def many(self, where, worker, turns):
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool = AsyncConnectionPool(where, max_size=20, kwargs=settings, open=False)
        await pool.open()
        saver = AsyncPostgresSaver(pool)
        if worker == 0:
            await saver.setup()

        @tool
        async def look_up(query: str) -> str:
            """Look something up."""
            C["tool"] += 1
            return turns[number_of(query)].found

        agent = self.agent(FakeReader(turns=turns), [look_up], checkpointer=saver)

        async def begin():
            config = {"configurable": {"thread_id": f"{worker}-{next(self.threads)}"}}

            async def turn(prompt):
                return (await agent.ainvoke(user(prompt), config))["messages"][-1].content

            return turn

        return begin, pool.close

    async def wait(self, db):
        cm = None
        if db is None:
            saver = InMemorySaver()
        else:
            cm, saver = await self.open(db)
        agent = self.agent(FakeAsk(), [ask_human], checkpointer=saver)

        async def close():
            if cm:
                await cm.__aexit__(None, None, None)

        return (lambda i: self.start(agent, i)), (lambda i: self.finish(agent, i)), close

    async def sub(self, fan):
        child = self.agent(FakeSub(), [])

        @tool
        async def helper(request: str) -> str:
            """Ask the helper agent."""
            r = await child.ainvoke(user(request))
            return r["messages"][-1].content

        agent = self.agent(FakeParent(fan=fan), [helper])

        async def run():
            r = await agent.ainvoke(user())
            return r["messages"][-1].content

        return run

    async def stream(self):
        agent = self.agent(FakeStream(), [])

        async def run():
            seen, parts = 0, []
            async for chunk, _meta in agent.astream(user(), stream_mode="messages"):
                if chunk.content:
                    seen += 1
                    parts.append(chunk.content)
            return seen, "".join(parts)

        return run


if __name__ == "__main__":
    main(LangGraph)
