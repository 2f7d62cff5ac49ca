"""An agent ready to run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from upcall.agent import Agent
from upcall.contracts import Model, Toolset
from upcall.events import content_hash, digest
from upcall.hooks import Hooks
from upcall.tools import Tool, describe_tools

Listed = tuple[tuple[Toolset, tuple[Tool, ...]], ...]
"""Toolsets with the tools that they offered."""


class PreparedAgent:
    """An agent ready to run: its model, its hooks with the inherited ones, its tools with the built-in ones.

    What the log names instead of repeating, the instructions, the tool list and the options (the reply's schema and
    the settings), is here with its hashes.
    """

    def __init__(self, agent: Agent, model: Model, hooks: Hooks, extra: Sequence[Tool] = ()) -> None:
        self.agent, self.model, self.hooks, self.name = agent, model, hooks, agent.name
        self.limits, self.output, self.settings = agent.limits, agent.output, agent.settings
        self.output_schema = None if agent.output is None else agent.output.schema
        self.passed_on, (self.to_run, self.rules) = hooks.inheritable(), hooks.split_approval_rules()
        self.toolbox = describe_tools({**agent.toolbox, **{t.name: t for t in extra}}) if extra else agent.toolbox
        self.own_tools, self.toolsets = self.toolbox, agent.toolsets
        self.listed: Listed | None = None  # what the toolsets offered to one session, once they were asked
        self.specs = tuple(t.spec for t in self.toolbox.values())
        self.labels = _labels(self.toolbox)
        self.instructions_body = agent.instructions.encode()
        self.instructions_hash = content_hash(self.instructions_body)
        self.tools_body = msgspec.json.encode(self.specs)
        self.tools_hash = content_hash(self.tools_body)
        self.options_body = _options(agent)
        self.options_hash = content_hash(self.options_body) if self.options_body else ""
        self.setup = agent.setup or digest(self.instructions_hash, self.tools_hash, agent.policy)
        self._told = ("", "", b"")

    def with_tools(self, listed: Listed, tools: Mapping[str, Tool]) -> PreparedAgent:
        """The same agent for one session, with its own tools and these, which its toolsets listed."""
        made = copy.copy(self)
        made.listed = listed
        made.toolbox = describe_tools({**self.own_tools, **tools})
        made.specs = tuple([tool.spec for tool in made.toolbox.values()])
        made.labels = _labels(made.toolbox)
        made.tools_body = msgspec.json.encode(made.specs)
        made.tools_hash = content_hash(made.tools_body)
        return made

    def named(self, instructions: str) -> tuple[str, bytes]:
        """Instructions as hooks have changed them, by content hash and in bytes: mostly the last ones again."""
        text, name, body = self._told
        if instructions != text:
            body = instructions.encode()
            name = content_hash(body)
            self._told = (instructions, name, body)
        return name, body

    def asks_approval(self, tool: Tool, args: dict[str, Any]) -> bool:
        """Tell whether a call with these checked arguments needs an approval, by the tool's rule or by a hook's."""
        return tool.asks_approval(args) or any(rule(tool, args) for rule in self.rules)


def _labels(toolbox: Mapping[str, Tool]) -> dict[str, str]:
    """The labels that tools were declared with."""
    return {name: tool.label for name, tool in toolbox.items() if tool.label}


def _options(agent: Agent) -> bytes:
    """The schema of the replies and the settings, as the log keeps them; empty where there are none."""
    options: dict[str, Any] = {}
    if agent.output is not None and agent.output.schema is not None:
        options["output"] = agent.output.schema
    if agent.settings is not None and agent.settings.given():
        options["settings"] = agent.settings.for_log()
    return msgspec.json.encode(options) if options else b""
