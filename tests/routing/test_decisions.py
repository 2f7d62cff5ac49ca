"""Each decision about routing, one test per sentence."""

from __future__ import annotations

from typing import Any

import pytest

from routing.ways import above, asked, reason, sidecar, way
from upcall.agentfiles.sidecar import read_sidecar
from upcall.callbacks import Hints, Kind, approval_digest, normal_kind, question_digest
from upcall.core.routing.policy import Policy
from upcall.core.routing.route import GATE, Ancestor, RouteQuery, refusal, route, when_unresolved

CLIMB = [above("controller"), above("manager"), above("lead")]
NO_RIGHTS = sidecar(can_query_caller=False, can_use_host_interaction=False)


def from_file(text: str) -> Policy:
    policy, problems = read_sidecar(text.encode(), "developer.json")
    assert policy is not None, problems
    return policy


# --- kinds ------------------------------------------------------------------------------


def test_callback_to_caller_is_the_default_and_climbs() -> None:
    found = way(CLIMB)
    assert found.kind == "callback_to_caller"
    assert asked(found) == ["controller", "manager", "lead"]
    assert (found.end, found.right) == ("person", "developer")


def test_request_user_input_goes_straight_to_the_person() -> None:
    found = way(CLIMB, kind="request_user_input")
    assert asked(found) == []
    assert (found.end, found.right) == ("person", "developer")
    assert "straight to the person" in reason(found, "manager")


def test_request_resolution_never_reaches_a_person_and_unresolved_raises() -> None:
    found = way(CLIMB, kind="request_resolution", policy=sidecar(fallback_target="user"))
    assert asked(found) == ["controller", "manager", "lead"]
    assert (found.end, found.unresolved, found.right) == ("nobody", "raise", "")
    assert found.why == "request_resolution never asks a person"


def test_request_user_input_has_no_fallback_agent() -> None:
    found = way([], kind="request_user_input", policy=sidecar(fallback_target="expert"))
    assert (found.stations, found.end) == ((), "person")


@pytest.mark.parametrize("intent", ["user_input", "preference"])
def test_callback_becomes_request_user_input_for_what_only_a_person_can_settle(intent: str) -> None:
    assert normal_kind("callback", intent) == "request_user_input"
    found = way(CLIMB, kind="callback", intent=intent)
    assert (found.kind, asked(found), found.end) == ("request_user_input", [], "person")


@pytest.mark.parametrize("intent", ["query", "clarification", "blocker", "error", "approval", "anything"])
def test_callback_becomes_callback_to_caller_for_every_other_intent(intent: str) -> None:
    assert normal_kind("callback", intent) == "callback_to_caller"
    assert way(CLIMB, kind="callback", intent=intent) == way(CLIMB, intent=intent)


def test_an_unknown_kind_is_an_error_that_names_the_four() -> None:
    with pytest.raises(ValueError, match="'ask'; the kinds are callback_to_caller, request_user_input"):
        way(CLIMB, kind="ask")


# --- when nobody answers ----------------------------------------------------------------


@pytest.mark.parametrize("intent", ["query", "clarification", "some-new-word"])
def test_a_question_that_may_be_ignored_gets_none(intent: str) -> None:
    assert when_unresolved(intent, "callback_to_caller", False) == "none"
    assert way([], policy=NO_RIGHTS, intent=intent).unresolved == "none"


@pytest.mark.parametrize("intent", ["blocker", "error", "approval", "user_input", "preference"])
def test_what_must_not_be_ignored_raises(intent: str) -> None:
    assert when_unresolved(intent, "callback_to_caller", False) == "raise"
    assert way([], policy=NO_RIGHTS, intent=intent).unresolved == "raise"


def test_the_kind_request_resolution_raises_for_any_intent() -> None:
    assert when_unresolved("query", "request_resolution", False) == "raise"


def test_request_user_input_without_the_right_raises_for_any_intent() -> None:
    found = way(CLIMB, kind="request_user_input", policy=sidecar(can_use_host_interaction=False))
    assert (found.end, found.unresolved) == ("nobody", "raise")


def test_an_explicit_fail_raises_for_any_intent() -> None:
    assert when_unresolved("query", "callback_to_caller", True) == "raise"
    assert way([], policy=sidecar(fallback_target="fail")).unresolved == "raise"
    assert way([], hints={"fallback_target": "fail"}).unresolved == "raise"


