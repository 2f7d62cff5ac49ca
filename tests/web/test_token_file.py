"""Secrets beside the log: kept from one process to the next, and one for all that start at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from cli.command import start
from upcall.errors import StoreUnavailable
from upcall.hosts.http.token_file import kept_token, mcp_key_path, token_path


def test_processes_that_start_at_the_same_time_use_one_token(tmp_path: Path) -> None:
    together = Barrier(8)

    def begin(path: Path) -> str:
        together.wait()
        return kept_token(path)

    with ThreadPoolExecutor(8) as threads:
        for number in range(20):
            path = tmp_path / f"log{number}.db-token"
            found = set(threads.map(begin, [path] * 8))
            assert found == {kept_token(path)}
    assert [file.name for file in tmp_path.iterdir() if not file.name.endswith("-token")] == []


def test_a_token_is_kept_until_a_new_one_is_wanted_or_others_could_read_it(tmp_path: Path) -> None:
    path = token_path(str(tmp_path / "log.db"))
    first = kept_token(path)
    assert kept_token(path) == first
    second = kept_token(path, new=True)
    path.chmod(0o644)
    third = kept_token(path)
    assert len({first, second, third}) == 3
    assert path.stat().st_mode & 0o777 == 0o600
    assert mcp_key_path(str(tmp_path / "log.db")) != path


def test_a_link_in_place_of_a_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("x")
    path = token_path(str(tmp_path / "log.db"))
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable):
        kept_token(path)


@pytest.mark.slow
@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("mcp", "--http", "--port", "0")])
def test_a_token_that_was_there_before_the_log_is_not_accepted(tmp_path: Path, command: tuple[str, ...]) -> None:
    home = tmp_path / ".upcall"
    home.mkdir(mode=0o700)
    planted = "A" * 43
    names = ("log.db-token", "log.db-mcp-key") if command[0] == "mcp" else ("log.db-token",)
    for name in names:
        (home / name).write_text(f"{planted}\n")
        (home / name).chmod(0o600)
    first = _printed_at_start(tmp_path, command)
    kept = [(home / name).read_text().strip() for name in names]
    second = _printed_at_start(tmp_path, command)  # now there is a log, and the token is our own
    assert planted not in kept
    assert kept[0] in first
    assert kept[0] in second
    assert [(home / name).read_text().strip() for name in names] == kept


def _printed_at_start(folder: Path, command: tuple[str, ...]) -> str:
    """What a server prints when it has started."""
    process = start(*command, cwd=folder)
    try:
        assert process.stdout is not None
        return "".join(process.stdout.readline() for _ in range(2 if command[0] == "mcp" else 1))
    finally:
        process.terminate()
        process.communicate(timeout=60)
