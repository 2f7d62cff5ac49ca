"""The hooks of one point, run one after the other: each gets what the one before it made of the value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from upcall.agent import Output
from upcall.callbacks import Answer
from upcall.contracts import Reply
from upcall.core.log.session_log import JOIN_DELAY
from upcall.core.routing.question import plain_json
from upcall.core.turns.access import HookSession
from upcall.core.turns.turn import Turn
from upcall.errors import STOPS, HookFailed, LimitReached, UpcallError
from upcall.hooks import name_of
from upcall.messages import Call, Message, Request, Response, Result, is_blank, json_round_trip, user
from upcall.settings import Settings

Takes = tuple[str, tuple[type, ...], Callable[[Any, str], Any] | None]
_RESPONSE: Takes = ("a Request, a Response, a string", (Request, Response), lambda _, text: Response(text))
TAKES: dict[str, Takes] = {
    "pre_request": ("a Message, a string", (Message,), lambda _, text: user(text)),
    "before_model": _RESPONSE,
    "model_failed": _RESPONSE,
    "post_response": ("a Response, a string", (Response,), lambda response, text: response.replace(text=text)),
    "before_tool": ("a Call, a Result", (Call, Result), None),
    "after_tool": ("a Result, a string", (Result,), lambda result, text: result.replace(text=text, json=None)),
    "on_callback": ("an Answer", (Answer,), None),
    "end_turn": ("a Reply, a string", (Reply,), lambda reply, text: reply.replace(text=text)),
}
"""The values that a hook may return at each point, in words and as types, and the meaning of a string."""


async def run_hooks(turn: Turn, point: str, at: int | str, hooks: Sequence[Any], *args: Any, first: int = 0) -> Any:
    """The last argument as the hooks leave it; a return of another kind than that ends the chain.

    At model_failed it is the request that is handed on: what comes back is the changed one, or the error if no hook
    wants the model to be asked again.
    If they asked somebody before, they wait until they may run again. What one raises fails the turn by its name.
    What they still ask when they have ended is withdrawn.

    first: the number of the first hook among those of its point
    """
    where = f"{point}.{at}" if at else point  # as `origin` names it
    state, value, alone = turn.state, args[-1] if args else None, len(args) == 1
    if state.turn.callbacks:
        await turn.services.wait_until_reenterable(turn, where)
    access, again, last = HookSession(state, turn, where), None, None
    try:
        for number, hook in enumerate(hooks, first):
            access.hook = number
            try:
                out = hook(access, value) if alone else hook(access, *args)
                if out is None:
                    continue
                if type(out) is type(value) is Request:
                    value = _request(value, out)
                    continue
                if hasattr(out, "__await__"):
                    _before_waiting(turn)
                    out = await out
                if out is None or out is value or not args:
                    continue
                out = _taken(turn, point, out, (value,) if alone else args)
            except (*STOPS, LimitReached):
                raise
            except Exception as error:
                raise HookFailed(name_of(hook), point, error) from error
            finally:
                access.check_stopped()
            if isinstance(out, type(value)):
                value, args = out, (args[0], out)
            elif point == "model_failed" and isinstance(out, Request):
                again, args = out, (out, value)
            else:
                last = out
                break
    finally:
        access.end()
    if state.turn.callbacks:
        _end_questions(access, point, hooks)
    return again or value if last is None else last


def _end_questions(access: HookSession, point: str, hooks: Sequence[Any]) -> None:
    """Withdraw what the hooks of a point still ask; HookFailed if they ran again and did not take an answer.

    An answer that reached them before is theirs: they may have noted it, and not ask again. The on_callback hooks
    are not checked, as each of them runs alone, nor is a point that has no hooks any more.
    """
    scope = access.asking()
    access.turn.withdraw_open("the hook that asked has ended", lambda one: one.origin == scope.origin)
    if hooks and point != "on_callback" and any(not one.delivered for one in scope.unused_answers()):
        error = scope.mismatch()
        raise HookFailed(", ".join(map(name_of, hooks)), point, error) from error


def _before_waiting(turn: Turn) -> None:
    """Append what the hooks wrote, as others may look while one waits; a new session is not stored yet."""
    if turn.log.claim is not None:
        turn.log.flush_soon(JOIN_DELAY)


def _taken(turn: Turn, point: str, out: Any, args: tuple[Any, ...]) -> Any:
    """Convert a hook's return value to a type that the point accepts and the log can store."""
    wanted, kinds, of_text = TAKES[point]
    output = turn.actor.output if point == "end_turn" and turn.purpose == "turn" else None
    if output is not None and output.schema is not None:
        out = _typed_reply(args[-1], out, output)
    if not isinstance(out, kinds):
        if of_text is None or not isinstance(out, str):
            raise TypeError(f"returned {type(out).__name__}; {point} hooks must return {wanted} or None")
        out = of_text(args[-1], out)
    if isinstance(out, Request):
        return _request(args[0], out)
    if point == "pre_request" and is_blank(out):
        raise ValueError("returned an empty message; return a non-empty prompt, or None to keep the original")
    kept: Any = out  # the tests below would make a type checker forget what it is a reply of
    if isinstance(out, Reply):
        msgspec.json.decode(msgspec.json.encode(kept.text), type=str)  # refused if it could not be read again
    return kept if isinstance(out, Reply | Answer) else json_round_trip(out)


def _typed_reply(reply: Reply[Any], out: Any, output: Output) -> Any:
    """Return the reply of an end_turn hook with its output checked; a value alone replaces text and output.

    A string stays as it is: it replaces the text.
    """
    if type(out) is str:
        return out
    changed = cast("Reply[Any]", out) if isinstance(out, Reply) else None
    given: Any = cast("Any", out) if changed is None else changed.output
    if changed is not None and given is reply.output:
        return changed
    try:
        plain = plain_json("a reply's output", given)
        value = None if plain is None else output.convert(plain)
    except (TypeError, ValueError, UpcallError) as error:
        what = f"{type(given).__name__}, which" if changed is None else "a Reply whose output"
        takes = f"end_turn hooks must return a Reply, a string, a value of {output.name}, or None"
        raise TypeError(f"returned {what} is not a value of {output.name} ({error}); {takes}") from None
    if changed is not None:
        return changed.replace(output=value)
    return reply.replace(text=msgspec.json.encode(plain).decode(), output=value)


def _settings(before: Settings | None, given: Any) -> Settings | None:
    """The settings of a hook, completed with the earlier ones."""
    if given is None:
        return before
    if not isinstance(given, Settings):
        raise TypeError(f"a request's settings must be a Settings value, not {type(given).__name__}")
    return given.over(before)


def _request(before: Any, out: Request) -> Request:
    """A request is long and mostly what it was: only what is new in it is looked at."""
    text = out.instructions
    told = text is before.instructions or (type(text) is str and text.isascii())
    same = out.tools is before.tools and out.output is before.output and out.agent is before.agent
    if not (told and same and out.purpose is before.purpose):
        json_round_trip(out.replace(messages=()))
    if out.settings is not before.settings:
        out = out.replace(settings=_settings(before.settings, out.settings))
    if out.messages is before.messages:
        return out
    known = {id(message) for message in before.messages}
    messages = [m if id(m) in known else json_round_trip(m) for m in out.messages]
    return out if messages == out.messages else out.replace(messages=messages)
