"""Checks what an agent sent against the published schema of the protocol."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator

SCHEMAS = Path(__file__).parent.parent / "peers/node_modules/@agentclientprotocol/sdk/schema/v1"


@cache
def definitions(unstable: bool) -> dict[str, Any]:
    """The whole schema."""
    name = "schema.unstable.json" if unstable else "schema.json"
    return msgspec.json.decode((SCHEMAS / name).read_bytes())


@cache
def validator(name: str, unstable: bool) -> Validator:
    """A validator of one definition."""
    whole = definitions(unstable)
    return Draft202012Validator({"$schema": whole["$schema"], "$defs": whole["$defs"], "$ref": f"#/$defs/{name}"})


@cache
def names(unstable: bool) -> dict[tuple[str, str], str]:
    """The definitions of what an agent sends, by method and kind: request, response or notification."""
    found: dict[tuple[str, str], str] = {("$/cancel_request", "Notification"): "CancelRequestNotification"}
    for name, one in definitions(unstable)["$defs"].items():
        kind = re.search("(Request|Response|Notification)$", name)
        if "x-method" in one and kind is not None:
            found[one["x-method"], kind[1]] = name
    return found


def problems(lines: list[bytes]) -> list[str]:
    """What is wrong with the lines that a tap wrote, of one process; `> ` marks the client's, `< ` the agent's."""
    wrong: list[str] = []
    methods: dict[Any, str] = {}
    unstable = False
    for line in lines:
        mark, body = line[:2], line[2:]
        if mark == b"> ":
            sent: Any = msgspec.json.decode(body)
            if sent.get("method") == "initialize":
                unstable = sent["params"].get("clientCapabilities", {}).get("subagents") is not None
            if "method" in sent and "id" in sent:
                methods[sent["id"]] = sent["method"]
        elif mark == b"< ":
            wrong += _problems(msgspec.json.decode(body), methods, unstable)
    return wrong


def _problems(message: Any, methods: dict[Any, str], unstable: bool) -> list[str]:
    if set(message) - {"jsonrpc", "id", "method", "params", "result", "error"} or message["jsonrpc"] != "2.0":
        return [f"not a JSON-RPC message: {message}"]
    if "method" in message:
        kind = "Request" if "id" in message else "Notification"
        method, value = message["method"], message["params"]
    elif "error" in message:
        return _failures(validator("Error", unstable), message["error"], message)
    else:
        kind, method, value = "Response", methods[message["id"]], message["result"]
    name = names(unstable).get((method, kind))
    if name is None:
        return [f"no {kind} for {method} in the schema"]
    return _failures(validator(name, unstable), value, message)


def _failures(check: Validator, value: Any, message: Any) -> list[str]:
    return [
        f"{error.json_path}: {error.message[:300]} in {str(message)[:400]}" for error in check.iter_errors(value)
    ]
