"""Keeps a conversation within a number of tokens: the model summarises what is old."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from upcall.agent import Kit
from upcall.contracts import Context, SessionAccess
from upcall.errors import ContextTooLong
from upcall.hooks import Hooks
from upcall.kit.numbers import check_number
from upcall.kit.tokens import TokenCount
from upcall.messages import Message, Request, Response
from upcall.tools import tool

KEY = "compact"
"""How many tokens the conversation had right after it was compacted; MEASURE until that is known."""

MEASURE = -1
GROWTH = 1.5
"""How much it has to grow before it is compacted again, should that not have brought it below the threshold."""

FEW = 4
FOUND, EACH, MOST_CHARS = 20, 1_000, 1_000


def compact(tokens: int = 100_000, keep_last: int = 10) -> Kit:
    """Have the model summarise all but the last messages once the conversation has too many tokens.

    The first user message, instructions (such as skills) and pinned context stay. Compaction is also done when a
    model refuses a request as too long; then it is asked again. What was summarised stays in the log, and the tool
    `search_history` finds it.

    tokens: the threshold, by the provider's count where it gives one
    keep_last: how many of the newest messages stay
    """
    check_number("compact", "tokens", tokens, whole=True)
    check_number("compact", "keep_last", keep_last, whole=True)
    count = TokenCount()

    def to_keep(messages: Sequence[Message]) -> int:
        """How many of them stay; 0 if there is nothing to gain."""
        keep = min(keep_last, len(messages) // 2)
        return keep if len(messages) - keep >= FEW else 0

    async def shrink(session: SessionAccess) -> bool:
        """Compact, if there is anything to gain."""
        keep = to_keep(session.get_messages())
        if not keep:
            return False
        await session.trigger_compaction(keep)
        session.set_context(KEY, MEASURE)
        return True

    def check(session: SessionAccess, response: Response) -> Awaitable[None] | None:
        used, level = response.usage.total, session.get_context(KEY, 0)
        if not used:
            messages = session.get_messages()
            some = level == MEASURE or (len(messages) > FEW and to_keep(messages))
            used = count.of(session.id, messages) if some else 0
        if (used <= tokens and level != MEASURE) or session.purpose == "side_turn":
            return None
        if level == MEASURE:
            level = used
            session.set_context(KEY, level)
        return checked(session) if used > max(tokens, level * GROWTH) else None

    async def checked(session: SessionAccess) -> None:
        await shrink(session)

    async def too_long(session: SessionAccess, request: Request, error: Exception) -> Request | None:
        if session.purpose == "side_turn" or not isinstance(error, ContextTooLong):
            return None
        before = len(session.get_messages())
        if await shrink(session) and len(session.get_messages()) < before:
            return request  # it is asked with what is left
        return None

    hooks = Hooks(post_response=[check], model_failed=[too_long])
    return Kit(hooks, tools=[search_history])


@tool(read_only=True, repeatable=True)
async def search_history(words: str, ctx: Context) -> str:
    """Search the whole conversation, what was summarised long ago too. Finds messages that have all the words.

    words: what to look for, in any case and order
    """
    if len(words) > MOST_CHARS:
        return f"Give at most {MOST_CHARS} characters of words; these are {len(words)}."
    history = await ctx.get_history()
    return await asyncio.to_thread(_found, words.casefold().split(), history)


def _found(wanted: list[str], history: Sequence[Message]) -> str:
    found: list[str] = []
    searches = {call.id for message in history for call in message.calls if call.name == search_history.name}
    for number, message in enumerate(history, 1):
        text = _text(message, searches)
        folded = text.casefold()
        if text and all(word in folded for word in wanted):
            found.append(f"{number}. {message.role}: {text[:EACH]}{'…' if len(text) > EACH else ''}")
    if not found:
        return "Nothing that was said has all these words."
    left = f"({len(found) - FOUND} older ones are left out)\n" if len(found) > FOUND else ""
    return left + "\n".join(found[-FOUND:])


def _text(message: Message, searches: set[str]) -> str:
    calls = [f"{c.name}({c.args})" for c in message.calls if c.id not in searches]
    results = [r.text for r in message.results if r.call_id not in searches]
    return "\n".join(filter(None, [message.text, *calls, *results]))
