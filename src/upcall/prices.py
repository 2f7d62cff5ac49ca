"""Prices of a million tokens, by a glob of the model's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from upcall.messages import Usage

Prices = Mapping[str, Sequence[float]]
"""Input, output and, where they are cheaper, cached input: `{"claude-*": (3.0, 15.0, 0.3)}`."""

Cost = Callable[[str, Usage], float | None]
"""What tokens of a model cost; None where its price is not known."""


def price_problem(prices: Prices) -> str:
    """Say which price is not one; "" if all are."""
    for glob, price in prices.items():
        given = None if isinstance(price, str | bytes) or not isinstance(price, Sequence) else price  # pyright: ignore[reportUnnecessaryIsInstance]
        if given is None or len(given) not in (2, 3) or not all(_is_amount(one) for one in given):
            return f"prices[{glob!r}]={price!r} is not (input, output) or (input, output, cached)"
    return ""


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def cost_of(model: str, usage: Usage, prices: Prices) -> float | None:
    """Return what tokens of a model cost; None if it has no price."""
    for glob, price in prices.items():
        if fnmatchcase(model, glob):
            cached = price[2] if len(price) == 3 else price[0]
            fresh = usage.input_tokens - usage.cached_tokens
            return (fresh * price[0] + usage.cached_tokens * cached + usage.output_tokens * price[1]) / 1e6
    return None
