"""Which calls of a program are awaited, read from its text: their values may come later, all others' must be there.

A call is awaited where its value flows into an `await` or a `gather`: directly, in a list, by a variable, through a
plain function that returns it or takes it. Names are not told apart by scope.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_AWAITING = ("gather", "run")
_ADDING = ("append", "add", "insert", "extend", "appendleft")
_CARRYING = ("list", "tuple", "set", "reversed", "sorted", "zip", "enumerate", "iter", "next")

_TRIES = 5
"""Python 3.11 miscounts its depth, and says SystemError, where two threads parse at the same moment."""

Span = tuple[int, int]
"""Where an expression begins and ends, in bytes of the program's UTF-8."""


def awaited(code: str) -> frozenset[Span]:
    """The calls whose value is awaited; none in a text that is no Python."""
    for _ in range(_TRIES):
        try:
            return _Flow(ast.parse(code), code).spans()
        except SystemError:
            continue
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            break
    return frozenset()


class _Flow:
    """Follows values backwards from where they are awaited to the calls that make them."""

    def __init__(self, tree: ast.AST, code: str) -> None:
        self._nodes = list(ast.walk(tree))
        self._starts = [0]
        for line in code.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._functions = {n.name: n for n in self._nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        self._seen: set[ast.AST] = set()
        self._names: set[str] = set()

    def spans(self) -> frozenset[Span]:
        todo: list[ast.AST] = []
        for node in self._nodes:
            if isinstance(node, ast.Await):
                todo.append(node.value)
            elif isinstance(node, ast.Call) and _called(node) in _AWAITING:
                todo += node.args
        while todo:
            node = todo.pop()
            if node not in self._seen:
                self._seen.add(node)
                todo += self._sources(node)
        return frozenset(self._span(n) for n in self._seen if isinstance(n, ast.Call))

    def _span(self, node: ast.Call) -> Span:
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[end_line - 1] + end

    def _sources(self, node: ast.AST) -> Iterator[ast.AST]:
        """The expressions that a value comes from, one step back."""
        match node:
            case ast.Name(id=name):
                if name not in self._names:
                    self._names.add(name)
                    yield from self._bound(name)
            case ast.Call():
                yield from self._returned(node)
            case ast.Starred(value=value) | ast.Attribute(value=value) | ast.Subscript(value=value):
                yield value
            case ast.NamedExpr(value=value) | ast.DictComp(value=value):
                yield value
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                yield from parts
            case ast.Dict(values=parts) | ast.BoolOp(values=parts):
                yield from parts
            case ast.ListComp(elt=elt) | ast.SetComp(elt=elt) | ast.GeneratorExp(elt=elt):
                yield elt
            case ast.IfExp(body=first, orelse=second) | ast.BinOp(left=first, right=second):
                yield first
                yield second
            case _:
                pass

    def _returned(self, node: ast.Call) -> Iterator[ast.AST]:
        name = _called(node)
        function = self._functions.get(name) if isinstance(node.func, ast.Name) else None
        if isinstance(function, ast.FunctionDef):
            yield from (n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None)
        elif name in _CARRYING:
            yield from node.args
        elif isinstance(node.func, ast.Attribute):
            yield node.func.value

    def _bound(self, name: str) -> Iterator[ast.AST]:
        """Everything that a name stands for anywhere in the program."""
        for node in self._nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        yield from _matching(target, value, name)
                case (
                    ast.AnnAssign(target=target, value=ast.expr() as value)
                    | ast.AugAssign(target=target, value=value)
                ):
                    yield from _matching(target, value, name)
                case ast.NamedExpr(target=ast.Name(id=found), value=value) if found == name:
                    yield value
                case ast.For(target=target, iter=items) | ast.comprehension(target=target, iter=items):
                    if name in _names_in(target):
                        yield items
                case ast.Call(func=ast.Attribute(value=ast.Name(id=found), attr=how)) if found == name:
                    yield from node.args if how in _ADDING else ()
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield from self._given(node, name)
                case _:
                    pass

    def _given(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[ast.AST]:
        """What a function's parameter of that name is given wherever it is called."""
        names = [a.arg for a in function.args.args]
        rest = function.args.vararg.arg if function.args.vararg is not None else ""
        if name not in (*names, rest):
            return
        for node in self._nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function.name:
                yield from (node.args[names.index(name) :][:1] if name in names else node.args[len(names) :])
                yield from (k.value for k in node.keywords if k.arg == name)


def _called(node: ast.Call) -> str:
    """The last part of what is called: `gather` of `asyncio.gather(...)`."""
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _matching(target: ast.AST, value: ast.AST, name: str) -> Iterator[ast.AST]:
    """The part of an assigned value that the name gets."""
    match target, value:
        case ast.Tuple(elts=targets) | ast.List(elts=targets), ast.Tuple(elts=values) | ast.List(elts=values) if (
            len(targets) == len(values)
        ):
            for one, part in zip(targets, values, strict=True):
                yield from _matching(one, part, name)
        case _ if name in _names_in(target):
            yield value
        case _:
            pass


def _names_in(target: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
