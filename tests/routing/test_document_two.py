"""The routing part of "Handling Callbacks": kinds, keys, hints, scenarios, failure modes, by its sentences."""

from __future__ import annotations

import pytest

from routing.ways import above, asked, reason, sidecar, way
from upcall.agentfiles.sidecar import read_sidecar
from upcall.core.routing.explain import explain_unresolved

PARENTS = [above("wrapper"), above("architect")]
EXAMPLE = b"""{
"can_query_caller": true,
"can_use_host_interaction": true,
"callback_policy": {
"passthrough_child_callbacks": false,
"max_bubble_hops": 2,
"fallback_target": "user"
}
}"""


# --- four kinds -------------------------------------------------------------------------


def test_kind_callback_is_generic_and_for_older_prompts() -> None:
    assert way(PARENTS, kind="callback") == way(PARENTS, kind="callback_to_caller")


def test_kind_callback_to_caller_asks_the_caller_side_to_try_resolving_first() -> None:
    found = way(PARENTS, kind="callback_to_caller")
    assert (asked(found), found.end) == (["wrapper", "architect"], "person")


def test_kind_request_user_input_asks_the_user_directly() -> None:
    found = way(PARENTS, kind="request_user_input")
    assert (asked(found), found.end) == ([], "person")


def test_kind_request_resolution_resolves_through_agents_and_does_not_ask_the_user() -> None:
    found = way(PARENTS, kind="request_resolution")
    assert (asked(found), found.end) == (["wrapper", "architect"], "nobody")


# --- five keys --------------------------------------------------------------------------


def test_the_documents_own_sidecar_is_read_and_routes_as_it_says() -> None:
    policy, problems = read_sidecar(EXAMPLE, "developer.json")
    assert policy is not None
    assert not problems
    found = way([*PARENTS, above("chief")], policy=policy)
    assert (asked(found), found.end) == (["wrapper", "architect"], "person")


def test_key_can_query_caller_controls_whether_callbacks_may_go_upward() -> None:
    assert asked(way(PARENTS, policy=sidecar(can_query_caller=False))) == []


def test_key_can_use_host_interaction_controls_whether_they_may_go_to_the_host() -> None:
    assert way([], policy=sidecar(can_use_host_interaction=False)).end == "nobody"


def test_key_passthrough_child_callbacks_is_read_from_the_parent_and_not_from_the_asker() -> None:
    parents = [above("wrapper", passthrough_child_callbacks=True), above("architect")]
    assert asked(way(parents)) == ["architect"]
    assert asked(way(PARENTS, policy=sidecar(passthrough_child_callbacks=True))) == ["wrapper", "architect"]


def test_key_max_bubble_hops_bounds_the_climb() -> None:
    assert asked(way(PARENTS, policy=sidecar(max_bubble_hops=1))) == ["wrapper"]


@pytest.mark.parametrize(("target", "end"), [("user", "person"), ("fail", "fail"), ("expert", "nobody")])
def test_key_fallback_target_says_where_the_climb_ends(target: str, end: str) -> None:
    found = way(PARENTS, policy=sidecar(fallback_target=target))
    assert found.end == end
    assert ("expert" in asked(found)) == (target == "expert")


# --- five hints -------------------------------------------------------------------------


def test_hint_max_bubble_hops_overrides_the_default() -> None:
    assert asked(way(PARENTS, hints={"max_bubble_hops": 1})) == ["wrapper"]


def test_hint_fallback_target_overrides_the_default() -> None:
    assert way(PARENTS, hints={"fallback_target": "fail"}).end == "fail"


def test_hint_passthrough_agents_skips_orchestration_agents() -> None:
    assert asked(way(PARENTS, hints={"passthrough_agents": ["wrapper"]})) == ["architect"]


def test_hint_resolvable_by_lets_only_a_specific_specialist_parent_resolve() -> None:
    assert asked(way(PARENTS, hints={"resolvable_by": ["architect"]})) == ["architect"]


def test_hint_passthrough_child_callbacks_skips_every_parent_for_one_callback() -> None:
    assert asked(way(PARENTS, hints={"passthrough_child_callbacks": True})) == []


# --- five scenarios ---------------------------------------------------------------------


def test_scenario_caller_mediated_clarification() -> None:
    found = way(PARENTS, intent="clarification")
    assert asked(found)[0] == "wrapper"


def test_scenario_direct_user_clarification() -> None:
    found = way(PARENTS, intent="clarification", kind="request_user_input")
    assert (asked(found), found.end, found.right) == ([], "person", "developer")


def test_scenario_agent_only_resolution_fails_loudly() -> None:
    found = way([], intent="query", kind="request_resolution")
    assert (found.end, found.unresolved) == ("nobody", "raise")


def test_scenario_skip_orchestration_layers_in_three_ways() -> None:
    parents = [above("wrapper", passthrough_child_callbacks=True), above("architect")]
    ways = [
        way(parents),
        way(PARENTS, hints={"passthrough_agents": ["wrapper"]}),
        way(PARENTS, hints={"resolvable_by": ["architect"]}),
    ]
    assert [asked(found) for found in ways] == [["architect"]] * 3


def test_scenario_parallel_children_have_the_same_route_as_sequential_ones() -> None:
    # a route depends on nothing but callback and chain, so a sibling can't change it
    assert way(PARENTS, kind="request_user_input") == way(PARENTS, kind="request_user_input")
    assert way(PARENTS, kind="request_resolution").end == "nobody"


# --- five failure modes, and what tells the author --------------------------------------


def test_failure_wrong_kind_sends_the_request_to_the_wrong_destination_and_says_which_kind_would_not() -> None:
    found = way(PARENTS, kind="request_user_input", policy=sidecar(can_use_host_interaction=False))
    assert "the kind callback_to_caller" in found.allow
    with pytest.raises(ValueError, match="unknown callback kind 'ask_user'"):
        way(PARENTS, kind="ask_user")


def test_failure_missing_can_use_host_interaction_makes_direct_user_input_fail() -> None:
    policy, _ = read_sidecar(b'{"can_query_caller": true}', "developer.json")
    found = way(PARENTS, kind="request_user_input", policy=policy)
    assert (found.end, found.unresolved) == ("nobody", "raise")
    missing = "The person was not asked: developer.json has no can_use_host_interaction, which means false."
    assert missing in explain_unresolved(found)


def test_failure_missing_can_query_caller_means_escalation_never_happens() -> None:
    policy, _ = read_sidecar(b'{"can_use_host_interaction": true}', "developer.json")
    found = way(PARENTS, policy=policy)
    assert (asked(found), found.end) == ([], "person")
    assert reason(found, "architect") == "developer.json has no can_query_caller, which means false"


def test_failure_over_aggressive_passthrough_skips_useful_parents_and_names_each() -> None:
    parents = [above(name, passthrough_child_callbacks=True) for name in ("wrapper", "architect")]
    found = way(parents, policy=sidecar(can_use_host_interaction=False))
    key = "callback_policy.passthrough_child_callbacks: false in Agent"
    assert asked(found) == []
    assert [allow for allow in found.allow if allow.startswith(key)] == [
        f"{key}('wrapper', ...)",
        f"{key}('architect', ...)",
    ]


def test_failure_bad_resolvable_by_denies_the_wrong_agents_and_names_the_stranger() -> None:
    found = way(PARENTS, hints={"resolvable_by": ["architekt"]})
    assert asked(found) == []
    assert found.notes == (
        "the hint resolvable_by names 'architekt', who is not above developer; above it: wrapper, architect",
    )
