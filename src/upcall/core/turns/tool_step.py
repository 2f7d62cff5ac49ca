"""One tool call: before_tool → approval → tool → after_tool.

The start of a tool is in the log before it runs, and its result before after_tool hooks run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec

from upcall.callbacks import Callback, same_json
from upcall.core.log.call_state import CallState
from upcall.core.turns.access import CallContext, SyncCallContext
from upcall.core.turns.approval import before_tool, edits_of, gate
from upcall.core.turns.checking import checked
from upcall.core.turns.hook_runner import run_hooks
from upcall.core.turns.parking import Parking
from upcall.core.turns.timeouts import ToolTimeout
from upcall.core.turns.turn import CallbackScope, Turn
from upcall.errors import (
    STOPS,
    HookFailed,
    LimitReached,
    RuntimeClosed,
    ToolSwallowedParking,
    UpcallError,
)
from upcall.events import HooksPassed, InnerCalled, ToolEnded, ToolStarted, ToolTriedAgain
from upcall.messages import Call, Result, replace_surrogates
from upcall.safety.bounds import ARGUMENTS, DEPTH, head_of, tail_of
from upcall.tools import (
    BadArguments,
    CallRefused,
    Tool,
    to_result,
    unknown_tool_again,
    unknown_tool_of_hook,
    unknown_tool_text,
)

R = TypeVar("R")

_TOLD_NAMES = 3
"""Calls of tools that don't exist, of one response, whose results name the tools that do."""

INTERRUPTED = (
    "interrupted, outcome unknown: the process ended while this tool ran, so it may have had some of its effects. "
    "It was not run again. Find out what it did before you decide what to do."
)


