"""No text of a model, a tool, a child, a server, a file or a log reaches a terminal raw."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path

import pytest

from cli.command import out, upcall
from cli.screen import CTRL_C, CTRL_D, Screen
from pace import within
from quick import slow_but
from security.hostile_crew import make_crew
from security.old_sessions import keep_sessions
from security.texts import ALL, HOSTILE, raw_in
from upcall import Agent, Callback, Runtime, tool
from upcall.hosts.terminal.console import make_console, plain_output, plain_stream
from upcall.hosts.terminal.question import json_rows, question_rows, wrap
from upcall.models import Script, call
from upcall.observe.plain import is_visible, one_line, plain, visible

PROMPTS = ("tools", "child", "server", "crash", "long")
ASKS = ("deploy", "ask_text", "ask_form", "ask_long")


@pytest.fixture
def crew(tmp_path: Path) -> Path:
    return make_crew(tmp_path)


def waiting(crew: Path, prompt: str) -> str:
    """Run until it waits; returns the callback's id."""
    assert upcall("run", "crew:crew", prompt, "--id", prompt, cwd=crew).returncode == 3
    return next(one["id"] for one in out("inbox", cwd=crew) if one["session_id"] == prompt)


def at_terminal(crew: Path, *args: str) -> str:
    """All that a terminal is sent by a command that ends by itself."""
    with Screen(*args, cwd=crew) as screen:
        screen.end(60, traced="--trace" in args)
        return screen.raw


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_run_sends_a_terminal_nothing_raw(prompt: str, crew: Path) -> None:
    assert raw_in(at_terminal(crew, "run", "crew:crew", prompt, "--id", "s1")) == []
    for command in (["show", "s1"], ["events", "s1"], ["events"], ["sessions"]):
        assert raw_in(at_terminal(crew, *command)) == [], command


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [*PROMPTS, *ASKS])
def test_a_run_in_a_pipe_writes_nothing_raw(prompt: str, crew: Path) -> None:
    done = upcall("run", "crew:crew", prompt, "--id", "s1", "--events-file", "mirror.jsonl", cwd=crew)
    assert raw_in(done.stdout + done.stderr) == []
    assert raw_in((crew / "mirror.jsonl").read_text()) == []
    for command in (["show", "s1"], ["events", "s1"], ["events", "--json"], ["sessions"], ["inbox"]):
        shown = upcall(*command, cwd=crew)
        assert shown.returncode == 0
        assert raw_in(shown.stdout + shown.stderr) == [], command
    for command in (["show", "s1", "--json"], ["inbox", "--json"], ["sessions", "--json"]):
        shown = upcall(*command, cwd=crew)
        assert raw_in(shown.stdout) == []
        assert is_visible(shown.stdout.replace("\n", ""))
        json.loads(shown.stdout)


@pytest.mark.parametrize("prompt", ["server", "crash", "tools"])
def test_stack_traces_have_nothing_raw(prompt: str, crew: Path) -> None:
    assert raw_in(at_terminal(crew, "run", "crew:crew", prompt, "--trace")) == []
    done = upcall("run", "crew:crew", prompt, "--trace", cwd=crew)
    assert ("Traceback" in done.stderr) == (prompt != "tools")
    assert raw_in(done.stdout + done.stderr) == []


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ASKS)
def test_what_is_asked_is_listed_and_explained_with_nothing_raw(prompt: str, crew: Path) -> None:
    callback_id = waiting(crew, prompt)
    for command in (["inbox"], ["explain", callback_id], ["show", prompt], ["answer", callback_id, "\x1b]0;x\x07"]):
        assert raw_in(at_terminal(crew, *command)) == [], command


IMITATION = """Delete the backups?
inner raises: approval, callback_to_caller
├─ boss        asked: approved it
└─ the person  asked: nothing left to decide
answered by root"""


