"""What a whole run tree may use before its turns end with `limit`. Children inherit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from upcall.agent import Kit
from upcall.contracts import SessionAccess, Spent
from upcall.errors import BadKit, LimitReached
from upcall.hooks import Hooks, inherited
from upcall.kit.numbers import check_number
from upcall.messages import Request, Usage

_SHARE = 0.9
"""The part of a budget up to which agents answer questions from below."""

Prices = Mapping[str, Sequence[float]]


def budget(
    tokens: int | None = None,
    money: float | None = None,
    calls: int | None = None,
    seconds: float | None = None,
    *,
    prices: Prices | None = None,
) -> Kit:
    """End the turn with the limit `budget.tokens`, `budget.money`, … once a run tree has used that much.

    The budget is checked before every model call. It counts the root session, all that it started and their side
    turns, in all their turns. Once nine tenths are used, questions from below are passed up instead of answered:
    the last tenth is for the turns, so that no agent ends the turn of another by asking.

    tokens: input and output tokens
    money: in the currency of `prices`, which it needs
    calls: model calls
    seconds: running time
    prices: by a glob of the model's name, the price of a million tokens: input, output and, where they are cheaper,
        cached input
    """
    limits = {"tokens": tokens, "money": money, "calls": calls, "seconds": seconds}
    most = {name: value for name, value in limits.items() if value is not None}
    if not most:
        raise BadKit("budget", "give at least one of tokens, money, calls and seconds")
    for name, value in most.items():
        check_number("budget", name, value, whole=name in ("tokens", "calls"))
    table = _checked(prices or {}, money)

    async def check(session: SessionAccess, request: Request) -> None:
        spent = await session.spent()
        for name, value in most.items():
            used = cost(spent, table) if name == "money" else getattr(spent, name)
            if used >= (_for_questions(name, value) if session.purpose == "side_turn" else value):
                raise LimitReached(f"budget.{name}", f"{used:g} of {value:g} are used in this run tree")

    return Kit(Hooks(before_model=[inherited(check)]))


def _for_questions(name: str, value: float) -> float:
    """Return how much of a budget may be used before questions are passed up; the rest is for the turns."""
    return min(value * _SHARE, value - 1 if name == "calls" else value)


def cost(spent: Spent, prices: Prices) -> float:
    """What it has cost; a model without a price is an error, because it can't be kept to a budget."""
    return sum(_cost(model, used, prices) for model, used in spent.usage.items())


def _cost(model: str, used: Usage, prices: Prices) -> float:
    for glob, price in prices.items():
        if fnmatchcase(model, glob):
            cached = price[2] if len(price) == 3 else price[0]
            fresh = used.input_tokens - used.cached_tokens
            return (fresh * price[0] + used.cached_tokens * cached + used.output_tokens * price[1]) / 1e6
    raise BadKit("budget", f"prices has none for the model {model!r}; it has: {', '.join(prices)}")


def _checked(prices: Prices, money: float | None) -> Prices:
    if bool(prices) != (money is not None):
        example = "prices={'claude-*': (3.0, 15.0)}, for a million tokens of input and output"
        raise BadKit("budget", f"money and prices belong together: {example}")
    for glob, price in prices.items():
        if isinstance(price, str) or len(price) not in (2, 3) or not all(p >= 0 for p in price):
            raise BadKit("budget", f"prices[{glob!r}]={price!r} is not (input, output) or (input, output, cached)")
    return dict(prices)
