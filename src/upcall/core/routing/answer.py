"""Validate answers, decode approvals, and show a callback as people and programs read it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec

from upcall.callbacks import (
    PRIORITIES,
    Answer,
    Approve,
    Callback,
    CoveredCall,
    Decline,
    Held,
    Reject,
    Step,
    approval_digest,
)
from upcall.core.error_texts import shown
from upcall.core.routing.route import Route
from upcall.core.schema import words
from upcall.errors import AlreadySettled, AnswerRefused, SetupError
from upcall.events import CallbackAnswered, CallbackDeclined, CallbackRaised
from upcall.messages import replace_surrogates
from upcall.safety.bounds import DEPTH, TooLarge, brief, excess, plain

LARGEST = 1_000_000
"""Bytes of JSON that a callback or an answer may have."""


@lru_cache(1000)
def stored_route(way: Route) -> dict[str, Any]:
    """Return a route as the log stores it; equal routes share one value."""
    return msgspec.to_builtins(way)


def route_of(raised: CallbackRaised) -> Route:
    """Return the route that was fixed when the callback was raised."""
    return msgspec.convert(raised.route, Route)


def callback_of(held: Held, group: tuple[str, ...] = ()) -> Callback:
    """Return a callback as it is now."""
    raised: Any = held.raised
    now: Any = held
    priority = raised.priority if raised.priority in PRIORITIES else "normal"  # of another version
    return Callback(
        raised.callback_id, raised.session, raised.agent, raised.message, raised.intent, raised.kind,
        priority, raised.choices, raised.schema, raised.context, raised.tool, raised.args, raised.digest,
        raised.time, held.expires, _path(raised.route, held.path), now.status,
        answer_of(now.settled, raised.gate) if held.status in ("answered", "declined") else None, group,
        held.message if held.message != raised.message else "", "", raised.given, held.tags, raised.patterns,
    )  # fmt: skip


_ARRIVES: tuple[str, Any, str] = ("", "asked", "")


def _path(way: dict[str, Any], walked: Sequence[tuple[str, Any, str]]) -> tuple[Step, ...]:
    """Return each agent that the callback met, in order, with what happened there and why."""
    if len(walked) == 1 and not way["stations"]:  # straight to the person, as most go
        return (Step(walked[0][0], walked[0][1], way["why"]),)
    path: list[Step] = []
    stations = iter(way["stations"])
    for agent, step, reason in (*walked, _ARRIVES):
        if step in ("asked", "skipped") and not (path and path[-1].step == "asked"):
            reason = reason or way["why"]
            for at in stations:
                if at["step"] == "ask":
                    reason = reason if step == "skipped" else at["reason"]
                    break
                path.append(Step(at["agent"], "skipped", at["reason"]))
        if agent:
            path.append(Step(agent, step, reason))
    return tuple(path)


def answer_of(settled: CallbackAnswered | CallbackDeclined, gate: bool) -> Answer:
    """The answer that an event holds; its value is None if the question was declined."""
    if isinstance(settled, CallbackDeclined):
        return Answer(None, settled.by, settled.right, settled.time, settled.reason)
    value = decode_approval(settled.value) if gate else settled.value
    return Answer(value, settled.by, settled.right, settled.time)


def decode_approval(stored: dict[str, Any]) -> Approve | Reject:
    """Return the answer of an approval from what the log stores."""
    if stored.get("approve"):
        also = tuple(stored.get("also", ()))
        return Approve(stored.get("args"), stored.get("for_session", False), stored.get("pattern"), also)
    return Reject(stored.get("reason", ""), stored.get("for_session", False))


def settling_event(
    raised: CallbackRaised, value: Any, by: str = "", right: str = ""
) -> CallbackAnswered | CallbackDeclined:
    """Return the event by which a person's answer settles a callback; AnswerRefused says why a wrong one can't."""
    if not isinstance(value, Decline):
        return CallbackAnswered(raised.callback_id, validate_answer(raised, value), by, right)
    if raised.gate:
        raise AnswerRefused(raised.callback_id, "an approval is rejected, not declined: answer with Reject('why')")
    return CallbackDeclined(raised.callback_id, _reason(raised, value.reason), by, right)


def check_principal(by: Any, right: Any) -> tuple[str, str]:
    """Return who answers and by what right, as the log stores them; SetupError if they are not valid.

    The rights `agent` and `hook` belong to answers of agents and hooks: nobody else may claim them.
    """
    if not isinstance(by, str) or len(by) > _LONGEST_PRINCIPAL:
        raise SetupError(f"by={brief(by)}: use a text of at most {_LONGEST_PRINCIPAL} characters")
    if not isinstance(right, str) or not _RIGHT.fullmatch(right):
        raise SetupError(f"right={brief(right)}: use 1-50 lower-case letters, digits, '-', '_', '.' or ':'")
    if right in ("agent", "hook"):
        raise SetupError(f"right={right!r}: only agents and hooks answer by that right")
    return replace_surrogates(by), right


_LONGEST_PRINCIPAL = 500
_RIGHT = re.compile("[a-z0-9][a-z0-9._:-]{0,49}")


def _reason(raised: CallbackRaised, reason: Any) -> str:
    if not isinstance(reason, str):
        raise AnswerRefused(raised.callback_id, f"the reason of Decline() is a text, not {brief(reason)}")
    if problem := excess(reason, LARGEST):
        raise _too_large(raised, problem)
    return replace_surrogates(reason)


def validate_answer(raised: CallbackRaised, value: Any) -> Any:
    """Return the answer as the log stores it; AnswerRefused says why an invalid one is not accepted."""
    if isinstance(value, Answer):
        raise AnswerRefused(raised.callback_id, "give the value itself, and who answers as by=")
    if isinstance(value, Decline):
        raise AnswerRefused(raised.callback_id, "only a person may decline a question; agents and hooks pass it up")
    if not raised.gate and isinstance(value, Approve | Reject):
        raise AnswerRefused(raised.callback_id, "it is a question, not the approval of a call: answer with a value")
    if problem := excess(value.args if isinstance(value, Approve) else value, LARGEST):
        raise _too_large(raised, problem)
    try:
        given = plain(_approval(raised, value) if raised.gate else value, LARGEST, DEPTH + 1)
    except TooLarge as error:
        raise _too_large(raised, str(error)) from None
    except ValueError as error:
        raise AnswerRefused(raised.callback_id, f"an answer is what JSON can hold: {error}") from None
    if raised.choices and given not in raised.choices:
        allowed = ", ".join([*map(repr, raised.choices[:20]), *(["…"] if len(raised.choices) > 20 else [])])
        raise AnswerRefused(raised.callback_id, f"{brief(given, 200)} is not one of the choices: {allowed}")
    if raised.schema is not None and not raised.gate:  # of an approval it is that of the arguments
        require_schema(raised.callback_id, raised.schema, given)
    return given


def _too_large(raised: CallbackRaised, problem: str) -> AnswerRefused:
    most = f"an answer may have {LARGEST} bytes of JSON, nested at most {DEPTH} levels deep"
    return AnswerRefused(raised.callback_id, f"{most}: {problem}")


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
        return f"a schema may have {LARGEST} bytes of JSON, nested at most {DEPTH} levels deep: {error}"
    except ValueError as error:
        return f"a schema is what JSON can hold: {error}"


def _approval(raised: CallbackRaised, value: Any) -> dict[str, Any]:
    """Return an approver's answer, given in any accepted form, as the log stores it."""
    said = _read(raised.callback_id, value)
    if isinstance(said, Reject):
        return {"approve": False, "reason": said.reason, "for_session": said.for_session}
    if said.args is not None and raised.schema is not None:
        require_schema(raised.callback_id, raised.schema, said.args)
    if said.pattern is not None and said.pattern not in raised.patterns:
        known = ", ".join(sorted(raised.patterns)) or "none"
        raise AnswerRefused(
            raised.callback_id, f"{said.pattern!r} is not a pattern of {raised.tool}; the patterns are {known}"
        )
    if said.pattern is not None and said.args is not None:
        raise AnswerRefused(raised.callback_id, "a pattern approves the call as it is; leave out args or pattern")
    for_session = said.for_session or said.pattern is not None
    stored: dict[str, Any] = {"args": said.args, "for_session": for_session, "pattern": said.pattern}
    return {"approve": True, **stored, **_also(raised, said)}


