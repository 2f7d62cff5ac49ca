"""Who changed what: `show` and a run at a terminal name the approver or the hook that really did it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.command import eventually, out, upcall
from cli.tmux import Terminal

pytestmark = pytest.mark.slow

PROGRAM = '''\
import asyncio
from upcall import Agent, Hooks, ModelUnavailable, Response, tool
from upcall.models import Script, call


@tool(needs_approval=True)
def refund(order: str, amount: float) -> str:
    """Refund."""
    return f"refunded {amount}"


def says(request):
    last = request.messages[-1]
    return last.results[0].text if last.results else call("refund", order="A", amount=250.0)


def lower(session, call):
    return call.replace(args={**call.args, "amount": 200.0}) if call.args["amount"] == 250.0 else None


def label(session, call):
    return call.replace(args={**call.args, "order": "A-1"}) if call.args["amount"] == 180.0 else None


desk = Agent("desk", model=Script(says), tools=[refund])
hooked = Agent("hooked", model=Script(says), tools=[refund], hooks=Hooks(before_tool=[lower]))
labelled = Agent("labelled", model=Script(says), tools=[refund], hooks=Hooks(before_tool=[label]))
rescued = Agent(
    "rescued",
    model=Script(lambda request: ModelUnavailable("script", "no line")),
    hooks=Hooks(model_failed=[lambda session, request, error: Response("rescued")]),
)
'''
EDITED = '{"order": "A", "amount": 180.0}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "desks.py").write_text(PROGRAM)
    (tmp_path / "args.json").write_text(EDITED)
    return tmp_path


def shown_after_an_edit(folder: Path, agent: str) -> str:
    """What `show` prints of a call that ops approved with another amount."""
    upcall("run", f"desks:{agent}", "go", "--id", "s1", cwd=folder)
    (entry,) = out("inbox", cwd=folder)
    upcall("answer", entry["id"], "--edit", "args.json", "--by", "ops", cwd=folder)
    upcall("resume", "s1", cwd=folder)
    return upcall("show", "s1", cwd=folder).stdout


def test_show_names_the_approver_who_edited_a_call_and_blames_no_hook(folder: Path) -> None:
    shown = shown_after_an_edit(folder, "desk")
    assert "  ↳ ops changed the call: amount 250.0 → 180.0\n" in shown
    assert "hook" not in shown


def test_show_tells_apart_what_a_hook_and_an_approver_changed(folder: Path) -> None:
    shown = shown_after_an_edit(folder, "hooked")
    hook, approver = (
        "  ↳ hook before_tool changed the call: amount 250.0 → 200.0\n",
        "  ↳ ops changed the call: amount 200.0 → 180.0\n",
    )
    assert hook + approver in shown
    assert re.search(r'✓ refund  order="A" amount=180.0 +ok', shown)


def test_a_hook_that_changes_an_edited_call_is_named_after_the_approver(folder: Path) -> None:
    shown_after_an_edit(folder, "labelled")
    (entry,) = out("inbox", cwd=folder)
    upcall("answer", entry["id"], "--approve", "--by", "boss", cwd=folder)
    upcall("resume", "s1", cwd=folder)
    shown = upcall("show", "s1", cwd=folder).stdout
    approver = "  ↳ ops changed the call: amount 250.0 → 180.0\n"
    assert f'{approver}  ↳ hook before_tool changed the call: order "A" → "A-1"\n' in shown
    assert "boss changed" not in shown


def test_a_chat_names_the_approver_who_edited_a_call(folder: Path) -> None:
    with Terminal("chat", "desks:desk", "--id", "s1", cwd=folder) as terminal:
        eventually(lambda: terminal.rows[-1] == "›", "the line is there")
        terminal.press("go", "Enter")
        terminal.see("[e]dit")
        upcall("answer", out("inbox", cwd=folder)[0]["id"], "--edit", "args.json", "--by", "ops", cwd=folder)
        screen = terminal.see("↳ ops changed the call: amount 250.0 → 180.0")
    assert "hook" not in screen


def test_a_response_of_a_model_failed_hook_is_not_told_as_one_of_before_model(folder: Path) -> None:
    upcall("run", "desks:rescued", "go", "--id", "s1", cwd=folder)
    shown = upcall("show", "s1", cwd=folder).stdout
    assert "↳ hook model_failed answered in the model's place" in shown
    assert "before_model" not in shown
