"""Reading agent files: what comes out, and every mistake with its file, line, key and what is allowed."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcall import Settings, load_agents
from upcall.agentfiles.markdown import AgentFile, load, read_agents, roots
from upcall.agentfiles.sidecar import Problem
from upcall.errors import BadAgentFile

RIGHTS = {"can_query_caller": True, "can_use_host_interaction": True}


def write(folder: Path, name: str, front: str = "", body: str = "Do your work.", **keys: Any) -> Path:
    """An agent's two files."""
    path = folder / f"{name}.md"
    path.write_text(f"---\n{textwrap.dedent(front).strip()}\n---\n{body}\n", encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps({**RIGHTS, **keys}, indent=1), encoding="utf-8")
    return path


def errors(place: Path) -> list[Problem]:
    """The mistakes, with file names in place of paths."""
    _, problems = read_agents(place)
    return [p.replace(file=Path(p.file).name) for p in problems if p.severity == "error"]


def only(place: Path) -> tuple[str, int, str, str]:
    """The one mistake there is."""
    [problem] = errors(place)
    return problem.file, problem.line, problem.key, problem.text


def test_an_agent_is_markdown_with_front_matter_and_a_sidecar(tmp_path: Path) -> None:
    front = """
        name: manager
        description: Plans the work.
        model: openai:gpt-6
        tools: [files, "shop.tools:refund"]
        skills:
          - review
        agents: [developer]
    """
    write(tmp_path, "manager", front, "# Role\n\nPlan.", callback_policy={"max_bubble_hops": 2})
    write(tmp_path, "developer")
    developer, manager = load(tmp_path)
    assert manager == AgentFile(
        name="manager",
        description="Plans the work.",
        model="openai:gpt-6",
        tools=("files", "shop.tools:refund"),
        skills=("review",),
        agents=("developer",),
        instructions="# Role\n\nPlan.",
        policy=manager.policy,
        path=str(tmp_path / "manager.md"),
    )
    assert manager.policy.source == "manager.json"
    assert manager.policy.callback_policy.max_bubble_hops == 2
    assert developer.name == "developer"
    assert roots([developer, manager]) == ["manager"]


def test_settings_are_read_as_an_agent_takes_them(tmp_path: Path) -> None:
    front = """
        model: openai:gpt-6
        settings:
          temperature: 0.2
          stop: [END]
          tool_choice: auto
          parallel_tool_calls: no
          extra_body: {user: u-1, nested: {a: [1, null]}}
          extra_headers: {X-Team: shop}
    """
    write(tmp_path, "clerk", front)
    expected = Settings(
        temperature=0.2,
        stop=["END"],
        tool_choice="auto",
        parallel_tool_calls=False,
        extra_body={"user": "u-1", "nested": {"a": [1, None]}},
        extra_headers={"X-Team": "shop"},
    )
    assert load(tmp_path)[0].settings == expected
    assert load_agents(tmp_path)[0].settings == expected


def test_every_mistake_in_settings_is_reported_with_its_line(tmp_path: Path) -> None:
    front = """
        model: anthropic:claude-sonnet-5
        settings:
          temperature: hot
          temprature: 1
          top_p: 1
          top_p: 0
          seed: 5
          stop: !!python/name:os.system
          extra_headers: {X-Key: 5}
    """
    write(tmp_path, "clerk", front)
    told = [(problem.line, problem.key, problem.text) for problem in errors(tmp_path)]
    assert [(line, key) for line, key, _ in told] == [
        (4, "settings.temperature"),
        (5, "settings.temprature"),
        (7, "settings.top_p"),
        (8, "settings.seed"),
        (9, "settings.stop"),
        (10, "settings.extra_headers"),
    ]
    texts = [text for _, _, text in told]
    assert texts[0] == "must be a number that is not negative, not 'hot'"
    assert texts[1].endswith("extra_headers. Did you mean temperature?")
    assert texts[2] == "is written twice; first on line 6"
    assert texts[3].startswith("anthropic:claude-sonnet-5 does not support this setting; it supports temperature, ")
    assert texts[4].startswith("can't be read: ")
    assert texts[5] == "must have texts as values; X-Key has a int"


