"""How commands are declared: their place in the help, and the options that they share."""

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

Run = Callable[[argparse.Namespace], int | Coroutine[Any, Any, int]]
"""What a command does; its return is the exit code."""

Takes = Literal["", "session", "callback", "command"]
"""What a shell completes after a command: ids of sessions or callbacks, or names of commands."""

INTRO = "Agents that can ask back: they run, wait at no cost, and go on where they stopped."

OUTRO = """\
AGENT is a folder of agent files, one NAME.md, or module:attribute.
Sessions are kept in .upcall/log.db in the current folder; --store PATH
after the command, or the variable UPCALL_STORE, says otherwise.

Begin with `upcall demo`. `upcall help COMMAND` explains each command.

options:
  --help     print this
  --version  print the version
  --trace    show stack traces

exit codes:
  0    done
  1    failed, or a limit
  2    wrong usage
  3    waiting for an answer
  130  cancelled
"""


class Command(NamedTuple):
    """A command as the help lists it."""

    name: str
    summary: str
    parser: argparse.ArgumentParser
    takes: Takes


class Parser(argparse.ArgumentParser):
    """Says what was wrong in one line, and where to read on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.color = False  # Python 3.14 colours the help, whose columns are counted here

    def error(self, message: str) -> Any:
        """Leave with exit code 2."""
        if chosen := re.fullmatch(r"argument .+: invalid choice: '(.*)' \(choose from (.*)\)", message):
            given, allowed = chosen[1], re.findall(r"[\w-]+", chosen[2])
            message = f"there is no {given!r}.{_meant(given, allowed)} There are {', '.join(allowed)}"
        self.exit(2, f"{self.prog}: {message}\nTry: {self.prog} --help\n")


class _Top(Parser):
    """The command itself: its help lists the commands in groups."""

    groups: Sequence[tuple[str, Sequence[Command]]] = ()

    def format_help(self) -> str:
        """What `upcall --help` prints."""
        lines = ["usage: upcall COMMAND [options]", "", INTRO]
        for title, commands in self.groups:
            lines += ["", f"{title}:", *(f"  {c.name:<12}{c.summary}" for c in commands)]
        return _narrow("\n".join([*lines, "", OUTRO]), 14)


class Commands:
    """All commands, in the order and groups of the help."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, list[Command]]] = []
        self.parser = _Top(prog="upcall", allow_abbrev=False)
        self.parser.groups = self.groups
        self.parser.add_argument("--version", action="store_true", help="print the version")
        self.parser.add_argument("--trace", action="store_true", help="show stack traces")
        self._sub = self.parser.add_subparsers(metavar="COMMAND", dest="command", parser_class=Parser)

    def group(self, title: str) -> None:
        """The commands added from now on stand below this title."""
        self.groups.append((title, []))

    def add(
        self,
        name: str,
        summary: str,
        run: Run,
        *,
        about: str = "",
        examples: Sequence[str] = (),
        takes: Takes = "",
    ) -> argparse.ArgumentParser:
        """One more command; returns its parser for arguments of its own."""
        parser = self._sub.add_parser(name, allow_abbrev=False, **_help(summary, about, examples))
        parser.set_defaults(run=run, commands=self, parser=parser)
        shared(parser)
        self.groups[-1][1].append(Command(name, summary, parser, takes))
        return parser

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """What was typed; what no command knows is told with what may have been meant."""
        args, left = self.parser.parse_known_args(argv)
        parser = getattr(args, "parser", self.parser)
        for name in (one.partition("=")[0] for one in left if one.startswith("-")):
            parser.error(f"there is no option {name}.{_meant(name, long_options(parser))}")
        if left:
            parser.error(f"{left[0]!r} is too much; a text of several words stands in quotes")
        return args

    def explain(self, words: Sequence[str]) -> int:
        """Print the help of a command, or of one below it; without words the list. Returns the exit code."""
        try:
            self.parser.parse_args([*words, "--help"])
        except SystemExit as told:
            return told.code if isinstance(told.code, int) else 0
        return 0

    @property
    def all(self) -> list[Command]:
        """Every command."""
        return [command for _, commands in self.groups for command in commands]


def shared(parser: argparse.ArgumentParser) -> None:
    """The options that every command has."""
    # what is not given must not hide what stands before a subcommand
    suppress: Any = argparse.SUPPRESS
    where = "the log to use (default: .upcall/log.db, or UPCALL_STORE)"
    parser.add_argument("--store", metavar="PATH", type=_path, default=suppress, help=where)
    parser.add_argument("--trace", action="store_true", default=suppress, help="show stack traces")


