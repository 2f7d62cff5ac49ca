"""A chat at a real terminal: typing while it works, commands, unfolding, todos, several lines, going on."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from cli.chatting import chat, make_helper
from cli.command import eventually, out, upcall
from cli.screen import CTRL_C, CTRL_D, ENTER, Screen
from cli.tmux import Terminal

CTRL_O, ALT_ENTER, UP = "\x0f", "\x1b\r", "\x1b[A"
PASTE = "\x1b[200~{}\x1b[201~"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_helper(tmp_path)


def prompts(folder: Path, session: str = "s1") -> list[str]:
    """What was prompted in a session."""
    found = [
        msgspec.json.decode(line) for line in upcall("events", session, "--json", cwd=folder).stdout.splitlines()
    ]
    return [event["message"]["parts"][0]["text"] for event in found if event["type"] == "turn_started"]


# --- typing while it works --------------------------------------------------------------


@pytest.mark.slow
def test_what_is_typed_while_a_turn_runs_steers_it(folder: Path) -> None:
    with chat(folder) as screen:
        screen.enter("hold gate", "steer ›", "running")
        screen.enter("and mind the tests", "steered: and mind the tests")
        (folder / "gate").touch()
        screen.see("You said: and mind the tests")
        screen.see("done · 2 model calls")
    assert prompts(folder) == ["hold gate"]


@pytest.mark.slow
def test_what_came_too_late_for_a_turn_is_told_and_read_with_the_next_one(folder: Path) -> None:
    with chat(folder) as screen:
        screen.enter("hold gate", "running")
        screen.enter("hurry", "steered: hurry")
        screen.press(CTRL_C)
        screen.see("too late for this turn; it is sent with your next message: hurry")
        screen.see("press Ctrl-C again to leave")
        screen.enter("so", "You said: hurry", "done ·")


@pytest.mark.slow
def test_a_question_waits_for_who_types_and_gives_the_half_line_back(folder: Path) -> None:
    with chat(folder) as screen:
        screen.enter("name", "running")
        screen.press("half a li")
        screen.see("half a li")
        (folder / "ask").touch()
        screen.see("┃ │ What is it called?")
        screen.see("your answer ›")
        screen.enter("Otto", "✓ answered: Otto", "half a li", "The tools said: called Otto", "done ·")
        screen.enter("ne", "You said: half a line", "done ·")
    assert prompts(folder) == ["name", "half a line"]


@pytest.mark.slow
def test_an_approval_is_asked_inline_and_its_turn_continues(folder: Path) -> None:
    with chat(folder) as screen:
        screen.enter("deploy", "┃ helper wants to run deploy", "[l]ater ›")
        screen.enter("a", "✓ approved once", "The tools said: deployed prod", "done ·")


@pytest.mark.slow
def test_ctrl_d_while_it_works_does_not_leave(folder: Path) -> None:
    with chat(folder) as screen:
        screen.enter("hold gate", "running")
        screen.press(CTRL_D)
        screen.see("the turn is still running; Ctrl-C cancels it")
        (folder / "gate").touch()
        screen.see("The tools said: held")
        screen.see("done ·")


@pytest.mark.slow
def test_what_a_tool_prints_stands_above_the_line(folder: Path) -> None:
    with Terminal("chat", "crew:helper", cwd=folder) as terminal:
        terminal.see("›")
        terminal.press("shout", "Enter")
        terminal.see("The tools said: shouted")
        terminal.see("done ·")
        eventually(lambda: terminal.rows[-1].strip() == "›", "the line is back, below all else")
        assert "printed: hey" in [row.strip() for row in terminal.rows]


# --- what is shown ----------------------------------------------------------------------


def test_a_call_is_one_line_and_unfolds_whole(folder: Path) -> None:
    with chat(folder) as screen:
        screen.enter("read", "✓ read  path=", "done ·")
        assert "line 2 of the file" not in screen.text
        screen.press(CTRL_O)
        screen.see("┌ read  called by helper")
        screen.see("├ result")
        for number in (1, 2, 30):
            screen.see(f"│ line {number} of the file\n")
        screen.press(CTRL_O)
        screen.see("┌ read  called by helper")
        screen.see("│ line 30 of the file\n")
        unfolded = screen.text
        assert '│ path = "a.py"\n' in unfolded
        assert '│ path = "b.py"\n│ note = \n│   first\n│   second\n' in unfolded
        screen.press(CTRL_O)
        screen.see("only 2 calls can be unfolded")
        screen.enter("/unfold 2", "│ line 30 of the file\n")
        screen.enter("/unfold all", "/unfold all: not a valid number")


@pytest.mark.slow
def test_todos_are_shown_when_they_change(folder: Path) -> None:
    with Screen("chat", "crew:helper", cwd=folder) as screen:
        screen.see("›")
        screen.enter("plan 0", "✓ plan ", "  ▸ read the code\n  ☐ change it\n  ☐ run the tests\n", "done ·")
        screen.enter("plan 2", "  ☑ read the code\n  ☑ change it\n  ▸ run the tests\n", "done ·")
        screen.press(CTRL_D)
        assert screen.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 40])
def test_children_stand_indented_below_the_call_that_began_them(columns: int, folder: Path) -> None:
    with Terminal("chat", "crew:helper", "--id", "s1", cwd=folder, columns=columns) as terminal:
        terminal.see("›")
        terminal.press("team", "Enter")
        terminal.see("│ ✓ read")
        screen = terminal.see("└ done · 2 model calls")
        assert "┌ reader  session s1~" in screen
        eventually(
            lambda: bool(re.search(r"^. task .*running.*\n│ . hold ", terminal.screen, re.MULTILINE)), "drawn"
        )
        terminal.press("go on", "Enter")
        terminal.see("steered: go on")
        eventually(lambda: terminal.rows[-1] == "steer ›", "the line is below")
        (folder / "gate").touch()
        terminal.see("done · 2 model calls · 2 tool calls")
        eventually(lambda: "running" not in terminal.screen, "nothing runs")
        eventually(lambda: terminal.rows[-1] == "›", "the line is back")
        assert max(len(row) for row in terminal.rows) <= columns


def test_without_colour_nothing_has_one(folder: Path) -> None:
    with Screen("chat", "crew:helper", "--id", "s1", cwd=folder, NO_COLOR="1") as screen:
        screen.see("›")
        screen.enter("read", "done ·")
        screen.enter("markdown", " • one", "done ·")
        screen.press("/he")
        screen.see("/help")
        screen.enter("lp", "Alt-Enter")
        screen.press(CTRL_D)
        assert screen.end() == 0
    assert not re.search(r"\x1b\[[0-9;]*(3|4|9|10)[0-7][;m]", screen.raw)


@pytest.mark.slow
def test_a_terminal_that_can_not_move_its_cursor_can_be_chatted_at(folder: Path) -> None:
    with Screen("chat", "crew:helper", "--id", "s1", cwd=folder, TERM="dumb") as screen:
        screen.see("› ")
        screen.press("hold gate\n")
        eventually(lambda: "tool_started" in upcall("events", "s1", "--json", cwd=folder).stdout, "it runs")
        screen.press("and this\n")
        screen.see("steered: and this")
        (folder / "gate").touch()
        screen.see("You said: and this")
        screen.see("› ")
        screen.press("name\n")
        (folder / "ask").touch()
        screen.see("your answer ›")
        screen.enter("Otto", "called Otto", "› ")
        screen.press("/cost\n")
        screen.see("model calls, including child sessions")
        screen.see("› ")
        screen.press("hold more\n")
        eventually(
            lambda: upcall("events", "s1", "--json", cwd=folder).stdout.count("tool_started") == 3, "it runs"
        )
        screen.press(CTRL_C)
        screen.see("press Ctrl-C again to leave")
        screen.see("› ")
        screen.press(CTRL_C)
        screen.see("stored; continue with")
        assert screen.end() == 0
    assert not re.search(r"\x1b\[[0-9;]*[A-Hm]", screen.raw), "no movement, no colour"


# --- commands ---------------------------------------------------------------------------


@pytest.mark.slow
def test_commands_tell_about_tools_cost_sessions_and_inbox(folder: Path) -> None:
    upcall("run", "crew:helper", "hello", "--id", "older", cwd=folder)
    with chat(folder) as screen:
        screen.enter("hello there", "done ·")
        screen.enter("/tools", "Wait for a file of that name.", "deploy    needs approval: Deploy.", "task ")
        screen.enter("/cost", "tokens in 1 model call, including child sessions")
        screen.enter("/sessions", "SESSION", "s1 ", "older ")
        screen.enter("/inbox", "Nothing waits for an answer.")
        screen.enter("/help", "/compact", "Ctrl-O")
    assert "answer_callback" not in screen.text


@pytest.mark.slow
def test_an_unknown_command_is_an_error_that_lists_them_and_a_space_before_it_says_it(folder: Path) -> None:
    with chat(folder) as screen:
        screen.enter(
            "/nonsense",
            "upcall: unknown command /nonsense; the commands are /compact, /tools, /sessions, /cost, /inbox,",
        )
        screen.enter("/cost much", "upcall: /cost takes no argument")
        screen.enter(" /nonsense", "You said: ")
        screen.enter("/etc/hosts is a file", "You said: /etc/hosts is a file", "done ·")
    assert len(prompts(folder)) == 2


@pytest.mark.slow
def test_the_inbox_and_the_cost_are_told_while_a_turn_runs(folder: Path) -> None:
    with chat(folder) as screen:
        screen.enter("hold gate", "running")
        screen.enter("/inbox", "Nothing waits for an answer.")
        screen.enter("/cost", "1 model call, including")
        screen.enter("/compact", "the turn is still running; wait")
        (folder / "gate").touch()
        screen.see("The tools said: held")
        screen.see("done ·")


@pytest.mark.slow
def test_compact_has_the_model_summarise_what_is_old(folder: Path) -> None:
    with chat(folder) as screen:
        screen.enter("one", "You said: one", "done ·")
        screen.enter("/compact", "the conversation is too short to compact: 2 messages")
        for word in ("two", "three", "four", "five"):
            screen.enter(word, f"You said: {word}", "done ·")
        (folder / "no-summary").touch()
        screen.enter(
            "/compact",
            "the model call failed: script: no summary today",
            "the model wrote no summary, so nothing was changed",
        )
        (folder / "no-summary").unlink()
        screen.enter("/compact", "compacted: 4 messages were summarised")
        screen.enter("six", "You said: six", "done ·")
    assert "They talked." in upcall("events", "s1", "--json", cwd=folder).stdout


@pytest.mark.slow
def test_what_is_typed_during_a_summary_is_taken_after_it(folder: Path) -> None:
    with Screen("chat", "crew:helper", "--id", "s1", cwd=folder) as screen:
        screen.see("›")
        for word in ("one", "two", "three", "four", "five"):
            screen.enter(word, f"You said: {word}", "done ·")
        (folder / "slow-summary").touch()
        screen.enter("/compact", "summarising ›")
        screen.enter("six", "queued until the summary is done: six")
        screen.press(CTRL_D)
        (folder / "slow-summary").unlink()
        screen.see("compacted: 4 messages were summarised")
        screen.see("You said: six")
        screen.see("done ·")
        assert screen.end() == 0
    assert prompts(folder)[-2:] == ["five", "six"]


# --- the line ---------------------------------------------------------------------------


@pytest.mark.slow
def test_several_lines_are_typed_with_alt_enter_or_pasted_and_sent_as_one(folder: Path) -> None:
    with chat(folder) as screen:
        screen.press("first" + ALT_ENTER + "second" + ENTER)
        screen.see("› first\n  second\n")
        screen.see("done ·")
        screen.press(PASTE.format("def f():\r    return 1\r") + "what is it?" + ENTER)
        screen.see("done ·")
    assert prompts(folder) == ["first\nsecond", "def f():\n    return 1\nwhat is it?"]


@pytest.mark.slow
def test_what_was_sent_before_comes_back_with_the_arrow_also_in_another_chat(folder: Path) -> None:
    with chat(folder) as screen:
        screen.enter("remember me", "done ·")
    with Screen("chat", "crew:helper", "--id", "s2", cwd=folder) as screen:
        screen.see("›")
        screen.press(UP)
        screen.see("remember me")
        screen.enter(" twice", "You said: remember me twice", "done ·")
        screen.press(CTRL_D)
        assert screen.end() == 0


@pytest.mark.slow
def test_a_command_is_completed_from_a_menu(folder: Path) -> None:
    with Terminal("chat", "crew:helper", cwd=folder) as terminal:
        terminal.see("›")
        terminal.press("/co")
        screen = terminal.see("/cost")
        assert "/compact  have the model summarise" in screen
        terminal.press("Tab", "Tab", "Enter")
        terminal.see("› /cost")
        terminal.press("Enter")
        terminal.see("0 tokens in 0 model calls")
        assert "/compact" not in terminal.screen


@pytest.mark.slow
def test_a_files_name_is_completed_from_the_workspace_and_ignored_ones_are_not(folder: Path) -> None:
    site = folder / "site"
    (site / "src").mkdir(parents=True)
    for name in ("src/login.py", "src/logout.py", "src/login.log", "notes.md"):
        (site / name).touch()
    (site / ".gitignore").write_text("*.log\n")
    with Terminal("chat", "crew:builder", cwd=folder) as terminal:
        terminal.see("›")
        terminal.press("look at @log")
        screen = terminal.see("src/logout.py")
        assert "src/login.py" in screen
        assert "login.log" not in screen
        assert "crew.py" not in screen
        terminal.press("Tab", "Enter", " and stop", "Enter")
        terminal.see("You said: look at @src/login.py and stop")


@pytest.mark.slow
def test_without_a_workspace_files_of_the_current_folder_are_completed(folder: Path) -> None:
    with Terminal("chat", "crew:helper", cwd=folder) as terminal:
        terminal.see("›")
        terminal.press("@cr")
        terminal.see("crew.py")


@pytest.mark.slow
def test_files_that_an_agent_keeps_in_the_log_are_completed_too(folder: Path) -> None:
    upcall("run", "crew:keeper", "write", "--id", "s1", cwd=folder)
    with Terminal("chat", "crew:keeper", "-c", cwd=folder) as terminal:
        terminal.see("The tools said")
        terminal.press("@dra")
        terminal.see("texts/draft.md")


# --- going on ---------------------------------------------------------------------------


@pytest.mark.slow
def test_c_continues_the_agents_newest_session_and_shows_where_it_was(folder: Path) -> None:
    upcall("run", "crew:helper", "older words", "--id", "s1", cwd=folder)
    upcall("run", "crew:helper", "newer words", "--id", "s2", cwd=folder)
    upcall("run", "crew:other", "others", "--id", "s3", cwd=folder)
    with Screen("chat", "crew:helper", "-c", cwd=folder) as screen:
        screen.see("helper · continuing session s2")
        screen.see("› newer words")
        screen.see("You said: newer words")
        screen.enter("and on", "You said: and on", "done ·")
        screen.press(CTRL_D)
        screen.see("stored; continue with: upcall chat crew:helper --id s2")
        assert screen.end() == 0
    assert prompts(folder, "s2") == ["newer words", "and on"]


def test_c_without_a_session_of_the_agent_is_an_error(folder: Path) -> None:
    upcall("run", "crew:other", "others", "--id", "s3", cwd=folder)
    done = upcall("chat", "crew:helper", "-c", cwd=folder, given="hello\n")
    assert done.returncode != 0
    assert "helper has no session to continue here; omit -c to start one" in done.stderr
    assert upcall("chat", "crew:helper", "-c", "--id", "s3", cwd=folder).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 40])
def test_what_hooks_make_of_every_request_is_told_once_in_a_chat_and_once_by_show(
    columns: int, folder: Path
) -> None:
    (folder / "kitted.py").write_text(
        "from upcall import Agent\nfrom upcall.kit import prompt\nfrom upcall.models import Script\n"
        "agent = Agent('clerk', model=Script(lambda r: 'ok ' + r.messages[-1].text), kit=[prompt('Be brief.')])\n"
    )
    told = "↳ hooks changed the instructions"
    with Terminal("chat", "kitted:agent", "--id", "s1", cwd=folder, columns=columns) as terminal:
        for text in ("one", "two"):
            eventually(lambda: terminal.rows[-1] == "›", "the line is there")
            terminal.press(text, "Enter")
            terminal.see(f"ok {text}")
        eventually(lambda: terminal.rows[-1] == "›", "the line is back")
        assert terminal.screen.count(told) == 1
        assert max(len(row) for row in terminal.rows) <= columns
    assert upcall("show", "s1", cwd=folder).stdout.count(told) == 1


def test_exit_leaves_as_ctrl_d_does_but_not_while_it_works(folder: Path) -> None:
    with Screen("chat", "crew:helper", "--id", "s1", cwd=folder) as screen:
        screen.see("›")
        screen.enter("hold gate", "running")
        screen.enter("/exit", "the turn is still running; wait")
        (folder / "gate").touch()
        screen.see("The tools said: held")
        screen.see("done ·")
        screen.enter("/exit now", "upcall: /exit takes no argument")
        screen.enter("/exit", "stored; continue with: upcall chat crew:helper --id s1")
        assert screen.end() == 0


@pytest.mark.slow
def test_new_begins_another_session_and_keeps_the_first(folder: Path) -> None:
    with chat(folder) as screen:
        screen.enter("one", "You said: one", "done ·")
        screen.enter("/new", "new session ", "; s1 is stored")
        screen.enter("/cost", "0 tokens in 0 model calls")
        screen.enter("two", "You said: two", "done ·")
        screen.enter("/new", "new session ", " is stored")
    second, first = out("sessions", cwd=folder)
    assert (first["id"], first["text"], second["text"]) == ("s1", "You said: one", "You said: two")
    assert prompts(folder, second["id"]) == ["two"]
    assert "stored; continue with" not in screen.text


@pytest.mark.slow
@pytest.mark.parametrize("args", [[], ["--id", "s1"]], ids=["new", "named"])
def test_a_chat_in_which_nothing_was_said_leaves_no_session_behind(args: list[str], folder: Path) -> None:
    with Screen("chat", "crew:helper", *args, cwd=folder) as screen:
        screen.see("helper · new session ")
        screen.enter("/tools", "Wait for a file of that name.")
        screen.enter("/cost", "0 tokens in 0 model calls")
        screen.enter("/unfold", "no tool has been called yet")
        screen.enter("/compact", "the conversation is too short to compact: 0 messages")
        screen.enter("/sessions", "No sessions yet.")
        screen.enter("/inbox", "Nothing waits for an answer.")
        screen.enter("/help", "/new         start a new session; this one is stored", "/exit        leave (Ctrl-D)")
        screen.press(CTRL_D)
        assert screen.end() == 0
    assert "stored; continue with" not in screen.text
    assert out("sessions", cwd=folder) == []


def test_a_begin_session_hook_runs_once_when_the_first_thing_is_said(folder: Path) -> None:
    (folder / "hooked.py").write_text(
        "from pathlib import Path\nfrom upcall import Agent, Hooks\nfrom upcall.models import Script\n"
        "def begin(session):\n    with Path('begun').open('a') as file:\n        file.write(session.id + ' ')\n"
        "agent = Agent('clerk', model=Script(lambda r: 'ok'), hooks=Hooks(begin_session=[begin]))\n"
    )
    assert upcall("chat", "hooked:agent", cwd=folder, given="/cost\n").returncode == 0
    assert not (folder / "begun").exists()
    assert upcall("chat", "hooked:agent", "--id", "s1", cwd=folder, given="one\ntwo\n").stdout == "ok\nok\n"
    assert (folder / "begun").read_text() == "s1 "


def test_an_id_that_can_be_none_is_refused_before_anything_is_said(folder: Path) -> None:
    done = upcall("chat", "crew:helper", "--id", "a b", cwd=folder, given="hello\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "invalid session id 'a b'" in done.stderr


# --- through a pipe ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_pipe_takes_prompts_and_commands_line_by_line(folder: Path) -> None:
    given = "one\n/cost\n/nonsense\n /tools\n/unfold\n"
    done = upcall("chat", "crew:helper", "--id", "s1", cwd=folder, given=given)
    assert done.stdout.splitlines() == [
        "You said: one",
        "0 tokens in 1 model call, including child sessions",
        "You said: /tools",
    ]
    assert "unknown command /nonsense" in done.stderr
    assert "no tool has been called yet" in done.stderr
    assert done.returncode == 1
    assert upcall("chat", "crew:helper", "-c", cwd=folder, given="two\n").stdout == "You said: two\n"
    assert prompts(folder) == ["one", "/tools", "two"]


def test_new_and_exit_are_commands_in_a_pipe_too(folder: Path) -> None:
    done = upcall("chat", "crew:helper", "--id", "s1", cwd=folder, given="one\n/new\ntwo\n/exit\nnever read\n")
    first, told, last = done.stdout.splitlines()
    assert (done.returncode, first, last) == (0, "You said: one", "You said: two")
    new = re.fullmatch(r"new session (\w{12}); s1 is stored", told)
    assert new is not None
    assert prompts(folder) == ["one"]
    assert prompts(folder, new[1]) == ["two"]


@pytest.mark.parametrize("given", ["", "\n", "/cost\n/exit\n"])
def test_a_pipe_in_which_nothing_is_said_leaves_no_session_behind(given: str, folder: Path) -> None:
    assert upcall("chat", "crew:helper", cwd=folder, given=given).returncode == 0
    assert out("sessions", cwd=folder) == []
