"""A conversation at a terminal: turns one after the other, and what is typed while one runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from upcall.cli.chat_commands import Leave, Talk, command_in, needs_rest, run_command, takes_long, unfold
from upcall.cli.output import failure_line, tell, width
from upcall.cli.resume import resumed
from upcall.cli.run import interrupter, streamed, tell_waiting, watched
from upcall.contracts import Reply
from upcall.errors import RuntimeClosed
from upcall.events import MessageAdded, ModelStarted
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.input_line import Heard, Keyboard
from upcall.hosts.terminal.question import wrapped
from upcall.hosts.terminal.screen import WIDEST, Piece, styled
from upcall.observe.plain import one_line

AGAIN = "Ctrl-C again leaves"


class Conversation:
    """Asks, runs and shows until the person leaves: Ctrl-D, or Ctrl-C twice with nothing in between."""

    def __init__(self, talk: Talk, keyboard: Keyboard) -> None:
        self._talk, self._keyboard = talk, keyboard
        self._work: asyncio.Task[bool] | None = None
        self._interrupt: Callable[[], object] = lambda: None
        self._is_turn = False
        self._pressed = False
        self._unfolded = 0
        self._unread: list[str] = []  # what was said to the running turn and has not reached its model
        self._request: ModelStarted | None = None  # the last one shown: what hooks make of each is told once
        self._next: list[Heard] = []  # what came during a summary, or while the last lines of a turn were shown

    async def run(self) -> None:
        """Until the person leaves."""
        async with self._keyboard as keyboard:
            begun = self._talk.session is not None
            if begun and await self._talk.runtime.status(self._talk.id) == "waiting":
                self._begin(self._turn(None), is_turn=True)
            keyboard.ask("steer" if self._work is not None else "")
            while not await self._take(await keyboard.heard.get()):
                pass

    async def _take(self, heard: Heard) -> bool:
        """Do what was asked for; says whether the person leaves."""
        pressed, self._pressed = self._pressed, False
        if heard.kind in ("line", "stop"):
            self._unfolded = 0
        match heard.kind:
            case "stop" if self._work is not None:
                self._interrupt()
            case "stop":
                if pressed:
                    return True
                self._pressed = True
                tell(AGAIN)
                self._keyboard.ask()
            case "leave" | "gone":
                return self._work is None or self._leave(heard)
            case "ended":
                return self._ended() or await self._go_on()
            case "unfold":
                self._unfolded += 1
                await self._guarded(unfold(self._talk, self._unfolded))
            case "line":
                return await self._line(heard.text.encode("utf-8", "replace").decode())
        return False

    def _leave(self, heard: Heard) -> bool:
        """Leave once what is at work has ended; it is not given up for a key that may have slipped."""
        if heard.kind == "gone":
            self._interrupt()
        if heard.kind == "gone" or not self._is_turn or self._is_over:
            self._next.append(Heard("leave"))
        else:
            tell("it is still at work: Ctrl-C cancels it")
        return False

    async def _line(self, text: str) -> bool:
        """Take one line; says whether the person leaves."""
        given = command_in(text)
        if given is not None and (self._work is None or not needs_rest(given)):
            _echo(text)
            if takes_long(given):
                self._begin(self._guarded(run_command(self._talk, given)), is_turn=False)
                self._keyboard.ask("summarising")
                return False
            if await self._guarded(run_command(self._talk, given)):
                return True
            if self._talk.session is None:
                self._request = None  # another session's hooks have not been told yet
            sys.stdout.write("\n")
        elif self._work is None:
            _echo(text)
            self._begin(self._turn(text), is_turn=True)
        elif not self._is_turn or self._is_over:
            self._next.append(Heard("line", text))
            if not self._is_turn:
                tell(f"that waits for the summary: {one_line(text, width() - 28)}")
                return False
        elif given is not None:
            tell("upcall: it is still at work; wait for it to end, or Ctrl-C cancels it")
        else:
            self._unread.append(text)
            await self._guarded(self._steer(text))
        self._keyboard.ask("steer" if self._work is not None else "")
        return False

    async def _steer(self, text: str) -> None:
        await (await self._talk.begin()).steer(text)

    @property
    def _is_over(self) -> bool:
        return self._is_turn and self._talk.id not in self._talk.runtime.turns

    async def _go_on(self) -> bool:
        """Take what had to wait; says whether the person leaves."""
        waiting, self._next = self._next, []
        for at, heard in enumerate(waiting):
            if self._work is not None:  # the first line began a turn: what followed it is for that
                self._next = waiting[at:]
                break
            if await self._take(heard):
                return True
        return False

    # --- work that takes a while ----------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, bool], *, is_turn: bool) -> None:
        task = self._work = asyncio.ensure_future(work)
        self._is_turn = is_turn
        self._interrupt = interrupter(self._talk.runtime, self._talk.id, task) if is_turn else task.cancel
        task.add_done_callback(lambda _: self._keyboard.heard.put_nowait(Heard("ended")))

    def _ended(self) -> bool:
        """Say what is left to say of it; whether the person pressed Ctrl-C a second time and leaves with that."""
        assert self._work is not None
        work, self._work = self._work, None
        if work.cancelled() and self._is_turn:
            return True
        for text in self._unread:
            tell(f"too late for this turn, your next message brings it along: {one_line(text, width() - 65)}")
        self._unread.clear()
        if work.cancelled() or work.result():
            self._pressed = True
            tell(AGAIN)
        sys.stdout.write("\n")
        self._keyboard.ask()
        return False

    async def _turn(self, text: str | None) -> bool:
        """One turn on the screen, or the rest of one that waits; says whether it was cancelled."""
        runtime, session_id = self._talk.runtime, self._talk.id
        try:
            async with watched(runtime, sys.stdout, self._keyboard, fresh=False) as view:
                shown = _Heeding(view, session_id, self._unread, self._request)
                try:
                    reply = await self._reply(text, shown)
                finally:
                    self._request = shown.request
            if reply.status == "waiting":
                await tell_waiting(runtime, session_id, self._talk.args)
            return reply.status == "cancelled"
        except RuntimeClosed:  # SIGTERM: the chat ends, and says how it is continued
            return False
        except Exception as error:
            tell(f"upcall: {failure_line(error)}")
            return False

    async def _reply(self, text: str | None, view: Any) -> Reply:
        runtime, session = self._talk.runtime, await self._talk.begin()
        if text is not None and await runtime.status(session.id) != "waiting":
            return await streamed(session, text, view)
        reply = await resumed(runtime, session.id, view)
        if text is None or reply.status == "waiting":
            return reply
        return await streamed(session, text, view)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do it, and tell a failure; says whether the person leaves."""
        try:
            await work
        except Leave:
            return True
        except Exception as error:
            tell(f"upcall: {failure_line(error)}")
        return False


class _Heeding:
    """A view that also notes which of the things that were said to a turn its model has read."""

    def __init__(self, view: Any, session: str, unread: list[str], request: ModelStarted | None) -> None:
        self._session, self._unread, self.request = session, unread, request
        self._feed, self.recall = view.feed, view.recall
        if request is not None:
            view.recall(request)

    def feed(self, item: Any) -> None:
        match item:
            case ModelStarted(session=self._session):
                self.request = item
            case MessageAdded(session=self._session) if item.steer and item.message.text in self._unread:
                self._unread.remove(item.message.text)
            case _:
                pass
        self._feed(item)


def _echo(text: str) -> None:
    """What was sent, above the line that it was typed in."""
    console = make_console(sys.stdout)
    for at, row in enumerate(wrapped(text, min(width(), WIDEST) - 2)):
        console.print(styled([Piece("  " if at else "› ", "cyan"), Piece(row, "bold")]))
