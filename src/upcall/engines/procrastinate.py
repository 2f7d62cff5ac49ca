"""Run trees as jobs of an existing Procrastinate application, with the log in the same PostgreSQL database.

A job says only "look at this run tree". It is written by a trigger, in the transaction that makes the tree ready,
and may be lost or done twice without harm: the store's claim decides who runs the tree. So jobs have no locks, no
queueing locks, no schedules and no retries here, and something has to look for trees that no job names: those whose
worker died, and those that become ready at a certain time. `runtime.work()` or `upcall worker` does.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from upcall.engines import WorkerOptions
from upcall.errors import SetupError

QUEUE = "upcall"
"""The queue of the jobs."""

TASK = "upcall:resume"
"""The name of the task, if its blueprint is added with the namespace `upcall`."""

POLL_SECONDS = 0.25
"""Seconds between two looks for jobs: a notification that comes while a worker fetches jobs is lost."""

_HINT = f"""
CREATE OR REPLACE FUNCTION upcall.defer_hint(tree bigint) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM procrastinate_defer_jobs_v1(ARRAY[ROW(
        '{QUEUE}', '{TASK}', 0, NULL, NULL,
        jsonb_build_object('root', (SELECT id FROM upcall.sessions WHERE n = tree)), NULL
    )::procrastinate_job_to_defer_v1]);
END $$
"""

_TRIGGERS = {
    "queue": ("AFTER INSERT OR UPDATE", "NEW.ready AND NEW.due = 0 AND NOT NEW.taken", "NEW.root"),
    "callbacks": ("AFTER UPDATE", "NEW.awaited AND OLD.status = 'open' AND NEW.status <> 'open'", "NEW.root"),
    "sessions": (
        "AFTER UPDATE",
        "NEW.parent IS NULL AND OLD.owner <> '' AND NEW.owner = '' AND NEW.status IN ('running', 'queued')",
        "NEW.n",
    ),
}
"""When a row of a table makes a run tree ready: a turn is queued, a callback is settled, an owner leaves it."""


def _statements() -> list[str]:
    made = [_HINT]
    for table, (when, condition, tree) in _TRIGGERS.items():
        body = f"BEGIN PERFORM upcall.defer_hint({tree}); RETURN NULL; END"
        made.append(
            f"CREATE OR REPLACE FUNCTION upcall.hint_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"
        )
        made.append(f"DROP TRIGGER IF EXISTS procrastinate_hint ON upcall.{table}")
        made.append(
            f"CREATE TRIGGER procrastinate_hint {when} ON upcall.{table} FOR EACH ROW "
            f"WHEN ({condition}) EXECUTE FUNCTION upcall.hint_{table}()"
        )
    return made


def tasks(runtime: Any) -> Any:
    """Return a blueprint with the task that runs a tree: `app.add_tasks_from(tasks(runtime), namespace="upcall")`.

    runtime: an open Runtime on the same database; its agents are those whose trees the jobs can run
    """
    from procrastinate import Blueprint

    blueprint = Blueprint()

    @blueprint.task(name="resume", queue=QUEUE)
    async def resume(root: str) -> None:
        await runtime.run_if_ready(root)

    assert resume is not None
    return blueprint


class Procrastinate:
    """The engine over a Procrastinate application: `app` has the tasks of `tasks(runtime)`, and is open."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def prepare(self, runtime: Any) -> None:
        """Create the triggers that write jobs; call it once for a database, when both schemas are there."""
        if not hasattr(runtime.store, "where") or not str(runtime.store.where).startswith("postgres"):
            raise SetupError("Procrastinate needs a log in PostgreSQL: Runtime('postgresql://...')")
        await runtime.store.open()
        for statement in _statements():
            await self._app.connector.execute_query_async(statement.replace("%", "%%"))

    async def run(self, runtime: Any, stop: asyncio.Event, options: WorkerOptions) -> None:
        """Do the jobs, and look beside them for trees that no job names, until `stop` is set."""
        jobs = asyncio.ensure_future(
            self._app.run_worker_async(
                queues=[QUEUE], concurrency=options.concurrency, install_signal_handlers=False,
                fetch_job_polling_interval=POLL_SECONDS, wait=not options.once, delete_jobs="always",
            )
        )  # fmt: skip
        try:
            await runtime.work(stop, **options._asdict())
            if options.once:
                await jobs
        finally:
            jobs.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await jobs
