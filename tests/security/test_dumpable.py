"""Other processes of the user can't look into the command, and into a process with secrets and a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command import upcall

PROGRAM = """
import asyncio, ctypes, sys
from upcall import Agent, Runtime
from upcall.models import Script, call
from upcall.workspace import Folder, file_tools, shell

def dumpable():
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)

async def main():
    seen = [dumpable()]
    calls = [call("write_file", path="a.txt", content="kept"), call("shell", command="cat a.txt"), "done"]
    agent = Agent("a", model=Script(calls), kit=[file_tools(), shell({options})], workspace=Folder("."))
    async with Runtime("../log.db", agents=[agent]) as runtime:
        session = await runtime.start(agent)
        seen.append(dumpable())
        await session.prompt("go")
        seen.append(dumpable())
        assert session.get_messages()[-2].results[0].text == "kept", session.get_messages()
    async with Runtime("../log.db") as runtime:
        assert (await runtime.load(session.id)).id
    print(*seen)

asyncio.run(main())
"""

TEAM = """
import ctypes
from upcall import Agent, tool
from upcall.models import Script, call

@tool
def look() -> int:
    "Tell whether this process may be looked into."
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)

agent = Agent("a", model=Script([call("look"), lambda request: request.messages[-1].results[0].text]), tools=[look])
"""


def ran(folder: Path, options: str, **env: str) -> str:
    work = folder / "work"
    work.mkdir()
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **env}
    program = [sys.executable, "-c", PROGRAM.format(options=options)]
    return subprocess.run(program, cwd=work, env=given, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "env", "seen"),
    [
        ("", {"SOME_API_KEY": "secret"}, "1 1 0"),
        ("", {"DATABASE_URL": "postgresql://ada:secret@db.example/shop"}, "1 1 0"),
        ("", {}, "1 1 1"),
        ("dumpable=True", {"SOME_API_KEY": "secret"}, "1 1 1"),
    ],
)
def test_a_shell_closes_a_process_with_secrets_before_its_first_command_and_nothing_else_does(
    options: str, env: dict[str, str], seen: str, tmp_path: Path
) -> None:
    assert ran(tmp_path, options, **env) == seen


def test_the_command_upcall_is_closed_to_other_processes_from_its_start(tmp_path: Path) -> None:
    (tmp_path / "team.py").write_text(TEAM)

    said = upcall("run", "team:agent", "go", cwd=tmp_path)

    assert said.stdout.strip().splitlines()[0] == "0", said.stderr


@pytest.mark.slow
def test_importing_the_package_and_calling_the_command_as_a_function_leave_a_process_open() -> None:
    program = "import ctypes, upcall, upcall.cli; upcall.cli.main(['version']); "
    program += "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said.splitlines()[-1] == "1"
