"""Agents as files: Markdown with front matter, beside it the sidecar that says whom it may ask, and their team.

Reading finds every mistake at once, each with file, line, key and what is allowed, and warns of policies that
are right but can't have been meant. What comes out are plain values: making agents of them happens above.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from upcall.agentfiles import team_toml as teamfile
from upcall.agentfiles.ancestry import Position, ancestor_chains, team_seats
from upcall.agentfiles.settings_block import read_settings, unknown_to
from upcall.agentfiles.sidecar import MOST, Problem, key_lines, read_sidecar
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
LISTS = ("tools", "skills", "agents")
OWN_KEYS = (*TEXTS, "settings", *LISTS)
IN_LOG = "in log"
"""The workspace that is no folder."""

_MOST_LEVELS = 100
"""Levels of agents below each other."""

_MOST_CHAINS = 100
"""Ways from a root down to one agent that are looked at; a folder with more warns from these."""


class AgentFile(Value, frozen=True):
    """What one agent's files say. `name` is the file's own where the front matter has none.

    A folder's `team` is one of its agents: it has a path, a name, a description, and its members as `agents`.
    """

    name: str
    description: str = ""
    model: str = ""
    workspace: str = ""
    tools: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    instructions: str = ""
    policy: Policy = Policy()
    path: str = ""
    settings: Settings | None = None
    team: teamfile.TeamFile | None = None

    @property
    def seats(self) -> list[Position]:
        """Where it puts the agents below it."""
        if self.team is None:
            return [Position(below, (self.name,)) for below in self.agents]
        return team_seats(self.team.manager, list(self.team.roles.values()), self.team.reviewer)


def is_agent_file(path: Path) -> bool:
    """Whether it is one agent's Markdown, or a team.toml."""
    return path.is_file() and (path.suffix == ".md" or path.name == teamfile.NAME)


def load(place: str | Path) -> list[AgentFile]:
    """The agents of a folder, or of one file and those below it; BadAgentFile tells every mistake at once."""
    agents, problems = read_agents(place)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        first = errors[0]
        text = "\n".join([first.text, *(str(problem) for problem in errors[1:])])
        raise BadAgentFile(first.file, text, line=first.line or None, key=first.key)
    return agents


class Reading(NamedTuple):
    """What lies in a folder: the agents without mistakes, all as far as they can be read, and every problem."""

    agents: list[AgentFile]
    drafts: list[AgentFile]
    problems: list[Problem]


def read_agents(place: str | Path) -> tuple[list[AgentFile], list[Problem]]:
    """The agents without mistakes, and every problem, errors and warnings, by file and line.

    Of a folder, its team and all its `*.md` (a README without front matter is left alone). Of one file, its agent
    first and then those it names, which are looked for beside it.
    """
    agents, _, problems = read_folder(place)
    return agents, problems


def read_folder(place: str | Path) -> Reading:
    """The same with the agents that have mistakes, as far as they can be read: one mistake hides no other."""
    place = Path(place)
    if not place.is_dir() and not is_agent_file(place):
        return Reading([], [], [Problem(str(place), 0, "", _no_place(place))])
    folder = place if place.is_dir() else place.parent
    drafts = [_read_team(path) for path in folder.glob(teamfile.NAME)]
    drafts += [draft for path in sorted(folder.glob("*.md")) if (draft := _read(path))]
    problems = _strays(folder) if place.is_dir() else []
    if not place.is_dir():
        drafts = _below(drafts, place)
    if not drafts and not problems:
        problems = [Problem(str(place), 0, "", "holds no agent: an agent is NAME.md with front matter")]
    problems += [problem for draft in drafts for problem in draft.problems]
    structure = [*_names(drafts), *_references(drafts), *_circles(drafts)]
    problems += structure
    if not structure and all(draft.placed for draft in drafts):
        problems += _doubts([draft.agent for draft in drafts], {d.agent.name: d for d in drafts})
    problems += _fallbacks(drafts)
    bad = {problem.file for problem in problems if problem.severity == "error"}
    agents = [draft.agent for draft in drafts if not bad & {str(draft.path), str(draft.sidecar)}]
    problems.sort(key=lambda problem: (problem.file, problem.line))
    return Reading(agents, [draft.agent for draft in drafts], problems)


