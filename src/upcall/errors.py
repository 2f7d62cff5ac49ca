"""Everything that can go wrong, as one tree. Each error builds its own text from its fields.

UpcallError
├── SetupError                  what a programmer wrote can't work; found before anything runs
│   ├── BadAgent                an Agent, Limits or kit value
│   ├── BadKit                  what a piece of the kit was given, or a file it reads
│   ├── BadTool                 a function that can't be a tool
│   ├── BadHook                 a hook with a wrong signature, or for a hook point that does not exist
│   ├── BadAgentFile            an agent file or its sidecar, with file, line and key
│   ├── ServersMissing          a session needs MCP servers that are not described here
│   └── UnknownAgent            a name that no agent here has
├── RuntimeClosed               what ran stopped where it was and can be resumed
├── SessionError                a session can't do that now
│   ├── UnknownSession
│   ├── SessionExists
│   ├── TurnExists              another prompt was submitted for that turn
│   ├── QueueFull               as much is queued as the limit allows
│   ├── SessionBusy             somebody else drives it
│   ├── SessionWaiting          it waits for answers
│   └── SessionTakenOver        this process lost it to another
├── TurnError                   the turn failed; the session can go on
│   ├── HookFailed
│   ├── LimitReached            a limit ended the turn; hooks may raise it too
│   ├── ChildFailed             a child session's turn failed
│   ├── PlanRefused             a team's manager wrote no valid plan
│   ├── StepFailed              a branch's pick or a fan-out's join can't be used
│   ├── OutputInvalid           the reply never matched Agent(output=...)
│   ├── ToolsetFailed           a toolset can't list its tools, or offers a name twice
│   ├── ToolSwallowedParking    a tool caught the exception that parks it
│   └── ModelError              the model call failed after its retries
│       ├── ContextTooLong
│       ├── ModelRefused        a key, a name or a request the provider won't take
│       │   └── UnknownSetting  a setting that the provider does not know
│       ├── ModelUnavailable    overload, 5xx, broken connections, silence
│       ├── ResponseTooLarge    a response exceeds a bound; it is not asked for again
│       └── ScriptExhausted     a Script has no reply left
├── CallEnded                   a task or thread of a tool call or hook used the session after its end
├── CallbackError               asking and answering
│   ├── CallbackUnresolved
│   ├── CallbackExpired
│   ├── ReplayMismatch
│   ├── OutcomeUnknown
│   ├── AnswerRefused
│   ├── AlreadySettled
│   └── UnknownCallback
├── WorkspaceError              a file or a path that can't be used, and why
├── AccessError                 tokens of people, and what they allow
│   ├── AccessDenied            a token is not valid, or its role does not allow that
│   ├── TokenExists             a token with that name is valid already
│   └── UnknownToken            no valid token has that name
└── StoreError                  the log can't be read or written
    ├── NotAStore               a file that is something else
    ├── StoreTooNew
    ├── StoreDamaged
    └── StoreUnavailable        locked, read-only, full, or another user's
        ├── StoreUnreachable    the database is away, and may be back later
        └── ForeignLog          a log that was found here and that the user did not make
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence

from upcall.safety.secrets import without_password


class UpcallError(Exception):
    """The root of every error that Upcall raises on purpose."""


class SetupError(UpcallError):
    """A declaration or an argument can't work; found before anything runs."""


class BadAgent(SetupError):
    """An Agent, Limits or kit value is not valid."""

    def __init__(self, agent: str, problem: str) -> None:
        self.agent, self.problem = agent, problem
        super().__init__(f"agent {agent!r}: {problem}")


class BadKit(SetupError):
    """An argument of a kit, or a file that it reads, is not valid."""

    def __init__(self, piece: str, problem: str) -> None:
        self.piece, self.problem = piece, problem
        super().__init__(f"{piece}: {problem}")


class BadTool(SetupError):
    """A function can't be a tool."""

    def __init__(self, tool: str, problem: str) -> None:
        self.tool, self.problem = tool, problem
        super().__init__(f"tool {tool!r}: {problem}")