async def test_no_row_of_a_message_passes_for_a_row_of_its_explanation(tmp_path: Path) -> None:
    agent = Agent("inner", model=Script([call("ask", message=IMITATION, type="blocker")]))
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0.0) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
        [asked] = await runtime.inbox()
    rows = upcall("explain", asked.id, "--store", "log.db", cwd=tmp_path).stdout.splitlines()
    assert rows[:5] == [f"│ {row}" for row in IMITATION.splitlines()]
    assert rows[5].startswith("inner raises: blocker")
    assert not [row for row in rows[5:] if row in IMITATION.splitlines()]


@pytest.mark.slow
def test_questions_are_put_and_answers_refused_with_nothing_raw(crew: Path) -> None:
    callback_id = waiting(crew, "ask_form")
    with Screen("answer", callback_id, cwd=crew) as screen:
        screen.see("how large")
        screen.enter("huge", "must be one of")
        screen.enter("large", "count")
        screen.enter("many", "must be integer")
        screen.enter("", "answered:")
        assert screen.end() == 0
        assert raw_in(screen.raw) == []
    refused = upcall("answer", waiting(crew, "ask_text"), "\x1b[31mred", cwd=crew)
    assert refused.returncode == 1
    assert raw_in(refused.stderr) == []


@pytest.mark.slow
@pytest.mark.parametrize("editor", ["", "/bin/false"])
def test_an_approval_shows_every_character_of_what_it_approves(editor: str, crew: Path) -> None:
    with Screen("run", "crew:crew", "deploy", "--id", "s1", cwd=crew, EDITOR=editor) as screen:
        screen.see("[a]pprove")
        rows = screen.text.replace("\n", "").replace("┃", "").replace(" ", "")
        for text in HOSTILE[1:8]:
            assert visible(json.dumps(text)[1:-1]).replace(" ", "") in rows
        screen.enter("e", "arguments")
        screen.press(CTRL_C)
        screen.see("left for later")
        screen.end()
        assert raw_in(screen.raw) == []


@pytest.mark.slow
def test_a_chat_sends_a_terminal_nothing_raw(crew: Path) -> None:
    with Screen("chat", "crew:crew", "--id", "s1", cwd=crew) as screen:
        screen.see("›")
        # The line of the whole turn, not that of the child in it: what is typed before that steers.
        for prompt, shown in (("tools", "done ·"), ("child", "1 tool call ·"), ("server", "upcall: server")):
            screen.enter(prompt, shown)
        assert "were written" in screen.text
        for command in ("/tools", "/unfold", "/sessions", "/cost", "/inbox", "/unfold 2", "/\x1b]0;x\x07"):
            screen.press(f"{command}\r")
        screen.press("\x0f")
        screen.see("done ·")  # the last of these lines is not a command, so the agent gets it
        screen.press(CTRL_D)
        screen.end()
        assert raw_in(screen.raw) == []


@pytest.mark.slow
def test_ids_in_a_log_from_elsewhere_are_shown_with_nothing_raw(crew: Path) -> None:
    ids = [text for text in HOSTILE if "\x00" not in text and "\n" not in text]
    keep_sessions(crew, *ids)
    for command in (["sessions"], ["sessions", "--ids"], ["sessions", "--json"], ["events"], ["show", ids[0]]):
        assert raw_in(at_terminal(crew, *command)) == [], command
    for session_id in ids:
        for command in ("show", "events", "resume", "cancel", "explain"):
            done = upcall(command, session_id, cwd=crew)
            assert raw_in(done.stdout + done.stderr) == [], command


@pytest.mark.slow
def test_files_are_checked_and_explained_with_nothing_raw(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "a\x1b]0;t\x07.md").write_text(f"---\ndescription: {ALL!r}\nmodel: nobody:{ALL!r}\n---\n{ALL}")
    (folder / "b.md").write_text("---\ndescription: b\nmodel: script:none.py\ntools: [x:y]\n---\n")
    (folder / "b.json").write_text(json.dumps({ALL: ALL, "callback_policy": {ALL: 1, "fallback_target": ALL}}))
    (folder / "c.json").write_text(f'{{"can_query_caller": {ALL}')
    for command in (["check", "agents"], ["explain", "agents", "callback_to_caller", "query"], ["run", ALL, ALL]):
        words = [word.replace("\x00", "") for word in command]
        done = upcall(*words, cwd=tmp_path)
        assert done.returncode in (1, 2)
        assert raw_in(done.stdout + done.stderr) == [], command
        assert raw_in(at_terminal(tmp_path, *words)) == [], command


