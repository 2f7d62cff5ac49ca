"""A template, and what an agent should know of where it is, added to its system prompt when a session begins."""

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
from upcall.kit.instructions import Adding, joined
from upcall.messages import Instruction, Request, Text, ToolSpec

_MARK = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")

ENVIRONMENT = ("date", "workspace", "agents", "tools")
"""What is known by itself; what a template does not place stands below it."""

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
        "edit_file": "Prefer edit_file for changes: what it replaces must be given exactly.",
        "write_file": "write_file replaces a whole file, or makes a new one.",
    },
    "Execution": {
        "shell": "shell runs a command in the workspace, for a limited time and with limited output. Quote paths, "
        "and run what you have changed.",
        "run_python": "run_python runs a program in which your tools are functions: use it for loops and sums.",
    },
    "Delegation": {
        "task": "Hand self-contained work to another agent with task. It sees nothing of this conversation: say "
        "all it needs. Several calls at once run side by side.",
    },
}
"""What a model is told of tools that ship, by the tool that has to be there."""


def prompt(template: str | Sequence[str | Text | Instruction] = "", **values: object) -> Kit:
    """Add a template to the system prompt of every session. It is filled in once, at the first model call.

    template: text with marks. `{name}` stands for one of the `values`, or for `{date}`, `{workspace}`, `{agents}`,
        `{tools}` (how to use the tools that ship) or `{agent}`. `{{name}}` keeps its braces. Date, workspace,
        agents and tools are added below the template if it does not place them.
    **values: the values for the marks
    """
    text = _joined(template)
    marks = {found[2] for found in _MARK.finditer(text) if found[2]}
    unknown = marks - {*values, *ENVIRONMENT, "agent"}
    if unknown:
        wrong = ", ".join(sorted(unknown))
        raise BadKit("prompt", f"no value is given for {wrong}; write {{{{name}}}} for braces that should stay")
    if values.keys() - marks:
        raise BadKit("prompt", f"the template has no mark for {', '.join(sorted(values.keys() - marks))}")
    given = {name: str(value) for name, value in values.items()}
    key = f"prompt.{digest(text, given)[:8]}"
    last: tuple[Any, str] = (None, "")  # most sessions of an agent begin alike
    adding = Adding()

    def add(session: SessionAccess, request: Request) -> Request:
        nonlocal last
        filled = session.get_context(key)
        if filled is None:
            files, minute = session.workspace, time.time() // 60  # every day begins with one
            place = "" if files is None else files.folder or "files that only your tools reach"
            seen = (session.agent, minute, place, request.tools, request.instructions)
            if seen != last[0]:
                known = _environment(session.agent, time.strftime("%Y-%m-%d"), place, request.tools) | given
                last = (seen, _filled(text, marks, known, request.instructions))
            filled = last[1]
            session.set_context(key, filled)
        return adding.to(request, filled)

    return Kit(Hooks(before_model=[add]))


def _joined(template: Any) -> str:
    pieces: Any = [template] if isinstance(template, str) else template
    if not all(isinstance(piece, str | Text | Instruction) for piece in pieces):
        raise BadKit("prompt", f"a template is text, or a list of text and its parts, not {template!r}")
    return joined(pieces)


def _filled(text: str, marks: set[str], values: Mapping[str, str], said: str) -> str:
    """The template with its values, then what it does not place, unless that is said already."""
    body = _MARK.sub(lambda found: f"{{{found[1]}}}" if found[1] else values[found[2]], text)
    rest = [values[name] for name in ENVIRONMENT if name not in marks]
    return "\n\n".join(filter(None, [body, "\n\n".join(r for r in rest if r and r not in said)]))


def _environment(agent: str, today: str, place: str, specs: Sequence[ToolSpec]) -> dict[str, str]:
    tools = {tool.name: tool for tool in specs}
    agents = _agents(tools["task"]) if "task" in tools else []
    guides = [_guide(topic, told, tools) for topic, told in GUIDANCE.items()]
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


def _guide(topic: str, told: Mapping[str, str], tools: Mapping[str, object]) -> str:
    sentences = [sentence for tool, sentence in told.items() if tool in tools]
    return f"{topic}: {' '.join(sentences)}" if sentences else ""
