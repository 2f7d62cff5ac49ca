"""Every kind of workspace: what is promised of files holds on each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.doubles import Place
from upcall.contracts import Files, Workspace
from upcall.workspace import Folder, InLog, Mounts
from workspace.doubles import files_of


def _folder(path: Path) -> Workspace:
    path.mkdir()
    return Folder(path)


KINDS: dict[str, Callable[[Path], Workspace]] = {
    "folder": lambda path: _folder(path / "work"),
    "in log": lambda path: InLog(),
    "mounts": lambda path: Mounts(_folder(path / "work"), {"/memories/": InLog()}),
    "mounts in log": lambda path: Mounts(InLog(), {"/memories/": _folder(path / "notes")}),
}


@pytest.fixture(params=list(KINDS))
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    kind: Any = request.param
    return files_of(KINDS[kind](tmp_path))


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind: Any = request.param
    return Place(tmp_path / "log.db" if kind == "file" else None)
