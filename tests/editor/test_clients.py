"""Real clients do what people do in editors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from editor.clients import CLIENTS, Client, connected

COMMAND = ("upcall", "acp", "crew:clerk")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(Path(__file__).with_name("crew.py"), tmp_path / "crew.py")
    return tmp_path


@pytest.fixture(params=CLIENTS, ids=[one.name for one in CLIENTS])
def kind(request: pytest.FixtureRequest) -> type[Client]:
    return request.param


async def test_a_client_runs_tools_and_reads_the_reply(kind: type[Client], folder: Path):
    async with connected(kind, folder, *COMMAND) as client:
        session = await client.new()
        assert await client.prompt(session, "add") == "end_turn"
        calls = client.calls()
        assert [(one["title"], one["name"], one["status"]) for one in calls.values()] == [
            ("Add a=1 b=2", "add", "completed"),
            ("Add a=3 b=4", "add", "completed"),
        ]
        assert client.text() == "I'll add.The tools said: 3 / 7"
