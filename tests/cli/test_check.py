"""`upcall check`: one mistake hides no other, and each comes with what was probably meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from cli.command import upcall

RIGHTS = '{"can_query_caller": true, "can_use_host_interaction": true}'


def write(folder: Path, name: str, front: str = "", sidecar: str = RIGHTS) -> None:
    """One agent's two files; its instructions are never empty."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text(f"---\n{front}\n---\nDo it.\n")
    (folder / f"{name}.json").write_text(sidecar)


def check(folder: Path) -> list[dict[str, Any]]:
    """Every problem that `check` finds in the folder `team`."""
    return msgspec.json.decode(upcall("check", "team", "--json", cwd=folder).stdout)


def told(folder: Path, severity: str = "error") -> dict[str, str]:
    """The problems of one severity: their text by file and key."""
    found = [one for one in check(folder) if one["severity"] == severity]
    shown = {f"{Path(one['file']).name} {one['key']}".strip(): one["text"] for one in found}
    assert len(shown) == len(found), found
    return shown


def test_mistakes_of_every_kind_in_one_agent_are_told_in_one_run(tmp_path: Path) -> None:
    write(
        tmp_path / "team",
        "developer",
        "model: openai\ntools: [nowhere:x]\nagents: [ghost]\nskills: [none]\nworkspace: void",
        '{"can_query_caller": true, "can_use_host_interaction": "yes", "callback_policy": {"timeout": -1}}',
    )
    assert list(told(tmp_path)) == [
        "developer.json can_use_host_interaction",
        "developer.json callback_policy.timeout",
        "developer.md model",
        "developer.md tools",
        "developer.md agents",
        "developer.md skills",
        "developer.md workspace",
    ]


def test_a_file_that_can_not_be_read_hides_neither_its_sidecar_nor_other_files(tmp_path: Path) -> None:
    write(tmp_path / "team", "broken", "name: worker\ndescription: a: b", '{"can_query_calller": true}')
    (tmp_path / "team" / "bare.md").write_text("no front matter")
    (tmp_path / "team" / "bare.json").write_text('{"can_query_caller": 1}')
    write(tmp_path / "team", "boss", "agents: [worker]\nmodel: nothing")
    assert list(told(tmp_path)) == [
        "bare.json can_query_caller",
        "bare.md",
        "boss.md model",
        "broken.json can_query_calller",
        "broken.md",
    ]


def test_every_clash_of_tools_is_told_beside_a_tool_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "team", "a", "tools: [one:x, two:x, nowhere:z]")
    write(tmp_path / "team", "b", "tools: [one:x, two:x, one:y, two:y]")
    program = "def x() -> str:\n    'Do.'\n    return ''\n\n\ndef y() -> str:\n    'Do.'\n    return ''\n"
    for name in ("one", "two"):
        (tmp_path / "team" / f"{name}.py").write_text(program)
    texts = [(Path(one["file"]).name, one["text"].partition(":")[0]) for one in check(tmp_path)]
    assert texts == [
        ("a.md", "nowhere"),
        ("a.md", "two of its tools are called 'x'"),
        ("b.md", "two of its tools are called 'x'"),
        ("b.md", "two of its tools are called 'y'"),
    ]


def test_a_model_that_is_a_file_is_tried(tmp_path: Path) -> None:
    for name, text in (("empty", ""), ("leaves", "raise SystemExit(3)"), ("good", "script = ['hello']")):
        write(tmp_path / "team", name, f"model: script:{name}.py")
        (tmp_path / "team" / f"{name}.py").write_text(text)
    found = told(tmp_path)
    assert list(found) == ["empty.md model", "leaves.md model"]
    assert "has no attribute `script`" in found["empty.md model"]
    assert "can't be loaded: SystemExit: 3" in found["leaves.md model"]


