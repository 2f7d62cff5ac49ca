"""The whole way: an MCP tool asks, the manager's model passes it up, the process dies, somebody answers later."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from mcp_client.errand import SESSION
from upcall import Runtime
from upcall.callbacks import Callback

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent
KEPT = ("--key", "0123456789abcdef0123456789abcdef")


async def errand(store: Path, effects: Path, what: str, *args: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mcp_client.errand", str(store), str(effects), what, *args, cwd=TESTS,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(TESTS)},
    )  # fmt: skip


async def question(store: Path) -> Callback:
    """The question, once it waits for the person."""
    async with Runtime(str(store)) as runtime:
        for _ in range(600):
            if found := await runtime.inbox():
                return found[0]
            await asyncio.sleep(0.1)
    raise AssertionError("nobody asked")


@pytest.mark.parametrize(("args", "asked"), [(KEPT, 2), ((), 3)], ids=["keeps its key", "forgets its key"])
async def test_a_servers_question_survives_the_death_of_every_process_and_its_order_is_placed_once(
    tmp_path: Path, args: tuple[str, ...], asked: int
) -> None:
    store, effects = tmp_path / "log.db", tmp_path / "orders"
    first = await errand(store, effects, "start", *args)

    waiting = await question(store)
    assert first.returncode is None
    first.send_signal(signal.SIGKILL)
    await first.wait()
    async with Runtime(str(store)) as runtime:
        await runtime.answer(waiting.id, {"colour": "green"}, by="customer")
    second = await errand(store, effects, "resume", *args)
    out, _ = await second.communicate()

    assert out.decode().strip() == "done the shop says: ordered lamp in green"
    lines = effects.read_text().splitlines()
    assert lines.count("ordered lamp in green") == 1
    assert lines.count("asked lamp") == asked  # its code asks again whenever it is entered; nobody else does
    assert [step.step for step in waiting.path if step.agent == "manager"] == ["asked", "passed"]
    assert "Which colour for lamp?" in waiting.message
    assert "'shop'" in waiting.message
    async with Runtime(str(store)) as runtime:
        assert await runtime.inbox() == []
        every = await runtime.store.callbacks(root=SESSION)
        assert [one.status for one in every] == ["answered"]