class ToolStep(msgspec.Struct, eq=False):
    """One call of a response, from wherever the log says it is to its settled result.

    `alone`: no others of its response run beside it; `inner`: a program calls it.
    """

    turn: Turn
    call: CallState
    toolbox: Mapping[str, Tool]
    alone: bool = True
    inner: bool = False

    async def run_when_admitted(self) -> bool:
        """Run it beside the others of its response, once it has a slot; return whether it is parked."""
        slots, call_id = self.turn.question_slots, self.call.call.id
        try:
            admitted = slots.enter(self.call)
            if admitted is not None:
                with self.turn.activity.waiting():
                    await admitted
            return await self.run()
        except Parking:  # while it waited for its slot
            return True
        finally:
            slots.leave(call_id)

    async def run(self) -> bool:
        """Run it, or what is left of it; return True if it was parked."""
        state = self.call
        try:
            if state.result is None:
                try:
                    if state.started:
                        await self._reenter(state.call)
                    elif self.turn.hooks.before_tool and not state.hooks_passed:
                        out = await before_tool(self.turn, state.call)
                        if isinstance(out, Result):
                            self.end(out, "hook")
                        else:
                            await self._begin(out)
                    else:
                        await self._begin(state.call)
                except CallRefused as error:
                    self.end(Result(state.call.id, str(error), is_error=True), "refused")
            if not state.settled:
                await self._after_tool()
        except Parking as parking:
            parking.__traceback__ = None  # it holds what it unwound, which holds it: a cycle per question
            return True
        return False

    async def _reenter(self, call: Call) -> None:
        """A call that had started: it waits, it may be repeated, or its outcome is unknown."""
        tool = self.toolbox.get(call.name)
        services = self.turn.services
        finished = await services.finish_below(self.turn, self.call)
        waits = finished or self.call.last_event in ("raised", "parked")
        if waits and not finished:
            await services.wait_until_reenterable(self.turn, call.id)
        if tool is None:
            self.end(Result(call.id, self._missing_tool_text(call), is_error=True), "refused")
        elif not waits and not tool.repeatable:
            await services.end_children_of(self.turn, call.id, "the call that started it was interrupted")
            self.end(Result(call.id, INTERRUPTED, is_error=True), "interrupted")
        else:
            if self.call.recheck and not await self._approved_again(tool, call):
                return
            call = self.call.call
            self._check_draining()
            log, had_children = self.turn.log, self.call.waited_for_child
            log.add(ToolTriedAgain(call.id, self.call.attempts + 1))
            # refused where another process has taken the run tree over; synced where a child's reply is given out
            await log.flush(lazy=not had_children)
            if log.is_overdue:
                await log.confirm()
            args = await checked(self.turn, tool, call.args)
            self.end(await self._invoke(tool, call.id, args), "ran")

    async def _approved_again(self, tool: Tool, call: Call) -> bool:
        """Have a call approved that had started before its log was adopted; False if that gave it a result."""
        passed = await gate(self.turn, tool, call, await checked(self.turn, tool, call.args))
        if isinstance(passed, Result):
            self.end(passed, "hook")
            return False
        approval, final = passed
        if final.name != tool.name:
            raise CallRefused(
                f"{call.name} was not run: a hook redirected the call to {final.name} after it had started"
            )
        changed = None if same_json(final.args, call.args) else final.args
        self.turn.log.add(ToolStarted(call.id, call.name, changed, approval))
        return True

    def _missing_tool_text(self, call: Call) -> str:
        """The error text for a tool that no longer exists, with the answers that the call was given meanwhile."""
        answers = [
            f"the answer to {one.message!r} was {one.answer.value!r}"
            for one in self.turn.state.turn.callbacks.values()
            if one.status == "answered" and one.answer is not None
            if one.origin == call.id or one.origin.startswith(f"{call.id}.")  # asked by a program that it ran
        ]
        missing = (
            one.call.id for one in self.turn.state.conversation.calls.values() if one.call.name not in self.toolbox
        )
        if self.inner or call.id in islice(missing, _TOLD_NAMES):
            text = unknown_tool_text(call.name, self.toolbox)
        elif self.call.call.name in self.toolbox:
            text = unknown_tool_of_hook(call.name, self.call.call.name)
        else:
            text = unknown_tool_again(call.name)
        if not answers:
            return text
        told = f"The tool existed when the call began. While the call waited, it received: {'; '.join(answers)}."
        return f"{text.removesuffix('.')}. {told}"

    async def _begin(self, call: Call) -> None:
        """Look, check, have it approved, write its start down, run it."""
        tool = self.toolbox.get(call.name)
        if tool is None:
            raise CallRefused(self._missing_tool_text(call))
        if self.turn.purpose == "side_turn" and not tool.read_only:
            raise CallRefused(
                f"{tool.name} can't be used while you answer a callback: only read-only tools can be used"
            )
        if call.broken:
            most = f"of at most {ARGUMENTS} bytes, nested at most {DEPTH} levels deep"
            raise BadArguments(
                tool.name, [f"the arguments must be one JSON object {most}, but were: {call.broken[:200]}"]
            )
        args, approval = await checked(self.turn, tool, call.args), ""
        if (
            tool.needs_approval or self.turn.actor.rules or self.turn.state.turn.callbacks
        ):  # it may have been asked before
            passed = await gate(self.turn, tool, call, args)
            if isinstance(passed, Result):
                self.end(passed, "hook")
                return
            approval, final = passed
            if final.name != tool.name:  # a hook sent what an approver had changed to another tool
                await self._begin(final)
                return
            args = args if final is call else await checked(self.turn, tool, final.args)
            call = final
        if self.turn.services.draining:
            self._check_draining()
        first, log = self.call.call, self.turn.log
        changed = None if call is first or same_json(call.args, first.args) else call.args
        log.add(ToolStarted(call.id, call.name, changed, approval))
        await log.flush()
        if log.is_overdue:  # this process may have been stopped since that was stored
            await log.confirm()
        self.end(await self._invoke(tool, call.id, args), "ran")

    def _check_draining(self) -> None:
        """Start nothing while the runtime is closing: the call is run when its turn is resumed."""
        if self.turn.services.is_stopping(self.turn):
            raise RuntimeClosed

    async def _invoke(self, tool: Tool, call_id: str, args: dict[str, Any]) -> Result:
        """Run the function; what it raises becomes a result that the model can act on."""
        context = None
        if tool.context is not None:
            context = CallContext(self.turn.state, self.turn, call_id)
            args[tool.context] = context if tool.is_async else SyncCallContext(context, asyncio.get_running_loop())
        limits = self.turn.actor.limits
        seconds = tool.timeout if tool.timeout is not None else limits.tool_seconds
        task = self.turn.task if self.alone else asyncio.current_task()
        assert task is not None
        guard = ToolTimeout(tool.name, task, self.turn.services.deadlines, scoped=tool.is_async)
        if context is not None:
            context.guard = guard
        if seconds is not None and not tool.inline:
            guard.begin(seconds, self.call.ran_seconds)
        try:
            if tool.is_async:
                value = await tool.function(**args)
            elif tool.inline:
                value = tool.function(**args)
            else:
                value = await self.turn.services.threads.run(partial(tool.function, **args))
            if self.turn.actor.agent.results and not self.inner:  # a program needs the value itself
                value = await self._apply_result_keepers(call_id, value)
            result = self._result_of(call_id, value)
        except (*STOPS, LimitReached, HookFailed):
            raise
        except asyncio.CancelledError as error:
            result = Result(call_id, _timeout_text(error, tool.name, guard, seconds), is_error=True)
        except (Exception, SystemExit) as error:  # a tool that calls sys.exit() ends only its own call
            result = Result(call_id, failure_text(tool.name, error), is_error=True)
        except BaseExceptionGroup as group:
            result = _ungrouped(call_id, tool.name, group)
        finally:
            self.call.ran_seconds = guard.stop()  # it may have waited, and run again
            if context is not None:
                await context.end_call()
        guard.take_back_cancel()
        return self._check_replay(tool, context, result) if context is not None or self.call.attempts else result

    def _result_of(self, call_id: str, value: Any) -> Result:
        """The result for a tool's value, cut where it is too long; a program needs to know that it is None."""
        result = _truncate(to_result(call_id, value), self.turn.actor.limits.result_chars)
        return result.replace(is_none=True) if value is None and self.inner else result

    async def _apply_result_keepers(self, call_id: str, value: Any) -> Any:
        """The tool's value, or the replacement that a kit's `results` function returned."""
        context = CallContext(self.turn.state, self.turn, call_id)
        try:
            for keeper in self.turn.actor.agent.results:
                out: Any = keeper(context, self.call.call, value)
                out = await out if hasattr(out, "__await__") else out
                if out is not None:
                    return out
            return value
        finally:
            context.end()
            context.check_stopped()

    def _check_replay(self, tool: Tool, context: CallContext | None, result: Result) -> Result:
        """The result, unless the tool caught its parking or left an answer it was given unasked for."""
        asker = context.asker if context is not None else None
        if context is not None and context.ended == "stopped":  # it had no time left to ask again
            return result
        if asker is None and self.call.attempts:  # it asks no more: was it given an answer?
            asker = CallbackScope(self.turn, result.call_id)
        if asker is None or not (asker.parked or asker.unused_answers()):
            return result
        error = ToolSwallowedParking(tool.name) if asker.parked else asker.mismatch()
        return Result(result.call_id, f"{type(error).__name__}: {error}", is_error=True)

    def end(self, result: Result, how: Any) -> None:
        """Give the call its result; what it still asked is withdrawn."""
        if self.turn.state.turn.callbacks:
            told = edits_of(self.turn, self.call.call.id)
            if told and not self.inner:  # a program needs the value itself; its own result tells the model
                result = result.replace(text=f"{told}{result.text}", json=result.json)
            self._withdraw()
        pending = bool(self.turn.hooks.after_tool)
        self.turn.log.add(ToolEnded(self.call.call.id, result, how, pending))
        if not self.alone and not pending:  # before its hooks run the result is flushed, and waited for
            self.turn.log.flush_soon()

    def _withdraw(self) -> None:
        """End what the call, the calls of its program, or hooks around them still ask."""
        mine = self.call.call.id

        def is_mine(callback: Callback) -> bool:
            at = callback.origin.removeprefix("before_tool.").removeprefix("after_tool.")
            return at == mine or at.rpartition(".")[0] == mine

        self.turn.withdraw_open("the call that asked has ended", is_mine)

    async def _after_tool(self) -> None:
        """The hooks' chain over the result, which is stored before: whatever they do, the tool never runs again."""
        await self.turn.log.flush()
        call, first = self.call.call, self.call.result
        assert first is not None
        result = await run_hooks(self.turn, "after_tool", call.id, self.turn.hooks.after_tool, call, first)
        if self.turn.held_output:
            self.turn.release_output(call.id, show=result is first)
        if result is first:
            self.turn.log.add(HooksPassed("after_tool", call.id))
        else:
            await self.turn.log.flush()
            ended = self.call.ended
            seq = ended.seq if ended is not None else 0
            self.turn.log.add(HooksPassed("after_tool", call.id, seq, result=result.replace(call_id=call.id)))
        if not self.alone:
            self.turn.log.flush_soon()


