"""MCP servers as a source of tools: `Agent(tools=[McpServers({...})])`, with the extra `upcall[mcp]`.

Making an McpServers starts nothing. A server is started when a session first needs its tools, in a task of its own.
The MCP library is imported then, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from upcall.links.mcp.config import BadServer, ServerConfig, read_servers

if TYPE_CHECKING:
    from upcall.links.mcp.servers import McpServers, ServerPrompt, ServerStatus, with_servers

__all__ = [
    "BadServer",
    "McpServers",
    "ServerConfig",
    "ServerPrompt",
    "ServerStatus",
    "read_servers",
    "with_servers",
]


def __getattr__(name: str) -> Any:
    """Import the rest when it is first used: reading agent files needs only descriptions."""
    if name in __all__:
        from upcall.links.mcp import servers

        return getattr(servers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
