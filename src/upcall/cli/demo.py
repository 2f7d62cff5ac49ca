"""The command `demo`: an agent at work, offline, in a folder of its own, and how to look at what it did.

May import: app, cli.options, cli.output, cli.run, demo.release, hosts.terminal.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from upcall.cli.options import Commands
from upcall.cli.output import say
from upcall.cli.run import CODES, turn
from upcall.hosts.terminal import make_console, moves, view_on

SESSION = "demo"
PACE = 0.035

_BEFORE = """\
An agent called release gets a task. A script plays the model: no key is
needed, nothing leaves this machine, and all it touches is in
{folder}
"""

_AFTER = """\
What you have seen
  The reply came word by word, and the three checks ran side by side.
  A hook changed a result: the model never read the token in settings.ini.
  A hook changed a call: the announcement went to drafts/, not where the
  model wanted it. Each step was on disk before the next one began, so a
  crash at any point would have lost nothing.

Look at what it left behind
  upcall show {session} --store {store}
  upcall events {session} --store {store}
  cat {folder}/drafts/NEWS.md

The agent itself is {lines} lines of Python
  {program}"""


def add(commands: Commands) -> None:
    """The command `demo`."""
    commands.add(
        "demo",
        "watch an agent work for a few seconds, offline",
        _demo,
        about="Needs no key and no network. Everything it makes is in a new temporary folder, or\n"
        "beside the log that --store names.",
        examples=["upcall demo"],
    )


async def _demo(args: argparse.Namespace) -> int:
    from upcall.app import Runtime
    from upcall.demo import release

    given = getattr(args, "store", "")
    store, work = _prepared(given)
    _narrate(_BEFORE.format(folder=work))
    agent = release.release_agent(work, PACE if moves(sys.stdout) else PACE / 10)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.start(agent, SESSION if not given else None)
        async with view_on(sys.stdout, prompts=True) as view:
            reply = await turn(runtime, session, release.PROMPT, view)
    if reply.status == "done":
        say()
        _narrate(_after(store, work, session.id))
    return CODES[reply.status]


def _prepared(given: str) -> tuple[Path, Path]:
    """The log's path and the folder to work in, filled."""
    from upcall.demo import release

    store = Path(given).absolute() if given else Path(tempfile.mkdtemp(prefix="upcall-demo-")) / "log.db"
    work = store.parent / "work"
    work.mkdir(exist_ok=True)
    for name, text in release.FILES.items():
        (work / name).write_text(text)
    return store, work


def _after(store: Path, work: Path, session_id: str) -> str:
    from upcall.demo import release

    program = Path(release.__file__)
    return _AFTER.format(
        folder=shlex.quote(str(work)),
        store=shlex.quote(str(store)),
        session=session_id,
        lines=len(program.read_text().splitlines()),
        program=program,
    )


def _narrate(text: str) -> None:
    """The command's own words, set apart from the agent's where there are colours."""
    if sys.stdout.isatty():
        make_console(sys.stdout).print(text, style="cyan", soft_wrap=True)
    else:
        say(text)
