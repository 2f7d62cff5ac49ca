"""Upcall: agents that can ask back."""

from typing import TYPE_CHECKING, Any

from upcall import errors
from upcall.agent import Agent, Kit, Limits
from upcall.app import Runtime, load_agents, run
from upcall.callbacks import Answer, Approve, Callback, Decline, Reject
from upcall.contracts import Context, Delta, Missed, Reply, SessionAccess, SessionReads, Spent, SyncContext, Toolset
from upcall.core.runtime.session import Session
from upcall.errors import (
    AlreadySettled,
    AnswerRefused,
    BadAgent,
    BadAgentFile,
    BadHook,
    BadKit,
    BadTool,
    CallbackError,
    CallbackExpired,
    CallbackUnresolved,
    ChildFailed,
    ContextTooLong,
    ForeignLog,
    HookFailed,
    LimitReached,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    NotAStore,
    OutcomeUnknown,
    OutputInvalid,
    PlanRefused,
    ReplayMismatch,
    ResponseTooLarge,
    RuntimeClosed,
    ScriptExhausted,
    ServersMissing,
    SessionBusy,
    SessionError,
    SessionExists,
    SessionTakenOver,
    SessionWaiting,
    SetupError,
    StepFailed,
    StoreDamaged,
    StoreError,
    StoreTooNew,
    StoreUnavailable,
    ToolsetFailed,
    ToolSwallowedParking,
    TurnError,
    UnknownAgent,
    UnknownCallback,
    UnknownSession,
    UnknownSetting,
    UpcallError,
    WorkspaceError,
)
from upcall.events import SessionOptions
from upcall.hooks import Hooks, approval_rule, inherited
from upcall.messages import Call, Message, Request, Response, Result, Usage
from upcall.settings import Settings
from upcall.tools import Tool, tool

if TYPE_CHECKING:
    from upcall.teams import Team, chain

    __version__: str

__all__ = [
    "Agent",
    "AlreadySettled",
    "Answer",
    "AnswerRefused",
    "Approve",
    "BadAgent",
    "BadAgentFile",
    "BadHook",
    "BadKit",
    "BadTool",
    "Call",
    "Callback",
    "CallbackError",
    "CallbackExpired",
    "CallbackUnresolved",
    "ChildFailed",
    "Context",
    "ContextTooLong",
    "Decline",
    "Delta",
    "ForeignLog",
    "HookFailed",
    "Hooks",
    "Kit",
    "LimitReached",
    "Limits",
    "Message",
    "Missed",
    "ModelError",
    "ModelRefused",
    "ModelUnavailable",
    "NotAStore",
    "OutcomeUnknown",
    "OutputInvalid",
    "PlanRefused",
    "Reject",
    "ReplayMismatch",
    "Reply",
    "Request",
    "Response",
    "ResponseTooLarge",
    "Result",
    "Runtime",
    "RuntimeClosed",
    "ScriptExhausted",
    "ServersMissing",
    "Session",
    "SessionAccess",
    "SessionBusy",
    "SessionError",
    "SessionExists",
    "SessionOptions",
    "SessionReads",
    "SessionTakenOver",
    "SessionWaiting",
    "Settings",
    "SetupError",
    "Spent",
    "StepFailed",
    "StoreDamaged",
    "StoreError",
    "StoreTooNew",
    "StoreUnavailable",
    "SyncContext",
    "Team",
    "Tool",
    "ToolSwallowedParking",
    "Toolset",
    "ToolsetFailed",
    "TurnError",
    "UnknownAgent",
    "UnknownCallback",
    "UnknownSession",
    "UnknownSetting",
    "UpcallError",
    "Usage",
    "WorkspaceError",
    "approval_rule",
    "chain",
    "errors",
    "inherited",
    "load_agents",
    "run",
    "tool",
]


def __getattr__(name: str) -> Any:
    """Import rarely used names when they are first used: teams, chains, the version."""
    if name in ("Team", "chain"):
        from upcall import teams

        return getattr(teams, name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("upcall")
        except PackageNotFoundError:  # run from its sources
            return "0+unknown"
    raise AttributeError(f"module 'upcall' has no attribute {name!r}")
