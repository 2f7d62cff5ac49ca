"""The command `upcall serve`: what it runs and never imports, how it stops, and what it refuses to listen on."""

from __future__ import annotations

import asyncio
import shutil
import signal
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest

from cli.command import upcall
from upcall import Runtime
from upcall.cli.places import os_user
from web.office import clerk
from web.serving import Server, get, make_agents, post, run_in, serving, until


@pytest.mark.slow
async def test_an_answered_session_continues_with_agents_that_lie_below_the_folder(tmp_path: Path) -> None:
    make_agents(tmp_path)
    done = upcall("run", "office:clerk", "refund A", "--id", "s1", "--store", "log.db", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        (card,) = (await get(client, "/api/inbox"))["open"]
        assert card["goes_on"] == "clerk continues."
        answered = upcall("answer", card["id"], "7", "--store", "log.db", cwd=tmp_path)
        assert answered.returncode == 0, answered.stderr
        await until(client, "/api/sessions/s1", lambda found: found["session"]["status"] == "done")
    assert (tmp_path / "payments.txt").read_text() == "A 7\n"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["elsewhere", "installed"])
async def test_agents_in_other_places_are_never_imported_and_the_page_says_what_to_type(
    place: str, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    marker = tmp_path / "imported.txt"
    (there / "trap.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    source = f"{there}/trap:clerk" if place == "elsewhere" else "wsgiref.simple_server:clerk"
    agent = clerk.replace()
    vars(agent)["source"] = source  # as one that was loaded from there has it
    async with Runtime(here / "log.db", agents=[agent]) as runtime:
        assert (await (await runtime.start("clerk", "s1")).prompt("refund A")).status == "waiting"
    async with serving(here, "--store", "log.db") as server, server.client() as client:
        (card,) = (await get(client, "/api/inbox"))["open"]
        assert "upcall resume s1 --store log.db --agents" in card["goes_on"]
        await post(client, f"/api/callbacks/{card['id']}/answer", {"value": 1})
        refused = await post(client, "/api/sessions/s1/resume", {}, 409)
        assert "upcall resume s1" in refused["needs"]
        found = await get(client, "/api/sessions/s1")
        assert (found["session"]["can_resume"], found["session"]["can_prompt"]) == (False, False)
        await asyncio.sleep(0.5)
    assert not marker.exists()
    assert not (here / "payments.txt").exists()


@pytest.mark.slow
async def test_an_interrupted_session_waits_until_somebody_resumes_it(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "wait 30", "id": "s1"})
        await until(client, "/api/sessions/s1", lambda found: found["session"]["tool_calls"] == 1)
        code, _ = await server.stop(signal.SIGKILL)
        assert code == -9
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await until(client, "/api/sessions/s1", lambda found: found["session"]["status"] == "interrupted")
        await asyncio.sleep(2.5)
        assert (await get(client, "/api/sessions/s1"))["session"]["status"] == "interrupted"
        await post(client, "/api/sessions/s1/resume", {})
        await until(client, "/api/sessions/s1", lambda found: found["session"]["status"] == "done")


@pytest.mark.slow
async def test_a_turn_is_steered_and_cancelled_and_one_that_runs_is_busy(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "wait 30", "id": "s1"})
        await until(client, "/api/sessions/s1", lambda found: found["session"]["tool_calls"] == 1)
        busy = await post(client, "/api/sessions/s1/prompt", {"text": "more"}, 409)
        assert busy["status"] == "running"
        await post(client, "/api/sessions/s1/steer", {"text": "be quick"})
        await post(client, "/api/sessions/s1/cancel", {"reason": "too slow"})
        await until(client, "/api/sessions/s1", lambda found: found["session"]["status"] == "cancelled")
        await post(client, "/api/sessions/s1/steer", {"text": "hello?"}, 409)
        await post(client, "/api/sessions/s1/prompt", {"text": "hello"})
        await until(client, "/api/sessions/s1", lambda found: found["session"]["status"] == "done")
    async with Runtime(tmp_path / "log.db") as runtime:
        events = [event async for event in runtime.events("s1")]
    said = {getattr(event, "by", "") for event in events if event.type in ("steered", "cancel_requested")}
    assert said == {os_user()}


@pytest.mark.slow
async def test_sigterm_drains_what_runs_and_a_restart_keeps_the_address_valid(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    server = Server(tmp_path, agent, "--store", "log.db")
    await server.start()
    async with server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "wait 1.5", "id": "s1"})
        await until(client, "/api/sessions/s1", lambda found: found["session"]["tool_calls"] == 1)
        stream = await client.get("/api/live?tree=s1")
        code, errors = await server.stop()
        stream.close()
    assert code == 143
    assert "Traceback" not in errors
    async with Runtime(tmp_path / "log.db") as runtime:
        ended = [event async for event in runtime.events("s1") if event.type == "tool_ended"]
        assert [getattr(event, "how", "") for event in ended] == ["ran"]
    token = server.token
    async with serving(tmp_path, agent, "--store", "log.db") as again:
        assert again.token == token


