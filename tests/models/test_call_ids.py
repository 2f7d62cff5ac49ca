"""Call ids: providers get their own back, and every other server gets ids that it takes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from upcall import Agent, Context, Hooks, Response, Runtime, SyncContext, tool
from upcall.contracts import Model
from upcall.models import Anthropic, OpenAIChat, Script, call, fallback_models
from upcall.models.history import generate_id
from upcall.models.providers import Provided

from . import anthropic_wire as a
from . import openai_wire as o
from .rules import ID, check_anthropic, check_openai
from .server import Asked, Server, plain, serving, stream

# pydantic-ai takes seconds to import, and every worker imports every test module: tests import it as they run.
if TYPE_CHECKING:
    from pydantic_ai.models.function import AgentInfo, DeltaToolCalls


def calls(*ids: str | None) -> bytes:
    """A response of OpenAI's that calls `look` once for each id."""
    pieces = [o.tool(index, given, "look", "{}") for index, given in enumerate(ids)]
    return stream(*(o.said(tool_calls=[piece]) for piece in pieces), o.STOP, o.DONE)


def uses(*ids: str) -> bytes:
    """The same of Anthropic's."""
    return stream(
        a.start(), *(a.use(i, "look", "{}", id=one) for i, one in enumerate(ids)), a.stop("tool_use"), a.LAST
    )


OVERLOADED = plain(503, "{}")
OPENAI_DONE, ANTHROPIC_DONE = o.OK, a.OK


@tool
def look(ctx: SyncContext) -> str:
    """Look around."""
    return f"looked as {ctx.call_id}"


def openai(server: Server, name: str = "m") -> OpenAIChat:
    return OpenAIChat(name, base_url=f"{server.url}/v1", retries=0)


def anthropic(server: Server) -> Anthropic:
    return Anthropic("m", base_url=server.url, retries=0)


async def prompted(model: Model, *prompts: str, store: Any = ":memory:", **more: Any) -> None:
    """One session of an agent with that model, which is closed afterwards."""
    agent = Agent("a", model=model, tools=[look], **more)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await (runtime.load("s") if await runtime.rows() else runtime.start(agent, "s"))
        for prompt in prompts:
            await session.prompt(prompt)
    close: Any = getattr(model, "close", None)
    if close is not None:
        await close()


def sent(asked: Asked) -> list[tuple[str, str]]:
    """The calls of a request, each with the text of the result that answers it by its id."""
    body = asked.json
    if "system" in body or "max_tokens" in body:
        blocks = [block for message in body["messages"] for block in message["content"]]
        results = {b["tool_use_id"]: b["content"][0]["text"] for b in blocks if b["type"] == "tool_result"}
        return [(b["id"], results[b["id"]]) for b in blocks if b["type"] == "tool_use"]
    results = {m["tool_call_id"]: m["content"] for m in body["messages"] if m["role"] == "tool"}
    return [(c["id"], results[c["id"]]) for m in body["messages"] for c in m.get("tool_calls", ())]


def ids_in(asked: Asked) -> list[str]:
    """The ids of a request's calls; each of them has its result."""
    return [given for given, _ in sent(asked)]


# --- one provider -----------------------------------------------------------------------


@pytest.mark.parametrize("given", ["A1b2C3d4E", "call_abcdefghijklmnopqrstuvwx", "functions.look:0", "x" * 3000])
async def test_a_server_gets_its_own_ids_back_and_tools_see_ours(given: str):
    async with serving(calls(given, f"{given}2"), OPENAI_DONE) as server:
        await prompted(openai(server), "go")
    assert sent(server.asked[1]) == [(given, "looked as r1c0"), (f"{given}2", "looked as r1c1")]
    check_openai(server.asked[1].json["messages"], (given, f"{given}2"))


async def test_anthropic_gets_its_own_ids_back():
    async with serving(uses("toolu_01", "toolu_02"), ANTHROPIC_DONE) as server:
        await prompted(anthropic(server), "go")
    assert sent(server.asked[1]) == [("toolu_01", "looked as r1c0"), ("toolu_02", "looked as r1c1")]
    check_anthropic(server.asked[1].json, ("toolu_01", "toolu_02"))


