"""Reads Python source without importing it: code lines, functions, and who imports whom."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "upcall"


@dataclass(frozen=True)
class Function:
    """A function or method: where it stands, and how many lines of it are code."""

    source: Source
    node: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def where(self) -> str:
        return f"{self.source.path.relative_to(ROOT)}:{self.node.lineno} {self.name}"

    @property
    def lines(self) -> int:
        return len(self.source.code.intersection(_span(self.node)))


class Source:
    """One file: its tree, and the lines that are neither blank, comment nor docstring."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """Its statements."""
        gc.disable()  # a tree of a hundred thousand nodes that all stay: looking for garbage takes most of the time
        try:
            return ast.parse(self.text)
        finally:
            gc.enable()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Everything in its tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def code(self) -> set[int]:
        """The numbers of its code lines."""
        lines = {number for number, line in enumerate(self.text.split("\n"), 1) if _is_code(line)}
        docstrings: set[int] = set()
        for node in self.nodes:
            match node:
                case ast.Expr(value=ast.Constant(value=str())):
                    docstrings.update(_span(node))
                case ast.Constant(value=str() | bytes()) | ast.JoinedStr() if node.end_lineno != node.lineno:
                    lines.update(_span(node))
                case _:
                    pass
        return lines - docstrings

    def functions(self) -> Iterator[Function]:
        """Every function in it, nested ones too; an overload is only a signature."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_overload(node):
                yield Function(self, node)


@cache
def sources(folder: Path) -> dict[str, Source]:
    """The files below a folder by module name: `routing`, `store.sqlite`, and "" for its `__init__`."""
    found: dict[str, Source] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(p for p in parts if p != "__init__")] = Source(path)
    return found


def imports(modules: dict[str, Source]) -> dict[str, set[str]]:
    """Which modules of the package each one imports: at load, inside functions, and for typing alike."""
    graph: dict[str, set[str]] = {}
    for name, source in modules.items():
        named = {n for node in source.nodes for n in _named(node, name, source)}
        graph[name] = {_module(n, modules) for n in named} - {name}
    return graph


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, or an empty list."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [name or "upcall" for name in error.args[1]]
    return []


def _named(node: ast.AST, name: str, source: Source) -> Iterator[str]:
    """What an import statement names in the package, relative to it: `errors.BadTool`, `store.sqlite`."""
    if isinstance(node, ast.Import):
        full = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        full = [f"{_origin(node, name, source)}.{alias.name}" for alias in node.names]
    else:
        return
    for path in full:
        if path == "upcall" or path.startswith("upcall."):
            yield path.removeprefix("upcall").removeprefix(".")


def _origin(node: ast.ImportFrom, name: str, source: Source) -> str:
    """The module after `from`, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    here = ["upcall", *name.split(".")] if name else ["upcall"]
    up = node.level - (source.path.name == "__init__.py")
    base = here[: len(here) - up] if up else here
    return ".".join([*base, *([node.module] if node.module else [])])


def _module(name: str, modules: dict[str, Source]) -> str:
    """The longest beginning of a dotted name that is a module."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def _is_code(line: str) -> bool:
    words = line.strip()
    return bool(words) and not words.startswith("#")


def _span(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(d).rpartition(".")[2] == "overload" for d in node.decorator_list)
