"""The commands `help` and `version`."""

from __future__ import annotations

import argparse

import upcall
from upcall.cli.options import Commands
from upcall.cli.output import say


def add(commands: Commands) -> None:
    """The commands `help` and `version`."""
    parser = commands.add(
        "help",
        "explain a command, or list all of them",
        _help,
        examples=["upcall help", "upcall help run", "upcall help sessions delete"],
        takes="command",
    )
    parser.add_argument("words", metavar="COMMAND", nargs="*", help="the command; without it all are listed")
    commands.add("version", "print the version", lambda _: print_version(), examples=["upcall version"])


def print_version() -> int:
    """Print the version; returns the exit code."""
    say(f"upcall {upcall.__version__}")
    return 0


def _help(args: argparse.Namespace) -> int:
    commands: Commands = args.commands
    return commands.explain(args.words)
