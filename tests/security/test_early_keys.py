"""An approval takes no key that was pressed before it could be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import asking
from cli.chatting import make_helper
from cli.command import out
from cli.screen import CTRL_D, Screen
from quick import slow_after

pytestmark = pytest.mark.slow

PROGRAM = '''\
from pathlib import Path

from upcall import Agent, Context, tool
from upcall.models import Script, call


@tool
async def name(ctx: Context) -> str:
    """Name."""
    return "called " + str(await ctx.raise_callback("What is it called?", "query"))


@tool
async def both(ctx: Context) -> str:
    """Name and place."""
    name = await ctx.raise_callback("What is it called?", "query")
    return f"{name} in the {await ctx.raise_callback('Where is it?', 'query')}"


@tool
async def pick(ctx: Context) -> str:
    """Pick."""
    return "picked " + str(await ctx.raise_callback("Which one?", "query", choices=["y", "n"]))


@tool(needs_approval=True)
async def deploy(env: str) -> str:
    """Deploy."""
    Path("deployed.txt").write_text(env)
    return f"deployed {env}"


def says(request):
    last = request.messages[-1]
    if last.role != "tool" and last.text != "deploy":
        return call(last.text)
    ended = last.results and "deploy" in last.results[0].text
    return last.results[0].text if ended else call("deploy", env="prod")


agent = Agent("agent", model=Script(says), tools=[name, both, pick, deploy])
'''

PROMPT = "[a]pprove"


@pytest.mark.parametrize("harmless", slow_after(1, ["name", "pick"]))
@pytest.mark.parametrize("keys", ["y\ry\r", "y\ry\ry\r", "y\ra\ra\ra\r", "y\rs\r", "y\re\r{}\r", "y\rr\rno\r"])
def test_keys_typed_at_a_harmless_question_do_not_answer_the_approval_after_it(
    keys: str, harmless: str, tmp_path: Path
) -> None:
    (tmp_path / "early.py").write_text(PROGRAM)
    with Screen("run", "early:agent", harmless, "--id", "s1", cwd=tmp_path) as screen:
        screen.see("your answer" if harmless == "name" else "your choice")
        screen.press(keys)
        screen.see("wants to run deploy")
        screen.see(PROMPT)
        assert not (tmp_path / "deployed.txt").exists()
        (held,) = out("inbox", cwd=tmp_path)
        assert (held["tool"], held["status"]) == ("deploy", "open")
        screen.enter("a", "approved once", "done ·")
        assert screen.end() == 0
    assert (tmp_path / "deployed.txt").read_text() == "prod"


def test_keys_pressed_as_soon_as_the_approval_is_shown_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(PROGRAM)
    with Screen("run", "early:agent", "deploy", "--id", "s1", cwd=tmp_path) as screen:
        screen.see("wants to run deploy")
        screen.press("y\r")
        screen.see(PROMPT)
        assert not (tmp_path / "deployed.txt").exists()
        screen.enter("r", "why not")
        screen.enter("no", "rejected: no")
    assert not (tmp_path / "deployed.txt").exists()


def test_keys_typed_before_answer_has_shown_the_approval_are_dropped(tmp_path: Path) -> None:
    (held,) = asking.parked(asking.make_team(tmp_path), "deploy")
    with Screen("answer", held["id"], cwd=tmp_path) as screen:
        screen.press("y\ry\r")
        screen.see(PROMPT)
        assert out("inbox", cwd=tmp_path)[0]["status"] == "open"
        screen.enter("a", "approved once")
        assert screen.end() == 0


def test_keys_typed_in_a_chat_do_not_answer_the_approval_that_takes_the_screen(tmp_path: Path) -> None:
    make_helper(tmp_path)
    with Screen("chat", "crew:helper", "--id", "s1", cwd=tmp_path) as screen:
        screen.see("›")
        screen.press("deploy\r")
        screen.press("a\ra\r")
        screen.see("wants to run deploy")
        screen.press("a\r")
        screen.see(PROMPT)
        (held,) = out("inbox", cwd=tmp_path)
        assert held["status"] == "open"
        screen.enter("l", "left for later")
        screen.press(CTRL_D)


def test_keys_typed_before_a_command_asks_whether_to_delete_delete_nothing(tmp_path: Path) -> None:
    asking.parked(asking.make_team(tmp_path), "deploy")
    with Screen("sessions", "delete", "s1", cwd=tmp_path) as screen:
        screen.press("y\ry\r")
        screen.see("with all children?")
        screen.press("y\r")
        screen.see("[y/N]")
        screen.enter("n", "nothing was deleted")
        assert screen.end() == 1
    assert any(row["id"] == "s1" for row in out("sessions", cwd=tmp_path))


def test_a_question_that_is_no_approval_still_takes_what_was_typed_ahead(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(PROGRAM)
    with Screen("run", "early:agent", "both", "--id", "s1", cwd=tmp_path) as screen:
        screen.see("your answer")
        screen.press("Otto\ryard\ra\r")
        screen.see("answered: Otto")
        screen.see("answered: yard")
        screen.see(PROMPT)
    assert not (tmp_path / "deployed.txt").exists()
