"""MCP servers in a chat: `/mcp` lists and connects them, and their prompts are commands such as `/shop:greet`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from upcall.agent import all_agents
from upcall.cli.output import say, tell
from upcall.errors import UpcallError
from upcall.observe.plain import one_line, plain, visible

if TYPE_CHECKING:
    from upcall.agent import Agent
    from upcall.links.mcp import McpServers, ServerPrompt, ServerStatus

_PROMPT = re.compile(r"/([A-Za-z][\w.-]*:[^\s]+)(?:\s+(.*))?\s*", re.DOTALL)


def servers_of(agent: Agent) -> list[McpServers]:
    """Return the MCP servers of an agent and of all below it."""
    every = all_agents([agent]).values()
    found = {id(one): one for each in every for one in each.toolsets if hasattr(one, "prompts")}
    return cast("list[McpServers]", list(found.values()))


async def mcp(agent: Agent, argument: str) -> None:
    """Run `/mcp`, which lists servers, or `/mcp NAME`, which connects one and signs in where it wants that."""
    known = dict(_by_name(agent))
    if not argument:
        _list(agent)
    elif argument not in known:
        raise UpcallError(
            f"there is no MCP server called {argument!r}; known servers: {', '.join(known) or 'none'}"
        )
    else:
        _say(await known[argument].connect(argument, authorize=_show_link))


def _by_name(agent: Agent) -> Iterator[tuple[str, McpServers]]:
    for servers in servers_of(agent):
        yield from ((name, servers) for name in servers.available)


def _list(agent: Agent) -> None:
    shown: dict[str, ServerStatus] = {}
    for servers in servers_of(agent):
        for one in servers.status():
            if one.name not in shown or one.tools > shown[one.name].tools:
                shown[one.name] = one
    if not shown:
        say("no MCP servers are described: mcp.json beside the agent files describes them")
    for one in shown.values():
        _say(one)
    for prompt in (prompt for servers in servers_of(agent) for prompt in servers.prompts()):
        wanted = "".join(f" {name}=…" for name in prompt.required)
        say(f"/{visible(prompt.command)}{visible(wanted)}  {one_line(prompt.description, 60)}")


def _say(one: ServerStatus) -> None:
    tools = f", {one.tools} tools" if one.state == "connected" else ""
    version = f", {plain(one.version)}" if one.version else ""
    problem = f": {one_line(one.problem, 300)}" if one.problem else ""
    say(f"{visible(one.name)}  {one.state}{version}{tools}{problem}")


async def _show_link(server: str, link: str) -> None:
    tell(f"to sign in to {visible(server)}, open this page: {visible(link)}")


async def prompt_of(agent: Agent, line: str) -> str | None:
    """Return the text of the prompt that a line such as `/shop:greet name=Ada` names; None for other lines."""
    found = _PROMPT.fullmatch(line)
    if found is None:
        return None
    for servers in servers_of(agent):
        for prompt in servers.prompts():
            if prompt.command == found[1]:
                return await servers.prompt(prompt.server, prompt.name, _arguments(prompt, found[2] or ""))
    raise UpcallError(f"no connected MCP server has the prompt {found[1]!r}; /mcp lists the servers")


def _arguments(prompt: ServerPrompt, text: str) -> dict[str, str]:
    """Return arguments by name; words without a name are taken in order."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UpcallError(f"/{prompt.command}: {error}") from None
    given: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        left = [one for one in prompt.arguments if one not in given]
        if sign and name in prompt.arguments:
            given[name] = value
        elif left:
            given[left[0]] = word
        else:
            raise UpcallError(f"/{prompt.command} takes {', '.join(prompt.arguments) or 'no arguments'}")
    if missing := [one for one in prompt.required if one not in given]:
        raise UpcallError(f"/{prompt.command} needs {', '.join(f'{one}=…' for one in missing)}")
    return given
