"""The server scenarios of MCP's conformance suite, in both eras."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from mcp_server.serving import own_http_server, run_peer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_HOPS = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding"}


class Proxy:
    """Forwards requests to the server as they are, but for two things that the suite can't do.

    It adds the token, and it writes a tool's arguments into the prompt: agents take one, the suite's tools don't.
    """

    def __init__(self, server: str, token: str) -> None:
        self._server, self._token = server, token
        self.url = ""

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        app = web.Application(client_max_size=10_000_000)
        app.router.add_route("*", "/mcp", self._forward)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert runner.addresses
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        async with aiohttp.ClientSession(auto_decompress=False) as self._http:
            yield
        await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOPS}
        headers["Authorization"] = f"Bearer {self._token}"
        body = _with_prompt(await request.read())
        async with self._http.request(request.method, self._server, headers=headers, data=body) as got:
            kept = {name: value for name, value in got.headers.items() if name.lower() not in _HOPS}
            response = web.StreamResponse(status=got.status, headers=kept)
            await response.prepare(request)
            with suppress(ConnectionResetError):  # the suite leaves some streams early
                async for chunk in got.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            return response


def _with_prompt(body: bytes) -> bytes:
    try:
        message = msgspec.json.decode(body)
        given = message["params"]["arguments"]
        if message["method"] != "tools/call" or "prompt" in given:
            return body
    except (msgspec.DecodeError, KeyError, TypeError):
        return body
    message["params"]["arguments"] = {"prompt": msgspec.json.encode(given).decode()}
    return msgspec.json.encode(message)


async def failed_checks(folder: Path, url: str, scenario: str, version: str) -> tuple[int, list[str]]:
    """Run one scenario; returns how many checks there were, and the ids of those that failed."""
    results = folder / f"results-{scenario}-{version}"
    options = ("--scenario", scenario, "--spec-version", version, "--force", "-o", str(results))
    code, out, errors = await run_peer(folder, "conformance", "server", "--url", url, *options)
    found = [msgspec.json.decode(file.read_bytes()) for file in results.rglob("checks.json")]
    assert found, (code, out, errors)
    checks: list[Any] = [one for checks in found for one in checks]
    return len(checks), sorted({one["id"] for one in checks if one["status"] == "FAILURE"})


async def run_all(folder: Path, version: str, scenarios: dict[str, list[str]]) -> None:
    """Run scenarios, two at a time; each has exactly the failed checks that are known.

    The suite waits for a fixed time, which may be too short on a busy machine. So a scenario with other failures is
    run once more, alone.
    """
    async with own_http_server(folder) as (url, token):
        proxy = Proxy(url, token)
        async with proxy.run():
            free = asyncio.Semaphore(2)

            async def one(scenario: str) -> tuple[str, int, list[str]]:
                async with free:
                    return scenario, *await failed_checks(folder, proxy.url, scenario, version)

            found = await asyncio.gather(*[one(scenario) for scenario in scenarios])
            for at, (scenario, _, failed) in enumerate(found):
                if failed != scenarios[scenario]:
                    again = folder / "again"
                    again.mkdir(exist_ok=True)
                    found[at] = scenario, *await failed_checks(again, proxy.url, scenario, version)
    assert {scenario: failed for scenario, _, failed in found} == scenarios
    assert all(count for _, count, _ in found)


LEGACY = (
    "server-initialize", "server-session-lifecycle", "ping", "tools-list", "tools-call-simple-text",
    "tools-call-error", "tools-call-with-progress", "tools-call-elicitation", "elicitation-sep1034-defaults",
    "elicitation-sep1330-enums", "server-sse-multiple-streams", "dns-rebinding-protection",
)  # fmt: skip
MODERN = (
    "tools-list", "tools-call-simple-text", "tools-call-error", "tools-call-with-progress",
    "server-sse-multiple-streams", "dns-rebinding-protection", "http-header-validation",
    "input-required-result-request-state", "input-required-result-multi-round",
    "input-required-result-missing-input-response", "input-required-result-result-type",
    "input-required-result-unsupported-methods", "input-required-result-tampered-state",
    "input-required-result-ignore-extra-params", "input-required-result-validate-input",
)  # fmt: skip
TASKS = (
    "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal", "tasks-mrtr-input",
    "tasks-request-headers", "tasks-dispatch-and-envelope",
)  # fmt: skip

IN_PART = {
    # No tool needs a capability of the client that it could lack: questions then wait in the inbox.
    "server-stateless": ["sep-2575-missing-capability-http-400", "sep-2575-server-rejects-undeclared-capability"],
    # There are no prompts and no resources to list.
    "caching": [
        "sep-2549-prompts-list-caching-hints",
        "sep-2549-resources-list-caching-hints",
        "sep-2549-resources-templates-list-caching-hints",
    ],
}
TASKS_IN_PART = {
    # An agent that fails is a tool that reports an error, never an error of the protocol.
    "tasks-lifecycle": ["sep-2663-tasks-get-status-failed"],
}

NOT_OURS = {
    "there are no prompts, resources or completions": (
        "completion-complete", "resources-list", "resources-read-text", "resources-read-binary",
        "resources-templates-read", "resources-subscribe", "resources-unsubscribe", "sep-2164-resource-not-found",
        "sep-2640-skills-directory", "sep-2640-skills-enumeration", "sep-2640-skills-manifest", "prompts-list",
        "prompts-get-simple", "prompts-get-with-args", "prompts-get-embedded-resource", "prompts-get-with-image",
        "input-required-result-non-tool-request",
    ),
    "an agent replies with text": (
        "tools-call-image", "tools-call-audio", "tools-call-embedded-resource", "tools-call-mixed-content",
    ),
    "the server neither logs to clients nor uses their models or roots": (
        "logging-set-level", "tools-call-with-logging", "tools-call-sampling",
        "input-required-result-basic-sampling", "input-required-result-basic-list-roots",
        "input-required-result-multiple-input-requests", "input-required-result-capability-check",
    ),
    "it expects a tool with a schema of its own": ("json-schema-2020-12", "http-custom-header-server-validation"),
    "it expects a question under a key of its own; ours are the ids of callbacks": (
        "input-required-result-basic-elicitation",
    ),
    "it expects a server that closes streams for clients to poll": ("server-sse-polling",),
    "no agent requires tasks": ("tasks-required-task-error",),
    "with tasks, questions are asked through the task": ("tasks-mrtr-composition",),
    "the suite skips it": ("tasks-status-notifications",),
}  # fmt: skip


async def test_the_scenarios_of_the_era_with_a_handshake_pass(tmp_path: Path) -> None:
    await run_all(tmp_path, "2025-11-25", {name: [] for name in LEGACY})


async def test_the_scenarios_of_the_era_without_a_handshake_pass(tmp_path: Path) -> None:
    await run_all(tmp_path, "2026-07-28", {name: [] for name in MODERN} | IN_PART)


async def test_the_scenarios_of_the_tasks_extension_pass(tmp_path: Path) -> None:
    await run_all(tmp_path, "2026-07-28", {name: [] for name in TASKS} | TASKS_IN_PART)


async def test_every_scenario_of_the_suite_is_run_or_its_absence_has_a_reason(tmp_path: Path) -> None:
    code, out, errors = await run_peer(tmp_path, "conformance", "list", "--server")
    assert code == 0, errors
    every = {line.split()[1] for line in out.splitlines() if line.startswith("  - ")}
    run = {*LEGACY, *MODERN, *TASKS, *IN_PART, *TASKS_IN_PART}
    left_out = {name for names in NOT_OURS.values() for name in names}
    assert every == run | left_out
    assert not run & left_out
