"""Asking one person one question: choices by number, typed fields, approvals with edited arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from upcall.callbacks import Approve, Callback, Decline, Reject, same_json
from upcall.hosts.terminal import form
from upcall.hosts.terminal.question import is_approval
from upcall.hosts.terminal.screen import Piece
from upcall.observe.plain import escaped, one_line, shell_word

_LONGEST_DESCRIPTION = 1000
"""Characters that are shown of a field's description, and of why a value does not fit."""

_DIGITS = 9
"""Digits of a choice's number, at most."""


class Later(Exception):
    """The person leaves the question for later."""


class _Declined(Exception):
    """The person declines the question."""


class Desk(Protocol):
    """Where the person sits: lines to read and lines to type. Ctrl-C and Ctrl-D raise Later."""

    async def line(self, prompt: str, default: str = "") -> str:
        """What the person types."""
        ...

    def say(self, row: Sequence[Piece]) -> None:
        """One row on the screen."""
        ...

    async def edit(self, text: str) -> str | None:
        """The text as the person's editor leaves it; None where there is no editor."""
        ...


async def answer(callback: Callback, desk: Desk) -> Any:
    """The person's answer: a value, Approve, Reject or Decline. Later if the person leaves the question.

    At the prompt of a question `/decline` and a reason decline it; without a reason the person is asked for one.
    """
    if is_approval(callback):
        return await _approval(callback, desk)
    try:
        return await _value(callback, desk)
    except _Declined as declined:
        return Decline(str(declined) or (await desk.line("why not")).strip())


async def _value(callback: Callback, desk: Desk) -> Any:
    if callback.choices:
        return await _choice(callback.choices, desk)
    if callback.schema is not None:
        return await _typed(callback.schema, desk)
    while True:
        text = (await _line(desk, "your answer")).strip()
        if text:
            return text
        _wrong(desk, "an answer has at least one letter")


class Ambiguous(ValueError):
    """A text is one choice, and also the number of another one."""

    def __init__(self, word: str, numbered: str) -> None:
        super().__init__(
            f"{word!r} is a choice, and also the number of the choice {numbered!r}; in double quotes it is the "
            f"choice itself: {shell_word(as_json(word))}"
        )


def chosen(text: str, choices: Sequence[str]) -> str | None:
    """The choice that a given value means: its text, its text as JSON, or its number.

    Ambiguous where the text is one choice and the number of another one.
    """
    word = text if text in choices else text.strip()
    numbered = _numbered(word, choices)
    if word in choices:
        if numbered is not None and numbered != word:
            raise Ambiguous(word, numbered)
        return word
    if numbered is not None:
        return numbered
    return next((choice for choice in choices if as_json(choice) == word), _alike(word, choices))


def _at_prompt(text: str, choices: Sequence[str]) -> str | None:
    """The choice that a typed text means: a number is always the one beside a choice."""
    word = text.strip()
    if word.isdecimal():
        return _numbered(word, choices)
    return word if word in choices else _alike(word, choices)


def _numbered(word: str, choices: Sequence[str]) -> str | None:
    number = int(word) if word.isdecimal() and len(word) <= _DIGITS else 0
    return choices[number - 1] if 0 < number <= len(choices) else None


def _alike(word: str, choices: Sequence[str]) -> str | None:
    """The one choice that differs only in case and in blanks around it."""
    alike = [choice for choice in choices if choice.strip().lower() == word.lower()]
    return alike[0] if len(alike) == 1 else None


def as_json(text: str) -> str:
    """A text as JSON has it, in double quotes."""
    return msgspec.json.encode(text).decode("utf-8", "replace")


async def _choice(choices: Sequence[str], desk: Desk) -> str:
    numbers = f"1-{len(choices)}" if len(choices) > 1 else "1"
    while True:
        text = await _line(desk, f"your choice, {numbers}")
        found = _at_prompt(text, choices)
        if found is not None:
            return found
        what = f"{text.strip()!r} is none of them" if text.strip() else "choose one"
        _wrong(desk, f"{what}; type a number, {numbers}")


async def _line(desk: Desk, prompt: str) -> str:
    """A line of an answer; raises _Declined with the reason where the person declines."""
    text = await desk.line(prompt)
    word, _, reason = text.strip().partition(" ")
    if word.lower() == "/decline":
        raise _Declined(reason.strip())
    return text


def _wrong(desk: Desk, why: str) -> None:
    desk.say([Piece(f"  {one_line(why, _LONGEST_DESCRIPTION)}", "red")])


# --- typed answers ----------------------------------------------------------------------


async def _typed(schema: Mapping[str, Any], desk: Desk) -> Any:
    asked = form.fields(schema)
    if asked is None:
        one = form.Field("your answer", form.resolved(schema, schema), required=True)
        return (await _field(one, schema, desk))[1]
    answers: dict[str, Any] = {}
    for field in asked:
        given, value = await _field(field, schema, desk)
        if given:
            answers[field.name] = value
    return answers


async def _field(field: form.Field, root: Mapping[str, Any], desk: Desk) -> tuple[bool, Any]:
    """One value, asked for until it fits; says whether there is one."""
    about = str(field.schema.get("description") or "").strip()
    if about:
        desk.say([Piece(f"  {one_line(about, _LONGEST_DESCRIPTION)}", "dim")])
    left_out = "" if field.required or field.has_default else ", or nothing"
    while True:
        text = (await _line(desk, f"{field.name} ({form.wanted(field.schema)}{left_out})")).strip()
        if not text and field.has_default:
            return True, field.schema["default"]
        if not text and not field.required:
            return False, None
        try:
            if text:
                return True, form.read(text, field.schema, root)
            _wrong(desk, "it is needed")
        except form.Wrong as wrong:
            _wrong(desk, str(wrong))


# --- approvals --------------------------------------------------------------------------


async def _approval(callback: Callback, desk: Desk) -> Approve | Reject:
    pattern = "  [p]attern" if callback.patterns else ""
    while True:
        said = (await desk.line(f"[a]pprove  [s]ession{pattern}  [e]dit  [r]eject  [l]ater")).strip().lower()
        match said:
            case "a" | "approve" | "y" | "yes":
                return Approve()
            case "s" | "session":
                return Approve(for_session=True)
            case "p" | "pattern" if callback.patterns:
                name = await _choice(list(callback.patterns), desk)
                shown = tuple([one.id for one in callback.covers.get(name, ())])
                return Approve(for_session=True, pattern=name, also=shown)
            case "e" | "edit":
                if (edited := await _edited(callback, desk)) is not None:
                    return Approve(args=edited)
            case "r" | "reject" | "n" | "no":
                return Reject((await desk.line("why not")).strip())
            case "l" | "later":
                raise Later
            case _:
                _wrong(desk, "type one of the letters in brackets")


async def _edited(callback: Callback, desk: Desk) -> dict[str, Any] | None:
    """The arguments as the person wants them; None where they are as before."""
    body = msgspec.json.encode(callback.args)
    text = await desk.edit(escaped(msgspec.json.format(body, indent=2).decode()) + "\n")
    if text is None:
        text = await desk.line("arguments", escaped(body.decode()))
    while True:
        try:
            value = form.read(text, {"type": "object"})
            if callback.schema is not None:
                value = form.read(text, callback.schema)
        except form.Wrong as wrong:
            _wrong(desk, str(wrong))
            text = await desk.line("arguments", " ".join(text.split()))
            continue
        if same_json(value, callback.args):
            desk.say([Piece("  nothing was changed", "dim")])
            return None
        return cast("dict[str, Any]", value)
