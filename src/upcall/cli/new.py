"""The command `new`: a small agent or team that works at once, to be changed."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from upcall.cli.options import Commands
from upcall.cli.output import say
from upcall.cli.places import program
from upcall.core.routing.policy import name_problem
from upcall.errors import SetupError

TEMPLATES = Path(__file__).with_name("templates")


class _Template(NamedTuple):
    """What is said of a folder once it is made: its files, what to run, what to change first."""

    about: str
    files: dict[str, str]
    runs: dict[str, str]
    change: str


_AGENT = _Template(
    "an agent that writes greeting cards",
    {
        "NAME.md": "what it is told, its model and its tools",
        "NAME.json": "its sidecar: whom it may ask",
        "tools_MODULE.py": "its tool, which asks whom a card is for if nobody said",
    },
    {
        "Run it": 'run NAME "Write a card for Ada"',
        "Let it ask you": 'run NAME "Write a card"',
        "See whom it asks, and why": "explain NAME callback_to_caller clarification",
    },
    'the word "Dear" in NAME/NAME.md, or\ncan_use_host_interaction in NAME/NAME.json',
)
_TEAM = _Template(
    "a team that makes a web page",
    {
        "team.toml": "who is in it: the manager, the roles, the reviewer",
        "manager.md, …": "what each agent is told, its model and its tools",
        "manager.json, …": "sidecars: whom each agent may ask",
        "tools_MODULE.py": "the tools; the developer's asks for a colour",
    },
    {
        "Run it": 'run NAME "Make a page that says hello"',
        "See whom the developer asks, and why": "explain NAME callback_to_caller clarification --agent developer",
    },
    "the colour in NAME/manager.md, or\ncan_query_caller in NAME/developer.json",
)
_BOTH_FILES = {"play.py": "plays the model: no key is needed", "test_MODULE.py": "tests, for pytest"}
_TEMPLATES = {"agent": _AGENT, "team": _TEAM}


def add(commands: Commands) -> None:
    """The command `new`."""
    parser = commands.add(
        "new",
        "write a small agent or team that works at once, to change",
        _new,
        about="Makes the folder NAME in the current one: agent files, sidecars, a tool that asks, and\n"
        "tests. A script plays the model, so that it runs without a key.",
        examples=["upcall new agent cards", "upcall new team site"],
    )
    parser.add_argument("what", choices=tuple(_TEMPLATES), metavar="agent|team", help="which of the two")
    parser.add_argument("name", metavar="NAME", help="its name, and the folder's")


def _new(args: argparse.Namespace) -> int:
    files = _files(args.what, args.name)
    folder = Path(args.name)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise SetupError(f"{args.name!r} is there already; take another name, or remove it first")
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    _say_next(args.name, _TEMPLATES[args.what])
    return 0


def _files(what: str, name: str) -> dict[str, str]:
    """What to write, by file; SetupError where the name can't be used."""
    sources = sorted((TEMPLATES / what).iterdir())
    taken = [source.stem for source in sources if source.suffix == ".md"]
    if problem := name_problem(name):
        raise SetupError(problem)
    if name in taken:
        raise SetupError(
            f"{name!r} is one of its agents, as are {', '.join(t for t in taken if t != name)}; take another"
        )
    # Python's own files carry .txt in the package, where they would be modules of it
    return {_filled(s.name.removesuffix(".txt"), name): _filled(s.read_text("utf-8"), name) for s in sources}


def _filled(text: str, name: str) -> str:
    module = re.sub(r"\W", "_", name, flags=re.ASCII)
    return text.replace("MODULE", module).replace("NAME", name)


def _say_next(name: str, template: _Template) -> None:
    say(f"Made {name}/, {template.about}:\n")
    files = {_filled(file, name): what for file, what in {**template.files, **_BOTH_FILES}.items()}
    for file, what in files.items():
        say(f"  {file:<{max(map(len, files))}}  {what}")
    for what, command in {**template.runs, "Find mistakes": "check NAME"}.items():
        say(f"\n{what}:\n  {program()} {_filled(command, name)}")
    say(f"\nRun its tests, where pytest is installed:\n  {_python()} -m pytest {name}")
    say(f"\nThen change {_filled(template.change, name)}, and run it again.")


def _python() -> str:
    """What to type for this Python: its name where a shell finds it, else its path."""
    found, own = shutil.which("python"), Path(sys.executable)
    return "python" if found is not None and Path(found).parent == own.parent else shlex.quote(str(own))
