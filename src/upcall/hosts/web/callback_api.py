"""The paths about callbacks: the inbox, one card, and answers."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from upcall.callbacks import Approve, Callback, Decline, Reject, same_json
from upcall.hosts.web.callback_reads import read_card, read_inbox
from upcall.hosts.web.cards import differs
from upcall.hosts.web.exchange import Refusal, large_json_response, number, read_body
from upcall.hosts.web.log import Log
from upcall.hosts.web.service import Service, answering_errors, path_id, principal_of
from upcall.observe.hidden_question import is_approval
from upcall.observe.redact import Redactor
from upcall.observe.weight import aside

CARDS, MOST_CARDS = 30, 200
"""Cards of one page of the inbox, and the most that one request gets."""


class AnswerBody(msgspec.Struct, forbid_unknown_fields=True):
    """An answer: exactly one of `value`, `approve`, `reject` and `decline`.

    `digest` is the card's `seen`: the answer is bound to what was seen.
    """

    value: Any = UNSET
    approve: bool | UnsetType = UNSET
    args: dict[str, Any] | None = None
    reject: str | UnsetType = UNSET
    decline: str | UnsetType = UNSET
    for_session: bool = False
    pattern: str | None = None
    only: bool = False
    digest: str | None = None


class CallbackApi:
    """Handles the paths about callbacks."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """The paths with their handlers."""
        return [
            Route("/api/inbox", answering_errors(self.inbox), methods=["GET"]),
            Route("/api/callbacks/{id}", answering_errors(self.callback), methods=["GET"]),
            Route("/api/callbacks/{id}/answer", answering_errors(self.answer), methods=["POST"]),
        ]

    async def inbox(self, request: Request) -> Response:
        """The callbacks that wait for a person, most urgent first, and those settled today, newest first.

        At most `limit` of each; `more` says how many others wait, and `uncounted` that there are even more.
        """
        limit = number(request, "limit", CARDS, MOST_CARDS) or CARDS
        can_answer = self._service.may(principal_of(request), "answerer")
        return await large_json_response(await self._service.read(lambda log: read_inbox(log, limit, can_answer)))

    async def callback(self, request: Request) -> Response:
        """One card. With `reveal=1` whoever may answer sees what it hides, and the log says so."""
        callback_id, reveal = path_id(request), request.query_params.get("reveal", "")
        if reveal not in ("", "0", "1"):
            raise Refusal(422, "reveal is 0 or 1")
        if reveal == "1":
            self._service.check_writable()
            who = principal_of(request)
            callback = await self._service.runtime.callback(callback_id)
            if callback.status == "open":
                callback = await self._service.runtime.reveal(callback_id, who.name, who.right)
                return await self._card_response(request, callback, reveal=True)
        return await self._card_response(request, await self._service.runtime.callback(callback_id))

    async def answer(self, request: Request) -> Response:
        """Settle a callback; the first valid answer wins."""
        self._service.check_writable()
        body, runtime = await read_body(request, AnswerBody), self._service.runtime
        callback = await runtime.callback(path_id(request))
        value = await self._value(callback, body)
        if callback.status == "open" and differs(callback, body.digest, pattern=body.pattern is not None):
            raise Refusal(
                409, "this callback has changed since you saw it; look at it again", status=callback.status
            )
        who = principal_of(request)
        settled = await runtime.answer(callback.id, value, by=who.name, right=who.right, only=body.only)
        return await self._card_response(request, settled)

    async def _value(self, callback: Callback, body: AnswerBody) -> Any:
        given = [one for one in (body.value, body.approve, body.reject, body.decline) if one is not UNSET]
        if len(given) != 1:
            raise Refusal(422, "give exactly one of value, approve, reject and decline")
        if not is_approval(callback):
            return _answer_to_question(body)
        if body.reject is not UNSET:
            return Reject(body.reject, for_session=body.for_session)
        if body.approve is not True:
            raise Refusal(422, "this callback asks for an approval: send approve=true, or reject with a reason")
        covered = callback.covers.get(body.pattern or "", ())
        args = await self._args(callback, body.args) if body.args is not None else None
        return Approve(args, body.for_session, body.pattern, tuple(one.id for one in covered))

    async def _args(self, callback: Callback, given: dict[str, Any]) -> dict[str, Any] | None:
        """Edited arguments, with the real values in place of masks; None where nothing was changed."""
        try:
            return await aside(_edited, (given, callback.args), self._service.redactor)
        except ValueError as error:
            raise Refusal(422, str(error)) from None

    async def _card_response(self, request: Request, callback: Callback, *, reveal: bool = False) -> Response:
        can_answer = self._service.may(principal_of(request), "answerer")

        async def read(log: Log) -> dict[str, Any]:
            return await read_card(log, callback, can_answer, reveal=reveal)

        return await large_json_response(await self._service.read(read))


def _edited(given_and_shown: tuple[Any, Any], redactor: Redactor) -> dict[str, Any] | None:
    given, shown = given_and_shown
    edited = redactor.restore(given, shown)
    return None if same_json(edited, shown) else edited


def _answer_to_question(body: AnswerBody) -> Any:
    if body.decline is not UNSET:
        return Decline(body.decline)
    if body.value is UNSET:
        raise Refusal(422, "it is a question, not the approval of a call: give a value, or decline")
    return body.value
