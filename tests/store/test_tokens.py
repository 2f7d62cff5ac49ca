"""Tokens of people and refused requests: kept by digest, stamped by the store's clock, and bounded."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from store.factories import StoreFactory, open_sqlite
from upcall import SetupError, StoreDamaged, TokenExists, UnknownToken
from upcall.contracts import Store
from upcall.store import memory_tokens
from upcall.store.memory import MemoryStore
from upcall.store.sqlite import people
from upcall.store.sqlite.store import SqliteStore
from upcall.tokens import (
    KEPT_REFUSALS,
    ROLES,
    RefusedRequest,
    Role,
    Token,
    allows,
    check_name,
    digest_of,
    is_token,
    new_token,
)


def made(name: str, role: Role = "viewer", token: str = "") -> Token:
    return Token(name, role, digest_of(token or f"the token of {name}"))


def refusal(target: str = "q1", by: str = "ada") -> RefusedRequest:
    return RefusedRequest(by, "answer", target, "the token was revoked", "192.0.2.7")


# --- the contract -----------------------------------------------------------------------


async def test_a_token_is_stamped_by_the_stores_clock_and_found_by_its_digest(
    store: Store, other: Store, factory: StoreFactory
) -> None:
    factory.clock.now = 1234.5
    added = await store.add_token(made("ada", "answerer").replace(created=1.0, revoked=2.0))
    assert added == made("ada", "answerer").replace(created=1234.5)
    assert await other.token(added.digest) == added
    assert await other.token(digest_of("another")) is None
    assert await other.tokens() == [added]


async def test_tokens_are_listed_in_the_order_in_which_they_were_made(store: Store) -> None:
    for name in ("zoe", "ada", "ben"):
        await store.add_token(made(name))
    await store.revoke_token("ada")
    assert [one.name for one in await store.tokens()] == ["zoe", "ada", "ben"]


async def test_a_name_belongs_to_one_valid_token(store: Store, other: Store) -> None:
    await store.add_token(made("ada"))
    with pytest.raises(TokenExists, match="a valid token called 'ada' already exists"):
        await other.add_token(made("ada", "operator", "another"))
    assert await store.tokens() == [await store.token(made("ada").digest)]


async def test_a_digest_is_kept_once(store: Store) -> None:
    await store.add_token(made("ada"))
    with pytest.raises(TokenExists):
        await store.add_token(made("ben", "operator", "the token of ada"))
    assert [one.name for one in await store.tokens()] == ["ada"]


async def test_a_revoked_token_keeps_its_row_and_its_name_can_be_given_again(
    store: Store, other: Store, factory: StoreFactory
) -> None:
    first = await store.add_token(made("ada"))
    factory.clock.now += 60
    revoked = await other.revoke_token("ada")
    assert revoked == first.replace(revoked=factory.clock.now)
    assert await store.token(first.digest) == revoked
    second = await store.add_token(made("ada", "operator", "another"))
    assert await other.tokens() == [revoked, second]


async def test_only_a_valid_token_can_be_revoked(store: Store) -> None:
    with pytest.raises(UnknownToken, match="there is no valid token called 'ada'"):
        await store.revoke_token("ada")
    await store.add_token(made("ada"))
    await store.revoke_token("ada")
    with pytest.raises(UnknownToken):
        await store.revoke_token("ada")


async def test_refused_requests_are_numbered_and_stamped_in_their_order(
    store: Store, other: Store, factory: StoreFactory
) -> None:
    for at, target in enumerate(("q1", "q2", "q3")):
        factory.clock.now = 100.0 + at
        await store.add_refusal(refusal(target).replace(number=77, time=1.0))
    found = await other.refusals()
    assert [(one.target, one.time) for one in found] == [("q1", 100.0), ("q2", 101.0), ("q3", 102.0)]
    assert all(before.number < after.number for before, after in pairwise(found))
    assert found[0] == refusal("q1").replace(number=found[0].number, time=100.0)


async def test_refused_requests_are_read_page_by_page(store: Store) -> None:
    for at in range(5):
        await store.add_refusal(refusal(f"q{at}"))
    first = await store.refusals(limit=2)
    rest = await store.refusals(first[-1].number, limit=10)
    assert [one.target for one in (*first, *rest)] == [f"q{at}" for at in range(5)]
    assert await store.refusals(rest[-1].number) == []


async def test_what_a_refused_request_says_is_kept_as_it_is(store: Store) -> None:
    odd = RefusedRequest("", "POST /api/x'; DROP TABLE refusals; --", "é\x01\u202e", 'no "token"', "::1")
    await store.add_refusal(odd)
    (kept,) = await store.refusals()
    assert kept.replace(number=0, time=0.0) == odd


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_only_the_newest_refused_requests_are_kept(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KEPT_REFUSALS == 100_000
    monkeypatch.setattr(people, "KEPT_REFUSALS", 3)
    monkeypatch.setattr(memory_tokens, "KEPT_REFUSALS", 3)
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "log.db")
    await store.open()
    for at in range(8):
        await store.add_refusal(refusal(f"q{at}"))
    kept = await store.refusals()
    assert [(one.target, one.number) for one in kept] == [("q5", 6), ("q6", 7), ("q7", 8)]
    await store.close()


# --- the file ---------------------------------------------------------------------------


async def test_adopting_a_log_revokes_the_tokens_that_its_maker_knows(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "log.db", lambda: 500.0) as store:
        await store.add_token(made("planted", "operator"))
        await store.adopt()
        (planted,) = await store.tokens()
    assert planted.revoked == 500.0


async def test_a_token_is_found_through_an_index_however_many_there_are(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "log.db") as store:
        await store.add_token(made("ada"))
    with closing(sqlite3.connect(tmp_path / "log.db")) as db:
        (plan,) = db.execute("EXPLAIN QUERY PLAN SELECT * FROM tokens WHERE digest = 'x'").fetchall()
    assert "SEARCH tokens USING INDEX" in plan[3]


async def test_a_row_that_somebody_else_wrote_is_refused_as_damaged(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "log.db") as store:
        await store.add_token(made("ada"))
        await store.add_refusal(refusal())
    with closing(sqlite3.connect(tmp_path / "log.db")) as db, db:
        db.execute("UPDATE tokens SET name = x'00'")
        db.execute("UPDATE refusals SET target = x'ff'")
    async with open_sqlite(tmp_path / "log.db") as store:
        with pytest.raises(StoreDamaged, match="`tokens`"):
            await store.tokens()
        with pytest.raises(StoreDamaged, match="`tokens`"):
            await store.token(made("ada").digest)
        with pytest.raises(StoreDamaged, match="`refusals`"):
            await store.refusals()


# --- tokens and names -------------------------------------------------------------------


def test_tokens_are_random_and_have_a_form_that_is_recognised() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(is_token(one) and len(one) == len("upcall_") + 43 for one in tokens)
    assert not any(is_token(one) for one in ("", "upcall_", "x" * 50, f"{next(iter(tokens))}\n"))


def test_each_role_allows_what_the_weaker_ones_allow() -> None:
    table = {role: [needed for needed in ROLES if allows(role, needed)] for role in ROLES}
    assert table == {
        "viewer": ["viewer"],
        "answerer": ["viewer", "answerer"],
        "operator": ["viewer", "answerer", "operator"],
    }
    assert not allows("owner", "viewer")


@pytest.mark.parametrize("name", ["ada", "a", "0", "ada.b@example.org", "ci+deploy_1-x", "a" * 64])
def test_a_plain_name_can_be_that_of_a_token(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "Ada", "ada ", "a b", "-ada", ".ada", "a" * 65, "ada\n", "ada\r\nX-Evil: 1", "a\0b", "a\x1b[31m",
        "'; DROP TABLE tokens; --", "аda", "ada\u200b", "\u202eada", "ada\ufe0f", "é", "e\u0301", "ａda", "٣", "ſ",
        "\ud800", "ada/../x", "ada:1", "user",
    ],
)  # fmt: skip
def test_a_name_that_could_be_taken_for_another_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(SetupError, match=r"a-z, 0-9|stands for any person"):
        check_name(name)
