"""One session of an editor: its turns, its questions, and the updates that the editor gets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from upcall import Session
from upcall.app import Runtime
from upcall.callbacks import Answer, Callback
from upcall.contracts import Delta, Missed, Reply
from upcall.errors import SessionWaiting, UpcallError
from upcall.events import AnyEvent, Responded
from upcall.hosts.acp.asking import Asking
from upcall.hosts.acp.commands import SETTLING, SessionCommands, SlashCommand, settle
from upcall.hosts.acp.connection import Connection
from upcall.hosts.acp.mcp_servers import SessionServers
from upcall.hosts.acp.text_answers import TextAnswers
from upcall.hosts.acp.updates import Update, Updates, takes_long
from upcall.jsonrpc.errors import INTERNAL_ERROR, RpcError
from upcall.messages import Message
from upcall.observe.hidden_question import is_approval
from upcall.observe.weight import aside

log = logging.getLogger("upcall")
T = TypeVar("T")
R = TypeVar("R")

CANCEL_SECONDS = 0.5
"""Seconds that a cancelled turn has to end before the editor is told that it is cancelled; it ends later."""

BUFFER = 1000
"""Events and deltas that wait for a slow editor; what is beyond that is read from the log."""

_PAGE = 50
_AT_ONCE = 20
_MOMENT = 0.03
_OUTPUT_INTERVAL = 0.1
_LATE_END = 5.0
_KNOWN_POSITIONS = 4096
_SYNC = "acp_sync"
_LIMITS = {"tokens": "max_tokens"}
_STOPS = {"refused": "refusal", "length": "max_tokens"}


class EditorSession:
    """A session that is open in the editor."""

    def __init__(
        self,
        connection: Connection,
        runtime: Runtime,
        servers: SessionServers,
        session: Session,
        updates: Updates,
        by: str,
    ) -> None:
        self.session, self.updates, self._servers = session, updates, servers
        self._connection, self._runtime, self._by = connection, runtime, by
        self.cancelled = asyncio.Event()
        self.commands = SessionCommands(runtime, servers, session, updates.redactor, updates.cost)
        self.texts = TextAnswers(runtime, session.id, connection, updates.redactor, by)
        self._asking = Asking(connection, session.id, by, updates.redactor, self.cancelled)
        self._turn: asyncio.Task[str] | None = None
        self._is_background = False  # no prompt began the turn
        self._has_ended = False  # the turn is over, and what is left is to send its updates
        self._pump: asyncio.Task[None] | None = None
        self._subscription = runtime.subscribe(session.id, buffer=BUFFER)
        self._known: deque[int] = deque(maxlen=_KNOWN_POSITIONS)
        self._read_up_to = 0
        self._is_behind = False  # the log was read, and no newer event has come
        self._syncs: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._last_stop = ""
        self._is_closed = False
        self._is_folding = False  # a thread folds an event: nothing else touches the updates meanwhile

    @property
    def id(self) -> str:
        """The session's id, in the log and in the editor."""
        return self.session.id

    @property
    def is_running(self) -> bool:
        """True while a turn runs here."""
        return self._turn is not None and not self._turn.done()

    # --- opening and closing --------------------------------------------------------------

    async def open(self, *, replay: bool = False, is_new: bool = False) -> None:
        """Begin to send updates; with `replay`, send what happened before, too."""
        await self._subscription.__aenter__()
        if not is_new:
            self.updates.echo = True
            await self._read_log(0, send=replay)
            self.updates.echo = False
        self._pump = asyncio.ensure_future(self._send_updates())

    def connect_servers(self) -> None:
        """Begin to connect the MCP servers that the editor passed, and return at once."""
        if not self._is_closed:
            self._servers.start()

    async def close(self) -> None:
        """Send nothing more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._subscription.aclose()
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})
        self._end_syncs()
        await self._servers.close()

    # --- turns ----------------------------------------------------------------------------

    async def prompt(self, message: Message) -> str:
        """Run a turn, or steer the one that runs; returns the reason why it ended."""
        command = self.commands.parse(message.text)
        if command is not None and (prompt := await self.commands.prompt(command)) is not None:
            command, message = None, prompt
        if command is not None:
            return await self._run_command(command)
        await self._wait_for_end()
        if self.is_running:
            await self._steer(message.text)
            background = self._is_background
            stop = await self._until_ended()
            if not background or stop == "cancelled" or not await self.texts.waiting():
                return stop
            self._begin(self._resume())  # an editor may show no dialogs outside of a prompt: ask again
            return await self._until_ended()
        self.cancelled.clear()
        self._begin(self._run_prompt(message))
        return await self._until_ended()

    async def continue_turn(self) -> str:
        """Continue a turn that was interrupted or waited, outside of a prompt, unless one runs."""
        if not self.is_running:
            self.cancelled.clear()
            self._begin(self._resume(), background=True)
        return await self._until_ended()

    async def _run_command(self, command: SlashCommand) -> str:
        if command.name not in SETTLING:
            try:
                self.say(await self.commands.run(command))
            except UpcallError as error:
                self.say(f"/{command.name}: {error}")
            return "end_turn"
        if problem := await settle(self.texts, command):
            self.say(problem)
            return "end_turn"
        if not self.is_running:
            self.cancelled.clear()
            self._begin(self._resume())
        return await self._until_ended()

    async def _steer(self, text: str) -> None:
        self.updates.own_steers.append(text)
        await self.session.steer(text)

    async def _wait_for_end(self) -> None:
        """Wait for a turn that is over, and whose updates are being sent, or that was cancelled."""
        if self._turn is None or self._turn.done():
            return
        if self._has_ended:
            await asyncio.wait({self._turn})
        elif self.cancelled.is_set():
            await self._wait_for_cancelled()

    def _begin(self, work: Coroutine[Any, Any, Reply | None], *, background: bool = False) -> None:
        self._has_ended, self._is_background = False, background
        self._turn = asyncio.ensure_future(self._run(work))
        self._turn.add_done_callback(_retrieve)

    async def _run(self, work: Coroutine[Any, Any, Reply | None]) -> str:
        try:
            reply = await work
        finally:
            self._has_ended = True
            await self.sync()
        return self._stop_reason(reply)

    async def _run_prompt(self, message: Message) -> Reply | None:
        waiting = await self.texts.waiting()
        if waiting:
            said = await self.texts.take(message.text, waiting)
            if said.problem:
                self.say(said.problem)
                return None
            if not said.answered:
                await self._steer(message.text)
            return await self._resume()
        try:
            return await self.session.prompt(message, by=self._by)
        except SessionWaiting:  # a question came up that was not there a moment ago
            await self._steer(message.text)
            return await self._resume()

    async def _resume(self) -> Reply:
        return await self.session.resume()

    async def _until_ended(self) -> str:
        """Return why the turn ended; `cancelled` soon after a cancellation, whatever the turn still does."""
        turn = self._turn
        assert turn is not None
        waiting = asyncio.ensure_future(self.cancelled.wait())
        try:
            await asyncio.wait({turn, waiting}, return_when="FIRST_COMPLETED")
            if not turn.done():
                await asyncio.wait({turn}, timeout=CANCEL_SECONDS)
        except asyncio.CancelledError:
            if self._connection.has_left:  # then the turn stops where it is, and can be resumed
                raise
            await self.cancel()  # the editor cancels its request
            return "cancelled"
        finally:
            waiting.cancel()
        if self.cancelled.is_set():
            return "cancelled"
        return turn.result()

    async def _wait_for_cancelled(self) -> None:
        assert self._turn is not None
        await asyncio.wait({self._turn}, timeout=_LATE_END)
        if self.is_running:
            problem = "the cancelled turn has not ended yet, because a tool does not stop; try again later"
            raise RpcError(INTERNAL_ERROR, problem)

    async def until_cancelled(self) -> None:
        """Wait a moment for the end of a turn that was cancelled."""
        if self._turn is not None and not self._turn.done():
            await asyncio.wait({self._turn}, timeout=CANCEL_SECONDS)

    def adopt(self, before: EditorSession) -> None:
        """Take over the turn that runs in the same session, opened earlier."""
        if before.is_running:
            self._turn, self._has_ended, self.cancelled = before._turn, before._has_ended, before.cancelled
            self._is_background = before._is_background

    async def cancel(self) -> None:
        """Cancel the turn that runs or waits."""
        self.cancelled.set()
        await self._runtime.cancel(self.id, "in the editor", by=self._by)

    def _stop_reason(self, reply: Reply | None) -> str:
        if reply is None:
            return "end_turn"
        match reply.status:
            case "cancelled":
                return "cancelled"
            case "limit":
                return _LIMITS.get(reply.limit, "max_turn_requests")
            case _:
                return _STOPS.get(self._last_stop, "end_turn")

    # --- questions ------------------------------------------------------------------------

    async def ask(self, callback: Callback) -> Answer | None:
        """Ask the person; None leaves the question waiting."""
        await self.sync()  # the editor has to know the call that it is about
        call = None
        if is_approval(callback):
            origin = await self._origin(callback)
            call = await aside(self._call_to_approve, callback, origin)
        return await self._asking.ask(callback, call)

    def _call_to_approve(self, callback: Callback, origin: str) -> dict[str, Any]:
        return self.updates.call_to_approve(callback.session_id, origin, callback.tool, callback.args or {})

    async def _origin(self, callback: Callback) -> str:
        stored = await self._runtime.store.callback(callback.id)
        return stored.origin if stored is not None else callback.id

    # --- updates --------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Send a message of the agent that is not part of the log."""
        self._send(self.updates.note(text))

    def notify(self, text: str) -> None:
        """Tell the person something that is not part of the conversation, if the editor can show that."""
        if not self._connection.client.notices:
            self.say(text)
            return
        title, _, rest = text.partition("\n")
        notice = {"sessionUpdate": "notice", "severity": "info", "title": title, "description": rest or None}
        self._connection.update(self.id, notice)

    def _send(self, updates: Sequence[Update]) -> None:
        for session_id, update in updates:
            self._connection.update(session_id, update)

    async def sync(self) -> None:
        """Return once the editor was sent everything that has happened by now."""
        if self._pump is None or self._pump.done():
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._syncs.append(done)
        self._subscription.put(Delta(self.id, str(len(self._syncs)), _SYNC))
        await done

    def _end_syncs(self) -> None:
        syncs, self._syncs = self._syncs, []
        for done in syncs:
            if not done.done():
                done.set_result(None)

    async def _send_updates(self) -> None:
        """Send updates as things happen. What a slow editor missed is read from the log."""
        try:
            async for item in self._subscription:
                if isinstance(item, Delta):
                    await self._take_delta(item)
                elif isinstance(item, Missed):
                    await self._catch_up(item)
                elif not isinstance(item, Callback) and not self._is_known(item):
                    await self._take_event(item)
                await self._connection.drained()
        except Exception:
            log.exception("the updates of session %s can't be sent any more", self.id)
        finally:
            self._end_syncs()

    async def _catch_up(self, missed: Missed) -> None:
        """Read from the log what was missed. Deltas that waited meanwhile may belong to what was read."""
        self.updates.skip()
        if missed.after is not None:
            await self._read_log(max(missed.after, self._read_up_to), send=True)
            self.updates.skip()
        self._is_behind = True
        self._end_syncs()

    async def _take_event(self, event: AnyEvent) -> None:
        self._known.append(event.pos)
        self._is_behind = False
        if isinstance(event, Responded) and event.session == self.id:
            self._last_stop = event.stop
        self._send(self.updates.flush(output=False))
        await self._send_slowly(await self._folded(self.updates.feed, event, takes_long=takes_long(event)))

    async def _take_delta(self, delta: Delta) -> None:
        if delta.kind == _SYNC:
            self._send(self.updates.flush(output=False))
            self._end_syncs()
            return
        if self._is_behind:
            self.updates.lose(delta.session)
            return
        updates, waits = await self._folded(self.updates.delta, delta, takes_long=takes_long(delta))
        self._send(updates)
        if waits and self._timer is None:
            seconds = _OUTPUT_INTERVAL if delta.kind == "output" else _MOMENT
            self._timer = asyncio.get_running_loop().call_later(seconds, self._flush)

    def _flush(self) -> None:
        if self._is_folding:  # in a thread; what waits here is sent after that
            self._timer = asyncio.get_running_loop().call_later(_MOMENT, self._flush)
            return
        self._timer = None
        self._send(self.updates.flush())

    async def _folded(self, fold: Callable[[T], R], what: T, *, takes_long: bool) -> R:
        """Return what the fold makes of an event, events or a delta; in a thread if that may take long.

        The next one is taken after that, so the order of updates is the order of events.
        """
        if not takes_long:
            return fold(what)
        self._is_folding = True
        try:
            return await asyncio.to_thread(fold, what)
        finally:
            self._is_folding = False

    def _feed_all(self, found: Sequence[AnyEvent]) -> list[Update]:
        return [update for event in found for update in self.updates.feed(event)]

    async def _send_slowly(self, updates: Sequence[Update]) -> None:
        """Send updates; between large numbers of them, other work is done."""
        for at in range(0, len(updates), _AT_ONCE):
            self._send(updates[at : at + _AT_ONCE])
            await asyncio.sleep(0)

    def _is_known(self, event: AnyEvent) -> bool:
        return event.pos <= self._read_up_to or event.pos in self._known

    async def _read_log(self, after: int, *, send: bool) -> None:
        """Take in the log after a position, page by page."""
        store = self._runtime.store
        while page := await store.read_tree(self.id, after, _PAGE):
            new = [event for event in page if event.pos not in self._known]
            stops = [one.stop for one in new if isinstance(one, Responded) and one.session == self.id]
            self._last_stop = stops[-1] if stops else self._last_stop
            updates = await self._folded(self._feed_all, new, takes_long=any(map(takes_long, new)))
            await self._send_slowly(updates if send else ())
            after = page[-1].pos
            self._read_up_to = max(self._read_up_to, after)
            await self._connection.drained()


def _retrieve(task: asyncio.Task[Any]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        task.exception()
