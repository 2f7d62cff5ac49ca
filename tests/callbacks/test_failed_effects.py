"""An effect of `once` that raised raises the same type of exception when its call runs again after a wait."""

from __future__ import annotations

from typing import Any

import pytest

from callbacks.doubles import Desk
from upcall import Agent, Context, Request, UpcallError, tool
from upcall.errors import RuntimeClosed, StoreUnavailable
from upcall.models import Script, call


class CardDeclined(Exception):
    """The first card has no money."""


class Strict(Exception):
    """An exception that can't be made from its text."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(code, why)
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


def calls(name: str) -> Script:
    """A model that calls a tool once, and says what came of it."""

    def says(request: Request) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call(name)

    return Script(says)


def buyer(error: Exception, *caught: type[Exception]) -> tuple[Agent, list[str]]:
    """An agent that pays, and asks for another card where that raises one of these."""
    tried: list[str] = []

    def pay(card: str) -> str:
        tried.append(card)
        if card == "old":
            raise error
        return f"paid with {card}"

    @tool
    async def charge(ctx: Context) -> str:
        """Pay."""
        try:
            return await ctx.once("charge", pay, "old")
        except caught as failed:
            card = await ctx.raise_callback("which other card?", "blocker")
            return f"{await ctx.once('charge again', pay, card)} after {failed}"

    return Agent("buyer", model=calls("charge"), tools=[charge]), tried


async def test_code_that_handles_what_an_effect_raised_continues_alike_after_a_wait(place: Desk) -> None:
    agent, tried = buyer(CardDeclined("no funds"), CardDeclined)
    assert (await place.prompt(agent)).status == "waiting"
    await place.settle(agent, "new")
    assert (await place.resume(agent)).text == "paid with new after no funds"
    assert tried == ["old", "new"]


async def test_an_exception_that_can_not_be_made_again_is_told_in_words(place: Desk) -> None:
    agent, tried = buyer(Strict(7, why="no"), Strict, UpcallError)
    await place.prompt(agent)
    await place.settle(agent, "new")
    assert "failed when it ran: Strict: code 7" in (await place.resume(agent)).text
    assert tried == ["old", "new"]


async def test_an_effect_whose_value_is_not_json_has_failed_and_its_outcome_is_known(place: Desk) -> None:
    ran: list[str] = []

    @tool
    async def make(ctx: Context) -> str:
        """Make something that can't be stored."""
        try:
            await ctx.once("make", lambda: ran.append("made") or object())
        except UpcallError as error:
            return f"{await ctx.raise_callback('what now?', 'blocker')}: {error}"
        raise AssertionError

    agent = Agent("maker", model=calls("make"), tools=[make])
    await place.prompt(agent)
    await place.settle(agent, "stop")
    text = (await place.resume(agent)).text
    assert (text.startswith("stop: "), "takes only JSON values" in text, ran) == (True, True, ["made"])


@pytest.mark.parametrize("error", [RuntimeClosed(), StoreUnavailable("other.db", "locked"), KeyError("sku")])
async def test_what_another_runtime_raised_inside_an_effect_does_not_stop_the_turn(
    place: Desk, error: Exception
) -> None:
    ran: list[str] = []

    @tool(repeatable=True)
    async def use(ctx: Context) -> str:
        """Use another runtime, and ask if that fails."""

        def effect() -> None:
            ran.append("ran")
            raise error

        try:
            await ctx.once("use", effect)
        except (UpcallError, KeyError) as failed:
            return f"{await ctx.raise_callback('what now?', 'blocker', key='now')}: {failed}"
        raise AssertionError

    agent = Agent("a", model=calls("use"), tools=[use])
    assert (await place.prompt(agent)).status == "waiting"
    await place.settle(agent, "stop")
    reply = await place.resume(agent)
    assert (reply.status, reply.text.startswith("stop: "), ran) == ("done", True, ["ran"])
