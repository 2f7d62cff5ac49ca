"""A callback walks its route: hooks and side turns of the agents above, then the person, until it is settled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from upcall import events
from upcall.callbacks import HOOK_ORIGIN, Answer, Callback, Hints, intent_warning, public
from upcall.contracts import Claim, Store
from upcall.core.log.session_log import JOIN_DELAY
from upcall.core.routing.answer import route_of, settled_with, stored_route
from upcall.core.routing.question import Question
from upcall.core.routing.route import Route, Station, person_refusal, refusal
from upcall.core.turns.hook_runner import run_hooks
from upcall.core.turns.parking import Parking
from upcall.core.turns.side_turn import (
    ASKED_BACK,
    PassedUp,
    SideAnswer,
    answer_of_agent,
    exchange_text,
    question_text,
)
from upcall.core.turns.toolsets import ensure_tools
from upcall.core.turns.turn import CallbackScope, Turn, TurnServices
from upcall.errors import STOPS, AnswerRefused, HookFailed, RuntimeClosed, ToolsetFailed, UnknownAgent, UpcallError
from upcall.hooks import name_of
from upcall.messages import user

log = logging.getLogger("upcall")

GRACE_TICK = 0.01
"""Seconds between two looks at a call that has an answer and also waits for another one."""

GRACE = 50
"""Such a call is parked when it has used up this many points. A look costs 5 points. A late look costs 1 point: the
loop was busy, so the call may not have run."""

_SETTLED_OTHERWISE = "the question that it was about is settled"


class DispatcherServices(TurnServices, Protocol):
    """The services of the run tree that dispatching a callback needs."""

    store: Store
    claim: Claim | None

    def same_workspace(self, one: Turn, other: Turn) -> bool:
        """Tell whether two sessions work in the same workspace."""
        ...

    def check_idle(self) -> None:
        """Park the run tree if nothing in it runs, once what is scheduled now has run."""
        ...

    def parks_at_once(self, callback: Callback) -> bool:
        """Tell whether a question to the person is parked right after it was asked."""
        ...

    async def route_for(self, turn: Turn, question: Question | Callback, hints: Hints) -> Route:
        """Return the route that such a question would take by the policies as they are now."""
        ...

    async def target_session(self, turn: Turn, station: Station, callback_id: str) -> Turn:
        """The session of an agent that is asked, or a fresh one."""
        ...

    async def run_answering_side_turn(
        self, asker: Turn, asked: Turn, callback: Callback, text: str
    ) -> SideAnswer | PassedUp:
        """A side turn of the asked agent over its own conversation."""
        ...

    def ask_host(self, callback: Callback, first: bool) -> None:
        """Put a question before the person who is here; who watches is told the first time."""
        ...


class PersonAsked:
    """An open callback that the person was asked: who waits for it here, since when, and for how long at most.

    `at` is by the loop's clock; `seconds` are those from then until it expires; `deferred`: the person left it for
    later.
    """

    __slots__ = ("_id", "at", "deferred", "seconds", "turn")

    def __init__(self, turn: Turn, callback: Callback, now: float) -> None:
        self.turn, self._id, self.deferred = turn, callback.id, False
        self.at = asyncio.get_running_loop().time()
        self.seconds = None if callback.expires is None else callback.expires - now

    @property
    def is_open(self) -> bool:
        """True while nobody has settled the callback."""
        callback = self.turn.state.turn.callbacks.get(self._id)
        return callback is not None and callback.status == "open"


class CallbackDispatcher:
    """The callbacks of one run tree while this process owns it."""

    def __init__(self, services: DispatcherServices) -> None:
        self._services = services
        self.drivers: dict[asyncio.Task[None], str] = {}
        self._turn_order: dict[str, asyncio.Lock] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of the callbacks that expire, by their ids
        self.asked: dict[str, PersonAsked] = {}
        self.waiting: dict[str, CallbackScope] = {}  # who waits here for a callback, by its id
        # new questions that wait because their call has not yet repeated all that it had asked before
        self.held_back: dict[asyncio.Future[None], CallbackScope] = {}

    def has_grace(self) -> bool:
        """Return whether a call that just got an answer has time left before it is parked for another question.

        A call that waits for the first of several answers ends, one that waits for all of them does not. Which of
        the two it is can't be seen from outside.
        """
        return any(scope.grace > 0 for scope in (*self.waiting.values(), *self.held_back.values()))

    def use_grace(self, *, late: bool) -> None:
        """Count one look at the calls that were given an answer. `late`: it came later than it was due."""
        for scope in {*self.waiting.values(), *self.held_back.values()}:
            scope.grace = max(0, scope.grace - (1 if late else 5))

    # --- raising --------------------------------------------------------------------------

    async def raise_callback(self, scope: CallbackScope, question: Question) -> Callback:
        """Ask, or take up what an earlier run of the same code asked; returns when it is settled.

        Everything but the wait itself counts as running: other questions of the same call may wait already, and
        the call must not be parked while this one is being written or its answer delivered.
        """
        services = self._services
        with services.activity.running():
            if services.claim is None:
                await services.ensure_claimed(scope.turn)
            count = scope.occurrence(question.digest)
            callback = _logged(scope, question, count)
            if callback is None:
                if scope.turn.state.turn.callbacks and not question.gate:
                    await self._until_answers_used(scope)
                callback = await self._raise_when_admitted(scope, question, count)
            scope.note_asked(callback.id)
        if callback.status == "open":
            callback = await self._wait(scope, callback.id)
        with services.activity.running():
            await self._withdraw_hook_questions(scope.turn, callback)
            if not callback.gate:  # an approval is written down with the start of its tool
                await self._deliver(scope, callback)
        return callback

    async def _wait(self, scope: CallbackScope, callback_id: str) -> Callback:
        """Return the callback once it is settled; the call that asked counts as waiting meanwhile."""
        self.waiting[callback_id] = scope
        try:
            with scope.waiting():
                await self.until_settled(scope.turn, callback_id)
            return scope.turn.state.turn.callbacks[callback_id]
        except Parking:
            _note_parked(scope)
            raise
        finally:
            self.waiting.pop(callback_id, None)

    async def _raise_when_admitted(self, scope: CallbackScope, question: Question, count: int) -> Callback:
        """Raise the question when the limit of open questions allows; until then the call counts as waiting."""
        slots, services = scope.turn.question_slots, self._services
        if (admitted := slots.begin_question(scope.origin)) is not None:
            try:
                with scope.waiting(), services.activity.waiting():
                    await admitted
            except Parking:
                _note_parked(scope)
                raise
        try:
            return await self._raise(scope, question, count)
        finally:
            slots.end_question(scope.origin)

    async def _deliver(self, scope: CallbackScope, callback: Callback) -> None:
        """Store that the outcome reaches the code that asked, before it does."""
        log = scope.turn.log
        if not callback.delivered:
            log.add(events.CallbackDelivered(callback.id, callback.origin))
            await log.flush()
        scope.grace = GRACE

    async def _until_answers_used(self, scope: CallbackScope) -> None:
        """Return once this run has asked again for all the answers it was given; ReplayMismatch if it never does.

        A run that asks something new without using them is another program than before. Other tasks of the same
        call may still use theirs, so this waits until nothing in the run tree runs.
        """
        if not scope.unused_answers():
            return
        used: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        scope.held_back.append(used)
        scope.grace = GRACE
        self.held_back[used] = scope
        try:
            with scope.waiting(), self._services.activity.waiting():
                await used
        finally:
            del self.held_back[used]

    def refuse_held_back(self) -> bool:
        """End the new questions of runs that left an answer unused; False if there are none."""
        for used, scope in self.held_back.items():
            if not used.done():
                used.set_exception(scope.mismatch())
        return bool(self.held_back)

    async def _raise(self, scope: CallbackScope, question: Question, count: int) -> Callback:
        asker, state = scope.turn, scope.turn.state
        if asker.purpose == "side_turn":
            asker.log.add(events.ContextSet(ASKED_BACK, True))
            raise UpcallError("you can't ask a question while you answer a callback; pass the callback up instead")
        if warning := intent_warning(question.intent):
            log.warning("%s asked %r: %s", asker.actor.name, question.message, warning)
        route = await self._services.route_for(asker, question, question.hints)
        scope.check_open()  # the call may have ended while the way was looked for
        name = f"{state.id} {scope.origin} {question.digest} {question.gate} {count}"
        callback_id = "q" + blake2b(name.encode(), digest_size=6).hexdigest()
        for save in asker.savers:
            save()
        expires = await self._deadline(scope, question)
        asker.log.add(_raising_event(scope, question, callback_id, stored_route(route), expires))
        if route.asks:  # else it is stored together with the event that says who is asked
            await asker.log.flush()
        return state.turn.callbacks[callback_id]

    async def _deadline(self, scope: CallbackScope, question: Question) -> float | None:
        """When a new question expires; a hook's question at the latest with the callback that it is about."""
        own = self._services.store.now() + question.timeout if question.timeout is not None else None
        if not scope.origin.startswith(HOOK_ORIGIN):
            return own
        about = await self._services.store.callback(scope.origin.removeprefix(HOOK_ORIGIN))
        ends = [one for one in (own, about.expires if about is not None else None) if one is not None]
        return min(ends, default=None)

    # --- walking --------------------------------------------------------------------------

    async def until_settled(self, asker: Turn, callback_id: str) -> None:
        """Drive a callback along its route and return when it is settled; Parking if memory is given up first."""
        wait = asker.waits.get(callback_id)
        if wait is None or wait.done():
            wait = asker.waits[callback_id] = asyncio.get_running_loop().create_future()
            await self._dispatch(asker, callback_id)
        try:
            self._services.check_idle()
            await wait
        except asyncio.CancelledError:
            # a call that parks cancels the tasks beside it: a child in one of them is parked with it, not cancelled
            if asker.state.header.parent and _is_unwound(wait):
                raise Parking from None
            raise
        finally:
            if wait.cancelled() and asker.waits.get(callback_id) is wait:  # only who waited has gone
                asker.waits[callback_id] = asyncio.get_running_loop().create_future()
            elif wait.done():
                asker.waits.pop(callback_id, None)
                self.stop(callback_id)  # it is settled: who is still asked need not answer any more
                if callback_id in self.asked and not self.asked[callback_id].is_open:
                    del self.asked[callback_id]

    def stop(self, callback_id: str) -> None:
        """Ask nobody any further about it, and let it not expire here."""
        self._stop_timer(callback_id)
        for task, about in self.drivers.items():
            if about == callback_id:
                task.cancel()

    async def _dispatch(self, asker: Turn, callback_id: str) -> None:
        callback = asker.state.turn.callbacks[callback_id]
        if callback.expires is not None and callback.expires <= self._services.store.now():
            await self._expire(asker, callback_id)
            return
        self._watch_expiry(asker, callback)
        stations = route_of(callback).asks if callback.route["stations"] else ()
        if stations and callback.station < len(stations):
            self._spawn(asker, callback_id, self._climb(asker, callback_id, stations))
        else:
            await self._ask_person(asker, callback)

    def _watch_expiry(self, asker: Turn, callback: Callback) -> None:
        if callback.expires is not None:
            i = callback.id
            self._stop_timer(i)
            self._timers[i] = asyncio.get_running_loop().call_later(
                callback.expires - self._services.store.now(),
                lambda: self._spawn(asker, i, self._expire(asker, i)),
            )

    def _stop_timer(self, callback_id: str) -> None:
        timer = self._timers.pop(callback_id, None)
        if timer is not None:
            timer.cancel()

    def _spawn(self, asker: Turn, callback_id: str, work: Any) -> None:
        def ended(done: asyncio.Task[None]) -> None:
            del self.drivers[done]
            wait = asker.waits.get(callback_id)
            error = None if done.cancelled() else done.exception()
            if isinstance(error, RuntimeClosed):  # the agent continues elsewhere, and so does what asks it
                self._wait_for_parking(asker, callback_id)
                return
            if error is not None and wait is not None and not wait.done():
                wait.set_exception(error)
                wait.exception()  # who waited may be gone already, and then nobody has to hear of it

        self.drivers[self._services.activity.start(work, ended)] = callback_id

    def _wait_for_parking(self, asker: Turn, callback_id: str) -> None:
        """Let a question whose agent can't be asked here any more wait, as one to a person does."""
        callback = asker.state.turn.callbacks.get(callback_id)
        if callback is not None and callback.status == "open":
            self.asked[callback_id] = PersonAsked(asker, callback, self._services.store.now())
            self._services.check_idle()

    async def _climb(self, asker: Turn, callback_id: str, stations: Sequence[Station]) -> None:
        callback, passed = asker.state.turn.callbacks[callback_id], None
        while callback.status == "open" and callback.station < len(stations):
            passed = await self._ask_agent(asker, callback, stations[callback.station]) or passed
            callback = asker.state.turn.callbacks[callback_id]
        if callback.status == "open":
            await self._ask_person(asker, callback, passed)

    async def _ask_person(self, asker: Turn, callback: Callback, passed: PassedUp | None = None) -> None:
        """The route's end: the person, or nobody. `passed`: how the agent that was asked last passed it up."""
        callback_id, expires, first = callback.id, callback.expires, callback.target != "user"
        if first and (refused := await self._person_barred(asker, callback)):
            if passed is not None and passed.out_of_time:  # nobody is left to ask, so its time was the callback's
                await self._settle_expired(callback_id)
                return
            asker.log.add(events.CallbackWithdrawn(callback_id, refused, unresolved=True))
            await asker.log.flush()
            asker.wake(callback_id)
            return
        if first:
            if seconds := asker.actor.agent.policy.callback_policy.timeout:
                last = self._services.store.now() + seconds
                expires = last if expires is None else min(expires, last)
            asker.log.add(events.CallbackAsked(callback_id, "user", callback.station, expires))
            callback = asker.state.turn.callbacks[callback_id]
            if self._services.parks_at_once(callback):  # it is stored with the parking
                asker.log.flush_soon(JOIN_DELAY)
            else:
                await asker.log.flush()
                callback = asker.state.turn.callbacks[callback_id]
            self._watch_expiry(asker, callback)
        if callback.status == "open":
            self.asked[callback_id] = PersonAsked(asker, callback, self._services.store.now())
        self._services.ask_host(callback, first)

    async def _person_barred(self, asker: Turn, callback: Callback) -> str:
        """Why the person may not be asked, by the stored route or by the one of now; "" if they may."""
        then = route_of(callback)
        if then.end != "person":
            return then.why
        if (
            callback.gate or not then.asks
        ):  # approvals always reach a person; without agents it was checked just now
            return ""
        now = await self._services.route_for(asker, callback, _hints_of(callback))
        return person_refusal(then, now, [one.agent for one in callback.path if one.step in ("passed", "reworded")])

    async def _expire(self, asker: Turn, callback_id: str) -> None:
        callback = asker.state.turn.callbacks.get(callback_id)  # None where a new turn has begun since
        if callback is None or callback.status != "open" or callback.expires is None:
            return
        if callback.expires > self._services.store.now():  # the loop's clock is ahead of the store's
            self._watch_expiry(asker, callback)
        else:
            await asker.log.flush()
            await self._settle_expired(callback_id)

    async def _settle_expired(self, callback_id: str) -> None:
        expired = events.CallbackExpired(callback_id)
        await self._services.store.settle(callback_id, {callback_id: expired}, self._services.claim)

    async def wait_until_reenterable(self, asker: Turn, origin: str) -> None:
        """Return when one of an occurrence's callbacks is settled and not yet delivered; it may then run again."""
        asked = [one for one in asker.state.callbacks_of(origin) if not one.gate]
        waiting = [one.id for one in asked if one.status == "open"]
        if not waiting or any(one.status != "open" and not one.delivered for one in asked):
            return
        with asker.activity.waiting():
            tasks = [asyncio.ensure_future(self.until_settled(asker, i)) for i in waiting]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                done = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome

    async def close(self) -> None:
        """End what still walks, and let nothing expire here any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        tasks = tuple(self.drivers)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    # --- asking an agent ------------------------------------------------------------------

    async def _ask_agent(self, asker: Turn, callback: Callback, station: Station) -> PassedUp | None:
        """Ask the agent of a station; return how it passed the callback up, if it was asked and did."""
        callback_id, at, state = callback.id, callback.station, asker.state
        async with self._turn_order.setdefault(station.session_id or callback_id, asyncio.Lock()):
            if (
                state.turn.callbacks[callback_id].status != "open"
            ):  # somebody else was quicker while it waited for its turn
                return None
            asked = await self._still_allowed(asker, station, callback)
            if isinstance(asked, str):
                refused = events.CallbackPassed(callback_id, station.agent, asked, at, skipped=True)
                asker.log.add(refused)
                await asker.log.flush()
                return None
            if callback.target != station.agent:
                # written only now: a log never says that somebody was asked who was not
                asker.log.add(events.CallbackAsked(callback_id, station.agent, at))
                await asker.log.flush()
            try:
                said = await self._ask_agent_once(asker, asked, state.turn.callbacks[callback_id])
            finally:
                settled_now = state.turn.callbacks.get(callback_id)
                if settled_now is None or settled_now.status != "open":
                    await self._end_hook_questions(asked, callback_id)
        if state.turn.callbacks[callback_id].status != "open":
            return None
        if isinstance(said, PassedUp):
            asker.log.add(events.CallbackPassed(callback_id, station.agent, said.reason, at, said.message))
            await asker.log.flush()
            return said
        answered = events.CallbackAnswered(callback_id, said.value, station.agent, said.right)
        settled = {callback_id: answered}
        if callback.gate:  # an approval for the session holds for equal calls that wait already
            others = settled_with(callback, answered, state.turn.callbacks.values(), self._services.store.now())
            settled |= {one.callback_id: one for one in others}
        await self._services.store.settle(callback_id, settled, self._services.claim)
        return None

    async def _still_allowed(self, asker: Turn, station: Station, callback: Callback) -> Turn | str:
        """The session of the agent that is to be asked, or why it may not be: the stricter of then and now."""
        now = await self._services.route_for(asker, callback, _hints_of(callback, station))
        if barred := refusal(route_of(callback), now, station.agent, station.session_id):
            return barred
        try:
            asked = await self._services.target_session(asker, station, callback.id)
            if callback.gate:  # it approves only what it could run itself
                await ensure_tools(asked)
            return asked
        except (UnknownAgent, ToolsetFailed) as error:
            return str(error)

    async def _ask_agent_once(self, asker: Turn, asked: Turn, callback: Callback) -> SideAnswer | PassedUp:
        """Ask an agent: its on_callback hooks, then its model. Any failure counts as passing up."""
        said = await self._ask_hooks(asker, asked, callback) or await self._run_side_turn(asker, asked, callback)
        is_open = asker.state.turn.callbacks[callback.id].status == "open"
        if is_open and not (isinstance(said, PassedUp) and said.unseen):
            await self._tell_agent(asked, callback, said)
        return said

    async def _run_side_turn(self, asker: Turn, asked: Turn, callback: Callback) -> SideAnswer | PassedUp:
        seconds = asker.actor.agent.policy.callback_policy.timeout
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                text = question_text(callback, delegated=asked.state.header.kind != "side_turn")
                return await self._services.run_answering_side_turn(asker, asked, callback, text)
        except STOPS:
            raise
        except Exception as error:
            if limit.expired() and seconds is not None:
                return PassedUp(f"it had no answer within {seconds:g} s", out_of_time=True)
            named = str(error) if isinstance(error, UpcallError) else f"{type(error).__name__}: {error}"
            return PassedUp(f"its side turn failed: {named}")

    async def _end_hook_questions(self, asked: Turn, callback_id: str) -> None:
        """Withdraw what on_callback hooks asked about a callback that needs no answer any more."""
        asked.withdraw_open(_SETTLED_OTHERWISE, lambda one: one.origin == _hook_origin(callback_id))
        await asked.log.flush()

    async def _withdraw_hook_questions(self, asker: Turn, callback: Callback) -> None:
        """Withdraw what on_callback hooks asked about a callback that was settled while nobody ran its tree."""
        by_agent = callback.answer is not None and callback.answer.right in ("agent", "hook")
        if by_agent or not callback.route["stations"]:
            return
        store, origin = self._services.store, _hook_origin(callback.id)
        for one in await store.callbacks(root=asker.state.header.root or asker.id):
            if one.origin == origin and one.status == "open":
                withdrawn = events.CallbackWithdrawn(one.id, _SETTLED_OTHERWISE)
                await store.settle(one.id, {one.id: withdrawn}, self._services.claim)

    async def _ask_hooks(self, asker: Turn, asked: Turn, callback: Callback) -> SideAnswer | PassedUp | None:
        same_workspace = self._services.same_workspace(asker, asked)
        for number, hook in enumerate(asked.actor.hooks.on_callback):
            try:
                out = await run_hooks(asked, "on_callback", callback.id, (hook,), public(callback), first=number)
                if isinstance(out, Answer):
                    return answer_of_agent(asked.actor, callback, out.value, "hook", same_workspace=same_workspace)
            except (HookFailed, AnswerRefused) as error:
                asked.log.add(events.HookRaised("on_callback", name_of(hook), str(error)))
                await asked.log.flush()
                if isinstance(error, HookFailed):  # what it would have said is not known: no model is asked instead
                    await self._end_hook_questions(asked, callback.id)
                    return PassedUp(str(error))
        return None

    async def _tell_agent(self, asked: Turn, callback: Callback, said: SideAnswer | PassedUp) -> None:
        """Tell the agent, in its own conversation, what it was asked and what it answered."""
        message = user(exchange_text(callback, said))
        if asked.state.header.kind != "side_turn" and message not in asked.state.conversation.messages():
            asked.log.add(events.MessageAdded(message, f"callback.{callback.id}"))
            await asked.log.flush()


def _hints_of(callback: Callback, station: Station | None = None) -> Hints:
    """The hints that a question was asked with."""
    if callback.hints is not None:
        return msgspec.convert(callback.hints, Hints)
    # a log from before hints were kept: only who the fallback was is known
    return Hints(fallback_target=station.agent) if station is not None and station.fallback else Hints()


def _hook_origin(callback_id: str) -> str:
    """The origin of questions that on_callback hooks ask about a callback."""
    return f"{HOOK_ORIGIN}{callback_id}"


def _note_parked(scope: CallbackScope) -> None:
    """Note that a call is parked while it waits."""
    scope.parked = True
    if scope.guard is not None:
        scope.guard.park()
        if (task := asyncio.current_task()) not in (None, scope.guard.task):
            task.add_done_callback(_retrieve)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from reporting a parked task that its tool no longer waits for."""
    if not task.cancelled():
        task.exception()


