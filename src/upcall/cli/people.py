"""Commands for people who are asked: inbox, answer."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any, cast

import msgspec

from upcall.agentfiles.sidecar import json_problem
from upcall.callbacks import Approve, Callback, Decline, Held, Reject
from upcall.cli.options import Commands, as_json, count, filters, name_value, selected
from upcall.cli.output import ago, dump, say, tell, tell_no_log, whole, width
from upcall.cli.places import (
    editor,
    existing,
    given_store,
    has_log,
    os_user,
    program,
    resume_command,
    viewing,
)
from upcall.core.error_texts import did_you_mean, shown
from upcall.core.routing.answer import LARGEST, callback_of, schema_error
from upcall.core.runtime.catalog import CALLBACK_STATUSES
from upcall.errors import AnswerRefused, SetupError, UnknownCallback
from upcall.events import CallbackRaised
from upcall.hosts.terminal import form
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.dialogue import Ambiguous, Later, chosen
from upcall.hosts.terminal.host import Desk, outcome_text, told
from upcall.hosts.terminal.question import command, commands, rows
from upcall.hosts.terminal.screen import WIDEST, Piece, styled
from upcall.observe.plain import visible
from upcall.safety.small_files import read_small

if TYPE_CHECKING:
    from upcall.app import Runtime

_MORE = 20
"""Rows that are read for each entry: equal questions are one."""


def add(commands: Commands) -> None:
    """The commands `inbox` and `answer`."""
    parser = commands.add(
        "inbox",
        "list what waits for a person, most urgent first",
        _inbox,
        about="Who asks, what, since when, on which way it came here, and what to type to answer.\n"
        "Equal questions of one run are one entry.",
        examples=[
            "upcall inbox",
            "upcall inbox --tag customer=acme --agent clerk",
            "upcall inbox --json | jq '.[0].id'",
        ],
    )
    filters(parser, CALLBACK_STATUSES, "in place of the open ones, those that a person was asked and that are")
    parser.add_argument("--limit", metavar="N", type=count, default=50, help="at most so many (default: 50)")
    parser.add_argument("--ids", action="store_true", help="print the ids alone, one a line")
    as_json(parser)
    parser = commands.add(
        "answer",
        "answer a question, or approve a call, by its id",
        _answer,
        about="VALUE is one of the choices (or its number), JSON where a typed answer is wanted, else\n"
        "text; - reads it from standard input. Without it you are asked, at a terminal.\n"
        "A call is approved with --approve, --edit or --set, never by a VALUE such as yes.\n"
        "A question is declined with --decline: whoever asked gets what no answer gives.\n"
        "A living run goes on at once, in whichever process; a parked one with `upcall resume`.",
        examples=[
            "upcall answer q4f0c2a9d11e7 'create it'",
            "upcall answer q4f0c2a9d11e7 --approve --for-session",
            "upcall answer q4f0c2a9d11e7 --set amount=80",
            'upcall answer q4f0c2a9d11e7 --edit \'{"order": "A-17", "amount": 80}\'',
            "upcall answer q4f0c2a9d11e7 --edit args.json",
            "upcall answer q4f0c2a9d11e7 --reject 'not on a Friday'",
            "upcall answer q4f0c2a9d11e7 --decline 'ask legal'",
        ],
        takes="callback",
    )
    _answer_arguments(parser)


def _answer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the callback")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="the answer")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--approve", action="store_true", help="let the call run")
    edit = "let it run with these arguments instead: JSON, a file with JSON, or - for standard input"
    how.add_argument("--edit", metavar="JSON|FILE", help=edit)
    change = "let it run with one argument changed; may be given several times"
    how.add_argument("--set", metavar="NAME=VALUE", action="append", type=name_value, help=change)
    how.add_argument("--reject", metavar="WHY", help="do not let it run, and say why")
    how.add_argument("--decline", metavar="WHY", help="decline the question, and say why")
    parser.add_argument("--for-session", action="store_true", help="the same for equal calls of the session")
    parser.add_argument(
        "--pattern", metavar="NAME", help="approve, for the session, what the tool's pattern covers"
    )
    also = "with --pattern: another call that it covers and that waits already; may be given several times"
    parser.add_argument("--also", metavar="ID", action="append", help=also)
    parser.add_argument("--only", action="store_true", help="this one and no equal question")
    parser.add_argument("--by", metavar="NAME", help="who answers (default: the user of this system)")
    as_json(parser)


# --- the inbox --------------------------------------------------------------------------


async def _inbox(args: argparse.Namespace) -> int:
    if not has_log(args):
        return tell_no_log(args, "so nothing waits for an answer", lists=True)
    async with viewing(args) as runtime:
        if not args.ids and not args.json:
            await print_inbox(runtime, args, args.limit, **selected(args))
            return 0
        listed = (await runtime.inbox(max(args.limit * _MORE, 1000), **selected(args)))[: args.limit]
        if args.ids:
            for callback in listed:
                say(visible(callback.id))
        else:
            dump([whole(callback) for callback in listed])
    return 0


async def print_inbox(runtime: Runtime, args: argparse.Namespace, limit: int, **which: Any) -> None:
    """What waits for a person, each with what to type to answer it; or what `which` asks for."""
    most = max(limit * _MORE, 1000)
    found = await runtime.inbox(most, **which)
    listed = found[:limit]
    if not listed:
        say("Nothing matches." if which else "Nothing waits for an answer.")
        return
    for callback in listed:
        _print(callback, args)
    left = len(found) - len(listed)
    how = "at least " if sum(len(callback.group) for callback in found) >= most else ""
    status = which.get("status", "open")
    say(f"\n{how}{_counted(len(found), status)}{f'; {left} more with --limit {len(found)}' if left else ''}")


def _counted(count: int, status: str) -> str:
    if status != "open":
        return f"{count} {status}"
    return f"{count} questions wait" if count != 1 else "1 question waits"


def _print(callback: Callback, args: argparse.Namespace) -> None:
    console = make_console(sys.stdout)
    store = given_store(args)
    lines = rows(callback, now=time.time(), width=min(width(), WIDEST) - 2, whole=False)
    last = commands(callback, store, program()) if callback.status == "open" else [_outcome(callback)]
    typed = [
        [Piece("          " if at else "answer    ", "dim"), Piece(text, "cyan")] for at, text in enumerate(last)
    ]
    console.print()
    for line in [*lines, *typed]:
        if sys.stdout.isatty():
            # a command is left to the terminal to break, so that it can be pasted
            console.print(styled([Piece("┃ ", "yellow"), *line]), soft_wrap=line in typed)
        else:
            say(f"┃ {''.join(piece.text for piece in line)}".rstrip())


def _outcome(callback: Callback) -> str:
    """What became of a callback that is no longer open."""
    if callback.answer is None:
        return callback.status
    by = f", by {visible(callback.answer.by)}" if callback.answer.by else ""
    return f"{outcome_text(callback)}{by} ({visible(callback.answer.right)}), {ago(callback.answer.at)}"


# --- answering --------------------------------------------------------------------------


async def _answer(args: argparse.Namespace) -> int:
    _check_usage(args)
    async with existing(args) as runtime:
        held = await runtime.store.callback(args.id)
        if held is None:
            raise UnknownCallback(args.id)
        if held.status == "open":
            try:
                value = await _value(args, held, runtime)
            except Later:
                tell("nothing was answered")
                return 1
        else:
            value = ""  # whatever it is, it comes too late; the runtime says to what
        by, right = (args.by, "asserted") if args.by else (os_user(), "os-user")
        row = await runtime.store.row(held.root)  # before: whoever runs it may be done a moment after
        settled = await runtime.answer(args.id, value, by=by, right=right, only=args.only)
        if args.json:
            dump(whole(settled))
        else:
            say(_settled(settled, value))
            if row is not None and row.owner:
                say(f"session {visible(held.root)} is running and continues by itself")
            else:
                say(f"continue with: {await resume_command(runtime, held.raised.session, args)}")
    return 0


def _check_usage(args: argparse.Namespace) -> None:
    has_other = any(one is not None for one in (args.edit, args.set, args.reject, args.decline))
    if (args.approve or has_other) and args.value is not None:
        raise SetupError("give a VALUE, or one of --approve, --edit, --set, --reject and --decline")
    if args.pattern is not None and has_other:
        raise SetupError("--pattern approves calls as they are; leave out --edit, --set, --reject and --decline")
    if args.also and args.pattern is None:
        raise SetupError("--also names calls that a pattern covers; give --pattern, too")
    if args.for_session and args.decline is not None:
        raise SetupError("--for-session is for approvals; a question is declined once")


async def _value(args: argparse.Namespace, held: Held, runtime: Runtime) -> Any:
    """The answer that was meant, from options, VALUE, a pipe or the person at the terminal."""
    if args.decline is not None:
        return Decline(args.decline.encode("utf-8", "replace").decode())
    if args.approve or any(one is not None for one in (args.edit, args.set, args.reject, args.pattern)):
        return _verdict(args, held)
    if args.value is None and sys.stdin.isatty() and sys.stdout.isatty():
        return await _asked(args, await _as_listed(runtime, held))
    text = args.value
    if text is None or text == "-":
        text = _piped(args).strip("\r\n")
        if not text:
            raise AnswerRefused(args.id, "standard input holds no answer; give a VALUE")
    text = text.encode("utf-8", "replace").decode()
    return _approval(text, args, held) if held.raised.gate else _read(text, args, held)


def _verdict(args: argparse.Namespace, held: Held) -> Approve | Reject:
    if not held.raised.gate:
        raise AnswerRefused(args.id, "it is a question and no approval of a call; answer it with a VALUE")
    if args.reject is not None:
        return Reject(args.reject, for_session=args.for_session)
    if args.set is not None:
        return Approve(_with_changes(args, held.raised), args.for_session)
    edited = _edited(args) if args.edit is not None else None
    return Approve(edited, args.for_session, args.pattern, tuple(args.also or ()))


def _edited(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that --edit gives: JSON itself, or a file's."""
    where, text = _edit_text(args)
    try:
        edited = json.loads(text)
    except json.JSONDecodeError as error:
        raise AnswerRefused(args.id, f"{where}:{error.lineno}: {json_problem(error)}") from None
    except (ValueError, RecursionError) as error:
        raise AnswerRefused(args.id, f"{where}: this is not JSON that can be read: {error}") from None
    if not isinstance(edited, dict):
        raise AnswerRefused(args.id, f"--edit needs the arguments as a JSON object, not {shown(edited)}")
    return cast("dict[str, Any]", edited)


