"""What an agent does, told to a logger of Python's own."""

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
    """Log each session's begin, each model call and each tool call with its result, at level INFO.

    Fields that are named like secrets, and passwords in URLs, are left out.

    logger: a logger or its name; `upcall.calls` if there is none
    """
    given: Any = logger
    if given is not None and not isinstance(given, logging.Logger | str):
        raise BadKit("log_calls", f"logger is a logging.Logger or its name, not {given!r}")
    to = given if isinstance(given, logging.Logger) else logging.getLogger(given or "upcall.calls")

    def began(session: SessionAccess) -> None:
        if to.isEnabledFor(logging.INFO):
            to.info("%s %s: session begins", session.agent, session.id)

    def responded(session: SessionAccess, response: Response) -> None:
        if not to.isEnabledFor(logging.INFO):
            return
        used, calls = response.usage, ", ".join(call.name for call in response.calls)
        what = f"calls {calls}" if calls else f"says {_shown(response.text)}"
        to.info("%s %s: model %s (%d + %d tokens)", session.agent, session.id, what,
                used.input_tokens, used.output_tokens)  # fmt: skip

    def calls(session: SessionAccess, call: Call) -> None:
        if to.isEnabledFor(logging.INFO):
            to.info("%s %s: %s %s(%s)", session.agent, session.id, call.id, call.name, _shown(call.args))

    def called(session: SessionAccess, call: Call, result: Result) -> None:
        if not to.isEnabledFor(logging.INFO):
            return
        how = "failed" if result.is_error else "ended"
        to.info("%s %s: %s %s %s: %s", session.agent, session.id, call.id, call.name, how, _shown(result.text))

    return Kit(Hooks(begin_session=[began], post_response=[responded], before_tool=[calls], after_tool=[called]))


def _shown(value: Any, most: int = 200) -> str:
    """On one line, short and without secrets, whatever it holds."""
    text = msgspec.json.encode(redacted(value, most * 2), enc_hook=str).decode()
    return text if len(text) <= most else text[: most - 1] + "…"
