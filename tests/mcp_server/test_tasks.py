"""Turns as tasks: their state, their questions, and tasks of turns that are long over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.serving import http_server, make_desk, modern_body, modern_post, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
HAS: dict[str, Any] = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}


class Tasks:
    """A client with tasks, over HTTP."""

    def __init__(self, server: Any, http: Any) -> None:
        self._server, self._http = server, http

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The whole answer to a request."""
        return (await modern_post(self._server, self._http, modern_body(method, params, HAS)))[1]

    async def call(self, prompt: str, **more: str) -> dict[str, Any]:
        """Call the agent."""
        return (await self.send("tools/call", name="desk", arguments={"prompt": prompt, **more}))["result"]

    async def get(self, task: str) -> dict[str, Any]:
        """A task as it is now."""
        return (await self.send("tasks/get", taskId=task))["result"]

    async def until(self, task: str, status: str) -> dict[str, Any]:
        """A task once it has a status."""

        async def reached() -> Any:
            found = await self.get(task)
            return found if found["status"] == status else None

        return await until(reached)


async def test_a_task_is_asked_again_under_a_new_key_when_an_answer_is_not_valid(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server, server.plain_client() as http:
        client = Tasks(server, http)
        task = (await client.call("form"))["taskId"]
        first = (await client.until(task, "input_required"))["inputRequests"]
        (key,) = first
        wrong = {"action": "accept", "content": {"name": "R", "age": -1}}
        await client.send("tasks/update", taskId=task, inputResponses={key: wrong})
        second = (await client.get(task))["inputRequests"]
        (again,) = second
        right = {"action": "accept", "content": {"name": "Rex", "age": 3}}
        await client.send("tasks/update", taskId=task, inputResponses={again: right})
        ended = await client.until(task, "completed")
    assert again != key
    assert "Invalid answer" in second[again]["params"]["message"]
    assert '"name":"Rex"' in ended["result"]["structuredContent"]["text"]


async def test_a_task_answers_only_its_own_questions(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server, server.plain_client() as http:
        client = Tasks(server, http)
        one, other = (await client.call("name"))["taskId"], (await client.call("kind"))["taskId"]
        (key,) = (await client.until(one, "input_required"))["inputRequests"]
        reply = {"action": "accept", "content": {"answer": "Rex"}}
        await client.send("tasks/update", taskId=other, inputResponses={key: reply, "nobody": reply, "x": 17})
        untouched = await client.get(one)
    assert list(untouched["inputRequests"]) == [key]


async def test_a_task_of_an_earlier_turn_keeps_its_own_result(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server, server.plain_client() as http:
        client = Tasks(server, http)
        first = (await client.call("sleep 0.8"))["taskId"]
        session = (await client.until(first, "completed"))["result"]["structuredContent"]["session"]
        second = (await client.call("sleep 0.9", session=session))["taskId"]
        meanwhile = await client.get(first)
        await client.until(second, "completed")
        later = [(await client.get(one))["result"]["structuredContent"]["text"] for one in (first, second)]
        unknown = [
            (await client.send("tasks/get", taskId=one))["error"]["code"] for one in (f"{session}:9", "x:1", "x")
        ]
    assert meanwhile["result"]["structuredContent"]["text"] == "done: slept 0.8"
    assert later == ["done: slept 0.8", "done: slept 0.9"]
    assert unknown == [-32602] * 3


async def test_a_cancelled_task_is_cancelled_and_a_failed_turn_is_a_result(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server, server.plain_client() as http:
        client = Tasks(server, http)
        task = (await client.call("name"))["taskId"]
        await client.until(task, "input_required")
        await client.send("tasks/cancel", taskId=task)
        cancelled = await client.until(task, "cancelled")
        failed = await client.call("fail")
    assert "inputRequests" not in cancelled
    assert failed["isError"]
