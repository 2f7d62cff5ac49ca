"""The sidecar: what it holds, what it takes, and what it says about mistakes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcall.agentfiles.sidecar import Problem, key_lines, read_sidecar
from upcall.core.routing.policy import KEYS, Policy, name_problem
from upcall.errors import BadAgent

FILE = "developer.json"
WHOLE = """{
  "can_query_caller": true,
  "can_use_host_interaction": true,
  "callback_policy": {
    "passthrough_child_callbacks": false,
    "max_bubble_hops": 2,
    "fallback_target": "user",
    "may_approve": ["deploy"],
    "timeout": 60.5,
    "side_turn_model_calls": 3
  }
}"""


def read(text: str | bytes) -> tuple[Policy | None, list[Problem]]:
    return read_sidecar(text.encode() if isinstance(text, str) else text, FILE)


def good(text: str | bytes) -> Policy:
    policy, problems = read(text)
    assert policy is not None
    assert not problems
    return policy


def test_every_key_of_a_sidecar_is_read() -> None:
    policy = good(WHOLE)
    under = policy.callback_policy
    assert (policy.can_query_caller, policy.can_use_host_interaction) == (True, True)
    assert (under.passthrough_child_callbacks, under.max_bubble_hops, under.fallback_target) == (False, 2, "user")
    assert (under.may_approve, under.timeout, under.side_turn_model_calls) == (("deploy",), 60.5, 3)
    assert sorted(policy.given) == sorted(KEYS)


def test_in_python_an_agent_may_ask_its_caller_and_the_person() -> None:
    policy = Policy.build()
    assert policy.can_query_caller
    assert policy.can_use_host_interaction
    assert policy == Policy(given=("can_query_caller", "can_use_host_interaction"))


def test_in_a_sidecar_file_a_missing_right_is_false() -> None:
    policy = good("{}")
    assert policy.can_query_caller is False
    assert policy.can_use_host_interaction is False
    assert not policy.has("can_query_caller")


def test_a_policy_remembers_which_keys_were_absent() -> None:
    null = good('{"callback_policy": {"max_bubble_hops": null}}')
    assert null.has("callback_policy.max_bubble_hops")
    assert not null.has("callback_policy.fallback_target")
    assert Policy.build(callback_policy={"timeout": 5}).has("callback_policy.timeout")


def test_the_text_false_is_a_mistake_and_not_a_truth() -> None:
    policy, problems = read('{"can_query_caller": "false"}')
    assert policy is None
    assert problems == [Problem(FILE, 1, "can_query_caller", 'must be true or false, not "false"')]
    with pytest.raises(BadAgent, match='can_query_caller: must be true or false, not "false"'):
        Policy.build(can_query_caller="false", agent="developer")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("can_query_caller", 1, "true or false"),
        ("can_query_caller", None, "true or false"),
        ("can_use_host_interaction", 0, "true or false"),
        ("callback_policy", [], "an object of keys"),
        ("callback_policy", None, "an object of keys"),
        ("callback_policy.passthrough_child_callbacks", "no", "true or false"),
        ("callback_policy.max_bubble_hops", -1, "a whole number of 0 or more, or null"),
        ("callback_policy.max_bubble_hops", True, "a whole number of 0 or more, or null"),
        ("callback_policy.max_bubble_hops", 2.0, "a whole number of 0 or more, or null"),
        ("callback_policy.fallback_target", None, '"user", "fail" or an agent'),
        ("callback_policy.fallback_target", "", '"user", "fail" or an agent'),
        ("callback_policy.fallback_target", "two words", '"user", "fail" or an agent'),
        ("callback_policy.may_approve", "deploy", "a list of tools' names"),
        ("callback_policy.may_approve", ["deploy", 1], "a list of tools' names"),
        ("callback_policy.timeout", 0, "seconds above 0"),
        ("callback_policy.timeout", True, "seconds above 0"),
        ("callback_policy.timeout", 10**400, "seconds above 0"),
        ("callback_policy.side_turn_model_calls", 0, "a whole number of 1 or more"),
    ],
)
def test_a_wrong_type_is_an_error_that_names_key_and_allowed_values(key: str, value: Any, allowed: str) -> None:
    top, _, under = key.partition(".")
    keys: dict[str, Any] = {top: {under: value}} if under else {top: value}
    policy, problems = read(json.dumps(keys))
    assert policy is None
    assert [problem.key for problem in problems] == [key]
    assert allowed in problems[0].text
    if value is not None or under:
        with pytest.raises(BadAgent, match=key):
            Policy.build(**keys)


def test_an_unknown_key_is_an_error_that_names_the_allowed_ones() -> None:
    _, problems = read('{"can_query_callers": true, "callback_policy": {"hops": 1}}')
    assert [problem.key for problem in problems] == ["can_query_callers", "callback_policy.hops"]
    assert "can_query_caller, can_use_host_interaction, callback_policy" in problems[0].text
    assert "max_bubble_hops, fallback_target, may_approve" in problems[1].text


def test_a_key_on_the_wrong_level_is_told_where_it_belongs() -> None:
    _, problems = read('{"max_bubble_hops": 1, "callback_policy": {"can_query_caller": true}}')
    assert problems[0].text.endswith("It belongs under callback_policy.")
    assert problems[1].text.endswith("It belongs beside callback_policy, not under it.")


def test_every_mistake_is_found_at_once_with_its_line() -> None:
    text = (
        '{\n  "can_query_caller": "yes",\n  "oops": [{"deep": "{"}],\n  "callback_policy": {\n'
        '    "timeout": -1,\n    "max_bubble_hops": 1, "max_bubble_hops": 2\n  }\n}'
    )
    _, problems = read(text.replace("\n", "\r\n"))
    assert [(problem.line, problem.key) for problem in problems] == [
        (2, "can_query_caller"),
        (3, "oops"),
        (5, "callback_policy.timeout"),
        (6, "callback_policy.max_bubble_hops"),
    ]
    assert problems[3].text == "is written twice"


@pytest.mark.parametrize(
    ("raw", "line", "text"),
    [
        (b'{\n"can_query_caller": tru\n}', 2, "this is not JSON"),
        (b"", 1, "this is not JSON"),
        (b"[1]", 1, "must be an object with the keys can_query_caller"),
        (b'{"a": NaN}', 1, "NaN is not a JSON value"),
        (b"[" * 100_000, 1, "this JSON can't be read"),
        (b'{"timeout": ' + b"1" * 5000 + b"}", 1, "this JSON can't be read"),
        (b'{\n"name": "\xff"}', 2, "this is not UTF-8 text"),
    ],
)
def test_a_text_that_is_not_a_json_object_is_one_error_with_its_line(raw: bytes, line: int, text: str) -> None:
    policy, problems = read(raw)
    assert policy is None
    assert [problem.line for problem in problems] == [line]
    assert text in problems[0].text


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ('{\n  "can_query_caller": True\n}', (2, 23), "write true, not True"),
        ('{"callback_policy": {"timeout": None}}', (1, 33), "write null, not None"),
        ('{\n  "can_query_caller": true,\n}', (3, 1), "take out the comma before }"),
        ('{"callback_policy": {"may_approve": ["a",]}}', (1, 42), "take out the comma before ]"),
        ('{\n  "can_query_caller": true\n  "can_use', (3, 3), "a comma is missing before this"),
        ("{'can_query_caller': true}", (1, 2), "write keys and texts in double quotes"),
        ("{can_query_caller: true}", (1, 2), "write keys and texts in double quotes"),
        ('{"callback_policy": {"fallback_target": “user”}}', (1, 41), "write keys and texts in double quotes"),
        ('{"can_query_caller": true} // it may', (1, 28), "take out the comment; JSON has none"),
        ('{\n  # it may\n  "can_query_caller": true}', (2, 3), "take out the comment; JSON has none"),
        ('{"can_query_caller" = true}', (1, 21), "a colon is missing before this"),
        ('{"can_query_caller": yes}', (1, 22), "'yes}' is not a valid value"),
        ('{"can_query_caller": true', (1, 26), "it ends too early; close all open brackets and quotes"),
        ("", (1, 1), "it is empty; write at least {}"),
    ],
)
def test_a_text_that_is_not_json_says_where_and_what_to_write(text: str, where: tuple[int, int], says: str) -> None:
    _, problems = read(text)
    line, column = where
    assert [(problem.line, problem.text) for problem in problems] == [
        (line, f"this is not JSON, at column {column}: {says}")
    ]


def test_a_byte_order_mark_and_windows_line_ends_are_read() -> None:
    assert good(b"\xef\xbb\xbf" + WHOLE.replace("\n", "\r\n").encode()) == good(WHOLE)


def test_a_python_mistake_names_the_agent_and_every_key() -> None:
    with pytest.raises(BadAgent) as caught:
        Policy.build(can_use_host_interaction="no", callback_policy={"hops": 1, "timeout": "soon"}, agent="lead")
    assert caught.value.agent == "lead"
    for key in ("can_use_host_interaction", "callback_policy.hops", "callback_policy.timeout"):
        assert key in str(caught.value)


def test_a_policy_is_a_frozen_value_that_survives_json() -> None:
    policy = good(WHOLE)
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy
    with pytest.raises(AttributeError):
        setattr(policy, "can_query_caller", False)  # noqa: B010  pyright would refuse the plain assignment
    hash(policy)


@pytest.mark.parametrize("name", ["user", "fail", "", "two words", "a,b", "../x", "-x", "a\nb", "x" * 101])
def test_no_agent_may_have_a_name_that_routes_could_misread(name: str) -> None:
    assert name_problem(name)


@pytest.mark.parametrize("name", ["developer", "developer01", "qa-lead", "v2.1", "prüfer", "User", "failure"])
def test_plain_names_are_names(name: str) -> None:
    assert not name_problem(name)


def test_a_sidecar_says_where_a_key_is_and_what_its_absence_means() -> None:
    key = "can_query_caller"
    assert good('{"can_query_caller": false}').describe(key, "d") == f"{FILE} has {key}: false"
    assert good("{}").describe(key, "d") == f"{FILE} has no {key}, which means false"
    assert Policy.closed(FILE).describe(key, "d") == f"there is no {FILE}, which means {key}: false"
    assert Policy.build().describe(key, "d") == f"the agent d has {key}: true"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(KEYS), inner),
    max_leaves=10,
)


@pytest.mark.slow
@given(JSON, st.sampled_from([None, 2]))
def test_any_json_is_read_or_refused_and_never_crashes(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=indent is None)
    policy, problems = read(text.encode("utf-8", "surrogatepass"))
    assert (policy is None) == bool(problems)
    key_lines(text)


@given(st.binary())
def test_any_bytes_are_read_or_refused_and_never_crash(raw: bytes) -> None:
    policy, problems = read(raw)
    assert (policy is None) == bool(problems)
