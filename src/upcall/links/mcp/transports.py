"""The parts that need the MCP library: importing this module imports it, which takes about a second."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from upcall.links.mcp.config import Authorize, ServerConfig
from upcall.links.mcp.http import http_streams
from upcall.links.mcp.live import open_live, remembered
from upcall.links.mcp.oauth import oauth_for
from upcall.links.mcp.stdio import Tail, stdio_streams

__all__ = ["Tail", "open_live", "remembered", "streams_of"]


@asynccontextmanager
async def streams_of(
    config: ServerConfig,
    tail: Tail,
    tokens: str | None,
    authorize: Authorize | None,
    extend: Callable[[float], None],
) -> AsyncGenerator[Any]:
    """Yield the streams of a server: of its process, or of its address."""
    if config.command:
        async with stdio_streams(config, tail) as streams:
            yield streams
    else:
        auth = oauth_for(config, tokens, authorize, extend) if config.oauth is not None else None
        async with http_streams(config, auth) as streams:
            yield streams
