"""Specs turned into agents, and every way in which one can be wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from upcall import Agent, BadAgentFile, Runtime, SetupError, UnknownAgent
from upcall.agentfiles.load import load_agents, load_policies, load_spec, tool_problems
from upcall.agentfiles.markdown import read_agents

SIDECAR = '{"can_query_caller": true, "can_use_host_interaction": true}'


@pytest.fixture(autouse=True)
def _clean_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{tmp_path}/"):  # other modules keep their classes
            del sys.modules[name]


def write_agent(folder: Path, name: str, front: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(SIDECAR)
    path = folder / f"{name}.md"
    path.write_text(f"---\nmodel: script:{name}.py\n{front}---\nYou are {name}.\n")
    return path


def write_team(folder: Path) -> Path:
    write_agent(folder, "manager", "agents: [lead]\n")
    write_agent(folder, "lead", "agents: [developer]\ntools: [helping:look]\n")
    write_agent(folder, "developer")
    (folder / "helping.py").write_text("def look(path: str) -> str:\n    'Look.'\n    return path\n")
    return folder


def test_a_folder_becomes_agents_that_hold_those_below_them(tmp_path: Path) -> None:
    agents = {agent.name: agent for agent in load_agents(write_team(tmp_path / "team"))}

    assert [below.name for below in agents["manager"].agents] == ["lead"]
    assert agents["lead"].agents[0] is agents["developer"]
    assert list(agents["lead"].toolbox) == ["look"]
    assert agents["developer"].policy.can_query_caller
    assert agents["lead"].instructions == "You are lead."


def test_a_model_that_is_a_file_is_found_from_the_agent_file(tmp_path: Path) -> None:
    (agent,) = load_agents(write_agent(tmp_path / "one", "writer"))
    assert agent.model == f"script:{tmp_path / 'one' / 'writer.py'}"


def test_a_tool_may_be_a_kit_or_the_function_that_makes_one(tmp_path: Path) -> None:
    write_agent(tmp_path / "one", "writer", "tools: [upcall.workspace:file_tools, pieces:short]\n")
    (tmp_path / "one" / "pieces.py").write_text("from upcall.workspace import shell\nshort = shell(seconds=5)\n")

    (agent,) = load_agents(tmp_path / "one")

    assert list(agent.toolbox) == ["ls", "glob", "grep", "read_file", "write_file", "edit_file", "shell"]


def test_a_kit_that_needs_arguments_is_told_what_to_do(tmp_path: Path) -> None:
    write_agent(tmp_path / "one", "writer", "tools: [upcall.kit:approve]\n")

    with pytest.raises(BadAgentFile, match=r"but it needs arguments .*; call it in a module of your own"):
        load_agents(tmp_path / "one")


def test_a_workspace_is_a_folder_beside_the_agent_file_or_the_log(tmp_path: Path) -> None:
    (tmp_path / "team" / "files").mkdir(parents=True)
    write_agent(tmp_path / "team", "one", "workspace: files\n")
    write_agent(tmp_path / "team", "two", "workspace: in log\n")
    write_agent(tmp_path / "team", "three")

    agents = {agent.name: agent.workspace for agent in load_agents(tmp_path / "team")}

    assert repr(agents["one"]) == f"Folder({str(tmp_path / 'team' / 'files')!r})"
    assert repr(agents["two"]) == "InLog('files')"
    assert agents["three"] is None


def test_the_one_root_of_a_folder_is_the_agent_it_means(tmp_path: Path) -> None:
    loaded = load_spec(str(write_team(tmp_path / "team")))
    assert loaded.agent.name == "manager"
    assert len(loaded.agents) == 3


def test_a_name_chooses_among_the_agents_of_a_folder(tmp_path: Path) -> None:
    assert load_spec(str(write_team(tmp_path / "team")), "lead").agent.name == "lead"
    with pytest.raises(UnknownAgent, match="developer, lead, manager"):
        load_spec("team", "nobody")


def test_one_file_is_its_agent_with_those_below_it(tmp_path: Path) -> None:
    loaded = load_spec(str(write_team(tmp_path / "team") / "lead.md"))
    assert loaded.agent.name == "lead"
    assert {agent.name for agent in loaded.agents} == {"lead", "developer"}


def test_a_module_in_the_current_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "my_agents.py").write_text(
        "from upcall import Agent\none = Agent('one')\nboth = [one, Agent('two')]\n"
    )
    assert load_spec("my_agents:one").agent.name == "one"
    assert load_spec("my_agents:both", "two").agent.name == "two"
    assert load_spec("my_agents.py:one").agent.name == "one"
    with pytest.raises(SetupError, match="one, two; choose one with --agent"):
        load_spec("my_agents:both")


@pytest.mark.parametrize("spec", ["team", "team/lead.md", "my_module:agent", "inner/deep.agents:agent"])
def test_a_source_loads_the_same_agent_from_another_folder(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_team(tmp_path / "team")
    program = "from upcall import Agent\nagent = Agent('written')\n"
    (tmp_path / "my_module.py").write_text(program)
    (tmp_path / "inner" / "deep").mkdir(parents=True)
    (tmp_path / "inner" / "deep" / "agents.py").write_text(program)

    first = load_spec(spec).agent
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert str(tmp_path) in first.source
    assert load_spec(first.source, first.name).agent.name == first.name


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nowhere", "no such folder or file. Give a folder"),
        ("mny", "no such folder or file. Did you mean many? Give a folder"),
        ("program", "no such folder or file. Say which attribute of program.py is the agent: program:agent."),
        ("notes.txt", "neither a folder nor an agent's .md file"),
        ("program.py", "add the attribute that holds the agent, such as program.py:agent"),
        ("program:nothing", "program.py has no attribute 'nothing'; it has agent, both"),
        ("program:number", "is an int, not an Agent or a list of agents; it has agent, both"),
        ("program:empty", "is an empty list"),
        ("no_such_module:agent", "there is no module 'no_such_module' in"),
        ("nowhere/program:agent", "there is no folder"),
        (":agent", "write module:attribute"),
        ("many", "alone, other; choose one with --agent NAME"),
    ],
)
def test_a_spec_that_names_nothing_says_what_it_could_have_been(spec: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "program.py").write_text(
        "from upcall import Agent, tool\nnumber = 3\nempty = []\nagent = Agent('a')\nboth = [agent, Agent('b')]\n"
    )
    write_agent(tmp_path / "many", "alone")
    write_agent(tmp_path / "many", "other")

    with pytest.raises(SetupError) as caught:
        load_spec(spec)

    assert says in str(caught.value)


def test_a_folder_without_agents_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadAgentFile, match="holds no agent"):
        load_spec("empty")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("x = 1\nx.missing\n", "broken.py:2: AttributeError"),
        ("def f(:\n", "broken.py:1: SyntaxError"),
        ("import sys\n\nsys.exit('bye')\n", "broken.py:3: SystemExit: bye"),
        ("\nimport not_installed_anywhere\n", "broken.py:2: ModuleNotFoundError: No module named 'not_installed"),
        ("from upcall import Agent\nAgent('user')\n", "broken.py:2: BadAgent"),
    ],
)
def test_a_module_that_fails_is_named_with_its_file_and_line(program: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(program)
    with pytest.raises(BadAgentFile) as caught:
        load_spec("broken:agent")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ("helping", "'helping' is not a valid import path; write module:function"),
        ("helping:missing", "has no attribute 'missing'; it has help_me"),
        ("missing_module:look", "there is no module 'missing_module'"),
        ("helping:number", "make a tool from a typed function"),
    ],
)
def test_a_tool_that_is_none_is_told_with_file_line_and_key(tools: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "helping.py").write_text("from json import dumps\nnumber = 3\ndef help_me(): ...\n")
    path = write_agent(tmp_path / "one", "writer", f"tools: [{tools!r}]\n")

    with pytest.raises(BadAgentFile) as caught:
        load_agents(path)

    assert caught.value.line == 3
    assert f"{path}:3: tools: " in str(caught.value)
    assert says in str(caught.value)
    files, _ = read_agents(path)
    assert [says in problem.text for problem in tool_problems(files)] == [True]


async def test_skills_are_looked_for_beside_the_agent_file(tmp_path: Path) -> None:
    path = write_agent(tmp_path / "one", "writer", "skills: [tea]\n")
    (tmp_path / "one" / "writer.py").write_text("script = lambda request: request.messages[-1].text")
    skill = tmp_path / "one" / "skills" / "tea" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: tea\ntriggers: [tea]\n---\nThree minutes.")
    (agent,) = load_agents(path)
    async with Runtime(agents=[agent]) as runtime:
        reply = await (await runtime.start(agent)).prompt("Some tea, please.")

    assert reply.text == f"Skill tea (from {skill}, triggered by 'tea'):\n\nThree minutes."


@pytest.mark.parametrize(
    ("text", "says"), [(None, "skills/tea: there is no such folder"), ("x", "tea/SKILL.md: it does not begin with")]
)
def test_a_skill_that_is_wrong_is_told_with_file_line_and_key(text: str | None, says: str, tmp_path: Path) -> None:
    path = write_agent(tmp_path / "one", "writer", "skills: [tea]\n")
    if text is not None:
        (path.parent / "skills" / "tea").mkdir(parents=True)
        (path.parent / "skills" / "tea" / "SKILL.md").write_text(text)

    with pytest.raises(BadAgentFile) as caught:
        load_agents(path)

    assert f"{path}:3: skills: " in str(caught.value)
    assert says in str(caught.value)
    files, _ = read_agents(path)
    assert [says in problem.text for problem in tool_problems(files)] == [True]


def test_two_folders_with_one_module_name_are_never_mixed_up(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_agent(tmp_path / name, name, "tools: ['helping:look']\n")
        (tmp_path / name / "helping.py").write_text(f"def look() -> str:\n    return {name!r}\n")
    load_agents(tmp_path / "first")
    with pytest.raises(BadAgentFile, match=r"is already loaded from .*first/helping.py, not from"):
        load_agents(tmp_path / "second")


def test_policies_are_known_without_importing_a_tool(tmp_path: Path) -> None:
    write_team(tmp_path / "team")
    (tmp_path / "team" / "helping.py").write_text("raise RuntimeError\n")
    askers = load_policies("team/developer.md")
    assert askers.name == "developer"
    assert [seat.agent for seat in askers.positions["lead"]] == ["developer"]
    assert set(askers.policies) == {"manager", "lead", "developer"}


def test_an_agent_below_a_loaded_one_knows_its_source_too(tmp_path: Path) -> None:
    (tmp_path / "nested.py").write_text("from upcall import Agent\ntop = Agent('top', agents=[Agent('low')])\n")
    top = load_spec("nested:top").agent
    low: Agent = top.agents[0]
    assert low.source == top.source == f"{tmp_path}/nested:top"
