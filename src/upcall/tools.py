"""Tools: functions that a model may call, with their schema, argument checks and results."""

from __future__ import annotations

import base64
import inspect
import json
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack, cast, overload

import msgspec

from upcall.contracts import Context, SessionAccess, SyncContext
from upcall.core.foreign_schema import CALL_CONTEXT, argument_problem, by_name, checked_schema
from upcall.core.schema import Shape, check_each, closest_or_all, is_pydantic, read_docstring, read_hints, shapes
from upcall.errors import BadTool
from upcall.messages import Image, JsonSchema, Result, Text, ToolSpec, Value, replace_surrogates
from upcall.safety.bounds import DESCRIPTION, RESULT, RESULT_PARTS, STRUCTURE, brief, excess, is_too_deep

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_CONTEXTS: tuple[Any, ...] = (Context, SyncContext, SessionAccess)
_PARTIAL: Any = partial  # pyright narrows to a type with unknown parts otherwise
_NO_TYPES: frozenset[type | str] = frozenset()

Rule = Callable[..., Any]
"""A plain function of some of a tool's arguments, by name."""


class CallRefused(Exception):
    """A call does not run; the text tells the model why."""


class BadArguments(CallRefused):
    """A call's arguments don't fit."""

    def __init__(self, tool: str, problems: Iterable[str]) -> None:
        self.tool, self.problems = tool, tuple(problems)
        lines = [f"{tool} did not run, because its arguments are wrong:", *(f"- {p}" for p in self.problems)]
        super().__init__(replace_surrogates("\n".join(lines)))


class SchemaOptions(TypedDict, total=False):
    """The options of `Tool.from_schema`, which gets its name as an argument."""

    needs_approval: bool | Rule
    approve_patterns: Mapping[str, Rule] | None
    read_only: bool
    repeatable: bool
    inline: bool
    timeout: float | None
    label: str | None


class Options(SchemaOptions, total=False):
    """The options of `@tool(...)`."""

    name: str | None


class Tool(Value, frozen=True, eq=False, kw_only=True, dict=False):
    """A function that a model may call, with its declared options. Calling the tool calls the function."""

    name: str
    description: str
    schema: JsonSchema
    function: Callable[..., Any]
    is_async: bool
    inline: bool = False
    context: str | None = None
    needs_approval: bool | Rule = False
    approve_patterns: Mapping[str, Rule] = {}
    read_only: bool = False
    repeatable: bool = False
    timeout: float | None = None
    label: str | None = None
    shapes: dict[str, Shape]
    required: frozenset[str]
    defaults: dict[str, Any]
    exact_types: dict[str, frozenset[type | str]]
    about: Callable[[Mapping[str, Tool]], str] | None = None
    """Returns its description among an agent's tools, if the description depends on them."""
    built_in: bool = False
    """True if it is a built-in tool of the runtime."""

    @property
    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""
        return ToolSpec(self.name, self.description, self.schema)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function without checking the arguments."""
        return self.function(*args, **kwargs)

    def check(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function's types, without defaults; BadArguments names every wrong one."""
        quick = self.exact_types
        for name, value in args.items():
            kinds = quick.get(name, _NO_TYPES)
            if type(value) not in kinds and (type(value) is not str or value not in kinds):
                break
        else:
            if len(args) == len(quick) or self.required <= args.keys():
                return dict(args)
        out, problems = check_each(self.shapes, self.required, self.schema.get("$defs", {}), args)
        if problems:
            raise BadArguments(self.name, problems)
        return out

    def asks_approval(self, args: Mapping[str, Any]) -> bool:
        """Return whether a call with these checked arguments needs an approval.

        Exceptions of the rule are raised.
        """
        rule = self.needs_approval
        return rule if isinstance(rule, bool) else bool(_apply(self, rule, args))

    def patterns(self, args: Mapping[str, Any]) -> dict[str, str]:
        """Return the approval patterns that match these checked arguments, each with its value.

        An approval by pattern covers the calls for which the pattern makes the same of theirs. A pattern that
        returns None, False or "" does not hold; `True` makes it a plain yes-or-no rule.
        """
        made = {name: _apply(self, rule, args) for name, rule in self.approve_patterns.items()}
        return {name: str(value) for name, value in made.items() if value not in (None, False, "")}

    @classmethod
    def from_function(cls, function: Callable[..., Any], **options: Unpack[Options]) -> Tool:
        """Make a tool of a typed function, like `@tool(**options)`."""
        return _make(function, options)

    @classmethod
    def from_schema(
        cls,
        name: str,
        schema: Mapping[str, Any],
        call: Callable[..., Any],
        *,
        description: str = "",
        **options: Unpack[SchemaOptions],
    ) -> Tool:
        """Make a tool of a JSON schema that somebody else wrote. BadTool says why a schema is refused.

        name: the tool's name
        schema: the JSON schema of its arguments, an object; copied, and checked within bounds
        call: an async or plain function of one dict, the arguments that fit the schema. A second parameter that is
            annotated with Context (in a plain function SyncContext) gets the call's context
        description: what the model reads about the tool
        **options: those of `@tool`, without `name`
        """
        return _make_from_schema(name, schema, call, description, options)


