"""A narrow screen: nothing is broken in the middle of a word, and what goes on stands where it began."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from cli.asking import make_team, parked
from cli.chatting import make_helper
from cli.command import upcall
from cli.screen import CTRL_D, Screen
from cli.test_commands import COMMANDS
from quick import slow_but
from upcall.callbacks import Callback
from upcall.hosts.terminal.question import question_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_team(tmp_path)


def shown(*args: str, cwd: Path, columns: int) -> str:
    """What a command shows at a terminal of so many columns."""
    with Screen(*args, cwd=cwd, COLUMNS=str(columns)) as screen:
        screen.end()
    return screen.text


def fits(text: str, columns: int) -> bool:
    """Whether no row has to be broken by the terminal, but one that is a single word."""
    return all(len(row) <= columns or len(row.split()) == 1 for row in text.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 60])
@pytest.mark.parametrize(
    "command", slow_but(["", "answer", "sessions prune"], ["", *COMMANDS, "sessions prune", "sessions delete"])
)
def test_the_help_breaks_no_word_and_no_option_apart(command: str, columns: int, tmp_path: Path) -> None:
    wide, narrow = (
        upcall(*command.split(), "--help", cwd=tmp_path, COLUMNS=str(room)).stdout for room in (1000, columns)
    )
    assert fits(narrow, columns)
    assert narrow.split() == wide.split()
    usage = wide.partition("\n\n")[0]
    assert all(option in narrow for option in re.findall(r"\[[^]|]+\]|--\S+ [A-Z]+", usage))


@pytest.mark.parametrize("command", ["--help", "chat --help", "answer --help", "explain --help"])
def test_paragraphs_of_the_help_are_filled_to_the_screen(command: str, tmp_path: Path) -> None:
    text = upcall(*command.split(), cwd=tmp_path, COLUMNS="40").stdout
    for paragraph in re.findall(r"(?:^[A-Z`].*\n)+", text, re.MULTILINE):
        for row, below in itertools.pairwise(paragraph.splitlines()):
            assert len(f"{row} {below.split()[0]}") > 40, "the next word had room"


@pytest.mark.parametrize("columns", [40, 60])
def test_explain_hangs_reasons_behind_the_names_they_belong_to(columns: int, folder: Path) -> None:
    entry, *_ = parked(folder, "many")
    drawn = shown("explain", entry["id"], cwd=folder, columns=columns)
    assert fits(drawn, columns)
    route = drawn.partition(" raises: ")[2].splitlines()
    reasons = [row[15:] for row in route if row.startswith(("├", "│", "└", " " * 15))]
    assert " ".join(reasons) == (
        "passed it up: not mine to say "
        "asked: developer may ask a person (the agent developer has can_use_host_interaction: true)"
    )


@pytest.mark.slow
def test_lists_fit_a_narrow_screen_with_their_last_column_whole(folder: Path) -> None:
    parked(folder, "three name", "release-of-the-website")
    listed = shown("sessions", cwd=folder, columns=40).splitlines()
    assert listed[0].split() == ["SESSION", "STATUS"]
    assert listed[1].split() == ["release-of-the-website", "waiting"]
    assert listed[2].startswith("  …~r1c0 ")
    assert {row.split()[1] for row in listed[1:]} == {"waiting", "done"}
    assert fits(shown("events", "release-of-the-website", cwd=folder, columns=40), 40)


def test_check_hangs_what_is_wrong_behind_how_bad_it_is(tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text("---\nmodel: script:x.py\nfoo: 1\n---\nHello.\n")
    told = shown("check", ".", cwd=tmp_path, columns=40)
    assert fits(told, 40)
    assert "error    one.md:3: foo: unknown key;\n         allowed are name, description,\n" in told
    assert "unknown key; allowed are name, description, model," in upcall("check", ".", cwd=tmp_path).stdout


@pytest.mark.slow
def test_the_inbox_leaves_only_commands_to_the_terminal_so_that_they_can_be_pasted(folder: Path) -> None:
    entry, *_ = parked(folder, "many")
    listed = shown("inbox", cwd=folder, columns=40)
    assert f"\n┃ answer    upcall answer {entry['id']} red\n" in listed
    others = [row for row in listed.splitlines() if " upcall answer " not in row]
    assert fits("\n".join(others), 40)


def test_a_question_is_shown_whole_however_long_its_choices_and_its_facts_are() -> None:
    long = "the one in the second drawer on the left side of the old desk"
    asked = Callback(
        "q1", "s1", "developer", "Which?", "clarification", priority="critical", choices=(long, "none"),
        created=1000.0, expires=5000.0,
    )  # fmt: skip
    lines = ["".join(piece.text for piece in row) for row in question_rows(asked, now=2000.0, width=38, waiting=2)]
    assert max(map(len, lines)) <= 38
    assert " ".join(" ".join(lines).split()).startswith(
        "developer asks · clarification critical · 16 min 40 s ago expires in 50 min 0 s · 2 more wait │ Which? "
        f"1 {long} 2 none"
    )


@pytest.mark.slow
def test_the_help_of_a_chat_is_told_whole_on_a_narrow_screen(tmp_path: Path) -> None:
    make_helper(tmp_path)
    with Screen("chat", "crew:helper", cwd=tmp_path, COLUMNS="40") as screen:
        screen.see("›")
        screen.enter(
            "/help",
            "Enter        send; while the agent\n             works, this steers it\n",
            "complete a file's name\n",
        )
        screen.press(CTRL_D)
        assert screen.end() == 0
    assert "…" not in screen.text
