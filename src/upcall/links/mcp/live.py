"""A live connection to one server: negotiated, with requests as plain JSON.

Only the task that owns the connection enters and leaves it. Every request runs in a task of its own, so that an
outage, which the library reports as a cancellation, reaches no other task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar, cast
from uuid import uuid4

import anyio
import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.client.subscriptions import listen
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from upcall.links.mcp.failures import AnswerLost, RequestRefused, ServerFailed, SessionForgotten
from upcall.links.mcp.stdio import MESSAGE
from upcall.mcp_wire.eras import CONNECTION_CLOSED, HEADER_MISMATCH, MODERN_VERSION, Era
from upcall.mcp_wire.names import clean
from upcall.safety.bounds import excess

R = TypeVar("R")
Json = dict[str, Any]
Progress = Callable[[float, float | None, str | None], Awaitable[None]]
Answering = Callable[[str, Json], Awaitable[Json]]
"""Answers a request of a legacy server: gets its method and parameters, returns the result."""

PROBE = 1.0
"""Seconds after which a server that has not answered the probe is also offered the handshake."""

PAGES, LISTED = 50, 2000
"""Pages of one list, and items of all of them."""

_ITEMS = 5000
"""Items of one list of an answer: the library tries every type on each, and keeps each mistake."""

_BURST, _PAUSE = 100, 0.02
"""Messages that are handed on without a pause, and the pause: 5,000 messages a second at most."""

_TEXT = 2000
_LOST = ("Connection closed", "SSE stream")
"""How the library's texts begin where a connection ended; servers use the same code for errors of their own."""

_FORGOTTEN = "Session terminated"
for _name in ("mcp", "client", "httpx2"):  # what a server sends must not become stack traces on a screen
    logging.getLogger(_name).addHandler(logging.NullHandler())

_CALL: TypeAdapter[Any] = TypeAdapter(types.CallToolResult | types.InputRequiredResult)
_PROMPT: TypeAdapter[Any] = TypeAdapter(types.GetPromptResult | types.InputRequiredResult)
_READ: TypeAdapter[Any] = TypeAdapter(types.ReadResourceResult | types.InputRequiredResult)


class Incoming:
    """A transport's messages, at most so many a second; tells when there are no more."""

    def __init__(self, stream: Any, on_end: Callable[[str], None]) -> None:
        self._stream, self._on_end = stream, on_end
        self._count, self._since = 0, 0.0

    async def receive(self) -> Any:
        """Return the next message."""
        clock = asyncio.get_running_loop().time
        if self._count == 0:
            self._since = clock()
        self._count += 1
        if self._count > _BURST:
            self._count = 0
            if (early := self._since + _PAUSE - clock()) > 0:
                await asyncio.sleep(early)
        try:
            message = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._on_end("it closed the connection")
            raise
        if isinstance(message, ServerFailed):
            self._on_end(str(message))
        return _bounded(message)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _bounded(message: Any) -> Any:
    """Return a message, or an error in place of an answer that would take long to check."""
    answer = getattr(message, "message", None)
    if not isinstance(answer, types.JSONRPCResponse):
        return message
    problem = excess(answer.result, 2 * MESSAGE)
    for name, one in answer.result.items() if not problem else ():
        if isinstance(one, list) and len(cast("list[Any]", one)) > _ITEMS:
            problem = f"{clean(name, 100)} has more than {_ITEMS} items"
    if not problem:
        return message
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=f"its answer is too large: {problem}")
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=answer.id, error=error))


