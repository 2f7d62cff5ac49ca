"""A long text is cut for a screen only after its secrets are hidden: a part of a secret can't be recognised."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from upcall import Agent, Limits, Runtime, events
from upcall.callbacks import Answer, Callback, Reject, Step
from upcall.hosts.acp.question_updates import route_text
from upcall.hosts.acp.tool_calls import LONGEST_RESULT, ToolCalls
from upcall.hosts.web.cards import Around, card_json
from upcall.hosts.web.facts import Facts
from upcall.hosts.web.index.texts import MOST, texts_of
from upcall.links.mcp.results import result_of
from upcall.messages import Message, Result, Text
from upcall.models import Script, call
from upcall.observe.labels import Labels
from upcall.observe.lines import Lines
from upcall.observe.redact import Redactor
from upcall.safety.bounds import RESULT, head_of, tail_of

SECRET = "zq8-11-ff-09-xy-and-a-long-tail-0123456789"
REDACTOR = Redactor(environ={"SHOP_API_KEY": SECRET})
LINES = Lines(REDACTOR, Labels())


def _outcome(text: str) -> str:
    answered = Callback("q1", "s1", "a", "?", status="answered", answer=Answer(text, "ada"))
    rejected = Callback("q1", "s1", "a", "?", tool="t", status="answered", answer=Answer(Reject(text), "ada"))
    declined = Callback("q1", "s1", "a", "?", status="declined", answer=Answer(None, "ada", reason=text))
    return "".join(card_json(one, Around(), REDACTOR)["outcome"] for one in (answered, rejected, declined))


def _steps(text: str) -> str:
    path = (Step("boss", "passed", text), Step("user", "asked", f"{text} ({text})"))
    return str(card_json(Callback("q1", "s1", "a", "?", path=path), Around(), REDACTOR)["steps"])


def _route(text: str) -> str:
    return route_text(
        Callback("q1", "s1", "a", "?", path=(Step("boss", "passed", text), Step(text, "asked"))), REDACTOR
    )


def _facts(text: str) -> str:
    facts = Facts("s1")
    for pos, event in enumerate(
        (events.SessionStarted("a", title=text), events.TurnEnded(1, "failed", error=text)), 1
    ):
        facts.apply(event.replace(session="s1", pos=pos), REDACTOR)
    return facts.title + facts.text


def _indexed(text: str) -> str:
    event = events.TurnStarted(1, Message("user", (Text(text),)))
    return "".join(one.text for one in texts_of(event, REDACTOR))


def _result(text: str) -> str:
    return str(ToolCalls(REDACTOR, Labels(), "").result(Result("c1", text)))


SCREENS: dict[str, Callable[[str], str]] = {
    "a line": LINES.text,
    "a whole text on a line": LINES.whole,
    "a value": LINES.value,
    "a list": lambda text: LINES.value([text]),
    "a call": lambda text: LINES.call("write", {"text": text}),
    "a card's outcome": _outcome,
    "a card's steps": _steps,
    "an editor's route": _route,
    "the list of sessions": _facts,
    "the index": _indexed,
    "an editor's result": _result,
}


def _fillings() -> Iterator[str]:
    """Texts before a secret, so that every cut falls into it."""
    for most in (60, 100, 200, 500, 2_000, 4_000, 5_000, 10_000, LONGEST_RESULT, 4 * LONGEST_RESULT, MOST):
        for into in (2, 20, 40):
            yield "y" * (most - into - 1) + " "
            yield " " * (most - into)
            yield "\u200b" * (most - into)


@pytest.mark.slow
@pytest.mark.parametrize("screen", SCREENS.values(), ids=SCREENS)
def test_no_part_of_a_secret_is_shown_wherever_a_text_is_cut(screen: Callable[[str], str]) -> None:
    for filling in _fillings():
        shown = screen(filling + SECRET + " end")
        assert SECRET[:2] not in shown, len(filling)


@pytest.mark.parametrize("between", [" ", "\n", '"'])
@pytest.mark.parametrize("into", [1, 20, 41])
async def test_a_result_that_is_cut_for_the_model_is_not_cut_through_a_secret(between: str, into: int) -> None:
    head = "y" * (500 - into - 1) + between + SECRET + between
    tail = between + SECRET + between + "y" * (500 - into - 1)

    async def look() -> str:
        """Look."""
        return head + "y" * 5_000 + tail

    agent = Agent("a", model=Script([call("look"), "done"]), tools=[look], limits=Limits(result_chars=1_000))
    async with Runtime(":memory:", agents=[agent]) as runtime:
        session = await runtime.start("a")
        await session.prompt("Begin.")
    (result,) = [one for message in session.get_messages() for one in message.results]
    kept, _, rest = result.text.partition("\n… ")
    left_out, _, end = rest.partition(f" of {len(head + tail) + 5_000} characters left out …\n")
    assert len(kept) + int(left_out) + len(end) == len(head + tail) + 5_000
    assert SECRET[:4] not in result.text
    assert SECRET[-4:] not in result.text
    assert result.text.startswith("y" * 450)
    assert result.text.endswith("y" * 450)


@pytest.mark.parametrize("into", [1, 20, 41])
def test_a_result_of_an_mcp_server_that_is_cut_is_not_cut_through_a_secret(into: int) -> None:
    text = "y" * (RESULT - into - 1) + " " + SECRET + " and more"
    result = result_of("c1", {"content": [{"type": "text", "text": text}]})
    assert SECRET[:1] not in result.text[-200:].partition("(The result had")[0]
    assert result.text.endswith("the rest was dropped.)")


def test_a_text_is_cut_between_words_where_it_has_some_and_never_longer_than_wanted() -> None:
    assert head_of("one two three", 6) == "one "
    assert head_of("one two three", 7) == "one two"
    assert tail_of("one two three", 6) == " three"
    assert tail_of("one two three", 4) == "hree"  # as the last resort, where a word is as long as half of it
    assert head_of("a" * 100, 10) == "a" * 10
    assert (head_of("abc", 3), tail_of("abc", 3), head_of("abc", 0), tail_of("abc", 0)) == ("abc", "abc", "", "")
