"""What people name an agent by (a folder of files, one file, `module:attribute`) turned into agents.

A loaded agent's `source` is its spec with an absolute path, so that another process can load it again.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, cast

from upcall.agent import Agent, Kit, all_agents
from upcall.agentfiles.ancestry import Position, team_seats
from upcall.agentfiles.markdown import IN_LOG, AgentFile, is_agent_file, load, read_folder, roots
from upcall.agentfiles.sidecar import Problem
from upcall.contracts import Workspace
from upcall.core.error_texts import did_you_mean, nearest
from upcall.core.routing.policy import Policy
from upcall.errors import BadAgentFile, BadKit, ModelRefused, SetupError, UnknownAgent, UpcallError
from upcall.safety.small_files import read_small
from upcall.teams import Team
from upcall.tools import Tool, as_tool

_CHOOSE = "Choose one with --agent NAME"
_IN_FILES = ("script", "local")
"""Providers whose model names are files, relative to the agent file."""


class Loaded(NamedTuple):
    """The agent that a spec means, and all that were declared with it."""

    agent: Agent
    agents: tuple[Agent, ...]


class Askers(NamedTuple):
    """Who a spec means, as `upcall explain` needs it: every agent's policy, and where each puts those below it.

    Teams and chains have seats and no policy: they have no model that could ask.
    """

    name: str
    policies: dict[str, Policy]
    seats: dict[str, list[Position]]


def load_agents(folder: str | Path) -> list[Agent]:
    """The agents of a folder (or of one `.md` file and those below it); BadAgentFile tells every mistake at once.

    A folder's team comes first. Tools are `module:function`, looked for beside the agent file and in the current
    folder. Both folders stay on `sys.path`, so that a tool may import what lies beside it when it runs.
    """
    return _built(load(folder), str(Path(folder).absolute()))


def load_spec(spec: str, agent_name: str | None = None) -> Loaded:
    """The agents that a spec names: a folder of agent files, one file, or `[folder/]module:attribute`.

    SetupError where the spec itself can't be used; BadAgentFile where what it names is wrong.
    """
    if place := _place(spec):
        files = load(place)
        name = agent_name or _one_root(spec, place, files)
        return _chosen(_built(files, str(place.absolute())), name)
    agents = _from_module(spec)
    if agent_name is None and len(agents) > 1:
        raise SetupError(_several(spec, [agent.name for agent in agents]))
    return _chosen(agents, agent_name or agents[0].name)


def load_askers(spec: str, agent_name: str | None = None) -> Askers:
    """Who a spec means, and all agents whose policies are known with it; of files no tool is imported.

    With one file, the agents above it are looked for beside it.
    """
    if place := _place(spec):
        files = load(place if place.is_dir() else place.parent)
        name = agent_name or _one_root(spec, place, files)
        policies = {file.name: file.policy for file in files if file.team is None}
        seats = {file.name: file.seats for file in files}
    else:
        loaded = load_spec(spec, agent_name)
        name, known = loaded.agent.name, cast("dict[str, Agent]", all_agents(loaded.agents))
        policies = {one: agent.policy for one, agent in known.items() if agent.run_program is None}
        seats = {one: _seats(agent) for one, agent in known.items()}
    if name not in seats:
        raise UnknownAgent(name, policies, _CHOOSE)
    if name not in policies:
        members = ", ".join(dict.fromkeys(seat.agent for seat in seats[name]))
        raise SetupError(f"{name!r} has no model and asks nothing itself; choose one with --agent: {members}")
    return Askers(name, policies, seats)


def _seats(agent: Agent) -> list[Position]:
    if isinstance(agent, Team):
        workers = [worker.name for worker in agent.roles.values()]
        return team_seats(agent.manager.name, workers, agent.reviewer.name if agent.reviewer else "")
    return [Position(below.name, () if agent.run_program else (agent.name,)) for below in agent.agents]


def find_problems(place: str | Path) -> tuple[list[AgentFile], list[Problem]]:
    """The agents without mistakes in their files, and everything that is wrong or doubtful there, by file and line.

    Tools, models and agents are tried too, of files with mistakes as far as these can be read.
    """
    agents, drafts, problems = read_folder(place)
    problems = [*problems, *tool_problems(drafts), *model_problems(drafts), *build_problems(drafts)]
    return agents, sorted(problems, key=lambda problem: (problem.file, problem.line))


def tool_problems(files: Iterable[AgentFile]) -> list[Problem]:
    """Each tool of these files that can't be imported, or that is none, and each skill that is wrong."""
    problems: list[Problem] = []
    for file in files:
        for path in file.tools:
            try:
                _tool(file, path)
            except UpcallError as error:
                problems.append(Problem(file.path, _line_of(file.path, path) or 0, "tools", _problem(error)))
        wrong = [(name, text) for name in file.skills if (text := _skill_problem(file, name))]
        problems += [Problem(file.path, _line_of(file.path, name) or 0, "skills", text) for name, text in wrong]
    return problems


