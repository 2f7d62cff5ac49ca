"""Adopting a log: what is in it is shown, and no approval that was given before lets anything run."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cli.asking import make_team, parked
from cli.command import out, upcall

PROGRAM = '''\
from pathlib import Path

from upcall import Agent, Context, tool
from upcall.models import Script, call


@tool(needs_approval=True)
async def deploy(env: str, ctx: Context) -> str:
    """Deploy."""
    when = await ctx.raise_callback("When?", "query")
    with Path("deployed.txt").open("a") as file:
        file.write(f"{env} {when}\\n")
    return "deployed"


@tool(needs_approval=True)
async def wipe(disk: str) -> str:
    """Wipe."""
    with Path("wiped.txt").open("a") as file:
        file.write(f"{disk}\\n")
    return "wiped"


@tool(name="wipe")
async def wipe_freely(disk: str) -> str:
    """Wipe."""
    return "wiped"


def worker_says(request):
    last = request.messages[-1]
    if last.role == "tool":
        return "; ".join(result.text for result in last.results)
    return call("wipe", disk="sda") if "wipe" in last.text else call("deploy", env="prod")


def boss_says(request):
    if request.purpose == "side_turn":
        return call("answer_callback", value="approve")
    results = [result.text for message in request.messages for result in message.results]
    return results[0] if results else call("task", agent="worker", prompt=request.messages[-1].text)


worker = Agent("worker", model=Script(worker_says), tools=[deploy, wipe])
boss = Agent(
    "boss", model=Script(boss_says), agents=[worker], tools=[wipe_freely], callback_policy={"may_approve": ["wipe"]}
)
'''


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The folder of somebody else."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    make_team(folder)
    (folder / "program.py").write_text(PROGRAM)
    return folder


@pytest.fixture(autouse=True)
def their_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Until the log is taken to another folder, its author runs the commands."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "their-state"))
    return monkeypatch


def cloned(theirs: Path, patched: pytest.MonkeyPatch) -> Path:
    """The folder as it comes to the user, whose commands are run from now on."""
    patched.setenv("XDG_STATE_HOME", str(theirs.parent / "our-state"))
    copy = theirs.parent / "ours"
    shutil.copytree(theirs, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def adopt(folder: Path) -> str:
    done = upcall("adopt", ".upcall/log.db", "--yes", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def waiting(folder: Path) -> list[tuple[Any, Any, Any]]:
    return [(one["id"], one["tool"], one["status"]) for one in out("inbox", cwd=folder)]


@pytest.mark.slow
def test_what_is_in_the_log_is_shown_before_it_is_adopted(theirs: Path, their_state: pytest.MonkeyPatch) -> None:
    callbacks = parked(theirs, "many")
    approval = next(one for one in callbacks if one["tool"] == "deploy")
    assert upcall("answer", approval["id"], "--approve", "--by", "mallory", cwd=theirs).returncode == 0
    ours = cloned(theirs, their_state)
    before = (ours / ".upcall" / "log.db").read_bytes()

    done = upcall("adopt", ".upcall/log.db", cwd=ours)

    assert done.returncode == 2
    assert "There is no terminal to ask at; give --yes" in done.stderr
    for text in (
        "developer asks: What is it called?",
        'developer wants to run deploy env="prod", answered by mallory, once',
        f"{theirs}/team:manager",
    ):
        assert text in done.stdout
    assert (ours / ".upcall" / "log.db").read_bytes() == before
    assert "this log may not be yours" in upcall("resume", "--all", cwd=ours).stderr


@pytest.mark.slow
def test_an_approval_that_was_given_and_not_used_is_asked_again(
    theirs: Path, their_state: pytest.MonkeyPatch
) -> None:
    (callback,) = parked(theirs, "deploy")
    assert upcall("answer", callback["id"], "--approve", cwd=theirs).returncode == 0
    ours = cloned(theirs, their_state)

    assert "1 approval will be asked for again" in adopt(ours)

    assert waiting(ours) == [(callback["id"], "deploy", "open")]
    assert upcall("resume", "s1", "--agents", "team:manager", cwd=ours).returncode == 3
    assert not (ours / "deployed.txt").exists()
    assert upcall("answer", callback["id"], "--approve", cwd=ours).returncode == 0
    assert upcall("resume", "s1", "--agents", "team:manager", cwd=ours).returncode == 0
    assert (ours / "deployed.txt").read_text() == "prod False\n"


@pytest.mark.slow
def test_an_approval_for_the_session_counts_no_more(theirs: Path, their_state: pytest.MonkeyPatch) -> None:
    assert upcall("run", "team:developer", "deploy", "--id", "s1", cwd=theirs).returncode == 3
    (callback,) = out("inbox", cwd=theirs)
    assert upcall("answer", callback["id"], "--approve", "--for-session", cwd=theirs).returncode == 0
    assert upcall("resume", "s1", cwd=theirs).returncode == 0
    assert upcall("run", "team:developer", "deploy", "--id", "s1", cwd=theirs).returncode == 0
    (theirs / "deployed.txt").unlink()
    ours = cloned(theirs, their_state)

    assert "for the session" in adopt(ours)

    assert upcall("run", "team:developer", "deploy", "--id", "s1", cwd=ours).returncode == 3
    assert not (ours / "deployed.txt").exists()
    assert [tool for _, tool, _ in waiting(ours)] == ["deploy"]


@pytest.mark.slow
def test_a_call_that_had_started_is_approved_again_before_it_runs_again(
    theirs: Path, their_state: pytest.MonkeyPatch
) -> None:
    assert upcall("run", "program:worker", "deploy", "--id", "s1", cwd=theirs).returncode == 3
    (approval,) = out("inbox", cwd=theirs)
    assert upcall("answer", approval["id"], "--approve", cwd=theirs).returncode == 0
    assert upcall("resume", "s1", cwd=theirs).returncode == 3
    (question,) = out("inbox", cwd=theirs)
    assert upcall("answer", question["id"], "now", cwd=theirs).returncode == 0
    ours = cloned(theirs, their_state)

    adopt(ours)

    assert waiting(ours) == [(approval["id"], "deploy", "open")]
    assert upcall("resume", "s1", "--agents", "program:worker", cwd=ours).returncode == 3
    assert not (ours / "deployed.txt").exists()
    assert upcall("answer", approval["id"], "--set", "env=test", cwd=ours).returncode == 0
    assert upcall("resume", "s1", "--agents", "program:worker", cwd=ours).returncode == 0
    assert (ours / "deployed.txt").read_text() == "test now\n"


@pytest.mark.slow
def test_a_call_that_had_started_and_is_rejected_now_does_not_run(
    theirs: Path, their_state: pytest.MonkeyPatch
) -> None:
    assert upcall("run", "program:worker", "deploy", "--id", "s1", cwd=theirs).returncode == 3
    (approval,) = out("inbox", cwd=theirs)
    assert upcall("answer", approval["id"], "--approve", cwd=theirs).returncode == 0
    assert upcall("resume", "s1", cwd=theirs).returncode == 3
    ours = cloned(theirs, their_state)
    adopt(ours)
    (question,) = [one for one in out("inbox", cwd=ours) if not one["tool"]]
    assert upcall("answer", question["id"], "now", cwd=ours).returncode == 0
    assert upcall("answer", approval["id"], "--reject", "not theirs", cwd=ours).returncode == 0
    assert upcall("resume", "s1", "--agents", "program:worker", cwd=ours).returncode == 0
    assert not (ours / "deployed.txt").exists()
    assert "not theirs" in out("show", "s1", cwd=ours)["text"]


@pytest.mark.slow
def test_what_an_agent_approved_is_asked_of_the_person(theirs: Path, their_state: pytest.MonkeyPatch) -> None:
    assert upcall("run", "program:boss", "wipe", "--id", "s1", cwd=theirs).returncode == 0
    (theirs / "wiped.txt").unlink()
    ours = cloned(theirs, their_state)
    db = sqlite3.connect(ours / ".upcall" / "log.db", isolation_level=None)
    ((answered,),) = db.execute("SELECT pos FROM events WHERE instr(body, 'callback_answered')").fetchall()
    db.execute("DELETE FROM events WHERE pos > ?", (answered,))  # as if the process had died after the answer
    db.execute("UPDATE sessions SET status = 'running' WHERE kind = 'agent'")
    db.execute("UPDATE callbacks SET delivered = 0")
    db.close()

    assert "answered by boss, once" in adopt(ours)

    ((callback_id, tool, _),) = waiting(ours)
    assert tool == "wipe"
    assert upcall("resume", "s1", "--agents", "program:boss", cwd=ours).returncode == 3
    assert not (ours / "wiped.txt").exists()
    assert upcall("answer", callback_id, "--approve", cwd=ours).returncode == 0
    assert upcall("resume", "s1", "--agents", "program:boss", cwd=ours).returncode == 0
    assert (ours / "wiped.txt").read_text() == "sda\n"


@pytest.mark.slow
def test_a_log_of_the_version_before_is_adopted_the_same_way(theirs: Path) -> None:
    parked(theirs, "paint")
    db = sqlite3.connect(theirs / ".upcall" / "log.db", isolation_level=None)
    db.execute("DELETE FROM counters WHERE name LIKE 'origin:%'")
    db.close()
    assert "this log may not be yours" in upcall("cancel", "s1", cwd=theirs).stderr
    adopt(theirs)
    assert upcall("cancel", "s1", cwd=theirs).returncode == 0


@pytest.mark.slow
def test_adopting_a_log_makes_only_this_file_ours(theirs: Path, their_state: pytest.MonkeyPatch) -> None:
    # whoever made the log knows its first id, and may bring another log with it
    parked(theirs, "paint")
    ours = cloned(theirs, their_state)
    adopt(ours)
    assert upcall("resume", "--all", cwd=ours).returncode == 0
    shutil.copyfile(theirs / ".upcall" / "log.db", ours / ".upcall" / "log.db")
    assert "this log may not be yours" in upcall("resume", "--all", cwd=ours).stderr


@pytest.mark.slow
def test_a_log_stays_its_makers_own_when_somebody_else_adopts_it(
    theirs: Path, their_state: pytest.MonkeyPatch
) -> None:
    parked(theirs, "paint")
    ours = cloned(theirs, their_state)
    adopt(ours)
    their_state.setenv("XDG_STATE_HOME", str(theirs.parent / "their-state"))
    assert upcall("cancel", "s1", cwd=ours).returncode == 0


@pytest.mark.slow
def test_adopting_ones_own_log_changes_nothing(theirs: Path) -> None:
    parked(theirs, "paint")
    before = upcall("events", "--json", cwd=theirs).stdout
    assert "is already your log; nothing was changed" in adopt(theirs)
    assert upcall("events", "--json", cwd=theirs).stdout == before


@pytest.mark.parametrize(
    ("path", "why"),
    [("nothing.db", "does not exist"), (".upcall", "is a folder"), ("team.py", "not an SQLite database")],
)
def test_what_is_not_a_log_is_not_adopted(path: str, why: str, theirs: Path) -> None:
    parked(theirs, "paint")
    done = upcall("adopt", path, "--yes", cwd=theirs)
    assert done.returncode in (1, 2)
    assert why in done.stderr


@pytest.mark.slow
def test_a_log_whose_events_make_no_sense_is_not_adopted(theirs: Path, their_state: pytest.MonkeyPatch) -> None:
    parked(theirs, "paint")
    ours = cloned(theirs, their_state)
    db = sqlite3.connect(ours / ".upcall" / "log.db", isolation_level=None)
    db.execute("UPDATE events SET body = ? WHERE pos = 3", (b'{"type":"tool_ended","call_id":"x","result":{}}',))
    db.close()
    done = upcall("adopt", ".upcall/log.db", "--yes", cwd=ours)
    assert done.returncode == 1
    assert "can't be read" in done.stderr
    assert "this log may not be yours" in upcall("resume", "--all", cwd=ours).stderr
