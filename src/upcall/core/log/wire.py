"""What went over the wire in a model call, put together from the differences in the log."""

from __future__ import annotations

from upcall.contracts import Exchange, Store
from upcall.core.log.state import body_after
from upcall.events import Compacted, WireCaptured

_PAGE = 200


async def rebuild_exchanges(store: Store, session_id: str, after: int, upto: int) -> tuple[Exchange, ...]:
    """Return the exchanges of the events from `after` to `upto`, with their whole bodies."""
    sent, read, found = "", 0, list[Exchange]()
    while read < upto and (page := await store.read(session_id, read, min(_PAGE, upto - read))):
        read = page[-1].seq
        for event in page:
            if isinstance(event, Compacted):
                sent = ""
            for one in event.exchanges if isinstance(event, WireCaptured) else ():
                sent = body_after(sent, one)
                if event.seq > after:
                    found.append(Exchange(one.url, one.status, sent, one.response, one.received_bytes))
    return tuple(found)