def model_problems(files: Iterable[AgentFile]) -> list[Problem]:
    """Each model of these files that could never be asked."""
    found = [(file, text) for file in files if (text := _model_problem(file))]
    return [Problem(f.path, _line_of(f.path, f.model) or 0, "model", text) for f, text in found]


def build_problems(files: Iterable[AgentFile]) -> list[Problem]:
    """What keeps files from becoming agents although each of their keys is right.

    Tools that can't be imported are left out, and so are agents below that can't be built: they are told elsewhere.
    """
    named = {file.name: file for file in files}
    made: dict[str, Agent | None] = {}
    problems: list[Problem] = []

    def build(file: AgentFile) -> Agent | None:
        if file.name in made or not file.path:
            return made.get(file.name)
        made[file.name] = None  # one that is below itself ends here
        below = {name: agent for name in file.agents if name in named and (agent := build(named[name]))}
        clashes, tools = _distinct(file)
        problems.extend(clashes)
        if file.team is None or {file.team.manager, *file.team.roles.values(), *file.agents} <= {*below}:
            sound = file.replace(skills=tuple(name for name in file.skills if not _skill_problem(file, name)))
            try:
                made[file.name] = _team(sound, below) if file.team else _agent(sound, below, tools)
            except BadAgentFile as error:
                problems.append(Problem(error.file, error.line or 0, error.key, error.problem))
        return made[file.name]

    for file in named.values():
        build(file)
    return problems


def _distinct(file: AgentFile) -> tuple[list[Problem], list[Any]]:
    """Each tool that has the name of another, and the tools without those and without what can't be imported."""
    problems: list[Problem] = []
    tools: list[Any] = []
    first: dict[str, str] = {}
    for path in file.tools:
        try:
            given = _tool(file, path)
        except UpcallError:
            continue
        names = [tool.name for tool in (given.tools if isinstance(given, Kit) else [given])]
        if taken := [name for name in names if name in first]:
            text = f"two of its tools are called {taken[0]!r}: {first[taken[0]]} and {path}"
            text += "; rename one with @tool(name=...)"
            problems.append(Problem(file.path, _line_of(file.path, path) or 0, "tools", text))
        else:
            tools.append(given)
            first |= dict.fromkeys(names, path)
    return problems, tools


# --- a spec -----------------------------------------------------------------------------


def _place(spec: str) -> Path | None:
    """The folder or file that a spec is, or None for `module:attribute`."""
    path = Path(spec)
    if path.is_dir() or is_agent_file(path):
        return path
    if ":" in path.name:
        return None
    if path.suffix == ".py" and path.is_file():
        raise SetupError(f"{spec!r} is a Python file; give the attribute that is the agent, such as {spec}:agent")
    what = "neither a folder nor an agent's .md file." if path.exists() else f"no such folder or file.{_near(path)}"
    raise SetupError(
        f"{spec!r} is not an agent: {what} Give a folder of agent files, one NAME.md, or module:attribute"
    )


def _near(path: Path) -> str:
    """What lies there and may have been meant."""
    if path.with_suffix(".py").is_file():
        return f" Of {path}.py say which attribute is the agent: {path}:agent."
    there = [one for one in path.parent.glob("[!.]*") if one.is_dir() or is_agent_file(one)]
    near = nearest(path.name, [one.name for one in there])
    return f" Did you mean {path.with_name(near)}?" if near else ""


def _one_root(spec: str, place: Path, files: Sequence[AgentFile]) -> str:
    if place.is_file():
        return next(file.name for file in files if Path(file.path) == place)
    found = roots(files)
    if len(found) != 1:
        raise SetupError(_several(spec, found))
    return found[0]


def _several(spec: str, names: Sequence[str]) -> str:
    return f"{spec!r} holds several agents that no other lists: {', '.join(names)}; choose one with --agent NAME"


def _chosen(agents: Sequence[Agent], name: str) -> Loaded:
    known = cast("dict[str, Agent]", all_agents(agents))
    if name not in known:
        raise UnknownAgent(name, known, _CHOOSE)
    return Loaded(known[name], tuple(agents))


# --- agent files ------------------------------------------------------------------------


def _built(files: Sequence[AgentFile], source: str) -> list[Agent]:
    """Agents of files without mistakes: those below first, because declarations hold them."""
    named = {file.name: file for file in files}
    made: dict[str, Agent] = {}

    def build(name: str) -> Agent:
        if name not in made:
            below = {name: build(name) for name in named[name].agents}
            file = named[name]
            tools = [_tool(file, path) for path in file.tools]
            made[name] = _team(file, below) if file.team else _agent(file, below, tools)
            vars(made[name])["source"] = source
        return made[name]

    return [build(file.name) for file in files]