def _no_place(place: Path) -> str:
    more = "" if place.exists() else ": there is no such file"
    if place.suffix == ".py" or ":" in place.name:
        more = "; what Python declares is checked as it is imported, by `upcall run`"
    elif place.with_suffix(".md").exists():
        more = f"; it belongs to {place.with_suffix('.md')}"
    return f"is neither a folder of agent files nor an agent's .md file{more}"


def roots(agents: Sequence[AgentFile]) -> list[str]:
    """The agents that no other lists under `agents:`; a folder with one can be run without saying which.

    A team that no agent lists is what its folder is for, whoever else is there.
    """
    listed = {name for agent in agents for name in agent.agents}
    found = [agent for agent in agents if agent.name not in listed]
    return [agent.name for agent in found if agent.team] or [agent.name for agent in found]


# --- one file ---------------------------------------------------------------------------


class _Name(NamedTuple):
    """An agent that a file names, and where it does."""

    name: str
    line: int
    key: str


class _Draft:
    """One agent as far as it could be read, with the line of each key and the agents it names."""

    def __init__(self, path: Path) -> None:
        self.path, self.sidecar = path, path.with_suffix(".json")
        self.agent = AgentFile(path.stem, path=str(path))
        self.lines: dict[str, int] = {}
        self.setting_lines: dict[str, int] = {}
        self.names: list[_Name] = []
        self.sidecar_lines: dict[str, int] = {}
        self.target = ""  # its fallback_target, even of a sidecar with mistakes elsewhere
        self.readable = True  # else nothing is known but its sidecar
        self.has_policy = True  # its sidecar has no mistakes
        self.problems: list[Problem] = []

    @property
    def placed(self) -> bool:
        """Whether its name and the agents below it are known."""
        wrong = {problem.key.partition(".")[0] for problem in self.problems if problem.file == str(self.path)}
        return self.readable and not wrong & {"name", "agents", "manager", "reviewer", "roles"}

    def unreadable(self, line: int, text: str) -> None:
        """Note why nothing of the file can be known, apart from its sidecar."""
        self.readable = False
        self.wrong(line, "", text)

    def wrong(self, line: int, key: str, text: str) -> None:
        self.problems.append(Problem(str(self.path), line, key, text))

    def doubt(self, key: str, text: str) -> Problem:
        """A warning about a key of the sidecar."""
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
        if path.stem.lower() == "readme" and not _begins(text):
            return None
        _read_text(draft, text)
    if draft.readable or draft.sidecar.exists():
        _read_sidecar(draft)
    return draft


def _begins(text: str) -> bool:
    """Whether a text begins with front matter."""
    return text.partition("\n")[0].rstrip() == "---"


def _read_text(draft: _Draft, text: str) -> None:
    """Read an agent's Markdown: the front matter, and below it the instructions."""
    lines = text.split("\n")
    if not _begins(text):
        draft.unreadable(1, f"must begin with front matter: a line ---, the keys ({_keys()}), a line ---")
        return
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        draft.unreadable(1, "the front matter has no end: a second line --- is missing")
        return
    _front_matter(draft, "\n".join(lines[1:end]))
    instructions = "\n".join(lines[end + 1 :]).strip()
    if not instructions:
        draft.wrong(end + 1, "", "has no instructions: write them below the front matter")
    draft.agent = draft.agent.replace(instructions=instructions)


def _keys() -> str:
    return ", ".join(OWN_KEYS)


_YAML = {
    "mapping values are not allowed": "a text with ': ' in it stands in quotes",
    "'\\t' that cannot start": "indent with spaces, not with a tab",
    "unexpected end of stream": "a quote is not closed",
    "expected ',' or ']'": "a list is not closed; write [one, two]",
}
"""What is meant by the mistakes that people make most."""


