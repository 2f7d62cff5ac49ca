"""The command `submit`: queue turns for workers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from upcall.callbacks import PRIORITIES
from upcall.cli.identity import principal_for, token_option
from upcall.cli.options import (
    Commands,
    agent_argument,
    json_option,
    positive_number,
    tag_option,
    tags_of,
)
from upcall.cli.output import dump, say, tell
from upcall.cli.places import command_line, load_agent, runtime_for
from upcall.errors import SetupError
from upcall.observe.plain import visible
from upcall.safety.bounds import DEPTH, is_too_deep

if TYPE_CHECKING:
    from upcall.app import Runtime
    from upcall.core.runtime.submitting import Submission

MOST_LINES = 100_000
MOST_BYTES = 2_000_000
"""The most lines of a file, and the most bytes of one line."""


def add(commands: Commands) -> None:
    """Add the command `submit`."""
    parser = commands.add(
        "submit",
        "queue a prompt for `upcall worker`, without running it",
        _submit,
        about="Prints the id of the session. Submitting the same prompt again does nothing. A different\n"
        "prompt for the same session and turn is refused.\n"
        "--file reads JSON Lines: objects with id, text and, optionally, turn, priority,\n"
        "tenant, tags and data. Nothing is queued if one of the lines is wrong.",
        examples=[
            'upcall submit agents/ "Ship the login page"',
            'upcall submit agents/ "Ship the login page" --id login-page --priority high',
            'upcall submit agents/ "And its tests" --id login-page --turn 2',
            "upcall submit agents/ --file orders.jsonl --queue-limit 10000",
        ],
    )
    agent_argument(parser)
    parser.add_argument("text", metavar="PROMPT", nargs="?", help="what the agent should do")
    parser.add_argument("--id", metavar="ID", help="the session: a new one, or an existing one with --turn")
    parser.add_argument(
        "--turn", metavar="N", type=positive_number, default=1, help="which turn of the session (default: 1)"
    )
    order = "workers take the highest first: " + ", ".join(PRIORITIES) + " (default: normal)"
    parser.add_argument("--priority", metavar="PRIORITY", choices=PRIORITIES, default="normal", help=order)
    tenant = "the tenant for whom the turn runs; workers divide their capacity between tenants"
    parser.add_argument("--tenant", metavar="NAME", default="", help=tenant)
    limit = "refuse if more sessions than this would be queued"
    parser.add_argument("--queue-limit", metavar="N", type=positive_number, help=limit)
    parser.add_argument("--file", metavar="FILE", help="queue each line of this file; - reads from stdin")
    tag_option(parser, "give the session this tag")
    token_option(parser)
    json_option(parser)


async def _submit(args: argparse.Namespace) -> int:
    if (args.text is None) == (args.file is None):
        raise SetupError('give a prompt, or --file FILE: upcall submit AGENT "what to do"')
    if args.file is not None and (args.id or args.turn != 1 or args.tag):
        raise SetupError("with --file, each line has its own id, turn and tags; leave out --id, --turn and --tag")
    loaded = load_agent(args)
    async with runtime_for(args, loaded.agents) as runtime:
        actor = await principal_for(args, runtime.store, "operator", "submit", args.id or "")
        options: dict[str, Any] = {"priority": args.priority, "tenant": args.tenant, "by": actor.by}
        if args.file is None:
            tags = tags_of(args) or None
            made = [runtime.submission(loaded.agent, args.text, args.id, turn=args.turn, tags=tags, **options)]
        else:
            made = await asyncio.to_thread(_read_file, args.file, runtime, loaded.agent, options)
        new = await runtime.submit_all(made, args.queue_limit)
    _report(args, made, new)
    return 0


def _report(args: argparse.Namespace, made: list[Submission], new: dict[tuple[str, int], bool]) -> None:
    if args.json:
        for one in made:
            dump({"id": one.id, "turn": one.turn, "new": new[one.id, one.turn]}, lines=True)
    elif args.file is None:
        say(made[0].id)
        if not new[made[0].id, made[0].turn]:
            tell("it was submitted before; nothing was changed")
    else:
        queued = sum(new[one.id, one.turn] for one in made)
        before = f", {len(made) - queued} were submitted before" if queued < len(made) else ""
        say(f"queued {queued} of {len(made)}{before}")
    if sys.stderr.isatty() and not args.json:
        tell(f"run it with: {command_line(args, 'worker', agents=args.agent)}")


# --- a file -----------------------------------------------------------------------------


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of the file."""

    id: str
    text: str
    turn: int = 1
    priority: str | None = None
    tenant: str | None = None
    tags: dict[str, str] | None = None
    data: dict[str, Any] | None = None


_lines = msgspec.json.Decoder(_Line)


def _read_file(path: str, runtime: Runtime, agent: Any, options: dict[str, Any]) -> list[Submission]:
    """Check every line of a file; SetupError names the first one that is wrong."""
    shown = "stdin" if path == "-" else visible(path)
    made: list[Submission] = []
    with _opened(path) as file:
        number = 0
        while line := file.readline(MOST_BYTES + 1):
            number += 1
            try:
                if line.strip():
                    made.append(_submission(line, runtime, agent, options))
            except (ValueError, msgspec.MsgspecError, SetupError) as error:
                raise SetupError(f"{shown}, line {number}: {error}. Nothing was queued") from None
            if len(made) > MOST_LINES:
                raise SetupError(f"{shown} has more than {MOST_LINES:,} lines; split it. Nothing was queued")
    if not made:
        raise SetupError(f"{shown} is empty; each line must be a JSON object with id and text")
    return made


def _submission(line: bytes, runtime: Runtime, agent: Any, options: dict[str, Any]) -> Submission:
    if len(line) > MOST_BYTES:
        raise ValueError(f"it is longer than {MOST_BYTES:,} bytes")
    if is_too_deep(line, DEPTH + 2):
        raise ValueError("it is nested too deeply")
    try:
        one = _lines.decode(line)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({error})") from None
    chosen: dict[str, Any] = {**options, "turn": one.turn, "tags": one.tags, "data": one.data}
    chosen |= {k: v for k, v in (("priority", one.priority), ("tenant", one.tenant)) if v is not None}
    return runtime.submission(agent, one.text, one.id, **chosen)


@contextlib.contextmanager
def _opened(path: str) -> Generator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise SetupError(f"--file {visible(path)}: {why}") from None
        yield file