def _team(file: AgentFile, members: Mapping[str, Agent]) -> Team:
    assert file.team is not None
    roles = {role: members[agent] for role, agent in file.team.roles.items()}
    reviewer = members.get(file.team.reviewer)
    about: dict[str, Any] = {"name": file.name, "description": file.description, **file.team.options}
    try:
        return Team(members[file.team.manager], roles, reviewer, **about)
    except SetupError as error:
        raise BadAgentFile(file.path, str(error)) from error


def _agent(file: AgentFile, below: Mapping[str, Agent], tools: Sequence[Any]) -> Agent:
    try:
        return Agent(
            file.name,
            instructions=file.instructions,
            description=file.description,
            model=_model(file) or None,
            settings=file.settings,
            tools=[one for one in tools if not isinstance(one, Kit)],
            kit=[*_skills(file, file.skills), *(one for one in tools if isinstance(one, Kit))],
            workspace=_workspace(file),
            agents=list(below.values()),
            callback_policy=file.policy,
        )
    except BadAgentFile:
        raise
    except SetupError as error:
        raise BadAgentFile(file.path, str(error)) from error


def _skills(file: AgentFile, names: Sequence[str]) -> list[Kit]:
    """The skills of these names, from the folder `skills` beside the agent file."""
    if not names:
        return []
    from upcall.kit.skills import skills

    folder = Path(file.path).parent.absolute() / "skills"
    try:
        return [skills(*(folder / name for name in names))]
    except BadKit as error:
        line = next((line for name in names if (line := _line_of(file.path, name))), None)
        raise BadAgentFile(file.path, error.problem, line=line, key="skills") from error


def _skill_problem(file: AgentFile, name: str) -> str:
    try:
        _skills(file, [name])
    except BadAgentFile as error:
        folder = Path(file.path).parent / "skills"
        there = [path.name for path in folder.glob("[!.]*") if path.is_dir()]
        meant = did_you_mean(name, there) if name not in there else ""
        return f"{error.problem}.{meant}" if meant else error.problem
    return ""


def _model(file: AgentFile) -> str:
    """The model's name; one that is a file is made absolute, because another process may stand elsewhere."""
    provider, _, rest = file.model.partition(":")
    if provider in _IN_FILES and rest:
        return f"{provider}:{Path(file.path).parent.absolute() / rest}"
    return file.model


def _model_problem(file: AgentFile) -> str:
    if not file.model:
        return ""
    provider, _, rest = file.model.partition(":")
    if not (provider and rest):
        such = "such as openai:gpt-6 or script:play.py"
        return f"{file.model!r} is not a valid model name; write provider:model, {such}"
    path = Path(file.path).parent / rest
    if provider in _IN_FILES and rest and not path.is_file():
        return f"there is no file {path}{_rather(path)}"
    from upcall.models.names import load_script, resolve_model

    try:
        resolve_model(file.model)
        if provider == "script":
            load_script(file.model, path)
    except ModelRefused as error:
        return error.problem
    return ""


def _rather(path: Path) -> str:
    """The file beside it that was probably meant."""
    near = nearest(path.name, [one.name for one in path.parent.glob(f"*{path.suffix}") if one.is_file()])
    return f". Did you mean {near}?" if near else ""


def _workspace(file: AgentFile) -> Workspace | None:
    """Its files: in a folder, which is relative to the agent file, or in the log."""
    if not file.workspace:
        return None
    from upcall.workspace import Folder, InLog

    return InLog() if file.workspace == IN_LOG else Folder(Path(file.path).parent / file.workspace)


def _tool(file: AgentFile, path: str) -> Any:
    """A tool, or the Kit that is called so or that a function makes."""
    module, colon, attribute = path.partition(":")
    line = _line_of(file.path, path)
    if not colon or not module or not attribute:
        problem = f"{path!r} is not a valid import path; write module:function, such as tools:read_file"
        raise BadAgentFile(file.path, problem, line=line, key="tools")
    try:
        imported = _import(module, [Path(file.path).parent.absolute(), Path.cwd()])
        found = _attribute(imported, attribute, (Tool, Kit, FunctionType))
        return found if isinstance(found, Kit) else _made(found) or as_tool(found)
    except BadAgentFile:
        raise
    except SetupError as error:
        raise BadAgentFile(file.path, f"{path}: {error}", line=line, key="tools") from error


def _made(found: Any) -> Kit | Tool | None:
    """What a function that makes a Kit or a tool makes when it is given nothing; None of any other thing."""
    makes = inspect.signature(found).return_annotation if inspect.isfunction(found) else None
    if makes not in (Kit, "Kit", Tool, "Tool"):
        return None
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        own = "call it in a module of your own, and name what it made"
        raise SetupError(
            f"it makes a {getattr(makes, '__name__', makes)}, and can't do so without arguments ({error}); {own}"
        ) from None
    return found()


