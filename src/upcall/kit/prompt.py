"""Add a template and facts about the environment to an agent's system prompt."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from upcall.agent import Kit
from upcall.contracts import SessionAccess
from upcall.errors import BadKit
from upcall.events import digest
from upcall.hooks import Hooks
from upcall.kit.instructions import CachedAddition, join_texts
from upcall.messages import Instruction, Request, Text, ToolSpec

_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")

ENVIRONMENT = ("date", "workspace", "agents", "tools")
"""Values that the runtime knows. Those that a template does not place are added below it."""

GUIDANCE: Mapping[str, Mapping[str, str]] = {
    "Todos": {
        "write_todos": "For work of several steps, write them down with write_todos before you begin. Have one in "
        "progress at a time, and mark each as done as soon as it is.",
        "read_todos": "read_todos shows them again.",
    },
    "Files": {
        "ls": "ls shows what lies in a folder.",
        "glob": "glob finds files by their names.",
        "grep": "grep finds files by what is in them; look before you read.",
        "read_file": "Read a file with read_file before you change it, a large one in parts.",
        "edit_file": "Prefer edit_file for changes: give it the exact text to replace.",
        "write_file": "write_file replaces a whole file, or makes a new one.",
    },
    "Execution": {
        "shell": "shell runs a command in the workspace, for a limited time and with limited output. Quote paths, "
        "and run what you have changed.",
        "run_python": "run_python runs a program in which your tools are functions: use it for loops and sums.",
    },
    "Delegation": {
        "task": "Hand self-contained work to another agent with task. It sees nothing of this conversation, "
        "so tell it everything that it needs. Calls that you make at once run at the same time.",
    },
}
"""Advice on the built-in tools, shown if the agent has the tool."""


def prompt(template: str | Sequence[str | Text | Instruction] = "", **values: object) -> Kit:
    """Add a template to the system prompt of every session. It is filled in once, at the first model call.

    template: text with marks. `{name}` stands for one of the `values`, or for `{date}`, `{workspace}`, `{agents}`,
        `{tools}` (how to use the tools that ship) or `{agent}`. `{{name}}` keeps its braces. Date, workspace,
        agents and tools are added below the template if it does not place them.
    **values: the values for the marks
    """
    text = _join_template(template)
    placeholders = {found[2] for found in _PLACEHOLDER.finditer(text) if found[2]}
    unknown = placeholders - {*values, *ENVIRONMENT, "agent"}
    if unknown:
        wrong = ", ".join(sorted(unknown))
        raise BadKit("prompt", f"no value is given for {wrong}; to keep the braces, write {{{{name}}}}")
    if values.keys() - placeholders:
        raise BadKit(
            "prompt", f"the template has no placeholder for {', '.join(sorted(values.keys() - placeholders))}"
        )
    texts = {name: str(value) for name, value in values.items()}
    key = f"prompt.{digest(text, texts)[:8]}"
    cached: tuple[Any, str] = (None, "")  # most sessions of an agent get the same text
    addition = CachedAddition()

    def add(session: SessionAccess, request: Request) -> Request:
        nonlocal cached
        filled = session.get_context(key)
        if filled is None:
            files, minute = session.workspace, time.time() // 60  # a new minute may be a new day
            place = "" if files is None else files.folder or "files that only your tools reach"
            inputs = (session.agent, minute, place, request.tools, request.instructions)
            if inputs != cached[0]:
                known = _environment(session.agent, time.strftime("%Y-%m-%d"), place, request.tools) | texts
                cached = (inputs, _fill(text, placeholders, known, request.instructions))
            filled = cached[1]
            session.set_context(key, filled)
        return addition.add_to(request, filled)

    return Kit(Hooks(before_model=[add]))


def _join_template(template: Any) -> str:
    pieces: Any = [template] if isinstance(template, str) else template
    if not all(isinstance(piece, str | Text | Instruction) for piece in pieces):
        raise BadKit(
            "prompt", f"a template must be a string, or a list of strings and text parts, not {template!r}"
        )
    return join_texts(pieces)


def _fill(text: str, placeholders: set[str], values: Mapping[str, str], instructions: str) -> str:
    """Return the template with its values, then the values that neither it nor the instructions contain."""
    body = _PLACEHOLDER.sub(lambda found: f"{{{found[1]}}}" if found[1] else values[found[2]], text)
    rest = [values[name] for name in ENVIRONMENT if name not in placeholders]
    return "\n\n".join(filter(None, [body, "\n\n".join(r for r in rest if r and r not in instructions)]))


def _environment(agent: str, today: str, place: str, specs: Sequence[ToolSpec]) -> dict[str, str]:
    tools = {tool.name: tool for tool in specs}
    agents = _agents(tools["task"]) if "task" in tools else []
    guides = [_guide(topic, advice, tools) for topic, advice in GUIDANCE.items()]
    return {
        "agent": agent,
        "date": f"Date: {today}",
        "workspace": f"Workspace: {place}" if place else "",
        "agents": f"Agents that work for you: {', '.join(agents)}" if agents else "",
        "tools": "\n".join(filter(None, guides)),
    }


def _agents(task: ToolSpec) -> list[str]:
    agent: Mapping[str, Any] = task.schema.get("properties", {}).get("agent", {})
    return [str(name) for name in agent.get("enum", ())]


def _guide(topic: str, advice: Mapping[str, str], tools: Mapping[str, object]) -> str:
    sentences = [sentence for tool, sentence in advice.items() if tool in tools]
    return f"{topic}: {' '.join(sentences)}" if sentences else ""
