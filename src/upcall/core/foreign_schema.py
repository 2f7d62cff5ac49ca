"""Arguments described by a JSON schema that somebody else wrote: a server, an editor, a configuration file.

The schema is copied and checked within bounds before a tool is made of it, and it is interpreted, never turned into
code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from upcall.errors import BadTool
from upcall.messages import JsonSchema
from upcall.safety.bounds import SCHEMA, brief, plain
from upcall.safety.schema_check import misfit_of

CALL_CONTEXT = "context of the call"
"""The key under which the function gets its context. Arguments of that name are refused."""


def checked_schema(name: str, schema: Any) -> JsonSchema:
    """A copy of the schema of a tool's arguments; BadTool says why it can't be used."""
    if not isinstance(schema, Mapping):
        raise BadTool(name, f'its schema must be a JSON object such as {{"type": "object"}}, not {brief(schema)}')
    given = dict(cast("Mapping[str, Any]", schema))
    try:
        own: JsonSchema = {"type": "object", "properties": {}, **plain(given, SCHEMA)}
    except ValueError as error:
        raise BadTool(name, f"its schema can't be used: {error}") from None
    if own["type"] != "object":
        raise BadTool(
            name,
            f"its schema must have the type 'object', not {brief(own['type'])}: arguments are passed as one object",
        )
    if problem := misfit_of(own):
        raise BadTool(name, f"its schema can't be used: {problem}")
    return own


def argument_problem(schema: JsonSchema, args: Mapping[str, Any]) -> str:
    """Say why arguments do not fit a schema; "" if they do."""
    if CALL_CONTEXT in args:
        return f"{CALL_CONTEXT!r} is not a valid argument name; leave it out"
    return misfit_of(schema, args)


def by_name(call: Callable[..., Any], context: str | None, *, is_async: bool) -> Callable[..., Any]:
    """A function of arguments by name, made of one that takes them as a dict.

    context: the parameter of `call` that gets what is passed under CALL_CONTEXT, if it has one
    """

    async def run_async(**args: Any) -> Any:
        given = args.pop(CALL_CONTEXT, None)
        return await (call(args) if context is None else call(args, **{context: given}))

    def run(**args: Any) -> Any:
        given = args.pop(CALL_CONTEXT, None)
        return call(args) if context is None else call(args, **{context: given})

    return run_async if is_async else run
