"""The command `demo`: agents that ask back, offline, in a folder of their own."""

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

from upcall.cli.family import family
from upcall.cli.options import Commands
from upcall.cli.output import say, width
from upcall.cli.places import HOME, is_url, make_place, person_here, program, runtime_for
from upcall.cli.run import CODES, stopped, tell_waiting, turn, watched
from upcall.cli.stopping import Stopping, stopped_code, stopping_of
from upcall.contracts import Reply
from upcall.errors import RuntimeClosed, SetupError
from upcall.hosts.terminal.console import make_console

SESSION = "demo"
PROMPT = "Build the sign-in page"

_BEFORE = """\
A manager plans, and two developers work side by side. One of them gets
stuck and asks up: the manager's own model answers, from a side turn. The
other one writes Python that stops in the middle, to ask what only a person
can say. A reviewer reports. Scripts play the models: no key is needed, and
nothing leaves {folder}
"""
_PARKED = """
Nothing runs now, and nothing is held in memory: the question is on disk.
Anybody may look, from any terminal in that folder:
"""
_ANSWER = """
Nobody sits here, so the demo answers itself, as you would:
"""
_RESUME = """
What has finished is not done again. A new process goes on at that line:
"""
_TREE = """
Who asked whom:
"""
_AFTER = """
See more there: cd {quoted}
  {program} show {session}{where}
  {program} explain {callback}{where}
  {program} events {session}{where}
The program is shop.py there, {lines} lines: change it and run it again."""


class _Place(NamedTuple):
    """Where the demo works: its folder, and the log if it was named."""

    folder: Path
    store: str

    @property
    def where(self) -> str:
        return f" --store {shlex.quote(self.store)}" if self.store else ""


def add(commands: Commands) -> None:
    """The command `demo`."""
    commands.add(
        "demo",
        "watch agents ask back for a few seconds, offline",
        _demo,
        about="Needs no key and no network. Everything it makes is in a new temporary folder, or\n"
        "beside the log that --store names. At a terminal it really asks you.",
        examples=["upcall demo"],
    )


async def _demo(args: argparse.Namespace) -> int:
    from upcall.agentfiles.load import load_spec

    place = _prepared(args)
    _narrate(_BEFORE.format(folder=place.folder))
    args.store = place.store or str(place.folder / HOME / "log.db")
    loaded = load_spec(f"{place.folder}/shop:team")
    async with runtime_for(args, loaded.agents, person_here(args)) as runtime:
        session = await runtime.start(loaded.agent, None if place.store else SESSION)
        try:
            with stopping_of(args).then():
                async with watched(runtime, sys.stdout, prompts=True) as view:
                    reply = await turn(runtime, session, PROMPT, view)
        except RuntimeClosed:
            return await stopped(runtime, session.id, args)
    args.store = place.store
    if reply.status == "waiting" and not stopping_of(args).asked.is_set():
        try:
            reply = await _asked(reply, place, args)
        except RuntimeClosed:
            async with runtime_for(_at(args, place)) as runtime:
                return await stopped_code(runtime, session.id)
    if reply.status == "done":
        await _ended(reply, place)
    return CODES[reply.status]


def _prepared(args: argparse.Namespace) -> _Place:
    """A folder to work in, with the program."""
    from upcall.demo import shop

    given = getattr(args, "store", "")
    if given == ":memory:" or is_url(given):
        raise SetupError(f"--store {given}: the demo keeps its program beside its log; name a file")
    if given:
        make_place(args)
    store = str(Path(given).absolute()) if given else ""
    folder = Path(store).parent if given else Path(tempfile.mkdtemp(prefix="upcall-demo-")).resolve()
    for made in ("settings.ini", *folder.glob("*.html")):
        (folder / made).unlink(missing_ok=True)
    shutil.copyfile(shop.__file__, folder / "shop.py")
    return _Place(folder, store)


# --- when it waits ----------------------------------------------------------------------


async def _asked(reply: Reply, place: _Place, args: argparse.Namespace) -> Reply:
    """Show what waits; where nobody sits, answer it and go on, by the commands that a person would type."""
    waits = [callback for callback in reply.callbacks if callback.status == "open"]
    if sys.stdin.isatty() and sys.stdout.isatty():
        _narrate(f"\nIt waits, on disk. Whenever you like: cd {shlex.quote(str(place.folder))}")
        async with runtime_for(_at(args, place)) as runtime:
            await tell_waiting(runtime, reply.session_id, args)
        return reply
    _narrate(_PARKED)
    stopping = stopping_of(args)
    await _type(stopping, place, "inbox")
    _narrate(_ANSWER)
    for callback in waits:
        await _type(stopping, place, "answer", callback.id, callback.choices[0])
    _narrate(_RESUME)
    code = await _type(stopping, place, "resume", reply.session_id)
    return reply.replace(status="done" if code == 0 else "cancelled")


def _at(args: argparse.Namespace, place: _Place) -> argparse.Namespace:
    store = place.store or str(place.folder / HOME / "log.db")
    return argparse.Namespace(**{**vars(args), "store": store})


async def _type(stopping: Stopping, place: _Place, *words: str) -> int:
    """Run a command in a process of its own, as somebody in that folder would; SIGTERM stops that too."""
    say(f"$ {program()} {shlex.join(words)}{place.where}")
    sys.stdout.flush()
    store = ["--store", place.store] if place.store else []
    log = place.store or str(place.folder / HOME / "log.db")  # named: there may be no home folder to note it in
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

    with stopping.then(stop):
        code = await running.wait()
    if stopping.asked.is_set():
        raise RuntimeClosed
    return code


# --- the end ----------------------------------------------------------------------------


async def _ended(reply: Reply, place: _Place) -> None:
    _narrate(_TREE)
    async with runtime_for(_at(argparse.Namespace(), place)) as runtime:
        for line in await family(runtime, reply.session_id, min(width(), 80)):
            say(f"  {line}")
    last = reply.callbacks[-1].id if reply.callbacks else "CALLBACK"
    after = _AFTER.format(
        quoted=shlex.quote(str(place.folder)),
        program=program(),
        session=reply.session_id,
        callback=last,
        where=place.where,
        lines=len((place.folder / "shop.py").read_text().splitlines()),
    )
    _narrate(after)


def _narrate(text: str) -> None:
    """The command's own words, set apart from the agents' where there are colours."""
    if sys.stdout.isatty():
        make_console(sys.stdout).print(text, style="cyan", soft_wrap=True)
    else:
        say(text)
