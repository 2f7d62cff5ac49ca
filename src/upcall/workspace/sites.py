"""Find the calls in a program whose values are awaited. All other calls must have their value at once.

A call is awaited if its value flows into an `await` or a `gather`: directly, in a list, through a variable, or
through a plain function that returns it or takes it. Equal names in different scopes count as the same name.
"""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Iterator

_AWAITING_FUNCTIONS = ("gather", "run")
_ADDING_METHODS = ("append", "add", "insert", "extend", "appendleft")
_PASSING_FUNCTIONS = ("list", "tuple", "set", "reversed", "sorted", "zip", "enumerate", "iter", "next")

_TRIES = 5
"""Python 3.11 may raise SystemError if two threads parse at the same time, because it miscounts its depth."""

Span = tuple[int, int]
"""The start and end of an expression, in bytes of the program's UTF-8."""


def awaited(code: str) -> frozenset[Span]:
    """Return the calls whose values are awaited; none if the text is not valid Python."""
    for _ in range(_TRIES):
        try:
            return _Flow(ast.parse(code), code).spans()
        except SystemError:
            continue
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            break
    return frozenset()


class _Flow:
    """Follows values backwards from where they are awaited to the calls that make them.

    The program is read once, and values are indexed by name, because there may be thousands of names.
    """

    def __init__(self, tree: ast.AST, code: str) -> None:
        self._starts = [0]
        for line in code.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self._assigned: defaultdict[str, list[ast.AST]] = defaultdict(list)
        self._returns: defaultdict[ast.AST, list[ast.AST]] = defaultdict(list)
        self._arguments: defaultdict[tuple[str, int | str], list[ast.AST]] = defaultdict(list)
        """Arguments of calls, by the function's name and the argument's position or name."""
        self._arg_counts: defaultdict[str, int] = defaultdict(int)
        self._parameters: defaultdict[str, set[tuple[str, int | str]]] = defaultdict(set)
        self._rest: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        self._awaited: list[ast.AST] = []
        self._seen: set[ast.AST] = set()
        self._names: set[str] = set()
        functions = list(self._read(tree))
        for function in functions:
            self._record_parameters(function)

    def _read(self, tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Record the values of each name and the returns of each function; yield the functions."""
        todo: deque[tuple[ast.AST, tuple[ast.AST, ...]]] = deque([(tree, ())])
        while todo:
            node, inside = todo.popleft()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions[node.name] = node
                inside = (*inside, node)
                yield node
            elif isinstance(node, ast.Return) and node.value is not None:
                for function in inside:
                    self._returns[function].append(node.value)
            else:
                self._record(node)
            todo += [(child, inside) for child in ast.iter_child_nodes(node)]

    def _record(self, node: ast.AST) -> None:
        """Record what a node assigns, calls or awaits."""
        match node:
            case ast.Await(value=value):
                self._awaited.append(value)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, value)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value) | ast.AugAssign(target=target, value=value)
            ):
                self._bind(target, value)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self._assigned[name].append(value)
            case ast.For(target=target, iter=items) | ast.comprehension(target=target, iter=items):
                for name in _names_in(target):
                    self._assigned[name].append(items)
            case ast.Call(func=func):
                if _callee(node) in _AWAITING_FUNCTIONS:
                    self._awaited += node.args
                if isinstance(func, ast.Name):
                    self._record_arguments(func.id, node)
                elif (
                    isinstance(func, ast.Attribute)
                    and isinstance(func.value, ast.Name)
                    and func.attr in _ADDING_METHODS
                ):
                    self._assigned[func.value.id] += node.args
            case _:
                pass

    def _record_arguments(self, function: str, call: ast.Call) -> None:
        for position, argument in enumerate(call.args):
            self._arguments[function, position].append(argument)
        self._arg_counts[function] = max(self._arg_counts[function], len(call.args))
        for keyword in call.keywords:
            if keyword.arg is not None:
                self._arguments[function, keyword.arg].append(keyword.value)

    def _bind(self, target: ast.AST, value: ast.AST) -> None:
        for name, part in _assignments(target, value):
            self._assigned[name].append(part)

    def _record_parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Record which arguments of a function's calls each of its parameters stands for."""
        names = [a.arg for a in function.args.args]
        for position, name in enumerate(names):
            self._parameters[name] |= {(function.name, position), (function.name, name)}
        if function.args.vararg is not None:
            self._rest[function.args.vararg.arg].append((function.name, len(names)))

    def _values(self, name: str) -> Iterator[ast.AST]:
        """Yield the values of a name anywhere in the program. Values that were already yielded are left out."""
        yield from self._assigned[name]
        for argument in self._parameters[name]:
            yield from self._arguments.pop(argument, ())
        for function, start in self._rest[name]:
            end = self._arg_counts[function]
            for position in range(start, end):
                yield from self._arguments.pop((function, position), ())
            self._arg_counts[function] = min(start, end)

    def spans(self) -> frozenset[Span]:
        """Return the calls that produce awaited values."""
        todo = self._awaited
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
                    yield from self._values(name)
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
        name = _callee(node)
        function = self._functions.get(name) if isinstance(node.func, ast.Name) else None
        if isinstance(function, ast.FunctionDef):
            yield from self._returns.pop(function, ())  # each return is followed once
        elif name in _PASSING_FUNCTIONS:
            yield from node.args
        elif isinstance(node.func, ast.Attribute):
            yield node.func.value


def _callee(node: ast.Call) -> str:
    """Return the last name of the called expression: `gather` of `asyncio.gather(...)`."""
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _assignments(target: ast.AST, value: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield each name in an assignment's target, with the part of the value that it gets."""
    todo = [(target, value)]
    while todo:
        target, value = todo.pop()
        match target, value:
            case ast.Tuple(elts=targets) | ast.List(elts=targets), ast.Tuple(elts=values) | ast.List(
                elts=values
            ) if len(targets) == len(values):
                todo += zip(targets, values, strict=True)
            case _:
                yield from ((name, value) for name in _names_in(target))


def _names_in(target: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