def _piped(args: argparse.Namespace) -> str:
    """Read standard input, which may never end."""
    text = sys.stdin.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise AnswerRefused(args.id, f"standard input has more than the {LARGEST} bytes that an answer may have")
    return text


def _edit_text(args: argparse.Namespace) -> tuple[str, str]:
    """Where the JSON of --edit comes from, and the JSON."""
    if args.edit == "-":
        return "standard input", _piped(args)
    if args.edit.lstrip()[:1] in ("{", "["):
        return "--edit", args.edit
    try:
        return args.edit, read_small(args.edit).decode()
    except UnicodeDecodeError:
        raise AnswerRefused(args.id, f"--edit {args.edit}: the file is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise AnswerRefused(args.id, f"--edit {args.edit}: neither a JSON object nor a file ({why})") from None


def _with_changes(args: argparse.Namespace, raised: CallbackRaised) -> dict[str, Any]:
    """The call's own arguments with those of --set in their places."""
    schema = raised.schema or {}
    known: dict[str, Any] = schema.get("properties") or {}
    changed = dict(raised.args or {})
    for name, text in args.set:
        if name not in known and schema.get("additionalProperties") is False:
            takes = f"it takes {', '.join(known) or 'none'}.{did_you_mean(name, known)}"
            raise AnswerRefused(args.id, f"{raised.tool} has no argument {name!r}; {takes}")
        changed[name] = _argument(text, {**known.get(name, {}), "$defs": schema.get("$defs", {})})
    return changed


def _argument(text: str, schema: dict[str, Any]) -> Any:
    """One argument from the command line: JSON where that fits, else the text as it is."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return text if schema_error(schema, value) and not schema_error(schema, text) else value


def _approval(text: str, args: argparse.Namespace, held: Held) -> Approve | Reject:
    match text.strip().lower():
        case "approve":
            return Approve(for_session=args.for_session)
        case "reject":
            return Reject(for_session=args.for_session)
        case _:
            ways = "--approve, --edit JSON, --set NAME=VALUE or --reject WHY"
            raise AnswerRefused(args.id, f"it asks for an approval of {held.raised.tool}: say {ways}")


def _read(text: str, args: argparse.Namespace, held: Held) -> Any:
    raised = held.raised
    if raised.choices:
        try:
            found = chosen(text, raised.choices)
        except Ambiguous as two:
            raise AnswerRefused(raised.callback_id, str(two)) from None
        return text if found is None else found
    if raised.schema is None:
        return text
    try:
        as_json = msgspec.json.decode(text)
        if not schema_error(raised.schema, as_json):
            return as_json
    except msgspec.DecodeError:
        pass  # a bare word is fine where a text is wanted
    try:
        return form.read(text, raised.schema)
    except form.Wrong as wrong:
        again = command(callback_of(held), given_store(args), program())
        why = f"{text[:80]!r} does not fit: {wrong}. Answer again: {again}"
        raise AnswerRefused(raised.callback_id, why) from None


async def _as_listed(runtime: Runtime, held: Held) -> Callback:
    """The callback as the inbox lists it, with what an approval's patterns cover."""
    listed = await runtime.inbox(session=held.raised.session, limit=_MORE * 50)
    return next((one for one in listed if held.raised.callback_id in one.group), callback_of(held))


async def _asked(args: argparse.Namespace, callback: Callback) -> Any:
    """The same question as a run at this terminal would put."""
    said = await Desk(sys.stdout, editor()).ask(callback)
    return said.replace(for_session=True) if args.for_session and isinstance(said, Approve | Reject) else said


def _settled(settled: Callback, value: Any) -> str:
    others = len(settled.group) - 1
    what = "approval" if settled.tool else "equal question"
    with_it = f", and {others} {what}{'s' if others > 1 else ''} with it" if others > 0 else ""
    return f"{settled.id} {told(value)}{with_it}"
