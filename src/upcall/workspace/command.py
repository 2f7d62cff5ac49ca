"""The tool `shell`: one command at a time, with limits, and nothing of it left when the call has ended."""

from __future__ import annotations

import asyncio
import codecs
import os
import secrets
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process, create_subprocess_exec
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

from upcall.agent import Kit
from upcall.contracts import Context
from upcall.core.turns.access import CallContext
from upcall.errors import SetupError, UpcallError, WorkspaceError
from upcall.messages import Result
from upcall.safety import agent_commands
from upcall.safety.secrets import deny_debuggers, environment_without_secrets, holds_secret
from upcall.tools import tool
from upcall.workspace import supervise
from upcall.workspace.files import files_of
from upcall.workspace.orphans import adopting, end_orphans
from upcall.workspace.plain_program import plain_program

_BLOCK = 64 * 1024
_FLOOD = 50_000_000
"""Bytes of output after which a command is stopped: nobody will read them, and taking them in costs time."""

_LONGEST_COMMAND = 100_000
_MAY_RUN = "(something that it started may still run: it killed its supervisor, or could not be killed)"


def shell(
    seconds: float = 120.0, output: int = 30_000, env: Mapping[str, str] | None = None, dumpable: bool = False
) -> Kit:
    """Give the tool `shell`: a command in the workspace's folder, run by `/bin/sh`.

    A shell is not confined to the workspace. Have it approved, or run the whole program where it can do no harm.

    seconds: when a command is stopped
    output: the most characters of its output that are kept, from the beginning and from the end
    env: its whole environment; by default ours without variables named like secrets and passwords in URLs
    dumpable: True leaves this process open to debuggers. By default it is closed to them, and so to commands,
        before the first command, if there are secrets in its environment.
    """
    if not hasattr(os, "fork"):
        raise SetupError("shell needs a system with /bin/sh: Linux or macOS")
    if not seconds > 0 or output < 100:
        raise SetupError(f"shell(seconds={seconds!r}, output={output!r}): give a time, and 100 characters or more")

    @tool(name="shell", timeout=seconds + 60, approve_patterns={"this program": plain_program})
    async def run(command: str, ctx: Context) -> Result:
        """Run a shell command in the workspace's folder; shows what it prints and its exit code if that is not 0.

        It has no input, and processes that it leaves behind are ended with it.

        command: what /bin/sh is to run
        """
        folder = _checked(command, ctx)
        if not dumpable and holds_secret(os.environ):
            deny_debuggers()
        given = environment_without_secrets(os.environ) if env is None else dict(env)
        return await _Run(cast("CallContext", ctx), output).run(command, folder, given, seconds)

    return Kit(tools=(run,))


def _checked(command: str, ctx: Context) -> str:
    """The folder to run it in."""
    if "\0" in command or len(command.encode("utf-8", "replace")) > _LONGEST_COMMAND:
        problem = f"a command has no NUL character and at most {_LONGEST_COMMAND} bytes"
        raise UpcallError(f"{problem}; write what is longer to a file, and run that")
    folder = files_of(ctx).folder
    if folder is None:
        raise UpcallError("this workspace has no folder that a command could run in; use the file tools")
    if not Path(folder).is_dir():
        raise WorkspaceError("/", f"the workspace's folder {folder} is gone")
    return folder


class _Run:
    """One command on its way: its output as it comes, and its end."""

    def __init__(self, ctx: CallContext, most: int) -> None:
        self.ctx, self.half = ctx, most // 2
        self.limit = ctx.turn.services.processes
        self.head, self.tail = "", ""
        self.bytes = self.chars = 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def run(self, command: str, folder: str, env: Mapping[str, str], seconds: float) -> Result:
        place = self.limit.place(self.ctx.guard)
        await place.take()
        try:
            with adopting(self.limit):
                return await self._supervised(command, folder, env, seconds)
        finally:
            await place.leave()

    async def _supervised(self, command: str, folder: str, env: Mapping[str, str], seconds: float) -> Result:
        command_id, stopped = secrets.token_hex(8), ""
        words = (agent_commands.mark(self.ctx.id), str(agent_commands.TIMER_SLACK), command)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await create_subprocess_exec(
                *(sys.executable, "-I", "-S", supervise.__file__, *words),
                stdin=theirs.fileno(), stdout=PIPE, stderr=STDOUT, cwd=folder, start_new_session=True,
                env=agent_commands.marked_environment(env, self.ctx.id, command_id),
            )  # fmt: skip
            theirs.close()
            try:
                async with asyncio.timeout(seconds):
                    if await self._read(process):
                        await process.wait()
                    else:
                        stopped = f"it wrote more than {_FLOOD} bytes"
            except TimeoutError:
                stopped = f"it took more than {seconds:g} s"
            finally:
                all_ended = await _end(process, ours, command_id)
        return self._result(process.returncode, stopped, all_ended)

    async def _read(self, process: Process) -> bool:
        """Take its output in to the end; False if there is too much of it."""
        assert process.stdout is not None
        while block := await process.stdout.read(_BLOCK):
            self.bytes += len(block)
            self._add(self.decoder.decode(block))
            if self.bytes > _FLOOD:
                return False
        self._add(self.decoder.decode(b"", final=True))
        return True

    def _add(self, text: str) -> None:
        room = max(0, 2 * self.half - self.chars)
        if room and text:
            self.ctx.show(text[:room])
        self.chars += len(text)
        taken = text[: self.half - len(self.head)]
        self.head += taken
        self.tail = (self.tail + text[len(taken) :])[-self.half :]

    def _result(self, code: int | None, stopped: str, all_ended: bool) -> Result:
        left_out = self.chars - len(self.head) - len(self.tail)
        gap = f"\n… {left_out} of {self.chars} characters left out …\n" if left_out else ""
        lines = [f"{self.head}{gap}{self.tail}".rstrip("\n")]
        if stopped:
            lines.append(f"(stopped{' with all that it had started' if all_ended else ''}, because {stopped})")
        elif code:
            lines.append(f"(exit code {code})")
        if not all_ended:
            lines.append(_MAY_RUN)
        text = "\n".join(line for line in lines if line) or "(no output)"
        return Result("", text, is_error=bool(stopped) or not all_ended)


async def _end(process: Process, supervisor: socket.socket, command_id: str) -> bool:
    """Have the supervisor end what is left, and wait for it; True where nothing of the command runs any more.

    The supervisor does so too if we are not here any more. Where it was killed, we look for what is left ourselves.
    """
    assert process.stdout is not None
    with suppress(OSError):
        supervisor.shutdown(socket.SHUT_WR)
    said = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(supervise.PATIENCE + supervise.GRACE + 5):
            said = await _all_said(supervisor)
    session, _, verdict = said.rpartition(b"\n")
    all_ended = verdict.endswith(supervise.ALL_ENDED)
    if not all_ended:
        await asyncio.to_thread(end_orphans, command_id, int(session) if session.isdigit() else 0)
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            while await process.stdout.read(_BLOCK):
                pass
            await process.wait()  # which ends only after the output
    return all_ended


async def _all_said(supervisor: socket.socket) -> bytes:
    """All that the supervisors say until the last of them has ended."""
    supervisor.setblocking(False)
    said = b""
    with suppress(ConnectionError):
        while block := await asyncio.get_running_loop().sock_recv(supervisor, 1024):
            said += block
    return said
