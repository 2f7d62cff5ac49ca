"""The client of one request: its era, what it can do, and how it is asked."""

from __future__ import annotations

import contextlib
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from upcall.hosts.mcp.forms import Reply

TASKS = "io.modelcontextprotocol/tasks"
Context = ServerRequestContext[Any, Any]


class Client:
    """What the client of a request can do."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        capabilities = ctx.session.client_capabilities
        asks = capabilities.elicitation if capabilities is not None else None
        extensions = (capabilities.extensions if capabilities is not None else None) or {}
        self.has_forms = asks is not None and (asks.form is not None or asks.url is None)
        self.has_tasks = self.is_modern and TASKS in extensions

    async def report(self, progress: float, line: str) -> None:
        """Send progress, if the client wants it and is still there."""
        with contextlib.suppress(MCPError):
            await self._ctx.session.report_progress(progress, None, line)

    async def ask(self, message: str, schema: dict[str, Any]) -> Reply | None:
        """Ask by a form, in the era of handshakes; None where the client can't show it."""
        try:
            result = await self._ctx.session.elicit_form(message, schema, self._ctx.request_id)
        except (MCPError, ValidationError):
            return None
        return reply_of(result)


def input_request(message: str, schema: dict[str, Any]) -> ElicitRequest:
    """A form, in the era without requests to clients."""
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def reply_of(result: ElicitResult) -> Reply:
    """A client's reply to a form."""
    return Reply(result.action, result.content or {})
