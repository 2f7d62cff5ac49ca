"""Procrastinate brings ready run trees to workers, on a real PostgreSQL server."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import procrastinate
import psycopg
import pytest

from postgres import server
from upcall import Agent, Context, Request, Runtime, tool
from upcall.engines import WorkerOptions
from upcall.engines.procrastinate import Procrastinate, tasks
from upcall.errors import SetupError
from upcall.models import Script, call


@tool
async def ask_first(ctx: Context) -> str:
    """Ask somebody."""
    return f"answer {await ctx.raise_callback('Which one?', 'blocker')}"


def decide(request: Request) -> Any:
    results = [result.text for message in request.messages for result in message.results]
    if request.messages[0].text == "ask":
        return results[0] if results else call("ask_first")
    return "done"


AGENT = Agent("a", model=Script(decide), tools=[ask_first])


@asynccontextmanager
async def running() -> AsyncGenerator[tuple[Runtime, Any, str]]:
    """A runtime on a database of its own, with a Procrastinate application in the same one."""
    url = server().database()
    app: Any = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    async with Runtime(url, agents=[AGENT], hold=0) as runtime, app.open_async():
        await app.schema_manager.apply_schema_async()
        app.add_tasks_from(tasks(runtime), namespace="upcall")
        await Procrastinate(app).prepare(runtime)
        yield runtime, app, url
    server().drop(url)


def jobs(url: str) -> list[str]:
    with psycopg.connect(url) as db:
        rows = db.execute(
            "SELECT args->>'root' FROM procrastinate_jobs WHERE status = 'todo' ORDER BY id"
        ).fetchall()
    return [root for (root,) in rows]


async def do_jobs(app: Any) -> None:
    """Do all jobs that are there, as a worker of the application would."""
    await app.run_worker_async(wait=False, install_signal_handlers=False, listen_notify=False, delete_jobs="always")


@pytest.mark.slow
async def test_what_makes_a_tree_ready_writes_a_job_and_the_job_runs_it() -> None:
    async with running() as (runtime, app, url):
        await runtime.submit("a", "ask", id="s")
        assert jobs(url) == ["s"]
        await do_jobs(app)
        assert (await runtime.status("s"), jobs(url)) == ("waiting", [])
        await runtime.answer((await runtime.inbox())[0].id, "left")
        assert jobs(url) == ["s"]
        await do_jobs(app)
        assert (await runtime.status("s"), (await runtime.resume("s")).text) == ("done", "answer left")


@pytest.mark.slow
async def test_a_job_that_is_lost_doubled_or_wrong_does_no_harm() -> None:
    async with running() as (runtime, app, url):
        for name in ("lost", "doubled"):
            await runtime.submit("a", "go", id=name)
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("DELETE FROM procrastinate_jobs WHERE args->>'root' = 'lost'")
        for root in ("doubled", "doubled", "nobody"):
            await app.configure_task("upcall:resume", queue="upcall").defer_async(root=root)
        await do_jobs(app)
        assert [await runtime.status(name) for name in ("lost", "doubled")] == ["queued", "done"]
        await runtime.work(once=True)
        assert await runtime.status("lost") == "done"


@pytest.mark.slow
async def test_a_job_is_not_written_if_its_cause_is_rolled_back() -> None:
    async with running() as (runtime, _, url):
        await runtime.submit("a", "go", id="s")
        with psycopg.connect(url) as db:
            db.execute("UPDATE upcall.queue SET ready = true")
            written = db.execute("SELECT count(*) FROM procrastinate_jobs").fetchone()
            db.rollback()
        assert (written, jobs(url)) == ((2,), ["s"])


@pytest.mark.slow
async def test_the_engine_runs_jobs_and_what_no_job_names() -> None:
    async with running() as (runtime, app, url):
        for n in range(5):
            await runtime.submit("a", "go", id=f"s{n}")
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("DELETE FROM procrastinate_jobs WHERE args->>'root' IN ('s1', 's3')")
        await Procrastinate(app).run(runtime, asyncio.Event(), WorkerOptions(once=True))
        assert dict(await runtime.store.counts()) == {"done": 5}


@pytest.mark.slow
async def test_the_example_runs_a_session_by_a_job() -> None:
    url = server().database()
    example = Path(__file__).parents[2] / "examples" / "procrastinate_app" / "app.py"
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(example), env={**os.environ, "DATABASE_URL": url}, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    server().drop(url)
    assert (process.returncode, "You said: hello" in said.decode()) == (0, True)


async def test_a_log_in_a_file_is_refused(tmp_path: Any) -> None:
    async with Runtime(tmp_path / "log.db", agents=[AGENT]) as runtime:
        with pytest.raises(SetupError, match="needs a log in PostgreSQL"):
            await Procrastinate(None).prepare(runtime)
