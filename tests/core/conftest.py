"""Where a test's sessions are kept: in memory and in a file, each test in both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.doubles import Place


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind: Any = request.param
    return Place(tmp_path / "log.db" if kind == "file" else None)