def test_a_fail_that_nobody_wrote_is_not_an_explicit_one() -> None:
    found = way([], policy=NO_RIGHTS)
    assert (found.end, found.unresolved) == ("nobody", "none")


# --- who is skipped ---------------------------------------------------------------------


def test_passthrough_belongs_to_the_one_being_passed() -> None:
    found = way([above("controller", passthrough_child_callbacks=True), above("manager")])
    assert asked(found) == ["manager"]
    assert "passthrough_child_callbacks: true" in reason(found, "controller")


def test_the_askers_own_passthrough_skips_nobody() -> None:
    assert asked(way(CLIMB, policy=sidecar(passthrough_child_callbacks=True))) == [
        "controller",
        "manager",
        "lead",
    ]


def test_the_passthrough_hint_skips_all_ancestors() -> None:
    found = way(CLIMB, hints={"passthrough_child_callbacks": True})
    assert asked(found) == []
    assert found.end == "person"


def test_passthrough_agents_skips_the_named() -> None:
    assert asked(way(CLIMB, hints={"passthrough_agents": ["manager"]})) == ["controller", "lead"]


def test_a_non_empty_resolvable_by_skips_everybody_not_in_it() -> None:
    found = way(CLIMB, hints={"resolvable_by": ["lead"]})
    assert asked(found) == ["lead"]
    assert reason(found, "manager") == "the hint resolvable_by names only lead"


def test_an_agent_in_both_lists_is_skipped() -> None:
    found = way(CLIMB, hints={"resolvable_by": ["manager", "lead"], "passthrough_agents": ["lead"]})
    assert asked(found) == ["manager"]


def test_resolvable_by_does_not_undo_an_ancestors_own_passthrough() -> None:
    chain = [above("lead", passthrough_child_callbacks=True)]
    assert asked(way(chain, hints={"resolvable_by": ["lead"]})) == []


# --- hops -------------------------------------------------------------------------------


def test_max_bubble_hops_is_the_askers_and_no_ancestors() -> None:
    assert asked(way(CLIMB, policy=sidecar(max_bubble_hops=1))) == ["controller"]
    chain = [above("controller", max_bubble_hops=0), above("manager", max_bubble_hops=0)]
    assert asked(way(chain)) == ["controller", "manager"]


def test_fallback_target_is_the_askers_and_no_ancestors() -> None:
    assert way([above("manager", fallback_target="fail")]).end == "person"


def test_skipped_ones_cost_no_hops() -> None:
    chain = [above("controller", passthrough_child_callbacks=True), above("manager"), above("lead")]
    found = way(chain, policy=sidecar(max_bubble_hops=1))
    assert [(s.agent, s.step, s.hop) for s in found.stations] == [
        ("controller", "skip", 0),
        ("manager", "ask", 1),
        ("lead", "skip", 0),
    ]
    assert "max_bubble_hops: 1" in reason(found, "lead")


def test_null_hops_are_no_limit() -> None:
    assert len(way(CLIMB, policy=sidecar(max_bubble_hops=None)).asks) == 3


def test_zero_hops_ask_no_ancestor() -> None:
    found = way(CLIMB, policy=sidecar(max_bubble_hops=0))
    assert (asked(found), found.end) == ([], "person")
    assert asked(way(CLIMB, hints={"max_bubble_hops": 0})) == []


def test_an_ancestors_own_can_query_caller_does_not_stop_a_climb_from_below() -> None:
    assert asked(way([above("manager", can_query_caller=False), above("lead")])) == ["manager", "lead"]


# --- the fallback -----------------------------------------------------------------------


def test_the_fallback_is_the_person_where_one_may_be_asked_else_fail() -> None:
    assert way([]).end == "person"
    assert way([], policy=sidecar(can_use_host_interaction=False)).end == "nobody"
    assert way([], person=False).end == "nobody"


def test_a_person_who_would_not_see_it_is_not_asked() -> None:
    found = way(CLIMB, person=False)
    assert found.why == "no host is live and the store is in memory, so nobody would see it"
    assert "a live host, or a store on disk" in found.allow


def test_a_fallback_agent_is_asked_after_the_last_hop_and_is_not_a_hop() -> None:
    found = way(CLIMB, policy=sidecar(max_bubble_hops=1, fallback_target="lead"))
    last = found.asks[-1]
    assert asked(found) == ["controller", "lead"]
    assert (last.hop, last.fallback, last.fresh, last.session_id) == (0, True, False, "session-of-lead")


