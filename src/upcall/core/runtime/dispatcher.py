"""A callback walks its route: hooks and side turns of the agents above, then the person, until it is settled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from upcall import events
from upcall.callbacks import Answer, Held, Hints, intent_warning
from upcall.contracts import Claim, Store
from upcall.core.log.session_log import JOIN_DELAY
from upcall.core.routing.answer import callback_of, route_of, settled_with, stored_route
from upcall.core.routing.question import Question
from upcall.core.routing.route import Route, Station, refusal
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
from upcall.core.turns.tool_step import mismatch
from upcall.core.turns.toolsets import ensure_tools
from upcall.core.turns.turn import CallbackScope, Turn, TurnServices
from upcall.errors import STOPS, AnswerRefused, HookFailed, ToolsetFailed, UnknownAgent, UpcallError
from upcall.hooks import name_of
from upcall.messages import user

log = logging.getLogger("upcall")

ANSWER_GRACE = 0.1
"""Seconds that a call has to act on an answer before it is parked for another question that it also asked."""


class DispatcherServices(TurnServices, Protocol):
    """What walking a callback needs of the run tree."""

    store: Store
    claim: Claim | None

    def same_workspace(self, one: Turn, other: Turn) -> bool:
        """Tell whether two sessions work in the same workspace."""
        ...

    def check_idle(self) -> None:
        """Park the run tree if nothing in it runs, once what is scheduled now has run."""
        ...

    def parks_at_once(self, ask: Held) -> bool:
        """Tell whether a question to the person is parked right after it was asked."""
        ...

    async def route_for(self, turn: Turn, raised: events.CallbackRaised, hints: Hints) -> Route:
        """Where such a question of the turn would go by the policies as they are now."""
        ...

    async def target_session(self, turn: Turn, station: Station, callback_id: str) -> Turn:
        """The session of an agent that is asked, or a fresh one."""
        ...

    async def run_answering_side_turn(
        self, asker: Turn, asked: Turn, raised: events.CallbackRaised, text: str
    ) -> SideAnswer | PassedUp:
        """A side turn of the asked agent over its own conversation."""
        ...

    def ask_host(self, ask: Held, first: bool) -> None:
        """Put a question before the person who is here; who watches is told the first time."""
        ...


class PersonAsked:
    """An open callback that the person was asked: who waits for it here, since when, and for how long at most.

    `at` is by the loop's clock; `seconds` are those from then until it expires; `deferred`: the person left it for
    later.
    """

    __slots__ = ("ask", "at", "deferred", "seconds", "turn")

    def __init__(self, turn: Turn, ask: Held, now: float) -> None:
        self.turn, self.ask, self.deferred = turn, ask, False
        self.at = asyncio.get_running_loop().time()
        self.seconds = None if ask.expires is None else ask.expires - now


class CallbackDispatcher:
    """The callbacks of one run tree while this process owns it."""

    def __init__(self, services: DispatcherServices) -> None:
        self._services = services
        self.drivers: dict[asyncio.Task[None], str] = {}
        self._turn_order: dict[str, asyncio.Lock] = {}
        self.asked: dict[str, PersonAsked] = {}
        self.waiting: dict[str, CallbackScope] = {}  # who waits here for a callback, by its id
        self.held_back: dict[
            asyncio.Future[None], CallbackScope
        ] = {}  # new questions of runs with unclaimed answers

    def grace_left(self) -> float:
        """Seconds that calls which were just given an answer have to act on it, though they also wait for another.

        A call that waits for the first of several answers ends, one that waits for all of them does not. Which of
        the two it is can't be seen from outside.
        """
        answered = [asker.answered_at for asker in self.waiting.values()]
        answered += [asker.answered_at for asker in self.held_back.values()]
        return max(answered, default=-ANSWER_GRACE) + ANSWER_GRACE - asyncio.get_running_loop().time()

    # --- raising --------------------------------------------------------------------------

    async def raise_callback(self, asker: CallbackScope, question: Question) -> Held:
        """Ask, or take up what an earlier run of the same code asked; returns when it is settled.

        Everything but the wait itself counts as running: other questions of the same call may wait already, and
        the call must not be parked while this one is being written or its answer delivered.
        """
        services = self._services
        with services.activity.running():
            if services.claim is None:
                await services.ensure_claimed(asker.turn)
            count = asker.occurrence(question.raised.digest)
            ask = _logged(asker, question.raised, count)
            if ask is None:
                if asker.turn.state.callbacks and not question.raised.gate:
                    await self._until_claimed(asker)
                ask = await self._raise_in_place(asker, question, count)
            asker.claim(ask.raised.callback_id)
        if ask.status == "open":
            await self._wait(asker, ask)
        if not ask.raised.gate:  # an approval is written down with the start of its tool
            with services.activity.running():
                await self._deliver(asker, ask)
        return ask

    async def _wait(self, asker: CallbackScope, ask: Held) -> None:
        """Wait until a callback is settled; the call that asked counts as waiting meanwhile."""
        callback_id = ask.raised.callback_id
        self.waiting[callback_id] = asker
        try:
            with asker.waiting():
                await self.until_settled(asker.turn, ask)
        except Parking:
            _note_parked(asker)
            raise
        finally:
            self.waiting.pop(callback_id, None)

    async def _raise_in_place(self, asker: CallbackScope, question: Question, count: int) -> Held:
        """Ask once the response has room for one more open question, counting as waiting until then."""
        places, services = asker.turn.question_slots, self._services
        if (place := places.begin_question(asker.origin)) is not None:
            try:
                with asker.waiting(), services.activity.waiting():
                    await place
            except Parking:
                _note_parked(asker)
                raise
        try:
            return await self._raise(asker, question, count)
        finally:
            places.end_question(asker.origin)

    async def _deliver(self, asker: CallbackScope, ask: Held) -> None:
        """Store that the outcome reaches the code that asked, before it does."""
        log = asker.turn.log
        if not ask.delivered:
            log.add(events.CallbackDelivered(ask.raised.callback_id, ask.raised.origin))
            await log.flush()
        asker.answered_at = asyncio.get_running_loop().time()

    async def _until_claimed(self, asker: CallbackScope) -> None:
        """Return once this run has asked again for all the answers it was given; ReplayMismatch if it never does.

        A run that asks something new without claiming them is another program than before. Other tasks of the same
        call may still claim theirs, so this waits until nothing in the run tree runs.
        """
        if not asker.unclaimed():
            return
        claimed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asker.held_back.append(claimed)
        asker.answered_at = asyncio.get_running_loop().time()
        self.held_back[claimed] = asker
        try:
            with asker.waiting(), self._services.activity.waiting():
                await claimed
        finally:
            del self.held_back[claimed]

    def refuse_held_back(self) -> bool:
        """End the new questions of runs that left an answer unclaimed; False if there are none."""
        for claimed, asker in self.held_back.items():
            if not claimed.done():
                call = asker.turn.state.call(asker.origin)
                claimed.set_exception(mismatch(call.call.name if call is not None else asker.origin, asker))
        return bool(self.held_back)

    async def _raise(self, asker: CallbackScope, question: Question, count: int) -> Held:
        member, state, draft = asker.turn, asker.turn.state, question.raised
        if member.purpose == "side_turn":
            member.log.add(events.ContextSet(ASKED_BACK, True))
            raise UpcallError("nobody can be asked while a callback is being answered; pass it up instead")
        if warning := intent_warning(draft.intent):
            log.warning("%s asked %r: %s", member.actor.name, draft.message, warning)
        way = await self._services.route_for(member, draft, question.hints)
        plain_way = stored_route(way)
        name = f"{state.id} {asker.origin} {draft.digest} {draft.gate} {count}"
        callback_id = "q" + blake2b(name.encode(), digest_size=6).hexdigest()
        for save in member.savers:
            save()
        call = state.call(asker.origin)
        if (
            call is not None and call.as_written.name == "raise_callback"
        ):  # by a program: that says more than the call
            call = state.calls.get(asker.origin.rpartition(".")[0])
        context: dict[str, Any] = {}
        if state.prompt is not None:
            context["task"] = state.prompt.message.text[:2000]
        if call is not None:
            context |= {"tool": call.call.name, "arguments": call.call.args}
        expires = self._services.store.now() + question.timeout if question.timeout is not None else None
        asks = (member.actor.name, context.get("tool", ""), context.get("arguments"))
        group = "" if draft.gate else _group(question, plain_way, asks)
        member.log.add(
            msgspec.structs.replace(  # what `draft.replace` does, in half the time
                draft, callback_id=callback_id, origin=asker.origin, agent=member.actor.name, route=plain_way,
                context=draft.given | context, expires=expires,
                group=group, hints=_stored_hints(question.hints),
            )
        )  # fmt: skip
        if way.asks:  # else that the person is asked, or nobody, is stored with it
            await member.log.flush()
        return state.callbacks[callback_id]

    # --- walking --------------------------------------------------------------------------

    async def until_settled(self, member: Turn, ask: Held) -> None:
        """Drive a callback along its route and return when it is settled; Parking if memory is given up first."""
        callback_id = ask.raised.callback_id
        wait = member.waits.get(callback_id)
        if wait is None or wait.done():
            wait = member.waits[callback_id] = asyncio.get_running_loop().create_future()
            await self._dispatch(member, ask)
        try:
            self._services.check_idle()
            await wait
        except asyncio.CancelledError:
            # a call that parks cancels the tasks beside it: a child in one of them is parked with it, not cancelled
            if member.state.header.parent and _is_unwound(wait):
                raise Parking from None
            raise
        finally:
            if wait.cancelled() and member.waits.get(callback_id) is wait:  # only who waited has gone
                member.waits[callback_id] = asyncio.get_running_loop().create_future()
            elif wait.done():
                member.waits.pop(callback_id, None)
                self.stop(callback_id)  # it is settled: who is still asked need not answer any more
                if ask.status != "open":
                    self.asked.pop(callback_id, None)

    def stop(self, callback_id: str) -> None:
        """Ask nobody any further about it."""
        for task, about in self.drivers.items():
            if about == callback_id:
                task.cancel()

    async def _dispatch(self, member: Turn, ask: Held) -> None:
        if ask.expires is not None and ask.expires <= self._services.store.now():
            await self._expire(member, ask)
            return
        self._watch_expiry(member, ask)
        stations = route_of(ask.raised).asks if ask.raised.route["stations"] else ()
        if stations and ask.station < len(stations):
            self._spawn(member, ask, self._climb(member, ask, stations))
        else:
            await self._ask_person(member, ask)

    def _watch_expiry(self, member: Turn, ask: Held) -> None:
        if ask.expires is not None:
            key, left = ("expires", ask.raised.callback_id), max(0.0, ask.expires - self._services.store.now())
            self._services.deadlines.add(key, left, lambda: self._spawn(member, ask, self._expire(member, ask)))

    def _spawn(self, member: Turn, ask: Held, work: Any) -> None:
        callback_id = ask.raised.callback_id

        def ended(done: asyncio.Task[None]) -> None:
            del self.drivers[done]
            wait = member.waits.get(callback_id)
            if not done.cancelled() and done.exception() is not None and wait is not None and not wait.done():
                wait.set_exception(done.exception() or UpcallError("lost"))
                wait.exception()  # who waited may be gone already, and then nobody has to hear of it

        self.drivers[self._services.activity.start(work, ended)] = callback_id

    async def _climb(self, member: Turn, ask: Held, stations: Sequence[Station]) -> None:
        while ask.status == "open" and ask.station < len(stations):
            await self._ask_agent(member, ask, stations[ask.station])
        if ask.status == "open":
            await self._ask_person(member, ask)

    async def _ask_person(self, member: Turn, ask: Held) -> None:
        """The route's end: the person, or nobody."""
        callback_id, way = ask.raised.callback_id, ask.raised.route
        if way["end"] != "person":
            member.log.add(events.CallbackWithdrawn(callback_id, way["why"], unresolved=True))
            await member.log.flush()
            member.wake(callback_id)
            return
        first = ask.target != "user"
        if first:
            seconds, expires = member.actor.agent.policy.callback_policy.timeout, ask.raised.expires
            if seconds:
                last = self._services.store.now() + seconds
                expires = last if expires is None else min(expires, last)
            member.log.add(events.CallbackAsked(callback_id, "user", ask.station, expires))
            if self._services.parks_at_once(ask):  # it is stored with the parking
                member.log.flush_soon(JOIN_DELAY)
            else:
                await member.log.flush()
            self._watch_expiry(member, ask)
        if ask.status == "open":
            self.asked[callback_id] = PersonAsked(member, ask, self._services.store.now())
        self._services.ask_host(ask, first)

    async def _expire(self, member: Turn, ask: Held) -> None:
        if ask.status != "open" or ask.expires is None:
            return
        if ask.expires > self._services.store.now():  # the loop's clock is ahead of the store's
            self._watch_expiry(member, ask)
        else:
            await member.log.flush()
            expired = events.CallbackExpired(ask.raised.callback_id)
            await self._services.store.settle(
                expired.callback_id, {expired.callback_id: expired}, self._services.claim
            )

    async def wait_until_reenterable(self, member: Turn, origin: str) -> None:
        """Return when one of an occurrence's callbacks is settled and not yet delivered; it may then run again."""
        asks = member.state.callbacks_of(origin)
        waiting = [a for a in asks if a.status == "open" and not a.raised.gate]
        if not waiting or any(a.status != "open" and not a.delivered and not a.raised.gate for a in asks):
            return
        with member.activity.waiting():
            tasks = [asyncio.ensure_future(self.until_settled(member, a)) for a in waiting]
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
        """End what still walks."""
        tasks = tuple(self.drivers)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    # --- asking an agent ------------------------------------------------------------------

    async def _ask_agent(self, member: Turn, ask: Held, station: Station) -> None:
        callback_id, at = ask.raised.callback_id, ask.station
        async with self._turn_order.setdefault(station.session_id or callback_id, asyncio.Lock()):
            if ask.status != "open":  # somebody else was quicker while it waited for its turn
                return
            asked = await self._still_allowed(member, station, ask)
            if isinstance(asked, str):
                refused = events.CallbackPassed(callback_id, station.agent, asked, at, skipped=True)
                member.log.add(refused)
                await member.log.flush()
                return
            if (
                ask.target != station.agent
            ):  # written only now: a log never says that somebody was asked who was not
                member.log.add(events.CallbackAsked(callback_id, station.agent, at))
                await member.log.flush()
            said = await self._ask_agent_once(member, asked, ask)
        if ask.status != "open":
            return
        if isinstance(said, PassedUp):
            member.log.add(events.CallbackPassed(callback_id, station.agent, said.reason, at, said.message))
            await member.log.flush()
            return
        answered = events.CallbackAnswered(callback_id, said.value, station.agent, said.right)
        settled = {callback_id: answered}
        if ask.raised.gate:  # an approval for the session holds for equal calls that wait already
            others = settled_with(ask, answered, member.state.callbacks.values(), self._services.store.now())
            settled |= {one.callback_id: one for one in others}
        await self._services.store.settle(callback_id, settled, self._services.claim)

    async def _still_allowed(self, member: Turn, station: Station, ask: Held) -> Turn | str:
        """The session of the agent that is to be asked, or why it may not be: the stricter of then and now."""
        hints = ask.raised.hints
        if hints is None:  # a log from before hints were kept: only who the fallback was is known
            hints = {"fallback_target": station.agent} if station.fallback else {}
        now = await self._services.route_for(member, ask.raised, msgspec.convert(hints, Hints))
        if barred := refusal(route_of(ask.raised), now, station.agent, station.session_id):
            return barred
        try:
            asked = await self._services.target_session(member, station, ask.raised.callback_id)
            if ask.raised.gate:  # it approves only what it could run itself
                await ensure_tools(asked)
            return asked
        except (UnknownAgent, ToolsetFailed) as error:
            return str(error)

    async def _ask_agent_once(self, member: Turn, asked: Turn, ask: Held) -> SideAnswer | PassedUp:
        """Its on_callback hooks, then its model; whatever goes wrong counts as passing up."""
        said = await self._hooks(member, asked, ask) or await self._aside(member, asked, ask)
        if ask.status == "open" and not (isinstance(said, PassedUp) and said.unseen):
            await self._show(asked, ask, said)
        return said

    async def _aside(self, member: Turn, asked: Turn, ask: Held) -> SideAnswer | PassedUp:
        seconds = member.actor.agent.policy.callback_policy.timeout
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                text = question_text(ask.raised, ask.message)
                return await self._services.run_answering_side_turn(member, asked, ask.raised, text)
        except STOPS:
            raise
        except Exception as error:
            if limit.expired() and seconds is not None:
                return PassedUp(f"it had no answer within {seconds:g} s")
            named = str(error) if isinstance(error, UpcallError) else f"{type(error).__name__}: {error}"
            return PassedUp(f"its side turn failed: {named}")

    async def _hooks(self, member: Turn, asked: Turn, ask: Held) -> SideAnswer | PassedUp | None:
        same_workspace = self._services.same_workspace(member, asked)
        for hook in asked.actor.hooks.on_callback:
            try:
                out = await run_hooks(asked, "on_callback", ask.raised.callback_id, (hook,), callback_of(ask))
                if isinstance(out, Answer):
                    return answer_of_agent(
                        asked.actor, ask.raised, out.value, "hook", same_workspace=same_workspace
                    )
            except (HookFailed, AnswerRefused) as error:
                asked.log.add(events.HookRaised("on_callback", name_of(hook), str(error)))
                await asked.log.flush()
                if isinstance(error, HookFailed):  # what it would have said is not known: no model is asked instead
                    return PassedUp(str(error))
        return None

    async def _show(self, asked: Turn, ask: Held, said: SideAnswer | PassedUp) -> None:
        """Tell the agent, in its own conversation, what it was asked and what it answered."""
        message = user(exchange_text(ask.raised, ask.message, said))
        if asked.state.header.kind != "side_turn" and message not in asked.state.messages():
            asked.log.add(events.MessageAdded(message, f"callback.{ask.raised.callback_id}"))
            await asked.log.flush()


