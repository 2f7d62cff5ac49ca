"""Sessions below a root that somebody prompts or resumes by their own ids: nothing that guards them is lost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callbacks.doubles import Decide, answers, asker, results
from upcall import Agent, Approve, Limits, Reply, Request, Runtime, SetupError, Team, UnknownAgent, chain, tool
from upcall.kit import approve, budget
from upcall.models import Script, call
from upcall.workspace import Folder, InLog, file_tools

RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@tool
def rm(path: str = "all") -> str:
    """Remove a file."""
    RAN.append(path)
    return "removed"


def removes(request: Request) -> Any:
    """A child that does nothing in its parent's turn, and removes files when it is prompted directly."""
    asked = request.messages[-1]
    return call("rm") if asked.role == "user" and "remove" in asked.text else "done"


def child(name: str = "dev", **options: Any) -> Agent:
    return Agent(name, model=Script(removes), tools=[rm], **options)


def above(below: Any, name: str = "top", **options: Any) -> Agent:
    """An agent that hands its task to the one below it."""

    def says(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("answer_callback", value="approve")
        said = results(request.messages)
        return said[-1].text if said else call("task", agent=below.name, prompt="begin")

    return Agent(name, model=Script(says), agents=[below], **options)


async def prompted(path: Path, root: Agent, name: str, text: str = "remove it", now: Agent | None = None) -> Reply:
    """The reply of a session below the root that is prompted by its own id, in another process."""
    async with Runtime(path, agents=[root]) as runtime:
        await (await runtime.start(root, "s")).prompt("begin")
    async with Runtime(path, agents=[now or root]) as runtime:
        (found,) = [row.id for row in await runtime.rows() if row.agent == name and row.kind != "side_turn"]
        assert found != "s"
        return await (await runtime.load(found)).prompt(text)


def team_of(below: Agent) -> Team:
    plan = json.dumps([{"role": "worker", "task": "begin", "sequence": 1, "caller": "manager"}])
    return Team(Agent("manager", model=Script(lambda _: plan)), {"worker": below}, name="team")


SHAPES: dict[str, tuple[Callable[[], Any], str]] = {
    "a child": (child, "dev"),
    "a grandchild": (lambda: above(child(), "mid"), "dev"),
    "a hop of a chain": (lambda: chain(child("one"), child("two")), "two"),
    "a worker of a team": (lambda: team_of(child()), "worker01"),
    "a worker of a team in a chain": (lambda: chain(child("one"), team_of(child())), "worker01"),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_approvals_above_hold_for(shape: str, tmp_path: Path) -> None:
    below, name = SHAPES[shape]
    reply = await prompted(tmp_path / "log.db", above(below(), kit=[approve({"rm": True})]), name)
    assert (reply.status, RAN) == ("waiting", [])


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_budget_above_counts_the_whole_tree_for(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    below, name = SHAPES[shape]
    free = above(below(), kit=[budget(calls=1000)])
    await prompted(path, free, name, "nothing")
    async with Runtime(path, agents=[free]) as runtime:
        used = sum([1 async for event in runtime.events() if event.type == "responded" and event.stop != "steps"])
    reply = await prompted(tmp_path / "again.db", above(below(), kit=[budget(calls=used - 1)]), name, "nothing")
    assert (reply.status, reply.limit) == ("limit", "budget.calls")


async def test_the_depth_that_an_agent_above_allows_holds_for_a_child_that_is_prompted_directly(
    tmp_path: Path,
) -> None:
    def says(request: Request) -> Any:
        return call("task", agent="dev", prompt="remove") if request.messages[-1].text == "more" else "done"

    mid = Agent("mid", model=Script(says), agents=[child()])
    reply = await prompted(tmp_path / "log.db", above(mid, limits=Limits(depth=1)), "mid", "more")
    assert (reply.status, reply.limit, RAN) == ("limit", "depth", [])


async def test_a_child_that_is_prompted_directly_is_refused_where_an_agent_above_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownAgent, match="'top'"):
        await prompted(tmp_path / "log.db", above(child(), kit=[approve({"rm": True})]), "dev", now=child())
    assert RAN == []


@pytest.mark.parametrize("kind", ["folder", "log"])
async def test_a_child_that_is_prompted_directly_works_in_the_workspace_above_it(tmp_path: Path, kind: str) -> None:
    (tmp_path / "work").mkdir()
    place = Folder(tmp_path / "work") if kind == "folder" else InLog()

    def says(request: Request) -> Any:
        if request.messages[-1].role == "tool":
            return request.messages[-1].results[0].text
        if request.messages[-1].text == "begin":
            return call("write_file", path="/note", content="from the first turn")
        return call("read_file", path="/note")

    below = Agent("dev", model=Script(says), kit=[file_tools()])
    reply = await prompted(tmp_path / "log.db", above(below, workspace=place), "dev", "read it")
    assert "from the first turn" in reply.text


async def test_an_agent_that_works_elsewhere_approves_nothing_for_a_child_that_is_prompted_directly(
    tmp_path: Path,
) -> None:
    (tmp_path / "production").mkdir()
    dev = Agent("dev", model=Script(removes), tools=[rm.replace(needs_approval=True)])
    policy = {"passthrough_child_callbacks": True}
    mid = above(dev, "mid", workspace=Folder(tmp_path / "production"), callback_policy=policy)
    top = above(mid, tools=[rm], callback_policy={"may_approve": ["rm"]})
    reply = await prompted(tmp_path / "log.db", top, "dev")
    assert (reply.status, RAN) == ("waiting", [])


async def test_an_approved_call_of_a_child_that_was_prompted_directly_runs_once_it_is_resumed_by_its_id(
    tmp_path: Path,
) -> None:
    path, root = tmp_path / "log.db", above(child(), kit=[approve({"rm": True})])
    await prompted(path, root, "dev")
    async with Runtime(path, agents=[root]) as runtime:
        (asked,) = await runtime.inbox()
        await runtime.answer(asked.id, Approve())
        reply = await runtime.resume(asked.session_id)
    assert (reply.text, RAN) == ("done", ["all"])


# --- side turns -----------------------------------------------------------------------------


async def side_turn_of(path: Path, aside: Decide) -> tuple[Agent, str]:
    """An agent that was asked something in a side turn, and the side turn's id."""

    def says(request: Request) -> Any:
        if request.purpose == "side_turn":
            return aside(request)
        if re.search("remove it|raises a callback", request.messages[-1].text):
            return call("rm")
        said = results(request.messages)
        return said[-1].text if said else call("task", agent="developer", prompt="begin")

    below = asker(use_host=False)
    top = Agent("top", model=Script(says), agents=[below], tools=[rm], can_use_host_interaction=False)
    async with Runtime(path, agents=[top]) as runtime:
        await (await runtime.start(top, "s")).prompt("begin")
        (found,) = [row.id for row in await runtime.rows() if row.kind == "side_turn"]
    return top, found


async def test_a_side_turn_can_not_be_prompted_as_if_it_were_a_session(tmp_path: Path) -> None:
    top, found = await side_turn_of(tmp_path / "log.db", answers("red"))
    async with Runtime(tmp_path / "log.db", agents=[top]) as runtime:
        session = await runtime.load(found)
        with pytest.raises(SetupError, match="is a side turn of top"):
            await session.prompt("remove it")
        with pytest.raises(SetupError, match="Use its session s"):
            await session.trigger_compaction()
    assert RAN == []


async def test_a_side_turn_that_failed_can_not_be_resumed_with_all_tools(tmp_path: Path) -> None:
    def fails(_: Request) -> Any:
        raise RuntimeError("down")

    top, found = await side_turn_of(tmp_path / "log.db", fails)
    async with Runtime(tmp_path / "log.db", agents=[top]) as runtime:
        with pytest.raises(SetupError, match="side turn"):
            await runtime.resume(found)
    assert RAN == []


# --- at the command line --------------------------------------------------------------------

PROGRAM = '''
from pathlib import Path

from upcall import Agent, tool
from upcall.kit import approve
from upcall.models import Script, call


@tool
def rm() -> str:
    """Remove."""
    Path("removed").touch()
    return "removed"


def works(request):
    last = request.messages[-1]
    return call("rm") if last.role == "user" and "remove" in last.text else "done"


def hands_on(request):
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason="not mine")
    said = [result.text for message in request.messages for result in message.results]
    return said[-1] if said else call("task", agent="dev", prompt="begin")


dev = Agent("dev", model=Script(works), tools=[rm])
top = Agent("top", model=Script(hands_on), agents=[dev], kit=[approve({"rm": True})])
'''


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    where = [sys.executable, "-m", "upcall", *words, "--store", "log.db"]
    return subprocess.run(where, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


@pytest.mark.slow
def test_run_with_a_childs_id_needs_the_agents_above_it_and_names_the_command_that_resumes_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "team.py").write_text(PROGRAM)
    assert command(tmp_path, "run", "team:top", "begin", "--id", "top").returncode == 0

    alone = command(tmp_path, "run", "team:dev", "remove it", "--id", "top~r1c0")
    assert (alone.returncode, "there is no agent called 'top'" in alone.stderr) == (2, True)

    below = command(tmp_path, "run", "team:top", "remove it", "--id", "top~r1c0")
    assert (below.returncode, (tmp_path / "removed").exists()) == (3, False)
    assert re.search(r"resume '?top~r1c0'? ", below.stderr)
    asked = command(tmp_path, "inbox", "--ids").stdout.strip()
    assert re.search(r"resume '?top~r1c0'? ", command(tmp_path, "answer", asked, "--approve").stdout)
    assert command(tmp_path, "resume", "top~r1c0").returncode == 0
    assert (tmp_path / "removed").exists()
