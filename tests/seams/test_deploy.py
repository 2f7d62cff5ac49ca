"""The SQL files in `deploy/` on a real server: the roles allow what they should, and the view counts what waits."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from cli.command import upcall
from postgres import server
from upcall import Agent, Runtime
from upcall.models import Script
from web.serving import get, make_agents, serving

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
AGENT = Agent("echo", model=Script(lambda request: f"heard {request.messages[-1].text}"))


@asynccontextmanager
async def deployed() -> AsyncGenerator[str]:
    """A database with the view and the roles, and a login for each role."""
    url = server().database()
    with psycopg.connect(url, autocommit=True) as db:
        for name in ("backlog.sql", "roles.sql"):
            db.execute((DEPLOY / name).read_bytes())
        for role in ("worker", "viewer"):
            db.execute(f"DROP ROLE IF EXISTS test_{role}".encode())
            db.execute(f"CREATE ROLE test_{role} LOGIN IN ROLE upcall_{role}".encode())
    yield url
    server().drop(url)


def as_role(url: str, role: str) -> str:
    return url.replace("postgres:@", f"test_{role}:@").replace("postgres@", f"test_{role}@")


async def test_the_role_of_workers_is_enough_to_submit_and_to_run() -> None:
    async with deployed() as url, Runtime(as_role(url, "worker"), agents=[AGENT]) as runtime:
        await runtime.submit("echo", "hello", id="s")
        await runtime.work(once=True)
        assert await runtime.status("s") == "done"
        with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(as_role(url, "worker")) as db:
            db.execute("DROP TABLE upcall.events")


async def test_the_role_of_viewers_reads_the_backlog_and_writes_nothing() -> None:
    async with deployed() as url, Runtime(url, agents=[AGENT]) as runtime:
        for n in range(3):
            await runtime.submit("echo", "hello", id=f"s{n}")
        await runtime.resume("s0")
        with psycopg.connect(as_role(url, "viewer")) as db:
            (row,) = db.execute("SELECT agent, depth, oldest_seconds >= 0 FROM upcall.backlog").fetchall()
        assert row == ("echo", 2, True)
        with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(as_role(url, "viewer")) as db:
            db.execute("DELETE FROM upcall.events")


async def test_the_role_of_viewers_is_enough_for_every_command_that_reads_after_a_worker_has_died(
    tmp_path: Path,
) -> None:
    agent = make_agents(tmp_path)
    async with deployed() as url:
        viewer = as_role(url, "viewer")
        for text, name in (("hello", "s"), ("refund o1", "q")):
            assert upcall("submit", agent, text, "--id", name, "--store", url, cwd=tmp_path).returncode == 0
        assert upcall("worker", "--agents", agent, "--once", "--store", url, cwd=tmp_path).returncode == 0
        with psycopg.connect(url) as db:
            assert db.execute("SELECT count(*) FROM upcall.processes").fetchone() == (1,)  # its row is still there
        async with Runtime(url) as runtime:
            (question,) = await runtime.inbox()
        reading = (
            ("sessions",), ("sessions", "--status", "interrupted"), ("show", "s"), ("tree", "s"), ("events", "s"),
            ("events",), ("inbox",), ("explain", question.id), ("status",), ("status", "s"),
            ("audit",), ("tokens", "list"),
        )  # fmt: skip
        for command in reading:
            done = upcall(*command, "--store", viewer, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, ""), (command, done.stderr)
        async with serving(tmp_path, "--view-only", "--store", viewer) as page, page.client() as client:
            assert (await get(client, "/api/sessions/s"))["session"]["status"] == "done"
            for path in ("/api/sessions", "/api/sessions?status=running", "/api/inbox"):
                assert question.id in str(await get(client, path)) or path != "/api/inbox"
