"""Detect an agent that repeats itself, and ask its caller what to do."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Awaitable, Sequence

import msgspec

from upcall.agent import Kit
from upcall.contracts import SessionAccess
from upcall.errors import CallbackExpired, CallbackUnresolved
from upcall.hooks import Hooks
from upcall.kit.numbers import check_number
from upcall.messages import Call, Message, Result, Text

MARK = "Not run, because you seem to be stuck:"
_LONGEST_CONTEXT, _MANY_CALLS = 10_000, 10

Counts = dict[str, tuple[Call, int, int]]
"""By id: the call, how often it was made before in this turn, and how many calls before it failed in a row."""
Recent = deque[tuple[Message, Counts]]
"""The last responses of many calls: each is counted once, and not once for each of its calls."""


def stuck(times: int = 3) -> Kit:
    """Ask the caller when a turn repeats itself.

    The call does not run; its result tells the model the answer. Counting then starts again at zero.

    times: at which repetition of the same call, or after how many failures in a row, the caller is asked
    """
    check_number("stuck", "times", times, whole=True)
    recent: Recent = deque(maxlen=8)

    def refuse_repetition(session: SessionAccess, call: Call) -> Awaitable[Result] | None:
        messages = session.get_messages()
        problem = "" if _too_few_calls(messages, times) else _problem(messages, call, times, recent)
        return refuse_and_ask(session, call, problem) if problem else None

    async def refuse_and_ask(session: SessionAccess, call: Call, problem: str) -> Result:
        advice = "Do something else, or say what is missing."
        if session.purpose != "side_turn":  # a side turn can't ask
            shown = msgspec.json.encode(call.args, enc_hook=str)
            arguments = call.args if len(shown) <= _LONGEST_CONTEXT else _short(shown.decode(), 2_000)
            context = {"tool": call.name, "arguments": arguments}
            try:
                answer = await session.raise_callback(f"I seem to be stuck: {problem}", "blocker", context=context)
                advice = f"Whoever gave you this work says: {_text(answer)}"
            except (CallbackUnresolved, CallbackExpired):
                pass
        return Result(call.id, f"{MARK} {problem} {advice}", is_error=True)

    return Kit(Hooks(before_tool=[refuse_repetition]))


def _too_few_calls(messages: list[Message], times: int) -> bool:
    """Return whether the turn has too few calls to be stuck. Two of its parts belong to the call about to run."""
    parts = 0
    for message in reversed(messages):
        if message.role == "user" and type(message.parts[0]) is Text:
            return True
        parts += len(message.parts)
        if parts > times:
            return False
    return True


def _problem(messages: list[Message], call: Call, times: int, recent: Recent) -> str:
    own, same, failures = _counts_of(messages, call, recent)
    if same + 1 >= times:
        shown = msgspec.json.encode(own.args, enc_hook=str).decode()
        return f"this is call number {same + 1} of {own.name} with the same arguments, {_short(shown)}."
    return f"the last {failures} calls have failed; the next would be {own.name}." if failures >= times else ""


def _counts_of(messages: list[Message], call: Call, recent: Recent) -> tuple[Call, int, int]:
    newest = messages[-2:]  # the response, and the results of its calls so far
    for response, counts in recent:
        if call.id in counts and any(response is one for one in newest):
            return counts[call.id]
    for response in newest:
        calls = response.calls
        if len(calls) > _MANY_CALLS and any(one.id == call.id for one in calls):
            recent.append((response, _count(_since_prompt(messages, calls[0])[1], calls)))
            return recent[-1][1][call.id]
    own, before = _since_prompt(messages, call)
    return _count(before, [own])[own.id]


def _count(before: list[Call | Result], calls: Sequence[Call]) -> Counts:
    names = {call.name for call in calls}
    same, failures = Counter[bytes](), 0
    for part in before:
        if isinstance(part, Call):
            if part.name in names:
                same[_digest(part)] += 1
        elif part.text.startswith(MARK):
            same.clear()
            failures = 0
        else:
            failures = failures + 1 if part.is_error else 0
    counts: Counts = {}
    for call in calls:
        digest = _digest(call)
        counts[call.id] = call, same[digest], failures
        same[digest] += 1
    return counts


def _digest(call: Call) -> bytes:
    text = msgspec.json.encode((call.name, call.args), enc_hook=str, order="sorted")
    return hashlib.blake2b(text, digest_size=16).digest()


def _since_prompt(messages: list[Message], call: Call) -> tuple[Call, list[Call | Result]]:
    """Return the call as the model made it, and the calls and results before it in this turn."""
    own, parts, prompted = None, list[Call | Result](), -1
    for message in reversed(messages):
        for part in reversed(message.parts):
            if type(part) is Call and part.id == call.id:
                own, parts = part, []
            elif type(part) is Call or type(part) is Result:
                parts.append(part)
            elif type(part) is Text and message.role == "user":
                if own is not None:
                    return own, parts[::-1]
                prompted = len(parts) if prompted < 0 else prompted
    if own is None and prompted >= 0:  # no message contains a call that a program made
        parts = parts[:prompted]
    return own or call, parts[::-1]


def _text(answer: object) -> str:
    return answer if isinstance(answer, str) else msgspec.json.encode(answer, enc_hook=str).decode()


def _short(text: str, max_chars: int = 300) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
