"""One server and the task that owns the connection to it.

A connection is made when it is first needed. When it fails, the next one that needs it makes a new one, after a
pause that grows with each failure. What the server offered stays known meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, cast

from upcall.errors import UpcallError
from upcall.links.mcp.config import SIGN_IN, Authorize, ServerConfig
from upcall.links.mcp.failures import AnswerLost, RequestRefused, ServerFailed
from upcall.links.mcp.questions import InFlight
from upcall.mcp_wire.names import clean_line

if TYPE_CHECKING:
    from upcall.links.mcp.live import Json, Live

log = logging.getLogger("upcall")

CONNECT = 30.0
"""Seconds that starting a server, negotiating and listing its tools may take."""

PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before the second attempt after a failure, doubled with each further one."""

SHORT_PAUSE = 5.0
"""Seconds of a pause that a call waits for; during a longer one it fails at once."""

_CLOSE = 1.5
"""Seconds that a connection has to end by itself, and again after it was cancelled."""

_EXTRA = "MCP needs more packages; install them with: pip install 'upcall[mcp]'"

State = Literal["not started", "connecting", "connected", "failed", "disabled"]


class Connection:
    """One server. Its fields say what is known of it; `start` and `live` connect, `close` disconnects."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        environ: Mapping[str, str],
        samples: bool = False,
        tokens: str | None = None,
        authorize: Authorize | None = None,
    ) -> None:
        self.config, self._environ, self.samples = config, environ, samples
        self._tokens, self._authorize = tokens, authorize
        self.state: State = "disabled" if config.disabled else "not started"
        self.problem = ""
        self.version = ""
        self.tools: tuple[Json, ...] | None = None
        """The tools that it listed last; None before it was ever connected."""
        self.prompts: tuple[Json, ...] = ()
        self.has_resources = False
        self.is_late = False
        """True from when somebody waited for it in vain until it is connected."""
        self.in_flight: list[InFlight] = []
        self._live: Live | None = None
        self._owner: asyncio.Task[None] | None = None
        self._settled: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._known: Any = None
        self._failures, self._not_before = 0, 0.0

    # --- for those who need it ------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect, unless it is connected, is being connected, or failed a moment ago."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a program may run one event loop after another
            self._loop, self._owner, self._live, self._settled = loop, None, None, None
            self._failures, self._not_before = 0, 0.0
        if self.state == "disabled" or self._owner is not None or loop.time() < self._not_before:
            return
        self.state, self._settled = "connecting", asyncio.Event()
        self._owner = asyncio.create_task(self._own(), name=f"MCP server {self.config.name}")

    @property
    def is_settled(self) -> bool:
        """True unless it is being connected."""
        return self.state != "connecting"

    async def settled(self) -> None:
        """Return when it is connected or has failed."""
        if self._settled is not None:
            await self._settled.wait()

    async def live(self, seconds: float = CONNECT, authorize: Authorize | None = None) -> Live:
        """Return the live connection, made if need be; ServerFailed says why there is none.

        authorize: shows a person the link to sign in; a connection that failed a moment ago is then tried again
        """
        if authorize is not None:
            self._authorize, self._not_before, seconds = authorize, 0.0, seconds + SIGN_IN
        await self._until_restartable()
        self.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.settled()
        if self._live is None or self._live.lost.done():
            if self.state == "connecting":
                raise ServerFailed(f"it did not connect within {seconds:g} s")
            raise ServerFailed(self.problem or "it is not connected")
        return self._live

    async def _until_restartable(self) -> None:
        """Wait until a connection that was lost has ended, and for the rest of a short pause after it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            return
        if self._live is not None and self._live.lost.done() and self._owner is not None:
            await asyncio.wait({self._owner}, timeout=2 * _CLOSE)
        if self._owner is None and 0 < (left := self._not_before - loop.time()) <= SHORT_PAUSE:
            await asyncio.sleep(left)

    async def close(self) -> None:
        """End the connection and the server's process. It is connected again when it is next needed."""
        owner = self._owner if self._loop is asyncio.get_running_loop() else None
        if self._live is not None:
            self._live.end("it was closed")
        if owner is None:
            return
        if self._live is None:
            owner.cancel()
        _, running = await asyncio.wait({owner}, timeout=_CLOSE)
        if running:
            owner.cancel()
            await asyncio.wait({owner}, timeout=_CLOSE)
        self.state, self.problem = "disabled" if self.config.disabled else "not started", ""
        self._failures, self._not_before = 0, 0.0

    # --- the owner ------------------------------------------------------------------------

    async def _own(self) -> None:
        """Connect, and keep the connection until it is lost."""
        was_connected = False
        try:
            module = await asyncio.to_thread(_imported)
            async with asyncio.timeout(CONNECT) as limit:
                was_connected = await self._connect(module, limit)
        except TimeoutError:
            self.problem = f"it did not answer within {CONNECT:g} s"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self.problem = "it was closed"
                raise
            self.problem = self.problem or "the connection was interrupted"
        except UpcallError as error:
            self.problem = str(error)
        except Exception as error:  # a transport may raise anything
            self.problem = self.problem or f"{type(error).__name__}: {error}"
        finally:
            self._ended(was_connected)

    async def _connect(self, module: Any, limit: asyncio.Timeout) -> bool:
        """Return True once a connection that was made has ended."""
        config = self.config.expanded(self._environ)
        tail, clock = module.Tail(), asyncio.get_running_loop().time

        def extend(seconds: float) -> None:
            limit.reschedule(clock() + CONNECT + seconds)

        try:
            async with (
                module.streams_of(config, tail, self._tokens, self._authorize, extend) as streams,
                module.open_live(
                    streams, self._answer, version=_version(), known=self._known, samples=self.samples
                ) as live,
            ):
                await self._read_lists(live)
                limit.reschedule(None)
                self._connected(live, module.remembered(live))
                await self._keep(live)
                return True
        except (UpcallError, OSError, ExceptionGroup) as error:
            self._known = None  # it may have become another server
            wrote = f"; it wrote: {clean_line(tail.text[-1000:], 300)}" if tail.text else ""
            raise ServerFailed(f"{_problem_of(error)}{wrote}") from None
        finally:
            limit.reschedule(None)

    def _connected(self, live: Live, known: Any) -> None:
        self._live, self._known, self.version = live, known, live.version
        self.state, self.problem, self.is_late = "connected", "", False
        assert self._settled is not None
        self._settled.set()

    async def _keep(self, live: Live) -> None:
        """List again what changes, until the connection is lost."""
        listening = asyncio.create_task(_listen(live))
        since = asyncio.get_running_loop().time()
        try:
            while not live.lost.done():
                changed = asyncio.ensure_future(live.changed.wait())
                await asyncio.wait({live.lost, changed}, return_when="FIRST_COMPLETED")
                changed.cancel()
                if live.changed.is_set() and not live.lost.done():
                    live.changed.clear()
                    with suppress(RequestRefused, AnswerLost):
                        await self._read_lists(live)
                    await asyncio.sleep(0.1)  # a server that says so all the time is listed ten times a second
        finally:
            listening.cancel()
            await asyncio.wait({listening})
        self.problem = live.lost.result()
        if asyncio.get_running_loop().time() - since > LONGEST_PAUSE:
            self._failures = 0

    async def _read_lists(self, live: Live) -> None:
        if live.has("resources"):
            with suppress(RequestRefused):
                listed = await live.list("resources", CONNECT) or await live.list("resource_templates", CONNECT)
                self.has_resources = bool(listed)
        tools = await live.list("tools", CONNECT) if live.has("tools") or live.era == "2026" else []
        self.tools = tuple(tools)
        if live.has("prompts"):
            with suppress(RequestRefused):
                self.prompts = tuple(await live.list("prompts", CONNECT))

    def _ended(self, was_connected: bool) -> None:
        clock = asyncio.get_running_loop().time()
        pause = 0.0 if was_connected and not self._failures else min(PAUSE * 2**self._failures, LONGEST_PAUSE)
        self._failures, self._not_before = min(self._failures + 1, 20), clock + pause
        self._live, self._owner, self.state = None, None, "failed"
        for call in self.in_flight:
            call.end()
        if self._settled is not None:
            self._settled.set()
        if self.problem != "it was closed":
            log.warning("MCP server %s: %s", self.config.name, clean_line(self.problem, 500))

    # --- requests of a legacy server ------------------------------------------------------

    async def _answer(self, method: str, params: Json) -> Json:
        """Hand a legacy server's request to the call that caused it, and return the call's answer."""
        call = await InFlight.cause(self.in_flight)
        if call is None:
            return {"action": "cancel"} if method == "elicitation/create" else {"error": "no call caused this"}
        return await call.ask(method, params)


async def _listen(live: Live) -> None:
    """Hear of changes in the 2026 era, and again when that ends, while the connection lasts."""
    pause = 1.0
    while not live.lost.done():
        with suppress(Exception):  # a server need not have it, and may end it at any time
            await live.listen()
        if live.era == "legacy":
            return
        await asyncio.sleep(pause)
        live.changed.set()  # nothing is repeated of what happened in between
        pause = min(pause * 4, 300.0)


def _problem_of(error: Exception) -> str:
    """Return the text of an error, or of the first in a group, which is how the library reports most of them."""
    first: Any = error
    while isinstance(first, BaseExceptionGroup):
        first = cast("BaseExceptionGroup[Any]", first).exceptions[0]
    return str(first) if isinstance(first, UpcallError) else f"{first} ({type(first).__name__})"


def _imported() -> Any:
    try:
        return importlib.import_module("upcall.links.mcp.transports")
    except ImportError as error:
        raise ServerFailed(f"{_EXTRA} ({error})") from None


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("upcall")
    except PackageNotFoundError:  # run from its sources
        return "0"
