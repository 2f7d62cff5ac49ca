"""Decide where a callback goes: a pure function of the question and the agents above it, with every reason.

The climb comes first, each ancestor asked or skipped, then `fallback_target`: an agent, the person, or nobody.
The route is laid out as if everybody passes the callback up; whoever answers ends it early.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Literal

from upcall.callbacks import MUST_ANSWER, Hints, Kind, intent_warning, meant_intent, normal_kind
from upcall.core.routing.policy import FAIL, USER, Policy
from upcall.messages import Value

GATE = "approval gate"
"""The right of an approval that uses no agent's right. No agent's name contains a space."""


class Ancestor(Value, frozen=True):
    """An agent above the asker, in the session that the asker's work came from."""

    name: str
    policy: Policy = Policy()
    session_id: str = ""


class RouteQuery(Value, frozen=True):
    """A callback as routing sees it.

    `gate` marks an approval raised by the gate before a tool, never one raised by hand. `person` says that
    somebody would see the question: a live host, or a store on disk. `known` are the agents a fallback may
    name; None leaves that unchecked. `fallback_approves`: what a fallback agent outside the chain may approve.
    `required`: whether it must be answered, whatever its intent says.
    """

    asker: str
    policy: Policy = Policy()
    intent: str = "query"
    kind: Kind = "callback_to_caller"
    hints: Hints = Hints()
    gate: bool = False
    person: bool = True
    known: tuple[str, ...] | None = None
    required: bool | None = None
    fallback_approves: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Station(Value, frozen=True):
    """An agent on the way. `hop` counts those asked from 1; a skipped one and the fallback have 0.

    `allow` is what would have let a skipped one be asked, where anything would. A `fresh` fallback is outside
    the chain: it gets a session of its own that holds only the question. `approves` names the tools that one who
    is asked for an approval may approve.
    """

    agent: str
    step: Literal["ask", "skip"]
    reason: str
    session_id: str = ""
    hop: int = 0
    allow: str = ""
    fallback: bool = False
    fresh: bool = False
    approves: tuple[str, ...] | None = None


class Route(Value, frozen=True):
    """Whom to ask, in order, and where it ends if each of them passes it up.

    `end` is the person, an explicit `fail`, or nobody, and `why` its reason. `right` names whose right to reach
    the person is used, `allow` what would have let it go further; `notes` tell of hints without effect.
    """

    asker: str
    intent: str
    kind: Kind
    stations: tuple[Station, ...]
    end: Literal["person", "fail", "nobody"]
    why: str
    right: str = ""
    unresolved: Literal["none", "raise"] = "none"
    allow: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def asks(self) -> tuple[Station, ...]:
        """The stations that are asked, in order."""
        return tuple([s for s in self.stations if s.step == "ask"]) if self.stations else ()


def when_unresolved(
    intent: str, kind: Kind, explicit_fail: bool, *, without_right: bool = False, required: bool | None = None
) -> Literal["none", "raise"]:
    """The outcome when nobody answers: None, or CallbackUnresolved if the question must not be ignored.

    `without_right`: its asker may not reach the person, which is all that a `request_user_input` wants. `required`
    takes the place of what the intent says.
    """
    kind = normal_kind(kind, intent)
    must = meant_intent(intent) in MUST_ANSWER if required is None else required
    must = must or explicit_fail or kind == "request_resolution"
    return "raise" if must or (without_right and kind == "request_user_input") else "none"


def route(query: RouteQuery, ancestors: Sequence[Ancestor]) -> Route:
    """Lay out whom to ask, nearest ancestor first, and what happens when nobody answers.

    Skipped ancestors stay in the route with their reason: people debug policies by reading it.
    """
    lay_out = _cached if _is_short(query) else _route
    return lay_out(query, tuple(ancestors))


def _is_short(query: RouteQuery) -> bool:
    """Tell whether a query that somebody else may have worded is small enough to be kept."""
    hints = query.hints
    names = (query.intent, hints.fallback_target or "", *hints.passthrough_agents, *hints.resolvable_by)
    return len(names) < 20 and sum(map(len, names)) < 1000


def _route(query: RouteQuery, ancestors: tuple[Ancestor, ...]) -> Route:
    query = query.replace(kind=normal_kind(query.kind, query.intent))
    stations = _climb(query, ancestors)
    asked = [ancestor for ancestor, at in zip(ancestors, stations, strict=True) if at.step == "ask"]
    target, notes = _target(query)
    explicit_fail = target == FAIL
    if query.kind != "request_user_input" and target not in (USER, FAIL):
        stations.append(_fallback(query, ancestors, asked, target))
        target = _after_fallback(query, stations[-1], asked)
    end, why, right = _end(query, asked, target, stations)
    no_right = not _right(query, [])[0]
    return Route(
        asker=query.asker,
        intent=query.intent,
        kind=query.kind,
        stations=tuple(stations),
        end=end,
        why=why,
        right=right,
        unresolved=when_unresolved(
            query.intent, query.kind, explicit_fail, without_right=no_right, required=query.required
        ),
        allow=() if end == "person" else _allow(query, stations, target),
        notes=(*notes, *_ignored_hints(query, stations)),
    )


