"""What type checkers make of programs that use Upcall: mypy --strict and pyright in strict mode."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_overloads, get_type_hints

import pytest

from house.measure import ROOT
from upcall import Agent, Delta, events

HERE = Path(__file__).parent
PROGRAMS = [ROOT / "examples", HERE / "program.py"]

WRONG = """\
from upcall import Agent, Context, Runtime, SyncContext, run, tool
from upcall.models import Script

clerk = Agent("clerk", model=Script(["7"]), output=int)


async def main(runtime: Runtime) -> None:
    async for item in (await runtime.start(clerk)).stream("hello"):
        if item.type == "tool_started":
            print(item.message)  # wrong
        elif item.type == "delta":
            print(item.seq)  # wrong
        elif item.type == "tool_begun":  # wrong
            print(item)
        print(item.call_id)  # wrong


@tool
async def shout(ctx: Context[str]) -> str:
    return ctx.deps.name  # wrong


@tool
def whisper(ctx: SyncContext[list[int]]) -> str:
    return ctx.deps.lower()  # wrong


print(run(clerk, "hello", tags={"order": 17}).output + 1)  # wrong
print(run(clerk, "hello").output.upper())  # wrong
Agent("clerk", instruction="be brief")  # wrong
print(run(Agent("untyped"), "hello").output.total)  # wrong
"""
"""Each line that ends with `# wrong` is an error, and no other line is one."""


def wrong_lines(path: Path) -> set[int]:
    lines = path.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def mypy(*paths: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    return done.returncode, done.stdout + done.stderr


def pyright(folder: Path, *paths: Path) -> list[dict[str, Any]]:
    """The errors that pyright finds in strict mode, as it tells them to programs."""
    settings = {
        "include": [str(path) for path in paths], "typeCheckingMode": "strict", "pythonVersion": "3.11",
        "venvPath": str(ROOT), "venv": ".venv",
        "extraPaths": [str(ROOT / "src"), str(ROOT / "examples" / "web_service")],
    }  # fmt: skip
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    return [d for d in json.loads(done.stdout)["generalDiagnostics"] if d["severity"] == "error"]


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A program with mistakes that only types can tell."""
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    return path


@pytest.mark.slow
def test_mypy_in_strict_mode_accepts_the_examples_and_a_program_that_streams_events() -> None:
    code, said = mypy(*PROGRAMS)
    assert code == 0, said


@pytest.mark.slow
def test_mypy_in_strict_mode_finds_every_mistake_and_nothing_else(wrong: Path) -> None:
    _, said = mypy(wrong)
    found = {int(number) for number in re.findall(r"wrong\.py:(\d+): error", said)}
    assert found == wrong_lines(wrong), said


@pytest.mark.slow
def test_pyright_in_strict_mode_accepts_what_is_right_and_finds_every_mistake(tmp_path: Path, wrong: Path) -> None:
    errors = pyright(tmp_path, wrong, *PROGRAMS)
    found = {(Path(e["file"]).name, e["range"]["start"]["line"] + 1) for e in errors}
    assert found == {("wrong.py", number) for number in wrong_lines(wrong)}, errors


@pytest.mark.slow
def test_the_typed_program_does_what_its_types_promise() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "program.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert {"look_up begins", "r1c0: ran", "looking", "done", "total: 12.5"} <= set(lines)
    assert lines[-1] == "Lamps greets Ada 5, signed Lamps"


def test_the_type_of_every_event_is_its_name_in_the_log() -> None:
    for kind in get_args(events.AnyEvent):
        assert kind.type == kind.__struct_config__.tag
        assert get_type_hints(kind)["type"] == ClassVar[Literal[kind.type]]
    assert Delta("s", "hello").type == "delta"


def test_every_event_class_is_one_of_any_event() -> None:
    classes = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)}
    assert classes - {events.Event} == set(get_args(events.AnyEvent))


@pytest.mark.parametrize("kind", [events.Event, *get_args(events.AnyEvent), events.Carried, events.Change, Delta])
def test_the_docstring_of_an_event_explains_each_of_its_fields(kind: Any) -> None:
    own = [name for name in kind.__annotations__ if name in kind.__struct_fields__]
    explained = re.findall(r"^    (\w+): \S", kind.__doc__ or "", re.MULTILINE)
    assert explained == own


def test_every_way_to_declare_an_agent_takes_the_same_arguments() -> None:
    declared = Agent.__init__
    names = list(declared.__annotations__)
    ways = get_overloads(declared)
    assert len(ways) == 3
    for way in ways:
        assert [name for name in way.__annotations__ if name != "self"] == names
