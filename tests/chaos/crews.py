"""The agents of the tests about what workers take: some work, some are limited, and some end their own process.

What they do is noted outside the store, in the file that UPCALL_TEST_EFFECTS names.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from chaos.fleet import note, results
from upcall import Agent, Context, Hooks, Request, tool
from upcall.models import Script, call

EXIT_CODE = 70
"""How a process exits that an agent ends."""


# --- working ------------------------------------------------------------------------------


async def think(request: Request, model: str) -> Any:
    """Two model calls for each turn, of which the log's order says little: each notes when it begins and ends."""
    note("begin", model)
    await asyncio.sleep(float(os.environ.get("UPCALL_TEST_THINKING", "0.2")))
    note("end", model)
    return "done" if results(request) else call("look")


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


def worker_of(name: str, model: str) -> Agent:
    return Agent(name, model=Script(lambda request: think(request, model), name=model), tools=[look])


clerk = worker_of("clerk", "scarce")
porter = worker_of("porter", "plenty")


@tool
async def may_i(ctx: Context) -> str:
    """Ask a person."""
    return str(await ctx.raise_callback("May I?", kind="request_user_input"))


def ask_first(request: Request) -> Any:
    return results(request)[0] if results(request) else call("may_i")


def delegate(below: str) -> Callable[[Request], Any]:
    return lambda request: results(request)[0] if results(request) else call("task", agent=below, prompt="go")


hand = Agent("hand", model=Script(ask_first), tools=[may_i])
asker = Agent("asker", model=Script(delegate("hand")), agents=[hand])


# --- ending the process -------------------------------------------------------------------


def exit_here(where: str) -> None:
    """End the process as a fault of a C library or a lack of memory does, unless the cause has been mended."""
    if "UPCALL_TEST_MENDED" not in os.environ:
        note("exit", where)
        os._exit(EXIT_CODE)


@tool(repeatable=True)
async def crash() -> str:
    """Crash."""
    exit_here("tool")
    return "mended"


async def crash_in_model(request: Request) -> Any:
    exit_here("model")
    return "mended"


async def crash_in_hook(session: Any, request: Request) -> None:
    exit_here("hook")


async def crash_at_begin(session: Any) -> None:
    exit_here("begin")


def crashing_or_done(request: Request) -> Any:
    return results(request)[0] if results(request) else call("crash")


in_tool = Agent("in_tool", model=Script(crashing_or_done), tools=[crash])
in_model = Agent("in_model", model=Script(crash_in_model))
in_hook = Agent("in_hook", model=Script(lambda _: "mended"), hooks=Hooks(before_model=[crash_in_hook]))
at_begin = Agent("at_begin", model=Script(lambda _: "mended"), hooks=Hooks(begin_session=[crash_at_begin]))
in_child = Agent("in_child", model=Script(delegate("in_tool")), agents=[in_tool])
