#!/usr/bin/env python3
"""Run every peer's script in its own venv, interleaved, and write results.json, RESULTS.md and two plots.

    python run.py [--rounds 5] [--peers a,b] [--workloads W1,W4] [--merge]

`.venvs` beside this file (or --venvs, or $BENCH_VENVS) holds one venv per peer, named as in PEERS below;
venvs.py makes them.  A peer whose venv is missing runs with this Python if its name is in SYSTEM, else it
is skipped.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import plots

HERE = Path(__file__).resolve().parent
# script peer_<key>.py in venv <key>
PEERS = [
    "upcall",
    "upcall_deep",
    "langgraph",
    "deepagents",
    "adk",
    "openai_agents",
    "pydantic_ai",
    "agent_framework",
    "strands",
    "smolagents",
    "bare",
]
SYSTEM = {"bare"}  # no venv needed
SHARED = {"upcall_deep": "upcall"}  # whose venv it runs in
OURS = ("upcall", "upcall-deep")
FLOOR = "bare-loop"  # in the tables, never in "the fastest peer"
FAST = ["W1", "W1m", "W1s", "W2", "W3", "W3d", "W3r", "W7", "W7p", "W8", "W9", "W10", "W11", "W11d"]
SLOW = ["W4", "W6", "W6d"]
TITLES = {
    "W1": "turn",
    "W1m": "turn + session store",
    "W1s": "turn, sync tool",
    "W2": "turn + 4 hooks",
    "W3": "ask",
    "W3d": "ask, durable, disk",
    "W3r": "ask, durable, RAM disk",
    "W7": "subagent",
    "W7p": "8 subagents",
    "W8": "stream, per chunk",
    "W9": "deep agent's task",
    "W10": "turn + the whole kit, idle",
    "W11": "program that asks twice",
    "W11d": "program, durable, disk",
}


def log(*a) -> None:
    print(dt.datetime.now().strftime("%H:%M:%S"), *a, file=sys.stderr, flush=True)


class Runner:
    def __init__(self, o) -> None:
        self.o = o
        self.venvs = Path(o.venvs)
        self.pythons = {}
        for p in o.peers:
            exe = self.home(p) / "bin" / "python"
            if exe.exists():
                self.pythons[p] = str(exe)
            elif p in SYSTEM:
                self.pythons[p] = sys.executable
            else:
                log("no venv for", p, "- skipped")

    def home(self, p: str) -> Path:
        return self.venvs / SHARED.get(p, p)

    def env(self, ram: bool = False) -> dict:
        env = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
        env["PYTHONHASHSEED"] = "0"
        env["LANGSMITH_TRACING"] = "false"
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # pip has compiled the venvs already
        db = self.o.ram_dir if ram else self.o.db_dir
        if db:
            env["BENCH_DB_DIR"] = db
        return env

    def peer(self, p: str, workload: str, *extra: str, timeout: float = 900) -> dict:
        ram = workload == "W3r"
        python = self.pythons[p]
        if workload in ("W11", "W11d"):  # an environment of its own, where programs need more than the rest does
            apart = self.venvs / f"{p}_code" / "bin" / "python"
            python = str(apart) if apart.exists() else python
        cmd = [python, str(HERE / f"peer_{p}.py"), "W3d" if ram else workload, *extra]
        try:
            r = subprocess.run(cmd, cwd=HERE, env=self.env(ram), capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"peer": p, "workload": workload, "error": f"no answer in {timeout:.0f} s"}
        lines = [ln for ln in r.stdout.splitlines() if ln.startswith("{")]
        if not lines:
            return {"peer": p, "workload": workload, "error": clean(r.stderr[-300:])}
        d = json.loads(lines[-1])
        d["workload"] = workload
        if "error" in d:
            d["error"] = clean(d["error"])
        d["load"] = round(os.getloadavg()[0], 2)
        return d

    def throughput(self, number: int) -> Iterator[dict]:
        """Run W12 that many times: yield each measurement as it comes."""
        python = self.venvs / "postgres" / "bin" / "python"
        if not python.exists():
            log("no environment with a PostgreSQL server - W12 skipped")
            return
        cmd = [python, HERE / "throughput.py", "--venvs", self.venvs, "--rounds", str(number)]
        cmd += ["--peers", ",".join(self.pythons)]
        with subprocess.Popen(
            [str(x) for x in cmd], cwd=HERE, env=self.env(), text=True, stdout=subprocess.PIPE
        ) as c:
            for line in c.stdout:
                d = json.loads(line)
                if "error" in d:
                    d["error"] = clean(d["error"])
                extra = ", ".join(f"{name} {v}" for name, v in d.pop("versions", {}).items() if v)
                if "note" in d:
                    d["note"] += f" ({extra})" if extra else ""
                yield d

    def info(self, p: str) -> dict | None:
        r = subprocess.run(
            [self.pythons[p], str(HERE / f"peer_{p}.py"), "--info"],
            cwd=HERE,
            env=self.env(),
            capture_output=True,
            text=True,
        )
        lines = [ln for ln in r.stdout.splitlines() if ln.startswith("{")]
        if not lines:
            log("cannot load", p, "- skipped:", clean(r.stderr.strip().rpartition("\n")[2]))
        return json.loads(lines[-1]) if lines else None

    def import_ms(self, p: str, line: str) -> tuple[float, float]:
        """(wall, CPU) milliseconds of one fresh process."""
        t = time.perf_counter()
        c = subprocess.Popen(
            [self.pythons[p], "-c", line],
            env=self.env(),
            cwd=HERE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, use = os.wait4(c.pid, 0)
        wall = (time.perf_counter() - t) * 1000
        c.returncode = os.waitstatus_to_exitcode(status)
        if c.returncode:
            raise RuntimeError(f"{p}: {line} failed")
        return wall, (use.ru_utime + use.ru_stime) * 1000

    def size(self, p: str) -> dict:
        """Bytes and distributions in the venv, less pip and setuptools."""
        if not self.home(p).exists():
            return {}
        (site,) = (self.home(p) / "lib").glob("python*/site-packages")
        skip = re.compile(r"^(pip|setuptools|wheel|pkg_resources|_distutils_hack|distutils-precedence)([-.]|$)")
        total = pyc = 0
        for top in site.iterdir():
            if skip.match(top.name):
                continue
            for f in [top] if top.is_file() else top.rglob("*"):
                if f.is_file() and not f.is_symlink():
                    n = f.stat().st_size
                    total += n
                    if f.suffix == ".pyc":
                        pyc += n
        dists = [d for d in site.glob("*.dist-info") if not skip.match(d.name)]
        return {
            "mb": round(total / 1e6, 1),
            "mb_without_pyc": round((total - pyc) / 1e6, 1),
            "distributions": len(dists),
        }

    def fsyncs(self, p: str) -> float | None:
        """fsync+fdatasync calls per durable ask: (40 asks - 10 asks) / 30 under strace."""
        counts = []
        for n in (10, 40):
            with tempfile.NamedTemporaryFile("r") as f:
                cmd = ["strace", "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", f.name]
                cmd += [self.pythons[p], str(HERE / f"peer_{p}.py"), "W3d"]
                cmd += ["--warm", "0", "--cap", str(n), "--seconds", "600"]
                r = subprocess.run(cmd, cwd=HERE, env=self.env(ram=True), capture_output=True, text=True)
                lines = [ln for ln in r.stdout.splitlines() if ln.startswith("{")]
                if not lines or "us" not in json.loads(lines[-1]):
                    return None
                got = 0
                for ln in f.read().splitlines():
                    w = ln.split()
                    if w and w[-1] in ("fsync", "fdatasync"):
                        got += int(w[3])
                counts.append(got)
        return round((counts[1] - counts[0]) / 30, 2)


def clean(text: str) -> str:
    return re.sub(r"/(?:[\w.+-]+/)+", "", text)


def fsync_us(directory: str | None) -> float:
    xs = []
    with tempfile.NamedTemporaryFile(dir=directory) as f:
        for _ in range(100):
            t = time.perf_counter()
            f.write(b"x" * 4096)
            f.flush()
            os.fsync(f.fileno())
            xs.append((time.perf_counter() - t) * 1e6)
    return round(statistics.median(xs), 1)


def cpu_name() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or "unknown"


def loop_ns() -> float:
    """One pass of an empty Python loop, the best of several: how fast this interpreter is here and now."""
    best = float("inf")
    for _ in range(20):
        t = time.perf_counter_ns()
        for _ in range(100_000):
            pass
        best = min(best, (time.perf_counter_ns() - t) / 100_000)
    return round(best, 1)


# ------------------------------------------------------------------ running


def run(o) -> dict:
    r = Runner(o)
    rng = random.Random(1)
    out = HERE / o.out
    res = (
        json.loads(out.read_text())
        if o.merge and out.exists()
        else {"runs": [], "info": {}, "w5": {}, "fsyncs": {}}
    )
    res["machine"] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release().split("-")[0],
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "loop_ns": loop_ns(),
        "fsync_us_disk": fsync_us(o.db_dir or None),
        "fsync_us_ram": fsync_us(o.ram_dir) if o.ram_dir else None,
        "date": dt.date.today().isoformat(),
    }
    for p in list(r.pythons):
        info = r.info(p)
        if info:
            res["info"][p] = info
        else:
            del r.pythons[p]
    if not r.pythons:
        sys.exit("no peer can be run; make their environments with venvs.py")
    if o.merge:  # the new runs replace old ones of the same peers and workloads
        redo = {(res["info"][p]["peer"], w) for p in r.pythons for w in o.workloads}
        res["runs"] = [d for d in res["runs"] if (d["peer"], d["workload"]) not in redo]

    def note(d, n):
        d["peer"] = res["info"][d["peer"]]["peer"] if d["peer"] in res["info"] else d["peer"]
        d["round"] = n
        res["runs"].append(d)
        what = (
            d.get("na")
            or d.get("error")
            or d.get("us")
            or d.get("us_at_1000")
            or d.get("us_at_cut")
            or d.get("us_per_session")
            or d.get("per_second")
            or d.get("ms_at_end")
        )
        log(f"round {n} {d['workload']:4} {d['peer']:16} {what}")
        out.write_text(json.dumps(res, indent=1))

    dead: set[tuple[str, str]] = set()  # na in the first round: no need to ask again

    def one(p, w, n, *extra, timeout=900):
        if (p, w) in dead:
            return
        d = r.peer(p, w, *extra, timeout=timeout)
        if "na" in d:
            dead.add((p, w))
        note(d, n)

    fast = [w for w in FAST if w in o.workloads and (w != "W3r" or o.ram_dir)]
    for n in range(o.rounds if fast else 0):
        res.setdefault("loads", []).append([round(x, 2) for x in os.getloadavg()])
        for w in fast:
            order = list(r.pythons)
            rng.shuffle(order)
            for p in order:
                one(p, w, n, "--seconds", str(o.seconds))
    for n in range(o.slow_rounds):
        for w in [w for w in SLOW if w in o.workloads]:
            order = list(r.pythons)
            rng.shuffle(order)
            for p in order:
                one(
                    p,
                    w,
                    n,
                    "--sessions",
                    str(o.sessions),
                    "--turns",
                    str(o.turns),
                    "--growth-limit",
                    str(o.growth_limit),
                )
    if "W12" in o.workloads:
        for d in r.throughput(o.throughput_rounds):
            note(d, d["round"])
    if "W5" in o.workloads:
        times = {p: [] for p in r.pythons}
        empty = []
        for _ in range(5):
            empty.append(r.import_ms(next(iter(r.pythons)), "pass"))
            for p in r.pythons:
                times[p].append(r.import_ms(p, res["info"][p]["import"]))

        def best(xs):
            return {"import_ms": round(min(x[0] for x in xs)), "import_cpu_ms": round(min(x[1] for x in xs))}

        res["w5"]["python -c pass"] = best(empty)
        for p, xs in times.items():
            if xs:
                res["w5"][res["info"][p]["peer"]] = {**best(xs), **r.size(p)}
        out.write_text(json.dumps(res, indent=1))
    if o.fsyncs and shutil.which("strace") and o.ram_dir:
        for p in r.pythons:
            x = r.fsyncs(p)
            if x is not None:
                res["fsyncs"][res["info"][p]["peer"]] = x
            log("fsyncs", p, x)
        out.write_text(json.dumps(res, indent=1))
    return res


# ------------------------------------------------------------------ tables


def cells(res: dict, workload: str, key: str, how: str) -> dict[str, tuple[float, float | None]]:
    """peer -> (median over rounds, median per-round ratio to the fastest peer); or best round, its ratio"""
    by: dict[str, dict[int, float]] = {}
    for d in res["runs"]:
        if d["workload"] == workload and key in d:
            by.setdefault(d["peer"], {})[d["round"]] = d[key]
    med = {p: (min if how == "best" else statistics.median)(v.values()) for p, v in by.items()}
    real = {p: m for p, m in med.items() if p != FLOOR}
    if not real:
        return {p: (m, None) for p, m in med.items()}
    best = min(real, key=real.get)
    out = {}
    for p, m in med.items():
        rs = [v / by[best][n] for n, v in by[p].items() if by[best].get(n)]
        if how == "best":
            rs = [m / med[best]]
        out[p] = (m, statistics.median(rs) if rs else None)
    return out


def num(x: float) -> str:
    if x >= 100:
        return f"{x:,.0f}"
    return f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def ratio(x: float | None) -> str:
    if x is None:
        return ""
    return f" ({x:.0f}×)" if x >= 10 else f" ({x:.1f}×)" if x >= 0.1 else f" ({x:.3f}×)"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(r) + " |" for r in [head, ["---"] + ["---:"] * (len(head) - 1), *rows]]


def why(res: dict, peer: str, workload: str) -> str:
    for d in res["runs"]:
        if d["peer"] == peer and d["workload"] == workload:
            if "error" in d:
                return "error"
            if "na" in d:
                return "= W1" if d["na"].startswith("same as W1") else "n/a"
    return "-"


def at_a_glance(res: dict) -> list[str]:
    """Ours beside the fastest other peer, by the median over rounds of the ratio in the same round."""
    rows = []
    for w in FAST:
        by: dict[str, dict[int, float]] = {}
        for d in res["runs"]:
            if d["workload"] == w and "cpu_us" in d and d["peer"] != FLOOR:
                by.setdefault(d["peer"], {})[d["round"]] = d["cpu_us"]
        own = [by.pop(p) for p in OURS if p in by]
        ours = own[0] if own else None
        if not ours or not by:
            continue
        best = min(by, key=lambda p: statistics.median(by[p].values()))
        rs = [by[best][n] / us for n, us in ours.items() if n in by[best]]
        theirs = statistics.median(by[best].values())
        row = [f"{w} {TITLES[w]}", num(statistics.median(ours.values())), best, num(theirs)]
        rows.append([*row, f"{statistics.median(rs):.1f}×" if rs else "-"])
    if not rows:
        return []
    head = ["CPU time, us", "upcall", "fastest other", "its time", "its time over ours"]
    return ["## At a glance", "", *table(head, rows), ""]


def kit(res: dict) -> list[str]:
    """What each piece of the kit adds to a turn that does not need it, and all of them beside other peers' W1."""
    runs = [d for d in res["runs"] if d["workload"] == "W10" and "cpu_us_added" in d]
    if not runs:
        return []
    rows = []
    for piece in runs[0]["cpu_us_added"]:
        xs = [d["cpu_us_added"][piece] for d in runs if piece in d["cpu_us_added"]]
        rows.append([f"`{piece}`", f"{statistics.median(xs):+.1f}"])
    whole = statistics.median(d["cpu_us"] for d in runs)
    rows.append(["all of them, the whole turn", num(whole)])
    rows.append(["none, the whole turn", num(statistics.median(d["cpu_us_none"] for d in runs))])
    others = {p: c[0] for p, c in cells(res, "W1", "cpu_us", "median").items() if p not in (*OURS, FLOOR)}
    if others:
        best = min(others, key=others.get)
        rows.append([f"{best}'s bare turn (W1)", f"{num(others[best])} ({others[best] / whole:.1f} x)"])
    title = "## W10 the kit: CPU microseconds added to a fresh session's turn that does not need the piece"
    return [title, "", *table(["piece", "us"], rows), ""]