def _front_matter(draft: _Draft, text: str) -> None:
    import yaml

    try:
        # composed, never constructed: marks give the lines, and no tag can make an object
        node = compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (column {mark.column + 1})" if mark else ""
        said = next((hint for words, hint in _YAML.items() if words in str(error.problem)), error.problem)
        _not_yaml(draft, text, mark.line + 2 if mark else 1, f"{said}{where}")
        return
    except (yaml.YAMLError, RecursionError) as error:
        _not_yaml(draft, text, 1, str(error).splitlines()[0])
        return
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        draft.unreadable(2, f"the front matter must be keys with values, one a line: {_keys()}")
        return
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        _take(draft, found, key_node, value_node)
    draft.agent = draft.agent.replace(**found)
    for name, text in unknown_to(draft.agent.model, draft.agent.settings).items():
        draft.wrong(draft.setting_lines[name], f"settings.{name}", text)


def _not_yaml(draft: _Draft, text: str, line: int, why: str) -> None:
    """Note the mistake. The name is still looked for: agents that list this one are not wrong."""
    draft.unreadable(line, f"the front matter is not YAML: {why}")
    named = re.search(r"^name:[ \t]*([^\s'\"#]+)[ \t]*$", text, re.MULTILINE)
    if named and not name_problem(named[1]):
        draft.agent = draft.agent.replace(name=named[1])


def _take(draft: _Draft, found: dict[str, Any], key_node: yaml.Node, value: yaml.Node) -> None:
    key, line = str(key_node.value), _line(key_node)
    if key not in OWN_KEYS:
        draft.wrong(line, key, _unknown(key, draft))
        return
    if key in draft.lines:
        draft.wrong(line, key, f"is written twice; first on line {draft.lines[key]}")
        return
    draft.lines[key] = line
    if key in LISTS:
        found[key] = tuple(_items(draft, key, value))
    elif key == "settings":
        found[key], draft.setting_lines = read_settings(value, _line, draft.wrong)
    elif not _is_text(value):
        draft.wrong(line, key, f"must be text, not {_shown(value)}")
    elif key == "name" and (problem := name_problem(value.value)):
        draft.wrong(line, key, problem)
    elif key == "workspace" and not (value.value == IN_LOG or (draft.path.parent / value.value).is_dir()):
        draft.wrong(line, key, _no_folder(draft, value.value))
    else:
        found[key] = value.value.strip()


def _unknown(key: str, draft: _Draft) -> str:
    own, sidecar = OWN_KEYS, ("callback_policy", *(known.rpartition(".")[2] for known in KEYS))
    place = f" It belongs in {draft.sidecar.name}." if nearest(key, (*own, *sidecar)) in sidecar else ""
    return f"unknown key; allowed are {_keys()}.{did_you_mean(key, (*own, *sidecar))}{place}"


def _no_folder(draft: _Draft, given: str) -> str:
    there = [path.name for path in draft.path.parent.glob("[!.]*") if path.is_dir()]
    said = f"there is no folder {given!r} here; give one that is, or: {IN_LOG}"
    meant = did_you_mean(given, (IN_LOG, *there))
    return f"{said}.{meant}" if meant else said


def _items(draft: _Draft, key: str, node: yaml.Node) -> Iterator[str]:
    import yaml

    if not isinstance(node, yaml.SequenceNode):
        draft.wrong(_line(node), key, f"must be a list of names, such as [one, two], not {_shown(node)}")
        return
    seen: set[str] = set()
    for item in node.value:
        if not _is_text(item):
            draft.wrong(_line(item), key, f"must hold names only, not {_shown(item)}")
        elif item.value in seen:
            draft.wrong(_line(item), key, f"names {item.value!r} twice")
        else:
            seen.add(item.value)
            if key == "agents":
                draft.names.append(_Name(item.value, _line(item), key))
            yield item.value


def _is_text(node: yaml.Node) -> bool:
    import yaml

    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":str") and bool(node.value.strip())


def _shown(node: yaml.Node) -> str:
    kind = node.tag.rpartition(":")[2]
    words = {"seq": "a list", "map": "keys with values", "null": "nothing", "str": f"{str(node.value)[:60]!r}"}
    return words.get(kind) or f"{str(node.value)[:60]!r} (YAML reads it as {kind}; quotes make it text)"


def _line(node: yaml.Node) -> int:
    """Counted in the file, whose first line is the `---`."""
    return node.start_mark.line + 2


