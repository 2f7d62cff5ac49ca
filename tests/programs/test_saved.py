"""A program outlives its process: saved where it asks, fed again where it died, and nothing in it happens twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import apsw
import pydantic_monty
import pytest

from callbacks.doubles import Desk, Kept, never
from core.doubles import Place, log_of
from programs.doubles import Files, programmer, through, told, workers
from upcall import Agent, Delta, Runtime
from upcall.contracts import Claim
from upcall.errors import StoreError
from upcall.events import AnyEvent, InnerCalled, ProgramSaved, ToolEnded
from upcall.workspace import run_python

MOST = 60
"""More appends than any run below makes."""

LONG = """
import asyncio
def get(path):
    try:
        return read_file(path)
    except RuntimeError as error:
        assert 'interrupted' in str(error), error
        return '?'
async def later(path):
    try:
        return await read_file(path)
    except RuntimeError as error:
        assert 'interrupted' in str(error), error
        return '?'
async def two(path):
    return await later(path + '1') + await later(path + '2')
seen = [get('a')]
print('first')
seen += await asyncio.gather(two('b'), two('c'))
seen.append(raise_callback('which?'))
print('asked')
seen.append(get('d'))
seen
"""
READ = ["a", "b1", "b2", "c1", "c2", "d"]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def ended(place: Place, agent: Agent) -> str:
    """Resume, and answer what is asked, until the turn is over; what the model was told."""
    for _ in range(5):
        async with Runtime(place.store(), agents=[agent]) as runtime:
            reply = await runtime.resume("s", take_over=True)
            for callback in await runtime.inbox():
                await runtime.answer(callback.id, "this", by="ops")
            if reply.status == "done":
                messages = (await runtime.load("s")).get_messages()
                return next(r.text for m in messages for r in m.results)
    raise AssertionError("it waits without end")


def check(text: str, files: Files, where: str) -> None:
    assert text.startswith("first\nasked\n["), where
    seen: list[str] = text.removeprefix("first\nasked\n").strip("[]").replace("'", "").split(", ")
    read = Counter(files.noted)
    assert set(read.values()) <= {1}, f"{read} {where}"
    got = "".join(seen)
    for path in READ:  # its value where it ran to its end, "interrupted" where nobody knows
        assert (f"<{path}>" in got) or "?" in got, f"{got} {where}"
        assert f"read {path}" in read or "?" in got, f"{got} {where}"
    assert "this" in seen, where


@pytest.mark.slow
async def test_a_program_that_died_at_any_append_continues_and_does_nothing_twice(tmp_path: Path) -> None:
    for appends in range(3, MOST):
        folder = tmp_path / str(appends)
        folder.mkdir()
        files, place = Files(folder), Place(folder / "log.db")
        agent = programmer(LONG, tools=[files.read_file])
        parked = await dies(place, agent, appends)
        text = await ended(place, agent)
        check(text, files, f"after {appends} appends")
        if parked:
            assert "?" not in text
            break
    else:
        pytest.fail("the run makes more appends than that")
    assert workers() == []


async def dies(place: Place, agent: Agent, appends: int) -> bool:
    """A process that dies after so many appends, unless it is parked before."""
    try:
        async with Runtime(place.dying(appends), agents=[agent]) as runtime:
            session = await runtime.start(agent, "s")
            return (await session.prompt("go")).status == "waiting"
    except StoreError:
        return False


@pytest.mark.slow
async def test_a_resumed_program_that_died_at_any_append_continues_and_does_nothing_twice(tmp_path: Path) -> None:
    for appends in range(MOST):
        folder = tmp_path / str(appends)
        folder.mkdir()
        files, place = Files(folder), Place(folder / "log.db")
        agent = programmer(LONG, tools=[files.read_file])
        assert await dies(place, agent, MOST)
        async with Runtime(place.store(), agents=[agent]) as runtime:
            await runtime.answer((await runtime.inbox())[0].id, "this")
        done = True
        try:
            async with Runtime(place.dying(appends), agents=[agent]) as runtime:
                await runtime.resume("s")
        except StoreError:
            done = False
        text = await ended(place, agent)
        check(text, files, f"after {appends} appends")
        if done:
            return
    pytest.fail("the run makes more appends than that")


class Watched(Kept):
    """A log that remembers what was appended together."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[tuple[list[AnyEvent], set[str]]] = []

    def append(
        self,
        session: str,
        events: Sequence[AnyEvent],
        claim: Claim | None,
        *,
        blobs: Mapping[str, bytes] | None = None,
        release: bool = False,
        lazy: bool = False,
    ) -> None:
        self.appends.append((list(events), set(blobs or ())))
        super().append(session, events, claim, blobs=blobs, release=release, lazy=lazy)