async def test_an_id_that_a_server_gives_again_is_made_unique_and_stays_the_same_afterwards():
    async with serving(calls("call_0"), calls("call_0"), calls("call_0", "call_0"), OPENAI_DONE) as server:
        await prompted(openai(server), "go", "again")
    ids = [ids_in(asked) for asked in server.asked]
    first, second, third, fourth = ids[3]
    assert first == "call_0"
    assert all(ID.fullmatch(made) for made in (second, third, fourth))
    assert ids == [[], ids[3][:1], ids[3][:2], ids[3], ids[3]]
    assert [text for _, text in sent(server.asked[4])] == [
        f"looked as {ours}" for ours in ("r1c0", "r2c0", "r3c0", "r3c1")
    ]


async def test_a_call_that_came_without_an_id_has_nine_letters_or_digits():
    async with serving(calls(None, "  "), OPENAI_DONE) as server:
        await prompted(openai(server), "go")
    assert ids_in(server.asked[1]) == [generate_id("r1c0"), generate_id("r1c1")]


def test_made_ids_never_change_from_one_version_to_the_next():
    made = [generate_id("r1c0"), generate_id("r1c1"), generate_id("r1c0", 1)]
    assert made == ["noRDlK5eJ", "8sWJXvijJ", "NEZ3mTuqG"]


async def test_an_id_that_comes_with_a_later_piece_is_kept():
    pieces = [o.tool(0, None, "look", "{"), o.tool(0, "late", None, "}")]
    async with serving(stream(*(o.said(tool_calls=[p]) for p in pieces), o.STOP, o.DONE), OPENAI_DONE) as server:
        await prompted(openai(server), "go")
    assert sent(server.asked[1]) == [("late", "looked as r1c0")]


async def test_a_server_that_refuses_the_ids_it_gave_gets_others_from_then_on():
    problem = "Tool call id was call_49c89af0 but must be a-z, A-Z, 0-9, with a length of 9."
    refusal = plain(400, json.dumps({"object": "error", "message": problem}))
    async with serving(calls("call_49c89af0"), refusal, OPENAI_DONE) as server:
        await prompted(openai(server), "go", "again")
    ids = [ids_in(asked) for asked in server.asked]
    assert ids == [[], ["call_49c89af0"], [generate_id("r1c0")], [generate_id("r1c0")]]


# --- several providers ------------------------------------------------------------------


async def test_after_a_fallback_each_provider_gets_its_own_ids_and_made_ones_for_the_others():
    ours = calls("call_longer_than_nine")
    async with (
        serving(ours, OVERLOADED, OPENAI_DONE) as first,
        serving(uses("toolu_01"), ANTHROPIC_DONE) as second,
    ):
        await prompted(fallback_models(openai(first), anthropic(second)), "go")
    assert ids_in(second.asked[0]) == [generate_id("r1c0")]
    assert ids_in(first.asked[2]) == ["call_longer_than_nine", generate_id("r2c0")]


async def test_the_same_model_at_another_address_is_another_provider(tmp_path: Path):
    async with serving(calls("call_longer_than_nine"), OPENAI_DONE) as one, serving(OPENAI_DONE) as other:
        await prompted(openai(one), "go", store=tmp_path / "log.db")
        await prompted(openai(other), "again", store=tmp_path / "log.db")
    assert ids_in(other.asked[0]) == [generate_id("r1c0")]


async def test_a_session_that_a_script_began_continues_at_any_server(tmp_path: Path):
    """As a log of before has it: its calls name no provider."""
    await prompted(Script([call("look"), "seen"]), "go", store=tmp_path / "log.db")
    assert b"provider" not in (tmp_path / "log.db").read_bytes()
    async with serving(OPENAI_DONE) as server:
        await prompted(openai(server), "again", store=tmp_path / "log.db")
    assert sent(server.asked[0]) == [(generate_id("r1c0"), "looked as r1c0")]
    check_openai(server.asked[0].json["messages"])


async def test_no_address_of_a_server_is_in_the_log(tmp_path: Path):
    async with serving(calls("call_0"), OPENAI_DONE) as server:
        await prompted(openai(server), "go", store=tmp_path / "log.db")
        log = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"call_0" in log
    assert server.url.partition("://")[2].encode() not in log


# --- other processes, side turns, hooks, compaction -------------------------------------

