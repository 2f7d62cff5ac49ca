"""A coding task driven through a chat in a real terminal: what is on the screen, and in the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.tmux import Terminal
from teams.mending import git, make_repository

pytestmark = pytest.mark.slow

PROGRAM = """\
import shlex
import sys

from upcall.models import Script, call
from upcall.teams import coder_agent
from upcall.workspace import Folder

TESTS = f"{shlex.quote(sys.executable)} -B -m unittest -q"
WORK = ["mend mean", "run the tests"]


def todos(*states):
    return call("write_todos", todos=[{"content": c, "status": s} for c, s in zip(WORK, states)])


STEPS = [
    ["I'll look first.", todos("in_progress", "pending"), call("grep", pattern="def mean")],
    call("read_file", path="mean.py"),
    call("edit_file", path="mean.py", old_string="(len(numbers) + 1)", new_string="len(numbers)"),
    [todos("completed", "in_progress"), call("shell", command=TESTS)],
    "The mean is **right** now.",
]


def decide(request):
    return STEPS[sum(message.role == "assistant" for message in request.messages)]


coder = coder_agent(Script(decide), Folder("repository"))
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(PROGRAM)
    return make_repository(tmp_path)


@pytest.mark.parametrize("columns", [80, 40])
def test_a_coder_mends_a_repository_before_ones_eyes(columns: int, repository: Path) -> None:
    with Terminal("chat", "work:coder", cwd=repository.parent, columns=columns, rows=60) as terminal:
        terminal.see("›")
        terminal.press("The mean in @mea")
        terminal.see("test_mean.py")
        terminal.press("Tab", "Enter", " is wrong", "Enter")
        terminal.see("[l]ater ›")
        for part in (
            "› The mean in @mean.py is wrong",
            "I'll look first.",
            "✓ write_todos",
            "  ▸ mend mean\n  ☐ run the tests",
            '✓ grep  pattern="def mean"',
            '✓ read_file  path="mean.py"',
            '✓ edit_file  path="mean.py"',
            "  ☑ mend mean\n  ▸ run the tests",
            "┃ coder wants to run shell",
        ):
            assert part in terminal.screen, terminal.screen
        assert "unittest-q" in re.sub(r"[\s┃]", "", terminal.screen)  # it is broken where the screen ends
        assert git(repository, "diff", "--name-only").split() == ["mean.py"]
        terminal.press("a", "Enter")
        terminal.see("The mean is right now.")
        terminal.see("done · 5 model calls")
        terminal.press("C-o")
        terminal.see("┌ shell  called by coder")
        assert "OK" in terminal.see("└\n").rpartition("├ result")[2]
        assert max(len(row) for row in terminal.rows) <= columns
        terminal.press("C-d")
        terminal.see("left with 0")
    assert git(repository, "diff", "-U0", "--no-color").splitlines()[-2:] == [
        "-    return sum(numbers) / (len(numbers) + 1)",
        "+    return sum(numbers) / len(numbers)",
    ]
    assert git(repository, "status", "--porcelain").splitlines() == [" M mean.py"]
