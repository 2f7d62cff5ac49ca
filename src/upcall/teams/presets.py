"""Ready-made agents: the pieces that ship, put together as most people would."""

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
BELOW = "Whoever gave you this work sees only your last message: put all that it needs to know into that."
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
Place = Workspace | str | os.PathLike[str]
"""A workspace, or the path of a folder that is to be one."""

UNCONFINED: Rules = {"shell": True}
"""What has to be approved unless somebody says otherwise: a shell reaches beyond the workspace."""


class _Named(TypedDict):
    name: str
    description: str


class SubAgent(_Named, total=False):
    """An agent below a deep agent. What is left out is the deep agent's; its history is its own."""

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
    workspace: Place | None = None,
    extra_hooks: Hooks = NO_HOOKS,
    general_purpose: str = GENERAL_PURPOSE,
    name: str = "deep_agent",
) -> Agent:
    """An agent for long tasks: it keeps a list of things to do, has files, and gives work to sub-agents.

    model, tools, instructions: as for `Agent`
    subagents: agents, or dicts with a name, a description and what differs from this agent. None sees this
        conversation.
    memory: files of the workspace that the model reads in every request, such as `["AGENTS.md"]`
    skills: folders with skills
    interrupt_on: what has to be approved, here and below, as `approve` takes it; None asks for nothing
    summarize: the number of tokens above which old messages are summarised; None never does
    execution: give it a shell; needs a workspace with a folder
    workspace: where its files are: a workspace or the path of a folder; in the log if there is none
    extra_hooks: hooks of your own; they run after the built-in ones, and approvals are asked for after both
    general_purpose: the name of a sub-agent that can do what this agent can; an agent of yours with that name takes
        its place, and "" leaves it out
    name: the agent's name
    """
    _check_lists(name, tools=tools, subagents=subagents, memory=memory, skills=skills)
    pieces = [prompt(), todo_tools(), file_tools(), evict()]
    if execution:
        if workspace is None:
            raise BadAgent(name, "execution needs a folder to run commands in: workspace=Folder('work')")
        pieces.append(shell())
    if summarize is not None:
        pieces.append(compact(summarize))
    ours: dict[str, Any] = {"model": model, "tools": tools}
    own = [*pieces, *_taught(memory, skills)]
    below = [one if isinstance(one, Agent) else _below(name, one, ours, pieces) for one in subagents]
    if general_purpose and general_purpose not in {agent.name for agent in below}:
        below.insert(0, _below(name, {"name": general_purpose, "description": ANYTHING}, ours, own))
    return Agent(
        name,
        instructions="\n\n".join(filter(None, [instructions, BASE])),
        agents=below,
        kit=[*own, *_asking(interrupt_on)],
        hooks=extra_hooks,
        workspace=InLog() if workspace is None else _place(workspace),
        **ours,
    )


def coder_agent(
    model: str | Model | None,
    workspace: Place,
    *,
    instructions: str = "",
    skills: Folders = (),
    interrupt_on: Rules | None = UNCONFINED,
    extra_hooks: Hooks = NO_HOOKS,
    name: str = "coder",
) -> Agent:
    """An agent that works on the code in a folder: it reads, edits and runs it, and keeps a list of things to do.

    It reads `AGENTS.md`, and a long conversation is summarised.

    model, instructions: as for `Agent`
    workspace: where the code is: a workspace or the path of a folder
    skills: folders with skills
    interrupt_on: what has to be approved, as `approve` takes it; "edits_ask" adds changes of files, None asks for
        nothing
    extra_hooks: hooks of your own; they run after the built-in ones
    name: the agent's name
    """
    _check_lists(name, skills=skills)
    pieces = [prompt(), todo_tools(), file_tools(), shell(), evict(), compact(), *_taught(["AGENTS.md"], skills)]
    return Agent(
        name,
        instructions="\n\n".join(filter(None, [CODE, BASE, instructions])),
        model=model,
        kit=[*pieces, *_asking(interrupt_on)],
        hooks=extra_hooks,
        workspace=_place(workspace),
    )


def _place(workspace: Place) -> Workspace:
    return Folder(workspace) if isinstance(workspace, str | os.PathLike) else workspace


def _taught(files: Sequence[str], folders: Folders) -> Iterator[Kit]:
    if files:
        yield memory(*files)
    if folders:
        yield skills(*folders)


def _asking(rules: Rules | None) -> Iterator[Kit]:
    if rules is not None:
        yield approve(rules)


def _below(above: str, given: Any, ours: Mapping[str, Any], pieces: Sequence[Kit]) -> Agent:
    """The agent that a description stands for; what the one above has approved, it inherits."""
    keys: set[Any] = set(cast("Mapping[Any, Any]", given)) if isinstance(given, Mapping) else set()
    if not {"name", "description"} <= keys:
        raise BadAgent(above, f"a sub-agent is an Agent, or a dict with name and description, not {given!r}")
    known = SubAgent.__annotations__
    if keys - known.keys():
        wrong = ", ".join(sorted(map(str, keys - known.keys())))
        raise BadAgent(above, f"sub-agent {given['name']!r} can't have {wrong}; it may have: {', '.join(known)}")
    spec: dict[str, Any] = {"skills": (), "interrupt_on": None, "instructions": BASE, **ours, **given}
    _check_lists(spec["name"], tools=spec["tools"], skills=spec["skills"])
    return Agent(
        spec["name"],
        description=spec["description"],
        instructions=f"{spec['instructions']}\n\n{BELOW}",
        model=spec["model"],
        tools=spec["tools"],
        kit=[*pieces, *_taught((), spec["skills"]), *_asking(spec["interrupt_on"])],
    )


def _check_lists(name: str, **lists: Any) -> None:
    """Texts are lists of characters to Python; nobody means that."""
    for what, given in lists.items():
        if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
            raise BadAgent(name, f"{what} is a list: {what}=[{given!r}]")
