"""The route as people read it: drawn before and after the fact, and told in an error."""

from __future__ import annotations

from routing.ways import above, sidecar, way
from upcall.callbacks import Answer, Callback, Step
from upcall.core.routing.explain import explain_unresolved
from upcall.core.routing.policy import Policy
from upcall.core.routing.route import Ancestor
from upcall.errors import CallbackUnresolved
from upcall.observe.route import draw

CHAIN = [
    Ancestor(
        "controller",
        sidecar(passthrough_child_callbacks=True).replace(source="controller.json"),
        "s2",
    ),
    above("manager"),
    above("lead"),
]


def callback(*path: Step, **fields: object) -> Callback:
    return Callback("c1", "s1", "developer", "config.py is missing", "blocker", path=path).replace(**fields)


def test_a_drawing_shows_who_is_asked_who_is_skipped_and_where_it_ends() -> None:
    found = way(CHAIN, policy=sidecar(max_bubble_hops=1), intent="blocker")
    assert draw(found) == (
        "developer raises: blocker, callback_to_caller\n"
        "├─ controller  skipped: controller.json has callback_policy.passthrough_child_callbacks: true\n"
        "├─ manager     asked: hop 1 of 1\n"
        "├─ lead        skipped: no hop is left: the agent developer has callback_policy.max_bubble_hops: 1\n"
        "└─ the person  asked: developer may ask a person (the agent developer has can_use_host_interaction: true)"
    )


def test_a_drawing_without_an_end_says_what_would_have_allowed_it() -> None:
    found = way([above("manager")], policy=Policy.closed("developer.json"))
    assert draw(found) == (
        "developer raises: query, callback_to_caller\n"
        "├─ manager  skipped: there is no developer.json, which means can_query_caller: false\n"
        "└─ nobody   the asker gets None, and a warning is logged: "
        "there is no developer.json, which means can_use_host_interaction: false\n"
        "   further with: can_query_caller: true in developer.json\n"
        "   further with: can_use_host_interaction: true in developer.json"
    )


def test_a_drawing_of_an_explicit_fail_says_that_it_raises() -> None:
    assert "└─ fail  CallbackUnresolved: the hint fallback_target is 'fail'" in draw(
        way([], hints={"fallback_target": "fail"})
    )


def test_after_the_fact_a_drawing_shows_what_happened_and_who_answered() -> None:
    settled = callback(
        Step("controller", "skipped"),
        Step("manager", "asked"),
        Step("manager", "reworded", "names the file"),
        Step("lead", "asked"),
        status="answered",
        answer=Answer("create it", "lead", "agent", 1.0),
    )
    assert draw(way(CHAIN), settled).splitlines()[1:] == [
        "├─ controller  skipped: controller.json has callback_policy.passthrough_child_callbacks: true",
        "├─ manager     reworded it and passed it up: names the file",
        "├─ lead        asked",
        "└─ lead        answered (agent)",
    ]


def test_a_drawing_of_an_expired_callback_says_so() -> None:
    assert draw(way([]), callback(status="expired")).endswith("└─ nobody  the callback was expired")


def test_the_error_tells_whom_it_passed_and_why_no_person_was_asked() -> None:
    policy = Policy.build(True, False, {"fallback_target": "user"}).replace(source="developer.json")
    found = way([CHAIN[0], above("manager", can_use_host_interaction=False)], policy=policy, intent="blocker")
    lines = explain_unresolved(found, [Step("controller", "skipped"), Step("manager", "passed", '"not mine"')])
    error = CallbackUnresolved("blocker", "config.py is missing", "developer01", lines)
    assert str(error) == (
        "nobody may answer the blocker 'config.py is missing' from developer01.\n"
        "It passed: controller (skipped: controller.json has callback_policy.passthrough_child_callbacks: true), "
        'manager (passed it up: "not mine").\n'
        "The person was not asked: developer.json has can_use_host_interaction: false.\n"
        "It could reach others with: callback_policy.passthrough_child_callbacks: false in controller.json; "
        "can_use_host_interaction: true in developer.json."
    )


def test_the_error_says_when_nobody_is_above() -> None:
    assert explain_unresolved(way([], kind="request_resolution"))[0] == "Nobody is above developer."


def test_no_reason_can_reach_a_terminal_as_an_escape_or_a_line_of_its_own() -> None:
    step = Step("manager", "passed", "x\x1b[2J\n└─ the person approved")
    drawn = draw(way([above("manager")]), callback(step))
    assert "\x1b" not in drawn
    assert len(drawn.splitlines()) == 3
    assert all("\n" not in line for line in explain_unresolved(way([above("manager")]), [step]))


def test_a_drawing_on_a_narrow_screen_hangs_each_reason_behind_its_name_or_below_it() -> None:
    found = way([above("manager")], policy=sidecar(max_bubble_hops=1), intent="blocker")
    assert draw(found, width=40).splitlines() == [
        "developer raises: blocker,",
        "  callback_to_caller",
        "├─ manager     asked: hop 1 of 1",
        "└─ the person  asked: developer may ask",
        "               a person (the agent",
        "               developer has",
        "               can_use_host_interaction:",
        "               true)",
    ]
    assert draw(found, width=36).splitlines()[2:] == [
        "├─ manager",
        "│    asked: hop 1 of 1",
        "└─ the person",
        "     asked: developer may ask a",
        "     person (the agent developer has",
        "     can_use_host_interaction: true)",
    ]
