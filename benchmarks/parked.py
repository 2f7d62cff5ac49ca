"""From an answer to the next segment of its run, while thousands of runs are parked on PostgreSQL, all with deadlines.

    .venv/bin/python benchmarks/parked.py [--parked 10000] [--answers 300] [--workers 2]

Both ends are stamps of the log, by the server's clock: of `callback_answered` and of `turn_resumed`. The server comes
from PyPI, the workers are `upcall worker` processes. Also: the CPU time of the idle workers and of the server, and how
long it takes until another worker continues what a killed one ran.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from throughput import Server
from upcall import Agent, Context, Request, Response, Runtime, tool
from upcall.events import CallbackAnswered, CallbackRaised, ToolStarted, TurnEnded, TurnResumed
from upcall.messages import Call

HERE = Path(__file__).resolve().parent
DEADLINE = 86_400.0
WORKING = "work for a minute"


@tool(repeatable=True)
async def ask_person(ctx: Context) -> str:
    """Ask a person."""
    return await ctx.raise_callback("Which colour?", kind="request_user_input", timeout=DEADLINE)


@tool(repeatable=True)
async def work() -> str:
    """Take a minute."""
    await asyncio.sleep(60)
    return "done"


class Asks:
    """Asks a person, or works for long, then says what came of it."""

    name = "asks"

    async def respond(self, request: Request, emit) -> Response:
        last = request.messages[-1]
        if last.role == "tool":
            return Response(f"final: {last.results[0].text}")
        return Response(calls=(Call("", "work" if last.text == WORKING else "ask_person", {}),))


asker = Agent("asker", instructions="You ask.", model=Asks(), tools=[ask_person, work])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def start_worker(url: str, port: int) -> subprocess.Popen:
    cmd = [sys.executable, "-m", "upcall", "worker", "--store", url, "--agents", "parked:asker", "--json"]
    cmd += ["--metrics-port", str(port)]
    return subprocess.Popen(cmd, cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def until_ready(port: int, seconds: float = 60) -> None:
    """Wait until a worker says that it takes runs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/readyz", timeout=5)
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"a worker is not ready after {seconds:.0f} s")


def cpu_of(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def park(runtime: Runtime, number: int) -> list[tuple[str, str]]:
    """Park that many runs, some at a time; return the ids of their sessions and callbacks."""
    room = asyncio.Semaphore(100)

    async def one(at: int) -> tuple[str, str]:
        async with room:
            session = await runtime.start(asker, id=f"r{at:06}")
            reply = await session.prompt("go")
            assert reply.status == "waiting", reply
            return session.id, reply.callbacks[0].id

    return await asyncio.gather(*[one(at) for at in range(number)])


async def answer_some(runtime: Runtime, parked: list[tuple[str, str]], pause: float) -> list[float]:
    """Answer one after the other; return the milliseconds from each answer to the segment that it starts."""
    for _, callback in parked:
        await runtime.answer(callback, "blue")
        await asyncio.sleep(pause)
    took: list[float] = []
    for session, _ in parked:
        events = await ended(runtime, session)
        answered = next(event.time for event in events if isinstance(event, CallbackAnswered))
        resumed = next(event.time for event in events if isinstance(event, TurnResumed))
        took.append((resumed - answered) * 1e3)
    return sorted(took)


async def ended(runtime: Runtime, session: str, seconds: float = 60) -> list:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        events = [event async for event in runtime.events(session)]
        if any(isinstance(event, TurnEnded) for event in events):
            return events
        await asyncio.sleep(0.1)
    raise RuntimeError(f"{session} has not ended in {seconds:.0f} s")


async def idle(workers: list[subprocess.Popen], server: Server, seconds: float) -> tuple[float, float]:
    """Return the percentages of a core that each worker and the server use."""
    before, at, served = sum(cpu_of(w.pid) for w in workers), time.monotonic(), server.cpu()
    await asyncio.sleep(seconds)
    took = time.monotonic() - at
    used = sum(cpu_of(w.pid) for w in workers) - before
    return 100 * used / took / len(workers), 100 * (server.cpu() - served) / took


async def taken_over(runtime: Runtime, workers: list[subprocess.Popen]) -> float:
    """Kill the worker that runs a tool; return the seconds until another one continues it."""
    await runtime.submit("asker", WORKING, id="killed")
    while not any([isinstance(event, ToolStarted) async for event in runtime.events("killed")]):
        await asyncio.sleep(0.05)
    owner = (await runtime.store.row("killed")).owner
    (killed,) = [worker for worker in workers if str(worker.pid) in owner]
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    at = time.monotonic()
    while not any([isinstance(event, TurnResumed) async for event in runtime.events("killed")]):
        await asyncio.sleep(0.05)
    return time.monotonic() - at


async def measure(server: Server, url: str, o: argparse.Namespace) -> dict:
    async with Runtime(url, agents=[asker], hold=0.0) as runtime:
        at = time.monotonic()
        parked = await park(runtime, o.parked + o.answers)
        parking = time.monotonic() - at
        raised = [e async for e in runtime.events(parked[0][0]) if isinstance(e, CallbackRaised)]
        assert raised[0].expires, "the question has no deadline"
        ports = [free_port() for _ in range(o.workers)]
        workers = [start_worker(url, port) for port in ports]
        try:
            for port in ports:
                await until_ready(port)
            chosen = random.Random(1).sample(parked, o.answers)
            took = await answer_some(runtime, chosen, o.pause)
            share, served = await idle(workers, server, 10)
            seconds = await taken_over(runtime, workers)
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
    return {
        "parked": o.parked,
        "park_ms_each": round(1e3 * parking / len(parked), 2),
        "answers": len(took),
        "p50_ms": round(statistics.median(took), 1),
        "p99_ms": round(took[int(len(took) * 0.99)], 1),
        "most_ms": round(took[-1], 1),
        "idle_worker_percent": round(share, 2),
        "idle_server_percent": round(served, 2),
        "takeover_s": round(seconds, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--parked", type=int, default=10_000)
    ap.add_argument("--answers", type=int, default=300)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--pause", type=float, default=0.05, help="seconds between two answers")
    o = ap.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-pg-"))
    folder.chmod(0o755)
    server = Server(folder)
    try:
        with server.database("parked") as url:
            print(json.dumps(asyncio.run(measure(server, url, o))), flush=True)
    finally:
        server.engine.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
