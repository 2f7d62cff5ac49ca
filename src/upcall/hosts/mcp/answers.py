"""Answers from clients: what a form or the tool `answer` says, checked and stored.

A call is approved only by saying so. Whoever is first settles a question; a later answer is told who was.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from upcall.app import Runtime
from upcall.callbacks import Approve, Callback, Decline, Reject
from upcall.errors import AccessDenied, AlreadySettled, AnswerRefused, SetupError
from upcall.hosts.http.access import Principal
from upcall.hosts.mcp.forms import Reply, answer_of, edited_arguments
from upcall.observe.form import InvalidInput
from upcall.observe.hidden_question import is_approval
from upcall.observe.plain import visible
from upcall.observe.redact import Redactor
from upcall.observe.weight import aside
from upcall.tokens import allows, too_weak

DIGEST = 12
"""Characters of a digest that whoever approves a call repeats."""


class Settled(NamedTuple):
    """What came of an answer.

    status: settled; dismissed, where nothing was answered; invalid, where it may be asked again; late
    note: what the client should know
    """

    status: str
    note: str = ""


class AnswerArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of the tool `answer`: exactly one of value, approve, reject and decline."""

    callback: str
    value: Any = msgspec.UNSET
    approve: bool | msgspec.UnsetType = msgspec.UNSET
    digest: str = ""
    arguments: dict[str, Any] | None = None
    reject: str | msgspec.UnsetType = msgspec.UNSET
    decline: str | msgspec.UnsetType = msgspec.UNSET
    for_session: bool = False
    pattern: str | None = None
    only: bool = False


class Answers:
    """Settles callbacks for clients."""

    def __init__(self, runtime: Runtime, redactor: Redactor) -> None:
        self._runtime, self._redactor = runtime, redactor

    async def by_form(self, callback_id: str, reply: Reply, principal: Principal) -> Settled:
        """Settle a callback with a form that was filled in; what is wrong with it is in the outcome."""
        try:
            callback = await self._runtime.callback(callback_id)
            if callback.status != "open":
                return Settled("late", _late(callback))
            value = await aside(answer_of, callback, reply, self._redactor)
            if value is None:
                return Settled("dismissed")
            await self._answer(callback, value, principal)
        except InvalidInput as error:
            return Settled("invalid", str(error))
        except AnswerRefused as error:
            return Settled("invalid", error.problem)
        except AlreadySettled:
            return Settled("late", _late(await self._runtime.callback(callback_id)))
        return Settled("settled")

    async def by_tool(self, given: AnswerArguments, principal: Principal) -> Callback:
        """Settle a callback as the tool `answer` says; raises UpcallError where that is not possible."""
        callback = await self._runtime.callback(given.callback)
        if callback.status != "open":
            raise AlreadySettled(callback.id, callback.status, _by(callback), _at(callback))
        try:
            value = await aside(self._value, callback, given)
        except InvalidInput as error:
            raise AnswerRefused(callback.id, str(error)) from None
        return await self._answer(callback, value, principal, only=given.only)

    async def _answer(
        self, callback: Callback, value: Any, principal: Principal, *, only: bool = False
    ) -> Callback:
        if not allows(principal.role, "answerer"):
            raise AccessDenied(principal.name, too_weak(principal.name, principal.role, "answerer"))
        return await self._runtime.answer(callback.id, value, by=principal.name, right=principal.right, only=only)

    def _value(self, callback: Callback, given: AnswerArguments) -> Any:
        ways = (given.value, given.approve, given.reject, given.decline)
        if sum(one is not msgspec.UNSET for one in ways) != 1:
            raise SetupError("give exactly one of value, approve, reject and decline")
        if not is_approval(callback):
            return _question_value(given)
        if given.reject is not msgspec.UNSET:
            return Reject(given.reject, for_session=given.for_session)
        if given.approve is not True:
            raise InvalidInput(
                "this callback asks for the approval of a call: give approve=true and its digest, or reject"
            )
        if len(given.digest) < DIGEST or not callback.digest.startswith(given.digest):
            raise InvalidInput(
                "an approval must repeat the digest that `inbox` shows with the call's arguments, so that no call "
                f"is approved unseen; {given.digest[:80]!r} is not the digest of this call"
            )
        args = None
        if given.arguments is not None:
            args = edited_arguments(callback, given.arguments, self._redactor)
        return Approve(args, given.for_session, given.pattern)


def _question_value(given: AnswerArguments) -> Any:
    if given.decline is not msgspec.UNSET:
        return Decline(given.decline)
    if given.value is msgspec.UNSET:
        raise InvalidInput("this callback is a question, not the approval of a call: give a value, or decline")
    return given.value


def _by(callback: Callback) -> str:
    return callback.answer.by if callback.answer is not None else ""


def _at(callback: Callback) -> float:
    return callback.answer.at if callback.answer is not None else callback.settled_at


def _late(callback: Callback) -> str:
    """The note for an answer that came too late."""
    by = f" by {visible(_by(callback))}" if _by(callback) else ""
    at = f" at {datetime.fromtimestamp(_at(callback), UTC):%Y-%m-%d %H:%M:%S} UTC" if _at(callback) else ""
    return f"Your answer to {callback.id} was not used: it was {callback.status}{by}{at}."
