"""The person at this terminal: questions wait in a queue and are asked one at a time."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from upcall.callbacks import PRIORITIES, Answer, Approve, Callback, Decline, Reject
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.dialogue import Later, answer
from upcall.hosts.terminal.keys import drop_early_keys, keys_kept
from upcall.hosts.terminal.question import command, is_approval, rows, settled_as
from upcall.hosts.terminal.screen import WIDEST, Piece, View, styled
from upcall.observe.plain import one_line, plain, shortened, visible
from upcall.safety.small_files import read_small

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_SETTLE = 0.1
"""Seconds before a question is put: what led to it is shown first, and others may be more urgent."""
_ROUNDS = 10
_LONGEST_PROMPT = 400
"""Characters before what is typed: a field's name and what fits it are the asker's."""


class Desk:
    """A terminal to ask at: rows with a bar beside them, and a line to type in."""

    def __init__(self, out: TextIO, editor: str = "") -> None:
        self._console, self._editor = make_console(out), editor
        self._reader: PromptSession[str] | None = None

    @property
    def width(self) -> int:
        """Columns for text beside the bar."""
        return min(self._console.width, WIDEST) - 2

    def say(self, row: Sequence[Piece]) -> None:
        """One row on the screen."""
        self._console.print(styled(row))

    def put(self, lines: Sequence[Sequence[Piece]]) -> None:
        """A whole question, set apart."""
        self._console.print()
        for line in lines:
            self.say([Piece("┃ ", "yellow"), *line])

    async def ask(self, callback: Callback, waiting: int = 0) -> Any:
        """Put a question and take its answer; `waiting` is how many wait behind it. Later where it is left.

        An approval takes no key that was pressed before it was on the screen, or in the half second after. Only a
        Ctrl-C counts, which leaves it.
        """
        self.put(rows(callback, now=time.time(), width=self.width, waiting=waiting))
        with keys_kept():
            approves = is_approval(callback) or callback.intent == "approval"
            if approves and await drop_early_keys():
                raise Later
            if not is_approval(callback):
                self.say([Piece("/decline WHY declines it, Ctrl-C leaves it for later", "dim")])
            return await answer(callback, self)

    async def line(self, prompt: str, default: str = "") -> str:
        """What the person types; Ctrl-C and Ctrl-D raise Later."""
        from prompt_toolkit.formatted_text import FormattedText

        asked = shortened(plain(prompt).replace("\n", " "), _LONGEST_PROMPT)
        shown = FormattedText([("ansibrightblack", f"{asked} "), ("ansiyellow", "› ")])
        try:
            # Ctrl-C is a key here: the handler of the run that goes on meanwhile has to stay
            return await self._prompt_session().prompt_async(shown, default=default, handle_sigint=False)
        except (KeyboardInterrupt, EOFError):
            raise Later from None

    def _prompt_session(self) -> PromptSession[str]:
        if self._reader is None:
            from prompt_toolkit import PromptSession

            self._reader = PromptSession()
        return self._reader

    async def edit(self, text: str) -> str | None:
        """The text as the person's editor leaves it; None where there is no editor or it fails."""
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
            self.say([Piece(f"  {words[0]} can't be started: {error}", "red")])
            return None
        finally:
            Path(name).unlink()  # noqa: ASYNC240


