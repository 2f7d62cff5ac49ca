"""Keep a conversation below a number of tokens: the model summarises its older messages."""

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
"""Context key: the conversation's tokens right after its last compaction, or MEASURE until they are counted."""

MEASURE = -1
GROWTH = 1.5
"""The growth that triggers another compaction if the last one did not get below the threshold."""

MIN_SUMMARISED = 4
MAX_MATCHES, CHARS_PER_MATCH, MAX_QUERY_CHARS = 20, 1_000, 1_000


def compact(tokens: int = 100_000, keep_last: int = 10) -> Kit:
    """Have the model summarise all but the last messages once the conversation has too many tokens.

    The first user message, instructions (such as skills) and pinned context stay. Compaction also happens when a
    model refuses a request as too long; the request is then repeated. Summarised messages stay in the log, and the
    tool `search_history` finds them.

    tokens: the threshold, by the provider's count where it gives one
    keep_last: how many of the newest messages stay
    """
    check_number("compact", "tokens", tokens, whole=True)
    check_number("compact", "keep_last", keep_last, whole=True)
    count = TokenCount()

    def count_to_keep(messages: Sequence[Message]) -> int:
        """Return how many messages to keep, or 0 if too few could be summarised."""
        keep = min(keep_last, len(messages) // 2)
        return keep if len(messages) - keep >= MIN_SUMMARISED else 0

    async def shrink(session: SessionAccess) -> bool:
        """Compact if there are enough messages to summarise; return whether it happened."""
        keep = count_to_keep(session.get_messages())
        if not keep:
            return False
        await session.trigger_compaction(keep)
        session.set_context(KEY, MEASURE)
        return True

    def check(session: SessionAccess, response: Response) -> Awaitable[None] | None:
        used, level = response.usage.total, session.get_context(KEY, 0)
        if not used:
            messages = session.get_messages()
            worth_counting = level == MEASURE or (len(messages) > MIN_SUMMARISED and count_to_keep(messages))
            used = count.of(session.id, messages) if worth_counting else 0
        if (used <= tokens and level != MEASURE) or session.purpose == "side_turn":
            return None
        if level == MEASURE:
            level = used
            session.set_context(KEY, level)
        return compact_now(session) if used > max(tokens, level * GROWTH) else None

    async def compact_now(session: SessionAccess) -> None:
        await shrink(session)

    async def retry_shorter(session: SessionAccess, request: Request, error: Exception) -> Request | None:
        if session.purpose == "side_turn" or not isinstance(error, ContextTooLong):
            return None
        before = len(session.get_messages())
        if await shrink(session) and len(session.get_messages()) < before:
            return request  # the model gets the messages that are left
        return None

    hooks = Hooks(post_response=[check], model_failed=[retry_shorter])
    return Kit(hooks, tools=[search_history])


@tool(read_only=True, repeatable=True)
async def search_history(words: str, ctx: Context) -> str:
    """Search the whole conversation, including summarised messages. Finds messages that contain all the words.

    words: what to look for, in any case and order
    """
    if len(words) > MAX_QUERY_CHARS:
        return f"Give at most {MAX_QUERY_CHARS} characters; these words have {len(words)}."
    history = await ctx.get_history()
    return await asyncio.to_thread(_search, words.casefold().split(), history)


def _search(words: list[str], history: Sequence[Message]) -> str:
    matches: list[str] = []
    searches = {call.id for message in history for call in message.calls if call.name == search_history.name}
    for number, message in enumerate(history, 1):
        text = _text(message, searches)
        folded = text.casefold()
        if text and all(word in folded for word in words):
            matches.append(
                f"{number}. {message.role}: {text[:CHARS_PER_MATCH]}{'…' if len(text) > CHARS_PER_MATCH else ''}"
            )
    if not matches:
        return "No message contains all these words."
    omitted = f"({len(matches) - MAX_MATCHES} older ones are left out)\n" if len(matches) > MAX_MATCHES else ""
    return omitted + "\n".join(matches[-MAX_MATCHES:])


def _text(message: Message, searches: set[str]) -> str:
    calls = [f"{c.name}({c.args})" for c in message.calls if c.id not in searches]
    results = [r.text for r in message.results if r.call_id not in searches]
    return "\n".join(filter(None, [message.text, *calls, *results]))
