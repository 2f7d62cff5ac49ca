"""Whatever a model, a tool or a child writes: nothing breaks out of a terminal, a tree or a log file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.command import upcall
from cli.screen import Screen
from pace import within
from upcall import events
from upcall.events import AnyEvent, stamp
from upcall.messages import Call, Message, Result, Text
from upcall.observe import Redactor, RunTreeNodes
from upcall.observe.story import Story

HOSTILE = (
    "\x1b]0;OWNED\x07\x1b[2J\x1b[31mRED\x1b[0m \x9b31m \x1bP+q\x1b\\ \u202eesrever\u202c \u2066iso\u2069 "
    "\u200bzero \x00nul \x08\x08back \r\noverwritten\rgone \ud800 \x7f \u2028sep \U000e0041tag end"
)
"""Sequences that steer a terminal, tricks of direction, invisible letters, NUL and a lone surrogate."""

FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\U000e0000-\U000e007f]"
)

PROGRAM = f"""
from upcall import Agent, Context, Hooks, tool
from upcall.models import Script, call

HOSTILE = {HOSTILE!r}
SAID = HOSTILE.replace(chr(0xD800), "")  # no provider's JSON holds a lone surrogate


@tool
async def look(path: str, more: dict, ctx: Context) -> str:
    '''Look.'''
    ctx.show(HOSTILE)
    if "fail" in path:
        raise ValueError(HOSTILE)
    return HOSTILE


@tool
async def choose(ctx: Context) -> str:
    '''Ask.'''
    return str(await ctx.raise_callback(
        SAID, "query", choices=["yes", SAID], context={{SAID: SAID, "n": [SAID]}}))


def works(request):
    results = [message for message in request.messages if message.role == "tool"]
    match len(results):
        case 0:
            return [SAID, call("look", path=SAID, more={{SAID: SAID}}), call(SAID, x=SAID)]
        case 1:
            return call("look", path="fail " + SAID, more={{}})
        case 2:
            return call("choose")
        case _:
            return "The end. " + SAID


def leads(request):
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason=SAID)
    if any(message.role == "tool" for message in request.messages):
        return "All done. " + SAID
    return call("task", agent="worker", prompt=SAID)


RIGHTS = {{"can_query_caller": True, "can_use_host_interaction": True}}
worker = Agent("worker", model=Script(works), tools=[look, choose], **RIGHTS)
lead = Agent("lead", model=Script(leads), agents=[worker], **RIGHTS)
"""

LOGGED = ("--log-dir", "logs", "--events-file", "_events.jsonl")
COMMANDS = [
    ("inbox",), ("inbox", "--json"), ("sessions",), ("sessions", "--json"), ("show", "s"), ("show", "s~r1c0"),
    ("show", "s", "--json"), ("tree", "s"), ("tree", "s", "--json"), ("events",), ("events", "--json"),
    ("events", "--raw"), ("events", "--raw", "--json"),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose log holds hostile text in every field that a model, a tool or a child can write."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "crew.py").write_text(PROGRAM)
    waits = upcall("run", "crew:lead", "go", "--id", "s", *LOGGED, cwd=folder)
    assert waits.returncode == 3, waits.stderr
    assert_harmless(waits.stdout + waits.stderr)
    (question,) = upcall("inbox", "--ids", cwd=folder).stdout.split()
    assert_harmless(upcall("explain", question, cwd=folder).stdout)
    assert_harmless(upcall("inbox", "--reveal", question, cwd=folder).stdout)
    answered = upcall("answer", question, "2", cwd=folder)
    assert answered.returncode == 0, answered.stderr
    assert_harmless(answered.stdout)
    return folder


def assert_harmless(text: str) -> None:
    found = FORBIDDEN.search(text)
    assert found is None, repr(text[max(found.start() - 60, 0) : found.start() + 60])


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_what_steers_a_terminal(command: tuple[str, ...], place: Path) -> None:
    done = upcall(*command, cwd=place)
    assert done.returncode == 0
    assert_harmless(done.stdout + done.stderr)


@pytest.mark.parametrize("command", [("show", "s~r1c0"), ("tree", "s"), ("events",), ("sessions",)], ids=" ".join)
def test_at_a_terminal_only_our_own_sequences_are_sent(command: tuple[str, ...], place: Path) -> None:
    with Screen(*command, cwd=place) as screen:
        assert screen.end() == 0
    assert "OWNED" not in re.sub(r"\s", "", screen.raw) or "\x1b]0;" not in screen.raw
    assert "\x1b[2J" not in screen.raw
    assert_harmless(screen.text)


def test_a_resumed_run_at_a_terminal_and_the_files_for_people_are_harmless(place: Path) -> None:
    with Screen("resume", "s", *LOGGED, cwd=place) as screen:
        assert screen.end() == 0
    assert "All done." in screen.text
    assert "\x1b]0;" not in screen.raw
    for file in (place / "_events.jsonl", *(place / "logs").iterdir()):
        assert_harmless(file.read_text())
    assert {file.name for file in (place / "logs").iterdir()} == {"lead.log", "worker.log"}


def test_every_line_of_a_log_file_is_one_line_of_ours(place: Path) -> None:
    rows = (place / "logs" / "worker.log").read_text().split("\n")
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\S+  s\S*  +\S|$", row) for row in rows)


# --- very long texts --------------------------------------------------------------------------

LONG = ("word sk-abcdefghijklmnopqrst " + HOSTILE.replace("\ud800", "") + " ") * 60_000
"""More than 10 MB."""


def long_run() -> list[AnyEvent]:
    said = Message("assistant", (Text(LONG), Call("r1c0", "look", {"path": LONG, LONG[:5000]: [LONG]})))
    raised = events.CallbackRaised(
        "q1", "r1c0", "a", LONG, "query", "callback_to_caller", {"stations": [], "end": "person", "why": LONG}, "d"
    )
    made: list[AnyEvent] = [
        events.SessionStarted("a"), events.TurnStarted(1, Message("user", (Text(LONG),))),
        events.ModelStarted(1), events.Responded(1, said), events.ToolStarted("r1c0", "look"), raised,
        events.CallbackAnswered("q1", LONG, LONG), events.ToolEnded("r1c0", Result("r1c0", LONG)),
        events.TurnEnded(1, "failed", error=LONG),
    ]  # fmt: skip
    return [stamp(event, "s", at, at, float(at)) for at, event in enumerate(made, 1)]


def test_a_tree_of_very_long_texts_is_short_and_quick() -> None:
    fold = RunTreeNodes(redactor=Redactor())
    with within(2):
        for event in long_run():
            fold.apply(event)
    assert all(len(node.about) <= 200 for node in fold.nodes())
    assert_harmless("".join(node.about + node.label for node in fold.nodes()))
    assert "sk-abc" not in "".join(node.about for node in fold.nodes())


@pytest.mark.slow
def test_the_story_of_very_long_texts_is_told_within_a_minute_and_hides_them() -> None:
    story = Story(redactor=Redactor(), results=True)
    with within(60):
        lines = [line for event in long_run() for line in story.feed(event)]
    assert lines
    for line in lines:
        assert "sk-abc" not in line.text
        assert_harmless(line.text)
