"""Read agent files: Markdown with front matter, a sidecar that says whom the agent may ask, and `team.toml`.

Reading finds every mistake at once, each with file, line, key and what is allowed. It also warns of policies that
are valid but probably not meant. The results are plain values; `load` builds agents from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from upcall.agentfiles import mcp_json
from upcall.agentfiles import team_toml as teamfile
from upcall.agentfiles.ancestry import Position, ancestor_chains, team_positions
from upcall.agentfiles.settings_block import read_settings, unknown_to
from upcall.agentfiles.sidecar import MAX_BYTES, Problem, key_lines, read_sidecar
from upcall.core.error_texts import did_you_mean, nearest
from upcall.core.routing.policy import KEYS, RESERVED, Policy, name_problem
from upcall.core.routing.route import Ancestor, Route, RouteQuery, route
from upcall.errors import BadAgentFile
from upcall.messages import Value
from upcall.safety.front_matter import compose
from upcall.safety.small_files import read_small
from upcall.settings import Settings

if TYPE_CHECKING:
    import yaml

TEXTS = ("name", "description", "model", "workspace")
LISTS = ("tools", "skills", "agents", "mcp", "mcp_sampling")
OWN_KEYS = (*TEXTS, "settings", *LISTS)
IN_LOG = "in log"
"""The value of `workspace:` for files in the log."""

_MAX_LEVELS = 100
"""The depth to which agents may be nested."""

_MAX_CHAINS = 100
"""The chains above one agent that are checked for warnings."""


class AgentFile(Value, frozen=True):
    """The content of one agent's files. `name` is the file's name if the front matter has none.

    A folder's team is one of its agents: it has a path, a name, a description, and its members as `agents`.
    `mcp` are the MCP servers whose tools it gets, `mcp_sampling` those of them that may ask for model calls.
    """

    name: str
    description: str = ""
    model: str = ""
    workspace: str = ""
    tools: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    mcp_sampling: tuple[str, ...] = ()
    instructions: str = ""
    policy: Policy = Policy()
    path: str = ""
    settings: Settings | None = None
    team: teamfile.TeamFile | None = None

    @property
    def positions(self) -> list[Position]:
        """The positions of the agents below this one."""
        if self.team is None:
            return [Position(below, (self.name,)) for below in self.agents]
        return team_positions(self.team.manager, list(self.team.roles.values()), self.team.reviewer)


def is_agent_file(path: Path) -> bool:
    """Return whether a path is one agent's Markdown file, or a team.toml."""
    return path.is_file() and (path.suffix == ".md" or path.name == teamfile.NAME)


def load(place: str | Path) -> list[AgentFile]:
    """Return the agents of a folder, or of one file and those below it. BadAgentFile lists every mistake."""
    agents, problems = read_agents(place)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        first = errors[0]
        text = "\n".join([first.text, *(str(problem) for problem in errors[1:])])
        raise BadAgentFile(first.file, text, line=first.line or None, key=first.key)
    return agents


class Reading(NamedTuple):
    """A folder's content: the agents without mistakes, all agents as far as they can be read, and every problem."""

    agents: list[AgentFile]
    drafts: list[AgentFile]
    problems: list[Problem]


def read_agents(place: str | Path) -> tuple[list[AgentFile], list[Problem]]:
    """Return the agents without mistakes, and every error and warning, sorted by file and line.

    For a folder, these are its team and all its `*.md`; a README without front matter is skipped. For one file, its
    agent comes first, then the agents it names, which are searched for beside it.
    """
    agents, _, problems = read_folder(place)
    return agents, problems


