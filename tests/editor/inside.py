"""An editor's sessions in this process, with an editor that keeps what it is sent and chooses the first option."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from upcall import Agent, Runtime
from upcall.hosts.acp.desk import Appearance, Desk
from upcall.hosts.acp.protocol import Client
from upcall.observe.labels import Labels
from upcall.observe.redact import Redactor


class Editor:
    """What an editor has heard: the updates, and the requests with their parameters."""

    has_left = False

    def __init__(self, client: Client | None = None) -> None:
        self.client = client or Client()
        self.updates: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def update(self, session_id: str, update: dict[str, Any]) -> None:
        self.updates.append(msgspec.json.decode(msgspec.json.encode(update)))

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        self.requests.append((method, params))
        if method != "session/request_permission":
            return {"action": "cancel"}
        return {"outcome": {"outcome": "selected", "optionId": params["options"][0]["optionId"]}}

    async def drained(self) -> None:
        pass


class _NoServers:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def start(self) -> None:
        pass

    def status(self) -> list[str]:
        return []

    def prompts(self) -> list[tuple[str, str, str]]:
        return []

    async def prompt(self, command: str, argument: str) -> str:
        return ""

    async def close(self) -> None:
        pass


class _Place:
    person = "ann"

    def __init__(self, agent: Agent, store: Path) -> None:
        self._agent, self._store = agent, store
        self.runtime: Runtime | None = None

    def preload(self) -> None:
        pass

    def appearance(self) -> Appearance:
        return Appearance(Redactor(), Labels())

    def servers(self, agent: Agent, passed: Mapping[str, Mapping[str, Any]]) -> _NoServers:
        return _NoServers(agent)

    async def open(self, host: Desk) -> tuple[Runtime, Agent]:
        self.runtime = Runtime(self._store, agents=[self._agent], host=host, hold=0.2)
        await self.runtime.__aenter__()
        return self.runtime, self._agent


class Sessions:
    """The sessions of one editor."""

    def __init__(self, desk: Desk, folder: Path) -> None:
        self._desk, self._folder = desk, str(folder)

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._desk.handle(method, msgspec.Raw(msgspec.json.encode(params)))

    async def new(self) -> str:
        return (await self.request("session/new", cwd=self._folder, mcpServers=[]))["sessionId"]

    async def prompt(self, session: str, text: str = "go") -> str:
        blocks = [{"type": "text", "text": text}]
        return (await self.request("session/prompt", sessionId=session, prompt=blocks))["stopReason"]

    async def load(self, session: str) -> None:
        await self.request("session/load", sessionId=session, cwd=self._folder, mcpServers=[])


@asynccontextmanager
async def sessions(agent: Agent, folder: Path, editor: Editor) -> AsyncGenerator[Sessions]:
    """The sessions of an agent, over a log in a folder."""
    place, ended = _Place(agent, folder / "log.db"), asyncio.Event()
    desk = Desk(editor, place, ended)
    try:
        yield Sessions(desk, folder)
    finally:
        ended.set()
        desk.close()
        if place.runtime is not None:
            await place.runtime.__aexit__(None, None, None)
