"""How many transactions a step takes on SQLite, counted in the write-ahead log."""

from __future__ import annotations

from pathlib import Path

from upcall import Agent, Context, Runtime, tool
from upcall.models import Script, call

WAL_HEADER, FRAME_HEADER = 32, 24


def commits(path: Path) -> int:
    """The transactions in a write-ahead log: the last frame of each one holds the size of the database."""
    wal = path.with_name(f"{path.name}-wal").read_bytes()
    frame = FRAME_HEADER + int.from_bytes(wal[8:12], "big")
    return sum(any(wal[at + 4 : at + 8]) for at in range(WAL_HEADER, len(wal), frame))


async def test_a_question_and_the_parking_of_its_run_are_one_commit(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    before: list[int] = []
    taken: list[int] = []

    @tool
    async def ask_person(ctx: Context) -> str:
        """Ask a person."""
        before.append(commits(path))
        return await ctx.raise_callback("Which tone?", "blocker", kind="request_user_input")

    agent = Agent("developer", model=Script(lambda _: call("ask_person")), tools=[ask_person])
    async with Runtime(path, agents=[agent]) as runtime:
        for _ in range(5):  # a busy machine may take so long that the question is written before its run is parked
            reply = await (await runtime.start(agent)).prompt("go")
            assert reply.status == "waiting"
            taken.append(commits(path) - before[-1])

        assert len(await runtime.inbox()) == 5
    assert min(taken) == 1