def read_folder(place: str | Path) -> Reading:
    """Return the same, plus the agents with mistakes as far as they can be read: one mistake hides no other."""
    place = Path(place)
    if not place.is_dir() and not is_agent_file(place):
        return Reading([], [], [Problem(str(place), 0, "", _no_place(place))])
    folder = place if place.is_dir() else place.parent
    drafts = [_read_team(path) for path in folder.glob(teamfile.NAME)]
    drafts += [draft for path in sorted(folder.glob("*.md")) if (draft := _read(path))]
    problems = _sidecars_without_agent(folder) if place.is_dir() else []
    if not place.is_dir():
        drafts = _reachable_from(drafts, place)
    if not drafts and not problems:
        problems = [Problem(str(place), 0, "", "holds no agent: an agent is NAME.md with front matter")]
    problems += [problem for draft in drafts for problem in draft.problems]
    structure = [*_name_problems(drafts), *_missing_agents(drafts), *_cycles(drafts)]
    problems += structure
    if not structure and all(draft.has_structure for draft in drafts):
        problems += _warnings([draft.agent for draft in drafts], {d.agent.name: d for d in drafts})
    problems += [*_fallback_problems(drafts), *_server_problems(drafts, folder)]
    bad = {problem.file for problem in problems if problem.severity == "error"}
    agents = [draft.agent for draft in drafts if not bad & {str(draft.path), str(draft.sidecar)}]
    problems.sort(key=lambda problem: (problem.file, problem.line))
    return Reading(agents, [draft.agent for draft in drafts], problems)


def _no_place(place: Path) -> str:
    more = "" if place.exists() else ": there is no such file"
    if place.suffix == ".py" or ":" in place.name:
        more = "; agents declared in Python are checked when `upcall run` imports them"
    elif place.with_suffix(".md").exists():
        more = f"; it belongs to {place.with_suffix('.md')}"
    return f"is neither a folder of agent files nor an agent's .md file{more}"


def roots(agents: Sequence[AgentFile]) -> list[str]:
    """Return the agents that no other lists under `agents:`. A folder with one root can be run without `--agent`.

    If there are teams among them, only teams are returned.
    """
    listed = {name for agent in agents for name in agent.agents}
    found = [agent for agent in agents if agent.name not in listed]
    return [agent.name for agent in found if agent.team] or [agent.name for agent in found]


# --- one file ---------------------------------------------------------------------------


class _Name(NamedTuple):
    """An agent's name in a file, with its line and key."""

    name: str
    line: int
    key: str


class _Draft:
    """One agent as far as it could be read, with the line of each key and the agents that it names."""

    def __init__(self, path: Path) -> None:
        self.path, self.sidecar = path, path.with_suffix(".json")
        self.agent = AgentFile(path.stem, path=str(path))
        self.lines: dict[str, int] = {}
        self.setting_lines: dict[str, int] = {}
        self.names: list[_Name] = []
        self.sidecar_lines: dict[str, int] = {}
        self.target = ""  # its fallback_target, even of a sidecar with mistakes elsewhere
        self.readable = True  # if False, only its sidecar is known
        self.has_policy = True  # its sidecar has no mistakes
        self.problems: list[Problem] = []

    @property
    def has_structure(self) -> bool:
        """True if its name and the agents below it are known."""
        wrong = {problem.key.partition(".")[0] for problem in self.problems if problem.file == str(self.path)}
        return self.readable and not wrong & {"name", "agents", "manager", "reviewer", "roles"}

    def unreadable(self, line: int, text: str) -> None:
        """Record why the file can't be read; its sidecar may still be."""
        self.readable = False
        self.add_error(line, "", text)

    def add_error(self, line: int, key: str, text: str) -> None:
        self.problems.append(Problem(str(self.path), line, key, text))

    def warning(self, key: str, text: str) -> Problem:
        """Return a warning about a key of the sidecar."""
        line = self.sidecar_lines.get(key, 0)
        return Problem(str(self.sidecar), line, key, text, "warning")


def _read(path: Path) -> _Draft | None:
    draft = _Draft(path)
    try:
        text = read_small(path).decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        draft.unreadable(0, f"can't be read: {error.strerror}")
    except UnicodeDecodeError as error:
        draft.unreadable(error.object.count(b"\n", 0, error.start) + 1, "this is not UTF-8 text")
    else:
        if path.stem.lower() == "readme" and not _has_front_matter(text):
            return None
        _read_text(draft, text)
    if (draft.readable or draft.sidecar.exists()) and draft.sidecar.name != mcp_json.NAME:
        _read_sidecar(draft)
    return draft


def _has_front_matter(text: str) -> bool:
    """Return whether a text begins with front matter."""
    return text.partition("\n")[0].rstrip() == "---"