class SchemaTool(Tool, frozen=True, eq=False, kw_only=True, dict=False):
    """A tool whose arguments are checked against a JSON schema instead of annotations."""

    def check(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged; BadArguments says why they don't fit the schema."""
        if problem := argument_problem(self.schema, args):
            raise BadArguments(self.name, [problem])
        return dict(args)


def _apply(made: Tool, rule: Rule, args: Mapping[str, Any]) -> Any:
    wanted = inspect.signature(rule).parameters
    everything = {**made.defaults, **args}
    if any(p.kind is p.VAR_KEYWORD for p in wanted.values()):
        return rule(**everything)
    return rule(**{name: everything[name] for name in wanted if name in everything})


# --- from a function to a tool ------------------------------------------------------------


@overload
def tool(function: Callable[..., Any], /, **options: Unpack[Options]) -> Tool: ...
@overload
def tool(**options: Unpack[Options]) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[Options]) -> Any:
    """Make a typed function a tool: `@tool`, or `@tool(needs_approval=True, ...)`.

    `needs_approval` and each of `approve_patterns` may be a plain function of some of the arguments, by name. A
    plain `def` runs in a thread; with `inline` it runs on the event loop, so it must be quick. `repeatable` tools
    run again after a crash; `read_only` ones may be used while answering a callback. BadTool says what can't work.
    """
    return partial(_make, options=options) if function is None else _make(function, options)


def describe_tools(box: Mapping[str, Tool]) -> dict[str, Tool]:
    """Return an agent's tools, with the descriptions that depend on the other tools."""
    return {n: one if one.about is None else one.replace(description=one.about(box)) for n, one in box.items()}


def as_tool(given: Any) -> Tool:
    """Return a Tool unchanged, or make a tool of a plain typed function."""
    return given if isinstance(given, Tool) else _make(given, {})


def _make(function: Callable[..., Any], options: Options) -> Tool:
    name = _checked_name(function, options.get("name"))
    hints = _hints(name, function)
    parameters = inspect.signature(function).parameters
    is_async = inspect.iscoroutinefunction(function)
    context = _context(name, parameters, hints, is_async=is_async)
    taken = {n: p for n, p in parameters.items() if n != context}
    for parameter in taken.values():
        _check_parameter(name, parameter, hints)
    _check_options(name, options, taken, is_async=is_async, context=context)
    found, defs = _shapes(name, {n: hints[n] for n in taken})
    defaults = {n: p.default for n, p in taken.items() if p.default is not p.empty}
    description, about = read_docstring(inspect.getdoc(function) or "", taken)
    found = {n: _described(s, about.get(n, ""), n in defaults, defaults.get(n)) for n, s in found.items()}
    approve_patterns = dict(options.get("approve_patterns") or {})
    declared: dict[str, Any] = {**options, "name": name, "approve_patterns": approve_patterns}
    return Tool(
        **declared,
        description=description or name.replace("_", " "),
        schema=_object(found, taken.keys() - defaults, defs),
        function=function,
        is_async=is_async,
        context=context,
        shapes=found,
        required=frozenset(taken) - defaults.keys(),
        defaults=defaults,
        exact_types={n: s.quick for n, s in found.items()},
    )


