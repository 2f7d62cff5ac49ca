"""Enforce a minimum time between two calls of a tool."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from upcall.agent import Kit
from upcall.contracts import SessionAccess
from upcall.hooks import Hooks
from upcall.kit.numbers import check_number
from upcall.messages import Call, Result

BUILTIN_TOOLS = frozenset({"answer_callback", "ask", "pass_up_callback", "reword_callback", "task"})
KEY = "rate_limit"


def rate_limit(seconds: float, *tools: str, clock: Callable[[], float] = time.time) -> Kit:
    """Refuse a tool call that comes too soon after the last one of the same tool in this session.

    seconds: the minimum time between two calls
    *tools: the names of the tools; if none is named, all but those by which agents ask, answer and delegate
    clock: the time in seconds; for tests
    """
    check_number("rate_limit", "seconds", seconds)

    def refuse_early_call(session: SessionAccess, call: Call) -> Result | None:
        if (call.name not in tools) if tools else call.name in BUILTIN_TOOLS:
            return None
        last: dict[str, Any] = session.get_context(KEY, {})
        now = clock()
        if call.name in last:
            last_time, call_id = last[call.name]
            if call_id == call.id:  # the same call: its hooks run again
                return None
            wait = last_time + seconds - now
            if 0 < wait <= seconds:
                text = f"Rate limited: wait {math.ceil(wait * 10) / 10:g} s before you call {call.name} again."
                return Result(call.id, text, is_error=True)
        session.set_context(KEY, {**last, call.name: (now, call.id)})
        return None

    return Kit(Hooks(before_tool=[refuse_early_call]))
