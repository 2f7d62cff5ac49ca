"""Shared harness: every peer script subclasses Peer and calls main(Peer).

A peer implements the hooks below with its own idiomatic public API.  The harness
does the timing, the counting and the assertions, so that every peer is measured
and checked the same way.  One JSON line is printed per measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.metadata as md
import json
import os
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# What the fakes and the tools did.  Peers bump these; the harness checks them.
C: Counter = Counter()


class Gauge:
    """How many calls are in flight at once, and the most there ever were."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def __enter__(self) -> None:
        self.now += 1
        self.peak = max(self.peak, self.now)

    def __exit__(self, *exc: object) -> None:
        self.now -= 1


SUB_GAUGE = Gauge()
# Seconds a subagent's model call takes: 0 when timing, more in the parallelism check.
SUB_DELAY = [0.0]


async def sub_model_call() -> None:
    """Every peer's fake subagent model awaits this once per call."""
    C["sub_model"] += 1
    with SUB_GAUGE:
        if SUB_DELAY[0]:
            await asyncio.sleep(SUB_DELAY[0])


class NA(Exception):
    """Raised by a peer that cannot do a workload; the text says why."""


QUESTION = "which colour?"
ANSWER = "blue"
PROMPT = "please echo hello"
WORD = "hello"
FINAL = f"final: {WORD}"
SUB_REPLY = "sub says hi"
SUB_FAN = 8
# W11: what the model writes, as each peer spells a call and a question.
PROGRAM = """
said = []
for path in ["one", "two", "three", "four", "five"]:
    text = {read}(path=path)
    if path in ("three", "five"):
        text += "=" + {ask}(message=path)
    said.append(text)
{end}
"""
JOINED = '" ".join(said)'
SAID = f"one two three={ANSWER} four five={ANSWER}"
CHUNKS = 1000


class Said(NamedTuple):
    """The texts of one turn of W12. Each begins with the turn's number, by which the fake model finds its reply."""

    prompt: str
    query: str
    found: str
    answer: str

    @property
    def payload(self) -> int:
        """The bytes that the application says or hears in one such turn."""
        return sum(len(text) for text in self)


# Characters of the prompt, of the tool's argument, of its result and of the reply: about a page of text.
PAGE = (300, 60, 2000, 640)
SHORT = (18, 8, 8, 14)


def texts(sizes: tuple[int, ...] = PAGE, kinds: int = 64) -> list[Said]:
    """Return that many different turns, of made-up words of which some are as frequent as in prose.

    PostgreSQL compresses 2,000 characters of them to two thirds, as it does with prose.
    """
    rng = random.Random(12)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(3000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]

    def text(number: int, size: int) -> str:
        return f"{number} {' '.join(rng.choices(words, weights, k=size // 3))}"[:size]

    return [Said(*(text(number, size) for size in sizes)) for number in range(kinds)]


def number_of(text: str) -> int:
    """Return the number of the turn that a text of W12 belongs to."""
    return int(text.partition(" ")[0])