class BadHook(SetupError):
    """A hook has a wrong signature, or its point does not exist. `hook` is empty if the point does not exist."""

    def __init__(self, hook: str, point: str, problem: str) -> None:
        self.hook, self.point, self.problem = hook, point, problem
        super().__init__(f"hook {hook} at {point}: {problem}" if hook else f"{point} {problem}")


class BadAgentFile(SetupError):
    """An agent file or its sidecar is wrong; says where and what is allowed."""

    def __init__(self, file: str, problem: str, *, line: int | None = None, key: str = "") -> None:
        self.file, self.line, self.key, self.problem = file, line, key, problem
        where = file if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {key}: {problem}" if key else f"{where}: {problem}")


class UnknownAgent(SetupError):
    """No agent of this runtime has that name."""

    def __init__(
        self, name: str, known: Iterable[str], do: str = "Give it with Runtime(..., agents=[...])"
    ) -> None:
        self.name, self.known = name, tuple(sorted(known))
        super().__init__(
            f"there is no agent called {name!r}; known agents: {', '.join(self.known) or 'none'}. {do}"
        )


class ServersMissing(SetupError):
    """A session needs MCP servers that are not described here. No part of the session was run."""

    def __init__(self, session: str, missing: Sequence[str]) -> None:
        self.session, self.missing = session, tuple(missing)
        names = ", ".join(map(repr, self.missing))
        several = len(self.missing) > 1
        what = f"the MCP server{'s' if several else ''} {names}"
        do = (
            f"Describe {'them under these names' if several else 'it under this name'} in mcp.json beside the agent"
        )
        do += f" files, or resume the session where {'they are' if several else 'it is'} available"
        super().__init__(
            f"session {session!r} needs {what}, but nothing here describes {'them' if several else 'it'}. {do}"
        )


class RuntimeClosed(UpcallError):
    """The runtime was closed while a turn ran: it stopped where it was and can be resumed.

    A closed runtime raises it for every call. Then `begun` is False, and nothing was written.
    """

    def __init__(self, *, begun: bool = True) -> None:
        self.begun = begun
        super().__init__(
            "the runtime was closed while this turn ran; it can be resumed"
            if begun
            else "the runtime is closed or closing, so it starts nothing new; create another runtime"
        )


class SessionError(UpcallError):
    """A session can't do that now."""

    session_id: str


class UnknownSession(SessionError):
    """The store has no session with that id."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"there is no session called {session_id!r}; `upcall sessions` lists the sessions")


class SessionExists(SessionError):
    """`start` was given an id that is taken."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"a session called {session_id!r} already exists; continue it with runtime.load({session_id!r}), "
            "or start with another id"
        )


class TurnExists(SessionError):
    """Another prompt was submitted for a turn that exists already, or the turns before it are missing."""

    def __init__(self, session_id: str, turn: int, problem: str = "it has another prompt") -> None:
        self.session_id, self.turn, self.problem = session_id, turn, problem
        super().__init__(
            f"turn {turn} of session {session_id!r} can't be queued: {problem}; "
            "give the number of the next turn, or the id of another session"
        )


class QueueFull(SessionError):
    """Nothing was queued: as many sessions as the limit allows are queued already."""

    def __init__(self, session_id: str, limit: int) -> None:
        self.session_id, self.limit = session_id, limit
        super().__init__(
            f"session {session_id!r} was not queued: the queue is at its limit of {limit}; "
            "try again later, start more workers, or raise the limit"
        )


class SessionBusy(SessionError):
    """Another living owner runs the session."""

    def __init__(self, session_id: str, owner: str, *, is_local: bool = False) -> None:
        """`is_local`: the owner is this program itself, so it is useless to wait for its lease to end."""
        self.session_id, self.owner, self.is_local = session_id, owner, is_local
        super().__init__(
            f"session {session_id!r} is being run by {owner}; wait for it, cancel it, "
            "or take it over with take_over=True"
        )


