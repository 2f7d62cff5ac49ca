"""The keyboard during questions: keep keys for the next question, and drop keys that were pressed too early."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import time
from collections.abc import Generator

QUIET_SECONDS = 0.5
"""Seconds without a key before an approval accepts one."""

_STEP = 0.05
_CTRL_C = b"\x03"


@contextlib.contextmanager
def keep_keys() -> Generator[None]:
    """Keep keys that are pressed between two questions for the next one.

    Ctrl-C leaves a question and cancels nothing.
    """
    if not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    off = termios.ECHO | termios.ISIG | termios.ICANON
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, [*before[:3], before[3] & ~off, *before[4:]])
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


async def drop_early_keys() -> bool:
    """Drop keys typed before now, and those typed until half a second has passed without a key.

    Such keys were meant for something else, or were pressed before the text could be read. Returns True if Ctrl-C
    was one of them: that leaves a question and approves nothing. While a key is held down, nothing is approved. Use
    it inside `keys_kept`, so that keys arrive before Enter.
    """
    if not sys.stdin.isatty():
        return False
    from prompt_toolkit.application.current import get_app_session
    from prompt_toolkit.input.typeahead import get_typeahead
    from prompt_toolkit.keys import Keys

    # keys that an earlier prompt has read but not used
    stopped = any(press.key is Keys.ControlC for press in get_typeahead(get_app_session().input))
    quiet_since = time.monotonic()
    while not stopped and (left := quiet_since + QUIET_SECONDS - time.monotonic()) > 0:
        if typed := _read_pending():
            quiet_since, stopped = time.monotonic(), _CTRL_C in typed
        await asyncio.sleep(min(_STEP, left))
    return stopped


def drop_early_lines() -> None:
    """Drop lines typed before now and in the next half second. Blocks for that time."""
    import termios

    with keep_keys():
        time.sleep(QUIET_SECONDS)
    termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _read_pending() -> bytes:
    """Read and discard the pending input."""
    try:
        ready = select.select([sys.stdin], [], [], 0)[0]
        return os.read(sys.stdin.fileno(), 65536) if ready else b""
    except OSError:  # the terminal is closed; the next reader will notice
        return b""