@pytest.mark.parametrize(
    "program",
    ["raise_callback('?')", "asking('a')", "delete_file('a')", "await raise_callback('?')"],
)
async def test_the_snapshot_is_in_the_append_of_the_question_it_waits_for(program: str, files: Files) -> None:
    store = Watched()
    agent = programmer(program, tools=[files.asking, files.delete_file])
    async with Runtime(store, agents=[agent]) as runtime:
        assert (await (await runtime.start(agent)).prompt("go")).status == "waiting"
    if "await" in program:  # it ran on until it stood at the await
        kept = [e for events, _ in store.appends for e in events if isinstance(e, ProgramSaved)]
        assert len(kept) == 1
        return
    together = [
        (events, blobs) for events, blobs in store.appends if any(e.type == "callback_raised" for e in events)
    ]
    ((events, blobs),) = together
    (saved,) = [e for e in events if isinstance(e, ProgramSaved)]
    assert (saved.call_id, saved.calls, saved.ended) == ("r1c0", 1, False)
    assert saved.blob in blobs


async def test_a_saved_program_has_a_few_kilobytes(desk: Desk) -> None:
    agent = programmer("names = ['a', 'b']\nfor name in names:\n    print(raise_callback(name))")
    await desk.prompt(agent)
    (saved,) = [e for e in await desk.log(agent) if isinstance(e, ProgramSaved)]
    assert len(await desk.store().blob(saved.blob)) < 5_000


async def test_each_suspension_is_saved_once_and_only_when_something_waits(desk: Desk, files: Files) -> None:
    agent = programmer("read_file('a')\nread_file('b')", tools=[files.read_file])
    await desk.prompt(agent)
    assert [e.ended for e in await desk.log(agent) if isinstance(e, ProgramSaved)] == [True]


def heard(to: list[str]) -> Callable[[AnyEvent | Delta], None]:
    """Takes down what is shown while it is said."""

    def hear(item: AnyEvent | Delta) -> None:
        if isinstance(item, Delta):
            to.append(item.text)

    return hear


async def test_what_was_printed_before_a_park_is_neither_lost_nor_doubled_nor_shown_again(desk: Desk) -> None:
    agent = programmer("print('one')\nprint(raise_callback('?'))\nprint('three')")
    await desk.prompt(agent)
    await desk.settle(agent, "two")
    shown: list[str] = []
    async with desk.runtime(agent) as runtime:
        await runtime.resume("s", sink=heard(shown))
    assert "".join(shown) == "two\nthree\nover"
    assert (await told(desk, agent))[0].text == "one\ntwo\nthree\n"


@pytest.mark.slow
async def test_a_program_fed_again_shows_only_what_was_not_shown_before(tmp_path: Path) -> None:
    caught = "\ntry:\n    read_file('{}')\nexcept RuntimeError:\n    pass\n"
    program = f"print('one'){caught.format('a')}print('two'){caught.format('b')}print('three')"
    seen: set[str] = set()
    for appends in range(3, MOST):
        folder = tmp_path / str(appends)
        folder.mkdir()
        files, place = Files(folder), Place(folder / "log.db")
        agent, shown = programmer(program, tools=[files.read_file]), list[str]()
        done = await dies(place, agent, appends)
        async with Runtime(place.store(), agents=[agent]) as runtime:
            log = await log_of(runtime)
            await runtime.resume("s", take_over=True, sink=heard(shown))
            messages = (await runtime.load("s")).get_messages()
        again = {e.call.id for e in log if isinstance(e, InnerCalled)}
        again |= {e.call_id for e in log if isinstance(e, ToolEnded) and e.call_id == "r1c0"}
        assert "".join(shown).removesuffix("over") == next(
            text for call_id, text in AFTER if call_id in again or not call_id
        )
        assert next(r.text for m in messages for r in m.results).startswith("one\ntwo\n")
        seen |= again
        if done or "r1c0" in again:
            break
    assert {"r1c0.1", "r1c0.2"} <= seen


