"""Agents as files: Markdown with front matter, a JSON sidecar beside each, tools by import path."""

import asyncio
from pathlib import Path

from upcall import Runtime, load_agents

FOLDER = Path(__file__).parent / "agent_files"


async def main() -> None:
    agents = load_agents(FOLDER)
    print("agents:", ", ".join(agent.name for agent in agents))
    async with Runtime(":memory:", agents=agents) as runtime:
        session = await runtime.start("manager")
        reply = await session.prompt("Ship the login page.")
        print(reply.text)
        assert reply.text == "login page written in dark green"


if __name__ == "__main__":
    asyncio.run(main())
