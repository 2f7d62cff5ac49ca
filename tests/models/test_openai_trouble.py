"""OpenAIChat against servers that fail, and what it shows and keeps of keys and connections."""

from __future__ import annotations

import asyncio
import json
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from upcall.errors import ContextTooLong, ModelRefused, ModelUnavailable
from upcall.messages import Usage
from upcall.models import OpenAIChat

from .history import HELLO
from .openai_wire import DONE, KEY, OK, STOP, USAGE, ask, event, model, refused, said
from .server import END, Heard, Server, Sleeps, chunk, cut, hanging, head, plain, serving, stream

# --- trouble ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        cut(said(content="ba")),
        stream(said(content="ba"), event({"error": {"message": "Overloaded", "type": "overloaded_error"}})),
        stream(said(content="ba"), b"data: {oh no\n\n"),
        stream(said(content="ba")),
        hanging(head() + chunk(said(content="ba"))),
    ],
    ids=["closed socket", "error event", "no json", "early end", "silence"],
)
async def test_a_stream_that_breaks_in_the_middle_is_dropped_and_asked_again_whole(bad: Any):
    response, heard, server = await ask(bad, OK, silence=0.02)
    assert response.text == heard.text == "Héllo 🙂"
    assert heard.drops == 1
    assert server.asked[0].body == server.asked[1].body


async def test_nothing_is_dropped_when_nothing_was_said():
    _, heard, _ = await ask(cut(said(role="assistant")), OK)
    assert heard.drops == 0


async def test_a_socket_closed_after_the_last_word_is_an_answer():
    response, _, server = await ask(cut(said(content="x"), STOP))
    assert (response.text, len(server.asked)) == ("x", 1)


async def test_no_first_byte_is_unavailable_and_says_how_long_it_waited():
    error = await refused(hanging(b""), first_byte=0.02, retries=1)
    assert str(error) == "openai:m-1: no answer in 0.02 s (tried 2 times)"


async def test_headers_without_a_body_count_as_no_answer():
    assert "no answer in 0.02 s" in str(await refused(hanging(head()), first_byte=0.02, retries=0))


async def test_a_refused_connection_is_tried_again_and_then_unavailable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        sleeps = Sleeps()
        chat = OpenAIChat("m", base_url=f"http://127.0.0.1:{taken.getsockname()[1]}", retries=3, _sleep=sleeps)
        with pytest.raises(ModelUnavailable, match="tried 4 times") as caught:
            await chat.respond(HELLO, None)
        await chat.close()
    assert caught.value.tries == 4
    assert len(sleeps.waits) == 3


async def test_waits_grow_and_are_spread_by_chance():
    sleeps = Sleeps()
    await refused(plain(500, "{}"), retries=8, _sleep=sleeps, _chance=lambda: 1.0)
    assert sleeps.waits == [0.5, 1, 2, 4, 8, 16, 30, 30]
    sleeps = Sleeps()
    await refused(plain(500, "{}"), retries=1, _sleep=sleeps, _chance=lambda: 0.0)
    assert sleeps.waits == [0.25]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
async def test_passing_trouble_is_asked_again(status: int):
    response, _, server = await ask(plain(status, '{"error":{"message":"later"}}'), OK)
    assert (response.text, len(server.asked)) == ("Héllo 🙂", 2)


async def test_retry_after_is_obeyed_in_seconds_milliseconds_and_as_a_date():
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    sleeps = Sleeps()
    await ask(
        plain(429, "{}", retry_after="7"),
        plain(429, "{}", retry_after_ms="1500"),
        plain(503, "{}", retry_after=soon),
        OK,
        _sleep=sleeps,
    )
    assert sleeps.waits[:2] == [7, 1.5]
    assert 50 < sleeps.waits[2] <= 60


async def test_a_server_that_asks_for_an_hour_is_given_up_at_once():
    error = await refused(plain(429, '{"error":"slow down"}', retry_after="3600"), retries=9)
    assert str(error) == "openai:m-1: HTTP 429: slow down; the server asks for a retry after 3600 s (tried 1 time)"


