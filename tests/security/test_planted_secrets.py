"""Secrets that are planted everywhere in a run are printed by no command and written to no file for people."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.command import eventually, start, upcall
from cli.screen import CTRL_D, Screen
from upcall import Agent, Callback, Context, Delta, Hooks, Result, Runtime, tool
from upcall.events import TurnEnded
from upcall.models import Script, call
from upcall.observe import Redactor

ENVIRON = "zq8-planted-in-env-09"
SECRETS = {
    "environment": ENVIRON,
    "argument": "planted-argument-77",
    "header": "planted-header-1234567890",
    "result": "sk-proj-planted-in-result-1",
    "behind a hook": "planted-behind-a-hook",
    "shown behind a hook": "planted-in-output-behind-a-hook",
    "prompt": "ghp_plantedinprompt1234567890",
    "reply": "sk-ant-planted-in-reply-12345",
    "data": "planted-in-data-5",
}
"""By where it is planted. No secret is part of another one."""

PROGRAM = f"""
import os

from upcall import Agent, Context, Hooks, tool
from upcall.models import Script, call

SECRETS = {SECRETS!r}


@tool
async def fetch(url: str, headers: dict, ctx: Context) -> str:
    '''Fetch.'''
    ctx.show("got " + SECRETS["shown behind a hook"] + chr(10))
    if "hidden" in url:
        return "raw: " + SECRETS["behind a hook"]
    return f"{{os.environ['SHOP_TOKEN']}} and {{SECRETS['result']}}, Authorization: Bearer {{SECRETS['header']}}"


@tool(needs_approval=True)
async def pay(amount: int, password: str, ctx: Context) -> str:
    '''Pay.'''
    with open("paid.txt", "a") as file:
        file.write(f"{{amount}} {{password}}" + chr(10))
    colour = await ctx.raise_callback(
        f"Is {{SECRETS['result']}} right?", "query", choices=["yes", "use " + os.environ["SHOP_TOKEN"]],
        context={{"api_key": SECRETS["argument"], "seen": os.environ["SHOP_TOKEN"]}},
    )
    return f"paid, {{SECRETS['header'] and 'thanks'}}"


async def hides(session, call, result):
    return result.replace(text="nothing to see") if "raw" in result.text else None


def play(request):
    results = [message for message in request.messages if message.role == "tool"]
    headers = {{"Authorization": "Bearer " + SECRETS["header"], "X-Api-Key": SECRETS["argument"]}}
    match len(results):
        case 0:
            said = "I use " + SECRETS["result"] + " and " + os.environ["SHOP_TOKEN"] + "."
            return [said, call("fetch", url="https://me:" + SECRETS["header"] + "@host/", headers=headers)]
        case 1:
            return call("fetch", url="https://hidden/?token=" + SECRETS["argument"], headers=headers)
        case 2:
            return call("pay", amount=5, password=SECRETS["argument"])
        case _:
            return "Done with " + SECRETS["reply"] + " and " + os.environ["SHOP_TOKEN"] + "."


RIGHTS = {{"can_query_caller": True, "can_use_host_interaction": True}}
clerk = Agent("clerk", model=Script(play), tools=[fetch, pay], hooks=Hooks(after_tool=[hides]), **RIGHTS)
"""

PROMPT = f"Pay with {SECRETS['prompt']}"
DATA = f'{{"password": "{SECRETS["data"]}"}}'
ENV = {"SHOP_TOKEN": ENVIRON}


def planted_in(text: str) -> list[str]:
    """The places whose secret is in a text, in whole or in large part."""
    return [where for where, secret in SECRETS.items() if secret in text or secret[:-4] in text]


def clean(done: subprocess.CompletedProcess[str], what: str) -> str:
    """The output of a command, which holds no secret."""
    assert planted_in(done.stdout + done.stderr) == [], f"{what}: {done.stdout}{done.stderr}"
    return done.stdout


LOGGED = ("--log-dir", "logs", "--capture", "--events-file", "_events.jsonl")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log in which a session waits for an approval that hides something."""
    return waiting_session(tmp_path_factory.mktemp("planted"))


