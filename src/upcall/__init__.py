"""Upcall: agents that can ask questions while they work."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upcall import errors
    from upcall.agent import Agent, Kit, Limits
    from upcall.app import Runtime, load_agents, run
    from upcall.callbacks import Answer, Approve, Callback, Decline, Reject
    from upcall.contracts import (
        Context,
        Delta,
        Missed,
        Reply,
        SessionAccess,
        SessionReads,
        Spent,
        SyncContext,
        Toolset,
    )
    from upcall.core.runtime.session import Session
    from upcall.errors import (
        AccessDenied,
        AccessError,
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
        CallEnded,
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
        QueueFull,
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
        StoreUnreachable,
        TokenExists,
        ToolsetFailed,
        ToolSwallowedParking,
        TurnError,
        TurnExists,
        UnknownAgent,
        UnknownCallback,
        UnknownSession,
        UnknownSetting,
        UnknownToken,
        UpcallError,
        WorkspaceError,
    )
    from upcall.events import SessionOptions
    from upcall.hooks import Hooks, approval_rule, inherited
    from upcall.messages import Call, Message, Request, Response, Result, Usage
    from upcall.settings import Settings
    from upcall.teams import Team, chain
    from upcall.tools import Tool, tool

    __version__: str

__all__ = [
    "AccessDenied",
    "AccessError",
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
    "CallEnded",
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
    "QueueFull",
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
    "StoreUnreachable",
    "SyncContext",
    "Team",
    "TokenExists",
    "Tool",
    "ToolSwallowedParking",
    "Toolset",
    "ToolsetFailed",
    "TurnError",
    "TurnExists",
    "UnknownAgent",
    "UnknownCallback",
    "UnknownSession",
    "UnknownSetting",
    "UnknownToken",
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


_PLACES = {
    "upcall.agent": ("Agent", "Kit", "Limits"),
    "upcall.app": ("Runtime", "load_agents", "run"),
    "upcall.callbacks": ("Answer", "Approve", "Callback", "Decline", "Reject"),
    "upcall.contracts": (
        "Context",
        "Delta",
        "Missed",
        "Reply",
        "SessionAccess",
        "SessionReads",
        "Spent",
        "SyncContext",
        "Toolset",
    ),
    "upcall.core.runtime.session": ("Session",),
    "upcall.events": ("SessionOptions",),
    "upcall.hooks": ("Hooks", "approval_rule", "inherited"),
    "upcall.messages": ("Call", "Message", "Request", "Response", "Result", "Usage"),
    "upcall.settings": ("Settings",),
    "upcall.tools": ("Tool", "tool"),
    "upcall.teams": ("Team", "chain"),
}
"""The names of this package by the module that has them; all others are errors."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a program that needs little of the package starts sooner."""
    from importlib import import_module

    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module 'upcall' has no attribute {name!r}")
    place = next((place for place, names in _PLACES.items() if name in names), "upcall.errors")
    module = import_module(place)
    found = globals()[name] = module if name == "errors" else getattr(module, name)
    return found


def __dir__() -> list[str]:
    """List the names before they are used, for editors and the interactive interpreter."""
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("upcall")
    except PackageNotFoundError:  # run from its sources
        return "0+unknown"
