"""A large run tree through HTTP: its beginning first, then all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from page.large_team import SESSION, Writer
from upcall import Runtime
from web.serving import get, serving


@pytest.mark.slow
async def test_a_large_tree_is_answered_with_its_beginning_while_the_rest_is_read(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "log.db") as runtime:
        await runtime.rows(limit=0)  # opens the store
        await Writer(runtime).write(8_000, 0)
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        path = f"/api/sessions/{SESSION}/nodes"
        first = await get(client, f"{path}?first=1")
        whole = await get(client, path)
        again = await get(client, f"{path}?first=1")
    assert (first["whole"], whole["whole"], again["whole"]) == (False, True, True)
    assert 3_000 <= first["pos"] < whole["pos"] == 8_000
    ids = [node["id"] for node in whole["nodes"]]
    assert [node["id"] for node in first["nodes"]] == ids[: len(first["nodes"])]
    assert again == whole
