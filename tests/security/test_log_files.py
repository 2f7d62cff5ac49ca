"""Neither what lies in the folder of log files nor what models write there stops the event loop."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from security.measuring import measured
from upcall import Agent, Context, Hooks, Response, Runtime, tool
from upcall.models import Script, call
from upcall.observe.log_files import LogFiles


def pipe(path: Path) -> None:
    os.mkfifo(path)


def pipe_with_a_reader(path: Path) -> None:
    os.mkfifo(path)
    os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # stays open until the process ends


def second_name(path: Path) -> None:
    target = path.parent.parent / "target"
    target.write_text("mine\n")
    os.link(target, path)


ODD = [pipe, pipe_with_a_reader, second_name, os.mkdir]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
async def test_a_turn_does_not_wait_for_an_odd_file_among_the_log_files(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").mkdir()
    make(tmp_path / "logs" / "helper.log")
    agent = Agent("helper", model=Script(["ok"]))
    with caplog.at_level(logging.WARNING, "upcall"):
        async with Runtime(agents=[agent], log_dir=tmp_path / "logs") as runtime:
            assert (await (await runtime.start(agent)).prompt("go")).text == "ok"

    assert [one.getMessage().partition(":")[0] for one in caplog.records] == [
        "the log file of helper can't be written"
    ]
    if make is second_name:
        assert (tmp_path / "target").read_text() == "mine\n"


@pytest.mark.timeout(20)
async def test_a_pipe_that_replaces_a_log_file_during_a_turn_does_not_stop_it(tmp_path: Path) -> None:
    @tool
    def plant() -> str:
        """Replace the file."""
        (tmp_path / "helper.log").unlink()
        os.mkfifo(tmp_path / "helper.log")
        return "planted"

    agent = Agent("helper", model=Script([call("plant"), "ok"]), tools=[plant])
    async with Runtime(agents=[agent], log_dir=tmp_path) as runtime:
        assert (await (await runtime.start(agent)).prompt("go")).text == "ok"


@pytest.mark.timeout(20)
def test_a_full_log_file_waits_neither_for_a_pipe_nor_for_the_lock(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, largest=100)
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for _ in range(5):
            files.write("a", ["x" * 50])
    assert not (tmp_path / "a.log.1").exists()  # the holder may be about to move it
    (tmp_path / ".lock").unlink()
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OSError, match="No such device"):
        files.write("a", ["x" * 50])
    files.close()
    assert (tmp_path / "a.log").read_text() == f"{'x' * 50}\n" * 5


@tool
def eat(x: str = "") -> str:
    """Eat."""
    return "eaten"


@tool
async def choose(ctx: Context) -> str:
    """Ask."""
    return str(await ctx.raise_callback("Which colour?", "blocker"))


def many_calls() -> list[Any]:
    return [call("eat", x="curl -u a:b " * 300) for _ in range(300)]


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True], ids=["shown at once", "held for a hook"])
async def test_many_calls_are_written_to_a_log_file_in_order_without_stalling_the_loop(
    tmp_path: Path, held: bool
) -> None:
    async def keep(session: Any, response: Response) -> None:
        await asyncio.sleep(0)

    hooks = Hooks(post_response=[keep]) if held else Hooks()
    agent = Agent("helper", model=Script([many_calls(), "done"]), tools=[eat], hooks=hooks)
    async with Runtime(agents=[agent], log_dir=tmp_path) as runtime:
        session = await runtime.start(agent)
        async with measured() as cost:
            await session.prompt("go")

    cost.check()
    marks = [line.split("  ")[2][:1] for line in (tmp_path / "helper.log").read_text().splitlines()]
    assert marks[:3] == ["›", "▸", "✓"]
    assert marks[3:303] == ["▸"] * 300
    assert marks[303:-3].count("✓") == 300
    assert marks[-3:] == ["▸", "✓", "✓"]


@pytest.mark.slow
async def test_a_long_history_is_read_for_a_log_file_without_stalling_the_loop(tmp_path: Path) -> None:
    policy: dict[str, Any] = {"can_use_host_interaction": True}
    plays = Script([many_calls(), call("choose"), "done"])
    agent = Agent("helper", model=plays, tools=[eat, choose], **policy)
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0) as runtime:
        assert (await (await runtime.start(agent, "s")).prompt("go")).status == "waiting"
        (waiting,) = await runtime.inbox()
        await runtime.answer(waiting.id, "red", by="ada")
    logs = tmp_path / "logs"
    async with measured() as cost, Runtime(tmp_path / "log.db", agents=[agent], log_dir=logs) as runtime:
        assert (await runtime.resume("s")).text == "done"

    cost.check()
    assert "✓ Choose" in (logs / "helper.log").read_text()
