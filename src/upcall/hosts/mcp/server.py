"""The MCP server: tools for agents and for what they ask, over any transport and in both eras."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, CallToolResult, ListToolsResult

from upcall.agent import Agent
from upcall.app import Runtime
from upcall.errors import AlreadySettled, SessionBusy, SessionWaiting, UpcallError
from upcall.hosts.http.access import Principal
from upcall.hosts.mcp.answers import AnswerArguments, Answers
from upcall.hosts.mcp.calls import AgentCalls, Turn
from upcall.hosts.mcp.client import Client, Context
from upcall.hosts.mcp.conversation import Conversation, Forms
from upcall.hosts.mcp.declared_tools import (
    AgentArguments,
    CancelArguments,
    InboxArguments,
    SessionArguments,
    check_names,
    read_arguments,
    tools_for,
)
from upcall.hosts.mcp.request_state import CallState, boundary
from upcall.hosts.mcp.results import Commands, Results
from upcall.hosts.mcp.tasks import Tasks
from upcall.observe.lines import Lines
from upcall.safety.secrets import without_password

log = logging.getLogger("upcall")

MOST_CALLS = 100
"""Calls that are handled at the same time; more are refused."""

MOST_PROMPT = 4_000_000
_MOST_LISTED = 20
_LISTS = CacheHint(ttl_ms=60_000, scope="private")
_INSTRUCTIONS = (
    "Each agent is a tool. A call that takes long says how to wait: call `status` with the session. What an agent "
    "asks the person is for the person alone: show it to them, and give `answer` only what they said."
)


class AgentServer:
    """The tools of one server. `principal` says who makes a request, `wait` how many seconds a call may take."""

    def __init__(
        self,
        runtime: Runtime,
        agents: Sequence[Agent],
        principal: Callable[[Context], Principal],
        *,
        wait: float,
        key: str,
        commands: Commands,
        lines: Lines,
    ) -> None:
        check_names(agents)
        self._runtime, self._principal, self._wait, self._lines = runtime, principal, wait, lines
        self._agents = {one.name: one for one in agents}
        self._tools = tools_for(agents)
        self.calls = AgentCalls(runtime)
        self._answers = Answers(runtime, lines.redactor)
        self._results = Results(lines.redactor, commands)
        self._forms = Forms(lines.redactor, commands)
        self._tasks = Tasks(self.calls, self._results, self._forms, self._settle, principal)
        self._handling = 0
        self._own: dict[str, Callable[..., Any]] = {
            "answer": self._answer,
            "status": self._status,
            "inbox": self._inbox,
            "cancel": self._cancel,
        }
        self.protocol = self._protocol(key)

    def _protocol(self, key: str) -> Server[Any]:
        server: Server[Any] = Server(
            "upcall",
            version=version("upcall"),
            instructions=_INSTRUCTIONS,
            cache_hints={"tools/list": _LISTS, "server/discover": _LISTS},
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._tasks.register(server)
        server.middleware.append(boundary(key, self._principal))
        return server

    # --- requests -----------------------------------------------------------------------------

    async def _list_tools(self, ctx: Context, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=self._tools)

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> Any:
        if params.name not in self._agents and params.name not in self._own:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {params.name[:100]}")
        if self._handling >= MOST_CALLS:
            return self._results.failure(
                f"{MOST_CALLS} calls are already in progress; wait a moment, then try again"
            )
        self._handling += 1
        try:
            return await self._handle(ctx, params)
        except MCPError:
            raise
        except UpcallError as error:
            return self._results.failure(_plain_failure(error))
        except Exception:
            log.exception("a call of %s failed", params.name)
            return self._results.failure("the server failed; its own log says why")
        finally:
            self._handling -= 1

    async def _handle(self, ctx: Context, params: CallToolRequestParams) -> Any:
        talk = self._conversation(ctx)
        if params.request_state is not None:
            state = CallState.decoded(params.request_state)
            if state is None:
                raise MCPError(code=INVALID_PARAMS, message="Invalid or expired requestState")
            return await talk.proceed(state, params.input_responses or {}, self._wait)
        if params.name in self._own:
            return await self._own[params.name](ctx, talk, params.arguments)
        return await self._call_agent(ctx, talk, params)

    async def _call_agent(self, ctx: Context, talk: Conversation, params: CallToolRequestParams) -> Any:
        given = read_arguments(params.arguments, AgentArguments)
        if not given.prompt.strip():
            return self._results.failure("the prompt is empty; write what the agent should do")
        if len(given.prompt) > MOST_PROMPT:
            return self._results.failure(f"the prompt has more than {MOST_PROMPT} characters")
        task = self._tasks.created if Client(ctx).has_tasks else None
        by = self._principal(ctx).name
        try:
            async with self.calls.beginning(params.name, given.prompt, given.session, by) as (turn, items):
                return await talk.deliver(turn, self._wait, task=task, items=items)
        except SessionWaiting:
            turn = await self.calls.current_turn(given.session or "")
            note = "The session waits for an answer, so it was not given your prompt."
            return await talk.deliver(turn, self._wait, [note])

    def _conversation(self, ctx: Context) -> Conversation:
        return Conversation(
            Client(ctx), self._principal(ctx), self.calls, self._answers, self._results, self._forms, self._lines
        )

    async def _settle(self, ctx: Context, callback_id: str, reply: Any) -> Any:
        return await self._answers.by_form(callback_id, reply, self._principal(ctx))

    # --- the server's own tools -----------------------------------------------------------------

    async def _answer(self, ctx: Context, talk: Conversation, arguments: dict[str, Any] | None) -> Any:
        given = read_arguments(arguments, AnswerArguments)
        settled = await self._answers.by_tool(given, self._principal(ctx))
        turn = await self.calls.current_turn(settled.session_id.partition("~")[0])
        return await talk.deliver(turn, self._wait, [f"{settled.id} is {settled.status}."])

    async def _status(self, ctx: Context, talk: Conversation, arguments: dict[str, Any] | None) -> Any:
        given = read_arguments(arguments, SessionArguments)
        turn = await self.calls.current_turn(given.session)
        if not turn.number:
            return self._results.note(
                "The session has not been given a task yet.", session=given.session, status="idle"
            )
        return await talk.deliver(turn, self._wait)

    async def _inbox(self, ctx: Context, talk: Conversation, arguments: dict[str, Any] | None) -> CallToolResult:
        given = read_arguments(arguments, InboxArguments)
        found = await self._runtime.inbox(_MOST_LISTED * 20, session=given.session)
        shown, more = found[:_MOST_LISTED], len(found) - _MOST_LISTED
        return await self._results.listed(shown, more)

    async def _cancel(self, ctx: Context, talk: Conversation, arguments: dict[str, Any] | None) -> Any:
        given = read_arguments(arguments, CancelArguments)
        turn: Turn = await self.calls.current_turn(given.session)
        who, reason = self._principal(ctx), given.reason or "by the MCP client"
        await self._runtime.cancel(given.session, reason, by=who.name, right=who.right)
        outcome = await self.calls.outcome(turn, min(self._wait, 5.0))
        return self._results.note(
            f"Session {given.session}: {outcome.status}.", session=given.session, status=outcome.status
        )


def _plain_failure(error: UpcallError) -> str:
    match error:
        case SessionBusy():
            return f"session {error.session_id!r} is running; call `status` to wait for it"
        case AlreadySettled():
            by = f" by {error.by}" if error.by else ""
            return f"callback {error.callback_id} was {error.status}{by}; nothing was changed"
        case _:
            return without_password(str(error))
