"""Keys of the person at this terminal: kept between two questions, and dropped where they came too early."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import time
from collections.abc import Generator

QUIET = 0.5
"""Seconds without a key that an approval waits for, from when it is on the screen."""

_STEP = 0.05
_CTRL_C = b"\x03"


@contextlib.contextmanager
def keys_kept() -> Generator[None]:
    """Keys pressed between two questions are for the next one: a Ctrl-C there leaves it, and cancels nothing."""
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
    """Drop what was typed before now, and what is typed until half a second has passed without a key.

    Such keys were meant for something else, or were pressed before the text could be read. Says whether a Ctrl-C
    was among them, which leaves a question and approves nothing. Whoever holds a key down waits: nothing is
    approved meanwhile. Use it inside `keys_kept`, so that a key is seen before Enter.
    """
    if not sys.stdin.isatty():
        return False
    from prompt_toolkit.application.current import get_app_session
    from prompt_toolkit.input.typeahead import get_typeahead
    from prompt_toolkit.keys import Keys

    # keys that an earlier prompt has read and not used
    stopped = any(press.key is Keys.ControlC for press in get_typeahead(get_app_session().input))
    quiet_since = time.monotonic()
    while not stopped and (left := quiet_since + QUIET - time.monotonic()) > 0:
        if typed := _typed():
            quiet_since, stopped = time.monotonic(), _CTRL_C in typed
        await asyncio.sleep(min(_STEP, left))
    return stopped


def drop_early_lines() -> None:
    """Drop what was typed before now and in the next half second, for a command that does nothing meanwhile."""
    import termios

    with keys_kept():
        time.sleep(QUIET)
    termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _typed() -> bytes:
    """What was typed and not read yet, taken away."""
    try:
        ready = select.select([sys.stdin], [], [], 0)[0]
        return os.read(sys.stdin.fileno(), 65536) if ready else b""
    except OSError:  # the terminal is gone: whoever reads from it next is told
        return b""