def _also(raised: CallbackRaised, said: Approve) -> dict[str, Any]:
    """The ids that an approver was shown beside a pattern, as the log stores them."""
    also: Any = said.also
    if not also:
        return {}
    if not isinstance(also, list | tuple) or not all(isinstance(i, str) for i in cast("Sequence[Any]", also)):
        raise AnswerRefused(raised.callback_id, f"also={also!r:.80}: use a list of callback ids")
    if said.pattern is None:
        raise AnswerRefused(raised.callback_id, "also lists what a pattern covers: say which pattern")
    return {"also": list(cast("Sequence[str]", also))}


# --- an approval for the session --------------------------------------------------------


def covered_calls(held: Held, others: Iterable[Held]) -> dict[str, tuple[CoveredCall, ...]]:
    """For each pattern of an approval, the calls among `others` that wait for a person and that it covers."""
    me = held.raised
    waiting = [one.raised for one in others if one.status == "open" and one.target == "user"]
    covers: dict[str, tuple[CoveredCall, ...]] = {}
    for name in me.patterns:
        found = [one for one in waiting if one.callback_id != me.callback_id and _matches(me, one, name)]
        if found:
            covers[name] = tuple([CoveredCall(one.callback_id, one.args or {}) for one in found])
    return covers


def settled_with(held: Held, event: CallbackAnswered, others: Iterable[Held], now: float) -> list[CallbackAnswered]:
    """The events that settle the open approvals which an approval or rejection for the session covers too.

    Those of equal calls always; by a pattern only those that the answer names, because the approver saw them. An id
    that the pattern does not cover is refused: nothing is approved that was not shown.
    """
    answer: dict[str, Any] = event.value
    if not answer.get("for_session"):
        return []
    raised, edited, pattern = held.raised, answer.get("args"), answer.get("pattern")
    digest = raised.digest if edited is None else approval_digest(raised.tool, edited)
    mine = {
        one.raised.callback_id: one for one in others if one.raised.gate and one.raised.session == raised.session
    }
    also: list[str] = answer.get("also", [])
    for callback_id in also:
        if callback_id not in mine or not _matches(raised, mine[callback_id].raised, pattern or ""):
            problem = f"{callback_id!r:.80} is not a call of this session that the pattern {pattern!r} covers"
            raise AnswerRefused(raised.callback_id, problem)
    once: dict[str, Any] = {"approve": False, "reason": answer.get("reason", ""), "for_session": False}
    if answer["approve"]:
        once = {"approve": True, "args": None, "for_session": False, "pattern": None}
    return [
        CallbackAnswered(callback_id, once, event.by, event.right, covered_by=raised.callback_id)
        for callback_id, one in mine.items()
        if callback_id != raised.callback_id
        and one.status == "open"
        and (one.expires is None or one.expires > now)
        and (one.raised.digest == digest or callback_id in also)
    ]


