"""deepagents.create_deep_agent: create_agent with its default middleware stack."""

from __future__ import annotations

from deepagents import create_deep_agent

import peer_langgraph as lg
from common import C, PROMPT, WORD, expect, main
from langchain_core.messages import AIMessage, ToolMessage


class FakeParent(lg.FakeParent):
    tool_name: str = "task"

    def sub_args(self) -> dict:
        return {"description": PROMPT, "subagent_type": "helper"}


class FakeDeep(lg.Fake):
    """Writes a file, reads it, gives a task away, and repeats what came back."""

    def reply(self, messages):
        last = messages[-1]
        match last.name if isinstance(last, ToolMessage) else "":
            case "write_file":
                return self.calls("read_file", file_path="/notes.txt")
            case "read_file":
                expect("file", WORD in last.content, True)
                C["read"] += 1
                return self.calls("task", description=PROMPT, subagent_type="helper")
            case "task":
                return AIMessage(content=f"final: {last.content}")
        return self.calls("write_file", file_path="/notes.txt", content=WORD)

    def calls(self, name, **args):
        return AIMessage(content="", tool_calls=[lg.call(name, args)])


HELPER = {
    "name": "helper",
    "description": "Helps.",
    "system_prompt": "You help.",
    "model": lg.FakeSub(),
    "tools": [],
}


class DeepAgents(lg.LangGraph):
    name = "deepagents"
    dists = ("deepagents", "langchain", "langgraph", "langgraph-checkpoint-sqlite")
    imports = "from deepagents import create_deep_agent"
    notes = {"W7": "the built-in task tool", "W7p": "the built-in task tool"}

    def agent(self, model, tools, **kw):
        return create_deep_agent(model, tools=tools, system_prompt="You are a bot.", **kw)

    async def sub(self, fan):
        return self.asked(self.agent(FakeParent(fan=fan), [], subagents=[HELPER]))

    async def deep(self):
        return self.asked(self.agent(FakeDeep(), [], subagents=[HELPER]))

    def asked(self, agent):
        async def run():
            r = await agent.ainvoke(lg.user())
            return r["messages"][-1].content

        return run


if __name__ == "__main__":
    main(DeepAgents)
