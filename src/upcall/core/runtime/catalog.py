"""A runtime's store, without running anything: read it, answer what waits in it, hear what others write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from upcall.callbacks import Callback, public
from upcall.contracts import Host, ModelCall, Row, Selection, Store
from upcall.core.error_texts import did_you_mean
from upcall.core.log.load import readable_events
from upcall.core.log.model_calls import rebuild_model_call
from upcall.core.log.session_log import Sink
from upcall.core.routing.answer import check_principal, covered_calls
from upcall.core.runtime.broadcast import Broadcast
from upcall.core.runtime.inbox import Inbox, why_withdrawn
from upcall.core.runtime.session_data import checked_path, checked_tags
from upcall.core.turns.turn import Turn
from upcall.errors import RuntimeClosed, SetupError, StoreUnavailable, UnknownCallback, UnknownSession
from upcall.events import SETTLING, AnyEvent, CallbackRevealed

if TYPE_CHECKING:
    from pathlib import PurePath

log = logging.getLogger("upcall")
R = TypeVar("R")

SESSION_STATUSES = ("idle", "queued", "running", "waiting", "interrupted", "done", "failed", "limit", "cancelled")
"""All session states."""
CALLBACK_STATUSES: tuple[str, ...] = get_args(get_type_hints(Callback)["status"])
"""All callback states."""

_FOLLOW = 30.0


class Catalog:
    """A store that is open here: read it, whoever wrote it; answer what waits in it; hear what others write."""

    def __init__(self, store: Store, host: Host | None) -> None:
        self.store, self.host = store, host
        self.turns: dict[str, Turn] = {}
        self.sinks: list[Sink] = []  # who watches everything that this runtime runs
        self.broadcast = Broadcast()
        self.person_watchers: list[Callable[[Callback], None]] = []  # told once of each question to the person
        self.host_inbox = Inbox(store, host, self.turns, self.spawn)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stop_listening: Callable[[], None] | None = None
        self._closed = False

    async def _open(self) -> None:
        """Open the store when it is first needed."""
        if self._closed:
            raise RuntimeClosed(begun=False)
        if self._stop_listening is None:
            await self.store.open()
            self._stop_listening = self.store.listen(self._hear)

    def _hear(self, event: AnyEvent) -> None:
        """Tell the turns and the watchers here of an event that was written without a claim."""
        turn = self.turns.get(event.session)
        if turn is not None:
            turn.absorb(event)
            turn.log.publish(event)
        else:
            for sink in (*self.sinks, *self.broadcast.sinks):
                sink(event)
        if isinstance(event, SETTLING):
            self.host_inbox.withdraw(event.callback_id, why_withdrawn(event))

    def spawn(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run a coroutine in the background. It outlives its caller; its failure is logged as a debug message."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.debug("work in the background failed: %s", task.exception())

    async def _row(self, id: str) -> Row:
        row = await self.store.row(id)
        if row is None:
            raise UnknownSession(id)
        return row

    async def status(self, id: str) -> str:
        """A session's status: how its last turn ended, or `running`, `interrupted`, `waiting`.

        An open question to a person is waited for whatever has become of the process that asked it.
        """
        await self._open()
        return (await self._row(id)).current_status

    async def ready(self) -> list[str]:
        """The ids of all run trees that are ready to continue, oldest first.

        No living process runs them, and they were interrupted, or something that they wait for is settled, expired
        or to be asked of an agent next.
        """
        await self._open()
        return [row.id for row in await self.store.unfinished()]

    async def rows(
        self,
        *,
        parent: str | None = None,
        session: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        tags: Mapping[str, str] | None = None,
        folder: str | PurePath | None = None,
        before: str | None = None,
        limit: int = 1000,
    ) -> list[Row]:
        """Sessions that match, newest first; with `parent`, its children, oldest first.

        parent: only the children of this session; "" lists the sessions without a parent, newest first
        session: only this one and all below it
        agent: only those of the agent of that name
        status: only those that are doing that, as `status(id)` says it
        tags: only those whose run tree has all these tags
        folder: only those whose run tree was started with this folder
        before: only those that were started before this session; the last id of one page gives the next page
        limit: at most so many
        """
        which = await self._selection(session, agent, status, tags, SESSION_STATUSES)
        if folder is not None:
            which = which.replace(folder=checked_path("folder", folder))
        if before is not None:
            await self._row(before)
        rows = await self.store.rows(parent=parent, which=which, before=before, limit=limit)
        return [row if row.status != "running" else row.replace(status=row.current_status) for row in rows]

    async def inbox(
        self,
        limit: int = 100_000,
        *,
        session: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> list[Callback]:
        """The callbacks that wait for a person, most urgent first, then oldest. Equal questions of a tree are one.

        limit: read at most so many, equal ones counted
        session: only those of this session and all below it
        agent: only those that the agent of that name asks
        status: in place of the open ones, those that a person was asked and that were `answered`, `expired`, ...
        tags: only those whose run tree has all these tags
        """
        which = await self._selection(session, agent, status, tags, CALLBACK_STATUSES)
        groups: dict[tuple[str, ...], list[Callback]] = {}
        listed = await self.store.callbacks(inbox=True, which=which, limit=limit)
        for one in listed:
            group = one.group_key if one.status == "open" else (one.id,)
            groups.setdefault(group, []).append(one)
        by_session: dict[str, list[Callback]] = {}
        for one in listed:
            if one.patterns:
                by_session.setdefault(one.session_id, []).append(one)
        found: list[Callback] = []
        for equal in groups.values():
            callback = equal[0]
            shows = callback.patterns and callback.status == "open"
            covers = covered_calls(callback, by_session[callback.session_id]) if shows else {}
            found.append(public(callback, group=tuple([one.id for one in equal]), covers=covers))
        return found

    async def callback(self, id: str) -> Callback:
        """One callback by its id, whoever is asked and however it ended; UnknownCallback if there is none.

        While it waits for a person, `group` names its equals, and `covers` the calls that its patterns cover.
        """
        await self._open()
        callback = await self.store.callback(id)
        if callback is None:
            raise UnknownCallback(id)
        if callback.status != "open" or callback.target != "user":
            return public(callback, group=(id,))
        tree = await self.store.callbacks(root=callback.root)
        waiting = [one for one in tree if one.status == "open" and one.target == "user"]
        equal = [one.id for one in waiting if one.group_key == callback.group_key and one.id != id]
        return public(callback, group=(id, *equal), covers=covered_calls(callback, waiting))

    async def answer(
        self, id: str, value: Any, by: str = "", only: bool = False, right: str = "asserted"
    ) -> Callback:
        """Settle a callback, and equal ones of its run tree with it unless `only`; the first valid answer wins.

        value: a JSON value, Approve, Reject or Decline
        by: who answers
        right: how the program knows that, such as `os-user` or `token`
        """
        await self._open()
        return await self.host_inbox.answer(id, value, by=by, right=right, only=only)

    async def reveal(self, id: str, by: str = "", right: str = "asserted") -> Callback:
        """One callback for somebody who sees the values in it that screens hide; the log then says who saw them.

        by: who is shown it
        right: how the program knows that
        """
        by, right = check_principal(by, right)
        callback = await self.callback(id)
        await self.store.append_all({callback.session_id: [CallbackRevealed(id, by, right)]})
        return callback

    async def model_call(self, id: str, ordinal: int = 0, *, seq: int = 0) -> ModelCall | None:
        """A model call of a session, rebuilt from the log; None if there is none.

        ordinal: its number in the session, from 1
        seq: in place of that, the number of its `model_started` event; a summary is found only by that
        """
        await self._open()
        await self._row(id)
        return await rebuild_model_call(self.store, id, ordinal=ordinal, seq=seq)

    async def _selection(
        self,
        session: str | None,
        agent: str | None,
        status: str | None,
        tags: Mapping[str, str] | None,
        statuses: Collection[str],
    ) -> Selection:
        if status is not None and status not in statuses:
            meant = did_you_mean(status, statuses)
            raise SetupError(f"{status!r} is not a valid status: use {', '.join(statuses)}.{meant}")
        which = Selection(session, agent, status, checked_tags(tags))
        await self._open()
        if session is not None:
            await self._row(session)
        return which

    async def events(
        self, id: str | None = None, after: int = 0, follow: bool = False, *, tree: str | None = None
    ) -> AsyncIterator[AnyEvent]:
        """Events in order, from any point on; with `follow`, new events too, until this is closed.

        id: only the events of this session
        after: with an `id` a sequence number of that session, otherwise a position of the store
        tree: only the events of this session and all below it
        """
        await self._open()
        if id is not None and tree is not None:
            raise SetupError("events() takes the id of one session or a tree, not both")
        for session in (id, tree):
            if session is not None:
                await self._row(session)
        while not (follow and self._closed):
            try:
                position = await self.store.last() if follow else 0
                page, last = await self._page(id, tree, after)
                if follow and last == after:
                    await self.store.wait(position, _FOLLOW)
            except StoreUnavailable:
                if follow and self._closed:  # while this waited
                    return
                raise
            for event in page:
                yield event
            if last == after and not follow:
                return
            after = last

    async def _page(self, id: str | None, tree: str | None, after: int) -> tuple[list[AnyEvent], int]:
        """The next events, and the number to continue after."""
        if id is not None:
            return await readable_events(self.store, id, after)
        page = await (self.store.read_all(after) if tree is None else self.store.read_tree(tree, after))
        return page, page[-1].pos if page else after
