"""What a call gives back: the reply, or what the agent does and how to continue, as text and as fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from mcp_types import CallToolResult, TextContent

from upcall.callbacks import Callback
from upcall.hosts.mcp.answers import DIGEST
from upcall.hosts.mcp.calls import Outcome
from upcall.hosts.mcp.question_text import LONGEST, question_text
from upcall.observe.hidden_question import callback_json, hide_secrets, is_approval
from upcall.observe.plain import one_line, plain, shortened, visible
from upcall.observe.redact import Redactor

LONGEST_REPLY = 1_000_000
"""Characters of a reply that a client gets; `upcall show` has the rest."""

_LONGEST_ERROR = 4000


class Commands(Protocol):
    """Commands that a person can paste."""

    def answer(self, callback: Callback) -> str:
        """The command that answers a question."""
        ...

    def reveal(self, callback: Callback) -> str:
        """The command that shows what is hidden in a question."""
        ...

    def resume(self, session: str) -> str:
        """The command that continues a session."""
        ...


class Results:
    """Makes results. `commands` are for people, `redactor` hides secrets in what people are shown."""

    def __init__(self, redactor: Redactor, commands: Commands) -> None:
        self._redactor, self._commands = redactor, commands

    def of(self, outcome: Outcome, notes: Sequence[str] = ()) -> CallToolResult:
        """The result of a call, or of a look at it."""
        session = outcome.turn.session
        fields: dict[str, Any] = {"session": session, "turn": outcome.turn.number, "status": outcome.status}
        match outcome.status:
            case "done":
                reply = shortened(outcome.text, LONGEST_REPLY)
                texts = [reply, f"(session {session}: give it as `session` to continue this conversation)"]
                fields["text"] = reply
            case "waiting":
                texts = [self.waiting(outcome.questions, session)]
                fields["questions"] = [self.question_fields(one) for one in outcome.questions]
            case "working":
                texts = [self._working(outcome)]
            case _:
                texts = [self._unfinished(outcome)]
                fields["error"] = texts[0]
        return _result([*notes, *texts], fields, is_error=outcome.status in ("failed", "limit", "cancelled"))

    def waiting(self, questions: Sequence[Callback], session: str) -> str:
        """The questions that wait, and how to answer each."""
        count = "A question waits" if len(questions) == 1 else f"{len(questions)} questions wait"
        parts = [f"{count} for the person. Show it to them, and answer only what they say.", ""]
        for one in questions:
            parts += [self.question(one), ""]
        return "\n".join([*parts, f"After that: call `status` with session={session!r} for the reply."])

    def question(self, callback: Callback) -> str:
        """One question with its id, as text, and how to answer it."""
        shown = hide_secrets(callback, self._redactor)
        text, command = question_text(shown, self._commands.reveal(callback)), self._commands.answer(shown.callback)
        how = f"value={_example(callback)}, or decline='why'"
        if is_approval(callback):
            if len(text) > LONGEST:
                who = f"{one_line(callback.agent, 100)} wants to run {visible(callback.tool)}"
                what = f"{who} with arguments that are too long to show here"
                return f"[{callback.id}] {what}. A person has to answer at the command line: {command}"
            how = f"approve=true and digest={callback.digest[:DIGEST]!r}, or reject='why'"
        told = f"To answer: call `answer` with callback={callback.id!r} and {how}; or type: {command}"
        return f"[{callback.id}] {shortened(text, LONGEST)}\n{told}"

    def question_fields(self, callback: Callback) -> dict[str, Any]:
        """The fields of a question, as `inbox --json` has them, and the digest that an approval repeats."""
        shown = callback_json(callback, self._redactor)
        for name in ("message", "reworded", "choices", "schema", "args"):  # the text says how to see the rest
            if len(msgspec.json.encode(shown.get(name))) > LONGEST:
                del shown[name]
        names = (
            "id",
            "session_id",
            "agent",
            "message",
            "reworded",
            "intent",
            "priority",
            "choices",
            "schema",
            "tool",
            "args",
            "expires",
            "created",
        )
        return {name: shown[name] for name in names if shown.get(name) not in (None, "", [])} | {
            "digest": callback.digest[:DIGEST]
        }

    def failure(self, text: str, **fields: Any) -> CallToolResult:
        """The result of a call that could not be made: a plain sentence."""
        said = shortened(plain(self._redactor.text(text)).strip(), _LONGEST_ERROR)
        return _result([said], {"error": said, **fields}, is_error=True)

    def note(self, text: str, **fields: Any) -> CallToolResult:
        """A result that only says something."""
        return _result([text], fields)

    def _working(self, outcome: Outcome) -> str:
        session = outcome.turn.session
        if outcome.note:
            how = self._commands.resume(session)
            return f"Session {session} is not running: {outcome.note}. Continue it with: {how}"
        how = f"call `status` with session={session!r}"
        return f"The agent is still working. To wait for its reply, {how}. Nothing is lost if you leave."

    def _unfinished(self, outcome: Outcome) -> str:
        match outcome.status:
            case "cancelled":
                return "The turn was cancelled."
            case "limit":
                how = f"call the agent again with session={outcome.turn.session!r}"
                return f"The limit {outcome.note} ended the turn. To continue, {how}."
            case _:
                why = shortened(plain(self._redactor.text(outcome.text)).strip(), _LONGEST_ERROR)
                return f"The turn failed: {why or 'no reason is known'}"


def _example(callback: Callback) -> str:
    if callback.choices:
        return " or ".join(repr(one[:60]) for one in callback.choices[:5]) + (
            " or …" if len(callback.choices) > 5 else ""
        )
    return "the answer, as its schema says" if callback.schema is not None else "'the answer'"


def _result(texts: Sequence[str], fields: dict[str, Any], *, is_error: bool = False) -> CallToolResult:
    blocks: list[Any] = [TextContent(type="text", text=one) for one in texts]
    return CallToolResult(content=blocks, structured_content=fields, is_error=is_error)
