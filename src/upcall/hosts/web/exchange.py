"""Read JSON bodies within bounds, and answer with JSON; errors become plain sentences."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from upcall import errors
from upcall.observe.plain import plain, shortened
from upcall.safety.bounds import TooLarge, read_bounded_json
from upcall.safety.secrets import without_password

log = logging.getLogger("upcall")
T = TypeVar("T")

LARGEST_BODY = 2_000_000
"""Bytes of a request's body."""

BODY_LIMIT = 30.0
"""Seconds that a client may take to send a body."""

_LONGEST_ERROR = 2000


class Refusal(Exception):
    """A request that is answered with an error. `more` is added to the JSON."""

    def __init__(self, code: int, problem: str, /, **more: Any) -> None:
        self.code, self.problem, self.more = code, problem, more
        super().__init__(problem)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


async def large_json_response(value: Any) -> Response:
    """A value that may be large as JSON; it is encoded beside the event loop."""
    body = await asyncio.to_thread(msgspec.json.encode, value)
    return Response(body, media_type="application/json")


def error_response(code: int, problem: str, /, **more: Any) -> Response:
    """An error as JSON: a plain sentence, and fields for programs."""
    text = shortened(plain(without_password(problem)).strip(), _LONGEST_ERROR)
    headers = {"www-authenticate": "Bearer"} if code == 401 else {}
    if wait := more.pop("retry_after", 0.0):
        headers["retry-after"] = str(max(1, round(wait)))
    return json_response({"error": text, **more}, code, headers)


async def read_body(request: Request, kind: type[T]) -> T:
    """The request's body as a value of this type; Refusal 413 or 422 says what is wrong with it."""
    body = await _bytes(request)
    try:
        value = read_bounded_json(body or b"{}", LARGEST_BODY)
    except TooLarge as error:
        raise Refusal(422, f"the body is too large: {error}") from None
    except ValueError as error:
        raise Refusal(422, f"the body is not valid JSON: {error}") from None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Refusal(422, f"the body is not as expected: {error}") from None


async def _bytes(request: Request) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > LARGEST_BODY:
        raise Refusal(413, f"a body may have at most {LARGEST_BODY} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_LIMIT):
            async for chunk in request.stream():
                body += chunk
                if len(body) > LARGEST_BODY:
                    raise Refusal(413, f"a body may have at most {LARGEST_BODY} bytes")
    except ClientDisconnect:
        raise Refusal(422, "the request was interrupted") from None
    except TimeoutError:
        raise Refusal(408, f"the body took more than {BODY_LIMIT:.0f} seconds to arrive") from None
    return bytes(body)


def number(request: Request, name: str, default: int, most: int) -> int:
    """A whole number in the query; Refusal 422 where it is not one."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise Refusal(422, f"{name}={text[:40]} is not a whole number of 0 or more")
    return min(int(text), most)


def failure_response(error: Exception) -> Response:
    """The answer to a request that failed: a code and a sentence, never a stack trace."""
    match error:
        case Refusal():
            return error_response(error.code, error.problem, **error.more)
        case errors.AlreadySettled():
            said = f"it was {error.status}" + (f" by {error.by}" if error.by else "") + "; nothing was changed"
            return error_response(409, said, by=error.by, at=error.at, status=error.status)
        case errors.SessionBusy():
            return error_response(409, f"the session is being run by {error.owner}")
        case errors.SessionWaiting():
            return error_response(409, "the session waits for an answer", callbacks=error.callbacks)
        case errors.RuntimeClosed():
            return error_response(503, "the server is stopping", retry_after=2.0)
        case errors.AnswerRefused():
            return error_response(422, error.problem)
        case errors.StoreError():
            return _store_failure(error)
        case errors.UpcallError():
            return error_response(
                next((code for kinds, code in _CODES if isinstance(error, kinds)), 409), str(error)
            )
        case _:
            log.error("a request failed", exc_info=error)
            return error_response(500, "the server failed; its own log says why")


_CODES = (((errors.UnknownSession, errors.UnknownCallback), 404), ((errors.SetupError,), 422))


def _store_failure(error: errors.StoreError) -> Response:
    log.warning("a request failed: %s", error)
    if isinstance(error, errors.StoreDamaged):
        return error_response(500, "this part of the log can't be read; `upcall show` says why")
    return error_response(503, "the log can't be used right now; the server's own log says why")
