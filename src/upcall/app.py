"""The public runtime: turns a path into a store and a name into a model."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from upcall.agent import Agent
from upcall.contracts import Host, Model, OutputT_co, Reply, Store
from upcall.core.runtime.session import Session
from upcall.core.runtime.session_data import check_unchanged
from upcall.core.runtime.sessions import Sessions
from upcall.core.turns.access import prompt_message
from upcall.errors import BadAgent, SetupError, UnknownSession, UpcallError
from upcall.messages import Message
from upcall.safety.bounds import brief

if TYPE_CHECKING:
    from upcall.observe.agent_logs import AgentLogs
    from upcall.observe.labels import Labels
    from upcall.observe.redact import Redactor
    from upcall.prices import Prices

Where = str | os.PathLike[str] | Store

_LOOKS_LIKE_URL = re.compile(r"[a-z][a-z0-9+.-]+:/|postgres(ql)?(:|//)", re.IGNORECASE)


class Runtime(Sessions):
    """Runs agents over a store: a path, ":memory:", "postgresql://…", or a Store of your own.

    Use it with `async with`. `agents` are those it knows by name, with all below them. `deps` is any object, which
    tools and hooks read as `ctx.deps`; it is never stored. With `capture`, what goes over the wire to models is
    logged, too.

    These are for people, and secrets are hidden in them: `notify` says whom to notify of questions, `events_file`
    gets a line for every event, `log_dir` a log file for every agent, with the `labels` of tools and the `prices`
    of models. `redactor` hides the secrets; without one, the built-in rules do.
    """

    def __init__(
        self,
        store: Where = ":memory:",
        agents: Sequence[Agent] = (),
        host: Host | None = None,
        hold: float = 30.0,
        deps: Any = None,
        notify: Sequence[Any] = (),
        events_file: str | os.PathLike[str] | None = None,
        trust_store: bool | None = None,
        processes: int | None = None,
        redactor: Redactor | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        capture: bool = False,
        labels: Labels | None = None,
        prices: Prices | None = None,
    ) -> None:
        given: Any = agents
        if isinstance(given, Agent):
            raise SetupError(f"agents must be a list: Runtime(..., agents=[{given.name}])")
        if wrong := [one for one in given if not isinstance(one, Agent)]:
            raise SetupError(
                f"agents must be a list of agents, but it contains {brief(wrong[0])}; "
                "to read agents from files, use load_agents(folder)"
            )
        if host is not None and not callable(getattr(host, "ask", None)):
            raise SetupError(
                f"a host needs `async ask(callback)` and `withdraw(callback_id, reason)`; {brief(host)} has no ask"
            )
        super().__init__(open_store(store, trust_store), agents, model_of, host, hold, deps, processes)
        self.on_close: list[Callable[[], None]] = []
        """Called when it is closed; what reads the log beside it ends then."""
        self._mirror = self._notifier = self._agent_logs = None
        self.capture = capture
        if notify:
            from upcall.observe.notify import Notifier

            self._notifier = Notifier(notify, redactor=_redactor(redactor))
            self.person_watchers.append(self._notifier)
        if events_file is not None:
            from upcall.observe.mirror import Mirror

            self._mirror = Mirror(events_file, _redactor(redactor))
            self.sinks.append(self._mirror)
        if log_dir is not None:
            self._agent_logs = _agent_logs(self, log_dir, _redactor(redactor), labels, prices)
            self.sinks.append(self._agent_logs)

    async def close(self, drain: float = 0.0) -> None:
        """Stop running turns (they can be resumed), and close everything.

        `drain`: seconds that calls and model calls under way have to end, as `Sessions.close` says.
        """
        if self._agent_logs is not None:
            await self._agent_logs.settle()
        await super().close(drain)
        for close in self.on_close:
            close()
        self.on_close.clear()
        if self._notifier is not None:
            await self._notifier.close()
        if self._mirror is not None:
            await self._mirror.settle()
            self._mirror.close()
            self._mirror = None
        if self._agent_logs is not None:
            await self._agent_logs.settle()
            self._agent_logs.close()
            self._agent_logs = None


def _agent_logs(
    runtime: Runtime,
    folder: str | os.PathLike[str],
    redactor: Redactor,
    labels: Labels | None,
    prices: Prices | None,
) -> AgentLogs:
    from upcall.observe.agent_logs import AgentLogs
    from upcall.observe.capture import price_list

    def agent_of(session: str) -> str:
        turn = runtime.turns.get(session)
        return turn.actor.name if turn is not None else ""

    cost = price_list(prices) if prices is not None else None
    return AgentLogs(folder, runtime.store, agent_of, redactor=redactor, labels=labels, cost=cost)


def _redactor(given: Redactor | None) -> Redactor:
    from upcall.observe.redact import Redactor

    return given or Redactor(environ=os.environ)


def open_store(where: Where, trusted: bool | None = None, *, found: bool = False, view: bool = False) -> Store:
    """Return a store for a path or a PostgreSQL URL; nothing is opened yet.

    `trusted` accepts files that others own or can write; without it, UPCALL_TRUST_STORE=1 does. `found`: it is the
    default log, which nobody named, so it must be one that the user made or adopted. `view`: it is only looked at.
    """
    if not isinstance(where, str | os.PathLike):
        if not hasattr(where, "append"):
            raise SetupError(f"a store is a path, ':memory:', 'postgresql://…' or a Store, not {brief(where)}")
        return where
    if str(where) == ":memory:":
        from upcall.store.memory import MemoryStore

        return MemoryStore()
    if is_database(str(where)):
        return _open_postgres(str(where))
    refuse_url(os.fsdecode(where))
    from upcall.store.known_logs import KnownLogs, state_folder
    from upcall.store.opening import LogFile
    from upcall.store.sqlite.store import SqliteStore

    if trusted is None:
        trusted = os.environ.get("UPCALL_TRUST_STORE", "") == "1"
    known = KnownLogs(state_folder(os.environ), trusted=trusted)
    return SqliteStore(LogFile(os.fspath(where), trusted, found, view, known))


def is_database(where: str) -> bool:
    """Return whether this is the URL of a PostgreSQL database."""
    return where.startswith(("postgresql://", "postgres://"))


def refuse_url(where: str) -> None:
    """Raise SetupError for what looks like a URL. What comes after its beginning may be a password."""
    if found := _LOOKS_LIKE_URL.match(where):
        raise SetupError(
            f"{found.group()}… looks like a URL, but a PostgreSQL URL begins with postgresql://; "
            "if it is the path of a file, write ./ before it"
        )


def _open_postgres(url: str) -> Store:
    try:
        from upcall.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise SetupError("PostgreSQL needs an extra: pip install 'upcall[postgres]'") from None
    return PostgresStore(url)


def load_agents(folder: str | os.PathLike[str]) -> list[Agent]:
    """Return the agents of a folder of Markdown files with their sidecars; BadAgentFile lists every mistake."""
    from upcall.agentfiles.load import load_agents as load

    return load(os.fspath(folder))


def model_of(agent: Agent) -> Model:
    """Return an agent's model; a name is resolved."""
    if agent.model is None:
        raise BadAgent(agent.name, "it has no model; give one: model='openai:gpt-6', or Script([...])")
    if not isinstance(agent.model, str):
        return agent.model
    from upcall.models import resolve_model

    return resolve_model(agent.model)


