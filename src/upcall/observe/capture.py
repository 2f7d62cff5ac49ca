"""The JSON of a model call: its request and its response, for a debug panel."""

from __future__ import annotations

import os
from typing import Any, cast

from upcall.contracts import ModelCall
from upcall.errors import SetupError
from upcall.messages import Request
from upcall.observe.node_table import usage_json
from upcall.observe.option_files import read_mapping
from upcall.observe.redact import Redactor
from upcall.observe.wire_json import exchange_json
from upcall.prices import Cost, Prices, cost_of, price_problem

NO_PRICE = "no price is known for the model {!r}; give one with --prices FILE"


def read_prices(path: str | os.PathLike[str]) -> Prices:
    """Read the prices of a JSON or TOML file: `{"claude-*": [3.0, 15.0, 0.3]}`, for a million tokens."""
    prices = cast("Prices", read_mapping(path, "a file of prices"))
    if problem := price_problem(prices):
        raise SetupError(f"{path}: {problem}")
    return prices


def price_list(prices: Prices) -> Cost:
    """Return a function that says what tokens of a model cost, for `RunTreeNodes(cost=…)`."""
    return lambda model, usage: cost_of(model, usage, prices)


def model_call_json(call: ModelCall, redactor: Redactor, cost: Cost | None = None) -> dict[str, Any]:
    """Return a model call as JSON: `request` and `response`, redacted. `response` is None while there is none.

    Without a price, `cost` is None and `cost_note` says why; it is never 0. `wire` has what went over the wire, if
    that was captured.
    """
    wire = [exchange_json(one, redactor) for one in call.wire]
    return {"request": _request(call, redactor), "response": _response(call, redactor, cost), "wire": wire}


def _request(call: ModelCall, redactor: Redactor) -> dict[str, Any]:
    request: Request = call.request
    provider, _, model = call.model.rpartition(":")
    shown = redactor.show(request.replace(messages=list(request.messages)))
    return {
        "type": "request",
        "time": call.started,
        "agent": request.agent,
        "purpose": request.purpose,
        "provider": redactor.text(provider),
        "model": redactor.text(model),
        "instructions": shown["instructions"],
        "messages": shown["messages"],
        "tools": shown.get("tools", []),
        "output": shown.get("output"),
        "settings": shown.get("settings") or {},
    }


def _response(call: ModelCall, redactor: Redactor, cost: Cost | None) -> dict[str, Any] | None:
    ended = call.ended
    if ended is None:
        return None
    head = {"type": "response", "time": ended, "seconds": max(ended - call.started, 0.0)}
    if call.response is None:
        return {**head, "error": redactor.text(call.error)}
    response = call.response
    shown = redactor.show(response)
    model = response.model or call.model.rpartition(":")[2]
    price = cost(model, response.usage) if cost is not None else None
    note = "" if price is not None else NO_PRICE.format(redactor.text(model))
    return {
        **head,
        "text": shown.get("text", ""),
        "thinking": shown.get("thinking", []),
        "calls": shown.get("calls", []),
        "stop": response.stop,
        "model": redactor.text(model),
        "usage": usage_json(response.usage),
        "cost": price,
        "cost_note": note,
        "by_hook": call.by_hook,
        "changed_by_hook": call.changed_by_hook,
    }