AGAIN = """
import asyncio, sys
from upcall import Agent, Runtime
from upcall.models import OpenAIChat

async def main():
    model = OpenAIChat("m", base_url=sys.argv[2], retries=0)
    agent = Agent("a", model=model)
    async with Runtime(sys.argv[1], agents=[agent]) as runtime:
        await (await runtime.load("s")).prompt("once more")
    await model.close()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_another_process_sends_the_same_bytes(tmp_path: Path):
    async with serving(calls("call_0"), calls("call_0"), OPENAI_DONE) as server:
        await prompted(openai(server), "go", store=tmp_path / "log.db")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", AGAIN, str(tmp_path / "log.db"), f"{server.url}/v1"
        )
        assert await process.wait() == 0
    here, there = (asked.body for asked in server.asked[2:])
    start = here.index(b'"messages":[')
    assert there[start:].startswith(here[start : here.index(b'],"stream"')])
    assert len(server.asked) == 4


async def test_a_side_turn_repeats_the_bytes_before_its_question():
    @tool
    async def stuck(ctx: Context) -> str:
        """Ask."""
        return str(await ctx.raise_callback("Which one?", "blocker"))

    def delegating(id: str, name: str, **args: Any) -> bytes:
        return stream(o.said(tool_calls=[o.tool(0, id, name, json.dumps(args))]), o.STOP, o.DONE)

    worker = Agent(
        "worker", model=Script(lambda r: "done" if r.messages[-1].results else call("stuck")), tools=[stuck]
    )
    answers = (
        delegating("gave-first", "task", agent="worker", prompt="work"),
        delegating("gave-second", "answer_callback", value="this one"),
        OPENAI_DONE,
    )
    async with serving(*answers) as server:
        model = openai(server)
        boss = Agent("boss", model=model, agents=[worker])
        async with Runtime(agents=[boss]) as runtime:
            await (await runtime.start(boss)).prompt("go")
        await model.close()
    main, aside, after = (asked.json["messages"] for asked in server.asked)
    assert aside[: len(main)] == main
    assert aside[len(main)] == after[len(main)]
    assert aside[len(main)]["tool_calls"][0]["id"] == "gave-first"
    for messages in (main, aside, after):
        check_openai(messages, ("gave-first", "gave-second"))


async def test_a_response_that_a_hook_changed_keeps_the_ids_of_its_calls():
    def louder(session: Any, response: Response) -> Response:
        return response.replace(text="LOUD")

    async with serving(calls("call_0"), OPENAI_DONE) as server:
        await prompted(openai(server), "go", hooks=Hooks(post_response=[louder]))
    assert sent(server.asked[1]) == [("call_0", "looked as r1c0")]


async def test_a_compacted_conversation_keeps_calls_and_results_together(tmp_path: Path):
    async with serving(calls("call_0"), calls("call_0"), OPENAI_DONE) as server:
        model = openai(server)
        agent = Agent("a", model=model, tools=[look])
        async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
            await (await runtime.start(agent, "s")).prompt("go")
        keep = Hooks(pre_request=[lambda session, message: session.compact_messages(keep_last=3)])
        async with Runtime(tmp_path / "log.db", agents=[agent.replace(hooks=keep)]) as runtime:
            await (await runtime.load("s")).prompt("again")
        await model.close()
    messages = server.asked[3].json["messages"]
    check_openai(messages, ("call_0",))
    assert sent(server.asked[3]) == [("call_0", "looked as r2c0")]


# --- other providers --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("given", ["call_longer_than_nine", None])
async def test_other_providers_get_their_own_ids_back_else_made_ones(given: str | None):
    from pydantic_ai import messages as theirs
    from pydantic_ai.models.function import DeltaToolCall, FunctionModel

    seen: list[list[theirs.ModelMessage]] = []

    async def answer(messages: list[theirs.ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        seen.append(messages)
        if len(seen) == 1:
            yield {0: DeltaToolCall(name="look", json_args="{}", tool_call_id=given)}
        else:
            yield "done"

    await prompted(Provided(FunctionModel(stream_function=answer)), "go")
    said, told = seen[1][1].parts[0], seen[1][2].parts[0]
    assert isinstance(said, theirs.ToolCallPart)
    assert isinstance(told, theirs.ToolReturnPart)
    assert said.tool_call_id == told.tool_call_id == (given or generate_id("r1c0"))
