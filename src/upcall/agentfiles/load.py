"""Load agents from a folder of files, one file, or `module:attribute`.

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
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from upcall.agent import Agent, Kit, all_agents
from upcall.agentfiles.ancestry import Position, team_positions
from upcall.agentfiles.markdown import IN_LOG, AgentFile, is_agent_file, load, read_folder, roots
from upcall.agentfiles.mcp_json import ServersFile, read_servers_file
from upcall.agentfiles.sidecar import Problem
from upcall.contracts import Workspace
from upcall.core.error_texts import did_you_mean, nearest
from upcall.core.routing.policy import Policy
from upcall.errors import BadAgentFile, BadKit, ModelRefused, SetupError, UnknownAgent, UpcallError
from upcall.safety.small_files import read_small
from upcall.teams import Team
from upcall.tools import Tool, as_tool

if TYPE_CHECKING:
    from upcall.links.mcp import McpServers

_CHOOSE = "Choose one with --agent NAME"
_IN_FILES = ("script", "local")
"""Providers whose model names are files, relative to the agent file."""


class Loaded(NamedTuple):
    """The agent that a spec names, and all agents that were declared with it."""

    agent: Agent
    agents: tuple[Agent, ...]


class AgentPolicies(NamedTuple):
    """The agent that a spec names, every agent's policy, and the positions below each, for `upcall explain`.

    Teams and chains have positions and no policy: they have no model that could ask.
    """

    name: str
    policies: dict[str, Policy]
    positions: dict[str, list[Position]]


def load_agents(folder: str | Path) -> list[Agent]:
    """Return the agents of a folder, or of one `.md` file and those below it. BadAgentFile lists every mistake.

    A folder's team comes first. Tools are `module:function`, searched for beside the agent file and in the current
    folder. Both folders stay on `sys.path`, so that a tool can import modules beside it when it runs.
    """
    return _build_all(load(folder), str(Path(folder).absolute()))


def load_spec(spec: str, agent_name: str | None = None) -> Loaded:
    """Return the agents that a spec names: a folder of agent files, one file, or `[folder/]module:attribute`.

    Raises SetupError if the spec can't be used, and BadAgentFile if the files it names are wrong.
    """
    if path := _path_of(spec):
        files = load(path)
        name = agent_name or _one_root(spec, path, files)
        return _choose(_build_all(files, str(path.absolute())), name)
    agents = _from_module(spec)
    if agent_name is None and len(agents) > 1:
        raise SetupError(_several(spec, [agent.name for agent in agents]))
    return _choose(agents, agent_name or agents[0].name)


def load_all(spec: str) -> tuple[Agent, ...]:
    """Return every agent that a spec names, for a worker, which runs them all."""
    if path := _path_of(spec):
        return tuple(_build_all(load(path), str(path.absolute())))
    return tuple(_from_module(spec))


def load_policies(spec: str, agent_name: str | None = None) -> AgentPolicies:
    """Return the agent that a spec names, with all policies. The tools of agent files are not imported.

    With one file, the agents above it are searched for beside it.
    """
    if path := _path_of(spec):
        files = load(path if path.is_dir() else path.parent)
        name = agent_name or _one_root(spec, path, files)
        policies = {file.name: file.policy for file in files if file.team is None}
        positions = {file.name: file.positions for file in files}
    else:
        loaded = load_spec(spec, agent_name)
        name, known = loaded.agent.name, cast("dict[str, Agent]", all_agents(loaded.agents))
        policies = {one: agent.policy for one, agent in known.items() if agent.run_program is None}
        positions = {one: _positions(agent) for one, agent in known.items()}
    if name not in positions:
        raise UnknownAgent(name, policies, _CHOOSE)
    if name not in policies:
        members = ", ".join(dict.fromkeys(position.agent for position in positions[name]))
        raise SetupError(
            f"{name!r} has no model, so it can't ask a question; choose one of its members with --agent: {members}"
        )
    return AgentPolicies(name, policies, positions)


def _positions(agent: Agent) -> list[Position]:
    if isinstance(agent, Team):
        workers = [worker.name for worker in agent.roles.values()]
        return team_positions(agent.manager.name, workers, agent.reviewer.name if agent.reviewer else "")
    return [Position(below.name, () if agent.run_program else (agent.name,)) for below in agent.agents]


def find_problems(place: str | Path) -> tuple[list[AgentFile], list[Problem]]:
    """Return the agents without mistakes, and every error and warning, sorted by file and line.

    Tools, models and agents are tried too, also of files with mistakes as far as they can be read.
    """
    agents, drafts, problems = read_folder(place)
    problems = [*problems, *tool_problems(drafts), *model_problems(drafts), *build_problems(drafts)]
    return agents, sorted(problems, key=lambda problem: (problem.file, problem.line))


def tool_problems(files: Iterable[AgentFile]) -> list[Problem]:
    """Return a problem for each tool that can't be imported or is not a tool, and for each wrong skill."""
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
    """Return a problem for each model that can't be used."""
    found = [(file, text) for file in files if (text := _model_problem(file))]
    return [Problem(f.path, _line_of(f.path, f.model) or 0, "model", text) for f, text in found]


