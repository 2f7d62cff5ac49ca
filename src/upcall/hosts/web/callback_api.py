"""The paths about callbacks: the inbox, one card, and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from upcall.app import Runtime
from upcall.callbacks import Approve, Callback, Decline, Reject, same_json
from upcall.hosts.web.cards import Around, card_json, differs
from upcall.hosts.web.exchange import Refusal, large_json_response, number, read_body
from upcall.hosts.web.led import lines_before
from upcall.hosts.web.listing import root_of
from upcall.hosts.web.runs import means_of
from upcall.hosts.web.service import Service, answering_errors, path_id, principal_of
from upcall.observe.hidden_question import is_approval
from upcall.observe.lines import Lines

CARDS, MOST_CARDS = 30, 200
"""Cards of one page of the inbox, and the most that one request gets."""

_ROWS_PER_CARD = 20
_SETTLED = ("answered", "declined", "expired", "withdrawn")


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
        return await large_json_response(await self._service.read(lambda r: self._inbox(r, limit, can_answer)))

    async def _inbox(self, runtime: Runtime, limit: int, can_answer: bool) -> dict[str, Any]:
        position, now = self._service.changes.position, runtime.store.now()
        found, settled = await self._service.waiting.get(runtime), await self._settled(runtime, limit)
        return {
            "open": [await self.card(runtime, one, can_answer) for one in found[:limit]],
            "settled": [await self.card(runtime, one, can_answer, led=False) for one in settled],
            "more": max(0, len(found) - limit),
            "uncounted": not self._service.waiting.has_all,
            "time": now,
            "pos": position,
        }

    async def _settled(self, runtime: Runtime, limit: int) -> list[Callback]:
        """The callbacks that were settled today, newest first."""
        now = datetime.fromtimestamp(runtime.store.now()).astimezone()
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        index = self._service.index
        known = index.settled_since(midnight, limit * 2) if index is not None else None
        if known is not None:
            callbacks = [await runtime.callback(one) for one in known]
            return [one for one in callbacks if any(step.agent == "user" for step in one.path)][:limit]
        found = [one for status in _SETTLED for one in await runtime.inbox(limit * _ROWS_PER_CARD, status=status)]
        today = [one for one in found if settled_at(one) >= midnight]
        return sorted(today, key=settled_at, reverse=True)[:limit]

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
        value = self._value(callback, body)
        if callback.status == "open" and differs(callback, body.digest, pattern=body.pattern is not None):
            raise Refusal(409, "it has changed since you saw it; look at it again", status=callback.status)
        who = principal_of(request)
        settled = await runtime.answer(callback.id, value, by=who.name, right=who.right, only=body.only)
        return await self._card_response(request, settled)

    def _value(self, callback: Callback, body: AnswerBody) -> Any:
        given = [one for one in (body.value, body.approve, body.reject, body.decline) if one is not UNSET]
        if len(given) != 1:
            raise Refusal(422, "give exactly one of value, approve, reject and decline")
        if not is_approval(callback):
            return _answer_to_question(body)
        if body.reject is not UNSET:
            return Reject(body.reject, for_session=body.for_session)
        if body.approve is not True:
            raise Refusal(422, "it asks for an approval: give approve true, or reject with a reason")
        covered = callback.covers.get(body.pattern or "", ())
        return Approve(self._args(callback, body), body.for_session, body.pattern, tuple(one.id for one in covered))

    def _args(self, callback: Callback, body: AnswerBody) -> dict[str, Any] | None:
        """Edited arguments, with the real values in place of masks; None where nothing was changed."""
        if body.args is None:
            return None
        try:
            edited = self._service.redactor.restore(body.args, callback.args)
        except ValueError as error:
            raise Refusal(422, str(error)) from None
        return None if same_json(edited, callback.args) else edited

    # --- cards ----------------------------------------------------------------------------

    async def _card_response(self, request: Request, callback: Callback, *, reveal: bool = False) -> Response:
        can_answer = self._service.may(principal_of(request), "answerer")

        async def read(runtime: Runtime) -> dict[str, Any]:
            return await self.card(runtime, callback, can_answer, reveal=reveal)

        return await large_json_response(await self._service.read(read))

    async def card(
        self, runtime: Runtime, callback: Callback, can_answer: bool, *, led: bool = True, reveal: bool = False
    ) -> dict[str, Any]:
        """A callback as a card, with what the log says around it. `can_answer`: whether its reader may."""
        service, root = self._service, root_of(callback.session_id)
        facts = (await service.listing.cache.get(runtime.store, [root]))[root]
        lines = Lines(service.redactor, service.labels)
        before = await lines_before(runtime.store, callback, lines) if led else []
        goes_on, runs_here = await self._goes_on(runtime, callback, root)
        around = Around(
            title=facts.title,
            led=tuple(before),
            can_answer=can_answer,
            goes_on=goes_on,
            runs_here=runs_here,
            label=service.labels.of(callback.tool) if callback.tool else "",
        )
        return card_json(callback, around, service.redactor, reveal=reveal)

    async def _goes_on(self, runtime: Runtime, callback: Callback, root: str) -> tuple[str, bool]:
        """A sentence about what happens after the answer, and whether that happens by itself."""
        asker = self._service.redactor.text(callback.agent)
        row = await runtime.store.row(root)
        if row is not None and row.owner:
            return f"{asker} continues at once.", True
        means = await means_of(runtime.store, self._service.runs, root)
        if means.here and not self._service.view_only:
            return f"{asker} continues.", True
        if means.command:
            return f"It continues with `{means.command}`: its agents are not loaded here.", False
        return "It continues when a program with its agents resumes it.", False


def _answer_to_question(body: AnswerBody) -> Any:
    if body.decline is not UNSET:
        return Decline(body.decline)
    if body.value is UNSET:
        raise Refusal(422, "it is a question, not the approval of a call: give a value, or decline")
    return body.value


def settled_at(callback: Callback) -> float:
    """The time at which a callback was settled, or expired if nobody answered it."""
    if callback.answer is not None:
        return callback.answer.at
    return callback.expires or callback.created
