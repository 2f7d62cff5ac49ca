"""The command `status`: what sessions are doing, and why."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from upcall.callbacks import Callback, can_continue
from upcall.cli.options import Commands, json_option
from upcall.cli.output import dump, report_no_log, say, table
from upcall.cli.places import command_line, has_log, redactor, view_log
from upcall.core.log.load import load_state
from upcall.core.log.state import SessionState
from upcall.core.runtime.catalog import SESSION_STATUSES
from upcall.errors import SetupError, UnknownSession
from upcall.events import TurnQueued
from upcall.observe.plain import one_line, visible
from upcall.store.rules import as_of

if TYPE_CHECKING:
    from upcall.app import Runtime
    from upcall.contracts import Row


def add(commands: Commands) -> None:
    """Add the command `status`."""
    parser = commands.add(
        "status",
        "show what a session is doing and why, or count the sessions by status",
        _status,
        about="With an ID: who runs the session, or why nobody does.\n"
        "Without one: how many sessions are queued, running, waiting and so on.",
        examples=[
            "upcall status",
            "upcall status login-page",
            "upcall status login-page --agents agents/",
            "upcall status login-page --json",
        ],
        takes="session",
    )
    parser.add_argument("id", metavar="ID", nargs="?", help="the session")
    agents = "where the session's agents are now, to show whether they have changed since its turn began"
    parser.add_argument("--agents", metavar="AGENT", nargs="+", default=[], help=agents)
    json_option(parser)
    parser.set_defaults(ids=False)


async def _status(args: argparse.Namespace) -> int:
    if not has_log(args):
        return report_no_log(args, "so there are no sessions", lists=True)
    if args.agents and args.id is None:
        raise SetupError("--agents needs the ID of a session")
    async with view_log(args) as runtime:
        await (_all(args, runtime) if args.id is None else _one(args, runtime))
    return 0


# --- all --------------------------------------------------------------------------------


async def _all(args: argparse.Namespace, runtime: Runtime) -> None:
    store = runtime.store
    counts, paused = await store.counts(), await store.pauses()
    oldest = await store.unfinished(1)
    ready = max(0.0, store.now() - oldest[0].updated) if oldest else None
    if args.json:
        dump({"counts": counts, "oldest_ready_seconds": ready, "paused": paused})
        return
    rows = [(status, str(counts[status])) for status in SESSION_STATUSES if status in counts]
    if not rows:
        say("there are no sessions")
        return
    table(("STATUS", "SESSIONS"), rows, styled=0)
    if ready is not None:
        first = f"the oldest session that is ready to run is {visible(oldest[0].id)}"
        say(f"\n{first}; it has been ready for {_duration(ready)}")
    for name, until in paused.items():
        say(f"paused: {visible(name)}, for {_duration(until - store.now())}")


# --- one --------------------------------------------------------------------------------


async def _one(args: argparse.Namespace, runtime: Runtime) -> None:
    row = await runtime.store.row(args.id)
    if row is None:
        raise UnknownSession(args.id)
    root = row if row.root == row.id else (await runtime.store.row(row.root) or row)
    state = await load_state(runtime.store, root.id)
    assert state is not None
    facts = await _facts(runtime, row, root, state)
    if args.agents:
        facts["agent_changed"] = await asyncio.to_thread(_has_changed, args.agents, state)
    if args.json:
        dump(facts)
        return
    say(f"{visible(row.id)} ({visible(row.agent)}) is {facts['status']}")
    for line in _why(args, facts):
        say(f"  {line}")


async def _facts(runtime: Runtime, row: Row, root: Row, state: SessionState) -> dict[str, Any]:
    hide, callbacks = redactor().text, await runtime.store.callbacks(root=root.id)
    open_now = [one for one in callbacks if one.status == "open"]
    queued = state.queued[0] if state.queued else await _last_queued(runtime, root.id)
    return {
        "id": row.id, "agent": row.agent, "root": root.id, "root_agent": root.agent, "status": row.current_status,
        "owner": root.owner or None, "since": root.updated,
        "priority": queued.priority if queued else None, "tenant": queued.tenant if queued else None,
        "turn": state.turn.number, "queued_turns": [one.turn for one in state.queued],
        "tried": state.turn.retries, "retry": state.turn.retry or None,
        "error": hide(state.turn.error) or None,
        "ready": _why_ready(root, callbacks, runtime.store.now()),
        "agent_changed": None if state.turn.phase == "running" else False,
        "waits_for": [{"callback": one.id, "from": one.target, "message": hide(one.message)} for one in open_now],
    }  # fmt: skip


def _why_ready(root: Row, callbacks: Sequence[Callback], now: float) -> str | None:
    """Return why a waiting run tree can continue, such as `answered`; None if it waits for somebody."""
    if root.owner or root.status != "waiting":
        return None
    ends = [one for one in callbacks if one.ends_wait(now)]
    if not can_continue(callbacks, now):
        return None if any(one.status == "open" for one in callbacks) else "withdrawn"
    settled = sorted({as_of(one, now).status for one in ends} - {"open"})
    return " and ".join(settled) or "an agent is asked next"


def _has_changed(places: Sequence[str], state: SessionState) -> bool:
    """Return whether the session's agent has changed since its turn began; UnknownAgent if it is not there."""
    from upcall.agentfiles.load import load_all
    from upcall.app import model_of
    from upcall.core.runtime.known_agents import KnownAgents
    from upcall.core.runtime.taking import has_changed

    return has_changed(KnownAgents([one for place in places for one in load_all(place)], model_of), state)