def build_problems(files: Iterable[AgentFile]) -> list[Problem]:
    """Return the problems that prevent building agents although each key is valid.

    Tools that can't be imported and agents below that can't be built are left out: they are reported elsewhere.
    """
    by_name = {file.name: file for file in files}
    built: dict[str, Agent | None] = {}
    problems: list[Problem] = []

    def build(file: AgentFile) -> Agent | None:
        if file.name in built or not file.path:
            return built.get(file.name)
        built[file.name] = None  # ends the recursion for an agent below itself
        below = {name: agent for name in file.agents if name in by_name and (agent := build(by_name[name]))}
        clashes, tools = _distinct_tools(file)
        problems.extend(clashes)
        if file.team is None or {file.team.manager, *file.team.roles.values(), *file.agents} <= {*below}:
            usable = file.replace(skills=tuple(name for name in file.skills if not _skill_problem(file, name)))
            try:
                built[file.name] = _team(usable, below) if file.team else _agent(usable, below, tools, None)
            except BadAgentFile as error:
                problems.append(Problem(error.file, error.line or 0, error.key, error.problem))
        return built[file.name]

    for file in by_name.values():
        build(file)
    return problems


def _distinct_tools(file: AgentFile) -> tuple[list[Problem], list[Any]]:
    """Return a problem for each tool name that is used twice, and the other tools that can be imported."""
    problems: list[Problem] = []
    tools: list[Any] = []
    first: dict[str, str] = {}
    for path in file.tools:
        try:
            loaded = _tool(file, path)
        except UpcallError:
            continue
        names = [tool.name for tool in (loaded.tools if isinstance(loaded, Kit) else [loaded])]
        if repeated := [name for name in names if name in first]:
            text = f"two of its tools are called {repeated[0]!r}: {first[repeated[0]]} and {path}"
            text += "; rename one with @tool(name=...)"
            problems.append(Problem(file.path, _line_of(file.path, path) or 0, "tools", text))
        else:
            tools.append(loaded)
            first |= dict.fromkeys(names, path)
    return problems, tools


# --- a spec -----------------------------------------------------------------------------


def _path_of(spec: str) -> Path | None:
    """Return the folder or file that a spec names, or None for `module:attribute`."""
    path = Path(spec)
    if path.is_dir() or is_agent_file(path):
        return path
    if ":" in path.name:
        return None
    if path.suffix == ".py" and path.is_file():
        raise SetupError(f"{spec!r} is a Python file; add the attribute that holds the agent, such as {spec}:agent")
    what = (
        "neither a folder nor an agent's .md file."
        if path.exists()
        else f"no such folder or file.{_suggest_path(path)}"
    )
    raise SetupError(
        f"{spec!r} is not an agent: {what} Give a folder of agent files, one NAME.md, or module:attribute"
    )


def _suggest_path(path: Path) -> str:
    """Return a suggestion of what may have been meant."""
    if path.with_suffix(".py").is_file():
        return f" Say which attribute of {path}.py is the agent: {path}:agent."
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
    several = f"{spec!r} has several agents that are not below another agent: {', '.join(names)}"
    return f"{several}; choose one with --agent NAME"


def _choose(agents: Sequence[Agent], name: str) -> Loaded:
    known = cast("dict[str, Agent]", all_agents(agents))
    if name not in known:
        raise UnknownAgent(name, known, _CHOOSE)
    return Loaded(known[name], tuple(agents))


# --- agent files ------------------------------------------------------------------------


