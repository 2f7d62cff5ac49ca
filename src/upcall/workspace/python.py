"""The tool `run_python`: models write programs that call their other tools and can ask questions."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from upcall.contracts import Context
from upcall.core.routing.question import NO_DEFAULT
from upcall.core.turns.access import CallContext
from upcall.core.turns.side_turn import SIDE_TOOLS
from upcall.errors import BadTool
from upcall.messages import Result
from upcall.tools import Tool, to_result
from upcall.workspace.program import Bounds, Program, function_name

_NAME = "run_python"
_MAX_CODE = 50_000
"""Characters of a program."""

_NOT_FUNCTIONS = {_NAME, "ask", *(t.name for t in SIDE_TOOLS)}
"""Tools that programs can't call: a program asks with raise_callback, and can't run or answer itself."""

_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}

_ABOUT = """\
Run a Python program and get what it prints and the value of its last line. Use it when a loop, a condition or a
calculation over the results of your tools saves many calls.

These functions are available. Each is one of your tools, under the same rules. Call them directly, `x = {example}`,
or several at once: `await asyncio.gather(...)`. Each returns the tool's JSON value or its text, and raises
RuntimeError if the tool fails:
{functions}
- raise_callback(message: str, callback_type: str = 'query', choices: list, schema: dict, context: dict,
  timeout: float, default, required: bool): Ask whoever gave you this work and get the answer; the program waits at
  that line, for days if necessary. callback_type is query, clarification, blocker or error. Ask when you are stuck,
  or before you do something that can't be undone.

Variables are kept for later programs of this turn. It is plain Python with asyncio (gather), json, re, math,
datetime and similar modules. There are no files, network, environment or other modules, and no `yield`. A tool
can't be the key of `sort` or be used in `map`. The clock stands still, and sleeping takes no time. A program may
use at most {seconds:g} s, {memory:g} MB, {output} characters of output and {calls} calls, whose arguments may have
{stored:g} MB in total."""


def run_python(
    *,
    seconds: float = 30.0,
    memory: int = 64_000_000,
    output: int = 20_000,
    calls: int = 200,
    stored: int = 16_000_000,
) -> Tool:
    """Return the tool `run_python`, which runs a model's program in a sandboxed interpreter in its own process.

    seconds: how long a program may compute; calls out are not counted
    memory: the most bytes that it may hold
    output: the most characters that it may print
    calls: the most calls out that it may make, `raise_callback` included
    stored: the most bytes that one program may add to the log: the arguments of its calls, and what its variables
        hold each time it is saved. A call beyond that raises RuntimeError; what can't be saved is computed again.
    """
    limits = {"seconds": seconds, "memory": memory, "output": output, "calls": calls, "stored": stored}
    for name, value in limits.items():
        if isinstance(value, bool) or not value > 0:
            raise BadTool(_NAME, f"{name}={value!r} is not a positive number")
    if importlib.util.find_spec("pydantic_monty") is None:
        raise BadTool(
            _NAME, "pydantic-monty, which is installed with upcall, is missing: pip install pydantic-monty"
        )
    bounds = Bounds(seconds, memory, output, calls, stored)

    async def run_python(code: str, ctx: Context) -> Result:
        """Run a program in Python.

        code: the program
        """
        context = cast("CallContext", ctx)
        if len(code) > _MAX_CODE:
            return Result(
                "", f"a program may have at most {_MAX_CODE} characters; this has {len(code)}", is_error=True
            )
        text = code.replace("\r\n", "\n").replace("\r", "\n")
        return await Program(context, text, bounds, functions(context.turn.actor.toolbox)).run()

    run_tool = Tool.from_function(run_python, read_only=True, repeatable=True)
    return run_tool.replace(about=partial(about, bounds))


def functions(toolbox: Mapping[str, Tool]) -> dict[str, Tool]:
    """Return the tools that a program can call, by names that are valid in Python."""
    found = {raise_callback.name: raise_callback}
    for one in toolbox.values():
        if one.name in _NOT_FUNCTIONS:
            continue
        name = function_name(one.name)
        if name in found:
            raise BadTool(
                one.name, f"in a program it would be called {name}, like {found[name].name}; rename one of them"
            )
        found[name] = one
    return found


def about(bounds: Bounds, toolbox: Mapping[str, Tool]) -> str:
    """Return the tool's description: the functions that programs can call, and their limits."""
    found = {name: one for name, one in functions(toolbox).items() if one is not raise_callback}
    lines = [f"- {_signature(name, one)}: {one.description.splitlines()[0]}" for name, one in found.items()]
    return _ABOUT.format(
        example=f"{next(iter(found), raise_callback.name)}(...)", functions="\n".join(lines) or "- none yet",
        seconds=bounds.seconds, memory=bounds.memory / 1e6, output=bounds.output, calls=bounds.calls,
        stored=bounds.stored / 1e6,
    )  # fmt: skip


def _signature(name: str, one: Tool) -> str:
    parts: list[str] = []
    for parameter, described in cast("dict[str, Any]", one.schema["properties"]).items():
        schema = cast("dict[str, Any]", described) if isinstance(described, dict) else {}  # it may be `true`
        kind = _TYPES.get(str(schema.get("type")), "")
        default = f" = {schema['default']!r}" if "default" in schema else " = …"
        parts.append(parameter + (f": {kind}" if kind else "") + (default if parameter not in one.required else ""))
    return f"{name}({', '.join(parts)})"


async def _raise_callback(
    message: str,
    ctx: Context,
    callback_type: str = "query",
    kind: str = "callback_to_caller",
    choices: list[str] | None = None,
    schema: dict[str, Any] | None = None,
    context: dict[str, Any] | None = None,
    priority: str = "normal",
    timeout: float | None = None,
    default: Any = NO_DEFAULT,
    key: str | None = None,
    max_bubble_hops: int | None = None,
    fallback_target: str | None = None,
    passthrough_agents: list[str] | None = None,
    resolvable_by: list[str] | None = None,
    passthrough_child_callbacks: bool = False,
    required: bool | None = None,
) -> Result:
    """Ask whoever gave you this work, and wait for the answer."""
    value = await cast("CallContext", ctx).raise_callback(
        message, callback_type, kind=kind, choices=choices or (), schema=schema, context=context,
        priority=priority, timeout=timeout, default=default, key=key, max_bubble_hops=max_bubble_hops,
        fallback_target=fallback_target, passthrough_agents=passthrough_agents or (),
        resolvable_by=resolvable_by or (), passthrough_child_callbacks=passthrough_child_callbacks,
        required=required,
    )  # fmt: skip
    return to_result("", {"answer": value})


raise_callback = Tool.from_function(_raise_callback, name="raise_callback", read_only=True, repeatable=True)