AFTER = [("r1c0", ""), ("r1c0.2", "three\n"), ("r1c0.1", "two\nthree\n"), ("", "one\ntwo\nthree\n")]


# --- what can't be taken up ---------------------------------------------------------------


async def parked(desk: Desk) -> Agent:
    """A turn whose second program waits, answered but not resumed."""
    agent = programmer("x = 1", "y = raise_callback('which?')\ny", "x", "z = 5", "z")
    await desk.prompt(agent)
    await desk.settle(agent, "this")
    return agent


async def check_started_over(desk: Desk, agent: Agent, problem: str) -> None:
    reply = await desk.resume(agent)
    assert reply.status == "done"
    results = await told(desk, agent)
    assert results[1].is_error
    assert problem in results[1].text
    assert "start again" in results[1].text
    assert "NameError" in results[2].text
    assert results[4].text == "5"


async def test_a_snapshot_of_another_version_is_an_error_that_carries_the_answer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await parked(desk)
    monkeypatch.setattr(pydantic_monty, "__version__", "9.9.9")
    await check_started_over(desk, agent, "but 9.9.9 is installed. While it ran: 'which?' was answered 'this'.")


def change_blobs(path: Path, statement: str) -> None:
    with apsw.Connection(str(path)) as db:
        db.execute(statement)  # pyright: ignore[reportUnknownMemberType]


async def test_a_damaged_snapshot_is_an_error_that_carries_the_answer(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "log.db")
    agent = await parked(desk)
    change_blobs(tmp_path / "log.db", "UPDATE blobs SET body = zeroblob(2000)")
    await check_started_over(desk, agent, "is damaged. While it ran: 'which?' was answered 'this'.")


async def test_a_missing_snapshot_is_an_error_and_its_open_question_is_withdrawn(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "log.db")
    agent = programmer("import asyncio\nawait asyncio.gather(raise_callback('one'), raise_callback('two'))")
    await desk.prompt(agent)
    change_blobs(tmp_path / "log.db", "DELETE FROM blobs")
    await desk.settle(agent, "this", message="one")
    assert (await desk.resume(agent)).status == "done"
    assert "can't be read" in (await told(desk, agent))[0].text
    assert await desk.inbox(agent) == []


GONE = {
    "plain": "try:\n    asking('colour')\nexcept RuntimeError as error:\n    print(error)\nread_file('b')",
    "gathered": "import asyncio\ntry:\n    await asyncio.gather(asking('colour'), read_file('b'))\n"
    "except RuntimeError as error:\n    print(error)\nread_file('b')",
}


@pytest.mark.parametrize("program", GONE.values(), ids=GONE.keys())
async def test_a_program_whose_tool_no_longer_exists_gets_an_error_that_carries_the_answer(
    program: str, desk: Desk, files: Files
) -> None:
    before = programmer(program, tools=[files.asking, files.read_file])
    after = programmer(program, tools=[files.read_file])
    await desk.prompt(before)
    await desk.settle(before, "red")
    assert (await desk.resume(after)).status == "done"
    (result,) = await told(desk, after)
    assert not result.is_error
    assert "there is no tool called 'asking'. The tools are: raise_callback, read_file." in result.text
    assert "While the call waited, it received: the answer to 'which colour?' was 'red'." in result.text
    assert result.text.endswith("'<b>'")


async def test_a_program_that_died_gets_the_logged_results_of_a_tool_that_no_longer_exists(tmp_path: Path) -> None:
    program, checked = "print(read_file('a'))\nprint(raise_callback('size?'))\nread_file('b')", 0
    for appends in range(3, MOST):
        folder = tmp_path / str(appends)
        folder.mkdir()
        files, place = Files(folder), Place(folder / "log.db")
        parked = await dies(place, programmer(program, tools=[files.read_file]), appends)
        async with Runtime(place.store(), agents=[]) as runtime:
            log = [event async for event in runtime.events("s")]
        if any(isinstance(event, ToolEnded) and event.call_id == "r1c0.1" for event in log):
            text = await ended(place, programmer(program))
            assert text.startswith("<a>\nthis\n")
            assert "NameError: name 'read_file' is not defined" in text
            assert files.noted == ["read a"]
            checked += 1
        if parked:
            break
    assert checked > 1


