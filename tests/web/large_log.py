"""Makes a log of any size in seconds: recorded run trees, copied row by row with other ids, texts and times.

The run trees are recorded with real agents, so a copy has everything that a real one has. Copies differ in their
words, so that a search index of them is like one of a real log.
"""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from upcall import Agent, Context, ModelUnavailable, Request, Runtime, tool
from upcall.models import Script, call
from upcall.models.script import Plain

WEIGHTS = {"chat": 700, "asked": 120, "team": 90, "tools": 60, "failed": 20, "waiting": 10}
"""How many of a thousand run trees are of each kind."""

FEW = {"large": 10, "cancelled": 3}
"""How many run trees of other kinds there are besides."""

MONTH = 30 * 86400.0
_SLOT = re.compile(rb"(tree-[a-z]+|q[0-9a-f]{12}|@(?:short|long|order)@)")
_ROWS = 50_000


# --- what is recorded -------------------------------------------------------------------


@tool
async def look_up(what: str) -> str:
    """Look something up."""
    return f"{what}: @long@"


@tool
async def pay(order: str, ctx: Context) -> str:
    """Pay an order."""
    return f"paid {await ctx.raise_callback(f'How much for @order@? {order}', 'blocker')}"


def _play(request: Request) -> Plain:
    done = sum(len(message.results) for message in request.messages)
    kind = request.messages[0].text.split()[0]
    wanted = {"chat": 4, "tools": 12, "large": 320, "helper": 2, "failed": 3, "cancelled": 2}.get(kind, 1)
    if kind == "failed" and done == wanted:
        return ModelUnavailable("script", "the line is dead: @short@")
    if done >= wanted:
        return "Done. @long@"
    if kind in ("asked", "waiting", "cancelled") and done == wanted - 1:
        return call("pay", order="@short@")
    if kind == "team":
        return [call("task", agent="helper", prompt=f"helper @short@ {number}") for number in range(2)]
    if kind == "large" and done % 100 == 10:
        return [call("task", agent="helper", prompt=f"helper @short@ {done}") for _ in range(5)]
    return ["I look. @short@", *[call("look_up", what="@short@") for _ in range(5 if kind == "large" else 1)]]


_script = Script(_play)
_helper = Agent("helper", description="helps", model=_script, tools=[look_up])
_clerk = Agent("clerk", model=_script, tools=[look_up, pay], agents=[_helper])
_planner = Agent("planner", model=_script, tools=[look_up, pay], agents=[_helper])
_AGENT = {"team": _planner, "large": _planner}


async def _record(path: Path) -> None:
    async with Runtime(path, agents=[_clerk, _planner]) as runtime:
        for kind in (*WEIGHTS, *FEW):
            session = await runtime.start(_AGENT.get(kind, _clerk).name, f"tree-{kind}")
            try:
                await session.prompt(f"{kind} please: @short@ for @order@")
            except ModelUnavailable:
                continue
            if kind == "asked":
                await runtime.answer((await runtime.inbox())[0].id, 7, by="ada", right="test")
                await runtime.resume(session.id)
            elif kind == "cancelled":
                await runtime.cancel(session.id, "not needed", by="ada")
                await runtime.resume(session.id)


# --- what is copied ---------------------------------------------------------------------


class Template(NamedTuple):
    """A recorded run tree: its sessions, its events in the order of the log, and its callbacks, as rows."""

    sessions: list[Any]
    events: list[tuple[int, float, list[bytes]]]
    callbacks: list[Any]


def _templates(path: Path) -> dict[str, Template]:
    found: dict[str, Template] = {}
    with closing(sqlite3.connect(path)) as db, db:
        for root, name in db.execute("SELECT n, id FROM sessions WHERE parent IS NULL").fetchall():
            sessions = db.execute("SELECT * FROM sessions WHERE root = ? ORDER BY n", (root,)).fetchall()
            of_tree = (
                "SELECT key, time, body FROM events WHERE key >> 32 IN (SELECT n FROM sessions WHERE root = ?)"
            )
            rows = db.execute(f"{of_tree} ORDER BY pos", (root,)).fetchall()
            events = [(key, at, _SLOT.split(body)) for key, at, body in rows]
            callbacks = db.execute("SELECT * FROM callbacks WHERE root = ?", (root,)).fetchall()
            found[name.removeprefix("tree-")] = Template(sessions, events, callbacks)
    db.close()
    return found


