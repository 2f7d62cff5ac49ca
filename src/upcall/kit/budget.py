"""Limit what a whole run tree may use; beyond it, turns end with status `limit`. Children inherit the budget."""

from __future__ import annotations

from upcall.agent import Kit
from upcall.contracts import SessionAccess, Spent
from upcall.errors import BadKit, LimitReached
from upcall.hooks import Hooks, inherited
from upcall.kit.numbers import check_number
from upcall.messages import Request, Usage
from upcall.prices import Prices, cost_of, price_problem

_SHARE = 0.9
"""The part of a budget that may be used before agents stop answering questions from below."""


def budget(
    tokens: int | None = None,
    money: float | None = None,
    calls: int | None = None,
    seconds: float | None = None,
    *,
    prices: Prices | None = None,
) -> Kit:
    """End the turn with the limit `budget.tokens`, `budget.money`, … once a run tree has used that much.

    The budget is checked before every model call. It counts the root session, all its descendants and their side
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
    active = {name: value for name, value in limits.items() if value is not None}
    if not active:
        raise BadKit("budget", "give at least one of tokens, money, calls and seconds")
    for name, value in active.items():
        check_number("budget", name, value, whole=name in ("tokens", "calls"))
    table = _validate_prices(prices or {}, money)

    async def check(session: SessionAccess, request: Request) -> None:
        spent = await session.spent()
        for name, value in active.items():
            used = cost(spent, table) if name == "money" else getattr(spent, name)
            if used >= (_for_questions(name, value) if session.purpose == "side_turn" else value):
                raise LimitReached(f"budget.{name}", f"this run tree has used {used:g} of {value:g}")

    return Kit(Hooks(before_model=[inherited(check)]))


def _for_questions(name: str, value: float) -> float:
    """Return how much of a budget may be used before questions are passed up; the rest is for the turns."""
    return min(value * _SHARE, value - 1 if name == "calls" else value)


def cost(spent: Spent, prices: Prices) -> float:
    """Return the cost of the usage. A model without a price is an error, because its cost can't be limited."""
    return sum(_cost(model, used, prices) for model, used in spent.usage.items())


def _cost(model: str, used: Usage, prices: Prices) -> float:
    found = cost_of(model, used, prices)
    if found is None:
        raise BadKit(
            "budget", f"prices has no entry for the model {model!r}; it has entries for: {', '.join(prices)}"
        )
    return found


def _validate_prices(prices: Prices, money: float | None) -> Prices:
    if bool(prices) != (money is not None):
        example = "prices={'claude-*': (3.0, 15.0)}, for a million tokens of input and output"
        raise BadKit("budget", f"give money and prices together: {example}")
    if problem := price_problem(prices):
        raise BadKit("budget", problem)
    return dict(prices)
