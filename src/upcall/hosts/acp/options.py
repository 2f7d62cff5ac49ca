"""The choices that a session offers in an editor: its mode of approvals and its model, as modes and as options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upcall.agent import Agent
from upcall.events import SessionOptions
from upcall.jsonrpc.errors import INVALID_PARAMS, RpcError

MODE, MODEL = "mode", "model"
_MODES: Mapping[str, tuple[str, str]] = {
    "default": ("As declared", "Ask where the agent's tools and policies say so"),
    "ask": ("Ask first", "Ask before every call that is not known to be read-only"),
}
_APPROVALS: Mapping[str, Any] = {"default": "", "ask": "ask"}
_OWN_MODEL = "default"


def mode_of(options: SessionOptions) -> str:
    """Return the id of the mode that a session is in."""
    return "ask" if options.approvals == "ask" else "default"


def modes(options: SessionOptions) -> dict[str, Any]:
    """Return the modes, with the current one."""
    available = [{"id": key, "name": name, "description": about} for key, (name, about) in _MODES.items()]
    return {"currentModeId": mode_of(options), "availableModes": available}


def config_options(agent: Agent, options: SessionOptions) -> list[dict[str, Any]]:
    """Return the options with their values."""
    found: list[dict[str, Any]] = [
        {
            "id": MODE,
            "name": "Approvals",
            "category": "mode",
            "type": "select",
            "currentValue": mode_of(options),
            "options": [
                {"value": key, "name": name, "description": about} for key, (name, about) in _MODES.items()
            ],
        }
    ]
    if agent.models:
        choices = [{"value": _OWN_MODEL, "name": "Default"}, *({"value": m, "name": m} for m in agent.models)]
        found.append(
            {
                "id": MODEL,
                "name": "Model",
                "category": "model",
                "type": "select",
                "currentValue": options.model or _OWN_MODEL,
                "options": choices,
            }
        )
    return found


def changed(agent: Agent, options: SessionOptions, name: str, value: str | bool) -> SessionOptions:
    """Return the options with another value; RpcError if there is no such option or value."""
    if name == MODE and isinstance(value, str) and value in _MODES:
        return options.replace(approvals=_APPROVALS[value])
    if name == MODEL and isinstance(value, str) and (value == _OWN_MODEL or value in agent.models):
        return options.replace(model="" if value == _OWN_MODEL else value)
    known = {MODE: ", ".join(_MODES), MODEL: ", ".join((_OWN_MODEL, *agent.models))}
    if name not in known:
        raise RpcError(INVALID_PARAMS, f"unknown option {name[:100]!r}; the options are {MODE} and {MODEL}")
    raise RpcError(INVALID_PARAMS, f"{value!r:.100} is not a valid value of {name}; use one of {known[name]}")
