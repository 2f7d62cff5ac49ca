"""Real clients of the protocol, driven by tests through one interface."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from acp import PROTOCOL_VERSION, RequestError, spawn_agent_process

from cli.command import environment
from editor.schema import problems

HERE = Path(__file__).parent
PEERS = HERE.parent / "peers"
sys.path.insert(0, str(HERE.parent.parent / "page"))

FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
EVERYTHING: dict[str, Any] = {
    **FORMS,
    "fs": {"readTextFile": True, "writeTextFile": True},
    "session": {"compaction": {}, "notices": {}},
}


def node() -> str:
    """The Node that the peers run on."""
    from importlib import import_module

    found = import_module("node_packages").find_node()
    assert found is not None, "the peers need Node"
    return str(found[0])


class Refused(Exception):
    """The agent answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Ask:
    """A request of the agent that waits for an answer."""

    def __init__(self, client: Client, number: int, method: str, params: dict[str, Any]) -> None:
        self._client, self._number = client, number
        self.method, self.params = method, params
        self.withdrawn = asyncio.Event()

    async def answer(self, result: dict[str, Any]) -> None:
        """Answer it."""
        await self._client.send_answer(self._number, result)

    async def select(self, name: str) -> None:
        """Choose the option whose name begins so."""
        chosen = next(one for one in self.params["options"] if one["name"].startswith(name))
        await self.answer({"outcome": {"outcome": "selected", "optionId": chosen["optionId"]}})

    async def accept(self, **content: Any) -> None:
        """Fill in a form."""
        await self.answer({"action": "accept", "content": content})

    @property
    def text(self) -> str:
        """All of its text."""
        return str(self.params)


class Client:
    """One client with one agent process, and what the agent sent."""

    name = ""
    can_choose_any_option = True

    def __init__(self, folder: Path, command: Sequence[str], capabilities: dict[str, Any]) -> None:
        self.folder, self.capabilities = folder, capabilities
        self.log = folder / f"wire-{len(list(folder.glob('wire-*')))}.log"
        self.command = [sys.executable, str(HERE / "tap.py"), str(self.log), *command]
        self.updates: list[dict[str, Any]] = []
        self.asks: asyncio.Queue[Ask] = asyncio.Queue()
        self._asks: dict[int, Ask] = {}

    async def start(self) -> None:
        """Start the agent and initialize it."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Leave the agent."""
        raise NotImplementedError

    async def request(self, method: str, **params: Any) -> Any:
        """Send a request and return its result."""
        raise NotImplementedError

    async def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        raise NotImplementedError

    async def send_answer(self, number: int, result: dict[str, Any]) -> None:
        """Answer a request of the agent."""
        raise NotImplementedError

    # --- the same for all ------------------------------------------------------------------

    async def new(self, servers: Sequence[dict[str, Any]] = ()) -> str:
        """A new session."""
        made = await self.request("session/new", cwd=str(self.folder), mcpServers=list(servers))
        return made["sessionId"]

    async def load(self, session: str) -> None:
        """Load a session."""
        await self.request("session/load", sessionId=session, cwd=str(self.folder), mcpServers=[])

    def prompt(self, session: str, text: str) -> asyncio.Task[str]:
        """Send a prompt; the task returns why the turn ended."""
        return asyncio.ensure_future(self._prompt(session, text))

    async def _prompt(self, session: str, text: str) -> str:
        blocks = [{"type": "text", "text": text}]
        answer = await self.request("session/prompt", sessionId=session, prompt=blocks)
        await asyncio.sleep(0.05)  # a response may be seen before the updates that were sent ahead of it
        return answer["stopReason"]

    async def cancel(self, session: str) -> None:
        """Cancel the turn."""
        await self.notify("session/cancel", sessionId=session)

    async def asked(self, seconds: float = 20) -> Ask:
        """The next request of the agent."""
        return await asyncio.wait_for(self.asks.get(), seconds)

    def heard(self, number: int, method: str, params: dict[str, Any]) -> Ask:
        """Note a request of the agent."""
        ask = self._asks[number] = Ask(self, number, method, params)
        self.asks.put_nowait(ask)
        return ask

    def ask_withdrawn(self, number: int) -> None:
        """Note that a request of the agent needs no answer any more."""
        self._asks[number].withdrawn.set()

    # --- what was sent, from the wire --------------------------------------------------------

    def lines(self) -> list[bytes]:
        """Every line of both sides."""
        return self.log.read_bytes().splitlines()

    @property
    def pid(self) -> int:
        """The process of the agent."""
        return int(self.lines()[0].removeprefix(b"# "))

    def kill(self) -> None:
        """Kill the agent."""
        os.kill(self.pid, signal.SIGKILL)

    def sent_updates(self, session: str | None = None) -> list[dict[str, Any]]:
        """The updates that the agent sent, in order."""
        sent = [msgspec.json.decode(line[2:]) for line in self.lines() if line.startswith(b"< ")]
        updates = [one["params"] for one in sent if one.get("method") == "session/update"]
        return [one["update"] for one in updates if session in (None, one["sessionId"])]

    def text(self, kind: str = "agent_message_chunk") -> str:
        """The text of all messages of the agent."""
        chunks = [one for one in self.sent_updates() if one["sessionUpdate"] == kind]
        return "".join(one["content"].get("text", "") for one in chunks)

    def calls(self) -> dict[str, dict[str, Any]]:
        """The tool calls, as they are after all updates."""
        found: dict[str, dict[str, Any]] = {}
        for one in self.sent_updates():
            if one["sessionUpdate"] in ("tool_call", "tool_call_update"):
                found.setdefault(one["toolCallId"], {}).update(one)
        return found

    def check_wire(self) -> None:
        """Every line that the agent sent is valid by the published schema."""
        found = problems(self.lines())
        assert not found, "\n".join(found[:5])


