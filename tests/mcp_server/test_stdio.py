"""The protocol on standard input and output: nothing else is on it, and nothing on it breaks the server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.command import COMMAND, environment
from mcp_server.serving import accept, connected, make_desk, modern_body, replying

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
INITIALIZED: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def tool_call(id: Any, prompt: str) -> dict[str, Any]:
    """A call of the agent, after a handshake."""
    given = {"name": "desk", "arguments": {"prompt": prompt}}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": given}


class Pipe:
    """A server's process, spoken to by hand."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[bytes] = []

    async def send(self, *messages: Any) -> None:
        """Send messages, or bytes as they are."""
        assert self.process.stdin is not None
        for one in messages:
            self.process.stdin.write(one if isinstance(one, bytes) else msgspec.json.encode(one) + b"\n")
            await self.process.stdin.drain()

    async def receive(self) -> Any:
        """The next message; every line has to be one."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 60)
        self.lines.append(line)
        return msgspec.json.decode(line)

    async def answer_to(self, id: Any) -> Any:
        """The answer to a request; what comes before it is skipped."""
        while True:
            message = await self.receive()
            if message.get("id") == id and "method" not in message:
                return message

    async def end(self) -> tuple[int, str]:
        """Close the server's input and wait for its end; returns its exit code and what it printed as errors."""
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        async with asyncio.timeout(60):
            rest, errors = await self.process.stdout.read(), (await self.process.stderr.read()).decode()
            await self.process.wait()
        assert all(msgspec.json.decode(line) for line in rest.splitlines())
        assert self.process.returncode is not None
        return self.process.returncode, errors


