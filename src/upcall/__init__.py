"""Upcall: agents that can ask back.

May import: agent, app, callbacks, contracts, errors, hooks, messages, runtime, tools.
"""

from upcall import errors
from upcall.agent import Agent, Kit, Limits
from upcall.app import Runtime, run
from upcall.callbacks import Answer, Approve, Callback, Reject
from upcall.contracts import Context, Delta, Reply, SessionAccess, SyncContext
from upcall.errors import *  # noqa: F403
from upcall.hooks import Hooks, inherited
from upcall.messages import Call, Message, Request, Response, Result, Usage
from upcall.runtime import Session
from upcall.tools import Tool, tool

__all__ = [
    "Agent",
    "Answer",
    "Approve",
    "Call",
    "Callback",
    "Context",
    "Delta",
    "Hooks",
    "Kit",
    "Limits",
    "Message",
    "Reject",
    "Reply",
    "Request",
    "Response",
    "Result",
    "Runtime",
    "Session",
    "SessionAccess",
    "SyncContext",
    "Tool",
    "Usage",
    "errors",
    "inherited",
    "run",
    "tool",
    *errors.__all__,
]
