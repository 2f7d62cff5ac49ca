"""smolagents: ToolCallingAgent (synchronous), step callbacks, managed agents."""

from __future__ import annotations

import itertools
import os
import time

from rich.console import Console
from smolagents import ActionStep, CodeAgent, LogLevel, Model, ToolCallingAgent, tool
from smolagents.models import (
    ChatMessage,
    ChatMessageStreamDelta,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
    MessageRole,
)
from smolagents.monitoring import AgentLogger

from common import ANSWER, C, CHUNKS, JOINED, NA, PROGRAM, PROMPT, SUB_DELAY, SUB_GAUGE, SUB_REPLY, WORD, Peer, main

ids = itertools.count()


def call(name: str, args: dict) -> ChatMessageToolCall:
    return ChatMessageToolCall(
        id=f"call_{next(ids)}", type="function", function=ChatMessageToolCallFunction(name=name, arguments=args)
    )


def message(*calls) -> ChatMessage:
    return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=list(calls))


def observation(messages) -> str | None:
    """The tool results, if the last message is one."""
    last = messages[-1]
    if last.role != MessageRole.TOOL_RESPONSE:
        return None
    return last.content[0]["text"].split("\n", 1)[1]


class Fake(Model):
    def generate(self, messages, **kw):
        C["model"] += 1
        got = observation(messages)
        if got is not None:
            return message(call("final_answer", {"answer": f"final: {got}"}))
        return message(call("echo", {"x": WORD}))


class FakeParent(Model):
    fan = 1

    def generate(self, messages, **kw):
        C["model"] += 1
        got = observation(messages)
        if got is not None:
            text = f"final: {SUB_REPLY} x{got.count(SUB_REPLY)}"
            return message(call("final_answer", {"answer": text}))
        return message(*(call(f"helper{i}", {"task": PROMPT}) for i in range(self.fan)))


class FakeSub(Model):
    def generate(self, messages, **kw):
        C["sub_model"] += 1
        with SUB_GAUGE:
            if SUB_DELAY[0]:
                time.sleep(SUB_DELAY[0])
        return message(call("final_answer", {"answer": SUB_REPLY}))


class FakeCode(Model):
    def __init__(self, program: str) -> None:
        super().__init__()
        self.program = program

    def generate(self, messages, **kw):
        C["model"] += 1
        text = f"Thought: read and ask.\n<code>\n{self.program}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=text)


class FakeStream(Model):
    def generate_stream(self, messages, **kw):
        C["model"] += 1
        for i in range(CHUNKS):
            yield ChatMessageStreamDelta(content=f"w{i} ")
        yield ChatMessageStreamDelta(
            tool_calls=[
                ChatMessageToolCallStreamDelta(
                    index=0,
                    id="call_s",
                    type="function",
                    function=ChatMessageToolCallFunction(name="final_answer", arguments='{"answer": "done"}'),
                )
            ]
        )


@tool
def echo(x: str) -> str:
    """Echo x.

    Args:
        x: what to echo.
    """
    C["tool"] += 1
    return x


@tool
def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: which one.
    """
    C["tool"] += 1
    return path


@tool
def ask_human(message: str) -> str:
    """Ask the person.

    Args:
        message: what to ask.
    """
    C["asked"] += 1
    return ANSWER


def on_step(step, agent=None) -> None:
    C["after_model"] += 1


NO_ASK = "no pause and resume: a tool can only block its thread until the human answers"


class Smolagents(Peer):
    name = "smolagents"
    dists = ("smolagents",)
    imports = "from smolagents import ToolCallingAgent, tool"
    notes = {
        "W1": "synchronous; the final text is a final_answer tool call",
        "W2": "only step callbacks exist: one per step (2 a turn), not four hooks",
        "W4": "in memory: no persistence",
        "W7p": "eight managed agents on threads",
        "W11": "CodeAgent: its interpreter runs in this process; one model call, the program itself ends the run",
        "W8": "re-renders the whole text as Markdown for every chunk (to a null console here)",
    }

    def agent(self, model, tools, **kw):
        console = Console(file=open(os.devnull, "w"))
        kw.setdefault("logger", AgentLogger(level=LogLevel.OFF, console=console))
        return ToolCallingAgent(tools=tools, model=model, **kw)

    def hook_counts(self, n):
        return {"before_model": 0, "after_model": 2 * n, "before_tool": 0, "after_tool": 0}

    async def turn(self, hooks=False, sync_tool=False, session=False):
        if session or sync_tool:
            raise NA("same as W1")
        agent = self.agent(Fake(), [echo], step_callbacks={ActionStep: on_step} if hooks else None)

        async def run():
            return agent.run(PROMPT)

        return run

    async def ask(self, db):
        raise NA(NO_ASK)

    async def growth(self, db):
        agent = self.agent(Fake(), [echo])

        async def run():
            return agent.run(PROMPT, reset=False)

        async def close():
            return len(agent.write_memory_to_messages())

        return run, close, "memory"

    async def wait(self, db):
        raise NA(NO_ASK)

    async def sub(self, fan):
        children = [self.agent(FakeSub(), [], name=f"helper{i}", description="Helps.") for i in range(fan)]
        model = FakeParent()
        model.fan = fan
        agent = self.agent(model, [], managed_agents=children, max_tool_threads=fan)

        async def run():
            return agent.run(PROMPT)

        return run

    async def code(self, db):
        if db:
            raise NA(NO_ASK)
        end = f'final_answer("final: " + {JOINED})'
        agent = CodeAgent(
            tools=[read_file, ask_human],
            model=FakeCode(PROGRAM.format(read="read_file", ask="ask_human", end=end)),
            verbosity_level=LogLevel.OFF,
        )

        async def run():
            return agent.run(PROMPT)

        return run

    async def stream(self):
        agent = self.agent(FakeStream(), [], stream_outputs=True)

        async def run():
            seen, parts = 0, []
            for e in agent.run(PROMPT, stream=True):
                if isinstance(e, ChatMessageStreamDelta) and e.content:
                    seen += 1
                    parts.append(e.content)
            return seen, "".join(parts)

        return run


if __name__ == "__main__":
    main(Smolagents)
