"""One tool call: before_tool → tool → after_tool, each written down before what follows.

May import: contracts, errors, events, fold, hooks, messages, session, tools.
"""

from __future__ import annotations

import asyncio
from typing import Any

from upcall.contracts import Delta
from upcall.errors import LimitReached, SessionTakenOver, StoreError, UpcallError
from upcall.events import HooksPassed, ToolEnded, ToolStarted
from upcall.fold import CallState, origin
from upcall.hooks import call_hook, wrong_return
from upcall.messages import Call, Result
from upcall.session import Access, Member
from upcall.tools import BadArguments, Tool, to_result, unknown_tool_text

INTERRUPTED = (
    "interrupted, outcome unknown: the process ended while this tool ran, so it may have had some of its effects. "
    "It was not run again. Find out what it did before you decide what to do."
)


class CallContext(Access):
    """What an async tool gets: its session, and the call it serves."""

    __slots__ = ("_call_id",)

    def __init__(self, member: Member, call_id: str) -> None:
        super().__init__(member, call_id)
        self._call_id = call_id

    @property
    def call_id(self) -> str:
        """The id of the tool call that is running."""
        return self._call_id

    def show(self, text: str) -> None:
        """Let people who watch see text while the tool runs; it is not stored."""
        self._member.log.live.publish(Delta(self._member.id, text, "output", self._call_id))