class Peer:
    name = "?"
    dists: tuple[str, ...] = ()
    load_dists: tuple[str, ...] = ()  # what W12 needs beside them
    imports = "pass"
    notes: dict[str, str] = {}

    async def turn(self, hooks: bool = False, sync_tool: bool = False, session: bool = False):
        """Return an async callable: one fresh session, one turn, returns the final text.

        With an attribute `read_back` (async, no arguments) that reads every turn's log after the clock has
        stopped, checks it, and returns how many there were.

        session: with the peer's in-memory session store, where that is something apart.
        """
        raise NA("not written")

    async def ask(self, db: Path | None):
        """Return an async callable that runs to the question, answers it, returns the text.

        With db: durable, and each call closes and reopens the store before answering.
        """
        raise NA("not written")

    async def growth(self, db: Path):
        """Return (async callable: next turn of one session, async close, kind)."""
        raise NA("not written")

    async def wait(self, db: Path | None):
        """Return (async callable(i): leave session i paused on a question,
        async callable(i): answer session i and return the text, async close)."""
        raise NA("not written")

    async def sub(self, fan: int):
        """Return an async callable: a parent turn that calls `fan` subagents as tools."""
        raise NA("not written")

    async def stream(self):
        """Return an async callable: stream one CHUNKS-chunk reply, return (chunks seen, text)."""
        raise NA("not written")

    async def deep(self):
        """Return an async callable: a fresh session of the peer's ready-made deep agent writes WORD to a file,
        reads it, gives a task to a subagent, and returns the final text."""
        raise NA("no deep agent ships")

    async def kits(self, folder: Path):
        """Return {piece: async callable as `turn` gives it}: with that piece idle; `none`, and `all` together."""
        raise NA("its middleware is in W2 and in deepagents")

    async def code(self, db: Path | None):
        """Return an async callable: the model writes PROGRAM, which reads five files and asks at the third and
        the fifth; both are answered; returns the final text.

        With db: durable, and the store is closed and opened again before each answer. It then has attributes
        `resumes`, the (wall, CPU) nanoseconds from each answer to the next stop, and `snapshots`, the bytes kept of
        each stopped program.
        """
        raise NA("not written")

    async def many(self, where: str, worker: int, turns: list[Said]):
        """Return (async callable that begins a session, async close) for a process that shares a database with others.

        where: the URL of a PostgreSQL database, or the path of a new SQLite file
        worker: the number of this process, from 0; the first one creates the tables before the others start

        What the first callable returns runs the session's next turn: given a prompt it returns the final text.
        """
        raise NA("not written")


class AppStore:
    """One SQLite table (id -> text), for peers that hand the app a blob and leave it to store it."""

    def __init__(self, db: Path) -> None:
        self.con = sqlite3.connect(db)
        self.con.execute("PRAGMA journal_mode=WAL")
        self.con.execute("CREATE TABLE IF NOT EXISTS blobs (id TEXT PRIMARY KEY, body TEXT)")
        self.con.commit()

    def put(self, key: str, body: str) -> None:
        self.con.execute("INSERT OR REPLACE INTO blobs VALUES (?, ?)", (key, body))
        self.con.commit()

    def get(self, key: str) -> str:
        return self.con.execute("SELECT body FROM blobs WHERE id = ?", (key,)).fetchone()[0]

    def close(self) -> None:
        self.con.close()


# ------------------------------------------------------------------ helpers


def rss() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tree_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


@contextmanager
def scratch():
    base = os.environ.get("BENCH_DB_DIR") or None
    d = Path(tempfile.mkdtemp(prefix="bench-", dir=base))
    try:
        yield d
    finally:
        shutil.rmtree(d, ignore_errors=True)


def stats(samples: list[tuple[int, int]], per: int = 1) -> dict:
    """Wall and CPU (all threads of the process) time of one call, in microseconds."""
    us = sorted(s[0] / 1000 / per for s in samples)
    cpu = [s[1] / 1000 / per for s in samples]
    return {
        "us": round(statistics.median(us), 2),
        "cpu_us": round(statistics.median(cpu), 2),
        "min_us": round(us[0], 2),
        "p95_us": round(us[min(len(us) - 1, int(len(us) * 0.95))], 2),
        "n": len(us),
    }


async def timed(
    fn, check, budget_s: float, warm: int, cap: int, floor: int = 10
) -> tuple[list[tuple[int, int]], int]:
    """Call fn until the time budget or the cap; returns ((wall ns, cpu ns) samples, calls made)."""
    calls = 0
    for _ in range(warm):
        check(await fn())
        calls += 1
    out: list[tuple[int, int]] = []
    end = time.perf_counter() + budget_s
    while len(out) < cap and (len(out) < floor or time.perf_counter() < end):
        c, t = time.process_time_ns(), time.perf_counter_ns()
        r = await fn()
        out.append((time.perf_counter_ns() - t, time.process_time_ns() - c))
        check(r)
        calls += 1
    return out, calls


def expect(name: str, got, want) -> None:
    if got != want:
        raise AssertionError(f"{name}: got {got!r}, want {want!r}")


