"""`submit`, `worker` and `status` in real processes, on one file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cli.command import environment, eventually, make_agents, out, start, upcall
from cli.test_stopping import PROGRAM, effects, terminated
from quick import slow_after


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_agents(tmp_path)
    return tmp_path


@pytest.fixture
def crew(tmp_path: Path) -> Path:
    (tmp_path / "crew.py").write_text(PROGRAM)
    return tmp_path


def submit(folder: Path, *args: str, given: str | None = None) -> str:
    done = upcall("submit", "agents", *args, cwd=folder, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_worker_runs_what_was_submitted_and_exits(folder: Path) -> None:
    new = submit(folder, "hello")
    assert submit(folder, "add 1", "--id", "sum", "--priority", "high") == "sum"
    queued = out("status", cwd=folder)["counts"]
    done = upcall("worker", "--agents", "agents", "--once", "--concurrency", "1", cwd=folder)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["sum done", f"{new} done"])
    assert (queued, out("status", cwd=folder)["counts"]) == ({"queued": 2}, {"done": 2})
    assert out("show", "sum", cwd=folder)["text"] == "The tools said: 3 / 7"


ASKER = """\
from upcall import Agent
from upcall.models import Script, call

asker = Agent("asker", model=Script([call("ask", message="Which one?"), "done"]))
"""


def test_a_worker_says_which_log_and_agents_it_has_and_what_needs_others(folder: Path) -> None:
    (folder / "mine.py").write_text(ASKER)
    submit(folder, "hello", "--id", "s")
    made = upcall("submit", "mine:asker", "go", "--id", "q", cwd=folder)
    done = upcall("worker", "--agents", "mine:asker", "--once", cwd=folder)
    assert (made.returncode, done.returncode) == (0, 0)
    first, second = done.stderr.splitlines()
    assert first.startswith("worker on ")
    assert first.endswith(".upcall/log.db with the agents asker")
    assert second.startswith("ready sessions need agents that it does not have: ")


def test_the_answer_to_a_submitted_session_says_that_a_worker_continues_it(folder: Path) -> None:
    (folder / "mine.py").write_text(ASKER)
    upcall("submit", "mine:asker", "go", "--id", "q", cwd=folder)
    upcall("worker", "--agents", "mine:asker", "--once", cwd=folder)
    (waiting,) = json.loads(upcall("inbox", "--json", cwd=folder).stdout)
    done = upcall("answer", waiting["id"], "yes", cwd=folder)
    assert "a worker continues it; without one: " in done.stdout


def test_submitting_twice_is_harmless_and_another_text_is_refused(folder: Path) -> None:
    submit(folder, "hello", "--id", "s")
    again = upcall("submit", "agents", "hello", "--id", "s", cwd=folder)
    other = upcall("submit", "agents", "bye", "--id", "s", cwd=folder)
    assert (again.returncode, "submitted before" in again.stderr) == (0, True)
    assert (other.returncode, "it has another prompt" in other.stderr) == (1, True)
    assert out("status", cwd=folder)["counts"] == {"queued": 1}


def test_a_file_is_queued_line_by_line(folder: Path) -> None:
    lines = [{"id": f"s{n}", "text": f"hi {n}", "tags": {"n": str(n)}, "data": {"n": n}} for n in range(3)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert submit(folder, "--file", "-", given=text) == "queued 3 of 3"
    (folder / "lines.jsonl").write_text(text + json.dumps({"id": "s0", "text": "more", "turn": 2}) + "\n")
    assert submit(folder, "--file", "lines.jsonl") == "queued 1 of 4, 3 were submitted before"
    assert upcall("worker", "--agents", "agents", "--once", cwd=folder).returncode == 0
    assert (out("show", "s0", cwd=folder)["text"], out("status", cwd=folder)["counts"]) == (
        "You said: more",
        {"done": 3},
    )


@pytest.mark.parametrize(
    ("line", "why"),
    slow_after(3, [
        ("{", "line 2"),
        ('{"id": "x"}', "missing required field `text`"),
        ('{"id": "x", "text": "hi", "txt": 1}', "unknown field `txt`"),
        ('{"id": "a b", "text": "hi"}', "invalid session id"),
        ('{"id": "x", "text": "hi", "priority": "urgent"}', "priority must be one of"),
        ('{"id": "x", "text": "  "}', "the prompt is empty"),
        ('{"id": "x", "text": "hi", "data": ' + "[" * 3000 + "]" * 3000 + "}", "nested too deeply"),
        ('{"id": "x", "text": "hi", "turn": 0}', "of 1 or more"),
    ]),
)  # fmt: skip
def test_a_wrong_line_is_named_and_nothing_of_its_file_is_queued(folder: Path, line: str, why: str) -> None:
    (folder / "lines.jsonl").write_text('{"id": "ok", "text": "hi"}\n' + line + "\n")
    done = upcall("submit", "agents", "--file", "lines.jsonl", cwd=folder)
    assert (done.returncode, "lines.jsonl, line 2" in done.stderr, why in done.stderr) == (2, True, True)
    assert "queued" not in upcall("status", cwd=folder).stdout


def test_past_the_queue_limit_a_submission_is_refused(folder: Path) -> None:
    submit(folder, "hello", "--id", "s", "--queue-limit", "1")
    done = upcall("submit", "agents", "hello", "--id", "t", "--queue-limit", "1", cwd=folder)
    assert (done.returncode, "the queue is at its limit of 1" in done.stderr) == (1, True)


def test_a_worker_leaves_the_sessions_of_other_agents_and_status_says_what_they_lack(folder: Path) -> None:
    (folder / "agents" / "other.md").write_text("---\nmodel: script:play.py\n---\nOther.\n")
    (folder / "agents" / "other.json").write_text("{}")
    submit(folder, "hello", "--agent", "other", "--id", "s", "--tenant", "acme")
    done = upcall("worker", "--agents", "agents/helper.md", "--once", cwd=folder)
    status = upcall("status", "s", cwd=folder).stdout
    assert (done.returncode, done.stdout) == (0, "")
    assert "it needs a worker that has the agent 'other'" in status
    assert "priority normal, tenant acme" in status


def test_a_queued_session_can_be_cancelled(folder: Path) -> None:
    submit(folder, "hello", "--id", "s")
    assert upcall("cancel", "s", cwd=folder).returncode == 0
    assert upcall("worker", "--agents", "agents", "--once", cwd=folder).stdout == ""
    assert out("status", "s", cwd=folder)["status"] == "cancelled"


def test_a_failure_that_may_pass_waits_for_its_retry_and_is_left_to_the_next_worker(folder: Path) -> None:
    submit(folder, "fail", "--id", "s")
    done = upcall("worker", "--agents", "agents", "--once", "--json", cwd=folder)
    (line,) = [json.loads(line) for line in done.stdout.splitlines()]
    status = out("status", "s", cwd=folder)
    assert (done.returncode, line["session"], line["outcome"]) == (0, "s", "retry")
    assert (status["status"], status["tried"], "the line is dead" in status["error"]) == ("queued", 1, True)
    assert status["retry"] > status["since"]


def test_resume_all_takes_queued_sessions_too(folder: Path) -> None:
    submit(folder, "hello", "--id", "s")
    assert upcall("resume", "--all", cwd=folder).stdout == "s done: You said: hello\n"


@pytest.mark.parametrize(
    ("limit", "why"),
    slow_after(3, [
        ("agent:nobody=1", "no such agent; it has: helper"),
        ("model:none=1", "no such model"),
        ("helper=1", "is not a valid limit"),
        ("agent:helper=x", "is not a valid limit"),
        ("agent:helper=0", "nothing would ever be taken; use 1 or more"),
        ("agent:helper=0/min", "nothing would ever be taken; use 1 or more"),
    ]),
)  # fmt: skip
def test_a_wrong_limit_is_refused(folder: Path, limit: str, why: str) -> None:
    done = upcall("worker", "--agents", "agents", "--once", "--at-most", limit, cwd=folder)
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr


def test_a_limit_per_minute_leaves_the_rest_for_the_next_worker(folder: Path) -> None:
    for n in range(3):
        submit(folder, "hello", "--id", f"s{n}")
    command = ("worker", "--agents", "agents", "--once", "--at-most", "agent:helper=2/min")
    first, second = upcall(*command, cwd=folder), upcall(*command, cwd=folder)
    assert (first.stdout.count("done"), second.stdout, first.returncode, second.returncode) == (2, "", 0, 0)


def test_two_different_agents_of_one_name_are_refused(folder: Path) -> None:
    (folder / "other.py").write_text("from upcall import Agent\nagent = Agent('helper')\n")
    done = upcall("worker", "--agents", "agents", "other:agent", "--once", cwd=folder)
    assert (done.returncode, "two different agents have this name" in done.stderr) == (2, True), done.stderr


def test_a_file_that_is_missing_is_refused_as_wrong_usage(folder: Path) -> None:
    done = upcall("submit", "agents", "--file", "missing.jsonl", cwd=folder)
    assert (done.returncode, done.stderr) == (2, "upcall: --file missing.jsonl: No such file or directory\n")


LATE = """
import os, pathlib, time
pathlib.Path("loading").touch()
while not pathlib.Path("go").exists(): time.sleep(0.01)
from crew import agent
"""


@pytest.mark.slow
def test_sigterm_while_a_worker_loads_its_agents_ends_it_with_0_and_takes_nothing(crew: Path) -> None:
    (crew / "late.py").write_text(LATE)
    assert upcall("submit", "crew:agent", "work", "--id", "s", cwd=crew).returncode == 0
    process = start("worker", "--agents", "late:agent", cwd=crew)
    eventually((crew / "loading").exists, "it loads its agents", 60)
    process.send_signal(signal.SIGTERM)
    (crew / "go").touch()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors, effects(crew)) == (0, "", [])
    assert out("status", cwd=crew)["counts"] == {"queued": 1}


PROBE = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            os.kill(os.getpid(), signal.SIGTERM)

moment = sys.argv[1]
sys.argv = ["upcall", "worker", "--agents", "crew:agent", "--store", "s.db"]
sys.meta_path.insert(0, Finder())
from upcall_command import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["upcall.cli", "upcall.cli.options", "upcall.cli.worker", "upcall.agentfiles.load", "upcall.app", "crew"],
)
def test_sigterm_at_any_moment_of_a_start_ends_a_worker_with_0(crew: Path, module: str) -> None:
    done = upcall("submit", "crew:agent", "work", "--id", "s", "--store", "s.db", cwd=crew)
    assert done.returncode == 0, done.stderr
    ended = subprocess.run(
        [sys.executable, "-c", PROBE, module], cwd=crew, env=environment(), capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=100, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr, effects(crew)) == (0, "", [])
    assert out("status", "--store", "s.db", cwd=crew)["counts"] == {"queued": 1}


@pytest.mark.slow
def test_on_sigterm_a_worker_lets_running_calls_end_and_exits_with_0(crew: Path) -> None:
    for name in ("s1", "s2"):
        assert upcall("submit", "crew:agent", "work", "--id", name, cwd=crew).returncode == 0
    process = start("worker", "--agents", "crew:agent", "--concurrency", "1", cwd=crew)
    eventually(lambda: "waits for go" in effects(crew), "a call is under way")
    code, _, errors = terminated(process, crew)
    assert (code, effects(crew).count("worked")) == (0, 1)
    assert re.fullmatch(r"worker on \S+/log\.db with the agents [\w, ]+\n", errors)
    assert out("status", cwd=crew)["counts"] in ({"interrupted": 1, "queued": 1}, {"done": 1, "queued": 1})
    assert upcall("worker", "--agents", "crew:agent", "--once", cwd=crew).returncode == 0
    assert (out("status", cwd=crew)["counts"], effects(crew).count("worked")) == ({"done": 2}, 2)


@pytest.mark.slow
def test_a_question_parks_at_once_and_any_worker_continues_it_after_the_answer(crew: Path) -> None:
    upcall("submit", "crew:agent", "ask_only", "--id", "s1", cwd=crew)
    assert upcall("worker", "--agents", "crew:agent", "--once", cwd=crew).stdout == "s1 waiting\n"
    waits = out("status", "s1", cwd=crew)["waits_for"]
    (question,) = out("inbox", cwd=crew)
    upcall("answer", question["id"], "the left one", cwd=crew)
    assert ([one["callback"] for one in waits], waits[0]["from"]) == ([question["id"]], "user")
    assert upcall("worker", "--agents", "crew:agent", "--once", cwd=crew).stdout == "s1 done\n"
    assert out("show", "s1", cwd=crew)["text"] == "it the left one"


@pytest.mark.slow
def test_status_says_that_an_answered_session_waits_for_a_worker_and_whether_its_agent_has_changed(
    crew: Path,
) -> None:
    upcall("submit", "crew:agent", "ask_only", "--id", "s1", cwd=crew)
    upcall("worker", "--agents", "crew:agent", "--once", cwd=crew)
    asked = out("status", "s1", "--agents", "crew:agent", cwd=crew)
    upcall("answer", asked["waits_for"][0]["callback"], "the left one", cwd=crew)
    answered, text = out("status", "s1", cwd=crew), upcall("status", "s1", cwd=crew).stdout
    assert [(one["ready"], one["agent_changed"]) for one in (asked, answered)] == [
        (None, False),
        ("answered", None),
    ]
    assert f"answered; waits for a worker with the agent {answered['agent']!r}: " in text
    assert "do not take it if its agent has changed since the turn began" in text
    assert "has changed" not in upcall("status", "s1", "--agents", "crew:agent", cwd=crew).stdout

    program = (crew / "crew.py").read_text()
    (crew / "crew.py").write_text(program.replace('"""Ask."""', '"""Ask somebody."""'))
    left = upcall("worker", "--agents", "crew:agent", "--once", "--changed", "leave", cwd=crew)
    assert left.stdout.startswith("s1 left")
    changed = "its agent has changed since the turn began; "
    changed += "workers that were started with `--changed leave` do not take it"
    assert changed in upcall("status", "s1", "--agents", "crew:agent", cwd=crew).stdout
    assert out("status", "s1", "--agents", "crew:agent", cwd=crew)["agent_changed"] is True
    assert upcall("worker", "--agents", "crew:agent", "--once", cwd=crew).stdout == "s1 done\n"
    assert upcall("status", "s1", cwd=crew).stdout.splitlines()[1:] == ["  priority normal"]


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_a_second_signal_ends_one_at_once(crew: Path) -> None:
    upcall("submit", "crew:agent", "slow model", "--id", "s1", cwd=crew)
    first = start("worker", "--agents", "crew:agent", cwd=crew)
    eventually(lambda: "waits for go" in effects(crew), "the model is under way")
    second = start("worker", "--agents", "crew:agent", cwd=crew)
    first.kill()
    first.communicate()
    eventually(lambda: effects(crew).count("waits for go") == 2, "the second one has taken it over")
    assert f"{second.pid}" in upcall("status", "s1", cwd=crew).stdout or out("status", "s1", cwd=crew)["owner"]
    second.send_signal(signal.SIGTERM)
    eventually(lambda: out("status", "s1", cwd=crew)["owner"] is not None, "it drains")
    os.kill(second.pid, signal.SIGTERM)
    assert second.wait(timeout=30) == 143
    second.communicate()


def answered_with(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.slow
def test_metrics_are_served_in_the_format_of_prometheus(folder: Path) -> None:
    submit(folder, "add 1", "--id", "s")
    process = start("worker", "--agents", "agents", "--metrics-port", "0", cwd=folder)
    try:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]

        def text() -> str:
            with urllib.request.urlopen(url, timeout=10) as response:
                return response.read().decode()

        eventually(lambda: 'upcall_segments_total{agent="helper",outcome="done"} 1' in text(), "it is counted")
        shown = text()
        assert 'upcall_sessions{status="done"} 1' in shown
        assert "upcall_model_calls_total 2" in shown
        assert "upcall_ready 0" in shown
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/other", 404)):
            assert answered_with(url.replace("/metrics", path)) == status
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0
