"""The person at this terminal. Questions are queued and asked one at a time."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from upcall.callbacks import PRIORITIES, Answer, Approve, Callback, Decline, Reject
from upcall.hosts.terminal.console import make_console, prompts_on_screen
from upcall.hosts.terminal.dialogue import Later, ask_person
from upcall.hosts.terminal.keys import drop_early_keys, keep_keys
from upcall.hosts.terminal.layout import WIDEST, Piece, print_rows, rich_text
from upcall.hosts.terminal.question import answer_command, question_rows, reveal_note, value_text
from upcall.hosts.terminal.views import View
from upcall.observe.hidden_question import hide_secrets, is_approval, shown_answer
from upcall.observe.plain import one_line, plain, shortened, visible
from upcall.observe.redact import Redactor
from upcall.observe.weight import aside
from upcall.safety.small_files import read_small

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_GATHER_SECONDS = 0.1
"""Seconds to wait before a question: the events before it are shown first, and a more urgent one may arrive."""
_GATHER_ROUNDS = 10
_LONGEST_PROMPT = 400
"""The longest prompt, in characters. It contains text of the agent that asks."""


class TerminalPrompter:
    """A terminal to ask at: rows with a bar on the left, and an input line."""

    def __init__(
        self,
        out: TextIO,
        editor: str = "",
        redactor: Redactor | None = None,
        store: str = "",
        program: str = "upcall",
    ) -> None:
        self._console, self._editor, self._redactor = make_console(out), editor, redactor or Redactor()
        self._store, self._program = store, program
        self._reader: PromptSession[str] | None = None

    @property
    def width(self) -> int:
        """The columns for text next to the bar."""
        return min(self._console.width, WIDEST) - 2

    def show_row(self, row: Sequence[Piece]) -> None:
        """Show one row."""
        self._console.print(rich_text(row))

    async def show_question(self, lines: Iterable[Sequence[Piece]]) -> None:
        """Show a question, with space above it."""
        self._console.print()
        await print_rows(self._console, ([Piece("┃ ", "yellow"), *line] for line in lines))

    async def ask(self, callback: Callback, waiting: int = 0) -> Any:
        """Ask a question and return its answer; `waiting` is the number of questions behind it.

        Raises Later if the question is left for later. An approval ignores keys that were pressed before it was on
        the screen, or within half a second after. Only Ctrl-C counts, which leaves the question.
        """
        await asyncio.to_thread(import_module, "prompt_toolkit")  # it takes long the first time
        shown, hidden = await aside(hide_secrets, callback, self._redactor)
        note = reveal_note(callback, hidden, self._store, self._program)
        await self.show_question(
            question_rows(shown, now=time.time(), width=self.width, waiting=waiting, hidden=note)
        )
        with keep_keys():
            approves = is_approval(callback) or callback.intent == "approval"
            if approves and await drop_early_keys():
                raise Later
            if not is_approval(callback):
                self.show_row([Piece("/decline WHY declines it, Ctrl-C leaves it for later", "dim")])
            return await ask_person(callback, self, self._redactor)

    async def command_for(self, callback: Callback) -> str:
        """Return the command that answers a question later."""
        shown = (await aside(hide_secrets, callback, self._redactor)).callback
        return answer_command(shown, self._store, self._program)

    def describe(self, answer: Any) -> str:
        """Describe an answer in a few words, without its secrets."""
        return describe_answer(shown_answer(answer, self._redactor))

    def about(self, callback: Callback) -> str:
        """Return the beginning of a question, without its secrets."""
        return one_line(self._redactor.text(callback.message), 30)

    def problem(self, text: object) -> str:
        """Return a failure without its secrets."""
        return self._redactor.text(str(text))

    async def read_line(self, prompt: str, default: str = "") -> str:
        """Read one line. Ctrl-C and Ctrl-D raise Later."""
        from prompt_toolkit.formatted_text import FormattedText

        asked = shortened(plain(prompt).replace("\n", " "), _LONGEST_PROMPT)
        shown = FormattedText([("ansibrightblack", f"{asked} "), ("ansiyellow", "› ")])
        try:
            # Ctrl-C is an ordinary key here: the signal handler of the running turn must stay in place
            return await self._prompt_session().prompt_async(shown, default=default, handle_sigint=False)
        except (KeyboardInterrupt, EOFError):
            raise Later from None

    def _prompt_session(self) -> PromptSession[str]:
        if self._reader is None:
            from prompt_toolkit import PromptSession

            with prompts_on_screen():
                self._reader = PromptSession()
        return self._reader

    async def open_editor(self, text: str) -> str | None:
        """Return the text as edited in the person's editor; None if there is no editor or it fails."""
        words = shlex.split(self._editor)
        if not words:
            return None
        handle, name = tempfile.mkstemp(suffix=".json", prefix="upcall-")
        try:
            os.write(handle, text.encode())
            os.close(handle)
            editing = await asyncio.create_subprocess_exec(*words, name)
            return read_small(name).decode() if await editing.wait() == 0 else None
        except OSError as error:
            self.show_row([Piece(f"  {words[0]} can't be started: {error}", "red")])
            return None
        finally:
            Path(name).unlink()  # noqa: ASYNC240


