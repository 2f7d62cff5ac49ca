"""How `v1.capture.jsonl` and `v1.capture.expected.json` were made: two real turns whose requests were captured.
They were made once; what a version has written never changes.

    PYTHONPATH=tests python -m store.golden.make_v1_capture
"""

from __future__ import annotations

import asyncio
import json

import msgspec

from models.openai_wire import OK, model
from models.server import serving
from store.golden.make_v1 import FOLDER, summary
from store.golden.make_v1_callbacks import Clock, Kept
from upcall import Agent, Runtime


async def main() -> None:
    async with serving(OK) as server:
        chat = model(server)
        helper = Agent("helper", instructions="Help.", model=chat)
        async with Runtime(Kept(Clock()), agents=[helper], capture=True) as runtime:
            session = await runtime.start(helper, id="golden")
            for text in ("one", "two"):
                await session.prompt(text)
            events = await runtime.store.read_all(0, 10_000)
        await chat.close()
    name = "v1.capture"
    (FOLDER / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in events))
    (FOLDER / f"{name}.expected.json").write_text(json.dumps(summary(events), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
