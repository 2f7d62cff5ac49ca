"""What single events become in an editor."""

from __future__ import annotations

from typing import Any

from upcall import events
from upcall.contracts import Delta
from upcall.hosts.acp.protocol import Client
from upcall.hosts.acp.tool_calls import ToolCalls
from upcall.hosts.acp.updates import Updates
from upcall.messages import Message, Text, Usage, user
from upcall.observe.labels import Labels
from upcall.observe.redact import Redactor

EVERYTHING = Client(compaction=True)


class Log:
    """A session's log that is shown event by event."""

    def __init__(self, client: Client = EVERYTHING, **options: Any) -> None:
        self.updates = Updates("s", client, ToolCalls(Redactor(), Labels(), "/work"), **options)
        self.sent: list[dict[str, Any]] = []
        self._seq = 0

    def add(self, *added: events.AnyEvent, session: str = "s") -> None:
        """Store events."""
        for event in added:
            self._seq += 1
            stamped = events.stamp(event, session, self._seq, self._seq, 0.0)
            self.sent += [update for _, update in self.updates.feed(stamped)]

    def write(self, text: str, kind: str = "text") -> None:
        """Have the model write."""
        made, _ = self.updates.delta(Delta("s", text, kind))
        self.sent += [update for _, update in [*made, *self.updates.flush()]]

    def texts(self) -> dict[str, str]:
        """The messages by their ids."""
        found: dict[str, str] = {}
        for one in self.sent:
            if one["sessionUpdate"] == "agent_message_chunk":
                found[one["messageId"]] = found.get(one["messageId"], "") + one["content"]["text"]
        return found

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The updates of one kind."""
        return [one for one in self.sent if one["sessionUpdate"] == kind]


def begun(client: Client = EVERYTHING, **options: Any) -> Log:
    log = Log(client, **options)
    log.add(events.SessionStarted("a"), events.TurnStarted(1, user("go")), events.ModelStarted(1))
    return log


def said(text: str, ordinal: int = 1, **more: Any) -> events.Responded:
    return events.Responded(ordinal, Message("assistant", (Text(text),)), **more)


def test_text_that_was_written_is_not_sent_again_when_the_log_has_it():
    log = begun()
    log.write("one two ")
    log.add(said("one two three"))
    assert log.texts() == {"m1": "one two three"}


def test_text_of_a_dropped_attempt_is_followed_by_a_new_message():
    log = begun()
    log.write("wrong words ")
    log.write("", "drop")
    log.write("right words ")
    log.add(said("right words here"))
    assert log.texts() == {"m1": "wrong words ", "m1+1": "right words here"}


def test_a_response_that_a_hook_replaced_is_a_new_message():
    log = begun()
    log.write("as written ")
    log.add(said("as written here", pending=True))
    log.add(events.HooksPassed("post_response", "1", message=Message("assistant", (Text("as changed"),))))
    assert list(log.texts().values())[-1] == "as changed"


def test_pieces_that_were_missed_are_sent_once_the_log_has_them():
    log = begun()
    log.write("one ")
    log.updates.skip()
    log.write("three ")
    log.add(said("one two three four"))
    assert log.texts() == {"m1": "one two three four"}


def test_text_that_comes_before_its_event_waits_for_it():
    log = begun()
    log.add(said("first"))
    log.write("second ")
    assert log.texts() == {"m1": "first"}
    log.add(events.ModelStarted(2), said("second one", 2))
    assert log.texts() == {"m1": "first", "m2": "second one"}


def test_a_secret_is_hidden_in_text_that_comes_in_pieces():
    log = begun()
    for piece in ("key: sk-live-", "1234567890", "abcdef and"):
        log.write(piece)
    log.add(said("key: sk-live-1234567890abcdef and more"))
    assert "1234567890abcdef" not in log.texts()["m1"]
    assert log.texts()["m1"].endswith("and more")


def half(model: str, usage: Usage) -> float:
    return 0.5


def test_usage_is_sent_where_the_size_of_the_window_is_known():
    log = begun(window=1000, cost=half)
    log.add(said("hello", usage=Usage(100, 20)))
    cost = {"amount": 0.5, "currency": "USD"}
    assert log.of("usage_update") == [{"sessionUpdate": "usage_update", "used": 120, "size": 1000, "cost": cost}]
    silent = begun()
    silent.add(said("hello", usage=Usage(100, 20)))
    assert silent.of("usage_update") == []


def test_a_summary_is_a_compaction_and_no_message():
    log = begun()
    log.add(said("hello"), events.ModelStarted(1, "summary"))
    log.write("the summary ")
    log.add(said("the summary"), events.Compacted((), "the summary", 5))
    assert [(one["status"], one["compactionId"]) for one in log.of("compaction_update")] == [
        ("in_progress", "c5"),
        ("completed", "c5"),
    ]
    assert log.texts() == {"m1": "hello"}
    plain = begun(Client())
    plain.add(events.ModelStarted(1, "summary"), events.Compacted((), "the summary", 5))
    assert plain.of("compaction_update") == []


def test_the_steps_of_a_team_are_a_plan():
    log = Log()
    plan = [{"worker": "dev01", "task": "build", "sequence": 1}, {"worker": "dev02", "task": "test", "sequence": 2}]
    log.add(events.SessionStarted("team", kind="coordinator"), events.TurnStarted(1, user("go")))
    log.add(events.Planned("plan1", plan), events.StepStarted("dev01", "dev01", "s~dev01"))
    log.add(events.StepEnded("dev01", "done", "built"))
    entries = log.of("plan")[-1]["entries"]
    assert [(one["content"], one["status"]) for one in entries] == [
        ("dev01: build", "completed"),
        ("dev02: test", "pending"),
    ]


def test_a_reply_that_an_end_turn_hook_changed_is_sent_too():
    log = begun()
    log.add(
        said("hello"), events.HooksPassed("end_turn", "1.0", text="hello, changed"), events.TurnEnded(1, "done")
    )
    assert list(log.texts().values()) == ["hello", "hello, changed"]