class _Waiting:
    """A question in the queue."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.said: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def order(self) -> tuple[int, float]:
        return (-PRIORITIES.index(self.callback.priority), self.callback.created)


class TerminalHost:
    """Asks whoever sits at the terminal. `by` is the user of the operating system who that is."""

    def __init__(
        self, by: str, *, out: TextIO | None = None, editor: str = "", store: str = "", program: str = "upcall"
    ) -> None:
        self.by = by
        self.view: View | None = None
        self._desk = Desk(out or sys.stdout, editor)
        self._store, self._program = store, program
        self._queue: list[_Waiting] = []
        self._asking: tuple[_Waiting, asyncio.Task[Any]] | None = None
        self._serving: asyncio.Task[None] | None = None

    async def ask(self, callback: Callback) -> Answer | None:
        """Return the person's answer, or None if the person leaves it for later."""
        waiting = _Waiting(callback)
        self._queue.append(waiting)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.ensure_future(self._serve())
        try:
            said = await waiting.said
        except asyncio.CancelledError:
            self._drop(waiting)
            raise
        return None if said is None else Answer(said, self.by, "os-user")

    def withdraw(self, callback_id: str, reason: str) -> None:
        """An open ask ended elsewhere: its question disappears, with a line that says why."""
        for waiting in [w for w in self._queue if w.callback.id == callback_id]:
            shown = self._asking is not None and self._asking[0] is waiting
            self._drop(waiting)
            if not waiting.said.done():
                waiting.said.set_result(None)
            if shown:
                self._desk.say([])
            what = one_line(waiting.callback.message, 30)
            self._desk.say([Piece(f"no longer asked: {what} ({one_line(reason, 200)})", "yellow")])

    async def rest(self) -> None:
        """The run has ended: nothing more is asked, and the screen is free when this returns."""
        for waiting in tuple(self._queue):
            self._drop(waiting)
        if self._serving is not None:
            await asyncio.wait({self._serving})

    def _drop(self, waiting: _Waiting) -> None:
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
            with keys_kept():
                while self._queue:
                    waiting = min(self._queue, key=lambda w: w.order)
                    task = asyncio.ensure_future(self._one(waiting))
                    self._asking = (waiting, task)
                    await asyncio.wait({task})
                    self._asking = None
                    self._end(waiting, task)
                    await asyncio.sleep(_SETTLE)  # a wrong answer comes back at once
        finally:
            if view is not None:
                view.go_on()

    async def _gather(self) -> None:
        """Let questions that come together come, so that the most urgent one is put first."""
        for _ in range(_ROUNDS):
            before = len(self._queue)
            await asyncio.sleep(_SETTLE)
            if len(self._queue) == before:
                return

    def _end(self, waiting: _Waiting, task: asyncio.Task[Any]) -> None:
        said = None if task.cancelled() or task.exception() is not None else task.result()
        if said is not None:
            equal = len(waiting.callback.group) - 1
            more = f", and {equal} equal question{'s' if equal > 1 else ''} with it" if equal > 0 else ""
            self._desk.say([Piece("✓ ", "green"), Piece(told(said) + more, "dim")])
        if waiting in self._queue:
            self._queue.remove(waiting)
        if not waiting.said.done():
            waiting.said.set_result(said)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._desk.say([Piece(f"the question can't be shown here: {error}", "red")])

    async def _one(self, waiting: _Waiting) -> Any:
        """Put one question; None where it is left."""
        callback = waiting.callback
        try:
            return await self._desk.ask(callback, len(self._queue) - 1)
        except Later:
            self._desk.say(
                [Piece("left for later: ", "yellow"), Piece(command(callback, self._store, self._program))]
            )
            return None


def told(said: Any) -> str:
    """What was answered, in a few words."""
    match said:
        case Approve(args=dict()):
            return f"approved with other arguments: {settled_as(said.args)}"
        case Approve(pattern=str()):
            return f"approved for the session: {visible(said.pattern or '')}"
        case Approve():
            return "approved for the session" if said.for_session else "approved once"
        case Reject():
            return f"rejected: {one_line(said.reason, 60)}" if said.reason else "rejected"
        case Decline():
            return f"declined: {one_line(said.reason, 60)}" if said.reason else "declined"
        case _:
            return f"answered: {settled_as(said)}"


def outcome_text(callback: Callback) -> str:
    """An answered or declined callback's outcome, in a few words."""
    answer = callback.answer
    if answer is None:
        return callback.status
    return told(Decline(answer.reason) if callback.status == "declined" else answer.value)
