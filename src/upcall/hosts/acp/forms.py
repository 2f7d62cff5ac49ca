"""A question as a form of an editor, and what the person filled in as the answer.

A form of the protocol is flat: texts, numbers, yes or no, one or several of some choices. A single value is wrapped
in a field of its own; what is not flat is asked for as one JSON text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec

from upcall.callbacks import Callback
from upcall.hosts.acp.protocol import Client
from upcall.observe.form import Field, InvalidInput, fields, json_types, parse, resolve_reference, value_text
from upcall.observe.hidden_question import is_approval
from upcall.observe.quoted_question import choice_names
from upcall.observe.redact import Redactor

ANSWER = "answer"
_FORMATS = ("email", "uri", "date", "date-time")
MOST_OPTIONS = 20
"""Choices that are shown as options of a permission request."""

_LONGEST_LINK = 4000
_MOST_FIELDS = 50
_MOST_CHOICES = 200
_LONGEST_CHOICE = 4_000
_MISSING: Any = object()


class FormField(NamedTuple):
    """A field of a form.

    schema: the schema of its value
    property: how it is described to the editor
    choices: the values to choose from, by the text that stands for each
    as_json: whether the person writes JSON
    """

    name: str
    schema: Mapping[str, Any]
    property: dict[str, Any]
    required: bool
    choices: Mapping[str, Any] = {}
    as_json: bool = False


class Form(NamedTuple):
    """A form: its fields, and whether its single field is the whole answer."""

    fields: tuple[FormField, ...]
    is_single: bool
    root: Mapping[str, Any]

    @property
    def schema(self) -> dict[str, Any]:
        """The form as the editor gets it."""
        required = [one.name for one in self.fields if one.required]
        return {
            "type": "object",
            "properties": {one.name: one.property for one in self.fields},
            **({"required": required} if required else {}),
        }

    def read(self, content: Mapping[str, Any]) -> Any:
        """Return the answer that was filled in; InvalidInput says which field is wrong."""
        values: dict[str, Any] = {}
        for field in self.fields:
            value = content.get(field.name, _MISSING)
            if value is _MISSING or value is None or (value == "" and not field.required):
                continue
            values[field.name] = _value(field, value, self.root)
        if not self.is_single:
            return values
        if ANSWER not in values:
            raise InvalidInput("the answer is missing")
        return values[ANSWER]


def question_form(callback: Callback, redactor: Redactor) -> Form | None:
    """Return the form for a question; None where a form can't ask it: it is too large, or asks for a secret."""
    if not _fits_form(callback, redactor):
        return None
    if callback.choices:
        return _choices_form(callback.choices, redactor)
    schema = callback.schema
    if schema is None:
        field = FormField(ANSWER, {"type": "string"}, {"type": "string", "title": "Answer"}, required=True)
        return Form((field,), is_single=True, root={})
    return _form(schema, {})


def _fits_form(callback: Callback, redactor: Redactor) -> bool:
    """Return whether a form can ask a question."""
    if callback.choices or callback.schema is None:
        return len(callback.choices) <= _MOST_CHOICES
    return len(fields(callback.schema) or ()) <= _MOST_FIELDS and not asks_secret(callback, redactor)


def asks_secret(callback: Callback, redactor: Redactor) -> bool:
    """Return whether a question asks for a secret, which must be neither in a form nor in a conversation."""
    if callback.schema is None or callback.choices:
        return False
    found = fields(callback.schema) or [Field(ANSWER, resolve_reference(callback.schema, callback.schema), True)]
    return any(_is_secret(one, redactor) for one in found)


def link_of(callback: Callback, redactor: Redactor) -> str:
    """Return the page that a question asks a person to open, such as one of an MCP server; "" for other questions.

    A link with a secret in it is not returned: it is shown as text, where the secret is hidden.
    """
    url = callback.context.get("url")
    if len(callback.choices) != 1 or not isinstance(url, str) or len(url) > _LONGEST_LINK:
        return ""
    is_link = url.startswith(("https://", "http://")) and url.isprintable() and " " not in url
    return url if is_link and redactor.text(url) == url else ""


def has_options(callback: Callback) -> bool:
    """Return whether a question can be asked as options to choose from."""
    return not is_approval(callback) and 0 < len(callback.choices) <= MOST_OPTIONS


def needs_message(callback: Callback, client: Client, redactor: Redactor) -> bool:
    """Return whether no dialog of the editor can ask a question, so that the person's next message answers it."""
    if is_approval(callback) or has_options(callback):
        return False
    if client.forms and _fits_form(callback, redactor):
        return False
    return not asks_secret(callback, redactor)


def arguments_form(callback: Callback, shown: Mapping[str, Any]) -> Form | None:
    """Return the form that edits the arguments of a call; `shown` are those as they are, without secrets."""
    schema = callback.schema or {}
    if fields(schema) is None:
        return None
    return _form(schema, shown)


def _choices_form(choices: tuple[str, ...], redactor: Redactor) -> Form:
    """Return the form that asks for a choice. Numbers stand for choices that can't be shown as they are."""
    shown = [redactor.text(one) for one in choices]
    titles = choice_names(shown, _LONGEST_CHOICE)
    keys = choices if titles == list(choices) else tuple(str(number) for number in range(1, len(choices) + 1))
    options = [{"const": key, "title": title} for key, title in zip(keys, titles, strict=True)]
    described = {"type": "string", "title": "Answer", "oneOf": options}
    meant = dict(zip(keys, choices, strict=True))
    field = FormField(ANSWER, {}, described, required=True, choices=meant)
    return Form((field,), is_single=True, root={})


