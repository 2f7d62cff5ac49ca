"""The tool `shell`: what it shows, its limits, and that nothing it started outlives the call."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from upcall import Agent, Delta, Result, Runtime, SetupError
from upcall.models import Script, call
from upcall.workspace import Folder, InLog, Mounts, shell
from workspace.doubles import played, results


async def ran(folder: Path, command: str, **options: Any) -> Result:
    (out,) = await played(Folder(folder), shell(**options), call("shell", command=command))
    return out


def marked(folder: Path) -> list[str]:
    """The command lines of processes that work in a folder, ours too."""
    found: list[str] = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and Path(os.readlink(process / "cwd")).is_relative_to(folder):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    """A workspace in which nothing is left running, whatever the test has done."""
    yield tmp_path
    assert marked(tmp_path) == []


# --- what it shows ----------------------------------------------------------------------


async def test_a_command_runs_in_the_folder_and_shows_both_outputs_and_its_exit_code(folder: Path) -> None:
    out = await ran(folder, "pwd; echo wrong >&2; echo made > a.txt; exit 3")

    assert out.text == f"{folder}\nwrong\n(exit code 3)"
    assert not out.is_error
    assert (folder / "a.txt").read_text() == "made\n"
    assert (await ran(folder, "true")).text == "(no output)"
    assert (await ran(folder, "cat")).text == "(no output)", "it has no input"
    assert (await ran(folder, "kill -9 $$")).text == "(exit code 137)"


async def test_a_command_is_one_argument_whatever_is_in_it(folder: Path) -> None:
    out = await ran(folder, "printf '%s|' \"a'b\" '$HOME' \"$(echo x)\"; echo '-c; --' #; no more")

    assert out.text == "a'b|$HOME|x|-c; --"
    for wrong in ("echo \0", "echo " + "x" * 100_000):
        refused = await ran(folder, wrong)
        assert refused.is_error
        assert "a command must not contain a NUL character and may have at most 100000 bytes" in refused.text


async def test_output_is_shown_while_it_comes(folder: Path) -> None:
    agent = Agent(
        "a",
        model=Script(
            [call("shell", command="echo one; while ! test -e go; do sleep 0.01; done; echo two"), "done"]
        ),
        kit=[shell()],
        workspace=Folder(folder),
    )
    seen = ""
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        async for item in session.stream("go"):
            if isinstance(item, Delta) and item.kind == "output":
                seen += item.text
                (folder / "go").touch()
    assert seen == "one\ntwo\n"


async def test_of_much_output_the_beginning_and_the_end_are_kept(folder: Path) -> None:
    out = await ran(folder, "seq 1 20000; printf '\\377 é'", output=200)

    assert out.text.startswith("1\n2\n3\n")
    assert out.text.endswith("20000\n� é")
    assert "characters left out …" in out.text
    assert len(out.text) < 300


async def test_secrets_are_not_in_its_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("PLAIN", "seen")

    assert (await ran(folder, 'echo "$PLAIN $SOME_API_KEY$PGPASSWORD"')).text == "seen "
    assert (await ran(folder, 'echo "$PLAIN $OWN"', env={"OWN": "given"})).text == " given"


async def test_an_approval_may_cover_a_program_but_no_other_behind_it() -> None:
    (tool,) = shell().tools

    assert tool.patterns({"command": "git status -s"}) == {"this program": "git"}
    for hidden in ("git status; rm -rf .", "git $(rm x)", "git a\nrm b", "A=1 rm x", "git > x", "git `x`", ""):
        assert tool.patterns({"command": hidden}) == {}


# --- where it can't run -----------------------------------------------------------------


async def test_a_workspace_without_a_folder_has_no_shell(tmp_path: Path) -> None:
    for workspace, why in (
        (InLog(), "this workspace has no folder that a command could run in"),
        (Mounts(InLog(), {"/x": Folder(tmp_path)}), "this workspace has no folder"),
        (Folder(tmp_path / "gone"), f"the workspace's folder {tmp_path}/gone no longer exists"),
        (None, "agent 'worker' has no workspace"),
    ):
        (out,) = await played(workspace, shell(), call("shell", command="pwd"))
        assert out.is_error
        assert why in out.text


@pytest.mark.parametrize("options", [{"seconds": 0}, {"seconds": -1}, {"output": 5}])
def test_limits_that_can_not_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match="seconds must be above 0, and output 100 characters or more"):
        shell(**options)


# --- nothing is left --------------------------------------------------------------------

TWICE = "os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)"
DETACHED = f"python3 -c 'import os, time; {TWICE}; time.sleep(600)'"
STUBBORN = "trap '' TERM HUP INT; (trap '' TERM; sleep 600) & sleep 600"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "sleep 600 & echo done",
        "(setsid sleep 600 &) ; echo done",
        "nohup setsid sleep 600 >/dev/null 2>&1 & echo done",
        f"{DETACHED} & echo done",
        "(trap '' TERM; sleep 600; sleep 600) & echo done",
    ],
)
async def test_what_a_command_leaves_behind_ends_with_it(folder: Path, command: str) -> None:
    out = await ran(folder, command)

    assert out.text == "done"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["sleep 600", STUBBORN, f"{DETACHED}; sleep 600", "exec >&- 2>&-; sleep 600"])
async def test_after_its_time_a_command_is_stopped_with_all_it_started(folder: Path, command: str) -> None:
    out = await ran(folder, f"echo begun; {command}", seconds=0.5)

    assert out.is_error
    assert out.text == "begun\n(stopped with all that it had started, because it took more than 0.5 s)"


async def test_a_command_that_floods_its_output_is_stopped(folder: Path) -> None:
    out = await ran(folder, "yes & yes")

    assert out.is_error
    assert out.text.endswith("(stopped with all that it had started, because it wrote more than 50000000 bytes)")
    assert len(out.text) < 31_000


@pytest.mark.slow
async def test_a_command_that_forks_on_and_on_is_stopped(folder: Path) -> None:
    (folder / "fork.sh").write_text(
        "trap '' TERM\nfor i in 1 2 3 4 5 6 7 8; do sh -c 'trap \"\" TERM; sleep 600' & done\nwait\n"
    )
    out = await ran(folder, "sh fork.sh & sh fork.sh & setsid sh fork.sh & wait", seconds=1)

    assert "took more than 1 s" in out.text


async def test_a_command_that_kills_what_watches_it_leaves_nothing_either(folder: Path) -> None:
    out = await ran(folder, "setsid sleep 600 & sleep 600 & kill -9 $PPID; sleep 600")

    assert out.text == "(exit code 137)"


KILL_WATCHERS = """
python3 - << 'END'
import os, signal, subprocess
subprocess.Popen({orphan}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
chain, pid = [], os.getppid()
while pid > 1:
    with open(f"/proc/{{pid}}/stat") as stat:
        parent = int(stat.read().rpartition(")")[2].split()[1])
    with open(f"/proc/{{pid}}/cmdline") as line:
        chain += [pid] if "supervise.py" in line.read() else []
    pid = parent
for pid in reversed(chain):
    os.kill(pid, signal.SIGKILL)
END
sleep 600
"""
ORPHANS = ("['sleep', '600'], start_new_session=True", "['setsid', '-f', 'sleep', '600']", "['sleep', '600']")
STORM = """
import os, time
os.fork() and os._exit(0)
end = time.monotonic() + 60
while time.monotonic() < end:
    {setsid}
    if os.fork(): os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("orphan", ORPHANS)
async def test_a_command_that_kills_all_its_watchers_leaves_nothing(folder: Path, orphan: str) -> None:
    out = await ran(folder, KILL_WATCHERS.format(orphan=orphan), seconds=10)

    assert "sleep" not in "".join(marked(folder))
    assert "(exit code 137)" in out.text or "may still run" in out.text


@pytest.mark.slow
@pytest.mark.parametrize("setsid", ["pass", "os.setsid()"])
async def test_processes_that_fork_and_exit_on_and_on_end_with_the_call(folder: Path, setsid: str) -> None:
    (folder / "storm.py").write_text(STORM.format(setsid=setsid))

    out = await ran(folder, "python3 storm.py > /dev/null 2>&1; echo done")

    left = marked(folder)
    assert not left or "may still run" in out.text
    while marked(folder):  # where nobody could end them they end by themselves
        await asyncio.sleep(0.1)


PLAIN = """
import asyncio, ctypes, os, sys
from pathlib import Path

if len(sys.argv) == 2:  # without the right to make namespaces, which root has
    ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)
    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])

from upcall.models import call
from upcall.workspace import Folder, shell
from workspace.doubles import played

command = Path("command.sh").read_text()
out = asyncio.run(played(Folder(sys.argv[1]), shell(seconds=10), call("shell", command=command)))
print(out[0].text)
subreaper = ctypes.c_int(-1)
ctypes.CDLL(None).prctl(37, ctypes.byref(subreaper), 0, 0, 0)
print("subreaper", subreaper.value)
"""


def ran_without_namespaces(folder: Path, command: str) -> str:
    program = folder.parent / "plain.py"
    program.write_text(PLAIN)
    (folder.parent / "command.sh").write_text(command)
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, str(program), str(folder)], cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("orphan", ORPHANS)
async def test_without_namespaces_what_is_left_is_found_and_the_result_says_what_is_not_sure(
    tmp_path: Path, orphan: str
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()

    said = ran_without_namespaces(folder, KILL_WATCHERS.format(orphan=orphan))

    assert marked(folder) == []
    assert "(a process that the command started may still run" in said
    assert said.endswith("subreaper 0\n"), "only while a command runs"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["echo done", "(setsid sleep 600 &); echo done", "kill -9 $PPID; sleep 600", STUBBORN]
)
async def test_without_namespaces_nothing_is_left_by_a_command_that_leaves_its_watchers_alone(
    tmp_path: Path, command: str
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()

    said = ran_without_namespaces(folder, command)

    assert marked(folder) == []
    assert "may still run" not in said
    assert said.endswith("subreaper 0\n")


@pytest.mark.slow
@pytest.mark.parametrize("setsid", ["pass", "os.setsid()"])
async def test_without_namespaces_a_storm_of_forks_ends_or_the_result_says_so(tmp_path: Path, setsid: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "storm.py").write_text(STORM.format(setsid=setsid))

    said = ran_without_namespaces(folder, "python3 storm.py > /dev/null 2>&1; echo done")

    assert not marked(folder) or "may still run" in said
    while marked(folder):
        await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_cancelled_turn_ends_its_command(folder: Path) -> None:
    agent = Agent(
        "a",
        model=Script([call("shell", command=f"echo begun; {DETACHED} & {STUBBORN}"), "done"]),
        kit=[shell()],
        workspace=Folder(folder),
    )
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        async for item in session.stream("go"):
            if isinstance(item, Delta) and item.kind == "output":
                await session.cancel()
        assert session.status == "cancelled"
        assert marked(folder) == []


DRIVER = """
import asyncio, sys
from upcall import Agent, Delta, Runtime
from upcall.models import Script, call
from upcall.workspace import Folder, shell

async def main():
    model = Script([call("shell", command={command!r}), "done"])
    agent = Agent("a", model=model, kit=[shell()], workspace=Folder({folder!r}))
    async with Runtime({store!r}, agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        async for item in session.stream("go"):
            if isinstance(item, Delta) and item.kind == "output":
                print(item.text, end="", flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_killed_process_takes_its_command_along_and_the_model_is_told(tmp_path: Path) -> None:
    folder, store = tmp_path / "work", tmp_path / "log.db"
    folder.mkdir()
    program = DRIVER.format(command=f"echo begun; {DETACHED} & {STUBBORN}", folder=str(folder), store=str(store))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"begun\n"
        begun = marked(folder)
        driver.send_signal(signal.SIGKILL)
    assert begun

    while marked(folder):  # its supervisor notices, asks them to end, and then kills them
        await asyncio.sleep(0.01)

    agent = Agent("a", model=Script(["looked"]), kit=[shell()], workspace=Folder(folder))
    async with Runtime(store, agents=[agent]) as runtime:
        assert (await runtime.resume("s")).text == "looked"
        (told,) = results((await runtime.load("s")).get_messages())
    assert told.text.startswith("interrupted, outcome unknown")
