"""The tool `shell`: runs a command with limits, and ends everything that the command started."""

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
_MAX_OUTPUT = 50_000_000
"""Bytes of output after which a command is stopped: nobody would read them, and reading costs time."""

_MAX_COMMAND = 100_000
_MAY_RUN = "(a process that the command started may still run: it killed its supervisor, or could not be killed)"


def shell(
    seconds: float = 120.0, output: int = 30_000, env: Mapping[str, str] | None = None, dumpable: bool = False
) -> Kit:
    """Return a kit with the tool `shell`, which runs commands in the workspace's folder with `/bin/sh`.

    A shell is not confined to the workspace. Require approval, or run the whole program where it can do no harm.

    seconds: the time after which a command is stopped
    output: the most characters of its output that are kept, from the beginning and from the end
    env: its whole environment; by default this process's, without variables named like secrets and passwords in
    URLs
    dumpable: True leaves this process open to debuggers. By default it is closed to them, and so to commands,
        before the first command, if there are secrets in its environment.
    """
    if not hasattr(os, "fork"):
        raise SetupError("shell needs a system with /bin/sh: Linux or macOS")
    if not seconds > 0 or output < 100:
        need = "seconds must be above 0, and output 100 characters or more"
        raise SetupError(f"shell(seconds={seconds!r}, output={output!r}): {need}")

    @tool(name="shell", timeout=seconds + 60, approve_patterns={"this program": plain_program})
    async def run(command: str, ctx: Context) -> Result:
        """Run a shell command in the workspace's folder; shows what it prints and its exit code if that is not 0.

        It has no input, and processes that it leaves behind are ended with it.

        command: what /bin/sh is to run
        """
        folder = _check_command(command, ctx)
        if not dumpable and holds_secret(os.environ):
            deny_debuggers()
        environment = environment_without_secrets(os.environ) if env is None else dict(env)
        return await _Run(cast("CallContext", ctx), output).run(command, folder, environment, seconds)

    return Kit(tools=(run,))


def _check_command(command: str, ctx: Context) -> str:
    """Check the command and return the folder to run it in."""
    if "\0" in command or len(command.encode("utf-8", "replace")) > _MAX_COMMAND:
        problem = f"a command must not contain a NUL character and may have at most {_MAX_COMMAND} bytes"
        raise UpcallError(f"{problem}; write a longer command to a file, and run the file")
    folder = files_of(ctx).folder
    if folder is None:
        raise UpcallError("this workspace has no folder that a command could run in; use the file tools")
    if not Path(folder).is_dir():
        raise WorkspaceError("/", f"the workspace's folder {folder} no longer exists")
    return folder


class _Run:
    """One running command: collects its output and makes its result."""

    def __init__(self, ctx: CallContext, max_chars: int) -> None:
        self.ctx, self.half = ctx, max_chars // 2
        self.limit = ctx.turn.services.processes
        self.head, self.tail = "", ""
        self.bytes = self.chars = 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def run(self, command: str, folder: str, env: Mapping[str, str], seconds: float) -> Result:
        slot = self.limit.slot(self.ctx.guard)
        await slot.take()
        try:
            with adopting(self.limit):
                return await self._supervised(command, folder, env, seconds)
        finally:
            await slot.leave()

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
                        stopped = f"it wrote more than {_MAX_OUTPUT} bytes"
            except TimeoutError:
                stopped = f"it took more than {seconds:g} s"
            finally:
                all_ended = await _end(process, ours, command_id)
        return self._result(process.returncode, stopped, all_ended)

    async def _read(self, process: Process) -> bool:
        """Read its output to the end; return False if there is too much."""
        assert process.stdout is not None
        while block := await process.stdout.read(_BLOCK):
            self.bytes += len(block)
            self._add(self.decoder.decode(block))
            if self.bytes > _MAX_OUTPUT:
                return False
        self._add(self.decoder.decode(b"", final=True))
        return True

    def _add(self, text: str) -> None:
        room = max(0, 2 * self.half - self.chars)
        if room and text:
            self.ctx.show(text[:room])
        self.chars += len(text)
        first_part = text[: self.half - len(self.head)]
        self.head += first_part
        self.tail = (self.tail + text[len(first_part) :])[-self.half :]

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
    """Have the supervisor end the command, and wait for it. Returns whether nothing of the command runs any more.

    The supervisor also ends the command if this process dies. If the supervisor was killed, this process looks for
    orphans.
    """
    assert process.stdout is not None
    with suppress(OSError):
        supervisor.shutdown(socket.SHUT_WR)
    report = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(supervise.KILL_TIMEOUT + supervise.GRACE + 5):
            report = await _read_report(supervisor)
    session, _, verdict = report.rpartition(b"\n")
    all_ended = verdict.endswith(supervise.ALL_ENDED)
    if not all_ended:
        await asyncio.to_thread(end_orphans, command_id, int(session) if session.isdigit() else 0)
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            while await process.stdout.read(_BLOCK):
                pass
            await process.wait()  # it ends only after its output
    return all_ended


async def _read_report(supervisor: socket.socket) -> bytes:
    """Return all that the supervisors write until the last of them has ended."""
    supervisor.setblocking(False)
    report = b""
    with suppress(ConnectionError):
        while block := await asyncio.get_running_loop().sock_recv(supervisor, 1024):
            report += block
    return report
