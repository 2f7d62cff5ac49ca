"""What the commands show of a team and a chain: plan, steps, roles, and who asked whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.command import out, upcall
from cli.screen import Screen

CREW = '''\
import json

from upcall import Agent, Context, Team, chain, tool
from upcall.models import Script, call
from upcall.teams import branch

PLAN = [
    {"role": "tester", "task": "Test it", "sequence": 2},
    {"role": "developer", "task": "Build the door", "sequence": 1, "caller": "manager"},
    {"role": "developer", "task": "Build the roof", "sequence": 1, "caller": "manager"},
]


@tool
async def measure(ctx: Context) -> str:
    """Measure."""
    return await ctx.raise_callback(f"How wide, for {ctx.agent}?", "blocker")


def manage(request):
    if request.purpose == "turn":
        return json.dumps(PLAN)
    if "developer01" in request.messages[-1].text:
        return call("answer_callback", value="2 m")
    return call("pass_up_callback", reason="ask the owner")


def work(request):
    said = [r.text for m in request.messages for r in m.results]
    return said[0] if said else call("measure") if "Build" in request.messages[0].text else "fine"


team = Team(
    Agent("manager", model=Script(manage)),
    {
        "developer": Agent("mason", model=Script(work), tools=[measure]),
        "tester": Agent("tester", model=Script(work)),
    },
    Agent("reviewer", model=Script(["All is well."])),
)
a, b, c = (Agent(name, model=Script(lambda r: f"{r.agent}({r.messages[-1].text})")) for name in "abc")
line = chain(a, branch(lambda reply: "yes", {"yes": b, "no": c}), name="line")
'''

SHOP = """\
from upcall import Agent, tool
from upcall.models import Script, call
from upcall.workspace import run_python


@tool
def price(item: int) -> int:
    \"\"\"The price.\"\"\"
    return item


buys = [call("run_python", code="price(3) + price(4)"), lambda request: request.messages[-1].results[0].text]
shop = Agent("shop", model=Script(buys), tools=[run_python(), price])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A team that waits for an answer in session `job`."""
    made = tmp_path_factory.mktemp("crew")
    (made / "crew.py").write_text(CREW)
    assert upcall("run", "crew:team", "Build a house", "--id", "job", cwd=made).returncode == 3
    return made


def test_a_waiting_team_is_shown_with_its_plan_its_steps_and_its_members(folder: Path) -> None:
    shown = upcall("show", "job", cwd=folder).stdout

    assert (
        "the plan:\n1. developer01: Build the door\n1. developer02: Build the roof\n2. tester01: Test it\n" in shown
    )
    assert "developer01 done: 2 m\n" in shown
    assert "  job~developer02  developer02  waiting\n" in shown


def test_a_managers_plan_is_a_list_to_read(folder: Path) -> None:
    shown = upcall("show", "job~manager", cwd=folder).stdout

    assert (
        "- 1 · developer: Build the door (may ask manager)\n"
        "- 1 · developer: Build the roof (may ask manager)\n"
        "- 2 · tester: Test it (may ask nobody)\n"
    ) in shown
    assert '"role"' not in shown


def test_a_run_at_a_terminal_tells_the_plan_once(folder: Path) -> None:
    with Screen("run", "crew:team", "Build a house", "--store", "its-own.db", cwd=folder) as screen:
        screen.see("2 · tester: Test it (may ask nobody)")
        screen.see("plan accepted: developer01, developer02, tester01")
        screen.see("How wide, for developer02?")
        assert '"role"' not in screen.text


def test_the_calls_of_a_program_stand_below_it(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)
    assert upcall("run", "shop:shop", "Buy", "--id", "buy", cwd=folder).stdout == "7\n"

    lines = [line.split() for line in upcall("show", "buy", cwd=folder).stdout.splitlines()]

    told = [line for line in lines if {"run_python", "price"} & set(line[:3])]
    assert [line[: line.index("run_python") + 1] if "run_python" in line else line[:4] for line in told] == [
        ["▸", "run_python"],
        ["│", "✓", "price", "item=3"],
        ["│", "✓", "price", "item=4"],
        ["✓", "run_python"],
    ]


def test_a_member_is_shown_with_its_role_beside_its_name(folder: Path) -> None:
    lines = upcall("show", "job~developer01", cwd=folder).stdout.splitlines()

    assert [" ".join(line.split()) for line in lines[1:5] if "began" not in line] == [
        "agent developer01",
        "status done",
        "role developer of team",
    ]


def test_sessions_stand_below_the_one_that_began_them(folder: Path) -> None:
    lines = upcall("sessions", cwd=folder).stdout.splitlines()

    names = [line.split()[0] for line in lines if line.split()[0].startswith("job")]
    manager = names.index("job~manager")
    assert names[0] == "job"
    assert [name.rpartition("~")[0] for name in names[manager + 1 : manager + 3]] == ["job~manager", "job~manager"]


def test_inbox_and_explain_say_who_asks_and_whom_it_passed(folder: Path) -> None:
    (waiting,) = out("inbox", "--json", cwd=folder)

    explained = upcall("explain", waiting["id"], cwd=folder).stdout

    assert (waiting["agent"], waiting["session_id"]) == ("developer02", "job~developer02")
    assert "developer02 raises: blocker, callback_to_caller" in explained
    assert "manager     passed it up: ask the owner" in explained


def test_events_tell_of_the_plan_and_every_step(folder: Path) -> None:
    lines = upcall("events", "job", cwd=folder).stdout.splitlines()

    assert [line.split()[2] for line in lines if " step_" in line or " planned" in line] == [
        *("step_started", "step_ended", "planned"),
        *("step_started", "step_started", "step_ended"),
    ]


def test_a_chain_shows_its_hops_and_the_branch_it_took(folder: Path) -> None:
    ran = upcall("run", "crew:line", "x", "--id", "l1", cwd=folder)
    shown = upcall("show", "l1", cwd=folder).stdout

    assert ran.stdout == "b(a(x))\n"
    assert "1.a done: a(x)\nstep 2: yes\n2.b done: b(a(x))\n" in shown
