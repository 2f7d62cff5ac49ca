"""What holds for every tree, sidecar and hint."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcall.callbacks import KINDS, Hints, normal_kind
from upcall.core.routing.explain import explain_unresolved
from upcall.core.routing.policy import CallbackPolicy, Policy
from upcall.core.routing.route import GATE, Ancestor, Route, RouteQuery, Station, route
from upcall.observe.route import draw

pytestmark = pytest.mark.slow

NAMES = ("controller", "manager", "lead", "expert", "developer")
INTENTS = ("query", "clarification", "blocker", "error", "approval", "user_input", "preference", "odd")
HOPS = st.none() | st.integers(0, 4)
SOME = st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)


def policies() -> st.SearchStrategy[Policy]:
    under = st.builds(
        CallbackPolicy,
        passthrough_child_callbacks=st.booleans(),
        max_bubble_hops=HOPS,
        fallback_target=st.sampled_from(["", "user", "fail", *NAMES]),
    )
    return st.builds(Policy, st.booleans(), st.booleans(), under)


HINTS = st.builds(
    Hints,
    max_bubble_hops=HOPS,
    fallback_target=st.sampled_from([None, "user", "fail", *NAMES]),
    passthrough_agents=SOME,
    resolvable_by=SOME,
    passthrough_child_callbacks=st.booleans(),
)
CALLBACKS = st.builds(
    RouteQuery,
    asker=st.just("developer"),
    policy=policies(),
    intent=st.sampled_from(INTENTS),
    kind=st.sampled_from(KINDS),
    hints=HINTS,
    gate=st.booleans(),
    person=st.booleans(),
    known=st.none() | SOME,
)


@st.composite
def ancestors(draw: st.DrawFn) -> Ancestor:
    """An ancestor in a session of its own agent, or where sessions are not known."""
    name = draw(st.sampled_from(NAMES))
    return Ancestor(name, draw(policies()), draw(st.sampled_from(["", f"{name}-1", f"{name}-2"])))


CHAINS = st.lists(ancestors(), max_size=6)


def climbed(found: Route) -> list[Station]:
    return [station for station in found.asks if not station.fallback]


@given(CALLBACKS, CHAINS)
def test_request_resolution_never_reaches_a_person_from_any_tree(
    callback: RouteQuery, chain: list[Ancestor]
) -> None:
    found = route(callback.replace(kind="request_resolution"), chain)
    assert found.end != "person"
    assert found.right == ""
    assert found.unresolved == "raise"


@given(CALLBACKS, CHAINS)
def test_a_hint_never_widens_what_a_sidecar_allows(callback: RouteQuery, chain: list[Ancestor]) -> None:
    hinted, plain = route(callback, chain), route(callback.replace(hints=Hints()), chain)
    assert len(climbed(hinted)) <= len(climbed(plain))
    own = callback.policy.callback_policy.fallback_target
    if not callback.policy.can_query_caller:
        assert not hinted.asks
    if own not in ("", "user"):
        assert all(station.agent == own for station in hinted.asks if station.fallback)
        assert hinted.end != "person" or callback.gate or hinted.kind == "request_user_input"


@given(CALLBACKS, CHAINS)
def test_no_hint_opens_the_way_to_the_person(callback: RouteQuery, chain: list[Ancestor]) -> None:
    hinted, plain = route(callback, chain), route(callback.replace(hints=Hints()), chain)
    if hinted.end == "person" and hinted.right in (callback.asker, GATE):
        assert plain.end == "person"
    elif hinted.end == "person":
        # within the sidecar's number of hops a hint picks who is asked, and so whose right there is
        under = callback.policy.callback_policy.replace(max_bubble_hops=None)
        free = callback.replace(hints=Hints(), policy=callback.policy.replace(callback_policy=under))
        assert route(free, chain).end == "person"


@given(CALLBACKS, CHAINS)
def test_a_route_always_ends_and_asks_nobody_twice(callback: RouteQuery, chain: list[Ancestor]) -> None:
    found = route(callback, chain)
    assert found.end in ("person", "fail", "nobody")
    sessions = [station.session_id or station.agent for station in found.asks]
    assert len(sessions) == len(set(sessions))
    fallbacks = [station.agent for station in found.asks if station.fallback]
    assert len(fallbacks) <= 1
    assert not set(fallbacks) & {station.agent for station in climbed(found)}


@given(CALLBACKS, CHAINS)
def test_skipped_ones_cost_no_hops_and_hops_count_those_asked(callback: RouteQuery, chain: list[Ancestor]) -> None:
    found = route(callback, chain)
    assert [station.hop for station in climbed(found)] == list(range(1, len(climbed(found)) + 1))
    assert all(station.hop == 0 for station in found.stations if station.step == "skip" or station.fallback)
    limits = (callback.policy.callback_policy.max_bubble_hops, callback.hints.max_bubble_hops)
    assert all(limit is None or len(climbed(found)) <= limit for limit in limits)


@given(CALLBACKS, CHAINS)
def test_skipping_more_never_lowers_how_many_of_the_rest_are_asked(
    callback: RouteQuery, chain: list[Ancestor]
) -> None:
    through = Policy(callback_policy=CallbackPolicy(passthrough_child_callbacks=True))
    wrapped = [a for ancestor in chain for a in (Ancestor("wrapper", through, "w"), ancestor)]
    plain, longer = route(callback, chain), route(callback, wrapped)
    assert [s.agent for s in longer.asks] == [s.agent for s in plain.asks]


@given(CALLBACKS, CHAINS)
def test_callback_is_routed_as_the_kind_it_means(callback: RouteQuery, chain: list[Ancestor]) -> None:
    old = callback.replace(kind="callback")
    meant = callback.replace(kind=normal_kind("callback", callback.intent))
    assert route(old, chain) == route(meant, chain)
    assert route(old, chain).kind in ("callback_to_caller", "request_user_input")


@given(CALLBACKS, CHAINS)
def test_the_person_is_reached_only_by_a_right_that_exists(callback: RouteQuery, chain: list[Ancestor]) -> None:
    found = route(callback, chain)
    if found.end != "person":
        assert found.right == ""
        return
    assert callback.person
    lenders = {a.name for a in chain if a.policy.can_use_host_interaction} & {s.agent for s in climbed(found)}
    own = callback.policy.can_use_host_interaction and found.right == callback.asker
    assert own or callback.gate or found.right in lenders


@given(CALLBACKS, CHAINS)
def test_the_gates_approval_reaches_the_person_wherever_there_is_one(
    callback: RouteQuery, chain: list[Ancestor]
) -> None:
    gate = callback.replace(gate=True, person=True, intent="approval")
    if gate.kind != "request_resolution":
        assert route(gate, chain).end == "person"


@given(CALLBACKS, CHAINS)
def test_every_ancestor_is_in_the_route_with_a_reason(callback: RouteQuery, chain: list[Ancestor]) -> None:
    found = route(callback, chain)
    assert [s.agent for s in found.stations][: len(chain)] == [a.name for a in chain]
    assert all(station.reason for station in found.stations)
    assert found.why


@given(CALLBACKS, CHAINS)
def test_any_route_can_be_drawn_told_and_stored(callback: RouteQuery, chain: list[Ancestor]) -> None:
    found = route(callback, chain)
    assert len(draw(found).splitlines()) == 2 + len(found.stations) + len(found.allow) + len(found.notes)
    assert explain_unresolved(found)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Route) == found
