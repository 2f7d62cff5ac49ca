"""No reply, call or question that is shown at a terminal holds the event loop, and nothing of a reply is lost."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
from typing import Any

import msgspec
import pytest
from prompt_toolkit.application import create_app_session

from security.measuring import measured
from security.values import nested
from upcall import Agent, Approve, Call, Callback, Decline, Delta, Response, Runtime
from upcall.callbacks import CoveredCall
from upcall.hosts.terminal.dialogue import ask_person
from upcall.hosts.terminal.host import TerminalPrompter
from upcall.hosts.terminal.live_view import open_view
from upcall.hosts.terminal.question import question_rows
from upcall.models import Script
from upcall.observe.phrases import args_line, value_line
from upcall.observe.plain import plain, visible

pytestmark = pytest.mark.slow

REPLIES = {
    "a list": "- a\n" * 25_000,
    "brackets": "[" * 100_000,
    "pictures": "![" * 50_000,
    "a table": "|a|b|\n|-|-|\n" + "|a|b|\n" * 10_000,
    "one word": "x" * 2_000_000,
    "rows": "a\n" * 100_000,
    "a block of code": "```python\n" + "x = (1,\n" * 5_000 + "```",
    "blocks": "a\n\n" * 30_000,
    "escapes": "\x1b[31mé" * 200_000,
}
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")


async def run(agent: Agent, out: io.StringIO) -> None:
    """Show a turn on a terminal; fails if that holds the loop."""
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        items = [item async for item in session.stream("go")]
    async with open_view(Terminal()) as warm:
        assert warm is not None
        warm.feed(Delta(session="s", kind="text", text="**a**\n\n- b\n"))
        await asyncio.sleep(0.3)
    async with measured() as took, open_view(out) as view:
        assert view is not None
        for number, item in enumerate(items, 1):
            view.feed(item)
            if number % 10_000 == 0:
                await asyncio.sleep(0)
    took.check(growth=200_000_000)


@pytest.mark.parametrize("name", REPLIES)
async def test_no_reply_holds_the_loop_at_a_terminal_and_all_of_it_is_printed(name: str) -> None:
    text, out = REPLIES[name], Terminal()
    await run(Agent("a", model=Script([text])), out)
    shown, text = _CODES.sub("", out.getvalue()), plain(text)
    for letter in "ax[!é":
        assert shown.count(letter) >= text.count(letter), letter


@pytest.mark.parametrize("text", ["\u200bé" * 1_500_000, "a\n" * 1_500_000], ids=["invisible", "rows"])
async def test_no_reply_holds_the_loop_at_a_terminal_that_moves_no_cursor(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    await run(Agent("a", model=Script([Response(text)])), out)
    assert out.getvalue().count("é") == text.count("é")
    assert out.getvalue().count("a\n") >= text.count("a\n")


async def test_a_thousand_calls_in_a_response_are_shown_without_holding_the_loop() -> None:
    calls = [Call("", f"nope{number}", {"q": "z" * 3000}) for number in range(1000)]
    out = Terminal()
    await run(Agent("a", model=Script([Response("", calls=calls), "done"])), out)
    assert "nope999" in out.getvalue()


# --- questions --------------------------------------------------------------------------


class Keyboard:
    """A pseudo-terminal of 100 columns, and somebody at it who types a line as soon as they are asked for one."""

    def __init__(self, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._line, self._raw = f"{line}\r".encode(), bytearray()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.out = os.fdopen(slave, "r+b", buffering=0)
        self.screen = io.TextIOWrapper(self.out, "utf-8", write_through=True)
        monkeypatch.setattr(sys, "stdin", self.screen)
        monkeypatch.setattr(sys, "stdout", self.screen)
        monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")
        self._person = threading.Thread(target=self._watch)
        self._person.start()

    def type_early(self, keys: str) -> None:
        """Press keys before anything is asked."""
        os.write(self._master, keys.encode())

    def close(self) -> str:
        """Return all that was shown."""
        self.screen.close()
        self._person.join()
        os.close(self._master)
        return _CODES.sub("", self._raw.decode()).replace("\r", "")

    def _watch(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(self._master, 65_536):
                self._raw += data
                if "› ".encode() in self._raw[-len(data) - 4 :]:
                    os.write(self._master, self._line)


def without_layout(text: str) -> str:
    """The text without what lays it out: spaces, line breaks and bars."""
    return re.sub(r"[\s┃│]+", "", text)


CALLS: dict[str, dict[str, Any]] = {
    "arguments": {f"k{number}": number for number in range(45_000)},
    "a long argument": {"text": "word " * 390_000},
    "rows": {"text": "a\n" * 600_000},
    "invisible": {"text": "\u200b" * 600_000},
    "wide letters": {"text": "漢字" * 300_000},
    "many long arguments": {f"k{number}": "é " * 30_000 for number in range(20)},
    "a long name": {"n" * 1_900_000: 1},
    "deep lists": {"a": nested(90, [0] * 95_000)},
}


@pytest.mark.parametrize("name", CALLS)
async def test_an_approval_at_a_terminal_is_whole_and_does_not_hold_the_loop(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = CALLS[name]
    keyboard = Keyboard("a", monkeypatch)
    with create_app_session():
        prompter = TerminalPrompter(keyboard.screen)
        await prompter.ask(Callback("q0", "s1", "agent", "q", tool="deploy", args={}))
        keyboard.type_early("r\r")
        async with measured() as took:
            answer = await prompter.ask(Callback("q1", "s1", "agent", "q", tool="deploy", args=args))
    took.check()
    shown = without_layout(keyboard.close())
    assert answer == Approve()
    at = shown.rindex("wantstorundeploy")
    for key, value in args.items():
        whole = without_layout(visible(f"{key}={msgspec.json.encode(value).decode()}"))
        at = shown.index(whole[:40], at)
        assert shown[at : at + len(whole)] == whole
        at += len(whole)


QUESTIONS: dict[str, dict[str, Any]] = {
    "context": {"given": {f"k{number}": number for number in range(45_000)}},
    "choices": {"choices": ("a", *(f"c{number}" for number in range(60_000)))},
    "a message": {"message": "word " * 190_000},
    "the context of an approval": {
        "tool": "deploy",
        "args": {},
        "given": {f"k{number}": number for number in range(45_000)},
    },
}


@pytest.mark.parametrize("name", QUESTIONS)
async def test_no_question_holds_the_loop_at_a_terminal_and_it_says_what_is_left_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyboard = Keyboard("a", monkeypatch)
    with create_app_session():
        prompter = TerminalPrompter(keyboard.screen)
        await prompter.ask(Callback("q0", "s1", "agent", "q", tool="deploy", args={}))
        async with measured() as took:
            await prompter.ask(Callback("q1", "s1", "agent", "q").replace(**QUESTIONS[name]))
    took.check()
    shown = keyboard.close()
    assert re.search(r"… and [\d,]+ more", shown)
    assert "`upcall inbox --json` shows everything" in shown.replace("\n┃", "")
    assert len(shown) < 1_000_000


def test_a_question_shows_the_first_of_its_parts_and_how_many_more_there_are() -> None:
    asked = Callback("q1", "s1", "a", "q", choices=tuple(f"c{number}" for number in range(1_000)))
    shown = ["".join(piece.text for piece in row) for row in question_rows(asked, now=0.0)]
    assert "  200  c199" in shown
    assert "  … and 800 more choices, with the numbers that follow; `upcall inbox --json` shows everything" in shown


def test_a_pattern_and_the_calls_that_it_approves_are_shown_whole() -> None:
    calls = tuple(CoveredCall(f"q{number}", {"path": "é  " * 2_000 + str(number)}) for number in range(8))
    asked = Callback("q1", "s1", "a", "q", tool="t", args={}, patterns={"folder": "a" * 30_000})
    rows = question_rows(asked.replace(covers={"folder": calls}), now=0.0)
    shown = "".join(piece.text for row in rows for piece in row[1:])
    assert "a" * 30_000 in shown
    for one in calls:
        assert f"{one.id} {msgspec.json.encode(one.args).decode()}" in shown


async def test_a_form_with_tens_of_thousands_of_options_is_asked_without_holding_the_loop() -> None:
    prompts: list[str] = []

    class Desk:
        async def read_line(self, prompt: str, default: str = "") -> str:
            prompts.append(prompt)
            return "/decline no"

        def show_row(self, row: Any) -> None:
            raise AssertionError(row)

        async def open_editor(self, text: str) -> None:
            raise AssertionError(text)

    options = [f"e{number}" for number in range(80_000)]
    schema = {"type": "object", "properties": {"a": {"enum": options}}}
    async with measured() as took:
        answer = await ask_person(Callback("q1", "s1", "a", "q", schema=schema), Desk())
    took.check()
    assert answer == Decline("no")
    assert "e49 and 79,950 more" in prompts[0]


def test_a_phrase_is_cut_before_it_is_formatted() -> None:
    class Watched(dict[str, Any]):
        seen = 0

        def items(self) -> Any:
            for one in super().items():
                self.seen += 1
                yield one

    args = Watched({f"name{number}": "z" * 100_000 for number in range(1_000)})
    shown = args_line(args)
    assert len(shown) == 160
    assert shown.startswith('name0="zzz')
    assert args.seen < 10
    assert value_line([0] * 100_000) == value_line([0] * 1_000)
    assert value_line({"a": [1, {"b": "x"}]}) == '{"a":[1,{"b":"x"}]}'
