"""The callback as a value: what its events make of it, and which of its fields people and programs are shown."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from callbacks.doubles import Desk, Person, asker, at_work
from upcall import Callback, Context, tool
from upcall.callbacks import Step, after, callback_raised, steps_taken, with_step
from upcall.events import CallbackAnswered, CallbackAsked, CallbackDelivered, CallbackPassed, CallbackRaised

PUBLIC = (
    "id", "session_id", "agent", "message", "intent", "kind", "priority", "choices", "schema", "context", "tool",
    "args", "digest", "created", "expires", "path", "status", "answer", "group", "reworded", "problem", "given",
    "tags", "patterns", "covers", "delivered",
)  # fmt: skip


def raised(*stations: tuple[str, str, str], expires: float | None = None) -> Callback:
    """A callback whose route has these stations, each an agent, `ask` or `skip`, and the reason."""
    way: dict[str, Any] = {
        "stations": [dict(zip(("agent", "step", "reason"), one, strict=True)) for one in stations]
    }
    way |= {"end": "person", "why": "it may ask a person"}
    event = CallbackRaised("q1", "r1c0", "dev", "Which?", "query", "callback_to_caller", way, "d", expires=expires)
    return callback_raised(event, "s", "s")


STATIONS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "skip"]), st.text(max_size=3)), max_size=6
)


def walks(stations: list[tuple[str, str, str]], ways: list[str]) -> Callback:
    """A callback that was asked along its route: what became of it at each agent, until there is no more to say."""
    callback, agents = raised(*stations), [agent for agent, step, _ in stations if step == "ask"]
    for agent, way in zip(agents, ways, strict=False):
        if way != "skipped":
            callback = after(callback, CallbackAsked("q1", agent))
        if way == "stays":
            return callback
        words = "in other words" if way == "reworded" else ""
        callback = after(callback, CallbackPassed("q1", agent, "why", message=words, skipped=way == "skipped"))
    return after(callback, CallbackAsked("q1", "user")) if len(ways) > len(agents) else callback


WAYS = st.lists(st.sampled_from(["skipped", "passed", "reworded", "stays"]), max_size=7)


@given(STATIONS, WAYS)
def test_a_path_names_every_station_once_in_the_order_of_the_route(
    stations: list[tuple[str, str, str]], ways: list[str]
) -> None:
    callback = walks(stations, ways)

    left = [one.agent for one in callback.path if one.step != "asked"]
    assert left == [agent for agent, _, _ in stations][: len(left)]
    assert callback.station == len([step for _, step, _ in stations[: len(left)] if step == "ask"])
    ahead = stations[len(left) :]
    assert not ahead or ahead[0][1] == "ask"
    reasons = [(one.agent, one.reason) for one in callback.path if one.step == "asked" and one.agent != "user"]
    assert set(reasons) <= {(agent, reason) for agent, step, reason in stations if step == "ask"}


@given(STATIONS, WAYS)
def test_the_steps_that_a_store_keeps_give_the_same_path_again(
    stations: list[tuple[str, str, str]], ways: list[str]
) -> None:
    callback = walks(stations, ways)

    path = raised(*stations).path
    for step in steps_taken(callback):
        path = with_step(path, callback.route, *step)
    assert path == callback.path


def test_agents_that_the_route_skips_are_in_the_path_before_and_between_those_who_are_asked() -> None:
    callback = raised(("lead", "skip", "passes all"), ("boss", "ask", "above"), ("owner", "skip", "not named"))
    assert callback.path == (Step("lead", "skipped", "passes all"),)

    callback = after(callback, CallbackAsked("q1", "boss"))
    assert callback.path[1:] == (Step("boss", "asked", "above"),)

    callback = after(callback, CallbackPassed("q1", "boss", "not mine"))
    assert callback.path[2:] == (Step("boss", "passed", "not mine"), Step("owner", "skipped", "not named"))

    callback = after(callback, CallbackAsked("q1", "user"))
    assert callback.path[4:] == (Step("user", "asked", "it may ask a person"),)


def test_after_the_first_answer_only_the_delivery_changes_a_callback() -> None:
    answered = after(raised(), CallbackAnswered("q1", "red", "ann", time=5.0))

    assert answered.answer is not None
    assert (answered.status, answered.answer.value, answered.answer.at) == ("answered", "red", 5.0)
    for late in (CallbackAnswered("q1", "blue"), CallbackAsked("q1", "user"), CallbackPassed("q1", "lead", "no")):
        assert after(answered, late) == answered
    assert after(answered, CallbackDelivered("q1", "r1c0")) == answered.replace(delivered=True)


def test_a_question_that_is_reworded_back_to_its_own_words_counts_as_not_reworded() -> None:
    other = after(raised(), CallbackPassed("q1", "lead", "unclear", message="Which one?"))
    kept = after(other, CallbackPassed("q1", "boss", "not mine"))
    back = after(kept, CallbackPassed("q1", "owner", "clear", message="Which?"))

    assert [one.reworded for one in (other, kept, back)] == ["Which one?", "Which one?", ""]


async def test_a_host_is_shown_when_the_question_was_raised(place: Desk) -> None:
    agent, person = asker(), Person(lambda _: "red")
    await place.prompt(agent, host=person)

    (shown,) = person.seen
    assert shown.created == place.clock.now
    assert shown.session_id == "s"


async def test_neither_the_text_of_a_callback_nor_a_tool_that_returns_one_shows_the_fields_of_the_runtime(
    place: Desk,
) -> None:
    seen: list[Callback] = []

    @tool
    async def work(ctx: Context) -> Callback:
        """Ask, and return the whole callback."""
        seen.append(await ctx.raise_callback_full("Which colour?"))
        return seen[0]

    reply = await place.prompt(at_work(work), host=Person(lambda _: "red"))

    found = msgspec.json.decode(reply.text)
    assert (found["message"], found["answer"]["value"]) == ("Which colour?", "red")
    assert set(found) <= set(PUBLIC)
    (whole,) = reply.callbacks
    assert set(msgspec.to_builtins(whole)) <= set(PUBLIC)
    assert repr(whole) == f"Callback({', '.join(f'{name}={getattr(whole, name)!r}' for name in PUBLIC)})"
