"""The contract of stores: an id that nothing can have is one that nothing has, whatever characters are in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from quick import examples
from store.factories import StoreFactory, child_of, put, question_events, start_and_claim, turn
from upcall import Agent, Runtime
from upcall.contracts import Selection, Store
from upcall.errors import (
    SetupError,
    StoreError,
    StoreUnavailable,
    UnknownCallback,
    UnknownSession,
    UnknownToken,
    UpcallError,
)
from upcall.events import CallbackAnswered, CallbackWithdrawn, CancelRequested, SessionStarted
from upcall.models import Script

any_text = st.text(st.characters(exclude_categories=()), min_size=1, max_size=20)
"""Texts of all characters, halves of characters and the character zero among them."""

odd_texts = st.tuples(any_text, st.sampled_from("\0\ud800\udfff\ufffe"), any_text).map("".join)

per_store = settings(
    deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def odd(test: Any) -> Any:
    """Run a test with ids that nothing has."""
    decorated = given(id=odd_texts | any_text.filter(lambda text: text not in ("s", "q1")))(test)
    for text in ("a\0b", "s\0", "q1\ud800", "\ud83d\ude00", "\ufffe", "s~\ud800"):
        decorated = example(id=text)(decorated)
    return per_store(decorated)


@pytest.fixture
def runtime(store: Store) -> Runtime:
    """A runtime on the store, which the factory closes."""
    return Runtime(store, agents=[Agent("writer", model=Script(lambda _: "done"))])


async def some_session(store: Store) -> None:
    """Store a session with an open question."""
    if await store.row("s") is None:
        claim = await start_and_claim(store)
        await put(store, "s", turn(), *question_events("q1"), claim=claim)
        await store.release(claim)


async def outcome_of(call: Callable[[], Awaitable[Any]]) -> Any:
    """Return what a call returns or raises; the text of an error can be printed."""
    try:
        return await call()
    except UpcallError as error:
        return type(error) if str(error).isprintable() else f"{error!r} can't be printed"


async def appended(store: Store, id: str, *events: Any) -> None:
    await put(store, id, *events)


@pytest.mark.slow
@odd
async def test_a_store_finds_nothing_under_an_id_that_nothing_has(store: Store, id: str) -> None:
    await some_session(store)
    assert await store.row(id) is None
    assert await store.callback(id) is None
    assert await store.token(id) is None
    assert await store.read(id) == await store.read_tree(id) == []
    assert await store.rows(parent=id) == await store.rows(before=id) == []
    assert await store.callbacks(root=id) == []
    for which in (Selection(session=id), Selection(agent=id)):
        assert await store.rows(which=which) == await store.callbacks(inbox=True, which=which) == []
    assert await store.take([id]) is None
    assert await store.take([], exclude=[id]) is None


@pytest.mark.slow
@odd
async def test_a_store_refuses_to_write_under_an_id_that_nothing_has(store: Store, id: str) -> None:
    await some_session(store)
    calls: dict[Any, list[Callable[[], Awaitable[Any]]]] = {
        UnknownSession: [
            lambda: store.claim(id),
            lambda: store.claim(id, take_over=True),
            lambda: store.delete([id]),
            lambda: store.append_all({id: [CancelRequested("ann")]}),
            lambda: store.append_all({"s": [CancelRequested("ann")], id: [CancelRequested("ann")]}),
            lambda: appended(store, id, CancelRequested("ann")),
        ],
        UnknownCallback: [lambda: store.settle(id, {id: CallbackAnswered(id, 1, "ann", "asserted")})],
        UnknownToken: [lambda: store.revoke_token(id)],
        StoreError: [lambda: store.blob(id)],
    }
    found = {kind: [await outcome_of(call) for call in given] for kind, given in calls.items()}
    assert found == {kind: [kind] * len(given) for kind, given in calls.items()}
    row = await store.row("s")
    assert row is not None
    assert row.seq == 4  # nothing of a refused write is kept


@pytest.mark.parametrize("id", ["a\0b", "a\ud800", "\ufffe"])
async def test_a_store_starts_no_session_that_could_not_be_found_again(store: Store, id: str) -> None:
    await some_session(store)
    with pytest.raises(StoreError, match="can't be the id of a session"):
        await put(store, id, SessionStarted("writer"))
    with pytest.raises(UnknownSession if "\ud800" not in id else (UnknownSession, StoreError)):
        await put(store, "child", child_of(id))
    assert [row.id for row in await store.rows()] == ["s"]


async def test_a_callback_that_can_not_exist_does_not_keep_others_from_being_settled(store: Store) -> None:
    await some_session(store)
    wrong = "q\0"
    settled = {"q1": CallbackAnswered("q1", 1, "ann", "asserted"), wrong: CallbackAnswered(wrong, 1, "ann", "x")}
    assert await store.settle("q1", settled) is None
    await store.append_all({"s": [CallbackWithdrawn("q1", "late")]})
    callback = await store.callback("q1")
    assert callback is not None
    assert callback.status == "answered"


# --- the runtime ---------------------------------------------------------------------------


async def listed(runtime: Runtime, id: str, **options: Any) -> None:
    async for _ in runtime.events(id, **options):
        pass


def session_doors(runtime: Runtime, id: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Every method that takes the id of a session that must exist."""
    return {
        "status": lambda: runtime.status(id),
        "load": lambda: runtime.load(id),
        "resume": lambda: runtime.resume(id),
        "take over": lambda: runtime.resume(id, take_over=True),
        "cancel": lambda: runtime.cancel(id),
        "steer": lambda: runtime.steer(id, "hello"),
        "delete": lambda: runtime.delete(id),
        "events": lambda: listed(runtime, id),
        "tree": lambda: listed(runtime, None, tree=id),  # type: ignore[arg-type]
        "model_call": lambda: runtime.model_call(id, 1),
        "rows": lambda: runtime.rows(session=id),
        "before": lambda: runtime.rows(before=id),
        "inbox": lambda: runtime.inbox(session=id),
    }