def _note_parked(asker: CallbackScope) -> None:
    """Note that a call is parked while it waits."""
    asker.parked = True
    if asker.guard is not None:
        asker.guard.park()
        if (task := asyncio.current_task()) not in (None, asker.guard.task):
            task.add_done_callback(_retrieve)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from reporting a parked task that its tool no longer waits for."""
    if not task.cancelled():
        task.exception()


def _is_unwound(wait: asyncio.Future[None]) -> bool:
    """Tell whether parking ended the wait."""
    return wait.done() and not wait.cancelled() and isinstance(wait.exception(), Parking)


def _logged(asker: CallbackScope, draft: events.CallbackRaised, count: int) -> Held | None:
    """What an earlier run of the same code asked there, if it did."""
    asks = [a for a in asker.turn.state.callbacks.values() if a.raised.digest == draft.digest]
    same = asks and [a for a in asks if a.raised.origin == asker.origin and a.raised.gate == draft.gate]
    return same[count] if count < len(same) else None


@lru_cache(1000)
def _stored_hints(hints: Hints) -> dict[str, Any]:
    """Hints as the log keeps them: equal ones are one."""
    return msgspec.to_builtins(hints)


def _group(question: Question, way: dict[str, Any], asks: tuple[str, str, Any]) -> str:
    """What equal questions have in common, so that one answer settles all: what is shown of each, and its policy.

    `asks` is the agent that asks, the tool in which it does, and the tool's arguments: "Sure?" is another question
    when something else would be deleted. Two that a `key` calls the same may be shown differently, so the key does
    not count.
    """
    draft = question.raised
    shown = (*asks, draft.message, draft.intent, draft.kind, draft.choices, draft.schema, draft.given)
    return events.digest(shown, way["stations"], way["end"], question.timeout)