async def test_a_used_up_quota_is_not_asked_again():
    body = '{"error":{"message":"You exceeded your current quota","type":"insufficient_quota"}}'
    assert isinstance(await refused(plain(429, body)), ModelRefused)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_bad_key_names_where_it_comes_from_and_never_the_key(status: int):
    error = await refused(
        plain(status, json.dumps({"error": {"message": f"Incorrect API key: {KEY}"}})), api_key=KEY
    )
    assert isinstance(error, ModelRefused)
    assert "OPENAI_API_KEY" in str(error)
    assert "api_key=" in str(error)


async def test_a_key_in_any_other_error_is_starred_out():
    error = await refused(plain(400, json.dumps({"error": {"message": f"bad header Bearer {KEY}"}})), api_key=KEY)
    assert "***" in str(error)


async def test_an_unknown_model_is_named():
    error = await refused(plain(404, '{"error":{"message":"The model does not exist","code":"model_not_found"}}'))
    assert "no model 'm-1'" in str(error)


@pytest.mark.parametrize(
    "body",
    [
        {
            "message": "This model's maximum context length is 8192 tokens. However, your messages "
            "resulted in 9000 tokens.",
            "code": "context_length_exceeded",
        },
        {"message": "maximum context length is 8192 tokens. However, you requested 9000 tokens (1 of output)"},
        {
            "code": 400,
            "message": "request (9000 tokens) exceeds the available context size (8192 tokens)",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 9000,
            "n_ctx": 8192,
        },
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_that_is_too_long_gives_both_numbers(body: dict[str, Any], streamed: bool):
    answer = stream(event({"error": body})) if streamed else plain(400, json.dumps({"error": body}))
    error = await refused(answer)
    assert isinstance(error, ContextTooLong)
    assert (error.tokens, error.limit) == (9000, 8192)


@pytest.mark.parametrize(("status", "kind"), [(200, ModelRefused), (404, ModelRefused), (502, ModelUnavailable)])
async def test_html_instead_of_json_is_shown_short_and_clean(status: int, kind: type[Exception]):
    page = "<!doctype html><head><style>b{}</style></head><body><h1>Bad <b>gateway</b></h1>" + "x" * 999
    error = await refused(plain(status, page, "text/html"), retries=0)
    assert isinstance(error, kind)
    assert "HTML instead of JSON: 'Bad gateway xx" in str(error)
    assert "<" not in str(error)
    assert len(str(error)) < 450


async def test_a_redirect_is_not_followed_with_the_key():
    error = await refused(plain(307, "", Location="http://elsewhere.test/v1"), api_key=KEY)
    assert "redirects to http://elsewhere.test/v1" in str(error)


async def test_other_refusals_are_raised_at_once_with_the_reason():
    error = await refused(plain(400, '{"detail":[{"msg":"field required"}]}'), retries=5)
    assert isinstance(error, ModelRefused)
    assert "field required" in str(error)
    assert error.status == 400


async def test_an_error_with_status_200_is_judged_by_its_code():
    body = '{"error":{"message":"Rate limited upstream","code":429}}'
    response, _, server = await ask(plain(200, body), OK)
    assert (response.text, len(server.asked)) == ("Héllo 🙂", 2)


@pytest.mark.parametrize("field", ["response_format", "stream_options"])
async def test_an_option_that_the_server_refuses_is_left_out_from_then_on(field: str):
    request = HELLO.replace(output={"type": "object"})
    async with serving(plain(400, json.dumps({"error": f"Unknown parameter: {field}"})), OK) as server:
        chat = model(server)
        await chat.respond(request, None)
        await chat.respond(request, None)
        await chat.close()
    assert [field in a.json for a in server.asked] == [True, False, False]


# --- keys, addresses, connections -------------------------------------------------------


async def test_without_a_key_the_default_address_is_not_even_asked():
    with pytest.raises(ModelRefused, match="OPENAI_API_KEY"):
        await OpenAIChat("gpt-6").respond(HELLO, None)


async def test_neither_repr_nor_errors_show_credentials():
    chat = OpenAIChat("m", base_url="http://ann:hunter2@127.0.0.1:9/v1", api_key=KEY, retries=0)
    assert repr(chat) == "OpenAIChat('m', base_url='http://127.0.0.1:9/v1')"
    with pytest.raises(ModelUnavailable) as caught:
        await chat.respond(HELLO, None)
    await chat.close()
    error: BaseException | None = caught.value
    while error is not None:
        assert KEY not in repr(error)
        assert "hunter2" not in repr(error)
        error = error.__cause__ or error.__context__


async def test_credentials_in_the_base_url_are_used_where_no_key_is_given():
    async with serving(OK) as server:
        chat = OpenAIChat("m", base_url=server.url.replace("//", "//ann:pw@"))
        await chat.respond(HELLO, None)
        await chat.close()
    assert server.asked[0].headers["authorization"] == "Basic YW5uOnB3"


@pytest.mark.parametrize("url", ["http://[bad", "localhost:8000/v1", "ftp://x", "nonsense"])
async def test_a_base_url_that_is_none_is_refused(url: str):
    with pytest.raises(ModelRefused, match="is not a valid URL"):
        await OpenAIChat("m", base_url=url).respond(HELLO, None)


async def test_a_connection_is_used_again():
    async with serving(OK) as server:
        chat = model(server)
        for _ in range(3):
            await chat.respond(HELLO, None)
        await chat.close()
        await chat.close()
        assert server.connections == 1
        await chat.respond(HELLO, None)
        await chat.close()


async def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch):
    async with serving(OK) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        chat = OpenAIChat("m", base_url="http://models.test/v1")
        await chat.respond(HELLO, None)
        await chat.close()
    assert proxy.asked[0].path == "http://models.test/v1/chat/completions"


def test_loops_that_end_without_close_leave_no_open_session():
    async def once(chat: OpenAIChat | None = None) -> OpenAIChat:
        async with serving(OK) as server:
            chat = chat or model(server)
            await chat.respond(HELLO, None)
            return chat

    asyncio.run(once())
    loop = asyncio.new_event_loop()  # closed the hard way, without ending its generators
    chat = loop.run_until_complete(once())
    loop.close()
    del chat


def test_one_model_works_in_one_loop_after_the_other():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    chat = OpenAIChat("m", base_url=f"http://127.0.0.1:{port}", retries=0)

    async def once() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await Server([OK]).one(reader, writer)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", port):
            await chat.respond(HELLO, None)

    asyncio.run(once())
    asyncio.run(once())


async def test_a_cancelled_request_closes_its_connection():
    gone = asyncio.Event()

    async def wait(writer: asyncio.StreamWriter) -> None:
        writer.write(head() + chunk(said(content="x")))
        try:
            while not writer.transport.is_closing():
                writer.write(chunk(b": still here\n\n"))
                await asyncio.sleep(0.005)
        finally:
            gone.set()

    async with serving(wait) as server:
        chat, heard = model(server), Heard()
        task = asyncio.ensure_future(chat.respond(HELLO, heard))
        while not heard.all:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await gone.wait()
        await chat.close()


async def test_a_stream_that_stays_open_after_its_end_is_not_waited_for():
    response, _, _ = await ask(hanging(head() + chunk(said(content="x") + STOP + DONE)), silence=30)
    assert response.text == "x"


async def test_an_end_that_comes_late_is_still_read():
    async def late(writer: asyncio.StreamWriter) -> None:
        writer.write(head() + chunk(said(content="x") + STOP))
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(chunk(USAGE) + chunk(DONE) + END)

    assert (await ask(late))[0].usage == Usage(9, 4)
