"""The sessions of one editor: opened, listed, prompted, closed, and continued when they are answered elsewhere.

It is a module of its own because it imports the runtime: an editor gets its first answer before that.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from upcall.agent import Agent
from upcall.app import Runtime
from upcall.callbacks import Callback, HostAnswer
from upcall.contracts import Row
from upcall.errors import SessionBusy, SetupError, UnknownSession, UpcallError
from upcall.events import SessionStarted, TurnStarted
from upcall.hosts.acp import protocol
from upcall.hosts.acp.connection import Connection
from upcall.hosts.acp.content import message_of
from upcall.hosts.acp.editor_files import EditorWorkspace, mounted_folders
from upcall.hosts.acp.mcp_servers import SessionServers, described
from upcall.hosts.acp.options import MODE, changed, config_options, mode_of, modes
from upcall.hosts.acp.session import EditorSession
from upcall.hosts.acp.tool_calls import ToolCalls
from upcall.hosts.acp.updates import Updates
from upcall.jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND, RpcError
from upcall.observe.labels import Labels
from upcall.observe.lines import Lines
from upcall.observe.plain import one_line, plain
from upcall.observe.redact import Redactor
from upcall.observe.weight import aside
from upcall.prices import Cost
from upcall.workspace import Folder

DATA = "acp"
"""The key in a session's data that says that it was started in an editor."""

_PAGE = 50
_MOST_SESSIONS = 200
_MOST_TOLD = 20


class Place(Protocol):
    """Where sessions run: opened when the first one is needed, so that an editor hears of its mistakes."""

    @property
    def person(self) -> str:
        """The name of the person who runs the editor."""
        ...

    def preload(self) -> None:
        """Import what `open` and `servers` need. It is called in a thread, before the first session."""
        ...

    def appearance(self) -> Appearance:
        """Return how things are shown; SetupError says what is wrong with a file that says so."""
        ...

    async def open(self, host: Desk) -> tuple[Runtime, Agent]:
        """Return the runtime and the agent to talk to; UpcallError says what is wrong with them."""
        ...

    def servers(self, agent: Agent, passed: Mapping[str, Mapping[str, Any]]) -> SessionServers:
        """Return the MCP servers of a session, those that an editor passes included. Nothing is started."""
        ...


class Appearance(msgspec.Struct, frozen=True):
    """How things are shown: what hides secrets, the labels of tools, prices, the size of the context window."""

    redactor: Redactor
    labels: Labels
    cost: Cost | None = None
    window: int = 0


