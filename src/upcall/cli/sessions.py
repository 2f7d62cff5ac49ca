"""The commands `sessions` and `show`, and the subcommands `sessions delete` and `sessions prune`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from upcall.cli.options import Commands, filter_options, filters_of, json_option, positive_number, subcommand
from upcall.cli.output import (
    ago,
    confirm,
    damage_reported,
    dump,
    first_line,
    local_time,
    report_no_log,
    say,
    table,
    tell,
    width,
)
from upcall.cli.places import has_log, open_log, origin_of, redactor, story_for, view_log
from upcall.contracts import Row
from upcall.core.runtime.catalog import SESSION_STATUSES
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.question import tag_line
from upcall.hosts.terminal.views import PlainView, RichView
from upcall.observe.plain import one_line, visible
from upcall.observe.session_json import SessionJson, children_of

if TYPE_CHECKING:
    from upcall.app import Runtime

_LONGEST_DATA = 200
_FEWEST_COLUMNS = 10
"""The fewest columns for a reply; with less room the column is left out."""


def add(commands: Commands) -> None:
    """Add the commands `sessions` and `show`."""
    parser = commands.add(
        "sessions",
        "list sessions, newest first",
        _list,
        about="Subcommands: `delete ID...` deletes sessions, and `prune` deletes old ones.",
        examples=[
            "upcall sessions",
            "upcall sessions --json --limit 5",
            "upcall sessions --tag customer=acme --status waiting",
            "upcall sessions delete readme",
            "upcall sessions prune --older-than 30",
        ],
    )
    parser.add_argument(
        "--limit", metavar="N", type=positive_number, default=50, help="list at most N sessions (default: 50)"
    )
    parser.add_argument(
        "--before", metavar="ID", help="only sessions that started before this one, for the next page"
    )
    parser.add_argument("--ids", action="store_true", help="print only the ids, one per line")
    filter_options(parser, SESSION_STATUSES, "only sessions with this status")
    json_option(parser)
    _add_delete_and_prune(parser)
    parser = commands.add(
        "show",
        "show one session: conversation, calls, changes by hooks, children",
        _show,
        examples=["upcall show readme", "upcall show readme --json"],
        takes="session",
    )
    parser.add_argument("id", metavar="ID", help="the session")
    json_option(parser)


def _add_delete_and_prune(parser: argparse.ArgumentParser) -> None:
    sub = parser.add_subparsers(metavar="[delete | prune]")
    one = subcommand(
        sub,
        "delete",
        "delete sessions and their children",
        _delete,
        examples=["upcall sessions delete readme 4f0c2a9d11e7"],
    )
    one.add_argument("ids", metavar="ID", nargs="+", help="the sessions")
    one.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    many = subcommand(
        sub,
        "prune",
        "delete sessions that ended long ago",
        _prune,
        about="Sessions that are queued, running, interrupted or waiting for an answer are not deleted.",
        examples=["upcall sessions prune --older-than 30 --yes"],
    )
    many.add_argument("--older-than", metavar="DAYS", type=_days, required=True, help="days since they ended")
    many.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of days")
    return days


# --- listing ----------------------------------------------------------------------------


async def print_sessions(runtime: Runtime, limit: int, before: str | None = None, **which: Any) -> None:
    """Print the newest sessions, or those that match `which`, with the beginning of their last reply."""
    rows = await runtime.rows(limit=limit, before=before, **which)
    if not rows:
        say("No sessions match." if which or before else "No sessions yet. Start one: upcall run AGENT PROMPT")
        return
    made = SessionJson(runtime, redactor(), damage_reported)
    _print_list([(row, await made.last_text(row)) for row in _sort_by_tree(rows)])


async def _list(args: argparse.Namespace) -> int:
    if not has_log(args):
        return report_no_log(args, "so there are no sessions. Start one: upcall run AGENT PROMPT", lists=True)
    async with view_log(args) as runtime:
        if not args.ids and not args.json:
            await print_sessions(runtime, args.limit, args.before, **filters_of(args))
            return 0
        rows = await runtime.rows(limit=args.limit, before=args.before, **filters_of(args))
        if args.ids:
            for row in rows:
                say(visible(row.id))
        else:
            dump(await SessionJson(runtime, redactor(), damage_reported).sessions(rows))
    return 0


def _print_list(found: Sequence[tuple[Row, str]]) -> None:
    rows = [
        ["  " * row.id.count("~") + visible(row.id), visible(row.agent), row.status, ago(row.updated), text]
        for row, text in found
    ]
    headers = ("SESSION", "AGENT", "STATUS", "CHANGED", "LAST REPLY")
    screen = sys.stdout.isatty()
    widths = {at: max(len(row[at]) for row in (headers, *rows)) + 2 for at in range(4)}
    for least_needed in (3, 1) if screen else ():
        if width() - sum(widths.values()) < _FEWEST_COLUMNS:
            del widths[least_needed]
    if (
        screen and sum(widths.values()) > width()
    ):  # drop the part of a child's id that the parent's row already shows
        for row in rows:
            above, is_child, name = row[0].rpartition("~")
            indent = " " * (len(above) - len(above.lstrip()))
            row[0] = f"{indent}…~{name}" if is_child else row[0]
    room = width() - sum(widths.values())
    columns = [*widths, *([4] if room >= _FEWEST_COLUMNS or not screen else [])]
    cells = [(*row[:4], first_line(row[4], room if screen else max(room, 20))) for row in rows]
    table([headers[at] for at in columns], [[row[at] for at in columns] for row in cells], styled=columns.index(2))


def _sort_by_tree(rows: Sequence[Row]) -> list[Row]:
    """Sort sessions newest first, each followed by its descendants in the order they started."""
    order = {root: at for at, root in enumerate(dict.fromkeys(row.root for row in rows))}
    began = {row.id: row.created for row in rows}

    def place(row: Row) -> list[tuple[float, str]]:
        names = row.id.split("~")
        above = ["~".join(names[:count]) for count in range(1, len(names) + 1)]
        return [(began.get(one, 0.0), one) for one in above]

    return sorted(rows, key=lambda row: (order[row.root], place(row)))


# --- showing ----------------------------------------------------------------------------


async def _show(args: argparse.Namespace) -> int:
    async with view_log(args) as runtime:
        found = await SessionJson(runtime, redactor(), damage_reported).session(args.id)
        if args.json:
            dump(found)
            return 0
        row = await runtime.store.row(args.id)
        assert row is not None
        origin = await origin_of(runtime, args.id)
        facts = [
            ("title", found["title"]),
            ("agent", found["agent"]),
            ("status", found["status"]),
            ("began", local_time(row.created)),
        ]
        facts += [
            ("role", await _role(runtime, args.id)),
            ("changed", local_time(row.updated)),
            ("parent", found["parent"]),
            ("folder", found["folder"]),
            *[("root", root) for root in found["roots"]],
            ("tags", tag_line(found["tags"])),
            ("data", one_line(msgspec.json.encode(found["data"]).decode(), _LONGEST_DATA) if found["data"] else ""),
            ("agents from", redactor().text(origin.source or origin.program)),
        ]
        say(f"session {visible(args.id)}")
        for name, value in facts:
            if value:
                say(f"  {name:<13}{visible(value)}")
        options: dict[str, Any] = {"prompts": True, "story": story_for(args, results=True), "fresh": False}
        view = RichView(make_console(sys.stdout), **options) if sys.stdout.isatty() else None
        view = view or PlainView(sys.stdout, **options)
        async for event in runtime.events(args.id):
            await (view.skip(event) if event.type == "session_started" else view.show(event))
        if found["children"]:
            say("\nchildren")
            below = await children_of(runtime, args.id)
            longest_id = max(len(visible(child.id)) for child in below)
            longest_agent = max(len(visible(child.agent)) for child in below)
            for child in below:
                status = await runtime.status(child.id)
                say(f"  {visible(child.id):<{longest_id}}  {visible(child.agent):<{longest_agent}}  {status}")
    return 0


async def _role(runtime: Any, session_id: str) -> str:
    """Return the role of a team member, such as "developer of shop"."""
    first = await runtime.store.read(session_id, 0, 1)
    return f"{first[0].role} of {first[0].team}" if first and first[0].team else ""


# --- deleting ---------------------------------------------------------------------------


async def _delete(args: argparse.Namespace) -> int:
    async with open_log(args) as runtime:
        ids = list(dict.fromkeys(args.ids))
        for session_id in ids:
            await runtime.status(session_id)  # report an unknown session before asking for confirmation
        return await _delete_confirmed(runtime, ids, args.yes, f"Delete {_count_text(len(ids))} with all children?")


async def _prune(args: argparse.Namespace) -> int:
    if not has_log(args):
        return report_no_log(args, "so there is nothing to delete")
    async with open_log(args) as runtime:
        question = f"Delete all sessions that ended more than {args.older_than:g} days ago, with all children?"
        if not confirm(question, args.yes):
            tell("nothing was deleted")
            return 1
        before, total = runtime.store.now() - args.older_than * 86400, 0
        while deleted := await runtime.store.prune(before):
            total += deleted
        tell(f"deleted {_count_text(total)}" if total else "nothing to delete")
        return 0


async def _delete_confirmed(runtime: Any, ids: Sequence[str], yes: bool, question: str) -> int:
    if not confirm(question, yes):
        tell("nothing was deleted")
        return 1
    deleted = await runtime.delete(*ids)
    tell(f"deleted {_count_text(deleted)}")
    return 0


def _count_text(count: int) -> str:
    return f"{count} session{'s' if count != 1 else ''}"