def waiting_session(folder: Path) -> Path:
    """Run a session until it waits for an approval."""
    (folder / "shop.py").write_text(PROGRAM)
    waits = upcall("run", "shop:clerk", PROMPT, "--id", "s", "--data", DATA, *LOGGED, cwd=folder, **ENV)
    assert waits.returncode == 3, waits.stderr
    clean(waits, "run")
    return folder


LOOKS = [
    ("inbox",), ("inbox", "--json"), ("sessions",), ("sessions", "--json"), ("show", "s"), ("show", "s", "--json"),
    ("tree", "s"), ("tree", "s", "--json"), ("events",), ("events", "s"), ("events", "s", "--json"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_no_command_prints_a_secret_while_something_waits(command: tuple[str, ...], place: Path) -> None:
    assert "hidden" in clean(upcall(*command, cwd=place, **ENV), " ".join(command)) or command == ("sessions",)


@pytest.mark.slow
@pytest.mark.parametrize("command", [one for one in LOOKS if "--json" not in one], ids=" ".join)
def test_no_command_shows_a_secret_at_a_terminal(command: tuple[str, ...], place: Path) -> None:
    with Screen(*command, cwd=place, **ENV) as screen:
        assert screen.end() == 0
    assert planted_in(screen.text) == []


def test_raw_events_hide_nothing_but_what_a_hook_replaced(place: Path) -> None:
    found = planted_in(upcall("events", "--raw", "--json", cwd=place, **ENV).stdout)
    assert set(found) == {*SECRETS} - {"behind a hook", "shown behind a hook", "reply"}


@pytest.mark.slow
def test_followed_events_hide_secrets(place: Path) -> None:
    following = start("events", "s", "--follow", "--json", cwd=place, SHOP_TOKEN=ENVIRON)
    lines: list[str] = []
    assert following.stdout is not None
    while "callback_asked" not in (lines[-1:] or [""])[0]:
        lines.append(following.stdout.readline())
    following.terminate()
    following.communicate()
    assert planted_in("".join(lines)) == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a session that is done; every command on the way there printed no secret."""
    folder = waiting_session(tmp_path_factory.mktemp("finished"))
    (approval,) = upcall("inbox", "--ids", cwd=folder, **ENV).stdout.split()
    edited = json.dumps({"amount": 7, "password": json_of("inbox", folder)[0]["args"]["password"]})
    clean(upcall("answer", approval, "--edit", edited, cwd=folder, **ENV), "answer")
    clean(upcall("resume", "s", *LOGGED, cwd=folder, **ENV), "resume")

    (question,) = upcall("inbox", "--ids", cwd=folder, **ENV).stdout.split()
    clean(upcall("explain", question, cwd=folder, **ENV), "explain")
    with Screen("answer", question, cwd=folder, **ENV) as screen:
        screen.see("your choice, 1-2")
        screen.enter("2")
        assert screen.end() == 0
    assert planted_in(screen.text) == []
    with Screen("resume", "s", *LOGGED, cwd=folder, **ENV) as screen:
        assert screen.end() == 0
    assert "Done with" in screen.text
    assert planted_in(screen.text) == []
    return folder


@pytest.mark.slow
def test_an_approval_that_is_edited_beside_a_hidden_value_runs_with_the_real_one(finished: Path) -> None:
    paid = (finished / "paid.txt").read_text().splitlines()  # the tool runs again when its question is answered
    assert {*paid} == {f"7 {SECRETS['argument']}"}


@pytest.mark.slow
@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_no_command_prints_a_secret_of_a_session_that_is_done(command: tuple[str, ...], finished: Path) -> None:
    clean(upcall(*command, cwd=finished, **ENV), " ".join(command))


@pytest.mark.slow
def test_files_for_people_hold_no_secret(finished: Path) -> None:
    files = [finished / "_events.jsonl", finished / "logs" / "clerk.log"]
    for file in files:
        assert "hidden" in file.read_text()
        assert planted_in(file.read_text()) == [], file


@pytest.mark.slow
def test_what_is_hidden_is_revealed_to_a_person_and_the_log_says_so(tmp_path: Path) -> None:
    waiting_session(tmp_path)
    (approval,) = upcall("inbox", "--ids", cwd=tmp_path, **ENV).stdout.split()
    assert "1 value is hidden" in clean(upcall("inbox", cwd=tmp_path, **ENV), "inbox")
    wrong = upcall("answer", approval, "--edit", '{"amount": 7, "password": "⟦hidden 3 #9⟧"}', cwd=tmp_path, **ENV)
    assert (wrong.returncode, "is not a placeholder of a value" in wrong.stderr) == (1, True)

    assert SECRETS["argument"] in upcall("inbox", "--reveal", approval, cwd=tmp_path, **ENV).stdout
    events = [json.loads(line) for line in upcall("events", "s", "--json", cwd=tmp_path, **ENV).stdout.splitlines()]
    seen = [one for one in events if one["type"] == "callback_revealed"]
    assert [(one["callback_id"], one["right"]) for one in seen] == [(approval, "os-user")]

    clean(upcall("answer", approval, "--reject", "no", "--json", cwd=tmp_path, **ENV), "answer --json")
    late = upcall("inbox", "--reveal", approval, cwd=tmp_path, **ENV)
    assert (late.returncode, "only a question that waits" in late.stderr) == (2, True)


@pytest.mark.slow
def test_a_reply_in_a_pipe_is_handed_over_unchanged_and_nothing_else(tmp_path: Path) -> None:
    waiting_session(tmp_path)
    (approval,) = upcall("inbox", "--ids", cwd=tmp_path, **ENV).stdout.split()
    upcall("answer", approval, "--reject", "no", cwd=tmp_path, **ENV)
    done = upcall("resume", "s", "--json", cwd=tmp_path, **ENV)
    reply = f"Done with {SECRETS['reply']} and {ENVIRON}."
    assert json.loads(done.stdout)["text"] == reply
    assert planted_in(done.stdout.replace(reply, "") + done.stderr) == []
    assert upcall("run", "shop:clerk", "again", "--id", "s", cwd=tmp_path, **ENV).stdout == f"{reply}\n"


@pytest.mark.slow
def test_a_chat_shows_no_secret_in_a_pipe_and_at_a_terminal(finished: Path) -> None:
    clean(upcall("chat", "shop:clerk", "--id", "s", cwd=finished, given="again\n", **ENV), "chat")
    with Screen("chat", "shop:clerk", "--id", "s", cwd=finished, **ENV) as screen:
        screen.see("Done with")
        screen.enter("once more", "Done with", "done ·")
        screen.enter("/unfold 3", "called by clerk")
        screen.press(CTRL_D)
        screen.end()
    assert planted_in(screen.text) == []


def test_users_add_what_to_hide(place: Path) -> None:
    (place / "hide.json").write_text('{"values": ["nothing to see"]}')
    assert "nothing to see" in upcall("show", "s", cwd=place, **ENV).stdout
    shown = upcall("show", "s", cwd=place, UPCALL_HIDE="hide.json", **ENV).stdout
    assert "nothing to see" not in shown
    (place / "bad.json").write_text("[")
    done = upcall("show", "s", cwd=place, UPCALL_HIDE="bad.json", **ENV)
    assert (done.returncode, "bad.json can't be read" in done.stderr) == (2, True)


def test_an_agent_may_neither_reveal_nor_see_raw_events(place: Path) -> None:
    for command in (("events", "--raw"), ("inbox", "--reveal", "q1")):
        done = upcall(*command, cwd=place, UPCALL_AGENT_COMMAND="s", **ENV)
        assert done.returncode == 1, done.stdout
        assert "a person has to run it" in done.stderr


def test_a_warning_of_the_command_hides_secrets(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    done = upcall("run", "shop:clerk", PROMPT, "--store", ":memory:", cwd=tmp_path, **ENV)
    assert planted_in(done.stderr) == []


def json_of(command: str, place: Path) -> Any:
    return json.loads(upcall(command, "--json", cwd=place, **ENV).stdout)


# --- in a program -----------------------------------------------------------------------------


async def test_a_notification_hides_secrets_and_a_function_gets_the_question_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    told: list[str] = []

    class Post:
        def add(self, address: str) -> bool:
            return True

        def notify(self, body: str, title: str) -> bool:
            sent.append(title + body)
            return True

    monkeypatch.setitem(sys.modules, "apprise", SimpleNamespace(Apprise=Post))
    monkeypatch.setenv("SHOP_TOKEN", ENVIRON)

    @tool
    async def ask_it(ctx: Context) -> str:
        """Ask."""
        return str(await ctx.raise_callback(f"Is {ENVIRON} or {SECRETS['result']} right?", "query"))

    agent = Agent("a", model=Script([call("ask_it"), "ok"]), tools=[ask_it], can_use_host_interaction=True)

    async def tell(callback: Callback) -> None:
        told.append(callback.message)

    notify = ["mailto://somebody", tell]
    async with Runtime(tmp_path / "log.db", agents=[agent], notify=notify, hold=0) as runtime:
        assert (await (await runtime.start(agent)).prompt("go")).status == "waiting"
    assert len(sent) == 1
    assert "hidden" in sent[0]
    assert planted_in(sent[0]) == []
    assert planted_in(told[0]) == ["environment", "result"]


@tool
async def speak(ctx: Context) -> str:
    """Show something."""
    ctx.show("shown ")
    ctx.show("text")
    return "returned"


async def deltas_of(*hooks: Any) -> tuple[list[str], list[str]]:
    """What a tool shows as watchers get it, and the types of the events that came before it."""
    agent = Agent("a", model=Script([call("speak"), "ok"]), tools=[speak], hooks=Hooks(after_tool=list(hooks)))
    shown: list[str] = []
    before: list[str] = []
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        async for item in session.stream("go"):
            if isinstance(item, Delta) and item.kind == "output":
                shown.append(item.text)
            elif not shown:
                before.append(item.type)
    return shown, before


async def test_what_a_tool_shows_is_shown_as_it_comes_where_no_hook_can_replace_its_result() -> None:
    shown, before = await deltas_of()
    assert shown == ["shown ", "text"]
    assert "tool_ended" not in before


async def test_what_a_tool_shows_is_shown_after_the_hooks_where_there_are_some() -> None:
    async def looks(session: Any, call: Any, result: Result) -> None:
        pass

    shown, before = await deltas_of(looks)
    assert shown == ["shown text"]
    assert "tool_ended" in before


async def test_what_a_tool_shows_is_never_shown_where_a_hook_replaced_its_result() -> None:
    async def hides(session: Any, call: Any, result: Result) -> Result:
        return result.replace(text="other")

    assert (await deltas_of(hides))[0] == []


@pytest.mark.slow
async def test_who_follows_the_log_sees_no_result_before_its_hooks_have_run(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(WAITING_HOOK)
    running = start("run", "shop:clerk", "go", "--id", "w", "--events-file", "e.jsonl", cwd=tmp_path)
    eventually((tmp_path / "in-hook").exists, "the hook runs")
    looks = [(*one, *how) for one in (("events", "w"), ("show", "w"), ("tree", "w")) for how in ((), ("--json",))]
    seen = "".join(upcall(*command, cwd=tmp_path).stdout for command in looks) + (tmp_path / "e.jsonl").read_text()
    (tmp_path / "go-on").touch()
    told, _ = running.communicate(timeout=30)
    assert "tool_ended" in seen
    assert "about-to-be-hidden" not in seen
    later = "".join(upcall(*command, cwd=tmp_path).stdout for command in looks) + (tmp_path / "e.jsonl").read_text()
    assert "about-to-be-hidden" not in later + told
    assert "safe text" in later


WAITING_HOOK = """
import asyncio
from pathlib import Path

from upcall import Agent, Hooks, tool
from upcall.models import Script, call


@tool
async def fetch() -> str:
    '''Fetch.'''
    return "about-to-be-hidden"


async def hides(session, call, result):
    Path("in-hook").touch()
    while not Path("go-on").exists():
        await asyncio.sleep(0.02)
    return result.replace(text="safe text")


clerk = Agent("clerk", model=Script([call("fetch"), "ok"]), tools=[fetch], hooks=Hooks(after_tool=[hides]))
"""


def test_a_copy_has_the_type_of_the_value_and_no_secret_whatever_words_are_secret() -> None:
    redactor = Redactor(environ={"A_TOKEN": "cancelled", "B_TOKEN": ENVIRON})
    ended = TurnEnded(1, "cancelled", error=f"it was {ENVIRON}")
    assert redactor.copy(ended) == ended.replace(error="it was ⟦hidden 21 #1⟧")