def is_final(text) -> None:
    expect("final text", text, FINAL)


# ------------------------------------------------------------------ workloads


async def w1(p: Peer, o, **kw):
    fn = await p.turn(**kw)
    C.clear()
    s, n = await timed(fn, is_final, o.seconds, o.warm, o.cap)
    expect("model calls", C["model"], 2 * n)
    expect("tool runs", C["tool"], n)
    r = stats(s)
    read_back = getattr(fn, "read_back", None)
    if read_back:  # after the clock has stopped: what a peer claims to have logged is read and folded
        r["turns_read_back"] = await read_back()
        expect("turns read back", r["turns_read_back"], n)
    if kw.get("hooks"):
        hooks = {k: C[k] for k in ("before_model", "after_model", "before_tool", "after_tool")}
        expect("hooks", hooks, p.hook_counts(n))
        r["hook_runs_per_turn"] = sum(hooks.values()) / n
    return r


async def w3(p: Peer, o, durable: bool):
    with scratch() as d:
        fn = await p.ask(d / "ask.db" if durable else None)
        C.clear()
        try:
            s, n = await timed(fn, p.ask_check, o.seconds, o.warm, o.cap)
        finally:
            close = getattr(fn, "close", None)
            if close:
                await close()
        expect("model calls", C["model"], p.ask_models(n))
        expect("questions seen", C["asked"], n)
        expect("tool runs to the end", C["tool"], n)
        r = stats(s)
        r["tool_entries_per_ask"] = C["tool_entry"] / n
        if durable:
            r["db_bytes_per_session"] = round(tree_bytes(d) / n)
        return r


async def w4(p: Peer, o):
    marks = [m for m in (10, 100, 500, 1000) if m <= o.turns]
    with scratch() as d:
        fn, close, kind = await p.growth(d / "growth.db")
        C.clear()
        ns: list[int] = []
        cpu: list[int] = []
        cut = None
        start = time.perf_counter()
        for i in range(o.turns):
            c, t = time.process_time_ns(), time.perf_counter_ns()
            text = await fn()
            ns.append(time.perf_counter_ns() - t)
            cpu.append(time.process_time_ns() - c)
            is_final(text)
            if time.perf_counter() - start > o.growth_limit or rss() > 4e9:
                cut = i + 1
                break
        expect("tool runs", C["tool"], len(ns))
        expect("model calls", C["model"], 2 * len(ns))
        before = tree_bytes(d)
        total = time.perf_counter() - start
        history = await close()
        r = {"kind": kind, "turns": len(ns), "total_s": round(total, 2), "rss_mb": round(rss() / 1e6)}
        if history is not None:
            r["messages_in_history"] = history
        for m in marks:
            lo, hi = (m - 5, m + 5) if m < o.turns else (m - 10, m)
            if hi <= len(ns):
                r[f"us_at_{m}"] = round(statistics.median(ns[lo:hi]) / 1000, 1)
                r[f"cpu_us_at_{m}"] = round(statistics.median(cpu[lo:hi]) / 1000, 1)
        r["cpu_us_series"] = [
            (at, round(statistics.median(cpu[at - 10 : at]) / 1000, 1)) for at in (10, *range(50, len(cpu) + 1, 50))
        ]
        if len(cpu) >= 200:
            early, late = cpu[10:60], cpu[-50:]
            r["cpu_growth_50"] = round(sum(late) / sum(early), 2)  # 50 turns each: 10-turn windows are too noisy
        if cut:
            r["cut_at"] = cut
            r["us_at_cut"] = round(statistics.median(ns[-10:]) / 1000, 1)
            r["cpu_us_at_cut"] = round(statistics.median(cpu[-10:]) / 1000, 1)
        if kind != "memory":
            r["db_bytes"] = tree_bytes(d)
            r["db_bytes_before_close"] = before
        return r


