"""Send a request over HTTP and retry it: time limits, and one connection pool per event loop."""

from __future__ import annotations

import asyncio
import importlib
import random
import re
import sys
import weakref
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from upcall.contracts import Emit
from upcall.errors import ModelRefused, ModelUnavailable, ResponseTooLarge
from upcall.messages import Response, Value
from upcall.models.body import EVENTS, RESPONSE_BYTES, Body, UnknownEncoding
from upcall.models.failures import Endpoint, Failure, classify, secrets_in
from upcall.models.sse import EventTooLarge, Feed, check_values
from upcall.settings import joined_headers
from upcall.wire import current_tap

if TYPE_CHECKING:
    from aiohttp import ClientSession

LONGEST_WAIT = 120.0
"""The longest wait to accept from a server, in seconds; above that the request fails at once."""

_ERROR_BYTES = 65_536  # bytes to read of an error's body
_CLOSE_SECONDS = 0.05  # seconds for a stream to end after its last event, so that the connection can be reused
_END_SECONDS = 5.0  # seconds for what follows the last text: usage and the end mark

Sleep = Callable[[float], Awaitable[object]]


class Timeouts(Value, frozen=True):
    """The number of retries, the time limits in seconds, and the most bytes of a response.

    The time limits are for the connection, the first byte, the pause between bytes, and the whole response.
    """

    retries: int = 4
    connect: float = 10.0
    first_byte: float = 300.0
    silence: float = 180.0
    total: float = 3600.0
    response_bytes: int = RESPONSE_BYTES


class Reader(Protocol):
    """Builds one response. Every attempt gets a new reader."""

    spoke: bool
    """Something was emitted."""
    complete: bool
    """The model has finished; only usage and the end mark may follow."""
    over: bool
    """The last event has arrived."""

    def read(self, events: Sequence[bytes]) -> Failure | None:
        """Take the data of events; returns a failure if one of them is an error."""
        ...

    def read_whole(self, body: bytes) -> Failure | None:
        """Take a response that arrived as one JSON body instead of a stream."""
        ...

    def response(self) -> Response:
        """Return the response."""
        ...


class Wire:
    """A connection to one URL."""

    def __init__(
        self,
        endpoint: Endpoint,
        url: str,
        headers: dict[str, str],
        timeouts: Timeouts,
        sleep: Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        pools: Pools | None = None,
    ) -> None:
        self.endpoint, self._url, self._headers, self._timeouts = endpoint, url, headers, timeouts
        self._sleep, self._chance = sleep, chance
        self._pools = pools or Pools(url, timeouts.connect)

    def with_headers(self, headers: Mapping[str, str] | None) -> Wire:
        """Return the same connection with more headers; errors never show their values."""
        if not headers:
            return self
        endpoint = self.endpoint._replace(secrets=secrets_in(headers))
        joined = joined_headers(self._headers, headers)
        return Wire(endpoint, self._url, joined, self._timeouts, self._sleep, self._chance, self._pools)

    async def ask(self, body: bytes, new_reader: Callable[[], Reader], emit: Emit | None) -> Response:
        """Send the body and return the response, with retries.

        A broken stream is dropped and repeated as a whole.
        """
        if "aiohttp" not in sys.modules:
            await asyncio.to_thread(importlib.import_module, "aiohttp")  # takes a quarter of a second
        failure, tries = Failure("was not asked"), 0
        while tries <= self._timeouts.retries:
            reader = new_reader()
            failed = await self._try(body, reader)
            if failed is None:
                return reader.response()
            if failed.error is not None:
                raise failed.error
            failure, tries = failed, tries + 1
            wait = self._wait(failure, tries)
            if tries > self._timeouts.retries or wait > LONGEST_WAIT:
                break
            if reader.spoke and emit is not None:
                emit("drop", "")
            await self._sleep(wait)
        raise ModelUnavailable(self.endpoint.name, _final(failure), tries, failure.status)

    async def close(self) -> None:
        """Close the connections of this event loop; a later request opens new ones."""
        await self._pools.close()

    def _wait(self, failure: Failure, tries: int) -> float:
        if failure.after is not None:
            return failure.after
        # Half of the wait is random, so that agents that failed together do not return together.
        return min(30.0, 0.5 * 2 ** (tries - 1)) * (0.5 + self._chance() / 2)

    async def _try(self, body: bytes, reader: Reader) -> Failure | None:
        """Make one attempt; None if the reader has everything.

        Errors become values, so that no headers leak into them.
        """
        import aiohttp

        try:
            return await self._exchange(body, reader)
        except (ResponseTooLarge, _TookTooLong) as error:
            return None if reader.complete else Failure(str(error), error=self._final_error(error))
        except UnknownEncoding as error:
            return self._refused(str(error))
        except TimeoutError as error:
            problem = str(error)
        except zlib.error as error:
            problem = f"sent a body that can't be unpacked: {error}"
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            return self._refused(f"base_url {self.endpoint.base_url!r} is not a valid URL")
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            return self._refused(f"no secure connection could be made: {error}")
        except (aiohttp.ClientError, OSError) as error:
            problem = f"the connection failed: {str(error) or type(error).__name__}"
        # Some servers never end their streams properly; a complete response still counts.
        return None if reader.complete else Failure(self.endpoint.clean(problem))

    def _final_error(self, error: ResponseTooLarge | _TookTooLong) -> ResponseTooLarge | ModelUnavailable:
        """Return the error to raise at once, because a retry would take as long again."""
        return error if isinstance(error, ResponseTooLarge) else ModelUnavailable(self.endpoint.name, str(error))

    def _refused(self, problem: str) -> Failure:
        return Failure(problem, error=ModelRefused(self.endpoint.name, self.endpoint.clean(problem)))

    async def _exchange(self, body: bytes, reader: Reader) -> Failure | None:
        session, limits, clock = await self._pools.session(), self._timeouts, asyncio.get_running_loop().time
        late, last = f"no answer in {limits.first_byte:g} s", clock() + limits.total
        tap = current_tap()
        exchange = tap.sent(without_credentials(self._url), body) if tap is not None else None
        try:
            async with (
                asyncio.timeout(min(limits.first_byte, limits.total)) as limit,
                session.post(self._url, data=body, headers=self._headers, allow_redirects=False) as answer,
            ):
                content = Body(answer, self.endpoint.name, limits.response_bytes, exchange)
                if answer.status != 200:
                    return classify(
                        self.endpoint, answer.status, answer.headers, await content.read_beginning(_ERROR_BYTES)
                    )
                data = await _first(content)
                late = f"silent for {limits.silence:g} s"
                if data.lstrip()[:1] in (b"{", b"<", b"["):
                    limit.reschedule(min(clock() + limits.silence, last))
                    return self._whole(await content.read_all(data), reader)
                return await self._stream(data, content, reader, limit, last)
        except EventTooLarge as error:
            raise ResponseTooLarge(self.endpoint.name, str(error)) from None
        except TimeoutError as error:
            if clock() >= last:
                raise _TookTooLong(f"the response was not complete after {limits.total:g} s") from None
            raise TimeoutError(str(error) or late) from None

    async def _stream(
        self, data: bytes, content: Body, reader: Reader, limit: asyncio.Timeout, last: float
    ) -> Failure | None:
        clock, silence = asyncio.get_running_loop().time, self._timeouts.silence
        feed, moved, count = Feed(), 0.0, 0
        while data:
            events = feed.take(data)
            count += len(events)
            if count > EVENTS:
                raise ResponseTooLarge(self.endpoint.name, f"more than {EVENTS:,} events in one stream")
            if (failure := reader.read(events)) is not None:
                return failure
            now = clock()
            if reader.complete:
                limit.reschedule(now + (_CLOSE_SECONDS if reader.over else _END_SECONDS))
            elif now > moved:
                # Moving a timer costs more than reading a chunk: it is moved rarely, and late, never early.
                limit.reschedule(min(now + silence * 1.125, last))
                moved = now + silence / 8
            data = await content.read()
        failure = reader.read(feed.end())
        if failure is None and not reader.complete:
            return Failure("the stream ended in the middle")
        return failure

    def _whole(self, body: bytes, reader: Reader) -> Failure | None:
        if body.lstrip()[:1] == b"<":
            return classify(self.endpoint, 200, {}, body[:_ERROR_BYTES])
        check_values(body)
        return reader.read_whole(body)


