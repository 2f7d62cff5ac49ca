"""The command `tree`: who worked for whom, who asked whom, and who answered."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from upcall.cli.options import Commands, json_option
from upcall.cli.output import dump, say, width
from upcall.cli.places import redactor, view_log
from upcall.cli.tree_drawing import draw_tree
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.layout import WIDEST, Piece, rich_text
from upcall.observe.nodes import RunTreeNodes

if TYPE_CHECKING:
    from upcall.app import Runtime
    from upcall.observe.node_table import Node

_WIDEST_IN_A_PIPE = 240


def add(commands: Commands) -> None:
    """Add the command `tree`."""
    parser = commands.add(
        "tree",
        "draw who worked for whom, who asked whom, and who answered",
        _tree,
        about="Draws a session and all sessions below it, with their questions. With --json: all nodes of\n"
        "the run tree, with turns, model calls and tool calls.",
        examples=["upcall tree readme", "upcall tree readme --json | jq '.[] | select(.kind == \"tool\")'"],
        takes="session",
    )
    parser.add_argument("id", metavar="ID", help="the session")
    json_option(parser)


async def _tree(args: argparse.Namespace) -> int:
    async with view_log(args) as runtime:
        nodes = await nodes_of(runtime, args.id)
    if args.json:
        dump(msgspec.to_builtins(nodes))
    else:
        print_tree(nodes, min(width(), WIDEST) if sys.stdout.isatty() else _WIDEST_IN_A_PIPE)
    return 0


async def nodes_of(runtime: Runtime, session_id: str) -> list[Node]:
    """Return the nodes of a session and all below it."""
    fold = RunTreeNodes(redactor=redactor())
    async for event in runtime.events(tree=session_id):
        fold.apply(event)
    return fold.nodes()


def print_tree(nodes: Sequence[Node], columns: int, indent: str = "") -> None:
    """Print the drawing of a run tree; in colours where there are some."""
    console = make_console(sys.stdout) if sys.stdout.isatty() else None
    for row in draw_tree(nodes, columns - len(indent)):
        if console is not None:
            console.print(rich_text([Piece(indent), *row]))
        else:
            say(indent + "".join(piece.text for piece in row).rstrip())
