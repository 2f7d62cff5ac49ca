"""A command that an agent runs does not speak for the person by HTTP either, although it can read the token."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

import pytest

from mcp_server.serving import http_server, make_desk
from quick import slow_but
from upcall.models import call
from upcall.workspace import Folder, shell
from web.people import give_token, refusals
from web.serving import get, make_agents, post, serving, until
from workspace.doubles import played

pytestmark = pytest.mark.slow

POST = """
import json, os, socket, sys
host, port = sys.argv[1].removeprefix("http://").split(":")
body = json.dumps({"approve": True}).encode()
head = f"POST /api/callbacks/{sys.argv[2]}/answer HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nConnection: close\\r\\n"
head += f"Authorization: Bearer {open('log.db-token').read().strip()}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
way = sys.argv[3]
if way == "detached" and os.fork():
    os.wait()
    os._exit(0)
if way == "detached":
    os.setsid()
if way == "hidden":
    import ctypes
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
if way == "thread":  # its files are no longer those of the process
    import ctypes, threading
    CLONE_FILES = 0x400
    def send():
        assert ctypes.CDLL(None).unshare(CLONE_FILES) == 0
        server = socket.create_connection((host, int(port)))
        server.sendall(head.encode() + body)
        print(server.recv(4096).decode(), server.recv(4096).decode(), flush=True)
        os._exit(0)
    threading.Thread(target=send).start()
    threading.Event().wait()
server = socket.create_connection((host, int(port)))
server.sendall(head.encode() + body)
if way == "hasty":
    os._exit(0)
while part := server.recv(4096):
    print(part.decode())
"""
WAYS = ("plain", "detached", "hasty", "hidden", "thread")


@pytest.mark.parametrize("way", slow_but(WAYS[:1], WAYS))
async def test_an_agent_does_not_approve_its_own_call_by_a_request(way: str, tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    (tmp_path / "post.py").write_text(POST)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "switch"})
        (card,) = (await until(client, "/api/inbox", lambda found: found["open"]))["open"]
        command = shlex.join(("env", "-i", sys.executable, "post.py", server.url, card["id"], way))

        (result,) = await played(Folder(tmp_path), shell(seconds=50), call("shell", command=command))

        if way != "hasty":
            assert "403 Forbidden" in result.text
            assert "comes from a command that an agent runs (session s)" in result.text
        assert [one["id"] for one in (await get(client, "/api/inbox"))["open"]] == [card["id"]]
        answer = {"approve": True, "digest": card["seen"]}
        await post(client, f"/api/callbacks/{card['id']}/answer", answer)
        await until(client, "/api/sessions", lambda found: found["sessions"][0]["status"] == "done")


async def test_a_person_answers_while_an_agent_s_command_runs(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    running = "touch started; while ! test -e stop; do sleep 0.05; done"
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        command = asyncio.create_task(played(Folder(tmp_path), shell(seconds=50), call("shell", command=running)))
        while not (tmp_path / "started").exists():
            await asyncio.sleep(0.05)

        await post(client, "/api/sessions", {"agent": "clerk", "text": "hello"})

        (tmp_path / "stop").touch()
        (result,) = await command
    assert result.text == "(no output)"


async def test_an_agent_s_command_calls_nothing_at_an_mcp_server_with_the_token(tmp_path: Path) -> None:
    make_desk(tmp_path)
    async with http_server(tmp_path) as server:
        code = (
            "import urllib.request, urllib.error, sys\n"
            "request = urllib.request.Request(sys.argv[1], b'{}', {'Authorization': 'Bearer ' + sys.argv[2]})\n"
            "try: urllib.request.urlopen(request)\n"
            "except urllib.error.HTTPError as error: print(error.code, error.read().decode())"
        )
        command = shlex.join(("env", "-i", sys.executable, "-c", code, server.url, server.token))

        (result,) = await played(Folder(tmp_path), shell(seconds=50), call("shell", command=command))

    assert result.text.startswith("403 ")
    assert "comes from a command that an agent runs (session s)" in result.text


async def test_an_agent_s_command_does_not_use_the_token_of_a_person_either(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    (tmp_path / "post.py").write_text(POST.replace("log.db-token", "ada.token"))
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        token = await give_token(tmp_path, "ada", "answerer")
        (tmp_path / "ada.token").write_text(token)
        await post(client, "/api/sessions", {"agent": "clerk", "text": "switch"})
        (card,) = (await until(client, "/api/inbox", lambda found: found["open"]))["open"]
        command = shlex.join(("env", "-i", sys.executable, "post.py", server.url, card["id"], "plain"))

        (result,) = await played(Folder(tmp_path), shell(seconds=50), call("shell", command=command))

        assert "403 Forbidden" in result.text
        assert [one["id"] for one in (await get(client, "/api/inbox"))["open"]] == [card["id"]]
    (refused,) = await refusals(tmp_path)
    assert refused.by == "ada"
    assert "comes from a command that an agent runs (session s)" in refused.reason