class Desk:
    """The sessions that are open in one editor. It is the host of their runtime."""

    def __init__(self, connection: Connection, place: Place, ended: asyncio.Event) -> None:
        self._connection, self._place, self._ended = connection, place, ended
        self._by, self._appearance = place.person, place.appearance()
        self._opening = asyncio.Lock()
        self._opened: tuple[Runtime, Agent] | None = None
        self._sessions: dict[str, EditorSession] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._has_told = False  # of what waits in sessions that are not open

    async def handle(self, method: str, params: msgspec.Raw) -> Any:
        """Answer a request about sessions."""
        kind, handle = self._handlers[method]
        return await handle(self, msgspec.json.decode(params, type=kind))

    async def cancel(self, session_id: str) -> None:
        """Cancel the turn of a session."""
        session = self._sessions.get(session_id)
        if session is not None:
            await session.cancel()

    def close(self) -> None:
        """Stop what runs beside requests."""
        for task in tuple(self._tasks):
            task.cancel()

    def explain(self, error: Exception) -> RpcError | None:
        """Return the answer to a request that failed; None for an error that nobody expects."""
        if isinstance(error, UnknownSession):
            return RpcError(NOT_FOUND, self._shown(error))
        if isinstance(error, UpcallError | OSError):
            return RpcError(INTERNAL_ERROR, self._shown(error))
        return None

    def _shown(self, error: Exception) -> str:
        return plain(self._appearance.redactor.text(str(error)))[:10_000]

    # --- the host of the runtime ----------------------------------------------------------

    async def ask(self, callback: Callback) -> HostAnswer:
        """Ask the person in the editor, if the question's session is open there."""
        session = self._sessions.get(callback.session_id.partition("~")[0])
        return None if session is None else await session.ask(callback)

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Do nothing more: the request to the editor is cancelled with the task that awaits it."""

    async def _open_place(self) -> tuple[Runtime, Agent]:
        async with self._opening:
            if self._opened is None:
                self._opened = await self._place.open(self)
                self._spawn(self._opened[0].work(self._ended, resume=self._resume_ready, drain=0.0))
        return self._opened

    async def _resume_ready(self, root: str) -> bool:
        """Continue a session that is ready, if it is open here; the others are left to other processes."""
        session = self._sessions.get(root)
        if session is None:
            return False
        if not session.is_running:
            await self._continue(session)
        return True

    # --- sessions -------------------------------------------------------------------------

    async def _new(self, given: protocol.NewSession) -> dict[str, Any]:
        runtime, agent = await self._open_place()
        if len(self._sessions) >= _MOST_SESSIONS:
            raise RpcError(INTERNAL_ERROR, f"{_MOST_SESSIONS} sessions are open; close one")
        folder, roots = (
            _checked_folder(given.cwd),
            [_checked_folder(one) for one in given.additional_directories or ()],
        )
        workspace = self._workspace(agent, folder, roots)
        servers = self._servers(agent, given.mcp_servers)
        session = await runtime.start(
            servers.agent, folder=folder, roots=roots, workspace=workspace, data={DATA: {}}
        )
        if workspace is not None:
            workspace.session_id = session.id
        updates = self._updates(session.id, folder, roots)
        opened = EditorSession(self._connection, runtime, servers, session, updates, self._by)
        await opened.open(is_new=True)
        self._sessions[session.id] = opened
        self._spawn(self._announce(runtime, opened, is_new=True))
        return {"sessionId": session.id, **self._choices(agent, opened)}

    def _servers(self, agent: Agent, passed: Sequence[Mapping[str, Any]] | None) -> SessionServers:
        """Return the MCP servers of a session. Nothing is started."""
        try:
            return self._place.servers(agent, described(passed))
        except SetupError as error:
            raise RpcError(INVALID_PARAMS, self._shown(error)) from None

    def _workspace(self, agent: Agent, folder: str, roots: Sequence[str]) -> EditorWorkspace | None:
        """Return the workspace of a session: its folder, unless the agent declares something else than a folder."""
        if agent.workspace is not None and not isinstance(agent.workspace, Folder):
            return None
        return EditorWorkspace(self._connection, folder, roots)

    def _updates(self, session_id: str, folder: str, roots: Sequence[str]) -> Updates:
        shown = self._appearance
        calls = ToolCalls(shown.redactor, shown.labels, folder, mounted_folders(roots))
        return Updates(session_id, self._connection.client, calls, cost=shown.cost, window=shown.window)

    def _choices(self, agent: Agent, session: EditorSession) -> dict[str, Any]:
        options = session.session.options
        return {"modes": modes(options), "configOptions": config_options(agent, options)}

    async def _load(self, given: protocol.OpenSession) -> dict[str, Any]:
        return await self._open_session(given, replay=True)

    async def _resume(self, given: protocol.OpenSession) -> dict[str, Any]:
        return await self._open_session(given, replay=False)

    async def _open_session(self, given: protocol.OpenSession, *, replay: bool) -> dict[str, Any]:
        runtime, agent = await self._open_place()
        folder = _checked_folder(given.cwd)
        row = await runtime.store.row(given.session_id)
        if row is None or row.parent:
            raise UnknownSession(given.session_id)
        before = self._sessions.pop(row.id, None)
        if before is not None:
            await before.close()
        folder, servers = row.folder or folder, self._servers(agent, given.mcp_servers)
        workspace = None
        if await has_own_folder(runtime, row.id):
            workspace = EditorWorkspace(self._connection, folder, row.roots)
            workspace.session_id = row.id
        own = servers.agent if servers.agent is not agent else None
        session = await runtime.load(row.id, workspace=workspace, agent=own)
        updates = self._updates(row.id, folder, row.roots)
        opened = EditorSession(self._connection, runtime, servers, session, updates, self._by)
        await opened.open(replay=replay)
        if before is not None:
            opened.adopt(before)
        self._sessions[row.id] = opened
        self._spawn(self._announce(runtime, opened))
        if row.status in ("running", "waiting"):
            self._spawn(self._continue(opened))
        return self._choices(agent, opened)

    async def _announce(self, runtime: Runtime, session: EditorSession, *, is_new: bool = False) -> None:
        """Send what an editor has to know of a session, after the answer that opens it, and connect its servers."""
        update = {"sessionUpdate": "available_commands_update", "availableCommands": session.commands.listed()}
        self._connection.update(session.id, update)
        asyncio.get_running_loop().call_soon(session.connect_servers)  # once the answer is on its way
        if is_new and not self._has_told:
            self._has_told = True
            if waiting := await self._waiting_elsewhere(runtime):
                session.notify(waiting)

    async def _waiting_elsewhere(self, runtime: Runtime) -> str:
        """Return which questions wait in sessions that are not open here; "" if none do."""
        waiting = [
            one
            for one in await runtime.inbox(limit=_MOST_TOLD)
            if one.session_id.partition("~")[0] not in self._sessions
        ]
        if not waiting:
            return ""
        rows: list[str] = []
        lines = Lines(self._appearance.redactor, self._appearance.labels)
        for one in waiting:
            about = f"asks: {lines.text(one.message)}"
            what = f"wants to run {one_line(one.tool, 60)}" if one.tool else about
            rows.append(f"- {one.agent} {what} (session {one.session_id.partition('~')[0]})")
        count = f"{len(waiting)} question{'s' if len(waiting) > 1 else ''} of other sessions"
        how = "Load the session to answer, or use /inbox and `upcall answer`."
        return "\n".join([f"{count} wait for you. {how}", *rows])

    async def _continue(self, session: EditorSession) -> None:
        """Continue a session that is not done, and ask again what still waits."""
        try:
            await session.continue_turn()
        except SessionBusy as error:
            session.say(f"The session runs elsewhere: {self._shown(error)}")
        except Exception as error:
            session.say(f"The turn failed: {self._shown(error)}")

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _open_one(self, session_id: str) -> EditorSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise RpcError(NOT_FOUND, f"no session {session_id[:100]!r} is open; open it with session/load")
        return session

    async def _list(self, given: protocol.ListSessions) -> dict[str, Any]:
        runtime, agent = await self._open_place()
        which: dict[str, Any] = {"parent": "", "agent": agent.name, "limit": _PAGE + 1}
        if given.cwd:
            which["folder"] = _checked_folder(given.cwd)
        if given.cursor:
            which["before"] = given.cursor
        try:
            rows = await runtime.rows(**which)
        except UnknownSession:
            raise RpcError(INVALID_PARAMS, "the cursor is not valid for this list") from None
        listed = [await self._info(runtime, row) for row in rows[:_PAGE]]
        more = {"nextCursor": rows[_PAGE - 1].id} if len(rows) > _PAGE else {}
        return {"sessions": listed, **more}

    async def _info(self, runtime: Runtime, row: Row) -> dict[str, Any]:
        title = row.title
        if not title:
            first = next((e for e in await runtime.store.read(row.id, 0, 10) if isinstance(e, TurnStarted)), None)
            hides = self._appearance.redactor
            title = one_line(hides.text(hides.beginning(first.message.text, 4000)), 120) if first else ""
        updated = dt.datetime.fromtimestamp(row.updated, dt.UTC).isoformat()
        folder = row.folder or os.getcwd()  # noqa: PTH109
        info: dict[str, Any] = {"sessionId": row.id, "cwd": folder, "updatedAt": updated}
        if row.roots:
            info["additionalDirectories"] = list(row.roots)
        return {**info, "title": title} if title else info

    async def _close_session(self, given: protocol.OneSession) -> dict[str, Any]:
        session = self._open_one(given.session_id)
        if session.is_running:
            await session.cancel()
            await session.until_cancelled()
        self._sessions.pop(given.session_id, None)
        await session.close()
        return {}

    async def _delete(self, given: protocol.OneSession) -> dict[str, Any]:
        runtime, _ = await self._open_place()
        if given.session_id in self._sessions:
            await self._close_session(given)
        row = await runtime.store.row(given.session_id)
        if row is None or row.parent:
            raise UnknownSession(given.session_id)
        await runtime.delete(given.session_id)
        return {}

    # --- turns and choices ----------------------------------------------------------------

    async def _prompt(self, given: protocol.Prompt) -> dict[str, Any]:
        session = self._open_one(given.session_id)
        return {"stopReason": await session.prompt(await aside(message_of, given.prompt))}

    async def _set_mode(self, given: protocol.SetMode) -> dict[str, Any]:
        await self._choose(self._open_one(given.session_id), MODE, given.mode_id)
        return {}

    async def _set_option(self, given: protocol.SetConfigOption) -> dict[str, Any]:
        session = self._open_one(given.session_id)
        agent = await self._choose(session, given.config_id, given.value)
        return {"configOptions": config_options(agent, session.session.options)}

    async def _choose(self, session: EditorSession, name: str, value: str | bool) -> Agent:
        _, agent = await self._open_place()
        before = session.session.options
        options = changed(agent, before, name, value)
        await session.session.set_options(options)
        if mode_of(options) != mode_of(before):
            update = {"sessionUpdate": "current_mode_update", "currentModeId": mode_of(options)}
            self._connection.update(session.id, update)
        shown = {"sessionUpdate": "config_option_update", "configOptions": config_options(agent, options)}
        self._connection.update(session.id, shown)
        return agent

    _handlers: dict[str, tuple[Any, Any]] = {  # noqa: RUF012
        "session/new": (protocol.NewSession, _new),
        "session/load": (protocol.OpenSession, _load),
        "session/resume": (protocol.OpenSession, _resume),
        "session/list": (protocol.ListSessions, _list),
        "session/close": (protocol.OneSession, _close_session),
        "session/delete": (protocol.OneSession, _delete),
        "session/prompt": (protocol.Prompt, _prompt),
        "session/set_mode": (protocol.SetMode, _set_mode),
        "session/set_config_option": (protocol.SetConfigOption, _set_option),
    }


async def has_own_folder(runtime: Runtime, root: str) -> bool:
    """Return whether a session was started in an editor, with a workspace of its own."""
    first = (await runtime.store.read(root, 0, 1))[0]
    return isinstance(first, SessionStarted) and first.workspace and DATA in first.data


def _checked_folder(path: str) -> str:
    if not path.startswith("/") or "\0" in path or len(path) > 4096:
        raise RpcError(INVALID_PARAMS, f"{path[:200]!r} is not an absolute path of a folder")
    try:
        is_folder = os.path.isdir(path)  # noqa: PTH112
    except (OSError, ValueError):
        is_folder = False
    if not is_folder:
        raise RpcError(INVALID_PARAMS, f"{path[:200]!r} is not a folder on this machine")
    return os.path.normpath(path)