def _form(schema: Mapping[str, Any], given: Mapping[str, Any]) -> Form | None:
    found, is_single = fields(schema), False
    if found is None:
        found, is_single = [Field(ANSWER, resolve_reference(schema, schema), True)], True
    if len(found) > _MOST_FIELDS:
        return None
    made = [_field(one, given.get(one.name, _MISSING)) for one in found]
    return Form(tuple(made), is_single, schema)


def _is_secret(field: Field, redactor: Redactor) -> bool:
    is_hidden = field.schema.get("format") == "password" or field.schema.get("writeOnly") is True
    return is_hidden or redactor.is_secret_name(field.name)


def _field(field: Field, given: Any) -> FormField:
    schema = field.schema
    described = _head(field.name, schema)
    default = given if given is not _MISSING else schema.get("default")
    choices = _choices(schema)
    types = [one for one in json_types(schema) if one != "null"]
    if choices is not None:
        return _choice_field(field, described, choices, default)
    items = schema.get("items")
    if types == ["array"] and isinstance(items, Mapping):
        several = _choices(cast("Mapping[str, Any]", items))
        if several is not None:
            return _several_field(field, described, several, default)
    if len(types) == 1 and types[0] in _SIMPLE:
        described["type"] = types[0]
        described |= _limits(types[0], schema)
        if _fits(types[0], default):
            described["default"] = default
        return FormField(field.name, schema, described, field.required)
    described |= {"type": "string", "description": f"{described.get('description', '')} (JSON)".strip()}
    if default is not None and default is not _MISSING:
        described["default"] = msgspec.json.encode(default).decode()
    return FormField(field.name, schema, described, field.required, as_json=True)


_SIMPLE = ("string", "number", "integer", "boolean")


def _head(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    head: dict[str, Any] = {"title": str(schema.get("title") or name)}
    if isinstance(schema.get("description"), str) and schema["description"]:
        head["description"] = schema["description"]
    return head


def _fits(kind: str, value: Any) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53
        case _:
            return isinstance(value, int | float) and not isinstance(value, bool)


def _limits(kind: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of a value that the editor can check."""
    if kind == "string":
        made = {key: schema[key] for key in ("minLength", "maxLength") if _is_count(schema.get(key))}
        if isinstance(schema.get("pattern"), str):
            made["pattern"] = schema["pattern"]
        if schema.get("format") in _FORMATS:
            made["format"] = schema["format"]
        return made
    if kind in ("integer", "number"):
        return {key: schema[key] for key in ("minimum", "maximum") if _fits(kind, schema.get(key))}
    return {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _choices(schema: Mapping[str, Any]) -> list[tuple[Any, str]] | None:
    """Return the values to choose from, each with its title; None where any value will do."""
    found: list[tuple[Any, str]] | None = None
    options, either = schema.get("enum"), schema.get("oneOf") or schema.get("anyOf")
    if isinstance(options, list):
        found = [(one, value_text(one)) for one in cast("list[Any]", options)]
    elif isinstance(either, list):
        listed = cast("list[Any]", either)
        if listed and all(isinstance(one, Mapping) and "const" in one for one in listed):
            found = [(one["const"], str(one.get("title") or value_text(one["const"]))) for one in listed]
    return found if found and len(found) <= _MOST_CHOICES else None


def _choice_field(
    field: Field, described: dict[str, Any], choices: list[tuple[Any, str]], default: Any
) -> FormField:
    texts = {value_text(value): value for value, _ in choices}
    described["type"] = "string"
    described["oneOf"] = _titled(choices)
    if default is not None and default is not _MISSING and value_text(default) in texts:
        described["default"] = value_text(default)
    return FormField(field.name, field.schema, described, field.required, texts)


def _titled(choices: list[tuple[Any, str]]) -> list[dict[str, str]]:
    """Return values to choose from with titles, no two of which look alike."""
    titles = choice_names([title for _, title in choices], _LONGEST_CHOICE)
    return [{"const": value_text(value), "title": title} for (value, _), title in zip(choices, titles, strict=True)]


def _several_field(
    field: Field, described: dict[str, Any], choices: list[tuple[Any, str]], default: Any
) -> FormField:
    texts = {value_text(value): value for value, _ in choices}
    described["type"] = "array"
    described["items"] = {"anyOf": _titled(choices)}
    described |= {key: field.schema[key] for key in ("minItems", "maxItems") if _is_count(field.schema.get(key))}
    if isinstance(default, list):
        described["default"] = [value_text(one) for one in cast("list[Any]", default) if value_text(one) in texts]
    return FormField(field.name, field.schema, described, field.required, texts)


def _value(field: FormField, given: Any, root: Mapping[str, Any]) -> Any:
    if field.choices:
        chosen = cast("list[Any]", given) if isinstance(given, list) else [given]
        wrong = [one for one in chosen if not isinstance(one, str) or one not in field.choices]
        if wrong:
            raise InvalidInput(f"{field.name}: {value_text(wrong[0])[:100]!r} is not one of the choices")
        values = [field.choices[one] for one in chosen]
        return values if isinstance(given, list) else values[0]
    if field.as_json:
        try:
            return parse(str(given), field.schema, root or None)
        except InvalidInput as error:
            raise InvalidInput(f"{field.name}: {error}") from None
    if field.schema.get("type") == "integer" and isinstance(given, float) and given.is_integer():
        return int(given)
    return given
