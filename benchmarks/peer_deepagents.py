"""deepagents.create_deep_agent: create_agent with its default middleware stack."""

from __future__ import annotations

from deepagents import create_deep_agent

import peer_langgraph as lg
from common import PROMPT, main


class FakeParent(lg.FakeParent):
    tool_name: str = "task"

    def sub_args(self) -> dict:
        return {"description": PROMPT, "subagent_type": "helper"}


class DeepAgents(lg.LangGraph):
    name = "deepagents"
    dists = ("deepagents", "langchain", "langgraph", "langgraph-checkpoint-sqlite")
    imports = "from deepagents import create_deep_agent"
    notes = {"W7": "the built-in task tool", "W7p": "the built-in task tool"}

    def agent(self, model, tools, **kw):
        return create_deep_agent(model, tools=tools, system_prompt="You are a bot.", **kw)

    async def sub(self, fan):
        agent = self.agent(
            FakeParent(fan=fan),
            [],
            subagents=[
                {
                    "name": "helper",
                    "description": "Helps.",
                    "system_prompt": "You help.",
                    "model": lg.FakeSub(),
                    "tools": [],
                }
            ],
        )

        async def run():
            r = await agent.ainvoke(lg.user())
            return r["messages"][-1].content

        return run


if __name__ == "__main__":
    main(DeepAgents)
