"""Validate the arguments of raise_callback, and turn a settled callback into what the asker gets."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec

from upcall.callbacks import (
    KINDS,
    PRIORITIES,
    Callback,
    Hints,
    Kind,
    intent_warning,
    meant_intent,
    normal_kind,
    question_digest,
)
from upcall.core.routing.answer import LARGEST, route_of, schema_error
from upcall.core.routing.explain import explain_unresolved, printable
from upcall.errors import CallbackExpired, CallbackUnresolved, UpcallError
from upcall.messages import Value
from upcall.safety.bounds import DEPTH, KEPT, TooLarge, brief, plain

log = logging.getLogger("upcall")


NO_DEFAULT: Any = object()
"""No default was given: None is a default like any other."""

_NO_HINTS = Hints()


class Question(Value, frozen=True):
    """The arguments of raise_callback, validated; or the approval of a call.

    digest: what a repeated question is matched by
    given: what the asker gave as context
    timeout: in seconds
    gate: it approves the call of `tool` with `args`; `patterns` are those that the approver may pick
    """

    message: str
    intent: str
    kind: Kind
    digest: str
    priority: str = "normal"
    choices: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None
    given: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    has_default: bool = False
    default: Any = None
    required: bool | None = None
    timeout: float | None = None
    hints: Hints = _NO_HINTS
    gate: bool = False
    tool: str = ""
    args: dict[str, Any] | None = None
    patterns: dict[str, str] = msgspec.field(default_factory=dict[str, str])


_LONGEST_KEY = 1000

LONGEST_TIMEOUT = 10**9
"""Seconds: about thirty years. Times beyond that can't be shown as a date."""


def ask(
    message: str,
    callback_type: str = "query",
    *,
    kind: str = "callback_to_caller",
    choices: Sequence[str] = (),
    schema: Mapping[str, Any] | None = None,
    context: Any = None,
    priority: str = "normal",
    timeout: float | None = None,
    default: Any = NO_DEFAULT,
    key: str | None = None,
    required: bool | None = None,
    **hints: Any,
) -> Question:
    """Return the validated question; UpcallError tells the code that asks what is wrong with it."""
    _check_texts(message, callback_type, key)
    for name, value, allowed in (("kind", kind, KINDS), ("priority", priority, PRIORITIES)):
        if value not in allowed:
            raise UpcallError(f"{name}={brief(value)} is not one of {', '.join(allowed)}")
    if default is not NO_DEFAULT and meant_intent(callback_type) == "approval":
        like = f" ({intent_warning(callback_type)})" if callback_type != "approval" else ""
        raise UpcallError(f"an approval can't have a default: a call that nobody approved must not run{like}")
    if required not in (None, True, False) or type(required) is int:
        raise UpcallError(f"required={brief(required)}: use True, False, or None to let the intent decide")
    if timeout is not None and not (type(timeout) in (int, float) and 0 < timeout <= LONGEST_TIMEOUT):
        raise UpcallError(f"timeout={brief(timeout)}: seconds above 0 and at most {LONGEST_TIMEOUT:,}, or None")
    if choices != () or schema is not None:
        _check_shape(choices, schema)
    if context and not isinstance(context, Mapping):
        context = {"context": context}
    shape, fallback = None if schema is None else dict(schema), None if default is NO_DEFAULT else default
    given_hints = _hints(hints) if hints else _NO_HINTS
    parts: list[Any] = [message, choices, shape, context or {}, fallback]
    message, picked, shape, helps, fallback, _ = _plain([*parts, [callback_type, hints]])
    if default is not NO_DEFAULT:
        _check_default(picked, shape, fallback)
    asked = normal_kind(kind, callback_type)
    digest = question_digest(message, callback_type, asked, picked, shape or None, key)
    return Question(
        message, callback_type, asked, digest, priority, tuple(picked), shape, helps,
        default is not NO_DEFAULT, fallback, required, timeout, given_hints,
    )  # fmt: skip


def _check_texts(message: Any, intent: Any, key: Any) -> None:
    for name, text in (("message", message), ("intent", intent)):
        if not isinstance(text, str):
            raise UpcallError(f"the {name} of raise_callback must be a string, not {brief(text)}")
        if not text.strip():
            raise UpcallError("raise_callback needs a message and an intent such as 'query' or 'blocker'")
    if key is not None and not (isinstance(key, str) and len(key) <= _LONGEST_KEY):
        raise UpcallError(f"key={brief(key)}: use a string of at most {_LONGEST_KEY} characters")


