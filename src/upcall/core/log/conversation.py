"""A session's conversation: its messages, the calls that are open in it, and what people said meanwhile."""

from __future__ import annotations

import msgspec

from upcall import events
from upcall.core.log.call_state import CallState
from upcall.messages import Call, Instruction, Message, Result, Text


class Conversation(msgspec.Struct, eq=False):
    """The messages that a model reads, and those that wait to become part of them.

    The results of a response's calls enter the history together, once all are settled. What hooks and people add
    meanwhile is deferred and follows them.
    """

    history: list[Message] = []
    calls: dict[str, CallState] = {}
    """The calls of the newest response, until their results are in the history."""
    inner: dict[str, CallState] = {}
    """The calls of programs that run as one of `calls`; the settled ones in the order in which that happened."""
    deferred: list[Message] = []
    """Messages that were added while calls are open."""
    steers: dict[int, events.Steered] = {}
    """Steering that is not in the conversation yet, by its sequence number in the log."""
    applied_steers: set[int] = set()
    """The sequence numbers of steering that is in the conversation."""
    ordinal: int = 0
    """The number of the newest model call, from which the ids of its calls follow."""
    model_text: str = ""
    """The text of the newest reply, as the model gave it."""
    reply_text: str = ""
    """That text as hooks left it."""
    summary: str = ""
    """The summary of the last compaction that had one."""
    compaction: events.CompactionAsked | None = None
    """A compaction that is due before the next model call."""
    has_empty: bool = False
    """The history may have messages without parts, which no provider takes.

    Their hooks still run, or have emptied them. Looking at each message instead would cost more the longer the
    history is: 120 µs for a model call after 1,000 turns.
    """

    def messages(self) -> list[Message]:
        """The messages, valid for every provider: an open call has a result too, "in progress"."""
        history = [m for m in self.history if m.parts] if self.has_empty else self.history
        if not self.calls:
            return [*history, *self.deferred] if self.deferred else history.copy()
        return [*history, self._results("in progress: it is still running", is_error=False), *self.deferred]

    def branch(self) -> Conversation:
        """The conversation of a side turn, which begins with these messages and leaves them as they are."""
        # one request never holds two calls of one id
        return Conversation(history=self.messages(), ordinal=self.ordinal, summary=self.summary)

    def append(self, message: Message) -> int:
        """Add a message to the history and return its index."""
        self.history.append(message)
        if not message.parts:
            self.has_empty = True
        return len(self.history) - 1

    def replace(self, at: int, message: Message) -> None:
        """Put another message at an index of the history; -1 is nowhere."""
        if at >= 0:
            self.history[at] = message
            self.has_empty = self.has_empty or not message.parts

    def add(self, message: Message) -> None:
        """Add a message: now, or after the results of the open calls."""
        (self.deferred if self.calls else self.history).append(message)

    def compact(self, messages: list[Message], summary: str) -> None:
        """Replace the history."""
        self.history, self.has_empty = messages, False
        self.summary = summary or self.summary
        self.compaction = None

    # --- calls ----------------------------------------------------------------------------

    def open_calls(self, message: Message) -> None:
        """Open the calls of a response, and take its text as the newest reply."""
        text = ""
        for part in message.parts:
            if type(part) is Call:
                self.calls[part.id] = CallState(part)
            elif type(part) is Text or type(part) is Instruction:
                text += part.text
        self.reply_text = self.model_text = text

    def call(self, call_id: str) -> CallState | None:
        """An open call of the response, or of a program that runs as one."""
        return self.calls.get(call_id) or self.inner.get(call_id)

    def known_call(self, call_id: str) -> CallState:
        """The same, for an event that only follows such a call; KeyError if there is none."""
        return self.calls.get(call_id) or self.inner[call_id]

    def unsettled(self) -> list[CallState]:
        """The calls that have no result yet."""
        return [one for calls in (self.calls, self.inner) for one in calls.values() if one.result is None]

    def settle(self, call_id: str) -> CallState:
        """Mark a call as settled: its result is final."""
        call = self.known_call(call_id)
        call.settled = True
        if call_id in self.inner:
            self.inner[call_id] = self.inner.pop(call_id)
        return call

    def settle_calls(self, why: str) -> None:
        """Move the calls' results into the history, in call order, then what was added meanwhile."""
        if self.calls:
            self.history.append(self._results(f"cancelled: {why}"))
            self.calls, self.inner = {}, {}
        if self.deferred:
            self.history.extend(self.deferred)
            self.deferred = []

    def _results(self, text: str, *, is_error: bool = True) -> Message:
        results = [c.result or Result(i, text, is_error=is_error) for i, c in self.calls.items()]
        return Message("tool", tuple(results))
