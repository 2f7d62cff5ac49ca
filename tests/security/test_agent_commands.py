"""A command that an agent runs does not speak for the person: it answers, resumes and deletes nothing."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from cli.asking import make_team, parked
from cli.command import out, upcall
from quick import slow_but
from upcall import Agent, Runtime
from upcall.models import Script, call
from upcall.safety import agent_commands
from upcall.workspace import Folder, shell
from workspace.doubles import played

pytestmark = pytest.mark.slow

PYTHON = shlex.quote(sys.executable)

WAYS = (
    "{upcall} {args}",
    "env -i {upcall} {args}",
    "unset UPCALL_AGENT_COMMAND; {upcall} {args}",
    "env -u UPCALL_AGENT_COMMAND sh -c '{upcall} {args}'",
    "(setsid env -i {upcall} {args} > out 2>&1 &) ; while ! grep -q . out; do sleep 0.05; done; cat out",
    "env -i sh -c '({upcall} {args} > out2 2>&1) &'; while ! grep -q . out2; do sleep 0.05; done; cat out2",
    "env -i {python} -c 'from upcall.cli import main; main(\"{args}\".split())' 2>&1",
)
"""How a command may try to hide whose it is."""

NAMESPACES = (
    "unshare -pf --mount-proc env -i {upcall} {args}",
    "unshare -Urpf --mount-proc env -i {upcall} {args}",
    "unshare -Urpf env -i {upcall} {args}",
    "unshare -Urmpf sh -c 'mount -t tmpfs none /proc; exec env -i {upcall} {args}'",
    "unshare -Urmpf setsid -w sh -c 'umount -l /proc; exec env -i {upcall} {args}'",
)
"""How it may try to hide its ancestors, where the system lets it."""

WRITING = (
    *("answer q1 --approve", "answer q1 yes", "resume s1", "resume --all", "cancel s1", "run team:manager go"),
    *("chat team:manager", "sessions delete s1 --yes", "sessions prune --older-than 1 --yes", "demo"),
    *(
        "adopt .upcall/log.db --yes",
        "tokens new mallory --role operator",
        "tokens revoke ada",
        "tokens list",
        "audit",
    ),
)
READING = ("inbox", "sessions", "show s1", "events s1", "check agents", "version", "help answer")


@pytest.mark.parametrize("way", slow_but(WAYS[:2], WAYS))
async def test_a_command_of_an_agent_can_not_hide_whose_it_is(way: str, tmp_path: Path) -> None:
    command = way.format(upcall=f"{PYTHON} -m upcall", args="answer q1 --approve", python=PYTHON)

    (result,) = await played(Folder(tmp_path), shell(seconds=50), call("shell", command=command))

    assert "a command that an agent runs (session 's') may not use `upcall answer`" in result.text


DEEP = """\
import ctypes, os, sys
for _ in range(int(sys.argv[1])):
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ctypes.CDLL(None).prctl(29, 50_000, 0, 0, 0)  # the timer slack of a process that no supervisor started
from upcall.cli import main
from upcall.safety import agent_commands
agent_commands._MOST_ANCESTORS = 10  # else it takes a minute to start the processes
sys.exit(main(["answer", "q1", "--approve"]))
"""
"""A program that runs the command below many processes, without what it inherited from the supervisor."""


@pytest.mark.parametrize(("between", "session"), [(0, " (session 's')"), (12, "")], ids=["few", "many"])
async def test_a_command_can_not_hide_below_very_many_processes(between: int, session: str, tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(DEEP)
    source = shlex.quote(str(Path(agent_commands.__file__).parents[2]))
    command = f"env -i PYTHONPATH={source} {PYTHON} deep.py {between} 2>&1"

    (result,) = await played(Folder(tmp_path), shell(seconds=50), call("shell", command=command))

    assert f"a command that an agent runs{session} may not use `upcall answer`" in result.text


@pytest.mark.parametrize("way", slow_but(NAMESPACES[1:2], NAMESPACES))
async def test_a_command_is_refused_in_a_process_namespace_with_its_own_proc_or_without_one(
    way: str, tmp_path: Path
) -> None:
    command = way.format(upcall=f"{PYTHON} -m upcall", args="answer q1 --approve")

    (result,) = await played(Folder(tmp_path), shell(seconds=50), call("shell", command=command))

    refused = "a command that an agent runs" in result.text and "may not use `upcall answer`" in result.text
    assert refused or "unshare: " in result.text, result.text


async def test_agents_run_none_of_the_commands_that_write_and_any_that_reads(tmp_path: Path) -> None:
    make_team(tmp_path)
    lines = [f"{PYTHON} -m upcall {args} < /dev/null" for args in (*WRITING, *READING)]

    results = await played(Folder(tmp_path), shell(), *(call("shell", command=line) for line in lines))

    refused = ["may not use `upcall " in result.text for result in results]
    assert refused == [True] * len(WRITING) + [False] * len(READING)
    assert not (tmp_path / ".upcall").exists()


async def test_an_agent_does_not_approve_its_own_call_by_a_command(tmp_path: Path) -> None:
    make_team(tmp_path)
    (callback,) = parked(tmp_path, "deploy")
    attack = f"{PYTHON} -m upcall answer {callback['id']} --approve; {PYTHON} -m upcall resume s1"
    agent = Agent(
        "a", model=Script([call("shell", command=attack), "done"]), kit=[shell()], workspace=Folder(tmp_path)
    )
    async with Runtime(agents=[agent]) as runtime:
        await (await runtime.start(agent)).prompt("go")

    assert [one["id"] for one in out("inbox", cwd=tmp_path)] == [callback["id"]]
    assert not (tmp_path / "deployed.txt").exists()
    assert upcall("answer", callback["id"], "--approve", cwd=tmp_path).returncode == 0
    assert upcall("resume", "s1", cwd=tmp_path).returncode == 0
    assert (tmp_path / "deployed.txt").read_text() == "prod False\n"