class SyncCallContext:
    """What a plain `def` tool gets, in its own thread."""

    __slots__ = ("_context", "_loop")

    def __init__(self, context: CallContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop

    @property
    def id(self) -> str:
        """The session's id."""
        return self._context.id

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self._context.agent

    @property
    def call_id(self) -> str:
        """The id of the tool call that is running."""
        return self._context.call_id

    def get_context(self, key: str, default: Any = None) -> Any:
        """What was kept under that key."""
        return self._context.get_context(key, default)

    def set_context(self, key: str, value: Any) -> None:
        """Keep a JSON value under a key."""
        self._on_loop(self._context.set_context, key, value)

    def show(self, text: str) -> None:
        """Let people who watch see text while the tool runs; it is not stored."""
        self._loop.call_soon_threadsafe(self._context.show, text)

    def _on_loop(self, work: Any, *args: Any) -> Any:
        async def call() -> Any:
            return work(*args)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()


class ToolCall:
    """One call of a response, from wherever the log says it is to its settled result."""

    __slots__ = ("alone", "call", "hooks", "log", "member", "task", "toolbox")

    def __init__(self, member: Member, call: CallState, task: asyncio.Task[Any], *, alone: bool) -> None:
        self.member, self.call, self.task, self.alone = member, call, task, alone
        self.log, self.hooks, self.toolbox = member.log, member.actor.hooks, member.actor.toolbox

    async def run(self) -> None:
        """Run it, or what is left of it."""
        if self.call.result is None:
            await self._run()
        if not self.call.settled:
            await self._after_tool()

    async def _run(self) -> None:
        call, asked = self.call.call, self.call.call
        tool = self.toolbox.get(call.name)
        if self.call.started and not (tool is not None and tool.repeatable):
            self._end(Result(call.id, INTERRUPTED, is_error=True), "interrupted")
            return
        if self.hooks.before_tool and not self.call.passed:
            out = await self._before_tool(call)
            if isinstance(out, Result):
                self._end(out, "hook")
                return
            call = out
        tool = self.toolbox.get(call.name)
        if tool is None:
            self._end(Result(call.id, unknown_tool_text(call.name, self.toolbox), is_error=True), "refused")
            return
        if self.member.purpose == "side_turn" and not tool.read_only:
            why = f"{tool.name} can't be used while answering: only tools that read can"
            self._end(Result(call.id, why, is_error=True), "refused")
            return
        try:
            args = self._check(tool, call)
        except BadArguments as error:
            self._end(Result(call.id, str(error), is_error=True), "refused")
            return
        changed = None if call.args == asked.args else call.args
        self.log.add(ToolStarted(call.id, "" if call.name == asked.name else call.name, changed))
        waiting = self.log.flush()
        if waiting is not None:
            await waiting
        self._end(await self._invoke(tool, call.id, args), "ran")

    async def _before_tool(self, call: Call) -> Call | Result:
        """The hooks' chain: a changed call goes on to the next hook, a result ends it."""
        access = Access(self.member, origin("before_tool", call.id))
        for hook in self.hooks.before_tool:
            out = await call_hook("before_tool", hook, access, call)
            if isinstance(out, Result):
                return out.replace(call_id=call.id)
            if isinstance(out, Call):
                call = out.replace(id=call.id)
            elif out is not None:
                raise wrong_return("before_tool", hook, out, "a Call, a Result")
        return call

    @staticmethod
    def _check(tool: Tool, call: Call) -> dict[str, Any]:
        if call.broken:
            raise BadArguments(tool.name, [f"they must be one JSON object, but were: {call.broken[:200]}"])
        return tool.check(call.args)

    async def _invoke(self, tool: Tool, call_id: str, args: dict[str, Any]) -> Result:
        """Run the function; what it raises becomes a result that the model can act on."""
        if tool.context is not None:
            args[tool.context] = self._context(tool, call_id)
        seconds = tool.timeout if tool.timeout is not None else self.member.actor.agent.limits.tool_seconds
        guard, deadlines = Guard(self.task), self.member.tree.deadlines
        if seconds is not None and not tool.inline:
            deadlines.add(guard, seconds, guard.expire)
        try:
            if tool.is_async:
                value = await tool.function(**args)
            elif tool.inline:
                value = tool.function(**args)
            else:
                value = await self._in_thread(tool, args)
        except (SessionTakenOver, StoreError, LimitReached):
            raise
        except asyncio.CancelledError:
            if not guard.caught():
                raise
            why = f"{tool.name} was stopped after {seconds:g} s; it may have had some of its effects"
            return Result(call_id, why, is_error=True)
        except Exception as error:
            guard.caught()
            return Result(call_id, failure_text(tool.name, error), is_error=True)
        finally:
            deadlines.drop(guard)
        guard.caught()
        return self._fit(to_result(call_id, value))

    def _context(self, tool: Tool, call_id: str) -> CallContext | SyncCallContext:
        context = CallContext(self.member, call_id)
        return context if tool.is_async else SyncCallContext(context, asyncio.get_running_loop())

    async def _in_thread(self, tool: Tool, args: dict[str, Any]) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.member.tree.threads, lambda: tool.function(**args))

    def _fit(self, result: Result) -> Result:
        """A preview in place of a text that is too long."""
        most = self.member.actor.agent.limits.result_chars
        if most is None or len(result.text) <= most:
            return result
        half = most // 2
        gap = f"\n… {len(result.text) - 2 * half} of {len(result.text)} characters left out …\n"
        return result.replace(text=result.text[:half] + gap + result.text[len(result.text) - half :], json=None)

    def _end(self, result: Result, how: Any) -> None:
        self.log.add(ToolEnded(self.call.call.id, result, how, bool(self.hooks.after_tool)))
        if not self.alone:
            self.log.send()

    async def _after_tool(self) -> None:
        """The hooks' chain over the result, which is stored before: whatever they do, the tool never runs again."""
        await self.log.commit()
        call, first = self.call.call, self.call.result
        assert first is not None
        result = first
        access = Access(self.member, origin("after_tool", call.id))
        for hook in self.hooks.after_tool:
            out = await call_hook("after_tool", hook, access, call, result)
            if out is not None:
                result = result.replace(text=out, json=None) if isinstance(out, str) else out
                if not isinstance(result, Result):
                    raise wrong_return("after_tool", hook, out, "a Result, a string")
        if result is first:
            self.log.add(HooksPassed("after_tool", call.id))
        else:
            ended = self.call.ended
            seq = ended.seq if ended is not None else 0
            self.log.add(HooksPassed("after_tool", call.id, seq, result=result.replace(call_id=call.id)))
        if not self.alone:
            self.log.send()


class Guard:
    """Cancels a call that runs too long; tells its own cancelling from that of others."""

    __slots__ = ("_expired", "_task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task, self._expired = task, False

    def expire(self) -> None:
        """The time is up."""
        self._expired = True
        self._task.cancel()

    def caught(self) -> bool:
        """Whether it was this guard, and nobody else, that cancelled."""
        return self._expired and self._task.uncancel() == 0


def failure_text(tool: str, error: Exception) -> str:
    """What the model is told of a tool that raised."""
    said = str(error).strip()
    named = said if isinstance(error, UpcallError) else f"{type(error).__name__}: {said}" if said else repr(error)
    return f"{tool} failed: {named}"