def _read_sidecar(draft: _Draft) -> None:
    name = draft.sidecar.name
    try:
        raw = read_small(draft.sidecar, MOST)
    except FileNotFoundError:
        draft.agent = draft.agent.replace(policy=Policy.closed(name))
        means = "no sidecar: it may ask neither its caller nor the person, so its questions are never answered"
        draft.problems.append(draft.doubt("", means))
        return
    except OSError as error:
        draft.has_policy = False
        draft.problems.append(Problem(str(draft.sidecar), 0, "", f"can't be read: {error.strerror}"))
        return
    policy, problems = read_sidecar(raw, str(draft.sidecar))
    draft.problems += problems
    draft.target = _target(raw) if policy is None else policy.callback_policy.fallback_target or ""
    if policy is not None or draft.target:  # else it may be no JSON at all
        draft.sidecar_lines = key_lines(raw.decode("utf-8-sig"))
    draft.has_policy = policy is not None
    if policy is None:
        return
    draft.agent = draft.agent.replace(policy=policy.replace(source=name))
    means = {
        "can_query_caller": "is missing, which means false: it never asks its caller",
        "can_use_host_interaction": "is missing, which means false: it may not ask the person itself",
    }
    draft.problems += [draft.doubt(key, text) for key, text in means.items() if not policy.has(key)]


def _target(raw: bytes) -> str:
    """The fallback that a sidecar with mistakes names, if that much of it can be read."""
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


def _strays(folder: Path) -> list[Problem]:
    agents = [path.stem for path in folder.glob("*.md")]
    return [
        Problem(str(path), 0, "", f"is a sidecar without its agent: {_no_agent(path.stem, agents)}")
        for path in sorted(folder.glob("*.json"))
        if not path.with_suffix(".md").exists()
    ]


def _no_agent(name: str, agents: Sequence[str]) -> str:
    near = nearest(name, agents)
    return f"there is no {name}.md beside it" + (f". Did you mean {near}.json?" if near else "")


def _below(drafts: Sequence[_Draft], place: Path) -> list[_Draft]:
    """The draft of one file, then those it names, those they name, and so on."""
    named = {draft.agent.name: draft for draft in reversed(drafts)}
    found = [draft for draft in drafts if draft.path == place]
    for draft in found:
        for name in (*draft.agent.agents, draft.target):
            if name in named and named[name] not in found:
                found.append(named[name])
    return found


def _names(drafts: Sequence[_Draft]) -> Iterator[Problem]:
    first: dict[str, _Draft] = {}
    for draft in drafts:
        name = draft.agent.name
        line = draft.lines.get("name", 0)
        if name in first:
            text = f"{name!r} is the name of {first[name].path} already"
            yield Problem(str(draft.path), line, "name", text)
        elif "name" not in draft.lines and (problem := name_problem(name)):
            yield Problem(str(draft.path), line, "name", f"{problem} (the file's name is used)")
        first.setdefault(name, draft)


def _references(drafts: Sequence[_Draft]) -> Iterator[Problem]:
    """Each agent below another that is not there."""
    known = [draft.agent.name for draft in drafts]
    can_answer = sorted(draft.agent.name for draft in drafts if draft.agent.team is None)
    for draft in drafts:
        for name, line, key in draft.names:
            if name not in known:
                more = teamfile.elsewhere(key.removeprefix("roles.")) if key.startswith("roles.") else ""
                meant = "" if more else did_you_mean(name, known)
                text = f"no agent is called {name!r}; there are {', '.join(can_answer) or 'none'}{more}"
                yield Problem(str(draft.path), line, key, f"{text}.{meant}" if meant else text)


def _fallbacks(drafts: Sequence[_Draft]) -> Iterator[Problem]:
    """Each fallback_target that is neither an agent nor one of the two words."""
    key, known = "callback_policy.fallback_target", [draft.agent.name for draft in drafts]
    allowed = (*RESERVED, *sorted(draft.agent.name for draft in drafts if draft.agent.team is None))
    for draft in drafts:
        if draft.target and draft.target not in allowed:
            what = "a team can't answer" if draft.target in known else f"no agent is called {draft.target!r}"
            meant = "" if draft.target in known else did_you_mean(draft.target, allowed)
            text = f"{what}; allowed are {', '.join(allowed)}{f'.{meant}' if meant else ''}"
            yield Problem(str(draft.sidecar), draft.sidecar_lines.get(key, 0), key, text)


