"""A model that plays scripted replies: for tests, examples and programs that need no judgement."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

from upcall.contracts import Emit
from upcall.errors import ScriptExhausted, SetupError
from upcall.messages import Call, Request, Response

Plain = str | Call | Response | BaseException | type[BaseException] | Sequence["str | Call"]
Decide = Callable[[Request], "Plain | Awaitable[Plain]"]
Reply = Plain | Decide

_WORD = re.compile(r"\s*\S+\s*|\s+")


def call(tool: str, /, **args: Any) -> Call:
    """Make a tool call for a Script.

    tool: the tool's name; positional only, so that an argument may have any name
    **args: its arguments
    """
    return Call("", tool, args)


class Script:
    """A model that plays scripted replies: for tests, examples and offline work.

    A reply is a text, a call, a list of text and calls, a Response, an exception to raise, or a function of the
    request, sync or async, that returns one of these.

    replies: a list of replies, played in order; when it runs out, ScriptExhausted is raised. Or one function, which
        is called for every request: it decides from the request alone, so it also continues in another process.
    name: the model's name in the log
    """

    def __init__(self, replies: Iterable[Reply] | Decide, *, name: str = "script") -> None:
        if isinstance(replies, str):
            raise SetupError(f"Script takes a list of replies: Script([{replies[:40]!r}])")
        self.name = name
        self._decide = replies if callable(replies) else None
        items = () if callable(replies) else replies
        # built once here, so that playing is cheap
        self._replies = [r if _is_function(r) else _to_response(r) for r in items]
        self._next = 0

    def __repr__(self) -> str:
        return (
            f"Script(<{self._next} of {len(self._replies)} played>)" if not self._decide else "Script(<function>)"
        )

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        """Return the next reply; its text is emitted word by word."""
        if self._decide is not None:
            reply = self._decide(request)
        elif self._next < len(self._replies):
            reply = self._replies[self._next]
            self._next += 1
            if callable(reply) and not isinstance(reply, type):
                reply = reply(request)
        else:
            raise ScriptExhausted(len(self._replies))
        if not isinstance(reply, Response):
            reply = await self._resolve(reply)
        if emit is not None:
            _emit_words(reply, emit)
        return reply

    async def _resolve(self, reply: Any) -> Response:
        if hasattr(reply, "__await__"):
            reply = await reply
        built = _to_response(reply)
        if isinstance(built, Response):
            return built
        raise built


def _is_function(reply: object) -> bool:
    return callable(reply) and not isinstance(reply, type)


def _to_response(reply: object) -> Response | BaseException | type[BaseException]:
    if isinstance(reply, str):
        return Response(reply)
    if isinstance(reply, Call):
        return Response(calls=(reply,))
    if isinstance(reply, Response | BaseException):
        return reply
    if isinstance(reply, type):
        if issubclass(reply, BaseException):
            return reply
    elif isinstance(reply, list | tuple):
        parts = cast("Sequence[object]", reply)
        text = [p for p in parts if isinstance(p, str)]
        calls = tuple(p for p in parts if isinstance(p, Call))
        if len(text) + len(calls) == len(parts):
            return Response("".join(text), calls)
    raise SetupError(
        f"a Script can't reply with {reply!r}; give text, call(...), a list of calls, a Response or an error"
    )


def _emit_words(response: Response, emit: Emit) -> None:
    for thought in response.thinking:
        emit("thinking", thought.text)
    for word in _WORD.findall(response.text):
        emit("text", word)
