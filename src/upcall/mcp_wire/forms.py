"""A server's form as a question of ours. Our own questions become forms in `hosts/mcp/forms.py`.

A form is a flat object: texts, numbers, yes or no, one of several values, several of several values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from upcall.mcp_wire.names import clean, clean_line
from upcall.mcp_wire.reading import as_list

FIELDS, LABEL, CHOICES, MESSAGE = 100, 2_000, 500, 20_000
"""Fields of a form, characters of a title or description, choices of a field, and characters of a message."""

_SIMPLE = ("string", "number", "integer", "boolean")
_NUMBERS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")


class BadForm(ValueError):
    """A server's form can't be asked; the text says why."""


def answer_schema(requested: Any) -> dict[str, Any]:
    """Return the JSON schema of the answers to a server's form, cleaned; BadForm says why it can't be asked."""
    if not isinstance(requested, Mapping):
        raise BadForm("its form is not a JSON object")
    form = cast("Mapping[str, Any]", requested)
    properties = form.get("properties", {})
    if form.get("type", "object") != "object" or not isinstance(properties, Mapping):
        raise BadForm("its form is not an object with fields")
    named = cast("Mapping[Any, Any]", properties)
    if len(named) > FIELDS:
        raise BadForm(f"its form has {len(named)} fields; at most {FIELDS} are allowed")
    fields = {str(name): _field(str(name), one) for name, one in named.items()}
    return {
        "type": "object",
        "properties": fields,
        "required": [name for name in as_list(form.get("required")) if name in fields],
        "additionalProperties": False,
    }


def _field(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise BadForm(f"its field {name[:80]!r} is not a JSON object")
    given = cast("Mapping[str, Any]", given)
    kind = given.get("type", "string")
    field: dict[str, Any] = {"type": kind}
    for key in ("title", "description"):
        if isinstance(given.get(key), str):
            field[key] = clean(given[key], LABEL)
    for key in _NUMBERS:
        if isinstance(given.get(key), int | float) and not isinstance(given.get(key), bool):
            field[key] = given[key]
    if isinstance(given.get("format"), str):
        field["format"] = clean_line(given["format"], 50)
    if kind == "array":
        field["items"] = _choices(name, given.get("items")) or {"type": "string"}
        field["uniqueItems"] = True
    elif kind in _SIMPLE:
        field |= _choices(name, given)
    else:
        raise BadForm(f"its field {name[:80]!r} has the type {clean_line(str(kind), 40)!r}, which is not supported")
    return {**field, "default": given["default"]} if _is_plain(given.get("default")) else field


def _choices(name: str, given: Any) -> dict[str, Any]:
    """Return the part of a field's schema that lists its values, with their titles."""
    if not isinstance(given, Mapping):
        return {}
    given = cast("Mapping[str, Any]", given)
    titled: Any = given.get("oneOf") or given.get("anyOf")
    values: Any = given.get("enum")
    most = max(len(cast("Sequence[Any]", one)) if isinstance(one, list) else 0 for one in (titled, values))
    if most > CHOICES:
        raise BadForm(f"its field {name[:80]!r} has {most} choices; at most {CHOICES} are allowed")
    if isinstance(titled, list):
        pairs = [cast("Mapping[str, Any]", one) for one in cast("list[Any]", titled) if isinstance(one, Mapping)]
        options = [
            {"const": one["const"], "title": clean_line(str(one.get("title", one["const"])), LABEL)}
            for one in pairs
            if isinstance(one.get("const"), str)
        ]
        return {"oneOf": options} if options else {}
    if not isinstance(values, list):
        return {}
    listed = [one for one in cast("list[Any]", values) if isinstance(one, str)]
    names = given.get("enumNames")
    if isinstance(names, list) and len(cast("list[Any]", names)) == len(listed):
        titles = [clean_line(str(one), LABEL) for one in cast("list[Any]", names)]
        return {"oneOf": [{"const": v, "title": t} for v, t in zip(listed, titles, strict=True)]}
    return {"enum": listed}


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MESSAGE
    if isinstance(value, list):
        listed = cast("list[Any]", value)
        return len(listed) <= CHOICES and all(isinstance(one, str) and len(one) <= LABEL for one in listed)
    return isinstance(value, bool | int | float)


def with_defaults(schema: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer to a form with the defaults of the fields that it leaves out."""
    defaults = {name: one["default"] for name, one in schema.get("properties", {}).items() if "default" in one}
    return {**defaults, **content}
