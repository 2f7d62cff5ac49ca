"""Questions in the inbox and answers from other processes: what is shown, taken, refused, and how work goes on."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cli.asking import make_team, parked
from cli.command import eventually, out, start, upcall
from quick import slow_after

ME = pwd.getpwuid(os.getuid()).pw_name
FIELDS = [
    "id", "session_id", "agent", "message", "intent", "kind", "priority", "choices", "schema", "context", "tool",
    "args", "digest", "created", "expires", "path", "status", "answer", "group", "reworded", "problem", "given",
    "tags", "patterns", "covers", "delivered",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_team(tmp_path)


# --- the inbox --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_inbox_as_json_lists_callbacks_by_priority_with_all_their_fields(folder: Path) -> None:
    first, *rest = parked(folder, "many")

    assert list(first) == FIELDS
    assert (first["message"], first["priority"], first["choices"]) == (
        "Which colour?",
        "high",
        ["red", "dark blue"],
    )
    assert first["session_id"] == "s1~r1c0"
    assert first["context"] == {"task": "many", "tool": "paint", "arguments": {}, "tried": "green"}
    assert [(step["agent"], step["step"]) for step in first["path"]] == [
        ("manager", "asked"), ("manager", "passed"), ("user", "asked"),
    ]  # fmt: skip
    assert [one["created"] for one in rest] == sorted(one["created"] for one in rest)
    (approval,) = [one for one in rest if one["intent"] == "approval"]
    assert (approval["tool"], approval["args"]) == ("deploy", {"env": "prod"})


@pytest.mark.slow
def test_the_inbox_shows_who_asks_what_for_its_way_and_what_to_type(folder: Path) -> None:
    first, *_ = parked(folder, "many")
    shown = upcall("inbox", cwd=folder).stdout
    for part in (
        "┃ developer asks · blocker · high",
        "┃ │ Which colour?\n┃   1  red\n┃   2  dark blue\n",
        "┃ task      many\n",
        "┃ route     manager passed it up: not mine to say\n",
        "┃ why you   developer may ask a person",
        f"upcall answer {first['id']} red\n",
        "┃ developer wants to run deploy",
        '┃   env = "prod"\n',
        "3 questions wait",
    ):
        assert part in shown
    assert max(len(row) for row in shown.splitlines()) <= 80
    limited = upcall("inbox", "--limit", "1", cwd=folder).stdout
    assert "2 more with --limit 3" in limited
    assert limited.count("answer  ") == 1


@pytest.mark.slow
def test_an_inbox_where_nothing_waits_says_so(folder: Path) -> None:
    (entry,) = parked(folder, "name")
    upcall("answer", entry["id"], "Otto", cwd=folder)
    assert upcall("inbox", cwd=folder).stdout == "Nothing waits for an answer.\n"
    assert out("inbox", cwd=folder) == []


@pytest.mark.slow
def test_equal_questions_are_one_entry_and_one_answer_settles_all(folder: Path) -> None:
    (entry,) = parked(folder, "three name")
    assert len(entry["group"]) == 3
    assert "2 more like it" in upcall("inbox", cwd=folder).stdout
    waiting = upcall("resume", "s1", cwd=folder)
    assert waiting.returncode == 3
    assert "is waiting for 1 answer\n" in waiting.stderr
    assert "What is it called? (and 2 equal questions)\n" in waiting.stderr

    done = upcall("answer", entry["id"], "Otto", cwd=folder)

    assert done.returncode == 0
    assert "and 2 equal questions with it" in done.stdout
    assert upcall("resume", "s1", cwd=folder).stdout == "called Otto | called Otto | called Otto\n"


@pytest.mark.slow
def test_only_one_of_several_equal_questions_is_answered_if_so_wanted(folder: Path) -> None:
    (entry,) = parked(folder, "three name")
    settled = out("answer", entry["id"], "Otto", "--only", cwd=folder)
    assert settled["answer"]["value"] == "Otto"
    (left,) = out("inbox", cwd=folder)
    assert len(left["group"]) == 2
    assert upcall("resume", "s1", cwd=folder).returncode == 3


@pytest.mark.slow
def test_what_an_agent_wrote_into_a_question_steers_no_terminal(folder: Path) -> None:
    program = (folder / "team.py").read_text()
    evil = "Which \\x1b[31mcolour\\u202e?"
    (folder / "team.py").write_text(program.replace("Which colour?", evil))
    parked(folder, "paint")
    shown = upcall("inbox", cwd=folder).stdout + upcall("inbox", "--json", cwd=folder).stdout
    assert "colour" in shown
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)


# --- answers ----------------------------------------------------------------------------


@pytest.mark.slow
def test_an_answer_is_given_by_the_systems_user_and_says_how_to_continue(folder: Path) -> None:
    (entry,) = parked(folder, "name")
    done = upcall("answer", entry["id"], "Otto", cwd=folder)
    assert done.stdout == f"{entry['id']} answered: Otto\ncontinue with: upcall resume s1\n"
    (settled,) = out("show", "s1", cwd=folder)["callbacks"]
    assert list(settled) == FIELDS
    answer = settled["answer"]
    assert (answer["value"], answer["by"], answer["right"]) == ("Otto", ME, "os-user")


@pytest.mark.slow
def test_who_is_named_with_by_is_only_asserted(folder: Path) -> None:
    (entry,) = parked(folder, "name")
    settled = out("answer", entry["id"], "Otto", "--by", "ops", cwd=folder)
    assert (settled["answer"]["by"], settled["answer"]["right"]) == ("ops", "asserted")


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "means"), [("2", "dark blue"), ("dark blue", "dark blue"), ("RED", "red")])
def test_a_choice_is_named_by_number_or_text(typed: str, means: str, folder: Path) -> None:
    (entry,) = parked(folder, "paint")
    assert out("answer", entry["id"], typed, cwd=folder)["answer"]["value"] == means


@pytest.mark.slow
def test_a_typed_answer_is_json_and_is_read_from_a_pipe_too(folder: Path) -> None:
    (entry,) = parked(folder, "book")
    wrong = upcall("answer", entry["id"], '{"guests": 0, "area": "inside"}', cwd=folder)
    assert wrong.returncode == 1
    assert wrong.stderr.startswith(f"upcall: callback {entry['id']} stays open: ")
    assert "guests must be bigger than or equal to 1. Answer again: " in wrong.stderr
    no_json = upcall("answer", entry["id"], "{guests", cwd=folder).stderr
    assert no_json.endswith(
        "'{guests' is not a valid answer: not valid JSON; expected JSON object. Answer again: "
        f'upcall answer {entry["id"]} \'{{"guests": …, "area": …}}\'\n'
    )
    piped = upcall("answer", entry["id"], cwd=folder, given='{"guests": 2, "area": "inside"}\n')
    assert piped.returncode == 0
    assert upcall("resume", "s1", cwd=folder).stdout == "booked {'guests': 2, 'area': 'inside'}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "says", "deployed"),
    slow_after(
        4,
        [
            (["--approve"], "deployed prod", "prod False\n"),
            (["--reject", "not on a Friday"], "deploy was not run: rejected by", ""),
            (["--set", "env=staging"], "deployed staging", "staging False\n"),
            (["--edit", "args.json"], "deployed staging", "staging True\n"),
            (["--edit", '{"env": "staging", "force": true}'], "deployed staging", "staging True\n"),
            (["--edit", ' {"env": "staging"}'], "deployed staging", "staging False\n"),
            (["--set", "force=true", "--set", "env=a=b"], "deployed a=b", "a=b True\n"),
            (["--set", "force=true"], "deployed prod", "prod True\n"),
            (["--set", "env=5"], "deployed 5", "5 False\n"),
            (["--set", 'env="5"'], "deployed 5", "5 False\n"),
            (["--set", "env="], "deployed", " False\n"),
        ],
    ),
)
def test_a_call_is_approved_edited_or_rejected(args: list[str], says: str, deployed: str, folder: Path) -> None:
    (folder / "args.json").write_text('{"env": "staging", "force": true}')
    (entry,) = parked(folder, "deploy")
    assert upcall("answer", entry["id"], *args, cwd=folder).returncode == 0
    assert says in upcall("resume", "s1", cwd=folder).stdout
    done = folder / "deployed.txt"
    assert (done.read_text() if done.exists() else "") == deployed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "typed"),
    [([], "yes\n"), ([], "y\n"), ([], "no\n"), (["yes"], ""), (["approve"], ""), (["-"], "approve\n")],
)
def test_a_word_approves_no_call(args: list[str], typed: str, folder: Path) -> None:
    (entry,) = parked(folder, "deploy")
    done = upcall("answer", entry["id"], *args, cwd=folder, given=typed)
    assert (done.returncode, done.stdout) == (1, "")
    assert "it asks for approval of deploy; use --approve" in done.stderr
    assert out("inbox", cwd=folder) == [entry]
    assert not (folder / "deployed.txt").exists()


@pytest.mark.slow
def test_the_inbox_shows_how_to_approve_edit_and_reject_a_call(folder: Path) -> None:
    (entry,) = parked(folder, "deploy")
    shown = upcall("inbox", cwd=folder).stdout
    typed = [row.partition("upcall ")[2] for row in shown.splitlines() if " upcall answer " in row]
    assert typed == [
        f"answer {entry['id']} --approve",
        f'answer {entry["id"]} --edit \'{{"env":"prod"}}\'',
        f"answer {entry['id']} --reject 'WHY'",
    ]
    edit = shlex.split(typed[1].replace("prod", "staging"))
    assert upcall(*edit, cwd=folder).returncode == 0
    assert "deployed staging" in upcall("resume", "s1", cwd=folder).stdout


@pytest.mark.slow
def test_arguments_that_are_too_long_for_a_prompt_are_edited_in_a_file(folder: Path) -> None:
    program = (folder / "team.py").read_text()
    (folder / "team.py").write_text(
        program.replace('call("deploy", env="prod")]', 'call("deploy", env="p" * 200)]')
    )
    (entry,) = parked(folder, "deploy")
    assert f"upcall answer {entry['id']} --edit ARGUMENTS.json\n" in upcall("inbox", cwd=folder).stdout


@pytest.mark.slow
def test_an_approval_by_pattern_holds_for_the_session(folder: Path) -> None:
    (entry,) = parked(folder, "deploy")
    refused = upcall("answer", entry["id"], "--pattern", "nonsense", cwd=folder)
    assert "'nonsense' is not a pattern of deploy; the patterns are same place" in refused.stderr
    settled = out("answer", entry["id"], "--pattern", "same place", cwd=folder)
    value = settled["answer"]["value"]
    assert (value["pattern"], value["for_session"]) == ("same place", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "args", "says"),
    slow_after(
        4,
        [
            ("paint", ["purple"], "'purple' is not one of the choices: 'red', 'dark blue'"),
            ("paint", ["--approve"], "it is a question, not an approval"),
            ("deploy", ["perhaps"], "use --approve, --edit JSON, --set NAME=VALUE or --reject WHY"),
            ("deploy", ["yes"], "it asks for approval of deploy; use --approve"),
            ("deploy", ["y"], "use --approve"),
            ("deploy", ["no"], "--reject WHY"),
            ("deploy", ["n"], "--reject WHY"),
            ("deploy", ["true"], "use --approve"),
            ("deploy", ["--edit", "[1]"], "--edit expects the arguments as a JSON object, not [1]"),
            (
                "deploy",
                ["--edit", "{'env': 'x'}"],
                "--edit:1: this is not JSON, at column 2: write keys and texts in double",
            ),
            ("deploy", ["--edit", '{"env": 5}'], "is not a valid answer"),
            ("deploy", ["--edit", "latin.json"], "--edit latin.json: the file is not UTF-8 text"),
            ("deploy", ["--set", "force=perhaps"], "is not a valid answer"),
            (
                "deploy",
                ["--set", "evn=x"],
                "deploy has no argument 'evn'; its arguments are env, force. Did you mean env?",
            ),
            ("paint", ["--set", "colour=red"], "it is a question, not an approval"),
            ("deploy", ["--edit", "wrong.json"], "--edit expects the arguments as a JSON object"),
            (
                "deploy",
                ["--edit", "python.json"],
                "python.json:1: this is not JSON, at column 9: write true, not True",
            ),
            ("deploy", ["--edit", "unfit.json"], "is not a valid answer"),
            (
                "deploy",
                ["--edit", "nowhere.json"],
                "--edit nowhere.json: neither a JSON object nor a file (No such file",
            ),
            ("name", [], "standard input contains no answer"),
        ],
    ),
)
def test_a_refused_answer_is_one_line_and_changes_nothing(
    prompt: str, args: list[str], says: str, folder: Path
) -> None:
    (folder / "wrong.json").write_text("[1]")
    (folder / "python.json").write_text('{"env": True}')
    (folder / "unfit.json").write_text('{"env": 5}')
    (folder / "latin.json").write_bytes(b'{"env": "\xe9"}')
    (entry,) = parked(folder, prompt)
    done = upcall("answer", entry["id"], *args, cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("upcall: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert out("inbox", cwd=folder) == [entry]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "args", "piped", "says"),
    [
        ("deploy", ["--edit", "-"], "[" * 900_000, "standard input: not valid JSON"),
        ("deploy", ["--edit", "-"], "9" * 900_000, "standard input: not valid JSON"),
        ("deploy", ["--edit", "-"], "x" * 1_000_001, "standard input has more than 1000000 characters"),
        ("name", ["-"], "x" * 1_000_001, "standard input has more than 1000000 characters"),
    ],
)
def test_an_answer_from_a_pipe_is_bounded(
    prompt: str, args: list[str], piped: str, says: str, folder: Path
) -> None:
    (entry,) = parked(folder, prompt)

    done = upcall("answer", entry["id"], *args, cwd=folder, given=piped)

    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_prompt_from_a_pipe_is_bounded(folder: Path) -> None:
    done = upcall("run", "team:manager", "-", cwd=folder, given="x" * 4_000_001)

    assert done.returncode != 0
    assert "the prompt has more than 4000000 characters" in done.stderr


@pytest.mark.slow
def test_a_second_answer_is_told_by_whom_and_when_it_was_settled(folder: Path) -> None:
    (entry,) = parked(folder, "name")
    assert upcall("answer", entry["id"], "Otto", "--by", "ops", cwd=folder).returncode == 0
    late = upcall("answer", entry["id"], "Ida", cwd=folder)
    assert late.returncode == 1
    assert re.fullmatch(
        rf"upcall: callback {entry['id']} was answered by ops on \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d.*; "
        r"nothing was changed\n",
        late.stderr,
    )


@pytest.mark.slow
def test_an_unknown_callback_and_a_log_that_is_not_there_are_told(folder: Path) -> None:
    lost = upcall("answer", "qnothing", "x", cwd=folder)
    assert (lost.returncode, lost.stderr.count("\n")) == (1, 1)
    parked(folder, "name")
    lost = upcall("answer", "qnothing", "x", cwd=folder)
    assert lost.returncode == 1
    assert (
        lost.stderr
        == "upcall: there is no callback called 'qnothing'; `upcall inbox` lists those that wait for a person\n"
    )


@pytest.mark.parametrize(
    "args",
    [
        ["q1", "x", "--approve"],
        ["q1", "--approve", "--reject", "no"],
        ["q1", "--reject", "no", "--pattern", "p"],
        ["q1", "x", "--set", "a=1"],
        ["q1", "--edit", "{}", "--set", "a=1"],
        ["q1", "--set", "a=1", "--pattern", "p"],
        ["q1", "--set", "a"],
        ["q1", "--set", "=1"],
        [],
    ],
)
def test_an_answer_that_says_two_things_is_wrong_usage(args: list[str], folder: Path) -> None:
    assert upcall("answer", *args, cwd=folder).returncode == 2


# --- how a run that waits ends ----------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_waits_prints_the_questions_and_the_commands_that_answer_them(folder: Path) -> None:
    done = upcall("run", "team:manager", "many", "--id", "s1", "--store", "other.db", cwd=folder)
    assert (done.returncode, done.stdout) == (3, "")
    assert "upcall: session s1 is waiting for 3 answers\n" in done.stderr
    assert "  developer asks: Which colour?\n" in done.stderr
    commands = [row.split() for row in done.stderr.splitlines() if row.startswith("    upcall answer ")]
    assert len(commands) == 3
    assert done.stderr.endswith("then: upcall resume s1 --store other.db\n")
    for words in commands:
        typed = [word for word in words[1:] if "'" not in word and word != "ANSWER'"]
        typed = [*typed[:2], "Otto", *typed[2:]] if "'YOUR" in words else typed
        assert upcall(*typed, cwd=folder).returncode == 0
    resumed = upcall("resume", "s1", "--store", "other.db", cwd=folder)
    assert (resumed.returncode, resumed.stdout) == (0, "called Otto; painted red; deployed prod\n")


def test_a_piped_chat_that_waits_is_exit_code_3_with_the_command(folder: Path) -> None:
    done = upcall("chat", "team:manager", "--id", "s1", cwd=folder, given="paint\nnever read\n")
    assert (done.returncode, done.stdout) == (3, "")
    assert "upcall answer q" in done.stderr
    again = upcall("chat", "team:manager", "--id", "s1", cwd=folder, given="paint\n")
    assert again.returncode == 3
    assert "upcall answer q" in again.stderr


def test_a_prompt_to_a_session_that_waits_is_exit_code_3_with_the_command(folder: Path) -> None:
    (entry,) = parked(folder, "paint")
    done = upcall("run", "team:manager", "go on", "--id", "s1", cwd=folder)
    assert done.returncode == 3
    assert f"upcall answer {entry['id']} red" in done.stderr


@pytest.mark.slow
def test_a_run_is_mirrored_to_a_file_if_so_wanted(folder: Path) -> None:
    upcall("run", "team:manager", "paint", "--id", "s1", "--events-file", "_events.jsonl", cwd=folder)
    lines = [msgspec.json.decode(row) for row in (folder / "_events.jsonl").read_text().splitlines()]
    (raised,) = [line["data"] for line in lines if line["event_type"] == "AGENT_CALLBACK"]
    assert (raised["from"], raised["to"], raised["type"]) == ("developer", "manager", "blocker")
    (entry,) = out("inbox", cwd=folder)
    upcall("answer", entry["id"], "red", cwd=folder)
    upcall("resume", "s1", "--events-file", "_events.jsonl", cwd=folder)
    assert '"TURN_ENDED"' in (folder / "_events.jsonl").read_text()


# --- explain ----------------------------------------------------------------------------


@pytest.mark.slow
def test_explain_says_that_a_cancel_overtook_an_answer(folder: Path) -> None:
    (entry,) = parked(folder, "name")
    upcall("answer", entry["id"], "Otto", cwd=folder)
    upcall("cancel", "s1", cwd=folder)

    assert "not delivered: the turn had ended (cancelled)" in upcall("explain", entry["id"], cwd=folder).stdout


@pytest.mark.slow
def test_explain_draws_what_became_of_a_callback(folder: Path) -> None:
    (entry,) = parked(folder, "paint")
    before = upcall("explain", entry["id"], cwd=folder).stdout
    assert "manager     passed it up: not mine to say" in before
    assert "└─ the person" in before
    upcall("answer", entry["id"], "red", "--by", "ops", cwd=folder)
    after = upcall("explain", entry["id"], cwd=folder).stdout
    assert after.startswith("│ Which colour?\ndeveloper raises: blocker, callback_to_caller\n")
    assert "└─ ops" in after
    assert re.search(r"answered by ops \(asserted\) on .*: red\n", after)
    assert "not delivered" not in after
    assert upcall("explain", "qnothing", cwd=folder).returncode == 1
    assert upcall("explain", "team:developer", "callback_to_caller", cwd=folder).returncode == 2


# --- going on ---------------------------------------------------------------------------


@pytest.mark.slow
def test_resume_all_takes_what_was_answered_and_leaves_what_waits(folder: Path) -> None:
    for session, prompt in (("s1", "name"), ("s2", "paint"), ("s3", "name")):
        parked(folder, prompt, session)
    for entry in out("inbox", cwd=folder):
        if entry["session_id"].startswith(("s1", "s2")):
            upcall("answer", entry["id"], "1" if entry["choices"] else "Otto", cwd=folder)
    done = upcall("resume", "--all", cwd=folder)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["s1 done: called Otto", "s2 done: painted red"]
    again = upcall("resume", "--all", cwd=folder)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "nothing to resume\n")
    assert [entry["session_id"] for entry in out("inbox", cwd=folder)] == ["s3~r1c0"]


@pytest.mark.slow
def test_resume_all_tells_a_session_whose_agents_are_gone_and_continues_with_the_others(folder: Path) -> None:
    (folder / "lost.py").write_text((folder / "team.py").read_text())
    assert upcall("run", "lost:manager", "name", "--id", "s1", cwd=folder).returncode == 3
    parked(folder, "paint", "s2")
    for entry in out("inbox", cwd=folder):
        upcall("answer", entry["id"], "1", cwd=folder)
    (folder / "lost.py").unlink()
    done = upcall("resume", "--all", cwd=folder)
    assert done.returncode == 1
    assert done.stdout == "s2 done: painted red\n"
    assert "session s1: there is no module 'lost'" in done.stderr


@pytest.mark.slow
def test_resume_all_as_json_tells_a_failed_session_with_its_error(folder: Path) -> None:
    parked(folder, "name")
    (entry,) = out("inbox", cwd=folder)
    upcall("answer", entry["id"], "Otto", cwd=folder)
    program = (folder / "team.py").read_text()
    (folder / "team.py").write_text(program.replace('return " | ".join(results)', 'raise RuntimeError("no more")'))
    done = upcall("resume", "--all", "--json", cwd=folder)
    (row,) = done.stdout.splitlines()
    told = msgspec.json.decode(row)
    assert (done.returncode, told["id"], told["status"], told["limit"]) == (1, "s1", "failed", "")
    assert told["error"] == "RuntimeError: no more"


def listening(folder: Path, processes: int) -> Callable[[], bool]:
    """Whether so many processes wait for what others write."""
    return lambda: len(list(folder.glob(".upcall/log.db-wake/*"))) == processes


@pytest.mark.slow
def test_resume_all_that_follows_continues_as_answers_come_and_idles_cheaply(folder: Path) -> None:
    (entry,) = parked(folder, "name")
    with start("resume", "--all", "--follow", cwd=folder) as following:
        assert following.stdout is not None
        eventually(listening(folder, 1), "it waits")
        before = _cpu(following.pid)
        time.sleep(2.0)
        idle = _cpu(following.pid) - before
        upcall("answer", entry["id"], "Otto", cwd=folder)
        first = following.stdout.readline()
        (second,) = parked(folder, "paint", "s2")
        upcall("answer", second["id"], "red", cwd=folder)
        then = following.stdout.readline()
        following.send_signal(signal.SIGINT)
        _, errors = following.communicate(timeout=30)
    assert (first, then) == ("s1 done: called Otto\n", "s2 done: painted red\n")
    assert (following.returncode, errors) == (130, "")
    assert idle < 0.1, f"{idle:.2f} s of CPU in 2 s"


@pytest.mark.slow
def test_of_two_followers_one_continues_and_the_other_says_nothing(folder: Path) -> None:
    (entry,) = parked(folder, "name")
    with (
        start("resume", "--all", "--follow", cwd=folder) as one,
        start("resume", "--all", "--follow", cwd=folder) as two,
    ):
        eventually(listening(folder, 2), "both wait")
        upcall("answer", entry["id"], "Otto", cwd=folder)
        eventually(lambda: out("show", "s1", cwd=folder)["status"] == "done", "it is done")
        time.sleep(1.0)
        for process in (one, two):
            process.send_signal(signal.SIGINT)
        said = [process.communicate(timeout=30) for process in (one, two)]
    assert sorted(said) == [("", ""), ("s1 done: called Otto\n", "")]


@pytest.mark.parametrize("args", [[], ["s1", "--all"], ["s1", "--follow"]])
def test_resume_wants_one_session_or_all(args: list[str], folder: Path) -> None:
    assert upcall("resume", *args, cwd=folder).returncode == 2


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- declining --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_question_is_declined_with_a_reason_and_every_list_says_so(folder: Path) -> None:
    (entry,) = parked(folder, "name")
    assert f"upcall answer {entry['id']} --decline 'WHY'" in upcall("inbox", cwd=folder).stdout

    declined = upcall("answer", entry["id"], "--decline", "ask legal", cwd=folder)
    assert declined.stdout.startswith(f"{entry['id']} declined: ask legal\n"), declined.stderr

    (listed,) = out("inbox", "--status", "declined", cwd=folder)
    answer = listed["answer"]
    assert (listed["status"], answer["value"], answer["reason"]) == ("declined", None, "ask legal")
    assert (answer["by"], answer["right"]) == (ME, "os-user")
    assert f"answer    declined: ask legal, by {ME} (os-user)" in upcall(
        "inbox", "--status", "declined", cwd=folder
    ).stdout.replace("┃ ", "")
    assert f"declined by {ME} (os-user) on" in upcall("explain", entry["id"], cwd=folder).stdout
    assert f"declined by {ME} (os-user): ask legal" in upcall("show", "s1~r1c0", cwd=folder).stdout
    again = upcall("answer", entry["id"], "Otto", cwd=folder)
    assert again.returncode == 1
    assert f"was declined by {ME} on" in again.stderr
    resumed = upcall("resume", "s1", cwd=folder)
    assert resumed.returncode == 0
    assert "called None" in resumed.stdout


@pytest.mark.slow
def test_an_approval_is_not_declined_and_a_value_does_not_stand_beside_a_reason(folder: Path) -> None:
    (entry,) = parked(folder, "deploy")

    refused = upcall("answer", entry["id"], "--decline", "no", cwd=folder)
    assert refused.returncode == 1
    assert "an approval can be rejected, but not declined" in refused.stderr
    both = upcall("answer", entry["id"], "x", "--decline", "no", cwd=folder)
    assert both.returncode == 2
    assert len(out("inbox", cwd=folder)) == 1
