"""The contract of stores: waiting for what comes, and hearing what others say."""

from __future__ import annotations

import asyncio
import time

from store.factories import put, start_and_claim, start_session, turn, wait_until
from upcall.contracts import Store
from upcall.events import AnyEvent, CancelRequested, Steered

LONG = 20.0  # seconds that a test which works never waits


async def test_waiting_ends_at_once_where_there_is_something_already(store: Store) -> None:
    await start_session(store)
    started = time.monotonic()
    await store.wait(0, LONG)
    assert time.monotonic() - started < LONG / 2


async def test_waiting_ends_after_its_time_when_nothing_comes(store: Store) -> None:
    await start_session(store)
    last = await store.last()
    await store.wait(last, 0.02)
    assert await store.last() == last


async def test_waiting_ends_when_an_event_is_stored_by_any_process(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    for writer, reader in ((store, store), (store, other)):
        last = await reader.last()
        waiting = asyncio.ensure_future(reader.wait(last, LONG))
        await asyncio.sleep(0)
        await put(writer, "s", turn(), claim=claim)
        await asyncio.wait_for(waiting, LONG / 2)
        assert await reader.last() > last


async def test_waiting_ends_when_the_news_came_while_this_process_wrote_something_else(
    store: Store, other: Store
) -> None:
    await start_session(store)
    waiting = asyncio.ensure_future(store.wait(await store.last(), LONG))
    await asyncio.sleep(0)
    await put(other, "s", Steered("hi"))
    await store.release(await store.claim("s"))
    await asyncio.wait_for(waiting, LONG / 2)


async def test_many_may_wait_and_one_that_gives_up_harms_no_other(store: Store) -> None:
    claim = await start_and_claim(store)
    last = await store.last()
    waits = [asyncio.ensure_future(store.wait(last, LONG)) for _ in range(5)]
    await asyncio.sleep(0)
    waits.pop().cancel()
    await put(store, "s", turn(), claim=claim)
    await asyncio.wait_for(asyncio.gather(*waits), LONG / 2)


async def test_waiting_after_a_deletion_waits_and_does_not_spin(store: Store) -> None:
    await start_session(store, "kept")
    kept = await store.last()
    await start_session(store, "gone")
    await store.delete(["gone"])
    waiting = asyncio.ensure_future(store.wait(kept, LONG))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await put(store, "kept", Steered("hi"))
    await asyncio.wait_for(waiting, LONG / 2)


async def test_closing_ends_every_wait(store: Store) -> None:
    await start_session(store)
    waiting = asyncio.ensure_future(store.wait(await store.last(), LONG))
    await asyncio.sleep(0)
    await store.close()
    await asyncio.wait_for(waiting, LONG / 2)


async def test_a_listener_hears_what_any_process_says_without_a_claim_and_nothing_else(
    store: Store, other: Store
) -> None:
    claim = await start_and_claim(store)
    heard: list[AnyEvent] = []
    store.listen(heard.append)
    await put(store, "s", turn(), claim=claim)
    await put(other, "s", Steered("from afar"))
    await put(store, "s", CancelRequested(by="me"))
    await wait_until(lambda: len(heard) == 2)
    assert [(e.type, e.seq) for e in heard] == [("steered", 3), ("cancel_requested", 4)]


async def test_a_listener_hears_each_event_once_and_in_order(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    heard: list[AnyEvent] = []
    store.listen(heard.append)
    for number in range(30):
        writer = (store, other)[number % 2]
        await put(writer, "s", Steered(str(number)))
        if number % 3 == 0:
            await put(store, "s", turn(number), claim=claim)
    await wait_until(lambda: len(heard) >= 30)
    assert [e.text for e in heard if isinstance(e, Steered)] == [str(n) for n in range(30)]


async def test_a_listener_that_stopped_hears_no_more(store: Store) -> None:
    await start_session(store)
    heard: list[AnyEvent] = []
    stop = store.listen(heard.append)
    stop()
    stop()
    await put(store, "s", Steered("hi"))
    assert heard == []