def _matches(approved: CallbackRaised, other: CallbackRaised, pattern: str) -> bool:
    """Tell whether a pattern of an approval covers another call of its session."""
    if not other.gate or other.session != approved.session or other.tool != approved.tool:
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
        case {"approve": False, **rest} | {"reason": _, **rest}:
            return Reject(str(value.get("reason", "")), bool(rest.get("for_session", False)))
        case {"approve": True} | {"args": dict()} if value.get("approve", True) is True:
            if unknown := sorted(map(str, value.keys() - _APPROVE_KEYS)):  # "only if …" must not be dropped
                known = ", ".join(sorted(_APPROVE_KEYS))
                raise AnswerRefused(
                    callback_id, f"an approval has no {', '.join(unknown):.80}; the patterns are {known}"
                )
            try:
                return msgspec.convert({k: v for k, v in value.items() if v is not None}, Approve)
            except msgspec.ValidationError as error:
                raise AnswerRefused(callback_id, f"it is not a valid Approve(): {error}") from None
        case _:
            wanted = "Approve(), Approve(args={...}) or Reject('why') (or 'approve', 'reject')"
            raise AnswerRefused(callback_id, f"it asks for an approval: answer with {wanted}, not {brief(value)}")


def already_settled(held: Held) -> AlreadySettled:
    """Return the error for an answer that came after another one."""
    settled = held.answer or held.declined
    by = settled.by if settled is not None else ""
    at = held.settled.time if held.settled is not None else held.expires or 0.0
    return AlreadySettled(held.raised.callback_id, held.status, by, at)
