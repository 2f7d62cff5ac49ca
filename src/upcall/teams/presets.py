"""Ready-made agents, built from the kit and the workspace tools."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, cast

from upcall.agent import Agent, Kit
from upcall.contracts import Model, Workspace
from upcall.errors import BadAgent
from upcall.hooks import NO_HOOKS, Hooks
from upcall.kit import approve, compact, evict, memory, prompt, skills
from upcall.workspace import Folder, InLog, file_tools, shell, todo_tools

GENERAL_PURPOSE = "general_purpose"

BASE = (
    "You work on what you are asked until it is done. Understand it first: look at what is there before you change "
    "anything, and ask if it can be read in two ways that matter. Do all of it and no more. See for yourself that "
    "it is right before you say so. If you can't do a part, say which and why."
)
BELOW = "Whoever gave you this work sees only your last message, so put everything they need to know into it."
ANYTHING = (
    "For questions and tasks of several steps that would fill your own conversation: searching, reading and trying "
    "out. It has the same tools as you."
)
CODE = (
    "You are a programmer at work in a repository. Read the code around a change first and write as it is written. "
    "Keep changes small. Run the tests, and what you have changed. Never undo what others have changed."
)

Rules = Mapping[str, bool | Mapping[str, str | Sequence[str]]] | str
Folders = Sequence[str | os.PathLike[str]]
WorkspaceOrPath = Workspace | str | os.PathLike[str]
"""A workspace, or the path of a folder."""

UNCONFINED: Rules = {"shell": True}
"""The default approval rules: a shell is not confined to the workspace."""


class _Named(TypedDict):
    name: str
    description: str


class SubAgent(_Named, total=False):
    """An agent below a deep agent, with its own history. Keys that are left out take the deep agent's values."""

    instructions: str
    model: str | Model
    tools: Sequence[Any]
    skills: Folders
    interrupt_on: Rules


def deep_agent(
    model: str | Model | None,
    tools: Sequence[Any] = (),
    *,
    instructions: str = "",
    subagents: Sequence[Agent | SubAgent] = (),
    memory: Sequence[str] = (),
    skills: Folders = (),
    interrupt_on: Rules | None = UNCONFINED,
    summarize: int | None = 100_000,
    execution: bool = False,
    workspace: WorkspaceOrPath | None = None,
    extra_hooks: Hooks = NO_HOOKS,
    general_purpose: str = GENERAL_PURPOSE,
    name: str = "deep_agent",
) -> Agent:
    """Return an agent for long tasks: it keeps a to-do list, has files, and gives work to sub-agents.

    model, tools, instructions: as for `Agent`
    subagents: agents, or dicts with a name, a description and what differs from this agent. None sees this
        conversation.
    memory: files of the workspace that the model reads in every request, such as `["AGENTS.md"]`
    skills: folders with skills
    interrupt_on: the calls that need approval, here and below, as for `approve`; None asks for nothing
    summarize: the number of tokens above which old messages are summarised; None never does
    execution: give it a shell; needs a workspace with a folder
    workspace: where its files are: a workspace or the path of a folder; in the log if there is none
    extra_hooks: hooks of your own; they run after the built-in ones, and approvals are asked for after both
    general_purpose: the name of a sub-agent that can do what this agent can; an agent of yours with that name takes
        its place, and "" leaves it out
    name: the agent's name
    """
    _check_lists(name, tools=tools, subagents=subagents, memory=memory, skills=skills)
    kits = [prompt(), todo_tools(), file_tools(), evict()]
    if execution:
        if workspace is None:
            raise BadAgent(name, "execution needs a folder to run commands in: workspace=Folder('work')")
        kits.append(shell())
    if summarize is not None:
        kits.append(compact(summarize))
    inherited: dict[str, Any] = {"model": model, "tools": tools}
    own_kits = [*kits, *_knowledge_kits(memory, skills)]
    agents = [
        subagent if isinstance(subagent, Agent) else _sub_agent(name, subagent, inherited, kits)
        for subagent in subagents
    ]
    if general_purpose and general_purpose not in {agent.name for agent in agents}:
        agents.insert(0, _sub_agent(name, {"name": general_purpose, "description": ANYTHING}, inherited, own_kits))
    return Agent(
        name,
        instructions="\n\n".join(filter(None, [instructions, BASE])),
        agents=agents,
        kit=[*own_kits, *_approval_kits(interrupt_on)],
        hooks=extra_hooks,
        workspace=InLog() if workspace is None else _workspace(workspace),
        **inherited,
    )


