"""The files in `deploy/`: the roles allow what they should on a real server, and the container's command runs."""

from __future__ import annotations

import json
import re
import signal
import tomllib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from cli.command import eventually, out, start, upcall
from cli.command import make_agents as make_agent_folder
from postgres import server
from upcall import Agent, Runtime
from upcall.core.runtime.worker import WorkerOptions
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


# --- who may do what -----------------------------------------------------------------------

TABLES = """
SELECT c.relname, p.privilege FROM pg_class c, unnest(%s::text[]) p (privilege)
WHERE c.relnamespace = 'upcall'::regnamespace AND c.relkind IN ('r', 'v')
    AND has_table_privilege(%s, c.oid, p.privilege)
"""
WRITES = ["INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"]


async def test_nobody_but_workers_can_write_any_table_and_strangers_read_none() -> None:
    async with deployed() as url:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("DROP ROLE IF EXISTS test_stranger")
            db.execute("CREATE ROLE test_stranger LOGIN")
            allowed = {
                role: {*db.execute(TABLES, ([*WRITES, "SELECT"], f"test_{role}")).fetchall()}
                for role in ("worker", "viewer", "stranger")
            }
            tables = {name for name, _ in allowed["viewer"]}
            raised = db.execute(
                "SELECT count(*) FROM pg_proc WHERE pronamespace = 'upcall'::regnamespace AND prosecdef"
            ).fetchone()
        assert {"events", "sessions", "tokens", "refusals", "backlog"} <= tables
        assert allowed["viewer"] == {(name, "SELECT") for name in tables}
        assert allowed["stranger"] == set()
        assert {privilege for _, privilege in allowed["worker"]} == {"SELECT", "INSERT", "UPDATE", "DELETE"}
        assert raised == (0,)  # a function does what its caller may do


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("viewer", "SELECT * FROM upcall.claim('s', 'me', true, '')"),
        ("viewer", "SELECT upcall.beat('me', 'me', 'here', 1, '', 60)"),
        ("viewer", "UPDATE upcall.tokens SET role = 'operator'"),
        ("worker", "ALTER TABLE upcall.events ADD COLUMN more text"),
        (
            "worker",
            "CREATE OR REPLACE FUNCTION upcall.clock() RETURNS double precision LANGUAGE sql AS 'SELECT 0.0'",
        ),
        ("worker", "CREATE TABLE upcall.mine (n integer)"),
        ("stranger", "SELECT * FROM upcall.sessions"),
        ("stranger", "SELECT upcall.clock()"),
    ],
)
async def test_what_a_role_may_not_do_is_refused_by_the_server(role: str, statement: str) -> None:
    async with deployed() as url, Runtime(url, agents=[AGENT]) as runtime:
        await runtime.submit("echo", "hello", id="s")
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("DROP ROLE IF EXISTS test_stranger")
            db.execute("CREATE ROLE test_stranger LOGIN")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(as_role(url, role)) as db:
            db.execute(statement.encode())


# --- the container ---------------------------------------------------------------------------


def container() -> dict[str, str]:
    """The instructions of the Containerfile; of those that are there twice the last."""
    lines = [line.split(maxsplit=1) for line in (DEPLOY / "Containerfile").read_text().splitlines()]
    return {words[0]: words[1] for words in lines if words and words[0] != "#"}


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_the_command_of_the_container_runs_a_worker_that_stops_in_order(tmp_path: Path) -> None:
    program, *arguments = json.loads(container()["CMD"])
    port = container()["EXPOSE"]
    assert (program, arguments[arguments.index("--metrics-port") + 1]) == ("upcall", port)
    url = server().database()
    make_agent_folder(tmp_path)
    command = ["0" if one == port else one for one in arguments]  # the port may be in use here
    process = start(*command, cwd=tmp_path, UPCALL_STORE=url)
    try:
        queued = upcall("submit", "agents", "add 1", "--id", "s", "--store", url, cwd=tmp_path)
        assert queued.returncode == 0, queued.stderr
        eventually(lambda: out("status", "--store", url, cwd=tmp_path)["counts"] == {"done": 1}, "it runs sessions")
        process.send_signal(signal.Signals[container()["STOPSIGNAL"]])
        said, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert [json.loads(line)["outcome"] for line in said.splitlines()] == ["done"]
    server().drop(url)


def test_the_compose_file_names_what_is_there() -> None:
    services, volumes = compose()["services"], compose()["volumes"]
    database, worker = services["database"], services["worker"]
    assert (DEPLOY / worker["build"]["context"] / worker["build"]["dockerfile"]).is_file()
    assert worker["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert "healthcheck" in database
    assert [one.partition(":")[0] for one in database["volumes"]] == list(volumes)
    variables = database["environment"]
    address = worker["environment"]["UPCALL_STORE"]
    assert (
        address
        == f"postgresql://{variables['POSTGRES_USER']}:${{UPCALL_PASSWORD}}@database/{variables['POSTGRES_DB']}"
    )
    assert variables["POSTGRES_PASSWORD"].startswith("${UPCALL_PASSWORD:?")


def test_the_container_installs_an_extra_that_exists_and_is_given_more_time_than_a_drain_takes() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    (name, extra), *_ = re.findall(r'"(\w+)\[(\w+)\]"', container()["RUN"])
    assert name == project["name"]
    assert extra in project["optional-dependencies"]
    drain = WorkerOptions().drain
    assert int(compose()["services"]["worker"]["stop_grace_period"].removesuffix("s")) > drain
    assert f"for {drain:g} seconds" in (DEPLOY / "Containerfile").read_text()
