"""A conversation stays within its tokens: rarely summarised, never broken, nothing lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.processes import driver
from core.doubles import Asked, Place, crash, said
from core.rules import check, check_wires
from upcall import (
    Agent,
    BadKit,
    Context,
    ContextTooLong,
    Message,
    ModelUnavailable,
    Request,
    Response,
    Runtime,
    Usage,
    tool,
)
from upcall.events import AnyEvent, Compacted
from upcall.kit import compact, skills
from upcall.kit.tokens import TokenCount, tokens_of
from upcall.messages import Text, compacted_messages, user
from upcall.models import Script, call


@tool
async def fetch(size: int) -> str:
    """Fetch something."""
    return "z" * size


@tool
async def ask_me(ctx: Context) -> Any:
    """Ask."""
    return await ctx.raise_callback("may I?", "blocker")


def summing(decide: Any) -> Any:
    def respond(request: Request) -> Any:
        check(request.messages)
        check_wires(request)
        return "SUMMARY" if request.purpose == "summary" else decide(request)

    return respond


async def compactions(runtime: Runtime) -> list[Compacted]:
    found: list[AnyEvent] = [e async for e in runtime.events("s")]
    return [e for e in found if isinstance(e, Compacted)]


def counted(request: Request, text: str, calls: Any = ()) -> Response:
    """A response with a usage, as providers give it."""
    used = tokens_of(request.messages)
    return Response(text, calls, usage=Usage(used, len(text) // 4))


@pytest.mark.slow
@pytest.mark.parametrize("real", [True, False], ids=["counted", "estimated"])
async def test_sixty_turns_are_compacted_a_few_times_and_nothing_that_matters_is_lost(
    real: bool, tmp_path: Path, place: Place
) -> None:
    folder = tmp_path / "pdf"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: pdf\ntriggers: [pdf]\n---\nUse forms.")
    asked = Asked()

    def decide(request: Request) -> Any:
        if request.messages[-1].role == "tool":
            text, calls = "x" * 100, ()
        else:
            text, calls = "", [call("fetch", size=100), call("fetch", size=50)]
        return counted(request, text, calls) if real else Response(text, calls)

    kit = [skills(tmp_path), compact(1500, keep_last=6)]
    agent = Agent("a", model=Script(asked.then(summing(decide))), tools=[fetch], kit=kit)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(60):
            await session.prompt(f"prompt {number}: a pdf" if number == 0 else f"prompt {number}")
        done = await compactions(runtime)

    turns = [r for r in asked.requests if r.purpose == "turn"]
    assert 3 <= len(done) <= 12
    assert len(done) == len(asked) - len(turns)
    assert max(tokens_of(r.messages) for r in turns) < 1500 + 300
    for request in turns:
        assert said(request.messages)[0] == "user: prompt 0: a pdf"
        assert sum("Use forms." in m.text for m in request.messages) == 1


async def test_the_response_that_was_just_given_always_stays(place: Place) -> None:
    asked = Asked()

    def decide(request: Request) -> Any:
        last = request.messages[-1]
        return "x" * 40 if last.role == "tool" or len(asked) < 4 else [call("fetch", size=9)] * 3

    agent = Agent("a", model=Script(asked.then(summing(decide))), tools=[fetch], kit=[compact(1, keep_last=1)])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(12):
            reply = await session.prompt(f"prompt {number}")
            assert said(session.get_messages())[-1] == f"assistant: {reply.text}"
        assert await compactions(runtime)


@pytest.mark.parametrize("summary", ["", "  \n", ModelUnavailable("m", "gone")])
async def test_a_failed_or_empty_summary_changes_nothing(summary: Any) -> None:
    asked = Asked()
    script = Script(asked.then(lambda r: summary if r.purpose == "summary" else "x" * 40))
    agent = Agent("a", model=script, kit=[compact(20, keep_last=2)])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(8):
            await session.prompt(f"{number}")
        assert len(session.get_messages()) == 16
        assert await compactions(runtime) == []
    summaries = sum(r.purpose == "summary" for r in asked.requests)
    assert 1 <= summaries <= 4


async def test_a_request_that_is_too_long_is_compacted_and_asked_again(place: Place) -> None:
    asked = Asked()

    def decide(request: Request) -> Any:
        check(request.messages)
        if len(request.messages) > 7:
            return ContextTooLong("m", None, None)
        return "SUMMARY" if request.purpose == "summary" else "ok"

    agent = Agent("a", model=Script(asked.then(decide)), kit=[compact(100_000, keep_last=3)])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number in range(9):
            assert (await session.prompt(f"prompt {number}")).text == "ok"
        assert await compactions(runtime)
        assert said(session.get_messages())[0] == "user: prompt 0"


async def test_what_stays_too_long_fails_the_turn_and_says_so() -> None:
    agent = Agent("a", model=Script(lambda r: ContextTooLong("m", 9, 8)), kit=[compact()])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(ContextTooLong, match="9 tokens requested, 8 allowed"):
            await session.prompt("go")


async def test_what_is_waited_for_is_not_compacted_away(tmp_path: Path) -> None:
    asked = Asked()

    def decide(request: Request) -> Any:
        results = [r.text for m in request.messages for r in m.results]
        return results[-1] if results else "x" * 40 if len(asked) < 4 else [call("ask_me"), call("fetch", size=9)]

    agent = Agent(
        "a", model=Script(asked.then(summing(decide))), tools=[ask_me, fetch], kit=[compact(50, keep_last=1)]
    )
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        replies = [await session.prompt(f"prompt {number}") for number in range(4)]
        assert replies[-1].status == "waiting"
        assert await compactions(runtime) == []
        await runtime.answer((await runtime.inbox())[0].id, "yes", by="me")
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        await runtime.resume("s")

        assert len(await compactions(runtime)) == 1
        assert ["call ask_me", "call fetch", "= yes", f"= {'z' * 9}"] == said(asked.requests[-1].messages)[-4:]


async def test_old_history_is_found_again_by_searching(place: Place) -> None:
    asked = Asked()

    def decide(request: Request) -> Any:
        last = request.messages[-1]
        if last.role == "tool":
            return last.results[0].text
        return call("search_history", words="CODE secret") if last.text == "What was it?" else "x" * 40

    agent = Agent("a", model=Script(asked.then(summing(decide))), kit=[compact(40, keep_last=1)])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("Hello")
        await session.prompt("The secret code is 1234")
        for _ in range(6):
            await session.prompt("talk")
        assert "1234" not in str(session.get_messages())

        assert (await session.prompt("What was it?")).text == "3. user: The secret code is 1234"
        assert (await session.prompt("What was it?")).text.startswith("3. user: The secret")


@pytest.mark.slow
async def test_a_process_that_dies_while_it_compacts_continues(place: Place) -> None:
    def decide(request: Request) -> Any:
        if request.purpose == "summary":
            return "SUMMARY"
        return "done" if len(request.messages) > 9 or "SUMMARY" in str(request) else call("fetch", size=40)

    agent = Agent("a", model=Script(decide), tools=[fetch], kit=[compact(30, keep_last=2)])
    died = 0
    for appends in range(1, 40):
        place.clear()
        if await crash(place, agent, appends):
            break
        async with Runtime(place.store(), agents=[agent]) as runtime:
            if not await runtime.rows():
                continue
            reply = await runtime.resume("s", take_over=True)
            if reply.session_id and reply.text:
                died += 1
                assert reply.text == "done"
                assert len(await compactions(runtime)) == 1
    else:
        raise AssertionError("its turn never ended")
    assert died > 5


@pytest.mark.slow
def test_a_process_killed_during_compaction_resumes_and_compacts(tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    with driver(log, "--hang", module="kit.compacting") as process:
        process.read_until("summary begins")
        process.kill()
    with driver(log, module="kit.compacting") as process:
        said = process.end()

    assert said[0] == "summary begins"
    assert said[-1] == "done after 12"
    assert 2 <= len(said) - 1 <= 6


says = st.one_of(st.just("text"), st.lists(st.integers(0, 400), min_size=1, max_size=3))


@pytest.mark.slow
@given(
    turns=st.lists(st.lists(says, max_size=3), min_size=1, max_size=12),
    tokens=st.integers(1, 600),
    keep=st.integers(1, 8),
    real=st.booleans(),
    window=st.integers(150, 1000),
)
async def test_any_history_stays_valid_and_bounded_when_it_is_compacted(
    turns: list[list[Any]], tokens: int, keep: int, real: bool, window: int
) -> None:
    asked, left = Asked(), list[Any]()

    def decide(request: Request) -> Any:
        if tokens_of(request.messages) > window and len(request.messages) > 5:
            return ContextTooLong("m", None, window)
        check(request.messages)
        check_wires(request)
        if request.purpose == "summary":
            return "SUMMARY"
        say = left.pop(0) if left else "text"
        text, calls = ("t" * 60, ()) if say == "text" else ("", [call("fetch", size=n) for n in say])
        return counted(request, text, calls) if real else Response(text, calls)

    agent = Agent("a", model=Script(asked.then(decide)), tools=[fetch], kit=[compact(tokens, keep_last=keep)])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for number, turn in enumerate(turns):
            left = list(turn)
            try:
                await session.prompt(f"prompt {number}")
            except ContextTooLong:
                return
            assert session.get_messages() == (await runtime.load("s")).get_messages()
        assert session.get_messages()[0] == Message("user", session.get_messages()[0].parts)
        assert session.get_messages()[0].text == "prompt 0"
        total = [r for r in asked.requests if r.purpose == "turn"]
        assert len(await compactions(runtime)) <= len(total) / 2


@pytest.mark.parametrize("given", [{"tokens": 0}, {"tokens": 1.5}, {"keep_last": 0}, {"keep_last": True}])
def test_numbers_that_make_no_sense_are_refused(given: Any) -> None:
    with pytest.raises(BadKit, match="compact: "):
        compact(**given)


WORDS = st.text("ab ", max_size=40)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(["say", "answer", "compact", "replace", "load", "other"]), WORDS)))
def test_counting_on_gives_what_counting_anew_would(done: list[tuple[str, str]]) -> None:
    count, said = TokenCount(), list[Message]()
    for what, text in done:
        match what:
            case "say":
                said.append(user(text))
            case "answer":
                said.append(Message("assistant", (Text(text),)))
            case "compact":
                shorter = compacted_messages(said, 2, f"so far: {text}")
                said = shorter if len(shorter) < len(said) else said
            case "replace" if said and said[-1].role == "assistant":
                said[-1] = Message("assistant", (Text(text),))
            case "load":
                said = [m.replace() for m in said]
            case _:
                count.of("other", [user(text)])

        running = user("it is still running")  # as an open call has it
        assert count.of("s", [*said, running]) == tokens_of([*said, running])
        assert count.of("s", said) == tokens_of(said)


class Watched(list[Message]):
    """A conversation that notes how many of its messages were taken out to be counted."""

    taken = 0

    def __getitem__(self, at: Any) -> Any:
        found = cast("Any", super()).__getitem__(at)
        self.taken += 0 if isinstance(found, Message) else len(found)
        return found


def test_a_message_is_counted_once_and_not_with_every_response() -> None:
    count, said = TokenCount(), Watched()
    for turn in range(200):
        said.append(user(f"turn {turn}"))
        said.append(Message("assistant", (Text("yes"),)))
        count.of("s", said)

    assert said.taken <= 3 * len(said)
