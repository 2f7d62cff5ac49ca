"""Ask the person in an editor, by the best means that the editor has.

The approval of a call is a permission request, and a page to open is a link. A question is a form; where the editor
has no forms, its choices are the options of a permission request; else the turn ends with the question, and the
person's next message answers it.
A dialog that is closed settles nothing: the question keeps waiting.
What a dialog shows of a large question is made in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from upcall.callbacks import Answer, Approve, Callback, Decline, Reject
from upcall.hosts.acp.connection import Connection
from upcall.hosts.acp.forms import Form, arguments_form, has_options, link_of, question_form
from upcall.hosts.acp.question_updates import DECLINE, LONGEST_NAME, question_text, route_text
from upcall.hosts.acp.tool_calls import beside_diff, text_content
from upcall.jsonrpc.errors import RpcError
from upcall.observe.form import InvalidInput
from upcall.observe.hidden_question import HiddenQuestion, hidden_note, hide_secrets, is_approval
from upcall.observe.plain import one_line, visible
from upcall.observe.quoted_question import asked_parts, choice_names, quoted
from upcall.observe.redact import Redactor
from upcall.observe.weight import aside

RIGHT = "editor"
"""How it is known who answered: the person who runs the editor answered in it."""

_CANCEL_GRACE = 0.3
"""Seconds in which a cancellation of the turn may follow a dialog that was closed."""

_ALLOW, _ALWAYS, _EDIT, _REJECT, _DECLINE = "allow", "allow_for_session", "edit", "reject", "decline"
_PATTERN = "pattern:"


class Asking:
    """Asks the questions of one session of an editor.

    session_id: the session's id
    cancelled: set when the person cancels the turn
    """

    def __init__(
        self, editor: Connection, session_id: str, by: str, redactor: Redactor, cancelled: asyncio.Event
    ) -> None:
        self._editor, self._session_id, self._by, self._redactor = editor, session_id, by, redactor
        self._cancelled = cancelled

    async def ask(self, callback: Callback, call: Mapping[str, Any] | None) -> Answer | None:
        """Ask a question; None leaves it waiting. `call` describes the call that waits for approval."""
        try:
            value = await self._ask(callback, call)
        except RpcError:
            value = None
        if value is None:
            with contextlib.suppress(TimeoutError):  # an editor that cancels closes its dialogs first, or last
                await asyncio.wait_for(self._cancelled.wait(), _CANCEL_GRACE)
            return None
        return Answer(value, self._by, RIGHT)

    async def _ask(self, callback: Callback, call: Mapping[str, Any] | None) -> Any:
        shown = await aside(hide_secrets, callback, self._redactor)
        if is_approval(callback):
            return await self._approval(callback, shown, call or {})
        if self._editor.client.links and (link := link_of(callback, self._redactor)):
            try:
                return await self._link(callback, shown, link)
            except RpcError:  # as with forms
                pass
        form = await aside(question_form, callback, self._redactor) if self._editor.client.forms else None
        if form is not None:
            try:
                return await self._form(callback, shown, form)
            except RpcError:  # it announced forms and can't show this one
                pass
        if has_options(callback):
            return await self._options(callback, shown)
        return None

    # --- approvals ------------------------------------------------------------------------

    async def _approval(self, callback: Callback, shown: HiddenQuestion, call: Mapping[str, Any]) -> Any:
        form = arguments_form(callback, shown.callback.args or {}) if self._editor.client.forms else None
        content = await aside(self._approval_content, callback, shown, call)
        params = {
            "sessionId": self._session_id,
            "toolCall": {**call, "status": "pending", "content": content},
            "options": _approval_options(shown.callback, can_edit=form is not None),
        }
        chosen = _selected(await self._editor.call("session/request_permission", params))
        match chosen:
            case "allow":
                return Approve()
            case "allow_for_session":
                return Approve(for_session=True)
            case "reject":
                return Reject()
            case "edit" if form is not None:
                return await self._edited(callback, shown, form)
            case str() if chosen.startswith(_PATTERN) and chosen[len(_PATTERN) :] in callback.patterns:
                name = chosen[len(_PATTERN) :]
                also = tuple(one.id for one in callback.covers.get(name, ()))
                return Approve(for_session=True, pattern=name, also=also)
            case _:
                return None

    def _approval_content(
        self, callback: Callback, question: HiddenQuestion, call: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return what the person approves, whole: the change of a file, all other arguments, and who wants it."""
        shown, hidden = question
        content = list(cast("list[dict[str, Any]]", call.get("content") or []))
        rest = beside_diff(content[0], shown.args or {}) if content else shown.args or {}
        if rest or not content:
            content.append(_json_content(rest))
        for name, covered in shown.covers.items():
            also = "calls that wait" if len(covered) > 1 else "a call that waits"
            content.append(text_content(f"{visible(name)} ({visible(shown.patterns[name])}) allows {also}, too:"))
            content += [_json_content(one.args) for one in covered]
        notes = [
            f"{one_line(shown.agent, 100)} wants to run {visible(shown.tool)}.",
            *asked_parts(shown),
            *_listed_patterns(shown),
        ]
        if route := route_text(callback, self._redactor):
            notes.append(route)
        if note := hidden_note(hidden):
            notes.append(note)
        if shown.problem:
            notes.append(_refusal(shown.problem))
        return [*content, text_content("\n\n".join(notes))]

    async def _edited(self, callback: Callback, shown: HiddenQuestion, form: Form) -> Any:
        known = {one.name for one in form.fields}
        kept = {name: value for name, value in (callback.args or {}).items() if name not in known}
        problem = shown.callback.problem
        while True:
            action, args = await self._fill_in(callback, shown, form, problem)
            if action != "accept":
                return Reject() if action == "decline" else None
            try:
                restored = await aside(self._restored, callback.args, args)
                return Approve(args={**restored, **kept})
            except ValueError as error:
                problem = str(error)

    def _restored(self, args: Any, edited: Any) -> dict[str, Any]:
        return self._redactor.restore(edited, args)

    # --- questions ------------------------------------------------------------------------

    async def _form(self, callback: Callback, shown: HiddenQuestion, form: Form) -> Any:
        action, value = await self._fill_in(callback, shown, form, shown.callback.problem)
        if action == "decline":
            return Decline()
        return value if action == "accept" else None

    async def _link(self, callback: Callback, shown: HiddenQuestion, url: str) -> Any:
        """Ask the person to open a page; the editor shows where it leads before it does so."""
        params = {
            "mode": "url",
            "sessionId": self._session_id,
            "toolCallId": callback.id,
            "message": await aside(self._message, callback, shown, shown.callback.problem),
            "elicitationId": callback.id,
            "url": url,
        }
        match await self._editor.call("elicitation/create", params):
            case {"action": "accept"}:
                return callback.choices[0]
            case {"action": "decline"}:
                return Decline()
            case _:
                return None

    async def _fill_in(
        self, callback: Callback, shown: HiddenQuestion, form: Form, problem: str
    ) -> tuple[str, Any]:
        """Show a form until what was filled in is valid; returns what the person did, and the value."""
        while True:
            message = await aside(self._message, callback, shown, problem)
            action, content = await self._show(callback, form, message)
            if action != "accept":
                return action, None
            try:
                return action, form.read(content)
            except InvalidInput as error:
                problem = str(error)

    async def _show(self, callback: Callback, form: Form, message: str) -> tuple[str, dict[str, Any]]:
        params: dict[str, Any] = {
            "mode": "form",
            "sessionId": self._session_id,
            "message": message,
            "requestedSchema": form.schema,
        }
        if not is_approval(callback):
            params["toolCallId"] = callback.id
        match await self._editor.call("elicitation/create", params):
            case {"action": str(action), **rest}:
                content = rest.get("content")
                return action, cast("dict[str, Any]", content) if isinstance(content, dict) else {}
            case _:
                return "", {}

    async def _options(self, callback: Callback, shown: HiddenQuestion) -> Any:
        names = await aside(choice_names, shown.callback.choices, LONGEST_NAME, [DECLINE])
        options = [
            {"optionId": str(number), "name": name, "kind": "allow_once"} for number, name in enumerate(names)
        ]
        options.append({"optionId": _DECLINE, "name": DECLINE, "kind": "reject_once"})
        call = {
            "toolCallId": callback.id,
            "title": one_line(f"{callback.agent} asks: {shown.callback.message}", 200),
            "status": "in_progress",
            "content": [text_content(await aside(self._message, callback, shown, shown.callback.problem))],
        }
        params = {"sessionId": self._session_id, "toolCall": call, "options": options}
        chosen = _selected(await self._editor.call("session/request_permission", params))
        if chosen == _DECLINE:
            return Decline()
        is_choice = chosen.isdecimal() and len(chosen) < 6 and int(chosen) < len(callback.choices)
        return callback.choices[int(chosen)] if is_choice else None

    def _message(self, callback: Callback, question: HiddenQuestion, problem: str) -> str:
        shown = question.callback
        agent = one_line(shown.agent, 100)
        if is_approval(shown):
            parts = [f"The arguments with which {agent} runs {visible(shown.tool)}"]
        else:
            parts = [f"{agent} asks:", question_text(shown)]
        if route := route_text(callback, self._redactor):
            parts.append(route)
        if problem:
            parts.append(_refusal(problem))
        return "\n\n".join(parts)