class SessionWaiting(SessionError):
    """The session waits for answers and accepts no new prompt until it has them."""

    def __init__(self, session_id: str, callbacks: Sequence[str]) -> None:
        self.session_id, self.callbacks = session_id, tuple(callbacks)
        ids = ", ".join(self.callbacks)
        super().__init__(
            f"session {session_id!r} waits for an answer to {ids}; answer with "
            f"`upcall answer ID`, then `upcall resume {shlex.quote(session_id)}`"
        )


class SessionTakenOver(SessionError):
    """Another process took the session; nothing more was written from here."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id!r} was taken over by another process; its calls in this process were "
            "cancelled, and results that arrived later were dropped"
        )


class TurnError(UpcallError):
    """The turn failed; the session is kept and can continue."""


class HookFailed(TurnError):
    """A hook raised; the turn ended there.

    `stored`: whether the session exists. It is False if a begin_session hook failed before the session was stored.
    """

    def __init__(self, hook: str, point: str, error: BaseException, *, stored: bool = True) -> None:
        self.hook, self.point, self.error, self.stored = hook, point, error, stored
        then = "a session that is kept on disk can then be resumed" if stored else "no session was started"
        raised = f"{type(error).__name__}: {error}".removesuffix(".")
        super().__init__(f"hook {hook} at {point} raised {raised}. Fix the hook; {then}.")


class LimitReached(TurnError):
    """A limit was reached; the turn ends with status `limit` and this name. Hooks may raise it too."""

    def __init__(self, limit: str, problem: str = "") -> None:
        self.limit, self.problem = limit, problem
        super().__init__(f"limit {limit} reached" + (f": {problem}" if problem else ""))


class ToolsetFailed(TurnError):
    """A toolset could not list its tools, or what it offers can't be used; `resume` asks it again."""

    def __init__(self, toolset: str, problem: str) -> None:
        self.toolset, self.problem = toolset, problem
        super().__init__(f"toolset {toolset!r}: {problem}")


class ChildFailed(TurnError):
    """The turn of a child session failed; its own log says where. `session_id` is "" where it was never started."""

    def __init__(self, session_id: str, agent: str, error: str) -> None:
        self.session_id, self.agent, self.error = session_id, agent, error
        what = f"{agent} (session {session_id}) failed" if session_id else f"{agent} could not be started"
        super().__init__(f"{what}: {error}")


class PlanRefused(TurnError):
    """A team's manager wrote no valid plan. No part of any plan was run."""

    def __init__(self, manager: str, tries: int, problems: Sequence[str]) -> None:
        self.manager, self.tries, self.problems = manager, tries, tuple(problems)
        super().__init__(
            f"{manager} wrote no valid plan in {tries} tries; problems of the last plan:\n"
            + "\n".join(f"- {problem}" for problem in problems)
            + "\nNo part of it was run. Fix the manager's instructions and resume: the manager is asked again."
        )


class StepFailed(TurnError):
    """A step of a chain failed in `pick` or `join`."""

    def __init__(self, step: str, problem: str) -> None:
        self.step, self.problem = step, problem
        super().__init__(f"step {step}: {problem}")


class OutputInvalid(TurnError):
    """The reply never matched the agent's output type."""

    def __init__(self, agent: str, tries: int, problem: str, text: str) -> None:
        self.agent, self.tries, self.problem, self.text = agent, tries, problem, text
        super().__init__(f"{agent}'s reply did not match its output type in {tries} tries: {problem}")