class Live:
    """A negotiated connection. `lost` is done, with the reason, when it can't be used any more."""

    def __init__(self, answering: Answering) -> None:
        self.id = uuid4().hex[:12]
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()
        """Set when the server says that one of its lists has changed."""
        self._answering = answering
        self._session: ClientSession | None = None
        self._requests: set[asyncio.Task[Any]] = set()

    # --- facts --------------------------------------------------------------------------------

    @property
    def session(self) -> ClientSession:
        """The library's session."""
        assert self._session is not None
        return self._session

    @property
    def version(self) -> str:
        """The negotiated version of the protocol."""
        return self.session.protocol_version or ""

    @property
    def era(self) -> Era:
        """The era of that version."""
        return "2026" if self.version in MODERN_PROTOCOL_VERSIONS else "legacy"

    def has(self, capability: str) -> bool:
        """Return whether the server has `tools`, `prompts` or `resources`."""
        return getattr(self.session.server_capabilities, capability, None) is not None

    def end(self, reason: str) -> None:
        """Note that the connection can't be used any more."""
        if not self.lost.done():
            self.lost.set_result(reason)

    # --- requests -----------------------------------------------------------------------------

    async def request(self, work: Coroutine[Any, Any, R], seconds: float | None = None) -> R:
        """Run a request in a task of its own, and return what it returns.

        RequestRefused if the server answers with an error, AnswerLost if the connection ends first.
        """
        task = asyncio.ensure_future(work)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        task.add_done_callback(_retrieve)
        try:
            await asyncio.wait({task, self.lost}, timeout=seconds, return_when="FIRST_COMPLETED")
            if not task.done() and not self.lost.done():
                raise AnswerLost(f"it did not answer within {seconds:g} s")
            if not task.done():
                await asyncio.wait({task}, timeout=0.1)  # its answer may have come just before the end
        finally:
            if not task.done():
                task.cancel()
        if not task.done() or task.cancelled():
            self.end("the connection was interrupted")
            raise AnswerLost(self.lost.result())
        return self._result(task)

    def _result(self, task: asyncio.Task[R]) -> R:
        try:
            return task.result()
        except MCPError as error:
            text = clean(error.error.message, _TEXT)
            if error.code == CONNECTION_CLOSED and text.startswith(_LOST):
                self.end(text)
                raise AnswerLost(text) from None
            if text == _FORGOTTEN:  # a server that was started anew: it has not looked at the request
                self.end("the server has forgotten this connection")
                raise SessionForgotten(self.lost.result()) from None
            raise RequestRefused(error.code, text, error.error.data) from None
        except ValidationError as error:
            text = f"its answer does not fit the protocol: {error.error_count()} mistakes"
            raise RequestRefused(0, text) from None
        except Exception as error:  # a transport may raise anything
            self.end(f"{type(error).__name__}: {clean(str(error), _TEXT)}")
            raise AnswerLost(self.lost.result()) from error

    async def call(
        self,
        tool: str,
        args: Json,
        *,
        responses: Json | None = None,
        state: str | None = None,
        progress: Progress | None = None,
    ) -> Json:
        """Call a tool and return the result as JSON: complete, or with `inputRequests` and `requestState`."""
        params = types.CallToolRequestParams(
            name=tool, arguments=args, input_responses=cast("Any", responses), request_state=state
        )
        request = types.CallToolRequest(params=params)

        async def send() -> Json:
            return _json(await self.session.send_request(request, _CALL, progress_callback=cast("Any", progress)))

        try:
            return await self.request(send())
        except RequestRefused as error:
            if error.code != HEADER_MISMATCH:
                raise
        await self.list("tools")  # the server wants headers by a newer description of the tool
        return await self.request(send())

    async def get_prompt(self, name: str, args: Mapping[str, str]) -> Json:
        """Return a prompt's messages as JSON."""
        params = types.GetPromptRequestParams(name=name, arguments=dict(args))
        return await self.request(self._send(types.GetPromptRequest(params=params), _PROMPT))

    async def read_resource(self, uri: str) -> Json:
        """Return a resource's contents as JSON."""
        params = types.ReadResourceRequestParams(uri=uri)
        return await self.request(self._send(types.ReadResourceRequest(params=params), _READ))

    async def _send(self, request: Any, adapter: Any) -> Json:
        return _json(await self.session.send_request(request, adapter))

    async def list(self, what: str, seconds: float | None = None) -> list[Json]:
        """Return all `tools`, `prompts` or `resources` as JSON, page after page."""
        found: list[Json] = []
        cursor: str | None = None
        ask: Callable[..., Coroutine[Any, Any, Any]] = getattr(self.session, f"list_{what}")
        for _ in range(PAGES):
            page = await self.request(ask(params=types.PaginatedRequestParams(cursor=cursor)), seconds)
            found += [_json(one) for one in getattr(page, what)[: LISTED - len(found)]]
            cursor = page.next_cursor
            if cursor is None or len(found) >= LISTED:
                break
        return found

    async def listen(self) -> None:
        """Hear of changed lists, in the 2026 era; legacy servers send notifications by themselves."""
        if self.era == "legacy":
            return
        async with listen(self.session, tools_list_changed=True, prompts_list_changed=True) as events:
            async for _ in events:
                self.changed.set()

    # --- what the library calls ---------------------------------------------------------------

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer a question of a legacy server."""
        out = await self._answering("elicitation/create", _json(params))
        return types.ElicitResult.model_validate(out)

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        """Answer a legacy server's request for a model call."""
        out = await self._answering("sampling/createMessage", _json(params))
        if "error" in out:
            return types.ErrorData(code=types.INVALID_REQUEST, message=str(out["error"]))
        return types.CreateMessageResult.model_validate(out)

    async def hear(self, message: Any) -> None:
        """Note that a list has changed."""
        if isinstance(message, types.ToolListChangedNotification | types.PromptListChangedNotification):
            self.changed.set()