def _make_from_schema(
    name: str, schema: Mapping[str, Any], call: Callable[..., Any], description: Any, options: SchemaOptions
) -> Tool:
    _check_name(name)
    own = checked_schema(name, schema)
    if not isinstance(description, str) or len(description) > DESCRIPTION:
        raise BadTool(name, f"its description must be a string of at most {DESCRIPTION} characters")
    is_async, context = _read_call(name, call)
    _check_options(name, options, own["properties"], is_async=is_async, context=context)
    declared: dict[str, Any] = {**options, "approve_patterns": dict(options.get("approve_patterns") or {})}
    return SchemaTool(
        **declared,
        name=name,
        description=replace_surrogates(description) or name.replace("_", " "),
        schema=own,
        function=by_name(call, context, is_async=is_async),
        is_async=is_async,
        context=context and CALL_CONTEXT,
        shapes={},
        required=frozenset(own.get("required", ())),
        defaults={},
        exact_types={},
    )


def _read_call(name: str, call: Any) -> tuple[bool, str | None]:
    """Return whether a function of the arguments as a dict is async, and which of its parameters is its context."""
    if not callable(call):
        raise BadTool(name, f"call must be a function that takes the arguments as one dict, not {brief(call)}")
    written: Any = getattr(call, "func", call) if isinstance(call, _PARTIAL) else call
    written = written if inspect.isroutine(written) else type(written).__call__
    is_async = inspect.iscoroutinefunction(written)
    signature = inspect.signature(call)
    context = _context(name, signature.parameters, _hints(name, written), is_async=is_async)
    try:
        signature.bind({}, **({context: None} if context else {}))
    except TypeError as error:
        wanted = "`call(arguments)`, or `call(arguments, ctx: Context)`"
        raise BadTool(name, f"call takes the arguments as one dict: {wanted} ({error})") from None
    return is_async, context


def _object(found: Mapping[str, Shape], required: Collection[str], defs: JsonSchema) -> JsonSchema:
    schema: JsonSchema = {"type": "object", "properties": {n: s.schema for n, s in found.items()}}
    if required:
        schema["required"] = [name for name in found if name in required]
    schema["additionalProperties"] = False
    return {**schema, "$defs": defs} if defs else schema


def _described(shape: Shape, about: str, optional: bool, default: Any) -> Shape:
    """Return the shape with the docstring's description, if the annotation has none, and with the default."""
    schema = {"description": about, **shape.schema} if about else dict(shape.schema)
    if optional:
        try:
            plain = msgspec.to_builtins(default, str_keys=True, enc_hook=_encode)
            msgspec.json.encode(plain)
            shape.convert(plain)
        except (TypeError, ValueError, RecursionError):
            return shape.replace(schema=schema)  # a default that is not JSON is left to the function
        schema["default"] = plain
    return shape.replace(schema=schema)


# --- refusals -----------------------------------------------------------------------------


def _checked_name(function: Any, name: str | None) -> str:
    if isinstance(function, Tool):
        raise BadTool(
            function.name, "is already a tool; to make another tool from the same function, use tool(x.function)"
        )
    if type(function).__name__ == "Kit":
        raise BadTool("Kit", "a Kit goes into kit=[...], not into tools=[...]")
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise BadTool(repr(function), "make a tool from a typed function: `def name(path: str) -> str`")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise BadTool(function.__name__, "a tool returns its result, it can't yield; use ctx.show for progress")
    made = inspect.signature(function).return_annotation
    if (made if isinstance(made, str) else getattr(made, "__name__", "")) in ("Tool", "Kit"):
        raise BadTool(function.__name__, f"returns a {made}; call it: {function.__name__}()")
    name = function.__name__ if name is None else name
    _check_name(name)
    return name


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        rule = "a tool's name must have 1 to 64 characters of a-z, A-Z, 0-9, _ and -: providers accept no others"
        raise BadTool(f"{name!s:.80}", f"{rule}; give one with @tool(name=...)")


def _hints(name: str, function: Any) -> dict[str, Any]:
    try:
        return read_hints(function)
    except NameError as error:
        problem = f"its annotation refers to {error.name!r}, which is not defined in the tool's module"
        raise BadTool(name, f"{problem}; import it outside TYPE_CHECKING, or define it at module level") from None