def coder_agent(
    model: str | Model | None,
    workspace: WorkspaceOrPath,
    *,
    instructions: str = "",
    skills: Folders = (),
    interrupt_on: Rules | None = UNCONFINED,
    extra_hooks: Hooks = NO_HOOKS,
    name: str = "coder",
) -> Agent:
    """Return an agent that works on the code in a folder: it reads, edits and runs it, and keeps a to-do list.

    It reads `AGENTS.md`, and a long conversation is summarised.

    model, instructions: as for `Agent`
    workspace: where the code is: a workspace or the path of a folder
    skills: folders with skills
    interrupt_on: the calls that need approval, as for `approve`; "edits_ask" adds changes of files, None asks for
        nothing
    extra_hooks: hooks of your own; they run after the built-in ones
    name: the agent's name
    """
    _check_lists(name, skills=skills)
    kits = [
        prompt(),
        todo_tools(),
        file_tools(),
        shell(),
        evict(),
        compact(),
        *_knowledge_kits(["AGENTS.md"], skills),
    ]
    return Agent(
        name,
        instructions="\n\n".join(filter(None, [CODE, BASE, instructions])),
        model=model,
        kit=[*kits, *_approval_kits(interrupt_on)],
        hooks=extra_hooks,
        workspace=_workspace(workspace),
    )


def _workspace(workspace: WorkspaceOrPath) -> Workspace:
    return Folder(workspace) if isinstance(workspace, str | os.PathLike) else workspace


def _knowledge_kits(files: Sequence[str], folders: Folders) -> Iterator[Kit]:
    if files:
        yield memory(*files)
    if folders:
        yield skills(*folders)


def _approval_kits(rules: Rules | None) -> Iterator[Kit]:
    if rules is not None:
        yield approve(rules)


def _sub_agent(parent: str, description: Any, inherited: Mapping[str, Any], kits: Sequence[Kit]) -> Agent:
    """Return the agent that a dict describes. It inherits its parent's approval rules."""
    keys: set[Any] = set(cast("Mapping[Any, Any]", description)) if isinstance(description, Mapping) else set()
    if not {"name", "description"} <= keys:
        raise BadAgent(
            parent, f"a sub-agent must be an Agent, or a dict with name and description, not {description!r}"
        )
    known = SubAgent.__annotations__
    if keys - known.keys():
        wrong = ", ".join(sorted(map(str, keys - known.keys())))
        raise BadAgent(
            parent, f"sub-agent {description['name']!r} can't have {wrong}; it may have: {', '.join(known)}"
        )
    spec: dict[str, Any] = {"skills": (), "interrupt_on": None, "instructions": BASE, **inherited, **description}
    _check_lists(spec["name"], tools=spec["tools"], skills=spec["skills"])
    return Agent(
        spec["name"],
        description=spec["description"],
        instructions=f"{spec['instructions']}\n\n{BELOW}",
        model=spec["model"],
        tools=spec["tools"],
        kit=[*kits, *_knowledge_kits((), spec["skills"]), *_approval_kits(spec["interrupt_on"])],
    )


def _check_lists(name: str, **lists: Any) -> None:
    """Raise BadAgent unless each value is a list. A text is a sequence too, which nobody means."""
    for option, value in lists.items():
        if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
            raise BadAgent(name, f"{option} must be a list: {option}=[{value!r}]")
