"""Keep a model's response within bounds, whichever model or hook made it."""

from __future__ import annotations

from upcall.errors import ResponseTooLarge
from upcall.messages import NO_USAGE, Call, Response, Usage
from upcall.safety.bounds import ARGUMENTS, CALLS, TEXT, TOKENS, excess, token_count

_LONGEST_NAME = 200
"""Characters of the name by which a model calls a tool (no tool has more than 64), and of its own name."""


def bounded(response: Response, model: str) -> Response:
    """The response with its calls and its usage within bounds, whichever model or hook made it."""
    used = response.usage
    if used is not NO_USAGE and not _is_plausible(used):
        read = token_count(used.input_tokens)
        counted = Usage(read, token_count(used.output_tokens), min(read, token_count(used.cached_tokens)))
        response = response.replace(usage=counted)
    if len(response.text) > TEXT or (response.thinking and sum(len(t.text) for t in response.thinking) > TEXT):
        raise ResponseTooLarge(model, f"more than {TEXT:,} characters of text in one response")
    if len(response.stop) > _LONGEST_NAME or len(response.model) > _LONGEST_NAME:
        response = response.replace(stop=response.stop[:_LONGEST_NAME], model=response.model[:_LONGEST_NAME])
    if len(response.calls) > CALLS:
        raise ResponseTooLarge(
            model, f"{len(response.calls)} tool calls in one response; at most {CALLS} are taken"
        )
    for call in response.calls:
        if len(call.name) > _LONGEST_NAME or excess(call.args, ARGUMENTS):
            return response.replace(calls=[_bounded_call(call) for call in response.calls])
    return response


def _is_plausible(used: Usage) -> bool:
    """Tell whether these are numbers of tokens: none is negative, and no more were cached than were read."""
    read, written, cached = used.input_tokens, used.output_tokens, used.cached_tokens
    whole = type(read) is int and type(written) is int and type(cached) is int
    return whole and 0 <= cached <= read <= TOKENS and 0 <= written <= TOKENS


def _bounded_call(call: Call) -> Call:
    if len(call.name) > _LONGEST_NAME:
        call = call.replace(name=f"{call.name[:_LONGEST_NAME]}…")
    problem = excess(call.args, ARGUMENTS)
    return call.replace(args={}, broken=f"({problem})") if problem else call
