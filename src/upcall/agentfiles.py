"""Agents as files: Markdown with front matter, and beside it the sidecar that says whom it may ask.

Reading finds every mistake at once, each with file, line, key and what is allowed, and warns of policies that
are right but can't have been meant. What comes out are plain values: making agents of them happens above.

May import: errors, messages, policy, routing, sidecars.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcall.errors import BadAgentFile
from upcall.messages import Value
from upcall.policy import KEYS, RESERVED, Policy, Problem, name_problem
from upcall.routing import Ancestor, Raised, Route, route
from upcall.sidecars import key_lines, read_sidecar

if TYPE_CHECKING:
    import yaml

TEXTS = ("name", "description", "model", "workspace")
LISTS = ("tools", "skills", "agents")
IN_LOG = "in log"
"""The workspace that is no folder."""

_MOST_CHAINS = 100
"""Ways from a root down to one agent that are looked at; a folder with more warns from these."""


class AgentFile(Value, frozen=True):
    """What one agent's files say. `name` is the file's own where the front matter has none."""

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


def load(place: str | Path) -> list[AgentFile]:
    """The agents of a folder, or of one file and those below it; BadAgentFile tells every mistake at once."""
    agents, problems = read_agents(place)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        first = errors[0]
        text = "\n".join([first.text, *(str(problem) for problem in errors[1:])])
        raise BadAgentFile(first.file, text, line=first.line or None, key=first.key)
    return agents


def read_agents(place: str | Path) -> tuple[list[AgentFile], list[Problem]]:
    """The agents that can be read, and every problem, errors and warnings, by file and line.

    Of a folder, all its `*.md` (a README without front matter is left alone). Of one file, its agent first and
    then those it names, which are looked for beside it.
    """
    place = Path(place)
    if not place.is_dir() and not (place.is_file() and place.suffix == ".md"):
        return [], [Problem(str(place), 0, "", "is neither a folder of agent files nor an agent's .md file")]
    folder = place if place.is_dir() else place.parent
    drafts = [draft for path in sorted(folder.glob("*.md")) if (draft := _read(path))]
    problems = _strays(folder) if place.is_dir() else []
    if not place.is_dir():
        drafts = _below(drafts, place)
    if not drafts and not problems:
        problems = [Problem(str(place), 0, "", "holds no agent: an agent is NAME.md with front matter")]
    problems += [problem for draft in drafts for problem in draft.problems]
    problems += [*_names(drafts), *_references(drafts), *_circles(drafts)]
    sound = all(problem.severity == "warning" for problem in problems)
    if sound:
        problems += _doubts([draft.agent for draft in drafts], {d.agent.name: d for d in drafts})
    bad = {problem.file for problem in problems if problem.severity == "error"}
    agents = [draft.agent for draft in drafts if not bad & {str(draft.path), str(draft.sidecar)}]
    return agents, sorted(problems, key=lambda problem: (problem.file, problem.line))


def roots(agents: Sequence[AgentFile]) -> list[str]:
    """The agents that no other lists under `agents:`; a folder with one can be run without saying which."""
    listed = {name for agent in agents for name in agent.agents}
    return [agent.name for agent in agents if agent.name not in listed]


# --- one file ---------------------------------------------------------------------------


class _Draft:
    """One agent as far as it could be read, with the line of each key (and of each name under `agents`)."""

    def __init__(self, path: Path) -> None:
        self.path, self.sidecar = path, path.with_suffix(".json")
        self.agent = AgentFile(path.stem, path=str(path))
        self.lines: dict[str, int] = {}
        self.sidecar_lines: dict[str, int] = {}
        self.target = ""  # its fallback_target, even of a sidecar with mistakes elsewhere
        self.problems: list[Problem] = []

    def wrong(self, line: int, key: str, text: str) -> None:
        self.problems.append(Problem(str(self.path), line, key, text))

    def doubt(self, key: str, text: str) -> Problem:
        """A warning about a key of the sidecar."""
        line = self.sidecar_lines.get(key, 0)
        return Problem(str(self.sidecar), line, key, text, "warning")


def _read(path: Path) -> _Draft | None:
    draft = _Draft(path)
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        draft.wrong(0, "", f"can't be read: {error.strerror}")
        return draft
    except UnicodeDecodeError as error:
        draft.wrong(error.object.count(b"\n", 0, error.start) + 1, "", "this is not UTF-8 text")
        return draft
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        if path.stem.lower() == "readme":
            return None
        draft.wrong(1, "", f"must begin with front matter: a line ---, the keys ({_keys()}), a line ---")
        return draft
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        draft.wrong(1, "", "the front matter has no end: a second line --- is missing")
        return draft
    _front_matter(draft, "\n".join(lines[1:end]))
    instructions = "\n".join(lines[end + 1 :]).strip()
    if not instructions:
        draft.wrong(end + 1, "", "has no instructions: write them below the front matter")
    draft.agent = draft.agent.replace(instructions=instructions)
    _read_sidecar(draft)
    return draft


def _keys() -> str:
    return ", ".join((*TEXTS, *LISTS))


def _front_matter(draft: _Draft, text: str) -> None:
    import yaml

    try:
        # composed, never constructed: marks give the lines, and no tag can make an object
        node = yaml.SafeLoader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        draft.wrong(mark.line + 2 if mark else 1, "", f"the front matter is not YAML: {error.problem}")
        return
    except (yaml.YAMLError, RecursionError) as error:
        draft.wrong(1, "", f"the front matter is not YAML: {str(error).splitlines()[0]}")
        return
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        draft.wrong(2, "", f"the front matter must be keys with values, one a line: {_keys()}")
        return
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        _take(draft, found, key_node, value_node)
    draft.agent = draft.agent.replace(**found)


def _take(draft: _Draft, found: dict[str, Any], key_node: yaml.Node, value: yaml.Node) -> None:
    key, line = str(key_node.value), _line(key_node)
    if key not in (*TEXTS, *LISTS):
        draft.wrong(line, key, _unknown(key, draft))
        return
    if key in draft.lines:
        draft.wrong(line, key, f"is written twice; first on line {draft.lines[key]}")
        return
    draft.lines[key] = line
    if key in LISTS:
        found[key] = tuple(_items(draft, key, value))
    elif not _is_text(value):
        draft.wrong(line, key, f"must be text, not {_shown(value)}")
    elif key == "name" and (problem := name_problem(value.value)):
        draft.wrong(line, key, problem)
    elif key == "workspace" and not (value.value == IN_LOG or (draft.path.parent / value.value).is_dir()):
        draft.wrong(line, key, f"there is no folder {value.value!r} here; give one that is, or: {IN_LOG}")
    else:
        found[key] = value.value.strip()


def _unknown(key: str, draft: _Draft) -> str:
    elsewhere = ""
    if any(key in known.split(".") for known in KEYS) or key == "callback_policy":
        elsewhere = f" It belongs in {draft.sidecar.name}."
    return f"unknown key; allowed are {_keys()}.{elsewhere}"


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
            draft.lines[f"{key}.{item.value}"] = _line(item)
            yield item.value


def _is_text(node: yaml.Node) -> bool:
    import yaml

    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":str") and bool(node.value.strip())


def _shown(node: yaml.Node) -> str:
    kind = node.tag.rpartition(":")[2]
    words = {"seq": "a list", "map": "keys with values", "null": "nothing"}
    return words.get(kind) or f"{str(node.value)[:60]!r} (YAML reads it as {kind}; quotes make it text)"


def _line(node: yaml.Node) -> int:
    """Counted in the file, whose first line is the `---`."""
    return node.start_mark.line + 2


def _read_sidecar(draft: _Draft) -> None:
    name = draft.sidecar.name
    try:
        raw = draft.sidecar.read_bytes()
    except FileNotFoundError:
        draft.agent = draft.agent.replace(policy=Policy.closed(name))
        means = "no sidecar: it may ask neither its caller nor the person, so its questions are never answered"
        draft.problems.append(draft.doubt("", means))
        return
    except OSError as error:
        draft.problems.append(Problem(str(draft.sidecar), 0, "", f"can't be read: {error.strerror}"))
        return
    policy, problems = read_sidecar(raw, str(draft.sidecar))
    draft.problems += problems
    draft.target = _target(raw) if policy is None else policy.callback_policy.fallback_target or ""
    if policy is not None or draft.target:  # else it may be no JSON at all
        draft.sidecar_lines = key_lines(raw.decode("utf-8-sig"))
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


# --- many files -------------------------------------------------------------------------


def _strays(folder: Path) -> list[Problem]:
    return [
        Problem(str(path), 0, "", f"is a sidecar without its agent: there is no {path.stem}.md beside it")
        for path in sorted(folder.glob("*.json"))
        if not path.with_suffix(".md").exists()
    ]


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
    known = [draft.agent.name for draft in drafts]
    allowed = ", ".join(sorted(known))
    for draft in drafts:
        for name in draft.agent.agents:
            if name not in known:
                text = f"no agent is called {name!r}; there are {allowed}"
                yield Problem(str(draft.path), draft.lines[f"agents.{name}"], "agents", text)
        key = "callback_policy.fallback_target"
        target = draft.target
        if target and target not in (*RESERVED, *known):
            text = f"no agent is called {target!r}; allowed are {', '.join(RESERVED)}, {allowed}"
            yield Problem(str(draft.sidecar), draft.sidecar_lines.get(key, 0), key, text)


def _circles(drafts: Sequence[_Draft]) -> Iterator[Problem]:
    """An agent below itself: declarations hold those below them, so a circle could never be built."""
    named = {draft.agent.name: draft for draft in drafts}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> Iterator[Problem]:
        if name in done:
            return
        for below in named[name].agent.agents:
            if below in (*above, name):
                circle = " → ".join((*(*above, name)[(*above, name).index(below) :], below))
                line = named[name].lines[f"agents.{below}"]
                yield Problem(str(named[name].path), line, "agents", f"goes in a circle: {circle}")
            elif below in named:
                yield from visit(below, (*above, name))
        done.add(name)

    for name in named:
        yield from visit(name, ())


# --- what is allowed but can't have been meant ------------------------------------------


def _doubts(agents: Sequence[AgentFile], drafts: Mapping[str, _Draft]) -> Iterator[Problem]:
    named = {agent.name: agent for agent in agents}
    above = {name: [agent for agent in agents if name in agent.agents] for name in named}
    targets = {agent.policy.callback_policy.fallback_target for agent in agents}
    for agent in agents:
        draft = drafts[agent.name]
        if any(above.values()) and not (above[agent.name] or agent.agents or agent.name in targets):
            text = "no path reaches it: no agent lists it under agents:, and it lists none"
            yield Problem(str(draft.path), draft.lines.get("name", 0), "", text, "warning")
        if agent.policy.callback_policy.may_approve and not agent.tools:
            key = "callback_policy.may_approve"
            yield draft.doubt(key, "it has no tools, and no agent approves what it may not do itself")
        if not agent.policy.absent:
            asks = Raised(agent.name, agent.policy, known=tuple(sorted(named)))
            yield from _policy_doubts(draft, [route(asks, chain) for chain in _chains(agent, above)])


def _chains(agent: AgentFile, above: Mapping[str, Sequence[AgentFile]]) -> list[list[Ancestor]]:
    """The ways from a root down to an agent, as routing sees them: nearest ancestor first."""
    finished: list[list[Ancestor]] = []
    open_ways: list[tuple[AgentFile, list[Ancestor]]] = [(agent, [])]
    while open_ways and len(finished) < _MOST_CHAINS:
        at, way = open_ways.pop()
        if not above[at.name]:
            finished.append(way)
        open_ways += [(up, [*way, Ancestor(up.name, up.policy)]) for up in above[at.name]]
    return finished


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
