"""Slash commands: what a person types in an editor beside prompts. An unknown command is plain text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec

from upcall import Session
from upcall.app import Runtime
from upcall.errors import UpcallError
from upcall.events import Responded
from upcall.hosts.acp.mcp_servers import SessionServers
from upcall.hosts.acp.text_answers import TextAnswers
from upcall.messages import NO_USAGE, Message, Text, Usage
from upcall.observe.phrases import money, token_usage
from upcall.observe.plain import one_line, plain
from upcall.observe.redact import Redactor
from upcall.prices import Cost

_KEPT_MESSAGES, _FEWEST_MESSAGES = 10, 4
_MOST_LISTED = 50
_COMMAND = re.compile(r"/(\w[\w:.-]{0,99})(?:\s+(.*))?\s*", re.DOTALL)
_SKILLS = "skills"
_LOOKED_AT = 4_000

COMMANDS: Mapping[str, tuple[str, str]] = {
    "answer": ("answer a question that waits", "[ID] ANSWER"),
    "approve": ("approve a call that waits, with other arguments if you give them as JSON", "ID [JSON]"),
    "reject": ("reject a call that waits", "[ID] [WHY]"),
    "decline": ("decline to answer a question that waits", "[ID] [WHY]"),
    "compact": ("have the model summarise older messages", ""),
    "tools": ("list the agent's tools", ""),
    "cost": ("tokens used by this session and its children", ""),
    "mcp": ("list the MCP servers of this session", ""),
    "inbox": ("list open questions of all sessions, most urgent first", ""),
}
"""What a command does, and a hint for its argument."""

SETTLING = ("answer", "approve", "reject", "decline")
"""Commands that settle a question, after which a turn that waited continues."""


class SlashCommand(NamedTuple):
    """A slash command as it was typed."""

    name: str
    argument: str


class SessionCommands:
    """The slash commands of one session."""

    def __init__(
        self, runtime: Runtime, servers: SessionServers, session: Session, redactor: Redactor, cost: Cost | None
    ) -> None:
        self._runtime, self._servers, self._session = runtime, servers, session
        self._agent = servers.agent
        self._redactor, self._cost = redactor, cost

    def parse(self, text: str) -> SlashCommand | None:
        """Return the command that a text is; None for any other text."""
        found = _COMMAND.fullmatch(text.strip())
        if found is None or not (found[1] in COMMANDS or found[1] in self._skills() or self._is_prompt(found[1])):
            return None
        return SlashCommand(found[1], (found[2] or "").strip())

    def listed(self) -> list[dict[str, Any]]:
        """Return the commands as an editor lists them."""
        found = {name: _listed(name, about, hint) for name, (about, hint) in COMMANDS.items()}
        for name in self._skills():
            found.setdefault(name, _listed(name, "use this skill", "TASK"))
        for name, about, hint in self._servers.prompts():
            found.setdefault(name, _listed(name, about, hint))
        return list(found.values())

    async def prompt(self, command: SlashCommand) -> Message | None:
        """Return the prompt that a skill or a server's prompt stands for; None for any other command."""
        if command.name in COMMANDS:
            return None
        if command.name not in self._skills():
            return Message("user", (Text(await self._servers.prompt(command.name, command.argument)),))
        text = f"Use the skill {command.name!r}: read it with read_skill first."
        return Message("user", (Text(f"{text}\n\n{command.argument}" if command.argument else text),))

    def _is_prompt(self, name: str) -> bool:
        return any(command == name for command, _, _ in self._servers.prompts())

    def _skills(self) -> tuple[str, ...]:
        stored = self._session.get_context(_SKILLS)
        if not isinstance(stored, str):
            return ()
        try:
            known = msgspec.json.decode(stored, type=dict[str, Any]).get("known", {})
        except msgspec.MsgspecError:
            return ()
        return tuple(cast("dict[str, Any]", known))[:_MOST_LISTED] if isinstance(known, dict) else ()

    async def run(self, command: SlashCommand) -> str:
        """Run a command that settles nothing, and return what it has to say."""
        match command.name:
            case "compact":
                return await self._compact()
            case "tools":
                return self._tools()
            case "mcp":
                return "\n".join(f"- {line}" for line in self._servers.status()) or "There are no MCP servers."
            case "cost":
                return await self._spent()
            case _:
                return await self._inbox()

    async def _compact(self) -> str:
        messages = len(self._session.get_messages())
        keep = min(_KEPT_MESSAGES, messages // 2)
        if messages - keep < _FEWEST_MESSAGES:
            raise UpcallError(f"the conversation is too short to compact: {messages} messages")
        await self._session.trigger_compaction(keep)
        return "The older messages were summarised."

    def _tools(self) -> str:
        rows = [
            f"- `{one_line(name, 100)}`: {one_line(one.description, 200)}"
            for name, one in self._agent.toolbox.items()
        ]
        return "\n".join(rows) or f"{self._agent.name} has no tools of its own."

    async def _spent(self) -> str:
        used: dict[str, Usage] = {}
        calls = 0
        async for event in self._runtime.events(tree=self._session.id):
            if isinstance(event, Responded) and event.usage.total:
                used[event.model] = used.get(event.model, NO_USAGE) + event.usage
                calls += 1
        rows = [
            f"- {self._shown(model) or 'unnamed model'}: {self._usage(model, one)}" for model, one in used.items()
        ]
        return "\n".join([*rows, f"{calls} model calls, including child sessions"])

    def _usage(self, model: str, usage: Usage) -> str:
        price = self._cost(model, usage) if self._cost is not None else None
        return " · ".join([*token_usage(usage), *([f"cost {money(price)}"] if price is not None else [])])

    async def _inbox(self) -> str:
        waiting = await self._runtime.inbox(limit=_MOST_LISTED)
        rows = [
            f"- {one.id}, session {one.session_id}: {one.agent} "
            + (
                f"wants to run {one_line(one.tool, 60)}"
                if one.tool
                else f"asks: {one_line(self._begun(one.message), 200)}"
            )
            for one in waiting
        ]
        return "\n".join(rows) or "No question waits."

    def _begun(self, text: str) -> str:
        return self._shown(self._redactor.beginning(text, _LOOKED_AT))

    def _shown(self, text: str) -> str:
        return plain(self._redactor.text(text))


def _listed(name: str, about: str, hint: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "description": about}
    return {**made, "input": {"hint": hint}} if hint else made


async def settle(texts: TextAnswers, command: SlashCommand) -> str:
    """Run a command that settles a question; returns why it could not, or ""."""
    return (await texts.run_command(command.name, command.argument)).problem
