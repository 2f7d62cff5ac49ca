"""How many commands and programs a runtime runs at once, and that nothing waits for what itself waits."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from upcall import Agent, Callback, Context, Result, Runtime, SetupError, tool
from upcall.core.turns.process_limit import ProcessLimit
from upcall.models import Script, call
from upcall.workspace import Folder, run_python, shell
from workspace.doubles import plays, results

COUNTED = (
    "while ! mkdir lock; do :; done; ls running | wc -l >> counts; touch running/{n}; rmdir lock; "
    "sleep 0.2; rm running/{n}"
)


def below_us() -> dict[int, str]:
    """The command lines of our children, by process."""
    found: dict[int, str] = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal():
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid():
                    found[int(process.name)] = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
    return found


async def ran(agent: Agent, processes: int | None, host: Any = None) -> list[Result]:
    async with Runtime(agents=[agent], processes=processes, host=host, hold=60) as runtime:
        session = await runtime.start(agent)
        reply = await session.prompt("go")
        assert reply.status == "done"
        return results(session.get_messages())


class Interpreters:
    """Counts the interpreters that are alive, at each look."""

    def __init__(self) -> None:
        self.most, self._before = 0, set(below_us())

    def look(self) -> None:
        self.most = max(self.most, len(set(below_us()) - self._before))


def test_there_are_twice_as_many_places_as_processors_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors, most in ((1, 4), (2, 4), (3, 6), (8, 16), (64, 16), (None, 4)):
        monkeypatch.setattr(os, "cpu_count", lambda found=processors: found)
        assert ProcessLimit().most == most
    assert ProcessLimit(100).most == 100


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "4"])
def test_a_limit_that_can_not_work_is_refused(wrong: Any) -> None:
    with pytest.raises(SetupError, match="give a whole number of at least 1"):
        Runtime(processes=wrong)


@pytest.mark.slow
async def test_commands_of_one_response_run_a_few_at_a_time_and_all_of_them_run(tmp_path: Path) -> None:
    (tmp_path / "running").mkdir()
    calls = [call("shell", command=COUNTED.format(n=n)) for n in range(12)]
    agent = Agent("a", model=Script([calls, "done"]), kit=[shell()], workspace=Folder(tmp_path))

    said = await ran(agent, 3)

    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 12
    assert max(counts) == 2, "each saw at most two others"
    assert [r.is_error for r in said] == [False] * 12


@pytest.mark.slow
async def test_a_command_in_the_queue_does_not_use_up_its_time(tmp_path: Path) -> None:
    calls = [call("shell", command="sleep 0.6; echo ran") for _ in range(4)]
    agent = Agent("a", model=Script([calls, "done"]), kit=[shell(seconds=2)], workspace=Folder(tmp_path))

    said = await ran(agent, 1)

    assert [r.text for r in said] == ["ran"] * 4


@pytest.mark.slow
async def test_a_cancelled_turn_gives_all_places_back(tmp_path: Path) -> None:
    calls = [call("shell", command="touch begun; sleep 600") for _ in range(5)]
    model = Script([calls, call("shell", command="echo ran"), "done"])
    agent = Agent("a", model=model, kit=[shell()], workspace=Folder(tmp_path))
    async with Runtime(agents=[agent], processes=2) as runtime:
        session = await runtime.start(agent)
        turn = asyncio.ensure_future(session.prompt("go"))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        await session.cancel()
        await asyncio.wait([turn])
        reply = await session.prompt("again")

    assert reply.text == "done"
    assert results(session.get_messages())[-1].text == "ran"


@pytest.mark.slow
async def test_programs_of_one_response_use_a_few_interpreters_at_a_time() -> None:
    alive = Interpreters()

    @tool
    async def look() -> str:
        """Count the interpreters."""
        alive.look()
        return "seen"

    calls = [call("run_python", code="x = 0\nfor i in range(3):\n    look()\n    x += i\nx") for _ in range(12)]
    agent = Agent("a", model=Script([calls, "done"]), tools=[run_python(), look])

    said = await ran(agent, 3)

    assert [r.text for r in said] == ["3"] * 12
    assert 1 <= alive.most <= 3


async def test_programs_that_wait_for_a_callback_give_their_places_back() -> None:
    alive, all_asked = Interpreters(), asyncio.Event()

    class Person:
        asked = 0

        async def ask(self, callback: Callback) -> str:
            self.asked += 1
            alive.look()
            if self.asked == 8:
                all_asked.set()
            await all_asked.wait()
            return callback.message[-1]

        def withdraw(self, callback_id: str, reason: str) -> None: ...

    code = "kept = [{n}]\nprint('asking')\nanswer = raise_callback('Which, {n}')\nkept + [answer]"
    calls = [call("run_python", code=code.format(n=n)) for n in range(8)]
    agent = Agent("a", model=Script([calls, "done"]), tools=[run_python()])

    said = await ran(agent, 2, Person())

    assert [r.text for r in said] == [f"asking\n[{n}, '{n}']" for n in range(8)]
    assert alive.most <= 2


async def test_a_program_calls_the_shell_and_another_agents_program_with_a_single_place(tmp_path: Path) -> None:
    child = Agent("child", model=plays(call("run_python", code="print(6 * 7)")), tools=[run_python()])
    code = "a = shell(command='echo from the shell')\nb = task(agent='child', prompt='go')\nprint(a, b)"
    agent = Agent(
        "a", model=plays(call("run_python", code=code), call("run_python", code="a.upper()")),
        tools=[run_python()], kit=[shell()], agents=[child], workspace=Folder(tmp_path),
    )  # fmt: skip

    async with asyncio.timeout(60):
        said = await ran(agent, 1)

    assert said[0].text.strip() == "from the shell done"
    assert said[1].text == "'FROM THE SHELL'"


@pytest.mark.slow
async def test_programs_with_large_variables_wait_and_are_continued(tmp_path: Path) -> None:
    @tool
    async def slow() -> str:
        """Wait a little."""
        await asyncio.sleep(0.05)
        return "waited"

    code = "x = 'a' * {size}\nslow()\nlen(x)"
    sizes = (100, 1_000_000, 5_000_000, 15_000_000, 25_000_000, 30_000_000)
    calls = [call("run_python", code=code.format(size=size)) for size in sizes]
    agent = Agent("a", model=Script([calls, "done"]), tools=[run_python(), slow])

    said = await ran(agent, 1)

    assert [r.text.splitlines()[0] for r in said] == [str(size) for size in sizes]


async def test_programs_that_gather_calls_are_continued_where_they_were_suspended(tmp_path: Path) -> None:
    @tool
    async def slow(number: int, ctx: Context) -> int:
        """Give a number back, later."""
        await asyncio.sleep(0.05)
        return number

    code = "import asyncio\nseen = await asyncio.gather(*[slow(number=n) for n in range(5)])\nsum(seen)"
    calls = [call("run_python", code=code) for _ in range(6)]
    agent = Agent("a", model=Script([calls, "done"]), tools=[run_python(), slow])

    said = await ran(agent, 1)

    assert [r.text for r in said] == ["10"] * 6