class _Words:
    """Texts of words of which few are common and most are rare."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "en", "ist")]
        words = ["".join(self._random.choices(syllables, k=self._random.randint(1, 4))) for _ in range(20_000)]
        weights = list(accumulate(1 / (rank + 5) for rank in range(len(words))))
        self._pools = {
            b"@short@": [self._text(words, weights, 8) for _ in range(5_000)],
            b"@long@": [self._text(words, weights, 40) for _ in range(20_000)],
        }

    def _text(self, words: Sequence[str], weights: Sequence[float], most: int) -> bytes:
        return " ".join(
            self._random.choices(words, cum_weights=weights, k=self._random.randint(most // 2, most))
        ).encode()

    def of(self, slot: bytes) -> bytes:
        return self._random.choice(self._pools[slot])


class _Copier:
    """Writes copies of templates into a log."""

    def __init__(self, db: sqlite3.Connection, words: _Words) -> None:
        self._db, self._words = db, words
        self.n: int = db.execute("SELECT max(n) FROM sessions").fetchone()[0]
        self.pos: int = db.execute("SELECT max(pos) FROM events").fetchone()[0]
        self._rows: dict[str, list[tuple[Any, ...]]] = {}

    def copy(self, template: Template, root_id: str, number: int, began: float) -> None:
        """Add one run tree. It began at a time, and its tags follow from its number."""
        first, base = template.sessions[0][0], self.n + 1
        old_id, old_time = template.sessions[0][1], template.sessions[0][7]
        move: dict[int | None, Any] = {row[0]: base + at for at, row in enumerate(template.sessions)}
        move[None] = None
        ids = {old_id.encode(): root_id.encode(), b"@order@": b"order-%06d" % number}
        for at, row in enumerate(template.callbacks):
            ids[row[0].encode()] = b"q%010x%02x" % (number, at)
        for n, old, agent, parent, _, kind, status, at, low, epoch, _ in template.sessions:
            name = root_id + old.removeprefix(old_id)
            self._add("sessions", (move[n], name, agent, move[parent], move[first], kind, status,
                                   began + at - old_time, low, epoch, ""))  # fmt: skip
        for key, at, parts in template.events:
            self.pos += 1
            body = b"".join(self._filled(parts, ids)) if len(parts) > 1 else parts[0]
            self._add(
                "events", ((move[key >> 32] << 32) + (key & 0xFFFFFFFF), self.pos, began + at - old_time, body)
            )
        for row in template.callbacks:
            raised, settled = (key and (move[key >> 32] << 32) + (key & 0xFFFFFFFF) for key in (row[2], row[10]))
            new_id = ids[row[0].encode()].decode()
            self._add("callbacks", (new_id, base, raised, *row[3:8], began + row[8] - old_time, row[9], settled,
                                    *row[11:]))  # fmt: skip
        self._add("tags", ("customer", f"c{number % 500}", base))
        self._add("tags", ("team", "red" if number % 2 else "blue", base))
        self.n += len(template.sessions)
        if len(self._rows["events"]) > _ROWS:
            self.flush()

    def _filled(self, parts: list[bytes], ids: dict[bytes, bytes]) -> Iterator[bytes]:
        for at, part in enumerate(parts):
            yield part if at % 2 == 0 else ids.get(part) or self._words.of(part)

    def _add(self, table: str, row: tuple[Any, ...]) -> None:
        self._rows.setdefault(table, []).append(row)

    def flush(self) -> None:
        """Write what was added."""
        for table, rows in self._rows.items():
            marks = ", ".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        self._db.commit()
        self._rows = {}


async def make_large_log(path: Path, trees: int, seed: int = 1) -> dict[str, int]:
    """Make a log with so many run trees. Returns how many sessions, events and run trees of each kind it has."""
    await _record(path)
    templates, chosen = _templates(path), random.Random(seed)
    few = {number * trees // (count + 1): kind for kind, count in FEW.items() for number in range(1, count + 1)}
    counts = dict.fromkeys(templates, 1)
    db, began = sqlite3.connect(path), time.time() - MONTH
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA cache_size = -200000")
    copier = _Copier(db, _Words(seed))
    for number in range(trees - len(templates)):
        kind = few.get(number) or chosen.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        counts[kind] += 1
        copier.copy(templates[kind], f"{kind}-{number:06d}", number, began + MONTH * number / trees)
    copier.flush()
    counts["sessions"], counts["events"] = (
        db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("sessions", "events")
    )
    db.close()
    return counts
