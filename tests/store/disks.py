"""Disks that misbehave: a small one, a read-only one. Root mounts a real one; others get as near as they can."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

IS_ROOT = os.geteuid() == 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Disk:
    """A folder with little room, or none to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_room(self) -> None:
        """Let more be written."""
        if IS_ROOT:
            _run("mount", "-o", "remount,size=64m", str(self.folder))
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def make_read_only(self) -> None:
        """Let nothing more be written."""
        if IS_ROOT:
            _run("mount", "-o", "remount,ro", str(self.folder))
        else:
            for file in self.folder.iterdir():
                file.chmod(0o400)
            self.folder.chmod(0o500)


@contextmanager
def disk(folder: Path, kilobytes: int) -> Generator[Disk]:
    """A disk of that size, mounted at a new folder."""
    folder.mkdir()
    if IS_ROOT:
        _run("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "tmpfs", str(folder))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024, resource.RLIM_INFINITY))
    made = Disk(folder)
    try:
        yield made
    finally:
        if IS_ROOT:
            _run("umount", "--lazy", str(folder))
        else:
            made.make_room()
            folder.chmod(0o700)
