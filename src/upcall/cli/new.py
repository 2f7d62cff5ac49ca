"""The command `new`: create a small, working agent or team."""

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
    """The texts to print about a new folder: its files, commands to run, and what to change first."""

    about: str
    files: dict[str, str]
    runs: dict[str, str]
    change: str


_AGENT = _Template(
    "an agent that writes greeting cards",
    {
        "NAME.md": "its instructions, model and tools",
        "NAME.json": "its sidecar: whom it may ask",
        "tools_MODULE.py": "its tool, which asks who the card is for if that is not known",
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
        "team.toml": "the manager, the roles and the reviewer",
        "manager.md, …": "each agent's instructions, model and tools",
        "manager.json, …": "sidecars: whom each agent may ask",
        "tools_MODULE.py": "the tools; the developer's tool asks for a colour",
    },
    {
        "Run it": 'run NAME "Make a page that says hello"',
        "See whom the developer asks, and why": "explain NAME callback_to_caller clarification --agent developer",
    },
    "the colour in NAME/manager.md, or\ncan_query_caller in NAME/developer.json",
)
_COMMON_FILES = {
    "play.py": "the script that plays the model: no key is needed",
    "test_MODULE.py": "tests, for pytest",
}
_TEMPLATES = {"agent": _AGENT, "team": _TEAM}


def add(commands: Commands) -> None:
    """Add the command `new`."""
    parser = commands.add(
        "new",
        "create a small, working agent or team for you to edit",
        _new,
        about="Creates the folder NAME in the current folder, with agent files and their sidecars, a tool\n"
        "that asks a question, and tests. A script replaces the model, so you need no key.",
        examples=["upcall new agent cards", "upcall new team site"],
    )
    parser.add_argument("what", choices=tuple(_TEMPLATES), metavar="agent|team", help="what to create")
    parser.add_argument("name", metavar="NAME", help="the name of the agent or team, and of the folder")


def _new(args: argparse.Namespace) -> int:
    files = _files(args.what, args.name)
    folder = Path(args.name)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise SetupError(f"{args.name!r} already exists; choose another name, or remove it first")
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    _print_next_steps(args.name, _TEMPLATES[args.what])
    return 0


def _files(what: str, name: str) -> dict[str, str]:
    """Return the files to write, by name. Raises SetupError if the name can't be used."""
    sources = sorted((TEMPLATES / what).iterdir())
    agent_names = [source.stem for source in sources if source.suffix == ".md"]
    if problem := name_problem(name):
        raise SetupError(problem)
    if name in agent_names:
        raise SetupError(
            f"{name!r} is already the name of an agent ({', '.join(agent_names)}); choose another name"
        )
    # Python files are stored as .txt: otherwise they would be modules of this package
    return {_fill(s.name.removesuffix(".txt"), name): _fill(s.read_text("utf-8"), name) for s in sources}


def _fill(text: str, name: str) -> str:
    module = re.sub(r"\W", "_", name, flags=re.ASCII)
    return text.replace("MODULE", module).replace("NAME", name)


def _print_next_steps(name: str, template: _Template) -> None:
    say(f"Created {name}/, {template.about}:\n")
    files = {_fill(file, name): what for file, what in {**template.files, **_COMMON_FILES}.items()}
    for file, what in files.items():
        say(f"  {file:<{max(map(len, files))}}  {what}")
    for what, command in {**template.runs, "Find mistakes": "check NAME"}.items():
        say(f"\n{what}:\n  {program()} {_fill(command, name)}")
    say(f"\nRun its tests (needs pytest):\n  {_python()} -m pytest {name}")
    say(f"\nThen change {_fill(template.change, name)}, and run it again.")


def _python() -> str:
    """Return the command for this Python, to paste: its name if a shell finds it, otherwise its path."""
    found, own = shutil.which("python"), Path(sys.executable)
    return "python" if found is not None and Path(found).parent == own.parent else shlex.quote(str(own))
