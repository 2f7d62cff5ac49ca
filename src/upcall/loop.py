"""One turn: model, tools and hooks meet here and nowhere else.

begin_session → pre_request → (before_model → model → post_response → before_tool → tool → after_tool)* → end_turn

Each step looks at the folded log first, so the same code begins a turn and goes on with one that was interrupted.

May import: agent, contracts, errors, events, fold, hooks, messages, requests, session, sidetools, toolcall.
"""

from __future__ import annotations

import asyncio
from typing import Any

from upcall.agent import Agent
from upcall.contracts import Delta, Reply
from upcall.errors import (
    ContextTooLong,
    LimitReached,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    OutputInvalid,
    RuntimeClosed,
    ScriptExhausted,
    SessionTakenOver,
    StoreError,
    UpcallError,
)
from upcall.events import (
    AnyEvent,
    CallbackWithdrawn,
    CancelRequested,
    HooksPassed,
    MessageAdded,
    ModelFailed,
    ModelStarted,
    OutputRefused,
    Responded,
    ToolEnded,
    TurnEnded,
)
from upcall.fold import State, origin
from upcall.hooks import call_hook, wrong_return
from upcall.messages import Message, Purpose, Request, Response, Text, cancelled, settle, user
from upcall.requests import apply_change, change_of, response_of
from upcall.session import Access, Actor, Log, Member, Parking, Tree, plain_json
from upcall.sidetools import NUDGE, outcome_in
from upcall.toolcall import ToolCall

KINDS_OF_FAILURE = (ContextTooLong, ModelRefused, ModelUnavailable, ScriptExhausted)
OUTPUT_TRIES = 3
ASKED_AGAIN = 3
"""How often model_failed hooks may send a changed request for one model call."""

GRACE = 5.0
"""Seconds that calls which don't end when they are cancelled are waited for."""


