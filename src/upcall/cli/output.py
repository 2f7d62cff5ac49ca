"""Printing: JSON for programs, tables and plain text for people, and confirmation prompts."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from upcall.cli.places import no_log
from upcall.contracts import Reply, Row
from upcall.core.log.load import load_state
from upcall.core.routing.answer import callback_of
from upcall.errors import SetupError, StoreDamaged, UnknownSession, UpcallError
from upcall.events import SessionStarted
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.keys import drop_early_lines
from upcall.hosts.terminal.layout import WIDEST
from upcall.hosts.terminal.question import wrap
from upcall.messages import NO_USAGE
from upcall.observe.plain import escaped, one_line, plain, shortened

if TYPE_CHECKING:
    from upcall.app import Runtime

STYLES = {
    "done": "green", "failed": "red", "limit": "yellow", "cancelled": "yellow", "interrupted": "yellow",
    "running": "cyan", "waiting": "magenta", "idle": "dim", "queued": "dim",
}  # fmt: skip


_LONGEST_FAILURE = 10_000
"""The longest failure text to print, in characters. It may contain a server's answer."""


def say(text: str = "") -> None:
    """Print a line on stdout."""
    sys.stdout.write(f"{text}\n")


def tell(text: str) -> None:
    """Print a message for the person on stderr, apart from the output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def report_no_log(args: argparse.Namespace, means: str, *, lists: bool = False) -> int:
    """Report that the default log does not exist and what that means; print an empty list for --json. Returns 0."""
    if lists and args.json:
        dump([])
    write = say if lists and not (args.json or args.ids) else tell
    write(plain(f"{no_log(args)}, {means}"))
    return 0


def dump(value: Any, *, lines: bool = False) -> None:
    """Print a value as JSON: indented, or on one line."""
    body = msgspec.json.encode(value)
    body = body if lines else msgspec.json.format(body, indent=2)
    sys.stdout.write(escaped(body.decode()) + "\n")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, styled: int | None = None) -> None:
    """Print a table. At a terminal, the last column is cut to the screen, and column `styled` is a status."""
    if sys.stdout.isatty():
        _rich_table(headers, rows, styled)
        return
    widths = [max(len(row[at]) for row in (headers, *rows)) for at in range(len(headers))]
    for row in (headers, *rows):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]], styled: int | None) -> None:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for at, header in enumerate(headers):
        last = at == len(headers) - 1
        made.add_column(header, no_wrap=True, overflow="ellipsis", ratio=1 if last else None)
    for row in rows:
        made.add_row(*(Text(c, STYLES.get(c, "") if at == styled else "") for at, c in enumerate(row)))
    make_console(sys.stdout).print(made)


def width() -> int:
    """Return the width of the screen in columns."""
    return shutil.get_terminal_size().columns


def text_width() -> int:
    """Return the columns for a text: the screen's, or no limit in a pipe, where programs read the rows."""
    return min(width(), WIDEST) if sys.stdout.isatty() else 1_000_000


def hanging_indent(text: str, first: str, room: int) -> list[str]:
    """Wrap a text with a hanging indent: `first` starts the first row."""
    return [f"{' ' * len(first) if at else first}{row}" for at, row in enumerate(wrap(text, room - len(first)))]


def ago(then: float) -> str:
    """Format the time since `then` for people."""
    seconds = max(time.time() - then, 0)
    if seconds < 60:
        return f"{seconds:.0f} s ago"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h ago"
    return f"{seconds // 86400:.0f} days ago"


def local_time(then: float) -> str:
    """Format a time as local time."""
    return datetime.fromtimestamp(then).astimezone().isoformat(" ", "seconds")


async def session_json(runtime: Runtime, session_id: str) -> dict[str, Any]:
    """Return a session as `show --json` prints it."""
    row = await runtime.store.row(session_id)
    if row is None:
        raise UnknownSession(session_id)
    return (await sessions_json(runtime, [row]))[0]


