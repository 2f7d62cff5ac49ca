"""Write down what goes over the wire in a model call, as the difference to the call before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from upcall.core.turns.turn import Turn
from upcall.events import WireCaptured, WireExchange
from upcall.messages import Request, Response
from upcall.wire import TappedExchange, WireTap, begin_tap, end_tap


async def ask_and_capture(turn: Turn, request: Request, emit: Any, ordinal: int) -> Response:
    """Ask the turn's model, and log what went over the wire."""
    tap = WireTap()
    token = begin_tap(tap)  # no context manager: most of what a capture costs a scripted turn would be that
    try:
        return await turn.actor.model.respond(request, emit)
    finally:
        end_tap(token)
        if tap.exchanges:
            turn.log.add(WireCaptured(ordinal, _differences(turn.state.last_sent, tap.exchanges)))


def _differences(before: str, exchanges: Sequence[TappedExchange]) -> tuple[WireExchange, ...]:
    made: list[WireExchange] = []
    for exchange in exchanges:
        sent = exchange.body.decode("utf-8", "replace")
        made.append(_difference(before, sent, exchange))
        before = sent
    return tuple(made)


def _difference(before: str, sent: str, exchange: TappedExchange) -> WireExchange:
    start = common_start(before, sent)
    most = min(len(before), len(sent)) - start
    end = common_start(before[::-1][:most], sent[::-1][:most]) if most else 0
    return WireExchange(
        exchange.url,
        exchange.status,
        start,
        end,
        sent[start : len(sent) - end],
        exchange.response.decode("utf-8", "replace"),
        exchange.received_bytes,
    )


def common_start(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
