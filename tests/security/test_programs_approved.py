"""An approval for one program covers no other one, however the command is written."""

from __future__ import annotations

import sys

import pytest

from upcall.workspace import shell

MADE = shell().tools[0]


def program(command: str) -> str | None:
    return MADE.patterns({"command": command}).get("this program")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("git status -s", "git"),
        ("  git   status", "git"),
        ("git push --force origin main:main", "git"),
        ("/usr/bin/git status", "/usr/bin/git"),
        ("./build.sh --fast", "./build.sh"),
        ("git push -u origin main", "git"),
        ("git commit -s --amend", "git"),
        ("pytest tests/a.py -k one", "pytest"),
        ("ls -la src/upcall", "ls"),
        ("g++ -O2 a.cc", "g++"),
    ],
)
def test_a_plain_command_is_covered_by_its_program_as_it_is_written(command: str, name: str) -> None:
    assert program(command) == name


BLANKS = [sign for sign in map(chr, range(sys.maxunicode + 1)) if sign.isspace() and sign != " "]
HIDDEN = [
    "\u200b",
    "\u200d",
    "\u2060",
    "\ufeff",
    "\xad",
    "\u2800",
    "\u3164",
    "\u115f",
    "\ufe0f",
    "\U000e0061",
    "\u202e",
    "\x00",
]
ALIKE = ["g\u0456t", "\uff47\uff49\uff54", "gi\u0542", "git\u0301"]


@pytest.mark.parametrize("blank", [*BLANKS, *HIDDEN])
def test_no_blank_and_no_hidden_character_makes_another_program_count_as_the_approved_one(blank: str) -> None:
    for command in (
        f"{blank}git push",
        f"git{blank}push --force",
        f"git{blank} push",
        f"git {blank}rm",
        f"gi{blank}t x",
    ):
        assert program(command) is None, ascii(command)


@pytest.mark.parametrize("name", ALIKE)
def test_a_name_that_looks_like_an_approved_one_is_covered_by_nothing(name: str) -> None:
    assert program(f"{name} status") is None


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm x", "git status & rm x", "git status | sh",
        "git status\nrm x", "git status\rrm x", "git `rm x`",
        "git $(rm x)", "git ${x}", "git$IFS$1push", "'git' status",
        '"git" status', "g\\it status", "git > x", "git < x",
        "g?t status", "git {a,b}", "(git status)", "~/git status", "git #x", "!git", "git ~", "git *", "$SHELL x",
        "", " ", "-git", "/", "git/",
    ],
)  # fmt: skip
def test_a_command_in_which_the_shell_does_something_is_covered_by_nothing(command: str) -> None:
    assert program(command) is None


@pytest.mark.parametrize(
    "command",
    [
        "PATH=/tmp git status", "GIT_SSH_COMMAND=x git fetch", "env git status", "env -i PATH=/tmp git status",
        "/usr/bin/env git", "sudo git status", "sh -c git", "/bin/bash x", "xargs git", "nice git", "timeout 5 git",
        "command git", "exec git", "eval git", ". git",
        "source git", "time git", "nohup git", "busybox git", "find . -delete",
        "python3 x.py", "python3.12 -m x", "perl x", "awk x", "ssh host git", "make git", "npx git",
    ],
)  # fmt: skip
def test_a_program_that_runs_another_one_is_covered_by_nothing(command: str) -> None:
    assert program(command) is None


@pytest.mark.parametrize(
    "command",
    [
        "git -c core.pager=evil log", "git -ccore.pager=evil log",
        "git --config-env=core.pager=X log", "git --exec-path=/tmp x",
        "git -C /tmp/evil status", "git --git-dir=/tmp/evil status",
        "git config core.pager evil", "git bisect run evil",
        "git rebase -x evil", "git submodule foreach evil",
        "git fetch --upload-pack=evil", "git push --receive-pack=evil",
        "git grep -Oevil x", "git difftool -x evil", "git fetch ext::evil", "git evil", "git diff --ext-diff",
        "git merge -sevil x",
        "git pull --uplo=evil", "git push --exe evil", "git merge --strat=evil x",
        "git clone --config core.sshCommand=evil x", "/usr/bin/git -c a=b log",
    ],
)  # fmt: skip
def test_git_with_settings_or_commands_of_its_own_is_covered_by_nothing(command: str) -> None:
    assert program(command) is None
