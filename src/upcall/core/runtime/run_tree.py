"""A run tree: a session and all that it starts, owned by one process at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import CoroutineType
from typing import Any

from msgspec.structs import force_setattr

from upcall.agent import Agent
from upcall.callbacks import Callback, Hints, public
from upcall.contracts import Claim, Files, Reply, Spent
from upcall.core.log.call_state import CallState
from upcall.core.log.load import append, load_state, refresh
from upcall.core.log.session_log import JOIN_DELAY, SessionLog, Sink
from upcall.core.log.state import SessionState
from upcall.core.routing.question import Question
from upcall.core.routing.route import Route, Station
from upcall.core.runtime.ancestors import SessionsAbove, check_runs_alone, effective_policy_and_ancestors
from upcall.core.runtime.children import (
    can_repeat,
    check_child_limits,
    child_header,
    children_of_call,
    count_children,
    end_subtree,
    logged_end,
    unfinished_children,
)
from upcall.core.runtime.dispatcher import GRACE_TICK, CallbackDispatcher
from upcall.core.runtime.home import RuntimeServices
from upcall.core.runtime.needed_servers import check_servers
from upcall.core.runtime.retrying import Retries, retry_time
from upcall.core.runtime.routes import can_ask_anyone, route_for
from upcall.core.runtime.session_options import ASKING
from upcall.core.runtime.side_turns import answering_actor, must_continue, run_to_outcome, run_to_text
from upcall.core.runtime.usage import SideTurns, Spending, no_room, side_turn_id, side_turns_of
from upcall.core.turns.access import prompt_message
from upcall.core.turns.compaction import summarise
from upcall.core.turns.loop import begin_session, run_turn
from upcall.core.turns.parking import Activity, Parking
from upcall.core.turns.reply import with_callbacks_of_child
from upcall.core.turns.side_turn import PassedUp, SideAnswer
from upcall.core.turns.tree_storage import RootStorage
from upcall.core.turns.turn import DEFAULT_CHILD, CallbackScope, ChildSpec, SubmitOptions, Turn
from upcall.errors import ChildFailed, HookFailed, RuntimeClosed, TurnError, UnknownSession
from upcall.events import CallbackWithdrawn, Parked, SessionStarted, TurnQueued, TurnResumed, TurnStarted
from upcall.hooks import NO_HOOKS, Hooks
from upcall.messages import Message, user

log = logging.getLogger("upcall")

EXPIRY_MARGIN = 1.0
"""Seconds for which a tree stays in memory after a deadline, so that the expiry is noticed here."""


class RunTree:
    """The sessions of one claim: runs their turns, starts children, lets agents answer, parks when all wait.

    `claim` is None until a session that is being created needs one; `activity` counts what runs.
    `has_asked`: something here has asked, or was asked before.
    """

    __slots__ = (
        "_above", "_child_waits", "_dispatcher", "_ended", "_parked", "_parking", "_sides", "_unwound", "activity",
        "capture", "claim", "deadlines", "deps", "draining", "has_asked", "home", "processes", "retries", "root",
        "sinks", "spending", "store", "threads",
    )  # fmt: skip

    def __init__(self, home: RuntimeServices, root: str, sink: Sink | None = None) -> None:
        self.home, self.store, self.threads = home, home.store, home.threads
        self.processes, self.deadlines = home.processes, home.deadlines
        self.root, self.deps = root, home.deps
        self.claim: Claim | None = None
        self._above: SessionsAbove | None = None
        self._ended: asyncio.Future[Reply | None] | None = None
        self.sinks = [*home.sinks] if sink is None else [*home.sinks, sink]
        self.activity, self.has_asked = Activity(), False
        self._dispatcher: CallbackDispatcher | None = None
        self._parking: asyncio.TimerHandle | None = None
        self._parked: dict[str, Parked] | None = None
        self._child_waits: dict[str, set[str]] = {}  # what was unwound while it waited for a child, by session
        self._unwound: dict[str, list[str]] = {}  # what each session was parked for, by its id
        self.capture = home.capture
        self.draining = False
        self.retries: Retries | None = None  # where a worker runs the tree
        self.spending: Spending | None = None  # once somebody wants to know
        self._sides: dict[tuple[str, int, str], SideTurns] = {}

    @property
    def above(self) -> SessionsAbove:
        """The sessions above those that run; most trees never look for one."""
        if self._above is None:
            self._above = SessionsAbove(self.home.turns, self.home.workspaces.get(self.root))
        return self._above

    @property
    def dispatcher(self) -> CallbackDispatcher:
        """The dispatcher of this tree's callbacks, made when the first one is raised."""
        if self._dispatcher is None:
            self._dispatcher, self.has_asked = CallbackDispatcher(self), True
            self.activity.on_idle = self.check_idle  # what never asks is never parked
        return self._dispatcher

    def make_turn(self, state: SessionState, agent: Agent, inherited: Hooks) -> Turn:
        """A session of this tree, ready to run."""
        log = SessionLog(self.store, self.claim, state, self.sinks, self.home.broadcast.sinks)
        options = state.options_in_force
        hooks = ASKING if options.approvals and not state.header.parent else inherited
        return Turn(log, self.home.agents.prepared(agent, hooks, asks=state.header.asks, model=options.model), self)

    def workspace(self, turn: Turn) -> Files | None:
        """The turn's files: of its agent's own workspace, or of the nearest one above; a root may have its own."""
        declared = self.above.workspace(turn)
        if declared is None:
            return None
        return declared.open(RootStorage(turn, self.above.get(turn.state.header.root) or turn))

    def same_workspace(self, one: Turn, other: Turn) -> bool:
        """Tell whether two sessions work in the same workspace."""
        return self.above.workspace(one) == self.above.workspace(other)

    async def inherited(self, header: SessionStarted) -> Hooks:
        """The hooks that a session inherits from the agents above it, as they run here or as the log names them."""
        return (await self.above.load(header.parent, self._idle)).actor.passed_on if header.parent else NO_HOOKS

    async def _idle(self, session_id: str) -> Turn:
        """A session that does not run here, from the log."""
        state = await load_state(self.store, session_id)
        if state is None:
            raise UnknownSession(session_id)
        return self.make_turn(state, self.home.agents.of(state.header), await self.inherited(state.header))

    async def prepare_turn(self, state: SessionState) -> Turn:
        """Return a turn for a session that was asked for by its id; SetupError if something it needs is missing."""
        check_runs_alone(state)
        self.home.workspaces.check(state)
        check_servers(state, self.home.agents.of(state.root_header) if state.root_header.servers else None)
        inherited = await self.inherited(state.header) if state.header.parent else NO_HOOKS
        return self.make_turn(state, self.home.agents.of(state.header), inherited)

    async def ensure_claimed(self, turn: Turn) -> Claim:
        """The claim on this tree; a session that is just being created is stored and claimed first."""
        if self.claim is None:
            await turn.log.flush()
            self.claim = turn.log.claim = await self.home.store.claim(turn.id)
            self.claim.on_failure = self.stop
        return self.claim

    def spent(self, turn: Turn) -> CoroutineType[Any, Any, Spent]:
        """The usage of all sessions of this tree."""
        if self.spending is None:
            self.spending = Spending(self.store, {one.id: one.state for one in self._turns()})
        return self.spending.total(turn.state.header.root or turn.state.id)

    async def summarise(self, turn: Turn, keep_last: int, origin: str) -> None:
        """Have the model summarise the conversation: now, or before its next call where that is not possible."""
        await summarise(turn, keep_last, origin)

    def _turns(self) -> list[Turn]:
        return [turn for turn in self.home.turns.values() if turn.services is self]

    # --- claiming, joining and stopping ---------------------------------------------------

    def own(self, claim: Claim) -> None:
        """Take the claim on this tree."""
        self.claim, self.spending, self._sides = claim, None, {}
        claim.on_failure = self.stop

    @property
    def is_released(self) -> bool:
        """True once the claim is released: the tree's last turn here has ended or is parked."""
        return self.claim is not None and self.claim.released

    def stop(self, error: Exception) -> None:
        """Stop every turn of the tree where it is."""
        for turn in self._turns():
            turn.stop(error)

    def drain(self) -> None:
        """Start nothing new, and stop between two steps; what waits is parked now, whatever the hold."""
        self.draining = True
        self.check_idle()

    def is_stopping(self, turn: Turn) -> bool:
        """Tell whether the turn has to stop between two steps.

        What a call started that can't be run again does not: only at its end can that call end.
        """
        return self.draining and not self._finishes(turn)

    def _finishes(self, turn: Turn, name: str = "") -> bool:
        """Tell whether the turn, or what it starts as `name`, belongs to a call that can't be run again."""
        while name and turn.state.conversation.call(name) is None:  # a child's name begins with the call's
            name = name.rpartition(".")[0]
        if name and not can_repeat(turn, name):
            return True
        if turn.question is not None:  # it is to answer somebody who may be part of such a call
            asker = self.home.turns.get(turn.question.session_id)
            return asker is not None and self._finishes(asker)
        parent = self.home.turns.get(turn.state.header.parent)
        return parent is not None and self._finishes(parent, turn.state.header.origin)

    def retry_at(self, turn: Turn, error: BaseException) -> float:
        """Return the time from which a worker may try a failed turn again; 0.0 if none does."""
        return retry_time(self.retries, error, turn.state.turn.retries, self.store.now())

    def when_ended(self) -> asyncio.Future[Reply | None]:
        """Return a future that is done when this tree no longer runs here."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
        return self._ended

    async def join(self, sink: Sink | None) -> Reply | None:
        """Wait until the tree no longer runs here and return its reply; raises what failed it.

        None means that it ended without a reply. `sink` gets what happens from now on.
        """
        if sink is not None:
            self.sinks.append(sink)
        return await asyncio.shield(self.when_ended())

    def end(self, outcome: Reply | Exception | None) -> None:
        """Tell those who joined what came of it."""
        self._dispatcher = self.activity.on_idle = None  # they refer back here: no cycle is left to collect
        ended = self._ended
        if ended is None or ended.done():
            return
        if isinstance(outcome, Exception):
            ended.set_exception(outcome)
            ended.exception()  # nobody may have joined
        else:
            ended.set_result(outcome)

    # --- turns ----------------------------------------------------------------------------

    async def begin_root(self, turn: Turn) -> bool:
        """Begin the session this process was asked to run; False where its hooks wait and it is parked."""
        while True:
            self._parked, self._unwound = None, {}
            try:
                await begin_session(turn)
                return True
            except Parking:
                if await self._park(turn):
                    turn.state.turn.parked = True
                    return False
            await refresh(self.store, turn.state)  # something was settled in between: go on with it

    def register(self, turn: Turn) -> None:
        """Make a turn that starts to run known, so that cancel, steer and answers reach it."""
        self.home.turns[turn.state.id] = turn
        if self.spending is not None:
            self.spending.running[turn.state.id] = turn.state

    def unregister(self, turn: Turn) -> None:
        """Forget a turn that has ended or is parked."""
        turns, state = self.home.turns, turn.state
        if turns.get(state.id) is turn:
            del turns[state.id]
            if self.spending is not None and state.header.parent:  # after the root nobody asks any more
                self.spending.end(state)

    def note_parked(self, turn: Turn) -> None:
        """Note that a turn waits: it is parked together with the whole tree."""
        state = turn.state
        unwound = self._unwound.get(state.id, ())  # one may have been settled since: then parking has to fail
        waits = tuple([i for i, a in state.turn.callbacks.items() if a.status == "open" or i in unwound])
        calls = tuple([i for i in self._child_waits.get(state.id, ()) if not can_repeat(turn, i)])
        ran = {one.call.id: one.ran_seconds for one in state.conversation.unsettled() if one.ran_seconds}
        parked = Parked(waits, state.turn.running_seconds(self.store.now()), calls, ran)
        self._parked = {**(self._parked or {}), state.id: parked}

    def note_child_waits(self, turn: Turn, origin: str) -> None:
        """Note that a call or a hook is unwound while it waits for a child."""
        self._child_waits.setdefault(turn.id, set()).add(origin)

    async def run_root(self, turn: Turn) -> Reply:
        """Run a turn of the session this process was asked to run; returns when it has ended or is parked."""
        try:
            while True:
                self._parked, self._unwound = None, {}
                reply = await run_turn(turn)
                if reply.status != "waiting" or await self._park(turn):
                    return reply
                fresh = await load_state(self.store, turn.id)  # something was settled in between: go on with it
                assert fresh is not None
                turn.state.copy_from(fresh)
                turn = self.make_turn(turn.state, turn.actor.agent, await self.inherited(turn.state.header))
        except RuntimeClosed:
            await self._record_waiting()
            raise
        finally:
            if self.claim is not None:
                self.claim.on_failure = None  # nothing runs that it could stop; and no cycle is left to collect
            if self._dispatcher is not None:
                await self._dispatcher.close()
            if self._parking is not None:
                self._parking.cancel()

    async def _record_waiting(self) -> None:
        """Mark the sessions that wait as waiting; the tree as a whole was interrupted."""
        if self.claim is None or self.claim.failure is not None:
            return
        for session, parked in (self._parked or {}).items():
            await append(self.store, session, [parked], self.claim)
            self.home.broadcast.publish_all([parked])

    async def _park(self, root: Turn) -> bool:
        assert self.claim is not None
        all_parked = self._parked or {}
        waits = [i for parked in all_parked.values() for i in parked.waits]
        seq = root.state.seq
        new = await root.log.park(all_parked, waits)
        if new is None:
            return False
        if new and new[0].seq > seq + 1:
            others = await self.store.read(root.id, seq, new[0].seq - seq - 1)
            if any(e.type == "cancel_requested" for e in others):
                # it came before the question was stored and did not withdraw it: take the tree back and end it
                self.own(await self.store.claim(self.root))
                root.log.claim = self.claim
                return False
        for sink in self.sinks:
            for parked in all_parked.values():
                sink(parked)
        self.home.broadcast.publish_all(all_parked.values())
        for callback_id in waits:
            self.withdraw(callback_id, "the run was parked; the question stays in the inbox")
        return True

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Stop asking agents about a callback, and tell the person who is here that nobody waits for an answer."""
        if self._dispatcher is not None:
            self._dispatcher.stop(callback_id)
        self.home.host_inbox.withdraw(callback_id, reason)

    async def end_children_of(self, turn: Turn, call_id: str, why: str) -> None:
        """End the children that a call started, with all below them. Nobody would take their results any more."""
        for child in await children_of_call(self.store, turn.id, call_id):
            await self.end_below(child, why)

    async def end_below(self, session_id: str, why: str) -> None:
        """End a session and all below it that wait or failed; what runs here ends by itself."""
        ended = await end_subtree(self.store, self.claim, session_id, why, self.home.turns)
        for event in ended:
            if isinstance(event, CallbackWithdrawn):
                self.withdraw(event.callback_id, why)
        self.home.broadcast.publish_all(ended)

    async def cancel_side_turns(self) -> None:
        """Cancel the side turns that still have a callback to answer; their ends are stored when this returns."""
        if self._dispatcher is not None and self._dispatcher.drivers:
            await self._dispatcher.close()

    def record_prompt(self, turn: Turn, message: Message, by: str = "", queued: TurnQueued | None = None) -> None:
        """Write a new prompt down. `by`: who gave it; `queued`: the event that queued it."""
        number, seq = turn.state.turn.number + 1, 0
        if queued is not None:
            number, seq = max(number, queued.turn), queued.seq
        turn.log.add(TurnStarted(number, message, turn.actor.setup, by, seq))

    def record_resume(self, turn: Turn) -> None:
        """Write down that an open turn goes on, and whether the agent has changed since."""
        state = turn.state
        before, now = "" if state.turn.prompt is None else state.turn.prompt.setup, turn.actor.setup
        turn.children = -1  # counted when the first one more is started
        if before != now:
            said = "%s's instructions, tools or policy have changed since its turn in %s began"
            log.warning(said, turn.actor.name, turn.id)
        died = self.claim is not None and self.claim.orphaned and not state.header.parent
        turn.log.add(TurnResumed(state.turn.number, now if before != now else "", died))
        turn.log.flush_soon(JOIN_DELAY)

    # --- when everything waits ------------------------------------------------------------

    def check_idle(self) -> None:
        """Park the tree if nothing in it runs, once what is scheduled now has run."""
        dispatcher = self._dispatcher
        if not self.activity.count and dispatcher is not None and (dispatcher.asked or dispatcher.held_back):
            asyncio.get_running_loop().call_soon(self._park_if_idle)

    def _park_if_idle(self) -> None:
        """Unwind everything if all of it waits: at once, or when the hold is over."""
        dispatcher = self._dispatcher
        if self.activity.count or dispatcher is None or not (dispatcher.asked or dispatcher.held_back):
            return
        if self.home.host is not None and self.claim is not None:
            self.home.host_inbox.end_gathering(self.claim.root)
        if self._parking is not None:  # what it was set for may have been settled, or left for later, since
            self._parking.cancel()
            self._parking = None
        loop = asyncio.get_running_loop()
        if dispatcher.has_grace():
            self._parking = loop.call_later(GRACE_TICK, self._look_again, loop.time() + GRACE_TICK)
        elif (left := self._hold_left()) > 0:
            self._parking = loop.call_later(left, self._park_if_idle)
        else:
            self._unwind()

    def _hold_left(self) -> float:
        """Seconds that the tree stays in memory for the questions that the person was asked."""
        hold, until = self.home.hold, 0.0
        if self.draining or hold <= 0.0:
            return 0.0
        for one in self.dispatcher.asked.values():
            if one.is_open:
                if self.home.host is not None and not one.deferred:
                    until = max(until, one.at + hold)
                elif one.seconds is not None and one.seconds <= hold:  # so that its default comes in time
                    until = max(until, one.at + one.seconds + EXPIRY_MARGIN)
        return until - asyncio.get_running_loop().time()

    def _look_again(self, due: float) -> None:
        """Look once more whether all waits: calls that were given an answer have a little time to act on it."""
        if self._dispatcher is None:  # the tree has ended meanwhile
            return
        self._dispatcher.use_grace(late=asyncio.get_running_loop().time() - due > GRACE_TICK)
        self._park_if_idle()

    def person_deferred(self, callback_id: str) -> None:
        """Note that the person leaves a question for later: the run is not held in memory for it."""
        asked = self.dispatcher.asked.get(callback_id)
        if asked is not None:
            asked.deferred = True
        self.check_idle()

    def parks_at_once(self, callback: Callback) -> bool:
        """Tell whether a question to the person is parked right after it was asked."""
        if self.activity.count or self.home.host is not None or self.home.person_watchers:
            return False
        return callback.expires is None or callback.expires > self.store.now() + self.home.hold

    def _unwind(self) -> None:
        """Let everything that waits go: what it waits for is in the log."""
        if self.dispatcher.refuse_held_back():  # what they were asked by continues with an error
            return
        for turn in self._turns():
            turn.park_waiting()
        waiting, self.dispatcher.asked = self.dispatcher.asked, {}
        for callback_id, one in waiting.items():
            self._unwound.setdefault(one.turn.id, []).append(callback_id)
            wait = one.turn.waits.get(callback_id)
            if wait is not None and not wait.done():
                wait.set_exception(Parking())
                wait.exception()  # who waited may be gone already, and then nobody has to hear of it

    # --- children -------------------------------------------------------------------------

    async def start_child(
        self, parent: Turn, agent: Agent | str, prompt: str, name: str, spec: ChildSpec = DEFAULT_CHILD
    ) -> Reply:
        """Run a child called after its parent and `name`; called again, resume it, or return its logged end."""
        if self.draining and not self._finishes(parent, name):
            raise RuntimeClosed
        declared = self.home.agents.get(agent, self.root) if isinstance(agent, str) else agent
        child_id = f"{parent.id}~{name}"
        with self.activity.running():  # until the child's own turn does
            state = await self._load_child(parent, child_id, name)
            if state is not None and not parent.children:
                parent.children = -1  # counted when the first one more is started
            earlier = 0 if state is None or state.turn.phase != "running" else state.turn.number
        if 0 < earlier < spec.turn_number:  # that turn is finished first
            finishing = spec._replace(turn_number=earlier, retry_failed=False)
            with contextlib.suppress(ChildFailed):
                await self.start_child(parent, agent, prompt, name, finishing)
            state = await load_state(self.store, child_id)
        if state is not None and spec.is_over(state.turn.number, state.turn.phase):
            return await with_callbacks_of_child(self.store, await logged_end(state, declared), state)
        if state is None or state.turn.number < spec.turn_number:
            prompt_message(prompt)
        state = state or SessionState(child_id)
        with self.activity.running():
            turn = await self._prepare_child(parent, declared, state, name, spec)
        try:
            if state.turn.number >= spec.turn_number:
                self.record_resume(turn)
            else:
                await self._begin_child(turn, prompt, parent.actor.name)
            reply = await run_turn(turn, release=False)
        except Exception as error:
            if not isinstance(error, TurnError) and state.turn.phase != "failed":
                raise
            if spec is DEFAULT_CHILD:  # nobody resumes it
                await self.end_below(child_id, "the agent that asked has failed")
            stored = not isinstance(error, HookFailed) or error.stored
            why = f"{type(error).__name__}: {error}"
            raise ChildFailed(child_id if stored else "", declared.name, why) from error
        if reply.status == "waiting":
            raise Parking
        return await with_callbacks_of_child(self.store, reply, state) if turn.may_have_callbacks else reply

    async def _load_child(self, parent: Turn, child_id: str, name: str) -> SessionState | None:
        """The child as it is in the log, or None if it has not been started."""
        await self.ensure_claimed(parent)
        if parent.children < 0:
            await parent.log.flush(lazy=True)  # ahead of all below: a resumed tree must not be listed as waiting
        call = parent.state.conversation.call(name)
        if call is not None and not call.attempts:  # the call of that name has just begun: it has no child yet
            return None
        return await load_state(self.store, child_id)

    async def _prepare_child(
        self, parent: Turn, agent: Agent, state: SessionState, name: str, spec: ChildSpec
    ) -> Turn:
        """The child's turn, ready to run; a new one gets its header."""
        if not state.seq:
            if parent.children < 0:
                parent.children = await count_children(self.store, parent)
            check_child_limits(parent, self.above.get)
            state.header = child_header(
                parent, spec.agent or agent.name, name, "coordinator" if agent.run_program else "agent",
                begins=bool(agent.hooks.begin_session or parent.actor.passed_on.begin_session),
                role=spec.role, team=spec.team, above=spec.caller_session,
            )  # fmt: skip
            state.root_header = parent.state.root_header
            way = await effective_policy_and_ancestors(
                agent, state.header, self.store, self.home.turns, self.home.agents.of
            )
            force_setattr(state.header, "asks", can_ask_anyone(self.home, agent, *way))  # nobody has seen it yet
        return self.make_turn(state, agent, parent.actor.passed_on)

    async def _begin_child(self, turn: Turn, prompt: str, by: str) -> None:
        """Run its begin_session hooks and give it its prompt: one append, unless a hook waits for something."""
        if not turn.state.seq:
            turn.log.add(turn.state.header)
        if not turn.state.begun:
            try:
                await begin_session(turn)
            except HookFailed as error:
                stored = turn.state.seq > 0
                raise HookFailed(error.hook, error.point, error.error, stored=stored) from error.error
        self.record_prompt(turn, user(prompt), by)

    async def submit(self, turn: Turn, agent: Agent | str, text: str, id: str, options: SubmitOptions) -> str:
        """Queue a session of its own; called again with the same id and text, do nothing."""
        await self.ensure_claimed(turn)
        declared = self.home.agents.get(agent, self.root) if isinstance(agent, str) else agent
        return await self.home.submit(declared, text, id, by=turn.actor.name, **options._asdict())

    # --- side turns -----------------------------------------------------------------------

    async def side_turn(self, turn: Turn, text: str, name: str) -> str:
        """Let the turn's agent answer over its own conversation without leaving a trace in it."""
        return await run_to_text(await self._open_side_turn(turn, name, text, None))

    async def run_answering_side_turn(
        self, asker: Turn, asked: Turn, callback: Callback, text: str
    ) -> SideAnswer | PassedUp:
        """A side turn that is to answer a callback; anything but an answer is passing up."""
        sides, limits = await side_turns_of(asker, asked, self._sides), asked.actor.limits
        full = sides.exceeded(asked.state, limits)
        if full and await self.store.row(side_turn_id(asked, callback.id)) is None:
            return PassedUp(no_room(limits, full), unseen=True)
        side = await self._open_side_turn(asked, callback.id, text, callback)
        side.same_workspace = self.same_workspace(asker, asked)
        side.room = lambda: sides.exceeded(asked.state, limits)
        return await run_to_outcome(side, sides, limits)

    async def _open_side_turn(self, asked: Turn, name: str, text: str, callback: Callback | None) -> Turn:
        """A side session over what the asked agent's log says now, or the one that was begun before."""
        await self.ensure_claimed(asked)
        await asked.log.flush()
        side_id = side_turn_id(asked, name) if callback is not None else f"{asked.id}~{name}"
        state = await load_state(self.store, side_id)
        fresh = state or SessionState(side_id)
        actor = asked.actor if callback is None else answering_actor(self.home, asked)
        log = SessionLog(self.store, self.claim, fresh, self.sinks, self.home.broadcast.sinks)
        side = Turn(log, actor, self, "side_turn")
        side.question = callback
        if state is not None and must_continue(side, asked, name):
            self.record_resume(side)
        elif state is None or state.turn.phase == "idle":
            if state is None:
                fresh.read_from(asked.state)
                more = {"reads": asked.state.seq, "asks": asked.state.header.asks}
                side.log.add(child_header(asked, asked.actor.name, name, "side_turn", deeper=0, **more))
            self.record_prompt(side, user(text), asked.actor.name if callback is None else callback.agent)
        if side.state.turn.phase == "running" and log.is_overdue:
            await log.confirm()
        return side

    # --- callbacks ------------------------------------------------------------------------

    def raise_callback(self, scope: CallbackScope, question: Question) -> CoroutineType[Any, Any, Callback]:
        """Ask whoever is above."""
        return self.dispatcher.raise_callback(scope, question)

    def wait_until_reenterable(self, turn: Turn, origin: str) -> CoroutineType[Any, Any, None]:
        """Return when a tool call or hook that asked before may run again."""
        return self.dispatcher.wait_until_reenterable(turn, origin)

    async def finish_below(self, turn: Turn, call: CallState) -> bool:
        """Run the children that a call waited for when it was parked; Parking where one of them still waits.

        Returns whether there were any: the call may then run again, and gets what they came to from the log.
        """
        call_id = call.call.id
        waits = call.waited_for_child or call_id in self._child_waits.get(turn.id, ())
        if not waits or can_repeat(turn, call_id):
            return False
        if any(a.status != "open" and not a.delivered for a in turn.state.callbacks_of(call_id)):
            return True
        children = await unfinished_children(self.store, turn, call_id)
        with turn.activity.waiting():
            runs = [self.start_child(turn, self.home.agents.of(header), "", header.origin) for header in children]
            outcomes = await asyncio.gather(*runs, return_exceptions=True)
        failures = [one for one in outcomes if isinstance(one, BaseException) and not isinstance(one, ChildFailed)]
        for failure in sorted(failures, key=lambda one: isinstance(one, Parking)):
            raise failure
        return True

    def route_for(self, turn: Turn, question: Question | Callback, hints: Hints) -> CoroutineType[Any, Any, Route]:
        """Lay out where such a question of the turn would go by the policies as they are now."""
        return route_for(self.home, self.root, turn, question, hints)

    async def target_session(self, turn: Turn, station: Station, callback_id: str) -> Turn:
        """The session of an agent that is asked, live or from the log; a fresh one outside the chain."""
        running = self.home.turns.get(station.session_id)
        if running is not None and running.services is self:
            return running
        if not station.fresh:
            state = await load_state(self.store, station.session_id)
            if state is not None:
                return self.make_turn(state, self.home.agents.of(state.header), await self.inherited(state.header))
        agent = self.home.agents.get(station.agent, self.root)
        name = f"{station.agent}.{callback_id}"
        state = await load_state(self.store, f"{turn.id}~{name}") or SessionState(f"{turn.id}~{name}")
        fresh = self.make_turn(state, agent, turn.actor.passed_on)
        if not state.seq:
            state.root_header = turn.state.root_header
            fresh.log.add(child_header(turn, agent.name, name, "side_turn"))
            await fresh.log.flush()
        return fresh

    def ask_host(self, callback: Callback, first: bool) -> None:
        """Put a question before the person who is here; who watches is told the first time."""
        if first:
            shown = public(callback)
            self.home.broadcast.ask(shown)
            for tell in [*self.home.person_watchers]:
                tell(shown)
        if self.home.host is not None and self.claim is not None:
            gather = self.activity.count > 0 and bool(callback.digest_of_group)
            self.home.host_inbox.ask_host(callback, gather=gather)
