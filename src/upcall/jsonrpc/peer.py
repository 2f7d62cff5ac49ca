"""One side of a JSON-RPC connection.

It holds to these rules whatever the other side sends: a line that is not a request, a notification or an answer is
answered with an error and changes nothing else; every request is answered exactly once; an answer to nothing is
ignored. Handlers run as tasks of their own, which start in the order of the lines.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from upcall.jsonrpc.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_CANCELLED,
    ConnectionClosed,
    RpcError,
)
from upcall.safety.bounds import excess_in_text, is_too_deep

log = logging.getLogger("upcall")

CANCEL_REQUEST = "$/cancel_request"
MOST_RUNNING = 1000
"""Requests of the other side that are handled at once."""

RequestId = int | str | None


class Handler(Protocol):
    """Handles what the other side sends."""

    async def request(self, method: str, params: msgspec.Raw, request_id: RequestId) -> Any:
        """Return the result of a request, or raise RpcError."""
        ...

    async def notification(self, method: str, params: msgspec.Raw) -> None:
        """Take a notification."""
        ...

    def explain(self, error: Exception) -> RpcError:
        """Return the answer to a request whose handler raised something other than RpcError."""
        ...


class _Envelope(msgspec.Struct):
    """A message of the other side; what is in it is parsed by who knows its type."""

    jsonrpc: Any = None
    id: int | str | msgspec.UnsetType | None = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Error(msgspec.Struct):
    code: int = INTERNAL_ERROR
    message: str = ""
    data: Any = None


class _Cancel(msgspec.Struct):
    requestId: int | str | None  # noqa: N815


class _OnlyId(msgspec.Struct):
    """The id of a message that is not valid otherwise."""

    id: RequestId = None


_LONGEST_ID = 1_000
_decode = msgspec.json.Decoder(_Envelope).decode
_decode_id = msgspec.json.Decoder(_OnlyId).decode
_encode = msgspec.json.Encoder().encode


class Peer:
    """Sends and receives messages.

    send: takes one encoded line
    most: the longest line to accept, in bytes
    """

    def __init__(self, send: Callable[[bytes], None], handler: Handler, *, most: int) -> None:
        self._send, self._handler, self._most = send, handler, most
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._running: dict[RequestId, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # --- sending --------------------------------------------------------------------------

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        if not self._closed:
            self._send(_encode({"jsonrpc": "2.0", "method": method, "params": params}))

    async def request(self, method: str, params: Any) -> Any:
        """Send a request and return its result; RpcError is what the other side answered.

        If the task that waits is cancelled, the other side is told that the answer is not needed any more.
        """
        if self._closed:
            raise ConnectionClosed
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(_encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        try:
            return await answer
        except asyncio.CancelledError:
            self.notify(CANCEL_REQUEST, {"requestId": number})
            raise
        finally:
            self._waiting.pop(number, None)

    # --- receiving ------------------------------------------------------------------------

    def receive(self, line: bytes) -> None:
        """Take one line from the other side."""
        if self._closed or not line.strip():
            return
        try:
            message = self._read(line)
        except RpcError as error:
            self._answer_error(_id_in(line) if error.code == INVALID_REQUEST else None, error)
            return
        if message.method is msgspec.UNSET:
            self._take_answer(message)
        elif message.id is msgspec.UNSET:
            self._take_notification(message.method, message.params)
        else:
            self._take_request(message.id, message.method, message.params)

    def refuse_long_line(self) -> None:
        """Answer a line that was too long to be kept."""
        self._answer_error(None, RpcError(INVALID_REQUEST, f"a line may have at most {self._most} bytes"))

    def _read(self, line: bytes) -> _Envelope:
        if problem := excess_in_text(line, self._most):
            raise RpcError(INVALID_REQUEST, f"the message is too large: {problem}")
        try:
            if not line.isascii():
                line.decode()
            message = _decode(line)
        except msgspec.ValidationError as error:
            raise RpcError(INVALID_REQUEST, f"not a JSON-RPC message: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RpcError(PARSE_ERROR, f"not valid JSON: {error}") from None
        except RecursionError:
            raise RpcError(INVALID_REQUEST, "the message is nested too deeply") from None
        if is_too_deep(line):
            raise RpcError(INVALID_REQUEST, "the message is nested too deeply")
        if message.jsonrpc != "2.0":
            raise RpcError(INVALID_REQUEST, 'not a JSON-RPC message: "jsonrpc" must be "2.0"')
        if message.method is msgspec.UNSET and (
            message.id is msgspec.UNSET or (message.result is msgspec.UNSET and message.error is msgspec.UNSET)
        ):
            raise RpcError(INVALID_REQUEST, "not a JSON-RPC message: it has neither a method nor a result")
        return message

    def _take_answer(self, message: _Envelope) -> None:
        number = message.id if isinstance(message.id, int) else 0
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            log.debug("an answer to no request was ignored")
            return
        try:
            if message.error is not msgspec.UNSET:
                problem = msgspec.json.decode(message.error, type=_Error)
                answer.set_exception(RpcError(problem.code, problem.message, problem.data))
                answer.exception()  # who waited for it may be gone
            else:
                answer.set_result(msgspec.json.decode(message.result or b"null"))
        except (msgspec.MsgspecError, RecursionError) as error:
            answer.set_exception(RpcError(INTERNAL_ERROR, f"the answer can't be read: {error}"))
            answer.exception()

    def _take_notification(self, method: str, params: msgspec.Raw) -> None:
        if method == CANCEL_REQUEST:
            self._cancel(params)
        elif len(self._tasks) < MOST_RUNNING:
            self._start(self._notified(method, params))

    def _cancel(self, params: msgspec.Raw) -> None:
        try:
            request_id = msgspec.json.decode(params, type=_Cancel).requestId
        except msgspec.MsgspecError:
            return
        running = self._running.get(request_id)
        if running is not None:
            running.cancel()

    async def _notified(self, method: str, params: msgspec.Raw) -> None:
        try:
            await self._handler.notification(method, params)
        except (RpcError, msgspec.MsgspecError) as error:
            log.debug("a notification %s was ignored: %s", method[:100], error)
        except Exception:
            log.exception("a notification %s could not be handled", method[:100])

    def _take_request(self, request_id: RequestId, method: str, params: msgspec.Raw) -> None:
        if request_id in self._running:  # with that id the answer would be taken for the other one's
            problem = f"the id {request_id!r} is in use by a request that is not answered yet"
            self._answer_error(None, RpcError(INVALID_REQUEST, problem))
        elif len(self._running) >= MOST_RUNNING:
            problem = f"{MOST_RUNNING} requests are being handled; wait for one of them"
            self._answer_error(request_id, RpcError(INTERNAL_ERROR, problem))
        else:
            self._running[request_id] = self._start(self._handle(request_id, method, params))

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _handle(self, request_id: RequestId, method: str, params: msgspec.Raw) -> None:
        try:
            result = await self._handler.request(method, params, request_id)
        except asyncio.CancelledError:
            if self._closed:
                raise
            self._answer_error(request_id, RpcError(REQUEST_CANCELLED, "the request was cancelled"))
        except RpcError as error:
            self._answer_error(request_id, error)
        except msgspec.MsgspecError as error:
            self._answer_error(request_id, RpcError(INVALID_PARAMS, f"{method[:100]}: {error}"))
        except Exception as error:
            self._answer_error(request_id, self._handler.explain(error))
        else:
            self._answer(request_id, {"jsonrpc": "2.0", "id": request_id, "result": result})
        finally:
            self._running.pop(request_id, None)

    # --- answering ------------------------------------------------------------------------

    def _answer_error(self, request_id: RequestId, error: RpcError) -> None:
        shown: dict[str, Any] = {"code": error.code, "message": error.message}
        if error.data is not None:
            shown["data"] = error.data
        self._answer(request_id, {"jsonrpc": "2.0", "id": request_id, "error": shown})

    def _answer(self, request_id: RequestId, message: dict[str, Any]) -> None:
        self._running.pop(request_id, None)  # before the answer is out: then the id may be used again
        if not self._closed:
            self._send(_encode(message))

    async def close(self) -> None:
        """End all that waits for the other side, and all that it asked for."""
        self._closed = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionClosed())
                answer.exception()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)


def _id_in(line: bytes) -> RequestId:
    """Return the id of a message that is not valid otherwise; None where it has none. The rest is not built."""
    try:
        given = _decode_id(line).id
    except (ValueError, RecursionError):
        return None
    return None if isinstance(given, str) and len(given) > _LONGEST_ID else given