# a pure function of frozen values, asked again for each question of an agent; laying a route out takes 25 µs
_cached = lru_cache(1000)(_route)


# --- the climb --------------------------------------------------------------------------

_Skip = tuple[str, str]
"""Why an agent is not asked, and what would have let it be."""


def _climb(query: RouteQuery, ancestors: Sequence[Ancestor]) -> list[Station]:
    limit, limited_by = _hops(query)
    stations: list[Station] = []
    asked: set[tuple[str, str]] = set()
    for ancestor in ancestors:
        # one agent may be above twice: its two sessions know different things
        who = (ancestor.session_id, "" if ancestor.session_id else ancestor.name)
        skip = _barred(query, ancestor.name) or _passed_through(query, ancestor)
        if not skip and who in asked:
            skip = ("it was asked already", "")
        if not skip and limit is not None and len(asked) >= limit:
            skip = f"no hop is left: {limited_by}", f"max_bubble_hops above {limit}"
        if skip:
            stations.append(Station(ancestor.name, "skip", skip[0], ancestor.session_id, allow=skip[1]))
            continue
        asked.add(who)
        count = f"hop {len(asked)}" + (f" of {limit}" if limit is not None else "")
        approves = ancestor.policy.callback_policy.may_approve if query.gate else None
        stations.append(Station(ancestor.name, "ask", count, ancestor.session_id, len(asked), approves=approves))
    return stations


def _barred(query: RouteQuery, name: str) -> _Skip | None:
    """Why an agent can't be asked, whether it is an ancestor or the fallback."""
    hints, policy = query.hints, query.policy
    if query.kind == "request_user_input":
        return "request_user_input goes straight to the person", "the kind callback_to_caller"
    if not policy.can_query_caller:
        says = policy.describe("can_query_caller", query.asker)
        return says, policy.remedy("can_query_caller", query.asker)
    if name in hints.passthrough_agents:
        return "the hint passthrough_agents names it", f"a hint passthrough_agents without {name}"
    if hints.resolvable_by and name not in hints.resolvable_by:
        only = f"the hint resolvable_by names only {', '.join(hints.resolvable_by)}"
        return only, f"a hint resolvable_by with {name}"
    return None


def _passed_through(query: RouteQuery, ancestor: Ancestor) -> _Skip | None:
    key = "callback_policy.passthrough_child_callbacks"
    if query.hints.passthrough_child_callbacks:
        reason = "the hint passthrough_child_callbacks skips every agent above"
        return reason, "no hint passthrough_child_callbacks"
    if ancestor.policy.callback_policy.passthrough_child_callbacks:
        where = ancestor.policy.where(ancestor.name)
        return ancestor.policy.describe(key, ancestor.name), f"{key}: false in {where}"
    return None


def _hops(query: RouteQuery) -> tuple[int | None, str]:
    """The number of agents that may be asked, and the setting that limits it."""
    own, hint = query.policy.callback_policy.max_bubble_hops, query.hints.max_bubble_hops
    if hint is not None and (own is None or hint <= own):
        return hint, f"the hint max_bubble_hops is {hint}"
    return own, query.policy.describe("callback_policy.max_bubble_hops", query.asker)


# --- after the last hop -----------------------------------------------------------------


def _target(query: RouteQuery) -> tuple[str, tuple[str, ...]]:
    """The fallback after hint and sidecar are heard, and a note where the hint was refused."""
    own, hint = query.policy.callback_policy.fallback_target, query.hints.fallback_target
    if hint is None or hint == own:
        return own or USER, ()
    if own in ("", USER) or hint == FAIL:
        return hint, ()
    says = query.policy.describe("callback_policy.fallback_target", query.asker)
    return own, (f"the hint fallback_target {hint!r} has no effect: {says}",)


def _fallback(query: RouteQuery, ancestors: Sequence[Ancestor], asked: Sequence[Ancestor], name: str) -> Station:
    above = next((ancestor for ancestor in ancestors if ancestor.name == name), None)
    skip = _barred(query, name)
    if not skip and any(ancestor.name == name for ancestor in asked):
        skip = ("it was asked already, and a fallback is never asked twice", "")
    elif not skip and above is None and name == query.asker:
        skip = ("the fallback is the one who asks", "")
    elif not skip and above is None and query.known is not None and name not in query.known:
        skip = (f"there is no agent called {name!r}; known agents: {', '.join(query.known) or 'none'}", "")
    session_id = above.session_id if above else ""
    if skip:
        return Station(name, "skip", skip[0], session_id, allow=skip[1], fallback=True)
    reason = "fallback_target" + ("" if above else ", in a fresh session that holds only the question")
    approves = above.policy.callback_policy.may_approve if above else dict(query.fallback_approves).get(name, ())
    return Station(
        name,
        "ask",
        reason,
        session_id,
        fallback=True,
        fresh=above is None,
        approves=approves if query.gate else None,
    )


