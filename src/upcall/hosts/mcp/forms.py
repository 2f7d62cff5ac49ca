"""Questions as MCP forms, and forms as answers.

A form has flat fields of simple types. What a schema asks for beyond that is typed as JSON. The answer is checked
here against the real schema, whatever the client checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from upcall.callbacks import Approve, Callback, Decline, Reject, same_json
from upcall.mcp_wire.forms import LABEL
from upcall.mcp_wire.names import clean, clean_line
from upcall.observe import form
from upcall.observe.form import Field, InvalidInput, describe_schema, json_types, resolve_reference, value_text
from upcall.observe.form_fields import form_fields
from upcall.observe.hidden_question import is_approval
from upcall.observe.plain import visible
from upcall.observe.quoted_question import choice_names
from upcall.observe.redact import Redactor
from upcall.safety.bounds import read_bounded_json

ANSWER = "answer"
"""The field of a form that asks for a single value."""

APPROVE, APPROVE_SESSION, REJECT = "approve", "approve for this session", "reject"
_PATTERN = "approve by pattern: "
_FORMATS = ("email", "uri", "date", "date-time")
_LIMITS = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
}
_LONGEST_ARGUMENTS = 1_000_000
_LONGEST_CHOICE = 50_000
"""Characters of a choice: a form that has more is not shown."""


class Reply(NamedTuple):
    """A client's reply to a form: `accept` with its content, `decline`, or `cancel`."""

    action: str
    content: Mapping[str, Any]


def schema_of(callback: Callback, redactor: Redactor) -> dict[str, Any]:
    """The form that asks for an answer, as MCP's restricted JSON schema."""
    if is_approval(callback):
        return _approval_schema(callback)
    if callback.choices:
        shown = _shown_choices(callback, redactor)
        return _object({ANSWER: {"type": "string", "title": "Answer", "enum": shown}}, [ANSWER])
    if callback.schema is None:
        return _object({ANSWER: {"type": "string", "title": "Answer"}}, [ANSWER])
    fields = form.fields(callback.schema)
    if fields is None:
        single = Field(ANSWER, resolve_reference(callback.schema, callback.schema), required=True)
        return _object({ANSWER: _property(single, redactor)}, [ANSWER])
    required = [one.name for one in fields if one.required]
    return _object({one.name: _property(one, redactor) for one in fields}, required)


def answer_of(callback: Callback, reply: Reply, redactor: Redactor) -> Any:
    """The answer that a filled-in form gives; None where the form was dismissed, which settles nothing.

    Raises InvalidInput if it is not valid. A call is approved only by the word for it.
    """
    if reply.action == "cancel":
        return None
    if reply.action == "decline":
        return Reject("declined in the client") if is_approval(callback) else Decline("declined in the client")
    if is_approval(callback):
        return _decision(callback, reply.content, redactor)
    if callback.choices:
        return _choice(callback, reply.content.get(ANSWER), redactor)
    if callback.schema is None:
        return _text(reply.content.get(ANSWER))
    fields = form.fields(callback.schema)
    if fields is None:
        return _single(callback.schema, reply.content.get(ANSWER))
    value = {
        one.name: _value(one, reply.content[one.name], callback.schema) for one in fields if _is_given(one, reply)
    }
    form.check(value, callback.schema)
    return value


# --- the fields ---------------------------------------------------------------------------


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _property(field: Field, redactor: Redactor) -> dict[str, Any]:
    """A field as one of the simple schemas that a form may contain. Nothing invisible is in its labels."""
    schema, made = field.schema, _simple(field)
    for name in ("title", "description"):
        if isinstance(schema.get(name), str):
            made.setdefault(name, schema[name])
        if name in made:
            made[name] = clean(redactor.text(made[name]), LABEL)
    default = schema.get("default")
    if default is not None and _is_of_type(default, made):
        made["default"] = default
    return made


def _simple(field: Field) -> dict[str, Any]:
    entry = cast("list[dict[str, Any]]", form_fields({"type": "object", "properties": {field.name: field.schema}}))[
        0
    ]
    titles = choice_names([_option_title(one) for one in entry["choices"]], _LONGEST_CHOICE)
    options = [(value_text(one["value"]), title) for one, title in zip(entry["choices"], titles, strict=True)]
    match entry["type"]:
        case "enum":
            return {"type": "string", **_options(options, "oneOf"), **_display_names(field.schema, len(options))}
        case "multi":
            return {
                "type": "array",
                "items": {**({} if _titled(options) else {"type": "string"}), **_options(options, "anyOf")},
            }
        case "json":
            return {"type": "string", "description": f"JSON: {describe_schema(field.schema)}"}
        case kind:
            made: dict[str, Any] = {"type": kind}
            made |= {name: field.schema[name] for name in _LIMITS.get(kind, ()) if name in field.schema}
            if field.schema.get("format") in _FORMATS and kind == "string":
                made["format"] = field.schema["format"]
            return made


def _option_title(option: Mapping[str, Any]) -> str:
    """The title of an option; a value with invisible characters is titled by how they are written."""
    value, title = value_text(option["value"]), str(option["title"])
    return clean_line(title, LABEL) if title != str(option["value"]) else visible(value)


