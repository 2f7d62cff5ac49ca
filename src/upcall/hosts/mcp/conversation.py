"""One call of a tool: wait for a turn, ask the person through the client, and give back what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from mcp_types import ElicitResult, InputRequiredResult

from upcall.callbacks import Callback
from upcall.errors import UnknownCallback
from upcall.events import SETTLING
from upcall.hosts.http.access import Principal
from upcall.hosts.mcp.answers import Answers
from upcall.hosts.mcp.calls import AgentCalls, Items, Outcome, Turn
from upcall.hosts.mcp.client import Client, input_request, reply_of
from upcall.hosts.mcp.forms import schema_of
from upcall.hosts.mcp.progress import Progress
from upcall.hosts.mcp.question_text import LONGEST, question_text
from upcall.hosts.mcp.request_state import CallState
from upcall.hosts.mcp.results import Commands, Results
from upcall.observe.hidden_question import hide_secrets
from upcall.observe.lines import Lines
from upcall.observe.redact import Redactor
from upcall.observe.weight import aside
from upcall.tokens import allows

TASK_GRACE = 0.5
"""Seconds that a call may take without becoming a task, for clients that have tasks."""

_KEEP_ALIVE = 10.0
"""Seconds between two signs of life while a form is open."""

_LARGEST_FORM = 50_000
_MOST_ROUNDS = 20
"""Times that one call shows forms; then the result says what waits."""


class Forms:
    """Makes forms of questions."""

    def __init__(self, redactor: Redactor, commands: Commands) -> None:
        self._redactor, self._commands = redactor, commands

    async def of(self, callback: Callback) -> tuple[str, dict[str, Any]] | None:
        """The message and the fields of a form; None where they are too long to be shown whole."""
        return await aside(self._of, callback)

    def _of(self, callback: Callback) -> tuple[str, dict[str, Any]] | None:
        shown = hide_secrets(callback, self._redactor)
        message, schema = question_text(shown, self._commands.reveal(callback)), schema_of(callback, self._redactor)
        if len(message) > LONGEST or len(msgspec.json.encode(schema)) > _LARGEST_FORM:
            return None
        return message, schema


class Conversation:
    """Delivers turns to one client."""

    def __init__(
        self,
        client: Client,
        principal: Principal,
        calls: AgentCalls,
        answers: Answers,
        results: Results,
        forms: Forms,
        lines: Lines,
    ) -> None:
        self._client, self._principal = client, principal
        self._may_answer = allows(principal.role, "answerer")
        self._calls, self._answers, self._results, self._forms = calls, answers, results, forms
        self._progress = Progress(client.report, lines, asyncio.get_running_loop().time)

    async def deliver(
        self,
        turn: Turn,
        wait: float,
        notes: Sequence[str] = (),
        *,
        task: Callable[[Outcome], Any] | None = None,
        items: Items | None = None,
    ) -> Any:
        """Wait for a turn, and give back its reply, what it asks, or how to wait for it.

        task: makes a task of a turn that has not ended soon; None where it must not become one
        items: the turn's events, where somebody has subscribed to them already
        """
        left = min(wait, TASK_GRACE) if task is not None else wait
        problems: dict[str, str] = {}
        loop = asyncio.get_running_loop()
        for again in range(_MOST_ROUNDS, -1, -1):
            began = loop.time()
            outcome = await self._calls.outcome(turn, max(0.0, left), self._progress.watch, items)
            left -= loop.time() - began
            if task is not None and not outcome.has_ended and not outcome.note:
                return task(outcome)
            if outcome.status != "waiting" or not self._client.has_forms or not self._may_answer:
                return await self._results.of(outcome, notes)
            if self._client.is_modern:
                return await self.input_required(outcome, notes) or await self._results.of(outcome, notes)
            said = await self._ask_all(outcome.questions, problems)
            notes = [*notes, *said.notes]
            if said.left or not again:
                break
        return await self._results.of(await self._calls.look(turn), notes)

    # --- the era without requests to clients ------------------------------------------------

    async def input_required(
        self, outcome: Outcome, notes: Sequence[str] = (), problems: Mapping[str, str] | None = None
    ) -> InputRequiredResult | None:
        """The questions as forms, with the state that continues the call; None where none fits into a form."""
        requests: dict[str, Any] = {}
        for one in outcome.questions:
            problem = (problems or {}).get(one.id, "")
            if made := await self._forms.of(one.replace(problem=problem) if problem else one):
                requests[one.id] = input_request("\n\n".join([*notes, made[0]]), made[1])
        if not requests:
            return None
        state = CallState(outcome.turn.session, outcome.turn.number, tuple(requests))
        return InputRequiredResult(input_requests=requests, request_state=state.encoded())

    async def take(
        self, responses: Mapping[str, Any], asked: Sequence[str]
    ) -> tuple[list[str], bool, dict[str, str]]:
        """Settle what a client answered of what it was asked; gives notes, whether one was dismissed, and problems.

        Keys that were not asked are ignored.
        """
        notes: list[str] = []
        dismissed, problems = False, dict[str, str]()
        for callback_id in asked:
            response = responses.get(callback_id)
            if not isinstance(response, ElicitResult):
                continue
            settled = await self._answers.by_form(callback_id, reply_of(response), self._principal)
            dismissed = dismissed or settled.status == "dismissed"
            if settled.status == "invalid":
                problems[callback_id] = settled.note
            elif settled.note:
                notes.append(settled.note)
        return notes, dismissed, problems

    async def proceed(self, state: CallState, responses: Mapping[str, Any], wait: float, **how: Any) -> Any:
        """Continue a call: settle what was answered, and wait again. A dismissed question keeps waiting."""
        notes, dismissed, problems = await self.take(responses, state.asked)
        if dismissed:
            outcome = await self._calls.outcome(state.of)
            if outcome.status == "waiting":
                return await self._results.of(outcome, [*notes, "The form was closed; the question keeps waiting."])
        elif problems:
            outcome = await self._calls.outcome(state.of)
            if outcome.status == "waiting" and (again := await self.input_required(outcome, notes, problems)):
                return again
        return await self.deliver(state.of, wait, notes, **how)

    # --- the era of handshakes --------------------------------------------------------------

    async def _ask_all(self, questions: Sequence[Callback], problems: dict[str, str]) -> _Asked:
        """Ask one question after the other. `problems` says what was wrong with the last answer to each."""
        notes: list[str] = []
        left = False
        for one in questions:
            problem = problems.pop(one.id, "")
            made = await self._forms.of(one.replace(problem=problem) if problem else one)
            if made is None:
                left = True
                continue
            reply = await self._ask(one, *made)
            if reply is None:
                return _Asked(notes, left=True)
            if reply is _ELSEWHERE:
                notes.append(f"The question {one.id} was settled elsewhere.")
                continue
            settled = await self._answers.by_form(one.id, reply, self._principal)
            if settled.status == "dismissed":
                return _Asked([*notes, "The form was closed; the question keeps waiting."], left=True)
            if settled.status == "invalid":
                problems[one.id] = settled.note
            elif settled.note:
                notes.append(settled.note)
        return _Asked(notes, left=left)

    async def _ask(self, callback: Callback, message: str, schema: dict[str, Any]) -> Any:
        """Show a form until it is answered or the question is settled elsewhere; None where it can't be shown."""
        asking = asyncio.ensure_future(self._client.ask(message, schema))
        settled = asyncio.ensure_future(self._until_settled(callback))
        try:
            while True:
                await asyncio.wait({asking, settled}, timeout=_KEEP_ALIVE, return_when="FIRST_COMPLETED")
                if asking.done() or settled.done():
                    return asking.result() if asking.done() else _ELSEWHERE
                await self._progress.say("waiting for the person's answer")
        finally:
            for one in (asking, settled):
                one.cancel()
            await asyncio.wait({asking, settled}, timeout=1.0)

    async def _until_settled(self, callback: Callback) -> None:
        root = callback.session_id.partition("~")[0]
        async with self._calls.runtime.subscribe(root) as items:
            if await self._is_settled(callback.id):
                return
            async for item in items:
                if isinstance(item, SETTLING) and item.callback_id == callback.id:
                    return

    async def _is_settled(self, callback_id: str) -> bool:
        try:
            return (await self._calls.runtime.callback(callback_id)).status != "open"
        except UnknownCallback:
            return True


_ELSEWHERE = object()


class _Asked:
    """What came of asking: notes for the client, and whether a question is left waiting."""

    def __init__(self, notes: Sequence[str], *, left: bool = False) -> None:
        self.notes, self.left = list(notes), left