def _context(name: str, parameters: Mapping[str, Any], hints: Mapping[str, Any], *, is_async: bool) -> str | None:
    right, wrong = (Context, SyncContext) if is_async else (SyncContext, Context)
    found = None
    for parameter in parameters:
        hint = hints.get(parameter)
        named = [typing.get_origin(k) or k for k in (hint, *typing.get_args(hint))]  # also of `Context[Deps]`
        kinds = [k for k in named if k in _CONTEXTS]
        if not kinds:
            continue
        if right not in kinds:
            kind = "an async" if is_async else "a plain `def`"
            problem = f"{kind} tool's context is a {right.__name__}: write `{parameter}: {right.__name__}`"
            other = f", or make it {'a plain' if is_async else 'an async'} def for a {wrong.__name__}"
            raise BadTool(name, problem + (other if wrong in kinds else ""))
        if found:
            raise BadTool(name, f"{found!r} and {parameter!r} are both declared as the tool's context; keep one")
        found = parameter
    return found


def _check_options(
    name: str, options: SchemaOptions, taken: Collection[str], *, is_async: bool, context: str | None
) -> None:
    for unknown in options.keys() - Options.__annotations__:
        raise BadTool(name, f"@tool takes no {unknown}{closest_or_all(unknown, Options.__annotations__)}")
    inline, timeout = options.get("inline"), options.get("timeout")
    if inline and is_async:
        raise BadTool(name, "inline is for a plain `def`; an async tool runs on the loop anyway")
    if inline and context:
        raise BadTool(
            name, f"{context!r} would block the loop; make the tool an async def with a Context, and remove inline"
        )
    if timeout is not None and not timeout > 0:
        raise BadTool(name, f"timeout={timeout!r} is not a positive number of seconds")
    patterns = options.get("approve_patterns") or {}
    if not hasattr(patterns, "values"):
        raise BadTool(
            name,
            'approve_patterns must be a dict of functions that take arguments: {"folder": lambda path: ...}',
        )
    for rule in (options.get("needs_approval", False), *patterns.values()):
        _check_rule(name, rule, taken)


