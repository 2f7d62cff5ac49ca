"""Log an agent's model calls and tool calls with the standard `logging` module."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from upcall.agent import Kit
from upcall.contracts import SessionAccess
from upcall.errors import BadKit
from upcall.hooks import Hooks
from upcall.messages import Call, Response, Result
from upcall.safety.secrets import redacted


def log_calls(logger: logging.Logger | str | None = None) -> Kit:
    """Log the start of each session, each model call and each tool call with its result, at level INFO.

    Fields with names of secrets, and passwords in URLs, are left out.

    logger: a logger or its name; the default is `upcall.calls`
    """
    argument: Any = logger
    if argument is not None and not isinstance(argument, logging.Logger | str):
        raise BadKit("log_calls", f"logger is a logging.Logger or its name, not {argument!r}")
    target = argument if isinstance(argument, logging.Logger) else logging.getLogger(argument or "upcall.calls")

    def log_session_start(session: SessionAccess) -> None:
        if target.isEnabledFor(logging.INFO):
            target.info("%s %s: session begins", session.agent, session.id)

    def log_response(session: SessionAccess, response: Response) -> None:
        if not target.isEnabledFor(logging.INFO):
            return
        used, calls = response.usage, ", ".join(call.name for call in response.calls)
        action = f"calls {calls}" if calls else f"says {_one_line(response.text)}"
        target.info("%s %s: model %s (%d + %d tokens)", session.agent, session.id, action,
                used.input_tokens, used.output_tokens)  # fmt: skip

    def log_call(session: SessionAccess, call: Call) -> None:
        if target.isEnabledFor(logging.INFO):
            target.info("%s %s: %s %s(%s)", session.agent, session.id, call.id, call.name, _one_line(call.args))

    def log_result(session: SessionAccess, call: Call, result: Result) -> None:
        if not target.isEnabledFor(logging.INFO):
            return
        outcome = "failed" if result.is_error else "ended"
        target.info(
            "%s %s: %s %s %s: %s", session.agent, session.id, call.id, call.name, outcome, _one_line(result.text)
        )

    return Kit(
        Hooks(
            begin_session=[log_session_start],
            post_response=[log_response],
            before_tool=[log_call],
            after_tool=[log_result],
        )
    )


def _one_line(value: Any, max_chars: int = 200) -> str:
    """Return any value as one short line of JSON, without secrets."""
    text = msgspec.json.encode(redacted(value, max_chars * 2), enc_hook=str).decode()
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
