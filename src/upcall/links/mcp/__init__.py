"""MCP servers as a source of tools: `Agent(tools=[McpServers({...})])`, with the extra `upcall[mcp]`.

Making an McpServers starts nothing. A server is started when a session first needs its tools, in a task of its own.
The MCP library is imported then, not before.
"""

from upcall.links.mcp.config import BadServer, ServerConfig, read_servers
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