async def open_session(
    runtime: Sessions,
    agent: Agent[OutputT_co],
    id: str | None,
    *,
    data: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> tuple[Session[OutputT_co], bool]:
    """Return the session of that id, or a new one with these data and tags, and whether it is new.

    The data and tags of a session never change: SetupError if there is one with others.
    """
    try:
        session = await runtime.load(id) if id is not None else None
    except UnknownSession:
        session = None
    if session is None:
        return await runtime.start(agent, id, data=data, tags=tags), True
    if not session.parent and session.agent != agent.name:
        raise SetupError(f"{id!r} is a session of {session.agent!r}, not of {agent.name!r}; use another id")
    check_unchanged(session, data, tags)
    return session, False


def run(
    agent: Agent[OutputT_co],
    prompt: str | Message,
    *,
    store: Where = ":memory:",
    id: str | None = None,
    data: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    deps: Any = None,
) -> Reply[OutputT_co]:
    """Run one turn of an agent, from code that is not async. In memory unless `store` names a log.

    With the id of a session that is kept there, the conversation continues. `data` and `tags` are those of
    `Runtime.start`, `deps` is that of `Runtime`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UpcallError(
            "upcall.run() can't be used inside a running event loop; write:\n"
            "    async with Runtime(agents=[agent]) as runtime:\n"
            "        session = await runtime.start(agent)\n"
            "        reply = await session.prompt(...)"
        )

    given: tuple[Any, Any] = (agent, prompt)
    if not isinstance(given[0], Agent) or not isinstance(given[1], str | Message):
        raise SetupError(
            f"upcall.run(agent, prompt) takes an Agent and a prompt, not {brief(agent)} and {brief(prompt)}"
        )
    prompt_message(prompt)  # before a session is started for it

    async def once() -> Reply[OutputT_co]:
        async with Runtime(store, agents=[agent], deps=deps) as runtime:
            session, _ = await open_session(runtime, agent, id, data=data, tags=tags)
            return await session.prompt(prompt)

    return asyncio.run(once())
