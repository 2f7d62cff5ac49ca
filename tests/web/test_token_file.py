"""Secrets beside the log: kept from one process to the next, and one for all that start at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from upcall.errors import StoreUnavailable
from upcall.hosts.http.token_file import kept_token, mcp_key_path, token_path


def test_processes_that_start_at_the_same_time_use_one_token(tmp_path: Path) -> None:
    together = Barrier(8)

    def start(path: Path) -> str:
        together.wait()
        return kept_token(path)

    with ThreadPoolExecutor(8) as threads:
        for number in range(20):
            path = tmp_path / f"log{number}.db-token"
            found = set(threads.map(start, [path] * 8))
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
