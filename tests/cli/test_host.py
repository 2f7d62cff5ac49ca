"""A person at a real terminal is asked: one question at a time, most urgent first, each kind in its own way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.asking import make_team, parked
from cli.command import eventually, out, start, upcall
from cli.screen import CTRL_C, CTRL_D, ENTER, Screen

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_team(tmp_path)


def test_questions_are_asked_one_at_a_time_most_urgent_first(folder: Path) -> None:
    with Screen("run", "team:developer", "many", "--id", "s1", cwd=folder) as screen:
        screen.see("┃ developer asks · blocker · high")
        screen.see("2 more wait")
        screen.see("┃ why you   ")
        screen.see("your choice, 1-2 ›")
        assert "wants to run" not in screen.text
        screen.enter("5", "'5' is not one of the choices; type a number, 1-2")
        screen.enter("2", "✓ answered: dark blue")
        for _ in range(2):
            screen.see("┃ developer ")
            screen.see("›")
            asked = screen.text.rpartition("┃")[0].rpartition("\n\n")[2]
            screen.press("a" + ENTER if "wants to run deploy" in asked else "Otto" + ENTER)
            screen.see("✓ ")
        assert screen.end() == 0
    assert "called Otto; painted dark blue; deployed prod" in screen.text
    assert (folder / "deployed.txt").read_text() == "prod False\n"
    assert max(len(row) for row in screen.text.splitlines() if "┃" in row) <= 80


def test_a_typed_answer_is_asked_field_by_field_and_wrong_ones_are_told_why(folder: Path) -> None:
    with Screen("run", "team:manager", "book", "--id", "s1", cwd=folder) as screen:
        screen.see("┃ route     manager passed it up: not mine to say")
        screen.see("how many come")
        screen.see("guests (whole number from 1) ›")
        screen.enter("none", "it must be integer")
        screen.enter("0", "it must be bigger than or equal to 1")
        screen.enter("4", "window (yes or no, default true) ›")
        screen.enter("n", "area (one of inside, terrace) ›")
        screen.press(ENTER)
        screen.see("a value is required")
        screen.enter("terrace", "note (text, or nothing) ›")
        screen.press(ENTER)
        assert screen.end() == 0
    (settled,) = out("show", "s1", cwd=folder)["callbacks"]
    assert settled["answer"]["value"] == {"guests": 4, "window": False, "area": "terrace"}
    assert settled["answer"]["right"] == "os-user"


@pytest.mark.parametrize(
    ("keys", "says", "deployed"),
    [
        (["a"], "approved once", "prod False\n"),
        (["s"], "approved for the session", "prod False\n"),
        (["p", "1"], "approved for the session: same place", "prod False\n"),
        (["x", "r", "not today"], "rejected: not today", ""),
    ],
)
def test_a_call_is_approved_or_rejected_by_a_letter(
    keys: list[str], says: str, deployed: str, folder: Path
) -> None:
    with Screen("run", "team:manager", "deploy", "--id", "s1", cwd=folder) as screen:
        screen.see("┃ developer wants to run deploy")
        screen.see('┃   env = "prod"')
        for key in keys:
            screen.see("›")
            screen.enter(key)
        screen.see(f"✓ {says}")
        assert screen.end() == 0
    done = folder / "deployed.txt"
    assert (done.read_text() if done.exists() else "") == deployed


def test_arguments_are_edited_on_the_line_until_they_fit(folder: Path) -> None:
    with Screen("run", "team:manager", "deploy", "--id", "s1", cwd=folder, EDITOR="", VISUAL="") as screen:
        screen.see("[l]ater ›")
        screen.enter("e", 'arguments › {"env":"prod"}')
        screen.press("\x15" + '{"env": 5}' + ENTER)
        screen.see("env must be string")
        screen.see("arguments ›")
        screen.press("\x15" + '{"env": "staging", "force": true}' + ENTER)
        screen.see("✓ approved with other arguments")
        assert screen.end() == 0
    assert (folder / "deployed.txt").read_text() == "staging True\n"


def test_arguments_are_edited_in_the_persons_editor(folder: Path) -> None:
    editor = folder / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i s/prod/staging/ "$1"\n')
    editor.chmod(0o755)
    with Screen("run", "team:manager", "deploy", "--id", "s1", cwd=folder, EDITOR=str(editor), VISUAL="") as screen:
        screen.see("[l]ater ›")
        screen.enter("e", '✓ approved with other arguments: {"env":"staging"}')
        assert screen.end() == 0
    assert (folder / "deployed.txt").read_text() == "staging False\n"


@pytest.mark.parametrize("key", [CTRL_C, CTRL_D])
def test_a_question_that_is_left_waits_and_is_asked_again_on_resume(key: str, folder: Path) -> None:
    with Screen("run", "team:manager", "paint", "--id", "s1", cwd=folder) as screen:
        screen.see("your choice, 1-2 ›")
        screen.press(key)
        screen.see("left for later: upcall answer q")
        screen.see("then: upcall resume s1")
        assert screen.end() == 3
    assert out("show", "s1", cwd=folder)["status"] == "waiting"
    with Screen("resume", "s1", cwd=folder) as screen:
        screen.see("your choice, 1-2 ›")
        screen.enter("1")
        assert screen.end() == 0
    assert "painted red" in screen.text


def test_a_question_left_while_others_are_answered_does_not_keep_the_run(folder: Path) -> None:
    with Screen("run", "team:developer", "many", "--id", "s1", cwd=folder) as screen:
        screen.see("your choice, 1-2 ›")
        screen.press(CTRL_C)
        for _ in range(2):
            screen.see("┃ developer ")
            screen.see("›")
            asked = screen.text.rpartition("┃")[0].rpartition("\n\n")[2]
            screen.press("l" + ENTER if "wants to run deploy" in asked else "Otto" + ENTER)
        screen.see("is waiting for 2 answers")
        assert screen.end() == 3
    assert len(out("inbox", cwd=folder)) == 2


def test_ctrl_c_pressed_fast_leaves_one_question_after_the_other_and_cancels_nothing(folder: Path) -> None:
    with Screen("run", "team:developer", "many", "--id", "s1", cwd=folder) as screen:
        screen.see("your choice, 1-2 ›")
        screen.press(CTRL_C * 3)
        screen.see("is waiting for 3 answers")
        assert screen.end() == 3
    assert len(out("inbox", cwd=folder)) == 3


def test_equal_questions_are_put_once_for_all(folder: Path) -> None:
    with Screen("run", "team:manager", "three name", "--id", "s1", cwd=folder) as screen:
        screen.see("your answer ›")
        eventually(lambda: len(out("inbox", cwd=folder)[0]["group"]) == 3, "all three ask")
        screen.enter("Otto", "✓ answered: Otto, and 2 equal questions with it")
        assert screen.end() == 0
    assert screen.text.count("┃ │ What is it called?") == 1
    assert "called Otto | called Otto | called Otto" in screen.text


def test_an_answer_from_another_process_takes_the_question_off_the_screen(folder: Path) -> None:
    with Screen("run", "team:manager", "paint", "--id", "s1", cwd=folder) as screen:
        screen.see("your choice, 1-2 ›")
        (entry,) = out("inbox", cwd=folder)
        told = upcall("answer", entry["id"], "red", "--by", "ops", cwd=folder).stdout
        assert "session s1 is running and continues on its own" in told
        screen.see("no longer asked: Which colour? (")
        screen.see("answered by ops (asserted)")
        assert screen.end() == 0
    assert "painted red" in screen.text


def test_an_answer_from_another_process_reaches_a_run_that_still_works(folder: Path) -> None:
    with start("run", "team:manager", "slowly", "--id", "s1", cwd=folder) as running:
        eventually(lambda: len(out("inbox", cwd=folder)) == 1, "it asks")
        (entry,) = out("inbox", cwd=folder)
        upcall("answer", entry["id"], "red", cwd=folder)
        said, _ = running.communicate(timeout=30)
    if running.returncode == 3:  # this machine was slower than the tool
        said = upcall("resume", "s1", cwd=folder).stdout
    assert said == "slow; painted red\n"


def test_answer_at_a_terminal_puts_the_same_question(folder: Path) -> None:
    (entry,) = parked(folder, "paint")
    with Screen("answer", entry["id"], cwd=folder) as screen:
        screen.see("┃ developer asks · blocker · high")
        screen.see("your choice, 1-2 ›")
        screen.press(CTRL_C)
        screen.see("nothing was answered")
        assert screen.end() == 1
    with Screen("answer", entry["id"], cwd=folder) as screen:
        screen.see("your choice, 1-2 ›")
        screen.enter("2", "continue with: upcall resume s1")
        assert screen.end() == 0
    assert upcall("resume", "s1", cwd=folder).stdout == "painted dark blue\n"


def test_the_inbox_at_a_terminal_fits_and_has_no_raw_colours_without_colour(folder: Path) -> None:
    parked(folder, "many")
    with Screen("inbox", cwd=folder, NO_COLOR="1") as screen:
        assert screen.end() == 0
    assert "┃ │ Which colour?\n┃   1  red\n" in screen.text
    assert max(len(row) for row in screen.text.splitlines()) <= 80
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", screen.raw)


def test_a_chat_asks_and_what_was_left_is_asked_again_before_the_next_prompt(folder: Path) -> None:
    with Screen("chat", "team:manager", "--id", "s1", cwd=folder) as screen:
        screen.see("new session s1")
        screen.see("›")
        screen.enter("paint", "your choice, 1-2 ›")
        screen.press(CTRL_C)
        screen.see("then: upcall resume s1")
        screen.see("›")
        screen.enter("well?", "your choice, 1-2 ›")
        screen.enter("1", "painted red", "done · 1 model call · ", "›")
        screen.press(CTRL_D)
        assert screen.end() == 0


def test_ctrl_c_between_questions_still_cancels_the_run(folder: Path) -> None:
    with Screen("run", "team:manager", "slowly", "--id", "s1", cwd=folder) as screen:
        screen.see("your choice, 1-2 ›")
        screen.enter("1", "running")
        screen.press(CTRL_C)
        code = screen.end()
    assert code in (0, 130)


def test_a_terminal_that_can_not_move_its_cursor_is_asked_too(folder: Path) -> None:
    with Screen("run", "team:manager", "paint", "--id", "s1", cwd=folder, TERM="dumb") as screen:
        screen.see("┃ │ Which colour?")
        screen.see("your choice, 1-2")
        screen.enter("1")
        assert screen.end() == 0
    assert "painted red" in screen.text
