"""Read files that people write by hand: only regular files, up to a size.

A pipe would block whoever opens it, a device may never end, and a link may lead to either.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST = 1_000_000
"""Bytes of an agent file, a sidecar, a team.toml, a skill, or arguments that are given as a file."""


def read_small(path: str | Path, most: int = MOST) -> bytes:
    """Return the bytes of a regular file; OSError says why it can't be read, or that it has more than `most`."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        blocks: list[bytes] = []
        left = most + 1
        while left > 0 and (block := os.read(file, min(left, 65536))):
            blocks.append(block)
            left -= len(block)
    finally:
        os.close(file)
    if left <= 0:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return b"".join(blocks)
