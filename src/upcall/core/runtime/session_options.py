"""The options of one session: checked before they are stored, and turned into what a turn runs with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upcall.agent import Agent
from upcall.core.error_texts import did_you_mean
from upcall.core.log.state import SessionState
from upcall.errors import SetupError
from upcall.events import DEFAULT_OPTIONS, SessionOptions
from upcall.hooks import Hooks, approval_rule, inherited
from upcall.safety.bounds import brief
from upcall.tools import Tool, is_own_tool


def checked_options(agent: Agent, options: Any) -> SessionOptions:
    """Return the options if the agent can run with them; SetupError says why it can't."""
    if options is None or options == DEFAULT_OPTIONS:
        return DEFAULT_OPTIONS
    if not isinstance(options, SessionOptions):
        raise SetupError(
            f'options must be a SessionOptions value, such as SessionOptions("deep"), not {brief(options)}'
        )
    if options.approvals not in ("", "ask"):
        raise SetupError(f"SessionOptions(approvals=...) must be 'ask' or left out, not {brief(options.approvals)}")
    check_model(agent, options.model)
    return options


def check_is_root(state: SessionState) -> None:
    """Refuse options for a session that another one started."""
    if state.header.parent:
        raise SetupError(
            f"{state.id} is not a root session; set the options of its root {state.header.root!r} instead"
        )


def check_model(agent: Agent, name: Any) -> None:
    """Refuse the name of a model that the agent does not have; empty is its own."""
    if name == "" or (isinstance(name, str) and name in agent.models):
        return
    if not agent.models:
        raise SetupError(
            f"agent {agent.name!r} has no models to choose from; declare them with Agent(models={{...}})"
        )
    meant = did_you_mean(name, list(agent.models)) if isinstance(name, str) else ""
    raise SetupError(
        f"agent {agent.name!r} has no model called {brief(name)}, only {', '.join(agent.models)}.{meant}"
    )


def _changes_something(tool: Tool, args: Mapping[str, Any]) -> bool:
    return not tool.read_only and not is_own_tool(tool)


ASKING = Hooks(before_tool=[inherited(approval_rule(_changes_something))])
"""The hooks that a root session has with `approvals="ask"`. Its children inherit them."""