def _circles(drafts: Sequence[_Draft]) -> Iterator[Problem]:
    """An agent below itself: declarations hold those below them, so a circle could never be built."""
    named = {draft.agent.name: draft for draft in drafts}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> Iterator[Problem]:
        if name in done:
            return
        for below, line, key in named[name].names:
            if len(above) >= _MOST_LEVELS:
                text = f"is more than {_MOST_LEVELS} levels below {above[0]}"
                yield Problem(str(named[name].path), line, key, text)
                break
            if below in (*above, name):
                circle = " → ".join((*(*above, name)[(*above, name).index(below) :], below))
                yield Problem(str(named[name].path), line, key, f"goes in a circle: {circle}")
            elif below in named:
                yield from visit(below, (*above, name))
        done.add(name)

    for name in named:
        yield from visit(name, ())


# --- what is allowed but can't have been meant ------------------------------------------


def _doubts(agents: Sequence[AgentFile], drafts: Mapping[str, _Draft]) -> Iterator[Problem]:
    """Warnings about agents whose names and places are known; a policy with mistakes is not judged."""
    seats = {agent.name: agent.seats for agent in agents}
    seated = {seat.agent for held in seats.values() for seat in held}
    able = {agent.name: agent for agent in agents if agent.team is None}
    targets = {draft.target for draft in drafts.values()}
    unknown = {name for name, draft in drafts.items() if not draft.has_policy}
    unknown |= {name for name, draft in drafts.items() if draft.target not in ("", *RESERVED, *able)}
    for agent in able.values():
        draft = drafts[agent.name]
        if seated and not (agent.name in (*seated, *targets) or agent.agents):
            team = "" if len(able) == len(agents) else f" and {teamfile.NAME} does not name it"
            text = f"no path reaches it: no agent lists it under agents:{team}, and it lists none"
            yield Problem(str(draft.path), draft.lines.get("name", 0), "", text, "warning")
        if agent.policy.callback_policy.may_approve and not agent.tools:
            key = "callback_policy.may_approve"
            yield draft.doubt(key, "it has no tools, and no agent approves what it may not do itself")
        if not agent.policy.absent:
            asks = RouteQuery(agent.name, agent.policy, known=tuple(sorted(able)))
            ways = ancestor_chains(agent.name, seats, _MOST_CHAINS)
            if not unknown & {agent.name, draft.target, *(name for way in ways for name in way)}:
                chains = [[Ancestor(name, able[name].policy) for name in way] for way in ways]
                yield from _policy_doubts(draft, [route(asks, chain) for chain in chains])


def _policy_doubts(draft: _Draft, ways: Sequence[Route]) -> Iterator[Problem]:
    policy = draft.agent.policy
    last = ways[-1]
    if not any(way.asks or way.end == "person" for way in ways):
        more = f"; it would go further with {'; '.join(last.allow)}" if last.allow else ""
        yield draft.doubt("", f"its questions can never be answered: {last.why}{more}")
    climbs = [station for way in ways for station in way.stations if not station.fallback]
    if policy.can_query_caller and climbs and all(station.step == "skip" for station in climbs):
        skipped = "; ".join(dict.fromkeys(f"{station.agent}: {station.reason}" for station in climbs))
        yield draft.doubt("can_query_caller", f"no agent above it is ever asked ({skipped})")
    key, target = "callback_policy.fallback_target", policy.callback_policy.fallback_target
    fallbacks = [station for way in ways for station in way.stations if station.fallback]
    if fallbacks and all(station.step == "skip" for station in fallbacks):
        yield draft.doubt(key, f"{target} is never asked as fallback: {fallbacks[-1].reason}")
    if target == RESERVED[0] and all(way.end != "person" for way in ways):
        yield draft.doubt(key, f"the person is never asked: {last.why}")
