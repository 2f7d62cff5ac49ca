"""Servers that send too much, too often or for too long: each flood ends at its bound, on both wires."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from callbacks.doubles import Desk
from models.history import HELLO
from models.server import serving, stream
from quick import slow_but
from security.flooding import ANTHROPIC, OPENAI, Parts, Speech, flooding, head, letters, options, packed
from security.measuring import measured
from upcall import Agent, Hooks, Limits, Request, Response, ResponseTooLarge, Usage
from upcall.errors import ModelError, ModelRefused, ModelUnavailable
from upcall.models import Anthropic, OpenAIChat, Script, fallback_models
from upcall.models.body import EVENTS
from upcall.models.sse import EVENT_BYTES
from upcall.safety.bounds import CALLS, TEXT, TOKENS

MUCH = 200_000_000
importlib.import_module("aiohttp")  # at the first request otherwise, which would count as a stall
Make = Callable[..., Any]
WIRES = pytest.mark.parametrize(
    ("make", "speech"), [(OpenAIChat, OPENAI), (Anthropic, ANTHROPIC)], ids=["openai", "anthropic"]
)


def ignore(kind: str, text: str) -> None:
    """Hear what is said, and keep nothing of it."""


async def ask(make: Make, url: str, **more: Any) -> Response:
    model = make("m", base_url=url, **options(**more))
    try:
        return await model.respond(HELLO, ignore)
    finally:
        await model.close()


def lines(speech: Speech, size: int) -> list[tuple[bytes, int]]:
    """A stream with one event of that size."""
    before, after = speech.line
    return [(speech.begin + before, 1), *letters(size - len(before) - len(after) + 2), (after + speech.end, 1)]


def body(speech: Speech, size: int) -> list[tuple[bytes, int]]:
    before, after = speech.body
    return [(before, 1), *letters(size - len(before) - len(after)), (after, 1)]


FLOODS: dict[str, tuple[Callable[[Speech], Parts], str]] = {
    "a line": (lambda s: [(head(), 1), *lines(s, MUCH)], "more than 4,000,000 bytes in one line"),
    "a body": (lambda s: [(head(), 1), *body(s, MUCH)], "more than 4,000,000 bytes in one body"),
    "deltas of one letter": (lambda s: [(head() + s.begin, 1), (s.text, 3_000_000)], "500,000 events"),
    "long deltas": (
        lambda s: [(head() + s.begin, 1), (s.line[0] + b"a" * 100_000 + s.line[1], 2000)],
        "more than 4,000,000 characters of text",
    ),
    "deltas of wide letters": (
        lambda s: [(head() + s.begin, 1), (s.line[0] + "🙂".encode() * 100_000 + s.line[1], 500)],
        "more than 4,000,000 characters of text",
    ),
    "comments": (lambda s: [(head(), 1), (b": keep-alive\n\n", 20_000_000)], "more than 64,000,000 bytes"),
    "blank lines": (lambda s: [(head(), 1), (b"\n" * 100_000, 2000)], "more than 64,000,000 bytes"),
    "an event of many lines": (lambda s: [(head(), 1), (b"data:\n", 30_000_000)], "bytes in one event"),
    "calls": (
        lambda s: [(head(), 1), *[(s.call % index, 1) for index in range(2000)], (s.text, 100_000)],
        "more than 1,000 tool calls",
    ),
    "a call in a million pieces": (
        lambda s: [(head() + s.begin, 1), (s.more, 1_000_000)],
        "500,000 events",
    ),
    "gzip of a stream": (
        lambda s: [(head(200, "Content-Encoding: gzip"), 1), (packed((b": x\n", 20_000_000)), 1)],
        "more than 64,000,000 bytes",
    ),
    "gzip of a body": (
        lambda s: [(head(200, "Content-Encoding: gzip"), 1), (packed(*body(s, MUCH)), 1)],
        "more than 4,000,000 bytes in one body",
    ),
    "gzip of a line": (
        lambda s: [(head(200, "Content-Encoding: gzip"), 1), (packed(*lines(s, MUCH)), 1)],
        "more than 4,000,000 bytes in one line",
    ),
}


@pytest.mark.slow
@WIRES
@pytest.mark.parametrize("flood", slow_but(["a line", "long deltas", "calls", "gzip of a body"], FLOODS))
async def test_a_flood_from_a_server_ends_at_its_bound_and_is_not_asked_for_again(
    make: Make, speech: Speech, flood: str
):
    parts, says = FLOODS[flood]
    parts = parts(speech)

    with flooding(parts) as server:
        async with measured() as cost:
            with pytest.raises(ResponseTooLarge, match=says):
                await ask(make, server.url)

    assert server.asked == 1
    cost.check()


@pytest.mark.slow
@WIRES
async def test_a_response_at_the_bounds_is_taken(make: Make, speech: Speech):
    cases: list[Parts] = [
        [(head(), 1), *lines(speech, EVENT_BYTES)],
        [(head(), 1), *body(speech, EVENT_BYTES)],
        [(head() + speech.begin, 1), (speech.text, EVENTS - 4), (speech.end, 1)],
        [(head(), 1), *[(speech.call % index, 1) for index in range(CALLS)], (speech.end, 1)],
    ]
    for parts in cases:
        with flooding(parts) as server:
            response = await ask(make, server.url)
        assert len(response.text) > 1_000_000 or len(response.calls) == CALLS


@WIRES
async def test_response_bytes_changes_how_much_is_taken(make: Make, speech: Speech):
    said = speech.begin + speech.text * 10 + speech.end
    with flooding([(head(), 1), (said, 1)]) as server:
        assert "abcabc" in (await ask(make, server.url, response_bytes=len(said))).text
        with pytest.raises(ResponseTooLarge, match=f"more than {len(said) - len(speech.end) - 1:,} bytes"):
            await ask(make, server.url, response_bytes=len(said) - len(speech.end) - 1)


@pytest.mark.slow
@WIRES
async def test_what_is_complete_is_an_answer_though_the_server_never_ends(make: Make, speech: Speech):
    said = speech.begin + speech.text + speech.end
    with flooding([(head() + said, 1), (b": and on\n\n", 20_000_000)]) as server:
        assert (await ask(make, server.url)).text == "abc"


# --- many small values, names and ids -----------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b'{"choices":[{"message":{"content":[' + b'"a",' * 900_000 + b"1]}}]}",
        b'{"choices":[{"message":{"content":[' + b"[]," * 1_200_000 + b"1]}}]}",
        b'{"choices":[' + b"{}," * 1_200_000 + b"{}]}",
        b'{"error":[' + b"{}," * 1_200_000 + b"{}]}",
    ],
    ids=["texts", "lists", "choices", "errors"],
)
async def test_a_body_of_a_million_values_is_refused_before_it_is_read(text: bytes):
    for parts in ([(head() + text, 1)], [(head() + b"data: " + text + b"\n\n", 1)]):
        with flooding(parts) as server:
            async with measured() as cost:
                with pytest.raises(ResponseTooLarge, match="more than 500,000 values in one event"):
                    await ask(OpenAIChat, server.url)
        cost.check()


@pytest.mark.slow
async def test_a_huge_index_a_long_name_and_a_long_id_cost_nothing():
    def event(**piece: Any) -> bytes:
        return b"data: " + json.dumps({"choices": [{"delta": {"tool_calls": [piece]}}]}).encode() + b"\n\n"

    pieces = [event(index=10**30, id="i" * 100_000, function={"name": "f"})]
    pieces += [event(index=10**30, function={"name": f"name{n}"}) for n in range(20_000)]
    with flooding([(head() + b"".join(pieces) + OPENAI.end, 1)]) as server:
        async with measured() as cost:
            response = await ask(OpenAIChat, server.url)

    (made,) = response.calls
    assert len(made.name) < 300
    assert made.provider_id == ""
    cost.check()


# --- errors -----------------------------------------------------------------------------


@WIRES
@pytest.mark.parametrize("status", [400, 500])
async def test_of_an_errors_body_only_the_beginning_is_read(make: Make, speech: Speech, status: int):
    with flooding([(head(status), 1), *letters(MUCH)]) as server:
        async with measured() as cost:
            with pytest.raises(ModelError) as caught:
                await ask(make, server.url, retries=1)

    assert len(str(caught.value)) < 1000
    assert server.sent < 30_000_000  # what the system's buffers took
    cost.check()


@pytest.mark.parametrize("page", [b"<", b"<script", b"<script>", b"<head <style>", b"</", b"< a"])
async def test_a_page_of_nothing_but_markup_is_shown_without_stalling(page: bytes):
    for status in (200, 502):
        with flooding([(head(status) + page * (65_000 // len(page)), 1)]) as server:
            async with measured() as cost:
                with pytest.raises(ModelError, match="HTML"):
                    await ask(OpenAIChat, server.url, retries=0)
        cost.check()


async def test_an_error_with_numbers_of_any_length_is_an_error_of_ours():
    text = f"prompt is too long: {'9' * 20_000} tokens > {'9' * 20_000} maximum"
    for answer in (
        head(400) + json.dumps({"error": {"message": text}}).encode(),
        head() + b"data: " + json.dumps({"error": {"message": text}}).encode() + b"\n\n",
    ):
        with flooding([(answer, 1)]) as server, pytest.raises(ModelError, match="too long"):
            await ask(OpenAIChat, server.url)


@WIRES
async def test_headers_without_end_are_an_error(make: Make, speech: Speech):
    for line in (b"X-%d: y\r\n", b"X: " + b"y" * 100_000 + b"\r\n"):
        with flooding([(b"HTTP/1.1 200 OK\r\n", 1), (line.replace(b"%d", b"1"), MUCH // len(line))]) as server:
            async with measured() as cost:
                with pytest.raises(ModelUnavailable):
                    await ask(make, server.url, retries=0)
        cost.check()


async def test_a_redirect_is_not_followed():
    answer = [(head(302, "Location: /v1/chat/completions"), 1)]
    with flooding(answer) as server, pytest.raises(ModelRefused, match="redirects to"):
        await ask(OpenAIChat, server.url)
    assert server.asked == 1


async def test_an_encoding_that_was_not_asked_for_is_refused():
    unknown = [(head(200, "Content-Encoding: br") + b"xyz", 1)]
    with flooding(unknown) as server, pytest.raises(ModelRefused, match="the encoding 'br'"):
        await ask(OpenAIChat, server.url)
    broken = [(head(200, "Content-Encoding: gzip") + b"xyz", 1)]
    with flooding(broken) as server, pytest.raises(ModelUnavailable, match="can't be unpacked"):
        await ask(OpenAIChat, server.url, retries=1)
    assert server.asked == 2


# --- time -------------------------------------------------------------------------------


@WIRES
@pytest.mark.parametrize("drop", ["comments", "text"])
async def test_a_response_that_comes_drop_by_drop_ends_when_its_time_is_up(make: Make, speech: Speech, drop: str):
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(head() + speech.begin)
        while True:
            writer.write(b": keep-alive\n\n" if drop == "comments" else speech.text)
            await writer.drain()
            await asyncio.sleep(0.01)

    async with serving(drip) as server:
        with pytest.raises(ModelUnavailable, match=r"was not complete after 0\.2 s \(tried 1 time\)"):
            await ask(make, server.url, total=0.2)
    assert len(server.asked) == 1


# --- usage ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claimed", "counted"),
    [
        (-5, 0),
        (10**30, TOKENS),
        (TOKENS, TOKENS),
        ("12", 0),
        (12.7, 12),
        (-1e300, 0),
        (None, 0),
        ([1], 0),
        (True, 1),
    ],
)
async def test_only_numbers_of_tokens_are_counted(claimed: Any, counted: int):
    used = {"prompt_tokens": claimed, "completion_tokens": claimed}
    chunk = b"data: " + json.dumps({"choices": [], "usage": used}).encode() + b"\n\n"
    async with serving(stream(OPENAI.text, chunk, OPENAI.end)) as server:
        usage = (await ask(OpenAIChat, server.url)).usage
    assert (usage.input_tokens, usage.output_tokens) == (counted, counted)

    used = {"input_tokens": claimed, "output_tokens": claimed}
    chunk = b"data: " + json.dumps({"type": "message_start", "message": {"usage": used}}).encode() + b"\n\n"
    async with serving(stream(chunk, ANTHROPIC.begin, ANTHROPIC.text, ANTHROPIC.end)) as server:
        usage = (await ask(Anthropic, server.url)).usage
    assert (usage.input_tokens, usage.output_tokens) == (counted, counted)


@pytest.mark.parametrize(
    ("claimed", "counted"),
    [
        (Usage(-5, -5, -5), Usage()),
        (Usage(float("nan"), 7, 0), Usage(0, 7)),  # pyright: ignore[reportArgumentType] - what a model may claim
        (Usage("9", 10**40, 0), Usage(0, TOKENS)),  # pyright: ignore[reportArgumentType]
        (Usage(10, 1, 10**9), Usage(10, 1, 10)),
    ],
    ids=["negative", "no number", "a text and too many", "more cached than read"],
)
async def test_what_a_model_or_hook_claims_is_counted_as_it_can_be_and_the_log_stays_readable(
    desk: Desk, claimed: Usage, counted: Usage
):
    class Claims:
        name = "claims"

        async def respond(self, request: Request, emit: Any) -> Response:
            return Response("done", usage=claimed)

    agent = Agent("a", model=Claims())
    assert (await desk.prompt(agent)).usage == counted
    assert (await desk.resume(agent)).usage == counted


# --- what any model and hook may return -------------------------------------------------


async def test_a_response_of_too_much_text_fails_the_turn_whoever_made_it(desk: Desk):
    at_bound = Agent("a", model=Script(["x" * TEXT]))
    assert len((await desk.prompt(at_bound, id="s")).text) == TEXT

    def more(*_: Any) -> Response:
        return Response("x" * (TEXT + 1))

    for number, agent in enumerate(
        [
            Agent("a", model=Script(["x" * (TEXT + 1)])),
            Agent("a", model=Script(["x"]), hooks=Hooks(before_model=[more])),
            Agent("a", model=Script(["x"]), hooks=Hooks(post_response=[more])),
        ]
    ):
        with pytest.raises(ResponseTooLarge, match="more than 4,000,000 characters"):
            await desk.prompt(agent, id=f"t{number}")


async def test_a_fallback_model_is_asked_where_the_first_one_floods(desk: Desk):
    with flooding([(head(), 1), *lines(OPENAI, MUCH)]) as server:
        first = OpenAIChat("m", base_url=server.url, **options())
        agent = Agent("a", model=fallback_models(first, Script(["from the other"])), limits=Limits())
        reply = await desk.prompt(agent)
        await first.close()

    assert reply.text == "from the other"