def asking(message: Any, callback_type: str, options: dict[str, Any]) -> Question:
    """Return `ask(...)`, cached for short texts.

    Code that is entered again after a wait asks the same again; checking it only once saves 7 % of W3.
    """
    texts = (message, callback_type, *options.values())
    is_short = {*map(type, texts)} <= _TEXT and sum(map(len, texts)) < 1000
    return (_kept if is_short else ask)(message, callback_type, **options)


_kept, _TEXT = lru_cache(1000)(ask), {str}


def _check_shape(choices: Any, schema: Any) -> None:
    # a bare string is a sequence of letters: choices="yes" would offer y, e and s
    are_texts = isinstance(choices, list | tuple) and all(isinstance(c, str) and c for c in cast("Any", choices))
    if not are_texts:
        raise UpcallError(f"choices must be a list of strings, such as ['yes', 'no'], not {brief(choices)}")
    if choices and schema is not None:
        raise UpcallError("give choices or a schema, not both")
    if schema is not None and not isinstance(schema, Mapping):
        raise UpcallError(f"schema must be a JSON schema, such as {{'type': 'string'}}, not {brief(schema)}")
    if schema is not None and (problem := schema_error(cast("Mapping[str, Any]", schema))):
        raise UpcallError(f"no answer can match the schema: {problem}")


def _hints(hints: dict[str, Any]) -> Hints:
    try:
        return Hints.build(**hints)
    except TypeError as error:
        raise UpcallError(f"raise_callback: {error}") from None


def _plain(parts: list[Any]) -> list[Any]:
    """Return the texts and values of a callback as JSON gives them back; UpcallError if they are too large."""
    try:
        return plain(parts, LARGEST, DEPTH + 1)
    except TooLarge as error:
        most = f"a callback may have at most {LARGEST} bytes of JSON, nested at most {DEPTH} levels deep"
        raise UpcallError(f"{most}: {error}. Store the data elsewhere and give its path") from None
    except ValueError as error:
        raise UpcallError(f"a callback can contain only JSON values: {error}") from None


def plain_json(what: str, value: Any) -> Any:
    """Return a value as JSON gives it back; UpcallError if JSON can't hold it or it is too large to store."""
    try:
        return plain(value, KEPT)
    except TooLarge as error:
        most = f"takes at most {KEPT} bytes of JSON, nested at most {DEPTH} levels deep"
        raise UpcallError(f"{what} {most}: {error}. Store the data elsewhere and keep its path") from None
    except ValueError as error:
        raise UpcallError(f"{what} takes only JSON values: {error}") from None


def _check_default(choices: Sequence[str], schema: dict[str, Any] | None, default: Any) -> None:
    if choices and default not in choices:
        raise UpcallError(f"default={brief(default, 200)} is not one of the choices")
    if schema is not None and (why := schema_error(schema, default)):
        raise UpcallError(f"default={brief(default, 200)} does not fit the schema: {why}")


def outcome_of(callback: Callback) -> Any:
    """Return what `raise_callback` returns: the answer, the default, or None with a warning; or raise."""
    if callback.status == "answered" and callback.answer is not None:
        return callback.answer.value
    if callback.has_default:  # whyever there is no answer
        return callback.default
    if callback.status == "expired":
        waited = min(callback.expires or math.inf, callback.settled_at) - callback.created
        raise CallbackExpired(callback.id, callback.message, waited)
    route, declined = route_of(callback), callback.answer
    asker, message = callback.agent, callback.message
    if declined is None:
        if route.unresolved == "raise":
            raise CallbackUnresolved(callback.intent, message, asker, explain_unresolved(route, callback.path))
        asked = brief(message, 200)
        log.warning("agent %r asked %s but nobody answered; raise_callback returned None", asker, asked)
        return None
    by, reason = printable(declined.by), printable(declined.reason)
    if route.unresolved == "raise":
        raise CallbackUnresolved(callback.intent, message, asker, (), declined_by=by, reason=reason)
    why = f": {reason}" if reason else ""
    asked = f"agent {asker!r} asked {message!r}"
    log.warning("%s and %s declined%s; raise_callback returned None", asked, by or "somebody", why)
    return None
