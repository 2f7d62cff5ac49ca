"""Team folders and `upcall new`, in real processes: what is written works at once and as its files say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command import environment, out, upcall
from cli.screen import ENTER, Screen
from house.measure import ROOT
from quick import slow_after
from upcall.agentfiles.ancestry import ancestor_chains
from upcall.agentfiles.load import load_policies
from upcall.cli.new import TEMPLATES

ASK = ("callback_to_caller", "clarification", "--agent")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the team `site` in it."""
    done = upcall("new", "team", "site", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    """What a person does in an editor."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def run_pytest(folder: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The tests of a made folder, as its reader runs them, who has pytest and none of our plugins."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder]
    env = environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)


# --- new --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "prompt", "says", "counts"),
    [
        ("agent", "Write a card for Ada", "card.txt is for Ada\n", "1 agent"),
        ("team", "Say hello", "Done: page.html is written in teal.\n", "1 team, 4 agents"),
    ],
)
@pytest.mark.parametrize("name", slow_after(1, ["made", "3.d-prints"]))
def test_what_new_writes_works_at_once(
    what: str, name: str, prompt: str, says: str, counts: str, tmp_path: Path
) -> None:
    assert upcall("new", what, name, cwd=tmp_path).returncode == 0
    done, checked = upcall("run", name, prompt, cwd=tmp_path), upcall("check", name, cwd=tmp_path)
    tested = run_pytest(name, tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (0, says, "")
    assert (checked.returncode, checked.stdout) == (0, f"{counts}, 0 errors, 0 warnings\n")
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout


@pytest.mark.slow
@pytest.mark.parametrize("what", ["agent", "team"])
def test_new_says_what_it_wrote_and_every_command_that_it_names_runs(what: str, tmp_path: Path) -> None:
    told = upcall("new", what, "made", cwd=tmp_path).stdout
    files = {file.name for file in (tmp_path / "made").iterdir()}
    commands = [row.split('"') for row in told.splitlines() if row.startswith("  upcall ")]

    assert {"play.py", "tools_made.py", "test_made.py"} <= files
    assert all(file in told for file in files if file.endswith(".py"))
    assert not [text for file in (tmp_path / "made").iterdir() if "NAME" in (text := file.read_text())]
    assert max(len(row) for row in told.splitlines()) <= 80
    codes = [upcall(*first.split()[1:], *quoted[:1], cwd=tmp_path).returncode for first, *quoted in commands]
    assert set(codes) <= {0, 3}


@pytest.mark.parametrize("there", ["file", "full"])
def test_new_leaves_alone_what_is_there(there: str, tmp_path: Path) -> None:
    kept = tmp_path / "made" if there == "file" else tmp_path / "made" / "notes.txt"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")

    done = upcall("new", "agent", "made", cwd=tmp_path)

    assert done.returncode == 2
    assert done.stderr == "upcall: 'made' already exists; choose another name, or remove it first\n"
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [kept]


def test_new_fills_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    assert upcall("new", "agent", "made", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a/b", "'a/b' is not a valid agent name"),
        ("..", "'..' is not a valid agent name"),
        ("fail", "no agent may be called 'fail'"),
        (
            "tester",
            "'tester' is already the name of an agent (developer, manager, reviewer, tester); choose another name",
        ),
    ],
)
def test_a_name_that_can_not_be_one_is_told_and_nothing_is_made(name: str, says: str, tmp_path: Path) -> None:
    done = upcall("new", "team", name, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert not list(tmp_path.iterdir())


def test_every_template_is_text_that_is_filled_in(tmp_path: Path) -> None:
    for template in TEMPLATES.iterdir():
        assert {file.suffix for file in template.iterdir()} <= {".md", ".json", ".toml", ".txt"}


# --- a team's files decide what happens -------------------------------------------------


def test_a_changed_prompt_changes_what_the_manager_answers(site: Path) -> None:
    change(site / "site" / "manager.md", "teal", "crimson")
    assert upcall("run", "site", "hello", cwd=site).stdout == "Done: page.html is written in crimson.\n"


@pytest.mark.slow
def test_a_changed_policy_takes_the_question_to_the_person_and_resume_finds_the_team(site: Path) -> None:
    change(site / "site" / "developer.json", '"can_query_caller": true', '"can_query_caller": false')
    tested = run_pytest("site", site)
    done = upcall("run", "site", "hello", "--id", "s1", cwd=site)
    (callback,) = out("inbox", cwd=site)
    upcall("answer", callback["id"], "gold", cwd=site)

    resumed = upcall("resume", "s1", "--store", str(site / ".upcall" / "log.db"), cwd=site.parent)

    assert "1 failed, 1 passed" in tested.stdout  # the tests hold the policy, and say what became of the question
    assert "assert [('developer01', 'withdrawn')] == [('developer01', 'answered')]" in tested.stdout
    assert done.returncode == 3
    assert "developer01 asks: Which colour should the page have?" in done.stderr
    assert (resumed.returncode, resumed.stdout) == (0, "Done: page.html is written in gold.\n")
    again = upcall("run", "site", "hello", "--id", "s1", cwd=site)
    assert (again.returncode, again.stdout) == (3, "")  # the reply of the turn before is none of this one


@pytest.mark.slow
def test_a_manager_that_does_not_know_passes_the_question_up_to_the_terminal(site: Path) -> None:
    change(site / "site" / "manager.md", "The house colour is teal.", "")
    with Screen("run", "site", "hello", cwd=site) as screen:
        screen.see("manager passed it up: nobody told me the colour")
        screen.see("Which colour should the page have?")
        screen.press(f"plum{ENTER}")
        screen.see("Done: page.html is written in plum.")
        assert screen.end() == 0


@pytest.mark.slow
def test_the_how_to_is_true_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    """Its `console` blocks are typed and their output compared; its `diff` blocks are made in the files."""
    page = (ROOT / "docs" / "how-to" / "team-folders.md").read_text()
    blocks = re.findall(r"^```(console|diff)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in blocks].count("diff") == 3
    for kind, text in blocks:
        if kind == "diff":
            file, old, new = (row[3 * row.startswith("---") or 1 :] for row in text.splitlines())
            change(tmp_path / file.strip(), old, new)
        for typed, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            real: str = out("inbox", cwd=tmp_path)[0]["id"] if "answer" in typed else ""
            done = upcall(*shlex.split(typed.replace("q4f0c2a9d11e7", real))[1:], cwd=tmp_path)
            said = re.sub(r"\bq[0-9a-f]{12}\b", "q4f0c2a9d11e7", done.stdout + done.stderr)
            assert said.startswith(shown), typed


# --- check and explain ------------------------------------------------------------------


def test_check_tells_a_teams_mistakes_with_file_line_key_and_what_is_allowed(site: Path) -> None:
    change(site / "site" / "team.toml", 'reviewer = "reviewer"', 'reviewer = "nobody"')
    change(site / "site" / "team.toml", '"go_on"', '"go on"')
    done = upcall("check", "site", cwd=site)
    members = "developer, manager, reviewer, tester"
    ways = 'must be one of "stop", "go_on", "replan", not "go on". Did you mean go_on?'
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"error    site/team.toml:5: reviewer: there is no agent called 'nobody'; known agents: {members}",
        f"error    site/team.toml:6: on_failure: {ways}",
        "",
        "4 agents, 2 errors, 0 warnings",
    ]


def test_check_tells_what_only_shows_when_the_agents_are_built(site: Path) -> None:
    change(site / "site" / "developer.md", "[tools_site:write_page]", "[tools_site:write_page, again:write_page]")
    tools = (site / "site" / "tools_site.py").read_text()
    (site / "site" / "again.py").write_text(tools)
    done = upcall("check", "site", cwd=site)
    assert done.returncode == 1
    says = "two of its tools are called 'write_page': tools_site:write_page and again:write_page"
    assert f"site/developer.md:4: tools: {says}; rename one" in done.stdout


LEAD = """
from upcall.models import Script, call


def play(request):
    if request.purpose == "side_turn":
        return call("answer_callback", value="gold")
    results = [result for message in request.messages for result in message.results]
    return results[-1].text if results else call("task", agent="site", prompt="hello")


script = Script(play)
"""


def test_explain_draws_a_worker_below_its_manager_and_what_is_above_the_team(site: Path) -> None:
    alone = upcall("explain", "site", *ASK, "developer", cwd=site).stdout.splitlines()
    manager = upcall("explain", "site/manager.md", *ASK[:2], cwd=site).stdout.splitlines()
    folder = site / "site"
    (folder / "lead.md").write_text("---\nmodel: script:lead.py\nagents: [site]\n---\nYou lead.\n")
    (folder / "lead.json").write_text('{"can_query_caller": true, "can_use_host_interaction": true}')
    (folder / "lead.py").write_text(LEAD)
    below = upcall("explain", "site", *ASK, "developer", cwd=site).stdout.splitlines()
    under = upcall("explain", "site", *ASK, "developer", "--under", "lead,manager", cwd=site).stdout.splitlines()

    assert [row.split()[1] for row in alone[1:]] == ["manager", "the"]
    assert [row.split()[1] for row in manager[1:]] == ["the"]
    assert [row.split()[1] for row in below[1:]] == ["manager", "lead", "the"]
    assert under == below

    change(folder / "manager.md", "The house colour is teal.", "")
    ran = out("run", "site", "hello", cwd=site)
    assert (ran["agent"], ran["text"]) == ("lead", "Done: page.html is written in gold.")
    (callback,) = ran["callbacks"]
    assert [step["agent"] for step in callback["path"] if step["step"] == "asked"] == ["manager", "lead"]


def test_explain_of_a_team_itself_says_whom_to_choose(site: Path) -> None:
    done = upcall("explain", "site", *ASK[:2], cwd=site)
    assert done.returncode == 2
    assert "choose one of its members with --agent: developer, tester, manager, reviewer" in done.stderr


def test_teams_and_chains_in_python_are_explained_as_they_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "works.py").write_text(
        "from upcall import Agent, Team, chain\n"
        "worker, first, checker = Agent('worker'), Agent('first'), Agent('checker')\n"
        "team = Team(Agent('boss'), {'worker': worker}, checker)\n"
        "top = Agent('top', agents=[chain(first, team, name='steps')])\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)

    ways = {
        name: ancestor_chains(name, load_policies("works:top", name).positions, 10)
        for name in ("worker", "boss", "checker", "first")
    }

    assert ways == {"worker": [["boss", "top"]], "boss": [["top"]], "checker": [["top"]], "first": [["top"]]}
