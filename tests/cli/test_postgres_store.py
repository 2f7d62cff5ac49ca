"""The commands on a log in PostgreSQL, named by its URL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from postgres import server

pytestmark = pytest.mark.slow

AGENTS = '''
from upcall import Agent, Context, tool
from upcall.models import Script, call

@tool
async def choose(ctx: Context) -> str:
    """Ask which one."""
    return f"took {await ctx.raise_callback('Which one?', 'blocker')}"

def says(request):
    return request.messages[-1].results[0].text if request.messages[-1].role == "tool" else call("choose")

asker = Agent("asker", model=Script(says), tools=[choose])
'''


class Shell:
    """Runs commands in a folder, on a log that UPCALL_STORE names."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self.url = folder, url

    def run(self, *words: str, store: str | None = None, code: int = 0) -> str:
        environment = {**os.environ, "UPCALL_STORE": self.url if store is None else store}
        done = subprocess.run(
            [sys.executable, "-m", "upcall", *words], cwd=self._folder, env=environment, capture_output=True,
            text=True, stdin=subprocess.DEVNULL, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Generator[Shell]:
    (tmp_path / "mine.py").write_text(AGENTS)
    url = server().database()
    yield Shell(tmp_path, url)
    server().drop(url)


def test_a_run_is_started_answered_and_continued_by_separate_commands(shell: Shell) -> None:
    shell.run("run", "mine:asker", "go", "--id", "s", code=3)
    (waiting,) = json.loads(shell.run("inbox", "--json"))
    assert waiting["message"] == "Which one?"
    shell.run("answer", waiting["id"], "this one")
    assert "took this one" in shell.run("resume", "s")
    assert "s" in shell.run("sessions")
    assert "took this one" in shell.run("show", "s")
    assert "callback_answered" in shell.run("events", "s")
    shell.run("run", "mine:asker", "go", "--id", "t", code=3)
    shell.run("cancel", "t")
    assert json.loads(shell.run("inbox", "--json")) == []
    assert not (shell._folder / ".upcall" / "log.db").exists()  # pyright: ignore[reportPrivateUsage]


def test_no_command_prints_the_password_of_the_store(shell: Shell) -> None:
    with_password = shell.url.replace("postgres@", "postgres:hunter22@").replace("postgres:@", "postgres:hunter22@")
    assert "hunter22" in with_password
    said = shell.run("run", "mine:asker", "go", "--id", "s", "--store", with_password, code=3)
    said += shell.run("inbox", "--store", with_password)
    said += shell.run("sessions", store="postgresql://ada:hunter22@127.0.0.1:1/log", code=1)
    said += shell.run("demo", "--store", with_password, code=2)
    assert "hunter22" not in said
    assert "can't be reached" in said


def test_of_a_misspelled_parameter_only_the_name_is_printed(shell: Shell) -> None:
    for command in (("status",), ("sessions",), ("run", "mine:asker", "go"), ("worker", "--agents", "mine:asker")):
        said = shell.run(*command, "--store", "postgresql://ada@db/log?passwrd=hunter22&user=x", code=2)
        assert "PostgreSQL has no parameter 'passwrd'" in said
        assert "hunter22" not in said


def test_without_the_extra_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from upcall import Runtime\n"
        "from upcall.errors import SetupError\n"
        "try: Runtime('postgresql://ada:hunter22@db/log')\n"
        "except SetupError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert "pip install 'upcall[postgres]'" in done.stdout
    assert "hunter22" not in done.stdout + done.stderr
