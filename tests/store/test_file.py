"""SQLite's file: who may read it, and what happens to one that can't be used."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

from store.disks import disk
from store.factories import open_sqlite, put, start_and_claim, start_session, turn, wait_until
from upcall import Agent, Runtime
from upcall.errors import NotAStore, StoreDamaged, StoreTooNew, StoreUnavailable
from upcall.models import Script
from upcall.store.sqlite.store import SqliteStore
from upcall.store.sqlite.tables import VERSION

Door = Callable[[Path], Awaitable[None]]


async def open_the_store(path: Path) -> None:
    async with open_sqlite(path, busy=0.1):
        pass


async def open_a_runtime(path: Path) -> None:
    agent = Agent("writer", model=Script(lambda _: "hi"))
    async with Runtime(SqliteStore(path, busy=0.1), agents=[agent]) as runtime:
        await runtime.start("writer")


@pytest.fixture(params=[open_the_store, open_a_runtime], ids=["store", "runtime"])
def door(request: pytest.FixtureRequest) -> Door:
    """The ways in: the store itself, and as a user opens it."""
    return request.param


async def a_store(path: Path, sessions: int = 40) -> None:
    """A store of some pages with sessions `s0`, `s1`, …, closed again."""
    async with open_sqlite(path) as store:
        for number in range(sessions):
            claim = await start_and_claim(store, f"s{number}")
            await put(store, f"s{number}", turn(text="x" * 1000), claim=claim, release=True)


def everything(folder: Path) -> dict[str, bytes]:
    """All files; SQLite's shared memory holds locks and no data."""
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file() and not f.name.endswith("-shm")}


def rewrite(path: Path, *statements: str) -> None:
    db = apsw.Connection(str(path))
    for statement in statements:
        db.execute(statement)
    db.close()


# --- what is ours -----------------------------------------------------------------------