def test_a_fallback_agents_passing_up_is_unresolved() -> None:
    found = way([], policy=sidecar(fallback_target="expert"), intent="blocker")
    assert (found.end, found.unresolved) == ("nobody", "raise")
    assert found.why == "fallback_target is the agent expert, and nobody comes after it"


def test_a_fallback_agent_outside_the_chain_gets_a_fresh_session() -> None:
    last = way(CLIMB, policy=sidecar(fallback_target="expert"), known=("expert",)).asks[-1]
    assert (last.agent, last.fresh, last.session_id) == ("expert", True, "")


@pytest.mark.parametrize("hints", [{"passthrough_agents": ["expert"]}, {"resolvable_by": ["manager"]}])
def test_a_fallback_agent_is_subject_to_both_lists(hints: dict[str, Any]) -> None:
    found = way(CLIMB, policy=sidecar(fallback_target="expert"), hints=hints)
    assert "expert" not in asked(found)
    assert found.end == "nobody"


def test_a_fallback_agent_is_not_subject_to_passthrough() -> None:
    chain = [above("lead", passthrough_child_callbacks=True)]
    assert asked(way(chain, policy=sidecar(fallback_target="lead"))) == ["lead"]
    hints = {"passthrough_child_callbacks": True}
    assert asked(way(CLIMB, policy=sidecar(fallback_target="lead"), hints=hints)) == ["lead"]


def test_a_fallback_agent_is_subject_to_can_query_caller() -> None:
    found = way([], policy=sidecar(can_query_caller=False, fallback_target="expert"))
    assert (asked(found), found.end) == ([], "nobody")
    assert "can_query_caller: true in Agent('developer', ...)" in found.allow


def test_a_fallback_agent_is_never_asked_twice() -> None:
    found = way(CLIMB, policy=sidecar(fallback_target="manager"))
    assert asked(found) == ["controller", "manager", "lead"]
    assert found.stations[-1].reason == "it was asked already, and a fallback is never asked twice"
    assert way(CLIMB, hints={"fallback_target": "manager"}).end == "nobody"


def test_an_agent_is_not_its_own_fallback() -> None:
    found = way([], policy=sidecar(fallback_target="developer"))
    assert reason(found, "developer") == "the fallback is the one who asks"


def test_a_fallback_nobody_knows_is_skipped_and_says_who_there_is() -> None:
    found = way([], policy=sidecar(fallback_target="expart"), known=("expert", "lead"))
    assert reason(found, "expart") == "there is no agent called 'expart'; known agents: expert, lead"


def test_a_fallback_agent_serves_request_resolution_too() -> None:
    found = way([], kind="request_resolution", policy=sidecar(fallback_target="expert"))
    assert asked(found) == ["expert"]


# --- the right to reach the person ------------------------------------------------------


def test_the_askers_own_right_is_used_first() -> None:
    assert way(CLIMB).right == "developer"


def test_the_right_of_an_agent_that_was_asked_and_passed_it_up_may_be_used_and_the_route_says_whose() -> None:
    chain = [above("controller", can_use_host_interaction=False), above("manager"), above("lead")]
    found = way(chain, policy=sidecar(can_use_host_interaction=False))
    assert (found.end, found.right) == ("person", "manager")
    assert found.why.startswith("manager may ask a person after it has passed the question up")


def test_a_hint_that_picks_who_is_asked_picks_whose_right_there_is() -> None:
    chain = [above("controller", can_use_host_interaction=False), above("manager")]
    policy = sidecar(can_use_host_interaction=False, max_bubble_hops=1)
    assert way(chain, policy=policy).end == "nobody"
    assert way(chain, policy=policy, hints={"passthrough_agents": ["controller"]}).right == "manager"


def test_an_agent_that_was_skipped_lends_no_right() -> None:
    chain = [above("manager", passthrough_child_callbacks=True)]
    found = way(chain, policy=sidecar(can_use_host_interaction=False))
    assert (found.end, found.right) == ("nobody", "")


def test_a_fallback_agent_lends_no_right() -> None:
    found = way(CLIMB, policy=sidecar(can_use_host_interaction=False, max_bubble_hops=0, fallback_target="lead"))
    assert found.end == "nobody"


def test_request_user_input_without_the_right_asks_no_agent_and_raises() -> None:
    found = way(CLIMB, kind="request_user_input", policy=sidecar(can_use_host_interaction=False))
    assert (asked(found), found.end, found.unresolved) == ([], "nobody", "raise")
    assert "can_use_host_interaction: true in Agent('developer', ...)" in found.allow


