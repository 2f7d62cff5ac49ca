"""Check the arguments of a call without holding the event loop."""

from __future__ import annotations

from functools import partial
from typing import Any

from upcall.core.turns.turn import Turn
from upcall.safety.bounds import ARGUMENTS, excess
from upcall.tools import Tool

_MANY = 10_000
"""Values whose check may take too long for the event loop."""


async def checked(turn: Turn, tool: Tool, args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the tool's function takes them; BadArguments says what is wrong with them.

    Very many values are checked in a thread.
    """
    if excess(args, ARGUMENTS, _MANY):
        return await turn.services.threads.run(partial(tool.check, args))
    return tool.check(args)
