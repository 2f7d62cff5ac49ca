"""Script, call and fallback_models."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from upcall.contracts import Emit
from upcall.errors import ContextTooLong, ModelRefused, ModelUnavailable, ScriptExhausted, SetupError
from upcall.messages import Call, Request, Response, Thinking, Usage
from upcall.models import Script, call, fallback_models

from .history import HELLO
from .server import Heard


def fails(request: Request) -> ValueError:
    return ValueError(request.agent)


async def later(request: Request) -> str:
    return f"later {request.messages[0].text}"


async def test_replies_are_played_in_order_and_running_out_is_an_error():
    told = Response("told", usage=Usage(1, 2))
    script = Script(
        [
            "text",
            call("read", path="x", name="y", tool="z"),
            [call("a"), call("b")],
            ["both ", call("a"), "sides"],
            told,
            lambda request: f"{request.messages[0].text} back",
            lambda _: call("decided"),
            later,
        ]
    )
    got = [await script.respond(HELLO, None) for _ in range(8)]
    assert got[0] == Response("text")
    assert got[1].calls == (Call("", "read", {"path": "x", "name": "y", "tool": "z"}),)
    assert got[2].calls == (Call("", "a", {}), Call("", "b", {}))
    assert (got[3].text, got[3].calls) == ("both sides", (Call("", "a", {}),))
    assert got[4] is told
    assert [r.text for r in got[5:]] == ["hi back", "", "later hi"]
    assert got[6].calls == (Call("", "decided", {}),)
    with pytest.raises(ScriptExhausted, match="all 8 were used"):
        await script.respond(HELLO, None)


@pytest.mark.parametrize("error", [ValueError("boom"), ValueError, fails])
async def test_an_exception_is_raised_whether_instance_class_or_returned(error: Any):
    script = Script([error, "after"])
    with pytest.raises(ValueError):
        await script.respond(HELLO, None)
    assert (await script.respond(HELLO, None)).text == "after"


async def test_one_function_is_asked_every_time():
    script = Script(lambda request: str(len(request.messages)))
    assert [(await script.respond(HELLO, None)).text for _ in range(3)] == ["1", "1", "1"]
    assert (await Script(later).respond(HELLO, None)).text == "later hi"


async def test_text_is_emitted_word_by_word():
    heard = Heard()
    await Script([Response(" two  words\n", thinking=(Thinking("hm"),))]).respond(HELLO, heard)
    assert heard.all == [("thinking", "hm"), ("text", " two  "), ("text", "words\n")]


@pytest.mark.parametrize("nonsense", [3, None, [3], int])
async def test_what_can_not_be_played_is_found_when_the_script_is_made(nonsense: Any):
    with pytest.raises(SetupError, match="can't reply with"):
        Script([nonsense])
    with pytest.raises(SetupError, match="can't reply with"):
        await Script(lambda _: nonsense).respond(HELLO, None)


def test_importing_scripts_imports_nothing_heavy():
    code = (
        "import sys; from upcall.models import Script, call, OpenAIChat, Anthropic, Local, resolve_model;"
        "OpenAIChat('m', api_key='k'); resolve_model('google:x');"
        "sys.exit(any(m in sys.modules for m in ('aiohttp', 'xllamacpp', 'pydantic', 'pydantic_ai')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- fallback ---------------------------------------------------------------------------


class Breaking:
    """Says something, then fails."""

    name = "breaking"

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        if emit is not None:
            emit("text", "ha")
        raise ModelUnavailable(self.name, "broke")


async def test_the_next_model_is_asked_and_what_the_first_said_is_taken_back():
    model, heard = fallback_models(Breaking(), Script(["other"])), Heard()
    assert (await model.respond(HELLO, heard)).text == "other"
    assert heard.all == [("text", "ha"), ("drop", ""), ("text", "other")]
    assert model.name == "breaking or script"


async def test_nothing_is_taken_back_when_nothing_was_said():
    heard = Heard()
    await fallback_models(Script([]), Script(["other"])).respond(HELLO, heard)
    assert heard.drops == 0


async def test_a_conversation_that_is_too_long_goes_to_no_other_model():
    model = fallback_models(Script([ContextTooLong("m", 2, 1)]), Script(["other"]))
    with pytest.raises(ContextTooLong):
        await model.respond(HELLO, None)


async def test_when_all_fail_the_last_error_tells_of_the_others():
    model = fallback_models(Breaking(), Script([]), Script([ModelRefused("m", "no")]))
    with pytest.raises(ModelRefused) as caught:
        await model.respond(HELLO, None)
    assert [n.partition(":")[0] for n in caught.value.__notes__] == ["before it", "before it"]


async def test_the_next_model_is_asked_whatever_error_the_first_raised():
    model = fallback_models(Script([ZeroDivisionError()]), Script(["x"]))
    assert (await model.respond(HELLO, None)).text == "x"


async def test_a_cancelled_call_is_not_asked_of_the_next_model():
    with pytest.raises(asyncio.CancelledError):
        await fallback_models(Script([asyncio.CancelledError()]), Script(["x"])).respond(HELLO, None)


def test_one_model_is_not_a_fallback():
    with pytest.raises(SetupError):
        fallback_models(Script([]))