@pytest.mark.parametrize("fallback", [{}, {"fallback_target": "fail"}, {"fallback_target": "expert"}])
@pytest.mark.parametrize("kind", ["callback_to_caller", "request_user_input"])
def test_the_gates_approvals_may_always_reach_the_person_over_fail_too(
    fallback: dict[str, str], kind: Kind
) -> None:
    policy = sidecar(can_query_caller=False, can_use_host_interaction=False, **fallback)
    found = way([], policy=policy, intent="approval", gate=True, kind=kind)
    assert (found.end, found.right) == ("person", GATE)
    by_hint = way([], intent="approval", gate=True, hints={"fallback_target": "fail"})
    assert by_hint.end == "person"


def test_the_gates_approval_asks_the_fallback_agent_and_then_the_person() -> None:
    found = way([], policy=sidecar(fallback_target="expert"), intent="approval", gate=True)
    assert (asked(found), found.end) == (["expert"], "person")


def test_an_approval_raised_by_hand_has_no_such_right() -> None:
    assert way([], policy=NO_RIGHTS, intent="approval").end == "nobody"


def test_an_approval_that_nobody_would_see_is_unresolved() -> None:
    found = way([], policy=NO_RIGHTS, intent="approval", gate=True, person=False)
    assert (found.end, found.unresolved) == ("nobody", "raise")


# --- hints and the sidecar --------------------------------------------------------------


@pytest.mark.parametrize(("own", "hint", "hops"), [(1, 3, 1), (3, 1, 1), (None, 2, 2), (2, None, 2), (2, 0, 0)])
def test_hops_are_the_smaller_number(own: int | None, hint: int | None, hops: int) -> None:
    found = way(CLIMB, policy=sidecar(max_bubble_hops=own), hints={"max_bubble_hops": hint})
    assert len(found.asks) == hops


@pytest.mark.parametrize("own", ["fail", "expert"])
@pytest.mark.parametrize("hint", ["user", "lead"])
def test_a_sidecars_fail_or_agent_name_is_not_turned_into_something_else(own: str, hint: str) -> None:
    policy = sidecar(fallback_target=own)
    found = way([], policy=policy, hints={"fallback_target": hint})
    plain = way([], policy=policy)
    assert (found.stations, found.end) == (plain.stations, plain.end)
    says = policy.describe("callback_policy.fallback_target", "developer")
    assert found.notes == (f"the hint fallback_target {hint!r} has no effect: {says}",)


@pytest.mark.parametrize("own", ["user", "fail", "expert"])
def test_a_hint_may_always_narrow_to_fail(own: str) -> None:
    found = way([], policy=sidecar(fallback_target=own), hints={"fallback_target": "fail"})
    assert (asked(found), found.end) == ([], "fail")


def test_over_a_sidecars_user_a_hint_may_name_an_agent() -> None:
    found = way([], policy=sidecar(fallback_target="user"), hints={"fallback_target": "expert"})
    assert (asked(found), found.end) == (["expert"], "nobody")


@pytest.mark.parametrize(
    ("hint", "names", "end"), [("user", [], "person"), ("expert", ["expert"], "nobody"), ("fail", [], "fail")]
)
def test_a_key_the_sidecar_does_not_have_leaves_the_hint_free(hint: str, names: list[str], end: str) -> None:
    policy = from_file('{"can_query_caller": true, "can_use_host_interaction": true}')
    found = way([], policy=policy, hints={"fallback_target": hint, "max_bubble_hops": 7})
    assert (asked(found), found.end, found.notes) == (names, end, ())


def test_a_hint_of_user_gives_no_right() -> None:
    found = way([], policy=sidecar(can_use_host_interaction=False), hints={"fallback_target": "user"})
    assert found.end == "nobody"


@pytest.mark.parametrize("kind", ["callback_to_caller", "request_resolution"])
def test_without_can_query_caller_no_agent_is_asked(kind: Kind) -> None:
    found = way(CLIMB, kind=kind, policy=sidecar(can_query_caller=False))
    assert asked(found) == []
    assert reason(found, "manager") == "the agent developer has can_query_caller: false"