def _is_unwound(wait: asyncio.Future[None]) -> bool:
    """Tell whether parking ended the wait."""
    return wait.done() and not wait.cancelled() and isinstance(wait.exception(), Parking)


def _logged(scope: CallbackScope, question: Question, count: int) -> Callback | None:
    """The callback that an earlier run of the same code raised at this point, if it did."""
    equal = [one for one in scope.turn.state.turn.callbacks.values() if one.digest == question.digest]
    same = equal and [one for one in equal if one.origin == scope.origin and one.gate == question.gate]
    return same[count] if count < len(same) else None


def _raising_event(
    scope: CallbackScope, question: Question, callback_id: str, route: dict[str, Any], expires: float | None
) -> events.CallbackRaised:
    """Return the event that raises a question, with what the runtime itself knows of the asker's work."""
    state, agent = scope.turn.state, scope.turn.actor.name
    call = state.conversation.call(scope.origin)
    if call is not None and call.as_written.name == "raise_callback":  # by a program: that says more than the call
        call = state.conversation.calls.get(scope.origin.rpartition(".")[0])
    context: dict[str, Any] = {}
    if state.turn.prompt is not None:
        context["task"] = state.turn.prompt.message.text[:2000]
    if call is not None:
        context |= {"tool": call.call.name, "arguments": call.call.args}
    asks = (agent, context.get("tool", ""), context.get("arguments"))
    return events.CallbackRaised(
        callback_id, scope.origin, agent, question.message, question.intent, question.kind, route, question.digest,
        question.priority, question.choices, question.schema, question.given | context, question.given,
        question.tool, question.args, question.gate, question.patterns, expires, question.has_default,
        question.default, "" if question.gate else _group(question, route, asks),
        msgspec.to_builtins(question.hints), question.required, 0.0 if scope.guard is None else scope.guard.ran(),
    )  # fmt: skip


def _group(question: Question, route: dict[str, Any], asks: tuple[str, str, Any]) -> str:
    """The key that groups equal questions, which one answer settles: everything that is shown, and the policy.

    `asks` is the agent that asks, the tool in which it does, and the tool's arguments: "Sure?" is another question
    when something else would be deleted. Two that a `key` calls the same may be shown differently, so the key does
    not count.
    """
    shown = (
        *asks,
        question.message,
        question.intent,
        question.kind,
        question.choices,
        question.schema,
        question.given,
    )
    return events.digest(shown, route["stations"], route["end"], question.timeout)