@pytest.mark.slow
@odd
async def test_every_door_of_a_runtime_says_that_an_id_is_unknown(runtime: Runtime, id: str) -> None:
    await some_session(runtime.store)
    doors = session_doors(runtime, id)
    assert {name: await outcome_of(call) for name, call in doors.items()} == dict.fromkeys(doors, UnknownSession)
    by_callback: dict[str, Callable[[], Awaitable[Any]]] = {
        "callback": lambda: runtime.callback(id),
        "answer": lambda: runtime.answer(id, "yes"),
        "reveal": lambda: runtime.reveal(id),
    }
    found = {name: await outcome_of(call) for name, call in by_callback.items()}
    assert found == dict.fromkeys(by_callback, UnknownCallback)
    assert await runtime.rows(parent=id) == await runtime.rows(agent=id) == await runtime.inbox(agent=id) == []
    assert await runtime.run_if_ready(id) is False


@per_store
@given(id=odd_texts)
@example(id="a\0b")
@example(id="a\ud800")
async def test_no_session_is_started_with_an_id_that_can_not_be_stored(runtime: Runtime, id: str) -> None:
    assert await outcome_of(lambda: runtime.start("writer", id)) is SetupError
    assert await outcome_of(lambda: runtime.submit("writer", "go", id=id)) is SetupError
    assert await runtime.rows() == []


@pytest.mark.slow
@per_store
@given(text=any_text)
@example(text="a\0b")
@example(text="a\ud800")
async def test_who_says_something_and_why_is_stored_whatever_characters_it_has(runtime: Runtime, text: str) -> None:
    store = runtime.store
    session = await runtime.start("writer")
    await session.prompt("go", by=text)
    await runtime.steer(session.id, "more", by=text)
    queued = await runtime.submit("writer", "go", by=text)
    await runtime.cancel(queued, reason=text, by=text)
    said = [*await store.read(session.id), *await store.read(queued)]
    stored = [word for event in said for word in (getattr(event, "by", ""), getattr(event, "reason", "")) if word]
    assert len(stored) == 5
    assert len(set(stored)) == 1
    assert stored[0].encode()
    if text.isprintable():
        assert stored[0] == text


async def test_who_says_something_is_a_short_text(runtime: Runtime) -> None:
    session = await runtime.start("writer")
    wrong: Any
    for wrong in (7, None, "x" * 501):
        for call in (
            lambda by=wrong: session.prompt("go", by=by),
            lambda by=wrong: runtime.submit("writer", "go", by=by),
            lambda by=wrong: runtime.steer(session.id, "go", by=by),
            lambda by=wrong: runtime.cancel(session.id, by=by),
        ):
            with pytest.raises(SetupError, match=r"^by="):
                await call()
    for wrong in (7, None, "x" * 1_000_001):
        with pytest.raises(SetupError, match=r"^reason="):
            await runtime.cancel(session.id, reason=wrong)
    assert await runtime.status(session.id) == "idle"


@pytest.mark.parametrize("limit", [1.5, True, "1", -1, 1 << 31, float("nan")])
async def test_a_limit_of_the_queue_is_a_number_of_sessions(runtime: Runtime, limit: Any) -> None:
    with pytest.raises(SetupError, match="queue_limit must be a whole number"):
        await runtime.submit("writer", "go", queue_limit=limit)
    assert await runtime.rows() == []


async def test_a_store_that_is_away_is_not_taken_for_an_unknown_id(factory: StoreFactory) -> None:
    store = await factory.open()
    await store.close()
    if store.durable:
        with pytest.raises(StoreUnavailable):
            await store.row("a\0b")
