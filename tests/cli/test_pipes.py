"""`upcall … | head`: a command whose output nobody reads any more ends quietly, and the agents' work is kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cli.asking import make_team, parked
from cli.command import COMMAND, environment, make_agents, out, upcall
from quick import slow_but

pytestmark = pytest.mark.slow

COMMANDS = [
    [],
    ["--help"],
    ["--version"],
    ["help"],
    ["version"],
    ["run", "--help"],
    ["nonsense"],
    ["demo"],
    ["run", "agents", "hello"],
    ["run", "agents", "fail", "--json"],
    ["chat", "agents"],
    ["resume", "s1"],
    ["resume", "--all", "--agents", "team:manager"],
    ["resume", "--all", "--follow", "--agents", "team:manager"],
    ["cancel", "s1"],
    ["inbox"],
    ["inbox", "--ids"],
    ["answer", "ID", "Otto"],
    ["sessions"],
    ["sessions", "prune", "--older-than", "1", "--yes"],
    ["show", "s1"],
    ["events"],
    ["events", "--follow"],
    ["check", "agents"],
    ["explain", "ID"],
    ["explain", "team:developer", "callback_to_caller", "query"],
    ["completion", "bash"],
]
READ_OFTEN = [
    ["--help"],
    ["run", "agents", "hello"],
    ["resume", "s1"],
    ["inbox"],
    ["show", "s1"],
    ["events", "--follow"],
]
"""Whose output people send to `head` and `less`."""
SAYS_NOTHING = {"resume s1", "cancel s1", "sessions prune --older-than 1 --yes", "nonsense", ""}
"""What prints to standard error alone."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sessions: one waits, the other has its answer."""
    folder = tmp_path_factory.mktemp("prepared")
    make_agents(folder)
    make_team(folder)
    parked(folder, "name", "s1")
    (entry,) = parked(folder, "name", "s2")[1:]
    upcall("answer", entry["id"], "Ida", cwd=folder)
    (folder / "waiting").write_text(out("inbox", cwd=folder)[0]["id"])
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    return shutil.copytree(prepared, tmp_path / "copy")


def unread(*args: str, cwd: Path, both: bool = False) -> tuple[int, str]:
    """Run a command whose output nobody reads; returns its exit code and what it said beside that."""
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(
        [*COMMAND, *args],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=writer,
        stderr=writer if both else subprocess.PIPE,
        text=True,
    ) as running:
        os.close(writer)
        _, said = running.communicate("hello\n/tools\n", timeout=60)
    return running.returncode, said or ""


@pytest.mark.parametrize("args", slow_but(READ_OFTEN, COMMANDS), ids=" ".join)
def test_a_command_whose_output_nobody_reads_ends_quietly(args: list[str], folder: Path) -> None:
    waiting = (folder / "waiting").read_text()
    typed = [waiting if word == "ID" else word for word in args]
    code, said = unread(*typed, cwd=folder)
    for noise in ("Traceback", "Broken pipe", "BrokenPipe", "Exception ignored", "never retrieved", "sys.exit"):
        assert noise not in said
    if " ".join(args) not in SAYS_NOTHING:
        assert code == (0 if "help" in " ".join(args) else 128 + signal.SIGPIPE)  # argparse ignores who left


@pytest.mark.parametrize(
    "args",
    [["run", "agents", "fail"], ["resume", "--all", "--agents", "team:manager"], ["chat", "agents"]],
    ids=" ".join,
)
def test_a_command_that_nobody_hears_at_all_ends_in_time(args: list[str], folder: Path) -> None:
    code, _ = unread(*args, cwd=folder, both=True)
    assert code in (1, 128 + signal.SIGPIPE)


def test_the_turn_of_a_run_that_nobody_reads_is_kept(folder: Path) -> None:
    assert unread("run", "agents", "hello", "--id", "kept", cwd=folder) == (141, "")
    assert out("show", "kept", cwd=folder)["status"] == "done"


def test_only_the_first_line_of_many_is_read_without_noise(folder: Path) -> None:
    line = f"{' '.join(COMMAND)} events | head -1"
    done = subprocess.run(
        line, shell=True, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
