"""Not a peer: a hand-written loop with nothing in it but the work, as the floor.

It validates nothing, streams through one generator, and its log is one SQLite
commit per message (WAL, synchronous=FULL).  Ratios in the tables do not use it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3

from common import ANSWER, C, CHUNKS, PROMPT, QUESTION, SUB_REPLY, WORD, Peer, main, sub_model_call

ids = itertools.count()


class Ask(Exception):
    pass


class Log:
    def __init__(self, db) -> None:
        self.con = sqlite3.connect(db, isolation_level=None)
        self.con.execute("PRAGMA journal_mode=WAL")
        self.con.execute("PRAGMA synchronous=FULL")
        self.con.execute("CREATE TABLE IF NOT EXISTS log (n INTEGER PRIMARY KEY, sid TEXT, body TEXT)")
        self.con.execute("CREATE INDEX IF NOT EXISTS by_sid ON log (sid)")

    def add(self, sid: str, message: dict) -> None:
        self.con.execute("INSERT INTO log (sid, body) VALUES (?, ?)", (sid, json.dumps(message)))

    def read(self, sid: str) -> list[dict]:
        return [json.loads(b) for (b,) in self.con.execute("SELECT body FROM log WHERE sid = ? ORDER BY n", (sid,))]

    def close(self) -> None:
        self.con.close()


def call(name: str, args: dict) -> dict:
    return {"id": f"call_{next(ids)}", "name": name, "args": args}


def fake(*calls_of):
    async def model(messages):
        C["model"] += 1
        last = messages[-1]
        if last["role"] == "tool":
            n = len(list(itertools.takewhile(lambda m: m["role"] == "tool", reversed(messages))))
            return {
                "role": "assistant",
                "text": f"final: {last['text']}" + (f" x{n}" if calls_of[0][0] == "helper" else ""),
            }
        return {"role": "assistant", "text": "", "calls": [call(*c) for c in calls_of]}

    return model


async def sub_model(messages):
    await sub_model_call()
    return {"role": "assistant", "text": SUB_REPLY}


async def echo(x: str) -> str:
    C["tool"] += 1
    return x


async def loop(model, tools, messages, hooks=None, log=None, answers=None):
    """Run until the model answers in text; raises Ask when a tool needs an answer."""

    def add(m):
        messages.append(m)
        if log:
            log(m)

    async def one(c):
        if hooks:
            await hooks["before_tool"](c)
        if c["name"] == "ask_human":
            C["tool_entry"] += 1
            if not answers:
                raise Ask(c["args"]["question"])
            C["tool"] += 1
            text = answers.pop()
        else:
            text = await tools[c["name"]](**c["args"])
        if hooks:
            await hooks["after_tool"](c, text)
        return {"role": "tool", "id": c["id"], "text": text}

    while True:
        last = messages[-1]
        if not last.get("calls"):
            if last["role"] == "assistant":
                return last["text"]
            if hooks:
                await hooks["before_model"](messages)
            last = await model(messages)
            if hooks:
                await hooks["after_model"](last)
            add(last)
        if calls := last.get("calls"):
            done = [await one(calls[0])] if len(calls) == 1 else await asyncio.gather(*map(one, calls))
            for m in done:
                add(m)


def user() -> dict:
    return {"role": "user", "text": PROMPT}


class Bare(Peer):
    name = "bare-loop"
    imports = "import asyncio, json, sqlite3"
    notes = {"W1": "hand-written loop: the floor, not a peer"}
    sids = itertools.count()

    async def turn(self, hooks=False, sync_tool=False, session=False):
        def hook(key):
            async def h(*a):
                C[key] += 1

            return h

        hs = {k: hook(k) for k in ("before_model", "after_model", "before_tool", "after_tool")} if hooks else None
        model = fake(("echo", {"x": WORD}))

        async def run():
            return await loop(model, {"echo": echo}, [user()], hs)

        return run

    model_ask = staticmethod(fake(("ask_human", {"question": QUESTION})))

    async def start(self, messages, log=None):
        if log:
            log(messages[0])
        try:
            await loop(self.model_ask, {}, messages, log=log)
        except Ask as q:
            assert str(q) == QUESTION
            C["asked"] += 1

    async def finish(self, messages, log=None):
        return await loop(self.model_ask, {}, messages, log=log, answers=[ANSWER])

    async def ask(self, db):
        if db is None:

            async def run():
                m = [user()]
                await self.start(m)
                return await self.finish(m)

            return run
        box = [Log(db)]

        async def run():
            sid = f"s{next(self.sids)}"
            await self.start([user()], lambda m: box[0].add(sid, m))
            box[0].close()
            box[0] = Log(db)
            return await self.finish(box[0].read(sid), lambda m: box[0].add(sid, m))

        async def close():
            box[0].close()

        run.close = close
        return run

    async def growth(self, db):
        log = Log(db)
        model = fake(("echo", {"x": WORD}))
        messages = []

        async def run():
            messages.append(user())
            log.add("one", messages[-1])
            return await loop(model, {"echo": echo}, messages, log=lambda m: log.add("one", m))

        async def close():
            log.close()
            return len(messages)

        return run, close, "sqlite"

    async def wait(self, db):
        held = {}
        log = Log(db) if db else None

        async def park(i):
            if log:
                return await self.start([user()], lambda m: log.add(i, m))
            held[i] = [user()]
            await self.start(held[i])

        async def answer(i):
            if log:
                return await self.finish(log.read(i), lambda m: log.add(i, m))
            return await self.finish(held.pop(i))

        async def close():
            if log:
                log.close()

        return park, answer, close

    async def sub(self, fan):
        async def helper(request):
            return await loop(sub_model, {}, [{"role": "user", "text": request}])

        model = fake(*(("helper", {"request": PROMPT}) for _ in range(fan)))

        async def run():
            return await loop(model, {"helper": helper}, [user()])

        return run

    async def stream(self):
        async def model():
            C["model"] += 1
            for i in range(CHUNKS):
                yield f"w{i} "

        async def run():
            seen, parts = 0, []
            async for t in model():
                seen += 1
                parts.append(t)
            return seen, "".join(parts)

        return run


if __name__ == "__main__":
    main(Bare)
