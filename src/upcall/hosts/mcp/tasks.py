"""Turns as tasks: the extension `io.modelcontextprotocol/tasks`.

A task is a turn of a session, so it lives as long as the log, and any server over the same log knows it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, ElicitResult, RequestParams
from mcp_types.jsonrpc import HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY
from pydantic import ValidationError

from upcall.errors import UnknownCallback, UnknownSession
from upcall.hosts.http.access import Principal
from upcall.hosts.mcp.calls import AgentCalls, Outcome, Turn
from upcall.hosts.mcp.client import TASKS, Client, Context, input_request, reply_of
from upcall.hosts.mcp.conversation import Forms
from upcall.hosts.mcp.results import Results
from upcall.tokens import allows

POLL_MS = 1000
_MOST_PROBLEMS = 1000
_MOST_RESPONSES = 100
_ATTEMPT = "#"
"""Parts the id of a question from the number of the attempt to answer it: a key is never used for two requests."""


class TaskParams(RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of `tasks/update`."""

    input_responses: dict[str, Any]


class Tasks:
    """Serves the methods of the extension.

    settle: stores one reply to a form, as the client of a request
    principal: who makes a request
    """

    def __init__(
        self,
        calls: AgentCalls,
        results: Results,
        forms: Forms,
        settle: Callable[..., Any],
        principal: Callable[[Context], Principal],
    ) -> None:
        self._calls, self._results, self._forms, self._settle = calls, results, forms, settle
        self._principal = principal
        self._problems: OrderedDict[str, tuple[int, str]] = (
            OrderedDict()
        )  # attempts and the last problem, by question

    def register(self, server: Server[Any]) -> None:
        """Add the extension to a server."""
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", UpdateParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)

    def created(self, outcome: Outcome) -> dict[str, Any]:
        """The result of a call that became a task."""
        return {
            "resultType": "task",
            **_base(outcome),
            "status": "input_required" if outcome.questions else "working",
        }

    # --- methods ------------------------------------------------------------------------------

    async def _get(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        client, turn = _checked(ctx, params)
        outcome = await self._outcome(turn)
        task = _base(outcome)
        if outcome.status == "cancelled":
            return {**task, "status": "cancelled"}
        if outcome.has_ended:
            result = (await self._results.of(outcome)).model_dump(by_alias=True, mode="json", exclude_none=True)
            return {**task, "status": "completed", "result": result}
        may_answer = client.has_forms and allows(self._principal(ctx).role, "answerer")
        requests = await self._requests(outcome) if may_answer else {}
        if requests:
            return {**task, "status": "input_required", "inputRequests": requests}
        said = (await self._results.of(outcome)).content[0]
        return {**task, "status": "working", "statusMessage": getattr(said, "text", "")[:2000]}

    async def _update(self, ctx: Context, params: UpdateParams) -> dict[str, Any]:
        _, turn = _checked(ctx, params)
        await self._outcome(turn)
        for key, response in list(params.input_responses.items())[:_MOST_RESPONSES]:
            callback_id = key.partition(_ATTEMPT)[0]
            if await self._belongs(callback_id, turn):
                await self._take(ctx, callback_id, response)
        await self._outcome(turn)
        return {}

    async def _cancel(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        _, turn = _checked(ctx, params)
        if not (await self._outcome(turn)).has_ended:
            who = self._principal(ctx)
            await self._calls.runtime.cancel(turn.session, "by the MCP client", by=who.name, right=who.right)
        return {}

    # --- questions ----------------------------------------------------------------------------

    async def _requests(self, outcome: Outcome) -> dict[str, Any]:
        requests: dict[str, Any] = {}
        for one in outcome.questions:
            attempt, problem = self._problems.get(one.id, (0, ""))
            if made := await self._forms.of(one.replace(problem=problem) if problem else one):
                key = f"{one.id}{_ATTEMPT}{attempt + 1}" if attempt else one.id
                request = input_request(*made)
                requests[key] = request.model_dump(by_alias=True, mode="json", exclude_none=True)
        return requests

    async def _take(self, ctx: Context, callback_id: str, response: Any) -> None:
        try:
            reply = reply_of(ElicitResult.model_validate(response, by_name=False))
        except ValidationError:
            return
        settled = await self._settle(ctx, callback_id, reply)
        if settled.status == "invalid":
            attempts = self._problems.pop(callback_id, (0, ""))[0]
            self._problems[callback_id] = (attempts + 1, settled.note)
            if len(self._problems) > _MOST_PROBLEMS:
                self._problems.popitem(last=False)

    async def _belongs(self, callback_id: str, turn: Turn) -> bool:
        try:
            callback = await self._calls.runtime.callback(callback_id)
        except UnknownCallback:
            return False
        return callback.session_id.partition("~")[0] == turn.session

    async def _outcome(self, turn: Turn) -> Outcome:
        try:
            return await self._calls.outcome(turn)
        except UnknownSession:
            raise MCPError(code=INVALID_PARAMS, message="Unknown task", data={"taskId": turn.task_id}) from None


def _checked(ctx: Context, params: TaskParams) -> tuple[Client, Turn]:
    """The client and the turn of a request; MCPError where the client has no tasks, or the id is not one."""
    client = Client(ctx)
    if not client.is_modern:
        raise MCPError(code=METHOD_NOT_FOUND, message="Method not found", data=ctx.method)
    if not client.has_tasks:
        needs: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MCPError(
            code=MISSING_REQUIRED_CLIENT_CAPABILITY, message=f"the client did not declare {TASKS}", data=needs
        )
    named = ctx.request.headers.get("mcp-name") if ctx.request is not None else params.task_id
    if named is not None and named.strip() != params.task_id:
        raise MCPError(code=HEADER_MISMATCH, message="the header Mcp-Name is not the taskId of the body")
    turn = Turn.of_task(params.task_id)
    if turn is None or turn.number < 1:
        raise MCPError(code=INVALID_PARAMS, message="Unknown task", data={"taskId": params.task_id[:300]})
    return client, turn


def _base(outcome: Outcome) -> dict[str, Any]:
    return {
        "taskId": outcome.turn.task_id,
        "createdAt": _iso(outcome.created),
        "lastUpdatedAt": _iso(outcome.updated),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _iso(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
