"""The command `events`: print the log, and follow it."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from upcall.cli.options import Commands, json_option
from upcall.cli.output import dump, report_no_log, say, width
from upcall.cli.places import has_log, open_log, redactor, runtime_for, view_log
from upcall.events import AnyEvent
from upcall.messages import Call, Instruction, Message, Result, Text, Thinking
from upcall.observe.phrases import args_line
from upcall.observe.plain import one_line, visible
from upcall.observe.public_json import event_json
from upcall.observe.shown_events import passed_events

if TYPE_CHECKING:
    from upcall.app import Runtime

_FEWEST_COLUMNS = 20
"""The fewest columns for an event's fields; with less room they go on the next line."""

_UNLIMITED = 1_000_000_000
"""Longer than any text, so that nothing is cut in a pipe."""

_HEAD = {"session", "seq", "time", "type", "pos", "version"}


def add(commands: Commands) -> None:
    """Add the command `events`."""
    parser = commands.add(
        "events",
        "print the events of sessions",
        _events,
        about="Prints the events of one session or, without an ID, of all sessions. --follow also prints\n"
        "new events, from any process, until Ctrl-C. With --json: one object per line. Secrets\n"
        "are hidden. Results and responses are hidden too while a hook may still replace them.\n"
        "--raw prints the events as they are stored.",
        examples=[
            "upcall events readme",
            "upcall events readme --after 12 --json",
            "upcall events --follow --json | jq .type",
        ],
        takes="session",
    )
    parser.add_argument("id", metavar="ID", nargs="?", help="the session (default: all sessions)")
    parser.add_argument("--follow", action="store_true", help="wait for new events")
    after = "only events after this number: an event's seq if you give an ID, otherwise its pos"
    parser.add_argument("--after", metavar="N", type=_number, default=0, help=after)
    parser.add_argument("--raw", action="store_true", help="hide nothing")
    json_option(parser)


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


async def _events(args: argparse.Namespace) -> int:
    if args.id is None and not has_log(args):
        report_no_log(args, "waiting for the first run" if args.follow else "so nothing has happened")
        if not args.follow:
            return 0
    async with _open_log(args) as runtime:
        events = runtime.events(args.id, args.after, args.follow)
        async for event in events if args.raw else passed_events(runtime.store, events, redactor()):
            if args.json:
                dump(event_json(event), lines=True)
            else:
                say(_line(event, whose=args.id is None))
            if args.follow:
                sys.stdout.flush()
    return 0


def _open_log(args: argparse.Namespace) -> AbstractAsyncContextManager[Runtime]:
    """Open the log to print. Only the user's own log can be followed."""
    if not args.follow:
        return view_log(args)
    return runtime_for(args) if args.id is None else open_log(args)


def _field_text(value: Any, most: int) -> str:
    """Format one field of an event, with texts cut to `most` characters and messages reduced to their text."""
    match value:
        case Message():
            parts = [_field_text(part, most) for part in value.parts]
            return " + ".join(part for part in parts if part) or "nothing"
        case Call():
            args = args_line(value.args) if most < _UNLIMITED else visible(msgspec.json.encode(value.args).decode())
            return f"{visible(value.name)}({args})"
        case Result():
            return f"{'error ' if value.is_error else ''}{_quoted(value.text, most)}"
        case Text() | Instruction() | Thinking():
            return _quoted(value.text, most)
        case float():
            return f"{value:.3f}"
        case _:
            return visible(msgspec.json.encode(value).decode())


def _quoted(text: str, most: int) -> str:
    return msgspec.json.encode(one_line(text, most)).decode()


def _line(event: AnyEvent, *, whose: bool) -> str:
    at = datetime.fromtimestamp(event.time).astimezone().strftime("%H:%M:%S.%f")[:-3]
    number = f"{visible(event.session)} {event.seq}" if whose else str(event.seq)
    screen = sys.stdout.isatty()
    most = 200 if screen else _UNLIMITED
    shown = (f"{name}={_field_text(getattr(event, name), most)}" for name in event_json(event) if name not in _HEAD)
    detail = " ".join(shown)
    head = f"{at}  {number:>4}  {event.type:<16}"
    if not screen:
        return f"{head}  {one_line(detail, _UNLIMITED)}".rstrip()
    if detail and width() - len(head) < _FEWEST_COLUMNS:
        return f"{head.rstrip()}\n    {one_line(detail, width() - 4)}"
    return f"{head}  {one_line(detail, max(width() - len(head) - 2, _FEWEST_COLUMNS))}".rstrip()
