"""Storage that a run tree shares, in its root's log: values of the root's context, and bodies by hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from upcall.core.turns.turn import Turn
from upcall.events import ContextSet
from upcall.safety.private_files import private_paths


class RootStorage(msgspec.Struct, eq=False):
    """The storage of a run tree in the hands of one of its sessions."""

    _turn: Turn
    _root: Turn

    @property
    def private_paths(self) -> tuple[str, ...]:
        """The files of the store, which no agent reads or writes: its path, with all that lies beside it."""
        return private_paths(self._root.log.store)

    async def values(self) -> Mapping[str, Any]:
        """All that was put, by key; the root session's own context is among it."""
        return self._root.state.context

    async def body(self, name: str) -> bytes:
        """A body that was put with a value, by its content hash."""
        return await self._root.log.store.blob(name)

    async def put(self, key: str, value: Any, bodies: Mapping[str, bytes]) -> None:
        """Keep a value and the bodies it names; stored when it returns."""
        await self._turn.services.ensure_claimed(self._turn)
        for name, body in bodies.items():
            self._root.log.put_blob(name, body)
        self._root.log.add(ContextSet(key, value))
        await self._root.log.flush()
