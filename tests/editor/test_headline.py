"""The whole way, in an editor: an MCP tool asks, the manager passes it up, the agent is killed, a form answers."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from editor.clients import TypeScript, connected, until

pytestmark = pytest.mark.slow

KEPT = ("--key", "0123456789abcdef0123456789abcdef")
COMMAND = ("upcall", "acp", "desk:manager")


@pytest.mark.parametrize("args", [KEPT, ()], ids=["keeps its key", "forgets its key"])
async def test_a_servers_question_is_answered_in_a_form_after_the_agent_was_killed(
    folder: Path, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    orders = folder / "orders"
    (folder / "desk.py").write_text(
        "from pathlib import Path\nfrom mcp_client import errand\n"
        f"manager = errand.manager(Path({str(orders)!r}), *{args!r})\n"
    )
    async with connected(TypeScript, folder, *COMMAND) as client:
        session = await client.new()
        turn = client.prompt(session, "Have a lamp ordered.")
        ask = await client.asked(60)
        assert "Which colour for lamp?" in ask.params["message"]
        assert "manager passed it up" in ask.params["message"]
        client.kill()
        with contextlib.suppress(Exception):
            await turn
    async with connected(TypeScript, folder, *COMMAND) as client:
        await client.load(session)
        ask = await client.asked(60)
        assert "colour" in ask.params["requestedSchema"]["properties"]
        await ask.accept(colour="green")
        await until(lambda: "the shop says: ordered lamp in green" in client.text(), 60)
    assert orders.read_text().splitlines().count("ordered lamp in green") == 1
