"""Halves of characters, which JSON can't hold: they are replaced in time, wherever they come from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcall import Agent, Runtime, tool
from upcall.messages import replace_surrogates
from upcall.models import Script, call

from .measuring import measured

HALVES = {
    "lone": "\ud800" * 4_000_000,
    "every other": "a\udc00" * 2_000_000,
    "pairs": "\ud83d\ude00" * 2_000_000,
    "among question marks": "?\ud800" * 2_000_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HALVES)
async def test_a_result_of_halves_of_characters_does_not_hold_the_loop(name: str) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return HALVES[name]

    agent = Agent("a", model=Script([call("look"), "end"]), tools=[look])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        async with measured() as took:
            await session.prompt("go")
    took.check()


@given(st.text(st.sampled_from('\ud800\udbff\udc00\udfff\0?ab\U0001f600\ue000\\"\n')))
def test_pairs_become_their_character_and_each_other_half_a_replacement(text: str) -> None:
    assert replace_surrogates(text) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