def test_settings_that_are_no_keys_with_values_are_told(tmp_path: Path) -> None:
    write(tmp_path, "clerk", "settings: [1]")
    assert only(tmp_path)[1:] == (2, "settings", "must be keys with values, such as {temperature: 0}")


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, "developer", "description: x\nmodel: m", "One.\nTwo.")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    sidecar = tmp_path / "developer.json"
    sidecar.write_bytes(b"\xef\xbb\xbf" + sidecar.read_bytes().replace(b"\n", b"\r\n"))
    [agent] = load(tmp_path)
    assert (agent.description, agent.model, agent.instructions) == ("x", "m", "One.\nTwo.")


def test_without_a_name_the_files_own_is_used(tmp_path: Path) -> None:
    write(tmp_path, "developer")
    assert [agent.name for agent in load(tmp_path)] == ["developer"]


def test_without_a_sidecar_an_agent_has_no_rights(tmp_path: Path) -> None:
    write(tmp_path, "developer")
    (tmp_path / "developer.json").unlink()
    [agent] = load(tmp_path)
    assert (agent.policy.can_query_caller, agent.policy.can_use_host_interaction) == (False, False)
    assert agent.policy.absent


def test_one_file_brings_those_it_names_from_beside_it_and_no_others(tmp_path: Path) -> None:
    manager = write(tmp_path, "manager", "agents: [developer]", callback_policy={"fallback_target": "expert"})
    write(tmp_path, "developer", "agents: [tester]")
    write(tmp_path, "tester")
    write(tmp_path, "expert")
    (tmp_path / "notes.md").write_text("no agent at all")
    (tmp_path / "stray.json").write_text("{}")
    assert [agent.name for agent in load(manager)] == ["manager", "developer", "expert", "tester"]


def test_a_readme_without_front_matter_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "developer")
    (tmp_path / "README.md").write_text("# These are agents")
    assert [agent.name for agent in load(tmp_path)] == ["developer"]


def test_an_unknown_key_is_reported_with_its_line_and_the_allowed_ones(tmp_path: Path) -> None:
    write(tmp_path, "developer", "description: x\ntool: [a]")
    keys = "name, description, model, workspace, settings, tools, skills, agents, mcp, mcp_sampling"
    allowed = f"unknown key; allowed are {keys}."
    assert only(tmp_path) == ("developer.md", 3, "tool", f"{allowed} Did you mean tools?")


def test_a_workspace_that_is_not_there_is_reported_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, "developer", "workspace: work")
    missing = "there is no folder 'work' here; give one that exists, or: in log"
    assert only(tmp_path) == ("developer.md", 2, "workspace", missing)


def test_a_key_of_the_sidecar_in_the_front_matter_is_reported_where_it_belongs(tmp_path: Path) -> None:
    write(tmp_path, "developer", "can_query_caller: true")
    assert only(tmp_path)[3].endswith("It belongs in developer.json.")


@pytest.mark.parametrize(
    ("front", "key", "text"),
    [
        ("name: no", "name", "must be text, not 'no' (YAML reads it as bool; quotes make it text)"),
        ("description: [a]", "description", "must be text, not a list"),
        ("model:", "model", "must be text, not nothing"),
        ("model: 5", "model", "must be text, not '5' (YAML reads it as int; quotes make it text)"),
        ("tools: files", "tools", "must be a list of names, such as [one, two], not 'files'"),
        ("tools: {a: b}", "tools", "must be a list of names, such as [one, two], not keys with values"),
        ("skills:\n", "skills", "must be a list of names, such as [one, two], not nothing"),
        ("agents: [[a]]", "agents", "must hold names only, not a list"),
        ("tools: [a, 1]", "tools", "must hold names only, not '1' (YAML reads it as int; quotes make it text)"),
        ("tools: [a, a]", "tools", "names 'a' twice"),
        ("model: a\nmodel: b", "model", "is written twice; first on line 2"),
    ],
)
def test_a_wrong_type_is_reported_with_what_is_allowed(tmp_path: Path, front: str, key: str, text: str) -> None:
    write(tmp_path, "developer", front)
    _, _, at, told = only(tmp_path)
    assert (at, told[: len(text)]) == (key, text)


@pytest.mark.parametrize("name", ["user", "fail"])
def test_no_agent_may_be_called_user_or_fail(tmp_path: Path, name: str) -> None:
    write(tmp_path, "developer", f"name: {name}")
    assert only(tmp_path)[:3] == ("developer.md", 2, "name")
    assert f"no agent may be called {name!r}" in only(tmp_path)[3]


