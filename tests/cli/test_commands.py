"""Each command in a pipe: what it prints, what it leaves, how it ends."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cli import asking
from cli.command import COMMAND, environment, make_agents, out, upcall
from quick import slow_after

SCRIPT = Path(sys.executable).with_name("upcall")
COMMANDS = [
    "demo",
    "status",
    "submit",
    "worker",
    "new",
    "run",
    "chat",
    "resume",
    "cancel",
    "inbox",
    "mcp",
    "adopt",
    "answer",
    "serve",
    "acp",
    "sessions",
    "tree",
    "show",
    "events",
    "audit",
    "tokens",
    "check",
    "explain",
    "completion",
    "help",
    "version",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_agents(tmp_path)
    return tmp_path


# --- run --------------------------------------------------------------------------------


def test_run_in_a_pipe_prints_the_reply_and_nothing_else(folder: Path) -> None:
    done = upcall("run", "agents", "add them", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "The tools said: 3 / 7\n", "")


def test_run_with_an_existing_id_continues_that_session(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "s1", cwd=folder)
    upcall("run", "agents/helper.md", "again", "--id", "s1", cwd=folder)

    shown = out("show", "s1", cwd=folder)
    events = upcall("events", "s1", "--json", cwd=folder).stdout

    assert shown["text"] == "You said: again"
    assert events.count('"turn_started"') == 2
    assert events.count('"session_started"') == 1


def test_run_with_what_can_be_no_id_is_wrong_usage_and_begins_nothing(folder: Path) -> None:
    done = upcall("run", "agents", "hello", "--id", "a b", cwd=folder)

    assert done.returncode == 2
    assert "invalid session id 'a b'" in done.stderr
    assert out("sessions", cwd=folder) == []


def test_run_reads_a_prompt_from_standard_input(folder: Path) -> None:
    done = upcall("run", "agents", "-", cwd=folder, given="from a pipe\n")
    assert done.stdout == "You said: from a pipe\n"


def test_run_as_json_is_the_session_with_its_usage(folder: Path) -> None:
    shown = out("run", "agents", "hello", "--id", "s1", cwd=folder)
    assert list(shown) == [
        "id", "agent", "status", "text", "parent", "children", "callbacks", "tags", "data", "title", "folder",
        "roots", "usage", "limit", "error",
    ]  # fmt: skip
    assert (shown["status"], shown["limit"], shown["error"]) == ("done", "", None)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("fail", "upcall: script: the line is dead (tried 1 time)\n"),
        ("crash", "upcall: RuntimeError: a bug in the"),
    ],
)
def test_a_turn_that_fails_is_one_line_and_exit_code_1(prompt: str, says: str, folder: Path) -> None:
    done = upcall("run", "agents", prompt, "--id", "s1", cwd=folder)

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1
    assert out("show", "s1", cwd=folder)["status"] == "failed"


def test_a_failed_turn_as_json_has_its_error_usage_and_limit(folder: Path) -> None:
    (folder / "costly.py").write_text(
        "from upcall import Agent, ModelUnavailable, Response, Usage, tool\n"
        "from upcall.models import Script, call\n"
        "@tool\ndef again() -> str:\n    'Again.'\n    return 'again'\n"
        "def says(request):\n"
        "    if request.messages[-1].results:\n        return ModelUnavailable('script', 'the line is dead')\n"
        "    return Response('', [call('again')], usage=Usage(input_tokens=7, output_tokens=3))\n"
        "agent = Agent('costly', model=Script(says), tools=[again])\n"
    )
    done = upcall("run", "costly:agent", "go", "--id", "s1", "--json", cwd=folder)
    shown = msgspec.json.decode(done.stdout)
    assert done.returncode == 1
    assert (shown["status"], shown["limit"]) == ("failed", "")
    assert shown["error"] == "ModelUnavailable: script: the line is dead (tried 1 time)"
    assert (shown["usage"]["input_tokens"], shown["usage"]["output_tokens"]) == (7, 3)
    again = upcall("resume", "s1", "--json", cwd=folder)
    assert (again.returncode, msgspec.json.decode(again.stdout)["error"]) == (1, shown["error"])


def test_a_prompt_to_a_waiting_session_as_json_has_the_same_shape(tmp_path: Path) -> None:
    asking.make_team(tmp_path)
    asking.parked(tmp_path, "name")
    done = upcall("run", "team:manager", "again", "--id", "s1", "--json", cwd=tmp_path)
    shown = msgspec.json.decode(done.stdout)
    assert (done.returncode, shown["status"], shown["error"], shown["limit"]) == (3, "waiting", None, "")
    assert shown["usage"]["output_tokens"] == 0


LEAVES = "def {0}:\n    'Leave.'\n    raise SystemExit(3)\n"


@pytest.mark.parametrize(
    ("where", "program"),
    [
        ("play.py", "raise SystemExit(3)\n"),
        ("play.py", f"{LEAVES.format('play(request)')}script = play\n"),
        ("sums.py", "raise SystemExit(3)\n"),
    ],
)
def test_code_that_leaves_with_3_is_a_failure_and_not_a_wait(where: str, program: str, folder: Path) -> None:
    (folder / "agents" / where).write_text(program)
    helper = folder / "agents" / "helper.md"
    helper.write_text(helper.read_text().replace("[sums:add, sums:wait, sums:block]", "[sums:add]"))
    done = upcall("run", "agents", "add them", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("upcall: ")


def test_a_limit_is_exit_code_1_and_is_named(folder: Path) -> None:
    (folder / "limited.py").write_text(
        "from upcall import Agent, Limits, tool\nfrom upcall.models import Script, call\n"
        "@tool\ndef again() -> str:\n    'Again.'\n    return 'again'\n"
        "agent = Agent('limited', model=Script(lambda r: call('again')), tools=[again],"
        " limits=Limits(model_calls=3))\n"
    )
    done = upcall("run", "limited:agent", "go", "--id", "s1", cwd=folder)
    assert done.returncode == 1
    assert "limit model_calls" in done.stderr
    assert out("show", "s1", cwd=folder)["status"] == "limit"


def test_a_stack_trace_is_shown_to_whoever_asks_for_it(folder: Path) -> None:
    assert "Traceback" in upcall("run", "agents", "crash", "--trace", cwd=folder).stderr


@pytest.mark.slow
def test_nothing_that_a_model_wrote_steers_the_terminal(folder: Path) -> None:
    upcall("run", "agents", "escape", "--id", "s1", cwd=folder)
    for args in (
        ["run", "agents", "escape"],
        ["show", "s1"],
        ["events", "s1"],
        ["sessions"],
        ["show", "s1", "--json"],
    ):
        shown = upcall(*args, cwd=folder).stdout
        assert "alarm" in shown
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
    text = out("show", "s1", cwd=folder)["text"]
    assert text.startswith("red \x1b[31malarm")


# --- the log ----------------------------------------------------------------------------


def test_the_log_is_in_a_folder_that_nobody_else_reads(folder: Path) -> None:
    upcall("run", "agents", "hello", cwd=folder)
    home = folder / ".upcall"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "log.db").stat().st_mode) == 0o600
    assert (home / ".gitignore").read_text() == "*\n"


@pytest.mark.slow
def test_the_store_is_the_option_then_the_variable(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "by-variable", cwd=folder, UPCALL_STORE="one.db")
    upcall("run", "agents", "hello", "--id", "by-option", "--store", "two.db", cwd=folder, UPCALL_STORE="one.db")

    assert [one["id"] for one in out("sessions", "--store", "one.db", cwd=folder)] == ["by-variable"]
    assert [one["id"] for one in out("sessions", "--store", "two.db", cwd=folder)] == ["by-option"]
    assert not (folder / ".upcall").exists()


def test_a_file_that_is_no_log_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("my notes")
    done = upcall("sessions", "--store", "notes.db", cwd=tmp_path)
    assert done.returncode == 1
    assert "not an SQLite database; it was not changed" in done.stderr
    assert (tmp_path / "notes.db").read_text() == "my notes"


# --- sessions and show ------------------------------------------------------------------


@pytest.mark.slow
def test_sessions_and_show_have_the_same_shape(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "s1", cwd=folder)
    upcall("run", "agents", "fail", "--id", "s2", cwd=folder)

    listed = out("sessions", cwd=folder)

    assert [one["id"] for one in listed] == ["s2", "s1"]
    assert listed[1] == out("show", "s1", cwd=folder)
    assert listed[1] == {
        "id": "s1", "agent": "helper", "status": "done", "text": "You said: hello", "parent": None, "children": [],
        "callbacks": [], "tags": {}, "data": {}, "title": "", "folder": None, "roots": [],
    }  # fmt: skip
    assert len(out("sessions", "--limit", "1", cwd=folder)) == 1
    assert upcall("sessions", "--ids", cwd=folder).stdout == "s2\ns1\n"
    assert upcall("sessions", "--ids", "--before", "s2", cwd=folder).stdout == "s1\n"


def test_sessions_in_a_pipe_are_plain_aligned_columns(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "s1", cwd=folder)
    head, row = upcall("sessions", cwd=folder).stdout.splitlines()
    assert head.split() == ["SESSION", "AGENT", "STATUS", "CHANGED", "LAST", "REPLY"]
    assert row.index("You said: hello") == head.index("LAST REPLY")


def test_show_tells_the_conversation_the_calls_and_the_end(folder: Path) -> None:
    upcall("run", "agents", "add them", "--id", "s1", cwd=folder)
    shown = upcall("show", "s1", cwd=folder).stdout
    for part in ("session s1", "status       done", "› add them", "I'll add.", "The tools said: 3 / 7"):
        assert part in shown
    assert re.search(r"✓ add  a=1 b=2 +ok \d+ ms\n  → 3\n", shown)
    assert re.search(r"done · 2 model calls · 2 tool calls · \d+ ms", shown)


@pytest.mark.slow
def test_children_are_listed_below_their_parent(folder: Path) -> None:
    (folder / "family.py").write_text(
        "from upcall import Agent, Hooks\nfrom upcall.models import Script\n"
        "low = Agent('low', model=Script(lambda r: 'from below'))\n"
        "async def ask(session, reply):\n    return (await session.start_child(low, 'help')).text\n"
        "top = Agent('top', model=Script(lambda r: 'from above'), agents=[low], hooks=Hooks(end_turn=[ask]))\n"
    )
    assert upcall("run", "family:top", "go", "--id", "s1", cwd=folder).stdout == "from below\n"

    (child,) = out("show", "s1", cwd=folder)["children"]
    shown = upcall("show", "s1", cwd=folder).stdout

    assert out("show", child, cwd=folder)["parent"] == "s1"
    assert f"{child}  low  done" in shown
    assert "↳ hook end_turn changed the reply:" in shown
    rows = upcall("sessions", cwd=folder).stdout.splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["s1", child]
    assert rows[2].startswith("  ")


def test_an_unknown_session_is_told(folder: Path) -> None:
    upcall("run", "agents", "hello", cwd=folder)
    for args in (
        ["show", "x"],
        ["events", "x"],
        ["resume", "x"],
        ["cancel", "x"],
        ["sessions", "delete", "x", "--yes"],
    ):
        done = upcall(*args, cwd=folder)
        assert done.returncode == 1
        assert done.stderr == "upcall: there is no session called 'x'; `upcall sessions` lists the sessions\n"


def test_deleting_needs_a_yes_where_nobody_can_be_asked(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "s1", cwd=folder)
    upcall("run", "agents", "hello", "--id", "s2", cwd=folder)

    refused = upcall("sessions", "delete", "s1", cwd=folder)
    assert refused.returncode == 2
    assert "give --yes" in refused.stderr

    done = upcall("sessions", "delete", "s1", "--yes", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "deleted 1 session\n")
    assert [one["id"] for one in out("sessions", cwd=folder)] == ["s2"]


def test_pruning_deletes_only_what_is_old(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "s1", cwd=folder)
    assert upcall("sessions", "prune", "--older-than", "1", "--yes", cwd=folder).stderr == "nothing to delete\n"
    assert upcall("sessions", "prune", "--older-than", "0", cwd=folder).returncode == 2
    assert upcall("sessions", "prune", "--older-than", "0", "--yes", cwd=folder).stderr == "deleted 1 session\n"
    assert out("sessions", cwd=folder) == []


def test_pruning_leaves_what_has_not_ended(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "ended", cwd=folder)
    upcall("submit", "agents", "hello", "--id", "queued", cwd=folder)
    assert upcall("sessions", "prune", "--older-than", "0", "--yes", cwd=folder).stderr == "deleted 1 session\n"
    assert [one["id"] for one in out("sessions", cwd=folder)] == ["queued"]


# --- events -----------------------------------------------------------------------------


def test_events_are_json_lines_with_the_four_stamps_first(folder: Path) -> None:
    upcall("run", "agents", "add them", "--id", "s1", cwd=folder)
    upcall("run", "agents", "hello", "--id", "s2", cwd=folder)

    events = [msgspec.json.decode(row) for row in upcall("events", "s1", "--json", cwd=folder).stdout.splitlines()]
    later = upcall("events", "s1", "--json", "--after", "3", cwd=folder).stdout.splitlines()
    everything = upcall("events", "--json", cwd=folder).stdout.splitlines()

    assert all(list(event)[:4] == ["session", "seq", "time", "type"] for event in events)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "turn_ended"
    assert len(later) == len(events) - 3
    assert len(everything) > len(events)
    assert {msgspec.json.decode(row)["session"] for row in everything} == {"s1", "s2"}


def test_events_in_a_pipe_are_one_whole_line_each(folder: Path) -> None:
    prompt = "say " + "x" * 500 + " end"
    upcall("run", "agents", prompt, "--id", "s1", cwd=folder)
    upcall("run", "agents", "add them", "--id", "s1", cwd=folder)
    rows = upcall("events", "s1", cwd=folder, COLUMNS="60").stdout.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3}  ", row) for row in rows)
    (prompted,) = [row for row in rows if " turn_started " in row and prompt[:40] in row]
    assert prompt in prompted
    assert not any("…" in row for row in rows)


# --- check and explain ------------------------------------------------------------------


def test_check_is_silent_about_good_files_and_counts_them(folder: Path) -> None:
    done = upcall("check", "agents", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "1 agent, 0 errors, 0 warnings\n")


def test_check_tells_every_mistake_with_exit_code_1(folder: Path) -> None:
    (folder / "agents" / "helper.md").write_text(
        "---\nmodel: script:play.py\ntools: [sums:nothing, nowhere:add]\n---\nHi.\n"
    )
    (folder / "agents" / "other.md").write_text("---\nmodle: x\n---\nHi.\n")

    done = upcall("check", "agents", cwd=folder)
    problems = msgspec.json.decode(upcall("check", "agents", "--json", cwd=folder).stdout)

    assert done.returncode == 1
    assert "error    agents/other.md:2: modle: unknown key" in done.stdout
    assert "agents/helper.md:3: tools: sums:nothing: " in done.stdout
    assert "there is no module 'nowhere'" in done.stdout
    assert done.stdout.endswith("1 agent, 3 errors, 1 warning\n")
    assert [problem["severity"] for problem in problems].count("error") == 3
    assert set(problems[0]) == {"severity", "file", "line", "key", "text"}


def test_check_of_nothing_is_an_error(tmp_path: Path) -> None:
    done = upcall("check", "nowhere", cwd=tmp_path)
    assert done.returncode == 1
    assert "neither a folder of agent files nor an agent's .md file: there is no such file" in done.stdout


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("gpt-6", "3: model: 'gpt-6' is not a valid model name; write provider:model"),
        ("script:paly.py", "3: model: there is no file agents/paly.py. Did you mean play.py?"),
        ("opnai:gpt-6", "3: model: unknown provider 'opnai'; did you mean openai:gpt-6?"),
    ],
)
def test_check_finds_a_model_that_could_never_be_asked(model: str, says: str, folder: Path) -> None:
    file = folder / "agents" / "helper.md"
    file.write_text(file.read_text().replace("script:play.py", model))
    assert f"error    agents/helper.md:{says}" in upcall("check", "agents", cwd=folder).stdout


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("program:agent", "agents declared in Python are checked when"),
        ("agents/play.py", "agents declared in Python are checked when"),
        ("agents/helper.json", "it belongs to agents/helper.md"),
    ],
)
def test_check_of_what_is_no_agent_file_says_what_to_check(place: str, says: str, folder: Path) -> None:
    assert says in upcall("check", place, cwd=folder).stdout


def make_team(folder: Path) -> None:
    team = folder / "team"
    team.mkdir()
    for name, below, rights in [
        ("manager", "[lead]", "true"),
        ("lead", "[developer]", "false"),
        ("developer", "[]", "false"),
    ]:
        (team / f"{name}.md").write_text(f"---\nagents: {below}\n---\nYou are {name}.\n")
        rest = (
            '"callback_policy": {"passthrough_child_callbacks": true}'
            if name == "lead"
            else '"callback_policy": {}'
        )
        (team / f"{name}.json").write_text(
            f'{{"can_query_caller": true, "can_use_host_interaction": {rights}, {rest}}}'
        )


def test_explain_draws_the_way_that_the_declarations_make(tmp_path: Path) -> None:
    make_team(tmp_path)
    drawn = upcall("explain", "team/developer.md", "callback_to_caller", "blocker", cwd=tmp_path).stdout
    rows = drawn.splitlines()
    assert rows[0] == "developer raises: blocker, callback_to_caller"
    assert rows[1].startswith("├─ lead        skipped: lead.json has callback_policy.passthrough_child_callbacks")
    assert rows[2].startswith("├─ manager     asked: hop 1")
    assert rows[3].startswith("└─ the person  asked: manager may ask a person")


def test_explain_takes_the_agents_above_from_the_top_down_or_as_declared(tmp_path: Path) -> None:
    make_team(tmp_path)
    args = ("explain", "team", "callback_to_caller", "query", "--agent", "developer", "--under")
    down, up = (upcall(*args, names, cwd=tmp_path).stdout for names in ("manager,lead", "lead,manager"))
    alone = upcall(*args, "manager", cwd=tmp_path).stdout
    assert down == up
    assert "lead" not in alone
    assert upcall(*args, "nobody", cwd=tmp_path).returncode == 2


def test_explain_an_approval_as_the_gate_before_a_tool_raises_it(tmp_path: Path) -> None:
    make_team(tmp_path)
    drawn = upcall(
        "explain", "team", "callback_to_caller", "approval", "--agent", "developer", "--under", "lead", cwd=tmp_path
    ).stdout
    assert "an approval may always reach a person" in drawn


# --- chat in a pipe ---------------------------------------------------------------------


def test_chat_in_a_pipe_answers_line_by_line_in_one_session(folder: Path) -> None:
    done = upcall("chat", "agents", "--id", "s1", cwd=folder, given="hello\n\nadd them\nlast")
    assert done.stdout == "You said: hello\nThe tools said: 3 / 7\nYou said: last\n"
    assert (done.returncode, done.stderr) == (0, "")
    assert out("show", "s1", cwd=folder)["text"] == "You said: last"


def test_chat_in_a_pipe_continues_after_a_turn_that_failed(folder: Path) -> None:
    done = upcall("chat", "agents", cwd=folder, given="fail\nhello\n")
    assert done.stdout == "You said: hello\n"
    assert done.stderr == "upcall: script: the line is dead (tried 1 time)\n"
    assert done.returncode == 1


# --- the demo ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_demo_in_a_pipe_parks_answers_itself_and_continues_in_a_second_process(tmp_path: Path) -> None:
    done = upcall("demo", cwd=tmp_path, TMPDIR=str(tmp_path), NO_COLOR="1")
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        '│   ↳ answered by manager (agent): "yes"\n',
        "│   ↳ manager passed it up: a matter of taste",
        "$ upcall inbox\n",
        "┃   1  green\n",
        "┃               print(write_page(page, colour))\n",
        "$ upcall resume demo\nThe sign-in page is ready: 2 tasks are done, 2 questions were settled.\n",
        "  ├─ developer01 · done · Build the service\n",
        "  │       ↳ manager (agent) answered: yes\n",
        "(person) answered: green\n",
    ):
        assert part in done.stdout
    assert re.search(r"\$ upcall answer q\w+ green\nq\w+ answered: green\n", done.stdout)
    assert max(len(row) for row in done.stdout.splitlines() if "/" not in row) <= 80

    (folder,) = tmp_path.glob("upcall-demo-*")
    pages = {page.stem: page.read_text() for page in folder.glob("*.html")}
    colours = {"Home": "grey", "Sign in": "green", "Help": "grey"}
    assert pages == {page: f"<button class={colour}>{page}</button>\n" for page, colour in colours.items()}
    printed = [row.split() for row in done.stdout.splitlines() if row.startswith("  upcall ")]
    assert [row[1] for row in printed] == ["show", "tree", "explain", "events"]
    for row in printed:
        again = upcall(*row[1:], cwd=folder)
        assert again.returncode == 0
        assert "manager" in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize("own", ["the script", "python -m"])
def test_what_is_printed_to_be_typed_can_be_pasted_where_no_shell_finds_the_command(
    own: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*([SCRIPT] if own == "the script" else COMMAND), "demo"],
        cwd=tmp_path, env=environment(PATH="/usr/bin:/bin", TMPDIR=str(tmp_path)), capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    (folder,) = tmp_path.glob("upcall-demo-*")
    printed = [row.strip() for row in done.stdout.splitlines() if row.startswith(f"  {SCRIPT} ")]
    assert [row.split()[1] for row in printed] == ["show", "tree", "explain", "events"]
    for row in printed:
        subprocess.run(row, shell=True, cwd=folder, env=environment(PATH="/usr/bin:/bin"), timeout=60, check=True)
    assert f"$ {SCRIPT} resume demo\n" in done.stdout
    assert f"continue with: {SCRIPT} resume demo\n" in done.stdout


@pytest.mark.slow
def test_the_demo_takes_little_work_and_its_program_can_be_run_again_by_hand(tmp_path: Path) -> None:
    before = os.times()
    subprocess.run(
        [SCRIPT, "demo"], cwd=tmp_path, env=environment(TMPDIR=str(tmp_path)), stdin=subprocess.DEVNULL,
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert 0 < spent < 10  # seconds of all its processes: those on the wall depend on who else works here

    (folder,) = tmp_path.glob("upcall-demo-*")
    assert upcall("run", "shop:team", "Build the sign-in page", cwd=folder).returncode == 3


@pytest.mark.slow
def test_the_demo_can_keep_its_log_where_it_is_told_to(tmp_path: Path) -> None:
    for _ in range(2):
        assert upcall("demo", "--store", "kept.db", cwd=tmp_path).returncode == 0
    kept = out("sessions", "--store", "kept.db", cwd=tmp_path)
    assert [one["status"] for one in kept if not one["parent"]] == ["done", "done"]


# --- the command as it is installed -----------------------------------------------------


@pytest.mark.slow
def test_every_command_works_as_it_is_installed(folder: Path) -> None:
    typed = [
        "new agent made", "check made", "run agents hello --id s1", "chat agents --id s1", "resume s1", "cancel s1",
        "inbox", "sessions", "show s1", "events s1", "explain agents callback_to_caller query", "completion bash",
        "tree s1", "answer q1 yes", "adopt .upcall/log.db", "help run", "version", "audit", "tokens list",
        "submit agents hello --id s2", "status s2", "worker --agents agents --once",
    ]  # fmt: skip
    errors = {
        words.split()[0]: subprocess.run(
            [SCRIPT, *words.split()], cwd=folder, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=60, check=not words.startswith("answer"),
        ).stderr
        for words in typed
    }  # fmt: skip
    elsewhere = ["demo", "serve", "acp", "mcp"]  # started above, in tests/web, tests/editor and tests/mcp_server
    assert sorted([*errors, *elsewhere]) == sorted(COMMANDS)
    assert errors.pop("answer").startswith("upcall: there is no callback called 'q1'")
    assert errors.pop("cancel") == "nothing to cancel: session s1 is done\n"
    assert errors.pop("adopt") == ".upcall/log.db is already your log; nothing was changed\n"
    assert re.fullmatch(r"worker on \S+/log\.db with the agents [\w, ]+\n", errors.pop("worker"))
    assert set(errors.values()) == {""}


# --- help and wrong usage ---------------------------------------------------------------


@pytest.mark.parametrize("command", slow_after(6, [*COMMANDS, "sessions delete", "sessions prune", "tokens new"]))
def test_every_command_explains_itself_with_an_example(command: str, tmp_path: Path) -> None:
    done = upcall(*command.split(), "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "examples:\n" in done.stdout
    assert f"upcall {command}" in done.stdout.partition("examples:")[2]
    assert "--store" in done.stdout
    assert max(len(row) for row in done.stdout.splitlines()) <= 90


def test_the_help_lists_every_command(tmp_path: Path) -> None:
    done = upcall("--help", cwd=tmp_path)
    assert done.returncode == 0
    listed = re.findall(r"^  ([a-z]+)  +\S", done.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    assert upcall("--version", cwd=tmp_path).stdout.startswith("upcall ")


@pytest.mark.slow
def test_help_and_version_are_commands_too(tmp_path: Path) -> None:
    assert upcall("help", cwd=tmp_path).stdout == upcall("--help", cwd=tmp_path).stdout
    assert upcall("version", cwd=tmp_path).stdout == upcall("--version", cwd=tmp_path).stdout
    for command in (["run"], ["sessions"], ["sessions", "delete"], ["help"]):
        done = upcall("help", *command, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, upcall(*command, "--help", cwd=tmp_path).stdout)
    unknown = upcall("help", "rnu", cwd=tmp_path)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.startswith("upcall: unknown command 'rnu'. Did you mean 'run'?")


@pytest.mark.parametrize(
    "args",
    slow_after(10, [
        [], ["nonsense"], ["run"], ["run", "agents"], ["run", "agents", "x", "--nonsense"], ["run", "agents", " "],
        ["run", "nowhere", "x"], ["run", "agents", "x", "--agent", "nobody"], ["show"],
        ["sessions", "--limit", "0"], ["events", "--after", "x"],
        ["sessions", "prune", "--older-than", "soon", "--yes"], ["sessions", "prune"],
        ["explain", "agents", "no_such_kind", "query"], ["completion", "tcsh"], ["run", "agents", "x", "--js"],
        ["new"], ["new", "chain", "x"], ["new", "team", "../x"], ["new", "team", "manager"],
        ["new", "agent", "user"], ["new", "agent", "agents"], ["new", "agent", "upcall.json/x"],
    ]),
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_exit_code_2_and_says_what_would_be_right(args: list[str], folder: Path) -> None:
    done = upcall(*args, cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(("upcall", "usage: upcall"))
    assert not (folder / ".upcall").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    slow_after(6, [
        (["rnu", "agents"], "upcall: unknown command 'rnu'. Did you mean 'run'?"),
        (
            ["run", "agents", "x", "--agents", "y"],
            "upcall run: unknown option --agents. Did you mean '--agent'?\n",
        ),
        (
            ["sessions", "prune", "--older-than", "1", "--yse"],
            "upcall sessions prune: unknown option --yse. Did",
        ),
        (
            ["run", "agents", "add", "them"],
            "upcall run: unexpected argument 'them'; put quotes around text with",
        ),
        (
            ["run", "agents", "x", "--agent", "helpr"],
            "upcall: there is no agent called 'helpr'; known agents: helper. Choose",
        ),
        (["--verson"], "upcall: unknown option --verson. Did you mean '--version'?\n"),
        (["sessions", "c1"], "upcall sessions: unknown value 'c1'. Use one of delete, prune\n"),
        (["demo", "--nope"], "upcall demo: unknown option --nope.\n"),
        (["completion"], "upcall completion: the following arguments are required: bash|zsh|fish\n"),
        (["explain", "agents/helper.md"], "upcall explain agents/helper.md callback_to_caller blocker\n"),
        (["explain", "agents", "error"], "upcall explain agents callback_to_caller error\n"),
        (["explain", "agents", "query", "request_user_input"], "upcall explain agents request_user_input query\n"),
        (
            ["explain", "agents", "callback_to_calller", "query"],
            "unknown kind 'callback_to_calller'. Did you mean:\n  upcall explain agents callback_to_caller query\n",
        ),
        (
            ["explain", "agents", "request-user-input", "preference"],
            "Did you mean:\n  upcall explain agents request_user_input preference\n",
        ),
        (["explain", "agents", "user_input"], "upcall explain agents callback_to_caller user_input\n"),
        (
            ["explain", "agents", "request_user"],
            "Did you mean:\n  upcall explain agents request_user_input blocker\n",
        ),
        (
            ["explain", "agents", "whoever", "error"],
            "unknown kind 'whoever'. For example:\n  upcall explain agents callback_to_caller error\n",
        ),
        (
            ["explain", "agnets", "callback_to_caller", "query"],
            "'agnets' is not an agent: no such folder or file.",
        ),
        (["explain", "agents/helpr.md"], "no such folder or file. Did you mean agents/helper.md?"),
    ]),
)  # fmt: skip
def test_what_is_misspelt_is_told_with_what_may_be_meant(args: list[str], says: str, folder: Path) -> None:
    done = upcall(*args, cwd=folder)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_file_that_can_not_be_written_is_told_by_its_name(folder: Path) -> None:
    done = upcall("run", "agents", "x", "--events-file", "nowhere/x.jsonl", cwd=folder)
    assert (done.returncode, done.stderr) == (1, "upcall: nowhere/x.jsonl: No such file or directory\n")


def test_a_broken_agent_file_is_told_with_file_and_line(folder: Path) -> None:
    (folder / "agents" / "helper.md").write_text("---\nmodle: x\n---\nHi.\n")
    done = upcall("run", "agents", "x", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.startswith("upcall: agents/helper.md:2: modle: unknown key")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_is_closed_from_the_start_is_no_stack_trace(closed: str, folder: Path) -> None:
    command = shlex.join([*COMMAND, "run", "agents", "add them"])
    done = subprocess.run(
        f"{command} {closed}",
        shell=True,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "The tools said: 3 / 7\n" * (closed != ">&-"), "")


# --- completion -------------------------------------------------------------------------


def complete(folder: Path, *typed: str) -> list[set[str]]:
    """What bash offers at the end of each of these lines."""
    (folder / "upcall").write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    (folder / "upcall").chmod(0o755)
    script = "source <(upcall completion bash); for line; do IFS=' ' read -ra COMP_WORDS <<< \"upcall ${line% }\"; "
    script += '[[ $line == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _upcall; '
    script += 'echo "${COMPREPLY[*]}"; done'
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script, "bash", *typed],
        cwd=folder, env=environment(PATH=path), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return [set(row.split()) for row in done.stdout.split("\n")[:-1]]


@pytest.mark.slow
def test_bash_completes_commands_options_and_session_ids(folder: Path) -> None:
    upcall("run", "agents", "hello", "--id", "my-session", cwd=folder)
    *found, options = complete(folder, "se", "new ", "show my", "run agents --id ", "events --")
    assert found == [{"sessions", "serve"}, {"agent", "team"}, {"my-session"}, {"my-session"}]
    assert {"--follow", "--after", "--json"} <= options


@pytest.mark.slow
def test_bash_completes_the_ids_of_callbacks_that_wait(tmp_path: Path) -> None:
    (entry,) = asking.parked(asking.make_team(tmp_path), "paint")
    *found, files = complete(tmp_path, "answer q", "explain q", "answer x", "explain t")
    assert found == [{entry["id"]}, {entry["id"]}, set()]
    assert "team.py" in files


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_names_every_command(shell: str, tmp_path: Path) -> None:
    done = upcall("completion", shell, cwd=tmp_path)
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)
