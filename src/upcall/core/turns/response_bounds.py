"""Keep a model's response within bounds, whichever model or hook made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from upcall.errors import ResponseTooLarge
from upcall.messages import NO_USAGE, Call, Response, Usage, replace_surrogates
from upcall.safety.bounds import ARGUMENTS, CALLS, TEXT, TOKENS, excess, token_count

_LONGEST_NAME = 200
"""Characters of the name by which a model calls a tool (no tool has more than 64), and of its own name."""


def bounded(response: Response, model: str) -> Response:
    """The response with its calls and its usage within bounds, whichever model or hook made it."""
    used, text, calls = response.usage, response.text, response.calls
    if used is not NO_USAGE and not _is_plausible(used):
        read = token_count(used.input_tokens)
        cached = min(read, token_count(used.cached_tokens))
        stored = min(read - cached, token_count(used.cache_written_tokens))
        counted = Usage(read, token_count(used.output_tokens), cached, stored)
        response = response.replace(usage=counted)
    if len(text) > TEXT or (response.thinking and sum(len(t.text) for t in response.thinking) > TEXT):
        raise ResponseTooLarge(model, f"more than {TEXT:,} characters of text in one response")
    if len(response.stop) > _LONGEST_NAME or len(response.model) > _LONGEST_NAME:
        response = response.replace(stop=response.stop[:_LONGEST_NAME], model=response.model[:_LONGEST_NAME])
    if not calls and not response.thinking and text.isascii():
        return response
    if len(calls) > CALLS:
        raise ResponseTooLarge(model, f"{len(calls)} tool calls in one response; at most {CALLS} are accepted")
    for call in calls:
        if len(call.name) > _LONGEST_NAME or not _is_object(call.args) or excess(call.args, ARGUMENTS):
            response = response.replace(calls=[_bounded_call(call) for call in calls])
            break
    return response if _can_be_stored(response) else _without_surrogates(response)


def _can_be_stored(response: Response) -> bool:
    """Tell whether the response has no lone surrogates. Providers send none, but a model written in Python may."""
    try:
        msgspec.json.encode((response.text, response.thinking, response.calls))
    except UnicodeEncodeError:
        return False
    return True


def _without_surrogates(response: Response) -> Response:
    thinking = tuple(one.replace(text=replace_surrogates(one.text)) for one in response.thinking)
    calls = [one.replace(name=replace_surrogates(one.name), args=_storable(one.args)) for one in response.calls]
    return response.replace(text=replace_surrogates(response.text), thinking=thinking, calls=calls, layout=())


def _storable(value: Any) -> Any:
    """Replace the lone surrogates in all texts of a JSON value."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {_storable(name): _storable(one) for name, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_storable(one) for one in cast("Sequence[Any]", value)]
    return value


def _is_plausible(used: Usage) -> bool:
    """Tell whether these are numbers of tokens: none is negative, and no more were cached than were read."""
    read, written, cached, stored = (
        used.input_tokens,
        used.output_tokens,
        used.cached_tokens,
        used.cache_written_tokens,
    )
    whole = type(read) is int and type(written) is int and type(cached) is int and type(stored) is int
    if not whole or cached < 0 or stored < 0:
        return False
    return cached + stored <= read <= TOKENS and 0 <= written <= TOKENS


def _is_object(args: Any) -> bool:
    return isinstance(args, dict)


def _bounded_call(call: Call) -> Call:
    if len(call.name) > _LONGEST_NAME:
        call = call.replace(name=f"{call.name[:_LONGEST_NAME]}…")
    problem = excess(call.args, ARGUMENTS) if _is_object(call.args) else "the arguments are not a JSON object"
    return call.replace(args={}, broken=f"({problem})") if problem else call
