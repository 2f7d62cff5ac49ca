"""The OpenAPI document describes the API, and no request that it allows breaks the server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from upcall import Runtime
from upcall.hosts.web.openapi import document
from upcall.web import app as web_app
from web.serving import get, make_agents, post, run_in, serving


async def test_the_document_has_every_path_of_the_api(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "log.db") as runtime:
        application = web_app(runtime, lambda request: "ada")
        routes = {
            (path.replace(":int", ""), method.lower())
            for path, methods in application.api_paths()
            for method in methods
            if method != "HEAD"
        }
    listed = {(path, method) for path, found in document("1", "")["paths"].items() for method in found}
    assert listed == routes


@pytest.mark.slow
async def test_a_run_tree_is_exported_line_by_line(tmp_path: Path) -> None:
    await run_in(tmp_path, "deploy staging", "s1")
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        async with client.get("/api/sessions/s1/export?format=jsonl") as response:
            lines = (await response.text()).splitlines()
            assert response.headers["content-disposition"].startswith("attachment")
        await get(client, "/api/sessions/s1/export?format=pdf", 422)
        await get(client, "/api/sessions/nope/export", 404)
    events = [msgspec.json.decode(line) for line in lines]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert "topsecret" not in "".join(lines)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_request_that_the_document_allows_breaks_the_server(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    await run_in(tmp_path, "refund A", "s1")
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        command = [
            *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/api/openapi.json"),
            *("-H", f"Authorization: Bearer {server.token}", "--phases", "examples,coverage,fuzzing"),
            *("--checks", "not_a_server_error,status_code_conformance,content_type_conformance"),
            *("--exclude-path", "/api/events", "--exclude-path", "/api/live", "--max-examples", "10"),
            *("--exclude-path", "/api/sessions/{id}/events", "--request-timeout", "20", "--rate-limit", "15/s"),
        ]
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, timeout=850, check=False
        )
        assert done.returncode == 0, done.stdout[-6000:]
        assert (await get(client, "/api/me"))["agents"] == ["clerk"]
        await post(client, "/api/sessions", {"agent": "clerk", "text": "still here"})