class ToolSwallowedParking(TurnError):
    """A tool caught the exception that parks it, so its question would have been lost."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        super().__init__(
            f"tool {tool!r} caught the exception that parks it while its callback waits. Don't "
            "catch BaseException: use `except Exception`, or re-raise it, and don't return from a `finally` block"
        )


class ModelError(TurnError):
    """A model call failed after its own retries."""


class ContextTooLong(ModelError):
    """The request has more tokens than the model accepts."""

    def __init__(self, model: str, tokens: int | None, limit: int | None) -> None:
        self.model, self.tokens, self.limit = model, tokens, limit
        sizes = f"{tokens or 'unknown'} tokens requested, {limit or 'unknown'} allowed"
        super().__init__(f"{model}: the conversation is too long ({sizes}); compact it and resume")


class ModelRefused(ModelError):
    """The provider refuses the request because of the key, the model's name, or the request itself."""

    def __init__(self, model: str, problem: str, status: int | None = None) -> None:
        self.model, self.problem, self.status = model, problem, status
        super().__init__(f"{model}: {problem}" + (f" (HTTP {status})" if status else ""))


class UnknownSetting(ModelRefused):
    """A setting was given that the model's provider does not know. Nothing was sent."""

    def __init__(self, model: str, names: Sequence[str], known: Sequence[str]) -> None:
        self.names = tuple(names)
        what = f"the setting{'s' if len(names) != 1 else ''} {', '.join(names)}"
        knows = f"it supports {', '.join(known)}" if known else "it supports none"
        them = "it" if len(names) == 1 else "them"
        super().__init__(
            model, f"does not support {what}; {knows}. Leave {them} out, or use {them} with another model"
        )


class ModelUnavailable(ModelError):
    """The provider could not be reached, was overloaded, or stopped answering, in every attempt."""

    def __init__(self, model: str, problem: str, tries: int = 1, status: int | None = None) -> None:
        """`status`: of the last answer over HTTP, where there was one; 429 means too many requests."""
        self.model, self.problem, self.tries, self.status = model, problem, tries, status
        super().__init__(f"{model}: {problem} (tried {tries} time{'s' if tries != 1 else ''})")


class ResponseTooLarge(ModelError):
    """A response exceeds a bound: of bytes, events, text or tool calls. The model is not asked again."""

    def __init__(self, model: str, excess: str) -> None:
        self.model, self.problem = model, f"sent {excess}"
        super().__init__(f"{model}: {self.problem}")


class ScriptExhausted(ModelError):
    """A Script was asked more often than it has replies."""

    def __init__(self, replies: int) -> None:
        self.replies = replies
        super().__init__(
            f"the script has no reply left: all {replies} were used; add a reply, "
            "or use Script(function), which decides from the request"
        )


class CallEnded(UpcallError):
    """A task or thread that a tool call or a hook left behind used its session after the call or hook had ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"{name} has ended, so tasks and threads that it left running can no longer ask, write or start "
            f"anything in its session. Wait for them before {name} returns"
        )


class CallbackError(UpcallError):
    """Asking or answering failed."""


class CallbackUnresolved(CallbackError):
    """Nobody may or would answer a callback that must not be ignored.

    If a person declined it, `declined_by` is that person and `reason` is why; else `declined_by` is None.
    """

    def __init__(
        self,
        intent: str,
        message: str,
        asker: str,
        story: Sequence[str],
        *,
        declined_by: str | None = None,
        reason: str = "",
    ) -> None:
        self.intent, self.message, self.asker, self.story = intent, message, asker, tuple(story)
        self.declined_by, self.reason = declined_by, reason
        first = f"nobody may answer the {intent} {_short(message)!r} from {asker}."
        if declined_by is not None:
            by = f"{declined_by or 'somebody'}: {reason}" if reason else f"{declined_by or 'somebody'}."
            first = f"the {intent} {_short(message)!r} from {asker} was declined by {by}"
        super().__init__("\n".join([first, *self.story]))


class CallbackExpired(CallbackError):
    """Nobody answered in time, and there was no default."""

    def __init__(self, callback_id: str, message: str, after: float) -> None:
        self.callback_id, self.message, self.after = callback_id, message, after
        super().__init__(
            f"callback {callback_id} ({_short(message)!r}) expired after {round(after, 1):g} s without an answer"
        )


class ReplayMismatch(CallbackError):
    """A tool or hook that ran again did not ask the question that was answered."""

    def __init__(self, who: str, unclaimed: Sequence[str]) -> None:
        self.who, self.unclaimed = who, tuple(unclaimed)
        super().__init__(
            f"{who} ran again after an answer but no longer asks the question that was answered; "
            f"unused answers: {'; '.join(self.unclaimed)}. "
            "Keep questions the same between runs, or give them a key="
        )


class OutcomeUnknown(CallbackError):
    """An effect had started when the process died; it is not repeated automatically."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"the process died while the effect {name!r} was running, so its outcome is unknown; "
            "find out what happened before doing it again"
        )