class Turn(Member):
    """One turn of one session, from its prompt (or from where it stopped) to its reply."""

    __slots__ = ("_partial", "_stopping", "_summing", "_task")

    def __init__(self, log: Log, actor: Actor, tree: Tree, purpose: Purpose = "turn") -> None:
        super().__init__(log, actor, tree, purpose)
        self._partial: list[str] = []
        self._stopping: Exception | None = None
        self._task: asyncio.Task[Any] | None = None
        self._summing = False

    # --- the picture ----------------------------------------------------------------------

    async def run(self, release: bool = True) -> Reply:
        """Run to the end, or until it waits. `release` gives the run tree up with the last append."""
        self._task, log = asyncio.current_task(), self.log
        log.absorb = self.absorb
        self.enter()
        try:
            if self.state.cancel is not None:
                self._check_cancel()
            await self._steps()
            if release and self.state.asks:
                await self.tree.end_asides()
            self._end("done")
            if not log.send(release):
                await log.stored()
        except Parking:
            return await self._parked()
        except BaseException as error:
            return await self._stopped(error, release)
        finally:
            self._task = log.absorb = None
            self.leave()
        return self.reply()

    async def begin(self) -> None:
        """Run the hooks of a session that is being created. What they write is stored with it."""
        self._task, self._summing = asyncio.current_task(), True  # there is nothing to summarise yet
        self.log.absorb = self.absorb
        self.enter()
        try:
            access = await self._access("begin_session", "")
            for hook in self.hooks.begin_session:
                await call_hook("begin_session", hook, access)
        except asyncio.CancelledError:
            self._check_stop()
            raise
        finally:
            self._summing, self._task, self.log.absorb = False, None, None
            self.leave()
        self.log.add(HooksPassed("begin_session"))

    async def _steps(self) -> None:
        state, side = self.state, self.purpose == "side_turn"
        if not state.pre_passed and self.hooks.pre_request and not side:
            await self._pre_request()
        while True:
            if self._stopping is not None:
                self._check_stop()
            if state.failed is not None and self.hooks.model_failed:
                await self._think_on(*state.failed)
            elif state.wants_model:
                await self._think()
            if not state.post_passed:
                await self._post_response()
            if state.calls:
                await self._act()
                if side and self._has_said():
                    return
            elif self._complete():
                break
        if self.hooks.end_turn and not side:
            await self._end_turn()

    def _check_cancel(self) -> None:
        if self.state.cancel is not None:  # it was asked for while nobody ran this
            raise Cancelled(self.state.cancel.reason)

    def _check_stop(self) -> None:
        if self._stopping is not None and self._task is not None:  # a tool swallowed that it was cancelled
            self._task.uncancel()
            raise self._stopping

    def _has_said(self) -> bool:
        return outcome_in(self) is not None

    # --- pre_request and the model --------------------------------------------------------

    async def _pre_request(self) -> None:
        await self.log.commit()
        prompt = self.state.prompt
        assert prompt is not None
        message, access = prompt.message, await self._access("pre_request", self.state.turn)
        for hook in self.hooks.pre_request:
            out = await call_hook("pre_request", hook, access, message)
            if out is not None:
                message = user(out) if isinstance(out, str) else out
                if not isinstance(message, Message):
                    raise wrong_return("pre_request", hook, out, "a Message, a string")
        changed = message is not prompt.message
        self.log.add(
            HooksPassed("pre_request", replaces=prompt.seq if changed else 0, message=message if changed else None)
        )

    async def _access(self, point: str, at: int | str) -> Access:
        """What the hooks of this occurrence get; if they asked before, they wait until they may run again."""
        where = origin(point, at)
        if self.state.asks:
            await self.tree.ready(self, where)
        return Access(self, where)

    async def _think(self) -> None:
        """before_model → model: one response, in the log."""
        state, hooks = self.state, self.hooks
        if state.steers:
            self._take_steers()
        if state.compaction is not None:
            await self._compact_now()
        if state.asked is None:
            self._check_limits()
        if state.calls or state.deferred:
            state.settle_calls()
        request, response, ordinal, by_hook = self._request(), None, state.ordinal + 1, False
        if state.asked is not None and state.asked.purpose != "summary":
            ordinal = state.asked.ordinal
            request = await apply_change(request, state.asked.change, self.log.store)
        elif hooks.before_model:
            request, response = await self._before_model(request, ordinal)
            by_hook = response is not None
        else:
            self._started(request, request, ordinal)
        if response is None:
            try:
                response = await self.actor.model.respond(request, self._emit)
            except ModelError as error:
                self.log.add(ModelFailed(ordinal, str(error), type(error).__name__))
                response, ordinal, by_hook = await self._recover(request, ordinal, error)
        self._respond(response, ordinal, by_hook)

    def _respond(self, response: Response, ordinal: int, by_hook: bool) -> None:
        if self._partial:
            self._partial.clear()
        self.log.add(
            Responded(
                ordinal, response.message(ordinal), response.usage, response.stop, response.model, by_hook,
                bool(self.hooks.post_response),
            )
        )  # fmt: skip

    async def _think_on(self, asked: ModelStarted, failed: ModelFailed) -> None:
        """A model call failed and its hooks parked or died: they run again, the model does not."""
        request = await apply_change(self._request(), asked.change, self.log.store)
        error = failure_of(failed, self.actor.model.name)
        self._respond(*await self._recover(request, asked.ordinal, error))

    def _take_steers(self) -> None:
        for seq, steer in sorted(self.state.steers.items()):
            self.log.add(MessageAdded(user(steer.text), steer=seq))

    def _request(self) -> Request:
        actor, output = self.actor, self.actor.output
        return Request(
            actor.name, self.purpose, actor.agent.instructions, self.state.messages(), actor.specs,
            None if output is None else output.schema,
        )  # fmt: skip

    async def _before_model(self, asked: Request, ordinal: int) -> tuple[Request, Response | None]:
        """Run the hooks and write down that the model is asked, with what they changed."""
        if not self.log.send():  # hooks may have effects: the prompt, or the results so far, are on disk before
            await self.log.stored()
        request, response, before = asked, None, self.state.history
        access = await self._access("before_model", ordinal)
        for hook in self.hooks.before_model:
            out = await call_hook("before_model", hook, access, request)
            if isinstance(out, Request):
                request = out
            elif out is not None:
                response = Response(out) if isinstance(out, str) else out
                if not isinstance(response, Response):
                    raise wrong_return("before_model", hook, out, "a Request, a Response, a string")
                break
        request = self._with_writes(asked, request, compacted=self.state.history is not before)
        self._started(asked, request, ordinal, send=response is None)
        return request, response

    def _with_writes(self, asked: Request, request: Request, *, compacted: bool) -> Request:
        """The request with what the hooks wrote to the session meanwhile, and nothing a provider would refuse."""
        state = self.state
        if request is asked and len(state.history) == len(asked.messages) and not (compacted or state.deferred):
            return request
        now = state.messages()
        if compacted:
            request = request.replace(messages=now)
        elif len(now) != len(asked.messages):
            request = request.replace(messages=[*request.messages, *now[len(asked.messages) :]])
        if request.messages is not asked.messages:
            request = request.replace(messages=settle(request.messages))
        return request

    def _started(self, asked: Request, request: Request, ordinal: int, *, send: bool = True) -> None:
        state, actor, log = self.state, self.actor, self.log
        instructions = tools = ""
        if state.instructions != actor.instructions_hash:
            instructions = actor.instructions_hash
            log.keep(instructions, actor.instructions_body)
        if state.tools != actor.tools_hash:
            tools = actor.tools_hash
            log.keep(tools, actor.tools_body)
        change = None if request is asked else change_of(asked, request, self.state.messages(), log.keep)
        log.add(ModelStarted(ordinal, self.purpose, instructions, tools, change))
        if send:
            log.send(lazy=True)  # nothing was acknowledged yet; the response, or the failure, is stored after it

    async def _recover(self, request: Request, ordinal: int, error: ModelError) -> tuple[Response, int, bool]:
        """What model_failed hooks make of a failure: a response, or another try; else the failure is the turn's."""
        for _ in range(ASKED_AGAIN):
            self._drop_partial()
            again = await self._model_failed(request, error) or self._shortened(error)
            if again is None:
                raise error
            if isinstance(again, Response):
                return again, ordinal, True
            base = self._request()
            ordinal, request = self.state.ordinal + 1, again
            self._started(base, request, ordinal)
            try:
                return await self.actor.model.respond(request, self._emit), ordinal, False
            except ModelError as failure:
                error = failure
                self.log.add(ModelFailed(ordinal, str(error), type(error).__name__))
        self._drop_partial()
        raise error

    def _shortened(self, error: ModelError) -> Request | None:
        """A side turn that does not fit the window goes on with the last summary and the newest messages."""
        few = len(self.state.messages()) // 4
        if self.purpose != "side_turn" or not isinstance(error, ContextTooLong) or not few:
            return None
        self.compact(few, "", self.state.summary)
        return self._request()

    async def _model_failed(self, request: Request, error: ModelError) -> Request | Response | None:
        access = await self._access("model_failed", self.state.ordinal)
        for hook in self.hooks.model_failed:
            out = await call_hook("model_failed", hook, access, request, error)
            if out is None:
                continue
            out = Response(out) if isinstance(out, str) else out
            if not isinstance(out, Request | Response):
                raise wrong_return("model_failed", hook, out, "a Request, a Response, a string")
            if isinstance(error, ContextTooLong) and isinstance(out, Request) and out is request:
                return out.replace(messages=self.state.messages())  # the hook compacted: ask with what is left
            return out
        return None

    def _drop_partial(self) -> None:
        if self._partial:
            self._emit("drop", "")

    def _emit(self, kind: str, text: str) -> None:
        if kind == "text":
            self._partial.append(text)
        elif kind == "drop":
            self._partial.clear()
        for sink in self.log.sinks:
            sink(Delta(self.state.id, text, kind))

    async def _post_response(self) -> None:
        responded = self.state.response
        assert responded is not None
        self.log.send()
        first = response = response_of(responded)
        access = await self._access("post_response", responded.ordinal)
        for hook in self.hooks.post_response:
            out = await call_hook("post_response", hook, access, response)
            if out is not None:
                response = response.replace(text=out) if isinstance(out, str) else out
                if not isinstance(response, Response):
                    raise wrong_return("post_response", hook, out, "a Response, a string")
        if response is first:
            self.log.add(HooksPassed("post_response", str(responded.ordinal)))
            return
        await self.log.commit()
        message = response.message(responded.ordinal)
        self.log.add(HooksPassed("post_response", str(responded.ordinal), responded.seq, message=message))

    # --- tools ----------------------------------------------------------------------------

    async def _act(self) -> None:
        """Run what the response called: one call here, several side by side. Parking if one of them waits."""
        assert self._task is not None
        calls = [c for c in self.state.calls.values() if not c.settled]
        if len(calls) == 1:
            parked = await ToolCall(self, calls[0], self._task).run()
        else:
            parked = await self._side_by_side([ToolCall(self, c, self._task) for c in calls])
        if parked:
            raise Parking

    async def _side_by_side(self, calls: list[ToolCall]) -> bool:
        """Run calls in tasks of their own; whether one of them is parked."""
        tasks = [asyncio.ensure_future(c.run_beside()) for c in calls]
        for _ in calls:
            self.enter()
        self.leave()  # while they run, this turn itself only waits for them
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=GRACE)
            raise
        finally:
            self.enter()
        failures = [f for f in (task.exception() for task in tasks) if f is not None]
        if failures:  # every call has ended: the first failure is the turn's
            raise failures[0]
        return True in [task.result() for task in tasks]

    # --- limits, compaction, output -------------------------------------------------------

    def _check_limits(self) -> None:
        limits, state = self.actor.limits, self.state
        calls, name = limits.model_calls, "model_calls"
        if self.purpose == "side_turn":
            calls, name = self.actor.agent.policy.callback_policy.side_turn_model_calls, "side_turn_model_calls"
        if calls is not None and state.model_calls >= calls:
            raise LimitReached(name, f"{state.model_calls} in this turn")
        if limits.tokens is not None and state.usage.total >= limits.tokens:
            raise LimitReached("tokens", f"{state.usage.total} in this turn")

    def out_of_time(self) -> None:
        """The turn has run too long."""
        self.stop(LimitReached("turn_seconds", f"{self.actor.limits.turn_seconds:g} s"))

    async def _compact_now(self) -> None:
        asked = self.state.compaction
        assert asked is not None
        self.state.settle_calls()
        await self.log.commit()
        if asked.summarise:
            await self.summarise(asked.keep_last, "")
        else:
            self.compact(asked.keep_last, "")

    async def summarise(self, keep_last: int, origin: str) -> None:
        """Have the model summarise the conversation and keep only that and the newest messages."""
        if self._task is None or self._summing:  # a hook of this very call can't begin another
            return await super().summarise(keep_last, origin)
        self._summing = True
        try:
            await self._summarise(keep_last, origin)
        finally:
            self._summing = False

    async def _summarise(self, keep_last: int, origin: str) -> None:
        state, actor = self.state, self.actor
        ordinal = state.ordinal
        await self.log.commit()
        messages = [*state.messages(), user(SUMMARY_PROMPT)]
        request = Request(actor.name, "summary", actor.agent.instructions, messages, actor.specs)
        self.log.add(ModelStarted(ordinal, "summary"))
        self.log.send()
        try:
            response = await actor.model.respond(request, None)
        except ModelError as error:
            self.log.add(ModelFailed(ordinal, str(error), type(error).__name__))
            return
        self.log.add(Responded(ordinal, Message("assistant", ()), response.usage, response.stop, response.model))
        if response.text.strip():  # a failed or empty summary changes nothing
            self.compact(keep_last, origin, response.text)

    def _complete(self) -> bool:
        """Whether the reply is the turn's: nobody steered meanwhile, and it has the type the agent promises."""
        if self.state.steers:
            self._take_steers()
            return False
        if self.question is not None:
            self.log.add(OutputRefused(NUDGE))
            return False
        output = self.actor.output
        if output is None or self.purpose != "turn":
            return True
        try:
            output.parse(self.state.said)
        except ValueError as error:
            self.log.add(OutputRefused(f"{error}. Reply with nothing but JSON that fits the schema."))
            if self.state.refused >= OUTPUT_TRIES:
                raise OutputInvalid(self.actor.name, OUTPUT_TRIES, str(error), self.state.said) from None
            return False
        return True

    # --- the end --------------------------------------------------------------------------

    async def _end_turn(self) -> None:
        await self.log.commit()
        reply = self.reply()
        for index in range(self.state.end_passed, len(self.hooks.end_turn)):
            hook, at = self.hooks.end_turn[index], f"{self.state.turn}.{index}"
            out = await call_hook("end_turn", hook, await self._access("end_turn", at), reply)
            text = output = None
            if out is not None:
                changed = reply.replace(text=out) if isinstance(out, str) else out
                if not isinstance(changed, Reply):
                    raise wrong_return("end_turn", hook, out, "a Reply, a string")
                text = changed.text if changed.text != reply.text else None
                output = plain_json("a reply's output", changed.output) if changed.output != reply.output else None
                reply = changed
            self.log.add(HooksPassed("end_turn", at, text=text, output=output))
            await self.log.commit()

    def _end(self, status: Any, limit: str = "", error: str = "") -> None:
        seconds = self.state.running_seconds(self.log.store.now())
        self.log.add(TurnEnded(self.state.turn, status, limit, error, seconds))

    def reply(self) -> Reply:
        """What the turn has come to so far."""
        return reply_of(self.state, self.actor.agent)

    async def _parked(self) -> Reply:
        await self.log.commit()
        return self.reply().replace(status="waiting")

    def absorb(self, event: AnyEvent) -> None:
        """Take in what somebody else appended to this session."""
        super().absorb(event)
        if isinstance(event, CancelRequested):
            self.stop(Cancelled(event.reason))

    def stop(self, why: Exception) -> None:
        """End the turn from outside: a LimitReached, a Cancelled, or what made its log unwritable."""
        if self._stopping is None and self._task is not None and not self._task.done():
            self._stopping = why
            if self._task is not asyncio.current_task():
                self._task.cancel()
            elif not isinstance(why, SessionTakenOver | StoreError):  # else the append that fails tells it
                asyncio.get_running_loop().call_soon(self._cancel_own_task)

    def _cancel_own_task(self) -> None:
        """A tool asked for the end of its own turn: it is cancelled where it waits, if it still runs at all."""
        if self._task is not None:
            self._task.cancel()

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
            await self.log.commit()
            if outside:
                raise error
            return self.reply()
        failure = self.log.claim.failure if self.log.claim is not None else None
        if isinstance(error, SessionTakenOver | StoreError | RuntimeClosed) or failure is not None:
            raise failure or error
        if release:
            await self.tree.end_asides()
        if outside or isinstance(error, Cancelled):
            self._settle_open("the turn was cancelled")
            self._end("cancelled")
        elif isinstance(error, LimitReached):
            self._settle_open(f"the turn reached its limit {error.limit}")
            self._end("limit", limit=error.limit)
        else:
            self._end("failed", error=f"{type(error).__name__}: {error}")
            outside = True
        await self.log.commit(release)
        if outside:
            raise error
        return self.reply()

    def _settle_open(self, why: str) -> None:
        state = self.state
        if state.asked is not None and self._partial:
            text = "".join(self._partial)
            self.log.add(Responded(state.asked.ordinal, Message("assistant", (Text(text),)), stop="cancelled"))
        for ask in tuple(state.asks.values()):
            if ask.status == "open":
                self.log.add(CallbackWithdrawn(ask.raised.callback_id, why))
                self.tree.withdraw(ask.raised.callback_id, why)
        for call_id, call in tuple(state.calls.items()):
            if call.result is None:
                self.log.add(ToolEnded(call_id, cancelled(call_id, why), "cancelled"))


def reply_of(state: State, agent: Agent) -> Reply:
    """What a session's last turn came to."""
    value = None
    if agent.output is not None and state.phase in ("done", "running") and state.said:
        value = agent.output.convert(state.output) if state.output is not None else agent.output.parse(state.said)
    status: Any = state.phase if state.phase in ("done", "cancelled", "limit") else "done"
    return Reply(state.text, status, state.id, state.usage, output=value, limit=state.limit)


def failure_of(failed: ModelFailed, model: str) -> ModelError:
    """A failure as the log keeps it: its kind and text, without what only the adapter knew."""
    kind: type[ModelError] = next((k for k in KINDS_OF_FAILURE if k.__name__ == failed.kind), ModelError)
    error = kind.__new__(kind, failed.error)
    unknown: dict[str, Any] = {"tokens": None, "limit": None, "status": None}
    error.__dict__.update(unknown, model=model, problem=failed.error, tries=1, replies=0)
    return error


class Cancelled(UpcallError):
    """Somebody asked for the turn to end."""


SUMMARY_PROMPT = (
    "Summarise this conversation for yourself, so that you can go on without it: what was asked, what was found "
    "out and decided, what is done, what is still open, and names, paths and values that will be needed. "
    "Reply with the summary alone and call no tool."
)