def _json(model: Any) -> Json:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


@asynccontextmanager
async def open_live(
    streams: Any, answering: Answering, *, version: str, known: Any, samples: bool
) -> AsyncGenerator[Live]:
    """Yield a negotiated connection over a transport's streams.

    version: our own version
    known: what `remembered` returned for an earlier connection; else None
    samples: whether the server may ask for model calls
    """
    live = Live(answering)
    read, write = streams
    session = ClientSession(
        cast("Any", Incoming(read, live.end)),
        write,
        elicitation_callback=live.elicit,
        sampling_callback=live.sample if samples else None,
        message_handler=live.hear,
        client_info=types.Implementation(name="upcall", version=version),
    )
    async with session:
        live._session = session  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        try:
            await _negotiate(live, known)
            yield live
        finally:
            live.end("it was closed")


def remembered(live: Live) -> Any:
    """Return what makes negotiating unnecessary next time: the era, and what a server of 2026 said of itself."""
    return live.session.discover_result or "legacy"


async def _negotiate(live: Live, known: Any) -> None:
    """Find the era: probe, and offer the handshake to a server that has not answered for a while.

    A server that ignores unknown methods would stall the probe for ten seconds. One that only starts slowly answers
    both in order: the probe if it is of 2026, else the handshake.
    """
    session = live.session
    if isinstance(known, types.DiscoverResult):
        session.adopt(known)
        return
    if known == "legacy":
        await live.request(session.initialize())
        return
    probe = asyncio.ensure_future(live.request(session.send_discover(MODERN_VERSION)))
    handshake: asyncio.Task[Any] | None = None
    try:
        await asyncio.wait({probe}, timeout=PROBE)
        if not probe.done():
            handshake = asyncio.ensure_future(live.request(session.initialize()))
            await asyncio.wait({probe, handshake}, return_when="FIRST_COMPLETED")
            if not probe.done() and handshake.exception() is not None:
                await asyncio.wait({probe})
        if probe.done() and await _adopted(live, probe):
            return
        await (handshake or live.request(session.initialize()))
    finally:
        for task in (probe, handshake):
            if task is not None:
                task.cancel()
                task.add_done_callback(_retrieve)


async def _adopted(live: Live, probe: asyncio.Task[Json]) -> bool:
    """Return whether the probe found a server of 2026, which is then adopted."""
    try:
        raw = probe.result()
    except RequestRefused as error:
        raw = await _other_version(live, error)
    if raw is None:
        return False
    try:
        found = types.DiscoverResult.model_validate(raw)
    except ValidationError:
        return False
    if not any(version in found.supported_versions for version in MODERN_PROTOCOL_VERSIONS):
        return False
    live.session.adopt(found)
    return True


async def _other_version(live: Live, error: RequestRefused) -> Json | None:
    """Probe again with a version that the server names; None where it should be offered the handshake."""
    if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
        return None
    try:
        supported = types.UnsupportedProtocolVersionErrorData.model_validate(error.data).supported
    except ValidationError:
        return None
    mutual = [version for version in MODERN_PROTOCOL_VERSIONS if version in supported]
    if mutual:
        return await live.request(live.session.send_discover(mutual[-1]))
    if any(version in HANDSHAKE_PROTOCOL_VERSIONS for version in supported):
        return None
    raise ServerFailed(f"it supports only versions of MCP that upcall does not support: {', '.join(supported[:5])}")
