"""How `v1.queue.jsonl` and `v1.queue.expected.json` were made: queued turns that ran, were tried again, wait, and
were cancelled. They were made once; what a version has written never changes.

    PYTHONPATH=tests python -m store.golden.make_v1_queue
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from store.golden.make_v1 import FOLDER, summary
from store.golden.make_v1_callbacks import Clock, Kept
from upcall import Agent, Hooks, Request, Runtime, SessionAccess
from upcall.core.runtime.retrying import Retries
from upcall.errors import ModelUnavailable
from upcall.models import Script

failures = [ModelUnavailable("script", "overloaded")]


def decide(request: Request) -> Any:
    if failures:
        raise failures.pop()
    return f"heard {request.messages[-1].text}"


async def queue_next(session: SessionAccess, _: Request) -> None:
    """Queue another session from the first one, and compact."""
    if session.id == "golden" and not session.get_context("compacted"):
        await session.submit("listener", "from a hook", tenant="acme")
        session.set_context("compacted", True)
        session.compact_messages(keep_last=1)


async def run(runtime: Runtime) -> None:
    """The run itself."""
    await runtime.submit("listener", "one", id="golden", priority="high", tenant="acme", by="ops")
    await runtime.submit("listener", "two", id="golden", turn=2)
    await runtime.submit("listener", "never", id="cancelled", priority="low")
    await runtime.cancel("cancelled", "not needed", by="ops")
    while await runtime.ready():
        await runtime.work(once=True, retries=Retries(3, 0.0))
    await runtime.submit("listener", "three", id="golden", turn=3, priority="critical")


async def main() -> None:
    listener = Agent(
        "listener", instructions="Listen.", model=Script(decide), hooks=Hooks(before_model=[queue_next])
    )
    async with Runtime(Kept(Clock()), agents=[listener]) as runtime:
        await run(runtime)
        events = await runtime.store.read_all(0, 10_000)
    name = "v1.queue"
    (FOLDER / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in events))
    (FOLDER / f"{name}.expected.json").write_text(json.dumps(summary(events), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
