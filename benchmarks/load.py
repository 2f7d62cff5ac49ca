"""One process of W12: many sessions at once on a store that other processes may share.

    python load.py PEER WHERE [--sessions 50] [--seconds 4]      turns a second while many sessions are busy
    python load.py PEER WHERE --flat 200                         one session: what its turns cost as it grows

Says `ready` when its store is open, begins when a line with the time to begin comes in, and prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import itertools
import json
import os
import statistics
import sys
import time
import traceback

from common import NA, PAGE, SHORT, C, Peer, expect, rss, texts, versions


def peer_named(name: str) -> Peer:
    module = importlib.import_module(f"peer_{name}")
    (found,) = [
        one for _, one in inspect.getmembers(module, inspect.isclass)
        if issubclass(one, Peer) and one.__module__ == module.__name__
    ]  # fmt: skip
    return found()


async def told_to_begin() -> float:
    """Say that this process is ready; return the time at which to begin."""
    print("ready", flush=True)
    return float(await asyncio.to_thread(sys.stdin.readline))


async def measure_rate(begin, turns, o) -> dict:
    """Keep `sessions` sessions busy; each is replaced by a new one after some turns."""
    done: list[float] = []
    numbers = itertools.cycle(range(len(turns)))
    start = await told_to_begin()
    await asyncio.sleep(max(0.0, start - time.time()))
    end = start + o.seconds
    cpu = time.process_time()

    async def one() -> None:
        while time.time() < end:
            turn = await begin()
            for _ in range(o.turns):
                said = turns[next(numbers)]
                expect("final text", await turn(said.prompt), said.answer)
                done.append(time.time())
                if done[-1] >= end:
                    return

    C.clear()
    await asyncio.gather(*[one() for _ in range(o.sessions)])
    cpu = time.process_time() - cpu
    expect("model calls", C["model"], 2 * len(done))
    expect("tool runs", C["tool"], len(done))
    return {"turns": len(done), "seconds": max(done) - start, "cpu_s": cpu, "rss_mb": round(rss() / 1e6)}


async def measure_growth(begin, turns, o) -> dict:
    """Run one session's turns one after the other."""
    await told_to_begin()
    turn = await begin()
    wall: list[float] = []
    cpu: list[float] = []
    for number in range(o.flat):
        said = turns[number % len(turns)]
        at, used = time.perf_counter(), time.process_time()
        expect("final text", await turn(said.prompt), said.answer)
        wall.append((time.perf_counter() - at) * 1e3)
        cpu.append((time.process_time() - used) * 1e3)
    early, late = slice(5, 15), slice(o.flat - 10, o.flat)
    return {
        "turns": o.flat,
        "ms_at_10": round(statistics.median(wall[early]), 2),
        "ms_at_end": round(statistics.median(wall[late]), 2),
        "cpu_ms_at_10": round(statistics.median(cpu[early]), 2),
        "cpu_ms_at_end": round(statistics.median(cpu[late]), 2),
    }


async def run(peer: Peer, o) -> dict:
    turns = texts(SHORT if o.short else PAGE)
    begin, close = await peer.many(o.where, o.worker, turns)
    for _ in range(3):  # what a process does once is not measured
        await (await begin())(turns[0].prompt)
    found = await (measure_growth if o.flat else measure_rate)(begin, turns, o)
    await close()
    payload = statistics.mean(said.payload for said in turns)
    return {**found, "payload": round(payload), "versions": versions(peer.load_dists), "note": peer.notes["W12"]}


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("peer")
    ap.add_argument("where", help="the URL of a PostgreSQL database, or the path of a new file")
    ap.add_argument("--worker", type=int, default=0, help="the number of this process")
    ap.add_argument("--sessions", type=int, default=200, help="how many at once")
    ap.add_argument("--turns", type=int, default=5, help="turns of a session before a new one takes its place")
    ap.add_argument(
        "--seconds", type=float, default=4.0, help="seconds in which turns begin; all of them are counted"
    )
    ap.add_argument("--flat", type=int, default=0, metavar="TURNS", help="one session with so many turns instead")
    ap.add_argument("--short", action="store_true", help="texts as short as W1's, instead of about a page a turn")
    o = ap.parse_args()
    try:
        line = asyncio.run(run(peer_named(o.peer), o))
    except NA as e:
        line = {"na": str(e)}
    except Exception as e:  # a broken worker must not look like a number
        line = {"error": f"{type(e).__name__}: {e}"[:400]}
        traceback.print_exc()
    print(json.dumps(line), flush=True)
    os._exit("error" in line)  # no peer's exporter or thread pool may hold the process


if __name__ == "__main__":
    main()
