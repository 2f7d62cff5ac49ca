"""The commands `help` and `version`."""

from __future__ import annotations

import argparse

import upcall
from upcall.cli.options import Commands
from upcall.cli.output import say


def add(commands: Commands) -> None:
    """Add the commands `help` and `version`."""
    parser = commands.add(
        "help",
        "show the help of a command, or list all commands",
        _help,
        examples=["upcall help", "upcall help run", "upcall help sessions delete"],
        takes="command",
    )
    parser.add_argument("words", metavar="COMMAND", nargs="*", help="the command (default: list all commands)")
    commands.add("version", "print the version", lambda _: print_version(), examples=["upcall version"])


def print_version() -> int:
    """Print the version and return the exit code."""
    say(f"upcall {upcall.__version__}")
    return 0


def _help(args: argparse.Namespace) -> int:
    commands: Commands = args.commands
    return commands.explain(args.words)
