"""Whose files a store takes: its own user's, and nobody else's."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from upcall import Agent, Runtime, StoreUnavailable
from upcall.errors import NotAStore
from upcall.models import Script

AGENT = Agent("a", model=Script(lambda _: "said"))


async def prompted(path: Path, trust_store: bool | None = None) -> str:
    """One turn over the log at a path."""
    async with Runtime(path, agents=[AGENT], trust_store=trust_store) as runtime:
        return (await (await runtime.start(AGENT)).prompt("go")).text


@pytest.fixture
async def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.db"
    await prompted(path)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Somebody's folder, with files that must stay."""
    folder = tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    for name in ("thesis.txt", "0" * 12, "socket"):
        (folder / name).write_text("precious")
    return folder


def content(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}


async def test_a_wake_folder_that_is_a_link_is_refused_and_nothing_behind_it_is_removed(
    log: Path, elsewhere: Path
) -> None:
    before = content(elsewhere)
    Path(f"{log}-wake").symlink_to(elsewhere)

    with pytest.raises(StoreUnavailable, match=r"log\.db-wake is a symbolic link; remove it: rm "):
        await prompted(log)
    assert content(elsewhere) == before


async def test_a_wake_folder_that_becomes_a_link_while_a_store_is_open_is_not_followed(
    tmp_path: Path, elsewhere: Path
) -> None:
    before, path = content(elsewhere), tmp_path / "log.db"
    async with Runtime(path, agents=[AGENT]) as runtime:
        session = await runtime.start(AGENT)
        wake = Path(f"{path}-wake")
        if wake.is_dir():
            for file in wake.iterdir():
                file.unlink()
            wake.rmdir()
        wake.symlink_to(elsewhere)
        for _ in range(3):
            await session.prompt("go")
    assert content(elsewhere) == before
    assert wake.is_symlink()


async def test_only_dead_sockets_are_removed_from_a_wake_folder(log: Path) -> None:
    wake = Path(f"{log}-wake")
    wake.mkdir(mode=0o700)
    (wake / "notes.txt").write_text("precious")
    (wake / "link").symlink_to(wake / "notes.txt")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(wake / "dead"))
    await prompted(log)

    assert sorted(file.name for file in wake.iterdir()) == ["link", "notes.txt"]
    assert content(wake)["notes.txt"] == "precious"


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
async def test_a_log_that_others_can_write_is_refused_with_the_command_that_mends_it(
    log: Path, suffix: str
) -> None:
    file = Path(f"{log}{suffix}")
    file.touch()
    file.chmod(0o666)

    with pytest.raises(StoreUnavailable, match=rf"other users can write to .*log\.db{suffix}; .*chmod 600"):
        await prompted(log)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o660, 0o777])
async def test_every_mode_that_lets_others_write_is_refused(log: Path, mode: int) -> None:
    log.chmod(mode)
    with pytest.raises(StoreUnavailable, match="other users can write"):
        await prompted(log)


async def test_a_wake_folder_that_others_can_write_is_refused(log: Path) -> None:
    wake = Path(f"{log}-wake")
    wake.mkdir()
    wake.chmod(0o777)
    with pytest.raises(StoreUnavailable, match=r"other users can write to .*-wake; .*chmod 700"):
        await prompted(log)


async def test_a_log_that_others_can_only_read_is_closed_to_them_and_one_line_says_so(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.chmod(0o644)
    assert await prompted(log) == "said"
    assert log.stat().st_mode & 0o777 == 0o600
    assert [r.getMessage() for r in caplog.records if "read by other users" in r.getMessage()] == [
        f"{log} could be read by other users; it now has mode 600"
    ]


TRY_LOCKS = """
import fcntl, sys
for suffix, first, count in (("", 0x40000000 + 2, 510), ("-shm", 128, 1)):
    with open(sys.argv[1] + suffix, "rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
        except OSError:
            print("locked" + suffix)
"""


def locked(log: Path) -> list[str]:
    """The files of the log that SQLite has locked, as another process sees it."""
    tried = subprocess.run([sys.executable, "-c", TRY_LOCKS, log], capture_output=True, text=True, check=True)
    return tried.stdout.split()


async def test_closing_a_log_to_others_keeps_the_locks_of_a_runtime_that_has_it_open(log: Path) -> None:
    async with Runtime(log, agents=[AGENT]) as runtime:
        session = await runtime.start(AGENT)
        await session.prompt("go")
        assert locked(log) == ["locked", "locked-shm"]
        for suffix in ("", "-wal", "-shm"):
            Path(f"{log}{suffix}").chmod(0o644)
        assert await prompted(log) == "said"
        assert log.stat().st_mode & 0o777 == 0o600
        assert locked(log) == ["locked", "locked-shm"]
        assert (await session.prompt("again")).text == "said"


@pytest.mark.parametrize("kind", ["a text", "another program's database"])
async def test_the_mode_of_a_file_that_is_not_a_log_is_not_changed(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "other.db"
    if kind == "a text":
        file.write_text("notes for everybody\n" * 50)
    else:
        with contextlib.closing(sqlite3.connect(file)) as db:
            db.execute("CREATE TABLE t (x)")
    file.chmod(0o644)
    with pytest.raises(NotAStore, match="it was not changed"):
        await prompted(file)
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
async def test_a_link_beside_the_log_is_refused_and_not_written_through(
    log: Path, elsewhere: Path, suffix: str
) -> None:
    Path(f"{log}{suffix}").unlink(missing_ok=True)
    Path(f"{log}{suffix}").symlink_to(elsewhere / "thesis.txt")

    with pytest.raises(StoreUnavailable, match="is a symbolic link"):
        await prompted(log)
    assert content(elsewhere)["thesis.txt"] == "precious"


async def test_a_log_of_another_user_is_refused(log: Path) -> None:
    if os.geteuid() == 0:
        os.chown(log, 65534, 65534)
    else:
        log = Path("/etc/hostname")
    with pytest.raises(StoreUnavailable, match="belongs to another user"):
        await prompted(log)


async def test_a_path_that_the_user_names_may_be_a_link(log: Path, tmp_path: Path) -> None:
    (tmp_path / "named.db").symlink_to(log)
    assert await prompted(tmp_path / "named.db") == "said"
    assert not (tmp_path / "named.db-wal").exists()


async def test_the_folder_around_a_log_may_be_writable_by_a_group(log: Path) -> None:
    log.parent.chmod(0o775)
    assert await prompted(log) == "said"


async def test_a_store_that_is_trusted_is_taken_as_it_is(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.chmod(0o666)
    assert await prompted(log, trust_store=True) == "said"
    monkeypatch.setenv("UPCALL_TRUST_STORE", "1")
    assert await prompted(log) == "said"
