"""Printing: JSON for programs, tables and plain text for people, and confirmation prompts."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from upcall.cli.places import no_log, redactor
from upcall.errors import SetupError, StoreDamaged, UpcallError
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.keys import drop_early_lines
from upcall.hosts.terminal.layout import WIDEST
from upcall.hosts.terminal.question import wrap
from upcall.observe.plain import escaped, one_line, plain, shortened

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


def failure_line(error: Exception) -> str:
    """Format a failure; exceptions that are neither ours nor the system's are shown with their class."""
    known = isinstance(error, UpcallError | OSError)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    return shortened(plain(redactor().text(text)), _LONGEST_FAILURE)


def damage_reported(error: StoreDamaged) -> None:
    """Report a session whose log can't be read."""
    tell(f"upcall: {failure_line(error)}")


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
        raise SetupError(f"{question} There is no terminal to ask at; give --yes to confirm")
    sys.stderr.write(question)
    sys.stderr.flush()
    drop_early_lines()
    sys.stderr.write(" [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
