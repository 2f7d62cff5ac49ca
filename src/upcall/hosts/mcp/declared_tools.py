"""The tools that clients see: one for each agent, and four to look after what they started."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from mcp_types import Tool, ToolAnnotations

from upcall.agent import Agent
from upcall.errors import SetupError
from upcall.observe.plain import plain, shortened

OWN = ("answer", "status", "inbox", "cancel")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_LONGEST_DESCRIPTION = 2000
T = TypeVar("T")


class AgentArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of an agent's tool."""

    prompt: str
    session: str | None = None


class SessionArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `status`."""

    session: str


class CancelArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `cancel`."""

    session: str
    reason: str = ""


class InboxArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `inbox`."""

    session: str | None = None


def read_arguments(given: dict[str, Any] | None, kind: type[T]) -> T:
    """The arguments of a call; SetupError says what is wrong with them."""
    try:
        return msgspec.convert(given or {}, kind)
    except msgspec.ValidationError as error:
        raise SetupError(f"the arguments are not valid: {error}") from None


def check_names(agents: Sequence[Agent]) -> None:
    """Raise SetupError if an agent's name can't be that of a tool."""
    for agent in agents:
        if agent.name in OWN:
            raise SetupError(f"an agent called {agent.name!r} can't be served: a tool of the server has that name")
        if not _NAME.fullmatch(agent.name):
            raise SetupError(
                f"the agent {agent.name[:80]!r} can't be served: MCP tools have names of 1–128 letters, digits, "
                "'_', '.' or '-'"
            )


def tools_for(agents: Sequence[Agent]) -> list[Tool]:
    """Every tool, agents first."""
    return [*(_agent_tool(agent) for agent in agents), *_own_tools()]


def _agent_tool(agent: Agent) -> Tool:
    about = shortened(plain(agent.description).strip(), _LONGEST_DESCRIPTION) or f"The agent {agent.name}."
    return Tool(
        name=agent.name,
        description=f"{about}\n\nGives the agent a task and returns its reply. If it takes long, the result says "
        "how to wait for it. What the agent asks the person, they are asked; or the result says what waits.",
        input_schema=_object(
            {
                "prompt": _string("What the agent should do"),
                "session": _string("The session to continue; leave it out to begin a new one"),
            },
            ["prompt"],
        ),
        annotations=ToolAnnotations(read_only_hint=False, open_world_hint=True),
    )


def _own_tools() -> list[Tool]:
    session = _string("The id of the session")
    return [
        Tool(
            name="answer",
            description="Answer a question of an agent, or approve or reject one of its calls, as the person said. "
            "Never answer for the person. Give exactly one of value, approve, reject and decline.",
            input_schema=_object(_answer_properties(), ["callback"]),
            annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True),
        ),
        Tool(
            name="status",
            description="Wait for the reply of a session, and return it; or say what the session is doing. "
            "A session that was interrupted continues.",
            input_schema=_object({"session": session}, ["session"]),
            annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True),
        ),
        Tool(
            name="inbox",
            description="List the questions that wait for the person, most urgent first.",
            input_schema=_object({"session": _string("Only those of this session")}, []),
            annotations=ToolAnnotations(read_only_hint=True),
        ),
        Tool(
            name="cancel",
            description="End the running or waiting turn of a session. Its questions are withdrawn.",
            input_schema=_object({"session": session, "reason": _string("Why")}, ["session"]),
            annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True),
        ),
    ]


def _answer_properties() -> dict[str, Any]:
    return {
        "callback": _string("The id of the question"),
        "value": {"description": "The answer: one of the choices, a value of the schema, or a text"},
        "approve": {"type": "boolean", "description": "True lets the call run; give its digest, too"},
        "digest": _string("The digest that is shown with the call's arguments"),
        "arguments": {"type": "object", "description": "Other arguments to run the call with: all of them"},
        "reject": _string("Do not let the call run, and say why"),
        "decline": _string("Decline the question, and say why"),
        "for_session": {"type": "boolean", "description": "Also for equal calls of this session"},
        "pattern": _string("A pattern of the tool: approve every call of this session that it covers"),
        "only": {"type": "boolean", "description": "Answer only this question, not equal ones"},
    }


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _string(about: str) -> dict[str, Any]:
    return {"type": "string", "description": about}
