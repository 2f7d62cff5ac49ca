"""Data and tags at the command line: given to `run`, shown, and used to choose what `sessions` and `inbox` list."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.asking import make_team
from cli.command import out, upcall
from quick import slow_after

GIVEN = ["--tag", "customer=acme", "--tag", "tier=gold", "--data", '{"order": 17}']


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which one tagged session and one without tags wait for a person."""
    made = make_team(tmp_path)
    for session, given in (("tagged", GIVEN), ("plain", [])):
        done = upcall("run", "team:manager", "name", "--id", session, *given, cwd=made)
        assert done.returncode == 3, done.stderr
    return made


def ids(command: str, *options: str, cwd: Path) -> list[str]:
    done = upcall(command, "--ids", *options, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_sessions_are_listed_by_tag_agent_status_and_session(folder: Path) -> None:
    both = ["plain", "tagged"]
    assert {one.split("~")[0] for one in ids("sessions", cwd=folder)} == {*both}
    assert {one.split("~")[0] for one in ids("sessions", "--tag", "tier=gold", cwd=folder)} == {"tagged"}
    assert (
        ids("sessions", "--tag", "tier=gold", "--agent", "manager", "--status", "waiting", cwd=folder)[-1]
        == "tagged"
    )
    assert ids("sessions", "--tag", "tier=gold", "--tag", "customer=other", cwd=folder) == []
    assert ids("sessions", "--status", "idle", cwd=folder) == []
    (child,) = ids("sessions", "--session", "plain", "--agent", "developer", cwd=folder)
    assert child.startswith("plain~")


@pytest.mark.slow
def test_the_inbox_is_listed_by_tag_agent_status_and_session(folder: Path) -> None:
    tagged, plain = (ids("inbox", "--session", session, cwd=folder) for session in ("tagged", "plain"))
    assert [len(tagged), len(plain), len(ids("inbox", cwd=folder))] == [1, 1, 2]
    assert ids("inbox", "--tag", "customer=acme", "--agent", "developer", cwd=folder) == tagged
    assert ids("inbox", "--agent", "manager", cwd=folder) == []
    upcall("answer", tagged[0], "lamp", cwd=folder)
    assert (ids("inbox", cwd=folder), ids("inbox", "--status", "answered", cwd=folder)) == (plain, tagged)
    shown = upcall("inbox", "--status", "answered", cwd=folder).stdout
    assert "answer    answered: lamp, by " in shown
    assert "upcall answer" not in shown
    assert shown.endswith("1 answered\n")


@pytest.mark.slow
def test_tags_and_data_are_in_the_json_and_on_the_screen(folder: Path) -> None:
    tags = {"customer": "acme", "tier": "gold"}
    listed = {one["id"]: one for one in out("sessions", cwd=folder)}
    assert (listed["tagged"]["tags"], listed["plain"]["tags"]) == (tags, {})
    (asked,) = out("inbox", "--session", "tagged", cwd=folder)
    assert asked["tags"] == tags
    shown = out("show", asked["session_id"], cwd=folder)
    assert (shown["tags"], shown["data"]) == (tags, {"order": 17})
    text = upcall("show", "tagged", cwd=folder).stdout
    assert '  tags         customer=acme tier=gold\n  data         {"order":17}\n' in text
    assert "┃ tags      customer=acme tier=gold\n" in upcall("inbox", cwd=folder).stdout


@pytest.mark.slow
def test_data_may_be_in_a_file_and_is_the_same_when_a_session_is_continued(folder: Path) -> None:
    (folder / "data.json").write_text('{"order": 18}')
    upcall("run", "team:manager", "name", "--id", "third", "--data", "data.json", cwd=folder)
    assert out("show", "third", cwd=folder)["data"] == {"order": 18}
    again = upcall("run", "team:manager", "name", "--id", "tagged", *GIVEN, cwd=folder)
    assert (again.returncode, "is waiting for 1 answer" in again.stderr) == (3, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "problem"),
    slow_after(
        3,
        [
            (["run", "team:manager", "name", "--id", "tagged", "--data", "{}"], "was started with other data"),
            (["run", "team:manager", "name", "--tag", "tier"], "'tier' is not NAME=VALUE"),
            (
                ["run", "team:manager", "name", "--tag", "a=1", "--tag", "a=2"],
                "--tag a has two values, '1' and '2'",
            ),
            (["run", "team:manager", "name", "--tag", f"a={'x' * 201}"], "not a valid value of the tag 'a'"),
            (["run", "team:manager", "name", "--data", "[1]"], "data must be a JSON object"),
            (["run", "team:manager", "name", "--data", '{"a":'], "--data: "),
            (
                ["run", "team:manager", "name", "--data", "no.json"],
                "--data no.json: neither a JSON object nor a file",
            ),
            (["sessions", "--status", "waitin"], "unknown value 'waitin'"),
            (["inbox", "--status", "waiting"], "Use one of open, answered"),
            (["sessions", "--tag", "a=1", "--tag", "a=2"], "--tag a has two values"),
        ],
    ),
)
def test_wrong_options_are_wrong_usage_and_nothing_is_stored(
    folder: Path, options: list[str], problem: str
) -> None:
    before = ids("sessions", cwd=folder)
    done = upcall(*options, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
    assert ids("sessions", cwd=folder) == before


@pytest.mark.parametrize("command", ["sessions", "inbox"])
def test_a_list_of_a_session_that_is_not_there_is_an_error(folder: Path, command: str) -> None:
    done = upcall(command, "--session", "nobody", "--json", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no session called 'nobody'" in done.stderr


def test_a_list_that_is_empty_because_of_its_options_says_so(folder: Path) -> None:
    said = [upcall(command, "--tag", "a=b", cwd=folder).stdout for command in ("sessions", "inbox")]
    assert said == ["No sessions match.\n", "Nothing matches.\n"]
