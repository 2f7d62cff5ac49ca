"""At a real terminal: what people see, and what their keys do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.command import make_agents, out, upcall
from cli.screen import CTRL_C, CTRL_D, Screen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_agents(tmp_path)
    return tmp_path


def test_run_shows_text_calls_and_the_end_as_they_happen(folder: Path) -> None:
    with Screen("run", "agents", "add them", "--id", "s1", cwd=folder) as screen:
        assert screen.end() == 0
    for part in (
        "session s1\n",
        "I'll add.\n",
        "✓ add  a=1 b=2",
        "The tools said: 3 / 7\n",
        "done · 2 model calls",
    ):
        assert part in screen.text
    assert screen.text.count("The tools said: 3 / 7") >= 1
    assert screen.raw.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in screen.raw, "the cursor is back"


def test_markdown_is_rendered_at_a_terminal(folder: Path) -> None:
    with Screen("run", "agents", "markdown", cwd=folder) as screen:
        assert screen.end() == 0
    assert " • one" in screen.text
    assert "**bold**" not in screen.text
    assert "List<String>" in screen.text  # HTML is text: nothing that a model writes is swallowed
    assert "<div>whole</div>" in screen.text
    assert "\x1b[1mbold" in screen.raw


def test_without_colour_no_colour_is_sent(folder: Path) -> None:
    with Screen("run", "agents", "add them", cwd=folder, NO_COLOR="1") as screen:
        assert screen.end() == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", screen.raw)


def test_a_terminal_that_can_not_move_its_cursor_gets_plain_lines(folder: Path) -> None:
    with Screen("run", "agents", "add them", cwd=folder, TERM="dumb") as screen:
        assert screen.end() == 0
    assert "\x1b" not in screen.raw
    assert "✓ add  a=1 b=2" in screen.text
    assert "The tools said: 3 / 7\n" in screen.text


def test_a_failed_run_is_told_once(folder: Path) -> None:
    with Screen("run", "agents", "fail", cwd=folder) as screen:
        assert screen.end() == 1
    assert screen.text.count("upcall: script: the line is dead") == 1
    assert "failed · 1 model call" in screen.text


def test_ctrl_c_during_a_run_cancels_it_with_130(folder: Path) -> None:
    with Screen("run", "agents", "wait 60", "--id", "s1", cwd=folder) as screen:
        screen.see("running")
        screen.press(CTRL_C)
        assert screen.end() == 130
    assert "– wait  seconds=60.0" in screen.text
    assert "cancelled · 1 model call" in screen.text
    assert out("show", "s1", cwd=folder)["status"] == "cancelled"


@pytest.mark.slow
def test_a_chat_streams_cancels_continues_and_is_left_with_ctrl_d(folder: Path) -> None:
    with Screen("chat", "agents", "--id", "s1", cwd=folder) as screen:
        screen.see("helper · new session s1")
        screen.see("›")
        screen.enter("hello there", "You said: hello there", "done · 1 model call", "›")
        screen.enter("wait 60", "running")
        screen.press(CTRL_C)
        screen.see("cancelled · 1 model call")
        screen.see("›")
        screen.enter("and now", "You said: and now", "›")
        screen.press(CTRL_D)
        screen.see("stored; continue with: upcall chat agents --id s1")
        assert screen.end() == 0
    assert out("show", "s1", cwd=folder)["text"] == "You said: and now"
    assert "+hello there" in (folder / ".upcall" / "history").read_text()


def test_a_chat_tells_a_failed_turn_and_is_left_with_ctrl_c_twice(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "s1", cwd=folder)
    with Screen("chat", "agents", "--id", "s1", cwd=folder) as screen:
        screen.see("continuing session s1")
        screen.see("›")
        screen.enter("fail", "upcall: script: the line is dead", "›")
        screen.press(CTRL_C)
        screen.see("press Ctrl-C again to leave")
        screen.see("›")
        screen.press(CTRL_C)
        assert screen.end() == 0


@pytest.mark.slow
def test_ctrl_c_twice_during_a_turn_leaves_the_chat(folder: Path) -> None:
    with Screen("chat", "agents", "--id", "s1", cwd=folder) as screen:
        screen.see("›")
        screen.enter("block 60", "running")
        screen.press(CTRL_C)
        screen.see("press Ctrl-C again to leave")
        screen.see("›")
        screen.press(CTRL_C)
        assert screen.end() == 0


@pytest.mark.slow
def test_deleting_asks_a_person_and_no_is_no(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "s1", cwd=folder)
    with Screen("sessions", "delete", "s1", cwd=folder) as screen:
        screen.see("Delete 1 session with all children? [y/N]")
        screen.enter("n")
        assert screen.end() == 1
    assert len(out("sessions", cwd=folder)) == 1
    with Screen("sessions", "delete", "s1", cwd=folder) as screen:
        screen.see("[y/N]")
        screen.enter("y")
        assert screen.end() == 0
    assert out("sessions", cwd=folder) == []


def test_on_a_narrow_screen_a_listed_session_keeps_its_status(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "a-session-with-a-long-id", cwd=folder)
    with Screen("sessions", cwd=folder, COLUMNS="40") as screen:
        assert screen.end() == 0
    rows = [line.split() for line in screen.text.splitlines()]
    assert rows == [["SESSION", "STATUS"], ["a-session-with-a-long-id", "done"]]


def test_the_command_to_continue_a_chat_names_its_store(folder: Path) -> None:
    with Screen("chat", "agents", "--store", "own.db", "--id", "s1", cwd=folder) as screen:
        screen.see("›")
        screen.enter("hello", "You said: hello", "done ·")
        screen.press(CTRL_D)
        screen.see("upcall chat agents --store own.db --id s1")


@pytest.mark.slow
def test_tables_and_shown_sessions_fit_on_80_columns(folder: Path) -> None:
    upcall("run", "agents", "add " + "many words " * 30, "--id", "s1", cwd=folder)
    for args in (["sessions"], ["show", "s1"], ["events", "s1"]):
        with Screen(*args, cwd=folder) as screen:
            assert screen.end() == 0
        rows = [row for row in screen.text.splitlines() if "agents from" not in row]
        assert all(len(row) <= 80 for row in rows), screen.text
        assert "s1" in screen.text or "session_started" in screen.text


@pytest.mark.slow
def test_the_demo_at_a_terminal_really_asks(tmp_path: Path) -> None:
    with Screen("demo", cwd=tmp_path, TMPDIR=str(tmp_path)) as screen:
        screen.see("A manager plans, and two developers work in parallel.")
        screen.see("┃ │ Which colour should the button 'Sign in' have?")
        screen.see("your choice, 1-3 ›")
        screen.enter("3", "answered: orange", "Who asked whom:", "(person) answered: orange")
        assert screen.end() == 0


@pytest.mark.slow
def test_a_question_of_the_demo_that_is_left_can_be_answered_later(tmp_path: Path) -> None:
    with Screen("demo", cwd=tmp_path, TMPDIR=str(tmp_path)) as screen:
        screen.see("your choice, 1-3 ›")
        screen.press(CTRL_C)
        screen.see("To answer it later: cd ")
        screen.see("then: upcall resume demo")
        assert screen.end() == 3
    (folder,) = tmp_path.glob("upcall-demo-*")
    (entry,) = out("inbox", cwd=folder)
    upcall("answer", entry["id"], "blue", cwd=folder)
    assert "2 questions were settled" in upcall("resume", "demo", cwd=folder).stdout
    assert (folder / "Sign in.html").read_text() == "<button class=blue>Sign in</button>\n"
