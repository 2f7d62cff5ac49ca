"""Printing: JSON for programs, tables and plain text for people, questions where somebody can be asked."""

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
from upcall.hosts.terminal.question import wrapped
from upcall.hosts.terminal.screen import WIDEST
from upcall.messages import NO_USAGE
from upcall.observe.plain import escaped, one_line, plain, shortened

if TYPE_CHECKING:
    from upcall.app import Runtime

STYLES = {
    "done": "green", "failed": "red", "limit": "yellow", "cancelled": "yellow", "interrupted": "yellow",
    "running": "cyan", "waiting": "magenta", "idle": "dim", "queued": "dim",
}  # fmt: skip


_LONGEST_FAILURE = 10_000
"""Characters of a failure that are shown: its text may be a server's answer."""


def say(text: str = "") -> None:
    """A line of the command's own on stdout."""
    sys.stdout.write(f"{text}\n")


def tell(text: str) -> None:
    """A line for the person beside the output, on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def tell_no_log(args: argparse.Namespace, means: str, *, lists: bool = False) -> int:
    """Say that the default log was never made, and what that means; a program's list is empty. Returns 0."""
    if lists and args.json:
        dump([])
    write = say if lists and not (args.json or args.ids) else tell
    write(plain(f"{no_log(args)}, {means}"))
    return 0


def dump(value: Any, *, lines: bool = False) -> None:
    """A value as JSON: indented, or one line of many."""
    body = msgspec.json.encode(value)
    body = body if lines else msgspec.json.format(body, indent=2)
    sys.stdout.write(escaped(body.decode()) + "\n")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, styled: int | None = None) -> None:
    """Columns; the last one is cut to the screen. At a terminal, column `styled` holds a status with its colour."""
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
    """Columns of the screen."""
    return shutil.get_terminal_size().columns


def room() -> int:
    """Columns for a text: a screen's, and without a bound in a pipe, where a row is for programs to read."""
    return min(width(), WIDEST) if sys.stdout.isatty() else 1_000_000


def hung(text: str, first: str, room: int) -> list[str]:
    """A text in rows behind `first`, below which nothing of it stands."""
    return [f"{' ' * len(first) if at else first}{row}" for at, row in enumerate(wrapped(text, room - len(first)))]


def ago(then: float) -> str:
    """How long ago, for people."""
    seconds = max(time.time() - then, 0)
    if seconds < 60:
        return f"{seconds:.0f} s ago"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h ago"
    return f"{seconds // 86400:.0f} days ago"


def clock(then: float) -> str:
    """A moment in local time."""
    return datetime.fromtimestamp(then).astimezone().isoformat(" ", "seconds")


async def described(runtime: Runtime, session_id: str) -> dict[str, Any]:
    """A session as `show --json` has it."""
    row = await runtime.store.row(session_id)
    if row is None:
        raise UnknownSession(session_id)
    return (await described_rows(runtime, [row]))[0]


async def described_turn(
    runtime: Runtime, session_id: str, reply: Reply | None = None, error: Exception | None = None
) -> dict[str, Any]:
    """A session as `run --json` has it: with its last turn's usage, the limit that ended it, and what failed it."""
    try:
        found = reply or await load_state(runtime.store, session_id)
    except StoreDamaged:  # which is the error, or was told
        found = None
    usage, limit = (found.usage, found.limit) if found is not None else (NO_USAGE, "")
    failed = f"{type(error).__name__}: {error}" if error is not None else None
    extra = {"usage": msgspec.structs.asdict(usage), "limit": limit, "error": failed}
    return {**await described(runtime, session_id), **extra}


async def described_rows(runtime: Runtime, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Listed sessions as `sessions --json` has them."""
    asked: dict[str, list[Any]] = {}
    data: dict[str, Mapping[str, Any]] = {}
    for root in {row.root for row in rows}:
        await _callbacks(runtime, root, asked)
        data[root] = await _data(runtime, root)
    return [
        {
            "id": row.id,
            "agent": row.agent,
            "status": row.current_status,
            "text": await last_text(runtime, row),
            "parent": row.parent or None,
            "children": [child.id for child in await children_of(runtime, row.id)],
            "callbacks": asked.get(row.id, []),
            "tags": row.tags,
            "data": data[row.root],
        }
        for row in rows
    ]


async def _data(runtime: Runtime, root: str) -> Mapping[str, Any]:
    """The data of a run tree; none where its first event can't be read, of which `last_text` tells."""
    try:
        first = (await runtime.store.read(root, 0, 1))[0]
    except StoreDamaged:
        return {}
    return first.data if isinstance(first, SessionStarted) else {}


async def last_text(runtime: Runtime, row: Row) -> str:
    """What a session said last."""
    try:
        state = await load_state(runtime.store, row.id)
    except StoreDamaged as error:  # of one session: the others are listed all the same
        tell(f"upcall: {failure_line(error)}")
        return ""
    return state.reply_text if state is not None else ""


async def children_of(runtime: Runtime, session_id: str) -> list[Row]:
    """The sessions that this one started; a side turn over it is none of them."""
    rows = await runtime.rows(parent=session_id, limit=100_000)
    return [row for row in rows if row.kind != "side_turn"]


async def _callbacks(runtime: Runtime, root: str, asked: dict[str, list[Any]]) -> None:
    """Note the callbacks of a run tree, oldest first, for each session and for all above it."""
    for held in await runtime.store.callbacks(root=root, limit=100_000):
        shown, names = whole(callback_of(held)), held.raised.session.split("~")
        for depth in range(len(names)):
            asked.setdefault("~".join(names[: depth + 1]), []).append(shown)


def whole(value: Any) -> Any:
    """A value for JSON with every field there is, the empty ones too."""
    if isinstance(value, msgspec.Struct):
        return {name: whole(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [whole(one) for one in cast("Sequence[Any]", value)]
    return value


def failure_line(error: Exception) -> str:
    """A failure in a line: what is not ours or the system's is named by its class."""
    known = isinstance(error, UpcallError | OSError)
    return shortened(plain(str(error) if known else f"{type(error).__name__}: {error}"), _LONGEST_FAILURE)


def first_line(text: str, most: int) -> str:
    """The beginning of a text for a table."""
    return one_line(plain(text[:2000]).strip().partition("\n\n")[0], max(most, 8))


def confirmed(question: str, yes: bool) -> bool:
    """Whether the person agrees to what can't be undone; where nobody can be asked, `--yes` has to have been said.

    What was typed before the question could be read does not count.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise SetupError(f"{question} Nobody can be asked here: say --yes")
    sys.stderr.write(question)
    sys.stderr.flush()
    drop_early_lines()
    sys.stderr.write(" [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
