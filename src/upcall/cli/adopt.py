"""The command `adopt`: show what a foreign log contains, then make it the user's own."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from upcall.app import Runtime, open_store
from upcall.callbacks import Answer, Callback
from upcall.cli.options import Commands
from upcall.cli.output import confirm, say, tell
from upcall.cli.places import os_user, redactor
from upcall.core.log.load import load_state
from upcall.errors import SetupError, StoreDamaged, StoreError, UpcallError
from upcall.events import AnyEvent, CallbackAnswered, CallbackRaised, SessionAdopted
from upcall.observe.phrases import args_line
from upcall.observe.plain import one_line, visible

if TYPE_CHECKING:
    from upcall.core.log.state import SessionState
    from upcall.store.sqlite.store import SqliteStore

_ALL = 10_000_000
_MOST_LINES = 50
"""The most lines to print in each section."""

_Grant = tuple[Callback | CallbackRaised, Answer | CallbackAnswered | None, str]
"""An approval, its answer, and how long it holds."""

_LONGEST_LINE = 500
"""The longest line to print, in characters."""


class _Content(NamedTuple):
    """Parts of a foreign log that may surprise its new owner, as lines to print."""

    sessions: int
    waiting: list[str]
    approvals: list[str]
    sources: list[str]
    position: int


def add(commands: Commands) -> None:
    """Add the command `adopt`."""
    parser = commands.add(
        "adopt",
        "adopt a log that came with a folder or from an older version",
        _adopt,
        about="A log in .upcall that you did not create is read-only: it may contain approvals that\n"
        "somebody else gave, and names of modules to import. This command shows the open\n"
        "questions, the approvals that can still be used, and the modules that its sessions\n"
        "name. If you confirm, upcall treats the log as yours, and asks for those approvals again.",
        examples=["upcall adopt .upcall/log.db", "upcall adopt .upcall/log.db --yes"],
    )
    parser.add_argument("path", metavar="PATH", help="the log, such as .upcall/log.db")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


async def _adopt(args: argparse.Namespace) -> int:
    path = _log_path(args.path)
    store = cast("SqliteStore", open_store(path, found=True, view=True))
    async with Runtime(store) as runtime:
        if not store.foreign:
            tell(f"{visible(args.path)} is already your log; nothing was changed")
            return 0
        content = await _content(runtime)
    _show(args.path, content)
    if not confirm("Make this log yours?", args.yes):
        tell("nothing was changed")
        return 1
    reopened = await _adopt_log(path, content.position)
    again = f"; {reopened} approval{'s' if reopened != 1 else ''} will be asked for again" if reopened else ""
    tell(f"{visible(args.path)} is your log now{again}")
    return 0


def _log_path(argument: str) -> Path:
    path = Path(argument)
    if not path.exists():
        raise SetupError(f"log {argument} does not exist")
    if path.is_dir():
        raise SetupError(f"{argument} is a folder; give the path of the log in it, such as {path / 'log.db'}")
    return path.resolve()


async def _adopt_log(path: Path, position: int) -> int:
    """Revoke the approvals in the log and mark it as adopted; returns how many will be asked for again."""
    store = cast("SqliteStore", open_store(path))
    async with Runtime(store) as runtime:
        if await store.last() != position:
            raise StoreError(
                str(path), "the log changed in the meantime, so nothing was adopted. Run `upcall adopt` again"
            )
        events: dict[str, list[AnyEvent]] = {}
        for row in await runtime.rows(limit=_ALL):
            uncertain = (await _state(runtime, row.id)).approvals_in_doubt()
            ids = tuple(one.id for one in uncertain)
            events[row.id] = [SessionAdopted(os_user(), ids)]
        if events:
            await store.append_all(events)
        await store.adopt()
        return sum(len(cast("SessionAdopted", one).reopened) for (one,) in events.values())


async def _state(runtime: Runtime, session_id: str) -> SessionState:
    try:
        state = await load_state(runtime.store, session_id)
    except (UpcallError, asyncio.CancelledError):
        raise
    except Exception as error:  # its events are inconsistent
        problem = f"session {session_id!r} can't be read ({type(error).__name__}: {error}); nothing was changed"
        raise StoreDamaged(runtime.store.where, problem) from error
    if state is None:
        raise StoreDamaged(runtime.store.where, f"session {session_id!r} can't be read; nothing was changed")
    return state


# --- what is in it ----------------------------------------------------------------------


async def _content(runtime: Runtime) -> _Content:
    waiting: list[str] = []
    approvals: list[str] = []
    sources: set[str] = set()
    rows = await runtime.rows(limit=_ALL)
    for row in rows:
        state = await _state(runtime, row.id)
        sources |= {one for one in (state.header.source, state.header.program) if one}
        waiting += [_question(one) for one in state.turn.callbacks.values() if one.status == "open"]
        granted: list[_Grant] = [(one, one.answer, "once") for one in state.approvals_in_doubt()]
        granted += [(raised, answered, "for the session") for raised, answered in state.grants]
        approvals += [
            f"{_call(raised)}, answered by {answered.by or 'somebody'}, {how}"
            for raised, answered, how in granted
            if answered is not None
        ]
    return _Content(len(rows), waiting, approvals, sorted(sources), await runtime.store.last())


def _question(callback: Callback) -> str:
    return _call(callback) if callback.gate else redactor().text(f"{callback.agent} asks: {callback.message}")


def _call(raised: Callback | CallbackRaised) -> str:
    raised = redactor().copy(raised)
    return f"{raised.agent} wants to run {raised.tool} {args_line(raised.args or {})}"


def _show(path: str, content: _Content) -> None:
    say(f"{visible(path)}: {content.sessions} session{'s' if content.sessions != 1 else ''}")
    _section("open questions", content.waiting)
    _section("approvals that can still be used (they will be asked for again)", content.approvals)
    _section("modules and folders that its sessions import agents from", content.sources)


def _section(title: str, lines: list[str]) -> None:
    say(f"\n{title}:")
    for line in lines[:_MOST_LINES] or ["nothing"]:
        say(f"  {one_line(line, _LONGEST_LINE)}")
    if len(lines) > _MOST_LINES:
        say(f"  and {len(lines) - _MOST_LINES} more")