class Scripted(Client):
    """A client in a process of its own that takes commands as lines of JSON."""

    script: tuple[str, ...] = ()

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(node(), str(PEERS / self.script[0]), *self.arguments(), *self.command),
            cwd=self.folder,
            env=self.environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**26,
        )
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.ensure_future(self._read())
        await self.initialize()

    def arguments(self) -> list[str]:
        return []

    def environment(self) -> dict[str, str]:
        return environment()

    async def initialize(self) -> None:
        info = {"name": "test", "version": "1"}
        await self.request("initialize", protocolVersion=1, clientCapabilities=self.capabilities, clientInfo=info)

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), 20)
        await self._reading

    async def request(self, method: str, **params: Any) -> Any:
        number = len(self._waiting) + 1
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._command({"id": number, "request": method, "params": params})
        return await answer

    async def notify(self, method: str, **params: Any) -> None:
        await self._command({"notify": method, "params": params})

    async def send_answer(self, number: int, result: dict[str, Any]) -> None:
        await self._command({"answer": number, "result": result})

    async def _command(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")
        await self._process.stdin.drain()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            match msgspec.json.decode(line):
                case {"update": update}:
                    self.updates.append(update)
                case {"ask": number, "method": method, "params": params}:
                    self.heard(number, method, params)
                case {"withdrawn": number}:
                    self.ask_withdrawn(number)
                case {"id": number, "result": result}:
                    self._waiting[number].set_result(result)
                case {"id": number, "error": error}:
                    self._waiting[number].set_exception(Refused(error.get("code", 0), error["message"]))
                case _:
                    pass
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.cancel()


class TypeScript(Scripted):
    """The client of the official TypeScript SDK."""

    name = "typescript"
    script = ("ts_client.mjs",)


class Acpx(Scripted):
    """A host of acpx's runtime. It chooses options by their kind alone, and asks only during a prompt."""

    name = "acpx"
    script = ("acpx_client.mjs",)
    can_choose_any_option = False
    servers: Sequence[dict[str, Any]] = ()

    def arguments(self) -> list[str]:
        return [str(self.folder / "acpx")]

    def environment(self) -> dict[str, str]:
        return environment(ACPX_TEST_MCP=msgspec.json.encode(list(self.servers)).decode())

    async def initialize(self) -> None:
        """Acpx initializes the agent with the first session."""


class PythonSdk(Client):
    """The client of the official Python SDK, in this process."""

    name = "python"

    async def start(self) -> None:
        self._stack = AsyncExitStack()
        handler: Any = _Handler(self)
        starting = spawn_agent_process(
            handler, self.command[0], *self.command[1:], env=environment(), cwd=self.folder,
            use_unstable_protocol=True, transport_kwargs={"limit": 2**26},
        )  # fmt: skip
        connection, _ = await self._stack.enter_async_context(starting)
        self._wire: Any = vars(connection)["_conn"]  # its methods leave out what the SDK does not know yet
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        await self.request("initialize", protocolVersion=PROTOCOL_VERSION, clientCapabilities=self.capabilities)

    async def stop(self) -> None:
        await self._stack.aclose()

    async def request(self, method: str, **params: Any) -> Any:
        try:
            return await self._wire.send_request(method, params)
        except RequestError as error:
            raise Refused(error.code, str(error)) from None

    async def notify(self, method: str, **params: Any) -> None:
        await self._wire.send_notification(method, params)

    async def send_answer(self, number: int, result: dict[str, Any]) -> None:
        self._answers[number].set_result(result)

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Have the test answer a request of the agent."""
        number = len(self._answers) + 1
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self.heard(number, method, params)
        return await answer


class _Handler:
    """What the Python SDK calls for the agent's requests."""

    def __init__(self, client: PythonSdk) -> None:
        self._client = client

    async def request_permission(self, options: Any, session_id: str, tool_call: Any, **_: Any) -> Any:
        from acp.schema import RequestPermissionResponse

        shown = {
            "sessionId": session_id,
            "toolCall": tool_call.model_dump(by_alias=True, exclude_none=True),
            "options": [one.model_dump(by_alias=True) for one in options],
        }
        return RequestPermissionResponse.model_validate(await self._client.ask("session/request_permission", shown))

    async def create_elicitation(self, message: str, mode: Any = None, **more: Any) -> Any:
        from acp.schema import AcceptElicitationResponse, CancelElicitationResponse, DeclineElicitationResponse

        shown: dict[str, Any] = {"message": message, "mode": mode, **more}
        if hasattr(mode, "model_dump"):
            shown |= mode.model_dump(by_alias=True, exclude_none=True)
        answer = await self._client.ask("elicitation/create", shown)
        kinds: dict[str, Any] = {
            "accept": AcceptElicitationResponse,
            "decline": DeclineElicitationResponse,
            "cancel": CancelElicitationResponse,
        }
        return kinds[answer["action"]].model_validate(answer)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self._client.updates.append({"sessionId": session_id, "update": update})

    async def read_text_file(self, path: str, session_id: str, **_: Any) -> Any:
        from acp.schema import ReadTextFileResponse

        answer = await self._client.ask("fs/read_text_file", {"path": path, "sessionId": session_id})
        return ReadTextFileResponse.model_validate(answer)

    async def write_text_file(self, content: str, path: str, session_id: str, **_: Any) -> Any:
        await self._client.ask("fs/write_text_file", {"path": path, "content": content, "sessionId": session_id})


@asynccontextmanager
async def connected(
    kind: type[Client], folder: Path, *command: str, capabilities: dict[str, Any] | None = None
) -> AsyncGenerator[Any]:
    """A client with an agent; every line that the agent sent is checked at the end."""
    client = kind(folder, command, FORMS if capabilities is None else capabilities)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()
    client.check_wire()


CLIENTS: list[type[Client]] = [TypeScript, PythonSdk, Acpx]


def effects(folder: Path) -> str:
    """What tools did outside of the store."""
    file = folder / "effects.txt"
    return file.read_text() if file.exists() else ""


def sent_requests(client: Client, method: str) -> list[dict[str, Any]]:
    """The requests of the agent, from the wire."""
    sent = [msgspec.json.decode(line[2:]) for line in client.lines() if line.startswith(b"< ")]
    return [one["params"] for one in sent if one.get("method") == method]


async def until(true: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.03)
