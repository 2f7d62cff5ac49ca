"""Where the log is: a named one that is not there is wrong usage, an absent default one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.command import make_agents, out, upcall
from quick import slow_after, slow_but

READING = [
    ["sessions"],
    ["sessions", "--json"],
    ["sessions", "--ids"],
    ["sessions", "delete", "x", "--yes"],
    ["sessions", "prune", "--older-than", "3", "--yes"],
    ["inbox"],
    ["inbox", "--json"],
    ["inbox", "--ids"],
    ["show", "x"],
    ["show", "x", "--json"],
    ["events"],
    ["events", "--json"],
    ["events", "--follow"],
    ["events", "x"],
    ["answer", "q1", "yes"],
    ["resume", "x"],
    ["resume", "--all"],
    ["resume", "--all", "--follow"],
    ["cancel", "x"],
    ["explain", "q1"],
    ["chat", "agents", "-c"],
]
MAKING = [["run", "agents", "hello"], ["chat", "agents"], ["demo"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_agents(tmp_path)
    (tmp_path / "afile").touch()
    (tmp_path / "afolder").mkdir()
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("args", slow_but([["inbox"], ["resume", "--all"], ["show", "x"]], READING), ids=" ".join)
def test_reading_a_named_log_that_is_not_there_names_it_and_is_wrong_usage(args: list[str], folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    for store, why in (
        ("nowhere.db", "it does not exist"),
        ("nowhere/log.db", "it does not exist"),
        ("afile/below.db", "it can't exist, because afile is not a folder"),
        ("afolder", "it is a folder"),
        (":memory:", "a log in memory is empty when a command starts"),
        ("x" * 300, "it can't be used: File name too long"),
    ):
        done = upcall(*args, "--store", store, cwd=folder, given="")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"upcall: --store {store}: {why}")
        assert done.stderr.count("\n") == 1
    done = upcall(*args, cwd=folder, given="", UPCALL_STORE="afile/below.db")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("upcall: UPCALL_STORE afile/below.db: it can't exist")
    assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts] == before


@pytest.mark.parametrize("args", MAKING, ids=" ".join)
def test_a_log_that_can_not_be_made_is_wrong_usage_without_a_trace(args: list[str], folder: Path) -> None:
    for store, why in (
        ("afile/below.db", "it can't exist, because afile is not a folder"),
        ("afile/far/below.db", "it can't exist, because afile is not a folder"),
        ("afolder", "it is a folder"),
    ):
        done = upcall(*args, "--store", store, cwd=folder, given="hello\n")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"upcall: --store {store}: {why}")
    assert not list((folder / "afolder").iterdir())


@pytest.mark.parametrize(
    "args", slow_after(1, [["run", "agents", "hi"], ["submit", "agents", "hi"], ["inbox"], ["status"]])
)
@pytest.mark.parametrize(
    "url",
    [
        "postgresql:/localhost/agents",
        "postgres//ada:hunter22@localhost/agents",
        "mysql://localhost/agents",
        "file:/a.db",
    ],
)
def test_a_mistyped_url_does_not_become_a_file(args: list[str], url: str, folder: Path) -> None:
    done = upcall(*args, "--store", url, cwd=folder)
    assert done.returncode == 2
    assert "a PostgreSQL URL begins with postgresql://" in done.stderr
    assert "hunter22" not in done.stderr
    assert not [path for path in folder.iterdir() if path.name.startswith(("postgres", "mysql", "file"))]


@pytest.mark.parametrize("args", slow_but([["inbox"], *MAKING], [*READING, *MAKING]), ids=" ".join)
def test_an_empty_name_of_a_log_is_not_taken_for_the_default_one(args: list[str], folder: Path) -> None:
    done = upcall(*args, "--store", "", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "argument --store: the path is empty; give the path of a log, or omit --store" in done.stderr
    assert not (folder / ".upcall").exists()


def test_run_makes_a_named_log_and_the_folders_above_it(folder: Path) -> None:
    assert upcall("run", "agents", "hello", "--id", "s1", "--store", "far/down/log.db", cwd=folder).returncode == 0
    assert [one["id"] for one in out("sessions", "--store", "far/down/log.db", cwd=folder)] == ["s1"]


@pytest.mark.slow
def test_the_demo_makes_a_named_log_and_the_folders_above_it(folder: Path) -> None:
    assert upcall("demo", "--store", "far/down/log.db", cwd=folder).returncode == 0
    assert (folder / "far" / "down" / "shop.py").exists()


@pytest.mark.parametrize(
    ("args", "means"),
    [
        (["sessions"], "so there are no sessions. Start one: upcall run AGENT PROMPT"),
        (["inbox"], "so nothing waits for an answer"),
    ],
)
def test_an_absent_default_log_is_told_and_its_lists_are_empty(args: list[str], means: str, tmp_path: Path) -> None:
    told = f"no log here yet: .upcall/log.db does not exist, {means}\n"
    for more, printed, beside in (([], told, ""), (["--json"], "[]\n", told), (["--ids"], "", told)):
        done = upcall(*args, *more, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, beside)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "means"),
    [
        (["events"], "so nothing has happened"),
        (["events", "--json"], "so nothing has happened"),
        (["resume", "--all"], "so there is nothing to resume"),
        (["sessions", "prune", "--older-than", "3", "--yes"], "so there is nothing to delete"),
    ],
)
def test_an_absent_default_log_is_told_beside_empty_output(args: list[str], means: str, tmp_path: Path) -> None:
    done = upcall(*args, cwd=tmp_path)
    told = f"no log here yet: .upcall/log.db does not exist, {means}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", told)
    assert not list(tmp_path.iterdir())


def test_what_is_named_by_its_id_is_not_in_an_absent_default_log(tmp_path: Path) -> None:
    for args in (
        ["show", "x"],
        ["events", "x"],
        ["cancel", "x"],
        ["resume", "x"],
        ["answer", "q", "x"],
        ["explain", "q"],
    ):
        done = upcall(*args, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(
            "upcall: no log here yet: .upcall/log.db does not exist; create one with `upcall run`"
        )
    assert not list(tmp_path.iterdir())


def test_a_default_log_that_can_not_be_made_is_told(folder: Path) -> None:
    (folder / ".upcall").touch()
    for args in (["run", "agents", "hello"], ["sessions"], ["inbox"], ["events"]):
        done = upcall(*args, cwd=folder)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith(".upcall/log.db: it can't exist, because .upcall is not a folder\n")


@pytest.mark.parametrize("args", [["sessions"], ["inbox", "--json"], ["run", "agents", "hello"]], ids=" ".join)
def test_a_folder_that_may_not_be_entered_is_told(args: list[str], folder: Path) -> None:
    # the system refuses what even root may not do: no folder can be made in /proc
    done = upcall(*args, "--store", "/proc/nothing/log.db", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("upcall: --store /proc/nothing/log.db: it ")