async def w6(p: Peer, o, durable: bool):
    with scratch() as d:
        park, answer, close = await p.wait(d / "wait.db" if durable else None)
        C.clear()
        for i in range(o.warm):
            await park(f"warm{i}")
        gc.collect()
        base = rss()
        db0 = tree_bytes(d)
        c, t = time.process_time(), time.perf_counter()
        n = 0
        while n < o.sessions:
            await park(f"s{n}")
            n += 1
            if time.perf_counter() - t > o.wait_limit:
                break
        took, cpu = time.perf_counter() - t, time.process_time() - c
        gc.collect()
        grown = rss() - base
        db = tree_bytes(d) - db0
        expect("questions seen", C["asked"], n + o.warm)
        expect("tools finished", C["tool"], 0)
        for i in {0, n // 2, n - 1}:  # some of them really can still be answered
            p.ask_check(await answer(f"s{i}"))
        expect("tools finished after answers", C["tool"], len({0, n // 2, n - 1}))
        await close()
        r = {
            "sessions": n,
            "rss_bytes_per_session": round(grown / n),
            "rss_base_mb": round(base / 1e6, 1),
            "seconds": round(took, 2),
            "cpu_seconds": round(cpu, 2),
            "us_per_session": round(took / n * 1e6, 1),
            "cpu_us_per_session": round(cpu / n * 1e6, 1),
        }
        if durable:
            r["db_bytes_per_session"] = round(db / n)
        return r


async def w7(p: Peer, o, fan: int):
    fn = await p.sub(fan)

    def check(text):
        expect("parent text", text, f"final: {SUB_REPLY} x{fan}")

    C.clear()
    SUB_GAUGE.peak = 0
    SUB_DELAY[0] = 0.05
    check(await fn())
    SUB_DELAY[0] = 0.0
    peak = SUB_GAUGE.peak
    C.clear()
    s, n = await timed(fn, check, o.seconds, o.warm, o.cap)
    expect("parent model calls", C["model"], 2 * n)
    expect("subagent model calls", C["sub_model"], fan * n)
    r = stats(s)
    r["fan"] = fan
    r["subagents_in_flight"] = peak
    return r


async def w8(p: Peer, o):
    fn = await p.stream()
    want = "".join(f"w{i} " for i in range(CHUNKS))

    def check(r):
        seen, text = r
        expect("streamed text", text, want)
        expect("chunks seen", seen, CHUNKS)

    C.clear()
    s, n = await timed(fn, check, o.seconds, min(o.warm, 2), o.cap, floor=5)
    expect("model calls", C["model"], n)
    r = stats(s, per=CHUNKS)
    r["chunks"] = CHUNKS
    return r


async def w9(p: Peer, o):
    fn = await p.deep()
    C.clear()
    s, n = await timed(fn, lambda text: expect("text", text, f"final: {SUB_REPLY}"), o.seconds, o.warm, o.cap)
    expect("model calls", C["model"], 4 * n)
    expect("subagent model calls", C["sub_model"], n)
    expect("files read", C["read"], n)
    return stats(s)


async def w10(p: Peer, o):
    """All kinds of turn in one process, a few of each at a time in a shuffled order: differences are small."""
    with scratch() as folder:
        return await w10_in(await p.kits(folder), o)


async def w10_in(fns: dict, o) -> dict:
    samples: dict[str, list[tuple[int, int]]] = {name: [] for name in fns}
    rng, order, turns = random.Random(1), list(fns), 0
    C.clear()
    end = time.perf_counter() + o.seconds * 3
    while turns < 60 * len(fns) or time.perf_counter() < end:
        rng.shuffle(order)
        for name in order:
            got, n = await timed(fns[name], is_final, 0, 1, 5, floor=5)
            samples[name] += got
            turns += n
    expect("model calls", C["model"], 2 * turns)
    expect("tool runs", C["tool"], turns)
    each = {name: stats(got) for name, got in samples.items()}
    bare = each["none"]["cpu_us"]
    added = {name: round(found["cpu_us"] - bare, 2) for name, found in each.items() if name not in ("none", "all")}
    return {**each["all"], "cpu_us_none": bare, "cpu_us_added": added}


async def w11(p: Peer, o, durable: bool):
    with scratch() as d:
        fn = await p.code(d / "code.db" if durable else None)
        C.clear()

        def check(text):
            expect("final text", text, f"final: {SAID}")

        try:
            s, n = await timed(fn, check, o.seconds, min(o.warm, 3), min(o.cap, 200))
        finally:
            close = getattr(fn, "close", None)
            if close:
                await close()
        expect("files read", C["tool"], 5 * n)
        expect("questions seen", C["asked"], 2 * n)
        r = stats(s)
        if durable:
            r["resume"] = stats(fn.resumes[6:])
            r["snapshot_bytes"] = round(statistics.median(fn.snapshots))
            r["db_bytes_per_session"] = round(tree_bytes(d) / n)
        return r


WORKLOADS = {
    "W1": lambda p, o: w1(p, o),
    "W1m": lambda p, o: w1(p, o, session=True),
    "W1s": lambda p, o: w1(p, o, sync_tool=True),
    "W2": lambda p, o: w1(p, o, hooks=True),
    "W3": lambda p, o: w3(p, o, False),
    "W3d": lambda p, o: w3(p, o, True),
    "W4": lambda p, o: w4(p, o),
    "W6": lambda p, o: w6(p, o, False),
    "W6d": lambda p, o: w6(p, o, True),
    "W7": lambda p, o: w7(p, o, 1),
    "W7p": lambda p, o: w7(p, o, SUB_FAN),
    "W8": lambda p, o: w8(p, o),
    "W9": lambda p, o: w9(p, o),
    "W10": lambda p, o: w10(p, o),
    "W11": lambda p, o: w11(p, o, False),
    "W11d": lambda p, o: w11(p, o, True),
}


def _default_hook_counts(self, n: int) -> dict:
    return {"before_model": 2 * n, "after_model": 2 * n, "before_tool": n, "after_tool": n}


def _default_ask_check(self, text) -> None:
    expect("final text", text, f"final: {ANSWER}")


def _default_ask_models(self, n: int) -> int:
    return 2 * n


for _n, _f in (
    ("hook_counts", _default_hook_counts),
    ("ask_check", _default_ask_check),
    ("ask_models", _default_ask_models),
):
    setattr(Peer, _n, _f)


def versions(dists: tuple[str, ...]) -> dict:
    out = {}
    for d in dists:
        try:
            out[d] = md.version(d)
        except md.PackageNotFoundError:
            out[d] = None
    return out


def main(cls: type[Peer]) -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("workloads", nargs="*", help="default: all")
    ap.add_argument("--info", action="store_true", help="print the peer's versions and import line")
    ap.add_argument("--seconds", type=float, default=3.0, help="time budget of one measurement")
    ap.add_argument("--warm", type=int, default=20, help="untimed calls first")
    ap.add_argument("--cap", type=int, default=2000, help="most samples of one measurement")
    ap.add_argument("--turns", type=int, default=1000, help="W4: turns")
    ap.add_argument("--growth-limit", type=float, default=240, help="W4: give up after this many seconds")
    ap.add_argument("--sessions", type=int, default=10000, help="W6: waiting sessions")
    ap.add_argument("--wait-limit", type=float, default=60, help="W6: stop creating after this many seconds")
    ap.add_argument("--trace", action="store_true", help="print tracebacks")
    o = ap.parse_args()
    if o.info:
        print(json.dumps({"peer": cls.name, "versions": versions(cls.dists), "import": cls.imports}))
        return
    bad = 0
    for w in o.workloads or list(WORKLOADS):
        line = {"peer": cls.name, "workload": w}
        try:
            line.update(asyncio.run(WORKLOADS[w](cls(), o)))
            if w in cls.notes:
                line["note"] = cls.notes[w]
        except NA as e:
            line["na"] = str(e)
        except Exception as e:  # a broken workload must not look like a number
            bad = 1
            line["error"] = f"{type(e).__name__}: {e}"[:400]
            if o.trace:
                traceback.print_exc()
        print(json.dumps(line), flush=True)
    sys.stdout.flush()
    os._exit(bad)  # no peer's exporter or thread pool may hold the process
