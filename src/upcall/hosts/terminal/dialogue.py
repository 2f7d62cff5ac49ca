"""Ask a person one question: numbered choices, typed fields, approvals with edited arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from upcall.callbacks import Approve, Callback, Decline, Reject, same_json
from upcall.hosts.terminal.layout import Piece
from upcall.observe import form
from upcall.observe.hidden_question import is_approval
from upcall.observe.plain import escaped, one_line, shell_word
from upcall.observe.redact import Redactor
from upcall.observe.weight import aside

_LONGEST_DESCRIPTION = 1000
"""The longest field description or error to show, in characters."""

_LONGEST_LINE = 20_000
"""The longest arguments to edit in an input line, in bytes of JSON."""

_MOST_DIGITS = 9
"""The most digits of a choice's number."""


class Later(Exception):
    """Raised when the person leaves the question for later."""


class _Declined(Exception):
    """Raised when the person declines the question."""


class Prompter(Protocol):
    """A place to ask a person: lines to show and lines to read. Ctrl-C and Ctrl-D raise Later."""

    async def read_line(self, prompt: str, default: str = "") -> str:
        """Read one line from the person."""
        ...

    def show_row(self, row: Sequence[Piece]) -> None:
        """Show one row."""
        ...

    async def open_editor(self, text: str) -> str | None:
        """Return the text as edited in the person's editor; None if there is no editor."""
        ...


async def ask_person(callback: Callback, prompter: Prompter, redactor: Redactor | None = None) -> Any:
    """Ask the person; returns a value, Approve, Reject or Decline. Raises Later if they leave the question.

    `redactor` hides secrets in what is shown; edited arguments get the real values back.

    At the prompt of a question, `/decline` and a reason decline it. Without a reason the person is asked for one.
    """
    redactor = redactor or Redactor()
    if is_approval(callback):
        return await _ask_approval(callback, prompter, redactor)
    try:
        return await _ask_value(callback, prompter, redactor)
    except _Declined as declined:
        return Decline(str(declined) or (await prompter.read_line("why not")).strip())


async def _ask_value(callback: Callback, prompter: Prompter, redactor: Redactor) -> Any:
    if callback.choices:
        return await _ask_choice(callback.choices, prompter)
    if callback.schema is not None:
        shown = await aside(redactor.copy, callback)
        return await _ask_typed(callback.schema, shown.schema or {}, prompter)
    while True:
        text = (await _read_answer_line(prompter, "your answer")).strip()
        if text:
            return text
        _show_error(prompter, "an answer can't be empty")


class Ambiguous(ValueError):
    """The text of one choice is also the number of another."""

    def __init__(self, word: str, numbered: str) -> None:
        super().__init__(
            f"{word!r} is both a choice and the number of the choice {numbered!r}; to give the choice "
            f"itself, put it in double quotes: {shell_word(as_json(word))}"
        )


def match_choice(text: str, choices: Sequence[str]) -> str | None:
    """Return the choice that a value means: by its text, its text as JSON, or its number.

    Raises Ambiguous if the value is the text of one choice and the number of another.
    """
    word = text if text in choices else text.strip()
    numbered = _choice_by_number(word, choices)
    if word in choices:
        if numbered is not None and numbered != word:
            raise Ambiguous(word, numbered)
        return word
    if numbered is not None:
        return numbered
    return next((choice for choice in choices if as_json(choice) == word), _similar_choice(word, choices))


def _match_at_prompt(text: str, choices: Sequence[str]) -> str | None:
    """Return the choice that typed text means; a number is always the number of a choice."""
    word = text.strip()
    if word.isdecimal():
        return _choice_by_number(word, choices)
    return word if word in choices else _similar_choice(word, choices)


def _choice_by_number(word: str, choices: Sequence[str]) -> str | None:
    number = int(word) if word.isdecimal() and len(word) <= _MOST_DIGITS else 0
    return choices[number - 1] if 0 < number <= len(choices) else None


def _similar_choice(word: str, choices: Sequence[str]) -> str | None:
    """Return the only choice that differs just in case and surrounding spaces."""
    alike = [choice for choice in choices if choice.strip().lower() == word.lower()]
    return alike[0] if len(alike) == 1 else None


def as_json(text: str) -> str:
    """Encode a text as JSON, in double quotes."""
    return msgspec.json.encode(text).decode("utf-8", "replace")


async def _ask_choice(choices: Sequence[str], prompter: Prompter) -> str:
    numbers = f"1-{len(choices)}" if len(choices) > 1 else "1"
    while True:
        text = await _read_answer_line(prompter, f"your choice, {numbers}")
        found = _match_at_prompt(text, choices)
        if found is not None:
            return found
        what = f"{text.strip()!r} is not one of the choices" if text.strip() else "choose one"
        _show_error(prompter, f"{what}; type a number, {numbers}")