def _titled(options: Sequence[tuple[str, str]]) -> bool:
    return any(value != title for value, title in options)


def _options(options: Sequence[tuple[str, str]], keyword: str) -> dict[str, Any]:
    if _titled(options):
        return {keyword: [{"const": value, "title": title} for value, title in options]}
    return {"enum": [value for value, _ in options]}


def _display_names(schema: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The names of the options, where a schema gives them in the older form."""
    names = schema.get("enumNames")
    if "enum" not in schema or not isinstance(names, list) or len(cast("list[Any]", names)) != count:
        return {}
    return {"enumNames": choice_names([str(one) for one in cast("list[Any]", names)], _LONGEST_CHOICE)}


def _is_of_type(value: Any, made: Mapping[str, Any]) -> bool:
    """Tell whether a default is a value that the field itself can have."""
    match made["type"]:
        case "boolean":
            return isinstance(value, bool)
        case "integer" | "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list) and all(isinstance(one, str) for one in cast("list[Any]", value))
        case _:
            return isinstance(value, str) and (value in made["enum"] if "enum" in made else True)


# --- values ---------------------------------------------------------------------------------


def _is_given(field: Field, reply: Reply) -> bool:
    value = reply.content.get(field.name)
    return value is not None and (value != "" or field.required)


def _value(field: Field, value: Any, root: Mapping[str, Any]) -> Any:
    """A field's value: what was typed into a text field may stand for another type."""
    types = json_types(field.schema)
    if isinstance(value, str) and types != ("string",):
        return form.parse(value, field.schema, root)
    if isinstance(value, float) and value.is_integer() and "number" not in types:
        return int(value)
    return value


def _single(schema: Mapping[str, Any], value: Any) -> Any:
    if value is None:
        raise InvalidInput(f"the answer is missing; expected {describe_schema(schema)}")
    found = _value(Field(ANSWER, resolve_reference(schema, schema), required=True), value, schema)
    form.check(found, schema)
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput("the answer is empty; type one, or decline")
    return value


def _shown_choices(callback: Callback, redactor: Redactor) -> list[str]:
    """The choices as a person sees them. Where two look the same, or a secret is hidden, they are numbered."""
    shown = [redactor.text(one) for one in callback.choices]
    names = choice_names(shown, _LONGEST_CHOICE)
    if shown == list(callback.choices) or names != shown:
        return names
    return [f"{number}. {one}" for number, one in enumerate(names, 1)]


def _choice(callback: Callback, value: Any, redactor: Redactor) -> str:
    shown = _shown_choices(callback, redactor)
    if value not in shown:
        raise InvalidInput("choose one of the given answers")
    return callback.choices[shown.index(value)]


# --- approvals ------------------------------------------------------------------------------


def _approval_schema(callback: Callback) -> dict[str, Any]:
    decisions = [APPROVE, APPROVE_SESSION, *(f"{_PATTERN}{name}" for name in callback.patterns), REJECT]
    fields: dict[str, Any] = {"decision": {"type": "string", "title": "Decision", "enum": decisions}}
    if callback.args:
        about = "To run it with other arguments: all of them, as a JSON object. Otherwise leave this empty."
        fields["arguments"] = {"type": "string", "title": "Changed arguments", "description": about}
    fields["reason"] = {"type": "string", "title": "Reason", "description": "If you reject: why"}
    return _object(fields, ["decision"])


def _decision(callback: Callback, content: Mapping[str, Any], redactor: Redactor) -> Approve | Reject:
    decision, reason, typed = content.get("decision"), content.get("reason"), content.get("arguments")
    if decision == REJECT:
        return Reject(reason if isinstance(reason, str) else "")
    args = _edited(callback, typed, redactor) if isinstance(typed, str) and typed.strip() else None
    if decision == APPROVE:
        return Approve(args)
    if decision == APPROVE_SESSION:
        return Approve(args, for_session=True)
    pattern = decision.removeprefix(_PATTERN) if isinstance(decision, str) and decision.startswith(_PATTERN) else ""
    if pattern not in callback.patterns:
        raise InvalidInput(f"this callback asks for an approval: choose {APPROVE!r} or {REJECT!r}")
    if args is not None:
        raise InvalidInput("a pattern approves the call as it is; leave the arguments empty")
    return Approve(pattern=pattern)


def edited_arguments(callback: Callback, given: dict[str, Any], redactor: Redactor) -> dict[str, Any] | None:
    """Edited arguments with the real values in place of masks; None where nothing was changed."""
    try:
        edited = redactor.restore(given, callback.args)
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    return None if same_json(edited, callback.args) else edited


def _edited(callback: Callback, typed: str, redactor: Redactor) -> dict[str, Any] | None:
    try:
        given = read_bounded_json(typed.encode("utf-8", "replace"), _LONGEST_ARGUMENTS)
    except ValueError as error:
        raise InvalidInput(f"the arguments are not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidInput("the arguments must be a JSON object")
    return edited_arguments(callback, cast("dict[str, Any]", given), redactor)
