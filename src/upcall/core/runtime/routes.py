"""The route of a question in a run tree: the policies of the agents above it, as they are now."""

from __future__ import annotations

from upcall.agent import Agent
from upcall.callbacks import Callback, Hints
from upcall.core.routing.policy import Policy
from upcall.core.routing.question import Question
from upcall.core.routing.route import Ancestor, Route, RouteQuery, route
from upcall.core.runtime.ancestors import effective_policy_and_ancestors
from upcall.core.runtime.home import RuntimeServices
from upcall.core.turns.turn import Turn


def can_ask_anyone(home: RuntimeServices, agent: Agent, policy: Policy, chain: list[Ancestor]) -> bool:
    """Tell whether a question of this agent would reach anybody.

    Each start of a session asks this. Declarations never change, so the runtime keeps the answer; laying out the
    route each time would add 6 % to W1.
    """
    if not agent.ask:
        return False
    known = home.can_ask_cache if policy is agent.policy else {}
    key = (agent, home.host is None, *[(a.name, id(a.policy)) for a in chain])
    if key not in known:
        found = route(RouteQuery(agent.name, policy, person=_has_person(home)), chain)
        known[key] = bool(found.asks) or found.end == "person"
    return known[key]


async def route_for(
    home: RuntimeServices, root: str, turn: Turn, question: Question | Callback, hints: Hints
) -> Route:
    """Lay out where such a question of the turn would go by the policies as they are now."""
    agent, known = turn.actor.agent, home.agents.names(root)
    policy, chain = await effective_policy_and_ancestors(
        agent, turn.state.header, home.store, home.turns, home.agents.of
    )
    query = RouteQuery(
        agent.name,
        policy,
        question.intent,
        question.kind,
        hints,
        question.gate,
        _has_person(home),
        known,
        question.required,
    )
    targets = {hints.fallback_target, policy.callback_policy.fallback_target} if question.gate else ()
    if fallbacks := [name for name in targets if name in known]:
        rights = [(name, home.agents.get(name, root).policy.callback_policy.may_approve) for name in fallbacks]
        query = query.replace(fallback_approves=tuple(rights))
    return route(query, chain)


def _has_person(home: RuntimeServices) -> bool:
    """Tell whether a question to a person would be seen: by a host, or in the inbox of a store on disk."""
    return home.host is not None or home.store.durable
