"""The application inside a FastAPI service, beside its own routes and authentication, as a real process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from house.measure import ROOT
from web.serving import Sent, get, post, sent, until

PROGRAMS = (ROOT / "examples" / "web_page" / "mounted.py", ROOT / "examples" / "web_service" / "refunds.py")


@asynccontextmanager
async def service(folder: Path) -> AsyncGenerator[tuple[str, asyncio.subprocess.Process]]:
    """The example as a process; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (folder / "service.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "uvicorn", "mounted:service", "--app-dir", str(folder), "--port", str(port)),
            *("--timeout-graceful-shutdown", "2"),
            cwd=folder,
            env=dict(os.environ),
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession(url) as client:
            while True:
                try:
                    async with client.get("/health") as response:
                        assert response.status == 200
                        break
                except aiohttp.ClientError:
                    assert process.returncode is None, (folder / "service.log").read_text()
                    await asyncio.sleep(0.05)
        yield url, process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def of(url: str, key: str, **headers: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(url, headers={"x-key": key, **headers})


@pytest.mark.slow
async def test_started_streamed_answered_drained_restarted_and_resumed(tmp_path: Path) -> None:
    for program in PROGRAMS:
        shutil.copy(program, tmp_path)
    async with service(tmp_path) as (url, process), of(url, "key-of-ops") as ops:
        await get(ops, "/health")
        assert (await get(ops, "/agents/api/me"))["user"] == "ops"
        async with of(url, "wrong") as nobody:
            await get(nobody, "/agents/api/me", 401)
        async with of(url, "key-of-ops", Origin="https://evil.example") as forged:
            await post(forged, "/agents/api/sessions", {"agent": "manager", "text": "x"}, 403)
        async with ops.get("/agents/") as response:
            assert '<base href="/agents/">' in await response.text()
        async with ops.get("/agents/sessions/x") as response:
            assert response.status == 200
            assert '<base href="/agents/">' in await response.text()

        await post(ops, "/agents/api/sessions", {"agent": "manager", "text": "o-1 o-2", "id": "m1"})
        seen: list[Sent] = []
        async with ops.get("/agents/api/sessions/m1/events") as response:
            async for one in sent(response):
                seen.append(one)
                if any(event["type"] == "parked" for event in one.data):
                    break
        waiting = await until(ops, "/agents/api/inbox", lambda found: len(found["open"]) == 2)
        first = waiting["open"][0]
        answered = await post(ops, f"/agents/api/callbacks/{first['id']}/answer", {"value": 5})
        assert (answered["answer"]["by"], answered["answer"]["right"]) == ("ops", "asserted")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 40) in (0, -signal.SIGTERM)

    async with service(tmp_path) as (url, process), of(url, "key-of-support") as support:
        (card,) = (await until(support, "/agents/api/inbox", lambda found: len(found["open"]) == 1))["open"]
        await post(support, f"/agents/api/callbacks/{card['id']}/answer", {"value": 6})
        done = await until(support, "/agents/api/sessions/m1", lambda found: found["session"]["status"] == "done")
        assert done["session"]["text"] == "o-1: 5, o-2: 6"
        headers = {"Last-Event-ID": str(seen[-1].position)}
        async with support.get("/agents/api/sessions/m1/events", headers=headers) as response:
            async for one in sent(response):
                seen.append(one)
                if any(event["type"] == "turn_ended" for event in one.data):
                    break
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 40) in (0, -signal.SIGTERM)
    numbers = [event["seq"] for one in seen for event in one.data]
    assert numbers == list(range(1, len(numbers) + 1))
    assert sorted((tmp_path / "payments.txt").read_text().splitlines()) == ["o-1 5", "o-2 6"]
    log = (tmp_path / "service.log").read_text()
    assert "Traceback" not in log, log


SLOW = """
import asyncio
from pathlib import Path
from upcall import Agent, Request, tool
from upcall.models import Script, call


@tool
async def step(number: int) -> str:
    Path(f"begun-{number}").touch()
    await asyncio.sleep(4)  # the server waits two seconds for open streams before it drains
    with Path("steps.txt").open("a") as file:
        file.write(f"{number}\\n")
    return f"step {number}"


def play(request: Request):
    done = sum(len(message.results) for message in request.messages)
    return call("step", number=done) if done < 2 else "all steps done"


walker = Agent("walker", model=Script(play), tools=[step])
"""


@pytest.mark.slow
async def test_a_call_that_runs_is_drained_and_the_next_process_continues_its_session(tmp_path: Path) -> None:
    for program in PROGRAMS:
        shutil.copy(program, tmp_path)
    (tmp_path / "slow.py").write_text(SLOW)
    mounted = (tmp_path / "mounted.py").read_text()
    mounted = mounted.replace("from refunds import manager", "from refunds import manager\nfrom slow import walker")
    (tmp_path / "mounted.py").write_text(mounted.replace("agents=[manager]", "agents=[manager, walker]"))

    async with service(tmp_path) as (url, process), of(url, "key-of-ops") as ops:
        await post(ops, "/agents/api/sessions", {"agent": "walker", "text": "walk", "id": "w1"})
        async with ops.get("/agents/api/live?tree=w1&after=0") as live, ops.get("/agents/api/events") as events:
            names = [(await anext(stream)).name for stream in (sent(live),)]
            while not (tmp_path / "begun-0").exists():
                await asyncio.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 40) in (0, -signal.SIGTERM)
            with contextlib.suppress(aiohttp.ClientError):  # the streams have ended
                await asyncio.wait_for(asyncio.gather(live.content.read(), events.content.read()), 20)
        assert names == ["hello"]
    assert (tmp_path / "steps.txt").read_text() == "0\n"

    async with service(tmp_path) as (url, process), of(url, "key-of-ops") as ops:
        done = await until(ops, "/agents/api/sessions/w1", lambda found: found["session"]["status"] == "done")
        assert done["session"]["text"] == "all steps done"
        ends = [event.get("how", "ran") for event in await events_of(ops, "w1") if event["type"] == "tool_ended"]
        assert ends == ["ran", "ran"]
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 40) in (0, -signal.SIGTERM)
    assert (tmp_path / "steps.txt").read_text() == "0\n1\n"
    log = (tmp_path / "service.log").read_text()
    assert "Traceback" not in log, log


async def events_of(client: aiohttp.ClientSession, session: str) -> list[dict[str, str]]:
    async with client.get(f"/agents/api/sessions/{session}/export?format=jsonl") as response:
        assert response.status == 200
        return [msgspec.json.decode(line) for line in (await response.read()).splitlines()]


@pytest.mark.parametrize("returns", ["None", "raise RuntimeError('the accounts are down')"])
async def test_an_authentication_that_fails_lets_nobody_in_and_shows_no_stack(returns: str, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    import upcall.web
    from upcall import Runtime

    def authenticate(request: object) -> str | None:
        if returns == "None":
            return None
        raise RuntimeError("the accounts are down")

    async with Runtime(tmp_path / "log.db") as runtime:
        application = upcall.web.app(runtime, authenticate)
        with TestClient(application, raise_server_exceptions=True) as client:
            answer = await asyncio.to_thread(client.get, "/api/me")
    assert answer.status_code == (401 if returns == "None" else 500)
    assert "accounts" not in answer.text
