"""The command `tree`: who worked for whom, who asked whom, and who answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.command import out, upcall
from cli.screen import Screen
from upcall.cli.tree_drawing import draw_tree
from upcall.observe.node_table import Node
from upcall.observe.nodes import RunTreeNodes

PROGRAM = '''\
from upcall import Agent, Context, Runtime, tool
from upcall.models import Script, call


@tool
async def choose(ctx: Context) -> str:
    """Ask."""
    return str(await ctx.raise_callback("Which colour?", "blocker", choices=["red", "blue"]))


@tool(needs_approval=True)
async def deploy(env: str, password: str) -> str:
    """Deploy."""
    return f"deployed to {env}"


def works(request):
    if request.messages[-1].role == "tool":
        return "It is " + request.messages[-1].results[0].text
    return call("choose")


def leads(request):
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason="a matter of taste")
    results = [message for message in request.messages if message.role == "tool"]
    if not results:
        return call("task", agent="worker", prompt="Paint the door")
    return call("deploy", env="prod", password="hunter2hunter2") if len(results) == 1 else "Painted."


RIGHTS = {"can_query_caller": True, "can_use_host_interaction": True}
worker = Agent("worker", model=Script(works), tools=[choose], **RIGHTS)
lead = Agent("lead", model=Script(leads), tools=[deploy], agents=[worker], **RIGHTS)
'''


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    (tmp_path / "team.py").write_text(PROGRAM)
    assert upcall("run", "team:lead", "Paint", "--id", "paint", cwd=tmp_path).returncode == 3
    return tmp_path


def answered(folder: Path, *answer: str) -> None:
    (callback,) = upcall("inbox", "--ids", cwd=folder).stdout.split()
    assert upcall("answer", callback, *answer, cwd=folder).returncode == 0
    upcall("resume", "paint", cwd=folder)


def test_a_tree_shows_who_asks_who_passed_it_up_and_what_it_waits_for(waiting: Path) -> None:
    assert upcall("tree", "paint", cwd=waiting).stdout.splitlines() == [
        "lead · waiting · Paint",
        "└─ worker · waiting · Paint the door",
        "      ? Which colour?",
        "        ↳ lead passed it up: a matter of taste",
        "        ↳ waiting for a person",
    ]


@pytest.mark.slow
def test_a_tree_shows_answers_and_approvals_without_secrets(waiting: Path) -> None:
    answered(waiting, "red")
    answered(waiting, "--approve")
    done = upcall("tree", "paint", cwd=waiting)
    user = upcall("inbox", "--status", "answered", cwd=waiting).stdout.partition(", by ")[2].partition(" ")[0]
    assert done.stdout.splitlines() == [
        "lead · done · Paint",
        '│  ? Approval: Deploy env="prod" password="⟦hidden 14 #1⟧"',
        f"│    ↳ {user} (person) approved",
        "└─ worker · done · Paint the door",
        "      ? Which colour?",
        "        ↳ lead passed it up: a matter of taste",
        f"        ↳ {user} (person) answered: red",
    ]


def test_a_part_of_a_tree_can_be_drawn(waiting: Path) -> None:
    (child,) = [one["id"] for one in out("sessions", cwd=waiting) if one["agent"] == "worker"]
    assert upcall("tree", child, cwd=waiting).stdout.startswith("worker · waiting · Paint the door\n   ? Which")


def test_the_json_of_a_tree_is_its_nodes_with_turns_and_calls(waiting: Path) -> None:
    nodes = out("tree", "paint", cwd=waiting)
    kinds = {node["kind"] for node in nodes}
    assert {"session", "turn", "model", "tool", "callback", "hop", "side_turn"} <= kinds
    assert nodes[0]["id"] == "paint"
    assert set(nodes[0]) == set(Node.__struct_fields__)


def test_an_unknown_session_has_no_tree(waiting: Path) -> None:
    done = upcall("tree", "nothing", cwd=waiting)
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing" in done.stderr


def test_an_agent_may_look_at_a_tree(waiting: Path) -> None:
    assert upcall("tree", "paint", cwd=waiting, UPCALL_AGENT_COMMAND="paint").returncode == 0


def test_at_a_terminal_a_tree_fits_the_screen(waiting: Path) -> None:
    with Screen("tree", "paint", cwd=waiting, COLUMNS="40") as screen:
        screen.see("waiting for a person")
        assert max(len(row) for row in screen.text.splitlines()) <= 40


def test_a_drawing_of_no_nodes_is_empty() -> None:
    assert draw_tree(RunTreeNodes().nodes()) == []
