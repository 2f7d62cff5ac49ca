"""Runs a program, or the Python blocks of a Markdown page, as a user would, without a network.

`python offline.py FILE`. The blocks of a page share one namespace and run in order, `await` at top level allowed.
A block after a line `<!-- not run: reason -->` is only compiled.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
LOCAL = ("127.", "localhost", "::1", "0.0.0.0")


@dataclass(frozen=True)
class Block:
    """A fenced Python block: the line it begins at, its text, and whether it runs."""

    line: int
    text: str
    runs: bool


def blocks(page: str) -> Iterator[Block]:
    """The fenced Python blocks of a page, indented ones too."""
    above, start, indent = "", 0, ""
    inside: list[str] | None = None
    for number, line in enumerate(page.splitlines(), 1):
        if inside is None:
            if fence := re.fullmatch(r"(\s*)```python\b.*", line):
                inside, start, indent = [], number, fence[1]
            elif line.strip():
                above = line.strip()
        elif line.strip() == "```":
            yield Block(start, "\n".join(inside) + "\n", NOT_RUN.fullmatch(above) is None)
            inside, above = None, ""
        else:
            inside.append(line.removeprefix(indent))
    if inside is not None:
        raise ValueError(f"the block that begins at line {start} is not closed")


def run_page(path: Path) -> None:
    """Run the blocks of one page; a failure names the page and its line."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for block in blocks(path.read_text(encoding="utf-8")):
            text = "\n" * block.line + block.text
            code = compile(text, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            if not block.runs:
                continue
            made = eval(code, names)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(made)


def refuse_network(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook: looking up or reaching another machine is an error."""
    host: Any = None
    if event == "socket.getaddrinfo":
        host = args[0]
    elif event == "socket.connect" and not isinstance(args[1], str | bytes):
        host = args[1][0]
    if isinstance(host, bytes):
        host = host.decode()
    if host and not str(host).startswith(LOCAL):
        raise OSError(f"this has to run offline, and it tried to reach {host}")


def main() -> None:
    path = Path(sys.argv[1])
    sys.addaudithook(refuse_network)
    sys.path[0] = ""
    if path.suffix == ".md":
        run_page(path)
    else:
        sys.argv = [str(path)]
        runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    main()
