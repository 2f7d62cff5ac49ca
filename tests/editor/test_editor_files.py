"""Text files go through the editor where it offers that; everything else is local."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.command import upcall
from editor.clients import EVERYTHING, PythonSdk, connected
from editor.raw import COMMAND

pytestmark = pytest.mark.slow


async def test_an_agent_sees_and_edits_what_is_not_saved_yet(folder: Path):
    (folder / "a.txt").write_text("on disk")
    async with connected(PythonSdk, folder, *COMMAND, capabilities=EVERYTHING) as client:
        session = await client.new()
        turn = client.prompt(session, "read a.txt")
        ask = await client.asked()
        assert (ask.method, ask.params["path"]) == ("fs/read_text_file", str(folder / "a.txt"))
        await ask.answer({"content": "in the buffer"})
        await turn
        assert "in the buffer" in client.text()
        turn = client.prompt(session, "edit a.txt buffer editor")
        for _ in range(2):  # before the change, and once more just before it is written
            await (await client.asked()).answer({"content": "in the buffer"})
        write = await client.asked()
        assert (write.method, write.params["content"]) == ("fs/write_text_file", "in the editor")
        await write.answer({})
        await turn
        assert (folder / "a.txt").read_text() == "in the editor"


async def test_a_picture_and_a_file_of_the_log_are_not_asked_of_the_editor(folder: Path):
    (folder / "a.bin").write_bytes(b"\0\1\2")
    async with connected(PythonSdk, folder, *COMMAND, capabilities=EVERYTHING) as client:
        session = await client.new()
        assert await client.prompt(session, "read a.bin") == "end_turn"
        assert await client.prompt(session, "read .upcall/log.db") == "end_turn"
        assert client.asks.empty()
        assert "is not text" in client.text()


async def test_a_session_of_an_editor_is_resumed_by_the_command_in_the_same_folder(folder: Path, tmp_path: Path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("in the project")
    async with connected(PythonSdk, folder, *COMMAND, capabilities={}) as client:
        made = await client.request("session/new", cwd=str(project), mcpServers=[])
        assert await client.prompt(made["sessionId"], "question why") == "end_turn"
    done = upcall("run", "crew:clerk", "read a.txt", "--id", made["sessionId"], cwd=folder)
    assert done.returncode == 3
    waiting = upcall("inbox", cwd=folder).stdout.split()
    callback = next(word for word in waiting if word.startswith("q") and len(word) > 10)
    assert upcall("answer", callback, "because", cwd=folder).returncode == 0
    assert "why -> because" in upcall("resume", made["sessionId"], cwd=folder).stdout
    assert (
        "in the project" in upcall("run", "crew:clerk", "read a.txt", "--id", made["sessionId"], cwd=folder).stdout
    )
