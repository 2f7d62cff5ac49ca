"""The command `events`: what was written down, in order, and what is being written now."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from upcall.cli.options import Commands, as_json
from upcall.cli.output import dump, say, tell_no_log, width
from upcall.cli.places import existing, has_log, runtime_for, viewing
from upcall.events import AnyEvent
from upcall.hosts.terminal.phrases import args_line
from upcall.messages import Call, Instruction, Message, Result, Text, Thinking
from upcall.observe.plain import one_line, visible

if TYPE_CHECKING:
    from upcall.app import Runtime

_ROOM = 20
"""Columns without which an event's fields stand below it."""

_WHOLE = 1_000_000_000
"""Letters that nothing is longer than: in a pipe nothing is cut."""

_HEAD = {"session", "seq", "time", "type", "pos", "version"}


def add(commands: Commands) -> None:
    """The command `events`."""
    parser = commands.add(
        "events",
        "print what happened, event by event",
        _events,
        about="Of one session, or without an ID of all of them. --follow goes on with what any\n"
        "process writes from now on, until Ctrl-C. With --json: one object a line.",
        examples=[
            "upcall events readme",
            "upcall events readme --after 12 --json",
            "upcall events --follow --json | jq .type",
        ],
        takes="session",
    )
    parser.add_argument("id", metavar="ID", nargs="?", help="the session; all of them without it")
    parser.add_argument("--follow", action="store_true", help="wait for more")
    after = "only what came after this number (seq with an ID, pos without)"
    parser.add_argument("--after", metavar="N", type=_number, default=0, help=after)
    as_json(parser)


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return int(text)


async def _events(args: argparse.Namespace) -> int:
    if args.id is None and not has_log(args):
        tell_no_log(args, "waiting for the first run" if args.follow else "so nothing has happened")
        if not args.follow:
            return 0
    async with _log(args) as runtime:
        async for event in runtime.events(args.id, args.after, args.follow):
            if args.json:
                dump(flat(event), lines=True)
            else:
                say(_line(event, whose=args.id is None))
            if args.follow:
                sys.stdout.flush()
    return 0


def _log(args: argparse.Namespace) -> AbstractAsyncContextManager[Runtime]:
    """The log to print. What is written from now on can be followed only in a log of one's own."""
    if not args.follow:
        return viewing(args)
    return runtime_for(args) if args.id is None else existing(args)


def flat(event: AnyEvent) -> dict[str, Any]:
    """The event as it is printed: session, seq, time, type, then its own fields."""
    body = msgspec.to_builtins(event)
    head = {"session": event.session, "seq": event.seq, "time": event.time, "type": event.type}
    return head | body


def _shown(value: Any, most: int) -> str:
    """One field of an event, its texts cut to `most` letters: of messages and results only what they say."""
    match value:
        case Message():
            parts = [_shown(part, most) for part in value.parts]
            return " + ".join(part for part in parts if part) or "nothing"
        case Call():
            args = args_line(value.args) if most < _WHOLE else visible(msgspec.json.encode(value.args).decode())
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
    most = 200 if screen else _WHOLE
    shown = (f"{name}={_shown(getattr(event, name), most)}" for name in flat(event) if name not in _HEAD)
    detail = " ".join(shown)
    head = f"{at}  {number:>4}  {event.type:<16}"
    if not screen:
        return f"{head}  {one_line(detail, _WHOLE)}".rstrip()
    if detail and width() - len(head) < _ROOM:
        return f"{head.rstrip()}\n    {one_line(detail, width() - 4)}"
    return f"{head}  {one_line(detail, max(width() - len(head) - 2, _ROOM))}".rstrip()
