"""Model calls that a server asks for: a child session of the agent's, with nothing but the server's messages.

The child has no tools and sees nothing of the agent's conversation, which the server would otherwise get to read.
Its tokens count as the agent's own.
"""

from __future__ import annotations

from typing import Any

from upcall.agent import Agent, Limits
from upcall.contracts import Context, Model
from upcall.links.mcp.calls import Sample
from upcall.links.mcp.failures import RequestRefused
from upcall.links.mcp.results import message_texts
from upcall.mcp_wire.names import clean, clean_line, server_prefix
from upcall.mcp_wire.reading import objects
from upcall.settings import Settings

MESSAGES, TEXT, TOKENS = 100, 200_000, 8_000
"""Messages of one request, characters of all of them, and tokens of one answer."""


def sampler(server: str, model: str | Model | None) -> Sample:
    """Return the function that answers one server's requests for model calls."""

    async def sample(ctx: Context, params: dict[str, Any]) -> dict[str, Any]:
        tokens = params.get("maxTokens")
        most = min(tokens, TOKENS) if isinstance(tokens, int) and tokens > 0 else TOKENS
        agent = Agent(
            f"{server_prefix(server)}.sampling",
            instructions=clean(str(params.get("systemPrompt") or ""), TEXT),
            model=model,
            settings=Settings(max_tokens=most),
            limits=Limits(model_calls=1),
            ask=False,
            can_query_caller=False,
            can_use_host_interaction=False,
        )
        reply = await ctx.start_child(agent, _text_of(params.get("messages")))
        if reply.status != "done":
            raise RequestRefused(0, f"the model call that it asked for ended with the status {reply.status}")
        return {
            "role": "assistant",
            "content": {"type": "text", "text": reply.text},
            "model": clean_line(model if isinstance(model, str) else "model", 100),
            "stopReason": "endTurn",
        }

    return sample


def _text_of(messages: Any) -> str:
    """Return the messages as one text: a child is prompted once."""
    texts = [text for one in objects(messages)[:MESSAGES] for text in message_texts(one)]
    return clean("\n\n".join(texts), TEXT) or "(no text)"