def test_a_files_own_name_is_held_to_the_same_rule(tmp_path: Path) -> None:
    write(tmp_path, "user")
    assert only(tmp_path)[:3] == ("user.md", 0, "name")


def test_an_unknown_agent_below_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, "manager", "description: x\nagents:\n  - developer\n  - testr")
    write(tmp_path, "developer")
    text = "there is no agent called 'testr'; known agents: developer, manager"
    assert only(tmp_path) == ("manager.md", 5, "agents", text)


def test_an_unknown_fallback_is_reported_with_the_allowed_ones(tmp_path: Path) -> None:
    write(tmp_path, "developer", callback_policy={"fallback_target": "leed"})
    text = "there is no agent called 'leed'; allowed are user, fail, developer"
    assert only(tmp_path) == ("developer.json", 5, "callback_policy.fallback_target", text)


def test_an_unknown_fallback_is_reported_beside_other_mistakes_of_its_sidecar(tmp_path: Path) -> None:
    write(tmp_path, "developer", callback_policy={"max_bubble_hop": 2, "fallback_target": "leed"}, can_ask=True)
    found = [(problem.line, problem.key, problem.text.partition(";")[0]) for problem in errors(tmp_path)]
    assert found == [
        (5, "callback_policy.max_bubble_hop", "unknown key"),
        (6, "callback_policy.fallback_target", "there is no agent called 'leed'"),
        (8, "can_ask", "unknown key"),
    ]


@pytest.mark.parametrize("under", [{"fallback_target": 5}, ["fallback_target"], {"fallback_target": "user"}])
def test_a_fallback_that_is_not_a_name_is_reported_once_at_most(tmp_path: Path, under: Any) -> None:
    write(tmp_path, "developer", callback_policy=under, can_ask=True)
    told = [problem.text for problem in errors(tmp_path) if problem.key.startswith("callback_policy")]
    assert len(told) == (under != {"fallback_target": "user"})


def test_two_agents_of_one_name_are_told_with_both_files(tmp_path: Path) -> None:
    write(tmp_path, "a", "name: developer")
    write(tmp_path, "b", "model: x\nname: developer")
    text = f"'developer' is already the name of {tmp_path / 'a.md'}; choose another name"
    assert only(tmp_path) == ("b.md", 3, "name", text)


def test_an_agent_below_itself_is_reported_with_the_whole_circle(tmp_path: Path) -> None:
    write(tmp_path, "a", "agents: [b]")
    write(tmp_path, "b", "agents: [c]")
    write(tmp_path, "c", "agents: [a]")
    assert only(tmp_path) == ("c.md", 2, "agents", "goes in a circle: a → b → c → a")
    write(tmp_path, "c", "agents: [c]")
    assert only(tmp_path) == ("c.md", 2, "agents", "goes in a circle: c → c")


@pytest.mark.parametrize(
    ("raw", "line", "text"),
    [
        (b"Just text.\n", 1, "must begin with front matter: a line ---, the keys (name, description"),
        (b"", 1, "must begin with front matter"),
        (b"---\nname: x\n", 1, "the front matter has no end"),
        (b"---\nname: x\nmodel: [a\n---\nDo.\n", 3, "the front matter is not YAML"),
        (b"---\nname: x\n\tmodel: y\n---\nDo.\n", 3, "the front matter is not YAML"),
        (b"---\n- name\n---\nDo.\n", 2, "the front matter must consist of keys with values"),
        (b"---\nname: \x01\n---\nDo.\n", 1, "the front matter is not YAML"),
        (
            b"---\ndescription: it: does\n---\nDo.\n",
            2,
            "the front matter is not YAML: put quotes around a text that contains ': ' (column 16)",
        ),
        (
            b"---\n\tname: x\n---\nDo.\n",
            2,
            "the front matter is not YAML: indent with spaces, not with a tab (column 1)",
        ),
        (b'---\nname: "x\n---\nDo.\n', 2, "the front matter is not YAML: a quote is not closed"),
        (b"---\ntools: [x\n---\nDo.\n", 2, "the front matter is not YAML: a list is not closed; write [one, two]"),
        (b"---\na: *x\n---\nDo.\n", 2, "the front matter is not YAML: aliases (*name) are not supported"),
        (b"---\nname: x\nmodel: \xff\n---\nDo.\n", 3, "this is not UTF-8 text"),
        (b"---\nname: x\n---\n \n\n", 3, "has no instructions"),
        (b"---\n" + b"[" * 50_000 + b"\n---\nDo.\n", None, "the front matter is not YAML"),
    ],
)
def test_a_file_that_is_not_an_agent_file_is_reported_with_its_line(
    tmp_path: Path, raw: bytes, line: int | None, text: str
) -> None:
    (tmp_path / "developer.json").write_text(json.dumps(RIGHTS))
    (tmp_path / "developer.md").write_bytes(raw)
    file, at, _, told = only(tmp_path)
    assert file == "developer.md"
    assert told.startswith(text)
    assert line is None or at == line


