"""The JSON of sessions that `sessions`, `show`, `run` and `resume` print. Secrets are hidden in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from upcall.contracts import Reply, Row, Store
from upcall.core.log.load import load_state
from upcall.errors import StoreDamaged, UnknownSession
from upcall.events import SessionStarted
from upcall.messages import NO_USAGE
from upcall.observe.hidden_question import callback_json
from upcall.observe.redact import Redactor

OnDamage = Callable[[StoreDamaged], None]
"""Called with what is wrong with a session whose log can't be read."""


class Reads(Protocol):
    """Reads a log; a runtime does."""

    store: Store

    async def rows(self, *, parent: str | None = None, limit: int = 1000) -> list[Row]:
        """Return the children of a session."""
        ...


class SessionJson:
    """Makes the JSON of sessions. `on_damage` is told of sessions whose log can't be read."""

    def __init__(self, log: Reads, redactor: Redactor, on_damage: OnDamage) -> None:
        self._log, self._redactor, self._on_damage = log, redactor, on_damage

    async def session(self, session_id: str) -> dict[str, Any]:
        """Return a session as `show --json` prints it."""
        row = await self._log.store.row(session_id)
        if row is None:
            raise UnknownSession(session_id)
        return (await self.sessions([row]))[0]

    async def turn(
        self,
        session_id: str,
        reply: Reply | None = None,
        error: Exception | None = None,
        *,
        whole_reply: bool = False,
    ) -> dict[str, Any]:
        """Return a session as `run --json` prints it: with the last turn's usage, limit and error.

        `whole_reply`: nothing is hidden in the reply's text.
        """
        found = reply
        if reply is None:
            with contextlib.suppress(StoreDamaged):  # it is the error itself, or was already reported
                state = await load_state(self._log.store, session_id)
                found = None if state is None else state.turn
        usage, limit = (found.usage, found.limit) if found is not None else (NO_USAGE, "")
        failed = self._redactor.text(f"{type(error).__name__}: {error}") if error is not None else None
        extra = {"usage": msgspec.structs.asdict(usage), "limit": limit, "error": failed}
        made = await self.session(session_id)
        if whole_reply and (row := await self._log.store.row(session_id)) is not None:
            made["text"] = await self._text(row)
        return {**made, **extra}

    async def sessions(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Return sessions as `sessions --json` prints them."""
        callbacks: dict[str, list[Any]] = {}
        data: dict[str, Any] = {}
        for root in {row.root for row in rows}:
            await self._collect_callbacks(root, callbacks)
            data[root] = self._redactor.show(dict(await self._data(root)))
        return [
            {
                "id": row.id,
                "agent": self._redactor.text(row.agent),
                "status": row.current_status,
                "text": await self.last_text(row),
                "parent": row.parent or None,
                "children": [child.id for child in await children_of(self._log, row.id)],
                "callbacks": callbacks.get(row.id, []),
                "tags": self._redactor.show(dict(row.tags)),
                "data": data[row.root],
                "title": self._redactor.text(row.title),
                "folder": self._redactor.text(row.folder) or None,
                "roots": self._redactor.show(list(row.roots)),
            }
            for row in rows
        ]

    async def last_text(self, row: Row) -> str:
        """Return the last reply text of a session, as it may be shown."""
        return self._redactor.text(await self._text(row))

    async def _text(self, row: Row) -> str:
        try:
            state = await load_state(self._log.store, row.id)
        except StoreDamaged as error:  # one damaged session: the others are listed all the same
            self._on_damage(error)
            return ""
        return state.conversation.reply_text if state is not None else ""

    async def _data(self, root: str) -> Mapping[str, Any]:
        """Return the data of a run tree; empty if its first event can't be read, which `_text` reports."""
        try:
            first = (await self._log.store.read(root, 0, 1))[0]
        except StoreDamaged:
            return {}
        return first.data if isinstance(first, SessionStarted) else {}

    async def _collect_callbacks(self, root: str, callbacks: dict[str, list[Any]]) -> None:
        """Collect the callbacks of a run tree, oldest first, for each session and its ancestors."""
        for callback in await self._log.store.callbacks(root=root, limit=100_000):
            shown, names = callback_json(callback, self._redactor), callback.session_id.split("~")
            for depth in range(len(names)):
                callbacks.setdefault("~".join(names[: depth + 1]), []).append(shown)


async def children_of(log: Reads, session_id: str) -> list[Row]:
    """Return the sessions that this one started, without side turns."""
    rows = await log.rows(parent=session_id, limit=100_000)
    return [row for row in rows if row.kind != "side_turn"]