def _after_fallback(query: RouteQuery, station: Station, asked: Sequence[Ancestor]) -> str:
    """The target after a fallback agent; "" if the callback is unresolved when that agent passes it up.

    If a hint named the agent and it may not be asked, the sidecar's fallback is used. A fallback agent that the
    sidecar names is never replaced by the person.
    """
    own = query.policy.callback_policy.fallback_target
    had_its_say = station.step == "ask" or any(ancestor.name == station.agent for ancestor in asked)
    return "" if had_its_say or own == station.agent else own or USER


def _end(
    query: RouteQuery, asked: Sequence[Ancestor], target: str, stations: Sequence[Station]
) -> tuple[Literal["person", "fail", "nobody"], str, str]:
    """The last station of the route, the reason, and whose right is used."""
    if query.kind == "request_resolution":
        return "fail" if target == FAIL else "nobody", "request_resolution never asks a person", ""
    right, why = _right(query, asked)
    if query.kind != "request_user_input" and target != USER:
        if not query.gate and target == FAIL:
            hinted = query.hints.fallback_target == FAIL
            says = query.policy.describe("callback_policy.fallback_target", query.asker)
            return "fail", "the hint fallback_target is 'fail'" if hinted else says, ""
        if not query.gate:
            return "nobody", f"fallback_target is the agent {stations[-1].agent}, and nobody comes after it", ""
        right, why = GATE, "an approval may always reach a person, whatever fallback_target says"
    if not right:
        return "nobody", why, ""
    if not query.person:
        return "nobody", "no host is live and the store is in memory, so nobody would see it", ""
    return "person", why, right


def _right(query: RouteQuery, asked: Sequence[Ancestor]) -> tuple[str, str]:
    """Whose right reaches the person, and the reason; an empty name and what is missing if nobody's does."""
    key = "can_use_host_interaction"
    if query.policy.can_use_host_interaction:
        says = query.policy.describe(key, query.asker)
        return query.asker, f"{query.asker} may ask a person ({says})"
    for ancestor in asked:
        if ancestor.policy.can_use_host_interaction:
            says = ancestor.policy.describe(key, ancestor.name)
            return ancestor.name, f"{ancestor.name} may ask a person after it has passed the question up ({says})"
    if query.gate:
        return GATE, "an approval may always reach a person"
    return "", query.policy.describe(key, query.asker)


# --- what would have helped -------------------------------------------------------------


def _allow(query: RouteQuery, stations: Sequence[Station], target: str) -> tuple[str, ...]:
    """The policy keys that stop the callback here, each with the place where it is set."""
    found = [station.allow for station in stations if station.allow]
    if query.kind == "request_resolution":
        return tuple(dict.fromkeys(found))
    if query.kind != "request_user_input" and target != USER:
        found.append(f"fallback_target: {USER}")
    if not query.policy.can_use_host_interaction and not query.gate:
        found.append(query.policy.remedy("can_use_host_interaction", query.asker))
    if not query.person:
        found.append("a live host, or a store on disk")
    return tuple(dict.fromkeys(found))


def _ignored_hints(query: RouteQuery, stations: Sequence[Station]) -> list[str]:
    """A note for each hint without effect, and for a misspelt intent.

    A name that is nobody on the way is most often misspelt.
    """
    own, hint = query.policy.callback_policy.max_bubble_hops, query.hints.max_bubble_hops
    notes = [warning] if (warning := intent_warning(query.intent)) else []
    if hint is not None and own is not None and hint > own:
        says = query.policy.describe("callback_policy.max_bubble_hops", query.asker)
        notes.append(f"the hint max_bubble_hops {hint} has no effect: {says}")
    above = list(dict.fromkeys(station.agent for station in stations))
    for list_name in ("resolvable_by", "passthrough_agents"):
        strangers = [name for name in getattr(query.hints, list_name) if name not in (*above, USER)]
        notes += [
            f"the hint {list_name} names {name!r}, who is not above {query.asker}; "
            f"above it: {', '.join(above) or 'nobody'}"
            for name in strangers
        ]
    return notes


def refusal(then: Route, now: Route, agent: str, session_id: str = "") -> str:
    """Why this agent may not be asked by the stricter of two routes; "" if it may.

    One agent may stand above in two sessions; `session_id` tells which is meant.
    """
    for when, at in (("when it was raised", then), ("now", now)):
        same = [s for s in at.stations if s.agent == agent and session_id in ("", s.session_id)]
        if all(station.step == "skip" for station in same):
            why = same[0].reason if same else "it is not on the route"
            return f"{agent} may not be asked {when}: {why}"
    return ""


def person_refusal(then: Route, now: Route, passed: Collection[str]) -> str:
    """Why the person may not be asked by the stricter of two routes; "" if they may.

    `passed` are the agents that were asked and passed the question up: only their right may be used.
    """
    if now.end != "person":
        return now.why
    for at in (then, now):
        if at.right not in (at.asker, GATE, *passed):
            first = f"the person may be asked only on behalf of {at.right}, after {at.right} passed the question up"
            return f"{first}; {at.right} was not asked"
    return ""