def test_a_tag_in_the_front_matter_makes_no_object(tmp_path: Path) -> None:
    write(tmp_path, "developer", "description: !!python/object/apply:os.getcwd []")
    assert only(tmp_path)[2] == "description"


def test_a_sidecar_without_its_agent_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "developer")
    (tmp_path / "lead.json").write_text("{}")
    assert only(tmp_path)[::3] == ("lead.json", "is a sidecar without its agent: there is no lead.md beside it")


def test_a_wrong_sidecar_is_reported_with_line_and_key_and_its_agent_left_out(tmp_path: Path) -> None:
    write(tmp_path, "developer", callback_policy={"max_bubble_hops": "two"})
    write(tmp_path, "lead")
    agents, _ = read_agents(tmp_path)
    assert [agent.name for agent in agents] == ["lead"]
    assert only(tmp_path)[:3] == ("developer.json", 5, "callback_policy.max_bubble_hops")


def test_what_is_neither_folder_nor_agent_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "README.md").write_text("x")
    for place in (tmp_path / "nowhere", tmp_path / "a.txt", tmp_path / "README.md", tmp_path):
        [problem] = errors(place)
        assert "agent" in problem.text
        assert problem.file == place.name


def test_a_folder_called_like_an_agent_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "developer.md").mkdir()
    assert only(tmp_path)[3] == "can't be read: Is a directory"


def test_every_mistake_of_every_file_is_reported_at_once(tmp_path: Path) -> None:
    write(tmp_path, "developer", "tool: [a]\nmodel: 1", "", can_query_callers=True)
    write(tmp_path, "manager", "agents: [ghost]", callback_policy={"fallback_target": "ghost"})
    (tmp_path / "stray.json").write_text("{}")
    found = [(problem.file, problem.key) for problem in errors(tmp_path)]
    assert found == [
        ("developer.json", "can_query_callers"),
        ("developer.md", "tool"),
        ("developer.md", "model"),
        ("developer.md", ""),
        ("manager.json", "callback_policy.fallback_target"),
        ("manager.md", "agents"),
        ("stray.json", ""),
    ]


def test_loading_raises_one_error_with_all_of_them_in_its_text(tmp_path: Path) -> None:
    write(tmp_path, "developer", "tool: [a]\nmodel: 1")
    with pytest.raises(BadAgentFile) as caught:
        load(tmp_path)
    error = caught.value
    assert (error.file, error.line, error.key) == (str(tmp_path / "developer.md"), 2, "tool")
    lines = str(error).splitlines()
    assert lines[0].startswith(f"{tmp_path / 'developer.md'}:2: tool: unknown key; allowed are name")
    assert lines[1].startswith(f"{tmp_path / 'developer.md'}:3: model: must be text")


@given(raw=st.binary() | st.binary().map(lambda raw: b"---\n" + raw + b"\n---\nDo."))
def test_any_bytes_are_read_or_told_and_never_crash(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    (folder / "developer.json").write_text(json.dumps(RIGHTS))
    (folder / "developer.md").write_bytes(raw)
    agents, problems = read_agents(folder)
    assert bool(agents) != any(problem.severity == "error" for problem in problems)


KEYS = ["name", "model", "settings", "settings.seed", "tools", "agents", "x"]


@given(keys=st.dictionaries(st.sampled_from(KEYS), st.text(max_size=12)))
def test_any_front_matter_is_read_or_told_and_never_crashes(
    keys: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "front"
    folder.mkdir(exist_ok=True)
    front = "\n".join(f"{key}: {value}" for key, value in keys.items()).replace("settings.", "settings:\n  ")
    raw = f"---\n{front}\n---\nDo.\n".encode()
    (folder / "developer.md").write_bytes(raw)
    agents, problems = read_agents(folder)
    assert bool(agents) != any(problem.severity == "error" for problem in problems)
