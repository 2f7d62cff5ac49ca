"""A conversation at a terminal: turns one after the other, and input while a turn runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from upcall.cli.chat_commands import (
    ChatSession,
    LeaveChat,
    calls_model,
    needs_idle_session,
    parse_command,
    run_command,
    unfold,
)
from upcall.cli.chat_mcp import prompt_of
from upcall.cli.output import failure_line, tell, width
from upcall.cli.resume import resume_in_view
from upcall.cli.run import interrupter, report_waiting, stream_turn, view_for
from upcall.contracts import Reply
from upcall.errors import RuntimeClosed
from upcall.events import MessageAdded, ModelStarted, TurnEnded, TurnStarted
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.input_line import InputEvent, InputLine
from upcall.hosts.terminal.layout import WIDEST, Piece, rich_text
from upcall.hosts.terminal.question import wrap
from upcall.observe.plain import one_line

LEAVE_HINT = "press Ctrl-C again to leave"


class Conversation:
    """Read input, run turns and show them until the person leaves: with Ctrl-D, or with Ctrl-C twice in a row."""

    def __init__(self, talk: ChatSession, keyboard: InputLine) -> None:
        self._talk, self._keyboard = talk, keyboard
        self._task: asyncio.Task[bool] | None = None
        self._interrupt: Callable[[], object] = lambda: None
        self._is_turn = False
        self._ctrl_c_pressed = False
        self._unfolded = 0
        self._unread_steers: list[str] = []  # steering texts that have not reached the model yet
        self._shown: _TurnTracker | None = None  # the turn that is on the screen
        # the last request that was shown, so that changes by hooks are reported once
        self._last_request: ModelStarted | None = None
        # input that arrived during a summary, or while the end of a turn was shown
        self._queued: list[InputEvent] = []

    async def run(self) -> None:
        """Run until the person leaves."""
        async with self._keyboard as keyboard:
            begun = self._talk.session is not None
            if begun and await self._talk.runtime.status(self._talk.id) == "waiting":
                self._start(self._run_turn(None), is_turn=True)
            keyboard.ask("steer" if self._task is not None else "")
            while not await self._handle(await keyboard.events.get()):
                pass

    async def _handle(self, event: InputEvent) -> bool:
        """Handle one input event; returns True if the person leaves."""
        pressed_before, self._ctrl_c_pressed = self._ctrl_c_pressed, False
        if event.kind in ("line", "stop"):
            self._unfolded = 0
        match event.kind:
            case "stop" if self._task is not None:
                self._interrupt()
            case "stop":
                if pressed_before:
                    return True
                self._ctrl_c_pressed = True
                tell(LEAVE_HINT)
                self._keyboard.ask()
            case "leave" | "gone":
                return self._task is None or self._leave_later(event)
            case "ended":
                return self._finish() or await self._handle_queued()
            case "unfold":
                self._unfolded += 1
                await self._report_errors(unfold(self._talk, self._unfolded))
            case "line":
                return await self._handle_line(event.text.encode("utf-8", "replace").decode())
        return False

    def _leave_later(self, event: InputEvent) -> bool:
        """Leave once the running work has ended. Ctrl-D alone does not cancel a turn: it may be a slip."""
        if event.kind == "gone":
            self._interrupt()
        if event.kind == "gone" or not self._is_turn or self._is_over:
            self._queued.append(InputEvent("leave"))
        else:
            tell("the turn is still running; Ctrl-C cancels it")
        return False

    async def _handle_line(self, text: str) -> bool:
        """Handle one line of input; returns True if the person leaves."""
        prompts: list[str] = []
        if await self._report_errors(self._expand(text, prompts)):
            return True
        if prompts == [""]:  # its prompt could not be had, which was said
            self._keyboard.ask("steer" if self._task is not None else "")
            return False
        text = prompts[0] if prompts else text
        command = None if prompts else parse_command(text)
        if command is not None and (self._task is None or not needs_idle_session(command)):
            _echo(text)
            if calls_model(command):
                self._start(self._report_errors(run_command(self._talk, command)), is_turn=False)
                self._keyboard.ask("summarising")
                return False
            if await self._report_errors(run_command(self._talk, command)):
                return True
            if self._talk.session is None:
                self._last_request = None  # hooks of another session have not been reported yet
            sys.stdout.write("\n")
        elif self._task is None:
            _echo(text)
            self._start(self._run_turn(text), is_turn=True)
        elif not self._is_turn or self._is_over:
            self._queued.append(InputEvent("line", text))
            if not self._is_turn:
                tell(f"queued until the summary is done: {one_line(text, width() - 28)}")
                return False
        elif command is not None:
            tell("upcall: the turn is still running; wait, or press Ctrl-C to cancel it")
        else:
            self._unread_steers.append(text)
            await self._report_errors(self._steer(text))
        self._keyboard.ask("steer" if self._task is not None else "")
        return False

    async def _expand(self, text: str, prompts: list[str]) -> None:
        """Add the text of a server's prompt if the line names one; "" if it can't be had."""
        try:
            found = await prompt_of(self._talk.agent, text)
        except BaseException:
            prompts.append("")
            raise
        prompts.extend([] if found is None else [found])

    async def _steer(self, text: str) -> None:
        await (await self._talk.open_session()).steer(text)

    @property
    def _is_over(self) -> bool:
        """True if the turn has ended, also while its end is still being shown."""
        has_ended = self._shown is not None and self._shown.has_ended
        return self._is_turn and (has_ended or self._talk.id not in self._talk.runtime.turns)

    async def _handle_queued(self) -> bool:
        """Handle the input that had to wait; returns True if the person leaves."""
        waiting, self._queued = self._queued, []
        for at, heard in enumerate(waiting):
            if self._task is not None:  # the first line started a turn; the rest steers that turn
                self._queued = waiting[at:]
                break
            if await self._handle(heard):
                return True
        return False

    # --- work that takes a while ----------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, bool], *, is_turn: bool) -> None:
        task = self._task = asyncio.ensure_future(work)
        self._is_turn = is_turn
        self._interrupt = interrupter(self._talk.runtime, self._talk.id, task) if is_turn else task.cancel
        task.add_done_callback(lambda _: self._keyboard.events.put_nowait(InputEvent("ended")))

    def _finish(self) -> bool:
        """Report the end of the running work; returns True if a second Ctrl-C ended it and the person leaves."""
        assert self._task is not None
        work, self._task, self._shown = self._task, None, None
        if work.cancelled() and self._is_turn:
            return True
        for text in self._unread_steers:
            tell(f"too late for this turn; it is sent with your next message: {one_line(text, width() - 65)}")
        self._unread_steers.clear()
        if work.cancelled() or work.result():
            self._ctrl_c_pressed = True
            tell(LEAVE_HINT)
        sys.stdout.write("\n")
        self._keyboard.ask()
        return False

    async def _run_turn(self, text: str | None) -> bool:
        """Run a turn on the screen, or continue a waiting one; returns True if it was cancelled."""
        runtime, session_id = self._talk.runtime, self._talk.id
        try:
            async with view_for(runtime, self._talk.args, sys.stdout, self._keyboard, fresh=False) as view:
                shown = _TurnTracker(view, session_id, self._unread_steers, self._last_request)
                self._shown = shown
                try:
                    reply = await self._reply_to(text, shown)
                finally:
                    self._last_request = shown.request
            if reply.status == "waiting":
                await report_waiting(runtime, session_id, self._talk.args)
            return reply.status == "cancelled"
        except RuntimeClosed:  # SIGTERM: the chat ends and prints how to continue it
            return False
        except Exception as error:
            tell(f"upcall: {failure_line(error)}")
            return False

    async def _reply_to(self, text: str | None, view: Any) -> Reply:
        runtime, session = self._talk.runtime, await self._talk.open_session()
        if text is not None and await runtime.status(session.id) != "waiting":
            return await stream_turn(session, text, view)
        reply = await resume_in_view(runtime, session.id, view)
        if text is None or reply.status == "waiting":
            return reply
        return await stream_turn(session, text, view)

    async def _report_errors(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run something and report a failure; returns True if the person leaves."""
        try:
            await work
        except LeaveChat:
            return True
        except Exception as error:
            tell(f"upcall: {failure_line(error)}")
        return False


class _TurnTracker:
    """A view that also tracks whether the turn has ended, and which steering texts the model has read."""

    def __init__(self, view: Any, session: str, unread: list[str], request: ModelStarted | None) -> None:
        self._session, self._unread, self.request = session, unread, request
        self._feed, self.recall = view.feed, view.recall
        self.has_ended = False
        if request is not None:
            view.recall(request)

    def feed(self, item: Any) -> None:
        match item:
            case ModelStarted(session=self._session):
                self.request = item
            case TurnStarted(session=self._session):
                self.has_ended = False
            case TurnEnded(session=self._session):
                self.has_ended = True
            case MessageAdded(session=self._session) if item.steer and item.message.text in self._unread:
                self._unread.remove(item.message.text)
            case _:
                pass
        self._feed(item)


def _echo(text: str) -> None:
    """Print the text that was sent, above the input line."""
    console = make_console(sys.stdout)
    for at, row in enumerate(wrap(text, min(width(), WIDEST) - 2)):
        console.print(rich_text([Piece("  " if at else "› ", "cyan"), Piece(row, "bold")]))
