"""Intents: a typo in one that must be answered fails closed, every other word is kept and treated as a query."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcall.callbacks import INTENTS, MUST_ANSWER, PERSON_ONLY, meant_intent, normal_kind
from upcall.core.routing.route import Route, RouteQuery, route, when_unresolved
from upcall.observe.route import draw

LETTERS = string.ascii_lowercase + "_é"


def way(intent: str, required: bool | None = None) -> Route:
    return route(RouteQuery("developer", intent=intent, person=False, required=required), [])


def misses(word: str) -> set[str]:
    """Every word of five letters or more that is one away: missing, added, changed, or two neighbours swapped."""
    found = {word[:i] + word[i + 1 :] for i in range(len(word))}
    found |= {word[:i] + letter + word[i:] for i in range(len(word) + 1) for letter in LETTERS}
    found |= {word[:i] + letter + word[i + 1 :] for i in range(len(word)) for letter in LETTERS}
    found |= {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)}
    return {one for one in found - {word} if len(one) >= 5}


@pytest.mark.parametrize("word", MUST_ANSWER)
def test_every_near_miss_of_a_word_that_must_be_answered_must_be_answered(word: str) -> None:
    for miss in misses(word):
        found = way(miss)
        assert (found.intent, found.unresolved) == (miss, "raise")
        assert found.notes == (f"the intent {miss!r} looks like {word!r} and must be answered as that one",)


@pytest.mark.parametrize("word", PERSON_ONLY)
def test_a_near_miss_of_what_only_a_person_settles_goes_straight_to_the_person(word: str) -> None:
    for miss in misses(word):
        assert normal_kind("callback", miss) == "request_user_input"
    assert normal_kind("callback", "bloker") == "callback_to_caller"


@pytest.mark.parametrize("word", INTENTS)
def test_every_near_miss_of_a_known_word_is_told_with_both_words(word: str) -> None:
    for miss in misses(word):
        assert meant_intent(miss) == word
        assert f"the intent {miss!r} looks like {word!r}" in draw(way(miss))


@given(st.sampled_from(MUST_ANSWER), st.data())
def test_neither_case_nor_dashes_nor_blanks_make_a_word_another_one(word: str, data: st.DataObject) -> None:
    letters = [data.draw(st.sampled_from("_- " if one == "_" else one + one.upper())) for one in word]
    written = "".join(letters)
    assert (way(written).unresolved, way(written).intent) == ("raise", written)


@given(st.sampled_from(MUST_ANSWER), st.data())
def test_a_capital_and_a_typo_in_one_word_are_a_near_miss_too(word: str, data: st.DataObject) -> None:
    miss = data.draw(st.sampled_from(sorted(misses(word))))
    assert way(miss.capitalize()).unresolved == "raise"


@pytest.mark.parametrize(
    "word",
    [
        "musing",
        "warning",
        "block",
        "eror",
        "erratum",
        "approve",
        "user",
        "input",
        "er",
        "x",
        "Blocker!",
        "b" * 100_000,
    ],
)
def test_other_words_are_kept_and_treated_as_a_query(word: str) -> None:
    assert (way(word).intent, way(word).unresolved, way(word).notes) == (word, "none", ())


@pytest.mark.parametrize("word", ["query", "clarification", "qery", "Clarification"])
def test_near_misses_of_words_that_may_be_ignored_may_be_ignored(word: str) -> None:
    assert way(word).unresolved == "none"


@pytest.mark.parametrize("intent", [*INTENTS, "bloker", "musing"])
def test_required_takes_the_place_of_what_follows_from_the_intent(intent: str) -> None:
    assert (way(intent, required=True).unresolved, way(intent, required=False).unresolved) == ("raise", "none")


def test_required_does_not_open_what_the_kind_or_an_explicit_fail_closes() -> None:
    assert when_unresolved("query", "request_resolution", False, required=False) == "raise"
    assert when_unresolved("query", "callback_to_caller", True, required=False) == "raise"
    assert when_unresolved("query", "request_user_input", False, without_right=True, required=False) == "raise"
