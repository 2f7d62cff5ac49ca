"""team.toml: the team that comes out of a folder, every mistake in it, and the warnings in the team's view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfiles.test_doubts import doubts
from agentfiles.test_reading import errors, only, write
from upcall import BadAgentFile, Team, load_agents
from upcall.agentfiles.markdown import load, read_agents, roots
from upcall.agentfiles.team_toml import KEYS, read_team

WHOLE = """\
# who does what
name = "site"
description = "makes pages"
manager = "manager"
reviewer = "reviewer"
on_failure = "replan"
entries = 7
task_chars = 900
tries = 2

[roles]
developer = "developer"
tester = "tester"
"""
SMALL = 'manager = "manager"\n[roles]\ndeveloper = "developer"\n'
NO_PERSON: dict[str, Any] = {"can_use_host_interaction": False}


def team(folder: Path, toml: str = SMALL, **developer: Any) -> Path:
    """A team's folder: its manager, its developer."""
    write(folder, "manager")
    write(folder, "developer", **developer)
    (folder / "team.toml").write_text(toml, encoding="utf-8")
    return folder


def mistakes(folder: Path, toml: str) -> list[tuple[int, str, str]]:
    """What is wrong with a team.toml, whose folder is right."""
    found = errors(team(folder, toml))
    assert {problem.file for problem in found} <= {"team.toml"}
    return [(problem.line, problem.key, problem.text) for problem in found]


# --- what comes out ---------------------------------------------------------------------


def test_a_folder_with_a_team_file_is_a_team_and_its_agents(tmp_path: Path) -> None:
    write(tmp_path, "reviewer")
    write(tmp_path, "tester")
    made, *agents = load_agents(team(tmp_path, WHOLE))

    assert isinstance(made, Team)
    assert (made.name, made.description, made.source) == ("site", "makes pages", str(tmp_path))
    assert [agent.name for agent in agents] == ["developer", "manager", "reviewer", "tester"]
    assert made.manager is agents[1]
    assert made.reviewer is agents[2]
    assert made.roles == {"developer": agents[0], "tester": agents[3]}
    assert (made.on_failure, made.entries, made.task_chars, made.tries) == ("replan", 7, 900, 2)


def test_what_a_team_file_leaves_out_is_as_in_python(tmp_path: Path) -> None:
    made, developer, manager = load_agents(team(tmp_path))
    same = Team(manager, {"developer": developer})
    assert isinstance(made, Team)
    for key in ("name", "reviewer", "on_failure", "entries", "task_chars", "tries", "description"):
        assert getattr(made, key) == getattr(same, key)


def test_the_team_is_what_its_folder_is_for_whoever_else_is_there(tmp_path: Path) -> None:
    write(team(tmp_path), "expert")
    assert roots(load(tmp_path)) == ["team"]


def test_an_agent_that_lists_the_team_is_above_it(tmp_path: Path) -> None:
    write(team(tmp_path, 'name = "site"\n' + SMALL), "lead", "agents: [site]")
    assert roots(load(tmp_path)) == ["lead"]
    lead = next(agent for agent in load_agents(tmp_path) if agent.name == "lead")
    assert isinstance(lead.agents[0], Team)


def test_one_agents_file_is_read_without_its_team_and_a_team_file_with_its_members(tmp_path: Path) -> None:
    write(team(tmp_path), "stranger")
    assert [agent.name for agent in load(tmp_path / "developer.md")] == ["developer"]
    assert [agent.name for agent in load(tmp_path / "team.toml")] == ["team", "manager", "developer"]


def test_roles_may_be_written_in_each_of_tomls_ways(tmp_path: Path) -> None:
    for roles in ('roles.developer = "developer"', 'roles = {developer = "developer"}'):
        made = load(team(tmp_path, f'manager = "manager"\n{roles}\n'))[0]
        assert made.team is not None
        assert made.team.roles == {"developer": "developer"}


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path: Path) -> None:
    raw = ("\ufeff" + SMALL.replace('"developer"', "3")).replace("\n", "\r\n").encode()
    (team(tmp_path) / "team.toml").write_bytes(raw)
    assert only(tmp_path)[:3] == ("team.toml", 3, "roles.developer")


# --- mistakes ---------------------------------------------------------------------------


def test_an_unknown_key_is_reported_with_the_allowed_ones(tmp_path: Path) -> None:
    [(line, key, text)] = mistakes(tmp_path, f"entrys = 3\n{SMALL}")
    assert (line, key) == (1, "entrys")
    assert text == f"unknown key; allowed are {', '.join(KEYS)}. Did you mean entries?"


def test_a_role_beside_the_table_is_reported_where_it_stands(tmp_path: Path) -> None:
    [(line, key, text)] = mistakes(tmp_path, f'tester = "developer"\n{SMALL}')
    assert (line, key) == (1, "tester")
    assert text.endswith("Put roles below the line [roles].")