def _refusal(problem: str) -> str:
    """Say why an answer was not accepted. The problem may name what was typed, so it is quoted."""
    return f"The answer was not accepted:\n{quoted(problem)}"


def _json_content(value: Any) -> dict[str, Any]:
    lines = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return text_content(f"```json\n{visible(lines, lines=True)}\n```")


def _approval_options(callback: Callback, *, can_edit: bool) -> list[dict[str, Any]]:
    options = [
        {"optionId": _ALLOW, "name": "Allow once", "kind": "allow_once"},
        {"optionId": _ALWAYS, "name": "Allow this call for the session", "kind": "allow_always"},
    ]
    for name, text in zip(callback.patterns, _pattern_names(callback), strict=True):
        options.append({"optionId": f"{_PATTERN}{name}", "name": text, "kind": "allow_always"})
    if can_edit:
        options.append({"optionId": _EDIT, "name": "Edit the arguments…", "kind": "allow_once"})
    return [*options, {"optionId": _REJECT, "name": "Reject", "kind": "reject_once"}]


def _pattern_names(callback: Callback) -> list[str]:
    made = [f"Allow for the session: {name} ({covers})" for name, covers in callback.patterns.items()]
    return choice_names(made, LONGEST_NAME)


def _listed_patterns(shown: Callback) -> list[str]:
    """Return the patterns whole, where the names of their options are cut."""
    if all(len(name) <= LONGEST_NAME for name in _pattern_names(shown)):
        return []
    rows = [
        f"{number}. {visible(name)} ({visible(one)})"
        for number, (name, one) in enumerate(shown.patterns.items(), 1)
    ]
    return ["\n".join(["patterns:", *(f"> {row}" for row in rows)])]


def _selected(answer: Any) -> str:
    """Return the option that was chosen; "" where the dialog was closed."""
    match answer:
        case {"outcome": {"outcome": "selected", "optionId": str(chosen)}}:
            return chosen
        case _:
            return ""
