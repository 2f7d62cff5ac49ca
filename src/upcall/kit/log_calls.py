"""Log an agent's model calls and tool calls with the standard `logging` module."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import msgspec

from upcall.agent import Kit
from upcall.contracts import SessionAccess
from upcall.errors import BadKit
from upcall.hooks import Hooks
from upcall.messages import Call, Response, Result

if TYPE_CHECKING:
    from upcall.observe.redact import Redactor

_LONGEST = 200


def log_calls(logger: logging.Logger | str | None = None, *, redactor: Redactor | None = None) -> Kit:
    """Log the start of each session, each model call and each tool call with its result, at level INFO.

    Secrets are hidden, as in everything that is shown.

    logger: a logger or its name; the default is `upcall.calls`
    redactor: hides the secrets; without one, the built-in rules and the values of secret variables do
    """
    from upcall.observe.redact import Redactor

    argument: Any = logger
    if argument is not None and not isinstance(argument, logging.Logger | str):
        raise BadKit("log_calls", f"logger must be a logging.Logger or its name, not {argument!r}")
    target = argument if isinstance(argument, logging.Logger) else logging.getLogger(argument or "upcall.calls")

    hides = redactor or Redactor(environ=os.environ)

    def one_line(value: Any) -> str:
        text = msgspec.json.encode(hides.show(hides.shortened(value, 2 * _LONGEST))).decode()
        return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"

    def log_session_start(session: SessionAccess) -> None:
        if target.isEnabledFor(logging.INFO):
            target.info("%s %s: session begins", session.agent, session.id)

    def log_response(session: SessionAccess, response: Response) -> None:
        if not target.isEnabledFor(logging.INFO):
            return
        used, calls = response.usage, ", ".join(call.name for call in response.calls)
        action = f"calls {calls}" if calls else f"says {one_line(response.text)}"
        target.info("%s %s: model %s (%d + %d tokens)", session.agent, session.id, action,
                used.input_tokens, used.output_tokens)  # fmt: skip

    def log_call(session: SessionAccess, call: Call) -> None:
        if target.isEnabledFor(logging.INFO):
            target.info("%s %s: %s %s(%s)", session.agent, session.id, call.id, call.name, one_line(call.args))

    def log_result(session: SessionAccess, call: Call, result: Result) -> None:
        if not target.isEnabledFor(logging.INFO):
            return
        outcome = "failed" if result.is_error else "ended"
        target.info(
            "%s %s: %s %s %s: %s", session.agent, session.id, call.id, call.name, outcome, one_line(result.text)
        )

    return Kit(
        Hooks(
            begin_session=[log_session_start],
            post_response=[log_response],
            before_tool=[log_call],
            after_tool=[log_result],
        )
    )
