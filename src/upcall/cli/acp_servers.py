"""MCP servers that an editor passes with a session: their tools, their prompts and how they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from upcall.cli.chat_mcp import prompt_of, servers_of
from upcall.errors import UpcallError
from upcall.observe.plain import one_line, visible

if TYPE_CHECKING:
    from upcall.agent import Agent
    from upcall.links.mcp import McpServers


class EditorServers:
    """The servers of one session: those that the agent declares, and those that the editor passes."""

    def __init__(self, agent: Agent, passed: Mapping[str, Mapping[str, Any]]) -> None:
        self.agent: Agent = agent
        self._passed: McpServers | None = None
        if passed:
            from upcall.links.mcp import McpServers, with_servers

            self._passed = McpServers(passed)
            self.agent = with_servers(agent, self._passed)

    def start(self) -> None:
        """Begin to connect the servers that the editor passed, and return at once."""
        if self._passed is not None:
            self._passed.start()

    def status(self) -> list[str]:
        """Return a line for each server."""
        lines: list[str] = []
        for one in (status for servers in servers_of(self.agent) for status in servers.status()):
            tools = f", {one.tools} tools" if one.state == "connected" else ""
            problem = f": {one_line(one.problem, 300)}" if one.problem else ""
            lines.append(f"{visible(one.name)}: {one.state}{tools}{problem}")
        return lines

    def prompts(self) -> list[tuple[str, str, str]]:
        """Return the commands of the prompts of servers that are connected."""
        found = [prompt for servers in servers_of(self.agent) for prompt in servers.prompts()]
        return [
            (one.command, one.description or f"a prompt of {one.server}", " ".join(f"{n}=…" for n in one.arguments))
            for one in found
        ]

    async def prompt(self, command: str, argument: str) -> str:
        """Return the text of a prompt."""
        text = await prompt_of(self.agent, f"/{command} {argument}".strip())
        if text is None:
            raise UpcallError(f"no connected MCP server has the prompt {command!r}")
        return text

    async def close(self) -> None:
        """Disconnect the servers that the editor passed."""
        if self._passed is not None:
            await self._passed.close()
