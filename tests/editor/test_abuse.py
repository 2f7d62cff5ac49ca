"""What a broken or hostile client sends is answered with the right error, and harms no other session."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.command import upcall
from editor.clients import effects
from editor.raw import raw_agent

pytestmark = pytest.mark.slow

BAD_LINES: list[tuple[bytes, int, Any]] = [
    (b"5", -32600, None),
    (b'"text"', -32600, None),
    (b"null", -32600, None),
    (b"[]", -32600, None),
    (b'[{"jsonrpc":"2.0","id":1,"method":"initialize"}]', -32600, None),
    (b"{", -32700, None),
    (b"not json", -32700, None),
    (b'{"jsonrpc":"2.0","id":7,"method":"\xff\xfe"}', -32700, None),
    (b'{"jsonrpc":"2.0","id":7}', -32600, 7),
    (b'{"jsonrpc":"1.0","id":8,"method":"initialize"}', -32600, 8),
    (b'{"jsonrpc":"2.0","id":9,"method":5}', -32600, 9),
    (b'{"jsonrpc":"2.0","id":{},"method":"initialize"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":10,"method":"nothing/here"}', -32601, 10),
    (b'{"jsonrpc":"2.0","id":11,"method":"_ours/ext","params":{}}', -32601, 11),
    (b'{"jsonrpc":"2.0","id":12,"method":"session/new","params":{"cwd":5}}', -32602, 12),
    (b'{"jsonrpc":"2.0","id":13,"method":"session/new","params":{"cwd":"relative","mcpServers":[]}}', -32602, 13),
    (b'{"jsonrpc":"2.0","id":14,"method":"session/prompt","params":{"sessionId":"x","prompt":[]}}', -32002, 14),
    (b'{"jsonrpc":"2.0","id":15,"method":"session/load","params":{"sessionId":"x","cwd":"/"}}', -32002, 15),
    (
        b'{"jsonrpc":"2.0","id":16,"method":"session/prompt","params":' + b"[" * 5000 + b"]" * 5000 + b"}",
        -32600,
        None,
    ),
]


async def test_every_bad_line_gets_its_error_and_a_session_beside_it_is_unharmed(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        session = await agent.new(folder)
        turn = await agent.prompt(session, "wait 1")
        for line, code, request_id in BAD_LINES:
            await agent.send(line + b"\n")
            answer = await agent.answered(request_id)
            assert answer["error"]["code"] == code, (line[:100], answer)
        assert (await agent.answered(turn))["result"] == {"stopReason": "end_turn"}


async def test_a_line_of_100_megabytes_is_refused_without_being_kept(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        before = _memory(agent.process.pid)
        piece = b"x" * 1_000_000
        for _ in range(100):
            await agent.send(piece)
        await agent.send(b"\n")
        answer = await agent.answered(None)
        assert answer["error"]["code"] == -32600
        assert "at most" in answer["error"]["message"]
        assert _memory(agent.process.pid) - before < 90_000_000
        assert await agent.new(folder)


async def test_a_message_of_millions_of_values_is_refused_by_its_id_without_being_built(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        before = _memory(agent.process.pid, "VmHWM")
        await agent.send(b'{"jsonrpc":"2.0","id":3,"method":"x","params":[' + b"[]," * 6_000_000 + b"0]}\n")
        answer = await agent.answered(3)
        assert answer["error"]["code"] == -32600
        assert "more than 100000 values" in answer["error"]["message"]
        assert _memory(agent.process.pid, "VmHWM") - before < 90_000_000


def _memory(pid: int, field: str = "VmRSS") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) * 1024


async def test_approve_without_an_id_approves_nothing_and_names_the_call(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        session = await agent.new(folder)
        turn = await agent.prompt(session, "deploy live")
        asked = await agent.heard("session/request_permission")
        closed = {"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": {"outcome": "cancelled"}}}
        await agent.send(msgspec.json.encode(closed) + b"\n")
        await agent.answered(turn)
        await agent.answered(await agent.prompt(session, "/approve"))
        assert effects(folder) == ""
        ids = re.findall(r"/approve (q[0-9a-f]+)", str(agent.seen))
        assert ids
        await agent.answered(await agent.prompt(session, f"/approve {ids[-1]}"))
        assert effects(folder) == "deployed live 1\n"


async def test_requests_before_initialize_are_refused(folder: Path):
    async with raw_agent(folder) as agent:
        early = await agent.request("session/new", cwd=str(folder), mcpServers=[])
        assert early["error"]["code"] == -32600
        assert "initialize first" in early["error"]["message"]
        await agent.initialize()
        assert await agent.new(folder)


async def test_a_second_request_with_an_id_in_use_does_not_answer_the_first(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        session = await agent.new(folder)
        turn = await agent.prompt(session, "wait 0.5")
        await agent.send(b'{"jsonrpc":"2.0","id":%d,"method":"session/list","params":{}}\n' % turn)
        assert (await agent.answered(None))["error"]["code"] == -32600
        assert (await agent.answered(turn))["result"] == {"stopReason": "end_turn"}


async def test_answers_to_nothing_and_unknown_notifications_are_ignored(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        await agent.send(b'{"jsonrpc":"2.0","id":999,"result":{}}\n{"jsonrpc":"2.0","id":"x","error":{"code":1}}\n')
        await agent.send(b'{"jsonrpc":"2.0","method":"unknown/thing","params":[1]}\n\n\n')
        await agent.send(b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"nobody"}}\n')
        await agent.send(b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":12345}}\n')
        assert await agent.new(folder)


async def test_reserved_names_in_meta_change_nothing(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        session, other = await agent.new(folder), await agent.new(folder)
        meta: dict[str, Any] = {"session_id": other, "sessionId": other, "self": 1, "prompt": [], "params": 2}
        blocks = [{"type": "text", "text": "hello"}]
        answer = await agent.request("session/prompt", sessionId=session, prompt=blocks, _meta=meta)
        assert answer["result"] == {"stopReason": "end_turn"}
        told = [one["params"]["sessionId"] for one in agent.seen if "agent_message_chunk" in str(one)]
        assert set(told) == {session}


async def test_two_prompts_at_once_end_together(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        session = await agent.new(folder)
        first, second = await agent.prompt(session, "wait 0.3"), await agent.prompt(session, "hello")
        ends = [await agent.answered(first), await agent.answered(second)]
        assert [one["result"]["stopReason"] for one in ends] == ["end_turn", "end_turn"]


async def test_what_tools_and_their_processes_print_is_not_in_the_protocol(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        session = await agent.new(folder)
        assert (await agent.answered(await agent.prompt(session, "shout hey")))["result"][
            "stopReason"
        ] == "end_turn"
        await agent.leave()
        assert agent.process.stderr is not None
        errors = (await agent.process.stderr.read()).decode()
        assert "PRINTED hey" in errors
        assert "FROM-CHILD hey" in errors


async def test_a_standard_error_that_nobody_reads_blocks_nothing(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        session = await agent.new(folder)
        turn = await agent.prompt(session, "spam")
        assert (await asyncio.wait_for(agent.answered(turn), 10))["result"]["stopReason"] == "end_turn"


async def test_a_dialog_that_is_never_shown_is_answered_with_the_command(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize(elicitation={"form": {}})
        session = await agent.new(folder)
        turn = await agent.prompt(session, "question why")
        asked = await agent.heard("elicitation/create")
        done = await asyncio.to_thread(upcall, "answer", asked["params"]["toolCallId"], "because", cwd=folder)
        assert done.returncode == 0
        assert (await agent.answered(turn))["result"]["stopReason"] == "end_turn"
        cancelled = [one["params"]["requestId"] for one in agent.seen if one.get("method") == "$/cancel_request"]
        assert cancelled == [asked["id"]]
    assert effects(folder) == "why because\n"


@pytest.mark.parametrize(
    "text", ["", "hello", "wait 30", "deaf 30", "question why", "parallel deaf 30", "deploy x"]
)
async def test_an_editor_that_leaves_ends_the_agent_within_two_seconds_at_every_step(folder: Path, text: str):
    taken: list[float] = []
    while not taken or (min(taken) >= 2 and len(taken) < 3):  # a busy machine may disturb one
        async with raw_agent(folder) as agent:
            await agent.initialize(elicitation={"form": {}})
            session = await agent.new(folder)
            if text:
                await agent.prompt(session, text)
                await agent.heard("session/update")
                await asyncio.sleep(0.2)
            taken.append(await agent.leave())
            assert not [one for one in os.listdir("/proc") if one.isdecimal() and _group(one) == agent.process.pid]
    assert min(taken) < 2, taken


async def test_an_editor_that_leaves_cancels_nothing(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize(elicitation={"form": {}})
        asking, working = await agent.new(folder), await agent.new(folder)
        await agent.prompt(asking, "question why")
        asked = await agent.heard("elicitation/create")
        await agent.prompt(working, "wait 30")
        while (await agent.heard("session/update"))["params"]["update"].get("status") != "in_progress":
            pass
        await agent.leave()
    listed = upcall("sessions", "--json", cwd=folder).stdout
    found = {one["id"]: one["status"] for one in msgspec.json.decode(listed)}
    assert found == {asking: "waiting", working: "interrupted"}
    assert upcall("answer", asked["params"]["toolCallId"], "because", cwd=folder).returncode == 0
    async with raw_agent(folder) as agent:
        await agent.initialize(elicitation={"form": {}})
        await agent.request("session/load", sessionId=asking, cwd=str(folder), mcpServers=[])
        async with asyncio.timeout(20):
            while effects(folder) != "why because\n":
                await asyncio.sleep(0.05)


def _group(pid: str) -> int:
    try:
        return os.getpgid(int(pid))
    except ProcessLookupError:
        return 0


@pytest.mark.parametrize("text", ["hello", "parallel deaf 30"])
async def test_an_output_that_nobody_reads_any_more_ends_the_agent_within_two_seconds(folder: Path, text: str):
    taken: list[float] = []
    while not taken or (min(taken) >= 2 and len(taken) < 3):
        async with raw_agent(folder) as agent:
            await agent.initialize()
            session = await agent.new(folder)
            agent.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
            begun = time.monotonic()
            await agent.prompt(session, text)
            await asyncio.wait_for(agent.process.wait(), 20)
            taken.append(time.monotonic() - begun)
    assert min(taken) < 2, taken


async def test_sigterm_ends_the_agent(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        await agent.new(folder)
        agent.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(agent.process.wait(), 5)


async def test_wrong_agents_are_an_error_that_says_what_to_do(folder: Path):
    (folder / "crew.py").write_text("from upcall import Agent\nclerk = 5\n")
    async with raw_agent(folder) as agent:
        await agent.initialize()
        wrong = await agent.request("session/new", cwd=str(folder), mcpServers=[])
        assert wrong["error"]["code"] == -32603
        assert "crew:clerk" in wrong["error"]["message"]
        (folder / "crew.py").write_text("from upcall import Agent\nclerk = Agent('clerk', model='openai:gpt-6')\n")


async def test_a_missing_key_is_an_error_that_names_it(folder: Path):
    (folder / "crew.py").write_text("from upcall import Agent\nclerk = Agent('clerk', model='openai:gpt-6')\n")
    async with raw_agent(folder) as agent:
        await agent.initialize()
        session = await agent.new(folder)
        answer = await agent.answered(await agent.prompt(session, "hello"))
        assert "OPENAI_API_KEY" in answer["error"]["message"]


async def test_an_approval_in_an_editor_shows_all_arguments_also_beside_a_change(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        await agent.prompt(await agent.new(folder), "noterun z")
        asked = await agent.heard("session/request_permission")
        change, rest, _ = asked["params"]["toolCall"]["content"]
        assert change["newText"] == "hello"
        assert f'"then": "{"z" * 30_000}"' in rest["content"]["text"]


async def test_an_approval_in_an_editor_shows_the_calls_that_a_pattern_approves_with_it(folder: Path):
    async with raw_agent(folder) as agent:
        await agent.initialize()
        await agent.prompt(await agent.new(folder), "deploys z")
        asked = [
            (await agent.heard("session/request_permission"))["params"]["toolCall"]["content"] for _ in range(3)
        ]
        texts = [[part["content"]["text"] for part in one] for one in asked]
        first, covers, *others, _ = max(texts, key=len)
        assert "this place (" + "z" * 10_000 + ") allows" in covers
        shown = [one for one in (first, *others) if f'"where": "{"z" * 10_000}"' in one]
        assert {time for time in (1, 2, 3) for one in shown if f'"times": {time}' in one} == {1, 2, 3}