async def test_a_program_that_takes_another_way_when_fed_again_is_stopped(tmp_path: Path, files: Files) -> None:
    agent, store = programmer("read_file('a')\nread_file('b')", tools=[files.read_file]), Kept()
    async with Runtime(store, agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        log = await log_of(runtime)
    end = next(n for n, e in enumerate(log) if isinstance(e, InnerCalled) and e.call.id == "r1c0.2")
    other = Kept()
    await other.open()
    other.append("s", [bare(log[0])], None)
    claim = await other.claim("s")
    kept = [bare(e) for e in log[1:end]]
    first = next(n for n, e in enumerate(kept) if isinstance(e, InnerCalled))
    made = cast("InnerCalled", kept[first])
    kept[first] = made.replace(call=made.call.replace(args={"path": "elsewhere"}))
    other.append("s", kept, claim)
    await other.release(claim)
    async with Runtime(other, agents=[agent]) as runtime:
        assert (await runtime.resume("s")).status == "done"
        messages = (await runtime.load("s")).get_messages()
    result = next(r for m in messages for r in m.results)
    assert result.is_error
    assert 'its call 1 was read_file({"path":"elsewhere"}) and is now read_file({"path":"a"})' in result.text
    assert files.noted == ["read a", "read b"]


def bare(event: AnyEvent) -> AnyEvent:
    return event.replace(session="", seq=0, pos=0, time=0.0)


# --- limits that parking does not reset ---------------------------------------------------


async def test_parking_resets_no_limit_of_calls(desk: Desk) -> None:
    program = "for n in range(9):\n    print(raise_callback(f'q{n}'))"
    agent = programmer(program, python=run_python(calls=3))
    reply = await through(desk, agent, "a", "b", "c")
    assert reply.status == "done"
    result = (await told(desk, agent))[0]
    assert result.text.startswith("a\nb\nc\nTraceback")
    assert result.text.endswith("RuntimeError: a program may make 3 calls, and this one has made them all")


async def test_parking_resets_no_limit_of_output(desk: Desk) -> None:
    program = "for n in range(3):\n    print('x' * 40)\n    raise_callback(f'q{n}')\n'end'"
    agent = programmer(program, python=run_python(output=100))
    await through(desk, agent, "a", "b", "c")
    text = (await told(desk, agent))[0].text
    assert text.count("x") == 98  # two line ends are characters too
    assert "23 characters left out: a program may print 100" in text
    assert text.endswith("'end'")


@pytest.mark.slow
async def test_parking_resets_no_limit_of_time(desk: Desk) -> None:
    burn = "x = 0\n    while x < 20_000: x += 1"
    program = f"for n in range(1000):\n    {burn}\n    raise_callback(f'q{{n}}')"
    agent = programmer(program, python=run_python(seconds=0.5, calls=10_000))
    reply = await desk.prompt(agent)
    for _ in range(200):
        if reply.status != "waiting":
            break
        await desk.settle(agent, "on")
        reply = await desk.resume(agent)
    assert reply.status == "done"
    result = (await told(desk, agent))[0]
    assert "TimeoutError: feed time limit exceeded" in result.text
    used = [e.seconds for e in await desk.log(agent) if isinstance(e, ProgramSaved)]
    assert used == sorted(used)
    assert len(used) > 2


# --- processes ----------------------------------------------------------------------------


async def test_no_interpreter_outlives_its_program_its_park_or_its_runtime(desk: Desk, files: Files) -> None:
    agent = programmer("1", "raise_callback('?')", tools=[files.read_file])
    await desk.prompt(agent)
    assert workers() == []
    async with desk.runtime(agent, host=_Silent()) as runtime:
        session = await runtime.start(agent, "held")
        turn = asyncio.ensure_future(session.prompt("go"))
        while not workers():
            await asyncio.sleep(0.01)
    assert workers() == []
    with pytest.raises(Exception, match="closed"):
        await turn


class _Silent:
    async def ask(self, callback: Any) -> Any:
        await never(callback)

    def withdraw(self, callback_id: str, reason: str) -> None:
        pass


async def test_a_cancelled_program_stops_at_once_in_the_middle_of_a_loop(desk: Desk) -> None:
    agent = programmer("while True: pass", python=run_python(seconds=300))
    async with desk.runtime(agent) as runtime:
        session = await runtime.start(agent, "s")
        turn = asyncio.ensure_future(session.prompt("go"))
        while not workers():
            await asyncio.sleep(0.01)
        await session.cancel("enough")
        assert (await turn).status == "cancelled"
        assert workers() == []