def test_wrong_usage_is_told_with_nothing_raw(tmp_path: Path) -> None:
    words = ALL.replace("\x00", "")
    for command in ([words], ["run", f"--{words}"], ["inbox", "--limit", words], ["show", words, words]):
        done = upcall(*command, cwd=tmp_path)
        assert done.returncode != 0
        assert raw_in(done.stdout + done.stderr) == [], command


# --- the door itself --------------------------------------------------------------------


def test_whatever_a_process_prints_passes_the_door(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_output():
        print(ALL)
        sys.stdout.writelines([ALL, "\n"])
        sys.stderr.write(ALL)
        handler = logging.StreamHandler()
        handler.emit(logging.LogRecord("x", logging.ERROR, __file__, 1, ALL, None, None))
    shown = capsys.readouterr()
    assert raw_in(shown.out + shown.err) == []
    print("\x1b[31m")
    assert capsys.readouterr().out == "\x1b[31m\n"


def test_bytes_pass_the_door_as_text_does_also_if_a_character_is_split(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_output():
        written = [sys.stdout.buffer.write(bytes([byte])) for byte in ALL.encode("utf-8", "surrogatepass")]
        sys.stderr.buffer.write("größer \x1b]0;x\x07".encode() + b"\xff")
        sys.stdout.buffer.flush()
        io.TextIOWrapper(sys.stdout.buffer, "utf-8", write_through=True).write("\x1b[31mred")
        print("still open")
    shown = capsys.readouterr()
    assert sum(written) == len(ALL.encode("utf-8", "surrogatepass"))
    assert raw_in(shown.out + shown.err) == []
    assert shown.err == "größer \ufffd"
    assert shown.out.endswith("redstill open\n")


def test_a_console_cleans_texts_and_keeps_its_own_colours_and_shows_no_hidden_link() -> None:
    from rich.markdown import Markdown
    from rich.text import Text

    out = io.StringIO()
    out.isatty = lambda: True
    console = make_console(plain_stream(out))
    console.print(ALL, style="green")
    console.print(Text(ALL, style="bold link http://evil.example"))
    console.print(Markdown(f"# {ALL}\n\n[text](http://evil.example) {ALL}\n\n    {ALL}", hyperlinks=True))
    assert raw_in(out.getvalue()) == []


async def test_notifications_carry_nothing_raw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[str] = []

    class Post:
        def add(self, address: str) -> bool:
            return True

        def notify(self, body: str, title: str) -> bool:
            sent.append(body + title)
            return True

    monkeypatch.setitem(sys.modules, "apprise", type(sys)("apprise"))
    sys.modules["apprise"].Apprise = Post  # type: ignore[attr-defined]

    @tool(needs_approval=True)
    async def deploy(env: str) -> str:
        """Deploy."""
        return env

    agent = Agent("agent", model=Script([call("deploy", env=ALL)]), tools=[deploy])
    async with Runtime(tmp_path / "log.db", agents=[agent], notify=["json://nowhere"], hold=0.0) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
    assert len(sent) == 1
    assert raw_in(sent[0]) == []


@pytest.mark.slow
@pytest.mark.parametrize("letter", slow_but(["\x1b["], ["x", "\u200b", "\x1b]", "é ", "\n", "\x1b["]))
def test_a_text_of_a_megabyte_is_made_plain_and_wrapped_in_a_moment(letter: str) -> None:
    text = letter * (1_000_000 // len(letter))
    with within(5):
        for made in (wrap(text, 80), json_rows({"a": text}, 80), [plain(text), visible(text), one_line(text)]):
            assert raw_in("".join(made)) == []
        question_rows(Callback("q1", "s1", "agent", text, choices=(text,)), now=0.0, in_full=False)
