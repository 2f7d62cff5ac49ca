"""A page under load: a team that writes its log in a process of its own, and what the page makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.async_api import Page

from cli.command import environment
from page.browser import HERE
from page.large_team import SESSION
from web.serving import Server, get, until

PATH = f"sessions/{SESSION}"

_FRAMES = """
() => {
  const found = (window.frameTimes = []);
  let last = 0;
  const next = (now) => {
    if (last) found.push(now - last);
    last = now;
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
}
"""
"""Notes the milliseconds between animation frames, from now on."""

_NODES = """
async () => {
  const text = ({ id, changed, label, about, status, seq, end_seq, history }) =>
    [id, changed, label, about, status, seq, end_seq, ...history.map((one) => one[0])].join(" ");
  const lines = (window.upcall?.nodes() ?? []).map(text).sort();
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(lines.join("\\n")));
  return [lines.length, [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0")).join("")];
}
"""
_FIELDS = ("id", "changed", "label", "about", "status", "seq", "end_seq")


class Team:
    """The process that writes the log of a large team."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.written = 0
        """The position of its newest event: nobody else writes."""

    async def write(self, count: int, rate: int = 0) -> float:
        """Write so many events, so many a second (0: as fast as possible); returns the seconds that it took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count} {rate}\n".encode())
        answer = await asyncio.wait_for(self._process.stdout.readline(), 600)
        self.written += count
        return float(answer.split()[1])


@asynccontextmanager
async def large_team(folder: Path) -> AsyncGenerator[Team]:
    """A team that writes into this folder's log."""
    (folder / ".upcall").mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "page.large_team", str(folder / ".upcall" / "log.db")),
        env=environment(PYTHONPATH=str(HERE.parent)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        yield Team(process)
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 60)


async def another_tab(page: Page) -> Page:
    """The same page in another tab of its browser."""
    token = await page.evaluate("() => sessionStorage.getItem('upcall-token')")
    tab = await page.context.new_page()
    await tab.goto(f"{page.url}#token={token}")
    await tab.get_by_text("live", exact=True).wait_for()
    await whole_tree(tab)
    return tab


async def whole_tree(page: Page) -> None:
    """Wait until the page has a whole run tree: of a large one it shows the beginning before."""
    await page.get_by_role("treeitem").first.wait_for(timeout=120_000)
    await page.wait_for_function("() => window.upcall?.position() > 0", timeout=120_000)


# --- what the page has ------------------------------------------------------------------


class Nodes(NamedTuple):
    """How many nodes there are, and a hash of their ids, values and the positions of all their changes."""

    total: int
    hash: str


async def nodes_of_server(team: Team, server: Server) -> tuple[Nodes, int]:
    """The server's nodes, once it has read all that was written, and the position of their newest change."""
    async with server.client() as client:
        path = f"/api/sessions/{SESSION}/nodes"
        news = f"{path}?after={max(0, team.written - 500)}"
        await until(client, news, lambda answer: answer["pos"] >= team.written, 60.0)
        found: Sequence[dict[str, Any]] = (await get(client, path))["nodes"]
    lines = [
        " ".join(
            str(one) for one in (*(node[name] for name in _FIELDS), *(moment[0] for moment in node["history"]))
        )
        for node in found
    ]
    hash_of_all = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    return Nodes(len(lines), hash_of_all), max(node["changed"] for node in found)


async def caught_up(page: Page, position: int, seconds: float = 60.0) -> None:
    """Wait until the page knows every change up to a position."""
    async with asyncio.timeout(seconds):
        while await page.evaluate("() => window.upcall?.position() ?? 0") < position:
            await asyncio.sleep(0.02)


async def same_nodes(team: Team, server: Server, *pages: Page) -> int:
    """Hold pages to exactly the server's nodes, with all their changes, each once; returns how many nodes."""
    wanted, position = await nodes_of_server(team, server)
    for page in pages:
        await caught_up(page, position)
        assert Nodes(*await page.evaluate(_NODES)) == wanted
    return wanted.total


# --- what it costs ----------------------------------------------------------------------


class Cost(NamedTuple):
    """Milliseconds between frames, and megabytes that the page's scripts had, garbage included, over time."""

    frames: list[float]
    heap: list[float]

    def frame(self, percent: float) -> float:
        """A percentile of the times between frames."""
        return sorted(self.frames)[min(len(self.frames) - 1, int(len(self.frames) * percent / 100))]


class Measured:
    """A page whose frames and memory are measured."""

    def __init__(self, page: Page, cdp: Any) -> None:
        self._page, self._cdp = page, cdp

    async def heap(self) -> float:
        """Megabytes that the page's scripts have now."""
        found = (await self._cdp.send("Performance.getMetrics"))["metrics"]
        return next(one["value"] for one in found if one["name"] == "JSHeapUsedSize") / 1_000_000

    async def live_heap(self) -> float:
        """The same without garbage."""
        await self._cdp.send("HeapProfiler.collectGarbage")
        return await self.heap()

    async def during(self, work: asyncio.Future[Any]) -> Cost:
        """What the page costs until something is done."""
        heap: list[float] = []
        await self._page.evaluate("() => void (window.frameTimes.length = 0)")
        while not work.done():
            heap.append(await self.heap())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(work), 0.5)
        return Cost(await self._page.evaluate("() => window.frameTimes"), heap)


async def measured(page: Page) -> Measured:
    """Begin to measure a page."""
    cdp: Any = await page.context.new_cdp_session(page)
    await cdp.send("Performance.enable")
    await page.evaluate(_FRAMES)
    return Measured(page, cdp)
