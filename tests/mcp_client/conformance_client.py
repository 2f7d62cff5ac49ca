"""The client that the conformance suite drives: an agent that calls every tool of the server at an address."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

from upcall import Agent, Runtime
from upcall.callbacks import Callback
from upcall.links.mcp import McpServers
from upcall.messages import Request
from upcall.models import Script, call

PREFIX = "tested__"
METADATA = "https://conformance-test.local/client-metadata.json"


class Person:
    """Answers every question with what its form requires, and leaves the rest to its defaults."""

    async def ask(self, callback: Callback) -> Any:
        schema = callback.schema or {}
        required = schema.get("required", ())
        return {
            name: sample(one) for name, one in schema.get("properties", {}).items()
            if name in required and "default" not in one
        }  # fmt: skip

    def withdraw(self, callback_id: str, reason: str) -> None: ...


def sample(schema: Mapping[str, Any]) -> Any:
    """A value that fits a simple schema."""
    if "default" in schema or "const" in schema:
        return schema.get("default", schema.get("const"))
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("oneOf"):
        return sample(schema["oneOf"][0])
    kind = schema.get("type", "string")
    values: dict[str, Any] = {"string": "x", "number": 5, "integer": 5, "boolean": True, "array": [], "null": None}
    return arguments(schema) if kind == "object" else values[kind if isinstance(kind, str) else kind[0]]


def arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit a tool's schema."""
    return {name: sample(one) for name, one in schema.get("properties", {}).items()}


async def authorize(server: str, link: str) -> str:
    """Open the link as a browser would, and say where it leads back to."""
    import httpx2

    async with httpx2.AsyncClient() as browser:
        return (await browser.get(link)).headers["location"]


def calls(request: Request, context: Mapping[str, Any]) -> Any:
    wanted = context.get("toolCalls")
    if wanted:
        return [call(PREFIX + one["name"], **one.get("arguments", {})) for one in wanted]
    tools = [tool for tool in request.tools if tool.name.startswith(PREFIX)]
    described = tools[0].schema if tools else {}
    return [
        call(tool.name, **({"schema": described} if tool.name.endswith("_echo") else arguments(tool.schema)))
        for tool in tools
    ]


async def main(url: str, scenario: str, context: Mapping[str, Any]) -> None:
    """Call every tool, or the calls that the context names."""
    config: dict[str, Any] = {"url": url, "autoApprove": ["*"]}
    if scenario.startswith("auth/"):
        config["oauth"] = {"clientMetadataUrl": METADATA} if "cimd" in scenario else True
        if context.get("client_id"):
            config["oauth"] = {"clientId": context["client_id"], "clientSecret": context.get("client_secret", "")}
    rounds = 0

    def model(request: Request) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 1 and (made := calls(request, context)):
            return made
        return "done"

    with tempfile.TemporaryDirectory() as folder:
        servers = McpServers({"tested": config}, wait=60, tokens=folder, authorize=authorize)
        agent = Agent("client", model=Script(model), tools=[servers])
        async with Runtime(":memory:", agents=[agent], host=Person()) as runtime:
            session = await runtime.start("client")
            await session.prompt("Call every tool.")
