"""SIGTERM for every command that runs agents: what is under way may end, nothing new starts, all can be resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli.command import eventually, out, start, upcall
from cli.screen import Screen
from quick import slow_after

PROGRAM = '''\
import asyncio
import time
from pathlib import Path

from upcall import Agent, Context, tool
from upcall.models import Script, call


def note(line):
    with open("effects.txt", "a") as file:
        file.write(f"{line}\\n")


async def until(name):
    note(f"waits for {name}")
    while not Path(name).exists():
        await asyncio.sleep(0.01)


@tool
async def work(ctx: Context) -> str:
    """Work until a file is there."""
    await until("go")
    note("worked")
    return "worked"


@tool
def block() -> str:
    """Work in a thread until a file is there."""
    note("waits for go")
    while not Path("go").exists():
        time.sleep(0.01)
    note("worked")
    return "worked"


@tool
async def ask_first(ctx: Context) -> str:
    """Ask, then work until a file is there."""
    answer = await ctx.raise_callback("Which one?", "blocker")
    return f"{answer} {await work.function(ctx)}"


@tool
async def ask_only(ctx: Context) -> str:
    """Ask."""
    return str(await ctx.raise_callback("Which one?", "blocker"))


async def play(request):
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason="not mine")
    results = [result.text for message in request.messages for result in message.results]
    prompt = request.messages[0].text
    if prompt.endswith("model") and not results:  # the model takes its time
        await until("go")
    match prompt:
        case "slow model":
            return "the model spoke"
        case "slow model, then a call" | "call a slow model":
            return f"it {results[0]}" if results else call("work")
        case "two":
            return " and ".join(results) or [
                call("task", agent="a", prompt="ask_only"), call("task", agent="a", prompt="work")
            ]
        case "one speaks":
            return " and ".join(results) or [
                call("task", agent="a", prompt="ask_only"), call("task", agent="a", prompt="slow model")
            ]
    return f"it {results[0]}" if results else call(prompt)


below = Agent("a", model=Script(play), tools=[work, block, ask_first, ask_only])
agent = Agent("b", model=Script(play), tools=[work, block, ask_first, ask_only], agents=[below])
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "crew.py").write_text(PROGRAM)
    return tmp_path


def effects(folder: Path) -> list[str]:
    file = folder / "effects.txt"
    return file.read_text().splitlines() if file.exists() else []


def begun(folder: Path) -> None:
    """Wait until something is under way."""
    eventually(lambda: "waits for go" in effects(folder), "it is under way")


def answered(folder: Path) -> None:
    """A session s1 that asked, was answered, and is ready to be resumed."""
    assert upcall("run", "crew:agent", "ask_first", "--id", "s1", cwd=folder).returncode == 3
    (question,) = out("inbox", cwd=folder)
    assert upcall("answer", question["id"], "b", cwd=folder).returncode == 0


def terminated(process: subprocess.Popen[str], folder: Path) -> tuple[int, str, str]:
    """Send SIGTERM, let what is under way end a little later, and return how the command ended."""
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert process.poll() is None, "it has to wait for what is under way"
    (folder / "go").touch()
    said, errors = process.communicate(timeout=60)
    return process.returncode, said, errors


COMMANDS = {
    "run": ["run", "crew:agent", "work", "--id", "s1"],
    "run, in a thread": ["run", "crew:agent", "block", "--id", "s1"],
    "chat": ["chat", "crew:agent", "--id", "s1"],
    "resume": ["resume", "s1"],
    "resume all": ["resume", "--all"],
    "resume all and follow": ["resume", "--all", "--follow"],
}


@pytest.mark.slow
@pytest.mark.parametrize("args", slow_after(2, [*COMMANDS.values()]), ids=COMMANDS.keys())
def test_a_call_under_way_ends_and_the_turn_stops_before_the_next_step(args: list[str], folder: Path) -> None:
    (folder / "lines.txt").write_text("work\nnever read\n")
    if args[0] == "resume":
        answered(folder)
    with (folder / "lines.txt").open() as lines, start(*args, cwd=folder, stdin=lines) as running:
        begun(folder)
        code, said, errors = terminated(running, folder)

    assert code == 143
    if "--all" in args:
        assert (said, errors) == ("s1 interrupted\n", "")
    else:
        assert (said, errors) == ("", "upcall: stopped; continue with: upcall resume s1\n")
    assert out("show", "s1", cwd=folder)["status"] == "interrupted"
    resumed = upcall("resume", "s1", cwd=folder)
    assert (resumed.returncode, resumed.stdout) == (0, f"it {'b ' if args[0] == 'resume' else ''}worked\n")
    assert effects(folder) == ["waits for go", "worked"]


@pytest.mark.slow
def test_a_run_that_was_stopped_is_told_as_json_too(folder: Path) -> None:
    with start("run", "crew:agent", "work", "--id", "s1", "--json", cwd=folder) as running:
        begun(folder)
        code, said, _ = terminated(running, folder)
    assert code == 143
    assert '"status": "interrupted"' in said


@pytest.mark.slow
def test_a_model_call_under_way_ends_and_what_it_calls_does_not_start(folder: Path) -> None:
    with start("run", "crew:agent", "call a slow model", "--id", "s1", cwd=folder) as running:
        begun(folder)
        code, said, _ = terminated(running, folder)
    assert (code, said) == (143, "")
    assert effects(folder) == ["waits for go"]

    assert upcall("resume", "s1", cwd=folder).stdout == "it worked\n"
    assert effects(folder) == ["waits for go", "waits for go", "worked"]  # the model was not asked again


@pytest.mark.slow
def test_a_turn_whose_last_model_call_ends_in_time_is_done(folder: Path) -> None:
    with start("run", "crew:agent", "slow model", "--id", "s1", cwd=folder) as running:
        begun(folder)
        code, said, errors = terminated(running, folder)
    assert (code, said, errors) == (0, "the model spoke\n", "")


@pytest.mark.slow
def test_the_exit_code_is_3_where_all_that_is_left_waits_for_an_answer(folder: Path) -> None:
    with start("run", "crew:agent", "one speaks", "--id", "s1", cwd=folder) as running:
        begun(folder)
        eventually(lambda: bool(out("inbox", cwd=folder)), "the other child asks")
        code, _, errors = terminated(running, folder)
    assert code == 3
    assert "session s1 is waiting for 1 answer" in errors

    (question,) = out("inbox", cwd=folder)
    upcall("answer", question["id"], "b", cwd=folder)
    assert upcall("resume", "s1", cwd=folder).stdout == "it b and the model spoke\n"


@pytest.mark.slow
def test_the_exit_code_is_143_where_one_waits_and_another_one_was_interrupted(folder: Path) -> None:
    with start("run", "crew:agent", "two", "--id", "s1", cwd=folder) as running:
        begun(folder)
        eventually(lambda: bool(out("inbox", cwd=folder)), "the other child asks")
        code, _, _ = terminated(running, folder)
    assert code == 143

    (question,) = out("inbox", cwd=folder)
    upcall("answer", question["id"], "b", cwd=folder)
    assert upcall("resume", "--all", cwd=folder).stdout == "s1 done: it b and it worked\n"
    assert effects(folder) == ["waits for go", "worked"]


@pytest.mark.slow
def test_a_follower_takes_nothing_more_after_the_signal(folder: Path) -> None:
    answered(folder)
    assert upcall("run", "crew:agent", "ask_only", "--id", "s2", cwd=folder).returncode == 3
    (question,) = out("inbox", cwd=folder)
    with start("resume", "--all", "--follow", cwd=folder) as following:
        begun(folder)
        following.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        upcall("answer", question["id"], "c", cwd=folder)
        (folder / "go").touch()
        said, _ = following.communicate(timeout=60)
    assert (following.returncode, said) == (143, "s1 interrupted\n")
    assert sorted(upcall("resume", "--all", cwd=folder).stdout.splitlines()) == [
        "s1 done: it b worked",
        "s2 done: it c",
    ]


@pytest.mark.slow
def test_a_follower_that_runs_nothing_at_the_moment_ends_at_once(folder: Path) -> None:
    assert upcall("run", "crew:agent", "ask_only", "--id", "other", cwd=folder).returncode == 3
    with start("resume", "--all", "--follow", cwd=folder) as following:
        eventually(lambda: bool(list(folder.glob(".upcall/log.db-wake/*"))), "it waits")
        following.send_signal(signal.SIGTERM)
        said, errors = following.communicate(timeout=10)
    assert (following.returncode, said, errors) == (143, "", "")


@pytest.mark.slow
def test_a_piped_chat_that_waits_for_a_line_ends_at_once(folder: Path) -> None:
    (folder / "go").touch()
    reads, writes = os.pipe()
    os.write(writes, b"slow model\n")
    with os.fdopen(reads) as lines, start("chat", "crew:agent", cwd=folder, stdin=lines) as chat:
        assert chat.stdout is not None
        assert chat.stdout.readline() == "the model spoke\n"
        chat.send_signal(signal.SIGTERM)
        said, errors = chat.communicate(timeout=10)
    os.close(writes)
    assert (chat.returncode, said, errors) == (143, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("second", slow_after(1, [signal.SIGTERM, signal.SIGINT]))
@pytest.mark.parametrize("args", [COMMANDS["run"], COMMANDS["resume all and follow"]])
def test_a_second_signal_leaves_at_once(args: list[str], second: signal.Signals, folder: Path) -> None:
    if args[0] == "resume":
        answered(folder)
    with start(*args, cwd=folder) as running:
        begun(folder)
        running.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert running.poll() is None
        running.send_signal(second)
        running.communicate(timeout=5)
    assert running.returncode == 143
    (folder / "go").touch()
    assert "interrupted, outcome unknown" in upcall("resume", "s1", cwd=folder).stdout  # as after a crash


@pytest.mark.slow
def test_a_call_that_does_not_end_within_the_limit_is_interrupted_as_after_a_crash(folder: Path) -> None:
    with start(*COMMANDS["run"], cwd=folder) as running:
        begun(folder)
        running.send_signal(signal.SIGTERM)
        told = time.monotonic()
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 143
    assert 19 < time.monotonic() - told < 40
    assert errors == "upcall: stopped; continue with: upcall resume s1\n"
    (folder / "go").touch()
    assert "interrupted, outcome unknown" in upcall("resume", "s1", cwd=folder).stdout


# --- at a terminal ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("command", "prompt"), [("run", ["ask_only"]), ("chat", [])])
def test_a_question_on_the_screen_is_left_for_the_inbox(command: str, prompt: list[str], folder: Path) -> None:
    with Screen(command, "crew:agent", *prompt, "--id", "s1", cwd=folder) as screen:
        if not prompt:
            screen.see("›")
            screen.enter("ask_only")
        screen.see("Which one?")
        os.kill(screen.process.pid, signal.SIGTERM)
        assert screen.end() == 3
    assert [one["message"] for one in out("inbox", cwd=folder)] == ["Which one?"]


@pytest.mark.slow
def test_a_chat_ends_when_its_turn_has_stopped_and_says_how_it_is_continued(folder: Path) -> None:
    with Screen("chat", "crew:agent", "--id", "s1", cwd=folder) as screen:
        screen.see("›")
        screen.enter("work")
        begun(folder)
        os.kill(screen.process.pid, signal.SIGTERM)
        time.sleep(0.3)
        assert screen.process.poll() is None
        (folder / "go").touch()
        assert screen.end() == 143
        assert "stored; continue with: upcall chat crew:agent --id s1" in screen.text
    assert upcall("resume", "s1", cwd=folder).stdout == "it worked\n"
    assert effects(folder) == ["waits for go", "worked"]


def test_a_chat_in_which_nothing_runs_ends_at_once(folder: Path) -> None:
    with Screen("chat", "crew:agent", "--id", "s1", cwd=folder) as screen:
        screen.see("›")
        os.kill(screen.process.pid, signal.SIGTERM)
        assert screen.end() == 143


# --- the demo ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("wanted", slow_after(1, ["callback_asked", "tool_started", "turn_resumed"]))
def test_a_demo_that_is_stopped_anywhere_is_resumed_and_nothing_is_unknown(wanted: str, folder: Path) -> None:
    at = ("--store", str(folder / "log.db"))
    with start("demo", *at, cwd=folder) as demo:
        eventually(
            lambda: (folder / "log.db").exists() and wanted in upcall("events", *at, "--json", cwd=folder).stdout,
            f"there is a {wanted}",
        )
        demo.send_signal(signal.SIGTERM)
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode in (0, 3, 143), errors
    assert "Traceback" not in errors

    (root,) = [one["id"] for one in out("sessions", *at, cwd=folder) if one["parent"] is None]
    for question in out("inbox", *at, cwd=folder):
        upcall("answer", question["id"], question["choices"][0], *at, cwd=folder)
    done = upcall("resume", root, *at, cwd=folder)
    if done.returncode == 3:
        for question in out("inbox", *at, cwd=folder):
            upcall("answer", question["id"], question["choices"][0], *at, cwd=folder)
        done = upcall("resume", root, *at, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "outcome unknown" not in upcall("events", *at, "--json", cwd=folder).stdout
