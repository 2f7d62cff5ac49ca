"""A reply's schema in the forms that providers accept: their own, or instructions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from upcall.messages import JsonSchema, Request

_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
_PLAIN = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
_REFS = "#/$defs/"


def schema_in_instructions(request: Request) -> Request:
    """Return the request with its reply's schema in the instructions; unchanged if the reply is plain text.

    It is for providers that have no form of their own for schemas.

    request: the request
    """
    if request.output is None:
        return request
    schema = msgspec.json.encode(request.output).decode()
    addition = f"Your final reply must be nothing but JSON that fits this JSON schema:\n{schema}"
    return request.replace(instructions=f"{request.instructions}\n\n{addition}".lstrip())


def is_object(schema: JsonSchema | None) -> bool:
    """Return whether the root is an object: most providers' own forms accept nothing else."""
    return schema is not None and schema.get("type") == "object"


class _NotExpressible(Exception):
    """Raised for a schema that Anthropic's structured outputs can't express."""


def closed_schema(schema: JsonSchema) -> JsonSchema | None:
    """Reduce the schema to what Anthropic's structured outputs support; None if that is not possible.

    Every object is closed. Constraints on values (lengths, ranges, patterns) are left out: the instructions contain
    them too, and the reply is validated against the full type.
    """
    defs = cast("dict[str, JsonSchema]", schema.get("$defs", {}))
    below = {name: _references(body) for name, body in defs.items()}
    if not is_object(schema) or any(name in _referenced_by(name, below) for name in defs):
        return None
    try:
        root = _closed(schema)
        return {**root, "$defs": {name: _closed(body) for name, body in defs.items()}} if defs else root
    except _NotExpressible:
        return None


def _closed(schema: Any) -> JsonSchema:
    if not isinstance(schema, dict):
        raise _NotExpressible
    source = cast("JsonSchema", schema)
    if "$ref" in source:
        return {"$ref": source["$ref"]}
    description: JsonSchema = {"description": source["description"]} if "description" in source else {}
    if "anyOf" in source:
        return {**description, "anyOf": [_closed(option) for option in source["anyOf"]]}
    if "enum" in source or "const" in source:
        return {**description, **_choice(source.get("enum", [source.get("const")]))}
    kind = source.get("type")
    if kind == "object":
        return {**description, **_object(source)}
    if kind == "array" and "items" in source and "prefixItems" not in source:
        least = {"minItems": source["minItems"]} if source.get("minItems") in (0, 1) else {}
        return {**description, "type": kind, "items": _closed(source["items"]), **least}
    if kind not in _PLAIN:
        raise _NotExpressible
    form = {"format": source["format"]} if source.get("format") in _FORMATS else {}
    return {**description, "type": kind, **form}


def _object(schema: JsonSchema) -> JsonSchema:
    """Return a closed object. One with free keys could only be empty, so it can't be expressed."""
    fields = cast("dict[str, Any]", schema.get("properties", {}))
    if schema.get("additionalProperties", not fields) is not False:
        raise _NotExpressible
    return {
        "type": "object",
        "properties": {name: _closed(body) for name, body in fields.items()},
        "required": schema.get("required", []),
        "additionalProperties": False,
    }


def _choice(values: list[Any]) -> JsonSchema:
    kinds = [name for name, kind in _PLAIN.items() if all(type(value) is kind for value in values)]
    if not all(type(value) in _PLAIN.values() for value in values):
        raise _NotExpressible
    return {"type": kinds[0], "enum": values} if kinds else {"enum": values}


def _referenced_by(name: str, below: Mapping[str, set[str]]) -> set[str]:
    """Return all definitions that one refers to, directly or indirectly."""
    found: set[str] = set()
    queue = [name]
    for one in queue:  # the queue grows during the loop
        fresh = below.get(one, set()) - found
        found |= fresh
        queue.extend(fresh)
    return found


def _references(value: Any) -> set[str]:
    if isinstance(value, list):
        return {name for item in cast("list[Any]", value) for name in _references(item)}
    if not isinstance(value, dict):
        return set()
    fields = cast("dict[str, Any]", value)
    own = {str(fields["$ref"]).removeprefix(_REFS)} if isinstance(fields.get("$ref"), str) else set[str]()
    return own.union(*(_references(item) for item in fields.values()))