def _path(text: str) -> str:
    """A path that says something: a script whose variable is not set must not get the default log."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty; name a log, or leave out --store")
    return text


def subcommand(
    sub: Any, name: str, summary: str, run: Run, *, about: str = "", examples: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """A command below a command, such as `sessions delete`."""
    parser = sub.add_parser(name, allow_abbrev=False, **_help(summary, about, examples))
    parser.set_defaults(run=run, parser=parser)
    shared(parser)
    return parser


def as_json(parser: argparse.ArgumentParser) -> None:
    """The option for programs."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def events_file(parser: argparse.ArgumentParser) -> None:
    """The option that mirrors a run."""
    about = "write each event of the run to FILE too, one JSON object a line"
    parser.add_argument("--events-file", metavar="FILE", help=about)


def count(text: str) -> int:
    """A number of things to list."""
    if not text.isdecimal() or len(text) > 9 or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def name_value(text: str) -> tuple[str, str]:
    """A name and its value, as in `customer=acme`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as amount=80")
    return name, value


def tag_option(parser: argparse.ArgumentParser, about: str) -> None:
    """The option for tags."""
    parser.add_argument(
        "--tag", metavar="NAME=VALUE", action="append", type=name_value, default=[],
        help=f"{about}; may be given several times",
    )  # fmt: skip


def filters(parser: argparse.ArgumentParser, statuses: Sequence[str], about: str) -> None:
    """The options that choose what is listed; `selected` reads them."""
    parser.add_argument("--session", metavar="ID", help="only those of this session and of all below it")
    parser.add_argument("--agent", metavar="NAME", dest="by_agent", help="only those of this agent")
    parser.add_argument("--status", metavar="STATUS", choices=statuses, help=f"{about}: {', '.join(statuses)}")
    tag_option(parser, "only those of sessions that were started with this tag")


def selected(args: argparse.Namespace) -> dict[str, Any]:
    """What `rows` and `inbox` of a runtime take, as the options say; empty where all is asked for."""
    given = {"session": args.session, "agent": args.by_agent, "status": args.status, "tags": tags_of(args)}
    return {name: value for name, value in given.items() if value}


def tags_of(args: argparse.Namespace) -> dict[str, str]:
    """The tags that were given; SetupError where one has two values."""
    tags: dict[str, str] = {}
    for name, value in args.tag:
        if tags.setdefault(name, value) != value:
            raise SetupError(f"--tag {name} has two values, {tags[name]!r} and {value!r}; give one")
    return tags


def agent_argument(parser: argparse.ArgumentParser, metavar: str = "AGENT") -> None:
    """AGENT and what chooses among several."""
    about = "a folder of agent files, one NAME.md, or module:attribute"
    parser.add_argument("agent", metavar=metavar, help=about)
    parser.add_argument("--agent", metavar="NAME", dest="agent_name", help="which agent, where AGENT holds several")


def long_options(parser: argparse.ArgumentParser) -> list[str]:
    """The options of a command, for completion."""
    found = re.findall(r"^\s+(?:-\w, )?(--[a-z-]+)", parser.format_help(), re.MULTILINE)
    return sorted(set(found))


def _meant(given: str, known: Sequence[str]) -> str:
    """The closest of what there is, as a question; "" where nothing is close."""
    bare = {one.strip("-"): one for one in known}
    close = difflib.get_close_matches(given.strip("-"), bare, 1)
    return f" Did you mean {bare[close[0]]}?" if close else ""


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
        return _narrow(super()._fill_text(text, width, indent), 4)

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        """On rows that break no option apart from what it takes."""
        room, self._width = self._width, 10_000
        line = super()._format_usage(usage, actions, groups, prefix).strip()
        self._width = room
        whole = re.sub(r"\[[^]]*\]", lambda part: re.sub(r" (?!\|)", _GLUE, part[0]), line)
        rows = textwrap.fill(whole, room, subsequent_indent=" " * 7, break_on_hyphens=False)
        return rows.replace(_GLUE, " ") + "\n\n"


_GLUE = "\N{NO-BREAK SPACE}"


def _narrow(text: str, indent: int) -> str:
    """A text whose lines fit on the screen; what goes on in the next row, and began indented, is indented."""
    room = max(shutil.get_terminal_size().columns, 30)
    if max(map(len, text.split("\n"))) <= room:
        return text
    made: list[str] = []
    for indented, rows in itertools.groupby(text.split("\n"), lambda row: row[:1] in ("", " ")):
        # a paragraph is filled anew, what is indented stays row by row
        for row in rows if indented else [" ".join(rows)]:
            more = " " * indent if indented else ""
            made += textwrap.wrap(row, room, subsequent_indent=more, break_long_words=False) or [""]
    return "\n".join(made)
