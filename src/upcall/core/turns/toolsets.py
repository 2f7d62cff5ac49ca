"""The tools that an agent's toolsets offer at this moment.

Toolsets are asked before each model call, and when a turn is resumed in the middle of its calls. What they offer
is added to the agent's own tools, for this session only. A toolset that fails, hangs or offers a name twice fails
the turn: continuing without its tools would end calls that wait for an answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from upcall.agent import ANSWERING
from upcall.contracts import Toolset
from upcall.core.log.request_diff import tool_specs
from upcall.core.turns.access import SessionView
from upcall.core.turns.prepared_agent import Listed, PreparedAgent
from upcall.core.turns.turn import Turn
from upcall.errors import BadTool, ToolsetFailed
from upcall.messages import Purpose, Request
from upcall.safety.bounds import TOOL_BYTES, TOOLS
from upcall.tools import Tool, as_tool


class ToolsetSession(SessionView):
    """A session as its toolsets see it: reads only. A side turn is shown as the session that it speaks for."""

    _turn: Turn

    @property
    def id(self) -> str:
        """The session's id."""
        is_side_turn = self._turn.purpose == "side_turn"
        return self._state.header.parent if is_side_turn else self._state.id

    @property
    def purpose(self) -> Purpose:
        """The kind of turn: `turn` or `side_turn`."""
        return self._turn.purpose

    @property
    def deps(self) -> Any:
        """The object of `Runtime(deps=...)`; None where none was given."""
        return self._turn.services.deps

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of the MCP servers that the session was given; children have their root's."""
        return self._state.root_header.servers

    @property
    def own_tools(self) -> tuple[str, ...]:
        """The names of the tools that the agent itself has."""
        return (*self._turn.actor.own_tools, *ANSWERING)

    @property
    def open_calls(self) -> tuple[str, ...]:
        """The names of the tools whose calls are open, while a turn is being resumed."""
        return tuple([one.call.name for one in self._state.conversation.calls.values() if not one.settled])


async def update_tools(turn: Turn) -> None:
    """Ask the agent's toolsets and give the session the tools they offer now; ToolsetFailed if one can't.

    A side turn keeps the tools of the turn that it speaks for, so that both declare the same.
    """
    actor = turn.actor
    if actor.listed is None or turn.purpose != "side_turn":
        await turn.log.flush()  # what led to this model call is stored before somebody else's code runs
        offered = await _list_all(turn, actor)
        if actor.listed != offered:
            turn.actor = _merged(actor, offered)


async def ensure_tools(turn: Turn) -> None:
    """Ask the agent's toolsets unless this session has asked them before."""
    if turn.actor.toolsets and turn.actor.listed is None:
        await update_tools(turn)


async def with_logged_tools(turn: Turn, request: Request) -> Request:
    """The request with the tools that the log has for its model call, which may differ from those of now."""
    actor, logged = turn.actor, turn.state.tools
    if not actor.toolsets or logged in ("", actor.tools_hash):
        return request
    return request.replace(tools=tool_specs(await turn.log.store.blob(logged)))


async def _list_all(turn: Turn, actor: PreparedAgent) -> Listed:
    view, seconds = ToolsetSession(turn.state, turn), actor.limits.toolset_seconds
    tasks = [asyncio.ensure_future(_list(toolset, view)) for toolset in actor.toolsets]
    try:
        await asyncio.wait(tasks, timeout=seconds)
    finally:
        for task in tasks:
            task.cancel()  # one that ignores this is left behind
            task.add_done_callback(_retrieve)
    late = [name_of(toolset) for toolset, task in zip(actor.toolsets, tasks, strict=True) if not task.done()]
    if late:
        raise ToolsetFailed(late[0], f"it did not list its tools within {seconds:g} s")
    return tuple([(toolset, task.result()) for toolset, task in zip(actor.toolsets, tasks, strict=True)])


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def _list(toolset: Toolset, view: ToolsetSession) -> tuple[Tool, ...]:
    name = name_of(toolset)
    try:
        offered = await toolset.list_tools(view)
        tools = tuple([as_tool(one) for one in offered])
    except BadTool as error:
        raise ToolsetFailed(name, str(error)) from error
    except Exception as error:
        raise ToolsetFailed(name, f"list_tools raised {type(error).__name__}: {error}") from error
    if len(tools) > TOOLS:
        raise ToolsetFailed(name, f"it offers {len(tools)} tools; at most {TOOLS} are accepted")
    return tools


def _merged(actor: PreparedAgent, offered: Listed) -> PreparedAgent:
    """The agent with its own tools, then those of its toolsets; ToolsetFailed names both owners of one name."""
    owners = {**dict.fromkeys(ANSWERING, "the runtime"), **dict.fromkeys(actor.own_tools, "the agent itself")}
    tools: dict[str, Tool] = {}
    for toolset, offers in offered:
        name = name_of(toolset)
        for tool in offers:
            if tool.name in owners:
                clash = f"its tool {tool.name!r} has the same name as a tool of {owners[tool.name]}"
                raise ToolsetFailed(name, f"{clash}; rename one of them")
            owners[tool.name], tools[tool.name] = f"toolset {name!r}", tool
    merged = actor.with_tools(offered, tools)
    if len(merged.tools_body) > TOOL_BYTES:
        largest = max(offered, key=lambda one: len(msgspec.json.encode([tool.spec for tool in one[1]])))
        raise ToolsetFailed(name_of(largest[0]), f"the descriptions of all tools have more than {TOOL_BYTES} bytes")
    return merged


def name_of(toolset: Toolset) -> str:
    """The name of a toolset in error messages."""
    return str(getattr(toolset, "name", "") or type(toolset).__name__)
