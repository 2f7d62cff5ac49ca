"""Who gets in: tokens, Host and Origin, odd paths, large and many requests."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from upcall import SetupError
from upcall.hosts.http.access import Places, origin_of, places
from upcall.hosts.http.rates import Rate, Rates
from web.serving import Server, codes, get, make_agents, post, run_in, serving

API = ("/api/me", "/api/sessions", "/api/inbox", "/api/events", "/api/sessions/x", "/api/nothing")


async def raw(server: Server, request: str) -> tuple[int, str]:
    """The status and the text of an answer to a request that is sent as it is written."""
    place = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(request.replace("\n", "\r\n").encode())
    await writer.drain()
    text = (await asyncio.wait_for(reader.read(100_000), 20)).decode()
    writer.close()
    return int(text.split()[1]), text


@pytest.mark.slow
async def test_without_the_token_nothing_but_the_page_is_served(tmp_path: Path) -> None:
    async with serving(tmp_path, "--store", "log.db") as server:
        for token in ("", "wrong", server.token[:-1], server.token + "x", "Bearer"):
            async with server.client(token) as client:
                for path in API[:3]:
                    answer = await get(client, path, 401)
                    assert "token" in answer["error"]
        async with server.client() as client:
            await get(client, "/api/me")
        async with aiohttp.ClientSession(server.url) as client, client.get("/") as response:
            assert response.status == 200
            assert "set-cookie" not in response.headers
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "require-trusted-types-for 'script'" in policy
            assert "unsafe" not in policy
        async with aiohttp.ClientSession(server.url, headers={"Cookie": f"token={server.token}"}) as client:
            await get(client, f"/api/me?token={server.token}", 401)


@pytest.mark.slow
async def test_the_token_is_kept_private_beside_the_log_until_a_new_one_is_made(tmp_path: Path) -> None:
    async with serving(tmp_path, "--store", "log.db") as server:
        first = server.token
    file = tmp_path / "log.db-token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with serving(tmp_path, "--store", "log.db") as server:
        assert server.token == first
    async with serving(tmp_path, "--store", "log.db", "--new-token") as server:
        assert server.token != first
        async with server.client(first) as client:
            await get(client, "/api/me", 401)


@pytest.mark.slow
async def test_a_token_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("a" * 43)
    (tmp_path / "log.db-token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AssertionError, match="symbolic link"):
        await Server(tmp_path, "--store", "log.db").start()


@pytest.mark.slow
async def test_other_hosts_and_origins_are_refused_with_the_right_token(tmp_path: Path) -> None:
    async with serving(tmp_path, "--store", "log.db") as server:
        host = urlsplit(server.url).netloc
        port = host.rpartition(":")[2]
        for other in (
            "evil.example",
            f"evil.example:{port}",
            f"127.0.0.1.evil.example:{port}",
            "169.254.169.254",
            "",
        ):
            async with server.client(Host=other) as client:
                await get(client, "/api/me", 403)
                async with client.get("/") as response:
                    assert response.status == 403
        for name in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST"):
            async with server.client(Host=name) as client:
                await get(client, "/api/me")
        for origin in ("https://evil.example", "null", f"http://localhost:{int(port) + 1}", f"http://{host}.evil"):
            async with server.client(Origin=origin) as client:
                await get(client, "/api/me", 403)
                await post(client, "/api/sessions", {"agent": "x", "text": "y"}, 403)
        async with server.client(Origin=f"http://{host}") as client:
            await get(client, "/api/me")
        async with server.client(**{"Sec-Fetch-Site": "cross-site"}) as client:
            await get(client, "/api/me", 403)
        code, _ = await raw(server, f"GET /api/me HTTP/1.0\nAuthorization: Bearer {server.token}\n\n")
        assert code == 403


def test_an_origin_is_allowed_by_its_host_and_scheme() -> None:
    own = places("127.0.0.1", ["https://agents.example.org/upcall", "http://box:8080"])
    assert own.origins == {"https://agents.example.org", "http://box:8080"}
    assert own.allows_host("agents.example.org")
    assert own.allows_host("box:8080")
    assert own.allows_origin("https://agents.example.org", "127.0.0.1:7717", "http")
    assert not own.allows_origin("http://agents.example.org", "127.0.0.1:7717", "http")
    assert Places().allows_origin("https://service.example", "service.example", "http")
    assert not Places().allows_origin("http://service.example", "service.example", "https")
    assert places("0.0.0.0", []).allows_host("192.168.1.7:7717")
    assert not places("0.0.0.0", []).allows_host("evil.example")
    for host in ("localhost", "LOCALHOST:7813", "127.0.0.1:7813", "[::1]", "[::1]:7813", "localhost:"):
        assert places("127.0.0.1", []).allows_host(host), host
    for host in (
        "[::1]x.evil.com",
        "127.0.0.1:7813, evil",
        "127.0.0.1:x.evil",
        "[::1",
        "",
        "localhost:1:2",
        "localhost/x",
        "evil@localhost",
        "localhost, evil",
        "127.0.0.1:123456",
        "[::1] ",
        "[evil]",
    ):
        assert not places("127.0.0.1", []).allows_host(host), host
    wrong_urls = ("agents.example.org", "ftp://a", "https://", "https://user@host", "https://host:x")
    for wrong in (*wrong_urls, "http://[", "http://x\x1b]0;", "http://x\x1b", "http://a b", "http://a\u200b"):
        with pytest.raises(SetupError, match="--origin"):
            origin_of(wrong)


@pytest.mark.slow
async def test_odd_paths_and_methods_get_plain_errors(tmp_path: Path) -> None:
    make_agents(tmp_path)
    await run_in(tmp_path, "hello", "s1")
    async with serving(tmp_path, "--store", "log.db") as server:
        for path in (
            *("/../log.db", "/..%2flog.db", "/%2e%2e/%2e%2e/etc/passwd", "/page/../../web.py", "//etc/passwd"),
            *("/index.html%00", "/api/../log.db-token", "/static/%5c..%5clog.db", "/log.db-token"),
        ):
            code, text = await raw(server, f"GET {path} HTTP/1.1\nHost: localhost\nConnection: close\n\n")
            assert code in (400, 401, 404), (path, text)
            assert "Traceback" not in text
        async with server.client() as client:
            for path in ("/api/nothing", "/api/sessions/nope", "/api/sessions/s1/events/99", "/api/callbacks/nope"):
                assert (await get(client, path, 404))["error"]
            for path in ("/api/sessions/s1/events/0", "/api/sessions/s1/events/99999999999999999999"):
                await get(client, path, 404)
            for path in ("/api/sessions?status=asleep", "/api/sessions?limit=x", "/api/sessions?tag=x"):
                await get(client, path, 422)
            await get(client, "/api/sessions?before=nope", 404)
            async with client.put("/api/sessions", data=b"{}") as response:
                assert response.status == 405
            async with client.get("/api/sessions/s1/events", headers={"Last-Event-ID": "x"}) as response:
                assert response.status == 422


@pytest.mark.slow
async def test_bodies_have_a_largest_size_and_are_valid_json(tmp_path: Path) -> None:
    async with serving(tmp_path, make_agents(tmp_path), "--store", "log.db") as server, server.client() as client:

        async def chunks() -> AsyncGenerator[bytes]:
            for _ in range(40):
                yield b'{"text": "' + b"x" * 100_000

        ((code, _),) = await codes(client, "/api/sessions", [b"x" * 2_000_001])
        assert code == 413
        async with client.post("/api/sessions", data=chunks()) as response:
            assert response.status == 413
        wrong = (b"{", b"\xff\xfe", b"[" * 5000 + b"]" * 5000, {"agent": "clerk"}, {"agent": 1, "text": "x"})
        refused = await codes(client, "/api/sessions", wrong)
        assert all(code == 422 and answer["error"] for code, answer in refused), refused
        await post(client, "/api/sessions", {"agent": "nobody", "text": "x"}, 422)
        await post(client, "/api/sessions", {"agent": "clerk", "text": " "}, 422)
        await post(client, "/api/sessions", {"agent": "clerk", "text": "x", "id": "a b"}, 422)
        await post(client, "/api/sessions", {"agent": "clerk", "text": "hi", "id": "twice"})
        await post(client, "/api/sessions", {"agent": "clerk", "text": "hi", "id": "twice"}, 409)


@pytest.mark.slow
async def test_too_many_requests_are_told_to_wait(tmp_path: Path) -> None:
    async with serving(tmp_path, "--store", "log.db") as server:
        async with server.client("wrong") as client:
            answers = [code for code, _ in await codes(client, "/api/sessions", [b""] * 40)]
            assert (answers[0], answers[-1]) == (401, 429)
        async with server.client() as client:
            await get(client, "/api/me")  # the right token is not locked out
            at_once = (codes(client, "/api/sessions/x/steer", [{"text": "x"}]) for _ in range(200))
            answers = [one for (one,) in await asyncio.gather(*at_once)]
            assert 404 in [code for code, _ in answers]
            assert (429, "too many requests; wait a moment") in [(code, one["error"]) for code, one in answers]


def test_a_bucket_fills_again_with_time() -> None:
    now = [0.0]
    rates, rate = Rates(lambda: now[0]), Rate(2, 3)
    assert [rates.wait("a", rate) for _ in range(4)] == [0, 0, 0, 0.5]
    assert rates.wait("b", rate) == 0
    now[0] = 1.0
    assert [rates.wait("a", rate) > 0 for _ in range(3)] == [False, False, True]
