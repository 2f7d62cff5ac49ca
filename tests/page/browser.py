"""A real browser in front of a real `upcall serve`."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.async_api import Page, ViewportSize, async_playwright, expect

from cli.command import environment
from web.serving import Server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PICTURES = HERE / "pictures"
DEMO = ROOT / "src" / "upcall" / "demo" / "shop.py"
MOUSE = "primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"
"""Settings of a browser with a mouse, as far as pages can tell. Narrow pages are on a telephone, without one."""

FLAGS = [
    "--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic", f"--blink-settings={MOUSE}",
]  # fmt: skip
ENDPOINT = "UPCALL_TEST_BROWSER"
"""The variable with the address of the browser that the tests of this process share."""


@contextmanager
def started_browser(profile: Path) -> Generator[None]:
    """A browser without windows. The tests of this process connect to it, and each has a context of its own."""
    program = shutil.which("chromium")
    assert program, "the tests of the page need chromium: run `make browser`"
    command = [program, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}", *FLAGS]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
        os.environ[ENDPOINT] = f"http://127.0.0.1:{_port(profile / 'DevToolsActivePort')}"
        try:
            yield
        finally:
            del os.environ[ENDPOINT]
            browser.terminate()
            browser.wait(20)


def _port(file: Path) -> str:
    """The port that the browser has written into its profile, once it listens."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if file.exists() and (lines := file.read_text().splitlines()):
            return lines[0]
        time.sleep(0.05)
    raise AssertionError("chromium did not start")


async def upcall(folder: Path, *args: str) -> str:
    """Run the command in this folder; returns what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "upcall", *args),
        cwd=folder,
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    return said.decode()


async def run_demo(folder: Path) -> None:
    """Run the demo's team in this folder until its question waits; the tests of a process share one run."""
    ready = folder.parent / "demo"
    if not ready.exists():
        ready.mkdir()
        shutil.copy(DEMO, ready)
        said = await upcall(ready, "run", "shop:team", "Build the sign-in page", "--id", "demo")
        assert "Which colour" in said, said
    shutil.copytree(ready, folder, dirs_exist_ok=True)


async def run_desk(folder: Path, agent: str, prompt: str, session: str = "") -> None:
    """Run an agent of desk.py in this folder; the session has the agent's name unless another is given."""
    shutil.copy(HERE / "desk.py", folder)
    await upcall(folder, "run", f"desk:{agent}", prompt, "--id", session or agent)


def open_desk(folder: Path) -> None:
    """Put the agents of desk.py into this folder, for a server to load."""
    shutil.copy(HERE / "desk.py", folder)


@asynccontextmanager
async def served(folder: Path, *agents: str) -> AsyncGenerator[Server]:
    """A server for this folder's log."""
    server = Server(folder, *agents)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


HIDING = """
let hidden = false;
Object.defineProperty(document, "hidden", { get: () => hidden });
window.hide = (now) => { hidden = now; document.dispatchEvent(new Event("visibilitychange")); };
window.told = [];
window.Notification = class {
  static permission = "default";
  static requestPermission = async () => (window.Notification.permission = "granted");
  constructor(title, options) { window.told.push(options.body); }
  close() {}
};
"""
"""Lets a test hide a page, which a browser without windows can't, and read its notifications."""


@asynccontextmanager
async def shown(server: Server, path: str = "", *, wide: int = 1400, theme: Any = "light") -> AsyncGenerator[Page]:
    """The page in a browser, opened with the server's key. Nothing on it may raise or violate the policy."""
    problems: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(os.environ[ENDPOINT])
        size = ViewportSize(width=wide, height=860 if wide > 899 else 780)
        phone = wide < 900
        context = await browser.new_context(
            viewport=size, color_scheme=theme, is_mobile=phone, has_touch=phone, device_scale_factor=1
        )
        await context.add_init_script(HIDING)
        page = await context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if "Content Security" in said.text else None)
        await page.goto(f"{server.url}/{path}#token={server.token}")
        await page.get_by_text("live", exact=True).wait_for()
        try:
            yield page
        finally:
            await context.close()
            await browser.close()
    assert not problems, problems


async def open_dialog(page: Page, key: str) -> None:
    """Press a key until its dialog is there: keys do nothing while a view is still being built."""
    dialog = page.get_by_role("dialog")
    for _ in range(10):
        await page.keyboard.press(key)
        with suppress(AssertionError):
            await expect(dialog).to_be_visible(timeout=2000)
            return
    await expect(dialog).to_be_visible()


async def violations(page: Page) -> list[str]:
    """What axe finds on the page as it is."""
    axe: Any = importlib.import_module("axe_playwright_python.async_playwright").Axe()
    found = await axe.run(page)
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found.response["violations"]]


async def picture(page: Page, name: str) -> None:
    """Keep a screenshot beside the tests."""
    PICTURES.mkdir(exist_ok=True)
    await page.screenshot(path=PICTURES / f"{name}.png")
