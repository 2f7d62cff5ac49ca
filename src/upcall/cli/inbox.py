"""The commands for people who are asked: `inbox` and `answer`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import msgspec

from upcall.agentfiles.sidecar import json_problem
from upcall.callbacks import Approve, Callback, Decline, Reject
from upcall.cli.identity import Actor, principal_for, token_option
from upcall.cli.options import Commands, filter_options, filters_of, json_option, name_value, positive_number
from upcall.cli.output import ago, dump, report_no_log, say, tell, width
from upcall.cli.places import (
    editor,
    has_log,
    open_log,
    program,
    redactor,
    resume_command,
    store_option,
    view_log,
)
from upcall.core.error_texts import did_you_mean, shown
from upcall.core.routing.answer import LARGEST, schema_error
from upcall.core.runtime.catalog import CALLBACK_STATUSES
from upcall.errors import AnswerRefused, SetupError, UnknownCallback
from upcall.events import AnyEvent, TurnQueued
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.dialogue import Ambiguous, Later, match_choice
from upcall.hosts.terminal.host import TerminalPrompter, describe_answer, outcome_text
from upcall.hosts.terminal.layout import WIDEST, Piece, print_rows
from upcall.hosts.terminal.question import answer_command, answer_commands, question_rows, reveal_note
from upcall.observe import form
from upcall.observe.hidden_question import HiddenQuestion, callback_json, hide_secrets, shown_answer
from upcall.observe.plain import visible
from upcall.observe.public_json import all_fields
from upcall.observe.weight import aside
from upcall.safety.small_files import read_small
from upcall.tokens import RIGHT

if TYPE_CHECKING:
    from upcall.app import Runtime

_ROWS_PER_ENTRY = 20
"""Rows to read for each entry: equal questions become one entry."""


def add(commands: Commands) -> None:
    """Add the commands `inbox` and `answer`."""
    parser = commands.add(
        "inbox",
        "list the questions that wait for a person, most urgent first",
        _inbox,
        about="Shows each question, who asks it, since when, by which route, and the command that\n"
        "answers it. Identical questions of one run are shown as one entry. Secrets are hidden.\n"
        "--reveal shows the secrets of one open question, and the log records who saw them.",
        examples=[
            "upcall inbox",
            "upcall inbox --tag customer=acme --agent clerk",
            "upcall inbox --json | jq '.[0].id'",
            "upcall inbox --reveal q4f0c2a9d11e7",
        ],
    )
    filter_options(parser, CALLBACK_STATUSES, "list callbacks with this status (default: open)")
    parser.add_argument(
        "--limit", metavar="N", type=positive_number, default=50, help="list at most N entries (default: 50)"
    )
    parser.add_argument("--ids", action="store_true", help="print only the ids, one per line")
    reveal = "show this question with its secrets; the log records who saw them"
    parser.add_argument("--reveal", metavar="ID", help=reveal)
    token_option(parser, needed_for="--reveal")
    json_option(parser)
    parser = commands.add(
        "answer",
        "answer a question, or approve a call, by its id",
        _answer,
        about="VALUE is one of the choices (or its number), JSON if a typed answer is expected, or\n"
        "text; - reads it from standard input. Without VALUE, you are asked at the terminal.\n"
        "Approve a call with --approve, --edit or --set, never with a VALUE such as yes.\n"
        "If you decline, an agent that asked with its tool `ask` is told who declined and why. A\n"
        "tool or hook that asked gets the same outcome as if nobody had answered.\n"
        "A running session continues at once. Resume a parked session with `upcall resume`.",
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
    edit = "let the call run with other arguments: JSON, a file with JSON, or - for standard input"
    how.add_argument("--edit", metavar="JSON|FILE", help=edit)
    change = "let the call run with one argument changed; may be given several times"
    how.add_argument("--set", metavar="NAME=VALUE", action="append", type=name_value, help=change)
    how.add_argument("--reject", metavar="WHY", help="do not let the call run, and say why")
    how.add_argument("--decline", metavar="WHY", help="decline the question, and say why")
    parser.add_argument(
        "--for-session", action="store_true", help="also apply the answer to identical calls of this session"
    )
    parser.add_argument(
        "--pattern", metavar="NAME", help="approve all calls of this session that match this pattern of the tool"
    )
    also = "with --pattern: another waiting call that matches it; may be given several times"
    parser.add_argument("--also", metavar="ID", action="append", help=also)
    parser.add_argument("--only", action="store_true", help="answer only this question, not identical ones")
    by = "who answers (default: the token's name, or your user name on this system)"
    parser.add_argument("--by", metavar="NAME", help=by)
    token_option(parser)
    json_option(parser)


# --- the inbox --------------------------------------------------------------------------


async def _inbox(args: argparse.Namespace) -> int:
    if args.reveal is not None:
        return await _reveal(args)
    if not has_log(args):
        return report_no_log(args, "so nothing waits for an answer", lists=True)
    async with view_log(args) as runtime:
        if not args.ids and not args.json:
            await print_inbox(runtime, args, args.limit, **filters_of(args))
            return 0
        listed = (await runtime.inbox(max(args.limit * _ROWS_PER_ENTRY, 1000), **filters_of(args)))[: args.limit]
        if args.ids:
            for callback in listed:
                say(visible(callback.id))
        else:
            hides = redactor()
            dump([callback_json(callback, hides) for callback in listed])
    return 0


async def _reveal(args: argparse.Namespace) -> int:
    """Print one open question with what is hidden in it, and log who saw it."""
    if args.ids or filters_of(args):
        raise SetupError("--reveal shows one question; leave out --ids and the filters")
    async with open_log(args) as runtime:
        actor = await principal_for(args, runtime.store, "answerer", "inbox --reveal", args.reveal)
        callback = await runtime.callback(args.reveal)
        if callback.status != "open":
            raise SetupError(
                f"{args.reveal} is {callback.status}; only a question that waits for an answer can be revealed"
            )
        callback = await runtime.reveal(args.reveal, *actor)
        if args.json:
            dump(all_fields(callback))
        else:
            await _print(callback, args, HiddenQuestion(callback, 0))
    return 0


async def print_inbox(runtime: Runtime, args: argparse.Namespace, limit: int, **which: Any) -> None:
    """Print open questions with the command that answers each, or those that match `which`."""
    most = max(limit * _ROWS_PER_ENTRY, 1000)
    found = await runtime.inbox(most, **which)
    listed = found[:limit]
    if not listed:
        say("Nothing matches." if which else "Nothing waits for an answer.")
        return
    hides = redactor()
    for callback in listed:
        await _print(callback, args, await aside(hide_secrets, callback, hides))
    remaining = len(found) - len(listed)
    how = "at least " if sum(len(callback.group) for callback in found) >= most else ""
    status = which.get("status", "open")
    more = f"; {remaining} more with --limit {len(found)}" if remaining else ""
    say(f"\n{how}{_count_text(len(found), status)}{more}")


def _count_text(count: int, status: str) -> str:
    if status != "open":
        return f"{count} {status}"
    return f"{count} questions wait" if count != 1 else "1 question waits"


async def _print(callback: Callback, args: argparse.Namespace, hidden: HiddenQuestion) -> None:
    console = make_console(sys.stdout)
    store, shown = store_option(args), hidden.callback
    note = reveal_note(callback, hidden.hidden, store, program()) if callback.status == "open" else ""
    columns = min(width(), WIDEST) - 2
    lines = question_rows(shown, now=time.time(), width=columns, in_full=shown is callback, hidden=note)
    last = answer_commands(shown, store, program()) if callback.status == "open" else [_outcome(shown)]
    command_rows = [
        [Piece("          " if at else "answer    ", "dim"), Piece(text, "cyan")] for at, text in enumerate(last)
    ]
    console.print()
    if not sys.stdout.isatty():
        for line in chain(lines, command_rows):
            say(f"┃ {''.join(piece.text for piece in line)}".rstrip())
        return
    bar = Piece("┃ ", "yellow")
    await print_rows(console, ([bar, *line] for line in chain(lines, command_rows)))


def _outcome(callback: Callback) -> str:
    """Describe how a settled callback ended."""
    if callback.answer is None:
        return callback.status
    answer = callback.answer
    by = f", by {visible(answer.by)}" if answer.by else ""
    return f"{outcome_text(callback)}{by} ({visible(answer.right)}), {ago(answer.at)}"


# --- answering --------------------------------------------------------------------------


async def _answer(args: argparse.Namespace) -> int:
    _check_usage(args)
    async with open_log(args) as runtime:
        by, right = await _answerer(args, runtime)
        callback = await runtime.store.callback(args.id)
        if callback is None:
            raise UnknownCallback(args.id)
        if callback.status == "open":
            try:
                value = await _value(args, callback, runtime)
            except Later:
                tell("nothing was answered")
                return 1
        else:
            value = ""  # any value is too late; the runtime reports why
        # read before answering: the process that runs it may finish right after
        row = await runtime.store.row(callback.root)
        settled = await runtime.answer(args.id, value, by=by, right=right, only=args.only)
        if args.json:
            dump(callback_json(settled, redactor()))
        else:
            say(_settled_text(settled, value))
            if row is not None and row.owner:
                say(f"session {visible(callback.root)} is running and continues on its own")
            else:
                begins = await runtime.store.read(callback.root, 0, 2)
                how = "a worker continues it; without one" if _was_submitted(begins) else "continue with"
                say(f"{how}: {await resume_command(runtime, callback.session_id, args)}")
    return 0


def _was_submitted(begins: Sequence[AnyEvent]) -> bool:
    """Tell from its first two events whether a session was queued for workers."""
    return any(isinstance(event, TurnQueued) for event in begins)


async def _answerer(args: argparse.Namespace, runtime: Runtime) -> Actor:
    """Return who answers: whom --by names, unless there is a token."""
    actor = await principal_for(args, runtime.store, "answerer", "answer", args.id)
    if args.by and actor.right == RIGHT:
        raise SetupError(f"--by is for answers without a token; this token answers as {actor.by!r}")
    return Actor(args.by, "asserted") if args.by else actor


def _check_usage(args: argparse.Namespace) -> None:
    has_other = any(one is not None for one in (args.edit, args.set, args.reject, args.decline))
    if (args.approve or has_other) and args.value is not None:
        raise SetupError("give a VALUE, or one of --approve, --edit, --set, --reject and --decline")
    if args.pattern is not None and has_other:
        raise SetupError("--pattern approves calls as they are; leave out --edit, --set, --reject and --decline")
    if args.also and args.pattern is None:
        raise SetupError("--also names calls that a pattern covers; give --pattern, too")
    if args.for_session and args.decline is not None:
        raise SetupError("--for-session is for approvals; --decline applies to one question")


async def _value(args: argparse.Namespace, callback: Callback, runtime: Runtime) -> Any:
    """Return the answer: from options, VALUE, a pipe, or the person at the terminal."""
    if args.decline is not None:
        return Decline(args.decline.encode("utf-8", "replace").decode())
    if args.approve or any(one is not None for one in (args.edit, args.set, args.reject, args.pattern)):
        return _verdict(args, callback)
    if args.value is None and sys.stdin.isatty() and sys.stdout.isatty():
        return await _ask_here(args, await _as_listed(runtime, callback))
    if callback.gate:
        ways = "--approve, --edit JSON, --set NAME=VALUE or --reject WHY"
        raise AnswerRefused(args.id, f"it asks for approval of {callback.tool}; use {ways}")
    text = args.value
    if text is None or text == "-":
        text = _read_stdin(args).strip("\r\n")
        if not text:
            raise AnswerRefused(args.id, "standard input contains no answer; give a VALUE")
    text = text.encode("utf-8", "replace").decode()
    return _parse_value(text, args, callback)


def _verdict(args: argparse.Namespace, callback: Callback) -> Approve | Reject:
    if not callback.gate:
        raise AnswerRefused(args.id, "it is a question, not an approval; answer it with a VALUE")
    if args.reject is not None:
        return Reject(args.reject, for_session=args.for_session)
    if args.set is not None:
        return Approve(_restored(_with_changes(args, callback), args, callback), args.for_session)
    edited = _restored(_edited_args(args), args, callback) if args.edit is not None else None
    return Approve(edited, args.for_session, args.pattern, tuple(args.also or ()))


def _restored(edited: dict[str, Any], args: argparse.Namespace, callback: Callback) -> dict[str, Any]:
    """Return edited arguments with the real values in place of masks."""
    try:
        return redactor().restore(edited, callback.args)
    except ValueError as error:
        raise AnswerRefused(args.id, str(error)) from None


def _edited_args(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that --edit gives, as JSON or in a file."""
    where, text = _edit_text(args)
    try:
        edited = json.loads(text)
    except json.JSONDecodeError as error:
        raise AnswerRefused(args.id, f"{where}:{error.lineno}: {json_problem(error)}") from None
    except (ValueError, RecursionError) as error:
        raise AnswerRefused(args.id, f"{where}: not valid JSON: {error}") from None
    if not isinstance(edited, dict):
        raise AnswerRefused(args.id, f"--edit expects the arguments as a JSON object, not {shown(edited)}")
    return cast("dict[str, Any]", edited)