class _QueuedQuestion:
    """A question in the queue."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def order(self) -> tuple[int, float]:
        return (-PRIORITIES.index(self.callback.priority), self.callback.created)


class TerminalHost:
    """A host that asks the person at the terminal. `by` is the name of the operating system's user."""

    def __init__(
        self,
        by: str,
        *,
        out: TextIO | None = None,
        editor: str = "",
        redactor: Redactor | None = None,
        store: str = "",
        program: str = "upcall",
    ) -> None:
        self.by = by
        self.view: View | None = None
        self._prompter = TerminalPrompter(out or sys.stdout, editor, redactor, store, program)
        self._queue: list[_QueuedQuestion] = []
        self._asking: tuple[_QueuedQuestion, asyncio.Task[Any]] | None = None
        self._serving: asyncio.Task[None] | None = None

    async def ask(self, callback: Callback) -> Answer | None:
        """Ask the person; returns None if the question is left for later."""
        waiting = _QueuedQuestion(callback)
        self._queue.append(waiting)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.ensure_future(self._serve())
        try:
            value = await waiting.answer
        except asyncio.CancelledError:
            self._remove(waiting)
            raise
        return None if value is None else Answer(value, self.by, "os-user")

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Remove a question that was settled elsewhere, and say why."""
        for waiting in [w for w in self._queue if w.callback.id == callback_id]:
            shown = self._asking is not None and self._asking[0] is waiting
            self._remove(waiting)
            if not waiting.answer.done():
                waiting.answer.set_result(None)
            if shown:
                self._prompter.show_row([])
            what, why = self._prompter.about(waiting.callback), one_line(self._prompter.problem(reason), 200)
            self._prompter.show_row([Piece(f"no longer asked: {what} ({why})", "yellow")])

    async def finish(self) -> None:
        """Stop asking because the run has ended; returns when the screen is free."""
        for waiting in tuple(self._queue):
            self._remove(waiting)
        if self._serving is not None:
            await asyncio.wait({self._serving})

    def _remove(self, waiting: _QueuedQuestion) -> None:
        if waiting in self._queue:
            self._queue.remove(waiting)
        if self._asking is not None and self._asking[0] is waiting:
            self._asking[1].cancel()

    # --- one after the other --------------------------------------------------------------

    async def _serve(self) -> None:
        await self._gather()
        view = self.view
        if view is not None:
            await view.pause()
        try:
            with keep_keys():
                while self._queue:
                    waiting = min(self._queue, key=lambda w: w.order)
                    task = asyncio.ensure_future(self._ask_one(waiting))
                    self._asking = (waiting, task)
                    await asyncio.wait({task})
                    self._asking = None
                    self._finish_question(waiting, task)
                    await asyncio.sleep(_GATHER_SECONDS)  # an invalid answer is asked for again at once
        finally:
            if view is not None:
                view.resume()

    async def _gather(self) -> None:
        """Wait until no more questions arrive, so that the most urgent one is asked first."""
        for _ in range(_GATHER_ROUNDS):
            before = len(self._queue)
            await asyncio.sleep(_GATHER_SECONDS)
            if len(self._queue) == before:
                return

    def _finish_question(self, waiting: _QueuedQuestion, task: asyncio.Task[Any]) -> None:
        answer = None if task.cancelled() or task.exception() is not None else task.result()
        if answer is not None:
            equal = len(waiting.callback.group) - 1
            more = f", and {equal} equal question{'s' if equal > 1 else ''} with it" if equal > 0 else ""
            self._prompter.show_row([Piece("✓ ", "green"), Piece(self._prompter.describe(answer) + more, "dim")])
        if waiting in self._queue:
            self._queue.remove(waiting)
        if not waiting.answer.done():
            waiting.answer.set_result(answer)
        if not task.cancelled() and (error := task.exception()) is not None:
            why = self._prompter.problem(error)
            self._prompter.show_row([Piece(f"the question can't be shown here: {why}", "red")])

    async def _ask_one(self, waiting: _QueuedQuestion) -> Any:
        """Ask one question; returns None if it is left for later."""
        callback = waiting.callback
        try:
            return await self._prompter.ask(callback, len(self._queue) - 1)
        except Later:
            command = await self._prompter.command_for(callback)
            self._prompter.show_row([Piece("left for later: ", "yellow"), Piece(command)])
            return None


def describe_answer(value: Any) -> str:
    """Describe an answer in a few words."""
    match value:
        case Approve(args=dict()):
            return f"approved with other arguments: {value_text(value.args)}"
        case Approve(pattern=str()):
            return f"approved for the session: {visible(value.pattern or '')}"
        case Approve():
            return "approved for the session" if value.for_session else "approved once"
        case Reject():
            return f"rejected: {one_line(value.reason, 60)}" if value.reason else "rejected"
        case Decline():
            return f"declined: {one_line(value.reason, 60)}" if value.reason else "declined"
        case _:
            return f"answered: {value_text(value)}"


def outcome_text(callback: Callback) -> str:
    """Describe how a callback was answered or declined, in a few words."""
    answer = callback.answer
    if answer is None:
        return callback.status
    return describe_answer(Decline(answer.reason) if callback.status == "declined" else answer.value)