def _read_text(draft: _Draft, text: str) -> None:
    """Read an agent's Markdown: the front matter, and below it the instructions."""
    lines = text.split("\n")
    if not _has_front_matter(text):
        draft.unreadable(1, f"must begin with front matter: a line ---, the keys ({_keys()}), a line ---")
        return
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        draft.unreadable(1, "the front matter has no end: a second line --- is missing")
        return
    _front_matter(draft, "\n".join(lines[1:end]))
    instructions = "\n".join(lines[end + 1 :]).strip()
    if not instructions:
        draft.add_error(end + 1, "", "has no instructions: write them below the front matter")
    draft.agent = draft.agent.replace(instructions=instructions)


def _keys() -> str:
    return ", ".join(OWN_KEYS)


_YAML = {
    "mapping values are not allowed": "put quotes around a text that contains ': '",
    "'\\t' that cannot start": "indent with spaces, not with a tab",
    "unexpected end of stream": "a quote is not closed",
    "expected ',' or ']'": "a list is not closed; write [one, two]",
}
"""Advice for the most common mistakes."""


def _front_matter(draft: _Draft, text: str) -> None:
    import yaml

    try:
        # compose never constructs: its marks give the lines, and no tag can create an object
        node = compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (column {mark.column + 1})" if mark else ""
        problem = next((hint for words, hint in _YAML.items() if words in str(error.problem)), error.problem)
        _not_yaml(draft, text, mark.line + 2 if mark else 1, f"{problem}{where}")
        return
    except (yaml.YAMLError, RecursionError) as error:
        _not_yaml(draft, text, 1, str(error).splitlines()[0])
        return
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        draft.unreadable(2, f"the front matter must consist of keys with values, one per line: {_keys()}")
        return
    fields: dict[str, Any] = {}
    for key_node, value_node in node.value:
        _read_key(draft, fields, key_node, value_node)
    draft.agent = draft.agent.replace(**fields)
    for name, text in unknown_to(draft.agent.model, draft.agent.settings).items():
        draft.add_error(draft.setting_lines[name], f"settings.{name}", text)


def _not_yaml(draft: _Draft, text: str, line: int, why: str) -> None:
    """Record the mistake. The name is still read, so that agents that list this one are not reported."""
    draft.unreadable(line, f"the front matter is not YAML: {why}")
    name_line = re.search(r"^name:[ \t]*([^\s'\"#]+)[ \t]*$", text, re.MULTILINE)
    if name_line and not name_problem(name_line[1]):
        draft.agent = draft.agent.replace(name=name_line[1])


def _read_key(draft: _Draft, fields: dict[str, Any], key_node: yaml.Node, value: yaml.Node) -> None:
    key, line = str(key_node.value), _line(key_node)
    if key not in OWN_KEYS:
        draft.add_error(line, key, _unknown(key, draft))
        return
    if key in draft.lines:
        draft.add_error(line, key, f"is written twice; first on line {draft.lines[key]}")
        return
    draft.lines[key] = line
    if key in LISTS:
        fields[key] = tuple(_items(draft, key, value))
    elif key == "settings":
        fields[key], draft.setting_lines = read_settings(value, _line, draft.add_error)
    elif not _is_text(value):
        draft.add_error(line, key, f"must be text, not {_describe(value)}")
    elif key == "name" and (problem := name_problem(value.value)):
        draft.add_error(line, key, problem)
    elif key == "workspace" and not (value.value == IN_LOG or (draft.path.parent / value.value).is_dir()):
        draft.add_error(line, key, _no_folder(draft, value.value))
    else:
        fields[key] = value.value.strip()


def _unknown(key: str, draft: _Draft) -> str:
    own, sidecar = OWN_KEYS, ("callback_policy", *(known.rpartition(".")[2] for known in KEYS))
    place = f" It belongs in {draft.sidecar.name}." if nearest(key, (*own, *sidecar)) in sidecar else ""
    return f"unknown key; allowed are {_keys()}.{did_you_mean(key, (*own, *sidecar))}{place}"


