"""The agents above a session: who may be asked, with which rights, and whose hooks and workspace it inherits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from upcall.agent import Agent
from upcall.contracts import Store, Workspace
from upcall.core.log.state import SessionState
from upcall.core.routing.policy import Policy
from upcall.core.routing.route import Ancestor
from upcall.core.turns.turn import Turn
from upcall.errors import SetupError
from upcall.events import SessionStarted


async def effective_policy_and_ancestors(
    agent: Agent,
    header: SessionStarted,
    store: Store,
    turns: Mapping[str, Turn],
    agent_of: Callable[[SessionStarted], Agent],
) -> tuple[Policy, list[Ancestor]]:
    """Return a session's policy, narrowed below a worker without a caller, and the agents above it, nearest first.

    An ancestor that runs here is taken from memory, any other from the log. Teams and chains are left out, because
    they have no model to ask. A team's worker whose plan names no caller has no ancestors.
    """
    found: list[Ancestor] = []
    worker_without_caller = ""
    while True:
        if header.team and header.above == "":
            worker_without_caller = worker_without_caller or header.agent
        session_id = header.parent if header.above is None else header.above  # None: its parent; empty: nobody
        if not session_id:
            break
        turn = turns.get(session_id)
        first = [turn.state.header] if turn is not None else await store.read(session_id, 0, 1)
        if not first or not isinstance(first[0], SessionStarted):
            break
        header = first[0]
        if header.kind != "coordinator":
            policy = (turn.actor.agent if turn is not None else agent_of(header)).policy
            found.append(Ancestor(header.agent, policy, session_id))
    if not worker_without_caller:
        return agent.policy, found
    below = [Ancestor(a.name, a.policy.without_caller(worker_without_caller, True), a.session_id) for a in found]
    return agent.policy.without_caller(worker_without_caller, bool(below)), below


class SessionsAbove:
    """The sessions above those of one run tree that run: as they run here, or, where they do not, from the log.

    A child that is prompted by its own id has the same hooks, workspace and limits above it as before.
    """

    __slots__ = ("_idle", "_own", "_turns")

    def __init__(self, turns: Mapping[str, Turn], own: Workspace | None = None) -> None:
        self._turns = turns
        self._own = own  # the root's workspace in place of its agent's
        self._idle: dict[str, Turn] = {}

    def get(self, session_id: str) -> Turn | None:
        """A session that runs here, or that was loaded because it is above one that does."""
        return self._turns.get(session_id) or self._idle.get(session_id)

    async def load(self, session_id: str, make: Callable[[str], Awaitable[Turn]]) -> Turn:
        """A session that is above another one; `make` loads it, with all above it, if it does not run here."""
        found = self.get(session_id)
        if found is None:
            found = self._idle[session_id] = await make(session_id)
        return found

    def workspace(self, turn: Turn) -> Workspace | None:
        """The workspace that a session's agent declares, or the nearest agent above it that has one.

        That of a root, and of a side turn over it, is the one that the root was started with.
        """
        one: Turn | None = turn
        while one is not None:
            header, declared = one.state.header, one.actor.agent.workspace
            if self._own is not None and (not header.parent or (header.reads and header.parent == header.root)):
                return self._own
            if declared is not None:
                return declared
            one = self.get(header.parent) or self.get(header.root)
        return None


def check_runs_alone(state: SessionState) -> None:
    """Refuse to run a side turn as a session of its own: it may answer one callback, and only read besides."""
    header = state.header
    if header.kind == "side_turn":
        raise SetupError(
            f"{state.id} is a side turn of {header.agent}. You can read it, but you can't prompt "
            f"or resume it. Use its session {header.parent}"
        )
