"""A manager, a developer below it, and the shop: run in a process of its own, which tests kill.

errand.py STORE EFFECTS start|resume [--key KEY]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from mcp_client.peers import UNASKED, shop
from upcall import Agent, Runtime
from upcall.callbacks import Callback
from upcall.links.mcp import McpServers
from upcall.messages import Request
from upcall.models import Script, call

SESSION = "errand"


def developer_says(request: Request) -> Any:
    results = request.messages[-1].results
    return f"the shop says: {results[0].text}" if results else call("shop__order", item="lamp")


def manager_says(request: Request) -> Any:
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason="colours are for the customer")
    results = [one for message in request.messages for one in message.results]
    return results[0].text if results else call("task", agent="developer", prompt="order a lamp")


def manager(effects: Path, *args: str) -> Agent[Any]:
    servers = McpServers({"shop": shop(effects, *args, **UNASKED)}, wait=30)
    developer = Agent(
        "developer", model=Script(developer_says), tools=[servers], description="orders things",
        can_query_caller=True, can_use_host_interaction=False,
    )  # fmt: skip
    return Agent("manager", model=Script(manager_says), agents=[developer])


class Absent:
    """A person who never comes back to the question."""

    async def ask(self, callback: Callback) -> Any:
        await asyncio.Event().wait()

    def withdraw(self, callback_id: str, reason: str) -> None: ...


async def main(store: str, effects: Path, what: str, *args: str) -> None:
    async with Runtime(store, agents=[manager(effects, *args)], host=Absent(), hold=600) as runtime:
        if what == "start":
            session = await runtime.start("manager", id=SESSION)
            reply = await session.prompt("Have a lamp ordered.")
        else:
            reply = await runtime.resume(SESSION)
        print(reply.status, reply.text, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