def _line_of(file: str, text: str) -> int | None:
    """Where a value stands in an agent file, as well as text alone tells it."""
    lines = read_small(file).decode("utf-8", "replace").splitlines()
    return next((number for number, line in enumerate(lines, 1) if text in line), None)


def _problem(error: UpcallError) -> str:
    return error.problem if isinstance(error, BadAgentFile) and error.key == "tools" else str(error)


# --- Python modules ---------------------------------------------------------------------


def _from_module(spec: str) -> list[Agent]:
    """The agents of `[folder/]module:attribute`; `agents.py:attribute` is understood too."""
    folder, name = Path(spec).parent.absolute(), Path(spec).name
    module, _, attribute = name.partition(":")
    module = module.removesuffix(".py")
    if not module or not attribute:
        raise SetupError(f"{spec!r} is not an agent: write module:attribute, such as agents:release")
    if not folder.is_dir():
        raise SetupError(f"{spec!r} is not an agent: there is no folder {folder}")
    imported = _import(module, [folder])
    found = _attribute(imported, attribute, Agent)
    agents = list(cast("Sequence[Any]", found)) if isinstance(found, list | tuple) else [found]
    wrong = [one for one in agents if not isinstance(one, Agent)]
    if wrong or not agents:
        what = f"of type {type(wrong[0]).__name__}" if wrong else "an empty list"
        raise SetupError(f"{spec!r} is {what}, not an Agent or a list of agents; {_fitting(imported, Agent)}")
    for agent in cast("dict[str, Agent]", all_agents(agents)).values():
        vars(agent)["source"] = agent.source or f"{folder}/{module}:{attribute}"
    return agents


def _import(module: str, folders: Sequence[Path]) -> ModuleType:
    """A module by its name, the folders first; what its code raises names the file and line."""
    places = [str(folder) for folder in folders]
    sys.path[:0] = [place for place in dict.fromkeys(places) if place not in sys.path]
    importlib.invalidate_caches()
    top = module.partition(".")[0]
    meant = PathFinder.find_spec(top, places)
    loaded = sys.modules.get(top)
    if meant is not None and loaded is not None and not _same(loaded, meant.origin):
        other = getattr(loaded, "__file__", None) or "Python itself"
        raise SetupError(f"module {top!r} is loaded from {other} already, so {meant.origin} can't be; rename one")
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            there = [path.stem for folder in folders for path in folder.glob("*.py")]
            said = f"there is no module {error.name!r} in {' or '.join(dict.fromkeys(places))}"
            meant = did_you_mean(error.name, there)
            raise SetupError(f"{said}.{meant}" if meant else said) from error
        raise _import_failed(module, error, folders) from error


def _same(loaded: ModuleType, origin: str | None) -> bool:
    file = getattr(loaded, "__file__", None)
    return origin is None or (file is not None and Path(file).resolve() == Path(origin).resolve())


def _import_failed(module: str, error: BaseException, folders: Sequence[Path]) -> BadAgentFile:
    """The error at the last line of the user's own code: what it imported is seldom what is wrong."""
    if isinstance(error, SyntaxError) and error.filename:
        return BadAgentFile(error.filename, f"SyntaxError: {error.msg}", line=error.lineno)
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    own = [f for f in frames if any(Path(f.filename).is_relative_to(folder) for folder in folders)]
    own = [f for f in own if Path(f.filename) != Path(__file__)]
    if not own:
        return BadAgentFile(module, f"can't be imported: {said}")
    return BadAgentFile(own[-1].filename, said, line=own[-1].lineno)


def _attribute(module: ModuleType, path: str, kind: Any) -> Any:
    """What the module calls so; the error names what it has of the kind that is wanted."""
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            file = module.__file__ or module.__name__
            meant = did_you_mean(name, [known for known in dir(found) if known[0] != "_"])
            said = f"{file} has no attribute {path!r}; {_fitting(module, kind)}"
            raise SetupError(f"{said}.{meant}" if meant else said)
        found = getattr(found, name)
    return found


def _fitting(module: ModuleType, kind: Any) -> str:
    def fits(value: Any) -> bool:
        return isinstance(value, kind) or (isinstance(value, list) and any(map(fits, cast("list[Any]", value))))

    def own(value: Any) -> bool:  # a function that it only imported is seldom meant
        return getattr(value, "__module__", module.__name__) == module.__name__ or not isinstance(
            value, FunctionType
        )

    there = [name for name, value in vars(module).items() if name[0] != "_" and fits(value) and own(value)]
    return f"it has {', '.join(there[:20])}" if there else "nothing in it could be meant"
