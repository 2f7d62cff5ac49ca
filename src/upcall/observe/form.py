"""Typed answers: describe a JSON schema in words, and parse what a person typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec

from upcall.core.routing.answer import schema_error

_WORDS = {
    "string": "text", "integer": "whole number", "number": "number", "boolean": "yes or no", "null": "nothing",
    "array": "JSON list", "object": "JSON object",
}  # fmt: skip
_YES, _NO = ("y", "yes", "true"), ("n", "no", "false")
_MOST_REFERENCES = 8
_MOST_OPTIONS = 50
"""Options of a schema that are listed."""
Schema = Mapping[str, Any]


class InvalidInput(ValueError):
    """Raised when the typed text is not a valid answer; the message says why."""


class Field(NamedTuple):
    """One value to ask for: its name, its schema, and whether it is required."""

    name: str
    schema: Schema
    required: bool

    @property
    def has_default(self) -> bool:
        """True if an empty input means the default value."""
        return "default" in self.schema


def fields(schema: Schema) -> list[Field] | None:
    """Return the properties to ask for one by one; None if the schema expects a single value."""
    root = resolve_reference(schema, schema)
    properties = root.get("properties")
    if "object" not in json_types(root) or not isinstance(properties, Mapping) or not properties:
        return None
    required = root.get("required") or ()
    named = cast("Mapping[str, Any]", properties).items()
    return [Field(name, resolve_reference(one, schema), name in required) for name, one in named]


def resolve_reference(schema: Any, root: Schema, deep: int = 0) -> Schema:
    """Follow a schema's reference within the same document."""
    if not isinstance(schema, Mapping):
        return {}
    schema = cast("Schema", schema)
    target = schema.get("$ref")
    if not isinstance(target, str) or not target.startswith("#/") or deep > _MOST_REFERENCES:
        return schema
    found: Any = root
    for part in target[2:].split("/"):
        found = cast("Schema", found).get(part) if isinstance(found, Mapping) else None
    return {**resolve_reference(found, root, deep + 1), **{k: v for k, v in schema.items() if k != "$ref"}}


def json_types(schema: Schema) -> tuple[str, ...]:
    """Return the JSON types that the schema accepts; empty if it accepts any."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return (declared,)
    if isinstance(declared, list):
        return tuple(str(one) for one in cast("list[Any]", declared))
    either = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(either, list):
        parts = [json_types(cast("Schema", one)) for one in cast("list[Any]", either) if isinstance(one, Mapping)]
        return tuple(dict.fromkeys(kind for part in parts for kind in part)) if all(parts) else ()
    return ()


def describe_schema(schema: Schema) -> str:
    """Describe the expected value in words."""
    options = schema.get("enum")
    if isinstance(options, list):
        listed = cast("list[Any]", options)
        what = "one of " + ", ".join(value_text(one) for one in listed[:_MOST_OPTIONS])
        what += f" and {len(listed) - _MOST_OPTIONS:,} more" if len(listed) > _MOST_OPTIONS else ""
    else:
        what = " or ".join(_WORDS.get(kind, kind) for kind in json_types(schema)) or "JSON or text"
    low, high = schema.get("minimum"), schema.get("maximum")
    what += f" from {low}" if low is not None else ""
    what += f" up to {high}" if high is not None else ""
    return f"{what}, default {value_text(schema['default'])}" if "default" in schema else what


def value_text(value: Any) -> str:
    """Format a value as people type it."""
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()


def parse(text: str, schema: Schema, root: Schema | None = None) -> Any:
    """Parse a text as a value of the schema. Raises Wrong with the reason if it is not valid."""
    problems: list[str] = []
    for value in _meanings(text, schema):
        problems.append(schema_error(_with_definitions(schema, root or schema), value))
        if not problems[-1]:
            return value
    raise InvalidInput(problems[0])


def check(value: Any, schema: Schema) -> None:
    """Raise InvalidInput if a value is not valid for the schema."""
    if problem := schema_error(schema, value):
        raise InvalidInput(problem)


def _meanings(text: str, schema: Schema) -> list[Any]:
    """Return the possible meanings of a text, most likely first."""
    options, types, word = schema.get("enum"), json_types(schema), text.strip()
    if isinstance(options, list):
        listed = cast("list[Any]", options)
        matches = [one for one in listed if value_text(one) == word]
        if matches:
            return matches
        # a number selects an option by position only if no option is a number itself
        if word.isdecimal() and len(word) < 9 and not any(_is_number(one) for one in listed):
            return listed[int(word) - 1 : int(word)] or [text]
    if types == ("string",):
        return [text]
    meanings: list[Any] = []
    if "boolean" in types and word.lower() in (*_YES, *_NO):
        meanings.append(word.lower() in _YES)
    try:
        meanings.append(msgspec.json.decode(word))
    except msgspec.DecodeError:
        if types and "string" not in types and ("object" in types or "array" in types):
            raise InvalidInput(f"not valid JSON; expected {describe_schema(schema)}") from None
    return [*meanings, text]


def _is_number(option: Any) -> bool:
    return not isinstance(option, bool) and value_text(option).strip("-").replace(".", "").isdecimal()


def _with_definitions(schema: Schema, root: Schema) -> dict[str, Any]:
    """Return a part of a schema together with the definitions that it refers to."""
    return {**schema, **{key: root[key] for key in ("$defs", "definitions") if key in root}}
