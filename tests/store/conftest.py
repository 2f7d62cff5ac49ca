"""The houses that every promise of a store is tested in. A new kind of store joins `HOUSES`, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from store.houses import DelayedHouse, House, MemoryHouse, SqliteHouse
from upcall.contracts import Store

HOUSES: dict[str, Callable[[Path], House]] = {
    "memory": lambda _: MemoryHouse(),
    "sqlite": SqliteHouse,
    "delayed": DelayedHouse,
}


@pytest.fixture(params=HOUSES)
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[House]:
    """A place where stores of one kind live."""
    made = HOUSES[str(request.param)](tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def store(house: House) -> Store:
    """An open, empty store."""
    return await house.open()


@pytest.fixture
async def other(house: House, store: Store) -> Store:
    """The same log as another process has it."""
    return await house.open()