class AnswerRefused(CallbackError):
    """An answer was not accepted; the callback is unchanged."""

    def __init__(self, callback_id: str, problem: str) -> None:
        self.callback_id, self.problem = callback_id, problem
        super().__init__(f"callback {callback_id} stays open: {problem}")


class AlreadySettled(CallbackError):
    """The callback was settled before: answered, declined, expired or withdrawn."""

    def __init__(self, callback_id: str, status: str, by: str, at: float) -> None:
        self.callback_id, self.status, self.by, self.at = callback_id, status, by, at
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        super().__init__(f"callback {callback_id} was {status}" + (f" by {by}" if by else "") + f" at {when}")


class UnknownCallback(CallbackError):
    """The store has no callback with that id."""

    def __init__(self, callback_id: str) -> None:
        self.callback_id = callback_id
        super().__init__(
            f"there is no callback called {callback_id!r}; `upcall inbox` lists those that wait for a person"
        )


class WorkspaceError(UpcallError):
    """A file of a workspace can't be read or written, or its path leads outside. `missing`: nothing is there."""

    def __init__(self, path: str, problem: str, *, missing: bool = False) -> None:
        self.path, self.problem, self.missing = path, problem, missing
        super().__init__(f"{path}: {problem}")


class AccessError(UpcallError):
    """The base class of errors about people's tokens."""


class AccessDenied(AccessError):
    """A token is not valid, or its role does not allow what was asked for. Nothing was changed."""

    def __init__(self, by: str, problem: str) -> None:
        self.by, self.problem = by, problem
        super().__init__(f"{problem}; nothing was changed")


class TokenExists(AccessError):
    """A token with that name is valid already."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"a valid token called {name!r} already exists; choose another name, or revoke that token first: "
            f"upcall tokens revoke {shlex.quote(name)}"
        )


class UnknownToken(AccessError):
    """No valid token has that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no valid token called {name!r}; `upcall tokens list` shows all tokens")


class StoreError(UpcallError):
    """The log can't be read or written."""

    def __init__(self, where: str, problem: str) -> None:
        where, problem = without_password(where), without_password(problem)
        self.where, self.problem = where, problem
        super().__init__(f"{where}: {problem}")


class NotAStore(StoreError):
    """The file or database belongs to something else; it was not touched."""


class StoreTooNew(StoreError):
    """The store was written by a newer version."""


class StoreDamaged(StoreError):
    """The store's content can't be read."""


class StoreUnavailable(StoreError):
    """The store is locked, read-only, full, deleted, or not the user's own."""


class StoreUnreachable(StoreUnavailable):
    """The database can't be reached now. It may be reached later: workers wait for it."""


class ForeignLog(StoreUnavailable):
    """A default log was found that the user neither made nor adopted; it can only be read."""

    def __init__(self, where: str, problem: str = "") -> None:
        typed = shlex.quote(where)
        super().__init__(
            where,
            problem
            or "this log may not be yours: it may have come with this folder. Nothing in it is run, answered or "
            "imported; `upcall sessions`, `show`, `events` and `inbox` show it. If you trust it, give its path "
            f"(--store {typed}, or UPCALL_STORE), or adopt it: upcall adopt {typed}",
        )


STOPS = (RuntimeClosed, SessionTakenOver, StoreError)
"""Exceptions that end the work of this process on a session. They never count as a failure of a hook or a tool."""


def _short(text: str, most: int = 120) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
