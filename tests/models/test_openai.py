"""OpenAIChat: what is sent, and what becomes of everything that servers answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from upcall.errors import ModelUnavailable
from upcall.messages import Call, Response, Usage
from upcall.models import openai_body
from upcall.models.history import generate_id

from .history import BROKEN, DEEP, HELLO, RICH, TOOLS, bare
from .openai_wire import DONE, KEY, OK, STOP, ask, event, said, tool
from .rules import check_openai
from .server import gzipped, pieces, plain, stream


async def test_a_stream_becomes_text_usage_and_stop():
    response, heard, server = await ask(OK, api_key=KEY)
    assert response == Response("Héllo 🙂", usage=Usage(9, 4), stop="end", model="m-1")
    assert heard.all == [("text", "Hé"), ("text", "llo 🙂")]
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100_000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_bytes_may_be_cut_anywhere_with_any_line_ending(size: int, end: bytes):
    body = (
        b": keep-alive\n\n"
        + said(content="Hé")
        + b"event: x\nid: 7\nretry: 1\n"
        + said(content="llo 🙂")
        + STOP
        + DONE
    )
    response, heard, _ = await ask(pieces(body.replace(b"\n", end), size))
    assert response.text == heard.text == "Héllo 🙂"


async def test_many_events_in_one_packet_are_all_read():
    body = b"".join(said(content=f"{i} ") for i in range(500)) + STOP + DONE
    response, heard, _ = await ask(stream(body))
    assert response.text == "".join(f"{i} " for i in range(500))
    assert len(heard.all) == 500


async def test_data_without_a_space_and_data_over_two_lines_are_read():
    body = b'data:{"choices":[{"delta":\ndata: {"content":"x"}}]}\n\n' + STOP + DONE
    assert (await ask(stream(body)))[0].text == "x"


async def test_a_huge_line_in_small_packets_is_read():
    text = "é" * 300_000
    response, _, _ = await ask(pieces(said(content=text) + STOP + DONE, 4096))
    assert response.text == text


async def test_calls_interleaved_by_index_without_later_ids_are_put_together():
    body = stream(
        said(tool_calls=[tool(0, "call_0", "read_config", ""), tool(1, "call_1", "ping", "")]),
        said(tool_calls=[tool(1, args="{")]),
        said(tool_calls=[tool(0, args='{"path"')]),
        said(tool_calls=[tool(1, args="}"), tool(0, args=': "é"}')]),
        event({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}),
        DONE,
    )
    response, heard, _ = await ask(body, request=TOOLS)
    assert bare(response.calls) == (Call("", "read_config", {"path": "é"}), Call("", "ping", {}))
    assert response.stop == "calls"
    assert heard.all == []


@pytest.mark.parametrize(
    "calls",
    [
        [tool(0, "a", "read_config", '{"path":"1"}'), tool(1, "b", "read_config", '{"path":"2"}')],
        [tool(0, "call_0", "read_config", '{"path":"1"}'), tool(1, "call_0", "read_config", '{"path":"2"}')],
        [tool(0, "a", "read_config", '{"path":"1"}'), tool(0, "b", "read_config", '{"path":"2"}')],
        [tool(None, None, "read_config", '{"path":"1"}'), tool(None, None, "read_config", '{"path":"2"}')],
        [tool(None, "call_0", "read_config", '{"path":"1"}'), tool(None, "call_0", "read_config", '{"path":"2"}')],
        [tool(0, None, "read_config", {"path": "1"}), tool(0, None, "read_config", {"path": "2"})],
    ],
)
@pytest.mark.parametrize("together", [True, False])
async def test_whole_calls_are_told_apart_with_missing_or_repeated_ids(calls: list[Any], together: bool):
    chunks = [said(tool_calls=calls)] if together else [said(tool_calls=[c]) for c in calls]
    response, _, _ = await ask(stream(*chunks, STOP, DONE), request=TOOLS)
    assert [c.args for c in response.calls] == [{"path": "1"}, {"path": "2"}]


async def test_name_and_id_repeated_with_every_piece_are_one_call():
    parts = [tool(0, "a", "read_config", part) for part in ('{"pa', 'th":', '"x"}')]
    response, _, _ = await ask(stream(*[said(tool_calls=[p]) for p in parts], STOP, DONE), request=TOOLS)
    assert bare(response.calls) == (Call("", "read_config", {"path": "x"}),)


@pytest.mark.parametrize("raw", ['{"path": ', "[1]", "nonsense", '"text"', DEEP])
async def test_arguments_that_are_no_object_are_kept_as_broken(raw: str):
    response, _, _ = await ask(
        stream(said(tool_calls=[tool(0, "a", "read_config", raw)]), STOP, DONE), request=TOOLS
    )
    assert bare(response.calls) == (Call("", "read_config", {}, raw),)


async def test_a_chunk_that_is_nested_too_deeply_is_asked_for_again_and_then_an_error():
    deep = tool(0, "a", "read_config", {"x": "here"})
    body = stream(said(tool_calls=[deep]).replace(b'"here"', b"[" * 5_000 + b"]" * 5_000), STOP, DONE)
    with pytest.raises(ModelUnavailable, match="can't be read"):
        await ask(body, request=TOOLS)


async def test_a_call_without_arguments_has_none():
    response, _, _ = await ask(stream(said(tool_calls=[tool(0, "a", "ping")]), STOP, DONE), request=TOOLS)
    assert bare(response.calls) == (Call("", "ping", {}),)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_both_names_of_reasoning_are_thinking(field: str):
    body = stream(said(**{field: "let "}, content=""), said(**{field: "me"}), said(content="ok"), STOP, DONE)
    response, heard, _ = await ask(body)
    assert (response.text, heard.thinking, response.thinking[0].text) == ("ok", "let me", "let me")


async def test_content_as_a_list_of_parts_is_read():
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "ok"}]
    response, heard, _ = await ask(stream(said(content=parts), STOP, DONE))
    assert (response.text, heard.thinking) == ("ok", "hm")


async def test_a_refusal_is_text_with_its_own_stop():
    response, _, _ = await ask(stream(said(refusal="I can't."), STOP, DONE))
    assert (response.text, response.stop) == ("I can't.", "refused")


async def test_no_usage_counts_as_zero_and_cached_tokens_are_counted():
    assert (await ask(stream(said(content="x"), STOP, DONE)))[0].usage == Usage()
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 7, "new": 1}}
    assert (await ask(stream(said(content="x"), STOP, event({"usage": usage}))))[0].usage == Usage(9, 1, 7)


@pytest.mark.parametrize("ending", [(STOP,), (DONE,), (STOP, DONE), (STOP.rstrip(),)])
async def test_an_end_mark_may_be_missing(ending: tuple[bytes, ...]):
    assert (await ask(stream(said(content="x"), *ending)))[0].text == "x"


async def test_unknown_fields_and_events_are_ignored():
    extra = event({"object": "surprise", "obfuscation": "zz"}) + b"event: ping\ndata: {}\n\n"
    assert (await ask(stream(extra, said(content="x", audio=None, annotations=[]), STOP, DONE)))[0].text == "x"


async def test_a_plain_json_body_is_an_answer_too():
    message = {"content": "x", "tool_calls": [tool(None, "a", "ping", "{}")], "reasoning_content": "hm"}
    whole = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 1}}
    response, heard, _ = await ask(plain(200, "\n\n " + json.dumps(whole)))
    assert (response.text, bare(response.calls), response.stop) == ("x", (Call("", "ping", {}),), "calls")
    assert heard.all == [("text", "x"), ("thinking", "hm")]


async def test_a_stream_in_gzip_is_unpacked():
    assert (await ask(gzipped(said(content="x") + STOP + DONE)))[0].text == "x"


# --- what is sent -----------------------------------------------------------------------


def test_the_whole_body_of_a_rich_history_is_as_the_api_wants_it():
    body = openai_body(RICH, "m-1")
    check_openai(body["messages"])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
        {"role": "system", "content": "Hurry."},
        {"role": "user", "content": "now"},
        {
            "role": "assistant",
            "content": "I will read.",
            "tool_calls": [
                {
                    "id": generate_id("r0c0"),
                    "type": "function",
                    "function": {"name": "read_config", "arguments": '{"path":"x"}'},
                },
                {
                    "id": generate_id("r0c1"),
                    "type": "function",
                    "function": {"name": "ping", "arguments": '{"invalid_json":"{\\"a\\":"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": generate_id("r0c0"), "content": "Error: no such file"},
        {"role": "tool", "tool_call_id": generate_id("r0c1"), "content": ""},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": f"From the result of ping ({generate_id('r0c1')}):"},
                {"type": "image_url", "image_url": {"url": "https://x.test/i.png"}},
            ],
        },
        {"role": "user", "content": "(in between)"},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": "Really."},
        {"role": "user", "content": "Thanks."},
    ]
    assert body["tools"][1] == {
        "type": "function",
        "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}},
    }
    assert body["stream_options"] == {"include_usage": True}
    assert "response_format" not in body


def test_a_history_with_holes_and_repeated_ids_is_made_valid():
    messages = openai_body(BROKEN, "m")["messages"]
    check_openai(messages)
    assert [m["content"] for m in messages if m["role"] == "tool"][:4] == [
        "cancelled: this call was not completed",
        "b",
        "first",
        "second",
    ]


def test_an_output_schema_is_sent_as_response_format():
    body = openai_body(HELLO.replace(output={"type": "object"}), "m")
    schema = {"name": "output", "schema": {"type": "object"}, "strict": False}
    assert body["response_format"] == {"type": "json_schema", "json_schema": schema}


async def test_reasoning_goes_back_only_while_its_calls_are_worked_on():
    answer = stream(said(reasoning_content="hm"), said(tool_calls=[tool(0, "a", "ping", "{}")]), STOP, DONE)
    response, _, _ = await ask(answer, request=TOOLS)
    working = TOOLS.replace(messages=(*TOOLS.messages, response.message(0)))
    assert openai_body(working, "m")["messages"][2]["reasoning_content"] == "hm"
    later = working.replace(messages=(*working.messages, *HELLO.messages))
    assert "reasoning_content" not in openai_body(later, "m")["messages"][2]
