"""Where a test's log is kept: in memory, which is quick; what goes on in another process also in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from callbacks.doubles import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    return Desk(tmp_path / "log.db" if request.param == "file" else None)
