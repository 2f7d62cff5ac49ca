"""The command `demo`: agents that ask questions, offline, in a temporary folder."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from upcall.cli.options import Commands
from upcall.cli.output import say, width
from upcall.cli.places import HOME, is_url, make_log_folder, person_here, program, runtime_for
from upcall.cli.run import CODES, report_stopped, report_waiting, run_turn, view_for
from upcall.cli.stopping import Stopping, exit_code_when_stopped, stopping_of
from upcall.cli.tree import nodes_of, print_tree
from upcall.contracts import Reply
from upcall.errors import RuntimeClosed, SetupError
from upcall.hosts.terminal.console import make_console
from upcall.safety.secrets import without_password

SESSION = "demo"
PROMPT = "Build the sign-in page"

_BEFORE = """\
A manager plans, and two developers work in parallel. One of them gets
stuck and asks the manager, whose model answers in a side turn. The
other one writes a Python program that stops in the middle to ask a
person. A reviewer reports. Scripts play the models: no key is needed, and
nothing leaves {folder}
"""
_PARKED = """
Nothing is running and nothing is held in memory: the question is on disk.
Anybody can look at it, from any terminal in that folder:
"""
_ANSWER = """
This is not a terminal, so the demo answers the question itself:
"""
_RESUME = """
Finished work is not repeated. A new process continues at that line:
"""
_TREE = """
Who asked whom:
"""
_AFTER = """
To see more: cd {quoted}
  {program} show {session}{where}
  {program} tree {session}{where}
  {program} explain {callback}{where}
  {program} events {session}{where}
The program is shop.py in that folder, {lines} lines: change it and run it again."""


class _DemoFolder(NamedTuple):
    """The demo's folder, and the log if one was named."""

    folder: Path
    store: str

    @property
    def store_option(self) -> str:
        return f" --store {shlex.quote(self.store)}" if self.store else ""


def add(commands: Commands) -> None:
    """Add the command `demo`."""
    commands.add(
        "demo",
        "watch a short offline demo of agents that ask questions",
        _demo,
        about="Needs no key and no network. It writes only to a new temporary folder or, with --store, to\n"
        "the folder of that log. At a terminal, you answer its question.",
        examples=["upcall demo"],
    )


async def _demo(args: argparse.Namespace) -> int:
    from upcall.agentfiles.load import load_spec

    place = _prepare(args)
    _narrate(_BEFORE.format(folder=place.folder))
    args.store = place.store or str(place.folder / HOME / "log.db")
    loaded = load_spec(f"{place.folder}/shop:team")
    async with runtime_for(args, loaded.agents, person_here(args)) as runtime:
        session = await runtime.start(loaded.agent, None if place.store else SESSION)
        try:
            with stopping_of(args).on_drained():
                async with view_for(runtime, args, sys.stdout, prompts=True) as view:
                    reply = await run_turn(runtime, session, PROMPT, view)
        except RuntimeClosed:
            return await report_stopped(runtime, session.id, args)
    args.store = place.store
    if reply.status == "waiting" and not stopping_of(args).requested.is_set():
        try:
            reply = await _answer_and_resume(reply, place, args)
        except RuntimeClosed:
            async with runtime_for(_args_with_store(args, place)) as runtime:
                return await exit_code_when_stopped(runtime, session.id)
    if reply.status == "done":
        await _show_end(reply, place)
    return CODES[reply.status]


def _prepare(args: argparse.Namespace) -> _DemoFolder:
    """Create a folder with the demo's program."""
    from upcall.demo import shop

    store_path = getattr(args, "store", "")
    if store_path == ":memory:" or is_url(store_path):
        shown = without_password(store_path)
        raise SetupError(
            f"--store {shown}: the demo stores its program beside its log, so the log must be a file; give its path"
        )
    if store_path:
        make_log_folder(args)
    store = str(Path(store_path).absolute()) if store_path else ""
    folder = Path(store).parent if store_path else Path(tempfile.mkdtemp(prefix="upcall-demo-")).resolve()
    for made in ("settings.ini", *folder.glob("*.html")):
        (folder / made).unlink(missing_ok=True)
    shutil.copyfile(shop.__file__, folder / "shop.py")
    return _DemoFolder(folder, store)


# --- when it waits ----------------------------------------------------------------------


async def _answer_and_resume(reply: Reply, place: _DemoFolder, args: argparse.Namespace) -> Reply:
    """Show the open questions. Without a terminal, answer them and resume, as a person would."""
    waits = [callback for callback in reply.callbacks if callback.status == "open"]
    if sys.stdin.isatty() and sys.stdout.isatty():
        _narrate(f"\nThe question waits on disk. To answer it later: cd {shlex.quote(str(place.folder))}")
        async with runtime_for(_args_with_store(args, place)) as runtime:
            await report_waiting(runtime, reply.session_id, args)
        return reply
    _narrate(_PARKED)
    stopping = stopping_of(args)
    await _run_command(stopping, place, "inbox")
    _narrate(_ANSWER)
    for callback in waits:
        await _run_command(stopping, place, "answer", callback.id, callback.choices[0])
    _narrate(_RESUME)
    code = await _run_command(stopping, place, "resume", reply.session_id)
    return reply.replace(status="done" if code == 0 else "cancelled")


def _args_with_store(args: argparse.Namespace, place: _DemoFolder) -> argparse.Namespace:
    store = place.store or str(place.folder / HOME / "log.db")
    return argparse.Namespace(**{**vars(args), "store": store})


async def _run_command(stopping: Stopping, place: _DemoFolder, *words: str) -> int:
    """Run a command in a new process in the demo's folder; SIGTERM stops that process too."""
    say(f"$ {program()} {shlex.join(words)}{place.store_option}")
    sys.stdout.flush()
    store = ["--store", place.store] if place.store else []
    # named explicitly: without a home folder, the log can't be registered as the user's own
    log = place.store or str(place.folder / HOME / "log.db")
    variables = {**os.environ, "UPCALL_STORE": log}
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "upcall.cli", *words, *store),
        cwd=place.folder,
        env=variables,
        stdin=asyncio.subprocess.DEVNULL,
    )

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            running.terminate()

    with stopping.on_drained(stop):
        code = await running.wait()
    if stopping.requested.is_set():
        raise RuntimeClosed
    return code


# --- the end ----------------------------------------------------------------------------


async def _show_end(reply: Reply, place: _DemoFolder) -> None:
    _narrate(_TREE)
    async with runtime_for(_args_with_store(argparse.Namespace(), place)) as runtime:
        print_tree(await nodes_of(runtime, reply.session_id), min(width(), 80), indent="  ")
    last = reply.callbacks[-1].id if reply.callbacks else "CALLBACK"
    after = _AFTER.format(
        quoted=shlex.quote(str(place.folder)),
        program=program(),
        session=reply.session_id,
        callback=last,
        where=place.store_option,
        lines=len((place.folder / "shop.py").read_text().splitlines()),
    )
    _narrate(after)


def _narrate(text: str) -> None:
    """Print the command's own text, in a colour of its own if there are colours."""
    if sys.stdout.isatty():
        make_console(sys.stdout).print(text, style="cyan", soft_wrap=True)
    else:
        say(text)
