"""A run that has to wait for an answer: its exit code, what is shown of it, and how it goes on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command import environment, out, upcall
from cli.screen import CTRL_C, Screen
from upcall import Runtime

PROGRAM = '''\
from upcall import Agent, Context, tool
from upcall.models import Script, call


@tool
async def paint(ctx: Context) -> str:
    """Paint the wall."""
    colour = await ctx.raise_callback("Which colour?", "blocker", choices=["red", "blue"])
    return f"painted it {colour}"


def worker_script(request):
    last = request.messages[-1]
    return call("paint") if last.role == "user" else last.results[0].text


def boss_script(request):
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason="not mine to say")
    results = [result for message in request.messages for result in message.results]
    return results[-1].text if results else call("task", agent="worker", prompt="paint")


worker = Agent("worker", model=Script(worker_script), tools=[paint])
boss = Agent("boss", model=Script(boss_script), agents=[worker])
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wall.py").write_text(PROGRAM)
    return tmp_path


def answer(folder: Path, callback_id: str, value: str) -> None:
    """What a person says, from yet another process."""

    async def tell() -> None:
        async with Runtime(folder / ".upcall" / "log.db") as runtime:
            await runtime.answer(callback_id, value, by="ops")

    asyncio.run(tell())


@pytest.mark.slow
def test_a_run_that_waits_is_exit_code_3_and_resumes_once_it_is_answered(folder: Path) -> None:
    done = upcall("run", "wall:boss", "go", "--id", "s1", cwd=folder)
    shown = out("show", "s1", cwd=folder)
    (callback,) = shown["callbacks"]

    assert done.returncode == 3
    assert callback["id"] in done.stderr
    assert shown["status"] == "waiting"
    assert (callback["message"], callback["status"], callback["choices"]) == (
        "Which colour?",
        "open",
        ["red", "blue"],
    )
    assert callback["answer"] is None
    assert upcall("run", "wall:boss", "go", "--id", "s1", cwd=folder).returncode == 3
    assert upcall("resume", "s1", cwd=folder).returncode == 3

    answer(folder, callback["id"], "blue")
    resumed = upcall("resume", "s1", cwd=folder)

    assert (resumed.returncode, resumed.stdout) == (0, "painted it blue\n")
    (settled,) = out("show", "s1", cwd=folder)["callbacks"]
    assert (settled["status"], settled["answer"]["value"], settled["answer"]["by"]) == ("answered", "blue", "ops")
    text = upcall("show", settled["session_id"], cwd=folder).stdout
    for part in (
        "? worker asks (blocker): Which colour?",
        "boss passed it up: not mine to say",
        "the person is asked",
    ):
        assert part in text
    assert 'answered by ops (asserted): "blue"' in text


HOST_DIES = """\
import asyncio, os, signal
import wall
from upcall import Runtime


class Host:
    async def ask(self, callback):
        os.kill(os.getpid(), signal.SIGKILL)

    def withdraw(self, callback_id, reason):
        pass


async def main():
    async with Runtime("killed.db", agents=[wall.boss], host=Host()) as runtime:
        await (await runtime.start("boss", "s1")).prompt("go")


asyncio.run(main())
"""


@pytest.mark.slow
def test_a_question_is_waited_for_whatever_became_of_the_process_that_asked_it(folder: Path) -> None:
    (folder / "host.py").write_text(HOST_DIES)
    killed = subprocess.run([sys.executable, "host.py"], cwd=folder, env=environment(), check=False)
    assert killed.returncode == -signal.SIGKILL

    at = ("--store", "killed.db")
    assert [one["status"] for one in out("sessions", *at, cwd=folder) if one["callbacks"]] == ["waiting", "waiting"]
    (callback,) = out("inbox", *at, cwd=folder)
    assert upcall("answer", callback["id"], "red", *at, cwd=folder).returncode == 0
    done = upcall("resume", "s1", "--agents", "wall:boss", *at, cwd=folder)
    assert (done.returncode, done.stdout) == (0, "painted it red\n")


def test_a_log_can_begin_in_a_folder_that_is_not_there_yet(folder: Path) -> None:
    assert upcall("run", "wall:worker", "go", "--store", "new/logs/a.db", cwd=folder).returncode == 3
    assert (folder / "new" / "logs" / "a.db").exists()


@pytest.mark.slow
def test_a_child_that_waits_is_seen_from_its_parent(folder: Path) -> None:
    with Screen("run", "wall:boss", "go", "--id", "s1", cwd=folder) as screen:
        screen.see("your choice, 1-2 ›")
        screen.press(CTRL_C)
        assert screen.end() == 3
    assert "┌ worker" in screen.text
    assert "│ ? worker asks (blocker): Which colour?" in screen.text

    shown = out("show", "s1", cwd=folder)
    (callback,) = shown["callbacks"]
    assert shown["children"] == [callback["session_id"]]  # the boss's side turn is no child
    answer(folder, callback["id"], "red")

    with Screen("resume", "s1", cwd=folder) as screen:
        assert screen.end() == 0
    assert "✓ paint" in screen.text
    assert "painted it red" in screen.text


def test_a_waiting_session_can_be_cancelled(folder: Path) -> None:
    upcall("run", "wall:boss", "go", "--id", "s1", cwd=folder)
    assert upcall("cancel", "s1", cwd=folder).stderr == "session s1: cancelled\n"
    shown = out("show", "s1", cwd=folder)
    assert shown["status"] == "cancelled"
    assert [callback["status"] for callback in shown["callbacks"]] == ["withdrawn"]


def test_a_session_without_anybody_above_it_waits_for_the_person_at_once(folder: Path) -> None:
    assert upcall("run", "wall:worker", "go", "--id", "s1", cwd=folder).returncode == 3
    (callback,) = out("show", "s1", cwd=folder)["callbacks"]
    answer(folder, callback["id"], "red")
    assert upcall("resume", "s1", cwd=folder).stdout == "painted it red\n"