def test_what_is_not_allowed_goes_to_what_is_left() -> None:
    assert way(CLIMB, policy=sidecar(can_query_caller=False)).end == "person"
    assert asked(way(CLIMB, policy=sidecar(can_use_host_interaction=False))) == ["controller", "manager", "lead"]
    hinted = way([], policy=sidecar(can_query_caller=False), hints={"fallback_target": "expert"})
    assert (asked(hinted), hinted.end) == ([], "person")


def test_where_nothing_is_left_the_route_names_the_keys_that_would_have_allowed_it() -> None:
    found = way(CLIMB, policy=from_file('{"can_query_caller": false}'))
    assert found.allow == (
        "can_query_caller: true in developer.json",
        "can_use_host_interaction: true in developer.json",
    )
    assert found.why == "developer.json has no can_use_host_interaction, which means false"


def test_resolvable_by_does_not_bar_the_person_as_fallback() -> None:
    assert way(CLIMB, hints={"resolvable_by": ["nobody-here"]}).end == "person"


def test_request_resolution_and_a_fallback_of_fail_bar_the_person() -> None:
    assert way([], kind="request_resolution").end == "nobody"
    assert way([], hints={"fallback_target": "fail"}).end == "fail"
    assert way([], policy=sidecar(fallback_target="fail")).end == "fail"


def test_a_fallback_of_fail_does_not_bar_the_person_who_is_asked_straight() -> None:
    assert way([], kind="request_user_input", policy=sidecar(fallback_target="fail")).end == "person"


# --- the same agent twice, rights then and now ------------------------------------------


def test_two_sessions_of_one_agent_are_two_to_ask_and_one_session_is_one() -> None:
    twice = [Ancestor("planner", session_id="inner"), Ancestor("planner", session_id="outer")]
    assert [station.session_id for station in way(twice).asks] == ["inner", "outer"]
    assert len(way([twice[0], twice[0]]).asks) == 1
    assert len(way([Ancestor("planner"), Ancestor("planner")]).asks) == 1


def test_an_agent_may_answer_only_if_it_might_be_asked_then_and_now() -> None:
    then = way(CLIMB)
    now = way(CLIMB, policy=sidecar(can_query_caller=False))
    assert refusal(then, then, "manager") == ""
    assert refusal(then, now, "manager") == (
        "manager may not be asked now: the agent developer has can_query_caller: false"
    )
    assert "when it was raised" in refusal(now, then, "manager")
    assert "not on the route" in refusal(then, then, "stranger")


# --- hints and digests ------------------------------------------------------------------


@pytest.mark.parametrize(
    "hints",
    [
        {"max_bubble_hops": "2"},
        {"max_bubble_hops": True},
        {"max_bubble_hops": -1},
        {"fallback_target": ""},
        {"fallback_target": 1},
        {"passthrough_agents": "lead"},
        {"resolvable_by": "lead"},
        {"resolvable_by": [1]},
        {"passthrough_child_callbacks": "false"},
    ],
)
def test_a_hint_of_the_wrong_type_is_refused_by_name(hints: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(hints))):
        Hints.build(**hints)


def test_a_questions_digest_covers_what_was_asked_and_a_key_stands_for_all_of_it() -> None:
    base = question_digest("where?", "query", "callback_to_caller", ["a", "b"], {"type": "string"})
    assert base == question_digest("where?", "query", "callback_to_caller", ("a", "b"), {"type": "string"})
    others = [
        question_digest("who?", "query", "callback_to_caller", ["a", "b"], {"type": "string"}),
        question_digest("where?", "error", "callback_to_caller", ["a", "b"], {"type": "string"}),
        question_digest("where?", "query", "request_user_input", ["a", "b"], {"type": "string"}),
        question_digest("where?", "query", "callback_to_caller", ["a"], {"type": "string"}),
        question_digest("where?", "query", "callback_to_caller", ["a", "b"]),
        question_digest("where?", "query", "callback_to_caller", key="k"),
    ]
    assert len({base, *others}) == 7
    assert question_digest("x", "error", "callback", key="k") == others[-1]


def test_an_approvals_digest_is_that_of_tool_and_arguments_in_any_order() -> None:
    assert approval_digest("pay", {"a": 1, "b": 2}) == approval_digest("pay", {"b": 2, "a": 1})
    assert (
        len({approval_digest("pay", {"a": 1}), approval_digest("pay", {"a": 2}), approval_digest("x", {"a": 1})})
        == 3
    )


def test_the_route_is_a_pure_function() -> None:
    callback = RouteQuery("developer", sidecar())
    assert route(callback, CLIMB) == route(callback, tuple(CLIMB))
