"""Validate answers, and say which open callbacks an answer settles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from upcall.callbacks import Answer, Approve, Callback, CoveredCall, Decline, Reject, approval_digest
from upcall.core.error_texts import shown
from upcall.core.routing.route import Route
from upcall.core.schema import words
from upcall.errors import AlreadySettled, AnswerRefused, SetupError
from upcall.events import CallbackAnswered, CallbackDeclined
from upcall.messages import replace_surrogates
from upcall.safety.bounds import DEPTH, TooLarge, brief, excess, plain

LARGEST = 1_000_000
"""Bytes of JSON that a callback or an answer may have."""


def stored_route(way: Route) -> dict[str, Any]:
    """Return a route as the log stores it."""
    return msgspec.to_builtins(way)


def route_of(callback: Callback) -> Route:
    """Return the route that was fixed when the callback was raised."""
    return msgspec.convert(callback.route, Route)


def settling_event(
    callback: Callback, value: Any, by: str = "", right: str = ""
) -> CallbackAnswered | CallbackDeclined:
    """Return the event by which a person's answer settles a callback; AnswerRefused says why a wrong one can't."""
    if not isinstance(value, Decline):
        return CallbackAnswered(callback.id, validate_answer(callback, value), by, right)
    if callback.gate:
        raise AnswerRefused(callback.id, "an approval can be rejected, but not declined: answer with Reject('why')")
    return CallbackDeclined(callback.id, _reason(callback, value.reason), by, right)


def check_principal(by: Any, right: Any) -> tuple[str, str]:
    """Return who answers and by what right, as the log stores them; SetupError if they are not valid.

    The rights `agent` and `hook` belong to answers of agents and hooks: nobody else may claim them.
    """
    by = checked_by(by)
    if not isinstance(right, str) or not _RIGHT.fullmatch(right):
        raise SetupError(f"right={brief(right)}: use 1-50 lower-case letters, digits, '-', '_', '.' or ':'")
    if right in ("agent", "hook"):
        raise SetupError(f"right={right!r} is reserved for answers from agents and hooks")
    return by, right


def checked_by(by: Any) -> str:
    """Return who says or asks for something, as the log stores it; SetupError if it is not valid."""
    if not isinstance(by, str) or len(by) > _LONGEST_PRINCIPAL:
        raise SetupError(f"by={brief(by)}: use a string of at most {_LONGEST_PRINCIPAL} characters")
    return replace_surrogates(by)


def checked_reason(reason: Any) -> str:
    """Return why something is asked for, as the log stores it; SetupError if it is not valid."""
    if not isinstance(reason, str) or len(reason) > LARGEST:
        raise SetupError(f"reason={brief(reason)}: use a string of at most {LARGEST} characters")
    return replace_surrogates(reason)


_LONGEST_PRINCIPAL = 500
_RIGHT = re.compile("[a-z0-9][a-z0-9._:-]{0,49}")


def _reason(callback: Callback, reason: Any) -> str:
    if not isinstance(reason, str):
        raise AnswerRefused(callback.id, f"the reason of Decline() must be a string, not {brief(reason)}")
    if problem := excess(reason, LARGEST):
        raise _too_large(callback, problem)
    return replace_surrogates(reason)


def validate_answer(callback: Callback, value: Any) -> Any:
    """Return the answer as the log stores it; AnswerRefused says why an invalid one is not accepted."""
    if isinstance(value, Answer):
        raise AnswerRefused(callback.id, "give only the value, not an Answer; use by= to say who answers")
    if isinstance(value, Decline):
        raise AnswerRefused(callback.id, "only a person may decline a question; agents and hooks pass it up")
    if not callback.gate and isinstance(value, Approve | Reject):
        raise AnswerRefused(callback.id, "it is a question, not the approval of a call: answer with a value")
    if problem := excess(value.args if isinstance(value, Approve) else value, LARGEST):
        raise _too_large(callback, problem)
    try:
        given = plain(_approval(callback, value) if callback.gate else value, LARGEST, DEPTH + 1)
    except TooLarge as error:
        raise _too_large(callback, str(error)) from None
    except ValueError as error:
        raise AnswerRefused(callback.id, f"an answer must be a JSON value: {error}") from None
    if callback.choices and given not in callback.choices:
        allowed = ", ".join([*map(repr, callback.choices[:20]), *(["…"] if len(callback.choices) > 20 else [])])
        raise AnswerRefused(callback.id, f"{brief(given, 200)} is not one of the choices: {allowed}")
    if callback.schema is not None and not callback.gate:  # of an approval it is that of the arguments
        require_schema(callback.id, callback.schema, given)
    return given


def _too_large(callback: Callback, problem: str) -> AnswerRefused:
    most = f"an answer may have at most {LARGEST} bytes of JSON, nested at most {DEPTH} levels deep"
    return AnswerRefused(callback.id, f"{most}: {problem}")


def require_schema(callback_id: str, schema: dict[str, Any], value: Any) -> None:
    """Raise AnswerRefused if a value does not fit a JSON schema."""
    if why := schema_error(schema, value):
        expected = words(schema, schema.get("$defs", {}))
        raise AnswerRefused(callback_id, f"{shown(value)} is not a valid answer: {why}; expected {expected}")


def schema_error(schema: Mapping[str, Any], *values: Any) -> str:
    """Say why values do not fit a JSON schema, or what is wrong with the schema; "" if they fit."""
    from upcall.safety.schema_check import misfit_of

    try:
        return misfit_of(plain(dict(schema), LARGEST), *values)
    except TooLarge as error:
        return f"a schema may have at most {LARGEST} bytes of JSON, nested at most {DEPTH} levels deep: {error}"
    except ValueError as error:
        return f"a schema can contain only JSON values: {error}"


def _approval(callback: Callback, value: Any) -> dict[str, Any]:
    """Return an approver's answer, given in any accepted form, as the log stores it."""
    said = _read(callback.id, value)
    if isinstance(said, Reject):
        return {"approve": False, "reason": said.reason, "for_session": said.for_session}
    if said.args is not None and callback.schema is not None:
        require_schema(callback.id, callback.schema, said.args)
    if said.pattern is not None and said.pattern not in callback.patterns:
        known = ", ".join(sorted(callback.patterns)) or "none"
        raise AnswerRefused(
            callback.id, f"{said.pattern!r} is not a pattern of {callback.tool}; the patterns are {known}"
        )
    if said.pattern is not None and said.args is not None:
        raise AnswerRefused(callback.id, "a pattern approves the call as it is; leave out args or pattern")
    for_session = said.for_session or said.pattern is not None
    stored: dict[str, Any] = {"args": said.args, "for_session": for_session, "pattern": said.pattern}
    return {"approve": True, **stored, **_also(callback, said)}