async def _read_answer_line(prompter: Prompter, prompt: str) -> str:
    """Read one line of an answer. Raises _Declined with the reason if the person declines."""
    text = await prompter.read_line(prompt)
    word, _, reason = text.strip().partition(" ")
    if word.lower() == "/decline":
        raise _Declined(reason.strip())
    return text


def _show_error(prompter: Prompter, why: str) -> None:
    prompter.show_row([Piece(f"  {one_line(why, _LONGEST_DESCRIPTION)}", "red")])


# --- typed answers ----------------------------------------------------------------------


async def _ask_typed(schema: Mapping[str, Any], shown: Mapping[str, Any], prompter: Prompter) -> Any:
    """Ask for a value of a schema. `shown` is the schema as it may be shown."""
    fields, shown_fields = form.fields(schema), form.fields(shown)
    if fields is None or shown_fields is None:
        one = form.Field("your answer", form.resolve_reference(schema, schema), required=True)
        return (await _ask_field(one, form.resolve_reference(shown, shown), schema, prompter))[1]
    answers: dict[str, Any] = {}
    for field, one in zip(fields, shown_fields, strict=True):
        has_value, value = await _ask_field(field, one.schema, schema, prompter)
        if has_value:
            answers[field.name] = value
    return answers


async def _ask_field(
    field: form.Field, shown: Mapping[str, Any], root: Mapping[str, Any], prompter: Prompter
) -> tuple[bool, Any]:
    """Ask for one value until it is valid; returns whether a value was given, and the value."""
    about = str(shown.get("description") or "").strip()
    if about:
        prompter.show_row([Piece(f"  {one_line(about, _LONGEST_DESCRIPTION)}", "dim")])
    optional_note = "" if field.required or field.has_default else ", or nothing"
    prompt = f"{field.name} ({form.describe_schema(shown)}{optional_note})"
    while True:
        text = (await _read_answer_line(prompter, prompt)).strip()
        if not text and field.has_default:
            return True, field.schema["default"]
        if not text and not field.required:
            return False, None
        try:
            if text:
                return True, await aside(_parse_field, field.schema, text, root)
            _show_error(prompter, "a value is required")
        except form.InvalidInput as wrong:
            _show_error(prompter, str(wrong))


def _parse_field(schema: Mapping[str, Any], text: str, root: Mapping[str, Any]) -> Any:
    return form.parse(text, schema, root)


# --- approvals --------------------------------------------------------------------------


async def _ask_approval(callback: Callback, prompter: Prompter, redactor: Redactor) -> Approve | Reject:
    pattern = "  [p]attern" if callback.patterns else ""
    prompt = f"[a]pprove  [s]ession{pattern}  [e]dit  [r]eject  [l]ater"
    while True:
        key = (await prompter.read_line(prompt)).strip().lower()
        match key:
            case "a" | "approve" | "y" | "yes":
                return Approve()
            case "s" | "session":
                return Approve(for_session=True)
            case "p" | "pattern" if callback.patterns:
                name = await _ask_choice(list(callback.patterns), prompter)
                shown = tuple([one.id for one in callback.covers.get(name, ())])
                return Approve(for_session=True, pattern=name, also=shown)
            case "e" | "edit":
                if (edited := await _edit_args(callback, prompter, redactor)) is not None:
                    return Approve(args=edited)
            case "r" | "reject" | "n" | "no":
                return Reject((await prompter.read_line("why not")).strip())
            case "l" | "later":
                raise Later
            case _:
                _show_error(prompter, "type one of the letters in brackets")


async def _edit_args(callback: Callback, prompter: Prompter, redactor: Redactor) -> dict[str, Any] | None:
    """Let the person edit the arguments; None if they are unchanged. What is hidden in them stays as it is."""
    body = msgspec.json.encode(await aside(redactor.show, callback.args))
    text = await prompter.open_editor(escaped(msgspec.json.format(body, indent=2).decode()) + "\n")
    if text is None and len(body) > _LONGEST_LINE:
        _show_error(prompter, f"they are too long to edit here ({len(body):,} bytes); an editor is set by $EDITOR")
        return None
    if text is None:
        text = await prompter.read_line("arguments", escaped(body.decode()))
    while True:
        try:
            value = await aside(_edited, callback, text, redactor)
        except ValueError as wrong:
            _show_error(prompter, redactor.text(str(wrong)))
            text = await prompter.read_line("arguments", " ".join(text.split()))
            continue
        if same_json(value, callback.args):
            prompter.show_row([Piece("  nothing was changed", "dim")])
            return None
        return cast("dict[str, Any]", value)


def _edited(callback: Callback, text: str, redactor: Redactor) -> Any:
    """Parse edited arguments, with the real values in place of masks. ValueError says what is wrong with them."""
    value = redactor.restore(form.parse(text, {"type": "object"}), callback.args)
    if callback.schema is not None:
        form.check(value, callback.schema)
    return value
