"""The fields of a form, from the JSON schema of a typed answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from upcall.observe.form import Field, fields, json_types

_SIMPLE = ("string", "integer", "number", "boolean")


def form_fields(schema: Mapping[str, Any] | None) -> list[dict[str, Any]] | None:
    """The fields to fill in; None where the schema asks for no object, or for nothing typed."""
    found = fields(schema) if schema is not None else None
    return None if found is None else [_field(one) for one in found]


def _field(field: Field) -> dict[str, Any]:
    kind, choices = _kind(field.schema)
    return {
        "name": field.name,
        "title": str(field.schema.get("title") or field.name),
        "description": str(field.schema.get("description") or ""),
        "type": kind,
        "choices": choices,
        "required": field.required,
        "default": field.schema.get("default"),
    }


def _kind(schema: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    if (choices := _choices(schema)) is not None:
        return "enum", choices
    types = tuple(one for one in json_types(schema) if one != "null")
    items = schema.get("items")
    if types == ("array",) and isinstance(items, Mapping):
        chosen = _choices(cast("Mapping[str, Any]", items))
        if chosen is not None:
            return "multi", chosen
    return (types[0] if len(types) == 1 and types[0] in _SIMPLE else "json"), []


def _choices(schema: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The values to choose from, each with its title; None where any value will do."""
    options = schema.get("enum")
    if isinstance(options, list):
        return [{"value": one, "title": str(one)} for one in cast("Sequence[Any]", options)]
    either = schema.get("oneOf") or schema.get("anyOf")
    if not isinstance(either, list):
        return None
    options = cast("Sequence[Any]", either)
    constants = [cast("Mapping[str, Any]", one) for one in options if isinstance(one, Mapping) and "const" in one]
    if not constants or len(constants) != len(options):
        return None
    return [{"value": one["const"], "title": str(one.get("title") or one["const"])} for one in constants]