DEEP = ("upcall-deep", "deepagents")
DEEP_ROWS = [
    ("W9", "a task, ms", lambda d: d["us"] / 1e3),
    ("W9", "a task, CPU ms", lambda d: d["cpu_us"] / 1e3),
    ("W4", "a turn around turn 10, ms", lambda d: d["us_at_10"] / 1e3),
    ("W4", "around turn 100", lambda d: d["us_at_100"] / 1e3),
    ("W4", "around turn 500", lambda d: d["us_at_500"] / 1e3),
    ("W4", "around turn 1000", lambda d: d["us_at_1000"] / 1e3),
    ("W4", "its last turns, CPU ms", lambda d: d["cpu_us_series"][-1][1] / 1e3),
    ("W4", "CPU of its last 50 turns over turns 11 to 60", lambda d: d["cpu_growth_50"]),
    ("W4", "turns", lambda d: d["turns"]),
    ("W4", "stored, MB", lambda d: d["db_bytes"] / 1e6),
    ("W4", "stored a turn, KB", lambda d: d["db_bytes"] / d["turns"] / 1e3),
    ("W4", "the process, MB", lambda d: d["rss_mb"]),
]


def deep(res: dict) -> list[str]:
    """The two ready-made deep agents beside each other: one task, and one session as it grows."""
    rows = []
    for workload, title, of in DEEP_ROWS:
        found = []
        for peer in DEEP:
            xs = []
            for d in res["runs"]:
                if d["peer"] == peer and d["workload"] == workload:
                    try:
                        xs.append(of(d))
                    except KeyError:  # it could not do it, or was stopped before
                        continue
            found.append(statistics.median(xs) if xs else None)
        ours, theirs = found
        if ours is not None or theirs is not None:
            over = f"{theirs / ours:,.1f}×" if ours and theirs and title != "turns" else ""
            rows.append([f"{workload} {title}", *("-" if x is None else num(x) for x in found), over])
    head = ["", *DEEP, "theirs over ours"]
    title = "## Deep agents: `deep_agent` beside deepagents' `create_deep_agent`"
    return [title, "", *table(head, rows), ""] if rows else []


