"""A folder with the agents that an editor talks to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the module `crew`."""
    shutil.copy(Path(__file__).with_name("crew.py"), tmp_path / "crew.py")
    return tmp_path
