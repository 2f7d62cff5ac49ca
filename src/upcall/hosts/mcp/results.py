"""What a call gives back: the reply, or what the agent does and how to continue, as text and as fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from mcp_types import CallToolResult, TextContent

from upcall.callbacks import Callback
from upcall.hosts.mcp.answers import DIGEST
from upcall.hosts.mcp.calls import Outcome
from upcall.hosts.mcp.question_text import LONGEST, question_text
from upcall.observe.hidden_question import HiddenQuestion, hide_secrets, is_approval
from upcall.observe.plain import one_line, plain, shortened, visible
from upcall.observe.public_json import all_fields
from upcall.observe.quoted_question import choice_names, listed_choices
from upcall.observe.redact import Redactor
from upcall.observe.weight import aside

LONGEST_REPLY = 1_000_000
"""Characters of a reply that a client gets; `upcall show` has the rest."""

_LONGEST_ERROR = 4000
_MOST_EXAMPLES, _LONGEST_EXAMPLE = 5, 60
_FIELDS = (
    *("id", "session_id", "agent", "message", "reworded", "intent", "priority"),
    *("choices", "schema", "tool", "args", "expires", "created"),
)


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

    async def of(self, outcome: Outcome, notes: Sequence[str] = ()) -> CallToolResult:
        """The result of a call, or of a look at it. That of large questions is made in a thread."""
        return await aside(self._of, outcome, notes)

    def _of(self, outcome: Outcome, notes: Sequence[str]) -> CallToolResult:
        session = outcome.turn.session
        fields: dict[str, Any] = {"session": session, "turn": outcome.turn.number, "status": outcome.status}
        match outcome.status:
            case "done":
                reply = shortened(outcome.text, LONGEST_REPLY)
                texts = [reply, f"(session {session}: give it as `session` to continue this conversation)"]
                fields["text"] = reply
            case "waiting":
                asked = [self._asked(one) for one in outcome.questions]
                texts = [_waiting([one.text for one in asked], session)]
                fields["questions"] = [one.fields for one in asked]
            case "working":
                texts = [self._working(outcome)]
            case _:
                texts = [self._unfinished(outcome)]
                fields["error"] = texts[0]
        return _result([*notes, *texts], fields, is_error=outcome.status in ("failed", "limit", "cancelled"))

    async def listed(self, questions: Sequence[Callback], more: int) -> CallToolResult:
        """Questions that wait, with how to answer each; `more` are not listed."""
        asked = await aside(self._asked_all, questions)
        texts = [one.text for one in asked] or ["Nothing waits for an answer."]
        if more > 0:
            texts.append(f"{more} more wait.")
        return self.note("\n\n".join(texts), questions=[one.fields for one in asked])

    def _asked_all(self, questions: Sequence[Callback]) -> list[_Asked]:
        return [self._asked(one) for one in questions]

    def _asked(self, callback: Callback) -> _Asked:
        shown = hide_secrets(callback, self._redactor)
        return _Asked(self._question(callback, shown), _question_fields(shown.callback))

    def _question(self, callback: Callback, shown: HiddenQuestion) -> str:
        """One question with its id, as text, and how to answer it."""
        text, command = question_text(shown, self._commands.reveal(callback)), self._commands.answer(shown.callback)
        if len(text) > LONGEST and (is_approval(callback) or callback.reworded):
            return f"[{callback.id}] {_too_long(callback)}. A person has to answer at the command line: {command}"
        if is_approval(callback):
            how = f"approve=true and digest={callback.digest[:DIGEST]!r}, or reject='why'"
        else:
            how = f"value={_example(shown.callback)}, or decline='why'"
        told = f"To answer: call `answer` with callback={callback.id!r} and {how}; or type: {command}"
        return f"[{callback.id}] {_choices_below(shortened(text, LONGEST), shown.callback)}\n\n{told}"

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


class _Asked(NamedTuple):
    """A question for a client: as text with how to answer it, and its fields."""

    text: str
    fields: dict[str, Any]


def _waiting(asked: Sequence[str], session: str) -> str:
    """The questions that wait, and how to answer each."""
    count = "A question waits" if len(asked) == 1 else f"{len(asked)} questions wait"
    head = f"{count} for the person. Show it to them, and answer only what they say."
    return "\n\n".join([head, *asked, f"After that: call `status` with session={session!r} for the reply."])


def _too_long(callback: Callback) -> str:
    """Say that a question is too long for anybody to answer it here: all of it has to be seen."""
    if not is_approval(callback):
        return f"{one_line(callback.agent, 100)} asks something that was reworded and is too long to show here"
    who = f"{one_line(callback.agent, 100)} wants to run {visible(callback.tool)}"
    return f"{who} with arguments that are too long to show here"


def _choices_below(text: str, shown: Callback) -> str:
    """The text of a question with its choices, where the example of an answer does not name all as they are."""
    names = choice_names(shown.choices[:_MOST_EXAMPLES], _LONGEST_EXAMPLE)
    is_named = len(shown.choices) <= _MOST_EXAMPLES and names == list(shown.choices)
    return text if is_named else f"{text}\n\n{shortened(listed_choices(shown.choices), LONGEST)}"


def _question_fields(shown: Callback) -> dict[str, Any]:
    """The fields of a question, as `inbox --json` has them, and the digest that an approval repeats."""
    found = all_fields(shown)
    for name in ("message", "reworded", "choices", "schema", "args"):  # the text says how to see the rest
        if len(msgspec.json.encode(found.get(name))) > LONGEST:
            del found[name]
    return {name: found[name] for name in _FIELDS if found.get(name) not in (None, "", [])} | {
        "digest": shown.digest[:DIGEST]
    }


def _example(callback: Callback) -> str:
    if callback.choices:
        named = " or ".join(repr(one[:_LONGEST_EXAMPLE]) for one in callback.choices[:_MOST_EXAMPLES])
        return f"{named} or …" if len(callback.choices) > _MOST_EXAMPLES else named
    return "the answer, as its schema says" if callback.schema is not None else "'the answer'"


def _result(texts: Sequence[str], fields: dict[str, Any], *, is_error: bool = False) -> CallToolResult:
    blocks: list[Any] = [TextContent(type="text", text=one) for one in texts]
    return CallToolResult(content=blocks, structured_content=fields, is_error=is_error)