def inner_step(
    context: CallContext, number: int, name: str, args: dict[str, Any], toolbox: Mapping[str, Tool]
) -> ToolStep:
    """The step for one call out of a program that runs as `context`'s call, from wherever the log says it is."""
    turn, call_id = context.turn, f"{context.call_id}.{number}"
    if call_id not in turn.state.conversation.inner:
        turn.log.add(InnerCalled(context.call_id, Call(call_id, name, args)))
    return ToolStep(turn, turn.state.conversation.inner[call_id], toolbox, alone=False, inner=True)


def _timeout_text(error: asyncio.CancelledError, tool: str, guard: ToolTimeout, seconds: float | None) -> str:
    """The error text for a call that took too long. Parking, and a cancellation by others, are raised."""
    guard.is_cut = True
    if guard.cancelled_to_park():
        raise Parking from None
    if not guard.take_back_cancel():
        raise error
    return f"{tool} was stopped after {seconds:g} s; it may have had some of its effects"


def _ungrouped(call_id: str, tool: str, group: BaseExceptionGroup[Any]) -> Result:
    """The result for an exception group of a tool. Parking and cancellation are raised."""
    parking, others = group.split(Parking)
    if parking is not None and others is None:
        raise Parking
    if not isinstance(group, ExceptionGroup) and parking is None:
        raise group
    return Result(
        call_id, failure_text(tool, ExceptionGroup(str(others), [RuntimeError(repr(others))])), is_error=True
    )


def _truncate(result: Result, most: int | None) -> Result:
    """A preview in place of a text that is too long."""
    if most is None or len(result.text) <= most:
        return result
    head, tail = head_of(result.text, most // 2), tail_of(result.text, most // 2)
    size = len(result.text)
    gap = f"\n… {size - len(head) - len(tail)} of {size} characters left out …\n"
    return result.replace(text=head + gap + tail, json=None)


def failure_text(tool: str, error: Exception | SystemExit) -> str:
    """The error text for a tool that raised."""
    said = str(error).strip()
    named = said if isinstance(error, UpcallError) else f"{type(error).__name__}: {said}" if said else repr(error)
    return replace_surrogates(f"{tool} failed: {named}")
