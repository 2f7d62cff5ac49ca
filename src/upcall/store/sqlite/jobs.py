"""Writes that touch several sessions at once: settling callbacks, parking a run tree, cancelling it."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from upcall.callbacks import Held
from upcall.contracts import Claim
from upcall.errors import UnknownCallback
from upcall.events import AnyEvent, CallbackWithdrawn
from upcall.store.callback_index import refusal
from upcall.store.sqlite.queries import find
from upcall.store.sqlite.writer import Append, Job, Tx


class MultiAppend(Job):
    """Events of several sessions in one transaction, if `check` finds nothing against it."""

    def __init__(
        self,
        events: Mapping[str, Sequence[AnyEvent]],
        claim: Claim | None,
        check: Callable[[Tx], Any],
        *,
        release: bool = False,
    ) -> None:
        self.claim, self._check, self.releases = claim, check, release
        self._events, self._root = events, claim.root if claim is not None else ""
        self.parts: list[Append] = []
        self.refused: Any = None

    def run(self, tx: Tx) -> None:
        """Look first, then write all of it."""
        if self.claim is not None:
            tx.check_fence(self.claim)
        self.refused = self._check(tx)
        if self.refused is not None:
            return
        self.parts = [
            Append(session, wanted, self.claim, None, release=self.releases and session == self._root)
            for session, added in self._events.items()
            if (wanted := [e for e in added if not _is_moot(tx, e)])
        ]
        found = [part.check(tx) for part in self.parts]  # all of them before the first is written
        for part, at in zip(self.parts, found, strict=True):
            part.write(tx, at)
        if self.releases and self.claim is not None and not any(part.releases for part in self.parts):
            tx.release(self.claim)

    def told(self) -> Sequence[AnyEvent]:
        """What was appended without a claim."""
        return [e for part in self.parts for e in part.told()] if self.refused is None else ()

    def settle(self) -> None:
        """Stamp what was written."""
        if self.refused is not None:
            self.releases = False
        else:
            for part in self.parts:
                part.settle()

    def result(self) -> Any:
        """What was found against it, or None."""
        return self.refused


def _is_moot(tx: Tx, event: AnyEvent) -> bool:
    """Whether it would withdraw what somebody has settled meanwhile: the first one won."""
    if not isinstance(event, CallbackWithdrawn):
        return False
    held = find(tx, event.callback_id)
    return held is not None and held.status != "open"


class Settle(Job):
    """One callback, and others with it: the first valid settling wins. Heard by everybody, whoever settles."""

    def __init__(self, callback_id: str, events: Mapping[str, AnyEvent], fence: Claim | None) -> None:
        self._id, self._events, self._fence = callback_id, events, fence
        self.parts: list[Append] = []
        self.refused: Held | None = None

    def run(self, tx: Tx) -> None:
        """Compare and set."""
        if self._fence is not None:
            tx.check_fence(self._fence)
        self.parts = []  # it may have been tried before, with others that failed
        first = find(tx, self._id)
        if first is None:
            raise UnknownCallback(self._id)
        self.refused = refusal(first, self._events[self._id], tx.now)
        if self.refused is not None:
            return
        for callback_id, event in self._events.items():
            held = first if callback_id == self._id else find(tx, callback_id)
            if held is not None and held.status == "open":
                part = Append(held.raised.session, [event], None, None, release=False)
                part.run(tx)
                self.parts.append(part)

    def told(self) -> Sequence[AnyEvent]:
        """Everything: whoever waits for it may be this very process."""
        return [e for part in self.parts for e in part.events]

    def settle(self) -> None:
        """Stamp what was written."""
        for part in self.parts:
            part.settle()

    def result(self) -> Held | None:
        """What the callback already was, or None."""
        return self.refused


def all_open(waits: Sequence[str]) -> Callable[[Tx], Any]:
    """A check that these callbacks are still open."""

    def check(tx: Tx) -> Any:
        for callback_id in waits:
            held = find(tx, callback_id)
            if held is None or held.status != "open":
                return callback_id
        return None

    return check
