"""Declare commands: their place in the help, and the options that they share."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import shutil
import textwrap
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, NamedTuple

from upcall.errors import SetupError

RunCommand = Callable[[argparse.Namespace], int | Coroutine[Any, Any, int]]
"""The function of a command; it returns the exit code."""

Completes = Literal["", "session", "callback", "command"]
"""Completions for a command's argument: session ids, callback ids, or command names."""

INTRO = "Run agents that ask questions while they work. Work that waits is stored on disk and continues later."

OUTRO = """\
AGENT is a folder of agent files, one NAME.md, or module:attribute.
Sessions are stored in .upcall/log.db in the current folder, unless you
give --store PATH after the command or set UPCALL_STORE.

Start with `upcall demo`. `upcall help COMMAND` explains a command.

options:
  --help     print this help
  --version  print the version
  --trace    show stack traces

exit codes:
  0    done
  1    failed, or reached a limit
  2    wrong usage
  3    waiting for an answer
  130  cancelled
"""


class Command(NamedTuple):
    """A command and its line in the help."""

    name: str
    summary: str
    parser: argparse.ArgumentParser
    takes: Completes


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line and points to the help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.color = False  # Python 3.14 colours the help, which breaks the width computation here

    def error(self, message: str) -> Any:
        """Print the error and exit with code 2."""
        if chosen := re.fullmatch(r"argument .+: invalid choice: '(.*)' \(choose from (.*)\)", message):
            given, allowed = chosen[1], re.findall(r"[\w-]+", chosen[2])
            what = "command" if self.prog == "upcall" else "value"
            hint = _suggestion(given, allowed) or f" Use one of {', '.join(allowed)}"
            message = f"unknown {what} {given!r}.{hint}"
        self.exit(2, f"{self.prog}: {message}\nTry: {self.prog} --help\n")


class _RootParser(Parser):
    """The parser of `upcall` itself; its help lists the commands in groups."""

    groups: Sequence[tuple[str, Sequence[Command]]] = ()

    def format_help(self) -> str:
        """Return the text of `upcall --help`."""
        lines = ["usage: upcall COMMAND [options]", "", INTRO]
        for title, commands in self.groups:
            lines += ["", f"{title}:", *(f"  {c.name:<12}{c.summary}" for c in commands)]
        return _wrap_to_screen("\n".join([*lines, "", OUTRO]), 14)


class Commands:
    """All commands, in the order and groups of the help."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, list[Command]]] = []
        self.parser = _RootParser(prog="upcall", allow_abbrev=False)
        self.parser.groups = self.groups
        self.parser.add_argument("--version", action="store_true", help="print the version")
        self.parser.add_argument("--trace", action="store_true", help="show stack traces")
        self._sub = self.parser.add_subparsers(metavar="COMMAND", dest="command", parser_class=Parser)

    def group(self, title: str) -> None:
        """Start a group; commands added from now on are listed under this title."""
        self.groups.append((title, []))

    def add(
        self,
        name: str,
        summary: str,
        run: RunCommand,
        *,
        about: str = "",
        examples: Sequence[str] = (),
        takes: Completes = "",
    ) -> argparse.ArgumentParser:
        """Add a command; returns its parser, to add arguments to."""
        parser = self._sub.add_parser(name, allow_abbrev=False, **_help(summary, about, examples))
        parser.set_defaults(run=run, commands=self, parser=parser)
        add_shared_options(parser)
        self.groups[-1][1].append(Command(name, summary, parser, takes))
        return parser

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse the command line. Unknown options are reported with the closest known one."""
        args, left = self.parser.parse_known_args(argv)
        parser = getattr(args, "parser", self.parser)
        for name in (one.partition("=")[0] for one in left if one.startswith("-")):
            parser.error(f"unknown option {name}.{_suggestion(name, long_options(parser))}")
        if left:
            parser.error(f"unexpected argument {left[0]!r}; put quotes around text with spaces")
        return args

    def explain(self, words: Sequence[str]) -> int:
        """Print the help of a command or subcommand, or the list of commands. Returns the exit code."""
        try:
            self.parser.parse_args([*words, "--help"])
        except SystemExit as stopped:
            return stopped.code if isinstance(stopped.code, int) else 0
        return 0

    @property
    def all(self) -> list[Command]:
        """All commands of all groups."""
        return [command for _, commands in self.groups for command in commands]


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command has."""
    # an option that is not given must not override the one before the subcommand
    suppress: Any = argparse.SUPPRESS
    where = "the log to use: a file or a PostgreSQL URL (default: .upcall/log.db, or UPCALL_STORE)"
    parser.add_argument("--store", metavar="PATH", type=_path, default=suppress, help=where)
    parser.add_argument("--trace", action="store_true", default=suppress, help="show stack traces")


def _path(text: str) -> str:
    """Check that a path is not empty: a script with an unset variable must not get the default log."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty; give the path of a log, or omit --store")
    return text


