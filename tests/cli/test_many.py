"""Lists of many: what is counted, and how often the log is read for it."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from upcall import Agent, Context, Runtime, tool
from upcall.callbacks import Callback
from upcall.cli.inbox import print_inbox
from upcall.cli.output import damage_reported
from upcall.cli.sessions import print_sessions
from upcall.models import Script, call
from upcall.observe.redact import Redactor
from upcall.observe.session_json import SessionJson
from upcall.store.sqlite.store import SqliteStore


class Counted(SqliteStore):
    """A log that counts how often its callbacks are listed."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.listed: Counter[str | None] = Counter()

    async def callbacks(self, *, root: str | None = None, **options: Any) -> list[Callback]:
        self.listed[root] += 1
        return await super().callbacks(root=root, **options)


@tool
async def paint(ctx: Context) -> str:
    """Paint."""
    return await ctx.raise_callback("Which colour?", "blocker")


def painters(count: int) -> Agent:
    """An agent that starts so many children, each of which asks."""
    painter = Agent("painter", model=Script(lambda _: call("paint")), tools=[paint], can_query_caller=False)
    tasks = [call("task", agent="painter", prompt=f"wall {number}") for number in range(count)]
    return Agent("manager", model=Script(lambda _: tasks), agents=[painter])


async def test_the_callbacks_of_a_run_tree_are_read_once_however_many_sessions_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Counted(tmp_path / "log.db")
    async with Runtime(store, agents=[painters(5)], hold=0) as runtime:
        for name in ("one", "two"):
            session = await runtime.start("manager", id=name)
            assert (await session.prompt("paint")).status == "waiting"
        store.listed.clear()

        described = await SessionJson(runtime, Redactor(), damage_reported).sessions(await runtime.rows())

        assert store.listed == {"one": 1, "two": 1}
        asked = {one["id"]: len(one["callbacks"]) for one in described}
        children = {f"{root}~r1c{child}": 1 for root in ("one", "two") for child in range(5)}
        assert asked == {"one": 5, "two": 5, **children}
        store.listed.clear()
        await print_sessions(runtime, 50)
        assert not store.listed
        assert capsys.readouterr().out.count("waiting") == 12


@pytest.mark.slow
async def test_an_inbox_that_is_not_read_to_its_end_does_not_say_how_many_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Agent("painter", model=Script(lambda _: call("paint")), tools=[paint])
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0) as runtime:

        async def one(number: int) -> None:
            session = await runtime.start("painter", id=f"s{number}")
            assert (await session.prompt("paint")).status == "waiting"

        await asyncio.gather(*[one(number) for number in range(999)])
        await print_inbox(runtime, Namespace(), 3)
        assert capsys.readouterr().out.endswith("\n999 questions wait; 996 more with --limit 999\n")
        await asyncio.gather(*[one(number) for number in range(999, 1002)])
        await print_inbox(runtime, Namespace(), 3)
        said = "at least 1000 questions wait; 997 more with --limit 1000"
        assert capsys.readouterr().out.splitlines()[-1] == said