def _build_all(files: Sequence[AgentFile], source: str) -> list[Agent]:
    """Build the agents of valid files: those below first, because declarations contain them."""
    by_name = {file.name: file for file in files}
    built: dict[str, Agent] = {}
    servers = _described_servers(files)

    def build(name: str) -> Agent:
        if name not in built:
            below = {name: build(name) for name in by_name[name].agents}
            file = by_name[name]
            tools = [_tool(file, path) for path in file.tools]
            built[name] = _team(file, below) if file.team else _agent(file, below, tools, servers)
            vars(built[name])["source"] = source
        return built[name]

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


def _described_servers(files: Sequence[AgentFile]) -> McpServers | None:
    """Return the MCP servers of the folder, which all its agents share; None where none are described."""
    found = read_servers_file(Path(files[0].path).parent) if files else ServersFile()
    if not found.servers:
        return None
    from upcall.links.mcp import McpServers
    from upcall.links.mcp.servers import WAIT

    sampling = [name for file in files for name in file.mcp_sampling]
    model = next((_model(file) for file in files if file.mcp_sampling), None)
    return McpServers(found.servers, offer=(), wait=found.wait or WAIT, sampling=sampling, model=model)


def _offered_servers(file: AgentFile, servers: McpServers | None) -> list[Any]:
    """Return the folder's MCP servers as one agent gets them."""
    if servers is None:
        return []
    return [servers.offering(file.mcp, sampling=file.mcp_sampling, model=_model(file) or None)]


