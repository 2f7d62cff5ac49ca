"""Typed answers: what a JSON schema wants, in words, and what a person typed, as a value that fits it."""

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
_MOST_DEEP = 8
Schema = Mapping[str, Any]


class Wrong(ValueError):
    """What was typed is no answer, and why."""


class Field(NamedTuple):
    """One value to ask for: where it goes, what fits, and whether it may be left out."""

    name: str
    schema: Schema
    required: bool

    @property
    def has_default(self) -> bool:
        """Whether leaving it empty means something."""
        return "default" in self.schema


def fields(schema: Schema) -> list[Field] | None:
    """The properties to ask for one by one; None where the schema wants a single value."""
    root = resolved(schema, schema)
    properties = root.get("properties")
    if "object" not in kinds(root) or not isinstance(properties, Mapping) or not properties:
        return None
    required = root.get("required") or ()
    named = cast("Mapping[str, Any]", properties).items()
    return [Field(name, resolved(one, schema), name in required) for name, one in named]


def resolved(schema: Any, root: Schema, deep: int = 0) -> Schema:
    """A schema with a reference into the same document followed."""
    if not isinstance(schema, Mapping):
        return {}
    schema = cast("Schema", schema)
    target = schema.get("$ref")
    if not isinstance(target, str) or not target.startswith("#/") or deep > _MOST_DEEP:
        return schema
    found: Any = root
    for part in target[2:].split("/"):
        found = cast("Schema", found).get(part) if isinstance(found, Mapping) else None
    return {**resolved(found, root, deep + 1), **{k: v for k, v in schema.items() if k != "$ref"}}


def kinds(schema: Schema) -> tuple[str, ...]:
    """The JSON types that fit; empty where any does."""
    given = schema.get("type")
    if isinstance(given, str):
        return (given,)
    if isinstance(given, list):
        return tuple(str(one) for one in cast("list[Any]", given))
    either = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(either, list):
        parts = [kinds(cast("Schema", one)) for one in cast("list[Any]", either) if isinstance(one, Mapping)]
        return tuple(dict.fromkeys(kind for part in parts for kind in part)) if all(parts) else ()
    return ()


def wanted(schema: Schema) -> str:
    """What fits, in words."""
    options = schema.get("enum")
    if isinstance(options, list):
        what = "one of " + ", ".join(shown(one) for one in cast("list[Any]", options))
    else:
        what = " or ".join(_WORDS.get(kind, kind) for kind in kinds(schema)) or "JSON or text"
    low, high = schema.get("minimum"), schema.get("maximum")
    what += f" from {low}" if low is not None else ""
    what += f" up to {high}" if high is not None else ""
    return f"{what}, default {shown(schema['default'])}" if "default" in schema else what


def shown(value: Any) -> str:
    """A value as people type it."""
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()


def read(text: str, schema: Schema, root: Schema | None = None) -> Any:
    """The value that a text means; Wrong says why it does not fit."""
    problems: list[str] = []
    for value in _meanings(text, schema):
        problems.append(schema_error(_alone(schema, root or schema), value))
        if not problems[-1]:
            return value
    raise Wrong(problems[0])


def _meanings(text: str, schema: Schema) -> list[Any]:
    """What a text could mean, likeliest first."""
    options, typed, word = schema.get("enum"), kinds(schema), text.strip()
    if isinstance(options, list):
        listed = cast("list[Any]", options)
        named = [one for one in listed if shown(one) == word]
        if named:
            return named
        # a number is an option's place only where no option could be meant by it
        if word.isdecimal() and len(word) < 9 and not any(_is_number(one) for one in listed):
            return listed[int(word) - 1 : int(word)] or [text]
    if typed == ("string",):
        return [text]
    meanings: list[Any] = []
    if "boolean" in typed and word.lower() in (*_YES, *_NO):
        meanings.append(word.lower() in _YES)
    try:
        meanings.append(msgspec.json.decode(word))
    except msgspec.DecodeError:
        if typed and "string" not in typed and ("object" in typed or "array" in typed):
            raise Wrong(f"that is no JSON; wanted is {wanted(schema)}") from None
    return [*meanings, text]


def _is_number(option: Any) -> bool:
    return not isinstance(option, bool) and shown(option).strip("-").replace(".", "").isdecimal()


def _alone(schema: Schema, root: Schema) -> dict[str, Any]:
    """A part of a schema with what its references need."""
    return {**schema, **{key: root[key] for key in ("$defs", "definitions") if key in root}}
