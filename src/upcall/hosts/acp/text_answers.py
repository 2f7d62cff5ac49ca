"""Answers that a person gives as a message, where the editor has no dialog for the question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from upcall.app import Runtime
from upcall.callbacks import Approve, Callback, Decline, Reject
from upcall.errors import AlreadySettled, AnswerRefused, UnknownCallback
from upcall.hosts.acp.asking import RIGHT
from upcall.hosts.acp.connection import Connection
from upcall.hosts.acp.forms import needs_message
from upcall.observe.form import InvalidInput, parse
from upcall.observe.hidden_question import is_approval
from upcall.observe.phrases import args_line
from upcall.observe.plain import one_line, plain, visible
from upcall.observe.redact import Redactor
from upcall.observe.weight import aside

_NAMED = re.compile(r"\s*(?:(?P<id>q[0-9a-f]{6,})|(?P<number>\d{1,3})\s*[:.)])\s*:?\s*(?P<text>.*)", re.DOTALL)
_LOOKED_AT = 4_000


class Taken(NamedTuple):
    """What became of a message: whether it answered a question, or why it could not."""

    answered: bool = False
    problem: str = ""


class TextAnswers:
    """Takes a person's messages as answers to the questions of one session."""

    def __init__(self, runtime: Runtime, session_id: str, editor: Connection, redactor: Redactor, by: str) -> None:
        self._runtime, self._session_id, self._editor = runtime, session_id, editor
        self._redactor, self._by = redactor, by

    async def waiting(self) -> list[Callback]:
        """Return the questions that wait for the person while no turn runs, oldest first."""
        if await self._runtime.status(self._session_id) != "waiting":
            return []
        return sorted(await self._runtime.inbox(session=self._session_id), key=lambda one: one.created)

    async def take(self, text: str, waiting: Sequence[Callback]) -> Taken:
        """Take a message while questions wait: it answers one, or none of them can be answered so."""
        mine = [one for one in waiting if needs_message(one, self._editor.client, self._redactor)]
        if not mine:
            return Taken()
        if len(mine) == 1:
            named = _NAMED.fullmatch(text)
            only = named is not None and named["id"] == mine[0].id
            return await self.settle(mine[0], named["text"] if named is not None and only else text)
        found = _NAMED.fullmatch(text)
        if found is None:
            return Taken(problem=which_text(mine, self._redactor))
        if found["id"]:
            chosen = next((one for one in mine if one.id == found["id"]), None)
        else:
            at = int(found["number"]) - 1
            chosen = mine[at] if 0 <= at < len(mine) else None
        if chosen is None:
            return Taken(problem=which_text(mine, self._redactor))
        return await self.settle(chosen, found["text"])

    async def settle(self, callback: Callback, text: str) -> Taken:
        """Answer a question with a text."""
        try:
            value = _value(callback, text)
        except InvalidInput as error:
            return Taken(problem=f"That is not a valid answer: {plain(str(error))}")
        return await self.answer(callback.id, value)

    async def answer(self, callback_id: str, value: Any) -> Taken:
        """Settle a callback."""
        try:
            await self._runtime.answer(callback_id, value, by=self._by, right=RIGHT)
        except AnswerRefused as error:
            return Taken(problem=f"The answer was not accepted: {plain(self._redactor.text(error.problem))}")
        except (AlreadySettled, UnknownCallback) as error:
            return Taken(problem=plain(self._redactor.text(str(error))))
        return Taken(answered=True)

    async def run_command(self, name: str, argument: str) -> Taken:
        """Run one of the commands `answer`, `approve`, `reject` and `decline`."""
        waiting = await self._open()
        wanted = [one for one in waiting if is_approval(one) == (name in ("approve", "reject"))]
        word, _, rest = argument.partition(" ")
        chosen = next((one for one in waiting if one.id == word), None)
        if chosen is None and name == "approve" and wanted and not argument.strip().startswith("{"):
            # the call that waits now may be another than the one that was read
            return Taken(problem=_approvals_text(wanted, self._redactor))
        if chosen is None:
            chosen, rest = (wanted[0] if len(wanted) == 1 else None), argument
        if chosen is None:
            problem = which_text(wanted, self._redactor) if wanted else "Nothing waits for that."
            return Taken(problem=problem)
        rest = rest.strip()
        match name:
            case "answer":
                return await self.settle(chosen, rest)
            case "approve":
                return await self._approve(chosen, rest)
            case "reject":
                return await self.answer(chosen.id, Reject(rest))
            case _:
                return await self.answer(chosen.id, Decline(rest))

    async def _approve(self, callback: Callback, text: str) -> Taken:
        if not text:
            return await self.answer(callback.id, Approve())
        try:
            args = msgspec.json.decode(text.encode("utf-8", "replace"), type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            return Taken(problem=f"The arguments are not a JSON object: {error}")
        try:
            edited = await aside(self._restored, callback.args, args)
        except ValueError as error:
            return Taken(problem=f"The answer was not accepted: {plain(str(error))}")
        return await self.answer(callback.id, Approve(args=edited))

    def _restored(self, args: Any, edited: dict[str, Any]) -> dict[str, Any]:
        return self._redactor.restore(edited, args)

    async def _open(self) -> list[Callback]:
        return sorted(await self._runtime.inbox(session=self._session_id), key=lambda one: one.created)


def _value(callback: Callback, text: str) -> Any:
    if callback.choices:
        return _choice(callback.choices, text.strip())
    return text.strip() if callback.schema is None else parse(text.strip(), callback.schema)


def _choice(choices: Sequence[str], text: str) -> str:
    """Return the choice that a text means: its words, or its number in the list of the question."""
    alike = [text] if text in choices else [one for one in choices if one.casefold() == text.casefold()]
    worded = alike[0] if len(alike) == 1 else None
    is_number = text.isdecimal() and len(text) < 6 and 0 < int(text) <= len(choices)
    numbered = choices[int(text) - 1] if is_number else None
    if worded is not None and numbered is not None and worded != numbered:
        raise InvalidInput("it is one choice, and the number of another; use `upcall answer`")
    found = worded if worded is not None else numbered
    if found is None:
        raise InvalidInput(f"use one of the {len(choices)} choices, or its number")
    return found


def _approvals_text(callbacks: Sequence[Callback], redactor: Redactor) -> str:
    """Ask which of the calls that wait is approved."""
    rows = [
        f"- `/approve {one.id}` for {visible(one.tool)} "
        f"{args_line(redactor.show(redactor.shortened(one.args or {}, _LOOKED_AT)))}"
        for one in callbacks
    ]
    return "\n".join(["Say which call you approve:", "", *rows])


def which_text(callbacks: Sequence[Callback], redactor: Redactor) -> str:
    """Ask which of several questions a message answers."""
    rows = [f"{number}. {_asked_line(one, redactor)}" for number, one in enumerate(callbacks, 1)]
    how = "Which question do you answer? Begin your message with its number, such as `1: your answer`."
    return "\n".join([*rows, "", how])


def _asked_line(callback: Callback, redactor: Redactor) -> str:
    """Return the beginning of a question on one line, in its original words, too."""

    def short(text: str) -> str:  # redacted first: a part of a secret can't be recognised
        return one_line(redactor.text(redactor.beginning(text, _LOOKED_AT)), 300)

    line = f"{one_line(callback.agent, 100)} asks: {short(callback.message)}"
    return f"{line}\n   reworded: {short(callback.reworded)}" if callback.reworded else line
