"""Warnings: what the files allow but their author can't have meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentfiles.test_reading import write
from upcall.agentfiles.markdown import read_agents

CLOSED: dict[str, Any] = {"can_query_caller": False, "can_use_host_interaction": False}
NO_PERSON: dict[str, Any] = {"can_use_host_interaction": False}


def doubts(place: Path) -> list[tuple[str, int, str, str]]:
    _, problems = read_agents(place)
    assert all(problem.severity == "warning" for problem in problems), problems
    return [(Path(p.file).name, p.line, p.key, p.text) for p in problems]


def team(folder: Path, **developer: Any) -> None:
    write(folder, "manager", "agents: [developer]")
    write(folder, "developer", **developer)


def test_a_sound_folder_gives_no_warning(tmp_path: Path) -> None:
    team(tmp_path)
    assert doubts(tmp_path) == []


def test_a_missing_right_in_a_sidecar_is_reported_with_what_it_means(tmp_path: Path) -> None:
    write(tmp_path, "developer")
    (tmp_path / "developer.json").write_text('{"can_use_host_interaction": true}')
    means = "is missing, which means false: it never asks its caller"
    assert doubts(tmp_path) == [("developer.json", 0, "can_query_caller", means)]
    (tmp_path / "developer.json").write_text('{"can_query_caller": true}')
    means = "is missing, which means false: it may not ask the person itself"
    assert ("developer.json", 0, "can_use_host_interaction", means) in doubts(tmp_path)


def test_a_missing_sidecar_is_reported_with_what_it_means(tmp_path: Path) -> None:
    team(tmp_path)
    (tmp_path / "developer.json").unlink()
    means = "no sidecar: it may ask neither its caller nor the person, so its questions are never answered"
    assert doubts(tmp_path) == [("developer.json", 0, "", means)]


def test_a_policy_that_can_never_be_answered_is_reported_with_what_would_help(tmp_path: Path) -> None:
    team(tmp_path, **CLOSED)
    [(file, _, _, text)] = doubts(tmp_path)
    assert file == "developer.json"
    assert text == (
        "its questions can never be answered: developer.json has can_use_host_interaction: false; they could reach "
        "others with can_query_caller: true in developer.json; can_use_host_interaction: true in developer.json"
    )


def test_a_root_that_may_only_ask_its_caller_can_never_be_answered(tmp_path: Path) -> None:
    write(tmp_path, "developer", **NO_PERSON)
    assert "its questions can never be answered" in doubts(tmp_path)[0][3]


def test_an_agent_that_one_path_can_answer_is_not_told(tmp_path: Path) -> None:
    write(tmp_path, "relay", "agents: [developer]", callback_policy={"passthrough_child_callbacks": True})
    write(tmp_path, "manager", "agents: [developer]")
    write(tmp_path, "developer", **NO_PERSON)
    assert doubts(tmp_path) == []


def test_over_aggressive_passthrough_is_reported_where_every_ancestor_passes_through(tmp_path: Path) -> None:
    through = {"passthrough_child_callbacks": True}
    write(tmp_path, "chief", "agents: [controller]", callback_policy=through)
    write(tmp_path, "controller", "agents: [developer]", callback_policy=through)
    write(tmp_path, "developer")
    found = doubts(tmp_path)
    key = "callback_policy.passthrough_child_callbacks: true"
    assert found[-1] == (
        "developer.json",
        2,
        "can_query_caller",
        f"no agent above it is ever asked (controller: controller.json has {key}; chief: chief.json has {key})",
    )


def test_hops_of_zero_are_told_where_the_caller_may_be_asked(tmp_path: Path) -> None:
    team(tmp_path, callback_policy={"max_bubble_hops": 0})
    assert "no agent above it is ever asked (manager: no hop is left" in doubts(tmp_path)[0][3]


def test_an_agent_that_no_path_reaches_is_reported(tmp_path: Path) -> None:
    team(tmp_path)
    write(tmp_path, "tester", "model: m\nname: tester")
    text = "no path reaches it: no agent lists it under agents:, and it lists no agents itself"
    assert doubts(tmp_path) == [("tester.md", 3, "", text)]


def test_a_fallback_reaches_an_agent_too(tmp_path: Path) -> None:
    team(tmp_path, callback_policy={"fallback_target": "expert"})
    write(tmp_path, "expert")
    assert doubts(tmp_path) == []


def test_agents_that_stand_side_by_side_need_no_path(tmp_path: Path) -> None:
    write(tmp_path, "one")
    write(tmp_path, "two")
    assert doubts(tmp_path) == []


def test_a_fallback_that_is_never_asked_is_reported_with_the_reason(tmp_path: Path) -> None:
    team(tmp_path, callback_policy={"fallback_target": "manager"})
    key = "callback_policy.fallback_target"
    text = "manager is never asked as fallback: it was asked already, and a fallback is never asked twice"
    assert doubts(tmp_path) == [("developer.json", 5, key, text)]
    write(tmp_path, "developer", callback_policy={"fallback_target": "developer"})
    assert doubts(tmp_path)[0][3] == "developer is never asked as fallback: the fallback is the one who asks"


def test_a_fallback_of_user_without_any_right_to_the_person_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "manager", "agents: [developer]", **NO_PERSON)
    write(tmp_path, "developer", callback_policy={"fallback_target": "user"}, **NO_PERSON)
    told = [entry for entry in doubts(tmp_path) if entry[2] == "callback_policy.fallback_target"]
    assert [entry[3] for entry in told] == [
        "the person is never asked: developer.json has can_use_host_interaction: false"
    ]


def test_an_approver_without_tools_is_reported(tmp_path: Path) -> None:
    team(tmp_path)
    write(tmp_path, "manager", "agents: [developer]", callback_policy={"may_approve": ["deploy"]})
    text = "it has no tools, and an agent can't approve a call that it may not make itself"
    assert doubts(tmp_path) == [("manager.json", 5, "callback_policy.may_approve", text)]


def test_a_wide_folder_is_checked_in_bounded_time(tmp_path: Path) -> None:
    for level in range(12):
        below = f"agents: [a{level + 1}, b{level + 1}]" if level < 11 else ""
        write(tmp_path, f"a{level}", below)
        write(tmp_path, f"b{level}", below)
    assert doubts(tmp_path) == []