def _also(callback: Callback, said: Approve) -> dict[str, Any]:
    """The ids that an approver was shown beside a pattern, as the log stores them."""
    also: Any = said.also
    if not also:
        return {}
    if not isinstance(also, list | tuple) or not all(isinstance(i, str) for i in cast("Sequence[Any]", also)):
        raise AnswerRefused(callback.id, f"also={also!r:.80}: use a list of callback ids")
    if said.pattern is None:
        raise AnswerRefused(callback.id, "`also` lists calls that a pattern covers: give the pattern, too")
    return {"also": list(cast("Sequence[str]", also))}


# --- an approval for the session --------------------------------------------------------

COVERED = 100_000
"""Bytes of JSON of the calls that are listed beside one pattern of an approval."""


def covered_calls(callback: Callback, others: Iterable[Callback]) -> dict[str, tuple[CoveredCall, ...]]:
    """For each pattern of an approval, the calls among `others` that wait for a person and that it covers.

    Only as many as can be shown beside it: a call that is left out stays open, as nobody saw it.
    """
    waiting = [one for one in others if one.status == "open" and one.target == "user" and one.id != callback.id]
    covers: dict[str, tuple[CoveredCall, ...]] = {}
    for name in callback.patterns:
        room, found = COVERED, list[CoveredCall]()
        for one in waiting:
            if _matches(callback, one, name):
                room -= len(msgspec.json.encode(one.args))
                if room < 0:
                    break
                found.append(CoveredCall(one.id, one.args or {}))
        if found:
            covers[name] = tuple(found)
    return covers