def _no_folder(draft: _Draft, name: str) -> str:
    folders = [path.name for path in draft.path.parent.glob("[!.]*") if path.is_dir()]
    problem = f"there is no folder {name!r} here; give one that exists, or: {IN_LOG}"
    suggestion = did_you_mean(name, (IN_LOG, *folders))
    return f"{problem}.{suggestion}" if suggestion else problem


def _items(draft: _Draft, key: str, node: yaml.Node) -> Iterator[str]:
    import yaml

    if not isinstance(node, yaml.SequenceNode):
        draft.add_error(_line(node), key, f"must be a list of names, such as [one, two], not {_describe(node)}")
        return
    seen: set[str] = set()
    for item in node.value:
        if not _is_text(item):
            draft.add_error(_line(item), key, f"must hold names only, not {_describe(item)}")
        elif item.value in seen:
            draft.add_error(_line(item), key, f"names {item.value!r} twice")
        else:
            seen.add(item.value)
            if key == "agents":
                draft.names.append(_Name(item.value, _line(item), key))
            yield item.value


def _is_text(node: yaml.Node) -> bool:
    import yaml

    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":str") and bool(node.value.strip())


def _describe(node: yaml.Node) -> str:
    kind = node.tag.rpartition(":")[2]
    words = {"seq": "a list", "map": "keys with values", "null": "nothing", "str": f"{str(node.value)[:60]!r}"}
    return words.get(kind) or f"{str(node.value)[:60]!r} (YAML reads it as {kind}; quotes make it text)"


def _line(node: yaml.Node) -> int:
    """Return a node's line in the file, whose first line is the `---`."""
    return node.start_mark.line + 2


def _read_sidecar(draft: _Draft) -> None:
    name = draft.sidecar.name
    try:
        raw = read_small(draft.sidecar, MAX_BYTES)
    except FileNotFoundError:
        draft.agent = draft.agent.replace(policy=Policy.closed(name))
        note = "no sidecar: it may ask neither its caller nor the person, so its questions are never answered"
        draft.problems.append(draft.warning("", note))
        return
    except OSError as error:
        draft.has_policy = False
        draft.problems.append(Problem(str(draft.sidecar), 0, "", f"can't be read: {error.strerror}"))
        return
    policy, problems = read_sidecar(raw, str(draft.sidecar))
    draft.problems += problems
    draft.target = _target(raw) if policy is None else policy.callback_policy.fallback_target or ""
    if policy is not None or draft.target:  # else it may not be JSON at all
        draft.sidecar_lines = key_lines(raw.decode("utf-8-sig"))
    draft.has_policy = policy is not None
    if policy is None:
        return
    draft.agent = draft.agent.replace(policy=policy.replace(source=name))
    note = {
        "can_query_caller": "is missing, which means false: it never asks its caller",
        "can_use_host_interaction": "is missing, which means false: it may not ask the person itself",
    }
    draft.problems += [draft.warning(key, text) for key, text in note.items() if not policy.has(key)]


