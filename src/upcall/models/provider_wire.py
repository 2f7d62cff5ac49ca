"""Capture what pydantic-ai's models send and receive, where their SDK uses an HTTP client with event hooks.

That is httpx, of either version. What goes over gRPC or through boto has no such hooks and is not captured.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import lru_cache
from typing import Any, cast

from upcall.wire import TappedExchange, current_tap

_EXCHANGE = "upcall_exchange"
_NESTED = ("wrapped", "models")
_DEEPEST = 5


def tap_provider(model: Any) -> None:
    """Have a model's HTTP clients tell what they send and receive. Does nothing where nothing is captured."""
    if current_tap() is None:
        return
    for client in _clients(model, _DEEPEST):
        hooks: dict[str, list[Any]] = client.event_hooks
        if _sent not in hooks["request"]:
            client.event_hooks = {
                **hooks,
                "request": [*hooks["request"], _sent],
                "response": [_received, *hooks["response"]],
            }


def _clients(model: Any, depth: int) -> Iterator[Any]:
    """Yield the HTTP clients of a model, and of the models that it asks."""
    provider = getattr(model, "provider", None)
    sdk = getattr(provider, "client", None)
    for client in (getattr(provider, "_own_http_client", None), getattr(sdk, "_client", None)):
        if hasattr(client, "event_hooks"):
            yield client
    for name in _NESTED if depth else ():
        found: Any = getattr(model, name, None)
        models = cast("Sequence[Any]", found if isinstance(found, list | tuple) else (found,))
        for one in models if found is not None else ():
            yield from _clients(one, depth - 1)


async def _sent(request: Any) -> None:
    """Begin an exchange. Its answer is asked for as it is to be read, without compression."""
    tap = current_tap()
    if tap is None:
        return
    request.headers["accept-encoding"] = "identity"
    body: bytes = await request.aread()
    request.extensions = {**request.extensions, _EXCHANGE: tap.sent(str(request.url), body)}


async def _received(response: Any) -> None:
    exchange: TappedExchange | None = response.request.extensions.get(_EXCHANGE)
    if exchange is not None:
        exchange.status = response.status_code
        response.stream = _tapped(cast("type[Any]", type(response.stream)))(response.stream, exchange)


@lru_cache(16)
def _tapped(kind: type[Any]) -> type[Any]:
    """Return a class of streams for the HTTP client that has streams of this kind: it accepts only its own."""
    base: Any = next(one for one in kind.__mro__ if one.__name__ == "AsyncByteStream")

    class Tapped(base):  # pyright: ignore[reportUntypedBaseClass]
        """A response's stream that tells what goes through it."""

        def __init__(self, stream: Any, exchange: TappedExchange) -> None:
            self._stream, self._exchange = stream, exchange

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in self._stream:
                self._exchange.received(piece)
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    return Tapped