def _folder(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty; give the path of a folder, or omit --log-dir")
    return text


def subcommand(
    sub: Any, name: str, summary: str, run: RunCommand, *, about: str = "", examples: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """Add a subcommand, such as `sessions delete`."""
    parser = sub.add_parser(name, allow_abbrev=False, **_help(summary, about, examples))
    parser.set_defaults(run=run, parser=parser)
    add_shared_options(parser)
    return parser


def json_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --json."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def events_file_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --events-file."""
    about = "also write the events of the run to FILE, one JSON object per line"
    parser.add_argument("--events-file", metavar="FILE", help=about)


def watching_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what people get to see of a run."""
    logs = "also write a log file for each agent to this folder"
    parser.add_argument("--log-dir", metavar="FOLDER", type=_folder, help=logs)
    wire = "also log the raw requests to models and their responses"
    parser.add_argument("--capture", action="store_true", help=wire)
    labels = "names to show for tools, on screens and in log files: a JSON or TOML file"
    parser.add_argument("--labels", metavar="FILE", help=labels)
    prices = "prices of models, to show what was spent: a JSON or TOML file"
    parser.add_argument("--prices", metavar="FILE", help=prices)


def positive_number(text: str) -> int:
    """Parse a positive number."""
    if not text.isdecimal() or len(text) > 9 or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def port_number(text: str) -> int:
    """Parse a port."""
    if not text.isdecimal() or len(text) > 5 or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: use 0 to 65535")
    return int(text)


def seconds_between(least: float, most: float) -> Callable[[str], float]:
    """Return a function that parses a number of seconds within these limits."""

    def parse(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not least <= seconds <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds: use {least:.0f} to {most:.0f}")
        return seconds

    return parse


def name_value(text: str) -> tuple[str, str]:
    """Parse a name and its value, as in `customer=acme`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as amount=80")
    return name, value


def tag_option(parser: argparse.ArgumentParser, about: str) -> None:
    """Add the option --tag."""
    parser.add_argument(
        "--tag", metavar="NAME=VALUE", action="append", type=name_value, default=[],
        help=f"{about}; may be given several times",
    )  # fmt: skip


def filter_options(parser: argparse.ArgumentParser, statuses: Sequence[str], about: str) -> None:
    """Add the options that filter a list; `selected` reads them."""
    parser.add_argument("--session", metavar="ID", help="only this session and its descendants")
    parser.add_argument("--agent", metavar="NAME", dest="by_agent", help="only sessions of this agent")
    parser.add_argument("--status", metavar="STATUS", choices=statuses, help=f"{about}: {', '.join(statuses)}")
    tag_option(parser, "only sessions that were started with this tag")


def filters_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the filter options as arguments for a runtime's `rows` and `inbox`; empty if there are none."""
    values = {"session": args.session, "agent": args.by_agent, "status": args.status, "tags": tags_of(args)}
    return {name: value for name, value in values.items() if value}


def tags_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the tags that were given. Raises SetupError if one has two values."""
    tags: dict[str, str] = {}
    for name, value in args.tag:
        if tags.setdefault(name, value) != value:
            raise SetupError(f"--tag {name} has two values, {tags[name]!r} and {value!r}; give one")
    return tags


def agent_argument(parser: argparse.ArgumentParser, metavar: str = "AGENT", default: str = "") -> None:
    """Add the argument AGENT and the option --agent, which chooses among several agents.

    With a `default`, AGENT may be left out.
    """
    about = "a folder of agent files, one NAME.md, or module:attribute"
    if default:
        about = f"{about} (default: {default})"
        parser.add_argument("agent", metavar=metavar, nargs="?", default=default, help=about)
    else:
        parser.add_argument("agent", metavar=metavar, help=about)
    parser.add_argument(
        "--agent", metavar="NAME", dest="agent_name", help="the agent to use, if AGENT contains several"
    )


def long_options(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a command, for completion."""
    found = re.findall(r"^\s+(?:-\w, )?(--[a-z-]+)", parser.format_help(), re.MULTILINE)
    return sorted(set(found))


def _suggestion(name: str, known: Sequence[str]) -> str:
    """Suggest the closest known name, as a question; "" if none is close."""
    bare = {one.strip("-"): one for one in known}
    close = difflib.get_close_matches(name.strip("-"), bare, 1)
    return f" Did you mean {bare[close[0]]!r}?" if close else ""


def _help(summary: str, about: str, examples: Sequence[str]) -> dict[str, Any]:
    shown = "\n".join(f"  {example}" for example in examples)
    return {
        "help": summary,
        "description": f"{summary[0].upper()}{summary[1:]}.{chr(10) * 2 + about if about else ''}",
        "epilog": f"examples:\n{shown}" if shown else None,
        "formatter_class": _Formatter,
    }


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str, **_: Any) -> None:
        width = min(shutil.get_terminal_size().columns, 80)
        super().__init__(prog, max_help_position=24, width=width - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return _wrap_to_screen(super()._fill_text(text, width, indent), 4)

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        """Format the usage without breaking an option from its value."""
        room, self._width = self._width, 10_000
        line = super()._format_usage(usage, actions, groups, prefix).strip()
        self._width = room
        whole = re.sub(r"\[[^]]*\]", lambda part: re.sub(r" (?!\|)", _GLUE, part[0]), line)
        rows = textwrap.fill(whole, room, subsequent_indent=" " * 7, break_on_hyphens=False)
        return rows.replace(_GLUE, " ") + "\n\n"


_GLUE = "\N{NO-BREAK SPACE}"


def _wrap_to_screen(text: str, indent: int) -> str:
    """Wrap a text to the screen; continuation lines of indented rows are indented."""
    room = max(shutil.get_terminal_size().columns, 30)
    if max(map(len, text.split("\n"))) <= room:
        return text
    made: list[str] = []
    for indented, rows in itertools.groupby(text.split("\n"), lambda row: row[:1] in ("", " ")):
        # a paragraph is filled again; indented rows are wrapped one by one
        for row in rows if indented else [" ".join(rows)]:
            more = " " * indent if indented else ""
            made += textwrap.wrap(
                row, room, subsequent_indent=more, break_long_words=False, break_on_hyphens=False
            ) or [""]
    return "\n".join(made)