def _target(raw: bytes) -> str:
    """Return the fallback that a sidecar with mistakes names, or "" if that can't be read."""
    try:
        target = json.loads(raw.decode("utf-8-sig"))["callback_policy"]["fallback_target"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return target if isinstance(target, str) and target and not name_problem(target) else ""


def _read_team(path: Path) -> _Draft:
    draft = _Draft(path)
    keys, draft.lines, draft.problems = teamfile.read_team(path)
    draft.readable = bool(keys)
    team = teamfile.team_of(keys)
    members = {"manager": team.manager, "reviewer": team.reviewer}
    members |= {f"roles.{role}": agent for role, agent in team.roles.items()}
    draft.names = [_Name(name, draft.lines.get(key, 0), key) for key, name in members.items() if name]
    about = {key: keys[key] for key in ("name", "description") if key in keys}
    below = tuple(dict.fromkeys(name.name for name in draft.names))
    draft.agent = draft.agent.replace(**about, agents=below, team=team)
    return draft


# --- many files -------------------------------------------------------------------------


def _sidecars_without_agent(folder: Path) -> list[Problem]:
    agents = [path.stem for path in folder.glob("*.md")]
    return [
        Problem(str(path), 0, "", f"is a sidecar without its agent: {_no_agent(path.stem, agents)}")
        for path in sorted(folder.glob("*.json"))
        if not path.with_suffix(".md").exists() and path.name != mcp_json.NAME
    ]


def _server_problems(drafts: Sequence[_Draft], folder: Path) -> Iterator[Problem]:
    """Yield the mistakes in mcp.json, and each MCP server that an agent names and that is not described there."""
    file = mcp_json.read_servers_file(folder)
    yield from file.problems
    described = {*file.servers, *(problem.key.split(".")[1] for problem in file.problems if "." in problem.key)}
    for draft in drafts:
        if file.path and draft.path.with_suffix(".json").name == mcp_json.NAME:
            text = f"{mcp_json.NAME} describes MCP servers, so it can't be a sidecar; rename the agent's file"
            yield Problem(str(draft.path), 0, "", text)
        for key, names, known in (
            ("mcp", draft.agent.mcp, described),
            ("mcp_sampling", draft.agent.mcp_sampling, set(draft.agent.mcp)),
        ):
            for name in names:
                if name not in known:
                    more = (
                        "list it under mcp: too"
                        if key == "mcp_sampling"
                        else mcp_json.unknown_server(name, file, sorted(known))
                    )
                    yield Problem(str(draft.path), draft.lines.get(key, 0), key, more)
    if not file.problems:
        yield from mcp_json.server_warnings(file, [*dict.fromkeys(one for d in drafts for one in d.agent.mcp)])


def _no_agent(name: str, agents: Sequence[str]) -> str:
    near = nearest(name, agents)
    return f"there is no {name}.md beside it" + (f". Did you mean {near}.json?" if near else "")


def _reachable_from(drafts: Sequence[_Draft], place: Path) -> list[_Draft]:
    """Return the draft of one file, then all drafts that it names, directly or indirectly."""
    by_name = {draft.agent.name: draft for draft in reversed(drafts)}
    found = [draft for draft in drafts if draft.path == place]
    for draft in found:
        for name in (*draft.agent.agents, draft.target):
            if name in by_name and by_name[name] not in found:
                found.append(by_name[name])
    return found


def _name_problems(drafts: Sequence[_Draft]) -> Iterator[Problem]:
    first: dict[str, _Draft] = {}
    for draft in drafts:
        name = draft.agent.name
        line = draft.lines.get("name", 0)
        if name in first:
            text = f"{name!r} is already the name of {first[name].path}; choose another name"
            yield Problem(str(draft.path), line, "name", text)
        elif "name" not in draft.lines and (problem := name_problem(name)):
            yield Problem(str(draft.path), line, "name", f"{problem} (the file's name is used)")
        first.setdefault(name, draft)


def _missing_agents(drafts: Sequence[_Draft]) -> Iterator[Problem]:
    """Yield an error for each agent that is named and does not exist."""
    known = [draft.agent.name for draft in drafts]
    can_answer = sorted(draft.agent.name for draft in drafts if draft.agent.team is None)
    for draft in drafts:
        for name, line, key in draft.names:
            if name not in known:
                more = teamfile.misplaced_key_hint(key.removeprefix("roles.")) if key.startswith("roles.") else ""
                suggestion = "" if more else did_you_mean(name, known)
                text = f"there is no agent called {name!r}; known agents: {', '.join(can_answer) or 'none'}{more}"
                yield Problem(str(draft.path), line, key, f"{text}.{suggestion}" if suggestion else text)


def _fallback_problems(drafts: Sequence[_Draft]) -> Iterator[Problem]:
    """Yield an error for each fallback_target that is neither an agent nor one of the two reserved words."""
    key, known = "callback_policy.fallback_target", [draft.agent.name for draft in drafts]
    allowed = (*RESERVED, *sorted(draft.agent.name for draft in drafts if draft.agent.team is None))
    for draft in drafts:
        if draft.target and draft.target not in allowed:
            problem = (
                "a team can't answer" if draft.target in known else f"there is no agent called {draft.target!r}"
            )
            suggestion = "" if draft.target in known else did_you_mean(draft.target, allowed)
            text = f"{problem}; allowed are {', '.join(allowed)}{f'.{suggestion}' if suggestion else ''}"
            yield Problem(str(draft.sidecar), draft.sidecar_lines.get(key, 0), key, text)


def _cycles(drafts: Sequence[_Draft]) -> Iterator[Problem]:
    """Yield an error for each agent that is below itself.

    Declarations contain those below, so a cycle can't be built.
    """
    by_name = {draft.agent.name: draft for draft in drafts}
    done: set[str] = set()

    def visit(name: str, ancestors: tuple[str, ...]) -> Iterator[Problem]:
        if name in done:
            return
        for below, line, key in by_name[name].names:
            if len(ancestors) >= _MAX_LEVELS:
                text = f"is more than {_MAX_LEVELS} levels below {ancestors[0]}"
                yield Problem(str(by_name[name].path), line, key, text)
                break
            if below in (*ancestors, name):
                cycle = " → ".join((*(*ancestors, name)[(*ancestors, name).index(below) :], below))
                yield Problem(str(by_name[name].path), line, key, f"goes in a circle: {cycle}")
            elif below in by_name:
                yield from visit(below, (*ancestors, name))
        done.add(name)

    for name in by_name:
        yield from visit(name, ())


# --- warnings: allowed, but probably not meant ------------------------------------------


def _warnings(agents: Sequence[AgentFile], drafts: Mapping[str, _Draft]) -> Iterator[Problem]:
    """Yield warnings about agents whose names and positions are known. A policy with mistakes is not checked."""
    positions = {agent.name: agent.positions for agent in agents}
    with_position = {position.agent for listed in positions.values() for position in listed}
    answering = {agent.name: agent for agent in agents if agent.team is None}
    targets = {draft.target for draft in drafts.values()}
    unknown = {name for name, draft in drafts.items() if not draft.has_policy}
    unknown |= {name for name, draft in drafts.items() if draft.target not in ("", *RESERVED, *answering)}
    for agent in answering.values():
        draft = drafts[agent.name]
        if with_position and not (agent.name in (*with_position, *targets) or agent.agents):
            team = "" if len(answering) == len(agents) else f" and {teamfile.NAME} does not name it"
            text = f"no path reaches it: no agent lists it under agents:{team}, and it lists no agents itself"
            yield Problem(str(draft.path), draft.lines.get("name", 0), "", text, "warning")
        if agent.policy.callback_policy.may_approve and not agent.tools:
            key = "callback_policy.may_approve"
            yield draft.warning(
                key, "it has no tools, and an agent can't approve a call that it may not make itself"
            )
        if not agent.policy.absent:
            query = RouteQuery(agent.name, agent.policy, known=tuple(sorted(answering)))
            chains_above = ancestor_chains(agent.name, positions, _MAX_CHAINS)
            if not unknown & {agent.name, draft.target, *(name for chain in chains_above for name in chain)}:
                chains = [[Ancestor(name, answering[name].policy) for name in chain] for chain in chains_above]
                yield from _policy_warnings(draft, [route(query, chain) for chain in chains])


def _policy_warnings(draft: _Draft, routes: Sequence[Route]) -> Iterator[Problem]:
    policy = draft.agent.policy
    last = routes[-1]
    if not any(route.asks or route.end == "person" for route in routes):
        more = f"; they could reach others with {'; '.join(last.allow)}" if last.allow else ""
        yield draft.warning("", f"its questions can never be answered: {last.why}{more}")
    climbs = [station for route in routes for station in route.stations if not station.fallback]
    if policy.can_query_caller and climbs and all(station.step == "skip" for station in climbs):
        skipped = "; ".join(dict.fromkeys(f"{station.agent}: {station.reason}" for station in climbs))
        yield draft.warning("can_query_caller", f"no agent above it is ever asked ({skipped})")
    key, target = "callback_policy.fallback_target", policy.callback_policy.fallback_target
    fallbacks = [station for route in routes for station in route.stations if station.fallback]
    if fallbacks and all(station.step == "skip" for station in fallbacks):
        yield draft.warning(key, f"{target} is never asked as fallback: {fallbacks[-1].reason}")
    if target == RESERVED[0] and all(route.end != "person" for route in routes):
        yield draft.warning(key, f"the person is never asked: {last.why}")