def test_a_mistake_does_not_hide_what_can_not_have_been_meant(tmp_path: Path) -> None:
    write(tmp_path / "team", "boss", "agents: [worker]\nmodel: nothing")
    write(tmp_path / "team", "worker", sidecar='{"can_query_caller": false, "can_use_host_interaction": false}')
    write(tmp_path / "team", "lost")
    assert list(told(tmp_path)) == ["boss.md model"]
    warnings = told(tmp_path, "warning")
    assert "its questions can never be answered" in warnings["worker.json"]
    assert "no path reaches it" in warnings["lost.md"]


def test_a_policy_above_that_is_wrong_is_not_guessed_at(tmp_path: Path) -> None:
    write(tmp_path / "team", "boss", "agents: [worker]", '{"can_query_caller": 3}')
    write(tmp_path / "team", "worker", sidecar='{"can_query_caller": true, "can_use_host_interaction": false}')
    assert list(told(tmp_path)) == ["boss.json can_query_caller"]
    assert told(tmp_path, "warning") == {}


def test_every_mistake_in_a_skill_is_told(tmp_path: Path) -> None:
    write(tmp_path / "team", "writer", "skills: [pdf]")
    skill = tmp_path / "team" / "skills" / "pdf"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: PDF\ndescription: 3\ntriggers: all\n---\nRead it.\n")
    text = told(tmp_path)["writer.md skills"]
    for part in ("name: 'PDF' may have only", "description: 3 is not text", "triggers: 'all' is not a list"):
        assert part in text


def test_what_was_probably_meant_is_named_for_keys_and_values(tmp_path: Path) -> None:
    folder = tmp_path / "team"
    write(
        folder,
        "developer",
        "modle: x\nmax_bubble_hop: 1\nagents: [testr]\n"
        "tools: [tols:read, tools:raed]\nskills: [pfd]\nworkspace: wrk",
        '{"can-query-caller": true, "max_bubble_hop": 1,'
        ' "callback_policy": {"time_out": 1, "can_query_calller": true, "fallback_target": "usr"}}',
    )
    write(folder, "tester")
    (folder / "testre.json").write_text("{}")
    (folder / "tools.py").write_text("def read() -> str:\n    'Read.'\n    return ''\n")
    (folder / "work").mkdir()
    (folder / "skills" / "pdf").mkdir(parents=True)
    found = [(one["key"], one["text"].partition("Did you mean ")[2]) for one in check(tmp_path)]
    assert [one for one in found if one[0] not in ("", "can_query_caller", "can_use_host_interaction")] == [
        ("can-query-caller", "can_query_caller?"),
        ("max_bubble_hop", "max_bubble_hops? It belongs under callback_policy."),
        ("callback_policy.time_out", "timeout?"),
        ("callback_policy.can_query_calller", "can_query_caller? It belongs beside callback_policy, not under it."),
        ("callback_policy.fallback_target", "user?"),
        ("modle", "model?"),
        ("max_bubble_hop", "max_bubble_hops? It belongs in developer.json."),
        ("agents", "tester?"),
        ("tools", "tools?"),
        ("tools", "read?"),
        ("skills", "pdf?"),
        ("workspace", "work?"),
    ]
    assert ("", "tester.json?") in found


def test_a_team_with_mistakes_hides_none_of_its_agents_mistakes(tmp_path: Path) -> None:
    write(tmp_path / "team", "manager", "model: nothing")
    write(tmp_path / "team", "developer", "tools: [nowhere:x]")
    (tmp_path / "team" / "team.toml").write_text(
        'managr = "manager"\non_failure = "stopp"\n\n[roles]\ndeveloper = "devloper"\n'
    )
    found = told(tmp_path)
    assert list(found) == [
        "developer.md tools",
        "manager.md model",
        "team.toml manager",
        "team.toml managr",
        "team.toml on_failure",
        "team.toml roles.developer",
    ]
    assert [found[f"team.toml {key}"].partition("Did you mean ")[2] for key in ("managr", "on_failure")] == [
        "manager?",
        "stop?",
    ]
    assert found["team.toml roles.developer"].endswith("Did you mean developer?")