async def turn_json(
    runtime: Runtime, session_id: str, reply: Reply | None = None, error: Exception | None = None
) -> dict[str, Any]:
    """Return a session as `run --json` prints it: with the last turn's usage, limit and error."""
    try:
        found = reply or await load_state(runtime.store, session_id)
    except StoreDamaged:  # it is the error itself, or was already reported
        found = None
    usage, limit = (found.usage, found.limit) if found is not None else (NO_USAGE, "")
    failed = f"{type(error).__name__}: {error}" if error is not None else None
    extra = {"usage": msgspec.structs.asdict(usage), "limit": limit, "error": failed}
    return {**await session_json(runtime, session_id), **extra}


async def sessions_json(runtime: Runtime, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return sessions as `sessions --json` prints them."""
    callbacks: dict[str, list[Any]] = {}
    data: dict[str, Mapping[str, Any]] = {}
    for root in {row.root for row in rows}:
        await _collect_callbacks(runtime, root, callbacks)
        data[root] = await _data(runtime, root)
    return [
        {
            "id": row.id,
            "agent": row.agent,
            "status": row.current_status,
            "text": await last_text(runtime, row),
            "parent": row.parent or None,
            "children": [child.id for child in await children_of(runtime, row.id)],
            "callbacks": callbacks.get(row.id, []),
            "tags": row.tags,
            "data": data[row.root],
            "title": row.title,
            "folder": row.folder or None,
            "roots": row.roots,
        }
        for row in rows
    ]


async def _data(runtime: Runtime, root: str) -> Mapping[str, Any]:
    """Return the data of a run tree; empty if its first event can't be read, which `last_text` reports."""
    try:
        first = (await runtime.store.read(root, 0, 1))[0]
    except StoreDamaged:
        return {}
    return first.data if isinstance(first, SessionStarted) else {}


async def last_text(runtime: Runtime, row: Row) -> str:
    """Return the last reply text of a session."""
    try:
        state = await load_state(runtime.store, row.id)
    except StoreDamaged as error:  # one damaged session: the others are listed all the same
        tell(f"upcall: {failure_line(error)}")
        return ""
    return state.reply_text if state is not None else ""


async def children_of(runtime: Runtime, session_id: str) -> list[Row]:
    """Return the sessions that this one started, without side turns."""
    rows = await runtime.rows(parent=session_id, limit=100_000)
    return [row for row in rows if row.kind != "side_turn"]


async def _collect_callbacks(runtime: Runtime, root: str, callbacks: dict[str, list[Any]]) -> None:
    """Collect the callbacks of a run tree, oldest first, for each session and its ancestors."""
    for held in await runtime.store.callbacks(root=root, limit=100_000):
        shown, names = all_fields(callback_of(held)), held.raised.session.split("~")
        for depth in range(len(names)):
            callbacks.setdefault("~".join(names[: depth + 1]), []).append(shown)


def all_fields(value: Any) -> Any:
    """Convert a value for JSON with all fields, including empty ones."""
    if isinstance(value, msgspec.Struct):
        return {name: all_fields(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [all_fields(one) for one in cast("Sequence[Any]", value)]
    return value


def failure_line(error: Exception) -> str:
    """Format a failure; exceptions that are neither ours nor the system's are shown with their class."""
    known = isinstance(error, UpcallError | OSError)
    return shortened(plain(str(error) if known else f"{type(error).__name__}: {error}"), _LONGEST_FAILURE)


def first_line(text: str, most: int) -> str:
    """Return the beginning of a text, for a table."""
    return one_line(plain(text[:2000]).strip().partition("\n\n")[0], max(most, 8))


def confirm(question: str, yes: bool) -> bool:
    """Ask for confirmation of something that can't be undone. Without a terminal, --yes is required.

    Input that was typed before the question was visible does not count.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise SetupError(f"{question} Nobody can be asked here; give --yes")
    sys.stderr.write(question)
    sys.stderr.flush()
    drop_early_lines()
    sys.stderr.write(" [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