async def _last_queued(runtime: Runtime, root: str) -> TurnQueued | None:
    """Return the event that queued the newest turn, if it is among the first events."""
    events = await runtime.store.read(root, 0, 100)
    return next((e for e in reversed(events) if isinstance(e, TurnQueued)), None)


def _why(args: argparse.Namespace, facts: dict[str, Any]) -> list[str]:
    """Return the reasons, one on each line."""
    lines: list[str] = []
    if facts["owner"]:
        lines.append(f"{visible(facts['owner'])} runs it; its last event was {_ago(facts['since'])}")
    if facts["retry"]:
        left = max(0.0, facts["retry"] - time.time())
        lines.append(f"failed and is tried again in {_duration(left)} (retry {facts['tried']} of 3)")
    elif facts["status"] == "queued" and not facts["owner"]:
        lines.append(f"queued for {_duration(time.time() - facts['since'])}; no worker has taken it yet")
        needs = f"it needs a worker that has the agent {facts['agent']!r} and has not reached its limits"
        lines.append(f"{needs}: {command_line(args, 'worker', agents='AGENT')}")
    elif facts["ready"]:
        needs = f"{facts['ready']}; waits for a worker with the agent {facts['root_agent']!r}"
        lines.append(f"{needs}: {command_line(args, 'worker', agents='AGENT')}")
    if facts["status"] == "interrupted":
        lines.append("its process died or stopped; a worker, or `upcall resume`, continues it")
    lines += _changed(args, facts)
    if facts["priority"]:
        tenant = f", tenant {visible(facts['tenant'])}" if facts["tenant"] else ""
        lines.append(f"priority {facts['priority']}{tenant}")
    if facts["queued_turns"]:
        lines.append(f"queued turns: {', '.join(map(str, facts['queued_turns']))}")
    for one in facts["waits_for"]:
        who = "a person" if one["from"] == "user" else visible(one["from"])
        lines.append(f"waits for {who}: {one_line(one['message'], 100)} ({visible(one['callback'])})")
    if facts["error"]:
        lines.append(f"failed: {one_line(facts['error'], 300)}")
    return lines


def _changed(args: argparse.Namespace, facts: dict[str, Any]) -> list[str]:
    """Say whether workers may leave the turn because of its agent."""
    if facts["owner"] or not (facts["ready"] or facts["status"] == "interrupted"):
        return []
    leave = "workers that were started with `--changed leave` do not take it"
    if facts["agent_changed"]:
        return [f"its agent has changed since the turn began; {leave}"]
    if facts["agent_changed"] is None:
        tells = command_line(args, "status", facts["id"], agents="AGENT")
        return [f"{leave} if its agent has changed since the turn began; {tells} says whether it has"]
    return []


def _ago(then: float) -> str:
    return f"{_duration(time.time() - then)} ago"


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
