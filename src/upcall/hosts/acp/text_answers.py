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
from upcall.observe.hidden_question import hide_secrets, is_approval
from upcall.observe.phrases import args_line
from upcall.observe.plain import one_line, plain, visible
from upcall.observe.redact import Redactor

_NAMED = re.compile(r"\s*(?:(?P<id>q[0-9a-f]{6,})|(?P<number>\d{1,3})\s*[:.)])\s*:?\s*(?P<text>.*)", re.DOTALL)


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
            edited = self._redactor.restore(args, callback.args)
        except ValueError as error:
            return Taken(problem=f"The answer was not accepted: {plain(str(error))}")
        return await self.answer(callback.id, Approve(args=edited))

    async def _open(self) -> list[Callback]:
        return sorted(await self._runtime.inbox(session=self._session_id), key=lambda one: one.created)


def _value(callback: Callback, text: str) -> Any:
    if callback.choices:
        meant = text.strip().casefold()
        chosen = next((one for one in callback.choices if one.casefold() == meant), None)
        if chosen is None:
            raise InvalidInput(f"use one of: {', '.join(callback.choices)}")
        return chosen
    return text.strip() if callback.schema is None else parse(text.strip(), callback.schema)


def _approvals_text(callbacks: Sequence[Callback], redactor: Redactor) -> str:
    """Ask which of the calls that wait is approved."""
    shown = [hide_secrets(one, redactor).callback for one in callbacks]
    rows = [f"- `/approve {one.id}` for {visible(one.tool)} {args_line(one.args or {})}" for one in shown]
    return "\n".join(["Say which call you approve:", "", *rows])


def which_text(callbacks: Sequence[Callback], redactor: Redactor) -> str:
    """Ask which of several questions a message answers."""
    rows = [
        f"{number}. {one.agent} asks: {one_line(redactor.text(one.reworded or one.message), 300)}"
        for number, one in enumerate(callbacks, 1)
    ]
    how = "Which question do you answer? Begin your message with its number, such as `1: your answer`."
    return "\n".join([*rows, "", how])
