"""Where a session's agents come from: noted for imported modules, never for the program's main module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cli.command import environment, out, upcall
from quick import slow_after

pytestmark = pytest.mark.slow

AGENTS = '''\
from upcall import Agent, Context, tool
from upcall.models import Script, call


@tool
async def name(ctx: Context) -> str:
    """Name it."""
    return "called " + str(await ctx.raise_callback("What is it called?", "query"))


def says(request):
    last = request.messages[-1]
    return last.results[0].text if last.results else call("name")


def make(name):
    return Agent(name, model=Script(says), tools=[globals()["name"]])


desk = make("desk")
crew = [make("first"), make("second")]
'''
PROGRAM = """
import asyncio, sys
from upcall import Runtime
async def main():
    async with Runtime("work.db", agents=[desk]) as runtime:
        await (await runtime.start(desk, id="s1")).prompt("go")
if __name__ == "__main__":
    print("the program runs")
    asyncio.run(main())
"""


def python(*args: str, cwd: Path) -> None:
    """Run a program of the user's, which has to succeed."""
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def noted(folder: Path) -> tuple[str, str]:
    """What the session's first event says: where its agents can be loaded from, and its main module."""
    rows = upcall("events", "s1", "--store", "work.db", "--json", cwd=folder).stdout.splitlines()
    assert '"type":"session_started"' in rows[0]
    first = msgspec.json.decode(rows[0])
    return first.get("source", ""), first.get("program", "")


def resumed_elsewhere(folder: Path) -> subprocess.CompletedProcess[str]:
    """Answer what waits, and resume from another folder without saying where the agents are."""
    (entry,) = out("inbox", "--store", "work.db", cwd=folder)
    upcall("answer", entry["id"], "Otto", "--store", "work.db", cwd=folder)
    return upcall("resume", "s1", "--store", str(folder / "work.db"), cwd=folder.parent)


@pytest.mark.parametrize(
    ("module", "line", "attribute"),
    slow_after(
        1,
        [
            ("shop", "from shop import desk", "desk"),
            ("shop", "import shop; desk = shop.crew[1]", "crew"),
            ("pack.shop", "from pack.shop import desk", "desk"),
            ("pack.shop", "from pack import desk", "desk"),
        ],
    ),
)
def test_a_session_started_from_python_is_resumed_without_naming_its_agents(
    module: str, line: str, attribute: str, tmp_path: Path
) -> None:
    file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(exist_ok=True)
    file.write_text(AGENTS)
    if module != "shop":
        (file.parent / "__init__.py").write_text("from pack.shop import desk\n")
    (tmp_path / "main.py").write_text(line + PROGRAM)
    python("main.py", cwd=tmp_path)
    assert noted(tmp_path) == (f"{tmp_path}/{module}:{attribute}", "")
    done = resumed_elsewhere(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "called Otto\n", "")
    assert (
        f"agents from  {tmp_path}/{module}:{attribute}\n"
        in upcall("show", "s1", "--store", "work.db", cwd=tmp_path).stdout
    )


@pytest.mark.parametrize("args", [["main.py"], ["-m", "main"]], ids=" ".join)
def test_a_main_module_is_not_imported_again_and_resume_says_so(args: list[str], tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(AGENTS + PROGRAM)
    python(*args, cwd=tmp_path)
    assert noted(tmp_path) == ("", f"{tmp_path}/main.py:desk")
    done = resumed_elsewhere(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"declared in a program's main module ({tmp_path}/main.py:desk)" in done.stderr
    assert "importing that would run the program again" in done.stderr
    assert "upcall resume s1 --agents AGENT" in done.stderr
    (tmp_path / "shop.py").write_text(AGENTS)
    given = upcall("resume", "s1", "--store", "work.db", "--agents", "shop:desk", cwd=tmp_path)
    assert (given.returncode, given.stdout) == (0, "called Otto\n")


def test_a_second_copy_of_the_main_module_is_the_main_module(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        AGENTS + "import other\ndesk = other.main.desk if __name__ == '__main__' else desk" + PROGRAM
    )
    (tmp_path / "other.py").write_text("import main\n")
    python("main.py", cwd=tmp_path)
    assert noted(tmp_path) == ("", f"{tmp_path}/main.py:desk")


def test_an_agent_that_a_function_made_is_noted_nowhere(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(AGENTS)
    program = PROGRAM.replace("async with", "desk = shop.make('desk')\n    async with")
    (tmp_path / "main.py").write_text("import shop\n" + program)
    python("main.py", cwd=tmp_path)
    assert noted(tmp_path) == ("", "")
    done = resumed_elsewhere(tmp_path)
    assert done.returncode == 2
    where = "Say where it can be loaded from: upcall resume s1 --agents AGENT"
    assert f"does not record where its agent 'desk' comes from. {where}" in done.stderr


def test_what_the_command_noted_stays_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(AGENTS)
    done = upcall("run", "shop:crew", "go", "--agent", "second", "--id", "s1", "--store", "work.db", cwd=tmp_path)
    assert done.returncode == 3
    assert noted(tmp_path) == (f"{tmp_path}/shop:crew", "")
