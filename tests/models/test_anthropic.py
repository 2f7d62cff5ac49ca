"""Anthropic against a server that behaves as badly as real ones do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from upcall.errors import ContextTooLong, ModelRefused
from upcall.messages import Call, Message, Response, Result, Text, Thinking, Usage, user
from upcall.models import Anthropic, anthropic_body
from upcall.models.history import generate_id

from .anthropic_wire import KEY, LAST, OK, OVERLOADED, ask, block, delta, event, refused, start, stop, text, use
from .history import BROKEN, DEEP, HELLO, PING, RICH, TOOLS, bare
from .rules import check_anthropic
from .server import Sleeps, chunk, cut, gzipped, hanging, head, pieces, plain, stream


async def test_a_stream_becomes_text_usage_and_stop():
    response, heard, server = await ask(OK, api_key=KEY)
    assert response == Response("Héllo 🙂", usage=Usage(9, 4), stop="end", model="m-1")
    assert heard.all == [("text", "Hé"), ("text", "llo 🙂")]
    assert server.asked[0].path == "/v1/messages"
    assert server.asked[0].headers["x-api-key"] == KEY
    assert server.asked[0].headers["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize("size", [1, 2, 5, 100_000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_bytes_may_be_cut_anywhere_with_any_line_ending(size: int, end: bytes):
    body = start() + b": comment\n\n" + text(0, "Hé", "llo 🙂") + stop() + LAST
    response, heard, _ = await ask(pieces(body.replace(b"\n", end), size))
    assert response.text == heard.text == "Héllo 🙂"


async def test_input_counts_what_was_cached_and_what_was_written_to_the_cache():
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 70,
        "cache_creation_input_tokens": 20,
        "output_tokens": 1,
    }
    response, _, _ = await ask(stream(start(**usage), text(0, "x"), stop(output=8), LAST))
    assert response.usage == Usage(95, 8, 70, 20)


async def test_thoughts_keep_their_signatures_and_their_place():
    body = stream(
        start(),
        block(0, "thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="let "),
        delta(0, "thinking_delta", thinking="me"),
        delta(0, "signature_delta", signature="si"),
        delta(0, "signature_delta", signature="g1"),
        block(1, "redacted_thinking", data="xyz"),
        text(2, "First."),
        use(3, "ping"),
        block(4, "thinking", thinking="", signature=""),
        delta(4, "signature_delta", signature="sig2"),
        use(5, "read_config", '{"path"', ': "x"}', id="toolu_1"),
        stop("tool_use"),
        LAST,
    )
    response, heard, _ = await ask(body, request=TOOLS)
    assert (response.text, heard.thinking, response.stop) == ("First.", "let me", "calls")
    assert bare(response.calls) == (Call("", "ping", {}), Call("", "read_config", {"path": "x"}))
    messages = (*TOOLS.messages, response.message(0), Message("tool", (Result("r0c0", "a"), Result("r0c1", "b"))))
    sent = anthropic_body(TOOLS.replace(messages=messages), "m", thinking=2000)
    check_anthropic(sent)
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert sent["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "let me", "signature": "sig1"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "First."},
        {"type": "tool_use", "id": generate_id("r0c0"), "name": "ping", "input": {}},
        {"type": "thinking", "thinking": "", "signature": "sig2"},
        {"type": "tool_use", "id": generate_id("r0c1"), "name": "read_config", "input": {"path": "x"}},
    ]


async def test_the_usual_order_needs_no_layout():
    response, _, _ = await ask(stream(start(), text(0, "a"), use(1, "ping"), stop("tool_use"), LAST))
    assert response.layout == ()
    assert response.message(0).parts[0] == Text("a")
    assert bare(response.message(0).calls) == (Call("r0c0", "ping", {}),)


async def test_interleaved_blocks_with_repeated_ids_are_put_together_by_index():
    body = stream(
        start(),
        block(1, "tool_use", id="t", name="read_config", input={}),
        block(0, "tool_use", id="t", name="ping", input={}),
        delta(1, "input_json_delta", partial_json='{"path":'),
        delta(0, "input_json_delta", partial_json="{}"),
        delta(1, "input_json_delta", partial_json='"é"}'),
        stop("tool_use"),
        LAST,
    )
    response, _, _ = await ask(body, request=TOOLS)
    assert bare(response.calls) == (Call("", "ping", {}), Call("", "read_config", {"path": "é"}))


async def test_a_call_that_comes_whole_in_its_first_event_is_read():
    body = stream(start(), block(0, "tool_use", name="read_config", input={"path": "x"}), stop("tool_use"), LAST)
    assert bare((await ask(body))[0].calls) == (Call("", "read_config", {"path": "x"}),)


@pytest.mark.parametrize("raw", ['{"path": ', "[1]", "nonsense", DEEP])
async def test_arguments_that_are_no_object_are_kept_as_broken(raw: str):
    response, _, _ = await ask(stream(start(), use(0, "read_config", raw), stop("max_tokens"), LAST))
    assert (bare(response.calls), response.stop) == ((Call("", "read_config", {}, raw),), "length")


async def test_unknown_events_blocks_deltas_and_fields_are_ignored():
    body = stream(
        start(),
        event("surprise", index="what"[:0] or 1),
        block(0, "server_tool_use", name="web", input={}),
        delta(0, "mystery_delta", mystery=1),
        delta(7, "text_delta", text="of no block"),
        text(1, "x"),
        delta(1, "citations_delta", citation={}),
        stop(),
        LAST,
    )
    assert (await ask(body))[0].text == "x"


async def test_a_missing_message_stop_is_no_trouble_after_a_stop_reason():
    assert (await ask(stream(start(), text(0, "x"), stop())))[0].text == "x"


async def test_a_plain_json_body_is_an_answer_too():
    content = [{"type": "text", "text": "x"}, {"type": "tool_use", "id": "t", "name": "ping", "input": {"a": 1}}]
    whole = {"type": "message", "model": "m-1", "content": content, "stop_reason": "tool_use"}
    response, heard, _ = await ask(
        plain(200, json.dumps({**whole, "usage": {"input_tokens": 3, "output_tokens": 2}}))
    )
    expected = Response("x", (Call("", "ping", {"a": 1}),), usage=Usage(3, 2), stop="calls", model="m-1")
    assert response.replace(calls=bare(response.calls)) == expected
    assert heard.text == "x"


async def test_a_stream_in_gzip_is_unpacked():
    assert (await ask(gzipped(start() + text(0, "x") + stop() + LAST)))[0].text == "x"


async def test_a_huge_event_in_small_packets_is_read():
    long = "é" * 200_000
    assert (await ask(pieces(start() + text(0, long) + stop() + LAST, 4096)))[0].text == long


# --- trouble ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        cut(start(), text(0, "ba")),
        stream(start(), text(0, "ba"), OVERLOADED),
        stream(start(), text(0, "ba"), b"data: {oh no\n\n"),
        stream(start(), text(0, "ba")),
        hanging(head() + chunk(start() + text(0, "ba"))),
    ],
    ids=["closed socket", "error event", "no json", "early end", "silence"],
)
async def test_a_stream_that_breaks_in_the_middle_is_dropped_and_asked_again_whole(bad: Any):
    response, heard, server = await ask(bad, OK, silence=0.02)
    assert response.text == heard.text == "Héllo 🙂"
    assert heard.drops == 1
    assert server.asked[0].body == server.asked[1].body


@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_passing_trouble_is_asked_again(status: int):
    body = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    sleeps = Sleeps()
    response, _, server = await ask(plain(status, body, retry_after="3"), OK, _sleep=sleeps)
    assert (response.text, len(server.asked), sleeps.waits) == ("Héllo 🙂", 2, [3])


async def test_an_overload_that_stays_is_unavailable_with_its_reason():
    error = await refused(plain(529, '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'))
    assert str(error) == "anthropic:m-1: HTTP 529: Overloaded (tried 5 times)"


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", (210000, 200000)),
        ("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000", (209573, 200000)),
    ],
)
async def test_a_conversation_that_is_too_long_gives_both_numbers(message: str, numbers: tuple[int, int]):
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    error = await refused(plain(400, json.dumps(body)))
    assert isinstance(error, ContextTooLong)
    assert (error.tokens, error.limit) == numbers


async def test_a_request_that_is_too_large_is_too_long():
    assert isinstance(await refused(plain(413, "{}")), ContextTooLong)


async def test_an_invalid_request_in_a_stream_is_not_asked_again():
    bad = event("error", error={"type": "invalid_request_error", "message": "no"})
    assert isinstance(await refused(stream(start(), bad)), ModelRefused)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_bad_key_names_where_it_comes_from_and_never_the_key(status: int):
    error = await refused(
        plain(status, json.dumps({"error": {"message": f"invalid x-api-key {KEY}"}})), api_key=KEY
    )
    assert "ANTHROPIC_API_KEY" in str(error)


async def test_an_unknown_model_is_named():
    error = await refused(plain(404, '{"type":"error","error":{"type":"not_found_error","message":"model: m-1"}}'))
    assert "no model 'm-1'" in str(error)


async def test_html_instead_of_json_is_shown_short_and_clean():
    error = await refused(plain(200, "<html><body>Please log in</body></html>", "text/html"))
    assert "answered with HTML instead of JSON: 'Please log in'; is base_url right?" in str(error)


async def test_without_a_key_the_default_address_is_not_even_asked():
    with pytest.raises(ModelRefused, match="ANTHROPIC_API_KEY"):
        await Anthropic("m").respond(HELLO, None)


async def test_a_model_that_writes_less_is_asked_for_what_it_can():
    limit = "max_tokens: 16384 > 8192, which is the maximum allowed number of output tokens"
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": limit}}
    _, _, server = await ask(plain(400, json.dumps(body)), OK)
    assert [a.json["max_tokens"] for a in server.asked] == [16384, 8192]


def test_repr_shows_no_credentials():
    model = Anthropic("m", base_url="https://ann:hunter2@proxy.test/v1/", api_key=KEY)
    assert repr(model) == "Anthropic('m', base_url='https://proxy.test')"


# --- what is sent -----------------------------------------------------------------------


def test_the_whole_body_of_a_rich_history_is_as_the_api_wants_it():
    body = anthropic_body(RICH, "m-1", max_tokens=100)
    check_anthropic(body)
    cache = {"type": "ephemeral"}
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": cache}]
    assert body["tools"][0]["description"] == "Read a file."
    assert body["tools"][1] == {
        "name": "ping",
        "input_schema": {"type": "object", "properties": {}},
        "cache_control": cache,
    }
    assert (body["model"], body["max_tokens"], body["stream"]) == ("m-1", 100, True)
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                {"type": "text", "text": "<system_instruction>\nHurry.\n</system_instruction>"},
                {"type": "text", "text": "now"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig1"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "I will read."},
                {"type": "tool_use", "id": generate_id("r0c0"), "name": "read_config", "input": {"path": "x"}},
                {"type": "tool_use", "id": generate_id("r0c1"), "name": "ping", "input": {"invalid_json": '{"a":'}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": generate_id("r0c0"),
                    "content": [{"type": "text", "text": "no such file"}],
                    "is_error": True,
                },
                {
                    "type": "tool_result",
                    "tool_use_id": generate_id("r0c1"),
                    "content": [{"type": "image", "source": {"type": "url", "url": "https://x.test/i.png"}}],
                },
                {"type": "text", "text": "(in between)"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}, {"type": "text", "text": "Really."}]},
        {"role": "user", "content": [{"type": "text", "text": "Thanks.", "cache_control": cache}]},
    ]


def test_a_history_with_holes_and_repeated_ids_is_made_valid():
    body = anthropic_body(BROKEN, "m")
    check_anthropic(body)
    assert body["messages"][0]["content"][0]["text"] == "(The conversation begins here.)"


def test_a_summary_without_tools_declares_those_of_its_history_and_allows_none():
    body = anthropic_body(RICH.replace(tools=()), "m")
    check_anthropic(body)
    assert [t["name"] for t in body["tools"]] == ["read_config", "ping"]
    assert body["tool_choice"] == {"type": "none"}


def test_an_empty_conversation_is_still_a_request():
    check_anthropic(anthropic_body(HELLO.replace(messages=(), instructions=" "), "m"))


def test_a_conversation_that_ends_with_the_assistant_is_asked_to_continue():
    body = anthropic_body(HELLO.replace(messages=(user("hi"), Message("assistant", (Text("ho"),)))), "m")
    check_anthropic(body)
    assert body["messages"][-1]["content"][0]["text"] == "(Go on.)"


def test_thoughts_of_other_providers_are_left_out_and_thinking_pauses_for_their_calls():
    thought = Thinking("hm", {"field": "reasoning_content"})
    messages = (
        user("hi"),
        Message("assistant", (thought, Call("r0c0", "ping", {}))),
        Message("tool", (Result("r0c0", "pong"),)),
    )
    body = anthropic_body(HELLO.replace(messages=messages, tools=(PING,)), "m", thinking=2000)
    check_anthropic(body)
    assert "thinking" not in body
    assert len(body["messages"][1]["content"]) == 1


def test_thinking_may_be_left_to_the_model():
    assert anthropic_body(HELLO, "m", thinking="adaptive")["thinking"] == {"type": "adaptive"}
