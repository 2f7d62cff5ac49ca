"""A server's questions as callbacks, and the calls that they belong to.

A question is asked by the call that caused it, so it climbs by the policy of that call's agent. It is shown as the
server's text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from upcall.callbacks import Callback
from upcall.contracts import Context
from upcall.errors import CallbackExpired, CallbackUnresolved, UpcallError
from upcall.mcp_wire.forms import MESSAGE, BadForm, answer_schema, with_defaults
from upcall.mcp_wire.names import clean, clean_line

Json = dict[str, Any]

OPENED = "I opened the page"
"""The answer to a question that is a link."""

HELD = "only while this process and the server run; without an answer by then the server gets none"
"""What the card of a legacy server's question says about its end."""

OPEN, QUESTIONS = 20, 200
"""Questions of one call of a legacy server that are open at once, and all of them."""

_YES, _NO = "yes", "no"
_URL = 4000
_UNCLEAR, _LOOK = 5.0, 0.05
"""Seconds that a question waits until only one call can have caused it, and between two looks."""


class Pending(Protocol):
    """A legacy server's request, waiting for the call that caused it to answer."""

    method: str
    params: Json
    answer: asyncio.Future[Json]


class _Request:
    def __init__(self, method: str, params: Json) -> None:
        self.method, self.params = method, params
        self.answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()


class InFlight:
    """A call that a legacy server works on; it answers what the server asks meanwhile."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.requests: asyncio.Queue[Pending] = asyncio.Queue()
        self._ended = False
        self._open: set[_Request] = set()
        self._count = 0

    @staticmethod
    async def cause(calls: Sequence[InFlight]) -> InFlight | None:
        """Return the call that a question belongs to; None if that can't be told.

        A legacy server does not say. With one call under way it is that one; of several calls of one session, the
        newest: they have the same agent and policy. Calls of several sessions are given a while to end.
        """
        for _ in range(int(_UNCLEAR / _LOOK)):
            if len({call.session for call in calls}) <= 1:
                return calls[-1] if calls else None
            await asyncio.sleep(_LOOK)
        return None

    async def ask(self, method: str, params: Json) -> Json:
        """Return the call's answer to a request of its server."""
        request = _Request(method, params)
        self._count += 1
        if self._ended or self._count > QUESTIONS or len(self._open) >= OPEN:
            return {"action": "cancel", "error": "the call has ended, or asks too much"}
        self._open.add(request)
        self.requests.put_nowait(request)
        try:
            return await request.answer
        finally:
            self._open.discard(request)
            request.answer.cancel()  # whoever still asks a person for it is told to stop

    def end(self) -> None:
        """Answer what is still open: the call has ended, or the connection."""
        self._ended = True
        for request in self._open:
            if not request.answer.done():
                request.answer.set_result({"action": "cancel", "error": "the call has ended"})


# --- one question ---------------------------------------------------------------------------


class Asked:
    """A question as it is put to the agents above or to a person. `held`: it ends with the connection."""

    def __init__(self, server: str, tool: str, params: Json, *, held: bool = False) -> None:
        text = clean(str(params.get("message", "")), MESSAGE).strip() or "(no text)"
        self.message = f"The MCP server {server!r} asks, while it runs {clean_line(tool, 100)!r}:\n{text}"
        self.context = {"mcp_server": server, "mcp_tool": clean_line(tool, 200)}
        if held:
            self.context["lasts"] = HELD
        self.options: Json = {}
        self.schema: Json | None = None
        if params.get("mode") == "url" or "url" in params:
            self._ask_for_link(str(params.get("url", "")))
            return
        self.schema = answer_schema(params.get("requestedSchema"))
        if self.schema["properties"]:
            self.options = {"schema": self.schema}
        else:
            self.options = {"choices": (_YES, _NO)}

    def _ask_for_link(self, url: str) -> None:
        """Make it a link, for a person only: nobody else can open a page."""
        try:
            parts = urlsplit(url) if len(url) <= _URL and url.isprintable() else None
            host = parts.hostname if parts is not None and parts.scheme in ("http", "https") else None
        except ValueError:
            parts = host = None
        if parts is None or not host or " " in url:
            raise BadForm("its link is not an http or https address")
        if "\\" in url or "@" in parts.netloc:  # browsers take another host from it than the one that is shown
            raise BadForm("its link hides the host that it leads to")
        where = f"Open this page on {host} only if you expect it:\n{url}"
        self.message = f"{self.message}\n\n{where}"
        self.context["url"] = url
        self.options = {"kind": "request_user_input", "choices": (OPENED,)}

    @property
    def key(self) -> str:
        """What equal questions have in common."""
        return f"{self.message}\0{self.options!r}"

    def accepted(self, value: Any) -> Json:
        """Return the server's result for an answer."""
        if "schema" in self.options and self.schema is not None:
            return {"action": "accept", "content": with_defaults(self.schema, cast("Json", value))}
        if value == _NO:
            return {"action": "decline"}
        return {"action": "accept", "content": {}} if value == _YES else {"action": "accept"}


async def elicit(ctx: Context, asked: Asked, timeout: float | None = None) -> Json:
    """Ask, and return the server's result: accept with the content, decline, or cancel where nobody answered."""
    options = asked.options if timeout is None else {**asked.options, "timeout": timeout}
    try:
        callback = await ctx.raise_callback_full(
            asked.message, "query", context=asked.context, required=False, **options
        )
    except (CallbackExpired, CallbackUnresolved):
        return {"action": "cancel"}
    return _outcome(asked, callback)


def _outcome(asked: Asked, callback: Callback) -> Json:
    if callback.status == "answered" and callback.answer is not None:
        return asked.accepted(callback.answer.value)
    return {"action": "decline" if callback.status == "declined" else "cancel"}


def refusal(error: UpcallError | BadForm) -> str:
    """Return why a server's question was not asked."""
    return clean_line(str(error), 500)
