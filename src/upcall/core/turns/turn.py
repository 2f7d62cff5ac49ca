"""One turn: model, tools and hooks meet here and nowhere else.

begin_session → pre_request → (before_model → model → post_response → before_tool → tool → after_tool)* → end_turn

Each step looks at the folded log first, so the same code begins a turn and goes on with one that was interrupted.
"""

from __future__ import annotations

import asyncio
from typing import Any

from upcall import events
from upcall.agent import Output
from upcall.contracts import Reply
from upcall.core.log.state import SessionState
from upcall.core.routing.question import plain_json
from upcall.core.turns.hook_runner import run_hooks
from upcall.core.turns.model_step import Thinker
from upcall.core.turns.parking import Parking
from upcall.core.turns.side_turn import NUDGE, outcome_in
from upcall.core.turns.tool_step import ToolStep
from upcall.core.turns.toolsets import ensure_tools
from upcall.errors import (
    STOPS,
    LimitReached,
    OutputInvalid,
    RuntimeClosed,
    SessionTakenOver,
    StoreError,
    UpcallError,
)
from upcall.messages import Message, Text, cancelled

OUTPUT_TRIES = 3


class Turn(Thinker):
    """One turn of one session, from its prompt (or from where it stopped) to its reply."""

    __slots__ = ()

    # --- the picture ----------------------------------------------------------------------

    async def run(self, release: bool = True) -> Reply:
        """Run to the end, or until it waits. `release` gives the run tree up with the last append."""
        self.come()
        try:
            self._check_stop()
            if self.hooks.pre_request and not self.state.pre_passed and self.purpose != "side_turn":
                await self._pre_request()
            await self._work()
            if self.hooks.end_turn and self.purpose != "side_turn":
                await self._end_turn()
            if release and self.state.callbacks:
                await self.tree.end_asides()
            self._end("done")
            await self.log.flush(release=release)
        except Parking:
            return await self._parked(release)
        except BaseException as error:
            return await self._stopped(error, release)
        finally:
            self._go()
        return self.reply()

    async def begin(self) -> None:
        """Run the hooks of a session that is being created. What they write is stored with it."""
        if self.log.claim is not None:
            self.come()
        try:
            await run_hooks(self, "begin_session", "", self.hooks.begin_session)
        except asyncio.CancelledError:
            self._check_stop()
            raise
        except Parking:
            await self._parked(release=False)
            raise
        finally:
            if self._task is not None:  # else they waited for nothing, and nobody needed to know of it
                self._go()
        self.log.add(events.HooksPassed("begin_session"))

    def come(self) -> None:
        """It runs: others can see, reach and stop it."""
        if self._task is None:
            self._task, self.log.on_foreign_event = asyncio.current_task(), self.absorb
            self.tree.admit(self)
            activity = self.activity
            activity.on_start, activity.on_idle = self.start_clock, self.stop_clock
            activity.enter()

    def _go(self) -> None:
        self._task = self.log.on_foreign_event = None
        self.activity.leave()
        self.activity.on_start = self.activity.on_idle = None
        self.tree.dismiss(self)

    async def _work(self) -> None:
        state, side = self.state, self.purpose == "side_turn"
        while True:
            if self._stopping is not None or self.tree.draining:
                self._check_stop()
            if state.failed is not None and self.hooks.model_failed and not side:
                await self._retry_model_failed_hooks(*state.failed)
            elif state.wants_model():
                await self._call_model()
            if not state.post_passed:
                await self._post_response()
            if state.calls:
                if self.tree.draining:
                    self._check_stop()
                await self._run_tools()
                if side and outcome_in(self) is not None:
                    return
            elif self._complete():
                return

    def _check_stop(self) -> None:
        if self._stopping is None and self.state.cancel is not None:  # it was asked for while nobody ran this
            self._stopping = Cancelled(self.state.cancel.reason)
        if self._stopping is not None and self._task is not None:  # a tool swallowed that it was cancelled
            self._task.uncancel()
            raise self._stopping
        if self.tree.draining and self.tree.is_stopping(self):
            raise RuntimeClosed

    # --- pre_request and the model --------------------------------------------------------

    async def _pre_request(self) -> None:
        await self.log.flush()
        prompt = self.state.prompt
        assert prompt is not None
        message = await run_hooks(self, "pre_request", self.state.turn, self.hooks.pre_request, prompt.message)
        if message is prompt.message:
            self.log.add(events.HooksPassed("pre_request"))
        else:
            await self.log.flush()
            self.log.add(events.HooksPassed("pre_request", replaces=prompt.seq, message=message))

    # --- tools ----------------------------------------------------------------------------

    async def _run_tools(self) -> None:
        """Run what the response called: one call here, several side by side. Parking if one of them waits."""
        if self.actor.toolsets:  # a turn that was resumed here has not asked them yet
            await ensure_tools(self)
        toolbox = self.actor.toolbox
        calls = [call for call in self.state.calls.values() if not call.settled]
        if len(calls) == 1:
            parked = await ToolStep(self, calls[0], toolbox).run()
        else:
            steps = [ToolStep(self, call, toolbox, alone=False) for call in calls]
            parked = True in await self.activity.run_all([step.run_in_place() for step in steps])
        if parked:
            raise Parking

    # --- limits, compaction, output -------------------------------------------------------

    def out_of_time(self) -> None:
        """The turn has run too long."""
        self.stop(LimitReached("turn_seconds", f"{self.actor.limits.turn_seconds:g} s"))

    def _complete(self) -> bool:
        """Whether the reply is the turn's: nobody steered meanwhile, and it has the type the agent promises."""
        if self.state.steers:
            self._take_steers()
            return False
        if self.question is not None:
            self.log.add(events.OutputRefused(NUDGE))
            return False
        output = self.actor.output
        if output is None or self.purpose != "turn":
            return True
        try:
            output.parse(self.state.model_text)
        except ValueError as error:
            self.log.add(events.OutputRefused(output.correction(str(error))))
            if self.state.output_retries >= OUTPUT_TRIES:
                raise OutputInvalid(self.actor.name, OUTPUT_TRIES, str(error), self.state.model_text) from None
            return False
        return True

    # --- the end --------------------------------------------------------------------------

    async def _end_turn(self) -> None:
        await self.log.flush()
        reply = self.reply()
        for index in range(self.state.end_passed, len(self.hooks.end_turn)):
            at = f"{self.state.turn}.{index}"
            changed = await run_hooks(self, "end_turn", at, (self.hooks.end_turn[index],), reply)
            text = changed.text if changed.text != reply.text else None
            output = plain_json("a reply's output", changed.output) if changed.output != reply.output else None
            reply = changed
            self.log.add(events.HooksPassed("end_turn", at, text=text, output=output))
            await self.log.flush()

    def _end(self, status: Any, limit: str = "", error: str = "") -> None:
        seconds = self.state.running_seconds(self.log.store.now())
        self.log.add(events.TurnEnded(self.state.turn, status, limit, error, seconds))

    def reply(self) -> Reply:
        """What the turn has come to so far."""
        return reply_of(self.state, self.actor.output if self.purpose == "turn" else None)

    async def _parked(self, release: bool) -> Reply:
        if not release:  # else the tree is parked next, and what is left goes with that
            await self.log.flush()
        self.tree.note_parked(self)
        return reply_of(self.state, waits=True)

    def absorb(self, event: events.AnyEvent) -> None:
        """Take in what somebody else appended to this session."""
        super().absorb(event)
        if isinstance(event, events.CancelRequested):
            self.stop(Cancelled(event.reason))

    def stop(self, why: Exception) -> None:
        """End the turn from outside: a LimitReached, a Cancelled, or what made its log unwritable."""
        if self._stopping is None and self._task is not None and not self._task.done():
            self._stopping = why
            if self._task is not asyncio.current_task():
                self._task.cancel()
            elif not isinstance(why, SessionTakenOver | StoreError):  # else the append that fails tells it
                # a tool ends its own turn: it is cancelled where it waits, if it still runs at all
                asyncio.get_running_loop().call_soon(lambda: self._task is not None and self._task.cancel())

    async def _stopped(self, error: BaseException, release: bool) -> Reply:
        """Leave a valid log whatever happened, then return or raise what the caller should get."""
        outside = isinstance(error, asyncio.CancelledError) and self._stopping is None
        if isinstance(error, asyncio.CancelledError) and self._stopping is not None:
            assert self._task is not None
            self._task.uncancel()
            error = self._stopping
        self._task = None  # it ends: whoever still wants to stop it would only cut its last append off
        if self.state.phase != "running" and not isinstance(error, SessionTakenOver | StoreError):
            # its end is written already, only its commit was waited for
            await self.log.flush()
            if outside:
                raise error
            return self.reply()
        failure = self.log.claim.failure if self.log.claim is not None else None
        if isinstance(error, STOPS) or failure is not None:
            if failure is None and isinstance(error, RuntimeClosed):
                await self.log.flush()  # what has ended by now does not run again
            raise failure or error
        if release:
            await self.tree.end_asides()
        if outside or isinstance(error, Cancelled):
            await self._settle_open("the turn was cancelled")
            self._end("cancelled")
        elif isinstance(error, LimitReached):
            await self._settle_open(f"the turn reached its limit {error.limit}")
            self._end("limit", limit=error.limit)
        else:
            self._end("failed", error=f"{type(error).__name__}: {error}")
            outside = True
        await self.log.flush(release=release)
        if outside:
            raise error
        return self.reply()

    async def _settle_open(self, why: str) -> None:
        state = self.state
        if state.open_model_call is not None and self._partial:
            said = Message("assistant", (Text("".join(self._partial)),))
            self.log.add(events.Responded(state.open_model_call.ordinal, said, stop="cancelled"))
        for ask in tuple(state.callbacks.values()):
            if ask.status == "open":
                self.log.add(events.CallbackWithdrawn(ask.raised.callback_id, why))
                self.tree.withdraw(ask.raised.callback_id, why)
        await self.tree.end_below(self.id, why)
        for call_id, call in (*state.inner.items(), *state.calls.items()):
            if call.result is None:
                self.log.add(events.ToolEnded(call_id, cancelled(call_id, why), "cancelled"))


def reply_of(state: SessionState, output: Output | None = None, *, waits: bool = False) -> Reply:
    """What a session's last turn came to; `output` is the type of what it says, once it has said it."""
    value = None
    if output is not None and state.phase in ("done", "running"):
        said = state.reply_text if output.schema is None else state.model_text
        if state.output is not None:
            value = output.convert(state.output)
        elif said or output.schema is None:
            value = output.parse(said)
    status: Any = "waiting" if waits else state.phase if state.phase in ("cancelled", "limit") else "done"
    return Reply(state.reply_text, status, state.id, state.usage, output=value, limit=state.limit)


class Cancelled(UpcallError):
    """Somebody asked for the turn to end."""