def _check_parameter(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        wanted = f"{parameter.name}: list[str]" if star == "*" else f"{parameter.name}: dict[str, str]"
        raise BadTool(name, f"{star}{parameter.name} can't be described to a model; write `{wanted}`")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise BadTool(
            name, f"{parameter.name!r} is positional-only, but arguments are passed by name; remove the `/`"
        )
    if parameter.name in ("self", "cls") and parameter.name not in hints:
        raise BadTool(name, "is an unbound method; make the tool from a bound one: tool(thing.method)")
    if parameter.name not in hints:
        wanted = f"`{parameter.name}: str`, or `{parameter.name}: Context` for the tool's context"
        raise BadTool(name, f"{parameter.name!r} has no annotation; write its type: {wanted}")


def _shapes(name: str, hints: Mapping[str, Any]) -> tuple[dict[str, Shape], JsonSchema]:
    try:
        return shapes(hints)
    except NameError as error:
        problem = (
            f"a class in its annotations refers to {error.name!r}, which is not defined in that class's module"
        )
        raise BadTool(name, f"{problem}; define both at module level") from None
    except TypeError:
        pass
    for parameter, hint in hints.items():
        try:
            shapes({parameter: hint})
        except TypeError as error:
            shown = getattr(hint, "__name__", None) if isinstance(hint, type) else None
            problem = f"{parameter}: {shown or hint} can't come from JSON ({str(error).splitlines()[-1]})"
            raise BadTool(name, f"{problem}; use str, int, list, dict, a dataclass, ...") from None
    raise BadTool(name, "its annotations can't be combined into one schema; use simpler types")


def _check_rule(name: str, rule: Any, taken: Collection[str]) -> None:
    if isinstance(rule, bool):
        return
    if not callable(rule) or inspect.iscoroutinefunction(rule):
        raise BadTool(name, f"an approval rule must be a plain function that takes the arguments, not {rule!r}")
    for parameter in inspect.signature(rule).parameters.values():
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        unknown = parameter.name not in taken and parameter.default is parameter.empty
        if parameter.kind is not parameter.VAR_KEYWORD and (unknown or not by_name):
            raise BadTool(name, f"an approval rule can't take {parameter.name!r}; it may take: {', '.join(taken)}")


# --- results ------------------------------------------------------------------------------


def unknown_tool_text(name: str, known: Iterable[str]) -> str:
    """Return the text for a model that called a tool it does not have."""
    names, close = sorted(known), list[str]()
    if len(name) <= _LONGEST_NAME:
        import difflib

        close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    rather = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    return f"there is no tool called {_brief_name(name)}{rather} The tools are: {', '.join(names) or 'none'}"


def unknown_tool_again(name: str) -> str:
    """Return a shorter text, for a model that has called several tools which it does not have at once."""
    return f"there is no tool called {_brief_name(name)}. An earlier result of this response lists the tools."


def unknown_tool_of_hook(name: str, called: str) -> str:
    """Return the text for a model whose call a hook changed to one of a tool that does not exist."""
    return f"there is no tool called {_brief_name(name)}: a hook changed this call of {_brief_name(called)} to it."


_LONGEST_NAME = 64


def _brief_name(name: str) -> str:
    return repr(name if len(name) <= 2 * _LONGEST_NAME else f"{name[: 2 * _LONGEST_NAME]}…")


_RESULT_DEPTH = 10_000  # deeper values are refused when they are encoded


def to_result(call_id: str, value: Any) -> Result:
    """Convert a tool's return value to a result for the model.

    Text stays text, None is "done", images are kept as images, a Result is taken as it is. Bytes are text where
    they are UTF-8, else base64. All else is JSON; what can't be is an error that says that the tool did run.
    """
    if isinstance(value, str):
        return Result(call_id, replace_surrogates(value))
    if value is None:
        return Result(call_id, "done")
    if isinstance(value, Text):
        return Result(call_id, replace_surrogates(value.text))
    if isinstance(value, bytes | bytearray | memoryview):
        return to_result(call_id, _from_bytes(bytes(cast("bytes", value))))
    if isinstance(value, Result):
        kept = _as_json(call_id, value.json) if value.json is not None else Result(call_id, "")
        return (
            kept
            if kept.is_error
            else value.replace(call_id=call_id, text=replace_surrogates(value.text), json=kept.json)
        )
    items = [value] if isinstance(value, Image) else value
    if isinstance(items, list | tuple) and any(isinstance(item, Image) for item in cast("list[Any]", items)):
        return _mixed(call_id, cast("list[Any]", items))
    return _as_json(call_id, value)


def _as_json(call_id: str, value: Any) -> Result:
    if problem := excess(value, RESULT, RESULT_PARTS, depth=_RESULT_DEPTH):
        why = f"the tool ran, but what it returned is too large: {problem}. Return less, or write it to a file"
        return Result(call_id, why, is_error=True)
    try:
        plain = _storable(value)
        text = msgspec.json.encode(plain).decode()
        keeps = len(text) <= STRUCTURE and not is_too_deep(text)
        return Result(call_id, text, json=plain if keeps else None)
    except (TypeError, ValueError, RecursionError) as error:
        if inspect.iscoroutine(value):
            value.close()  # it is reported here; Python need not warn about it as well
        why = f"the tool ran, but what it returned ({type(value).__name__}) can't be shown as JSON: {error}"
        return Result(call_id, replace_surrogates(why), is_error=True)


def _mixed(call_id: str, items: Sequence[Any]) -> Result:
    images = tuple(item for item in items if isinstance(item, Image))
    texts = [to_result(call_id, item) for item in items if not isinstance(item, Image)]
    text = "\n".join(part.text for part in texts) or f"({len(images)} image{'s' if len(images) != 1 else ''})"
    return Result(call_id, text, is_error=any(part.is_error for part in texts), images=images)


def _from_bytes(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _storable(value: Any) -> Any:
    """Return plain JSON values; TypeError, ValueError or RecursionError if the value can't be converted."""
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)
    try:
        msgspec.json.encode(plain)
    except UnicodeEncodeError:
        return json.loads(replace_surrogates(json.dumps(plain, ensure_ascii=False)))
    return plain


def _encode(value: Any) -> Any:
    if hasattr(value, "__fspath__"):
        return str(value)
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(
        f"a {type(value).__name__} is not a JSON value; return text, numbers, lists, dicts, dataclasses"
    )


OWN = frozenset({"answer_callback", "ask", "pass_up_callback", "reword_callback", "task", "write_todos"})
"""Tools of the runtime that change nothing themselves; a child's own calls are approved there."""


def is_own_tool(tool: Tool) -> bool:
    """Return whether a tool is one of the runtime's own, and not somebody else's of that name."""
    if isinstance(tool, SchemaTool):
        return False
    return tool.name in OWN and tool.function.__module__.partition(".")[0] == "upcall"