def throughput(res: dict) -> list[str]:
    """Many sessions at once: turns a second by the number of processes, and what a turn costs."""
    runs = [d for d in res["runs"] if d["workload"] == "W12"]
    rates = [d for d in runs if "per_second" in d and d["store"] == "postgresql"]
    if not rates:
        return []
    by: dict[tuple[str, int], dict[int, dict]] = {}
    for d in rates:
        by.setdefault((d["peer"], d["workers"]), {})[d["round"]] = d
    counts = sorted({d["workers"] for d in rates})
    peers = [i["peer"] for i in res["info"].values() if any((i["peer"], n) in by for n in counts)]

    def over(peer: str, workers: int) -> str:
        pairs = [(by[OURS[0], workers].get(n), d) for n, d in by[peer, workers].items() if (OURS[0], workers) in by]
        xs = [ours["per_second"] / d["per_second"] for ours, d in pairs if ours and d["per_second"]]
        return f" ({statistics.median(xs):.1f}×)" if xs and peer not in OURS else ""

    rows = []
    for peer in peers:
        row = [peer]
        for n in counts:
            ds = by.get((peer, n), {}).values()
            row.append(num(statistics.median(d["per_second"] for d in ds)) + over(peer, n) if ds else "-")
        ds = [d for d in rates if d["peer"] == peer]
        for key in ("cpu_us", "server_cpu_us", "stored_per_turn"):
            row.append(f"{statistics.median(d[key] for d in ds):,.0f}")
        row.append(f"{statistics.median(d['stored_per_turn'] / d['payload'] for d in ds):.1f}×")
        row.append(f"{statistics.median(d['wal_per_turn'] for d in ds):,.0f}")
        rows.append(row)
    head = ["peer", *(f"turns/s, {n} process" + ("es" if n > 1 else "") for n in counts)]
    head += ["CPU us a turn", "server's", "stored B a turn", "over the texts", "WAL B a turn"]
    loads = "Load average at the end of each round: " + ", ".join(
        str([d["load"] for d in runs if d["round"] == n][-1]) for n in sorted({d["round"] for d in runs})
    )
    out = ["## W12 many sessions: 200 at once on PostgreSQL, turns with a page of text", ""]
    out += [
        *table(head, rows),
        "",
        f"In brackets: how many times as many turns upcall does in the same round. {loads}.",
        "",
    ]
    growth = {peer: [d for d in runs if d["peer"] == peer and "ms_at_end" in d] for peer in peers}
    rows = []
    for peer, ds in growth.items():
        if ds:
            at = {key: statistics.median(d[key] for d in ds) for key in ds[0] if "ms_at" in key}
            times = [num(at[key]) for key in ("ms_at_10", "ms_at_end", "cpu_ms_at_10", "cpu_ms_at_end")]
            rows.append([peer, *times, f"{at['cpu_ms_at_end'] / at['cpu_ms_at_10']:.2f}×"])
    if rows:
        out += ["One session of 200 turns on PostgreSQL, alone:", ""]
        head = ["peer", "ms around turn 10", "around turn 200", "CPU ms around turn 10", "around turn 200"]
        out += [*table([*head, "CPU growth"], rows), ""]
    files = [d for d in runs if "per_second" in d and d["store"] == "sqlite"]
    if files:
        rate, cpu = (num(statistics.median(d[key] for d in files)) for key in ("per_second", "cpu_us"))
        out += [f"upcall with 200 sessions at once on SQLite, one process, W1's short texts: {rate} turns/s, "
                f"{cpu} us of CPU a turn.", ""]  # fmt: skip
    return out


