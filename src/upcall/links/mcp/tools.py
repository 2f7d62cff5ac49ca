"""A server's tools, as an agent's model gets them.

What a server writes about its tools is untrusted: names are made to fit, hidden characters are removed, texts are
bounded, and whether a call needs an approval follows from your description of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import msgspec

from upcall.contracts import Context
from upcall.errors import BadTool
from upcall.events import content_hash
from upcall.links.mcp.calls import Sample, ToolCall
from upcall.links.mcp.connection import Connection
from upcall.links.mcp.failures import AnswerLost, RequestRefused, ServerFailed
from upcall.links.mcp.results import read_resource
from upcall.mcp_wire.names import clean, clean_line, tool_name
from upcall.messages import Image, Result
from upcall.tools import BadArguments, SchemaTool, Tool

Json = dict[str, Any]

TOOLS, BYTES, DESCRIPTION = 200, 400_000, 8_000
"""Tools of one server, bytes of JSON that describe them, and characters of one description."""

ANY_ARGUMENTS = "any arguments"
"""The pattern by which a person approves every call of one tool in a session, while its description is the same."""

_READ = {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]}
_RESOURCES = 200


def offered_tools(
    connection: Connection, taken: Collection[str], sample: Sample | None
) -> tuple[list[Tool], list[str]]:
    """Return the tools of one server, and the problems of those that are left out."""
    made: list[Tool] = []
    problems: list[str] = []
    size, names = 0, set(taken)
    config = connection.config
    listed = [one for one in connection.tools or () if config.offers(str(one.get("name", "")))]
    seen = set[str]()
    for number, described in enumerate(listed):
        if number >= TOOLS or size > BYTES:  # a bad or repeated one counts, too: each takes time
            limit = f"{TOOLS} tools" if number >= TOOLS else f"{BYTES} bytes of descriptions"
            problems.append(f"{len(listed) - number} of its tools were left out: more than {limit}")
            break
        if (name := str(described.get("name", ""))) in seen:
            problems.append(f"it lists {clean_line(name, 100)!r} twice")
            continue
        seen.add(name)
        try:
            tool = _tool(connection, described, names, sample)
        except BadTool as error:
            problems.append(clean_line(str(error), 300))
            continue
        if tool.name in names:
            problems.append(f"it lists {clean_line(name, 100)!r} twice")
            continue
        names.add(tool.name)
        size += len(msgspec.json.encode(tool.spec))
        made.append(tool)
    if connection.has_resources:
        made += _resource_tools(connection, names)
    return made, problems


def _tool(connection: Connection, described: Json, taken: Collection[str], sample: Sample | None) -> Tool:
    config, name = connection.config, str(described.get("name", ""))
    shown = tool_name(config.name, name, taken)
    text = clean(str(described.get("description") or ""), DESCRIPTION)
    schema = _cleaned(described.get("inputSchema"))
    known = config.is_read_only(name, _claims_read_only(described))

    async def call(arguments: dict[str, Any], ctx: Context) -> Result:
        return await ToolCall(connection, described, arguments, ctx, sample).run()

    made = Tool.from_schema(
        shown, schema, call, description=_framed(config.name, text), read_only=known,
        needs_approval=not known and not config.runs_unasked(name), label=_label(config.name, name),
        approve_patterns={ANY_ARGUMENTS: _pattern(text, schema)}, timeout=config.timeout,
    )  # fmt: skip
    return McpTool(**{field: getattr(made, field) for field in made.__struct_fields__})


class McpTool(SchemaTool, frozen=True, eq=False, kw_only=True, dict=False):
    """A server's tool. Models often write null for what they leave out, which few servers accept."""

    def check(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, without those that are null, optional and may not be null."""
        try:
            return super().check(args)
        except BadArguments:
            given = {key: value for key, value in args.items() if value is not None or key in self.required}
            if len(given) == len(args):
                raise
            return super().check(given)


def _claims_read_only(described: Json) -> bool:
    annotations: Any = described.get("annotations")
    return isinstance(annotations, dict) and cast("Json", annotations).get("readOnlyHint") is True


def _framed(server: str, text: str) -> str:
    return f"(A tool of the MCP server {server!r}. The server wrote this description.) {text}".strip()


def _label(server: str, tool: str) -> str:
    return f"{clean_line(server, 40)}: {clean_line(tool, 60)}"


def _pattern(text: str, schema: Mapping[str, Any]) -> Callable[..., str]:
    """Return a pattern whose value changes with the description: another description, another approval."""
    value = content_hash(msgspec.json.encode([text, schema]))[:16]

    def any_arguments(**_: Any) -> str:
        return value

    return any_arguments


def _cleaned(schema: Any, depth: int = 0) -> Any:
    """Return a schema whose titles and descriptions have no hidden characters. All else stays as it is."""
    if depth > 100:
        raise BadTool("a tool", "its schema is nested too deeply")
    if isinstance(schema, list):
        return [_cleaned(one, depth + 1) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        key: clean(value, DESCRIPTION)
        if key in ("title", "description", "$comment") and isinstance(value, str)
        else _cleaned(value, depth + 1)
        for key, value in cast("Json", schema).items()
    }


# --- resources --------------------------------------------------------------------------------


def _resource_tools(connection: Connection, taken: Collection[str]) -> list[Tool]:
    """Return the tools by which a model finds and reads what a server has as resources."""
    config = connection.config
    known = config.is_read_only("read_resource", claims_read_only=True)

    async def list_resources(arguments: dict[str, Any], ctx: Context) -> Any:
        async def read() -> Any:
            listed = await (await connection.live()).list("resources")
            keys = ("uri", "name", "title", "description", "mimeType")
            return [{key: clean_line(str(one[key]), 500) for key in keys if one.get(key)} for one in listed]

        found = await _reading(ctx, config.name, read)
        return found if isinstance(found, Result) else found[:_RESOURCES]

    async def read(arguments: dict[str, Any], ctx: Context) -> Any:
        async def read() -> Any:
            return await (await connection.live()).read_resource(str(arguments["uri"]))

        found = await _reading(ctx, config.name, read)
        if isinstance(found, Result):
            return found
        return [_shown(one) for one in found.get("contents", [])[:_RESOURCES]]

    made = [
        Tool.from_schema(
            tool_name(config.name, "list_resources", taken), {"type": "object"}, list_resources, read_only=True,
            description=f"List the resources of the MCP server {config.name!r}.",
        ),
        Tool.from_schema(
            tool_name(config.name, "read_resource", taken), _READ, read, read_only=known,
            description=f"Read a resource of the MCP server {config.name!r} by its uri.",
            needs_approval=not known and not config.runs_unasked("read_resource"),
        ),
    ]  # fmt: skip
    return [tool for tool in made if tool.name not in taken and config.offers(tool.name.rpartition("__")[2])]


def _shown(content: Any) -> str | Image:
    return read_resource(cast("Json", content)) if isinstance(content, dict) else ""


async def _reading(ctx: Context, server: str, read: Callable[[], Any]) -> Any:
    try:
        return await read()
    except (ServerFailed, AnswerLost, RequestRefused) as error:
        return Result(ctx.call_id, f"MCP server {server!r}: {error}", is_error=True)
