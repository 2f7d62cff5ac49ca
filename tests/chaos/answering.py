"""A process that answers the callbacks whose ids it reads, and says of each whether its answer was the first."""

from __future__ import annotations

import asyncio
import sys

from upcall import Runtime
from upcall.errors import AlreadySettled, StoreUnavailable


async def answer(runtime: Runtime, callback: str, me: str) -> str:
    while True:
        try:
            await runtime.answer(callback, f"yes from {me}", by=me)
            return "first"
        except AlreadySettled as error:
            return f"late {error.by}"
        except StoreUnavailable:  # the server is restarted
            await asyncio.sleep(0.1)


async def main(url: str, me: str) -> None:
    async with Runtime(url) as runtime:
        print("ready", flush=True)
        while callback := (await asyncio.to_thread(sys.stdin.readline)).strip():
            print(callback, await answer(runtime, callback, me), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