@pytest.mark.slow
async def test_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    server = Server(tmp_path, "--store", "log.db")
    await server.start()
    async with server.client() as client:
        stream = await client.get("/api/events")
        code, errors = await server.stop(signal.SIGINT)
        stream.close()
    assert (code, errors) == (130, "")


@pytest.mark.slow
async def test_view_only_shows_everything_and_changes_nothing(tmp_path: Path) -> None:
    make_agents(tmp_path)
    await run_in(tmp_path, "refund A", "s1")
    before = (tmp_path / "log.db").stat().st_size
    async with serving(tmp_path, "--view-only", "--store", "log.db") as server, server.client() as client:
        assert (await get(client, "/api/me"))["view_only"] is True
        (card,) = (await get(client, "/api/inbox"))["open"]
        assert card["can_answer"] is False
        for path, body in (
            (f"/api/callbacks/{card['id']}/answer", {"value": 1}),
            ("/api/sessions", {"agent": "clerk", "text": "x"}),
            ("/api/sessions/s1/prompt", {"text": "x"}),
            ("/api/sessions/s1/steer", {"text": "x"}),
            ("/api/sessions/s1/cancel", {}),
            ("/api/sessions/s1/resume", {}),
        ):
            assert "--view-only" in (await post(client, path, body, 403))["error"]
        await get(client, f"/api/callbacks/{card['id']}?reveal=1", 403)
    async with Runtime(tmp_path / "log.db") as runtime:
        assert await runtime.status("s1") == "waiting"
    assert (tmp_path / "log.db").stat().st_size >= before


@pytest.mark.slow
async def test_a_log_that_came_with_a_folder_is_only_shown_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    make_agents(mine)
    upcall("run", "office:clerk", "refund A", "--id", "s1", cwd=mine, XDG_STATE_HOME=str(tmp_path / "other"))
    shutil.copytree(mine, theirs, ignore=shutil.ignore_patterns("*-wake"))
    before = sorted(path.name for path in (theirs / ".upcall").iterdir())
    async with serving(theirs) as server, server.client() as client:
        assert (await get(client, "/api/me"))["view_only"] is True
        (card,) = (await get(client, "/api/inbox"))["open"]
        await post(client, f"/api/callbacks/{card['id']}/answer", {"value": 1}, 403)
        await until(client, "/api/search?q=refund", lambda found: found["hits"])
    assert sorted(path.name for path in (theirs / ".upcall").iterdir()) == before


@pytest.mark.slow
def test_other_addresses_need_tls_and_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    for options, says in (
        (["--host", "0.0.0.0"], "--insecure"),
        (["--tls-cert", "a.pem"], "give both --tls-cert and --tls-key"),
        (["--tls-cert", "a.pem", "--tls-key", "b.pem", "--insecure"], "--insecure"),
        (["--tls-cert", "a.pem", "--tls-key", "b.pem"], "a.pem"),
        (["--origin", "agents.example.org"], "--origin"),
        (["--origin", "http://["], "--origin http://[: "),
        (["--origin", "http://x\x1b]0;"], "--origin http://x\\u001b]0;: "),
        (["--port", "70000"], "70000"),
        (["--view-only", "office:clerk"], "--view-only"),
        (["--store", ":memory:"], ":memory:"),
    ):
        done = upcall("serve", *options, cwd=tmp_path)
        assert done.returncode == 2, (options, done.stderr)
        assert says in done.stderr


@pytest.mark.slow
async def test_tls_is_served_on_another_address(tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    tls = ("--host", "0.0.0.0", "--tls-cert", "cert.pem", "--tls-key", "key.pem")
    async with serving(tmp_path, *tls, "--store", "log.db") as server:
        assert server.url.startswith("https://0.0.0.0:")
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        trusted.check_hostname = False
        headers = {"Authorization": f"Bearer {server.token}"}
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        async with aiohttp.ClientSession(url, headers=headers) as client:
            async with client.get("/api/me", ssl=trusted) as response:
                assert response.status == 200
            async with client.get("/api/me", ssl=trusted, headers={"Host": "evil.example"}) as response:
                assert response.status == 403


@pytest.mark.slow
async def test_a_port_that_is_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    async with serving(tmp_path, "--store", "log.db") as server:
        port = server.url.rpartition(":")[2]
        done = await asyncio.to_thread(upcall, "serve", "--port", port, "--store", "log.db", cwd=tmp_path)
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