def _agent(file: AgentFile, below: Mapping[str, Agent], tools: Sequence[Any], servers: McpServers | None) -> Agent:
    try:
        return Agent(
            file.name,
            instructions=file.instructions,
            description=file.description,
            model=_model(file) or None,
            settings=file.settings,
            tools=[*(one for one in tools if not isinstance(one, Kit)), *_offered_servers(file, servers)],
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
    """Return the named skills from the folder `skills` beside the agent file."""
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
        folders = [path.name for path in folder.glob("[!.]*") if path.is_dir()]
        suggestion = did_you_mean(name, folders) if name not in folders else ""
        return f"{error.problem}.{suggestion}" if suggestion else error.problem
    return ""


def _model(file: AgentFile) -> str:
    """Return the model's name. A file's path is made absolute, because another process may have another folder."""
    provider, _, rest = file.model.partition(":")
    if provider in _IN_FILES and rest:
        return f"{provider}:{Path(file.path).parent.absolute() / rest}"
    return file.model


def _model_problem(file: AgentFile) -> str:
    if not file.model:
        return ""
    provider, _, rest = file.model.partition(":")
    if not (provider and rest):
        example = "such as openai:gpt-6 or script:play.py"
        return f"{file.model!r} is not a valid model name; write provider:model, {example}"
    path = Path(file.path).parent / rest
    if provider in _IN_FILES and rest and not path.is_file():
        return f"there is no file {path}{_suggest_file(path)}"
    from upcall.models.names import load_script, resolve_model

    try:
        resolve_model(file.model)
        if provider == "script":
            load_script(file.model, path)
    except ModelRefused as error:
        return error.problem
    return ""


def _suggest_file(path: Path) -> str:
    """Return a suggestion of a file beside it that was probably meant."""
    near = nearest(path.name, [one.name for one in path.parent.glob(f"*{path.suffix}") if one.is_file()])
    return f". Did you mean {near}?" if near else ""


def _workspace(file: AgentFile) -> Workspace | None:
    """Return the agent's workspace: a folder, relative to the agent file, or the log."""
    if not file.workspace:
        return None
    from upcall.workspace import Folder, InLog

    return InLog() if file.workspace == IN_LOG else Folder(Path(file.path).parent / file.workspace)


def _tool(file: AgentFile, path: str) -> Any:
    """Import a tool or a Kit, or call the function that makes one."""
    module, colon, attribute = path.partition(":")
    line = _line_of(file.path, path)
    if not colon or not module or not attribute:
        problem = f"{path!r} is not a valid import path; write module:function, such as tools:read_file"
        raise BadAgentFile(file.path, problem, line=line, key="tools")
    try:
        imported = _import(module, [Path(file.path).parent.absolute(), Path.cwd()])
        found = _attribute(imported, attribute, (Tool, Kit, FunctionType))
        return found if isinstance(found, Kit) else _call_factory(found) or as_tool(found)
    except BadAgentFile:
        raise
    except SetupError as error:
        raise BadAgentFile(file.path, f"{path}: {error}", line=line, key="tools") from error


def _call_factory(function: Any) -> Kit | Tool | None:
    """Call a function that is annotated to return a Kit or a Tool, and return that; None for anything else."""
    returns = inspect.signature(function).return_annotation if inspect.isfunction(function) else None
    if returns not in (Kit, "Kit", Tool, "Tool"):
        return None
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        advice = "call it in a module of your own, and name the variable that holds the result"
        kind = getattr(returns, "__name__", returns)
        raise SetupError(f"it returns a {kind}, but it needs arguments ({error}); {advice}") from None
    return function()


def _line_of(file: str, text: str) -> int | None:
    """Return the first line of an agent file that contains a text."""
    lines = read_small(file).decode("utf-8", "replace").splitlines()
    return next((number for number, line in enumerate(lines, 1) if text in line), None)


def _problem(error: UpcallError) -> str:
    return error.problem if isinstance(error, BadAgentFile) and error.key == "tools" else str(error)


# --- Python modules ---------------------------------------------------------------------


def _from_module(spec: str) -> list[Agent]:
    """Return the agents of `[folder/]module:attribute`; `agents.py:attribute` works too."""
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
        kind = type(wrong[0]).__name__ if wrong else "empty list"
        what = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        raise SetupError(
            f"{spec!r} is {what}, not an Agent or a list of agents; {_attributes_of_kind(imported, Agent)}"
        )
    for agent in cast("dict[str, Agent]", all_agents(agents)).values():
        vars(agent)["source"] = agent.source or f"{folder}/{module}:{attribute}"
    return agents


def _import(module: str, folders: Sequence[Path]) -> ModuleType:
    """Import a module, from these folders first. If its code raises, the error names the file and line."""
    places = [str(folder) for folder in folders]
    sys.path[:0] = [place for place in dict.fromkeys(places) if place not in sys.path]
    importlib.invalidate_caches()
    top = module.partition(".")[0]
    expected = PathFinder.find_spec(top, places)
    loaded = sys.modules.get(top)
    if expected is not None and loaded is not None and not _same(loaded, expected.origin):
        other = getattr(loaded, "__file__", None) or "Python itself"
        raise SetupError(
            f"module {top!r} is already loaded from {other}, not from {expected.origin}; rename one of them"
        )
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            modules = [path.stem for folder in folders for path in folder.glob("*.py")]
            problem = f"there is no module {error.name!r} in {' or '.join(dict.fromkeys(places))}"
            suggestion = did_you_mean(error.name, modules)
            raise SetupError(f"{problem}.{suggestion}" if suggestion else problem) from error
        raise _import_failed(module, error, folders) from error


def _same(loaded: ModuleType, origin: str | None) -> bool:
    file = getattr(loaded, "__file__", None)
    return origin is None or (file is not None and Path(file).resolve() == Path(origin).resolve())


def _import_failed(module: str, error: BaseException, folders: Sequence[Path]) -> BadAgentFile:
    """Return an error at the last line of the user's own code; the libraries it imports are seldom wrong."""
    if isinstance(error, SyntaxError) and error.filename:
        return BadAgentFile(error.filename, f"SyntaxError: {error.msg}", line=error.lineno)
    problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    own = [f for f in frames if any(Path(f.filename).is_relative_to(folder) for folder in folders)]
    own = [f for f in own if Path(f.filename) != Path(__file__)]
    if not own:
        return BadAgentFile(module, f"can't be imported: {problem}")
    return BadAgentFile(own[-1].filename, problem, line=own[-1].lineno)


def _attribute(module: ModuleType, path: str, kind: Any) -> Any:
    """Return an attribute of a module. The error lists the attributes of the expected kind."""
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            file = module.__file__ or module.__name__
            suggestion = did_you_mean(name, [known for known in dir(found) if known[0] != "_"])
            problem = f"{file} has no attribute {path!r}; {_attributes_of_kind(module, kind)}"
            raise SetupError(f"{problem}.{suggestion}" if suggestion else problem)
        found = getattr(found, name)
    return found


def _attributes_of_kind(module: ModuleType, kind: Any) -> str:
    def fits(value: Any) -> bool:
        return isinstance(value, kind) or (isinstance(value, list) and any(map(fits, cast("list[Any]", value))))

    def own(value: Any) -> bool:  # imported functions are left out
        return getattr(value, "__module__", module.__name__) == module.__name__ or not isinstance(
            value, FunctionType
        )

    names = [name for name, value in vars(module).items() if name[0] != "_" and fits(value) and own(value)]
    return f"it has {', '.join(names[:20])}" if names else "the module defines none"