@asynccontextmanager
async def started(folder: Path, *args: str) -> AsyncGenerator[Pipe]:
    """A server on pipes; it leaves no process behind."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "mcp", *(args or ("desk:desk",)), cwd=folder, env=environment(), limit=2**24,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Pipe(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_whatever_a_tool_an_import_or_a_child_prints_stdout_carries_the_protocol_alone(
    tmp_path: Path,
) -> None:
    make_desk(tmp_path)
    async with started(tmp_path) as pipe:
        await pipe.send(INITIALIZE, INITIALIZED, tool_call(2, "shout"))
        result = (await pipe.answer_to(2))["result"]
        code, errors = await pipe.end()
    assert result["structuredContent"]["text"] == "done: read ''"
    assert code == 0
    for printed in ("printed while the module was imported", "printed by a tool", "written to descriptor 1",
                    "written to the first stdout", "printed by a child process"):  # fmt: skip
        assert printed in errors
        assert printed.encode() not in b"".join(pipe.lines)


async def test_lines_that_are_no_messages_get_an_error_and_the_next_call_works(tmp_path: Path) -> None:
    make_desk(tmp_path)
    bad = [
        b"hello\n",
        b"17\n",
        b"[]\n",
        b"{}\n",
        b"\xff\xfe\n",
        b'{"jsonrpc":"1.0"}\n',
        b'"x"\n',
        b"[" * 100_000 + b"\n",
    ]
    huge = b'{"jsonrpc":"2.0","id":9,"method":"x","params":{"p":"' + b"a" * 30_000_000 + b'"}}\n'
    async with started(tmp_path) as pipe:
        await pipe.send(INITIALIZE, INITIALIZED)
        await pipe.answer_to(1)
        codes: list[int] = []
        for line in [*bad, huge]:
            await pipe.send(line)
            codes.append((await pipe.receive())["error"]["code"])
        await pipe.send(b"\n\r\n", {"jsonrpc": "2.0", "id": 3, "method": "nothing/here"})
        unknown = await pipe.answer_to(3)
        await pipe.send({"jsonrpc": "2.0", "id": 77, "result": {}}, tool_call("x", "hello"))
        hello = await pipe.answer_to("x")
        code, errors = await pipe.end()
    assert set(codes) == {-32700, -32600}
    assert codes[0] == -32700
    assert codes[-1] == -32600
    assert unknown["error"]["code"] == -32601
    assert hello["result"]["structuredContent"]["text"] == "you said: hello"
    assert code == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize("after", ["nothing", "handshake", "call", "question"])
async def test_at_the_end_of_input_the_server_ends_and_loses_nothing(tmp_path: Path, after: str) -> None:
    make_desk(tmp_path)
    async with started(tmp_path) as pipe:
        if after != "nothing":
            await pipe.send(INITIALIZE, INITIALIZED)
            await pipe.answer_to(1)
        if after == "call":
            await pipe.send(tool_call(2, "sleep 60"))
            await asyncio.sleep(1)
        if after == "question":
            await pipe.send(tool_call(2, "name"))
            await pipe.answer_to(2)
        code, errors = await pipe.end()
    assert code == 0, errors
    assert "Traceback" not in errors
    status = {"call": "interrupted", "question": "waiting"}.get(after)
    listing = await asyncio.create_subprocess_exec(
        *COMMAND, "sessions", "--json", cwd=tmp_path, env=environment(), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await listing.communicate()
    assert [one["status"] for one in msgspec.json.decode(out)] == ([status] if status else [])


async def test_a_client_that_no_longer_reads_ends_the_server(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with started(tmp_path) as pipe:
        await pipe.send(INITIALIZE, INITIALIZED)
        await pipe.answer_to(1)
        output: Any = pipe.process.stdout
        output._transport.close()
        await pipe.send(tool_call(2, "hello"))
        assert pipe.process.stderr is not None
        async with asyncio.timeout(30):
            errors = await pipe.process.stderr.read()
            code = await pipe.process.wait()
    assert code == 0
    assert b"Traceback" not in errors


async def test_sigterm_lets_a_running_call_end_and_sigint_leaves_at_once(tmp_path: Path) -> None:
    make_desk(tmp_path)
    for number, expected in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        async with started(tmp_path) as pipe:
            await pipe.send(INITIALIZE, INITIALIZED, tool_call(2, "sleep 0.5"))
            await pipe.answer_to(1)
            await asyncio.sleep(0.3)
            pipe.process.send_signal(number)
            code, errors = await pipe.end()
        assert code == expected, errors
        assert "Traceback" not in errors


async def test_a_flood_of_calls_on_one_pipe_is_bounded(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with started(tmp_path, "desk:desk", "--wait", "1") as pipe:
        await pipe.send(INITIALIZE, INITIALIZED)
        await pipe.answer_to(1)
        await pipe.send(*[tool_call(number, "sleep 30") for number in range(10, 310)])
        answers = [await pipe.receive() for _ in range(300)]
        code, errors = await pipe.end()
    results = [one["result"] for one in answers]
    working = [one for one in results if one["structuredContent"].get("status") == "working"]
    assert len(working) <= 64
    assert len([one for one in results if one.get("isError")]) >= 200
    assert code == 0, errors


async def test_the_command_answers_within_a_few_seconds_of_processor_time(tmp_path: Path) -> None:
    make_desk(tmp_path)
    before = os.times()
    async with started(tmp_path) as pipe:
        await pipe.send(modern_body("server/discover", {}))
        found = await pipe.receive()
        code, _ = await pipe.end()
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert "2026-07-28" in found["result"]["supportedVersions"]
    assert code == 0
    assert spent < 6.0, "the library of the protocol takes about a second to import"
    print(f"start-up: {spent:.2f} s of processor time", file=sys.stderr)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_person_on_stdio_answers_by_the_right_of_the_systems_user(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "stdio", era, replying(accept(answer="Rex"))) as client:
        await client.call_tool("desk", {"prompt": "name"})
    assert await rights(tmp_path) == ["os-user"]


async def test_a_client_over_http_answers_by_the_right_of_the_token(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "http", "modern", replying(accept(answer="Rex"))) as client:
        await client.call_tool("desk", {"prompt": "name"})
    assert await rights(tmp_path) == ["token"]


async def rights(folder: Path) -> list[str]:
    """The rights by which questions in a folder's log were answered."""
    listing = await asyncio.create_subprocess_exec(
        *COMMAND, "inbox", "--status", "answered", "--json", cwd=folder, env=environment(),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await listing.communicate()
    return [one["answer"]["right"] for one in msgspec.json.decode(out)]
