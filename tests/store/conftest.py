"""The factories of all kinds of stores. Every promise is tested with each; a new kind is added to `FACTORIES`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from postgres import bouncer_path
from store.factories import (
    DelayedFactory,
    MemoryFactory,
    PooledFactory,
    PostgresFactory,
    SqliteFactory,
    StoreFactory,
)
from upcall.contracts import Store

HERE = Path(__file__).parent

FACTORIES: dict[str, Callable[[Path], StoreFactory]] = {
    "memory": lambda _: MemoryFactory(),
    "sqlite": SqliteFactory,
    "delayed": DelayedFactory,
    "postgres": PostgresFactory,
}
if bouncer_path() is not None:
    FACTORIES["pooled"] = PooledFactory

QUICK_POOLED = {"test_owning.py", "test_watching.py"}
"""The modules that `make check` runs through the pooler too: it shares connections and has no notifications."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most promises through the pooler to `make test`: the same statements keep them without it."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == HERE and item.path.name not in QUICK_POOLED:
            spec: Any = getattr(item, "callspec", None)
            if spec is not None and spec.params.get("factory") == "pooled":
                item.add_marker(pytest.mark.slow)


@pytest.fixture(params=FACTORIES)
async def factory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[StoreFactory]:
    """A place where stores of one kind live."""
    factory_of_kind = FACTORIES[str(request.param)](tmp_path)
    yield factory_of_kind
    await factory_of_kind.close()


@pytest.fixture
async def store(factory: StoreFactory) -> Store:
    """An open, empty store."""
    return await factory.open()


@pytest.fixture
async def other(factory: StoreFactory, store: Store) -> Store:
    """The same log as another process has it."""
    return await factory.open()
