"""A log is created whole: by a process that is killed meanwhile, and by several processes at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from upcall import Agent, Runtime
from upcall.models import Script

EVERY = 1 if os.environ.get("UPCALL_CHAOS") == "full" else 5
"""The process is killed at every so many writes."""

KILLED = """
import asyncio, os, signal, sys
import apsw
from upcall.store.sqlite.store import SqliteStore

left = int(sys.argv[2])

def count():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

class File(apsw.VFSFile):
    def xWrite(self, data, offset):
        super().xWrite(data, offset)
        count()

    def xTruncate(self, size):
        super().xTruncate(size)
        count()

    def xSync(self, flags):
        super().xSync(flags)
        count()

class Disk(apsw.VFS):
    def __init__(self):
        super().__init__("counting", "unix", makedefault=True)

    def xOpen(self, name, flags):
        return File("unix", name, flags)

    def xDelete(self, name, sync):
        super().xDelete(name, sync)
        count()

disk = Disk()
sys.addaudithook(lambda event, args: count() if event in ("os.rename", "os.remove") else None)

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    os._exit(0)  # what closing writes is not what is looked at

asyncio.run(main())
"""

TOGETHER = """
import asyncio, sys
from upcall import Agent, Runtime
from upcall.models import Script

async def main():
    agent = Agent("a", model=Script(["hello"]))
    print("ready", flush=True)
    sys.stdin.readline()
    async with Runtime(sys.argv[1], agents=[agent]) as runtime:
        print((await (await runtime.start(agent)).prompt("hi")).text)

asyncio.run(main())
"""


async def works(path: Path) -> bool:
    agent = Agent("a", model=Script(["hello"]))
    async with Runtime(path, agents=[agent]) as runtime:
        session = await runtime.start(agent, id="s")
        return (await session.prompt("hi")).text == "hello"


async def test_a_process_killed_at_any_write_while_it_creates_a_log_leaves_a_path_that_works(
    tmp_path: Path,
) -> None:
    at, kills = 1, 0
    while True:
        path = tmp_path / str(at) / "log.db"
        path.parent.mkdir()
        ended = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", KILLED, str(path), str(at)], timeout=60
        )
        assert await works(path)
        assert sorted(file.name for file in path.parent.iterdir() if file.is_file()) == ["log.db"]
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL
        kills += 1
        at += EVERY

    assert kills >= 5


def test_processes_that_create_the_same_log_at_once_all_use_it(tmp_path: Path) -> None:
    for number in range(4):
        command = [sys.executable, "-c", TOGETHER, str(tmp_path / f"{number}.db")]
        starts = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
        ]
        for process in starts:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in starts:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        assert [process.communicate(timeout=60)[0] for process in starts] == ["hello\n"] * 4