def _read_stdin(args: argparse.Namespace) -> str:
    """Read standard input, up to the size limit of an answer."""
    text = sys.stdin.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise AnswerRefused(args.id, f"standard input has more than {LARGEST} characters, the limit for an answer")
    return text


def _edit_text(args: argparse.Namespace) -> tuple[str, str]:
    """Return the source of the JSON for --edit, and its text."""
    if args.edit == "-":
        return "standard input", _read_stdin(args)
    if args.edit.lstrip()[:1] in ("{", "["):
        return "--edit", args.edit
    try:
        return args.edit, read_small(args.edit).decode()
    except UnicodeDecodeError:
        raise AnswerRefused(args.id, f"--edit {args.edit}: the file is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise AnswerRefused(args.id, f"--edit {args.edit}: neither a JSON object nor a file ({why})") from None


def _with_changes(args: argparse.Namespace, callback: Callback) -> dict[str, Any]:
    """Return the call's arguments with the values of --set."""
    schema = callback.schema or {}
    known: dict[str, Any] = schema.get("properties") or {}
    changed = dict(callback.args or {})
    for name, text in args.set:
        if name not in known and schema.get("additionalProperties") is False:
            takes = f"its arguments are {', '.join(known) or 'none'}.{did_you_mean(name, known)}"
            raise AnswerRefused(args.id, f"{callback.tool} has no argument {name!r}; {takes}")
        changed[name] = _argument(text, {**known.get(name, {}), "$defs": schema.get("$defs", {})})
    return changed


def _argument(text: str, schema: dict[str, Any]) -> Any:
    """Parse one argument from the command line: JSON if that is valid for the schema, otherwise the text itself."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return text if schema_error(schema, value) and not schema_error(schema, text) else value


def _parse_value(text: str, args: argparse.Namespace, callback: Callback) -> Any:
    if callback.choices:
        try:
            found = match_choice(text, callback.choices)
        except Ambiguous as two:
            raise AnswerRefused(callback.id, str(two)) from None
        return text if found is None else found
    if callback.schema is None:
        return text
    try:
        as_json = msgspec.json.decode(text)
        if not schema_error(callback.schema, as_json):
            return as_json
    except msgspec.DecodeError:
        pass  # a bare word is fine if the schema is a string
    try:
        return form.parse(text, callback.schema)
    except form.InvalidInput as wrong:
        again = answer_command(hide_secrets(callback, redactor()).callback, store_option(args), program())
        why = f"{text[:80]!r} is not a valid answer: {wrong}. Answer again: {again}"
        raise AnswerRefused(callback.id, why) from None


async def _as_listed(runtime: Runtime, callback: Callback) -> Callback:
    """Return the callback as the inbox lists it, with the calls that an approval's patterns cover."""
    listed = await runtime.inbox(session=callback.session_id, limit=_ROWS_PER_ENTRY * 50)
    return next((one for one in listed if callback.id in one.group), callback)


async def _ask_here(args: argparse.Namespace, callback: Callback) -> Any:
    """Ask the person at this terminal, in the same form as a run does."""
    prompter = TerminalPrompter(sys.stdout, editor(), redactor(), store_option(args), program())
    answer = await prompter.ask(callback)
    return answer.replace(for_session=True) if args.for_session and isinstance(answer, Approve | Reject) else answer


def _settled_text(settled: Callback, value: Any) -> str:
    others = len(settled.group) - 1
    what = "approval" if settled.tool else "equal question"
    with_it = f", and {others} {what}{'s' if others > 1 else ''} with it" if others > 0 else ""
    return f"{settled.id} {describe_answer(shown_answer(value, redactor()))}{with_it}"
