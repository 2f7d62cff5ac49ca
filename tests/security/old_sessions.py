"""Logs of an older version, in which sessions have ids that are refused today."""

from __future__ import annotations

import asyncio
from pathlib import Path

from upcall import Runtime
from upcall.events import SessionStarted

ODD_IDS = (
    "ticket-$(touch${IFS}pwned)",
    "x`touch pwned`",
    "a b;touch pwned",
    "it's",
    'say "hi"',
    "-dash",
    "back\\slash",
    "new\nline",
    "no\u00a0break",
    "zero\u200bwidth",
    "esc\x1b]0;title\x07",
    "top:a@b.c",
    "ünïcode",
    "*",
)


def keep_sessions(folder: Path, *ids: str, agent: str = "helper") -> None:
    """Write sessions under these ids to the default log of a folder."""
    home = folder / ".upcall"
    home.mkdir(mode=0o700, exist_ok=True)
    asyncio.run(_keep(home / "log.db", ids, agent))


async def _keep(path: Path, ids: tuple[str, ...], agent: str) -> None:
    async with Runtime(path) as runtime:
        for session_id in ids:
            done = runtime.store.append(session_id, [SessionStarted(agent, source="team:manager")], None)
            if done is not None:
                await done