def test_a_key_below_the_roles_is_reported_where_it_stands(tmp_path: Path) -> None:
    found = mistakes(tmp_path, f'{SMALL}on_failure = "stop"\nentries = 3\n')
    assert [(line, key) for line, key, _ in found] == [(4, "roles.on_failure"), (5, "roles.entries")]
    for (_, key, text), name in zip(found, ("on_failure", "entries"), strict=True):
        assert text.endswith(f"If you mean the key {name}, put it above the line [roles]"), key


@pytest.mark.parametrize(
    ("line", "key", "says"),
    [
        ('manager = "nobody"', "manager", "there is no agent called 'nobody'; known agents: developer, manager"),
        ('reviewer = "nobody"', "reviewer", "there is no agent called 'nobody'; known agents: developer, manager"),
        ("manager = 3", "manager", "must be the name of an agent in this folder, such as \"developer\", not 3"),
        ('manager = ["manager"]', "manager", 'such as "developer", not ["manager"]'),
        ('reviewer = ""', "reviewer", 'such as "developer", not ""'),
        ('on_failure = "give_up"', "on_failure", 'must be one of "stop", "go_on", "replan", not "give_up"'),
        ("on_failure = true", "on_failure", 'must be one of "stop", "go_on", "replan", not true'),
        ("entries = 0", "entries", "must be a whole number of 1 or more, not 0"),
        ('entries = "7"', "entries", 'must be a whole number of 1 or more, not "7"'),
        ("task_chars = 1.5", "task_chars", "must be a whole number of 1 or more, not 1.5"),
        ("tries = true", "tries", "must be a whole number of 1 or more, not true"),
        ("tries = 1979-05-27", "tries", "must be a whole number of 1 or more, not datetime.date(1979, 5, 27)"),
        ("description = 3", "description", "must be text, not 3"),
        ('name = "user"', "name", "no agent may be called 'user'"),
        ('name = "a b"', "name", "'a b' is not a valid agent name"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_reported_with_its_line_and_what_is_allowed(
    line: str, key: str, says: str, tmp_path: Path
) -> None:
    rest = SMALL if key != "manager" else SMALL.partition("\n")[2]
    [(at, where, text)] = mistakes(tmp_path, f"# first\n\n{line}\n{rest}")
    assert (at, where) == (3, key)
    assert says in text


def test_a_team_and_an_agent_have_different_names(tmp_path: Path) -> None:
    file, _, key, text = only(team(tmp_path, f'name = "developer"\n{SMALL}'))
    assert (file, key) == ("developer.md", "name")
    assert text == f"'developer' is already the name of {tmp_path / 'team.toml'}; choose another name"


@pytest.mark.parametrize(
    ("roles", "line", "key", "says"),
    [
        ("", 0, "roles", "is missing; it must be a line [roles] with at least one role below it"),
        ("[roles]", 2, "roles", "must be a line [roles] with at least one role below it"),
        ('roles = ["developer"]', 2, "roles", "must be a line [roles] with at least one role"),
        ('[[roles]]\ndeveloper = "developer"', 2, "roles", "must be a line [roles] with at least one role"),
        ('[roles]\ntester = "tester"', 3, "roles.tester", "there is no agent called 'tester'; known agents: dev"),
        ("[roles]\ndeveloper = 3", 3, "roles.developer", "must be the name of an agent in this folder"),
        ('[roles]\ndeveloper = "developer"\n"a b" = "developer"', 4, "roles.a b", "'a b' is not a valid role name"),
        ('[roles]\nuser = "developer"', 3, "roles.user", "no role may be called 'user'"),
        ('[roles]\nx = """\n3"""\ntester = "tester"', 5, "roles.tester", "there is no agent called 'tester'"),
    ],
)  # fmt: skip
def test_wrong_roles_are_told_with_their_line(roles: str, line: int, key: str, says: str, tmp_path: Path) -> None:
    found = mistakes(tmp_path, f'manager = "manager"\n{roles}\n')
    assert [text for at, where, text in found if (at, where) == (line, key) and says in text], found


@pytest.mark.parametrize(
    ("toml", "line", "says"),
    [
        ('manager = "manager\n[roles]\n', 1, "Illegal character"),
        ("manager manager\n", 1, "Expected '=' after a key"),
        (f"{SMALL}developer = \"tester\"\n", 4, "Cannot overwrite a value (a key is written twice)"),
        (f"{SMALL}[roles]\n", 4, "Cannot declare ('roles',) twice"),
        (f"{SMALL}x = [\n", 5, ""),
    ],
)  # fmt: skip
def test_a_text_that_is_not_toml_is_reported_with_its_line(toml: str, line: int, says: str, tmp_path: Path) -> None:
    [(at, key, text)] = mistakes(tmp_path, toml)
    assert (at, key) == (line, "")
    assert text.startswith("this is not TOML: ")
    assert says in text


@pytest.mark.parametrize(
    ("raw", "line", "says"),
    [
        (b'name = "ok"\nmanager = "\xff"\n', 2, "this is not UTF-8 text"),
        (b"tries = " + b"9" * 5000, 1, "this TOML can't be read"),
        (b"tries = " + b"[" * 100_000, 1, "this TOML can't be read"),
    ],
)
def test_bytes_that_can_not_be_read_are_told(raw: bytes, line: int, says: str, tmp_path: Path) -> None:
    (team(tmp_path) / "team.toml").write_bytes(raw)
    (problem,) = errors(tmp_path)
    assert (problem.file, problem.line, problem.key) == ("team.toml", line, "")
    assert says in problem.text


def test_every_mistake_of_a_folder_is_reported_at_once(tmp_path: Path) -> None:
    team(tmp_path, 'size = 3\nreviewer = "nobody"\n[roles]\ndeveloper = 1\ntester = "tester"\n')
    write(tmp_path, "manager", "tool: [x]")
    (tmp_path / "developer.json").write_text('{"can_query_caller": "yes"}')
    assert [(problem.file, problem.line, problem.key) for problem in errors(tmp_path)] == [
        ("developer.json", 1, "can_query_caller"),
        ("manager.md", 2, "tool"),
        ("team.toml", 0, "manager"),
        ("team.toml", 1, "size"),
        ("team.toml", 2, "reviewer"),
        ("team.toml", 4, "roles.developer"),
        ("team.toml", 5, "roles.tester"),
    ]
    with pytest.raises(BadAgentFile) as caught:
        load_agents(tmp_path)
    assert str(caught.value).count("team.toml") == 5


def test_a_team_below_one_of_its_own_members_goes_in_a_circle(tmp_path: Path) -> None:
    team(tmp_path)
    write(tmp_path, "developer", "agents: [team]")
    (problem,) = errors(tmp_path)
    assert (problem.file, problem.key) == ("developer.md", "agents")
    assert problem.text == "goes in a circle: team → developer → team"


def test_a_team_is_not_a_fallback_because_it_has_no_model(tmp_path: Path) -> None:
    team(tmp_path, callback_policy={"fallback_target": "team"})
    (problem,) = errors(tmp_path)
    assert problem.text == "a team can't answer; allowed are user, fail, developer, manager"


def test_an_agent_with_the_name_of_a_worker_is_reported_when_the_team_is_built(tmp_path: Path) -> None:
    team(tmp_path, SMALL.replace('"developer"', '"developer01"'))
    write(tmp_path, "developer01")
    with pytest.raises(BadAgentFile, match=r"team.toml: .*'developer01' has the same name as a worker"):
        load_agents(tmp_path)


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_makes_reading_fail(tmp_path_factory: pytest.TempPathFactory, first: str, last: str) -> None:
    file = tmp_path_factory.mktemp("any") / "team.toml"
    file.write_text(f"{first}\n{SMALL}{last}", encoding="utf-8", errors="replace")
    keys, lines, problems = read_team(file)
    assert set(keys) <= set(KEYS)
    assert {problem.key for problem in problems} <= {*lines, "", "manager", "roles"}


# --- warnings ---------------------------------------------------------------------------


def test_a_sound_team_gives_no_warning(tmp_path: Path) -> None:
    assert doubts(team(tmp_path, **NO_PERSON)) == []


def test_a_manager_that_lets_questions_pass_is_reported_where_its_worker_may_ask(tmp_path: Path) -> None:
    team(tmp_path)
    write(tmp_path, "manager", callback_policy={"passthrough_child_callbacks": True})
    key = "callback_policy.passthrough_child_callbacks: true"
    text = f"no agent above it is ever asked (manager: manager.json has {key})"
    assert doubts(tmp_path) == [("developer.json", 2, "can_query_caller", text)]


def test_what_lies_above_the_team_lies_above_its_manager_and_workers(tmp_path: Path) -> None:
    team(tmp_path, callback_policy={"fallback_target": "lead"}, **NO_PERSON)
    write(tmp_path, "lead", "agents: [team]")
    write(tmp_path, "manager", callback_policy={"passthrough_child_callbacks": True})
    key = "callback_policy.fallback_target"
    text = "lead is never asked as fallback: it was asked already, and a fallback is never asked twice"
    assert [entry for entry in doubts(tmp_path) if entry[0] == "developer.json"] == [
        ("developer.json", 5, key, text)
    ]


def test_a_worker_whose_questions_nobody_may_answer_is_reported(tmp_path: Path) -> None:
    team(tmp_path, can_query_caller=False, **NO_PERSON)
    [(file, _, _, text)] = doubts(tmp_path)
    assert file == "developer.json"
    assert text.startswith("its questions can never be answered: ")


def test_an_agent_that_neither_the_team_nor_another_names_is_reported(tmp_path: Path) -> None:
    write(team(tmp_path), "stranger")
    text = (
        "no path reaches it: no agent lists it under agents: and team.toml does not name it, "
        "and it lists no agents itself"
    )
    assert doubts(tmp_path) == [("stranger.md", 0, "", text)]


def test_agents_with_mistakes_are_left_out_of_what_was_read(tmp_path: Path) -> None:
    team(tmp_path, "manager = 3\n")
    agents, _ = read_agents(tmp_path)
    assert [agent.name for agent in agents] == ["developer", "manager"]