class _TookTooLong(Exception):
    """Raised when the time for a whole response is over."""


async def _first(content: Body) -> bytes:
    """Read up to the first bytes that are not blank; some servers send blank lines to keep a connection alive."""
    data = await content.read()
    while data and data.isspace():
        data = await content.read()
    return data


def _final(failure: Failure) -> str:
    if failure.after is not None and failure.after > LONGEST_WAIT:
        return f"{failure.problem}; the server asks for a retry after {failure.after:.0f} s"
    return failure.problem


# --- connections ------------------------------------------------------------------------


class Pools:
    """One aiohttp session per event loop, opened at first use.

    Each lives in an async generator. `asyncio.run` ends those before it closes its loop, so a session is closed in
    its own loop even if nobody called `close`.
    """

    def __init__(self, url: str, connect: float) -> None:
        self._url, self._connect = url, connect
        self._open: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[ClientSession, None], ClientSession]] = {}
        weakref.finalize(self, _abandon, self._open)

    async def session(self) -> ClientSession:
        """Return this loop's session."""
        loop = asyncio.get_running_loop()
        entry = self._open.get(loop)
        if entry is not None and not entry[1].closed:
            return entry[1]
        _abandon(self._open)
        owner = _session(self._url, self._connect)
        session = await anext(owner)
        self._open[loop] = (owner, session)
        return session

    async def close(self) -> None:
        """Close this loop's session, and those whose loop is closed."""
        _abandon(self._open)
        if entry := self._open.pop(asyncio.get_running_loop(), None):
            await entry[0].aclose()


async def _session(url: str, connect: float) -> AsyncGenerator[ClientSession, None]:
    import aiohttp

    # No limit on connections: waiting for a free one would count as waiting for the server.
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, connect=connect, sock_connect=connect)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        proxy=proxy_for(url),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # decompressed here piece by piece, within limits
    ) as session:
        yield session


def _abandon(
    sessions: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[ClientSession, None], ClientSession]],
) -> None:
    """Drop the sessions of closed loops; without a loop, closing them never suspends."""
    for loop in [loop for loop in sessions if loop.is_closed()]:
        _, session = sessions.pop(loop)
        closing = session.close()
        with suppress(StopIteration):
            closing.send(None)
        closing.close()


# --- addresses --------------------------------------------------------------------------


def proxy_for(url: str) -> str | None:
    """Return the proxy for this URL from the usual environment variables.

    aiohttp's `trust_env` does the same, but it also reads ~/.netrc in a thread for every request, and refuses a
    request with a key if it finds a password there.
    """
    import urllib.request

    if not (proxies := urllib.request.getproxies()):
        return None
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxies.get(parts.scheme) or proxies.get("all")


def without_credentials(url: str) -> str:
    """Return the URL without user, password and query, to show it."""
    return re.sub(r"//[^/?#]*@", "//", url).partition("?")[0]
