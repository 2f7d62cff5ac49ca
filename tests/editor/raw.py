"""A client that sends bytes: for what no well-behaved client sends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cli.command import environment

COMMAND = ("upcall", "acp", "crew:clerk")
HANGING: dict[str, Any] = {"name": "hanging", "command": "sleep", "args": ["60"], "env": []}
"""An MCP server that never says anything."""


class Raw:
    """An agent process, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.seen: list[dict[str, Any]] = []
        self._number = 100

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    async def read(self, seconds: float = 20) -> dict[str, Any]:
        """The next message of the agent."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), seconds)
        message = msgspec.json.decode(line, type=dict[str, Any])
        self.seen.append(message)
        return message

    async def answered(self, request_id: Any) -> dict[str, Any]:
        """The answer to a request; everything before it is kept in `seen`."""
        while True:
            message = await self.read()
            if "method" not in message and message["id"] == request_id:
                return message

    async def heard(self, method: str) -> dict[str, Any]:
        """The next message of a method."""
        while (message := await self.read()).get("method") != method:
            pass
        return message

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return the whole answer."""
        return await self.answered(await self.begin(method, **params))

    async def begin(self, method: str, **params: Any) -> int:
        """Send a request; returns its id."""
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        await self.send(msgspec.json.encode(message) + b"\n")
        return self._number

    async def prompt(self, session: str, text: str) -> int:
        """Send a prompt; returns the id of the request."""
        return await self.begin("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    async def new(self, folder: Path) -> str:
        """A new session."""
        return (await self.request("session/new", cwd=str(folder), mcpServers=[]))["result"]["sessionId"]

    async def initialize(self, **capabilities: Any) -> None:
        """The first request."""
        await self.request("initialize", protocolVersion=1, clientCapabilities=capabilities)

    async def leave(self) -> float:
        """Close the agent's input; returns the seconds until it has ended."""
        assert self.process.stdin is not None
        before = time.monotonic()
        self.process.stdin.close()
        await asyncio.wait_for(self.process.wait(), 20)
        return time.monotonic() - before


@contextlib.asynccontextmanager
async def raw_agent(folder: Path, *, command: Sequence[str] = COMMAND, covered: bool = True) -> AsyncGenerator[Raw]:
    """An agent; at the end it leaves soon, without a stack trace, and leaves no process behind.

    What is measured should not be `covered`: counting coverage costs more than most of the agent's work.
    """
    kept = {name: value for name, value in environment().items() if covered or not name.startswith("COVERAGE_")}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=kept, limit=2**27, start_new_session=True,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    agent = Raw(process)
    try:
        yield agent
        if process.returncode is None:
            assert await agent.leave() < 5  # a test of its own holds it to two seconds
        assert process.stderr is not None
        errors = (await process.stderr.read()).decode()
        assert "Traceback" not in errors, errors
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        await process.wait()
