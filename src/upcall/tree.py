"""A run tree: a session and all that it starts, owned by one process at a time.

May import: agent, contracts, errors, events, fold, loop, messages, session.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from upcall.agent import Agent
from upcall.contracts import Claim, Reply, Store
from upcall.errors import ChildFailed, LimitReached, StoreDamaged, TurnError
from upcall.events import AnyEvent, Compacted, SessionStarted, TurnResumed, TurnStarted
from upcall.fold import State
from upcall.hooks import Hooks
from upcall.loop import Turn, begin_session
from upcall.messages import Message, user
from upcall.session import Actor, Deadlines, Live, Log, Member

_PAGE = 1000


class Home(Protocol):
    """What a run tree asks of the runtime it lives in."""

    store: Store
    turns: dict[str, Turn]
    deadlines: Deadlines

    def agent(self, name: str) -> Agent:
        """An agent by its name."""
        ...

    def actor(self, agent: Agent, inherited: Hooks) -> Actor:
        """The agent, ready to run."""
        ...

    def pool(self) -> ThreadPoolExecutor:
        """Threads for plain `def` tools."""
        ...


async def load_state(store: Store, session_id: str, upto: int | None = None) -> State | None:
    """A session folded from its log, from its last compaction on; None if there is no such session.

    With `upto`, as it was when its log ended there.
    """
    row = await store.row(session_id)
    if row is None:
        return None
    state = State(session_id)
    base = row.base if upto is None else 0
    events = await _pages(store, session_id, max(base - 1, 0), upto)
    if base > 1:
        fold(store, state, (await store.read(session_id, 0, 1))[0])
        carried = next((e.carried for e in events if isinstance(e, Compacted)), None)
        if carried is not None:
            state.restore(carried)
    for event in events:
        fold(store, state, event)
        if isinstance(event, SessionStarted) and event.kind == "side_turn":
            asked = await load_state(store, event.parent, event.reads)
            state.history = asked.messages() if asked is not None else []
    return state


async def _pages(store: Store, session_id: str, after: int, upto: int | None) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    while page := await store.read(session_id, after, _PAGE):
        events += page
        after = page[-1].seq
    return [e for e in events if upto is None or e.seq <= upto]


def fold(store: Store, state: State, event: AnyEvent) -> None:
    """Take an event of the log into account; an impossible one is a damaged log."""
    try:
        state.apply(event)
    except (KeyError, ValueError) as error:
        problem = f"event {event.seq} ({event.type}) of session {state.id!r} can't follow what is before it"
        raise StoreDamaged(store.where, problem) from error


async def refresh(store: Store, state: State) -> None:
    """Fold what was appended since."""
    while page := await store.read(state.id, state.seq, _PAGE):
        for event in page:
            fold(store, state, event)


class RunTree:
    """The sessions of one claim: starts children, runs side turns, hears what others append."""

    def __init__(self, home: Home, claim: Claim | None) -> None:
        self.home, self.claim, self.deadlines = home, claim, home.deadlines
        self.live = Live()
        if claim is not None:
            claim.on_failure = self._lost

    @property
    def threads(self) -> ThreadPoolExecutor:
        """Threads for plain `def` tools."""
        return self.home.pool()

    def member(self, state: State, agent: Agent, inherited: Hooks) -> Member:
        """A session of this tree, ready to run."""
        log = Log(self.home.store, self.claim, state, self.live)
        return Member(log, self.home.actor(agent, inherited), self)

    # --- turns ----------------------------------------------------------------------------

    async def run(self, member: Member, release: bool) -> Reply:
        """Run the member's open turn to its end."""
        turn = Turn(member)
        turns, session_id = self.home.turns, member.state.id
        turns[session_id] = turn
        member.log.absorb = turn.absorb
        try:
            return await turn.run(release)
        finally:
            del turns[session_id]

    def begin(self, member: Member, message: Message) -> None:
        """Write a new prompt down."""
        state = member.state
        member.log.add(TurnStarted(state.turn + 1, message, member.actor.setup))

    def resume(self, member: Member) -> None:
        """Write down that an open turn goes on, and whether the agent has changed since."""
        state = member.state
        before = state.prompt.setup if state.prompt is not None else ""
        now = member.actor.setup
        member.log.add(TurnResumed(state.turn, now if before != now else ""))

    # --- children -------------------------------------------------------------------------

    async def secure(self, member: Member) -> Claim:
        """The claim on this tree; a session that is just being created is stored and claimed first."""
        if self.claim is None:
            await member.log.commit()
            self.claim = member.log.claim = await self.home.store.claim(member.id)
            self.claim.on_failure = self._lost
        return self.claim

    async def start_child(self, parent: Member, agent: Agent | str, prompt: str, name: str) -> Reply:
        """Run a child called after its parent and `name`; run again, it goes on, or returns its logged end."""
        await self.secure(parent)
        declared = self.home.agent(agent) if isinstance(agent, str) else agent
        child_id = f"{parent.id}~{name}"
        state = await load_state(self.home.store, child_id)
        if state is not None and state.phase not in ("running", "idle"):
            return _ended(state, declared)
        if state is None:
            self._check_child(parent)
        member = self.member(state or State(child_id), declared, parent.actor.passed_on)
        try:
            if member.state.phase == "running":
                self.resume(member)
            else:
                await self._create(parent, member, name, prompt)
            return await self.run(member, release=False)
        except TurnError as error:
            raise ChildFailed(child_id, declared.name, f"{type(error).__name__}: {error}") from error

    async def _create(self, parent: Member, member: Member, name: str, prompt: str) -> None:
        """The child and its prompt: one append, unless a begin_session hook waits for something."""
        header, state = parent.state.header, member.state
        if not state.seq:
            root = header.root or parent.id
            started = SessionStarted(
                member.actor.name, parent.id, root, name, header.depth + 1, source=header.source
            )
            member.log.add(started)
        if member.actor.hooks.begin_session and not state.begun:
            await begin_session(member)
        self.begin(member, user(prompt))

    def _check_child(self, parent: Member) -> None:
        limits = parent.actor.agent.limits
        parent.children += 1
        if limits.children is not None and parent.children > limits.children:
            raise LimitReached("children", f"{limits.children} in this turn")
        if limits.depth is not None and parent.state.header.depth + 1 > limits.depth:
            raise LimitReached("depth", f"{limits.depth} below the root")

    async def side_turn(self, member: Member, text: str, name: str) -> str:
        """Let the member's agent answer over its own conversation without leaving a trace in it."""
        await self.secure(member)
        await member.log.commit()
        side_id = f"{member.id}~{name}"
        state = await load_state(self.home.store, side_id)
        if state is not None and state.phase != "running":
            return _ended(state, member.actor.agent).text
        side = Member(
            Log(self.home.store, self.claim, state or State(side_id), self.live), member.actor, self, "side_turn"
        )
        if state is not None:
            self.resume(side)
        else:
            side.state.history = member.state.messages()
            header = member.state.header
            side.log.add(
                SessionStarted(
                    member.actor.name, member.id, header.root or member.id, name, header.depth, "side_turn",
                    member.state.seq, header.source,
                )
            )  # fmt: skip
            self.begin(side, user(text))
        reply = await self.run(side, release=False)
        if reply.status != "done":
            raise ChildFailed(side_id, member.actor.name, f"its side turn ended with {reply.limit or reply.status}")
        return reply.text

    # --- what comes from outside ----------------------------------------------------------

    def _lost(self, error: Exception) -> None:
        for turn in tuple(self.home.turns.values()):
            if turn.member.tree is self:
                turn.stop(error)


def _ended(state: State, agent: Agent) -> Reply:
    if state.phase == "failed":
        raise ChildFailed(state.id, agent.name, state.error)
    return last_reply(state)


def last_reply(state: State) -> Reply:
    """What the session's last turn came to."""
    status = state.phase if state.phase in ("done", "cancelled", "limit") else "done"
    return Reply(state.text, status, state.id, state.usage, limit=state.limit)
