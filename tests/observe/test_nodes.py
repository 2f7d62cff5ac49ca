"""The nodes of run trees that were really run, and the laws of the fold."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observe.recorded import RECORDED, SECRET, recorded
from upcall import events
from upcall.events import AnyEvent, HooksPassed, stamp
from upcall.messages import Call, Message, Result, Text, Usage
from upcall.observe import BriefNode, Labels, Node, Redactor, RunTreeNodes, apply_changes
from upcall.observe.node_table import MUTABLE
from upcall.store.rules import without_body

log_of = cache(recorded)


def folded(log: list[AnyEvent], **options: Any) -> RunTreeNodes:
    nodes = RunTreeNodes(**options)
    for event in log:
        nodes.apply(event)
    return nodes


def tree(log: list[AnyEvent], **options: Any) -> dict[str, Node]:
    return {node.id: node for node in folded(log, **options).nodes()}


def below(nodes: dict[str, Node], parent: str) -> list[str]:
    return [node.id for node in nodes.values() if node.parent == parent]


# --- what the tree says -------------------------------------------------------------------


def test_parallel_calls_of_one_tool_that_finish_in_reverse_order_keep_their_own_ends() -> None:
    nodes = tree(log_of("parallel_calls"))

    for number, (kind, about) in enumerate(
        [
            ("failed", "fetch failed: LookupError: page 0 is not there"),
            ("complete", "page 1"),
            ("complete", "page 2"),
        ]
    ):
        call = f"run/r1c{number}"
        assert nodes[call].about == f"page={number}"
        assert below(nodes, call) == [f"{call}:request", f"{call}:{kind}", f"{call}:response"]
        assert nodes[f"{call}:{kind}"].about == nodes[f"{call}:response"].about == about
    ends = [nodes[f"run/r1c{number}"].changed for number in range(3)]
    assert ends == sorted(ends, reverse=True)


def test_a_call_has_the_roles_of_the_document_from_its_start_to_its_end() -> None:
    log = log_of("parallel_calls")
    responded = next(event for event in log if event.type == "responded")
    ended = next(event for event in log if event.type == "tool_ended")

    started = {node.id: node.role for node in folded(log).at(responded.pos)}
    assert (started["run/r1c2"], started["run/r1c2:request"]) == ("System", "JsonRequest")
    assert "run/r1c2:complete" not in started
    completed = {node.id: node for node in folded(log).at(ended.pos)}
    assert [completed[f"run/r1c2:{end}"].role for end in ("complete", "response")] == ["Assistant", "JsonResponse"]
    assert completed["run/r1c2"].status == "done"
    assert completed["run/r1c0"].status == "running"


def test_a_team_is_drawn_with_its_plan_steps_children_questions_hops_side_turns_and_answers() -> None:
    nodes = tree(log_of("team"))
    questions = [node for node in nodes.values() if node.kind == "callback"]

    assert below(nodes, "run/t1") == [
        "run/t1:step:plan1.1", "run/p6", "run/t1:step:developer01", "run/t1:step:developer02",
        "run/t1:step:reviewer", "run/t1:complete",
    ]  # fmt: skip
    assert below(nodes, "run/t1:step:developer02") == ["run~developer02"]
    assert [(one.parent, one.about) for one in questions] == [
        ("run~developer01/r1c0", "settings.ini is missing. Make one? → manager: yes"),
        ("run~developer02/r1c0.2", "Which colour? → user: green"),
    ]
    colour = questions[1].id
    assert below(nodes, colour) == [f"{colour}:h1", f"{colour}:h2", f"{colour}:a"]
    assert nodes[f"{colour}:h1"].about == "passed it up: a matter of taste"
    (side,) = below(nodes, f"{colour}:h1")
    assert (nodes[side].kind, nodes[side].label, nodes[side].about) == ("side_turn", "manager", "Which colour?")
    assert below(nodes, "run~developer02/r1c0") == [
        f"run~developer02/r1c0{end}" for end in (":request", ".1", ".2", ".3", ":complete", ":response")
    ]


def test_whatever_waits_for_an_answer_waits_up_to_the_root_and_what_runs_beside_it_does_not() -> None:
    log = log_of("delegated")
    nodes = folded(log)
    raised = next(event for event in log if event.type == "callback_raised")
    ended = next(event for event in log if event.type == "tool_ended" and event.session == "run")

    while_the_other_runs = {node.id: node.status for node in nodes.at(raised.pos)}
    assert while_the_other_runs["run~r1c0/r1c0"] == while_the_other_runs["run~r1c0"] == "waiting"
    assert while_the_other_runs["run/r1c0"] == "waiting"
    assert while_the_other_runs["run"] == while_the_other_runs["run/t1"] == "running"
    after = {node.id: node.status for node in nodes.at(ended.pos)}
    assert after["run/r1c1"] == "failed"
    assert after["run"] == after["run/t1"] == "waiting"
    assert {node.status for node in nodes.nodes()} <= {"done", "failed", "answered", "passed"}


def test_the_same_step_of_two_turns_has_two_nodes_and_its_session_one() -> None:
    nodes = tree(log_of("chained"))

    assert below(nodes, "run/t2") == ["run/t2:step:1.a", "run/t2:step:2.b", "run/t2:complete"]
    assert below(nodes, "run~1.a") == ["run~1.a/t1", "run~1.a/t2"]
    assert nodes["run/t2:step:2.b"].about == "b(a(two))"


def test_an_approval_is_below_its_call_and_says_what_was_decided() -> None:
    nodes = tree(log_of("approvals"))
    first, second = [node for node in nodes.values() if node.kind == "callback"]

    assert (first.parent, first.about) == ("run/r1c0", "Delete old → user: approved with other arguments")
    assert (second.parent, second.about) == ("run/r1c1", "Delete all → user: rejected: not everything")
    assert nodes["run/r1c0:request"].seq == next(
        event.seq for event in log_of("approvals") if event.type == "tool_started"
    )


def test_what_a_hook_replaced_is_never_in_the_tree_and_what_it_started_is() -> None:
    nodes = tree(log_of("hooked"))

    assert nodes["run"].about == nodes["run/t1"].about == "Look, please"
    assert nodes["run/m2:response"].about == "I replaced this"
    assert nodes["run/r1c1:complete"].about == "hidden by a hook"
    assert nodes["run/r1c2:complete"].about == "a hook gave this"
    assert [nodes[one].kind for one in below(nodes, "run/n:end_turn.1.0")] == ["session", "side_turn"]
    assert nodes["run/t1:complete"].about == "I replaced this (I replaced this)"


def test_compactions_summaries_steering_failures_and_cancels_are_nodes() -> None:
    compacted, parked = tree(log_of("compacted")), tree(log_of("parked"))

    assert [node.id for node in compacted.values() if node.kind == "compaction"] == ["run/c10", "run/c18"]
    assert (compacted["run/m3.16"].label, compacted["run/m3"].label) == ("Summary", "script")
    assert (parked["buy/s21"].kind, parked["buy/s21"].about, parked["buy/s21"].status) == (
        "steer",
        "quickly",
        "done",
    )
    assert parked["buy/m3:failed"].about == "no more"
    assert parked["buy/t2:failed"].about == "RuntimeError: no more"
    assert parked["buy/n30"].about == "somebody cancelled the turn: enough"
    assert (parked["buy/r4c0"].status, parked["buy"].status) == ("cancelled", "cancelled")


def test_tokens_and_costs_are_on_model_calls_and_turns_and_an_unknown_price_is_not_zero() -> None:
    log = _stamped(
        events.SessionStarted("a"),
        events.TurnStarted(1, Message("user", (Text("hi"),))),
        events.ModelStarted(1),
        events.Responded(1, Message("assistant", (Text("one"),)), Usage(10, 5, 4, 3), model="m"),
        events.ModelStarted(2),
        events.Responded(2, Message("assistant", (Text("two"),)), Usage(1, 2, 0), model="m"),
        events.TurnEnded(1, "done"),
    )

    def cost(model: str, usage: Usage) -> float | None:
        return usage.total / 10 if model == "m" else None

    priced = tree(log, cost=cost)
    plain = tree(log)
    half = folded([event.replace(model="x") if event.seq == 6 else event for event in log], cost=cost)

    assert (half.field("run/m1", "cost"), half.field("run/m2", "cost")) == (1.5, None)
    assert (half.field("run/t1", "cost"), half.unpriced("run")) == (None, "x")  # a part of a sum is not the sum
    assert priced["run/m1"].usage == {"input": 10, "output": 5, "cached": 4, "cache_written": 3}
    assert (priced["run/m1"].cost, priced["run/t1"].cost) == (1.5, 1.8)
    assert priced["run/t1"].usage == {"input": 11, "output": 7, "cached": 4, "cache_written": 3}
    assert plain["run/m1"].cost is plain["run/t1"].cost is None


def test_lines_are_redacted_and_labels_are_those_of_the_mapping() -> None:
    log = _stamped(
        events.SessionStarted("a"),
        events.TurnStarted(1, Message("user", (Text(f"\n\nuse {SECRET}\nand more"),))),
        events.ModelStarted(1),
        events.Responded(
            1,
            Message(
                "assistant",
                (
                    Call("r1c0", "create_task", {"password": "hunter2", "task_description": "Build it"}),
                    Call("r1c1", "login", {"password": "hunter2", "user": "ada", "n": 1}),
                ),
            ),
        ),
        events.ToolEnded("r1c0", Result("r1c0", "\x1b[31mit said sk-proj-\u200babcDEF0123456789 twice\x1b[0m")),
    )

    nodes = tree(log, labels=Labels().adding({"login": "Sign in"}), redactor=Redactor())

    assert nodes["run/t1"].about == "use ⟦hidden 24 #1⟧"
    assert (nodes["run/r1c0"].label, nodes["run/r1c0"].about) == ("Task", "Build it")
    assert (nodes["run/r1c1"].label, nodes["run/r1c1"].about) == (
        "Sign in",
        'password="⟦hidden 7 #1⟧" user="ada" n=1',
    )
    assert nodes["run/r1c0:complete"].about == "it said ⟦hidden 24 #1⟧ twice"


# --- laws -----------------------------------------------------------------------------------


def _stamped(*log: AnyEvent, session: str = "run") -> list[AnyEvent]:
    return [stamp(event, event.session or session, n, n, 100.0 + n) for n, event in enumerate(log, 1)]


def _check_laws(log: list[AnyEvent]) -> None:
    whole, changes = RunTreeNodes(), list[Any]()
    prefixes: list[list[Node]] = [[]]
    for event in log:
        changes.append(whole.apply(event))
        prefixes.append(whole.nodes())
    final = whole.nodes()
    positions = [0, *(event.pos for event in log)]
    for place, position in enumerate(positions):
        after = list(itertools.chain.from_iterable(changes[place:]))
        assert whole.at(position) == prefixes[place]
        assert apply_changes(prefixes[place], after) == final
        assert apply_changes(prefixes[place], whole.since(position)) == final
    ids = [node.id for node in final]
    assert len(ids) == len(set(ids))
    assert all(node.parent is None or node.parent in ids for node in final)
    assert all(len(node.about) <= 200 and "\n" not in node.about for node in final)
    encoded = msgspec.json.encode(final)
    assert msgspec.json.decode(encoded, type=list[Node]) == final
    brief = msgspec.json.decode(msgspec.json.encode(whole.brief_nodes()), type=list[BriefNode])
    assert [_whole_node(node) for node in brief] == final


def _whole_node(brief: BriefNode) -> Node:
    """A brief node with what its history does not repeat: the values that never changed."""
    fields: dict[str, Any] = msgspec.structs.asdict(brief)
    first, *later = brief.history or ((brief.pos, brief.start, {}),)
    values = {**{name: fields[name] for name in MUTABLE}, **first[2]}
    fields["history"] = ((first[0], first[1], values), *later)
    return Node(**fields)


@pytest.mark.parametrize("name", RECORDED)
def test_the_nodes_at_a_position_and_the_changes_after_it_are_the_nodes_at_every_later_one(name: str) -> None:
    _check_laws(log_of(name))


@pytest.mark.parametrize("name", RECORDED)
def test_a_body_that_is_dropped_later_changes_no_tree(name: str) -> None:
    log = log_of(name)
    replaced = {(event.session, event.replaces) for event in log if isinstance(event, HooksPassed)}
    filled = [_with_body(event) if (event.session, event.seq) in replaced else event for event in log]
    dropped = [without_body(event) if (event.session, event.seq) in replaced else event for event in filled]

    assert folded(dropped).nodes() == folded(filled).nodes()


def _with_body(event: AnyEvent) -> AnyEvent:
    match event:
        case events.ToolEnded(dropped=True):
            return event.replace(result=Result(event.call_id, "dropped later", is_error=True), dropped=False)
        case events.Responded() | events.TurnStarted() if not event.message.parts:
            return event.replace(message=Message(event.message.role, (Text("dropped later"),)))
        case _:
            return event


CALLS = st.sampled_from(["r1c0", "r1c1", "r1c0.1", "x"])
QUESTIONS = st.sampled_from(["q1", "q2", "nope"])
TEXTS = st.sampled_from(["", "hello", "two\nlines", SECRET, "\x1b[31mred", "x" * 500])


def message_of(text: str, calls: list[str]) -> Message:
    return Message("assistant", (Text(text), *(Call(call, "fetch", {"page": text}) for call in calls)))


MESSAGES = st.builds(message_of, TEXTS, st.lists(CALLS, max_size=2, unique=True))
RESULTS = st.builds(Result, CALLS, TEXTS, st.booleans())
ENDS: Any = st.sampled_from(["done", "cancelled", "limit", "failed"])
HOWS: Any = st.sampled_from(["ran", "refused", "cancelled", "interrupted", "hook"])
AGENTS = st.just("a")
POINTS = st.sampled_from(["pre_request", "post_response", "after_tool", "end_turn"])
EVENTS: st.SearchStrategy[AnyEvent] = st.one_of(
    st.builds(events.SessionStarted, st.just("a"), parent=st.sampled_from(["", "run", "run~r1c0"]), origin=CALLS),
    st.builds(events.SessionStarted, AGENTS, parent=st.just("run"), origin=QUESTIONS, kind=st.just("side_turn")),
    st.builds(events.TurnStarted, st.integers(1, 3), MESSAGES),
    st.builds(events.TurnResumed, st.integers(1, 3)),
    st.builds(events.TurnEnded, st.integers(1, 3), ENDS, error=TEXTS),
    st.builds(events.ModelStarted, st.integers(1, 3)),
    st.builds(events.Responded, st.integers(1, 3), MESSAGES, pending=st.booleans()),
    st.builds(events.ModelFailed, st.integers(1, 3), TEXTS),
    st.builds(events.HooksPassed, POINTS, CALLS, message=st.none() | MESSAGES, result=st.none() | RESULTS),
    st.builds(events.HooksPassed, st.just("end_turn"), text=TEXTS),
    st.builds(events.ToolStarted, CALLS, st.just("fetch"), args=st.none() | st.just({"page": 2})),
    st.builds(events.ToolEnded, CALLS, RESULTS, HOWS, st.booleans()),
    st.builds(events.ToolTriedAgain, CALLS, st.integers(1, 3)),
    st.builds(events.InnerCalled, CALLS, st.builds(Call, CALLS, st.just("fetch"), st.just({}))),
    st.builds(
        events.CallbackRaised, QUESTIONS, CALLS, st.just("a"), TEXTS, st.just("query"), st.just("k"), st.just({}),
        st.just("d"), gate=st.booleans(),
    ),
    st.builds(events.CallbackAsked, QUESTIONS, st.sampled_from(["user", "boss"])),
    st.builds(events.CallbackPassed, QUESTIONS, st.just("boss"), TEXTS, skipped=st.booleans()),
    st.builds(events.CallbackAnswered, QUESTIONS, TEXTS),
    st.builds(events.CallbackDeclined, QUESTIONS, TEXTS),
    st.builds(events.CallbackExpired, QUESTIONS),
    st.builds(events.CallbackWithdrawn, QUESTIONS, TEXTS),
    st.builds(events.SessionAdopted, st.just("ada"), st.lists(QUESTIONS, max_size=2).map(tuple)),
    st.builds(events.StepStarted, st.just("one"), st.just("a"), st.sampled_from(["run~r1c0", "run~one"])),
    st.builds(events.StepEnded, st.just("one"), ENDS, TEXTS),
    st.builds(events.Planned, st.just("plan"), st.just([1, 2])),
    st.builds(events.Steered, TEXTS),
    st.builds(events.CancelRequested, TEXTS),
    st.builds(events.Compacted, st.just(())),
)  # fmt: skip
LOGS = st.lists(st.tuples(st.sampled_from(["run", "run~r1c0", "run~q1"]), EVENTS), max_size=25)


@pytest.mark.slow
@settings(max_examples=200)
@given(LOGS)
def test_the_laws_hold_for_logs_that_nobody_would_write(log: list[tuple[str, AnyEvent]]) -> None:
    _check_laws([stamp(event.replace(), at, n, n, 100.0 + n) for n, (at, event) in enumerate(log, 1)])
