"""An answer that repeats a mask does not make the process write the hidden value as often."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.types import ASGIApp, Message

import upcall.web
from editor.raw import raw_agent
from security.measuring import MOST_GROWTH, grown, measured
from upcall import Agent, Runtime, tool
from upcall.callbacks import Callback
from upcall.hosts.mcp.forms import APPROVE, Reply, answer_of
from upcall.models import Script, call
from upcall.observe.form import InvalidInput
from upcall.observe.redact import Redactor
from upcall.safety.bounds import TooLarge

MASK = "⟦hidden 1000000 #1⟧"
REPEATED: dict[str, Any] = {
    "in one text": {"n": MASK * 500},
    "in many texts": {"n": [f"a {MASK}" for _ in range(500)]},
    "as many values": {"n": [MASK] * 500},
    "in names": {f"{number} {MASK}": 1 for number in range(500)},
}


def hidden_megabyte() -> dict[str, Any]:
    return {"password": "s" * 1_000_000, "n": 1}


@pytest.mark.parametrize("where", REPEATED)
def test_hidden_values_are_inserted_up_to_the_bound_of_a_calls_arguments(where: str) -> None:
    args = hidden_megabyte()

    with grown() as size, pytest.raises(TooLarge, match="2000000 characters together"):
        Redactor().restore(REPEATED[where], args)

    size.check()


def test_hidden_values_that_are_left_in_their_places_come_back_however_long_they_are() -> None:
    args = {"password": "s" * 1_000_000, "token": "t" * 999_000, "pin": 47}
    shown = Redactor().show(args)

    assert "sss" not in str(shown)
    assert Redactor().restore(shown, args) == args


async def posted(app: ASGIApp, path: str, body: Any) -> tuple[int, bytes]:
    """The status and the body of the answer to a request that is served on this event loop."""
    status, found, data = 0, b"", msgspec.json.encode(body)

    async def receive() -> Message:
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, found
        status = message.get("status", status)
        found += message.get("body", b"")

    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "scheme": "http"}
    headers = [(b"host", b"test"), (b"content-length", str(len(data)).encode())]
    await app({**scope, "query_string": b"", "headers": headers}, receive, send)
    return status, found


@tool(needs_approval=True)
def enter(password: str = "", n: object = 1) -> str:
    """Enter."""
    return f"entered {len(password)}"


@pytest.mark.slow
@pytest.mark.parametrize("where", REPEATED)
async def test_an_answer_over_http_that_repeats_a_mask_is_refused_with_little_memory(
    tmp_path: Path, where: str
) -> None:
    clerk = Agent("clerk", model=Script([call("enter", **hidden_megabyte()), "done"]), tools=[enter])
    async with Runtime(tmp_path / "log.db", agents=[clerk], hold=0) as runtime:
        await (await runtime.start("clerk")).prompt("go")
        (waiting,) = await runtime.inbox()
        app = upcall.web.app(runtime, lambda request: "ada")
        path = f"/api/callbacks/{waiting.id}/answer"
        async with measured() as cost:
            status, body = await posted(app, path, {"approve": True, "args": REPEATED[where]})
        cost.check()

        assert (status, b"2000000 characters together" in body) == (422, True)
        assert (await runtime.callback(waiting.id)).status == "open"


@pytest.mark.slow
async def test_edited_arguments_are_compared_off_the_event_loop_of_the_web_application(tmp_path: Path) -> None:
    args = {"password": "s", "n": "curl -u a:b " * 150_000}
    clerk = Agent("clerk", model=Script([call("enter", **args), "done"]), tools=[enter])
    async with Runtime(tmp_path / "log.db", agents=[clerk], hold=0) as runtime:
        await (await runtime.start("clerk")).prompt("go")
        (waiting,) = await runtime.inbox()
        app = upcall.web.app(runtime, lambda request: "ada")
        async with measured() as cost:
            await posted(app, f"/api/callbacks/{waiting.id}/answer", {"approve": True, "args": {"n": "x"}})
        cost.check(growth=10 * MOST_GROWTH)  # each of the hidden passwords is an object

        assert (await runtime.callback(waiting.id)).status == "answered"


@pytest.mark.parametrize("where", REPEATED)
def test_a_form_of_an_mcp_client_that_repeats_a_mask_is_refused(where: str) -> None:
    callback = Callback("q1", "s", "clerk", "", "approval", tool="enter", args=hidden_megabyte())
    filled_in = {"decision": APPROVE, "arguments": msgspec.json.encode(REPEATED[where]).decode()}

    with grown() as size, pytest.raises(InvalidInput, match="2000000 characters together"):
        answer_of(callback, Reply("accept", filled_in), Redactor())

    size.check()


@pytest.fixture
def crew(tmp_path: Path) -> Path:
    shutil.copy(Path(__file__).parent.parent / "editor" / "crew.py", tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left", "problem"),
    [("⟦hidden 100000 #1⟧" * 30, "characters together"), ("⟦hidden 7 #5⟧", "is not a placeholder")],
    ids=["repeated", "unknown"],
)
async def test_an_editor_is_told_that_a_mask_can_not_be_used(crew: Path, left: str, problem: str) -> None:
    args = msgspec.json.encode({"where": left}).decode()
    async with raw_agent(crew) as agent:
        await agent.initialize(elicitation={"form": {}})
        session = await agent.new(crew)
        turn = await agent.prompt(session, f"deploy password={'s' * 100_000}")
        asked = await agent.heard("session/request_permission")
        await answer(agent.send, asked, {"outcome": {"outcome": "selected", "optionId": "edit"}})
        form = await agent.heard("elicitation/create")
        await answer(agent.send, form, {"action": "accept", "content": {"where": left, "times": 1}})
        again = await agent.heard("elicitation/create")
        assert problem in again["params"]["message"]
        await answer(agent.send, again, {"action": "cancel"})
        await agent.answered(turn)

        await agent.answered(await agent.prompt(session, f"/approve {args}"))

        texts = [one["params"]["update"] for one in agent.seen if one.get("method") == "session/update"]
        assert any("The answer was not accepted" in str(one) and problem in str(one) for one in texts)
    assert not (crew / "effects.txt").exists()


async def answer(send: Any, request: dict[str, Any], result: dict[str, Any]) -> None:
    await send(msgspec.json.encode({"jsonrpc": "2.0", "id": request["id"], "result": result}) + b"\n")
