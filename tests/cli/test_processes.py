"""Several processes on one log: Ctrl-C, cancel, resume, follow."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import pytest

from cli.command import eventually, make_agents, out, start, started, upcall
from upcall import Agent, run
from upcall.models import Script


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_agents(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["wait 60", "block 60"])
def test_ctrl_c_cancels_the_turn_and_the_exit_code_is_130(prompt: str, folder: Path) -> None:
    with start("run", "agents", prompt, "--id", "s1", cwd=folder) as running:
        eventually(lambda: started(folder, "s1"), "the tool has started")
        running.send_signal(signal.SIGINT)
        said, errors = running.communicate(timeout=30)

    assert running.returncode == 130
    assert said == ""
    assert errors == "upcall: the turn was cancelled; continue with: upcall run agents continue --id s1\n"
    assert out("show", "s1", cwd=folder)["status"] == "cancelled"
    assert upcall("run", "agents", "hello", "--id", "s1", cwd=folder).stdout == "You said: hello\n"


@pytest.mark.slow
def test_ctrl_c_in_a_piped_chat_is_exit_code_130(folder: Path) -> None:
    (folder / "lines.txt").write_text("hello\nwait 60\nnever read\n")
    with (
        (folder / "lines.txt").open() as lines,
        start("chat", "agents", "--id", "s1", cwd=folder, stdin=lines) as one,
    ):
        eventually(lambda: started(folder, "s1"), "the tool has started")
        one.send_signal(signal.SIGINT)
        said, _ = one.communicate(timeout=30)

    assert one.returncode == 130
    assert said == "You said: hello\n\n"
    assert out("show", "s1", cwd=folder)["status"] == "cancelled"


@pytest.mark.slow
def test_another_process_cancels_a_running_turn(folder: Path) -> None:
    with start("run", "agents", "wait 60", "--id", "s1", cwd=folder) as running:
        eventually(lambda: started(folder, "s1"), "the tool has started")
        cancelled = upcall("cancel", "s1", cwd=folder)
        running.communicate(timeout=30)

    assert (cancelled.returncode, cancelled.stderr) == (0, "session s1: cancelled\n")
    assert running.returncode == 130
    again = upcall("cancel", "s1", cwd=folder)
    assert (again.returncode, again.stderr) == (0, "nothing to cancel: session s1 is cancelled\n")


@pytest.mark.slow
def test_a_killed_run_is_interrupted_and_resumed_without_saying_where_its_agents_are(folder: Path) -> None:
    with start("run", "agents", "wait 60", "--id", "s1", cwd=folder) as running:
        eventually(lambda: started(folder, "s1"), "the tool has started")
        running.kill()
        running.communicate(timeout=30)
    assert out("show", "s1", cwd=folder)["status"] == "interrupted"

    resumed = upcall("resume", "s1", "--store", str(folder / ".upcall" / "log.db"), cwd=folder.parent)

    assert resumed.returncode == 0
    assert resumed.stdout.startswith("The tools said: interrupted, outcome unknown")
    assert out("show", "s1", cwd=folder)["status"] == "done"


@pytest.mark.slow
def test_a_killed_run_can_be_cancelled_for_good(folder: Path) -> None:
    with start("run", "agents", "wait 60", "--id", "s1", cwd=folder) as running:
        eventually(lambda: started(folder, "s1"), "the tool has started")
        running.kill()
        running.communicate(timeout=30)
    assert upcall("cancel", "s1", cwd=folder).stderr == "session s1: cancelled\n"


def test_a_failed_turn_is_resumed_with_agents_that_were_mended(folder: Path) -> None:
    upcall("run", "agents", "fail", "--id", "s1", cwd=folder)
    script = folder / "agents" / "play.py"
    script.write_text(script.read_text().replace('case "fail"', 'case "never"'))
    assert upcall("resume", "s1", cwd=folder).stdout == "You said: fail\n"
    assert upcall("resume", "s1", cwd=folder).stdout == "You said: fail\n"


def test_a_session_whose_agents_are_nowhere_noted_asks_for_them(folder: Path) -> None:
    agent = Agent("nowhere", model=Script(["hello"]))
    run(agent, "hi", store=folder / "own.db", id="s1")
    done = upcall("resume", "s1", "--store", "own.db", cwd=folder)
    assert done.returncode == 2
    assert "upcall resume s1 --agents AGENT" in done.stderr


def test_agents_that_have_moved_are_given_by_hand(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "s1", cwd=folder)
    (folder / "agents").rename(folder / "moved")
    lost = upcall("resume", "s1", cwd=folder)
    assert lost.returncode == 2
    assert "no such folder or file" in lost.stderr
    assert upcall("resume", "s1", "--agents", "moved", cwd=folder).stdout == "You said: hello\n"


@pytest.mark.slow
def test_events_are_followed_across_processes(folder: Path) -> None:
    with start("events", "--follow", "--json", cwd=folder) as following:
        assert following.stdout is not None
        eventually((folder / ".upcall" / "log.db").exists, "the log is there")
        upcall("run", "agents", "add them", "--id", "s1", cwd=folder)
        types: list[str] = []
        while not types or types[-1] != "turn_ended":
            types.append(msgspec.json.decode(following.stdout.readline())["type"])
        following.send_signal(signal.SIGINT)
        _, errors = following.communicate(timeout=30)

    assert types[0] == "session_started"
    assert types.count("tool_ended") == 2
    assert following.returncode == 130
    assert errors == "no log here yet: .upcall/log.db does not exist, waiting for the first run\n"


@pytest.mark.slow
def test_one_session_is_followed_from_a_number_on(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "s1", cwd=folder)
    with start("events", "s1", "--follow", "--after", "4", cwd=folder) as following:
        assert following.stdout is not None
        assert "turn_ended" in following.stdout.readline()
        upcall("run", "agents", "again", "--id", "s1", cwd=folder)
        assert '"again"' in following.stdout.readline()
        following.kill()


@pytest.mark.slow
def test_a_second_run_of_a_busy_session_says_who_has_it(folder: Path) -> None:
    with start("run", "agents", "wait 60", "--id", "s1", cwd=folder) as running:
        eventually(lambda: started(folder, "s1"), "the tool has started")
        busy = upcall("run", "agents", "me too", "--id", "s1", cwd=folder)
        running.kill()
        running.communicate(timeout=30)
    assert busy.returncode == 1
    assert "session 's1' is running in" in busy.stderr
    assert "cancel its turn: upcall cancel s1\n" in busy.stderr