def settled_with(
    callback: Callback, event: CallbackAnswered, others: Iterable[Callback], now: float
) -> list[CallbackAnswered]:
    """The events that settle the open approvals which an approval or rejection for the session covers too.

    Those of equal calls always; by a pattern only those that the answer names, because the approver saw them. An id
    that the pattern does not cover is refused: nothing is approved that was not shown.
    """
    answer: dict[str, Any] = event.value
    if not answer.get("for_session"):
        return []
    edited, pattern = answer.get("args"), answer.get("pattern")
    digest = callback.digest if edited is None else approval_digest(callback.tool, edited)
    mine = {one.id: one for one in others if one.gate and one.session_id == callback.session_id}
    also: list[str] = answer.get("also", [])
    for callback_id in also:
        if callback_id not in mine or not _matches(callback, mine[callback_id], pattern or ""):
            problem = f"{callback_id!r:.80} is not a call of this session that the pattern {pattern!r} covers"
            raise AnswerRefused(callback.id, problem)
    once: dict[str, Any] = {"approve": False, "reason": answer.get("reason", ""), "for_session": False}
    if answer["approve"]:
        once = {"approve": True, "args": None, "for_session": False, "pattern": None}
    return [
        CallbackAnswered(one.id, once, event.by, event.right, covered_by=callback.id)
        for one in mine.values()
        if one.id != callback.id
        and one.status == "open"
        and (one.expires is None or one.expires > now)
        and (one.digest == digest or one.id in also)
    ]


def _matches(approved: Callback, other: Callback, pattern: str) -> bool:
    """Tell whether a pattern of an approval covers another call of its session."""
    if not other.gate or other.session_id != approved.session_id or other.tool != approved.tool:
        return False
    return pattern in approved.patterns and other.patterns.get(pattern) == approved.patterns[pattern]


_APPROVE_KEYS = {"approve", *Approve.__struct_fields__}


def _read(callback_id: str, value: Any) -> Approve | Reject:
    match value:
        case Approve() | Reject():
            return value
        case "approve":
            return Approve()
        case "reject":
            return Reject()
        case {"approve": False}:
            return _rejection(value)
        case {"reason": _} if value.get("approve") is None and value.get("args") is None:
            return _rejection(value)
        case {"approve": True} | {"args": dict()} if value.get("approve", True) is True:
            if unknown := sorted(map(str, value.keys() - _APPROVE_KEYS)):  # "only if …" must not be dropped
                known = ", ".join(sorted(_APPROVE_KEYS))
                raise AnswerRefused(
                    callback_id, f"unknown key {', '.join(unknown):.80} in an approval; the keys are {known}"
                )
            try:
                return msgspec.convert({k: v for k, v in value.items() if v is not None}, Approve)
            except msgspec.ValidationError as error:
                raise AnswerRefused(callback_id, f"it is not a valid Approve(): {error}") from None
        case _:
            wanted = "Approve(), Approve(args={...}) or Reject('why') (or 'approve', 'reject')"
            raise AnswerRefused(callback_id, f"it asks for an approval: answer with {wanted}, not {brief(value)}")


def _rejection(value: Mapping[str, Any]) -> Reject:
    return Reject(str(value.get("reason", "")), bool(value.get("for_session", False)))


def already_settled(callback: Callback) -> AlreadySettled:
    """Return the error for an answer that came after another one."""
    by = callback.answer.by if callback.answer is not None else ""
    return AlreadySettled(callback.id, callback.status, by, callback.settled_at or callback.expires or 0.0)