PLOTS = [
    ("times.svg", "CPU time of W1, W2, W3 and W7 per peer", plots.bars),
    ("growth.svg", "CPU time a turn as one session grows", plots.growth),
]


def markdown(res: dict) -> str:
    names = [i["peer"] for i in res["info"].values()]
    names = [n for n in names if n != FLOOR] + [n for n in names if n == FLOOR]
    m = res["machine"]
    out = ["# Results", ""]
    out += [
        "Written by `make bench`; what each workload is and how it is checked: [README.md](README.md).",
        "",
        f"Machine: {m.get('cpu', 'unknown CPU')}, {m['cpus']} CPUs (shared), {m.get('memory_gb', '?')} GB, "
        f"{m['system']} {m.get('kernel', '')}, Python {m['python']}, {m['date']}; "
        f"an empty loop pass {m.get('loop_ns', '?')} ns; "
        f"fsync of 4 KB: {m['fsync_us_disk']} us on the disk used"
        + (f", {m['fsync_us_ram']} us on the RAM disk" if m.get("fsync_us_ram") else "")
        + ". Load average at each round's start: "
        + ", ".join(str(x[0]) for x in res.get("loads", []))
        + ".",
        "",
        "Times in microseconds: the median over rounds of each round's median; in brackets the median over "
        f"rounds of the ratio to the fastest peer of that column in the same round. `{FLOOR}` is a hand-written "
        "loop, the floor: not a peer, not used for ratios.",
        "",
    ]
    out += at_a_glance(res)
    out += [f"![{alt}]({file})\n" for file, alt, draw in PLOTS if draw(res, names)]
    cols = [w for w in FAST if any(d["workload"] == w for d in res["runs"])]
    for key, title, how in (
        ("us", "Wall time", "median"),
        ("cpu_us", "CPU time (all threads of the process; steadier on a busy machine)", "median"),
        ("us", "Wall time, each peer's best round", "best"),
    ):
        out += [f"## {title}", ""]
        got = {w: cells(res, w, key, how) for w in cols}
        rows = []
        for p in names:
            row = [p]
            for w in cols:
                c = got[w].get(p)
                row.append(num(c[0]) + ratio(c[1]) if c else why(res, p, w))
            rows.append(row)
        out += table(["peer"] + [f"{w} {TITLES[w]}" for w in cols], rows) + [""]
    out += kit(res)
    out += deep(res)
    if any(d["workload"] == "W4" for d in res["runs"]):
        out += ["## W4 growth: one session, 1,000 turns", ""]
        rows = []
        for p in names:
            ds = [d for d in res["runs"] if d["workload"] == "W4" and d["peer"] == p and "turns" in d]
            if not ds:
                rows.append([p, why(res, p, "W4")] + [""] * 10)
                continue

            def at(k):
                xs = [d[k] for d in ds if k in d]
                return statistics.median(xs) if xs else None

            row = [p, ds[0]["kind"]]
            for t in (10, 100, 500, 1000):
                row.append(num(at(f"us_at_{t}") / 1000) if at(f"us_at_{t}") else "-")
            for t in (10, 1000):
                row.append(num(at(f"cpu_us_at_{t}") / 1000) if at(f"cpu_us_at_{t}") else "-")
            row.append(f"{at('cpu_growth_50'):.2f}×" if at("cpu_growth_50") else "-")
            row.append(f"{at('db_bytes') / 1e6:,.2f}" if at("db_bytes") else "-")
            row.append(f"{at('db_bytes') / at('turns'):,.0f}" if at("db_bytes") else "-")
            row.append(f"{at('rss_mb'):,.0f}")
            if at("cut_at"):
                row[1] += f", cut at turn {at('cut_at'):.0f}"
            rows.append(row)
        head = [
            "peer",
            "stored as",
            "ms at 10",
            "ms at 100",
            "ms at 500",
            "ms at 1000",
            "CPU ms at 10",
            "CPU ms at 1000",
        ]
        out += table(head + ["CPU growth", "stored MB", "stored B a turn", "process MB"], rows)
        out += ["", "CPU growth: turns 951 to 1000 over turns 11 to 60.", ""]
    if res["w5"]:
        out += ["## W5 import and install", ""]
        best = min(v["import_ms"] for k, v in res["w5"].items() if k not in (FLOOR, "python -c pass"))
        rows = []
        for p in [*names, "python -c pass"]:
            v = res["w5"].get(p)
            if not v:
                rows.append([p, "-", "-", "-", "-", "-"])
                continue
            rt = ratio(v["import_ms"] / best) if p not in (FLOOR, "python -c pass") else ""
            rows.append(
                [p, f"{v['import_ms']:,}{rt}", f"{v['import_cpu_ms']:,}"]
                + [str(v.get(k, "-")) for k in ("mb", "mb_without_pyc", "distributions")]
            )
        out += table(
            ["peer", "import ms (best of 5)", "CPU ms", "install MB", "less .pyc", "distributions"], rows
        ) + [""]
    if any(d["workload"] in ("W6", "W6d") for d in res["runs"]):
        out += ["## W6 waiting: sessions paused on a question in one process", ""]
        rows = []
        for p in names:
            row = [p]
            for w in ("W6", "W6d"):
                ds = [d for d in res["runs"] if d["workload"] == w and d["peer"] == p and "sessions" in d]
                if not ds:
                    row += [why(res, p, w), "", "", ""] if w == "W6" else [why(res, p, w), "", "", "", ""]
                    continue
                row.append(f"{statistics.median(d['sessions'] for d in ds):,.0f}")
                row.append(f"{statistics.median(d['rss_bytes_per_session'] for d in ds):,.0f}")
                row.append(num(statistics.median(d["seconds"] for d in ds)))
                row.append(num(statistics.median(d["us_per_session"] for d in ds)))
                if w == "W6d":
                    row.append(f"{statistics.median(d['db_bytes_per_session'] for d in ds):,.0f}")
            rows.append(row)
        head = ["peer", "memory: sessions", "RSS B each", "seconds", "us each"]
        head += ["durable: sessions", "RSS B each", "seconds", "us each", "stored B each"]
        out += table(head, rows) + [""]
    stopped = {n: [d for d in res["runs"] if d["peer"] == n and d["workload"] == "W11d"] for n in names}
    if any(stopped.values()):
        out += ["## W11d a question in the middle of a program", ""]
        rows = []
        for n, ds in stopped.items():
            ds = [d for d in ds if "resume" in d]
            if ds:
                at = [statistics.median(d["resume"][k] for d in ds) for k in ("us", "cpu_us")]
                sizes = [statistics.median(d[k] for d in ds) for k in ("snapshot_bytes", "db_bytes_per_session")]
                rows.append([n, *(num(x) for x in at), *(f"{x:,.0f}" for x in sizes)])
            elif stopped[n]:
                rows.append([n, why(res, n, "W11d"), "", "", ""])
        out += table(["peer", "resume us", "CPU us", "snapshot B", "stored B a program"], rows) + [""]
    out += throughput(res)
    if res["fsyncs"]:
        out += ["## fsync calls per durable ask (W3d)", ""]
        out += table(["peer", "fsyncs"], [[p, str(res["fsyncs"].get(p, "-"))] for p in names]) + [""]
    out += ["## Versions and notes", ""]
    notes: dict[str, dict[str, str]] = {}
    for d in res["runs"]:
        text = d.get("note") or (f"n/a: {d['na']}" if "na" in d else None)
        if text:
            notes.setdefault(d["peer"], {})[d["workload"]] = text
    for i in res["info"].values():
        v = ", ".join(f"{k} {x}" for k, x in i["versions"].items() if x)
        out.append(f"- **{i['peer']}**{': ' + v if v else ''}")
        merged: dict[str, list[str]] = {}
        for w, t in sorted(notes.get(i["peer"], {}).items()):
            merged.setdefault(t, []).append(w)
        out += [f"  - {', '.join(ws)}: {t}" for t, ws in merged.items()]
    return "\n".join(out) + "\n"


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--venvs", default=os.environ.get("BENCH_VENVS") or HERE / ".venvs")
    ap.add_argument("--peers", default=PEERS, type=lambda s: s.split(","))
    ap.add_argument("--workloads", default=[*FAST, *SLOW, "W12", "W5"], type=lambda s: s.split(","))
    ap.add_argument("--rounds", type=int, default=5, help="rounds of the quick workloads")
    ap.add_argument("--slow-rounds", type=int, default=1, help="rounds of W4 and W6")
    ap.add_argument("--throughput-rounds", type=int, default=2, help="rounds of W12")
    ap.add_argument("--seconds", type=float, default=1.5, help="time budget of one quick measurement")
    ap.add_argument("--sessions", type=int, default=10000)
    ap.add_argument("--turns", type=int, default=1000)
    ap.add_argument("--growth-limit", type=float, default=800, help="W4: a peer's seconds before it is stopped")
    ap.add_argument(
        "--db-dir", default=os.environ.get("BENCH_DB_DIR"), help="where durable stores go (default: the temp dir)"
    )
    ap.add_argument("--ram-dir", default=os.environ.get("BENCH_RAM_DIR"), help="a RAM disk, for W3r and --fsyncs")
    ap.add_argument(
        "--fsyncs", action="store_true", help="count fsyncs per durable ask (needs strace and --ram-dir)"
    )
    ap.add_argument("--merge", action="store_true", help="keep results.json, replacing only what is run now")
    ap.add_argument("--tables", action="store_true", help="only rewrite RESULTS.md and the plots")
    ap.add_argument("--out", default="results.json")
    o = ap.parse_args()
    unknown = [p for p in o.peers if p not in PEERS]
    if unknown:
        ap.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    res = json.loads((HERE / o.out).read_text()) if o.tables else run(o)
    (HERE / "RESULTS.md").write_text(markdown(res))
    names = [i["peer"] for i in res["info"].values()]
    for file, _, draw in PLOTS:
        if drawn := draw(res, names):
            (HERE / file).write_text(drawn)


if __name__ == "__main__":
    main()