async def test_nobody_else_may_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with open_sqlite(tmp_path / "log.db") as store:
            await start_and_claim(store)
            modes = {f.name: f.stat().st_mode & 0o777 for f in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert {"log.db", "log.db-wal", "log.db-shm"} <= set(modes)
    assert set(modes.values()) <= {0o600, 0o700}


async def test_an_empty_file_becomes_a_store_that_nobody_else_may_read(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch(0o644)
    async with open_sqlite(path) as store:
        await start_session(store)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_the_file_says_whose_it_is_and_in_which_format(tmp_path: Path) -> None:
    await open_the_store(tmp_path / "log.db")
    head = (tmp_path / "log.db").read_bytes()[:100]
    assert head[68:72] == b"upCa"
    assert int.from_bytes(head[60:64]) == VERSION


async def test_a_store_is_opened_again_with_all_that_is_in_it(tmp_path: Path, door: Door) -> None:
    await a_store(tmp_path / "log.db", 3)
    await door(tmp_path / "log.db")
    async with open_sqlite(tmp_path / "log.db") as store:
        assert {"s0", "s1", "s2"} <= {r.id for r in await store.rows()}


def processes(path: Path) -> list[str]:
    """Who is listed in the file as one that lives."""
    db = apsw.Connection(str(path))
    try:
        return [str(name) for (name,) in db.execute("SELECT name FROM processes ORDER BY name")]
    finally:
        db.close()


async def test_a_program_that_opens_a_store_again_and_again_is_listed_once(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    for number in range(3):
        async with open_sqlite(path) as store:
            await store.release(await start_and_claim(store, f"s{number}"))
    assert len(processes(path)) == 1


async def test_stores_that_are_open_at_once_are_listed_each_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_sqlite(path) as one, open_sqlite(path) as other:
        await start_and_claim(one, "a")
        await start_and_claim(other, "b")
        assert len(processes(path)) == 2


@pytest.mark.slow
async def test_who_has_ended_long_ago_is_taken_off_the_list(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await a_store(path, 1)
    rewrite(path, "INSERT INTO processes VALUES ('x', 'long gone', 'm', 1, '', 1.0)")
    async with open_sqlite(path) as store:
        await store.claim("s0")
        await wait_until(lambda: "long gone" not in processes(path))
        assert len(processes(path)) == 1


async def test_a_path_with_signs_that_mean_something_elsewhere_works(tmp_path: Path, door: Door) -> None:
    path = tmp_path / "a?b#c%20 d&mode=ro.db"
    await door(path)
    await door(path)
    assert [f.name for f in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
async def test_processes_that_make_the_same_store_at_once_all_get_it(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    program = (
        "import asyncio, sys\n"
        "from upcall.events import SessionStarted\n"
        "from upcall.store.sqlite.store import SqliteStore\n"
        "async def main():\n"
        "    store = SqliteStore(sys.argv[1])\n"
        "    sys.stdin.readline()\n"
        "    await store.open()\n"
        "    done = store.append(sys.argv[2], [SessionStarted('a')], None)\n"
        "    if done is not None: await done\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    pipe = asyncio.subprocess.PIPE
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(path), f"s{n}", stdin=pipe, stderr=pipe
        )
        for n in range(5)
    ]
    outcomes = await asyncio.gather(*[process.communicate(b"go\n") for process in started])
    assert [err.decode() for _, err in outcomes] == [""] * 5
    async with open_sqlite(path) as store:
        assert {r.id for r in await store.rows()} == {f"s{n}" for n in range(5)}


# --- what is not ------------------------------------------------------------------------


def a_text_file(path: Path) -> None:
    path.write_text("Dear diary, " * 100)


def a_short_text_file(path: Path) -> None:
    path.write_text("hi")


def a_cut_off_head(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"\0" * 20)


def somebodys_tables(path: Path) -> None:
    rewrite(path, "CREATE TABLE mail (id, body)", "INSERT INTO mail VALUES (1, 'hello')")


def somebodys_tables_in_a_log(path: Path) -> None:
    rewrite(path, "PRAGMA journal_mode = wal", "CREATE TABLE mail (id, body)")


def somebodys_mark(path: Path) -> None:
    rewrite(path, "PRAGMA application_id = 1234")


def somebodys_version(path: Path) -> None:
    rewrite(path, "PRAGMA user_version = 1")


def _crashed(path: Path, *before: str) -> None:
    """A database that a program left without closing it: part of it is only in its log."""
    work = path.with_name("work")
    work.mkdir()
    db = apsw.Connection(str(work / "x.db"))
    for statement in (*before, "PRAGMA journal_mode = wal", "CREATE TABLE mail (id, body)"):
        db.execute(statement)
    shutil.copy(work / "x.db", path)
    shutil.copy(work / "x.db-wal", f"{path}-wal")
    db.close()
    shutil.rmtree(work)


def somebodys_crashed_database(path: Path) -> None:
    _crashed(path, "CREATE TABLE letters (id)")


def somebodys_crashed_new_database(path: Path) -> None:
    _crashed(path)


@pytest.mark.parametrize(
    "make",
    [
        a_text_file, a_short_text_file, a_cut_off_head, somebodys_tables, somebodys_tables_in_a_log, somebodys_mark,
        somebodys_version, somebodys_crashed_database, somebodys_crashed_new_database,
    ],
)  # fmt: skip
async def test_what_is_not_ours_is_refused_and_not_changed(
    tmp_path: Path, make: Callable[[Path], None], door: Door
) -> None:
    path = tmp_path / "log.db"
    make(path)
    before = everything(tmp_path)
    with pytest.raises(NotAStore, match="it was not changed") as caught:
        await door(path)
    assert str(path) in str(caught.value)
    assert everything(tmp_path) == before


async def test_a_database_that_another_program_has_open_is_refused_and_not_changed(
    tmp_path: Path, door: Door
) -> None:
    path = tmp_path / "log.db"
    db = apsw.Connection(str(path))
    sql = "PRAGMA journal_mode = wal; CREATE TABLE mail (id); BEGIN EXCLUSIVE; INSERT INTO mail VALUES (1)"
    db.execute(sql).fetchall()
    before = everything(tmp_path)
    with pytest.raises(NotAStore):
        await door(path)
    assert everything(tmp_path) == before
    db.close()


async def test_a_store_of_a_newer_version_is_refused_and_not_changed(tmp_path: Path, door: Door) -> None:
    path = tmp_path / "log.db"
    await a_store(path)
    rewrite(path, f"PRAGMA user_version = {VERSION + 1}")
    before = everything(tmp_path)
    with pytest.raises(StoreTooNew, match=f"format {VERSION + 1}"):
        await door(path)
    assert everything(tmp_path) == before


async def test_a_folder_is_refused_by_a_clear_error(tmp_path: Path, door: Door) -> None:
    with pytest.raises(StoreUnavailable, match="not a file"):
        await door(tmp_path)


async def test_a_missing_folder_is_refused_by_a_clear_error(tmp_path: Path, door: Door) -> None:
    with pytest.raises(StoreUnavailable, match="No such file or directory"):
        await door(tmp_path / "missing" / "log.db")
    assert list(tmp_path.iterdir()) == []


# --- what is damaged --------------------------------------------------------------------


async def test_a_file_that_was_cut_off_is_refused_and_not_changed(tmp_path: Path, door: Door) -> None:
    path = tmp_path / "log.db"
    await a_store(path)
    os.truncate(path, path.stat().st_size // 2)
    before = everything(tmp_path)
    with pytest.raises(StoreDamaged, match="truncated"):
        await door(path)
    assert everything(tmp_path) == before


async def test_a_process_killed_while_it_moved_its_log_into_the_file_leaves_a_whole_store(tmp_path: Path) -> None:
    path, left = tmp_path / "log.db", tmp_path / "left.db"
    async with open_sqlite(path) as store:
        claim = await start_and_claim(store)
        await put(store, "s", *[turn(n, "x" * 1000) for n in range(1, 40)], claim=claim)
        shutil.copy(path, left)
        shutil.copy(f"{path}-wal", f"{left}-wal")
    with path.open("rb") as whole, left.open("r+b") as half:
        half.write(whole.read(4096))  # the first page, which says how long the file is, came first
    async with open_sqlite(left) as store:
        assert len(await store.read("s")) == 40


async def test_a_damaged_page_is_a_clear_error_where_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await a_store(path)
    with path.open("r+b") as file:
        file.seek(4096 * 12)
        file.write(os.urandom(4096 * 20))
    async with open_sqlite(path) as store:
        with pytest.raises(StoreDamaged, match="backup"):
            await asyncio.gather(*[store.read(f"s{number}") for number in range(40)])


async def test_an_event_that_can_not_be_read_is_named_and_other_sessions_work(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await a_store(path, 2)
    rewrite(path, "UPDATE events SET body = x'7b22747970' WHERE pos = 2")
    agent = Agent("writer", model=Script(lambda _: "hi"))
    async with Runtime(path, agents=[agent]) as runtime:
        with pytest.raises(StoreDamaged, match="event 2 of session 's0'"):
            await runtime.load("s0")
        assert (await runtime.resume("s1")).text == "hi"


async def test_an_event_of_a_type_nobody_knows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await a_store(path, 1)
    rewrite(path, """UPDATE events SET body = CAST('{"type":"from_the_future"}' AS BLOB) WHERE pos = 2""")
    async with open_sqlite(path) as store:
        with pytest.raises(StoreDamaged, match=r"event 2 of session 's0' .* upgrade"):
            await store.read("s0")


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
async def test_nothing_is_called_stored_once_the_file_was_taken_away(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "log.db"
    await a_store(tmp_path / "other.db", 1)
    agent = Agent("writer", model=Script(lambda _: "hi"))
    async with Runtime(path, agents=[agent]) as runtime:
        session = await runtime.start("writer", "s")
        assert (await session.prompt("before")).text == "hi"
        for file in tmp_path.glob("log.db*"):
            file.unlink()
        if replaced:
            shutil.copy(tmp_path / "other.db", path)
        with pytest.raises(StoreUnavailable, match="was removed or replaced while this program had it open"):
            await session.prompt("after")
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await runtime.start("writer", "t")
    assert path.exists() == replaced


# --- what is not ready ------------------------------------------------------------------


async def test_a_store_that_another_program_keeps_locked_is_a_clear_error_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await a_store(path, 1)
    async with open_sqlite(path, busy=0.1) as store:
        db = apsw.Connection(str(path))
        db.execute("BEGIN IMMEDIATE")
        claim = asyncio.ensure_future(store.claim("s0"))
        with pytest.raises(StoreUnavailable, match="locked"):
            await claim
        db.execute("ROLLBACK")
        db.close()
        await put(store, "s0", turn(2), claim=await store.claim("s0"))


async def test_a_locked_store_is_waited_for_without_stopping_the_program(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_sqlite(path) as store:
        claim = await start_and_claim(store)
        await put(store, "s", turn(1), claim=claim)
        db = apsw.Connection(str(path))
        db.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(put(store, "s", turn(2), claim=claim))
        await asyncio.sleep(0.02)
        assert not writing.done()
        assert len(await store.read("s")) == 2
        db.execute("ROLLBACK")
        await writing
        db.close()


async def test_a_store_locked_for_good_can_not_be_opened(tmp_path: Path, door: Door) -> None:
    path = tmp_path / "log.db"
    await a_store(path, 1)
    db = apsw.Connection(str(path))
    db.execute("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; UPDATE counters SET value = value").fetchall()
    with pytest.raises(StoreUnavailable, match="locked"):
        await door(path)
    db.close()
    await door(path)


async def test_a_store_whose_marks_are_still_in_its_log_is_waited_for_as_any_other(tmp_path: Path) -> None:
    path, left = tmp_path / "log.db", tmp_path / "left.db"
    async with open_sqlite(path) as store:
        await start_session(store)
        shutil.copy(path, left)
        shutil.copy(f"{path}-wal", f"{left}-wal")
    db = apsw.Connection(str(left))
    db.execute("PRAGMA locking_mode = EXCLUSIVE; UPDATE counters SET value = value").fetchall()
    lets_go = threading.Timer(0.2, db.close)
    lets_go.start()
    async with open_sqlite(left) as store:
        assert len(await store.rows()) == 1
    lets_go.join()


async def test_a_read_only_disk_is_a_clear_error_and_harms_nothing(tmp_path: Path, door: Door) -> None:
    with disk(tmp_path / "disk", 4096) as small:
        path = small.folder / "log.db"
        await a_store(path, 2)
        small.make_read_only()
        before = everything(small.folder)
        with pytest.raises(StoreUnavailable, match="read-only"):
            await door(path)
        with pytest.raises(StoreUnavailable, match="can't be created"):
            await door(small.folder / "new.db")
        assert everything(small.folder) == before


async def test_a_store_that_is_not_open_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "log.db")
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.rows()


SHARED = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # SQLite's lock of who reads
"""


async def test_a_store_keeps_its_lock_on_the_file_when_this_process_opens_another_one(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def is_locked() -> bool:
        probe = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SHARED, str(path), stderr=asyncio.subprocess.DEVNULL
        )
        return await probe.wait() != 0

    async with open_sqlite(path) as first:
        await start_session(first)
        assert await is_locked()
        async with open_sqlite(path) as second:
            assert len(await second.rows()) == 1
            assert await is_locked()
        assert await is_locked()
    assert not await is_locked()
